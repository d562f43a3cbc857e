"""Verification of one block: structure, root hash and proofs. `blocks.chain` checks links later, in order.

Pure. If the proofs refuse one root, the verifier tries that of the other layout. Block 0 of a TSS network
brings the ledger data that check its own proof and every later one:

    ledger data known     block 0 publishes     then
    yes                   the same, or none     the known data check its proof
    yes                   others alone          refused: block 0 of another network
    no                    any, and keys allow   they are checked, then check its proof, which must cover the
                                                whole block, not a record file alone
    no                    none                  the other keys check its proof

Source: docs/spec/block-hash.md section 3.3; docs/spec/proofs.md section 2; docs/spec/tss.md section 1.1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final, NamedTuple

from sluice.gateway.blocks.errors import BlockRefused
from sluice.gateway.blocks.proofs import ProofVerifier, signs_root
from sluice.gateway.blocks.proofs.ledger_data import LedgerData, publications_in, published_ledger
from sluice.gateway.blocks.refusal import Fault, Refusal, RefusalKind
from sluice.gateway.blocks.root_hash import BlockHasher, BlockSummary, RootLayout

__all__ = ["BlockVerifier", "Verdict"]

_WHAT: Final = "ledger id publication in block 0"


class Verdict(NamedTuple):
    """An accepted block."""

    summary: BlockSummary
    """With the root that the proofs fit."""
    published: LedgerData | None
    """The ledger data that block 0 publishes, which have checked its proof."""
    is_root_signed: bool  # a checked proof signs the root hash


class BlockVerifier:
    """Checks blocks one at a time."""

    def __init__(self, proofs: ProofVerifier, root_layout: RootLayout = "auto") -> None:
        self.proofs = proofs
        self._root_layout: RootLayout = root_layout

    @property
    def awaits_block_0(self) -> bool:
        """True if block 0 has still to bring the ledger data."""
        proofs = self.proofs
        return proofs.mode == "full" and proofs.ledger is None and proofs.keys.takes_tss_from_block_0

    def believe(self, ledger: LedgerData) -> None:
        """Check proofs with these ledger data from now on."""
        self.proofs = self.proofs.with_ledger(ledger)

    def hasher(self) -> BlockHasher:
        """Return a hasher for the items of a block."""
        return BlockHasher(self._root_layout)

    def verify(self, hasher: BlockHasher, items: Iterable[bytes] = ()) -> BlockSummary:
        """Finish a hasher that has taken a whole block, and `check` it."""
        return self.check(hasher.finish(), items).summary

    def check(self, summary: BlockSummary, items: Iterable[bytes] = ()) -> Verdict:
        """Check the proofs of a block. Block 0 also needs its items, or those that `ledger_data.may_publish`.

        Raises BlockRefused.
        """
        proofs, published = self.proofs, None
        if summary.number == 0 and proofs.mode == "full":
            published = self._published(items)
            if published is not None and proofs.ledger is None:
                proofs = proofs.with_ledger(self._vouching(published))
        summary = _proven(proofs, summary)
        is_root_signed = proofs.mode == "full" and signs_root(summary)
        if is_root_signed:
            summary = summary._replace(root_hash_other_layout=None)
        if published is not None and self.proofs.ledger is None and not is_root_signed:
            # Whoever delivers the block can add a publication with its own WRAPS key beside the record file.
            got, expected = "proofs of the record file alone", "one that covers the whole block"
            raise BlockRefused(Refusal(RefusalKind.BAD_PROOF, _WHAT, got, expected))
        return Verdict(summary, published, is_root_signed)

    def _vouching(self, published: LedgerData) -> LedgerData:
        """A pinned ledger id does not cover the WRAPS key: with one of its own a stranger could prove
        anything.

        So a Schnorr proof, with which all networks begin, must vouch for block 0.
        """
        return published if self.proofs.keys.tss_id is None else replace(published, wraps_vk=b"")

    def _published(self, items: Iterable[bytes]) -> LedgerData | None:
        """Return the ledger data that block 0 publishes, if they matter here.

        Raises BlockRefused if they are not credible, or not the known ones.
        """
        known, keys = self.proofs.ledger, self.proofs.keys
        if known is None and not keys.takes_tss_from_block_0:
            return None
        items = list(items)
        if known is not None and publications_in(items) == [known.publication]:
            return known  # believed before; checking takes up to half a second
        published = published_ledger(items, keys.tss_id if known is None else known.ledger_id)
        if known is None or published is None or published == known:
            return published
        raise BlockRefused(
            Refusal(
                RefusalKind.BAD_PROOF,
                f"{_WHAT}: WRAPS key",
                f"one other than that of ledger {known.ledger_id.hex()}",
                "the ledger data that this node has",
            )
        )


def _proven(proofs: ProofVerifier, summary: BlockSummary) -> BlockSummary:
    """Return the summary with the root that the proofs fit.

    If they fit neither and the node lacks something to check one of them, the refusal says so.
    """
    refusal = proofs.verify(summary)
    if refusal is None:
        return summary
    other = summary.in_other_layout()
    other_refusal = None if other is None else proofs.verify(other)
    if other is not None and other_refusal is None:
        return other
    blames = refusal.kind.fault is Fault.SENDER
    if blames and other_refusal is not None and other_refusal.kind.fault is not Fault.SENDER:
        refusal = other_refusal
    raise BlockRefused(refusal)
