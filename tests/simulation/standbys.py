"""Other nodes whose disks the node waits for: watched by the real `gateway.cluster.standby_watch`.

A channel in memory replaces gRPC's. Each standby has the node's blocks a while later. A faulty one is away,
stands still, or comes back with another disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from grpc import aio

from sluice.gateway.api import standby_pb2
from sluice.gateway.blocks.root_hash import BlockHasher
from tests.simulation.coverage import EXPECTED, Coverage
from tests.simulation.options import Options
from tests.simulation.peers import unavailable
from tests.simulation.true_chain import true_blocks
from tests.simulation.world import MILLISECOND_NS, SECOND_NS, World

U64_MAX = (1 << 64) - 1
FAULTS = ("is away", "stands still", "has another disk")
_ROOTS: dict[int, bytes] = {}


class _Standby:
    """One node and its disk."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.life = 0
        self.level = -1
        """Its last block on disk."""
        self.highest = -1
        """The last block ever on a disk of it."""
        self.is_up = True
        self.is_still = False
        self.changed: list[asyncio.Future[None]] = []

    def wake(self) -> None:
        waiting, self.changed = self.changed, []
        for future in waiting:
            if not future.done():
                future.set_result(None)


class Standbys:
    """All standbys of a run."""

    def __init__(self, world: World, options: Options, coverage: Coverage) -> None:
        self.world, self.options, self.coverage = world, options, coverage
        self._nodes = [_Standby(f"standby-{index}") for index in range(options.standbys)]
        self._by_address = {f"{node.name}:1": node for node in self._nodes}
        if options.standby_alias and self._nodes:
            self._by_address["alias:1"] = self._nodes[0]
        self._visible = -1

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses; two may lead to one standby."""
        return tuple(self._by_address)

    def open_channel(self, address: str, *_: object) -> StandbyChannel:
        return StandbyChannel(self, self._by_address[address])

    def check_held(self, number: int, what: str) -> None:
        """Check that a block is, or was, on enough disks before anybody hears of it."""
        holders = sum(node.highest >= number for node in self._nodes)
        least = self.options.min_standbys
        self.world.expect(
            holders >= least, "What publishers are told is stored was on other disks", f"{what}: {holders}"
        )

    # --- their disks ---------------------------------------------------------------------------------------

    def follow(self, last: int | None) -> None:
        """The node shows this block to its readers."""
        if last is None or last <= self._visible:
            return
        self._visible = last
        for node in self._nodes:
            self._catch_up(node)

    def _catch_up(self, node: _Standby) -> None:
        most_ns = self.world.random.choice([0, MILLISECOND_NS, 50 * MILLISECOND_NS, SECOND_NS, 6 * SECOND_NS])
        self.world.at(self.world.between(0, most_ns), self._store, node, node.life, self._visible)

    def _store(self, node: _Standby, life: int, last: int) -> None:
        if node.is_up and not node.is_still and node.life == life and last > node.level:
            node.level = last
            node.highest = max(node.highest, last)
            node.wake()

    def fault(self) -> None:
        world, node = self.world, self.world.random.choice(self._nodes)
        fault = world.random.choice(FAULTS)
        self.coverage.count("standby", fault)
        world.note(f"{node.name} {fault}")
        if fault == "stands still":
            node.is_still = True
        else:
            node.is_up = False
            node.life += 1
            if fault == "has another disk":
                node.level = world.random.choice([-1, world.random.randint(-1, node.level)])
            node.wake()
        world.at(world.between(0, world.random.choice([1, 12]) * SECOND_NS), self.heal_one, node)

    def heal_one(self, node: _Standby) -> None:
        node.is_up, node.is_still = True, False
        node.wake()
        self._catch_up(node)

    def heal(self) -> None:
        for node in self._nodes:
            self.heal_one(node)


class _WatchCall:
    """A call that gives durable heights, as far as `StandbyWatch` uses it."""

    def __init__(self, levels: AsyncIterator[standby_pb2.Level]) -> None:
        self._levels = levels

    async def read(self) -> object:
        return await anext(self._levels, aio.EOF)

    def cancel(self) -> None:
        """Do nothing."""


class StandbyChannel:
    def __init__(self, standbys: Standbys, node: _Standby) -> None:
        self._standbys, self._node, self._life = standbys, node, node.life

    async def __aenter__(self) -> StandbyChannel:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Do nothing."""

    def unary_stream(self, path: str, **_: object) -> Callable[..., _WatchCall]:
        return lambda request: _WatchCall(self._watch())

    def unary_unary(self, path: str, **_: object) -> Callable[..., Any]:
        """Make the call that asks for one block."""

        async def ask(request: standby_pb2.LevelAtRequest, **_: object) -> standby_pb2.Level:
            self._check()
            return self._level(min(request.block_number, self._node.level))

        return ask

    async def _watch(self) -> AsyncIterator[standby_pb2.Level]:
        node, told = self._node, -2
        while True:
            self._check()
            if node.level != told:
                told = node.level
                yield self._level(told)
                continue
            changed = asyncio.get_running_loop().create_future()
            node.changed.append(changed)
            await changed

    def _check(self) -> None:
        if not self._node.is_up or self._node.life != self._life:
            raise unavailable("the standby is gone")

    def _level(self, number: int) -> standby_pb2.Level:
        instance = f"{self._node.name} {self._node.life}"
        if number < 0:
            return standby_pb2.Level(block_number=U64_MAX, instance=instance)
        if number not in _ROOTS:
            hasher = BlockHasher()
            hasher.add(true_blocks()[number].items)
            _ROOTS[number] = hasher.finish().root_hash
        return standby_pb2.Level(block_number=number, root_hash=_ROOTS[number], instance=instance)


EXPECTED["standby"] = [*FAULTS, "a stream is refused"]
