"""Blocks out of foreign records: a header with the time of the first, and each payload as an item.

Pure. A payload is any bytes; it becomes the content of a signed transaction item, or of another kind that the
root hash covers and that gateways do not look into. The block has no footer and no proof yet.

    header (number, time of the first record) | item, item, … one per record, in order

Source: docs/spec/wire.md section 3; docs/spec/block-hash.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gateway.blocks.items import FIELD_NUMBER_MAX, ItemKind, field_item
from gateway.blocks.root_hash import NOT_HASHED, subtree_of
from publishers.blocks.frame_items import header_item
from publishers.errors import ItemTooLarge, OptionError, PrepareError
from publishers.limits import BLOCK_FILE_BYTES_MAX, ITEM_BYTES_MAX
from publishers.protocol.item_sets import size_in_set

__all__ = ["check_item_kind", "record_block"]

_NOT_FOR_RECORDS: Final = frozenset((ItemKind.BLOCK_HEADER, ItemKind.RECORD_FILE))


def check_item_kind(item_kind: int) -> None:
    """Check that payloads may become items of this kind.

    Raises:
        OptionError: the root hash would not cover them, or gateways look into such items.
    """
    if 1 <= item_kind <= FIELD_NUMBER_MAX and item_kind not in _NOT_FOR_RECORDS:
        subtree = subtree_of(item_kind)
        if subtree is not None and subtree != NOT_HASHED:
            return
    expected = "a field of BlockItem that the root hash covers, such as 4 (signed transaction)"
    raise OptionError("item_kind", str(item_kind), expected)


def record_block(
    number: int,
    at_ns: int | None,
    payloads: Sequence[bytes | None],
    item_kind: int = ItemKind.SIGNED_TRANSACTION,
) -> tuple[bytes, ...]:
    """Make the items of one block, up to the footer.

    Args:
        number: of the block.
        at_ns: time of the first record, nanoseconds since 1970; None: a record has none.
        payloads: of the records, in order.
        item_kind: field number of the items.

    Raises:
        PrepareError: a record without time or payload, a time before 1970, or more bytes than a block may
            have.
        ItemTooLarge: an item does not fit in a message.
    """
    if at_ns is None:
        raise PrepareError(number, "a record has no time (null)")
    if at_ns < 0:
        raise PrepareError(number, f"a record has a time before 1970 ({at_ns} ns)")
    items = [header_item(number, at_ns)]
    size_bytes = len(items[0])
    for index, payload in enumerate(payloads):
        if payload is None:
            raise PrepareError(number, f"record {index} of the block has no payload (null)")
        item = field_item(item_kind, payload)
        if size_in_set(item) > ITEM_BYTES_MAX:
            raise ItemTooLarge(number, index + 1, size_in_set(item), ITEM_BYTES_MAX)
        items.append(item)
        size_bytes += len(item)
    if size_bytes > BLOCK_FILE_BYTES_MAX:
        got = f"{len(payloads)} records make {size_bytes} bytes, at most {BLOCK_FILE_BYTES_MAX} are allowed"
        raise PrepareError(number, f"{got}: take fewer items per block")
    return tuple(items)
