"""Block numbers on the wire: 2^64 - 1 means "none" or "any" in every message that carries one.

Pure. Java peers hold a number in a signed 64-bit integer: their -1 is 2^64 - 1, and Long.MIN_VALUE, which
they may also send for "none", is 2^63. No chain has a block above 2^63 - 1.
Source: docs/protocol.md, "No block".
"""

from __future__ import annotations

from typing import Final

__all__ = ["BLOCK_NUMBER_MAX", "U64_MAX", "from_wire", "to_wire"]

U64_MAX: Final = (1 << 64) - 1
"""As a block: none, or any. As the start of a subscription: the first block available, or, with the same end,
new blocks only. As its end: no end."""

BLOCK_NUMBER_MAX: Final = (1 << 63) - 1
"""The highest number that a block can have."""


def to_wire(number: int | None) -> int:
    """Return the wire form of a block number; None: there is none."""
    return U64_MAX if number is None else number


def from_wire(number: int) -> int | None:
    """Return the block number of a wire value; None: none, or more than a block can have."""
    return None if number > BLOCK_NUMBER_MAX else number
