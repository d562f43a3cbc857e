"""Real nodes for tests, in this process on free ports, and raw gRPC publishers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from sluice.datastream.events.sample_operations import sample_operation
from sluice.datastream.layout import HEADER_PAGE_SIZE, PAGE_SIZE
from sluice.gateway.addresses import Address
from sluice.gateway.api import (
    block_items_pb2,
    node_pb2,
    node_pb2_grpc,
    publish_pb2,
    publish_pb2_grpc,
    subscribe_pb2,
    subscribe_pb2_grpc,
)
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.block_numbers import U64_MAX
from sluice.gateway.blocks.items import ItemKind, field_item, stream_entry_item
from sluice.gateway.key_files import public_key_hex
from sluice.gateway.node.node import Node
from sluice.gateway.node.rules import NodeLimits
from sluice.gateway.race.tables import BlockState
from sluice.gateway.services.subscription_client import BlockAssembler, status_name
from sluice.gateway.settings.table import Settings
from sluice.publishers.blocks.block_items import header_item
from sluice.publishers.blocks.linking import ChainStart, Linker, open_block, sign_block
from sluice.publishers.blocks.maker import BlockMaker, MakerOptions, key_of_seed

LOOPBACK = Address("127.0.0.1", 0)
KEY = key_of_seed(7)
SMALL = MakerOptions(rounds_per_block=1, events_per_round=2, transactions_per_block=3, item_bytes=256)
ANSWER_SECONDS = 20.0
"""The longest wait of a test for an answer."""
WAIT_SECONDS = 3 * ANSWER_SECONDS
"""The longest wait of `until`, which may involve other processes."""
AT_ITS_END: dict[str, Any] = {"publish_proof_idle_ms": 10_000}
"""Settings with which only end_of_block completes a block, not silence."""

_CHAINS: dict[tuple[int, str], list[Block]] = {}

Request = publish_pb2.PublishStreamRequest
Response = publish_pb2.PublishStreamResponse


def make_blocks(count: int, *, seed: int = 7, key: Ed25519PrivateKey = KEY) -> list[Block]:
    """Return blocks 0 to count - 1 of a small chain; each is made once in a process."""
    chain = _CHAINS.setdefault((seed, public_key_hex(key)), [])
    if len(chain) < count:
        chain[:] = BlockMaker(seed, key, SMALL).blocks(max(count, 2 * len(chain)))
    return chain[:count]


def make_network_blocks(count: int) -> list[Block]:
    """Return blocks 0 to count - 1, signed, that carry the stream of a network; some carry no entry of it."""
    linker, made = Linker(ChainStart()), []
    for number in range(count):
        body = [stream_entry_item(*entry) for entry in sample_operation(number, 1_700_000_000 + number)]
        if number % 7 == 3:
            body = []
        if number % 5 == 2:
            size = 300_000 if number % 50 == 2 else number * 7919 % 9_000
            body[2:2] = [field_item(ItemKind.ROUND_HEADER, b"%d" % number), stream_entry_item(2, bytes(size))]
        opened = open_block(number, (header_item(number, number * 10**9), *body))
        items = opened.closed(linker.link(number, opened.path()))
        made.append(Block(number, sign_block(number, items, KEY)))
    return made


def ledger_key(key: Ed25519PrivateKey = KEY) -> str:
    """Return the key as `--ledger-key` takes it."""
    return f"ed25519:{public_key_hex(key)}"


def node_settings(data_dir: Path, **changes: Any) -> Settings:
    """Return settings of a node on free ports that knows KEY."""
    values: dict[str, Any] = {
        "data_dir": data_dir,
        "grpc_address": LOOPBACK,
        "tcp_address": LOOPBACK,
        "http_address": LOOPBACK,
        "control_address": LOOPBACK,
        "ledger_keys": (ledger_key(),),
        "tcp_max_connections": 100,  # no warning, however few files a process may open
        "shutdown_grace_seconds": 2.0,
    }
    return Settings(**(values | changes))


async def until(holds: Callable[[], object | Awaitable[object]], every_seconds: float = 0.005) -> None:
    """Wait until `holds()`, which may be a coroutine function, is true."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            found = holds()
            if await found if isinstance(found, Awaitable) else found:
                return
            await asyncio.sleep(every_seconds)


async def each(blocks: Iterable[Block], pause_seconds: float = 0.0) -> AsyncIterator[Block]:
    """Yield blocks as a publisher's source, with a pause before each."""
    for block in blocks:
        if pause_seconds:
            await asyncio.sleep(pause_seconds)
        yield block


@asynccontextmanager
async def running_node(
    data_dir: Path, limits: NodeLimits | None = None, /, **changes: Any
) -> AsyncIterator[Node]:
    """Run a node."""
    node = Node(node_settings(data_dir, **changes), limits=limits)
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


class Publisher:
    """One publish stream, message by message."""

    def __init__(self, call: aio.StreamStreamCall[Any, Any]) -> None:
        self.call = call
        self.polite = True
        """It closes its sending side when the node has ended the stream."""

    async def items(self, *items: bytes) -> None:
        """Send one item set."""
        request = Request()
        request.block_items.block_items.extend(items)
        await self.call.write(request)

    async def end(self, number: int) -> None:
        """Send end_of_block."""
        await self.call.write(Request(end_of_block=block_items_pb2.BlockEnd(block_number=number)))

    async def block(self, *blocks: Block) -> None:
        """Send whole blocks, each in one item set."""
        for block in blocks:
            await self.items(*block.items)
            await self.end(block.number)

    async def end_stream(self, code: int, earliest: int = 0, latest: int = 0) -> None:
        """Send EndStream."""
        message = Request.EndStream(
            end_code=code,  # type: ignore[arg-type]
            earliest_block_number=earliest,
            latest_block_number=latest,
        )
        await self.call.write(Request(end_stream=message))

    async def answer(self) -> str:
        """Wait for the next response; return it as short text, "closed" when the stream is over."""
        response = await asyncio.wait_for(self.call.read(), ANSWER_SECONDS)
        if response is aio.EOF:
            return "closed"
        assert isinstance(response, Response)
        text = text_of(response)
        if text.startswith("end ") and self.polite:
            await self.call.done_writing()
        return text

    async def answers(self, count: int) -> list[str]:
        """Wait for `count` responses."""
        return [await self.answer() for _ in range(count)]

    async def expect(self, *texts: str) -> None:
        """Assert the next responses."""
        got = [await self.answer() for _ in texts]
        assert got == list(texts)


def text_of(response: publish_pb2.PublishStreamResponse) -> str:
    """Return `ack 9`, `skip 9`, `resend 9`, `behind 8`, `end TIMEOUT last 8 about 9`; 2^64 - 1 as none."""

    def number(value: int) -> str:
        return "none" if value == (1 << 64) - 1 else str(value)

    match response.WhichOneof("response"):
        case "acknowledgement":
            return f"ack {response.acknowledgement.block_number}"
        case "skip_block":
            return f"skip {response.skip_block.block_number}"
        case "resend_block":
            return f"resend {response.resend_block.block_number}"
        case "node_behind_publisher":
            return f"behind {number(response.node_behind_publisher.block_number)}"
        case "end_stream":
            end = response.end_stream
            status = Response.EndOfStream.Code.Name(end.status)
            return f"end {status} last {number(end.block_number)} about {end.proximate_block_number}"
        case other:
            return f"nothing known: {other}"


class Reader:
    """One subscription, block by block."""

    def __init__(self, call: aio.UnaryStreamCall[Any, Any], start: int, end: int) -> None:
        self.call = call
        self.assembler = BlockAssembler(None if start == U64_MAX else start, None if end == U64_MAX else end)
        self.set_bytes_max = 0
        """The largest item set so far."""

    async def next(self) -> Block | str | None:
        """Wait for the next block; after the last, return the name of the status, then None."""
        while True:
            response = await asyncio.wait_for(self.call.read(), ANSWER_SECONDS)
            if response is aio.EOF:
                return None
            assert isinstance(response, subscribe_pb2.SubscribeStreamResponse)
            self.set_bytes_max = max(self.set_bytes_max, sum(map(len, response.block_items.block_items)))
            block = self.assembler.feed(response)
            if block is not None:
                return block
            if self.assembler.status is not None:
                return status_name(self.assembler.status)

    async def rest(self) -> list[Block | str]:
        """Return everything up to the end of the stream: blocks, and the name of the status."""
        got = []
        while (one := await self.next()) is not None:
            got.append(one)
        return got

    async def numbers(self) -> list[int | str]:
        """Return `rest` with block numbers in place of blocks."""
        return [one if isinstance(one, str) else one.number for one in await self.rest()]


class Wire:
    """gRPC connections to one node, one channel for each publisher."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._channels: list[aio.Channel] = []

    def channel(self) -> aio.Channel:
        """Open another channel."""
        options = (
            # Small windows, so that a test sees back pressure without sending megabytes.
            ("grpc.http2.bdp_probe", 0),
            ("grpc.http2.lookahead_bytes", 1024),
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            ("grpc.use_local_subchannel_pool", 1),
        )
        channel = aio.insecure_channel(str(self.node.grpc_address), options=options)
        self._channels.append(channel)
        return channel

    async def publisher(self, name: str | None = None, channel: aio.Channel | None = None) -> Publisher:
        """Open a publish stream, on its own or a given channel; wait until the node knows of it."""
        stub = publish_pb2_grpc.BlockStreamPublishServiceStub(channel or self.channel())
        metadata = None if name is None else (("publisher-id", name),)
        publisher = Publisher(stub.publishBlockStream(metadata=metadata))
        await asyncio.wait_for(publisher.call.initial_metadata(), ANSWER_SECONDS)
        return publisher

    async def subscribe(self, start: int, end: int = U64_MAX) -> Reader:
        """Subscribe, and wait until the node knows of it."""
        stub = subscribe_pb2_grpc.BlockStreamSubscribeServiceStub(self.channel())
        call = stub.subscribeBlockStream(
            subscribe_pb2.SubscribeStreamRequest(start_block_number=start, end_block_number=end)
        )
        await asyncio.wait_for(call.initial_metadata(), ANSWER_SECONDS)
        return Reader(call, start, end)

    async def begun(self, number: int) -> None:
        """Wait until a publisher has won block `number`."""
        async with asyncio.timeout(ANSWER_SECONDS):
            blocks = self.node.conductor.arbiter.blocks
            while number not in blocks or blocks[number].state is BlockState.OPEN:  # noqa: ASYNC110
                await asyncio.sleep(0.002)

    async def status(self) -> node_pb2.ServerStatusResponse:
        """Ask serverStatus."""
        stub = node_pb2_grpc.BlockNodeServiceStub(self.channel())
        return await stub.serverStatus(node_pb2.ServerStatusRequest(), timeout=ANSWER_SECONDS)

    async def get_block(self, number: int) -> node_pb2.BlockResponse:
        """Ask getBlock."""
        stub = node_pb2_grpc.BlockAccessServiceStub(self.channel())
        return await stub.getBlock(node_pb2.BlockRequest(block_number=number), timeout=ANSWER_SECONDS)

    async def health(self, service: str = "") -> str:
        """Ask the gRPC health service."""
        stub: Any = health_pb2_grpc.HealthStub(self.channel())
        response = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=ANSWER_SECONDS)
        return health_pb2.HealthCheckResponse.ServingStatus.Name(response.status)

    async def close(self) -> None:
        """Close all channels."""
        for channel in self._channels:
            await channel.close()


@asynccontextmanager
async def wire_to(node: Node) -> AsyncIterator[Wire]:
    """Yield connections, and close them at the end."""
    wire = Wire(node)
    try:
        yield wire
    finally:
        await wire.close()


def stream_bytes(data_dir: Path, name: str = "datastream.bin") -> bytes:
    """Return a stream file up to the end of its last used data page; a hole follows."""
    with (data_dir / name).open("rb") as file:
        header_page = file.read(HEADER_PAGE_SIZE)
        total_length = int.from_bytes(header_page[38:46], "big")
        page_count = -(-(total_length - HEADER_PAGE_SIZE) // PAGE_SIZE)
        return header_page + file.read(page_count * PAGE_SIZE)


def split(items: Sequence[bytes], size: int) -> Iterable[Sequence[bytes]]:
    """Yield runs of `size` items."""
    return [items[start : start + size] for start in range(0, len(items), size)]
