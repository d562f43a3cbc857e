"""Hashing of a block's items: in the event loop, or in a thread.

A shell. Small sets are hashed at once. Others wait in their block's queue for a thread:

    up to 1,024 items and 256 KiB    event loop
    more                             thread
    any, behind one that waits       thread

The compiled module gives Python's lock back while it hashes, so a thread uses a second core. Without it,
Python holds the lock for items of fewer than 2,048 bytes.

A dropped block takes back what waits here, but not what a thread has. So threads get little at a time, and a
publisher that begins its block again and again fills no memory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from sluice.gateway.blocks.root_hash import BlockHasher
from sluice.gateway.limits import (
    INLINE_HASH_ITEMS_MAX,
    SLOT_ITEMS_MIN,
)
from sluice.gateway.race.actions import Append
from sluice.gateway.workers.loop_slots import LoopSlots

__all__ = ["HashLimits", "Hashing"]

INLINE_HASH_BYTES_MAX: Final = 256 * 1024
"""0.5 ms of the event loop."""

HASH_BATCH_BYTES: Final = 128 * 1024
"""Bytes of a batch that no further set joins. Half or twice as many make blocks of 1.5 MB 5 % slower."""

HASH_BATCH_ITEMS: Final = 4_096
"""The same in items."""

HASH_THREADS: Final = 2


@dataclass(frozen=True, slots=True)
class HashLimits:
    """The limits of a batch."""

    batch_bytes: int = HASH_BATCH_BYTES
    batch_items: int = HASH_BATCH_ITEMS


class Hashing:
    """Hashes the items of one node's blocks.

    Args:
        slots: of the event loop; None: its own.
    """

    def __init__(self, slots: LoopSlots | None = None, limits: HashLimits = HashLimits()) -> None:
        self._limits = limits
        self._slots = slots or LoopSlots()
        self._threads = ThreadPoolExecutor(HASH_THREADS, "hash")
        self._free_threads = asyncio.Semaphore(HASH_THREADS)

    @staticmethod
    def is_quick(item_count: int, size_bytes: int) -> bool:
        """Return whether items may be hashed in the event loop."""
        return item_count <= INLINE_HASH_ITEMS_MAX and size_bytes <= INLINE_HASH_BYTES_MAX

    async def add_next(self, hasher: BlockHasher, waiting: deque[Append]) -> None:
        """Take sets from the front of a block's queue, at least one, and add them to its hasher.

        A cancelled call gives up its batch; the hasher is useless then.

        Raises:
            BlockRefused: as `BlockHasher.add`.
        """
        if sum(len(action.items) for action in waiting) >= SLOT_ITEMS_MIN:
            await self._slots.take()  # more sets may come meanwhile
        batch = _next_batch(waiting, self._limits)
        await self._free_threads.acquire()  # the pool's queue takes nothing back
        await asyncio.shield(self._add_in_thread(hasher, batch))

    def _add_in_thread(self, hasher: BlockHasher, batch: Append) -> asyncio.Future[None]:
        """In a function, since a local future would keep a cancelled batch until a collection."""
        loop = asyncio.get_running_loop()
        adding = loop.run_in_executor(self._threads, hasher.add, batch.items, batch.kinds, batch.size_bytes)
        adding.add_done_callback(self._on_added)
        return adding

    def _on_added(self, adding: asyncio.Future[None]) -> None:
        self._free_threads.release()
        if not adding.cancelled():
            adding.exception()  # nobody waits for a dropped block's refusal

    def close(self) -> None:
        """End the threads."""
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
