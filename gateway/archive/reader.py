"""The reader of an archive: puts pages that a stream file has given up into its cache, ahead of who reads on.

    miss    one range read of a run of pages; who asks for one of them meanwhile waits for that read
    hit     of a reader who reads on: the next run is read ahead, in a thread

Runs of one reader double, up to READ_AHEAD_PAGES, and end with the segment. `PageSums` compares each page
with the digest that the stream made of its own page, or has the page's blocks proved.

Source: docs/archive.md.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Final

from sluice.datastream import DataStreamer
from sluice.datastream.errors import PageNotLocal
from sluice.datastream.file.remote_pages import ROOTS_KEY, SEGMENT_PAGES, UNKNOWN_DIGEST
from sluice.gateway.archive.errors import ArchiveDamaged, ArchiveUnavailable
from sluice.gateway.archive.objects import ArchiveStore
from sluice.gateway.archive.segment import SegmentName, SegmentObject, decode_page, segment_name
from sluice.gateway.archive.segment_check import in_order, read_segment_index
from sluice.gateway.logs import fields

__all__ = ["ArchiveReader"]

log = logging.getLogger(__name__)

READ_AHEAD_PAGES: Final = 16
"""Most pages of one range read."""
READ_AHEAD_THREADS: Final = 2
INDEX_THREADS: Final = 8
ROOTS_KEPT: Final = 8
"""Segments whose root hashes are kept."""
ERROR_SECONDS: Final = 300.0
"""A failure is told of for this long, if nobody reads again."""
PLACES_KEPT: Final = 1_024
"""Places where readers may read on."""


class _Run:
    """One range read, of consecutive pages of a segment."""

    def __init__(self, first_page: int, count: int) -> None:
        self.pages = range(first_page, first_page + count)
        self.done = threading.Event()
        self.failure: str | None = None


class ArchiveReader:
    """Reads one stream's pages from its archive. Any thread may call.

    Args:
        streamer: `remote.source` becomes this reader.
    """

    def __init__(
        self, store: ArchiveStore, streamer: DataStreamer, read_ahead_pages: int = READ_AHEAD_PAGES
    ) -> None:
        self._store = store
        self._streamer = streamer
        self._remote = remote = streamer.remote
        self._roots = lru_cache(ROOTS_KEPT)(self._read_roots)
        self._run_pages_max = max(1, min(read_ahead_pages, remote.cache_pages_max // 16))
        self._ahead_pages = self._run_pages_max * 5 // 2
        """A run begins at most so far ahead of who reads on: each thread has one to read, and one waits."""
        self._lock = threading.Lock()
        self._running: dict[int, _Run] = {}
        """By page."""
        self._places: OrderedDict[int, int] = OrderedDict()
        """page after a run -> pages of the next run there."""
        self._threads = ThreadPoolExecutor(READ_AHEAD_THREADS, "archive-ahead")
        self.bytes_read = 0
        """Bytes that the store gave."""
        self._failure: tuple[float, str] | None = None
        """Time and failure of the last range read; None: it did not fail."""
        remote.source = self.fetch

    def known_root(self, number: int, entry_number: int) -> bytes | None:
        """Return the proved root hash of a block that ends with an entry; None: the folder does not know one.

        It is empty if none of the proved blocks of that segment has this number.

        Raises:
            PageNotLocal: the archive does not give the index in which it is.
        """
        first_page = self._streamer.page_of_entry(entry_number) // SEGMENT_PAGES * SEGMENT_PAGES
        digest = self._proved_digest(first_page)
        return None if digest is None else self._roots(first_page, digest).get(number, b"")

    def _read_roots(self, first_page: int, digest: bytes | None) -> dict[int, bytes]:
        """Return the root hashes of the blocks that end in a segment."""
        segment = self._read_index(first_page)
        if digest not in (None, segment.roots_digest):
            words = "the index of its segment has other root hashes than were proved"
            raise self._remote.error(first_page, words)
        return {block.number: block.root_hash for block in segment.index.blocks}

    def _read_index(self, first_page: int) -> SegmentObject:
        try:
            name = self._remote.segment(first_page).digest
            return read_segment_index(self._store, SegmentName(first_page, name))
        except (ArchiveUnavailable, ArchiveDamaged) as error:
            raise self._remote.error(first_page, str(error)) from error

    def archived_roots(self, from_entry: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield number and root hash of the blocks that end in the archived segments, as their indexes say.

        Args:
            from_entry: begin with the segment that has it.

        Raises:
            PageNotLocal: the archive does not give an index, or gives other root hashes than were proved.
        """
        first = self._streamer.page_of_entry(from_entry) // SEGMENT_PAGES * SEGMENT_PAGES if from_entry else 0
        firsts = range(first, self._remote.archived_pages, SEGMENT_PAGES)
        calls = (partial(self._read_roots, first, self._proved_digest(first)) for first in firsts)
        with ThreadPoolExecutor(INDEX_THREADS, "archive-roots") as threads:
            for roots in in_order(threads, calls, 2 * INDEX_THREADS):
                yield from roots.items()

    def newest_bookmarks(self, bookmarks: set[bytes]) -> dict[bytes, int]:
        """Return the newest entries on archived pages of those bookmarks that have some, by the indexes.

        Raises:
            PageNotLocal: the archive does not give an index.
        """
        found: dict[bytes, int] = {}
        firsts = range(0, self._remote.archived_pages, SEGMENT_PAGES)
        with ThreadPoolExecutor(INDEX_THREADS, "archive-bookmarks") as threads:
            calls = (partial(self._read_index, first) for first in firsts)
            for segment in in_order(threads, calls, 2 * INDEX_THREADS):
                marks = segment.index.bookmarks
                found.update((mark.bookmark, mark.entry) for mark in marks if mark.bookmark in bookmarks)
        return found

    def _proved_digest(self, first_page: int) -> bytes | None:
        return self._streamer.notes.get(ROOTS_KEY + first_page.to_bytes(8, "big"))

    @property
    def last_error(self) -> str | None:
        """The failure of the last range read, for some time; None: it did not fail."""
        if self._failure is None or time.monotonic() - self._failure[0] > ERROR_SECONDS:
            return None
        return self._failure[1]

    def close(self) -> None:
        """Read no more; wait for the reads under way."""
        self._remote.source = None
        self._threads.shutdown(cancel_futures=True)

    def fetch(self, page_number: int) -> None:
        """Put a page into the cache if it is not there, and perhaps the next ones, too.

        Raises:
            PageNotLocal: the archive does not give it.
        """
        with self._lock:
            run = self._running.get(page_number)
            is_mine = run is None and not self._remote.is_cached(page_number)
            if is_mine:
                run = self._begin(page_number)
            elif run is None:
                self._read_ahead(page_number)
                return
        assert run is not None
        if is_mine:
            self._read(run)
        else:
            run.done.wait()
        if run.failure is not None and not self._remote.is_cached(page_number):
            raise self._remote.error(page_number, run.failure)

    def _begin(self, page_number: int) -> _Run:
        """Begin a run with a page; hold the lock."""
        segment = self._remote.segment(page_number)
        wanted = min(self._places.pop(page_number, 1), self._run_pages_max)
        count, end = 1, min(page_number + wanted, segment.end_page, self._remote.end)
        while page_number + count < end and not self._is_known(page_number + count):
            count += 1
        run = _Run(page_number, count)
        self._running.update(dict.fromkeys(run.pages, run))
        self._places[run.pages.stop] = 2 * wanted
        if len(self._places) > PLACES_KEPT:
            self._places.popitem(last=False)
        return run

    def _is_known(self, page_number: int) -> bool:
        return page_number in self._running or self._remote.is_cached(page_number)

    def _read_ahead(self, page_number: int) -> None:
        """Begin the run after a cached page, if a reader comes near its end; hold the lock."""
        for following in range(page_number + 1, page_number + 1 + self._ahead_pages):
            wanted = self._places.get(following, 0)
            if wanted >= 4 and following < self._remote.end and not self._is_known(following):
                self._threads.submit(self._read, self._begin(following))
                return

    def _read(self, run: _Run) -> None:
        """Read a run."""
        try:
            self._put(run)
            self._failure = None
        except (ArchiveUnavailable, ArchiveDamaged, PageNotLocal, OSError) as error:
            run.failure = str(error)
            self._failure = time.monotonic(), run.failure
            log.warning(
                "archived pages cannot be read",
                extra=fields(first_page=run.pages.start, pages=len(run.pages), got=run.failure),
            )
        except BaseException as error:
            run.failure = repr(error)
            raise
        finally:
            with self._lock:
                for page_number in run.pages:
                    del self._running[page_number]
            run.done.set()

    def _put(self, run: _Run) -> None:
        remote, first_page = self._remote, run.pages.start
        segment = remote.segment(first_page)
        name = segment_name(segment.first_page, segment.digest)
        frames = self._store.get_range(name, *segment.frames(first_page, len(run.pages)))
        self.bytes_read += len(frames)
        begin = 0
        for page_number in run.pages:
            page = segment.pages[page_number - segment.first_page]
            where = f"{self._store.address(name)}: page {page_number}"
            crc = page.crc if page.digest == UNKNOWN_DIGEST else None
            data = decode_page(frames[begin : begin + page.frame_size], crc, where)
            begin += page.frame_size
            remote.put(page_number, data)
