"""Hashing of a block's items: in the event loop, in a thread, or in a worker process.

A shell. Small sets are hashed at once. Others wait in their block's queue for a process
(`workers.hash_process`) or a thread:

    a set                              no process is ready    one is
    up to 127 items and 32 KiB - 1     event loop             event loop
    up to 1,024 items and 256 KiB      event loop             process
    up to 8,192 items and 8 MiB        thread                 process
    more                               thread                 thread
    any, behind one that waits         thread                 process

All blocks take the first process until its backlog is too long: each busy process takes a core from the event
loop. A dropped block takes back what waits here, but not what a thread or process has. So these get little at
a time, and a publisher that begins its block again and again fills no memory.
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
"""0.5 ms of the event loop."""

HASH_PROCESS_ITEMS_MIN: Final = 128
"""These take 0.15 ms, the way there and back 0.05."""

HASH_PROCESS_BYTES_MIN: Final = 32 * 1024
"""The same in bytes."""

HASH_BATCH_BYTES: Final = 128 * 1024
"""Bytes of a batch that no further set joins. Half or twice as many make blocks of 1.5 MB 5 % slower."""

HASH_BATCH_ITEMS: Final = 4_096
"""The same in items, whose packing takes 1 ms."""

HASH_PROCESS_ITEMS_MAX: Final = 8_192
"""A thread hashes longer batches: packing takes 0.1 ms per thousand."""

HASH_PROCESS_BYTES_MAX: Final = 8 << 20
"""The same in bytes: on the way to a process there are three copies."""

HASH_THREADS: Final = 2

HASH_BACKLOG_ITEMS: Final = 3_000
"""Items that wait for one process before others go to the next: two or three blocks. Even shares make blocks
of 1 kB items 6 % slower on two cores."""


@dataclass(frozen=True, slots=True)
class HashLimits:
    """The limits."""

    batch_bytes: int = HASH_BATCH_BYTES
    batch_items: int = HASH_BATCH_ITEMS
    process_items_max: int = HASH_PROCESS_ITEMS_MAX
    process_bytes_max: int = HASH_PROCESS_BYTES_MAX
    backlog_items: int = HASH_BACKLOG_ITEMS


class Hashing:
    """Hashes the items of one node's blocks.

    Args:
        processes: hash what the event loop does not; closed with this.
        slots: of the event loop; None: its own.
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

        A cancelled call gives up its batch; the hasher is useless then.

        Raises:
            BlockRefused: as `BlockHasher.add`.
        """
        if sum(len(action.items) for action in waiting) >= SLOT_ITEMS_MIN:
            await self._slots.take()  # more sets may come meanwhile
        batch = _next_batch(waiting, self._limits)
        if len(batch.items) <= self._limits.process_items_max and await self._add_in_process(hasher, batch):
            return
        await self._free_threads.acquire()  # the pool's queue takes nothing back
        await asyncio.shield(self._add_in_thread(hasher, batch))

    async def _add_in_process(self, hasher: BlockHasher, batch: Append) -> bool:
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
        self._free_threads.release()
        if not adding.cancelled():
            adding.exception()  # nobody waits for a dropped block's refusal

    @property
    def _ready(self) -> list[HashProcess]:
        return [process for process in self._processes if process.ready.is_set()]

    def _next_process(self) -> HashProcess:
        """The first one with the shortest backlog, in steps."""
        step = self._limits.backlog_items
        return min(self._ready or self._processes, key=lambda process: process.waiting_items // step)

    def close(self) -> None:
        """End threads and processes."""
        for process in self._processes:
            process.close()
        self._threads.shutdown()


def _next_batch(waiting: deque[Append], limits: HashLimits) -> Append:
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
