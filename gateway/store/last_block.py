"""The last block that a node holds, looked at before it serves anybody: is it whole, and do the keys fit it?

A shell that reads one block. What it finds:

    its items do not come to the root hash in its end       the stream is damaged: the node does not start
    so of another block on the last data page               so; that page is not full, and has no sum
    its links are not those of the blocks before it here    so: a root hash of theirs has changed; where it is
                                                            that which chain.json knows, it is named
    a signature that the keys were to verify, and do not    the keys are of another network: it does not start
    the proof of a record file does not fit the book        it starts, and says what it lacks: an address book
                                                            changes with its network, and there is one
    a key or data for its proofs are not here               it starts, and says what it lacks
    nothing of that                                         the layout of its root hash, for the next block

Each of these would have every honest publisher refused, or ended with ERROR, for ever.
Source: docs/verification.md, "A node that is started again".
"""

from __future__ import annotations

from typing import NamedTuple

from gateway.blocks.chain import LastLayout
from gateway.blocks.errors import BlockRefused, ItemError, LedgerKeyError
from gateway.blocks.items import proof_of
from gateway.blocks.proofs import ProofKind, kind_of_proof
from gateway.blocks.refusal import Fault, Refusal
from gateway.blocks.root_hash import BlockSummary
from gateway.blocks.verification import BlockVerifier
from gateway.errors import Fatal
from gateway.store.block_store import BlockStore
from gateway.store.stream_check import summary_of

__all__ = ["LastBlock", "look_at_last_block"]


class LastBlock(NamedTuple):
    """What there is to know of it."""

    layout: LastLayout
    """Of its root hash."""
    lack: str | None
    """Why its proofs cannot be checked here; None: they hold, or are not looked at."""


def look_at_last_block(store: BlockStore, verifier: BlockVerifier) -> LastBlock | None:
    """Read and check the last block; None where there is none.

    Args:
        ledger: has been opened.
        verifier: has the keys of the node, and the ledger data that it begins with.

    Raises:
        Fatal: the block is not what was committed.
        LedgerKeyError: the keys contradict it.
        LayoutError, datastream.DatastreamError: it cannot be read.
    """
    store.is_doubted = True
    found = _look(store, verifier)
    store.is_doubted = False
    return found


def _look(store: BlockStore, verifier: BlockVerifier) -> LastBlock | None:
    number = store.last_number
    stored = None if number is None else store.read_block(number)
    if number is None or stored is None:
        return None
    where = f"block {number}, the last in {store.data_dir}"
    hasher = verifier.hasher()
    try:
        hasher.add(stored.items)
        summary = hasher.finish()
    except BlockRefused as refused:
        refusal = refused.refusal
        raise Fatal(f"{where}: {refusal.what}", got=refusal.got, expected=refusal.expected) from None
    except ItemError as error:
        raise Fatal(f"{where}: {error.what}", got=error.got, expected=error.expected) from None
    summary = _as_stored(summary, stored.root_hash, where)
    _check_last_page(store, number)
    _check_doubted(store)
    _check_links(store, summary, where)
    try:
        verdict = verifier.check(summary, stored.items)
    except BlockRefused as refused:
        return LastBlock(LastLayout.of(summary), _lack(summary, refused.refusal, where))
    # A proof that fits the other root alone: the end has another than the one that was signed.
    _as_stored(verdict.summary, stored.root_hash, where)
    return LastBlock(LastLayout.of(verdict.summary), None)


def _as_stored(summary: BlockSummary, root_hash: bytes, where: str) -> BlockSummary:
    """Return the summary with the root hash in the block's end. Raises Fatal if that is none of its own."""
    if summary.root_hash == root_hash:
        return summary
    other = summary.in_other_layout()
    if other is not None and other.root_hash == root_hash:
        return other
    raise Fatal(
        f"{where}: root hash in its end",
        got=root_hash.hex(),
        expected=f"{summary.root_hash.hex()}, that of its items; the stream is damaged (sluice check), and "
        "sluice truncate cuts the block off, for publishers or a peer to bring it again",
    )


def _check_last_page(store: BlockStore, last_number: int) -> None:
    """Compare the root hashes of the blocks that end on the last data page with their items, but the last."""
    first = store.first_on_last_page()
    for number in range(last_number if first is None else first, last_number):
        _check_root(store, number)


def _check_root(store: BlockStore, number: int) -> None:
    """Compare a block's root hash with its items. Raises Fatal if they differ."""
    stored = store.read_block(number)
    summary, problem = (None, "no block") if stored is None else summary_of(stored)
    if summary is None:
        raise Fatal(
            f"block {number} in {store.data_dir}",
            got=problem,
            expected="the root hash of its items; the stream is damaged (sluice check)",
        )


def _check_doubted(store: BlockStore) -> None:
    """Look at the block of which chain.json knows another root hash. Raises Fatal if that is right.

    chain.json may be of another chain, or of before `BlockStore.settle`; then the stream is right.
    """
    if store.doubted_number is not None:
        _check_root(store, store.doubted_number)


def _check_links(store: BlockStore, summary: BlockSummary, where: str) -> None:
    """Compare the block's links with the root hashes here. Raises Fatal: further blocks would be refused.

    They were compared when the block was committed, so one of those that are stored has changed.
    """
    before = store.root_hash_at(summary.number - 1) if summary.number else None
    for field, named, stored in (
        ("footer field 1 (previous_block_root_hash)", summary.previous_root_hash, before),
        (
            "footer field 2 (root_hash_of_all_block_hashes_tree)",
            summary.all_blocks_root_hash,
            store.chain.all_blocks_root_of_last,
        ),
    ):
        if stored is not None and named != stored:
            raise Fatal(
                f"{where}: {field}",
                got=named.hex(),
                expected=f"{stored.hex()}, by the root hashes of the blocks before it as they are stored; "
                "one of them has changed: the stream is damaged (sluice check says where)",
            )


def _lack(summary: BlockSummary, refusal: Refusal, where: str) -> str:
    """Say what the node lacks. Raises LedgerKeyError if its keys contradict the block."""
    kinds = {kind_of_proof(proof_of(item)) for item in summary.proofs}
    if refusal.kind.fault is Fault.SENDER and ProofKind.RECORD_FILE not in kinds:
        raise LedgerKeyError(
            f"ledger keys: {refusal.what} of {where}",
            got=refusal.got,
            expected=f"{refusal.expected}; give the keys of the network whose blocks these are, and both "
            "where its key has changed, or take another folder; a block that mode hash took unchecked is "
            "cut off with sluice truncate",
        )
    return f"{where}, cannot be checked: {refusal}"
