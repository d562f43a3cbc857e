"""Blocks that are prepared ahead in a thread of their own, held up to so many bytes.

Spark hands a task its rows by blocking calls; decoding, hashing and checking take time. All of that happens
in the thread, while the event loop publishes. With so many bytes held the thread waits, and Spark with it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator

from gateway.blocks.block import Block

__all__ = ["PreparedBlocks"]


class PreparedBlocks:
    """Runs an iterator of blocks in a thread; read it once, with `async for`.

    Args:
        blocks: what is read in the thread. What it raises, the reader gets in its place.
        size_bytes_max: from here on nothing more is read.
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
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """Read no further; what is held is dropped."""
        with self._changed:
            self._is_stopped = True
            self._held.clear()
            self._changed.notify_all()

    async def __aiter__(self) -> AsyncIterator[Block]:
        """Give the blocks in order.

        Raises:
            Exception: whatever the iterator raised, after the blocks before it.
        """
        while True:
            # Without a thread as long as there is something: a hop to one takes longer than a small block.
            block = self._take(wait=False) or await asyncio.to_thread(self._take, wait=True)
            if block is None:
                if self._error is not None:
                    raise self._error
                return
            yield block

    def _take(self, *, wait: bool) -> Block | None:
        """Take the next block; with `wait`, nothing means that no more will come."""
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
