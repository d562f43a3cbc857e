"""The archive of one node: a reader and an uploader for each stream in its data folder.

    URL            the stream that TCP clients read
    URL/blocks     in the native layout: the stream of blocks

Source: docs/archive.md.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from sluice.datastream import DataStreamer
from sluice.datastream.file.remote_pages import SEGMENT_PAGES
from sluice.datastream.layout import PAGE_SIZE
from sluice.gateway.archive.objects import StoreOptions, open_store
from sluice.gateway.archive.reader import ArchiveReader
from sluice.gateway.archive.segment import StreamDescription
from sluice.gateway.archive.state import ArchiveState, room_ends
from sluice.gateway.archive.uploader import Uploader, UploaderPlan
from sluice.gateway.blocks.stream_layout import bookmark_of

__all__ = ["ArchiveOptions", "ArchivedStream", "Archives", "StoredBlocks"]

CACHE_PAGES_MIN: Final = 64
"""With fewer, a page might leave the cache before its reader comes."""
CLOSE_SECONDS: Final = 2.0
"""Time for the requests under way; then they are abandoned."""
RATE_SECONDS: Final = 600.0
"""Growth and progress are those of this time."""


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """The options of a node's archive, as `archive.*` of docs/settings.md."""

    url: str
    store: StoreOptions
    local_bytes: int
    local_blocks: int
    cache_bytes: int


class StoredBlocks(NamedTuple):
    """The blocks of a stream."""

    first_number: int | None
    last_number: int | None
    layout: int | None


class Archives:
    """The archive of a node's streams.

    Args:
        streamers: the first is the one that TCP clients read, the last has the blocks.
        blocks: returns the blocks that the stream has now; None: no blocks.
        uploads: returns whether this node uploads; else it waits for what others upload.
    """

    def __init__(
        self,
        options: ArchiveOptions,
        streamers: Sequence[DataStreamer],
        blocks: Callable[[], StoredBlocks] | None,
        uploads: Callable[[], bool],
    ) -> None:
        self.streams = [
            ArchivedStream(
                options,
                options.url.rstrip("/") + ("" if streamer is streamers[0] else "/blocks"),
                streamer,
                blocks or (lambda: StoredBlocks(None, None, None)),
                uploads,
                has_blocks=blocks is not None and streamer is streamers[-1],
            )
            for streamer in streamers
        ]

    def start(self) -> None:
        """Begin to upload."""
        for stream in self.streams:
            stream.uploader.start()

    def close(self) -> None:
        """End what is under way; nothing is half done."""
        for stream in self.streams:
            stream.uploader.stop()
        end = time.monotonic() + CLOSE_SECONDS
        for stream in self.streams:
            stream.uploader.close(max(0.0, end - time.monotonic()))
            stream.reader.close()

    def states(self) -> tuple[ArchiveState, ...]:
        """Return the state of each stream's archive."""
        return tuple(stream.state() for stream in self.streams)


class ArchivedStream:
    """The archive of one stream."""

    def __init__(
        self,
        options: ArchiveOptions,
        url: str,
        streamer: DataStreamer,
        blocks: Callable[[], StoredBlocks],
        uploads: Callable[[], bool],
        *,
        has_blocks: bool,
    ) -> None:
        self._streamer = streamer
        self._blocks = blocks
        self._local_blocks = options.local_blocks
        self._has_blocks = has_blocks
        self._samples: deque[tuple[float, int, int]] = deque()
        """(time, full pages, archived pages)."""
        store = open_store(url, options.store)
        streamer.remote.cache_pages_max = max(CACHE_PAGES_MIN, options.cache_bytes // PAGE_SIZE)
        self.url = store.url
        self.reader = ArchiveReader(store, streamer)
        plan = UploaderPlan(
            self._description,
            uploads,
            entries_end=self._last_begin if has_blocks else None,
            block_begin=self._block_begin if has_blocks else None,
            local_bytes=options.local_bytes,
            keeps_from=self._keeps_from if has_blocks and options.local_blocks else None,
        )
        self.uploader = Uploader(streamer, store, plan)

    def _description(self) -> StreamDescription:
        blocks = self._blocks()
        first = blocks.first_number if self._has_blocks else None
        return StreamDescription.of(self._streamer.header, first, blocks.layout)

    def _begin(self, number: int) -> int:
        return self._streamer.indexed_number(bookmark_of(number))

    def _last_begin(self) -> int:
        """Return the first entry of the last block: the next block may still change its root hash."""
        last = self._blocks().last_number
        return 0 if last is None else self._begin(last)

    def _keeps_from(self) -> int:
        blocks = self._blocks()
        if blocks.first_number is None or blocks.last_number is None:
            return 0
        return self._begin(max(blocks.first_number, blocks.last_number - self._local_blocks + 1))

    def _block_begin(self, entry_number: int) -> int:
        """Return the first entry of the block that an entry is in."""
        blocks = self._blocks()
        assert blocks.first_number is not None
        assert blocks.last_number is not None
        # The block is near the end, so look from there, in doubled steps.
        high, step = blocks.last_number + 1, 1
        low = blocks.last_number
        while low > blocks.first_number and self._begin(low) > entry_number:
            high, low, step = low, max(blocks.first_number, low - step), 2 * step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._begin(middle) <= entry_number else (low, middle)
        return self._begin(low)

    def state(self) -> ArchiveState:
        """Return the state."""
        streamer, uploader = self._streamer, self.uploader
        remote, full_count = streamer.remote, streamer.sums.full_count
        now = time.monotonic()
        self._samples.append((now, full_count, remote.archived_pages))
        while self._samples[0][0] < now - RATE_SECONDS:
            self._samples.popleft()
        room = os.statvfs(streamer.path)
        ends = None
        if uploader.behind_pages > 2 * SEGMENT_PAGES:
            ends = room_ends(self._samples, room.f_bavail * room.f_frsize // PAGE_SIZE)
        return ArchiveState(
            url=self.url,
            archived_pages=remote.archived_pages,
            behind_pages=uploader.behind_pages,
            local_pages=full_count - max(remote.end - 1, 0),
            cached_pages=remote.cached_count,
            error=uploader.last_error,
            read_error=self.reader.last_error,
            disagreement=uploader.disagreement,
            room_ends=ends,
        )
