"""The group commit: blocks that are ready together are written together and share their flushes.

A shell. The commit thread takes one group after the other by itself. One flush covers the header of a group
and the entries of the next:

    blocks ready    A     B       C D       E F
    written         ├─ A ─┤├─ A, B ─┤├─ B, C D ─┤├─ C D ─┤├─ E F ─┤├─ E F ─┤
                                    └ A stored  └ B      └ C D             └ E F

A group has its own flushes in two cases:

- It would delay the group before it. It is large; or it is block 0, whose ledger data are kept; or its first
  block settles the root hash of the block before it (`BlockStore.settle`).
- The group before it has several blocks: blocks come faster than they can be written one by one, and more of
  them gather during the flush. They gather on for some milliseconds while the event loop is busy: on a fast
  disk a group would have two blocks, and its commit would take as long as their checks. The more blocks the
  group before had, the longer may the event loop rest in between.

Invariants
  - One group at a time is begun, in the order of the queue.
  - `stored` is called only after both flushes.
  - While `is_running`, the commit thread takes from the queue, and the event loop adds to it.

Source: gateway/README.md, "From a message to an acknowledgement"; docs/operations.md, "The disk is slow or
full".
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

from sluice.datastream.errors import CommitFailed
from sluice.datastream.layout import ENTRY_HEAD_SIZE
from sluice.gateway.logs import fields
from sluice.gateway.pipeline.in_flight import Attempt
from sluice.gateway.pipeline.limits import GATHER_IDLE_TURNS, PipelineLimits
from sluice.gateway.store.block_store import BlockStore, VerifiedBlock

__all__ = ["GroupCommit"]

log = logging.getLogger(__name__)


class _Group(NamedTuple):
    attempts: Sequence[Attempt]
    blocks: Sequence[VerifiedBlock]
    size_bytes: int
    taken_ns: int


class _Failure(NamedTuple):
    attempt: Attempt
    error: Exception


class _Outcome(NamedTuple):
    group: _Group | None
    """The last group on disk."""
    took_ns: int
    failure: _Failure | None


class GroupCommit:
    """Commits the blocks of one node.

    Args:
        first_stored: awaited when block 0 is on disk, before `stored` is called.
        stored: called with each group on disk, the nanoseconds it took, and its flushes; a shared flush
            counts for the later group. It must `advance` the block store.
        failed: called with the first block that is not on disk, and why; the queue is empty then.
        recovered: called when the disk takes writes again, and all that was in doubt is on it.
    """

    def __init__(
        self,
        store: BlockStore,
        now_ns: Callable[[], int],
        spawn: Callable[[Coroutine[None, None, None]], asyncio.Task[None]],
        *,
        limits: PipelineLimits,
        first_stored: Callable[[Attempt], Awaitable[None]],
        stored: Callable[[Sequence[Attempt], Sequence[VerifiedBlock], int, int], None],
        failed: Callable[[Attempt, str], None],
        recovered: Callable[[], None],
    ) -> None:
        self.queue: deque[Attempt] = deque()
        """Linked blocks in order of number."""
        self.is_running = False
        """True while a commit runs, which takes further blocks too."""
        self.refusal: str | None = None
        """The reason why the disk refused the last probe."""
        self._store = store
        self._thread = ThreadPoolExecutor(1, "commit")
        # Start the thread now: a pool that cannot start it later keeps the call and runs it with the next
        # one.
        self._thread.submit(lambda: None)
        self._now_ns = now_ns
        self._spawn = spawn
        self._limits = limits
        self._first_stored = first_stored
        self._stored = stored
        self._failed = failed
        self._recovered = recovered
        self._running: asyncio.Task[None] | None = None
        self._probing: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Commit until the queue is empty; not while `is_running`."""
        self.is_running = True
        self._running = self._spawn(self._commit_all())

    async def finished(self) -> None:
        """Wait until nothing is being committed."""
        while self._running is not None and not self._running.done():
            await asyncio.wait({self._running})

    def close(self) -> None:
        """Stop the probes and wait for the thread."""
        if self._probing is not None:
            self._probing.cancel()
        self._thread.shutdown()

    async def _commit_all(self) -> None:
        loop = asyncio.get_running_loop()
        while self.queue:
            if _needs_loop(self.queue[0]):
                failure = await self._commit_with_loop(self._next_group())
            else:
                group, took_ns, failure = await loop.run_in_executor(self._thread, self._commit_here, loop)
                if group is not None:
                    self._on_stored(group, took_ns, 2)
                    await self._gather(len(group.attempts) - 1)
            if failure is not None:
                self._give_up(failure)
            elif self._store.snapshot_due:
                await loop.run_in_executor(self._thread, self._store.write_snapshot)
        self.is_running, self._running = False, None

    async def _gather(self, further_count: int) -> None:
        """Let blocks gather while the event loop has much to do.

        Args:
            further_count: the blocks of the last group beyond its first.
        """
        limits, idle_turns = self._limits, 0
        give_up_at_ns = self._now_ns() + limits.gather_ns
        most_turns = GATHER_IDLE_TURNS * further_count
        while idle_turns < most_turns and (turn_ns := self._now_ns()) < give_up_at_ns:
            await asyncio.sleep(0)
            idle_turns = idle_turns + 1 if self._now_ns() - turn_ns < limits.idle_turn_ns else 0

    def _next_group(self) -> _Group:
        attempts: list[Attempt] = []
        blocks: list[VerifiedBlock] = []
        size_bytes = file_bytes = 0
        limits = self._limits
        needs_loop = _needs_loop(self.queue[0])
        while (
            self.queue
            and len(attempts) < limits.group_blocks_max
            and (
                not attempts
                or (
                    file_bytes < limits.group_bytes_max
                    and self.queue[0].settles is None
                    and _needs_loop(self.queue[0]) == needs_loop
                )
            )
        ):
            attempt = self.queue.popleft()
            assert attempt.summary is not None
            assert attempt.block is not None
            size_bytes += attempt.summary.size_bytes
            file_bytes += attempt.summary.size_bytes + len(attempt.items) * ENTRY_HEAD_SIZE
            attempts.append(attempt)
            blocks.append(attempt.block)
        taken_ns = self._now_ns()
        for attempt in attempts:
            if attempt.trace is not None:
                attempt.trace.taken_ns = taken_ns
        return _Group(attempts, blocks, size_bytes, taken_ns)

    async def _commit_with_loop(self, group: _Group) -> _Failure | None:
        """Commit a group that needs the event loop before or after."""
        loop = asyncio.get_running_loop()
        try:
            settled_root_hash = group.attempts[0].settles
            if settled_root_hash is not None:
                await loop.run_in_executor(self._thread, self._store.settle, settled_root_hash)
                self._store.settled()
            started_ns = self._now_ns()
            await loop.run_in_executor(self._thread, self._store.append, group.blocks)
        except Exception as error:  # the edge of a shell: nothing was committed
            return _Failure(group.attempts[0], error)
        took_ns = self._now_ns() - started_ns
        if group.attempts[0].number == 0:
            await self._first_stored(group.attempts[0])
        self._on_stored(group, took_ns, 2)
        return None

    def _on_stored(self, group: _Group, took_ns: int, flush_count: int) -> None:
        self._stored(group.attempts, group.blocks, took_ns, flush_count)
        if log.isEnabledFor(logging.DEBUG):
            first, last = group.blocks[0].number, group.blocks[-1].number
            log.debug("blocks committed", extra=fields(first=first, last=last))

    # --- in the thread -------------------------------------------------------------------------------------

    def _commit_here(self, loop: asyncio.AbstractEventLoop) -> _Outcome:
        """Commit groups until none waits or the event loop has to act; `loop` hears of all but the last."""
        store = self._store
        begun: _Group | None = None
        while True:
            is_several = begun is not None and len(begun.attempts) > 1
            group = self._next_group() if self._has_next() and not is_several else None
            if group is None and begun is None:
                return _Outcome(None, 0, None)
            try:
                if begun is not None and (
                    group is None or group.size_bytes > self._limits.shared_flush_bytes_max
                ):
                    store.finish()
                    if group is None and (is_several or not self._has_next()):
                        return _Outcome(begun, self._now_ns() - begun.taken_ns, None)
                    self._tell(loop, begun, 2)
                    begun = None
                if group is not None:
                    store.begin(group.blocks)  # this finishes the begun group
            except Exception as error:  # the edge of a shell: nothing was committed
                failure = self._failure(loop, begun, group, error)
                if store.has_begun:  # a later commit must not bring it back
                    store.give_up()
                return _Outcome(None, 0, failure)
            if begun is not None:
                self._tell(loop, begun, 1)
            begun = group

    def _has_next(self) -> bool:
        return bool(self.queue) and not _needs_loop(self.queue[0]) and not self._store.snapshot_due

    def _failure(
        self, loop: asyncio.AbstractEventLoop, begun: _Group | None, group: _Group | None, error: Exception
    ) -> _Failure:
        """Finish the begun group if only the next one failed."""
        if begun is None:
            assert group is not None
            return _Failure(group.attempts[0], error)
        if group is None or not self._store.has_begun:
            return _Failure(begun.attempts[0], error)
        try:
            self._store.finish()
        except Exception as finish_error:
            return _Failure(begun.attempts[0], finish_error)
        self._tell(loop, begun, 2)
        return _Failure(group.attempts[0], error)

    def _tell(self, loop: asyncio.AbstractEventLoop, group: _Group, flush_count: int) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._hear, group, self._now_ns() - group.taken_ns, flush_count)

    def _hear(self, group: _Group, took_ns: int, flush_count: int) -> None:
        try:
            self._on_stored(group, took_ns, flush_count)
        except Exception as error:  # our bug; a task reports it, and the thread goes on
            self._spawn(_raise(error))

    # --- a disk that refuses -------------------------------------------------------------------------------

    def _give_up(self, failure: _Failure) -> None:
        attempt, error = failure
        if isinstance(error, CommitFailed):
            log.error("commit failed", extra=fields(block=attempt.number, got=str(error)))
        else:
            log.error("commit failed", extra=fields(block=attempt.number), exc_info=error)
        self.queue.clear()
        self._failed(attempt, str(error))
        if self._probing is None:
            self._probing = self._spawn(self._await_disk())

    async def _await_disk(self) -> None:
        said = ""
        while True:
            await asyncio.sleep(self._limits.disk_probe_seconds)
            try:
                await asyncio.get_running_loop().run_in_executor(self._thread, self._store.probe)
            except (OSError, CommitFailed) as error:
                level = logging.DEBUG if str(error) == said else logging.WARNING
                log.log(level, "the disk still cannot be written", extra=fields(got=str(error)))
                said = str(error)
                self.refusal = said
                continue
            break
        log.info("the disk takes writes again", extra=fields(last_block=self._store.last_number))
        self._probing = self.refusal = None
        self._recovered()


def _needs_loop(attempt: Attempt) -> bool:
    return attempt.number == 0 or attempt.settles is not None


async def _raise(error: Exception) -> None:
    raise error
