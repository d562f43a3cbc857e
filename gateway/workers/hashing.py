"""Hashing of a block's items: in the event loop, in a thread, or in a worker process.

A shell. Small sets are hashed at once. The others wait in a queue of their block for a process
(`workers.hash_process`), if one is ready and the items are not very long, else for a thread.

    a set                              no process is ready    one is
    up to 127 items and 32 KiB - 1     event loop             event loop
    up to 1,024 items and 256 KiB      event loop             process
    up to 8,192 items and 8 MiB        thread                 process
    more                               thread                 thread
    any, behind one that waits         thread                 process

Of several processes, all blocks take the first one until so much waits for it that it cannot keep up, as with
many short items; then the next one. An even share would be slower, since each process takes a core from the
event loop.

A dropped block takes back what waits here, but not what a thread or a process has. So these get little at a
time: a publisher that begins its block again and again fills no memory.

Sets of one block that wait together are sent together, from a slot of the event loop
(`gateway.workers.loop_slots`). The result is the same wherever it is computed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from sluice.gateway.blocks.root_hash import BlockHasher
from sluice.gateway.errors import WorkerProcessLost
from sluice.gateway.limits import (
    INLINE_HASH_ITEMS_MAX,
    SLOT_ITEMS_MIN,
)
from sluice.gateway.race.actions import Append
from sluice.gateway.workers.hash_process import HashProcess
from sluice.gateway.workers.loop_slots import LoopSlots

__all__ = ["HashLimits", "Hashing"]

INLINE_HASH_BYTES_MAX: Final = 256 * 1024
"""Bytes of one item set that are hashed in the event loop, 0.5 ms; others do not wait for a larger one."""

HASH_PROCESS_ITEMS_MIN: Final = 128
"""Items of one set from which on a process hashes them, in 0.15 ms; the way there and back takes 0.05."""

HASH_PROCESS_BYTES_MIN: Final = 32 * 1024
"""Bytes of one set from which on they are hashed there, for the same reason."""

HASH_BATCH_BYTES: Final = 128 * 1024
"""Bytes of waiting sets of one block beyond which no further set joins them on their way: that takes 0.1 ms,
and to hash so many bytes 0.3. With half or twice as many, blocks of 1.5 MB take 5 % longer."""

HASH_BATCH_ITEMS: Final = 4_096
"""Items of them beyond which none joins them: to pack so many for the process takes the event loop 1 ms."""

HASH_PROCESS_ITEMS_MAX: Final = 8_192
"""Items of one batch beyond which it is hashed in a thread: the event loop takes 0.1 ms for each thousand."""

HASH_PROCESS_BYTES_MAX: Final = 8 << 20
"""Bytes of one batch beyond which it is hashed in a thread; on the way to a process they are there thrice."""

HASH_THREADS: Final = 2
"""Threads that hash what is too long for a process, or while there is none; who comes third waits."""

HASH_BACKLOG_ITEMS: Final = 3_000
"""Items that wait for one process from which on others go to the next: two or three blocks. Shared evenly,
blocks of 1 kB items take 6 % longer on two cores: a process at work takes time from the event loop."""


@dataclass(frozen=True, slots=True)
class HashLimits:
    """The limits of what is sent to the processes."""

    batch_bytes: int = HASH_BATCH_BYTES
    batch_items: int = HASH_BATCH_ITEMS
    process_items_max: int = HASH_PROCESS_ITEMS_MAX
    process_bytes_max: int = HASH_PROCESS_BYTES_MAX
    backlog_items: int = HASH_BACKLOG_ITEMS


class Hashing:
    """Hashes the items of one node's blocks.

    Args:
        processes: hash what the event loop does not; without any, threads do. Closed with this.
        slots: of the event loop, in which batches of many items are sent; None: its own.
    """

    def __init__(
        self,
        processes: Sequence[HashProcess] = (),
        slots: LoopSlots | None = None,
        limits: HashLimits = HashLimits(),
    ) -> None:
        self._processes = processes
        self._limits = limits
        self._slots = slots or LoopSlots()
        self._threads = ThreadPoolExecutor(HASH_THREADS, "hash")
        self._free_threads = asyncio.Semaphore(HASH_THREADS)

    def is_quick(self, items: Sequence[bytes]) -> bool:
        """Return whether items may be hashed in the event loop."""
        items_max, bytes_max = INLINE_HASH_ITEMS_MAX, INLINE_HASH_BYTES_MAX
        if self._ready:
            items_max, bytes_max = HASH_PROCESS_ITEMS_MIN - 1, HASH_PROCESS_BYTES_MIN - 1
        return len(items) <= items_max and sum(map(len, items)) <= bytes_max

    async def add_next(self, hasher: BlockHasher, waiting: deque[Append]) -> None:
        """Take sets from the front of a block's queue, at least one, and add them to its hasher.

        A cancelled call gives up a batch that still waits; the hasher is of no use then.

        Raises:
            BlockRefused: as `BlockHasher.add`.
        """
        if sum(len(action.items) for action in waiting) >= SLOT_ITEMS_MIN:
            await self._slots.take()  # further sets may come meanwhile
        batch = _next_batch(waiting, self._limits)
        if len(batch.items) <= self._limits.process_items_max and await self._add_in_process(hasher, batch):
            return
        await self._free_threads.acquire()  # nothing could be taken back from the queue of the pool
        await asyncio.shield(self._add_in_thread(hasher, batch))

    async def _add_in_process(self, hasher: BlockHasher, batch: Append) -> bool:
        """Have a process hash items and add them; return whether it did."""
        if not self._processes:
            return False
        looked = hasher.look(batch.items, batch.kinds, batch.size_bytes)
        if looked is None or looked.size_bytes > self._limits.process_bytes_max:
            return False
        try:
            grown = await self._next_process().hash(hasher.trees, looked.leaves)
        except WorkerProcessLost:
            return False
        hasher.take(looked, grown)
        return True

    def _add_in_thread(self, hasher: BlockHasher, batch: Append) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        adding = loop.run_in_executor(self._threads, hasher.add, batch.items, batch.kinds)
        adding.add_done_callback(self._on_added)
        return adding

    def _on_added(self, adding: asyncio.Future[None]) -> None:
        """Free the thread."""
        self._free_threads.release()
        if not adding.cancelled():
            adding.exception()  # nobody waits for the refusal of a dropped block

    @property
    def _ready(self) -> list[HashProcess]:
        """The processes that answer."""
        return [process for process in self._processes if process.ready.is_set()]

    def _next_process(self) -> HashProcess:
        """Return the first process with the shortest queue, in steps; one that is not ready if none is."""
        step = self._limits.backlog_items
        return min(self._ready or self._processes, key=lambda process: process.waiting_items // step)

    def close(self) -> None:
        """End threads and processes."""
        for process in self._processes:
            process.close()
        self._threads.shutdown()


def _next_batch(waiting: deque[Append], limits: HashLimits) -> Append:
    """Take one set from the queue, and further ones up to the size of a batch."""
    first = waiting.popleft()
    if not waiting:
        return first
    items, kinds, size_bytes = list(first.items), list(first.kinds), first.size_bytes
    while waiting and size_bytes < limits.batch_bytes and len(items) < limits.batch_items:
        further = waiting.popleft()
        items.extend(further.items)
        kinds.extend(further.kinds)
        size_bytes += further.size_bytes
    return Append(first.attempt_id, items, kinds, size_bytes)
