"""Tests of `gateway.services.publish_service`: long messages, equal messages, and their senders."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
from grpc import aio

from sluice.gateway.api import publish_pb2
from sluice.gateway.blocks.item_set import ItemSet
from sluice.gateway.blocks.items import ItemKind, field_item
from sluice.gateway.race.tables import BlockState
from sluice.gateway.services import publish_service
from sluice.gateway.services.publish_service import METHOD_NAME, SERVICE_NAME
from sluice.gateway.transport import door
from sluice.gateway.transport.message_shares import SMALL_BYTES
from sluice.gateway.transport.message_size import too_long
from tests.gateway.services.test_publish_service import with_node
from tests.gateway.services.test_subscribe_service import until
from tests.nodes import Publisher, Wire, make_blocks


def test_a_message_of_the_limit_is_taken_and_one_byte_more_ends_the_call_and_not_the_node(
    tmp_path: Path,
) -> None:
    most_bytes = 64 * 1024

    async def scenario(wire: Wire) -> None:
        for size_bytes in (most_bytes, most_bytes + 1):
            call: aio.StreamStreamCall[bytes, publish_pb2.PublishStreamResponse] = (
                wire.channel().stream_stream(
                    f"/{SERVICE_NAME}/{METHOD_NAME}",
                    response_deserializer=publish_pb2.PublishStreamResponse.FromString,
                )()
            )
            await call.write(field_item(9, bytes(size_bytes - 4)))  # an unknown field
            if size_bytes == most_bytes:
                await Publisher(call).expect("end INVALID_REQUEST last none about 0", "closed")
                continue
            with pytest.raises(aio.AioRpcError) as caught:
                await Publisher(call).answer()
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert too_long(caught.value.details()) == (size_bytes, most_bytes)
        bob = await wire.publisher()
        await bob.block(*make_blocks(1))
        await bob.expect("ack 0")

    with_node(tmp_path, scenario, grpc_max_message_bytes=most_bytes)


def test_a_header_that_all_offer_is_parsed_once_and_each_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[bytes] = []
    parse = publish_service._parsed

    def spy(message: bytes) -> object:
        parsed.append(message)
        return parse(message)

    monkeypatch.setattr(publish_service, "_parsed", spy)
    publish_service._short_one.cache_clear()
    (block,) = make_blocks(1)

    async def scenario(wire: Wire) -> None:
        alice, bob, carol = [await wire.publisher(name) for name in ("alice", "bob", "carol")]
        blocks = wire.node.conductor.arbiter.blocks
        await alice.items(block.items[0])
        await until(lambda: 0 in blocks)  # else bob's may come first
        await bob.items(block.items[0])
        await bob.expect("skip 0")
        assert len(parsed) == 1
        await alice.end_stream(publish_pb2.PublishStreamRequest.EndStream.RESET)
        await bob.expect("resend 0")
        await carol.items(block.items[0])
        await until(lambda: blocks[0].state is not BlockState.OPEN)
        await bob.items(block.items[0])
        await bob.expect("skip 0")
        await carol.items(*block.items[1:])
        await carol.end(0)
        for publisher in (bob, carol):
            await publisher.expect("ack 0")  # with the right root hash: no item is there twice
        assert parsed.count(parsed[0]) == 1

    with_node(tmp_path, scenario)


def test_a_long_message_is_taken_over_when_it_is_counted_in_flight_and_the_awaited_one_is_urgent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only one message may be in flight, so the second waits for the first block's commit."""
    long = field_item(ItemKind.SIGNED_TRANSACTION, bytes(SMALL_BYTES))
    taken: list[int] = []
    take = door._Connection._taken

    def take_note(connection: door._Connection, stream_id: int) -> None:
        taken.append(stream_id)
        take(connection, stream_id)

    monkeypatch.setattr(door._Connection, "_taken", take_note)
    blocks = make_blocks(2)

    async def scenario(wire: Wire) -> None:
        node, arbiter = wire.node.publish_service, wire.node.conductor.arbiter
        alice, bob, carol = [await wire.publisher(name) for name in ("alice", "bob", "carol")]
        await until(lambda: len(node._keys) == 3)
        of_alice, of_bob, _ = node._keys.values()
        assert not node.is_urgent(of_alice), "there is no block 0 yet"
        await alice.items(blocks[0].items[0])
        await until(lambda: 0 in arbiter.blocks)
        await bob.items(blocks[1].items[0])
        await until(lambda: 1 in arbiter.blocks)
        assert (node.is_urgent(of_alice), node.is_urgent(of_bob)) == (True, False)
        await bob.items(long)
        await until(lambda: taken == [of_bob.stream])
        assert arbiter.inflight_bytes > SMALL_BYTES
        await bob.items(long)
        await carol.items(long)  # of no block: dropped with an answer
        await asyncio.sleep(0.1)
        assert taken == [of_bob.stream], "there is no room"
        await alice.items(*blocks[0].items[1:])
        await alice.end(0)
        await alice.expect("ack 0")
        await alice.end_stream(publish_pb2.PublishStreamRequest.EndStream.RESET)
        assert (node.is_urgent(of_alice), node.is_urgent(of_bob)) == (False, True)
        await until(lambda: taken == [of_bob.stream] * 2)
        for publisher in (bob, carol):
            await publisher.end_stream(publish_pb2.PublishStreamRequest.EndStream.RESET)
        await until(lambda: not node._keys)
        assert not node._publisher_ids

    with_node(tmp_path, scenario, publish_max_inflight_bytes=SMALL_BYTES)


def test_a_short_message_that_is_wrong_is_so_for_each_who_sends_it(tmp_path: Path) -> None:
    async def scenario(wire: Wire) -> None:
        for name in ("alice", "bob"):
            publisher = await wire.publisher(name)
            await publisher.items(b"no item")
            await publisher.expect("end INVALID_REQUEST last none about 0", "closed")

    with_node(tmp_path, scenario)


def test_what_several_are_given_of_one_message_is_nobodys_to_change() -> None:
    header = publish_pb2.PublishStreamRequest()
    header.block_items.block_items.extend(make_blocks(1)[0].items[:1])
    message = header.SerializeToString()
    found = publish_service._short_one(message)
    assert isinstance(found, ItemSet)
    assert publish_service._short_one(message) is found
    assert found.items == tuple(header.block_items.block_items)
    assert found.kinds == (ItemKind.BLOCK_HEADER,)


def test_a_message_is_the_same_whether_it_is_split_or_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header, *_ = items = make_blocks(1)[0].items
    long = field_item(ItemKind.EVENT_HEADER, bytes(600))

    async def scenario(wire: Wire) -> None:
        service = wire.node.publish_service
        for one in ([*items, long], [header, long], [long], [long, header], [long, b"no item"], [long[:-1]]):
            request = publish_pb2.PublishStreamRequest()
            request.block_items.block_items.extend(one)
            message = request.SerializeToString()
            found = service._parse(message)
            with monkeypatch.context() as patch:
                patch.setattr(publish_service, "split", lambda message, items_max: None)
                assert service._parse(message) == found
            assert isinstance(found, ItemSet | publish_service.BadMessage)

    with_node(tmp_path, scenario)
