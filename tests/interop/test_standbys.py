"""Nodes that acknowledge only what other nodes have on disk: killed, stopped, robbed of their disks.

Real processes. `SLUICE_LONG=1` deletes many disks in a row, over many seeds.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import shutil
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from tenacity import wait_fixed

from sluice.datastream.check.compare import compare_streams
from sluice.gateway.addresses import Address
from sluice.gateway.blocks.block import Block
from sluice.gateway.cluster.node_status import collect
from sluice.gateway.cluster.roles import Phase
from sluice.publishers.client.client import ClientOptions
from sluice.publishers.demo.node_process import NodeNotStarted
from sluice.publishers.protocol.machine import SECOND_NS, MachineLimits
from tests.chaos.actors import EntryReader
from tests.interop.test_failover import fail_over
from tests.nodes import ANSWER_SECONDS, each, ledger_key, make_blocks, running_node, until
from tests.serving import Listener, ServeProcess, free_port, refused

LONG = os.environ.get("SLUICE_LONG") == "1"
SEEDS = range(1, 41) if LONG else (1,)
ROUNDS = 6 if LONG else 2
BLOCKS = make_blocks(400)
OPTIONS = ClientOptions(
    machine=MachineLimits(deadline_ns=90 * SECOND_NS), wait=wait_fixed(0.05), connect_timeout_seconds=1.0
)
WAIT_SECONDS = 3 * ANSWER_SECONDS
LEAD_BLOCKS = 30
"""How many blocks a publisher may be ahead of the one that a test asks for."""


class ClusterNode(ServeProcess):
    """One of several nodes that know each other, on fixed ports."""

    def __init__(self, data_dir: Path) -> None:
        self.grpc, self.control_address, self.tcp = (Address("127.0.0.1", free_port()) for _ in range(3))
        super().__init__(data_dir)

    async def start(self, *, key: bool = True) -> None:
        """Start it; for a moment a client that tries a dead node's port may own that port."""
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                try:
                    return await super().start(key=key)
                except NodeNotStarted as error:
                    if "Address already in use" not in error.last_words:
                        raise
                    await asyncio.sleep(0.1)

    def introduce(self, others: Sequence[ClusterNode], least: int, role: str) -> None:
        """Set the other nodes, how many it waits for, and its first role."""
        words: list[object] = ["--grpc", self.grpc, "--control", self.control_address, "--tcp", self.tcp]
        words += ["--role", role, "--commit-min-standbys", least, "--catchup-backoff-seconds", "0.1"]
        for other in others:
            words += ["--peer", other.grpc]
        self._arguments = [str(word) for word in words]

    def limit_files(self, size: int) -> None:
        """Let it write no file beyond this size, as on a full disk; RLIM_INFINITY: any."""
        assert self._process is not None
        limit = (size, resource.RLIM_INFINITY)
        resource.prlimit(self._process.process_id, resource.RLIMIT_FSIZE, limit)

    async def facts(self) -> dict[str, Any]:
        """Return its row of `sluice status`."""
        (row,) = (await collect([str(self.grpc)])).rows
        return row.as_json()

    async def reasons(self) -> list[str]:
        """Why it is not ready."""

        def ask() -> list[str]:
            try:
                urlopen(f"http://{self.http_address}/readyz", timeout=ANSWER_SECONDS).close()
            except HTTPError as error:
                return error.read().decode().splitlines()
            return []

        return await asyncio.to_thread(ask)


@asynccontextmanager
async def cluster(tmp_path: Path, count: int, least: int) -> AsyncIterator[list[ClusterNode]]:
    """Yield running nodes: the first one active, the others its standbys."""
    async with AsyncExitStack() as stack:
        nodes = [stack.enter_context(ClusterNode(tmp_path / name)) for name in "abc"[:count]]
        for index, node in enumerate(nodes):
            others = [other for other in nodes if other is not node]
            node.introduce(others, least, "standby" if index else "active")
        await asyncio.gather(*(node.start() for node in nodes))
        yield nodes


class Publishing:
    """A publisher that keeps a pace while nodes come and go."""

    def __init__(
        self, nodes: Sequence[ClusterNode], *, name: str = "alice", blocks_per_second: float = 100
    ) -> None:
        self.client = Listener([str(node.grpc) for node in nodes], name, OPTIONS)
        self.goes_on = True
        self.limit = LEAD_BLOCKS
        """The last block for now, so that some remain for every kill."""
        self.offered = -1
        """The last block given to the publisher."""
        self._pause_seconds = 1 / blocks_per_second
        self.task = asyncio.ensure_future(self.client.publish(self._source()))

    async def _source(self) -> AsyncIterator[Block]:
        for block in BLOCKS:
            await asyncio.sleep(self._pause_seconds)
            while self.goes_on and block.number > self.limit:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            if not self.goes_on:
                return
            self.offered = block.number
            yield block

    @property
    def acknowledged(self) -> int:
        """The last acknowledged block."""
        return max(self.client.acknowledged, default=-1)

    def _extend(self, number: int) -> None:
        assert number < len(BLOCKS)
        self.limit = max(self.limit, number + LEAD_BLOCKS)

    async def offer(self, number: int) -> None:
        """Wait until the publisher has the block."""
        self._extend(number)
        await until(lambda: self.offered >= number)

    async def stands_still(self, active: ClusterNode) -> int:
        """Wait until offered blocks get no acknowledgement; return the last acknowledged one."""
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                settled = self.acknowledged
                await self.offer(settled + 30)  # which its window has room for
                await until(lambda: has_stored(active, settled + 20))  # noqa: B023 - it is alive
                await asyncio.sleep(30 * self._pause_seconds)
                if self.acknowledged == settled:  # answers on their way when the standby left have arrived
                    return settled

    async def reach(self, number: int) -> None:
        """Wait until a block is acknowledged."""
        self._extend(number)
        await until(lambda: self.acknowledged >= number)

    async def end(self) -> int:
        """End the chain, wait for all acknowledgements, and return the number of blocks."""
        self.goes_on = False
        async with asyncio.timeout(WAIT_SECONDS):
            report = await self.task
        assert report.unacknowledged == 0
        return report.blocks


async def last_of(node: ClusterNode) -> int:
    """Return its last block on disk; -1: none, or no answer."""
    last = (await node.facts())["last_block"]
    return -1 if last is None else int(last)


async def test_an_acknowledgement_waits_for_a_standby_that_is_stopped(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2, 1) as (a, b):
        publishing = Publishing([a])
        await publishing.reach(10)
        b.send(signal.SIGSTOP)
        acknowledged = await publishing.stands_still(a)
        stored = await last_of(a)
        assert (await a.facts())["awaiting_standbys"] >= 20
        assert publishing.acknowledged == acknowledged
        await until(a.reasons)
        (reason,) = await a.reasons()
        assert "are not acknowledged before 1 other node (commit.min_standbys)" in reason
        assert f"{b.grpc} has block" in reason
        b.send(signal.SIGCONT)
        await publishing.reach(stored)
        await until(lambda: is_ready(a))
        assert await publishing.end() == publishing.offered + 1


async def is_ready(node: ClusterNode) -> bool:
    """Whether /readyz says so."""
    return not await node.reasons()


@pytest.mark.slow
async def test_two_of_two_standbys_must_have_a_block(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3, 2) as (a, b, c):
        publishing = Publishing([a])
        await publishing.reach(10)
        for stopped in (b, c):
            stopped.send(signal.SIGSTOP)
            acknowledged = await publishing.stands_still(a)
            stopped.send(signal.SIGCONT)
            await publishing.reach(acknowledged + 30)
        count = await publishing.end()
        assert [await last_of(node) for node in (b, c)] == [count - 1] * 2


@pytest.mark.slow
async def test_one_of_two_standbys_may_be_away(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3, 1) as (a, b, c):
        publishing = Publishing([a])
        await publishing.reach(10)
        for stopped in (b, c):
            stopped.send(signal.SIGSTOP)
            await publishing.reach(publishing.offered + 20)
            stopped.send(signal.SIGCONT)
        count = await publishing.end()
        assert await last_of(a) == count - 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
async def test_a_disk_that_is_thrown_away_takes_nothing_acknowledged_with_it(
    tmp_path: Path, seed: int
) -> None:
    """The active node and its disk die at random moments, again and again."""
    rng = random.Random(seed)

    async with cluster(tmp_path, 2, 1) as (active, standby):
        publishing = Publishing([active, standby], blocks_per_second=rng.choice((50, 200, 1000)))
        reader = EntryReader([active.tcp, standby.tcp])
        reading = asyncio.ensure_future(reader.run())
        for _ in range(ROUNDS):
            await publishing.reach(publishing.acknowledged + rng.randrange(5, 30))
            await asyncio.sleep(rng.random() * 0.02)  # not always just after an answer
            await active.kill()
            shutil.rmtree(active.data_dir)
            assert await last_of(standby) >= publishing.acknowledged
            steps = await fail_over(active, standby, force=True)
            assert steps[-1].name == f"{standby.control_address} is active and NOT READY"
            assert "publishers are refused until block" in steps[-1].detail
            active.introduce([standby], 1, "standby")
            await active.start()
            active, standby = standby, active
        count = await publishing.end()
        await until(lambda: is_level(active, standby, count - 1))
        entry_count = sum(len(block.items) + 2 for block in BLOCKS[:count])
        async with asyncio.timeout(WAIT_SECONDS):
            await reader.reach(entry_count)
        reading.cancel()
        assert reader.wrong is None
        assert reader.count == entry_count
        for node in (active, standby):
            node.send(signal.SIGTERM)
            assert await node.ended() == 0
            assert "Traceback" not in node.log_text()
        compared = compare_streams(active.data_dir / "datastream.bin", standby.data_dir / "datastream.bin")
        assert compared.is_equal, compared.difference


async def is_level(one: ClusterNode, other: ClusterNode, last: int) -> bool:
    """Whether both have this last block."""
    return await last_of(one) == await last_of(other) == last


async def test_planned_failovers_go_on_with_two_nodes(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2, 1) as (a, b):
        publishing = Publishing([a, b])
        for source, target in ((a, b), (b, a), (a, b)):
            await publishing.reach(publishing.acknowledged + 20)
            steps = await fail_over(source, target)
            assert steps[-1].detail == f"follows {target.grpc}"
            assert await target.reasons() == []  # the old node reported before it was asked to follow
        count = await publishing.end()
        await until(lambda: is_level(a, b, count - 1))


@pytest.mark.slow
async def test_an_active_node_that_comes_back_alone_refuses_until_its_standby_is_there(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path, 2, 1) as (a, b):
        publishing = Publishing([a, b])
        await publishing.reach(10)
        await b.kill()
        acknowledged = await publishing.stands_still(a)
        await a.kill()
        await a.start()
        (reason,) = await a.reasons()
        assert reason.startswith("publishers are refused until block")
        assert publishing.acknowledged == acknowledged
        await b.start()
        await publishing.reach(acknowledged + 40)
        assert await a.reasons() == []
        assert a.logged("publishers are refused") != []
        assert a.logged("publishers are accepted") != []
        count = await publishing.end()
        await until(lambda: is_level(a, b, count - 1))


async def has_stored(node: ClusterNode, number: int) -> bool:
    """Whether it has a block on disk; over HTTP, where strangers may hold all places of gRPC."""

    def ask() -> Any:
        with urlopen(f"http://{node.http_address}/status.json", timeout=ANSWER_SECONDS) as answer:
            return json.load(answer)["last_block"]

    last = await asyncio.to_thread(ask)
    return last is not None and int(last) >= number


def test_a_node_without_enough_peers_does_not_start(tmp_path: Path) -> None:
    """The node itself does not count, under whatever name."""
    port = free_port()
    ports = ("--grpc", f"127.0.0.1:{port}", "--tcp", "127.0.0.1:0", "--http", "127.0.0.1:0")
    status, text = refused(
        *("--data-dir", tmp_path, "--ledger-key", ledger_key(), *ports, "--control", "127.0.0.1:0"),
        *("--peer", f"localhost:{port}", "--peer", "127.0.0.1:1", "--commit-min-standbys", "2"),
    )
    assert status == 2
    assert text == (
        "sluice: commit.min_standbys: got 2, expected at most 1, the number of peers that are other nodes "
        f"(a node that listens at 127.0.0.1:{port})\n"
    )


async def test_two_active_nodes_confirm_each_others_blocks(tmp_path: Path) -> None:
    """Publishers connect to one node; the other takes the blocks when it asks its peers."""

    ports = [Address("127.0.0.1", free_port()) for _ in range(2)]
    common: dict[str, Any] = {"commit_min_standbys": 1, "catchup_stall_seconds": 0.2}
    common |= {"catchup_max_backoff_seconds": 2.0}  # where an answer comes later than that
    async with (
        running_node(tmp_path / "a", grpc_address=ports[0], peers=(ports[1],), **common) as a,
        running_node(tmp_path / "b", grpc_address=ports[1], peers=(ports[0],), **common) as b,
    ):
        publisher = Listener([str(a.grpc_address)], "alice", OPTIONS)
        report = await asyncio.wait_for(publisher.publish(each(BLOCKS[:60])), WAIT_SECONDS)
        assert report.unacknowledged == 0
        assert b.store.last_number == 59
        assert {a.keeper.phase, b.keeper.phase} == {Phase.ACTIVE}
