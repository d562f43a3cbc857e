"""A stream's archive in runs of data pages, as `stream_runs` of a file: read by the executors from the store.

The names of the segments and the index of the last one make a plan; a partition reads the indexes and pages
of its own segments. So nothing grows with the chain but the list of names.

Source: docs/archive.md; docs/spec/archive.md.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from sluice.datastream.file.remote_pages import SEGMENT_PAGES
from sluice.gateway.archive.errors import ArchiveDamaged, ArchiveUnavailable
from sluice.gateway.archive.objects import SCHEMES, StoreOptions, open_store
from sluice.gateway.archive.restore import open_streams
from sluice.gateway.archive.segment import STREAM_NAME, SegmentObject, StreamDescription, segment_name
from sluice.gateway.archive.segment_check import fetch_run, read_segment_index, segment_names
from sluice.publishers.sources.stream_runs import PagesReader

__all__ = ["ArchivePagesReader", "blocks_url", "is_archive"]

INDEXES_KEPT: Final = 16
"""Segments whose indexes a reader remembers; it reads them in order."""
PAGES_AT_ONCE: Final = 16
"""Pages of one range read."""


def blocks_url(url: str, options: StoreOptions) -> str:
    """Return the URL of the archive that has the blocks: another one than `url` for a native chain.

    Raises:
        GatewayError: the store does not answer, or there is no archive.
    """
    streams = open_streams(url, options)
    return streams[-1].store.url


def is_archive(path: str) -> bool:
    """Return whether a path is the URL of an archive: of an object store, or of a folder that holds one."""
    parts = urlsplit(path)
    if parts.scheme == "file":
        return (Path(unquote(parts.path)) / STREAM_NAME).is_file()
    return parts.scheme in SCHEMES and bool(parts.netloc)


class ArchivePagesReader(PagesReader):
    """An archive, read page by page. Use with `with`.

    Raises:
        GatewayError: the store does not answer, or the archive contradicts itself.
    """

    may_be_cut = True

    def __init__(self, url: str, options: StoreOptions) -> None:
        self.path = url
        self._store = open_store(url, options)
        self._names = segment_names(self._store)
        self._index = lru_cache(INDEXES_KEPT)(self._read_index)
        self._pages: dict[int, bytes] = {}
        data = self._store.get(STREAM_NAME)
        if data is None:
            raise ArchiveUnavailable(self._store.address(STREAM_NAME), "no such object: no archive is here")
        self.header = StreamDescription.decode(data, self._store.address(STREAM_NAME)).header
        if self._names:
            last = self._index(len(self._names) - 1)
            self.header = replace(self.header, total_length=last.total_length, total_entries=last.entries_end)

    def __exit__(self, *error: object) -> None:
        self._pages.clear()

    @property
    def page_count(self) -> int:
        """Archived pages."""
        return len(self._names) * SEGMENT_PAGES

    def _read_index(self, place: int) -> SegmentObject:
        return read_segment_index(self._store, self._names[place])

    def _first_number(self, page_number: int) -> int:
        if page_number >= self.page_count:
            return self.header.total_entries
        segment = self._index(page_number // SEGMENT_PAGES)
        return int(segment.index.pages[page_number % SEGMENT_PAGES].first_entry)

    def _page(self, page_number: int, end: int) -> bytes:
        page = self._pages.pop(page_number, None)
        if page is None:
            segment = self._index(page_number // SEGMENT_PAGES)
            count = min(PAGES_AT_ONCE, SEGMENT_PAGES - page_number % SEGMENT_PAGES)
            run = fetch_run(self._store, segment, page_number, count)
            self._pages = dict(enumerate(run, page_number))
            page = self._pages.pop(page_number)
        return page[:end]

    def page_of_block(self, number: int, *, behind: bool) -> int:
        """Return the page on which a block begins, or the page behind its end.

        A block before the first, or behind the last, is at the beginning or the end.
        """
        ends = _Ends(self._last_block_of, len(self._names))
        place = bisect_right(ends, number - 1)  # the first segment in which this block, or a later one, ends
        if place == len(self._names):
            return self.page_count
        segment = self._index(place)
        if behind:
            return segment.first_page + SEGMENT_PAGES
        block = next((block for block in segment.index.blocks if block.number >= number), None)
        if block is None:  # the segments before it have later blocks
            where = self._store.address(segment_name(*segment.name))
            raise ArchiveDamaged("index", "no such block", f"block {number}, or one before it", where)
        return self.page_of_entry(int(block.entry))

    def _last_block_of(self, place: int) -> int:
        """Return the last block that ends in a segment, or in one before it."""
        while place >= 0:
            blocks = self._index(place).index.blocks
            if blocks:
                return int(blocks[-1].number)
            place -= 1
        return -1


class _Ends:
    """A sequence for `bisect`: computed, not kept."""

    def __init__(self, get: Callable[[int], int], count: int) -> None:
        self._get = get
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: int) -> int:
        return self._get(place)
