"""Cutting blocks into messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.gateway.api import block_items_pb2, publish_pb2
from sluice.publishers.errors import ItemTooLarge
from sluice.publishers.limits import ITEM_BYTES_MAX, ITEM_SET_ITEMS_MAX, MESSAGE_BYTES_MAX
from sluice.publishers.protocol.item_sets import size_in_set, split_items


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152])
def test_the_size_of_an_item_is_that_on_the_wire(size: int) -> None:
    item = bytes(size)
    assert size_in_set(item) == block_items_pb2.BlockItemSet(block_items=[item]).ByteSize()


def test_a_set_ends_before_it_grows_too_large() -> None:
    items = [bytes([number]) * 8 for number in range(5)]  # 10 bytes each in a set
    assert split_items(0, items, set_bytes_max=20) == (
        (items[0], items[1]),
        (items[2], items[3]),
        (items[4],),
    )
    assert split_items(0, items, set_bytes_max=19) == tuple((item,) for item in items)


def test_a_set_has_no_more_items_than_a_node_takes_quickly() -> None:
    items = [b"abcd"] * (2 * ITEM_SET_ITEMS_MAX + 1)
    sets = split_items(0, items, ITEM_BYTES_MAX)
    assert [len(item_set) for item_set in sets] == [ITEM_SET_ITEMS_MAX, ITEM_SET_ITEMS_MAX, 1]


def test_a_large_item_goes_alone() -> None:
    items = [b"head", b"x" * 100, b"tail"]
    assert split_items(0, items, set_bytes_max=20) == ((items[0],), (items[1],), (items[2],))


def test_no_items_make_no_sets() -> None:
    assert split_items(0, []) == ()


def test_the_largest_item_fits_in_a_message_and_one_byte_more_is_refused() -> None:
    largest = bytes(ITEM_BYTES_MAX - 5)
    assert size_in_set(largest) == ITEM_BYTES_MAX
    (item_set,) = split_items(7, [largest])
    message = publish_pb2.PublishStreamRequest(
        block_items=block_items_pb2.BlockItemSet(block_items=list(item_set))
    )
    assert message.ByteSize() <= MESSAGE_BYTES_MAX
    with pytest.raises(ItemTooLarge) as caught:
        split_items(7, [b"head", largest + b"x"])
    assert str(caught.value) == (
        f"block 7: item 1 takes {ITEM_BYTES_MAX + 1} bytes in a message, at most {ITEM_BYTES_MAX} are allowed"
    )


@given(st.lists(st.binary(max_size=300)), st.integers(1, 400))
def test_sets_hold_all_items_in_order_and_keep_the_limit(items: list[bytes], set_bytes_max: int) -> None:
    sets = split_items(0, items, set_bytes_max)
    assert [item for item_set in sets for item in item_set] == items
    for item_set in sets:
        assert len(item_set) == 1 or sum(map(size_in_set, item_set)) <= set_bytes_max
