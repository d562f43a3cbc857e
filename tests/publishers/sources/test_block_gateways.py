"""Blocks of gateways: real nodes, and one that does what a script says."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from sluice.gateway.api import block_items_pb2, subscribe_pb2, subscribe_pb2_grpc
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.items import field_item
from sluice.publishers.errors import SourceRefused, SourceUnreachable
from sluice.publishers.sources import block_gateways, failover
from sluice.publishers.sources.block_gateways import BlockGateways, HeldRange
from tests.nodes import make_blocks
from tests.publishers.node_thread import node_thread, store

BLOCKS = make_blocks(12)
NOBODY = "127.0.0.1:1"
Response = subscribe_pb2.SubscribeStreamResponse
Script = Callable[[Any, grpc.ServicerContext], Iterator[Response]]


class Scripted(subscribe_pb2_grpc.BlockStreamSubscribeServiceServicer):
    """Answers each subscription by a script."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.asked: list[tuple[int, int]] = []

    def subscribeBlockStream(self, request: Any, context: Any) -> Iterator[Response]:
        self.asked.append((request.start_block_number, request.end_block_number))
        yield from self.script(request, context)


@contextmanager
def scripted(script: Script) -> Iterator[tuple[Scripted, str]]:
    servicer = Scripted(script)
    server = grpc.server(ThreadPoolExecutor(2))
    subscribe_pb2_grpc.add_BlockStreamSubscribeServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield servicer, f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


def messages_of(block: Block) -> list[Response]:
    items = block_items_pb2.BlockItemSet(block_items=block.items)
    end = block_items_pb2.BlockEnd(block_number=block.number)
    return [Response(block_items=items), Response(end_of_block=end)]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real node that holds BLOCKS."""
    folder = tmp_path_factory.mktemp("node")
    store(folder, BLOCKS)
    with node_thread(folder) as node:
        yield str(node.grpc_address)


def test_what_is_held_and_the_blocks(gateway: str) -> None:
    gateways = pickle.loads(pickle.dumps(BlockGateways([NOBODY, gateway])))
    assert gateways.held() == gateways.held_by(gateway) == HeldRange(0, 11)
    with pytest.raises(SourceUnreachable, match=r"^what it holds did not come \(127\.0\.0\.1:1: UNAVAILABLE"):
        gateways.held_by(NOBODY)
    assert list(gateways.blocks(0, 11)) == BLOCKS
    assert list(gateways.blocks(5, 5)) == BLOCKS[5:6]


def test_an_empty_node_holds_nothing(tmp_path: Path) -> None:
    with node_thread(tmp_path) as node:
        assert BlockGateways([str(node.grpc_address)]).held() == HeldRange(None, None)


class Clock:
    """Has time pass in pauses only, half a minute in each."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def monotonic(self) -> float:
        return self._seconds

    def sleep(self, seconds: float) -> None:
        self._seconds += 30


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    for module in (block_gateways, failover):
        monkeypatch.setattr(module, "time", found)
    return found


def test_nobody_answers(clock: Clock) -> None:
    gateways = BlockGateways([NOBODY], deadline_seconds=30)
    assert gateways.held() is None
    with pytest.raises(
        SourceUnreachable, match=r"the latest block did not come within 30 s \(127\.0\.0\.1:1"
    ):
        gateways.held_in_time("the latest block", clock.sleep)
    with pytest.raises(SourceUnreachable, match=r"block 3 did not come within 30 s \(127\.0\.0\.1:1: UNAV"):
        list(gateways.blocks(3, 4, clock.sleep))


def test_where_nobody_answers_they_are_asked_again(gateway: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gateways = BlockGateways([NOBODY])

    def come(seconds: float) -> None:
        monkeypatch.setattr(gateways, "_gateways", (NOBODY, gateway))

    assert gateways.held_in_time("the latest block", come) == HeldRange(0, 11)


def ends_early(request: Any, context: Any) -> Iterator[Response]:
    """Two blocks, then the line breaks in the middle of the third."""
    for block in BLOCKS[request.start_block_number :][:2]:
        yield from messages_of(block)
    yield messages_of(BLOCKS[request.start_block_number + 2])[0]
    context.abort(grpc.StatusCode.UNAVAILABLE, "shutting down")


def lies(request: Any, context: Any) -> Iterator[Response]:
    """Another block than was asked for."""
    yield from messages_of(BLOCKS[request.start_block_number + 1])


def says_no(request: Any, context: Any) -> Iterator[Response]:
    yield Response(status=Response.Code.INVALID_START_BLOCK_NUMBER)


@pytest.mark.parametrize("script", [ends_early, lies, says_no])
def test_the_next_gateway_takes_over_at_the_block_where_the_first_was(gateway: str, script: Script) -> None:
    with scripted(script) as (first, address):
        assert list(BlockGateways([address, gateway]).blocks(2, 11)) == BLOCKS[2:]
    assert first.asked == [(2, 11)]


@pytest.mark.parametrize(
    ("script", "trouble"),
    [
        (lies, "got the header of block 1, expected that of block 0"),
        (says_no, "the subscription ended before block 0 with INVALID_START_BLOCK_NUMBER"),
    ],
)
def test_the_last_trouble_is_named(clock: Clock, script: Script, trouble: str) -> None:
    with scripted(script) as (_, address):
        gateways = BlockGateways([address], deadline_seconds=30)
        with pytest.raises(SourceUnreachable) as caught:
            list(gateways.blocks(0, 0, clock.sleep))
    assert trouble in caught.value.trouble


def test_a_silent_gateway_is_waited_for_no_longer_than_the_deadline() -> None:
    def silent(request: Any, context: grpc.ServicerContext) -> Iterator[Response]:
        over = threading.Event()
        context.add_callback(over.set)
        over.wait(20)
        yield from ()

    with scripted(silent) as (_, address):
        with pytest.raises(SourceUnreachable) as caught:
            list(BlockGateways([address], answer_seconds=10, deadline_seconds=0.2).blocks(0, 3))
        assert str(caught.value) == f"block 0 did not come within 0.2 s ({address}: silent for 0.2 s)"


def test_a_silent_gateway_is_left(gateway: str) -> None:
    def silent(request: Any, context: grpc.ServicerContext) -> Iterator[Response]:
        yield from messages_of(BLOCKS[0])
        over = threading.Event()
        context.add_callback(over.set)
        over.wait(20)

    with scripted(silent) as (_, address):
        assert list(BlockGateways([address, gateway], answer_seconds=0.2).blocks(0, 3)) == BLOCKS[:4]


def test_a_message_is_taken_up_to_a_limit_and_one_byte_more_ends_the_reading_at_once() -> None:
    """It is of a field that no version knows, so the longest that is taken is refused for that."""

    def give_up(seconds: float) -> None:
        raise EOFError

    def says(message: Response, request: Any, context: Any) -> Iterator[Response]:
        yield message

    limit_bytes = 5_000_000  # gRPC's own is 4 MiB
    for size_bytes in (limit_bytes, limit_bytes + 1):
        message = Response.FromString(field_item(99, bytes(size_bytes - 6)))
        assert message.ByteSize() == size_bytes
        with scripted(partial(says, message)) as (_, address):
            gateways = BlockGateways([address, address], message_bytes_max=limit_bytes)
            if size_bytes == limit_bytes:
                with pytest.raises(EOFError):
                    list(gateways.blocks(0, 0, give_up))
                continue
            with pytest.raises(SourceRefused) as refused:
                list(gateways.blocks(0, 0, give_up))
            assert str(refused.value) == (
                f"cannot get block 0: {address}: message: got 5000001 bytes, expected at most 5000000; "
                "raise max_message_bytes here"
            )
