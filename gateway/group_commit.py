"""Group commit: blocks that come while others are written are written together, with one pair of flushes.

A shell beside `gateway.conductor`, which puts blocks in the queue, and hears what became of them.

    blocks ready    A    B C D       E F
    written         ├─ A ─────┤├─ B C D ───┤├─ E F ───┤
                              └ stored     └ stored   └ stored

When the disk refuses a group, nothing of it can be seen, and what waits behind it is forgotten, too: it is
linked to what is not there. Then the disk is tried until it takes writes again.

Invariants
  - One group at a time, and blocks in the order of the queue.
  - `stored` is called only after both flushes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence

from datastream.errors import CommitFailed
from datastream.layout import ENTRY_HEAD_SIZE
from gateway.begun import Begun
from gateway.committing import commit
from gateway.in_flight import Attempt
from gateway.ledger import Ledger, VerifiedBlock
from gateway.limits import COMMIT_GROUP_BYTES_MAX, DISK_PROBE_SECONDS
from gateway.logs import fields
from gateway.turns import Turns
from gateway.work_thread import WorkThread

__all__ = ["GroupCommit"]

log = logging.getLogger(__name__)


class GroupCommit:
    """Puts the blocks of one node on disk.

    Args:
        ledger: keeps the blocks.
        thread: in which it is written; closed with this.
        turns: of the event loop, for large blocks that are laid out there.
        now_ns: monotonic time in nanoseconds.
        spawn: starts a task whose errors would be our bugs.
        blocks_max: most blocks in a group.
        stored: told of each group that is on disk, with the nanoseconds that it took; the ledger is still to
            `advance` by its blocks.
        failed: told of the first block of a group that is not, and why; what waited is forgotten.
        recovered: told that the disk takes writes again.
    """

    def __init__(
        self,
        ledger: Ledger,
        thread: WorkThread,
        turns: Turns,
        now_ns: Callable[[], int],
        spawn: Callable[[Coroutine[None, None, None]], asyncio.Task[None]],
        *,
        blocks_max: int,
        stored: Callable[[Sequence[Attempt], Sequence[VerifiedBlock], int], Awaitable[None]],
        failed: Callable[[Attempt, str], None],
        recovered: Callable[[], None],
    ) -> None:
        self.queue: deque[Attempt] = deque()
        """Blocks that are verified and linked, in order of number; `begin` when there are some."""
        self.is_running = False
        """Whether blocks are being committed; those that come meanwhile are committed, too."""
        self._ledger = ledger
        self._thread = thread
        self._turns = turns
        self._now_ns = now_ns
        self._spawn = spawn
        self._blocks_max = blocks_max
        self._stored = stored
        self._failed = failed
        self._recovered = recovered
        self._running: asyncio.Task[None] | None = None
        self._probing: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Commit what is in the queue, until it is empty; not while that `is_running`."""
        self.is_running = True
        # At once, and not when the event loop comes round: what it has to do before may take long.
        begun = Begun(self._commit_all())
        if self.is_running:  # it waits for the disk, or has ended with an error, which the task raises
            self._running = self._spawn(begun.rest())

    async def finished(self) -> None:
        """Wait until nothing is being committed."""
        while self._running is not None and not self._running.done():
            await asyncio.wait({self._running})

    def close(self) -> None:
        """Stop trying the disk, and wait for the thread."""
        if self._probing is not None:
            self._probing.cancel()
        self._thread.close()

    async def _commit_all(self) -> None:
        while self.queue:
            await self._commit_group(self._next_group())
        self.is_running, self._running = False, None

    def _next_group(self) -> list[Attempt]:
        """Take blocks from the queue: one at least, and no further ones beyond the limits of a group."""
        group: list[Attempt] = []
        size_bytes = 0
        while (
            self.queue
            and len(group) < self._blocks_max
            and (not group or size_bytes < COMMIT_GROUP_BYTES_MAX)
        ):
            attempt = self.queue.popleft()
            assert attempt.summary is not None
            size_bytes += attempt.summary.size_bytes + len(attempt.items) * ENTRY_HEAD_SIZE
            group.append(attempt)
        return group

    async def _commit_group(self, group: Sequence[Attempt]) -> None:
        blocks, size_bytes = [], 0
        for attempt in group:
            assert attempt.summary is not None
            size_bytes += attempt.summary.size_bytes
            root_hash = attempt.summary.root_hash
            blocks.append(VerifiedBlock(attempt.number, attempt.items, root_hash, attempt.kinds))
        try:
            took_ns = await commit(
                *(self._ledger, blocks, size_bytes, self._thread, self._turns), now_ns=self._now_ns
            )
        except Exception as error:  # the edge of a shell: whatever it was, nothing was committed
            self._give_up(group[0], error)
            return
        await self._stored(group, blocks, took_ns)
        log.debug("blocks committed", extra=fields(first=blocks[0].number, last=blocks[-1].number))
        if self._ledger.snapshot_due:
            await self._thread.run(self._ledger.write_snapshot)

    # --- a disk that refuses -------------------------------------------------------------------------------

    def _give_up(self, attempt: Attempt, error: Exception) -> None:
        if isinstance(error, CommitFailed):
            log.error("commit failed", extra=fields(block=attempt.number, got=str(error)))
        else:
            log.exception("commit failed", extra=fields(block=attempt.number))
        self.queue.clear()
        self._failed(attempt, str(error))
        if self._probing is None:
            self._probing = self._spawn(self._await_disk())

    async def _await_disk(self) -> None:
        """Try the disk until it takes writes again; say why it does not where that changes."""
        said = ""
        while True:
            await asyncio.sleep(DISK_PROBE_SECONDS)
            try:
                await self._thread.run(self._ledger.probe)
            except (OSError, CommitFailed) as error:
                level = logging.DEBUG if str(error) == said else logging.WARNING
                log.log(level, "the disk still cannot be written", extra=fields(got=str(error)))
                said = str(error)
                continue
            break
        log.info("the disk takes writes again", extra=fields(last_block=self._ledger.last_number))
        self._probing = None
        self._recovered()
