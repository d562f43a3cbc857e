"""The errors of blocks: of their items, proofs, keys and stored forms.

GatewayError
├── LedgerKeyError       a ledger key that cannot be used, or is missing (exit 2)
├── InvalidInput
│   ├── ItemError        an item or a message is not well formed
│   ├── ProofDataError   a part of a proof, or published ledger data, is not what it must be
│   └── BlockRefused     a block cannot be accepted; holds the `Refusal`
├── StoredDataError      data from a disk or a stream is not in the form that we write
│   ├── LayoutError      a sequence of entries is not a block
│   └── ChainStateError  a saved chain state does not hold together
└── ChainMisuse          our own code advanced a chain with a block that is not its next
"""

from __future__ import annotations

from sluice.gateway.blocks.refusal import Refusal
from sluice.gateway.errors import GatewayError, InvalidInput

__all__ = [
    "BlockRefused",
    "ChainMisuse",
    "ChainStateError",
    "ItemError",
    "LayoutError",
    "LedgerKeyError",
    "ProofDataError",
    "StoredDataError",
]


class LedgerKeyError(GatewayError):
    """A ledger key is malformed, of an unknown or unsupported kind, or missing."""

    exit_status = 2

    def __init__(self, what: str, *, got: str, expected: str) -> None:
        super().__init__(f"{what}: got {got}, expected {expected}")
        self.what = what
        """The key, or the part of it, that is wrong."""
        self.got = got
        self.expected = expected


class ItemError(InvalidInput):
    """The bytes of an item, or of a message in it, are not well formed."""


class ProofDataError(InvalidInput):
    """A part of a proof or of published ledger data is malformed: a point, a scalar, a count, a size."""


class BlockRefused(InvalidInput):
    """A block cannot be accepted."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.what, refusal.got, refusal.expected, where=refusal.kind.value)
        self.refusal = refusal


class StoredDataError(GatewayError):
    """Data that this or another node stored is not in the form that we write."""

    def __init__(self, what: str, got: str, expected: str) -> None:
        super().__init__(f"{what}: got {got}, expected {expected}")
        self.what = what
        """The object that is wrong."""
        self.got = got
        self.expected = expected


class LayoutError(StoredDataError):
    """A sequence of stream entries is not the layout of a block (docs/spec/block-layout.md)."""


class ChainStateError(StoredDataError):
    """A saved chain state does not hold together."""


class ChainMisuse(GatewayError):
    """A chain was advanced with a block that is not its next."""

    def __init__(self, block_number: int, block_number_next: int) -> None:
        super().__init__(f"chain: got block {block_number}, expected block {block_number_next}")
        self.block_number = block_number
        """The block that was given."""
        self.block_number_next = block_number_next
