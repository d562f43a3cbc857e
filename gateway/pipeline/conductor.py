"""The shell around the arbiter: it performs what that decides, and feeds it every event.

It has no opinion about block numbers. It runs in one event loop with the stages of a block; long work runs
elsewhere.

    message ──► Arbiter ──► Begin, Append, Verify, CheckLink, Drop ──► `BlocksInFlight`
                   ▲    ──► Commit ──► `GroupCommit` ──► `Acknowledging`
                   │    ──► Send, Close ──► `Outbox` of a publisher
                   └─────── verified, refused, linked, committed, commit_failed

Invariant: `committed` is fed only after `GroupCommit` has called `stored`, so an acknowledgement follows both
flushes. It may be fed much later, in order: the arbiter's last block is the last acknowledged one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from sluice.gateway.blocks.item_set import ItemSet
from sluice.gateway.limits import LOOP_WATCH_SECONDS
from sluice.gateway.logs import caused_by, fields
from sluice.gateway.metrics import Metrics
from sluice.gateway.pipeline.acknowledging import Acknowledging, UnconfirmedBlock
from sluice.gateway.pipeline.dispute import Source, source_of
from sluice.gateway.pipeline.group_commit import GroupCommit
from sluice.gateway.pipeline.in_flight import Attempt, BlocksInFlight
from sluice.gateway.pipeline.notes import note_answer, note_backoff, note_stray
from sluice.gateway.pipeline.replication_quorum import ReplicationQuorum
from sluice.gateway.race.actions import (
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
    SourceError,
    Stray,
    Verify,
)
from sluice.gateway.race.arbiter import Arbiter
from sluice.gateway.race.reputation import BackedOff
from sluice.gateway.race.tables import LIVE
from sluice.gateway.store.block_store import BlockStore, VerifiedBlock
from sluice.gateway.workers.hash_process import HashProcess
from sluice.gateway.workers.hashing import Hashing
from sluice.gateway.workers.loop_slots import LoopSlots
from sluice.gateway.workers.proof_checks import ProofChecks

__all__ = ["Conductor", "Outbox"]

log = logging.getLogger(__name__)

STOOD_STILL_SECONDS_MIN: Final = 0.02
"""A sample that is so late is taken off from the time of publishers: the node could not hear them."""

TIMER_LATE_SECONDS_MAX: Final = 0.005
"""A timer of the race that is later than this finds the node behind a pause, which may not be sampled yet."""

LISTENING_SECONDS: Final = LOOP_WATCH_SECONDS + TIMER_LATE_SECONDS_MAX
"""How long such a timer waits before it ends anybody's time; by then the pause is sampled."""


class Outbox:
    """The responses that wait for one publisher to read them.

    Args:
        publisher_id: whose they are.
        name: who that is, for people.
        responses_max: how many may wait; one more and `overflow` is set.
        source: by what its claims about stored blocks are counted; None: by its name.
    """

    def __init__(
        self, publisher_id: PublisherId, name: str, responses_max: int, source: Source | None = None
    ) -> None:
        self.publisher_id = publisher_id
        self.name = name
        self.source = source or source_of(name, name)
        self.closed = False
        """Nothing more will be put in."""
        self.said_goodbye = False
        """The publisher has sent EndStream: nothing more is to come from it."""
        self.dropped_count = 0
        """Messages that came after the node had ended the stream."""
        self.overflow = asyncio.Event()
        """Set when the publisher does not read: its stream is to be broken off."""
        self.over = asyncio.Event()
        """Set when nothing more will be put in, or there was no room."""
        self._responses: deque[Response] = deque()
        self._responses_max = responses_max
        self._changed = asyncio.Event()

    def put(self, response: Response) -> None:
        """Queue a response.

        None is queued after one for which there was no room, so that none is missing between.
        """
        if self.overflow.is_set() or len(self._responses) >= self._responses_max:
            self.overflow.set()
            self.over.set()
        else:
            self._responses.append(response)
            self._changed.set()

    def close(self) -> None:
        """Say that nothing more comes."""
        self.closed = True
        self.over.set()
        self._changed.set()

    async def _wait(self) -> None:
        """Wait for responses, or the end."""
        while not self._responses and not self.closed:
            self._changed.clear()
            await self._changed.wait()

    async def get(self) -> list[Response]:
        """Wait for responses and take all that are there; none means that the stream is over."""
        await self._wait()
        taken = list(self._responses)
        self._responses.clear()
        return taken

    async def send_all(self, send: Callable[[Response], Awaitable[None]]) -> None:
        """Send all responses, one after the other, until the stream is over.

        Raises:
            What `send` raises: nothing is sent after it.
        """
        while not self.closed or self._responses:
            await self._wait()
            while self._responses:
                await send(self._responses.popleft())


class Conductor:
    """Runs the publish race of one node.

    Args:
        arbiter: decides.
        store: keeps the blocks.
        checks: checks their proofs.
        metrics: of the node.
        clock_ns: monotonic time in nanoseconds.
        responses_max: how many responses may wait for one publisher.
        group_blocks_max: most blocks that share one pair of flushes.
        hash_processes: hash large item sets; closed with the conductor.
        standbys: knows which blocks other nodes have; None: acknowledgements wait for none.
    """

    def __init__(
        self,
        arbiter: Arbiter,
        store: BlockStore,
        checks: ProofChecks,
        metrics: Metrics,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        responses_max: int = 4096,
        group_blocks_max: int = 64,
        hash_processes: Sequence[HashProcess] = (),
        standbys: ReplicationQuorum | None = None,
    ) -> None:
        self.arbiter = arbiter
        self.idle = asyncio.Event()
        """Set when the blocks that were complete at shutdown or retirement are finished."""
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails with the error of a bug with which the race cannot go on: the node has to stop."""
        self.acknowledging = Acknowledging(arbiter, self.perform, metrics, clock_ns, standbys)
        """The blocks on disk, and which of them were acknowledged."""
        self.slots = LoopSlots()
        """Slots of the event loop, for long pieces of work."""
        self._hashing = Hashing(hash_processes, self.slots)
        self.in_flight = BlocksInFlight(
            arbiter,
            self.perform,
            store,
            checks,
            self._hashing,
            metrics,
            clock_ns,
            self._spawn,
        )
        """Blocks that are received, verified and committed."""
        self._group_commit = GroupCommit(
            store,
            clock_ns,
            self._spawn,
            blocks_max=group_blocks_max,
            first_stored=self._first_stored,
            stored=self._stored,
            failed=self._commit_failed,
            recovered=arbiter.disk_recovered,
        )
        self._store = store
        self._checks = checks
        self._metrics = metrics
        self._now_ns = clock_ns
        self._responses_max = responses_max
        self._source_error_listeners: list[Callable[[], None]] = []
        self._commit_failed_listeners: list[Callable[[], None]] = []
        self._catch_up_listeners: list[Callable[[int], None]] = []
        self._outboxes: dict[PublisherId, Outbox] = {}
        metrics.inflight_bytes.set_function(lambda: arbiter.inflight_bytes)
        metrics.publishers.set_function(lambda: arbiter.publisher_count)
        metrics.backing_off.set_function(lambda: len(arbiter.reputations.backing_off(clock_ns())))
        self._room = asyncio.Event()
        self._stream_count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ns = 0
        self._listens = False  # messages are read first, since a timer came late

    # --- what the gRPC side calls --------------------------------------------------------------------------

    def connect(
        self, name: str, *, address: str = "", is_peer: bool = False, has_certificate: bool = False
    ) -> Outbox:
        """Take a publisher's new stream; return the outbox with its responses.

        Args:
            name: who it is.
            address: the network address that it comes from.
            is_peer: the stream is this node's own subscription to another node.
            has_certificate: its name is the subject of a certificate that TLS has checked.
        """
        self._stream_count += 1
        source = source_of(name, address, is_peer=is_peer, has_certificate=has_certificate)
        outbox = Outbox(PublisherId(self._stream_count), name, self._responses_max, source)
        self._outboxes[outbox.publisher_id] = outbox
        extra = caused_by(source.key, publisher=name, stream=outbox.publisher_id)
        log.info("publisher connected", extra=extra)
        arbiter, now_ns = self.arbiter, self._now_ns()
        self.perform(arbiter.connected(outbox.publisher_id, name, now_ns, address=address, is_peer=is_peer))
        return outbox

    def disconnect(self, outbox: Outbox, reason: str) -> None:
        """Forget a stream that has ended, in whatever way."""
        if self._outboxes.pop(outbox.publisher_id, None) is None:
            return
        outbox.close()
        who = outbox.source.key
        extra = caused_by(who, publisher=outbox.name, stream=outbox.publisher_id, reason=reason)
        log.info("publisher left", extra=extra)
        self.perform(self.arbiter.left(outbox.publisher_id, self._now_ns(), reason))

    async def room_for(self, outbox: Outbox) -> None:
        """Wait until this publisher's next message may be taken: the back-pressure of blocks in flight."""
        arbiter, publisher_id = self.arbiter, outbox.publisher_id
        if arbiter.may_read(publisher_id):
            return
        arbiter.hold_back(publisher_id)
        while not arbiter.may_read(publisher_id):
            self._room.clear()
            await self._room.wait()
        if publisher_id in arbiter.streams:
            arbiter.let_go(publisher_id, self._now_ns())
            self._arm()

    @contextmanager
    def delaying(self, outbox: Outbox) -> Iterator[None]:
        """Stop a publisher's clock while its message waits to be handled."""
        arbiter, publisher_id = self.arbiter, outbox.publisher_id
        arbiter.delay(publisher_id, self._now_ns())
        try:
            yield
        finally:
            if publisher_id in arbiter.streams:
                arbiter.go_on(publisher_id, self._now_ns())
                self._arm()

    def offer(self, outbox: Outbox, item_set: ItemSet) -> None:
        """Take an item set of a publisher."""
        publisher_id, now_ns = outbox.publisher_id, self._now_ns()
        items, kinds, number, proven, only_proofs = item_set
        if number is None:
            actions = self.arbiter.items(
                publisher_id, items, now_ns, kinds=kinds, proven=proven, only_proofs=only_proofs
            )
        else:
            actions = self.arbiter.header(publisher_id, number, items, now_ns, kinds=kinds, proven=proven)
        self.perform(actions)

    def now_ns(self) -> int:
        """The conductor's clock."""
        return self._now_ns()

    def perform(self, actions: Sequence[Action]) -> None:
        """Perform actions, and those that follow from them."""
        waiting = list(actions)
        for action in waiting:
            # Actions that follow go last: a Drop that follows from a Verify must not overtake the Begin of
            # the attempt that it drops.
            waiting += self._perform_one(action)
        if self._group_commit.queue and not self._group_commit.is_running:
            self._group_commit.begin()
        if len(waiting) != 1 or type(waiting[0]) is not Append:  # which makes no room
            self._room.set()
        self._arm()

    # --- what other parts of the node are told -------------------------------------------------------------

    @property
    def next_to_store(self) -> int:
        """The number after the last block on disk; blocks before it may wait to be acknowledged."""
        return self.acknowledging.next_to_store

    @property
    def is_storing(self) -> bool:
        """Whether that block is in flight."""
        block = self.arbiter.blocks.get(self.next_to_store)
        return block is not None and block.state in LIVE

    def on_stored(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` for each block on disk; return a function that ends this."""
        return self._store.on_advance(listener)

    @property
    def catch_up_target(self) -> int | None:
        """The highest block that publishers reported beyond what this node could take; None before the first.

        It is advisory, and stays when the node has got there: compare it with the last stored block.
        """
        return self.arbiter.catch_up_target

    def on_catch_up_target(self, listener: Callable[[int], None]) -> None:
        """Call `listener` in the event loop with each new, higher `catch_up_target`."""
        self._catch_up_listeners.append(listener)

    def on_source_error(self, listener: Callable[[], None]) -> None:
        """Call `listener` in the event loop when the last publisher ends its stream with ERROR.

        Live subscribers must be told then; complete blocks are still finished.
        """
        self._source_error_listeners.append(listener)

    def on_commit_failed(self, listener: Callable[[], None]) -> None:
        """Call `listener` in the event loop each time the disk refuses a commit."""
        self._commit_failed_listeners.append(listener)

    @property
    def disk_failure(self) -> str | None:
        """Why blocks cannot be written, with the disk's last refusal; None while they can."""
        failed, refusal = self.arbiter.persistence_failed, self._group_commit.refusal
        return failed if failed is None or refusal is None else f"{failed}; tried again: {refusal}"

    # --- roles ---------------------------------------------------------------------------------------------

    async def retire(self, reason: str) -> None:
        """Finish complete blocks and send publishers elsewhere; return when no block is in flight.

        A node whose call is cancelled goes on retiring: `reinstate` it.
        """
        self.perform(self.arbiter.retire(reason, self._now_ns()))
        await self.idle.wait()
        await self._group_commit.finished()

    def reinstate(self) -> None:
        """Take publishers again."""
        self.arbiter.reinstate()
        self.idle.clear()
        self.acknowledging.release()

    # --- stopping ------------------------------------------------------------------------------------------

    async def stop(self, grace_seconds: float) -> None:
        """Finish complete blocks, end all streams and wait for the disk, at most `grace_seconds`."""
        if not self.arbiter.shutting_down:
            self.idle.clear()  # a standby was idle before
        self.perform(self.arbiter.shutdown(self._now_ns()))
        try:
            await asyncio.wait_for(self.idle.wait(), grace_seconds)
        except TimeoutError:
            extra = fields(grace_seconds=grace_seconds, awaiting_standbys=self.acknowledging.awaiting_count)
            log.warning("blocks in flight were not finished", extra=extra)
        await self._group_commit.finished()
        if not self.idle.is_set() and not self.broken.done():  # else it is not known what is stored
            self.perform(self.arbiter.give_up(self._now_ns()))
        self.in_flight.stop()
        if self._timer is not None:
            self._timer.cancel()
        self._group_commit.close()
        self._hashing.close()
        self._checks.close()

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Start a task; an error of it, which is our bug, goes to `broken`."""
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self.broken.done():
            self.broken.set_exception(error)

    # --- one action ----------------------------------------------------------------------------------------

    def _perform_one(self, action: Action) -> Sequence[Action]:
        """Perform one action; return the actions that follow from it at once."""
        match action:
            case SendResponse():
                self._send(action)
            case Append():
                return self.in_flight.append(action)
            case Begin():
                self.in_flight.begin(action, self._outboxes[action.publisher_id].source)
            case Verify():
                return self.in_flight.verify(action)
            case CheckLink():
                return self.in_flight.check_link(action)
            case Commit():
                self._group_commit.queue.append(self.in_flight.attempts[action.attempt_id])
            case Drop():
                self.in_flight.drop(action)
            case EndResponses():
                outbox = self._outboxes.get(action.publisher_id)
                if outbox is not None:
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
        return ()

    def _send(self, action: SendResponse) -> None:
        outbox = self._outboxes.get(action.publisher_id)
        if outbox is None:
            return
        outbox.put(action.response)
        note_answer(self._metrics, outbox.name, action.response, outbox.source.key)

    # --- what the commit tells -----------------------------------------------------------------------------

    async def _first_stored(self, attempt: Attempt) -> None:
        """Believe what block 0 publishes, now that it is on disk and before it is acknowledged."""
        await self._checks.block_0_committed(attempt.published)

    def _stored(
        self, group: Sequence[Attempt], blocks: Sequence[VerifiedBlock], took_ns: int, flush_count: int
    ) -> None:
        """Show blocks on disk to readers, and acknowledge them."""
        now_ns = self._now_ns()
        self._metrics.flush_seconds.observe(took_ns / 1e9)
        self._metrics.flushes.inc(flush_count)
        for attempt, block in zip(group, blocks, strict=True):
            self._store.advance(block)
            self.in_flight.attempts.pop(attempt.attempt_id)
            self.acknowledging.stored(
                UnconfirmedBlock(
                    attempt.attempt_id,
                    block.number,
                    block.root_hash,
                    attempt.publisher,
                    attempt.begun_ns,
                    now_ns,
                )
            )

    def _commit_failed(self, attempt: Attempt, reason: str) -> None:
        """Drop a block that the disk refused, and all behind it."""
        self.in_flight.commit_failed()
        self.perform(self.arbiter.commit_failed(attempt.attempt_id, reason, self._now_ns()))
        for tell in self._commit_failed_listeners:
            asyncio.get_running_loop().call_soon(tell)

    # --- time ----------------------------------------------------------------------------------------------

    def stood_still(self, seconds: float) -> None:
        """Take note that the event loop was late by so much: messages that came since are still unread."""
        if seconds >= STOOD_STILL_SECONDS_MIN:
            self.arbiter.stood_still(int(seconds * 1e9), self._now_ns())
            self._arm()

    def _arm(self) -> None:
        """Set the timer for the arbiter's next time limit."""
        deadline_ns = self.arbiter.next_deadline_ns()
        if deadline_ns is None or self._listens:
            return  # a timer that still runs finds nothing to do, or this limit too
        if self._timer is not None:
            if self._timer_at_ns <= deadline_ns:
                return
            self._timer.cancel()
        self._set_timer(deadline_ns)

    def _set_timer(self, at_ns: int) -> None:
        now_ns = self._now_ns()
        self._timer_at_ns = max(now_ns, at_ns)
        delay_seconds = (self._timer_at_ns - now_ns) / 1e9
        self._timer = asyncio.get_running_loop().call_later(delay_seconds, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        now_ns = self._now_ns()
        # Timers run before messages: after a pause no message was read, and nobody has reported the pause.
        late_ns = now_ns - self._timer_at_ns
        self._listens = not self._listens and late_ns > TIMER_LATE_SECONDS_MAX * 1e9
        if self._listens:
            self._set_timer(now_ns + int(LISTENING_SECONDS * 1e9))
            return
        self.perform(self.arbiter.tick(now_ns))
