"""One run of chaos: nodes, publishers, readers and the script; then the invariants.

every publisher   all blocks acknowledged
every node        every block once, and the same data pages as the others; a sound stream; exit status 0
every reader      every block or entry once, in order, as published
nobody            hangs: each wait has a time limit, and says what it waited for
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from sluice.datastream.check.compare import compare_streams
from sluice.datastream.layout import Entry
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.items import ItemKind, kinds_of
from sluice.gateway.blocks.stream_layout import BlockDecoder
from sluice.gateway.commands import check
from sluice.gateway.store.block_store import BlockStore, Layout
from sluice.gateway.store.evidence import BLOCK_FILE_NAME, STREAM_FILE_NAME
from tests.chaos.actors import (
    EntryReader,
    Network,
    Subscriber,
    digest_entries,
    make_publisher,
    rotated,
)
from tests.chaos.cluster import ChaosNode, make_nodes
from tests.chaos.faults import Faults, Stuck, within
from tests.chaos.script import Script
from tests.nodes import make_blocks, make_network_blocks

__all__ = ["Options", "run"]

FAULT_SECONDS = 180.0
END_SECONDS = 120.0
LEAD_BLOCKS = 30
"""How many blocks the network makes beyond the one that the next fault waits for."""


@dataclass(frozen=True, slots=True)
class Options:
    """The size of a run."""

    publishers: int = 3
    clients: int = 10
    subscribers: int = 5
    blocks_per_second: float = 25.0
    min_standbys: int = 0
    """How many other nodes must have a block before its acknowledgement."""
    layout: Layout = "block"
    """Of the nodes' streams."""


def run(script: Script, options: Options, folder: Path, say: Callable[[str], None]) -> list[str]:
    """Run a script; return the violations in words.

    Args:
        script: the faults.
        options: the size of the run.
        folder: an empty one; logs stay in it.
        say: called with each event.
    """
    nodes = make_nodes(folder, script.roles, options.min_standbys, options.layout)
    try:
        return asyncio.run(_Run(script, options, nodes, say).run())
    finally:
        for node in nodes:
            node.kill()
            node.unmount()


class _Run:
    """The state of one run."""

    def __init__(
        self, script: Script, options: Options, nodes: Sequence[ChaosNode], say: Callable[[str], None]
    ) -> None:
        self._script = script
        self._options = options
        self._nodes = nodes
        self._say = say
        is_native = options.layout == "native"
        self._blocks = (make_network_blocks if is_native else make_blocks)(script.block_count)
        self._entry_count = sum(map(_native_entry_count if is_native else _entry_count, self._blocks))
        """Those that clients read."""
        self._network = Network(self._blocks, options.blocks_per_second)
        self._faults = Faults(nodes, say)
        grpc, tcp = [node.grpc for node in nodes], [node.tcp for node in nodes]
        self._publishers = [
            make_publisher(rotated(grpc, index), f"publisher-{index}") for index in range(options.publishers)
        ]
        self._readers = [EntryReader(rotated(tcp, index)) for index in range(options.clients)]
        last = script.block_count - 1
        self._subscribers = [Subscriber(rotated(grpc, index), last) for index in range(options.subscribers)]
        self._tasks: list[asyncio.Task[Any]] = []

    async def run(self) -> list[str]:
        """Do everything; return the violations."""
        for node in self._nodes:
            await node.place.open()
        await asyncio.gather(*(node.start() for node in self._nodes))
        publishing = [self._begin(one.publish(self._network.source())) for one in self._publishers]
        subscribed = [self._begin(one.run()) for one in self._subscribers]
        for reader in self._readers:
            self._begin(reader.run())
        self._begin(self._network.run())
        try:
            await self._or_broken(self._play())
            wrong: list[str] = await self._or_broken(self._finish(publishing, subscribed))
            return wrong
        except Stuck as stuck:
            return [str(stuck), *await self._where()]
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for node in self._nodes:
                await node.place.close()

    def _begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(work)
        self._tasks.append(task)
        return task

    async def _or_broken(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Await work, but raise at once if another actor fails."""
        task = asyncio.ensure_future(work)
        try:
            waiting = {task, *(one for one in self._tasks if not one.done())}
            while not task.done():
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for one in done:
                    one.result()
            return task.result()
        finally:
            task.cancel()

    @property
    def _acknowledged(self) -> int:
        """The highest acknowledged block; -1 before the first."""
        return max(max(one.acknowledged, default=-1) for one in self._publishers)

    async def _play(self) -> None:
        """Apply each fault when its block is acknowledged."""
        for fault in self._script.faults:
            self._network.limit = fault.after_block + LEAD_BLOCKS
            await within(
                FAULT_SECONDS,
                f"block {fault.after_block} to be acknowledged",
                self._reach(fault.after_block),
                lambda: f"block {self._acknowledged}",
            )
            self._say(f"{fault}")
            await within(FAULT_SECONDS, f"{fault}", self._faults.hit(fault))
        self._network.limit = self._script.block_count

    async def _reach(self, number: int) -> None:
        while self._acknowledged < number:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def _finish(
        self, publishing: list[asyncio.Task[Any]], subscribed: list[asyncio.Task[Any]]
    ) -> list[str]:
        """Wait until everybody has everything, stop the nodes, and judge."""
        seconds = END_SECONDS + self._script.block_count / self._options.blocks_per_second
        await within(
            seconds, "publishers to be done", asyncio.gather(*publishing), lambda: f"{self._acknowledged}"
        )
        self._say("all blocks are acknowledged to every publisher")
        await within(END_SECONDS, "nodes to be level", self._level())
        await within(
            END_SECONDS,
            "subscribers to be done",
            asyncio.gather(*subscribed),
            lambda: [len(one.blocks) for one in self._subscribers],
        )
        await within(
            END_SECONDS,
            f"clients to have {self._entry_count} entries",
            asyncio.gather(*(reader.reach(self._entry_count) for reader in self._readers)),
            lambda: [reader.count for reader in self._readers],
        )
        self._say("every client and every subscriber has everything")
        wrong = []
        for node in self._nodes:
            status = await node.stop()
            if status != 0:
                wrong.append(f"{node}: got exit status {status}, expected 0")
        return wrong + self._judge()  # nothing else runs any more

    async def _level(self) -> None:
        last = self._script.block_count - 1
        while True:
            states = await self._faults.states()
            if len(states) == len(self._nodes) and all(one.last_number == last for one in states.values()):
                return
            await asyncio.sleep(0.05)

    async def _where(self) -> list[str]:
        """Return everybody's position, for a run that is stuck."""
        states = await self._faults.states()
        lines = [
            f"{node}: {states[node].phase.value} at {states[node].last_text}, {states[node].problems}"
            if node in states
            else f"{node}: no answer"
            for node in self._nodes
        ]
        lines += [f"{one.report()}" for one in self._publishers]
        return lines

    # --- the verdict ---------------------------------------------------------------------------------------

    def _judge(self) -> list[str]:
        wrong = [f"{node}: {line}" for node in self._nodes for line in node.problems_logged()]
        for publisher in self._publishers:
            report = publisher.report()
            if report.unacknowledged:
                wrong.append(f"{report.publisher_id}: {report.unacknowledged} blocks not acknowledged")
        first = self._nodes[0]
        entries, blocks = _stored(first)
        if blocks != self._blocks:
            wrong.append(f"{first}: the blocks of its stream are not those that were published")
        for node in self._nodes:
            wrong += _judge_node(node, first, len(self._blocks))
        expected = digest_entries(entries)
        for index, reader in enumerate(self._readers):
            if reader.wrong is not None:
                wrong.append(f"client {index}: {reader.wrong}")
            if (reader.count, reader.digest) != (len(entries), expected):
                wrong.append(f"client {index}: its {reader.count} entries are not the {len(entries)} stored")
        for index, subscriber in enumerate(self._subscribers):
            if subscriber.blocks != self._blocks:
                wrong.append(f"subscriber {index}: its blocks are not those that were published")
        return wrong


def _entry_count(block: Block) -> int:
    return len(block.items) + 2


def _native_entry_count(block: Block) -> int:
    return sum(kind == ItemKind.STREAM_ENTRY for kind in kinds_of(block.items))


def _judge_node(node: ChaosNode, first: ChaosNode, block_count: int) -> list[str]:
    """Check one node's streams, and compare them with the first one's."""
    wrong: list[str] = []
    names = [name for name in (STREAM_FILE_NAME, BLOCK_FILE_NAME) if (node.data_dir / name).exists()]
    for name in names:
        done = CliRunner().invoke(check.command, ["--json", str(node.data_dir / name)])
        found = json.loads(done.stdout)
        if done.exit_code:
            wrong.append(f"{node}: {name}: {found['findings']}")
        if name == names[-1] and (found["blocks"], found["last_block"]) != (block_count, block_count - 1):
            wrong.append(f"{node}: {found['blocks']} blocks up to {found['last_block']}")
        comparison = compare_streams(first.data_dir / name, node.data_dir / name)
        totals = [header.total_entries for header in comparison.headers]
        if not comparison.is_equal or totals[0] != totals[1]:
            wrong.append(f"{first} and {node}: {name}: {comparison.difference}, {totals} entries")
    return wrong


def _stored(node: ChaosNode) -> tuple[list[Entry], list[Block]]:
    """Return the entries of the stream that clients read, and the blocks."""
    decoder, blocks = BlockDecoder(), []
    with contextlib.closing(BlockStore.open(node.data_dir)) as store:
        for entry in store.read_entries(0):
            stored = decoder.feed(entry.type, entry.data)
            if stored is not None:
                blocks.append(Block(stored.number, stored.items))
        return list(store.streamers[0].read_entries(0)), blocks
