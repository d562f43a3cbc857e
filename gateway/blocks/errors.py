"""The errors of blocks, and of their items, proofs, keys and stored forms.

GatewayError
├── LedgerKeyError   (exit 2)
├── InvalidInput
│   ├── ItemError
│   ├── ProofDataError
│   ├── NotProvable
│   └── BlockRefused
├── StoredDataError
│   ├── LayoutError
│   └── ChainStateError
└── ChainMisuse
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
    "NotProvable",
    "ProofDataError",
    "StoredDataError",
]


class LedgerKeyError(GatewayError):
    """A ledger key is malformed, missing, or of an unknown or unsupported kind."""

    exit_status = 2

    def __init__(self, what: str, *, got: str, expected: str) -> None:
        super().__init__(f"{what}: got {got}, expected {expected}")
        self.what = what
        self.got = got
        self.expected = expected


class ItemError(InvalidInput):
    """The bytes of an item are malformed."""


class ProofDataError(InvalidInput):
    """A part of a proof or of published ledger data is malformed."""


class NotProvable(InvalidInput):
    """An item, or a block, for which there is no proof."""


class BlockRefused(InvalidInput):
    """A block cannot be accepted; the `Refusal` says why."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.what, refusal.got, refusal.expected, where=refusal.kind.value)
        self.refusal = refusal


class StoredDataError(GatewayError):
    """Data that a node stored has another form than we write."""

    def __init__(self, what: str, got: str, expected: str) -> None:
        super().__init__(f"{what}: got {got}, expected {expected}")
        self.what = what
        self.got = got
        self.expected = expected


class LayoutError(StoredDataError):
    """Stream entries do not have a block's layout."""


class ChainStateError(StoredDataError):
    """A saved chain state is inconsistent."""


class ChainMisuse(GatewayError):
    """A bug: a chain was advanced with a block that is not its next."""

    def __init__(self, block_number: int, block_number_next: int) -> None:
        super().__init__(f"chain: got block {block_number}, expected block {block_number_next}")
        self.block_number = block_number
        self.block_number_next = block_number_next
