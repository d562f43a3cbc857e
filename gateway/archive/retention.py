"""A rolling history: a node without an archive gives up its oldest pages for good.

A thread does it, page by page, behind the last block of a segment that stays within `keep_bytes` and
`keep_blocks`. The records of the segments (`datastream.file.remote_pages`) stand in for what is gone, so the
file keeps its length, and every entry its number.

Source: docs/archive.md.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final, NamedTuple

from sluice.datastream import DataStreamer
from sluice.datastream.errors import DatastreamError
from sluice.datastream.file.remote_pages import GONE_DIGEST, SEGMENT_PAGES, ArchivedPage, SegmentRecord
from sluice.datastream.layout import PAGE_SIZE, page_start
from sluice.gateway.logs import fields

__all__ = ["Retention", "Window"]

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 5.0


class Window(NamedTuple):
    """The part of a stream that stays."""

    keep_bytes: int
    """Of the stream file; 0: any number."""
    keeps_from: Callable[[], int] | None
    """Entries from this number on stay; None: any."""
    entries_end: Callable[[], int] | None
    """Entries from this number on may still change."""


class Retention:
    """The rolling history of one stream. `start` starts its thread, `close` ends it."""

    def __init__(self, streamer: DataStreamer, window: Window, look_seconds: float = LOOK_SECONDS) -> None:
        self._streamer = streamer
        self._window = window
        self._look_seconds = look_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="retention", daemon=True)
        self.last_error: str | None = None
        """The failure of giving pages up; None: it did not fail."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                is_done, self.last_error = self.step(), None
            except (DatastreamError, OSError) as error:
                is_done = False
                if self.last_error != str(error):
                    log.error("old pages cannot be given up", extra=fields(got=str(error)))
                self.last_error = str(error)
            if not is_done:
                self._stop.wait(self._look_seconds)

    def step(self) -> bool:
        """Give up the pages before the window, of one segment; return whether there were any.

        Raises:
            DatastreamError, OSError: the stream cannot be read, or the disk refuses.
        """
        streamer, remote = self._streamer, self._streamer.remote
        end = self._end()
        if end <= max(remote.end, 1):
            return False
        if end > remote.archived_pages:
            segment = self._record(remote.archived_pages)
            if segment is None:
                return False
            streamer.note_archived(segment)
        before = remote.end
        after = streamer.release_pages(min(end, remote.archived_pages))
        if after > before:
            log.info("pages given up", extra=fields(path=str(streamer.path), pages=f"{before}-{after - 1}"))
        return after > before

    def _end(self) -> int:
        """Return the page before which everything may go."""
        streamer, window = self._streamer, self._window
        end = streamer.flushed_pages - SEGMENT_PAGES
        if window.keep_bytes:
            end = min(end, streamer.flushed_pages - window.keep_bytes // PAGE_SIZE)
        if window.keeps_from is not None:
            end = min(end, streamer.page_of_entry(window.keeps_from()))
        return max(end, 0)

    def _record(self, first_page: int) -> SegmentRecord | None:
        """Return the record of a segment that goes; None: it is not full, or may still change."""
        streamer, limit = self._streamer, self._window.entries_end
        end_page = first_page + SEGMENT_PAGES
        if streamer.flushed_pages < end_page:
            return None
        if limit is not None and streamer.sums.first_number(end_page) > limit():
            return None
        pages = (
            ArchivedPage(
                streamer.sums.first_number(page_number),
                streamer.data_end(page_number, streamer.committed.total_length) - page_start(page_number),
                0,
                0,
            )
            for page_number in range(first_page, end_page)
        )
        return SegmentRecord(first_page, GONE_DIGEST, tuple(pages))
