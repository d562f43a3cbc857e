"""The reader of committed blocks for subscribers: a batch of messages at a time, in threads.

A shell. Subscribers at the same position share one read.

Source: gateway/README.md, "From the stream to a subscriber".
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from sluice.datastream import DatastreamError
from sluice.datastream.errors import PageUnchecked
from sluice.datastream.file.page_sums import without_fetching
from sluice.gateway.blocks.errors import LayoutError
from sluice.gateway.blocks.stream_layout import bookmark_of
from sluice.gateway.services.block_messages import BlockMessage, BlockMessages
from sluice.gateway.store.block_store import BlockStore

__all__ = ["Batch", "BlockReader", "Position"]

SUBSCRIBE_SHARED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Messages kept for subscribers that come to the same position a moment later."""
SUBSCRIBE_READ_THREADS: Final = 2
"""More threads would only take the interpreter lock from the event loop."""
SUBSCRIBE_FETCH_THREADS: Final = 16
"""Threads that wait for pages of an archive: they hold up nobody who reads local ones."""


_Answer = TypeVar("_Answer")


def _local(call: Callable[..., _Answer], *args: object) -> _Answer:
    with without_fetching():
        return call(*args)


class Position(NamedTuple):
    """A place in the stream."""

    entry_number: int
    block_number: int
    in_block: bool
    """The entry is within the block; else it is the block's first bookmark."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The result of one read."""

    messages: tuple[BlockMessage, ...]
    """At least one; about `set_bytes_max` bytes of items, or one longer item."""
    following: Position
    size_bytes: int


class BlockReader:
    """The reader of one node's stream, for all its subscribers.

    Args:
        set_bytes_max: bytes of items that fill an item set, and a batch.
        ensure: raises if an entry's page is not what was committed; called in threads, before each read.
    """

    def __init__(
        self,
        store: BlockStore,
        set_bytes_max: int,
        shared_bytes_max: int = SUBSCRIBE_SHARED_BYTES_MAX,
        threads: int = SUBSCRIBE_READ_THREADS,
        *,
        ensure: Callable[[int], None] = lambda number: None,
    ) -> None:
        self._store = store
        self._ensure = ensure
        self._set_bytes_max = set_bytes_max
        self._shared_bytes_max = shared_bytes_max
        self._shared: OrderedDict[tuple[Position, int | None], Batch] = OrderedDict()
        self._shared_bytes = 0
        self._reading: dict[tuple[Position, int | None], asyncio.Future[Batch]] = {}
        self._threads = ThreadPoolExecutor(threads, "subscribe")
        self._fetch_threads = ThreadPoolExecutor(SUBSCRIBE_FETCH_THREADS, "subscribe-fetch")
        self.readings_count = 0

    async def find(self, block_number: int) -> Position:
        """Return the position of a committed block."""
        entry_number = await self._in_thread(self._store.streamer.get_bookmark, bookmark_of(block_number))
        return Position(entry_number, block_number, in_block=False)

    async def read(self, position: Position, last_number: int | None = None) -> Batch:
        """Read committed entries, at most up to block `last_number`."""
        key = (position, last_number)
        batch = self._shared.get(key)
        if batch is not None:
            self._shared.move_to_end(key)
            return batch
        reading = self._reading.get(key)
        if reading is None:
            reading = asyncio.ensure_future(self._in_thread(self._read, position, last_number))
            self._reading[key] = reading
            reading.add_done_callback(lambda done: self._done(key, done))
        return await asyncio.shield(reading)  # a cancelled call must not cancel the others'

    async def _in_thread(self, call: Callable[..., _Answer], *args: object) -> _Answer:
        """Call in a thread; in one that waits for the archive, if that has to be read."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, _local, call, *args)
        except PageUnchecked:
            return await loop.run_in_executor(self._fetch_threads, call, *args)

    def close(self) -> None:
        """End the threads after their present reads."""
        self._threads.shutdown()
        self._fetch_threads.shutdown()

    def _done(self, key: tuple[Position, int | None], reading: asyncio.Future[Batch]) -> None:
        del self._reading[key]
        if reading.cancelled() or reading.exception() is not None:
            return
        batch = reading.result()
        self.readings_count += 1
        self._shared[key] = batch
        self._shared_bytes += batch.size_bytes
        while self._shared_bytes > self._shared_bytes_max:
            _, oldest = self._shared.popitem(last=False)
            self._shared_bytes -= oldest.size_bytes

    def _read(self, position: Position, last_number: int | None) -> Batch:
        entry_number, block_number, in_block = position
        messages = BlockMessages(block_number, in_block=in_block, set_bytes_max=self._set_bytes_max)
        total_entries = self._store.total_entries
        try:
            while entry_number < total_entries:
                wanted = self._set_bytes_max - messages.size_bytes
                if wanted <= 0 and not messages.in_item:
                    break
                self._ensure(entry_number)
                types, column, numbers = self._store.read_columns(entry_number, max(1, wanted))
                entry_number = numbers[messages.feed_columns(types, column, last_number) - 1]
                if last_number is not None and messages.block_number > last_number:
                    break
        except PageUnchecked:
            raise
        except (LayoutError, DatastreamError, OSError):
            if messages.block_number == block_number:
                raise
            return self._read(position, messages.block_number - 1)  # the blocks before it are intact
        messages.flush()
        assert messages.messages, f"nothing is committed after {position}"
        following = Position(entry_number, messages.block_number, messages.in_block)
        size_bytes = sum(len(message.data) for message in messages.messages)
        return Batch(tuple(messages.messages), following, size_bytes)
