"""Tests of `gateway.services.block_messages`: sets of one block each, of bounded size, with whole items."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from sluice.datastream.layout import BOOKMARK_TYPE, DATA_SIZE_MAX
from sluice.gateway.api import subscribe_pb2
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.errors import LayoutError
from sluice.gateway.blocks.items import field_item
from sluice.gateway.blocks.stream_layout import BLOCK_END_TYPE, bookmark_of, encode
from sluice.gateway.services.block_messages import BlockMessages
from sluice.gateway.services.subscription_client import BlockAssembler
from tests.gateway.block_makers import header_item

ROOT = b"\x77" * 48
MANY = 1 << 30


def block(number: int, *sizes: int) -> Block:
    """A block of a header and items with payloads of these sizes."""
    items = [field_item(4, bytes([index % 251]) * size) for index, size in enumerate(sizes)]
    return Block(number, (header_item(number), *items))


def entries_of(blocks: Iterable[Block]) -> list[tuple[int, bytes]]:
    return [entry for one in blocks for entry in encode(one.number, one.items, ROOT)]


def messages_from(number: int, set_bytes_max: int = MANY) -> BlockMessages:
    return BlockMessages(number, in_block=False, set_bytes_max=set_bytes_max)


def feed_all(messages: BlockMessages, entries: Iterable[tuple[int, bytes]]) -> None:
    for entry_type, data in entries:
        messages.feed(entry_type, data)


def read_back(messages: BlockMessages, first: int) -> list[Block]:
    """Return the blocks that a subscriber makes of the messages."""
    assembler = BlockAssembler(first)
    responses = [subscribe_pb2.SubscribeStreamResponse.FromString(one.data) for one in messages.messages]
    return [got for response in responses if (got := assembler.feed(response)) is not None]


def set_sizes(messages: BlockMessages) -> list[list[int]]:
    """The sizes of each set's items; an empty list for an end of block."""
    responses = [subscribe_pb2.SubscribeStreamResponse.FromString(one.data) for one in messages.messages]
    return [[len(item) for item in response.block_items.block_items] for response in responses]


@pytest.mark.parametrize(
    "blocks",
    [
        [block(0)],
        [block(7, 10, 20), block(8), block(9, 1, 1, 1)],
        [block(3, DATA_SIZE_MAX - 4, DATA_SIZE_MAX - 3, DATA_SIZE_MAX, 3 * DATA_SIZE_MAX, 5)],
        [block((1 << 64) - 2, 3)],
    ],
    ids=["header alone", "several blocks", "items in pieces", "last number"],
)
@pytest.mark.parametrize("set_bytes_max", [1, 50, 1 << 20, MANY])
def test_a_subscriber_reads_the_blocks_that_were_stored(blocks: Sequence[Block], set_bytes_max: int) -> None:
    messages = messages_from(blocks[0].number, set_bytes_max)
    feed_all(messages, entries_of(blocks))
    assert read_back(messages, blocks[0].number) == list(blocks)
    assert messages.size_bytes == sum(one.size_bytes for one in blocks)
    assert [one.ended for one in messages.messages if one.ended is not None] == [one.number for one in blocks]


@pytest.mark.parametrize("set_bytes_max", [1, 50, 250, 1 << 20, MANY])
@pytest.mark.parametrize("columns_size", [1, 2, 7, 1_000])
def test_entries_in_a_row_give_the_same_messages(set_bytes_max: int, columns_size: int) -> None:
    blocks = [block(7, 10, 20, 240, 3), block(8), block(9, DATA_SIZE_MAX, 5, 5), block(10, *[50] * 20)]
    one_by_one, in_rows = messages_from(7, set_bytes_max), messages_from(7, set_bytes_max)
    entries = entries_of(blocks)
    feed_all(one_by_one, entries)
    for start in range(0, len(entries), columns_size):
        types, column = zip(*entries[start : start + columns_size], strict=True)
        assert in_rows.feed_columns(types, column, None) == len(types)
    assert in_rows.messages == one_by_one.messages
    assert in_rows.size_bytes == one_by_one.size_bytes


def test_entries_in_a_row_end_with_the_last_block_wanted_and_with_a_wrong_one() -> None:
    blocks = [block(7, 10, 20), block(8, 5), block(9, 5)]
    types, column = zip(*entries_of(blocks), strict=True)
    messages = messages_from(7)
    assert messages.feed_columns(types, column, 8) == len(entries_of(blocks[:2]))
    assert read_back(messages, 7) == blocks[:2]
    wrong_end = [*entries_of(blocks[:1])[:-1], entries_of(blocks[1:2])[-1]]
    for spoiled, text in (
        (entries_of(blocks)[1:], "stream before block 7: got entry type 0x1, expected a bookmark (0xb0)"),
        (wrong_end, "block 7: got the end of block 8, expected its own end, after whole items"),
    ):
        types, column = zip(*spoiled, strict=True)
        with pytest.raises(LayoutError) as caught:
            messages_from(7).feed_columns(types, column, None)
        assert str(caught.value) == text


def test_sets_are_filled_as_far_as_they_may_be_and_never_span_blocks() -> None:
    messages = messages_from(0, 250)
    header = len(header_item(0))
    feed_all(messages, entries_of([block(0, 98, 98, 98, 400, 8), block(1, 98)]))
    assert set_sizes(messages) == [[header, 100, 100], [100], [403], [10], [], [len(header_item(1)), 100], []]


def test_a_set_that_was_begun_can_be_given_out_and_the_block_goes_on() -> None:
    messages = messages_from(4)
    entries = entries_of([block(4, 10, 20)])
    feed_all(messages, entries[:3])
    assert not messages.messages
    messages.flush()
    messages.flush()
    assert len(messages.messages) == 1
    assert messages.in_block
    rest = BlockMessages(4, in_block=True, set_bytes_max=MANY)
    feed_all(rest, entries[3:])
    messages.messages += rest.messages
    assert read_back(messages, 4) == [block(4, 10, 20)]
    assert not rest.in_block
    assert rest.block_number == 5


def test_within_an_item_there_is_no_place_to_stop() -> None:
    messages = messages_from(4)
    states = []
    for entry in entries_of([block(4, 2 * DATA_SIZE_MAX)]):
        feed_all(messages, [entry])
        states.append(messages.in_item)
    assert states == [False, False, True, True, False, False]


@pytest.mark.parametrize(
    ("fed", "wrong", "text"),
    [
        (0, (4, b"\x22\x00"), "stream before block 4: got entry type 0x4, expected a bookmark (0xb0)"),
        (
            0,
            (BLOCK_END_TYPE, bytes(56)),
            "stream before block 4: got entry type 0xb1, expected a bookmark (0xb0)",
        ),
        (0, (BOOKMARK_TYPE, bookmark_of(5)), "block 4: got a bookmark 08021005, expected 08021004, once"),
        (2, (BOOKMARK_TYPE, bookmark_of(5)), "block 4: got a bookmark 08021005, expected 08021004, once"),
        (2, (BOOKMARK_TYPE, bookmark_of(4)), "block 4: got a bookmark 08021004, expected 08021004, once"),
        (
            2,
            (BLOCK_END_TYPE, (5).to_bytes(8, "big") + ROOT),
            "block 4: got the end of block 5, expected its own end, after whole items",
        ),
        (
            3,
            (BLOCK_END_TYPE, (4).to_bytes(8, "big") + ROOT),
            "block 4: got the end of block 4, expected its own end, after whole items",
        ),
    ],
)
def test_entries_that_are_no_block(fed: int, wrong: tuple[int, bytes], text: str) -> None:
    messages = messages_from(4)
    feed_all(messages, entries_of([block(4, DATA_SIZE_MAX)])[:fed])
    with pytest.raises(LayoutError) as caught:
        messages.feed(*wrong)
    assert str(caught.value) == text
    assert messages.messages == []
