"""Blocks on their way to a publish client: a thread prepares them ahead, and a pace delays them."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Final, TypeVar

import uvloop

from sluice.gateway.blocks.block import Block

__all__ = ["PACE_LEAD_SECONDS", "PreparedBlocks", "paced", "run_with_thread"]

ResultT = TypeVar("ResultT")

PACE_LEAD_SECONDS: Final = 1.0
"""Time for all publishers to connect, with `blocks_per_second`; otherwise the first would be far ahead."""
THREAD_SWITCH_SECONDS: Final = 0.001
"""Longest time that the checking thread keeps the interpreter. With Python's default, 5 ms, the gateway is
idle while a task reads ahead."""


def run_with_thread(work: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
    """Run an event loop that shares the interpreter with a thread of `PreparedBlocks`."""
    switch_seconds = sys.getswitchinterval()
    sys.setswitchinterval(THREAD_SWITCH_SECONDS)
    try:
        return uvloop.run(work())
    finally:
        sys.setswitchinterval(switch_seconds)


async def paced(
    blocks: AsyncIterator[Block],
    is_stored: Callable[[int], bool],
    per_second: float,
    *,
    opened_at: float | None,
) -> AsyncIterator[Block]:
    """Yield each block when it is due, or by chance up to half an interval later.

    So do consensus nodes: none is always the first. Blocks that are stored already take no time.

    Args:
        is_stored: returns whether a block is known to be stored.
        opened_at: when the race began, in seconds since 1970. From there all racing publishers get
            PACE_LEAD_SECONDS to connect; then they have the same beats, though they began a moment apart.
            None: times count from the first block that is asked for.

    Beats that pass while there is no block are lost: a source that has waited sends no burst.
    """
    loop = asyncio.get_running_loop()
    started, count = loop.time(), 0
    if opened_at is not None:
        # The clocks of two machines may differ.
        ago = min(max(time.time() - opened_at, 0.0), PACE_LEAD_SECONDS)
        started += PACE_LEAD_SECONDS - ago
    source = aiter(blocks)
    while True:
        asked_at = loop.time()
        try:
            block = await anext(source)
        except StopAsyncIteration:
            return
        came_at = loop.time()
        started += max(0.0, min(came_at - asked_at, came_at - (started + count / per_second)))
        if is_stored(block.number) and came_at < started + count / per_second:
            started -= 1 / per_second  # the next block has the beat of this one
        else:
            due = started + (count + random.uniform(0, 0.5)) / per_second
            await asyncio.sleep(max(0.0, due - loop.time()))
        count += 1
        yield block


class PreparedBlocks:
    """Blocks that a thread prepares ahead, up to a size limit; read them once, with `async for`.

    A source gives its blocks by blocking calls, as Spark its rows; the event loop publishes meanwhile. At the
    limit the thread waits, and its source with it.
    """

    def __init__(self, blocks: Iterator[Block], size_bytes_max: int) -> None:
        self._blocks = blocks
        self._size_bytes_max = size_bytes_max
        self._held: deque[Block] = deque()
        self._size_bytes = 0
        self._is_over = False
        self._is_stopped = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="prepare-blocks", daemon=True)

    def start(self) -> None:
        """Start to read."""
        self._thread.start()

    def stop(self) -> None:
        """Stop to read, and drop what is held."""
        with self._changed:
            self._is_stopped = True
            self._held.clear()
            self._changed.notify_all()

    async def __aiter__(self) -> AsyncIterator[Block]:
        """Yield the blocks in order, then raise what the iterator raised."""
        while True:
            # A hop to a thread takes longer than a small block.
            block = self._take(wait=False) or await asyncio.to_thread(self._take, wait=True)
            if block is None:
                if self._error is not None:
                    raise self._error
                return
            yield block

    def _take(self, *, wait: bool) -> Block | None:
        """Take the next block; with `wait`, None means that no more will come."""
        with self._changed:
            while wait and not self._held and not self._is_over and not self._is_stopped:
                self._changed.wait()
            if not self._held:
                return None
            block = self._held.popleft()
            self._size_bytes -= block.size_bytes
            self._changed.notify_all()
            return block

    def _run(self) -> None:
        try:
            for block in self._blocks:
                with self._changed:
                    while self._size_bytes >= self._size_bytes_max and not self._is_stopped:
                        self._changed.wait()
                    if self._is_stopped:
                        return
                    self._held.append(block)
                    self._size_bytes += block.size_bytes
                    self._changed.notify_all()
        except BaseException as error:
            self._error = error
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()
