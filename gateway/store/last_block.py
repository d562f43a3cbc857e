"""The check of a node's last block before it serves anybody: is the block whole, and do the keys fit it?

Otherwise every honest publisher would be refused, or ended with ERROR, for ever. The other blocks on the last
data page are checked, too, since a page that is not full has no checksum. Of links that differ, one of the
stored root hashes has changed; it is named if chain.json knows it. If nothing is wrong, the result is the
layout of the block's root hash, for the next block.
Source: docs/verification.md, "A node that is started again".
"""

from __future__ import annotations

from typing import NamedTuple

from sluice.gateway.blocks.chain import LastLayout
from sluice.gateway.blocks.errors import BlockRefused, ItemError, LedgerKeyError
from sluice.gateway.blocks.items import proof_of
from sluice.gateway.blocks.proofs import ProofKind, kind_of_proof
from sluice.gateway.blocks.refusal import Fault, Refusal
from sluice.gateway.blocks.root_hash import BlockSummary
from sluice.gateway.blocks.verification import BlockVerifier
from sluice.gateway.errors import Fatal
from sluice.gateway.store.block_store import BlockStore
from sluice.gateway.store.stream_check import summary_of

__all__ = ["LastBlock", "look_at_last_block"]


class LastBlock(NamedTuple):
    """The verdict on the last block."""

    layout: LastLayout
    lack: str | None
    """The reason why its proofs cannot be checked; None: they hold, or need no check."""


def look_at_last_block(store: BlockStore, verifier: BlockVerifier) -> LastBlock | None:
    """Read and check the last block; None without one. `verifier` has the node's keys and ledger data.

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
    # The proof fits only the other root: the end has another than was signed.
    _as_stored(verdict.summary, stored.root_hash, where)
    return LastBlock(LastLayout.of(verdict.summary), None)


def _as_stored(summary: BlockSummary, root_hash: bytes, where: str) -> BlockSummary:
    """Return the summary with the stored root hash. Raises Fatal if the items have another."""
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
    """Check the root hashes of the other blocks that end on the last data page."""
    first = store.first_on_last_page()
    for number in range(last_number if first is None else first, last_number):
        _check_root(store, number)


def _check_root(store: BlockStore, number: int) -> None:
    """Check a block's root hash. Raises Fatal if its items have another."""
    stored = store.read_block(number)
    summary, problem = (None, "no block") if stored is None else summary_of(stored)
    if summary is None:
        raise Fatal(
            f"block {number} in {store.data_dir}",
            got=problem,
            expected="the root hash of its items; the stream is damaged (sluice check)",
        )


def _check_doubted(store: BlockStore) -> None:
    """Check the block whose root hash differs in chain.json. Raises Fatal if the stream is wrong.

    chain.json may be of another chain, or from before `BlockStore.settle`.
    """
    if store.doubted_number is not None:
        _check_root(store, store.doubted_number)


def _check_links(store: BlockStore, summary: BlockSummary, where: str) -> None:
    """Compare the block's links with the stored root hashes. Raises Fatal if one of these has changed.

    Else every further block would be refused.
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
    """Return what the node lacks. Raises LedgerKeyError if its keys contradict the block."""
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
