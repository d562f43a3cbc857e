"""Performs what the arbiter decides: hashes, verifies, commits, answers.

A shell. It feeds every event to `gateway.race.Arbiter` and performs the actions that come back, in order; it
has no opinion about block numbers. It runs in one event loop; large sets are hashed, and blocks committed, in
threads.

    message ──► Arbiter ──► Append ──► BlockHasher (here, or by `Hashing` when the set is large)
                   ▲    ──► Verify ──► root hash here, proofs by `ProofChecks` (here, or in a process apart)
                   │    ──► CheckLink ──► Chain
                   │    ──► Commit ──► queue ──► Ledger, one thread, all that wait share one pair of flushes
                   │                               └──► `Acknowledging`: at once, or when standbys have it
                   └─────── verified, refused, linked, committed, commit_failed

Invariants
  - `committed` is fed only after `Ledger.append` has returned, so an acknowledgement follows both flushes.
    It may be fed much later, in order: the arbiter's last block is the last that is acknowledged.
  - Links are checked against a chain that runs ahead of the ledger by the blocks that are being committed;
    when a commit fails it goes back to the ledger's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field

from datastream.errors import CommitFailed
from gateway.acknowledging import Acknowledging, StoredBlock
from gateway.begun import Begun
from gateway.chain import Chain
from gateway.committing import commit
from gateway.conductor_notes import note_answer, note_drop, note_refusal
from gateway.errors import BlockRefused
from gateway.hash_process import HashProcess
from gateway.hashing import Hashing
from gateway.item_set import ItemSet
from gateway.ledger import Ledger, VerifiedBlock
from gateway.limits import (
    COMMIT_GROUP_BYTES_MAX,
    DISK_PROBE_SECONDS,
)
from gateway.logs import fields
from gateway.metrics import Metrics
from gateway.outbox import Outbox
from gateway.proof_checks import ProofChecks
from gateway.proofs.ledger_data import LedgerData
from gateway.race import Arbiter
from gateway.race_actions import (
    Action,
    Append,
    AttemptId,
    Begin,
    CatchUp,
    CheckLink,
    Close,
    Commit,
    Drop,
    Idle,
    PublisherId,
    Send,
    SourceError,
    Verify,
)
from gateway.race_facts import LIVE
from gateway.root_hash import BlockHasher, BlockSummary
from gateway.standby_gate import StandbyGate
from gateway.turns import Turns
from gateway.work_thread import WorkThread

__all__ = ["Conductor"]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Attempt:
    """One block in flight."""

    attempt_id: AttemptId
    number: int
    publisher: str
    hasher: BlockHasher
    begun_ns: int
    items: list[bytes] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    """Field numbers of the items, as far as they are known: all or less."""
    summary: BlockSummary | None = None
    unhashed: deque[Append] = field(default_factory=deque)
    """Item sets that wait for a thread, because a large one is before them."""
    hashing: asyncio.Task[None] | None = None
    proving: asyncio.Task[None] | None = None
    """The check of its proofs, where that is not done at once."""
    published: LedgerData | None = None
    """What it publishes, if it is a block 0 that was accepted."""
    ended: bool = False
    """Verify was asked for while a thread was hashing."""


class Conductor:
    """Runs the publish race of one node.

    Args:
        arbiter: decides.
        ledger: keeps the blocks.
        checks: checks their proofs.
        metrics: is told of everything.
        clock_ns: monotonic time in nanoseconds.
        responses_max: how many responses may wait for one publisher.
        group_blocks_max: most blocks that share one pair of flushes.
        hash_process: hashes what takes long; closed with the conductor.
        standbys: knows which blocks other nodes have; None: acknowledgements do not wait for that.
        commit_thread: where blocks are committed, closed with the conductor; None: in a thread of its own.
    """

    def __init__(
        self,
        arbiter: Arbiter,
        ledger: Ledger,
        checks: ProofChecks,
        metrics: Metrics,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        responses_max: int = 4096,
        group_blocks_max: int = 64,
        hash_process: HashProcess | None = None,
        standbys: StandbyGate | None = None,
        commit_thread: WorkThread | None = None,
    ) -> None:
        self.arbiter = arbiter
        self.idle = asyncio.Event()
        """Set when what was complete when the node shut down or retired is finished."""
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Ends with the error if the race cannot go on because of a bug: the node has to stop."""
        self.acknowledging = Acknowledging(arbiter, self.perform, metrics, clock_ns, standbys)
        """What is on disk, and what of it was acknowledged."""
        self.turns = Turns()
        """Of the event loop, for what takes it long."""
        self._ledger = ledger
        self._checks = checks
        self._metrics = metrics
        self._now_ns = clock_ns
        self._responses_max = responses_max
        self._group_blocks_max = group_blocks_max
        self._source_error_listeners: list[Callable[[], None]] = []
        self._commit_failed_listeners: list[Callable[[], None]] = []
        self._catch_up_listeners: list[Callable[[int], None]] = []
        self._outboxes: dict[PublisherId, Outbox] = {}
        self._attempts: dict[AttemptId, _Attempt] = {}
        self._chain_ahead = ledger.chain.copy()
        self._commit_queue: deque[_Attempt] = deque()
        self._commit_task: asyncio.Task[None] | None = None
        self._probe_task: asyncio.Task[None] | None = None
        self._commit_thread = commit_thread or WorkThread("commit")
        self._hashing = Hashing(hash_process, self.turns)
        metrics.inflight_bytes.set_function(lambda: arbiter.inflight_bytes)
        metrics.publishers.set_function(lambda: arbiter.publisher_count)
        self._room = asyncio.Event()
        self._stream_count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ns = 0

    # --- what the gRPC side calls --------------------------------------------------------------------------

    def connect(self, name: str, *, address: str = "", is_peer: bool = False) -> Outbox:
        """A publisher has opened a stream; read its responses from the outbox.

        Args:
            name: who it is.
            address: the network address that it comes from.
            is_peer: it is this node's own subscription to another node.
        """
        self._stream_count += 1
        outbox = Outbox(PublisherId(self._stream_count), name, self._responses_max)
        self._outboxes[outbox.publisher_id] = outbox
        log.info("publisher connected", extra=fields(publisher=name, stream=outbox.publisher_id))
        arbiter, now_ns = self.arbiter, self._now_ns()
        self.perform(arbiter.connected(outbox.publisher_id, name, now_ns, address=address, is_peer=is_peer))
        return outbox

    def disconnect(self, outbox: Outbox, reason: str) -> None:
        """The stream is gone, in whatever way."""
        if self._outboxes.pop(outbox.publisher_id, None) is None:
            return
        outbox.close()
        log.info(
            "publisher left", extra=fields(publisher=outbox.name, stream=outbox.publisher_id, reason=reason)
        )
        self.perform(self.arbiter.left(outbox.publisher_id, self._now_ns(), reason))

    async def room_for(self, outbox: Outbox) -> None:
        """Wait until another message of this publisher may be taken: how blocks in flight push back."""
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

    def offer(self, outbox: Outbox, item_set: ItemSet) -> None:
        """An item set has come on a publisher's stream."""
        arbiter, publisher_id, now_ns = self.arbiter, outbox.publisher_id, self._now_ns()
        items, kinds, proven = item_set.items, item_set.kinds, item_set.proven
        if item_set.block_number is None:
            only_proofs = item_set.only_proofs
            actions = arbiter.items(
                publisher_id, items, now_ns, kinds=kinds, proven=proven, only_proofs=only_proofs
            )
        else:
            number = item_set.block_number
            actions = arbiter.header(publisher_id, number, items, now_ns, kinds=kinds, proven=proven)
        self.perform(actions)

    def now_ns(self) -> int:
        """The conductor's clock."""
        return self._now_ns()

    def perform(self, actions: Sequence[Action]) -> None:
        """Perform actions and those that follow from them."""
        waiting = list(actions)
        for action in waiting:
            # What an action leads to goes behind what the arbiter asked for before it: a Drop that comes of a
            # Verify must not overtake the Begin of the attempt that it drops.
            waiting += self._perform_one(action)
        if self._commit_queue and self._commit_task is None:
            # At once, and not when the event loop comes round: what it has to do before may take long.
            self._commit_task = self._spawn(Begun(self._commit_all()).rest())
        if len(waiting) != 1 or type(waiting[0]) is not Append:  # which makes no room
            self._room.set()
        self._arm()

    # --- what other parts of the node are told -------------------------------------------------------------

    @property
    def next_to_store(self) -> int:
        """The block that is to be put on disk next; those before it may still wait to be acknowledged."""
        return self.acknowledging.next_to_store

    @property
    def is_storing(self) -> bool:
        """Whether that block is in flight."""
        block = self.arbiter.blocks.get(self.next_to_store)
        return block is not None and block.state in LIVE

    def on_stored(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have `listener` called when a block is on disk, each time; return what ends that."""
        return self._ledger.on_advance(listener)

    @property
    def catch_up_target(self) -> int | None:
        """The highest block that publishers have told of beyond what this node could take; None: none yet.

        It is advisory, and stays when the node has got there: compare it with the ledger's last block.
        """
        return self.arbiter.catch_up_target

    def on_catch_up_target(self, listener: Callable[[int], None]) -> None:
        """Call `listener` in the event loop with each new, higher `catch_up_target`."""
        self._catch_up_listeners.append(listener)

    def on_source_error(self, listener: Callable[[], None]) -> None:
        """Call `listener` in the event loop when the last publisher ends its stream with ERROR.

        Live subscribers are to be told then; blocks that are complete are still finished.
        """
        self._source_error_listeners.append(listener)

    def on_commit_failed(self, listener: Callable[[], None]) -> None:
        """Call `listener` in the event loop when the disk has refused a commit, each time."""
        self._commit_failed_listeners.append(listener)

    # --- roles ---------------------------------------------------------------------------------------------

    async def retire(self, reason: str) -> None:
        """Finish what is complete and send publishers elsewhere; return when no block is in flight.

        Cancelled before that, the node goes on retiring: `reinstate` it.
        """
        self.perform(self.arbiter.retire(reason, self._now_ns()))
        await self.idle.wait()
        while (committing := self._commit_task) is not None:
            await asyncio.wait({committing})

    def reinstate(self) -> None:
        """Take publishers again."""
        self.arbiter.reinstate()
        self.idle.clear()
        self.acknowledging.release()

    # --- stopping ------------------------------------------------------------------------------------------

    async def stop(self, grace_seconds: float) -> None:
        """Finish complete blocks, end every stream, wait for the disk; at most `grace_seconds`."""
        if not self.arbiter.shutting_down:
            self.idle.clear()  # a standby was idle before
        self.perform(self.arbiter.shutdown(self._now_ns()))
        try:
            await asyncio.wait_for(self.idle.wait(), grace_seconds)
        except TimeoutError:
            log.warning("blocks in flight were not finished", extra=fields(grace_seconds=grace_seconds))
        if self._commit_task is not None:
            await asyncio.wait({self._commit_task})
        attempts = self._attempts.values()
        for task in (
            self._probe_task,
            *(attempt.hashing for attempt in attempts),
            *(attempt.proving for attempt in attempts),
        ):
            if task is not None:
                task.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._commit_thread.close()
        self._hashing.close()
        self._checks.close()

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Start a task; if it dies of an error, which would be our bug, `broken` says so."""
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self.broken.done():
            self.broken.set_exception(error)

    # --- one action ----------------------------------------------------------------------------------------

    def _perform_one(self, action: Action) -> Sequence[Action]:
        """Perform one action; return what the arbiter answers to its outcome, where that is known at once."""
        match action:
            case Send():
                self._send(action)
            case Append():
                return self._append(action)
            case Begin():
                self._begin(action)
            case Verify():
                return self._ended(action)
            case CheckLink():
                return self._check_link(action)
            case Commit():
                self._commit(action)
            case Drop():
                self._drop(action)
            case Close():
                outbox = self._outboxes.get(action.publisher_id)
                if outbox is not None:
                    outbox.close()
            case Idle():
                self.idle.set()
            case CatchUp(target_number):
                for tell_target in self._catch_up_listeners:
                    asyncio.get_running_loop().call_soon(tell_target, target_number)
            case SourceError():
                for tell in self._source_error_listeners:
                    asyncio.get_running_loop().call_soon(tell)
        return ()

    def _send(self, action: Send) -> None:
        outbox = self._outboxes.get(action.publisher_id)
        if outbox is None:
            return
        outbox.put(action.response)
        note_answer(self._metrics, outbox.name, action.response)

    def _begin(self, action: Begin) -> None:
        publisher = self._outboxes[action.publisher_id].name
        self._attempts[action.attempt_id] = _Attempt(
            action.attempt_id, action.block_number, publisher, self._checks.hasher(), self._now_ns()
        )
        self._metrics.blocks_received.inc()

    def _append(self, action: Append) -> Sequence[Action]:
        attempt = self._attempts[action.attempt_id]
        attempt.items.extend(action.items)
        attempt.kinds.extend(action.kinds or ())
        if attempt.hashing is None and self._hashing.is_quick(action.items):
            try:
                attempt.hasher.add(action.items, action.kinds, action.size_bytes)
            except BlockRefused as refused:
                return self._refused(attempt, refused)
            return ()
        attempt.unhashed.append(action)
        if attempt.hashing is None:
            attempt.hashing = self._spawn(self._hash_apart(attempt))
        return ()

    async def _hash_apart(self, attempt: _Attempt) -> None:
        try:
            while attempt.unhashed and attempt.attempt_id in self._attempts:
                await self._hashing.add_next(attempt.hasher, attempt.unhashed)
        except BlockRefused as refused:
            attempt.hashing = None
            if attempt.attempt_id in self._attempts:  # it may have been dropped meanwhile
                self.perform(self._refused(attempt, refused))
            return
        attempt.hashing = None
        if attempt.ended and attempt.attempt_id in self._attempts:
            self.perform(self._verify(attempt))

    def _ended(self, action: Verify) -> Sequence[Action]:
        attempt = self._attempts[action.attempt_id]
        if attempt.hashing is not None:
            attempt.ended = True
            return ()
        return self._verify(attempt)

    def _verify(self, attempt: _Attempt) -> Sequence[Action]:
        try:
            summary = attempt.hasher.finish()
            if self._checks.at_once(summary):
                attempt.summary = self._checks.check_now(summary)
                return self.arbiter.verified(attempt.attempt_id, self._now_ns())
        except BlockRefused as refused:
            return self._refused(attempt, refused)
        attempt.proving = self._spawn(self._verify_apart(attempt, summary))
        return ()

    async def _verify_apart(self, attempt: _Attempt, summary: BlockSummary) -> None:
        """Wait for the check of the proofs; dropping the attempt ends this."""
        try:
            more_come = any(
                other.proving is None and other.summary is None and other is not attempt
                for other in self._attempts.values()
            )
            verdict = await self._checks.check(
                summary, attempt.items, block_0_comes=self._awaits_block_0, more_come=more_come
            )
        except BlockRefused as refused:
            attempt.proving = None
            self.perform(self._refused(attempt, refused))
            return
        attempt.proving = None
        attempt.summary, attempt.published = verdict
        self.perform(self.arbiter.verified(attempt.attempt_id, self._now_ns()))

    def _awaits_block_0(self) -> bool:
        """Whether the chain here is still to begin, with block 0."""
        return self._ledger.last_number is None and self.arbiter.next_number == 0

    def _check_link(self, action: CheckLink) -> Sequence[Action]:
        attempt = self._attempts[action.attempt_id]
        summary = attempt.summary
        assert summary is not None
        if self._chain_ahead.last_number is None:
            self._chain_ahead = Chain(self.arbiter.next_number)
            if self._chain_ahead.anchor_note is not None:
                log.warning(
                    "the chain begins after block 0", extra=fields(note=self._chain_ahead.anchor_note)
                )
        refusal = self._chain_ahead.check_links(summary)
        if refusal is not None:
            return self._refused(attempt, BlockRefused(refusal))
        self._chain_ahead.advance(summary.number, summary.root_hash)
        self._metrics.blocks_verified.inc()
        return self.arbiter.linked(action.attempt_id, self._now_ns())

    def _refused(self, attempt: _Attempt, refused: BlockRefused) -> Sequence[Action]:
        note_refusal(self._metrics, attempt.number, attempt.publisher, refused.refusal)
        return self.arbiter.refused(attempt.attempt_id, str(refused.refusal), self._now_ns())

    def _drop(self, action: Drop) -> None:
        attempt = self._attempts.pop(action.attempt_id)
        if attempt.proving is not None:
            attempt.proving.cancel()
        note_drop(attempt.publisher, action)

    # --- committing ----------------------------------------------------------------------------------------

    def _commit(self, action: Commit) -> None:
        self._commit_queue.append(self._attempts[action.attempt_id])

    async def _commit_all(self) -> None:
        """Commit what is in the queue, a group at a time, until it is empty."""
        while self._commit_queue:
            await self._commit_group(self._next_group())
        self._commit_task = None

    def _next_group(self) -> list[_Attempt]:
        """Take blocks from the queue: one at least, and no further ones beyond the limits of a group."""
        group: list[_Attempt] = []
        size_bytes = 0
        while (
            self._commit_queue
            and len(group) < self._group_blocks_max
            and (not group or size_bytes < COMMIT_GROUP_BYTES_MAX)
        ):
            attempt = self._commit_queue.popleft()
            assert attempt.summary is not None
            size_bytes += attempt.summary.size_bytes
            group.append(attempt)
        return group

    async def _commit_group(self, group: list[_Attempt]) -> None:
        blocks, size_bytes = [], 0
        for attempt in group:
            assert attempt.summary is not None
            size_bytes += attempt.summary.size_bytes
            kinds = attempt.kinds if len(attempt.kinds) == len(attempt.items) else None
            blocks.append(VerifiedBlock(attempt.number, attempt.items, attempt.summary.root_hash, kinds))
        try:
            took_ns = await commit(
                *(self._ledger, blocks, size_bytes, self._commit_thread, self.turns), now_ns=self._now_ns
            )
        except Exception as error:  # the edge of a shell: whatever it was, nothing was committed
            self._commit_failed(group[0], error)
            return
        if group[0].number == 0:
            await self._checks.block_0_committed(group[0].published)
        now_ns = self._now_ns()
        self._metrics.flush_seconds.observe(took_ns / 1e9)
        for attempt, block in zip(group, blocks, strict=True):
            self._ledger.advance(block)
            self._attempts.pop(attempt.attempt_id)
            self.acknowledging.stored(
                StoredBlock(
                    *(attempt.attempt_id, block.number, block.root_hash, attempt.publisher),
                    *(attempt.begun_ns, now_ns),
                )
            )
        log.debug("blocks committed", extra=fields(first=blocks[0].number, last=blocks[-1].number))
        if self._ledger.snapshot_due:
            await self._commit_thread.run(self._ledger.write_snapshot)

    def _commit_failed(self, attempt: _Attempt, error: Exception) -> None:
        if isinstance(error, CommitFailed):
            log.error("commit failed", extra=fields(block=attempt.number, got=str(error)))
        else:
            log.exception("commit failed", extra=fields(block=attempt.number))
        self._commit_queue.clear()
        self._chain_ahead = self._ledger.chain.copy()
        self.perform(self.arbiter.commit_failed(attempt.attempt_id, str(error), self._now_ns()))
        for tell in self._commit_failed_listeners:
            asyncio.get_running_loop().call_soon(tell)
        if self._probe_task is None:
            self._probe_task = self._spawn(self._await_disk())

    async def _await_disk(self) -> None:
        """Try the disk until it takes writes again."""
        while True:
            await asyncio.sleep(DISK_PROBE_SECONDS)
            try:
                await self._commit_thread.run(self._ledger.probe)
            except (OSError, CommitFailed) as error:
                log.warning("the disk still cannot be written", extra=fields(got=str(error)))
                continue
            break
        log.info("the disk takes writes again", extra=fields(last_block=self._ledger.last_number))
        self._probe_task = None
        self.arbiter.disk_recovered()

    # --- time ----------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        """Have `_on_time` called when the arbiter's next time limit runs out."""
        deadline_ns = self.arbiter.next_deadline_ns()
        if deadline_ns is None:
            return  # a timer that still runs finds nothing to do
        if self._timer is not None:
            if self._timer_at_ns <= deadline_ns:
                return
            self._timer.cancel()
        self._timer_at_ns = deadline_ns
        delay_seconds = max(0, deadline_ns - self._now_ns()) / 1e9
        self._timer = asyncio.get_running_loop().call_later(delay_seconds, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self.perform(self.arbiter.tick(self._now_ns()))
        self._arm()
