"""Verification of one block: structure, root hash and proofs. Links come later, in order (`gateway.chain`).

Pure. The root hash is what a proof signs, and an older block does not say surely which layout its root has.
Where the proofs refuse the root of the layout that the header suggests, the other layout's root is tried.
Source: wire.md section 7, proofs.md sections 3.4 and 7.
"""

from __future__ import annotations

from gateway.errors import BlockRefused
from gateway.proofs import ProofVerifier
from gateway.root_hash import BlockHasher, BlockSummary, RootLayout

__all__ = ["BlockVerifier"]


class BlockVerifier:
    """Checks blocks one at a time.

    Args:
        proofs: checks the proofs.
        root_layout: setting `verification.root_layout`.
    """

    def __init__(self, proofs: ProofVerifier, root_layout: RootLayout = "auto") -> None:
        self._proofs = proofs
        self._root_layout: RootLayout = root_layout

    def hasher(self) -> BlockHasher:
        """Make the hasher that a block's items are added to as they come."""
        return BlockHasher(self._root_layout)

    def verify(self, hasher: BlockHasher) -> BlockSummary:
        """Finish the block and check its proofs; return its summary, with the root that the proofs fit.

        Raises:
            BlockRefused: something is missing or wrong.
        """
        summary = hasher.finish()
        refusal = self._proofs.verify(summary)
        if refusal is None:
            return summary
        other = summary.in_other_layout()
        if other is not None and self._proofs.verify(other) is None:
            return other
        raise BlockRefused(refusal)
