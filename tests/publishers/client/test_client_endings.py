"""How the client takes streams that end, or answer, as no gateway should, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from struct import pack, unpack
from typing import Any

import grpc
import pytest

from sluice.gateway.blocks.block import Block
from sluice.publishers.client.client import PublishClient, publish_blocks
from sluice.publishers.errors import PublishFailed
from sluice.publishers.protocol.machine import SECOND_NS
from sluice.publishers.protocol.messages import Action, Disconnected, Event
from sluice.publishers.report import PublishReport
from tests.nodes import ANSWER_SECONDS, make_blocks, running_node, wire_to
from tests.publishers.client.test_client import BLOCKS, QUICK, TINY_SETS, source_of
from tests.publishers.fake_node import NO_BLOCK, FakeNode, FakeStream

# On a busy machine the client waits for a refusal as long as it takes.
PATIENT = replace(TINY_SETS, refusal_seconds_max=20.0, refusal_status_seconds_max=20.0)


@asynccontextmanager
async def serving(handler: grpc.RpcMethodHandler[bytes, bytes]) -> AsyncIterator[str]:
    """A server that handles publish streams so; its address."""
    server = grpc.aio.server()
    service = "org.hiero.block.api.BlockStreamPublishService"
    methods = {"publishBlockStream": handler}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield address
    finally:
        await server.stop(0)


class Listening(PublishClient):
    """Notes how streams ended, and stops when `last` is how."""

    def __init__(self, gateways: Sequence[str], last: str, visits_max: int) -> None:
        super().__init__(gateways, "alice", PATIENT)
        self.said: list[str] = []
        self._last, self._visits_max = last, visits_max

    def _hear(self, event: Event) -> list[Action]:
        actions = super()._hear(event)
        if isinstance(event, Disconnected):
            self.said.append(event.reason.partition(": ")[2])
            if self.said[-1] == self._last or len(self.said) == self._visits_max:
                self.stop()
        return actions


async def refuse(_: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
    await context.abort(grpc.StatusCode.UNAVAILABLE, "not\ntoday")


REFUSER: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(refuse)
NOT_TODAY = "UNAVAILABLE: not today"
LOST = "ended while it was written to; gRPC does not say why"


async def test_a_gateway_that_refuses_while_it_is_written_to_is_heard_the_next_time() -> None:
    """grpcio has no status for a call that a write finds over; the next write waits for an answer."""

    async def run() -> list[str]:
        async with serving(REFUSER) as address:
            client = Listening([address], NOT_TODAY, 4)
            await client.publish(source_of(BLOCKS))
            return client.said

    assert await run() in ([LOST, NOT_TODAY], [NOT_TODAY])


async def test_it_is_heard_too_where_another_gateway_answers_meanwhile() -> None:
    """What a standby says is nothing that the gateway which refuses has said."""

    async def stand_by(stream: FakeStream) -> None:
        await stream.end("SUCCESS", NO_BLOCK)
        await stream.drain()

    async def run() -> list[str]:
        async with serving(REFUSER) as address, FakeNode(default=stand_by) as standby:
            client = Listening([address, standby.address], NOT_TODAY, 10)
            await client.publish(source_of(BLOCKS))
            return client.said[::2]

    assert await run() in ([LOST, NOT_TODAY], [NOT_TODAY])


async def test_an_answer_that_does_not_parse_breaks_the_stream_and_not_the_publisher() -> None:
    async def babble(_: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        await context.write(b"\xff")
        await context.read()

    async def run() -> tuple[FakeNode, PublishReport]:
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(babble)
        async with serving(handler) as strange, FakeNode() as node:
            return node, await publish_blocks(source_of(BLOCKS), [strange, node.address], "alice", QUICK)

    node, report = await run()
    assert node.received == BLOCKS
    assert (report.acknowledged, report.reconnects) == (20, 1)


async def test_a_stream_that_ends_without_a_status_is_left_for_another_gateway() -> None:
    """A web server may do so. Closing our side then raises an error that is not an `AioRpcError`."""
    headers, data, settings, end_headers, end_stream = 1, 0, 4, 4, 1

    async def web_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readexactly(len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
            writer.write(frame(settings))
            while True:
                size, kind, _, stream = unpack(">I", b"\0" + await reader.readexactly(3)) + unpack(
                    ">BBI", await reader.readexactly(6)
                )
                await reader.readexactly(size)
                if kind == headers:
                    writer.write(frame(headers, end_headers, stream, b"\x88"))  # :status 200
                    writer.write(frame(data, end_stream, stream))
        writer.close()

    def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
        return pack(">I", len(payload))[1:] + pack(">BBI", kind, flags, stream) + payload

    async def run() -> PublishReport:
        machine = replace(QUICK.machine, answer_timeout_ns=SECOND_NS // 5)
        strange = await asyncio.start_server(web_server, "127.0.0.1", 0)
        async with strange, FakeNode() as node:
            gateways = [f"127.0.0.1:{strange.sockets[0].getsockname()[1]}", node.address]
            return await publish_blocks(source_of(BLOCKS), gateways, "alice", replace(QUICK, machine=machine))

    assert (await run()).acknowledged == 20


# --- nodes that do not store all that there is --------------------------------------------------------------


CHAIN = make_blocks(12)


def told(tmp_path: Path, blocks: Sequence[Block], **settings: Any) -> tuple[PublishReport, str, int | None]:
    """Publish blocks to a real node; the report, why it failed, and the node's last block then."""

    async def run() -> tuple[PublishReport, str, int | None]:
        async with running_node(tmp_path, **settings) as node:
            try:
                report = await publish_blocks(source_of(blocks), [str(node.grpc_address)], "alice", QUICK)
            except PublishFailed as failed:
                return failed.report, failed.reason, node.store.last_number
            return report, "", node.store.last_number

    return asyncio.run(run())


def test_blocks_below_the_first_of_an_empty_node_are_stored_nowhere(tmp_path: Path) -> None:
    report, reason, last = told(tmp_path, CHAIN, first_block=1000)
    assert reason == "no gateway stores blocks 0 to 999: the gateway begins with block 1000"
    assert (report.safe_through, report.acknowledged, report.duplicate, last) == (None, 0, 0, None)


@pytest.mark.parametrize("window", [0, 5])
def test_blocks_below_the_first_of_a_node_that_has_later_ones_are_stored_nowhere(
    tmp_path: Path, window: int
) -> None:
    report, reason, last = told(tmp_path, CHAIN[6:], first_block=6)
    assert (report.safe_through, report.acknowledged, reason, last) == (11, 6, "", 11)
    report, reason, last = told(tmp_path, CHAIN, publish_duplicate_skip_window=window)
    assert reason == "no gateway stores blocks 0 to 5: the gateway begins with block 6"
    assert (report.safe_through, report.acknowledged, report.duplicate, last) == (None, 0, 0, 11)


async def test_a_node_that_begins_anywhere_tells_where_it_has_begun(tmp_path: Path) -> None:
    """Alice comes while it holds nothing, and has blocks below the one that it begins with."""

    async with running_node(tmp_path, first_block="any") as node, wire_to(node) as wire:
        may_go_on = asyncio.Event()

        async def slow() -> AsyncIterator[Block]:
            yield CHAIN[3]
            await may_go_on.wait()
            for block in CHAIN[4:]:
                yield block

        alice = PublishClient([str(node.grpc_address)], "alice", QUICK)
        first = await wire.publisher("first")
        await first.items(*CHAIN[6].items[:2])  # with which the node begins
        publishing = asyncio.ensure_future(alice.publish(slow()))
        async with asyncio.timeout(ANSWER_SECONDS):
            while not alice.report().offered:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await first.items(*CHAIN[6].items[2:])
        await first.end(6)
        await first.expect("ack 6")
        may_go_on.set()
        with pytest.raises(PublishFailed) as caught:
            await publishing
        assert caught.value.reason == "no gateway stores blocks 3 to 5: the gateway begins with block 6"
        assert caught.value.report.safe_through is None


def test_the_first_of_a_node_that_begins_anywhere_is_stored(tmp_path: Path) -> None:
    report, reason, last = told(tmp_path, CHAIN[3:], first_block="any")
    assert (report.safe_through, report.won, report.reconnects, reason, last) == (11, 9, 0, "", 11)
