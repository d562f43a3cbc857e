"""Block numbers on the wire: 2^64 - 1 means "none" or "any" in every message that carries one.

Pure. Java peers hold a number in a signed 64-bit integer: -1 is 2^64 - 1 there, and what they may also send
for "none", Long.MIN_VALUE, is 2^63. No chain has a block above 2^63 - 1, so no such number is believed.
Source: docs/protocol.md, "No block".
"""

from __future__ import annotations

from typing import Final

__all__ = ["BLOCK_NUMBER_MAX", "U64_MAX", "from_wire", "to_wire"]

U64_MAX: Final = (1 << 64) - 1
"""Of a block: none, or any. As start of a subscription: the first block available, or with the same end only
new ones; as its end: no end."""

BLOCK_NUMBER_MAX: Final = (1 << 63) - 1
"""The highest number that a block can have."""


def to_wire(number: int | None) -> int:
    """Give what stands for a block number in a message; None: there is none."""
    return U64_MAX if number is None else number


def from_wire(number: int) -> int | None:
    """Read a block number of a message; None: it says that there is none, or what no block can have."""
    return None if number > BLOCK_NUMBER_MAX else number
