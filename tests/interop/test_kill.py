"""`sluice serve` dies again and again while publishers stream; no acknowledged block is lost.

`SLUICE_LONG=1` takes ten seeds.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from grpc import aio
from tenacity import wait_fixed

from sluice.datastream import Entry, StreamClient
from sluice.datastream.errors import ConnectionEnded
from sluice.gateway.addresses import Address
from sluice.gateway.api import node_pb2, node_pb2_grpc
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.stream_layout import BlockDecoder
from sluice.publishers.client.client import ClientOptions
from sluice.publishers.protocol.machine import SECOND_NS, MachineLimits
from tests.nodes import ANSWER_SECONDS, make_blocks, stream_bytes, until
from tests.publishers.node_thread import store
from tests.serving import SLUICE, Listener, ServeProcess, free_port

LONG = os.environ.get("SLUICE_LONG") == "1"
BLOCK_COUNT = 300
KILL_COUNT = 4
STEP = BLOCK_COUNT // KILL_COUNT // 2
OPTIONS = ClientOptions(
    machine=MachineLimits(deadline_ns=60 * SECOND_NS), wait=wait_fixed(0.02), connect_timeout_seconds=1.0
)


class Supply:
    """Blocks for all publishers, up to a moving last one, so that some remain however long a start takes."""

    def __init__(self, blocks: list[Block]) -> None:
        self._blocks = blocks
        self.last = -1

    async def source(self) -> AsyncIterator[Block]:
        """Give all blocks, each when `last` has come to it."""
        for block in self._blocks:
            while block.number > self.last:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            yield block


class Reader:
    """A data-streamer client that resumes after its last entry whenever the node returns."""

    def __init__(self, entries_max: int) -> None:
        self.entries: list[Entry] = []
        self._entries_max = entries_max

    async def read(self, address: Address) -> None:
        """Read until all entries are here, connecting again when the connection ends."""
        while len(self.entries) < self._entries_max:
            try:
                async with StreamClient.connect(address.host, address.port) as client:
                    await client.start(len(self.entries))
                    async for entry in client.entries():
                        self.entries.append(entry)
                        if len(self.entries) == self._entries_max:
                            return
            except (OSError, ConnectionEnded):
                await asyncio.sleep(0.02)

    def blocks(self) -> list[Block]:
        """What was read, as blocks."""
        decoder, blocks = BlockDecoder(), []
        for entry in self.entries:
            stored = decoder.feed(entry.type, entry.data)
            if stored is not None:
                blocks.append(Block(stored.number, stored.items))
        return blocks


async def status_of(node: ServeProcess) -> node_pb2.ServerStatusResponse:
    """Ask serverStatus."""
    async with aio.insecure_channel(str(node.grpc_address)) as channel:
        stub = node_pb2_grpc.BlockNodeServiceStub(channel)
        return await stub.serverStatus(node_pb2.ServerStatusRequest(), timeout=ANSWER_SECONDS)


async def block_of(node: ServeProcess, number: int) -> node_pb2.BlockResponse:
    """Ask getBlock."""
    async with aio.insecure_channel(str(node.grpc_address)) as channel:
        stub = node_pb2_grpc.BlockAccessServiceStub(channel)
        return await stub.getBlock(node_pb2.BlockRequest(block_number=number), timeout=ANSWER_SECONDS)


@pytest.mark.parametrize("seed", range(1, 11 if LONG else 2))
async def test_nothing_acknowledged_is_lost(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    blocks = make_blocks(BLOCK_COUNT)
    entry_count = sum(len(block.items) + 2 for block in blocks)
    ports = ("--grpc", f"127.0.0.1:{free_port()}", "--tcp", f"127.0.0.1:{free_port()}")

    supply = Supply(blocks)

    async def kill_and_check(node: ServeProcess, racers: list[Listener]) -> None:
        """Kill at a random moment, start again, and look for all acknowledged blocks."""
        before = max((max(racer.acknowledged, default=-1) for racer in racers), default=-1)
        target = before + rng.randrange(1, STEP)
        supply.last = target + STEP
        await until(lambda: max(max(racer.acknowledged, default=-1) for racer in racers) >= target)
        await asyncio.sleep(rng.random() * 0.02)  # not always just after an answer
        await node.kill()
        acknowledged = max(max(racer.acknowledged, default=-1) for racer in racers)
        checking = await asyncio.create_subprocess_exec(
            *SLUICE, "check", str(node.data_dir), stdout=asyncio.subprocess.PIPE
        )
        said, _ = await checking.communicate()
        assert checking.returncode == 0, said.decode()  # what opening puts right is not damage
        await node.start()
        status = await status_of(node)
        assert status.first_available_block == 0
        assert status.last_available_block >= acknowledged >= target
        for number in (0, acknowledged):
            assert tuple((await block_of(node, number)).block.items) == blocks[number].items

    async def main() -> None:
        with ServeProcess(tmp_path / "data", *ports) as node:
            await node.start()
            gateways = [str(node.grpc_address)]
            racers = [Listener(gateways, name, OPTIONS) for name in ("alice", "bob", "carol")]
            publishing = [asyncio.ensure_future(racer.publish(supply.source())) for racer in racers]
            reader = Reader(entry_count)
            reading = asyncio.ensure_future(reader.read(node.tcp_address))
            for _ in range(KILL_COUNT):
                await kill_and_check(node, racers)
            supply.last = BLOCK_COUNT
            reports = await asyncio.gather(*publishing)
            assert all(report.unacknowledged == 0 for report in reports)
            async with asyncio.timeout(ANSWER_SECONDS):
                await reading
            assert [entry.number for entry in reader.entries] == list(range(entry_count))
            assert reader.blocks() == blocks
            node.send(signal.SIGTERM)
            assert await node.ended() == 0
            assert "Traceback" not in node.log_text()

    await main()
    store(tmp_path / "good", blocks)
    assert stream_bytes(tmp_path / "data") == stream_bytes(tmp_path / "good")
