"""One life of the node: the real service, conductor, arbiter, verifier, block store and data streamer.

Only event loop, clock, network, disk and LevelDB are simulated.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from typing import Any

from sluice.datastream.errors import DatastreamError
from sluice.gateway.blocks.proofs import ProofVerifier
from sluice.gateway.blocks.root_hash import BlockSummary
from sluice.gateway.blocks.trusted_keys import TrustedKeys
from sluice.gateway.blocks.verification import BlockVerifier, Verdict
from sluice.gateway.cluster.catch_up import CatchUpRules
from sluice.gateway.cluster.peer_follower import PeerFollower
from sluice.gateway.cluster.standby_watch import StandbyWatch
from sluice.gateway.errors import Fatal
from sluice.gateway.limits import MESSAGE_BYTES_DEFAULT
from sluice.gateway.metrics import Metrics
from sluice.gateway.pipeline.conductor import Conductor, Outbox
from sluice.gateway.pipeline.limits import PipelineLimits
from sluice.gateway.pipeline.replication_quorum import ReplicationQuorum
from sluice.gateway.race.records import RaceRules
from sluice.gateway.services.publish_service import PublishService
from sluice.gateway.store.block_store import BlockStore, VerifiedBlock
from sluice.gateway.transport.admission import Admission, AdmissionLimits
from sluice.gateway.workers.proof_checks import ProofChecks
from tests.datastream.fake_disk import PowerLost
from tests.nodes import ledger_key
from tests.simulation.conductor_checks import ConductorChecks, WatchedHasher
from tests.simulation.coverage import Coverage
from tests.simulation.network import Connection, Poison, ServerContext
from tests.simulation.options import Options
from tests.simulation.oracle import Oracle
from tests.simulation.peers import PEER_LIMITS, STALL_SECONDS, Peers
from tests.simulation.picture import memory_bytes
from tests.simulation.standbys import Standbys
from tests.simulation.storage import Storage
from tests.simulation.watched import WatchedArbiter
from tests.simulation.world import SECOND_NS, SimLoop, World


@functools.cache
def _shared() -> tuple[ProofVerifier, Metrics]:
    """Make once the parts without relevant state: making them takes longer than a run."""
    return ProofVerifier(TrustedKeys.parse((ledger_key(),)), "full"), Metrics(verification_mode="full")


class SimStore(BlockStore):
    """The block store, with a probe of the simulated disk, and pauses between groups of blocks."""

    storage: Storage
    pause: Callable[[], None]
    count: Callable[[str, str], None]

    def append(self, blocks: Sequence[VerifiedBlock]) -> None:
        super().append(blocks)
        self.count("commit", "with the event loop")

    def begin(self, blocks: Sequence[VerifiedBlock]) -> None:
        is_behind = self.has_begun
        try:
            super().begin(blocks)
        except BaseException as error:
            if is_behind:
                what = "power lost or killed" if isinstance(error, PowerLost) else "refused"
                self.count("commit", f"{what} behind another one")
            raise
        self.count("commit", "flush shared" if is_behind else "begun")
        if len(blocks) > 1:
            self.count("commit", "several blocks")
        self.pause()

    def finish(self) -> None:
        super().finish()
        self.count("commit", "finished by itself")
        self.pause()

    def probe(self) -> None:
        self.storage.probe()
        self.streamer.recover()


class SimChecks(ProofChecks):
    """Checks proofs at once, or, as the options say, in any order as a worker process would."""

    def __init__(self, verifier: BlockVerifier, world: World, options: Options) -> None:
        super().__init__(verifier)
        self.hasher = WatchedHasher
        self._world, self._options = world, options

    def check_now(self, summary: BlockSummary) -> BlockSummary | None:
        return None if self._options.proofs_in_process else self._verifier.check(summary).summary

    async def check(
        self,
        summary: BlockSummary,
        items: Sequence[bytes],
        *,
        block_0_comes: Callable[[], bool],
        more_come: bool = False,
    ) -> Verdict:
        await asyncio.sleep(self._world.between(*self._options.job_ns) / 1e9)
        return Verdict(self._verifier.check(summary).summary, None, is_root_signed=True)


class SimService(PublishService):
    """The service, which tells the oracle which requests are malformed."""

    def __init__(self, node: SimNode, conductor: Conductor, options: Options) -> None:
        limits = AdmissionLimits(messages_per_second=options.messages_per_second)
        super().__init__(conductor, Admission(limits))
        self._node = node

    def _handle(self, outbox: Outbox, request: Any) -> None:
        malformed = id(request) in self._node.malformed
        self._node.oracle.handling(malformed=malformed, poisoned=isinstance(request, Poison))
        super()._handle(outbox, request)
        if not isinstance(request, Poison):
            self._node.oracle.handled(outbox.publisher_id)


class SimNode:
    """A node from its start to its end."""

    def __init__(
        self,
        world: World,
        storage: Storage,
        options: Options,
        coverage: Coverage,
        malformed: set[bytes],
        peers: Peers,
        standbys: Standbys,
    ) -> None:
        self.world, self.storage, self.options = world, storage, options
        self.power_lost = False
        self.stopping = False
        self.stopped = False
        self._changes_role = False
        # By identity, and kept: the same short message of two publishers is one object that is handled twice.
        self.malformed: dict[int, Any] = {}
        self._malformed_messages = malformed
        self.loop = SimLoop(world, options.job_ns, options.pause_ns, self._lose_power)  # type: ignore[abstract]
        self.contexts: list[ServerContext] = []
        self._standbys, self._coverage = standbys, coverage
        self.store = self._open_store()
        self.oracle = Oracle(world, options, storage, self.store)
        self.conductor_checks = ConductorChecks(world, self.oracle)
        self.conductor: Conductor = self.loop.run(lambda: self._make_conductor(coverage))
        self.conductor_checks.listen(self.conductor)
        self.following = PeerFollower(
            self.conductor,
            _shared()[1],
            rules=CatchUpRules(),
            stall_seconds=STALL_SECONDS,
            block_time_seconds=2.0,
            message_bytes_max=MESSAGE_BYTES_DEFAULT,
            limits=PEER_LIMITS,
        )
        self._peers = peers.addresses
        peers.sending.clear()
        if self._peers:
            self.loop.run(lambda: self.following.catch_up(self._peers))
        self._watch: StandbyWatch | None = None
        gate = self.conductor.acknowledging.quorum
        if gate is not None:
            self.store.on_advance(lambda: standbys.follow(self.store.last_number))
            self._watch = self.loop.run(
                lambda: StandbyWatch(self.conductor, gate, self.store, standbys.addresses)
            )
            standbys.follow(self.store.last_number)
        self.service = SimService(self, self.conductor, options)
        self._checked_length = 0
        self._checked_events = self._checked_jobs = 0

    def _open_store(self) -> SimStore:
        storage = self.storage
        self._check_that_no_start_loses_blocks()
        store = SimStore.open(storage.folder, disk=storage.disk, open_database=storage.open_database)
        assert isinstance(store, SimStore)
        store.storage = storage
        store.pause = storage.pause = self.loop.pause_job
        store.count = self._coverage.count
        return store

    def _check_that_no_start_loses_blocks(self) -> None:
        """Check that a start refuses a header that went back, and changes nothing."""
        storage = self.storage
        with storage.header_gone_back() as entry_count:
            if entry_count is None:
                return
            before = bytes(storage.disk.cache), {**storage.bookmarks.pairs, **storage.keys.pairs}
            try:
                store = SimStore.open(storage.folder, disk=storage.disk, open_database=storage.open_database)
            except (Fatal, DatastreamError):
                self._coverage.count("fault", "header goes back")
                after = bytes(storage.disk.cache), {**storage.bookmarks.pairs, **storage.keys.pairs}
                self.world.expect(after == before, "A start that is refused changes nothing", "")
            else:
                store.streamer.close()
                got = f"{store.streamer.committed.total_entries} entries, the header had more"
                self.world.break_rule("No start begins below what was committed", got)

    def _make_conductor(self, coverage: Coverage) -> Conductor:
        options = self.options
        rules = RaceRules(
            block_bytes_max=options.block_bytes_max,
            block_timeout_ns=options.block_timeout_ns,
            stall_blocks=options.stall_blocks,
            idle_timeout_ns=options.idle_timeout_ns,
            duplicate_skip_window=options.duplicate_skip_window,
            proof_idle_ns=options.proof_idle_ns,
            stray_messages_max=options.stray_messages_max,
            inflight_bytes_max=options.inflight_bytes_max,
            publisher_bytes_max=options.publisher_bytes_max,
            forgiving_blocks=options.forgiving_blocks,
        )
        last = self.store.last_number
        first = options.first_number if last is None else self.store.first_number
        arbiter = WatchedArbiter(last, first, rules, self.oracle, coverage)
        self.oracle.begin(rules, first, last)
        proofs, metrics = _shared()
        gate = None
        if options.min_standbys:
            addresses = self._standbys.addresses
            gate = ReplicationQuorum(options.min_standbys, "the node", addresses, self.store.chain)
            self.oracle.on_told = self._standbys.check_held
        return Conductor(
            arbiter,
            self.store,
            SimChecks(BlockVerifier(proofs), self.world, options),
            metrics,
            now_ns=lambda: self.world.now_ns,
            limits=PipelineLimits(
                responses_max=options.responses_max, group_blocks_max=options.group_blocks_max
            ),
            standbys=gate,
        )

    def _lose_power(self) -> None:
        self.power_lost = True

    # --- its life ------------------------------------------------------------------------------------------

    def accept(self, connection: Connection) -> None:
        checks = self.conductor_checks
        context = ServerContext(
            connection,
            self.loop,
            self.service._parse,
            checks.written,
            self._on_read,
            checks.half_closed,
            checks.over,
        )
        connection.context = context

        async def serve() -> None:
            self.oracle.serving = context
            if self.conductor.acknowledging.refusal() is not None:
                self._coverage.count("standby", "a stream is refused")
            await self.service._publish(None, context)  # type: ignore[arg-type]

        context.task = self.loop.run(lambda: self.loop.create_task(serve()))
        context.task.add_done_callback(context.over)
        self.contexts.append(context)

    def _on_read(self, message: bytes, request: Any) -> None:
        if message in self._malformed_messages:
            self.malformed[id(request)] = request

    def step(self) -> None:
        self.loop.step()
        self.check()

    def check(self) -> None:
        """Check what can be seen from outside."""
        world = self.world
        if self.oracle.event_count != self._checked_events:
            self._checked_events = self.oracle.event_count
            try:
                self.conductor.arbiter.check()
            except AssertionError as error:
                world.break_rule("The arbiter's own invariants hold", str(error))
            attempts = self.conductor.in_flight.attempts.values()
            self.oracle.check_memory(sum(memory_bytes(attempt.items) for attempt in attempts))
        if self.loop.job_count != self._checked_jobs:
            self._checked_jobs = self.loop.job_count
            self._check_visible()
        if not self.loop.ready and not self.conductor.broken.done():
            self.conductor_checks.check_done(self.conductor)
        if self.conductor.broken.done():
            world.break_rule(
                "No error in our own code", f"the race broke: {self.conductor.broken.exception()!r}"
            )

    def _check_visible(self) -> None:
        length = self.store.streamer.committed.total_length
        if length != self._checked_length:
            self.world.expect(
                length > self._checked_length,
                "What readers see only grows",
                f"{length} after {self._checked_length} bytes",
            )
            self._checked_length = length
            self.oracle.disk.check_visible(length)

    # --- its end -------------------------------------------------------------------------------------------

    def go_on(self, after_ns: int) -> None:
        """Report that the event loop has stood still for so long."""
        self.loop.run(lambda: self.conductor.stood_still(after_ns / 1e9))

    def kill(self) -> None:
        self.oracle.dead = True
        for context in self.contexts:
            context.end()
        self.storage.end_process()
        self.loop.kill()
        self.stopped = True
        for context in self.contexts:
            context.connection.context = None
            context.connection.break_off("the node is gone")
        self.store.streamer.close()

    def stop(self) -> None:
        if not self.stopping:
            self.stopping = True
            self.loop.run(lambda: self.loop.create_task(self._stop()))

    def retire(self, for_ns: int) -> None:
        async def change_role() -> None:
            await self.following.stop()
            await self.conductor.retire("a role change")
            self.world.expect(not self.oracle.blocks, "Retired means that nothing is in flight", "blocks")
            if self._peers and not self.stopping:
                self.following.follow(self._peers)
            await asyncio.sleep(for_ns / 1e9)
            if not self.stopping:
                await self.following.stop()
            if not self.stopping:
                self.conductor.reinstate()
                if self._peers:
                    self.following.catch_up(self._peers)
            self._changes_role = False

        if not self.stopping and not self._changes_role:
            self._changes_role = True
            self.loop.run(lambda: self.loop.create_task(change_role()))

    async def _stop(self) -> None:
        grace_seconds = 2.0
        started_ns = self.world.now_ns
        await self.following.stop()
        await self.conductor.stop(grace_seconds)
        self.oracle.keeps_time = False
        if self._watch is not None:
            await self._watch.close()
        took_ns = self.world.now_ns - started_ns
        self.world.expect(took_ns <= 30 * SECOND_NS, "A shutdown ends", f"it took {took_ns} ns")
        tasks = {context.task for context in self.contexts if context.task and not context.task.done()}
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=grace_seconds)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        self.stopped = True

    def close(self) -> None:
        """Release everything after a graceful shutdown."""
        self.store.close()
        self.oracle.dead = True
        self.loop.kill()
        for context in self.contexts:
            context.connection.context = None
            context.connection.break_off("the node has stopped")
