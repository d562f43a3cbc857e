"""The item sets of a block: its items, cut into messages.

Pure. A set holds consecutive items of one block. It ends before the item that would take it over
`set_bytes_max` or ITEM_SET_ITEMS_MAX; a larger item travels alone.

Source: docs/spec/wire.md section 2.1.
"""

from __future__ import annotations

from collections.abc import Sequence

from sluice.publishers.errors import ItemTooLarge
from sluice.publishers.limits import ITEM_BYTES_MAX, ITEM_SET_BYTES_DEFAULT, ITEM_SET_ITEMS_MAX

__all__ = ["ItemSet", "size_in_set", "split_items"]

ItemSet = tuple[bytes, ...]
"""Serialized `BlockItem`s, at least one."""


def size_in_set(item: bytes) -> int:
    """Return the bytes that a serialized `BlockItem` takes in a `BlockItemSet`."""
    size = len(item)
    return 1 + max(1, (size.bit_length() + 6) // 7) + size


def split_items(
    block_number: int,
    items: Sequence[bytes],
    set_bytes_max: int = ITEM_SET_BYTES_DEFAULT,
    item_bytes_max: int = ITEM_BYTES_MAX,
) -> tuple[ItemSet, ...]:
    """Cut a block's items into sets; no items give no sets.

    Args:
        set_bytes_max: each item counts with its tag and length.
        item_bytes_max: of the largest item, counted likewise.
    """
    sets: list[ItemSet] = []
    current: list[bytes] = []
    current_bytes = 0
    for index, item in enumerate(items):
        size = size_in_set(item)
        if size > item_bytes_max:
            raise ItemTooLarge(block_number, index, size, item_bytes_max)
        if current and (current_bytes + size > set_bytes_max or len(current) == ITEM_SET_ITEMS_MAX):
            sets.append(tuple(current))
            current, current_bytes = [], 0
        current.append(item)
        current_bytes += size
    if current:
        sets.append(tuple(current))
    return tuple(sets)
