"""One run: a node, publishers and faults until the faults stop; then everything has to recover.

chaos    publishers publish, rogues break rules, node and disk fail heal     faults stop; the chain has to
reach its end, and every publisher its own
"""

from __future__ import annotations

import contextlib
import errno
import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from sluice.datastream import DatastreamError
from sluice.gateway.cluster import peer_follower as following_module
from sluice.gateway.cluster import standby_watch as standby_watch_module
from sluice.gateway.workers import hashing as hashing_module
from sluice.publishers.protocol.machine_tables import FINAL_STATES
from tests.datastream.fake_disk import PowerLost
from tests.simulation.coverage import Coverage
from tests.simulation.network import NOTICE_NS, Client, Connection, LinkOptions
from tests.simulation.node import SimNode
from tests.simulation.options import Options
from tests.simulation.peers import Peers
from tests.simulation.picture import SLACK_NS
from tests.simulation.publishers import HonestPublisher
from tests.simulation.rogues import Rogue
from tests.simulation.standbys import Standbys
from tests.simulation.storage import CRASH_KINDS, PROCESS_ENDS, Storage
from tests.simulation.true_chain import true_blocks
from tests.simulation.world import MILLISECOND_NS, SECOND_NS, Violation, World

HEAL_STEPS_MAX = 60_000
HEAL_NS_MAX = 1_200 * SECOND_NS


@dataclass(frozen=True, slots=True)
class Result:
    seed: int
    options: Options
    steps: int
    seconds: float
    """Of the fake clock."""
    violation: Violation | None
    trace: list[str]
    digest: int


@contextmanager
def folder() -> Iterator[Path]:
    """Make a folder, in memory if possible, for the lock file and the snapshot."""
    shm = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(prefix="sluice-simulation-", dir=shm if shm.is_dir() else None))
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield path
    finally:
        logging.disable(disabled)
        shutil.rmtree(path)


def run(seed: int, options: Options, data_dir: Path, coverage: Coverage, trace_lines: int = 120) -> Result:
    """Run one seed."""
    for path in sorted(data_dir.iterdir()):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    simulation = Simulation(World(seed, trace_lines), options, data_dir, coverage)
    world = simulation.world
    with contextlib.closing(simulation), _gateway_for(simulation):
        try:
            simulation.play()
        except Violation as violation:
            world.violation = world.violation or violation
    lines = [f"{at_ns / 1e9:12.6f} {text}" for at_ns, text in world.trace]
    return Result(seed, options, world.step_count, world.now_ns / 1e9, world.violation, lines, world.digest)


@contextmanager
def _gateway_for(simulation: Simulation) -> Iterator[None]:
    options = simulation.options
    changes: list[tuple[ModuleType, str, object]] = [
        (hashing_module, "INLINE_HASH_ITEMS_MAX", options.inline_items_max),
        (following_module, "open_channel", simulation.peers.open_channel),
        (standby_watch_module, "open_channel", simulation.standbys.open_channel),
    ]
    before = [vars(module)[name] for module, name, _ in changes]
    for module, name, value in changes:
        vars(module)[name] = value
    try:
        yield
    finally:
        for (module, name, _), value in zip(changes, before, strict=True):
            vars(module)[name] = value


class Simulation:
    def __init__(self, world: World, options: Options, data_dir: Path, coverage: Coverage) -> None:
        self.world, self.options, self.coverage = world, options, coverage
        self.storage = Storage(data_dir, options.pages)
        world.folder = f"{data_dir}/"
        self.malformed: set[bytes] = set()
        self.node: SimNode | None = None
        self.healing = False
        self._connections: list[Connection] = []
        self._durable_through = -1
        self._faults_until_ns = 0
        self._handles_to_crash: int | None = None
        self._behind_since_ns = self._late_at_ns = 0
        self._paused_from_ns: int | None = None  # while it stands still, for one reason or several
        self._paused_until_ns = 0
        self._link = LinkOptions(options.delay_ns, options.window)
        self.peers = Peers(world, options, coverage)
        self.standbys = Standbys(world, options, coverage)
        self._start_node()
        self.publishers = [
            HonestPublisher(world, index, options, self.connect, coverage, self._check_safe, self._first)
            for index in range(options.publishers)
        ]
        self.rogues = [
            Rogue(world, index, options, self.connect, coverage, self._next_number, self.malformed)
            for index in range(options.rogues)
        ]
        self._plan_faults()

    # --- the course ----------------------------------------------------------------------------------------

    def play(self) -> None:
        """Make chaos, then heal.

        Raises:
            Violation: a rule was broken.
        """
        world, options = self.world, self.options
        until_ns = world.now_ns + options.chaos_ns
        while world.step_count < options.steps and world.now_ns < until_ns:
            if not self._step():
                break
            if not world.step_count % 64 and world.now_ns > self._faults_until_ns and self._is_well():
                break  # only the rogues would go on
        self._heal()
        steps_max, until_ns = world.step_count + HEAL_STEPS_MAX, world.now_ns + HEAL_NS_MAX
        while not self._is_well():
            waiting = [publisher.name for publisher in self.publishers if not publisher.is_done]
            if world.step_count > steps_max or world.now_ns > until_ns or not self._step():
                got = f"after {world.now_ns / 1e9:.0f} s {waiting} wait; L + 1 is {self._next_number()[0]}"
                world.break_rule("After the faults the chain reaches its end, and no publisher waits", got)
                self._raise()
        self._check_stored()
        self._shut_down()

    def _step(self) -> bool:
        world, node = self.world, self.node
        world.step_count += 1
        if node is not None and self._runs(node):
            node.step()
            if self._handles_to_crash is not None:
                self._handles_to_crash -= 1
                if self._handles_to_crash < 0:
                    self._crash("power lost" if world.chance(0.7) else "process killed")
        elif not world.next():
            return False
        if node is not None and node is self.node:
            if node.stopped and not node.power_lost:
                with contextlib.suppress(PowerLost):  # it writes its last bookmarks
                    node.close()
                    world.note("the node has stopped")
                    self._down(PROCESS_ENDS)
            if self.node is node and (node.power_lost or node.stopped):
                kind = "process killed" if self.storage.only_process_ends else "power lost"
                self.coverage.count("fault", f"{kind} in a commit")
                self._crash(kind)
        self._raise()
        return True

    def _runs(self, node: SimNode) -> bool:
        """Return whether the node's next callback comes before the next event outside.

        A busy node is slow: messages arrive and threads finish between two callbacks. A paused one takes no
        step.
        """
        world = self.world
        if not node.loop.ready or node.power_lost:
            self._behind_since_ns = world.now_ns
        late_ns = max(0, world.now_ns - self._behind_since_ns)
        # After a pause it reads messages for a while before it looks at time limits.
        if late_ns >= world.late_ns or world.now_ns > self._late_at_ns + SLACK_NS:
            world.late_ns, self._late_at_ns = late_ns, world.now_ns
        if not node.loop.ready or node.power_lost:
            return False
        if world.now_ns < self._paused_until_ns:
            return False
        busy = self.options.busy and not self.healing and world.chance(self.options.busy)
        return not (busy and world.is_near(MILLISECOND_NS))

    def _raise(self) -> None:
        if self.world.violation is not None:
            raise self.world.violation

    def _heal(self) -> None:
        world = self.world
        world.note("the faults stop")
        self.healing = True
        self.peers.is_faulty = False
        self.standbys.heal()
        self._handles_to_crash = None
        self._end_pause()
        self.storage.faults.clear()
        self.storage.power_fails_after = None
        self._link = LinkOptions((MILLISECOND_NS, 5 * MILLISECOND_NS), 16)
        for connection in self._connections:
            connection.improve(self._link)
        for rogue in self.rogues:
            rogue.end(self.options.quiet)
        for publisher in self.publishers:
            publisher.is_faulty = False
            if publisher.outcome is not None and not publisher.is_done:
                safe = 0 if publisher.index == 0 else publisher.machine.safe_through or 0
                publisher.begin(max(safe, self._first() or 0))
        # One publisher has to have every block; the others may have lost some.
        done = self.publishers[0].machine.state in FINAL_STATES
        if not done or self._next_number()[0] < self.options.blocks:
            self.publishers[0].begin(self._first() or 0)

    def _is_well(self) -> bool:
        return (
            self._next_number()[0] >= self.options.blocks
            and self.node is not None
            and not self.node.stopping
            and all(publisher.is_done or publisher.outcome is not None for publisher in self.publishers)
        )

    def _check_stored(self) -> None:
        node = self.node
        assert node is not None
        first, last = node.store.first_number, node.store.last_number
        assert first is not None
        assert last is not None
        for number in (first, last, self.world.random.randint(first, last)):
            stored = node.store.read_block(number)
            self.world.expect(
                stored is not None and tuple(stored.items) == true_blocks()[number].items,
                "Every block can be read back",
                f"block {number}",
            )

    def _shut_down(self) -> None:
        """Shut down in order, whatever is connected."""
        node = self.node
        assert node is not None
        node.stop()
        until_ns = self.world.now_ns + 60 * SECOND_NS
        while self.node is node:
            if self.world.now_ns > until_ns or not self._step():
                self.world.break_rule("A shutdown ends", f"not within 60 s, at {self.world.now_ns}")
                self._raise()

    def close(self) -> None:
        if self.node is not None:
            self.node.kill()

    # --- what is checked after every step -------------------------------------------------------------------

    def _first(self) -> int | None:
        """Return the node's first block, as its status says; None: any."""
        store = None if self.node is None else self.node.store
        if store is None or store.first_number is None or store.last_number is None:
            return self.options.first_number
        return store.first_number

    def _check_safe(self, name: str, safe: int, begun_with: int) -> None:
        """Check what a publisher takes as safe, and will forget."""
        first = self._first()
        if self.node is not None and safe >= begun_with:
            self.world.expect(
                first is not None and first <= begun_with,
                "No block below a node's first one is taken as stored",
                f"{name} believes {begun_with} to {safe}, the first here is {first}",
            )
        if safe >= (self.options.first_number or 0):
            self.standbys.check_held(safe, f"{name} believes {safe}")
        if safe > self._durable_through:
            if self.node is not None:
                self._durable_through = max(self._durable_through, self.node.oracle.disk.durable_through())
            self.world.expect(
                safe <= self._durable_through,
                "What a publisher takes as safe is on disk",
                f"{name} believes {safe}, on disk is {self._durable_through}",
            )

    def _next_number(self) -> tuple[int, bool]:
        node = self.node
        if node is None:
            return max(0, self._durable_through + 1), False
        return node.oracle.next_number, node.oracle.last is None

    # --- the node -------------------------------------------------------------------------------------------

    def connect(self, client: object, identity: tuple[str | None, str | None, str]) -> Connection | None:
        if self.node is None:
            return None
        connection = Connection(self.world, client, self._link, identity)  # type: ignore[arg-type]
        self._connections = [one for one in self._connections if not one.broken]
        self._connections.append(connection)
        connection.open(self._accept)
        return connection

    def _accept(self, connection: Connection) -> None:
        if self.node is None:
            connection.break_off("nobody listens")
        elif not connection.broken:
            self.node.accept(connection)

    def _start_node(self) -> None:
        if self.node is not None:
            return
        try:
            self.node = SimNode(
                *(self.world, self.storage, self.options, self.coverage, self.malformed),
                *(self.peers, self.standbys),
            )
        except (PowerLost, DatastreamError) as error:
            is_power = isinstance(error, PowerLost) and not self.storage.only_process_ends
            how = self.world.random.choice(CRASH_KINDS) if is_power else PROCESS_ENDS
            ill = isinstance(error, PowerLost) or bool(self.storage.faults)
            self.world.expect(ill, "The node starts", f"{type(error).__name__}: {error}")
            self.world.note(f"the node cannot start: {type(error).__name__}: {error}")
            self.coverage.count("fault", "trouble at the start")
            self._down(how)
            return
        self.world.note(f"the node starts with L + 1 = {self.node.oracle.next_number}")
        through = self.node.oracle.disk.durable_through()
        self.world.expect(
            through >= self._durable_through,
            "A restart loses nothing that was acknowledged",
            f"on disk up to {through}, before up to {self._durable_through}",
        )
        last = self.node.store.last_number
        self.world.expect(
            last is None or last <= through,
            "What a node finds when it starts is on disk before it says so",
            f"L is {last}, on disk up to {through}",
        )
        self._durable_through = through

    def _crash(self, kind: str) -> None:
        node = self.node
        if node is None:
            return
        how = PROCESS_ENDS if kind == "process killed" else self.world.random.choice(CRASH_KINDS)
        self.coverage.count("fault", kind)
        if node.stopping:
            self.coverage.count("fault", "end of process in shutdown")
        self.world.note(f"the node dies: {kind}, unflushed writes: {how}")
        self._durable_through = max(self._durable_through, node.oracle.disk.durable_through())
        node.kill()
        self._down(how)

    def _down(self, how: str) -> None:
        """Note that the node is gone; it comes back after a while."""
        self.node = None
        self._handles_to_crash = None
        self.storage.crash(how, self.world.random)
        self.world.at(self.world.between(0, 2 * SECOND_NS), self._start_node)

    # --- faults ---------------------------------------------------------------------------------------------

    def _plan_faults(self) -> None:
        options = self.options
        for count, fault in (
            (options.crashes, self._plan_crash),
            (options.commit_crashes, self._plan_power_failure),
            (options.shutdowns, self._stop_node),
            (options.retirements, self._retire),
            (options.disk_faults, self._begin_disk_fault),
            (options.breaks, self._break),
            (options.pauses, self._pause),
            (options.stalls, self._stall),
            (options.restarts, self._restart_publisher),
            (options.standby_faults, self.standbys.fault),
        ):
            for _ in range(count):
                delay_ns = self.world.between(0, min(options.chaos_ns, 10 * SECOND_NS))
                delay_ns //= self.world.random.choice([1, 1, 20])
                self._faults_until_ns = max(self._faults_until_ns, self.world.now_ns + delay_ns)
                self.world.at(delay_ns, self._fault, fault)

    def _fault(self, fault: object) -> None:
        if not self.healing:
            fault()  # type: ignore[operator]

    def _plan_crash(self) -> None:
        self._handles_to_crash = self.world.random.randint(0, 30)

    def _plan_power_failure(self) -> None:
        self.storage.power_fails_after = self.world.random.randint(0, 14)
        self.storage.only_process_ends = self.world.chance(0.3)

    def _stop_node(self) -> None:
        if self.node is not None and not self.node.stopping:
            self.coverage.count("fault", "graceful restart")
            self.world.note("the node is asked to stop")
            self.node.stop()

    def _retire(self) -> None:
        if self.node is not None and not self.node.stopping:
            self.coverage.count("fault", "role change")
            self.world.note("the node sends publishers elsewhere")
            self.node.retire(self.world.between(0, 3 * SECOND_NS))

    def _begin_disk_fault(self) -> None:
        world = self.world
        number = world.random.choice([errno.ENOSPC, errno.EIO])
        steps = world.random.choice(
            [
                ("pwrite",),
                ("fdatasync",),
                ("pwrite", "fdatasync", "probe"),
                ("database",),
                ("truncate", "pwrite"),
            ]
        )
        self.coverage.count("fault", "disk full" if number == errno.ENOSPC else "disk error")
        if "database" in steps:
            self.coverage.count("fault", "bookmark DB error")
        world.note(f"the disk is ill: {errno.errorcode[number]} on {', '.join(steps)}")
        self.storage.faults = dict.fromkeys(steps, number)
        self.storage.fault_passes = world.random.choice([0, 0, 1, 1, 3, 9])
        ill_ns = world.between(MILLISECOND_NS, world.random.choice([3, 3, 40]) * SECOND_NS)
        world.at(ill_ns, self._end_disk_fault)
        if world.chance(0.3):
            # A crash on top of a failed commit.
            world.at(world.between(0, min(2 * ill_ns, 4 * SECOND_NS)), self._fault, self._plan_crash)

    def _end_disk_fault(self) -> None:
        self.world.note("the disk is well")
        self.storage.faults.clear()

    def _pause(self) -> None:
        self.coverage.count("fault", "the node stands still")
        for_ns = self.world.between(0, self.world.random.choice([1, 10]) * SECOND_NS)
        self.world.note(f"the node stands still for {for_ns / 1e9:.3f} s")
        if self._paused_from_ns is None:
            self._paused_from_ns = self.world.now_ns
        self._paused_until_ns = max(self._paused_until_ns, self.world.now_ns + for_ns)
        self.world.at(for_ns, self._go_on)

    def _go_on(self) -> None:
        if self.world.now_ns >= self._paused_until_ns:  # else it stands still for another reason, too
            self._end_pause()

    def _end_pause(self) -> None:
        from_ns, self._paused_from_ns, self._paused_until_ns = self._paused_from_ns, None, 0
        if from_ns is None:
            return
        self.world.note("the node goes on")
        if self.node is not None:
            self.node.go_on(self.world.now_ns - from_ns)

    def _break(self) -> None:
        live = [one for one in self._connections if not one.broken]
        if live:
            self.coverage.count("fault", "connection broken")
            connection = self.world.random.choice(live)
            self.world.note(f"the connection of {connection.peer} breaks")
            # One side may notice nothing for long, as with an unplugged cable.
            here_ns = there_ns = NOTICE_NS
            match self.world.random.randrange(4):
                case 0:
                    here_ns = 30 * SECOND_NS
                    self.coverage.count("fault", "only the node notices a break")
                case 1:
                    there_ns = 30 * SECOND_NS
                    self.coverage.count("fault", "only the publisher notices a break")
            connection.break_off("the connection broke", here_ns=here_ns, there_ns=there_ns)

    def _stall(self) -> None:
        self.coverage.count("fault", "publisher stalls")
        publisher = self.world.random.choice(self.publishers)
        for_ns = self.world.between(0, 15 * SECOND_NS)
        self.world.note(f"{publisher.name} stands still for {for_ns / 1e9:.3f} s")
        publisher.stall(for_ns)

    def _restart_publisher(self) -> None:
        world, publisher = self.world, self.world.random.choice(self.publishers)
        safe = publisher.machine.safe_through
        following = 0 if safe is None else safe + 1
        match world.random.randrange(8):
            case 0:
                self.coverage.count("fault", "publisher restarts")
                publisher.begin(following)
            case 1 if publisher.index:
                self.coverage.count("fault", "publisher loses its cache")
                publisher.begin(min(publisher._next, self.options.blocks))
            case 2 | 6 | 7:
                self.coverage.count("fault", "publisher stops")
                publisher.stop()
                if world.chance(0.3):
                    publisher.stop()
                world.at(world.between(0, 5 * SECOND_NS), publisher.begin_again, following)
            case 3:
                self.coverage.count("fault", "source fails")
                publisher.fail_source()
            case 4:
                self.coverage.count("fault", "publisher restarts")
                publisher.begin(following, deadline_ns=world.between(0, 10 * SECOND_NS))
            case _:
                self.coverage.count("fault", "publisher returns")
                publisher.begin(max(0, following - world.random.randint(1, 6)))


_Client = Client
