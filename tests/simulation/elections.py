"""Simulate elections of a whole cluster: clocks that drift, cut lines, pauses, kills, no coordinator.

    python -m tests.simulation.elections --seeds 10000      or --seed N, --first N

Each node runs the product's `TermKeeper`, `Election` and `ReplicationQuorum` in an event loop of its own.
The coordinator, the lines, the disks and the publishers are simulated here. The rules:

    one acknowledges      in one epoch one node acknowledges, and none after a later epoch was granted
    nothing is lost       a node that becomes active has every block that was acknowledged before, and none
                          is acknowledged that an active node of a later epoch lacks
    copies                an acknowledged block is on `min_standbys` disks besides that of its node, as long
                          as no disk was lost
    it goes on            when faults have ended, blocks are acknowledged again
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from sluice.gateway.cluster.cluster_view import Statement
from sluice.gateway.cluster.coordinator import Grant
from sluice.gateway.cluster.election import ClusterRecord, Election, ElectionRules, Holder, Seen, read_promise
from sluice.gateway.cluster.term_keeper import TermKeeper
from sluice.gateway.errors import CoordinatorAway, GatewayError, RoleRefused
from sluice.gateway.pipeline.replication_quorum import DurableHeight, ReplicationQuorum
from tests.simulation.run import folder
from tests.simulation.world import MILLISECOND_NS, SECOND_NS, SimLoop, Violation, World

REQUEST_SECONDS = 2.0
"""Longest time of a request to the coordinator."""
FAULTS_NS = 60 * SECOND_NS
HEAL_NS = 90 * SECOND_NS
"""The time in which blocks must be acknowledged again after the last fault."""
BLOCK_NS = 200 * MILLISECOND_NS
FETCHED_MAX = 5
"""Blocks that a standby fetches at a time."""


def root_of(number: int) -> bytes:
    """The network has one chain."""
    return number.to_bytes(8, "big") * 6


@dataclass(frozen=True, slots=True)
class ElectionOptions:
    """What differs from seed to seed."""

    node_count: int
    min_standbys: int
    lease_seconds: float
    clock_share: float
    """How much faster or slower than the time a clock runs at most."""
    delay_ns: tuple[int, int]
    fault_every_ns: int
    faults: tuple[int, ...] = tuple(range(8))
    """Which of them happen, each as often as it is here."""
    is_skewed: bool = False
    """All nodes' clocks are as slow as can be, and the coordinator's as fast."""
    is_wild: bool = False
    """Clocks keep no bound: two nodes may acknowledge at a time, and yet nothing may be lost."""

    @classmethod
    def draw(cls, seed: int) -> ElectionOptions:
        dice = random.Random(f"election {seed}")
        node_count = dice.choice((2, 3, 3, 3, 4, 5))
        return cls(
            node_count,
            dice.randint(1, max(1, (node_count - 1 + dice.randint(0, 1)) // 2)),
            dice.choice((3.0, 5.0, 10.0)),
            dice.choice((0.0, 0.01, 0.024)),
            dice.choice(((100_000, 3 * MILLISECOND_NS), (MILLISECOND_NS, 400 * MILLISECOND_NS))),
            dice.choice((2, 6, 15)) * SECOND_NS,
        )


@dataclass
class Store:
    """A node's chain: all blocks up to the last one are on its disk."""

    last_number: int | None = None


@dataclass
class Etcd:
    """The coordinator: two records, and leases by its own clock."""

    world: World
    rate: float
    is_away: bool = False
    revision: int = 1
    granted_epoch: int = 0
    cluster: tuple[bytes, int] | None = None
    active: tuple[bytes, int, int] | None = None
    """The record, its revision, its lease."""
    leases: dict[int, tuple[float, int]] = field(default_factory=dict)
    """Length in seconds, and the number of its last renewal."""

    def grant(self, seconds: float) -> int:
        self.revision += 1
        lease = self.revision
        self.leases[lease] = (seconds, 0)
        self._let_it_end(lease)
        return lease

    def keep_alive(self, lease: int) -> bool:
        if lease not in self.leases:
            return False
        seconds, count = self.leases[lease]
        self.leases[lease] = (seconds, count + 1)
        self._let_it_end(lease)
        return True

    def _let_it_end(self, lease: int) -> None:
        seconds, count = self.leases[lease]
        self.world.at(int(seconds / self.rate * SECOND_NS), self._end, lease, count)

    def _end(self, lease: int, count: int) -> None:
        if self.leases.get(lease, (0.0, -1))[1] == count:
            self.revoke(lease)

    def revoke(self, lease: int) -> None:
        self.leases.pop(lease, None)
        if self.active is not None and self.active[2] == lease:
            self.world.note(f"etcd: the lease of epoch {Holder.decode(self.active[0]).epoch} ends")
            self.active = None

    def version(self) -> tuple[int, int]:
        return (self.cluster[1] if self.cluster else 0, self.active[1] if self.active else 0)

    def look(self) -> Seen:
        return Seen(
            ClusterRecord.decode(self.cluster[0]) if self.cluster else None,
            Holder.decode(self.active[0]) if self.active else None,
            self.version(),
        )

    def join(self, seen: Seen, cluster: ClusterRecord) -> bool:
        if self.version() != seen.version:
            return False
        self.revision += 1
        self.cluster = (cluster.encode(), self.revision)
        return True

    def claim(self, seen: Seen, cluster: ClusterRecord, holder: Holder, lease: int) -> int | None:
        if self.version() != seen.version or lease not in self.leases:
            return None
        self.revision += 1
        if holder.epoch <= self.granted_epoch:
            self.world.break_rule("Epochs rise", f"{holder.epoch} after {self.granted_epoch}")
        self.granted_epoch = holder.epoch
        self.cluster = (cluster.encode(), self.revision)
        self.active = (holder.encode(), self.revision, lease)
        self.world.note(f"etcd: grants epoch {holder.epoch} to {holder.address}")
        return self.revision

    def mark(self, grant: Grant, holder: Holder) -> int | None:
        if self.active is None or self.active[1] != grant.revision:
            return None
        self.revision += 1
        self.active = (holder.encode(), self.revision, self.active[2])
        return self.revision


class SimCoordinator:
    """The coordinator as one node reaches it, in as many requests as `EtcdCoordinator` makes."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._etcd = node.cluster.etcd

    async def look(self) -> Seen:
        found: Seen = await self._ask(self._etcd.look)
        return found

    async def join(self, seen: Seen, cluster: ClusterRecord) -> bool:
        return bool(await self._ask(lambda: self._etcd.join(seen, cluster)))

    async def claim(self, seen: Seen, cluster: ClusterRecord, holder: Holder) -> Grant | None:
        lease = await self._ask(lambda: self._etcd.grant(self._node.cluster.options.lease_seconds))
        revision = await self._ask(lambda: self._etcd.claim(seen, cluster, holder, lease))
        return None if revision is None else Grant(lease, revision)

    async def renew(self, grant: Grant) -> bool:
        if not await self._ask(lambda: self._etcd.keep_alive(grant.lease)):
            return False
        found = await self._ask(lambda: self._etcd.active)
        return found is not None and found[1] == grant.revision

    async def mark(self, grant: Grant, holder: Holder) -> Grant | None:
        revision = await self._ask(lambda: self._etcd.mark(grant, holder))
        return None if revision is None else Grant(grant.lease, revision)

    async def release(self, grant: Grant) -> None:
        try:
            await self._ask(lambda: self._etcd.revoke(grant.lease))
        except CoordinatorAway:
            return

    async def close(self) -> None:
        return None

    async def _ask(self, change: Callable[[], Any]) -> Any:
        node, cluster = self._node, self._node.cluster
        world, loop = cluster.world, node.loop
        if loop.dead:  # what a killed node would do behind an `except`
            raise CoordinatorAway("killed")
        future = loop.create_future()

        def is_cut() -> bool:
            return self._etcd.is_away or node.address in cluster.cut_from_etcd

        def arrive() -> None:
            if is_cut():
                return
            result = change()
            world.at(cluster.delay(), answer, result)

        def answer(result: Any) -> None:
            if not is_cut() and not loop.dead and not future.done():
                loop.call_soon(future.set_result, result)

        world.at(cluster.delay(), arrive)
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                return await future
        except TimeoutError:
            raise CoordinatorAway("no answer") from None


class Session:
    """A stream of reports from one node to another, in order."""

    def __init__(self, watch: SimWatch, peer: Node, epoch: int) -> None:
        self.watch, self.peer, self.epoch = watch, peer, epoch
        self.is_over = False
        self._last_arrival_ns = 0

    def tell(self) -> None:
        """Send the peer's last block, or the epoch for which it has left this one."""
        if self.is_over:
            return
        promised, number, instance = (
            self.peer.election.promise.epoch,
            self.peer.store.last_number,
            self.peer.instance,
        )
        self._send(lambda: self.watch.heard(self, promised, number, instance))
        if promised > self.epoch:
            self.peer.sessions.remove(self)

    def _send(self, arrive: Callable[[], None]) -> None:
        cluster = self.peer.cluster
        at_ns = max(cluster.world.now_ns + cluster.delay(), self._last_arrival_ns + 1)
        self._last_arrival_ns = at_ns
        cluster.world.at(at_ns - cluster.world.now_ns, cluster.deliver, self, arrive)


class SimWatch:
    """The watch of one node in the name of an epoch."""

    def __init__(self, node: Node, epoch: int) -> None:
        self.node, self.epoch = node, epoch
        self.sessions: dict[str, Session] = {}
        self._is_closed, self._loop = False, node.loop
        for peer in node.peers():
            node.quorum.opening(peer.address)
            self._open(peer)

    @property
    def is_closed(self) -> bool:
        """It was closed, or its process has ended."""
        return self._is_closed or self._loop.dead

    async def close(self) -> None:
        self._is_closed = True
        for session in self.sessions.values():
            session.is_over = True
        for peer in self.node.peers():
            self.node.quorum.opening(peer.address)
            self.node.quorum.lost(peer.address, "this node does not watch it")

    def _open(self, peer: Node) -> None:
        if self.is_closed:
            return
        cluster = self.node.cluster
        session = self.sessions[peer.address] = Session(self, peer, self.epoch)
        cluster.world.at(cluster.delay(), self._arrive, session)
        # A stream that breaks, or never opened, is looked at again after a while.
        cluster.world.at(cluster.world.between(SECOND_NS // 2, 2 * SECOND_NS), self._look, session)

    def _look(self, session: Session) -> None:
        if self.is_closed:
            return
        cluster, peer = self.node.cluster, session.peer
        if session.is_over or not cluster.is_linked(self.node, peer) or session not in peer.sessions:
            self.broke(session)
            self._open(peer)
        else:
            cluster.world.at(cluster.world.between(SECOND_NS // 2, 2 * SECOND_NS), self._look, session)

    def broke(self, session: Session) -> None:
        session.is_over = True
        if not self.is_closed:
            self.node.quorum.opening(session.peer.address)
            self.node.quorum.lost(session.peer.address, "its stream has ended")

    def _arrive(self, session: Session) -> None:
        peer = session.peer
        if session.is_over or not self.node.cluster.is_linked(self.node, peer):
            return
        peer.do(lambda: peer.serve(session))

    def heard(self, session: Session, promised: int, number: int | None, instance: str) -> None:
        """Take a report; runs in this node."""
        if self.is_closed or session.is_over:
            return
        if promised > self.epoch:
            self.node.term.heard(promised)
            self.broke(session)
            return
        root_hash = b"" if number is None else root_of(number)
        self.node.quorum.heard(session.peer.address, DurableHeight(instance, number, root_hash))
        while (unknown := self.node.quorum.unknown()) is not None:
            self.node.quorum.recalled(unknown, root_of(unknown))
        for address in self.node.quorum.ahead()[1]:  # it has our last block, and is asked for it
            last = self.node.store.last_number
            if address == session.peer.address and last is not None:
                self.node.quorum.holds(address, DurableHeight(instance, last, root_of(last)))
        self.node.release()


class Node:
    """One node: what is on its disk outlives its process."""

    def __init__(self, cluster: SimCluster, name: str) -> None:
        self.cluster, self.address = cluster, f"{name}:1"
        self.data_dir = cluster.data_dir / name
        self.data_dir.mkdir()
        self.store = Store()
        self.rate = 1.0 + cluster.skew(-1) * cluster.options.clock_share
        self.start_count = 0
        self.is_up = self.is_paused = False
        self._waiting: list[Callable[[], None]] = []

    def peers(self) -> list[Node]:
        return [one for one in self.cluster.nodes if one is not self]

    # --- its process ---------------------------------------------------------------------------------------

    def start(self) -> None:
        cluster, options = self.cluster, self.cluster.options
        self.is_up, self.is_active, self.is_drained, self.is_asked = True, False, False, False
        self.start_count += 1
        self.instance = f"{self.address}/{self.start_count}"
        self.loop = SimLoop(  # type: ignore[abstract]
            cluster.world, (100_000, 30 * MILLISECOND_NS), (1, 1), lambda: None
        )
        self.sessions: list[Session] = []
        self.acknowledged = -1
        self.quorum = ReplicationQuorum(
            options.min_standbys, self.instance, [one.address for one in self.peers()]
        )
        if self.store.last_number is not None:
            self.quorum._first_number = 0
            self.quorum.stored(self.store.last_number, root_of(self.store.last_number))
        rules = ElectionRules(options.node_count, options.min_standbys, options.lease_seconds)
        self.election = Election(rules, self.address, self.instance, read_promise(self.data_dir))
        self.loop.run(self._make_term)
        cluster.world.note(f"{self.address} starts, promised {self.election.promise.epoch}")

    def _make_term(self) -> None:
        self.term = TermKeeper(
            self.election,
            SimCoordinator(self),
            self.data_dir,
            self.store,  # type: ignore[arg-type]
            self.quorum,
            watch=lambda epoch: SimWatch(self, epoch),
            neighbours=self._neighbours,
            refusal=lambda: None,
            is_committing=lambda: False,
            instance_at=self._instance_at,
            clock=lambda: self.cluster.world.now_ns / SECOND_NS * self.rate,
            dice=random.Random(self.cluster.world.random.random()),
        )
        self.term.on_promise(self._on_promise)
        self.term.start(self, self.address)

    def kill(self) -> None:
        self.cluster.world.note(f"{self.address} is killed")
        self.is_up = self.is_paused = False
        self._waiting.clear()
        self.loop.kill()
        self.sessions.clear()

    def do(self, call: Callable[[], None]) -> None:
        """Run something in this node, or when it goes on."""
        if not self.is_up:
            return
        if self.is_paused:
            self._waiting.append(call)
        else:
            self.loop.run(call)

    def go_on(self) -> None:
        self.is_paused = False
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            if self.is_up:
                self.loop.run(call)

    def watched(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin a task; an error in it breaks a rule."""
        self.loop.create_task(work).add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and not self.loop.dead and (error := task.exception()) is not None:
            self.cluster.world.break_rule("No error in our own code", f"{type(error).__name__}: {error}")

    def _neighbours(self) -> list[Statement]:
        here = [one for one in self.peers() if one.is_up and self.cluster.is_linked(self, one)]
        return [
            Statement(one.instance, "active" if one.is_active else "standby", one.store.last_number)
            for one in here
        ]

    async def _instance_at(self, address: str) -> str:
        await asyncio.sleep(0.01)
        found = next(one for one in self.cluster.nodes if one.address == address)
        return found.instance if found.is_up and self.cluster.is_linked(self, found) else ""

    # --- what it serves ------------------------------------------------------------------------------------

    def serve(self, session: Session) -> None:
        async def answer() -> None:
            if self.term.why_no_member is not None:
                return
            try:
                await self.term.promise_to(session.epoch, session.watch.node.instance)
            except RoleRefused:
                return
            self.sessions.append(session)
            session.tell()

        self.watched(answer())

    def _on_promise(self) -> None:
        for session in list(self.sessions):
            session.tell()

    # --- its role, as `RoleKeeper` changes it --------------------------------------------------------------

    async def activate(self, timeout_seconds: float = 30.0) -> None:
        await self.term.permit(timeout_seconds)
        await asyncio.sleep(self.cluster.world.random.choice((0.0, 0.01, 2.0)))  # the disk takes the role
        if self.is_active:
            return
        if not self.term.holds():
            await self.term.give_up()
            return
        self.term.lead()
        self.is_active = True
        self.acknowledged = -1
        self.cluster.note_active(self)
        self.release()

    async def step_down(self, reason: str) -> None:
        self.is_active = self.is_drained = False
        self.cluster.world.note(f"{self.address} steps down: {reason}")

    def begin_to_hand_over(self, successor: Node) -> None:
        self.watched(self.hand_over(successor))

    async def hand_over(self, successor: Node) -> None:
        """As `sluice failover` does with the two nodes."""
        self.is_drained = True
        await self.term.offer(successor.address)
        await asyncio.sleep(0.1)
        self.cluster.world.at(0, successor.do, successor.asked_to_lead)
        await asyncio.sleep(5.0)
        if self.is_active:  # it was not taken over
            await self.term.withdraw()
            self.is_drained = False
            if not self.term.holds():
                await self.step_down("another node has the term")

    def asked_to_lead(self) -> None:
        async def lead() -> None:
            if self.is_active or self.is_asked:
                return
            self.is_asked = True
            try:
                await self.activate(4.0)
            except GatewayError as error:
                self.cluster.world.note(f"{self.address} does not lead: {error}")
            finally:
                self.is_asked = False

        self.watched(lead())

    # --- its blocks ----------------------------------------------------------------------------------------

    def take_block(self) -> None:
        if self.is_active and not self.is_drained:
            self._stored(0 if self.store.last_number is None else self.store.last_number + 1)

    def fetch(self) -> None:
        """Fetch some blocks from a node that has more."""
        here = [
            one
            for one in self.peers()
            if one.is_up and not one.is_paused and self.cluster.is_linked(self, one)
        ]
        if self.is_active or not here:
            return
        found = self.cluster.world.random.choice(here).store.last_number
        last = -1 if self.store.last_number is None else self.store.last_number
        for number in range(last + 1, min(-1 if found is None else found, last + FETCHED_MAX) + 1):
            self._stored(number)

    def _stored(self, number: int) -> None:
        self.store.last_number = number
        self.quorum.stored(number, root_of(number))
        for session in list(self.sessions):
            session.tell()
        self.release()

    def release(self) -> None:
        """As `Acknowledging` does."""
        confirmed = self.quorum.confirmed
        if not self.is_active or self.is_drained or confirmed is None or not self.term.may_acknowledge():
            return
        if confirmed > self.acknowledged:
            self.acknowledged = confirmed
            self.cluster.note_acknowledged(self, confirmed)


class SimCluster:
    """All nodes of one run, what lies between them, and the rules."""

    def __init__(self, seed: int, options: ElectionOptions, data_dir: Path, trace_lines: int) -> None:
        self.world = World(seed, trace_lines)
        self.options, self.data_dir = options, data_dir
        self.etcd = Etcd(self.world, 1.0 + self.skew(1) * options.clock_share)
        self.cut: set[frozenset[str]] = set()
        self.cut_from_etcd: set[str] = set()
        self.acknowledged = -1
        self.acknowledged_by: dict[int, str] = {}
        self.activations = 0
        self.nodes: list[Node] = []
        self.nodes = [Node(self, f"n{place}") for place in range(options.node_count)]

    def skew(self, most: int) -> float:
        return float(most) if self.options.is_skewed else self.world.random.uniform(-1, 1)

    def delay(self) -> int:
        return self.world.between(*self.options.delay_ns)

    def is_linked(self, one: Node, other: Node) -> bool:
        return one.is_up and other.is_up and frozenset((one.address, other.address)) not in self.cut

    def deliver(self, session: Session, arrive: Callable[[], None]) -> None:
        node = session.watch.node
        if self.is_linked(node, session.peer) and not session.is_over:
            node.do(arrive)

    # --- the rules -----------------------------------------------------------------------------------------

    def note_active(self, node: Node) -> None:
        self.activations += 1
        last = -1 if node.store.last_number is None else node.store.last_number
        self.world.note(f"{node.address} is active in epoch {node.election.epoch} with block {last}")
        if last < self.acknowledged:
            self.world.break_rule(
                "Nothing is lost",
                f"{node.address} is active with block {last}, {self.acknowledged} was acknowledged",
            )

    def note_acknowledged(self, node: Node, number: int) -> None:
        epoch = node.election.epoch
        self.world.note(f"{node.address} acknowledges block {number} in epoch {epoch}")
        before = self.acknowledged_by.setdefault(epoch, node.instance)
        if before != node.instance:
            self.world.break_rule("One acknowledges", f"{before} and {node.instance} in epoch {epoch}")
        if self.etcd.granted_epoch != epoch and not self.options.is_wild:
            self.world.break_rule(
                "One acknowledges",
                f"{node.instance} in epoch {epoch}, and {self.etcd.granted_epoch} was granted",
            )
        for one in self.nodes:
            last = -1 if one.store.last_number is None else one.store.last_number
            if one.is_up and one.is_active and one.election.epoch > epoch and last < number:
                self.world.break_rule(
                    "Nothing is lost",
                    f"{node.instance} acknowledges {number}, and {one.instance} is active with {last}",
                )
        copies = sum(
            one.store.last_number is not None and one.store.last_number >= number for one in self.nodes
        )
        if copies <= self.options.min_standbys and self._are_all_members():
            self.world.break_rule("Copies", f"block {number} is on {copies} disks")
        self.acknowledged = max(self.acknowledged, number)

    # --- the run -------------------------------------------------------------------------------------------

    def run(self) -> None:
        for node in self.nodes:
            node.start()
            self.world.at(self.world.between(0, BLOCK_NS), self._beat, node)
        self.world.at(self.options.fault_every_ns, self._fault)
        self._go_on_until(FAULTS_NS)
        self._heal()
        acknowledged = self.acknowledged
        self._go_on_until(self.world.now_ns + HEAL_NS, lambda: self.acknowledged > acknowledged + 3)
        if self.acknowledged <= acknowledged:
            self.world.break_rule(
                "It goes on", f"nothing after block {acknowledged} in {HEAL_NS // SECOND_NS} s"
            )
        for node in self.nodes:
            if node.is_up:
                node.kill()

    def _go_on_until(self, end_ns: int, is_enough: Callable[[], bool] = lambda: False) -> None:
        while self.world.now_ns < end_ns and self.world.violation is None and not is_enough():
            self.world.step_count += 1
            ready = [one for one in self.nodes if one.is_up and not one.is_paused and one.loop.ready]
            if ready:
                ready[self.world.step_count % len(ready)].loop.step()
            else:
                self.world.next()

    def _beat(self, node: Node) -> None:
        if node.is_up and not node.is_paused:
            node.loop.run(node.take_block if node.is_active else node.fetch)
        self.world.at(self.world.between(BLOCK_NS // 2, BLOCK_NS), self._beat, node)

    def _fault(self) -> None:
        if self.world.now_ns > FAULTS_NS:
            return
        world, active = self.world, [one for one in self.nodes if one.is_up and one.is_active]
        node = world.random.choice(active if active and world.chance(0.5) else self.nodes)
        lasts_ns = world.between(SECOND_NS // 10, 20 * SECOND_NS)
        fault = world.random.choice(self.options.faults)
        if fault == 0 and node.is_up:
            node.kill()
            world.at(lasts_ns, self._start, node)
        elif fault == 1 and node.is_up and not node.is_paused:
            world.note(f"{node.address} stands still")
            node.is_paused = True
            world.at(lasts_ns, self._wake, node, node.start_count)
        elif fault == 2:
            pairs = {frozenset((node.address, one.address)) for one in node.peers() if world.chance(0.7)}
            world.note(f"{node.address} is cut from {len(pairs)}")
            self.cut |= pairs
            world.at(lasts_ns, self._join, pairs)
        elif fault == 3:
            world.note(f"{node.address} is cut from etcd")
            self.cut_from_etcd.add(node.address)
            world.at(lasts_ns, self.cut_from_etcd.discard, node.address)
        elif fault == 4 and world.chance(0.5):
            world.note("etcd is away")
            self.etcd.is_away = True
            world.at(lasts_ns, self._return)
        elif fault == 5:
            self._hand_over()
        elif fault == 7 and self._are_all_members():
            self._lose_disk(node)
            world.at(lasts_ns, self._start, node)
        elif fault == 6:
            world.note(f"somebody asks {node.address} to lead")
            for place in range(100):
                world.at(place * lasts_ns // 100, node.do, node.asked_to_lead)
        world.at(world.between(0, 2 * self.options.fault_every_ns), self._fault)

    def _are_all_members(self) -> bool:
        """A cluster bears the loss of one disk after the other, not of two at a time."""
        nodes = {} if self.etcd.cluster is None else ClusterRecord.decode(self.etcd.cluster[0]).nodes
        return all(nodes.get(one.address) == read_promise(one.data_dir).disk for one in self.nodes)

    def _lose_disk(self, node: Node) -> None:
        if node.is_up:
            node.kill()
        self.world.note(f"{node.address} loses its disk")
        shutil.rmtree(node.data_dir)
        node.data_dir.mkdir()
        node.store = Store()

    def _hand_over(self) -> None:
        for node in self.nodes:
            if node.is_up and not node.is_paused and node.is_active and not node.is_drained:
                successor = self.world.random.choice(node.peers())
                self.world.note(f"{node.address} hands over to {successor.address}")
                node.loop.run(partial(node.begin_to_hand_over, successor))
                return

    def _start(self, node: Node) -> None:
        if not node.is_up:
            node.start()

    def _wake(self, node: Node, start_count: int) -> None:
        if node.is_up and node.is_paused and node.start_count == start_count:
            self.world.note(f"{node.address} goes on")
            node.go_on()

    def _join(self, pairs: set[frozenset[str]]) -> None:
        self.cut -= pairs

    def _return(self) -> None:
        self.etcd.is_away = False

    def _heal(self) -> None:
        self.world.note("no more faults")
        self.cut.clear()
        self.cut_from_etcd.clear()
        self.etcd.is_away = False
        for node in self.nodes:
            if not node.is_up:
                node.start()
            elif node.is_paused:
                node.go_on()


@dataclass(frozen=True, slots=True)
class ElectionResult:
    """One run."""

    violation: Violation | None
    trace: list[str]
    acknowledged: int
    activations: int
    digest: int


def simulate(
    seed: int,
    data_dir: Path,
    trace_lines: int = 200,
    change: Callable[[ElectionOptions], ElectionOptions] | None = None,
) -> ElectionResult:
    """Run one seed."""
    for path in data_dir.iterdir():
        shutil.rmtree(path)
    options = ElectionOptions.draw(seed)
    cluster = SimCluster(seed, options if change is None else change(options), data_dir, trace_lines)
    cluster.run()
    world = cluster.world
    return ElectionResult(
        world.violation,
        [f"{at_ns / SECOND_NS:9.3f} {text}" for at_ns, text in world.trace],
        cluster.acknowledged,
        cluster.activations,
        world.digest,
    )


def skewed(options: ElectionOptions) -> ElectionOptions:
    """The clocks are as wrong as they may be, and others want the term the moment that its lease ends."""
    return replace(
        options,
        clock_share=0.024,
        is_skewed=True,
        lease_seconds=10.0,
        delay_ns=(100_000, 3 * MILLISECOND_NS),
        faults=(3, 3, 6, 6, 6, 6),
        fault_every_ns=options.fault_every_ns // 2,
    )


def pausing(options: ElectionOptions) -> ElectionOptions:
    """Nodes stand still for longer than their lease, and nothing else happens."""
    return replace(options, lease_seconds=3.0, faults=(1,), fault_every_ns=6 * SECOND_NS)


def falling(options: ElectionOptions) -> ElectionOptions:
    """Three nodes that die, stand still and are cut from each other all the time."""
    return replace(
        options,
        node_count=3,
        min_standbys=1,
        lease_seconds=3.0,
        faults=(0, 1, 1, 2, 2, 6),
        fault_every_ns=2 * SECOND_NS,
    )


def wild(options: ElectionOptions) -> ElectionOptions:
    """Clocks that run up to four times as fast or as slow as the time: no lease can be relied on."""
    return replace(options, clock_share=0.75, is_wild=True, faults=(1, 2, 3, 3, 3, 6))


def main() -> int:
    """Run many seeds; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation.elections", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    changes = (wild, skewed, pausing, falling)
    for one in changes:
        parser.add_argument(f"--{one.__name__}", action="store_true", help=one.__doc__)
    parser.add_argument("--seed", type=int, help="this one alone, with its trace")
    given = parser.parse_args()
    seeds = range(given.first, given.first + given.seeds) if given.seed is None else [given.seed]
    change = next((one for one in changes if getattr(given, one.__name__)), None)
    begun, acknowledged, activations = time.monotonic(), 0, 0
    with folder() as data_dir:
        for count, seed in enumerate(seeds, 1):
            result = simulate(seed, data_dir, 400 if given.seed is not None else 0, change)
            acknowledged += result.acknowledged + 1
            activations += result.activations
            if given.seed is not None or result.violation is not None:
                if given.seed is None:
                    result = simulate(seed, data_dir, 200, change)
                sys.stdout.write("\n".join(result.trace) + "\n")
            if result.violation is not None:
                sys.stdout.write(f"seed {seed}: {result.violation}\n")
                return 1
            if count % 500 == 0:
                sys.stdout.write(f"{count} seeds, {time.monotonic() - begun:.0f} s\n")
                sys.stdout.flush()
    sys.stdout.write(
        f"{len(seeds)} seeds, {time.monotonic() - begun:.0f} s: {activations} activations, {acknowledged} "
        "blocks acknowledged, no rule broken\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
