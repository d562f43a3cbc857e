"""Verdicts on the blocks of an existing chain: each block by itself, then the links between them.

Pure. `ChainChecker` checks the links (`gateway.blocks.chain`):

    before this block                       previous_block_root_hash    root_hash_of_all_block_hashes_tree
    all blocks from 0 on                    checked                     checked
    nothing: the first one, above 0         believed: the anchor        believed; from here on not checked
    its predecessor, but not all from 0     checked                     not checked
    one block that was refused or is not    taken for the root of that  checked, if all before that one
    here, and the predecessor of that       block: its proof holds      were here
    more than one such block                believed: a new anchor      believed; from here on not checked

If no proof signs a block's root hash, only the next footer confirms it, and decides its layout. If the two do
not fit, either may be altered: the next block is refused, and the one after it is a new anchor.

Source: docs/spec/block-hash.md section 4; docs/spec/proofs.md section 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.chain import Chain, LastLayout
from sluice.gateway.blocks.errors import BlockRefused, ItemError
from sluice.gateway.blocks.items import proof_of
from sluice.gateway.blocks.proofs import kind_of_proof
from sluice.gateway.blocks.proofs.ledger_data import LedgerData
from sluice.gateway.blocks.refusal import Refusal, RefusalKind
from sluice.gateway.blocks.root_hash import BlockSummary
from sluice.gateway.blocks.verification import BlockVerifier

__all__ = ["BlockVerdict", "ChainChecker", "CheckedBlock", "check_block", "kinds_text", "unreadable"]


@dataclass(frozen=True, slots=True)
class CheckedBlock:
    """The result for one block alone."""

    number: int
    proof_kinds: tuple[str, ...] = ()
    """The kinds of its proofs that parse (`blocks.proofs.ProofKind`), in order."""
    summary: BlockSummary | None = None
    """The summary without items, and without the root of the other layout if a proof signs the root; None: it
    cannot be hashed."""
    refusal: Refusal | None = None
    is_root_signed: bool = False
    published: LedgerData | None = None
    """The ledger data of an accepted block 0, if they may check proofs."""


@dataclass(frozen=True, slots=True)
class BlockVerdict:
    """The verdict on one block, its links included."""

    number: int
    proof_kinds: tuple[str, ...]
    root_hash: bytes | None
    """48 bytes."""
    refusal: Refusal | None
    note: str | None
    """The links that are believed and not checked."""

    @property
    def is_accepted(self) -> bool:
        """True if the block holds."""
        return self.refusal is None

    def as_json(self) -> dict[str, Any]:
        """The object for `--json`."""
        refusal = self.refusal
        return {
            "number": self.number,
            "verdict": "accepted" if refusal is None else "refused",
            "proofs": list(self.proof_kinds),
            "root_hash": None if self.root_hash is None else self.root_hash.hex(),
            "note": self.note,
            "reason": None
            if refusal is None
            else {
                "kind": refusal.kind.value,
                "what": refusal.what,
                "got": refusal.got,
                "expected": refusal.expected,
            },
        }


def kinds_text(kinds: Sequence[str]) -> str:
    """Return the kinds for people, each once."""
    return ", ".join(dict.fromkeys(kinds)) or "none"


def check_block(verifier: BlockVerifier, block: Block) -> CheckedBlock:
    """Check one block alone, without its links; the verifier is not changed."""
    hasher = verifier.hasher()
    try:
        hasher.add(block.items)
        summary = hasher.finish()
    except BlockRefused as refused:
        return CheckedBlock(block.number, refusal=refused.refusal)
    kinds = _kinds(summary)
    try:
        verdict = verifier.check(summary, block.items)
    except BlockRefused as refused:
        return CheckedBlock(block.number, kinds, _light(summary), refused.refusal)
    return CheckedBlock(
        block.number,
        kinds,
        _light(verdict.summary),
        is_root_signed=verdict.is_root_signed,
        published=verdict.published,
    )


def _kinds(summary: BlockSummary) -> tuple[str, ...]:
    kinds = []
    for item in summary.proofs:
        try:
            kinds.append(kind_of_proof(proof_of(item)).value)
        except ItemError:
            continue  # the check refuses it, and says why
    return tuple(kinds)


def _light(summary: BlockSummary) -> BlockSummary:
    """Drop the items, perhaps megabytes, for the way between processes."""
    return summary._replace(proofs=(), record_file=None, header=b"", footer=b"")


class ChainChecker:
    """A check of the links of blocks in order of number; numbers may be missing."""

    def __init__(self) -> None:
        self._chain: Chain | None = None  # up to the last block that was accepted
        self._is_root_signed = False  # of that block
        self._last_number: int | None = None
        self.gaps: list[tuple[int, int]] = []
        """The missing numbers between two blocks: first and last of each gap."""

    def take(self, checked: CheckedBlock) -> BlockVerdict:
        """Return the verdict on the next block; its number is above all before."""
        number, last = checked.number, self._last_number
        assert last is None or number > last
        if last is not None and number > last + 1:
            self.gaps.append((last + 1, number - 1))
        self._last_number = number
        refusal, note, summary = checked.refusal, None, checked.summary
        if refusal is None:
            assert summary is not None
            summary, refusal, note = self._link(summary, checked.is_root_signed)
        root_hash = None if summary is None else summary.root_hash
        return BlockVerdict(number, checked.proof_kinds, root_hash, refusal, note)

    def _link(
        self, summary: BlockSummary, is_root_signed: bool
    ) -> tuple[BlockSummary, Refusal | None, str | None]:
        chain, note = _chain_before(summary, self._chain)
        refusal = chain.check_links(summary)
        settled = None if self._chain is None else self._chain.in_other_layout()
        if refusal is not None and settled is not None:
            other, other_note = _chain_before(summary, settled)
            if other.check_links(summary) is None:
                root = summary.previous_root_hash.hex()
                last = f"the root hash of block {settled.last_number} is that of the other layout, {root}"
                chain, refusal, note = other, None, other_note or f"{last}, as this block's footer says"
        if refusal is None:
            summary = chain.in_its_layout(summary)
            chain.advance(summary.number, summary.root_hash, LastLayout.of(summary))
            self._chain, self._is_root_signed = chain, is_root_signed
        elif not self._is_root_signed:
            self._chain = None  # either of the two may be altered
        return summary, refusal, note if refusal is None else None


def _chain_before(summary: BlockSummary, chain: Chain | None) -> tuple[Chain, str | None]:
    """Return the chain before a block, and what of it is believed."""
    number = summary.number
    if number == 0:
        return Chain(), None
    next_number = 0 if chain is None else chain.next_number
    if chain is not None and number == next_number:
        return chain, None
    if number == next_number + 1:
        bridged = Chain() if chain is None else chain.copy()
        bridged.advance(next_number, summary.previous_root_hash)
        return bridged, f"the root hash of block {next_number} is taken from this block's footer"
    return Chain(number), "the links to the blocks before it are believed"


def unreadable(number: int, path: str, reason: str) -> CheckedBlock:
    """Return the result for a block file that is unreadable or holds no such block."""
    refusal = Refusal(RefusalKind.CANNOT_PARSE, path, reason, f"the file of block {number}")
    return CheckedBlock(number, refusal=refusal)
