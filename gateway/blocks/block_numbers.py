"""Block numbers on the wire, where 2^64 - 1 means "none" or "any".

Pure. Java peers hold a number in a signed 64-bit integer. They may also send Long.MIN_VALUE, 2^63, for
"none". No chain has a block above 2^63 - 1.
Source: docs/protocol.md, "No block".
"""

from __future__ import annotations

from typing import Final

__all__ = ["BLOCK_NUMBER_MAX", "U64_MAX", "from_wire", "height_of", "to_wire"]

U64_MAX: Final = (1 << 64) - 1
"""None, or any block. As a subscription's start: the first available block, or, with the same end, new blocks
only. As its end: no end."""

BLOCK_NUMBER_MAX: Final = (1 << 63) - 1


def to_wire(number: int | None) -> int:
    """Return the wire form of a block number, or of none."""
    return U64_MAX if number is None else number


def height_of(last: int | None) -> int:
    """Return a last block as a number to compare; -1 for none."""
    return -1 if last is None else last


def from_wire(number: int) -> int | None:
    """Return the block number of a wire value; None if no block can have it."""
    return None if number > BLOCK_NUMBER_MAX else number
