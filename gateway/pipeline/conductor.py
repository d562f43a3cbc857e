"""The conductor: the shell around the arbiter. It performs the arbiter's actions and reports every event to
it.

It decides nothing. It runs in the event loop; `BlocksInFlight` and `GroupCommit` run long work elsewhere.

    message ──► Arbiter ──► Begin, Append, Verify, CheckLink, Drop ──► `BlocksInFlight`
                   ▲    ──► Commit ──► `GroupCommit` ──► `Acknowledging`
                   │    ──► Send, Close ──► `Outbox` of a publisher
                   └─────── verified, refused, linked, committed, commit_failed

Invariant: the arbiter hears `committed` in order of number, only after `GroupCommit` has called `stored`. So
an acknowledgement follows both flushes, perhaps much later: the arbiter's last block is the last acknowledged
one.

Source: gateway/README.md, "From a message to an acknowledgement".
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from sluice.gateway.blocks.item_set import ItemSet
from sluice.gateway.limits import LOOP_WATCH_SECONDS
from sluice.gateway.logs import caused_by, fields
from sluice.gateway.metrics import Metrics
from sluice.gateway.pipeline.acknowledging import Acknowledging, UnconfirmedBlock
from sluice.gateway.pipeline.dispute import Dispute, Source, source_of
from sluice.gateway.pipeline.group_commit import GroupCommit
from sluice.gateway.pipeline.in_flight import Attempt, BlocksInFlight
from sluice.gateway.pipeline.limits import PipelineLimits
from sluice.gateway.pipeline.notes import note_answer, note_backoff, note_stray
from sluice.gateway.pipeline.replication_quorum import ReplicationQuorum
from sluice.gateway.pipeline.tracing import BlockTracer
from sluice.gateway.race.actions import (
    Acknowledgement,
    Action,
    AimCatchUp,
    Append,
    Begin,
    CheckLink,
    Commit,
    Drop,
    EndResponses,
    Idle,
    PublisherId,
    Response,
    SendResponse,
    Skip,
    SourceError,
    Stray,
    Verify,
)
from sluice.gateway.race.arbiter import Arbiter
from sluice.gateway.race.reputation import BackedOff
from sluice.gateway.race.tables import LIVE
from sluice.gateway.store.block_store import BlockStore, VerifiedBlock
from sluice.gateway.workers.hashing import Hashing
from sluice.gateway.workers.loop_slots import LoopSlots
from sluice.gateway.workers.proof_checks import ProofChecks

__all__ = ["Conductor", "Outbox"]

log = logging.getLogger(__name__)

STOOD_STILL_SECONDS_MIN: Final = 0.02
"""A lateness of the event loop from which publishers get the time back: the node could not hear them."""

_NEVER_NS: Final = 1 << 63


class Outbox:
    """The responses that wait for one publisher.

    Args:
        responses_max: responses that may wait; one more sets `overflow`.
        source: by which its claims about stored blocks are counted; None: its name.
    """

    def __init__(
        self, publisher_id: PublisherId, name: str, responses_max: int, source: Source | None = None
    ) -> None:
        self.publisher_id = publisher_id
        self.name = name
        self.source = source or source_of(name, name)
        self.closed = False
        self.said_goodbye = False
        self.dropped_count = 0
        """Messages since the node ended the stream."""
        self.overflow = asyncio.Event()
        """Set when the publisher does not read: break its stream off."""
        self.over = asyncio.Event()
        """Set when the outbox is closed or has overflowed."""
        self.responses: deque[Response] = deque()
        self.changed = asyncio.Event()
        """Set when a response comes, or the stream is over."""
        self._responses_max = responses_max

    def put(self, response: Response) -> None:
        """Queue a response; drop it after an overflow, so that none is missing in between."""
        if self.overflow.is_set() or len(self.responses) >= self._responses_max:
            self.overflow.set()
            self.over.set()
        else:
            self.responses.append(response)
            self.changed.set()

    def close(self) -> None:
        """Mark the end of the responses."""
        self.closed = True
        self.over.set()
        self.changed.set()

    async def get(self) -> list[Response]:
        """Wait for responses and take them all; none means that the stream is over."""
        while not self.responses and not self.closed:
            self.changed.clear()
            await self.changed.wait()
        taken = list(self.responses)
        self.responses.clear()
        return taken


class Conductor:
    """Runs the publish race of one node.

    Args:
        now_ns: monotonic time in nanoseconds.
        standbys: the replication quorum; None: acknowledgements wait for no other node.
        tracer: traces blocks; None: none is traced.
    """

    def __init__(
        self,
        arbiter: Arbiter,
        store: BlockStore,
        checks: ProofChecks,
        metrics: Metrics,
        *,
        now_ns: Callable[[], int] = time.monotonic_ns,
        limits: PipelineLimits | None = None,
        standbys: ReplicationQuorum | None = None,
        tracer: BlockTracer | None = None,
    ) -> None:
        limits = limits or PipelineLimits()
        self.arbiter = arbiter
        self.now_ns = now_ns
        self.idle = asyncio.Event()
        """Set when a shutdown or retirement has finished the complete blocks."""
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails with a bug after which the race cannot go on: the node has to stop."""
        self.acknowledging = Acknowledging(
            arbiter,
            self.perform,
            metrics,
            now_ns,
            standbys,
            released_blocks_max=limits.released_blocks_max,
        )
        self.slots = LoopSlots()
        self._hashing = Hashing(self.slots)
        self.in_flight = BlocksInFlight(
            arbiter,
            self.perform,
            store,
            checks,
            self._hashing,
            metrics,
            now_ns,
            self._spawn,
            Dispute(limits.dispute_settle_ns),
            tracer,
        )
        self._group_commit = GroupCommit(
            store,
            now_ns,
            self._spawn,
            limits=limits,
            first_stored=self._first_stored,
            stored=self._stored,
            failed=self._commit_failed,
            recovered=arbiter.disk_recovered,
        )
        self._store = store
        self._checks = checks
        self._metrics = metrics
        self._tracer = tracer
        self._limits = limits
        self._source_error_listeners: list[Callable[[], None]] = []
        self._commit_failed_listeners: list[Callable[[], None]] = []
        self._catch_up_listeners: list[Callable[[int], None]] = []
        self._outboxes: dict[PublisherId, Outbox] = {}
        metrics.inflight_bytes.set_function(lambda: arbiter.inflight_bytes)
        metrics.publishers.set_function(lambda: arbiter.publisher_count)
        metrics.backing_off.set_function(lambda: len(arbiter.reputations.backing_off(now_ns())))
        self._room = asyncio.Event()
        self._stream_count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ns = _NEVER_NS
        self._listens = False  # read messages first, since a timer came late

    # --- what the gRPC side calls --------------------------------------------------------------------------

    def connect(
        self, name: str, *, address: str = "", is_peer: bool = False, has_certificate: bool = False
    ) -> Outbox:
        """Open a publisher's stream; return its outbox.

        Args:
            has_certificate: TLS has checked a certificate with `name` as its subject.
        """
        self._stream_count += 1
        source = source_of(name, address, is_peer=is_peer, has_certificate=has_certificate)
        outbox = Outbox(PublisherId(self._stream_count), name, self._limits.responses_max, source)
        self._outboxes[outbox.publisher_id] = outbox
        extra = caused_by(source.key, publisher=name, stream=outbox.publisher_id)
        log.info("publisher connected", extra=extra)
        arbiter, now_ns = self.arbiter, self.now_ns()
        self.perform(arbiter.connected(outbox.publisher_id, name, now_ns, address=address, is_peer=is_peer))
        return outbox

    def disconnect(self, outbox: Outbox, reason: str) -> None:
        """Forget a stream that has ended."""
        if self._outboxes.pop(outbox.publisher_id, None) is None:
            return
        outbox.close()
        who = outbox.source.key
        extra = caused_by(who, publisher=outbox.name, stream=outbox.publisher_id, reason=reason)
        log.info("publisher left", extra=extra)
        self.perform(self.arbiter.left(outbox.publisher_id, self.now_ns(), reason))

    async def room_for(self, outbox: Outbox) -> None:
        """Wait until memory allows this publisher's next message."""
        arbiter, publisher_id = self.arbiter, outbox.publisher_id
        if arbiter.may_read(publisher_id):
            return
        arbiter.pause_reading(publisher_id)
        while not arbiter.may_read(publisher_id):
            self._room.clear()
            await self._room.wait()
        if publisher_id in arbiter.streams:
            arbiter.resume_reading(publisher_id, self.now_ns())
            self._arm()

    @contextmanager
    def delaying(self, outbox: Outbox) -> Iterator[None]:
        """Stop a publisher's clock while its message waits to be handled."""
        arbiter, publisher_id = self.arbiter, outbox.publisher_id
        arbiter.delay(publisher_id, self.now_ns())
        try:
            yield
        finally:
            if publisher_id in arbiter.streams:
                arbiter.go_on(publisher_id, self.now_ns())
                self._arm()

    def offer(self, outbox: Outbox, item_set: ItemSet) -> None:
        """Handle an item set of a publisher."""
        publisher_id, now_ns = outbox.publisher_id, self.now_ns()
        items, kinds, size_bytes, number, proven, only_proofs = item_set
        if number is None:
            actions = self.arbiter.items(
                publisher_id,
                items,
                now_ns,
                kinds=kinds,
                size_bytes=size_bytes,
                proven=proven,
                only_proofs=only_proofs,
            )
        else:
            actions = self.arbiter.header(
                publisher_id, number, items, now_ns, kinds=kinds, size_bytes=size_bytes, proven=proven
            )
        self.perform(actions)

    def perform(self, actions: Sequence[Action]) -> None:
        """Perform actions and those that follow from them."""
        waiting = list(actions)
        # Actions that follow go last: a Drop after a Verify must not overtake the Begin of the attempt that
        # it drops.
        for action in waiting:
            match action:
                case SendResponse(publisher_id, response):
                    if (outbox := self._outboxes.get(publisher_id)) is not None:
                        outbox.put(response)
                        if type(response) is not Acknowledgement:  # one a publisher and block
                            note_answer(self._metrics, outbox.name, response, outbox.source.key)
                            if self._tracer is not None and type(response) is Skip:
                                self._tracer.skipped(response.block_number, outbox.name, self.now_ns())
                case Append():
                    waiting += self.in_flight.append(action)
                case Begin():
                    self.in_flight.begin(action, self._outboxes[action.publisher_id].source)
                case Verify():
                    waiting += self.in_flight.verify(action)
                case CheckLink():
                    waiting += self.in_flight.check_link(action)
                case Commit():
                    self._group_commit.queue.append(self.in_flight.attempts[action.attempt_id])
                case Drop():
                    self.in_flight.drop(action)
                case EndResponses(publisher_id):
                    if (outbox := self._outboxes.get(publisher_id)) is not None:
                        outbox.close()
                case Idle():
                    self.idle.set()
                case AimCatchUp(target_number):
                    for tell_target in self._catch_up_listeners:
                        asyncio.get_running_loop().call_soon(tell_target, target_number)
                case Stray():
                    outbox = self._outboxes[action.publisher_id]
                    note_stray(self._metrics, outbox.name, action, outbox.source.key)
                case BackedOff():
                    note_backoff(self._metrics, action)
                case SourceError():
                    for tell in self._source_error_listeners:
                        asyncio.get_running_loop().call_soon(tell)
        if self._group_commit.queue and not self._group_commit.is_running:
            self._group_commit.begin()
        if len(waiting) != 1 or type(waiting[0]) is not Append:  # an Append alone makes no room
            self._room.set()
        self._arm()

    # --- what other parts of the node are told -------------------------------------------------------------

    @property
    def next_to_store(self) -> int:
        """See `Acknowledging.next_to_store`."""
        return self.acknowledging.next_to_store

    @property
    def is_storing(self) -> bool:
        """True while that block is in flight."""
        block = self.arbiter.blocks.get(self.next_to_store)
        return block is not None and block.state in LIVE

    @property
    def is_committing(self) -> bool:
        """True while blocks are on their way to the disk."""
        return self._group_commit.is_running

    @property
    def stream_layout(self) -> int | None:
        """The layout of the stream's blocks."""
        return self._store.layout

    def adopt_layout(self, layout: int) -> bool:
        """Begin an empty stream with this layout, as other nodes' have it; return whether it can have it."""
        return self._store.adopt_layout(layout)

    def on_stored(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` for each block on disk; return a function that ends this."""
        return self._store.on_advance(listener)

    @property
    def catch_up_target(self) -> int | None:
        """The highest block that publishers reported beyond U.

        It is advisory and does not fall: compare it with the last stored block.
        """
        return self.arbiter.catch_up_target

    def on_catch_up_target(self, listener: Callable[[int], None]) -> None:
        """Call `listener` with each new, higher `catch_up_target`."""
        self._catch_up_listeners.append(listener)

    def on_source_error(self, listener: Callable[[], None]) -> None:
        """Call `listener` when the last publisher ends its stream with ERROR."""
        self._source_error_listeners.append(listener)

    def on_commit_failed(self, listener: Callable[[], None]) -> None:
        """Call `listener` when the disk refuses a commit."""
        self._commit_failed_listeners.append(listener)

    @property
    def disk_failure(self) -> str | None:
        """The reason why the disk refuses blocks."""
        failed, refusal = self.arbiter.persistence_failed, self._group_commit.refusal
        return failed if failed is None or refusal is None else f"{failed}; tried again: {refusal}"

    # --- roles ---------------------------------------------------------------------------------------------

    async def retire(self, reason: str) -> None:
        """Finish complete blocks and send publishers elsewhere; return when no block is in flight.

        After a cancelled call the node goes on retiring: `reinstate` it.
        """
        self.perform(self.arbiter.retire(reason, self.now_ns()))
        await self.idle.wait()
        await self._group_commit.finished()

    async def step_down(self, reason: str) -> None:
        """End all publishers' streams at once; return when no block is in flight.

        The blocks that are complete go to disk, and are acknowledged to nobody.
        """
        self.acknowledging.is_unheard = True
        self.perform(self.arbiter.retire(reason, self.now_ns()))
        self.perform(self.arbiter.give_up(self.now_ns()))
        self.acknowledging.release()
        await self.idle.wait()
        await self._group_commit.finished()

    def reinstate(self) -> None:
        """Take publishers again."""
        self.acknowledging.is_unheard = False
        self.arbiter.reinstate()
        self.idle.clear()
        self.acknowledging.release()

    # --- stopping ------------------------------------------------------------------------------------------

    async def stop(self, grace_seconds: float) -> None:
        """Finish complete blocks, end all streams and wait for the disk, at most `grace_seconds`."""
        if not self.arbiter.shutting_down:
            self.idle.clear()  # a standby was idle
        self.perform(self.arbiter.shutdown(self.now_ns()))
        try:
            await asyncio.wait_for(self.idle.wait(), grace_seconds)
        except TimeoutError:
            extra = fields(grace_seconds=grace_seconds, awaiting_standbys=self.acknowledging.awaiting_count)
            log.warning("blocks in flight were not finished", extra=extra)
        await self._group_commit.finished()
        if not self.idle.is_set() and not self.broken.done():  # with a bug, it is not known what is stored
            self.perform(self.arbiter.give_up(self.now_ns()))
        self.in_flight.stop()
        if self._timer is not None:
            self._timer.cancel()
        self._group_commit.close()
        self._hashing.close()
        self._checks.close()

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self.broken.done():
            self.broken.set_exception(error)

    # --- what the commit tells -----------------------------------------------------------------------------

    async def _first_stored(self, attempt: Attempt) -> None:
        """Trust what block 0 publishes, before it is acknowledged."""
        await self._checks.block_0_committed(attempt.published)

    def _stored(
        self, group: Sequence[Attempt], blocks: Sequence[VerifiedBlock], took_ns: int, flush_count: int
    ) -> None:
        now_ns = self.now_ns()
        self._metrics.flush_seconds.observe(took_ns / 1e9)
        self._metrics.flushes.inc(flush_count)
        for attempt, block in zip(group, blocks, strict=True):
            self._store.advance(block)
            self.in_flight.attempts.pop(attempt.attempt_id)
            if attempt.trace is not None:
                assert attempt.summary is not None
                size_bytes, item_count = attempt.summary.size_bytes, len(attempt.items)
                attempt.trace.stored(size_bytes, item_count, len(group), now_ns)
            self.acknowledging.stored(
                UnconfirmedBlock(
                    attempt.attempt_id,
                    block.number,
                    block.root_hash,
                    attempt.source.name,
                    attempt.begun_ns,
                    now_ns,
                    attempt.trace,
                )
            )

    def _commit_failed(self, attempt: Attempt, reason: str) -> None:
        self.in_flight.commit_failed()
        self.perform(self.arbiter.commit_failed(attempt.attempt_id, reason, self.now_ns()))
        for tell in self._commit_failed_listeners:
            asyncio.get_running_loop().call_soon(tell)

    # --- time ----------------------------------------------------------------------------------------------

    def stood_still(self, seconds: float) -> None:
        """Note that the event loop was late: messages that came since are unread."""
        if seconds >= STOOD_STILL_SECONDS_MIN:
            self.arbiter.stood_still(int(seconds * 1e9), self.now_ns())
            self._arm()

    def _arm(self) -> None:
        deadline_ns = self.arbiter.next_deadline_ns()
        if deadline_ns is None or deadline_ns >= self._timer_at_ns or self._listens:
            return  # a timer that still runs finds nothing to do, or this limit too
        if self._timer is not None:
            self._timer.cancel()
        self._set_timer(deadline_ns)

    def _set_timer(self, at_ns: int) -> None:
        now_ns = self.now_ns()
        self._timer_at_ns = max(now_ns, at_ns)
        delay_seconds = (self._timer_at_ns - now_ns) / 1e9
        self._timer = asyncio.get_running_loop().call_later(delay_seconds, self._on_time)

    def _on_time(self) -> None:
        now_ns = self.now_ns()
        # Timers run before messages: after a pause, neither messages nor the pause itself are noted yet.
        late_ns = now_ns - self._timer_at_ns
        self._timer, self._timer_at_ns = None, _NEVER_NS
        self._listens = not self._listens and late_ns > self._limits.timer_late_seconds_max * 1e9
        if self._listens:
            # By then the pause is sampled, and its messages are read.
            wait_seconds = LOOP_WATCH_SECONDS + self._limits.timer_late_seconds_max
            self._set_timer(now_ns + int(wait_seconds * 1e9))
            return
        self.perform(self.arbiter.tick(now_ns))
