"""A stream file in runs of data pages, for many readers at once, while a node may append to it.

A data page begins with an entry, whose head has its number; so a reader needs nothing before its run. What
the header says is committed does not change; readers lock nothing and open no other file.
Source: docs/spec/stream-file.md section 1; `datastream/layout.py` shows the format.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn, TypeVar

from sluice.datastream.errors import EntriesDisagree
from sluice.datastream.file.disk import RealDisk
from sluice.datastream.file.pages import PageFault, entries_of, walk_page
from sluice.datastream.file.streamfile import inspect_header
from sluice.datastream.layout import (
    ENTRY_HEAD,
    ENTRY_HEAD_SIZE,
    HEADER_OFFSET,
    HEADER_PAGE_SIZE,
    HEADER_SIZE,
    PACKET_DATA,
    PACKET_PADDING,
    PAGE_SIZE,
    Entry,
    StreamHeader,
    decode_header,
    page_start,
    pages_used,
)
from sluice.publishers.number_range import cut_evenly

__all__ = ["STREAM_FILE_NAME", "PageRun", "PagesReader", "stream_file_in"]

STREAM_FILE_NAME: Final = "datastream.bin"

PageT = TypeVar("PageT", bound=Sized)


@dataclass(frozen=True, slots=True)
class PageRun:
    """Consecutive data pages of a file."""

    first_page: int
    end_page: int
    """The page after the last."""
    first_number: int
    """The number of its first entry."""
    end_number: int
    """The number after its last entry."""


def stream_file_in(path: Path) -> Path:
    """Return the stream file of a path, which may be a node's data folder."""
    return path / STREAM_FILE_NAME if path.is_dir() else path


class PagesReader:
    """An open stream file. Use with `with`.

    Raises:
        OSError: it cannot be opened.
        StreamFileRefused: its header is wrong.
    """

    header: StreamHeader
    may_be_cut = False
    """True if the stream may end inside of a block."""

    def __init__(self, path: Path) -> None:
        self.path: Path | str = path
        self._disk = RealDisk(path, writable=False)
        try:
            self.header = self._inspect()
        except BaseException:
            self._disk.close()
            raise

    def __enter__(self) -> PagesReader:
        return self

    def __exit__(self, *error: object) -> None:
        self._disk.close()

    @property
    def page_count(self) -> int:
        """Data pages in use."""
        return pages_used(self.header.total_length)

    def plan(self, parts: int, first_page: int = 0, end_page: int | None = None) -> list[PageRun]:
        """Cut pages into at most `parts` runs of about the same length; raise EntriesDisagree."""
        return [
            PageRun(start, stop, self._first_number(start), self._first_number(stop))
            for start, stop in cut_evenly(
                first_page, self.page_count if end_page is None else end_page, parts
            )
        ]

    def run_from(self, page_number: int) -> PageRun:
        """Return the run of all pages from one on; raise EntriesDisagree."""
        end_number = self.header.total_entries
        return PageRun(page_number, self.page_count, self._first_number(page_number), end_number)

    def pages_from(self, run: PageRun) -> Iterator[list[Entry]]:
        """Yield the entries, page by page, as `read_from`."""
        return self.read_from(run, _entries_on)

    def read_from(self, run: PageRun, read: Callable[[bytes, int, int], PageT]) -> Iterator[PageT]:
        """Read page by page, from the beginning of a run to the end of the stream.

        Args:
            read: takes the bytes of a page, the number of its first entry, and the position where its entries
                end at the latest; returns the entries, or raises PageFault.

        Raises:
            EntriesDisagree: the entries differ from the format or the header, or from the run at its end.
        """
        number = run.first_number
        for page_number in range(run.first_page, self.page_count):
            if page_number == run.end_page and number != run.end_number:
                self._disagree(page_number, 0, number, f"entry {number}", f"entry {run.end_number}")
            end = min(PAGE_SIZE, self.header.total_length - page_start(page_number))
            try:
                page = read(self._page(page_number, end), number, end)
            except PageFault as fault:
                self._disagree(page_number, fault.position, fault.number, fault.found, fault.expected)
            number += len(page)
            yield page
        if number != self.header.total_entries:
            expected = f"TotalEntries {self.header.total_entries}"
            self._disagree(self.page_count - 1, 0, number, f"{number} entries", expected)

    def page_of_entry(self, number: int) -> int:
        """Return the page of an entry, or the page count behind the last; raise EntriesDisagree."""
        return bisect_right(range(self.page_count), number, key=self._first_number) - 1

    def _page(self, page_number: int, end: int) -> bytes:
        return self._disk.pread(end, page_start(page_number))

    def _inspect(self) -> StreamHeader:
        page = self._disk.pread(HEADER_OFFSET + HEADER_SIZE, 0)
        # A reader takes every type of stream.
        whole = len(page) == HEADER_OFFSET + HEADER_SIZE
        stream_type = decode_header(page[HEADER_OFFSET:]).header.stream_type if whole else 1
        return inspect_header(self.path, self._disk, stream_type)

    def _first_number(self, page_number: int) -> int:
        if page_number >= self.page_count:
            return self.header.total_entries
        head = self._disk.pread(ENTRY_HEAD_SIZE, page_start(page_number))
        packet_type, _, _, number = ENTRY_HEAD.unpack(head)
        if packet_type != PACKET_DATA:
            found = f"packet type {packet_type}"
            if packet_type == PACKET_PADDING:
                found += ", as of a page that a node has given up to an archive: read that"
            self._disagree(page_number, 0, 0, found, f"packet type {PACKET_DATA}")
        if page_number == 0 and number != 0:
            self._disagree(0, 0, 0, f"entry {number}", "entry 0")
        return int(number)

    def _disagree(self, page_number: int, position: int, number: int, found: str, expected: str) -> NoReturn:
        offset = page_start(page_number) + position
        assert offset >= HEADER_PAGE_SIZE or not self.page_count
        raise EntriesDisagree(self.path, number, offset, found, expected)


def _entries_on(page: bytes, first_number: int, end: int) -> list[Entry]:
    walk = walk_page(page, first_number, end)
    return list(entries_of(page[: walk.data_end], first_number, walk.entries_end))
