"""Tests of `gateway.services.subscribe_service` over real gRPC: ranges, live blocks, slow readers, ends."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from sluice.datastream import DataStreamer
from sluice.datastream.layout import DATA_SIZE_MAX
from sluice.gateway.addresses import Address
from sluice.gateway.api import subscribe_pb2, subscribe_pb2_grpc
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.block_numbers import U64_MAX
from sluice.gateway.blocks.items import ItemKind, field_item, varint
from sluice.gateway.metrics import Metrics
from sluice.gateway.services.block_reader import SUBSCRIBE_READ_THREADS
from sluice.gateway.services.subscribe_service import (
    METHOD_NAME,
    SERVICE_NAME,
    SUBSCRIBE_REQUEST_BYTES_MAX,
    SubscribeLimits,
    SubscribeService,
)
from sluice.gateway.store.block_store import BlockStore, VerifiedBlock
from sluice.gateway.transport.grpc_server import GrpcServer, ServerPlan, start_server
from sluice.gateway.transport.known_nodes import KnownNodes
from tests.deaf_client import DeafClient
from tests.gateway.block_makers import header_item
from tests.gateway.store.test_block_store import commit, logged
from tests.nodes import ANSWER_SECONDS, Reader, Request, Wire, make_blocks, running_node, wire_to

BLOCKS = make_blocks(12)
MIB = 1 << 20
CUT_OFF = "subscriber takes nothing, and is cut off"


class Serving:
    """A block store and its subscribe service, without the rest of a node."""

    def __init__(self, data_dir: Path, limits: SubscribeLimits, first_number: int | None = 0) -> None:
        self.store = BlockStore.open(data_dir)
        self.metrics = Metrics(verification_mode="full")
        self.service = SubscribeService(self.store, first_number, self.metrics, limits)
        self.nodes = KnownNodes()
        self.server: GrpcServer
        self.grpc_address: Address
        self.wire: Wire

    async def start(self) -> None:
        plan = ServerPlan("subscriber.address", Address("127.0.0.1", 0), MIB, 0, 100, nodes=self.nodes)
        self.server = await start_server(plan, self.service.add_to)
        self.grpc_address = self.server.address
        self.wire = Wire(self)  # type: ignore[arg-type]  # of a node it needs the address alone

    async def commit(self, *blocks: Block) -> None:
        """Put unverified blocks into the store."""
        await commit_to(self.store, *blocks)

    async def subscribe(self, start: int, end: int = U64_MAX) -> Reader:
        return await self.wire.subscribe(start, end)


async def commit_to(store: BlockStore, *blocks: Block) -> None:
    """Commit unverified blocks."""
    verified = [VerifiedBlock(block.number, block.items, b"\x05" * 48) for block in blocks]
    await asyncio.to_thread(store.append, verified)
    for block in verified:
        store.advance(block)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(ANSWER_SECONDS):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@asynccontextmanager
async def serving(data_dir: Path, first_number: int | None = 0, **limits: Any) -> AsyncIterator[Serving]:
    """A service that is closed at the end."""
    one = Serving(data_dir, SubscribeLimits(**limits), first_number)
    await one.start()
    try:
        yield one
    finally:
        await one.wire.close()
        await one.server.stop(0)
        one.service.release()
        one.store.close()


def big_block(number: int, *sizes: int) -> Block:
    """An unverifiable block: a header, and items with payloads of these sizes."""
    items = [field_item(ItemKind.SIGNED_TRANSACTION, bytes([number % 251]) * size) for size in sizes]
    return Block(number, (header_item(number), *items))


async def test_the_answer_to_each_request(tmp_path: Path) -> None:
    async with serving(tmp_path, first_number=3, future_blocks_max=10) as node:
        await node.commit(*BLOCKS[3:8])
        answers = {}
        for start, end in ((3, 7), (5, 5), (U64_MAX, 4), (5, 4), (2, 5), (U64_MAX, 2), (18, 20)):
            reader = await node.subscribe(start, end)
            answers[start, end] = await reader.numbers()
            assert await reader.call.code() == grpc.StatusCode.OK
        assert answers == {
            (3, 7): [3, 4, 5, 6, 7, "SUCCESS"],
            (5, 5): [5, "SUCCESS"],
            (U64_MAX, 4): [3, 4, "SUCCESS"],
            (5, 4): ["INVALID_END_BLOCK_NUMBER"],
            (2, 5): ["INVALID_START_BLOCK_NUMBER"],
            (U64_MAX, 2): ["INVALID_END_BLOCK_NUMBER"],
            (18, 20): ["NOT_AVAILABLE"],
        }


def request_of(size_bytes: int) -> bytes:
    """A request of this size for block 0, with a field of a later version."""
    start_and_end, tag = b"\x08\x00\x10\x00", b"\x7a"
    field_bytes = size_bytes - len(start_and_end) - len(tag) - 2  # its length takes two bytes
    return start_and_end + tag + varint(field_bytes) + bytes(field_bytes)


@pytest.mark.parametrize(
    "message", [b"\x08", b"\x0a\x01", b"\x1a\xff" + bytes(10), request_of(SUBSCRIBE_REQUEST_BYTES_MAX + 1)]
)
async def test_a_request_that_does_not_parse(tmp_path: Path, message: bytes) -> None:
    async with serving(tmp_path) as node:
        method: Any = node.wire.channel().unary_stream(
            "/org.hiero.block.api.BlockStreamSubscribeService/subscribeBlockStream",
            request_serializer=None,
            response_deserializer=subscribe_pb2.SubscribeStreamResponse.FromString,
        )
        assert await Reader(method(message), U64_MAX, U64_MAX).rest() == ["INVALID_REQUEST"]
        await node.commit(BLOCKS[0])
        longest = request_of(SUBSCRIBE_REQUEST_BYTES_MAX)
        assert await Reader(method(longest), 0, 0).numbers() == [0, "SUCCESS"]


async def test_history_and_live_blocks_come_in_one_stream_as_they_were_published(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, wire_to(node) as wire:
        waiting = [await wire.subscribe(0, 11), await wire.subscribe(U64_MAX, 11)]
        ahead = await wire.subscribe(7, 9)
        publisher = await wire.publisher()
        await publisher.block(*BLOCKS[:5])
        await publisher.answers(5)
        in_history, live = await wire.subscribe(2, 10), await wire.subscribe(U64_MAX)
        assert await in_history.next() == BLOCKS[2]
        for block in BLOCKS[5:]:
            await publisher.block(block)
            await publisher.expect(f"ack {block.number}")
            assert await live.next() == block
        for reader in waiting:
            assert await reader.rest() == [*BLOCKS, "SUCCESS"]
        assert await in_history.rest() == [*BLOCKS[3:11], "SUCCESS"]
        assert await ahead.rest() == [*BLOCKS[7:10], "SUCCESS"]
        sent = node.metrics.subscriber_blocks_sent._value
        await until(lambda: sent.get() == 2 * 12 + 9 + 3 + 7)  # counted after each write


async def test_long_items_come_whole_and_sets_are_of_bounded_size(tmp_path: Path) -> None:
    blocks = [
        big_block(0, 6 * MIB, 10, DATA_SIZE_MAX - 4, DATA_SIZE_MAX - 3, 10),
        big_block(1, *[300_000] * 20),
        big_block(2, *[10] * 2_000),
    ]

    async with serving(tmp_path) as node:
        await node.commit(*blocks)
        reader = await node.subscribe(0, 0)
        assert await reader.rest() == [blocks[0], "SUCCESS"]
        assert reader.set_bytes_max == 6 * MIB + 5
        reader = await node.subscribe(1, 2)
        assert await reader.rest() == [*blocks[1:], "SUCCESS"]
        assert 900_000 < reader.set_bytes_max <= MIB


async def test_long_items_share_a_budget_and_who_waits_for_it_holds_nothing_and_goes_on(
    tmp_path: Path,
) -> None:
    blocks = [big_block(number, 6 * MIB) for number in range(3)]

    async with serving(tmp_path, sending_bytes_max=8 * MIB) as node:
        await node.commit(*blocks, big_block(3, 5))
        shares = node.service._strangers.shares
        slow = await node.subscribe(0, 0)
        await until(lambda: shares.held_bytes > 6 * MIB)
        waiting, gone = await node.subscribe(1, 1), await node.subscribe(2, 2)
        await until(lambda: shares.waiting_count == 2)
        assert await (await node.subscribe(3, 3)).numbers() == [3, "SUCCESS"], "short ones are not kept"
        gone.call.cancel()
        await until(lambda: shares.waiting_count == 1)
        assert await slow.rest() == [blocks[0], "SUCCESS"]
        assert await waiting.rest() == [blocks[1], "SUCCESS"]
        await until(lambda: (shares.held_bytes, shares.waiting_count) == (0, 0))
        assert node.service._waiting == {}


async def test_a_damaged_stream_is_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    damaged = len(BLOCKS[0].items) + 2 + 4  # in block 1

    caplog.set_level(logging.ERROR)
    async with serving(tmp_path) as node:
        await node.commit(*BLOCKS[:3])
        offset = node.store.streamer.offset_of(damaged)
        with (tmp_path / "datastream.bin").open("r+b") as file:
            file.seek(offset)
            file.write(b"\x07")
        reader = await node.subscribe(0)
        assert await reader.numbers() == ["ERROR"]
    assert f"entry {damaged}" in logged(caplog, "blocks cannot be read")[0]["got"]


async def test_a_disk_that_cannot_be_read_is_an_error_behind_the_blocks_that_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The call once broke off with UNKNOWN, without the blocks before."""
    first_of_1, read = len(BLOCKS[0].items) + 2, DataStreamer.read_columns

    def failing(streamer: DataStreamer, number: int, size_wanted: int) -> tuple[list[int], list[bytes]]:
        if number >= first_of_1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        types, data = read(streamer, number, size_wanted)
        return types[: first_of_1 - number], data[: first_of_1 - number]

    caplog.set_level(logging.ERROR)
    async with serving(tmp_path) as node:
        await node.commit(*BLOCKS[:3])
        monkeypatch.setattr(DataStreamer, "read_columns", failing)
        reader = await node.subscribe(0)
        assert await reader.numbers() == [0, "ERROR"]
    assert logged(caplog, "blocks cannot be read")[0]["got"] == "[Errno 5] Input/output error"


async def test_a_slow_subscriber_holds_up_nobody_and_costs_one_batch(tmp_path: Path) -> None:
    blocks = [big_block(number, *[100_000] * 30) for number in range(12)]

    async with serving(tmp_path) as node:
        await node.commit(*blocks)
        slow = await node.subscribe(0, 11)
        first = await slow.next()
        fast = await node.subscribe(0, 11)
        assert await fast.rest() == [*blocks, "SUCCESS"]
        # The slow one's batch in flight, and gRPC's windows.
        [stream] = node.service._streams
        assert stream.subscriber.next_number is not None
        assert stream.subscriber.next_number <= 3
        assert node.metrics.subscriber_lag_blocks.collect()
        assert [first, *await slow.rest()] == [*blocks, "SUCCESS"]


async def test_a_subscriber_that_takes_nothing_does_not_keep_a_node_from_stopping(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with running_node(tmp_path, shutdown_grace_seconds=0.2) as node, wire_to(node) as wire:
        await commit_to(node.store, *[big_block(number, *[100_000] * 30) for number in range(12)])
        reader = await wire.subscribe(0)
        assert await reader.next() == big_block(0, *[100_000] * 30)
        [stream] = node.subscribe_service._streams
        async with asyncio.timeout(ANSWER_SECONDS):  # the next message of block 1 fits no window
            while stream.blocks_sent == 0 or stream.writing_since is None:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        await node.stop()
        with pytest.raises(aio.AioRpcError) as caught:
            await reader.rest()
        assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    assert logged(caplog, "subscribers were not finished") == [{"streams": 1}]


async def test_one_subscriber_more_than_there_may_be(tmp_path: Path) -> None:
    async with serving(tmp_path, streams_max=2) as node:
        readers = [await node.subscribe(0), await node.subscribe(0)]
        stub = subscribe_pb2_grpc.BlockStreamSubscribeServiceStub(node.wire.channel())
        with pytest.raises(aio.AioRpcError) as caught:
            await stub.subscribeBlockStream(subscribe_pb2.SubscribeStreamRequest()).read()
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert caught.value.details() == "got another subscriber, expected at most 2 (subscriber.max_streams)"
        await node.commit(*BLOCKS[:1])
        assert [await reader.next() for reader in readers] == [BLOCKS[0]] * 2
        readers[0].call.cancel()
        async with asyncio.timeout(ANSWER_SECONDS):
            while node.service.stream_count == 2:  # noqa: ASYNC110 - no event: the service is not ours
                await asyncio.sleep(0.005)
        assert await (await node.subscribe(0, 0)).numbers() == [0, "SUCCESS"]


async def test_subscribers_of_one_address_have_their_number(tmp_path: Path) -> None:
    async with serving(tmp_path, streams_per_address_max=1) as node:
        await node.commit(*BLOCKS[:1])
        first = await node.subscribe(0)
        assert await first.next() == BLOCKS[0]
        stub = subscribe_pb2_grpc.BlockStreamSubscribeServiceStub(node.wire.channel())
        with pytest.raises(aio.AioRpcError) as caught:
            await stub.subscribeBlockStream(subscribe_pb2.SubscribeStreamRequest()).read()
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert caught.value.details() == (
            "got another subscriber of this address, expected at most 1 (subscriber.max_streams_per_address)"
        )
        first.call.cancel()
        async with asyncio.timeout(ANSWER_SECONDS):
            while node.service.stream_count:  # noqa: ASYNC110 - no event: the service is not ours
                await asyncio.sleep(0.005)
        assert node.service._strangers.by_address == {}
        assert await (await node.subscribe(0, 0)).numbers() == [0, "SUCCESS"]


async def test_whatever_strangers_hold_another_node_is_sent_its_blocks(tmp_path: Path) -> None:
    """Acknowledgements may wait for another node: strangers' places, threads and bytes are others."""
    go_on = threading.Event()
    async with serving(tmp_path, streams_max=2, sending_bytes_max=8 * MIB) as node:
        await node.commit(big_block(0, 6 * MIB), big_block(1, 5))
        slow = [await node.subscribe(0, 0) for _ in range(2)]
        strangers = node.service._strangers
        await until(lambda: strangers.shares.waiting_count == 1)
        busy = [strangers.reader._threads.submit(go_on.wait) for _ in range(SUBSCRIBE_READ_THREADS)]
        refused = await node.subscribe(0, 0)
        assert await refused.call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        node.nodes.peers = ("localhost:40840",)  # all callers from here are nodes from now on
        await node.nodes.look()
        assert await (await node.subscribe(0, 1)).numbers() == [0, 1, "SUCCESS"]
        go_on.set()
        # Either may get its block first, and has to take it.
        assert await asyncio.gather(*(reader.numbers() for reader in slow)) == [[0, "SUCCESS"]] * 2
        assert [reading.result() for reading in busy] == [True] * len(busy)


async def test_a_subscriber_that_takes_nothing_is_cut_off_and_the_others_are_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocks = [big_block(number, *[100_000] * 30) for number in range(4)]

    caplog.set_level(logging.INFO)
    async with serving(tmp_path, write_timeout_seconds=0.4) as node:
        await node.commit(*blocks)
        stuck = await node.subscribe(0, 3)
        waits = await node.subscribe(4, 4)  # a subscriber that waits reads nothing, too
        async with asyncio.timeout(ANSWER_SECONDS):
            # No event; the service may forget it before the log line.
            while node.service.stream_count > 1 or not logged(caplog, CUT_OFF):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        with pytest.raises(aio.AioRpcError) as caught:
            await stuck.rest()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        await node.commit(big_block(4, 100))
        assert await waits.numbers() == [4, "SUCCESS"]
    assert [line["seconds"] for line in logged(caplog, CUT_OFF)] == [0.4]
    assert "it took nothing of what was sent to it" in {
        line["reason"] for line in logged(caplog, "subscriber left")
    }


@pytest.mark.parametrize(
    "asked", [subscribe_pb2.SubscribeStreamRequest(start_block_number=5, end_block_number=4), None]
)
async def test_who_does_not_take_its_status_is_cut_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, asked: subscribe_pb2.SubscribeStreamRequest | None
) -> None:
    """It once kept its place as long as its connection."""
    message = b"\xff" if asked is None else asked.SerializeToString()

    caplog.set_level(logging.INFO)
    async with serving(tmp_path, write_timeout_seconds=0.2) as node:
        with DeafClient(node.grpc_address, ANSWER_SECONDS) as client:
            await asyncio.to_thread(client.ask, f"/{SERVICE_NAME}/{METHOD_NAME}", message)
            async with asyncio.timeout(ANSWER_SECONDS):
                # No event; the lines come in any order: a thread cuts the connection.
                while not (logged(caplog, "subscriber left") and logged(caplog, CUT_OFF)):  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            assert node.service.stream_count == 0
            assert not await asyncio.to_thread(client.ping)
    assert [line["seconds"] for line in logged(caplog, CUT_OFF)] == [0.2]


async def test_those_who_wait_for_the_same_block_share_its_reading(tmp_path: Path) -> None:
    async with serving(tmp_path) as node:
        await node.commit(BLOCKS[0])
        readers = [await node.subscribe(U64_MAX) for _ in range(20)]
        for block in BLOCKS[1:4]:
            await node.commit(block)
            assert [await reader.next() for reader in readers] == [block] * 20
        assert node.service._strangers.reader.readings_count == 3


async def test_a_source_error_ends_those_who_are_live_and_nobody_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocks = [big_block(number, *[100_000] * 30) for number in range(6)]

    caplog.set_level(logging.WARNING)
    async with serving(tmp_path) as node:
        await node.commit(*blocks)
        live, from_5 = await node.subscribe(U64_MAX), await node.subscribe(5)
        assert await from_5.next() == blocks[5]
        await until(lambda: all(stream.subscriber.live for stream in node.service._streams))
        in_history, in_range = await node.subscribe(0), await node.subscribe(0, 4)
        assert await in_history.next() == await in_range.next() == blocks[0]
        node.service.source_failed("publisher p: EndStream(ERROR)")
        assert await live.rest() == ["ERROR"]
        assert await from_5.rest() == ["ERROR"]
        assert await in_range.rest() == [*blocks[1:5], "SUCCESS"]
        assert [await in_history.next() for _ in range(5)] == blocks[1:]
        await node.commit(big_block(6, 1))
        assert await in_history.next() == big_block(6, 1)
    assert logged(caplog, "source error") == [
        {"reason": "publisher p: EndStream(ERROR)", "subscribers": 2},
    ]


async def test_what_is_committed_once_a_subscriber_knows_that_it_is_heard_is_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It once missed blocks committed before the service had run."""
    serve, go_on = SubscribeService._serve, asyncio.Event()

    class Held:
        """A call's context: the subscriber hears first that it is served, the service runs later."""

        def __init__(self, context: Any) -> None:
            self.write = context.write
            self._send_initial_metadata = context.send_initial_metadata

        async def send_initial_metadata(self, metadata: Any) -> None:
            await self._send_initial_metadata(metadata)
            await go_on.wait()

    async def serve_held(service: SubscribeService, stream: Any, context: Any) -> Any:
        return await serve(service, stream, Held(context))  # type: ignore[arg-type]

    monkeypatch.setattr(SubscribeService, "_serve", serve_held)

    async with serving(tmp_path) as node:
        await node.commit(BLOCKS[0])
        live = await node.subscribe(U64_MAX)
        await node.commit(BLOCKS[1])
        node.service.source_failed("nobody publishes")
        go_on.set()
        assert await live.rest() == [BLOCKS[1], "ERROR"]


async def test_the_last_publisher_that_ends_with_an_error_is_a_source_error(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, wire_to(node) as wire:
        first, second = await wire.publisher("a"), await wire.publisher("b")
        live = await wire.subscribe(U64_MAX)
        await first.block(BLOCKS[0])
        assert await live.next() == BLOCKS[0]
        await first.end_stream(Request.EndStream.Code.ERROR)
        await second.block(BLOCKS[1])
        assert await live.next() == BLOCKS[1], "somebody still publishes"
        await second.items(*BLOCKS[2].items[:3])
        await second.end_stream(Request.EndStream.Code.ERROR)
        assert await live.next() == "ERROR"
        assert await (await wire.subscribe(0, 1)).numbers() == [0, 1, "SUCCESS"]


async def test_a_node_that_stops_ends_its_subscribers_with_success_between_blocks(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, wire_to(node) as wire:
        publisher = await wire.publisher()
        await publisher.block(*BLOCKS)
        await publisher.answers(12)
        live, waits = await wire.subscribe(11), await wire.subscribe(20, 21)
        assert await live.next() == BLOCKS[11]
        publisher.call.cancel()
        await node.stop()
        assert await live.rest() == ["SUCCESS"]
        assert await waits.rest() == ["SUCCESS"]


async def test_a_block_that_is_being_sent_is_sent_to_its_end_before_a_node_stops(tmp_path: Path) -> None:
    blocks = [big_block(number, *[100_000] * 100) for number in range(3)]

    async with serving(tmp_path) as node:
        await node.commit(*blocks)
        reader = await node.subscribe(0)
        closing = asyncio.ensure_future(node.service.close())
        got = await reader.rest()
        await closing
        assert got[-1] == "SUCCESS"
        assert got[:-1] == blocks[: len(got) - 1]
        assert not reader.assembler.in_block
        late: Sequence[Any] = await (await node.subscribe(0)).rest()
        assert late == ["SUCCESS"]


async def test_a_node_that_begins_anywhere_serves_who_was_there_before_its_first_block(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, first_number=None) as node:
        readers = [await node.subscribe(U64_MAX, 8), await node.subscribe(7, 8)]
        too_low, live = await node.subscribe(6), await node.subscribe(U64_MAX)
        await node.commit(BLOCKS[7])
        await node.commit(BLOCKS[8])
        for reader in readers:
            assert await reader.rest() == [*BLOCKS[7:9], "SUCCESS"]
        assert await too_low.rest() == ["INVALID_START_BLOCK_NUMBER"]
        assert [await live.next() for _ in range(2)] == BLOCKS[7:9]


async def test_a_restarted_node_serves_its_history(tmp_path: Path) -> None:
    store = BlockStore.open(tmp_path)
    commit(store, [VerifiedBlock(block.number, block.items, b"\x05" * 48) for block in BLOCKS[:4]])
    store.close()

    async with serving(tmp_path) as node:
        assert await (await node.subscribe(0, 3)).rest() == [*BLOCKS[:4], "SUCCESS"]
