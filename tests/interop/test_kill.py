"""`sluice serve` dies again and again while publishers stream; no acknowledged block is lost.

`SLUICE_LONG=1` takes ten seeds, and kills a node of a native chain 200 times.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from grpc import aio
from tenacity import wait_fixed

from sluice.datastream import Entry, StreamClient
from sluice.datastream.errors import ConnectionEnded
from sluice.gateway.addresses import Address
from sluice.gateway.api import node_pb2, node_pb2_grpc
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.items import ItemKind, kind_of, stream_entry_of
from sluice.gateway.commands import check
from sluice.gateway.store.block_store import BlockStore, Layout, VerifiedBlock
from sluice.gateway.store.evidence import BLOCK_FILE_NAME, STREAM_FILE_NAME
from sluice.publishers.client.client import ClientOptions
from sluice.publishers.protocol.machine import SECOND_NS, MachineLimits
from tests.gateway.block_makers import summary_of
from tests.nodes import ANSWER_SECONDS, make_blocks, make_network_blocks, stream_bytes, until
from tests.serving import Listener, ServeProcess, free_port

LONG = os.environ.get("SLUICE_LONG") == "1"
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


def expected_entries(folder: Path, blocks: list[Block], layout: Layout) -> tuple[list[Entry], list[int]]:
    """Return the entries that clients read, and how many there are behind each block."""
    ends = [0]
    with closing(BlockStore.open(folder, layout=layout)) as good:
        for block in blocks:
            verified = VerifiedBlock(block.number, block.items, summary_of(list(block.items)).root_hash)
            good.append([verified])
            good.advance(verified)
            ends.append(good.streamers[0].committed.total_entries)
        return list(good.streamers[0].read_entries(0)), ends


@pytest.mark.parametrize(
    ("seed", "layout", "kill_count", "block_count"),
    [
        (1, "native", 2, 60),
        pytest.param(1, "block", 3, 225, marks=pytest.mark.slow),
        pytest.param(1, "native", 3, 90, marks=pytest.mark.slow),
        *([(seed, "block", 3, 225) for seed in range(2, 11)] if LONG else []),
        *([(2, "native", 200, 4_000)] if LONG else []),
    ],
)
async def test_nothing_acknowledged_is_lost(
    tmp_path: Path, seed: int, layout: Layout, kill_count: int, block_count: int
) -> None:
    rng = random.Random(seed)
    is_native = layout == "native"
    blocks = (make_network_blocks if is_native else make_blocks)(block_count)
    step = block_count // kill_count // 2
    expected, ends = expected_entries(tmp_path / "good", blocks, layout)
    if is_native:
        items = (item for block in blocks for item in block.items)
        carried = [stream_entry_of(item) for item in items if kind_of(item) == ItemKind.STREAM_ENTRY]
        assert [(entry.type, entry.data) for entry in expected] == carried
    ports = ("--grpc", f"127.0.0.1:{free_port()}", "--tcp", f"127.0.0.1:{free_port()}")

    supply = Supply(blocks)

    async def kill_and_check(node: ServeProcess, racers: list[Listener]) -> None:
        """Kill at a random moment, start again, and look for all acknowledged blocks."""
        before = max((max(racer.acknowledged, default=-1) for racer in racers), default=-1)
        target = before + rng.randrange(1, step + 1)
        supply.last = target + step
        await until(lambda: max(max(racer.acknowledged, default=-1) for racer in racers) >= target)
        await asyncio.sleep(rng.random() * 0.02)  # not always just after an answer
        await node.kill()
        acknowledged = max(max(racer.acknowledged, default=-1) for racer in racers)
        checked = CliRunner().invoke(check.command, [str(node.data_dir)])
        assert checked.exit_code == 0, checked.output  # what opening puts right is not damage
        await node.start()
        status = await status_of(node)
        assert status.first_available_block == 0
        assert status.last_available_block >= acknowledged >= target
        for number in (0, acknowledged):
            assert tuple((await block_of(node, number)).block.items) == blocks[number].items
        async with StreamClient.connect(node.tcp_address.host, node.tcp_address.port) as client:
            total_entries = (await client.header()).total_entries
        assert total_entries in ends[acknowledged + 1 :]  # whole blocks, those that came since included

    async def main() -> None:
        with ServeProcess(tmp_path / "data", *ports, "--stream-layout", layout) as node:
            await node.start()
            gateways = [str(node.grpc_address)]
            racers = [Listener(gateways, name, OPTIONS) for name in ("alice", "bob", "carol")]
            publishing = [asyncio.ensure_future(racer.publish(supply.source())) for racer in racers]
            reader = Reader(len(expected))
            reading = asyncio.ensure_future(reader.read(node.tcp_address))
            for _ in range(kill_count):
                await kill_and_check(node, racers)
            supply.last = block_count
            reports = await asyncio.gather(*publishing)
            assert all(report.unacknowledged == 0 for report in reports)
            async with asyncio.timeout(ANSWER_SECONDS):
                await reading
            assert reader.entries == expected
            node.send(signal.SIGTERM)
            assert await node.ended() == 0
            assert "Traceback" not in node.log_text()

    await main()
    for name in (STREAM_FILE_NAME, BLOCK_FILE_NAME)[: 1 + is_native]:
        assert stream_bytes(tmp_path / "data", name) == stream_bytes(tmp_path / "good", name)
