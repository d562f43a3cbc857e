"""How a group of blocks gets into the ledger: where it is laid out, before the disk has it.

A shell. To lay a block out for the stream takes some 0.25 ms for a thousand items, all of it with Python's
lock. In a thread it would take the lock from the event loop just as long, and wherever the loop has to wait
for the lock, it also loses its processor to whoever else has work, for milliseconds.

    blocks of the group, on average     laid out                               written and flushed
    1,024 items or more, of 512 bytes   in the event loop, 0.3 ms in a turn    in the thread, without the lock
    at most
    others                              in the thread                          in the thread

What is on disk then is the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from gateway.limits import STAGE_BLOCK_ITEMS_MIN, STAGE_ITEM_BYTES_MAX
from gateway.store.block_store import BlockStore, VerifiedBlock
from gateway.workers.loop_slots import LoopSlots

__all__ = ["commit", "is_laid_out_in_loop"]


def is_laid_out_in_loop(block_count: int, item_count: int, size_bytes: int) -> bool:
    """Tell where blocks are laid out, of so many items of so many bytes in all."""
    return (
        item_count >= STAGE_BLOCK_ITEMS_MIN * block_count and size_bytes <= STAGE_ITEM_BYTES_MAX * item_count
    )


async def commit(
    store: BlockStore,
    blocks: Sequence[VerifiedBlock],
    size_bytes: int,
    thread: Executor,
    turns: LoopSlots,
    now_ns: Callable[[], int],
) -> int:
    """Commit blocks, one at least, as `BlockStore.append` does; return when they are on disk.

    Args:
        ledger: has nothing else to commit until this is over.
        blocks: one group.
        size_bytes: of their items.
        thread: in which the ledger is written.
        turns: of the event loop.
        now_ns: monotonic time in nanoseconds.

    Returns:
        Nanoseconds from when the thread was asked; turns that were waited for are not in it.

    Raises:
        As `BlockStore.append`; none of the blocks can be seen then.
    """
    loop = asyncio.get_running_loop()
    item_count = sum(len(block.items) for block in blocks)
    if not is_laid_out_in_loop(len(blocks), item_count, size_bytes):
        started_ns = now_ns()
        await loop.run_in_executor(thread, store.append, blocks)
    else:
        await turns.take()
        for _ in store.stage(blocks):
            await turns.take()
        started_ns = now_ns()
        await loop.run_in_executor(thread, store.commit_staged)
    return now_ns() - started_ns
