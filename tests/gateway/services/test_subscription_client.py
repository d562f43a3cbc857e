"""Tests of `gateway.services.subscription_client`: whole blocks, and every lie of a peer."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from sluice.gateway.api import subscribe_pb2
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.items import ItemKind, field_item
from sluice.gateway.errors import SubscriptionError
from sluice.gateway.limits import BLOCK_ITEMS_MAX, STORED_BLOCK_BYTES_MAX
from sluice.gateway.services.subscription_client import BlockAssembler, Received, read_response, status_name
from tests.gateway.block_makers import block_items, body_items, header_item

Response = subscribe_pb2.SubscribeStreamResponse
SUCCESS = Response.Code.SUCCESS


def items_of(items: Sequence[bytes]) -> Response:
    response = Response()
    response.block_items.block_items.extend(items)
    return response


def end_of(number: int) -> Response:
    response = Response()
    response.end_of_block.block_number = number
    return response


def status(code: Response.Code.ValueType) -> Response:
    return Response(status=code)


def feed_all(assembler: BlockAssembler, responses: Sequence[Received]) -> list[Block]:
    return [block for response in responses if (block := assembler.feed(response)) is not None]


def messages(number: int, set_size: int) -> list[Response]:
    """A block in sets of so many items, and its end."""
    items = block_items(number)
    sets = [items_of(items[start : start + set_size]) for start in range(0, len(items), set_size)]
    return [*sets, end_of(number)]


@pytest.mark.parametrize("set_size", [1, 2, 3, 100])
@pytest.mark.parametrize("is_read", [True, False])
def test_blocks_come_out_whole_however_they_are_cut(set_size: int, is_read: bool) -> None:
    assembler = BlockAssembler(5, 7)
    blocks = []
    for number in (5, 6, 7):
        assert not assembler.in_block
        assert not assembler.complete
        sent = messages(number, set_size)
        blocks += feed_all(
            assembler, [read_response(one.SerializeToString()) for one in sent] if is_read else sent
        )
    assert blocks == [Block(number, tuple(block_items(number))) for number in (5, 6, 7)]
    assert assembler.complete
    assert assembler.next_number == 8
    assert assembler.status is None
    assembler.feed(status(SUCCESS))
    assert assembler.status == SUCCESS


def test_the_server_may_say_where_it_begins_and_then_must_go_on_from_there() -> None:
    assembler = BlockAssembler(None)
    assert assembler.next_number is None
    assert [block.number for block in feed_all(assembler, [*messages(41, 3), *messages(42, 3)])] == [41, 42]
    with pytest.raises(SubscriptionError, match=r"got the header of block 44, expected that of block 43"):
        assembler.feed(items_of(block_items(44)))


def test_the_last_block_number_there_can_be() -> None:
    number = (1 << 64) - 2
    assembler = BlockAssembler(number, number)
    assert feed_all(assembler, messages(number, 4))[0].number == number
    assert assembler.complete


def test_a_status_may_cut_a_block_off_and_the_block_does_not_come_out() -> None:
    assembler = BlockAssembler(0)
    assert feed_all(assembler, [items_of(block_items(0)), status(Response.Code.ERROR)]) == []
    assert assembler.in_block
    assert not assembler.complete
    assert assembler.status == Response.Code.ERROR


HEADER, BODY = header_item(5), body_items()
NOTHING: list[Response] = []
BEGUN = [items_of([HEADER])]

BROKEN = [
    (
        NOTHING,
        Response(),
        "before block 5: got a message of no known kind, expected block_items, end_of_block or status",
    ),
    (NOTHING, items_of([]), "before block 5: item set: got no items, expected at least one"),
    (
        NOTHING,
        items_of([HEADER, b""]),
        "before block 5: item 1: item: got no bytes, expected one length-delimited field",
    ),
    (
        NOTHING,
        items_of(BODY),
        "before block 5: got items without a header before them, expected a block header",
    ),
    (
        NOTHING,
        items_of([header_item(4)]),
        "before block 5: got the header of block 4, expected that of block 5",
    ),
    (
        NOTHING,
        items_of([header_item(6)]),
        "before block 5: got the header of block 6, expected that of block 5",
    ),
    (NOTHING, end_of(5), "before block 5: got end_of_block(5), expected a block header"),
    (
        NOTHING,
        items_of([HEADER, HEADER]),
        "before block 5: item set: got a second header as item 1, expected one header at most",
    ),
    (
        BEGUN,
        items_of([header_item(6)]),
        "in block 5: got the header of block 6, expected the rest of block 5",
    ),
    (BEGUN, items_of([HEADER]), "in block 5: got the header of block 5, expected the rest of block 5"),
    (
        BEGUN,
        items_of([*BODY, header_item(6)]),
        "in block 5: item set: got a header as item 5, expected a header only as item 0",
    ),
    (BEGUN, end_of(6), "in block 5: got end_of_block(6), expected end_of_block(5)"),
    (BEGUN, items_of([]), "in block 5: item set: got no items, expected at least one"),
    (
        [*messages(5, 9), *messages(6, 9)],
        items_of([header_item(7)]),
        "before block 7: got the header of block 7, expected the status: block 6 was the last one asked for",
    ),
    (
        [status(SUCCESS)],
        items_of([HEADER]),
        "before block 5: got block_items after the status SUCCESS, expected the end of the stream",
    ),
    (
        [status(SUCCESS)],
        status(SUCCESS),
        "before block 5: got status after the status SUCCESS, expected the end of the stream",
    ),
]


@pytest.mark.parametrize(("before", "wrong", "text"), BROKEN)
def test_a_peer_that_breaks_the_rules(before: list[Response], wrong: Response, text: str) -> None:
    assembler = BlockAssembler(5, 6)
    feed_all(assembler, before)
    state = (assembler.next_number, assembler.status, assembler.in_block, list(assembler._assembled))
    with pytest.raises(SubscriptionError) as caught:
        assembler.feed(wrong)
    assert str(caught.value) == f"subscription, {text}"
    assert (assembler.next_number, assembler.status, assembler.in_block, list(assembler._assembled)) == state


def test_before_its_first_block_a_live_subscription_says_so() -> None:
    with pytest.raises(
        SubscriptionError, match=r"^subscription, before its first block: got end_of_block\(9\), "
    ):
        BlockAssembler(None).feed(end_of(9))


def test_a_block_has_a_size_that_it_may_have_at_most_and_no_more() -> None:
    items = block_items(3)
    size_bytes = sum(map(len, items))
    assert feed_all(BlockAssembler(3, block_bytes_max=size_bytes), messages(3, 2))[0].size_bytes == size_bytes
    assembler = BlockAssembler(3, block_bytes_max=size_bytes - 1)
    feed_all(assembler, [items_of(items[:-1])])
    with pytest.raises(SubscriptionError) as caught:
        assembler.feed(items_of(items[-1:]))
    assert str(caught.value) == f"block 3: got {size_bytes} bytes of items, expected at most {size_bytes - 1}"
    assert assembler._assembled == items[:-1]


def test_a_block_has_a_number_of_items_that_it_may_have_at_most_and_no_more() -> None:
    items = [HEADER, *[field_item(ItemKind.EVENT_HEADER, b"")] * 3]
    assert BlockAssembler(5, block_items_max=4).feed(items_of(items)) is None
    assembler = BlockAssembler(5, block_items_max=3)
    with pytest.raises(SubscriptionError, match=r"^block 5: got 4 items, expected at most 3$"):
        assembler.feed(items_of(items))
    assert not assembler.in_block
    assert assembler.next_number == 5


def test_a_status_of_a_later_version_has_its_number_as_its_name() -> None:
    assert status_name(Response.Code.NOT_AVAILABLE) == "NOT_AVAILABLE"
    assert status_name(77) == "77"


@given(st.lists(st.binary(max_size=40), max_size=8), st.booleans())
def test_whatever_a_peer_sends_is_taken_or_refused(messages_sent: list[bytes], begun: bool) -> None:
    assembler = BlockAssembler(5, 6)
    if begun:
        assembler.feed(items_of([HEADER]))
    for message in messages_sent:
        try:
            response = read_response(message)
        except DecodeError:
            continue  # gRPC ends the call
        before = (assembler.next_number, assembler.in_block, assembler.status, list(assembler._assembled))
        try:
            assembler.feed(response)
        except SubscriptionError:
            after = (assembler.next_number, assembler.in_block, assembler.status, list(assembler._assembled))
            assert after == before


@given(st.data(), st.booleans())
def test_item_sets_that_were_spoiled_are_taken_or_refused(data: st.DataObject, is_read: bool) -> None:
    items = [bytearray(item) for item in block_items(5)]
    index = data.draw(st.integers(0, len(items) - 1))
    place = data.draw(st.integers(0, min(6, len(items[index]) - 1)))
    items[index][place] = data.draw(st.integers(0, 255))
    assembler = BlockAssembler(5)
    try:
        message = items_of([bytes(item) for item in items])
        assembler.feed(read_response(message.SerializeToString()) if is_read else message)
        block = assembler.feed(end_of(5))
    except SubscriptionError:
        return
    assert block == Block(5, tuple(bytes(item) for item in items))


def test_a_reader_gives_a_block_up_where_the_limits_say() -> None:
    """1 GiB and two million items are too much for a test; smaller limits are reached above."""
    order = BlockAssembler(3)
    assert (order._block_bytes_max, order._block_items_max) == (STORED_BLOCK_BYTES_MAX, BLOCK_ITEMS_MAX)
