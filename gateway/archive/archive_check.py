"""The check of an archive without a node: names, indexes, pages, and the blocks on them.

    names     one segment for each place, no gap, a header page for each; what is none of the archive's
    indexes   each fits its name, its object and the one before
    pages     each fits its index; the hash of all fits the name; blocks have their root hashes and links

Every fault is reported; the check goes on with the next page or segment.

Source: docs/spec/archive.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from sluice.datastream.check.check import CheckResult, Severity
from sluice.datastream.file.pages import PageFault, entries_of
from sluice.datastream.file.remote_pages import SEGMENT_PAGES
from sluice.datastream.layout import ENTRY_HEAD_SIZE, Entry, page_start
from sluice.gateway.archive.errors import ArchiveDamaged
from sluice.gateway.archive.restore import StoredStream
from sluice.gateway.archive.segment import (
    STREAM_NAME,
    SegmentName,
    SegmentObject,
    header_name,
    segment_name,
    segment_of,
)
from sluice.gateway.archive.segment_check import (
    RUN_PAGES,
    SegmentCheck,
    SegmentEnds,
    SegmentOrder,
    fetch_pages,
    header_fault,
    in_order,
    read_segment_index,
    segment_names,
)
from sluice.gateway.blocks.errors import LayoutError
from sluice.gateway.blocks.native_layout import NetworkEntry
from sluice.gateway.store.stream_check import BlockCheck

__all__ = ["ArchiveResult", "check_archive"]

INDEX_THREADS: Final = 8
PAGE_THREADS: Final = 4
"""Runs of pages that are fetched at once."""
_BLOCKS_FOLDER: Final = "blocks/"
_DIGITS_MAX: Final = 20
"""Python refuses to read numbers of very many."""

Progress = Callable[[str, int, int], None]


@dataclass(slots=True)
class ArchiveResult:
    """The result of a check of one stream's archive."""

    url: str
    found: CheckResult
    segment_count: int = 0
    block_count: int = 0
    """Blocks that end in the archive."""
    last_block: int | None = None
    object_bytes: int = 0
    """Bytes of the frames of all segments."""
    lost_segments: list[int] = field(default_factory=list)
    """First pages of segments without a readable index."""


def check_archive(
    streams: Sequence[StoredStream], progress: Progress, *, indexes_only: bool = False
) -> Iterator[ArchiveResult]:
    """Check each stream of an archive.

    Args:
        streams: as `open_streams` returns them.
        progress: called after each segment or run of pages, with what is done, and pages done and in all.
        indexes_only: read no pages.

    Raises:
        ArchiveUnavailable: the store does not give an object.
    """
    network = None
    for stream in streams:
        check = _Check(stream, progress, network, indexes_only=indexes_only)
        check.run(is_native=len(streams) > 1 and stream is streams[0])
        yield check.result
        network = stream


class _Read(NamedTuple):
    """A segment's index and its header page, or what is wrong with either."""

    name: SegmentName
    segment: SegmentObject | ArchiveDamaged
    header: bytes | None


class _Check:
    def __init__(
        self,
        stream: StoredStream,
        progress: Progress,
        network: StoredStream | None,
        *,
        indexes_only: bool,
    ) -> None:
        self._stream = stream
        self._store = stream.store
        self._progress = progress
        self._indexes_only = indexes_only
        self.result = ArchiveResult(stream.store.url, CheckResult(Path(stream.file_name)))
        self._network = None if network is None else _NetworkEntries(network)
        self._blocks: BlockCheck | None = None
        if stream.has_blocks and not indexes_only:
            read = None if self._network is None else self._network.read
            self._blocks = BlockCheck(self._report_block, read)
        self._order = SegmentOrder(stream.description.first_block)
        self._next_page = 0

    def run(self, *, is_native: bool) -> None:
        """Check everything."""
        names, headers = self._list(is_native=is_native)
        self.result.segment_count = len(names)
        total = len(names) * SEGMENT_PAGES
        with ThreadPoolExecutor(INDEX_THREADS, "check-index") as threads:
            calls = (partial(self._read, name, headers) for name in names)
            for count, read in enumerate(in_order(threads, calls, 2 * INDEX_THREADS)):
                is_last = count + 1 == len(names)
                self._check_segment(read, count * SEGMENT_PAGES, total, is_last=is_last)
        reason = None if self._network is None else self._network.reason
        last = None if self._blocks is None else self._blocks.last_number
        if reason is not None and last != self.result.last_block:
            following = self._stream.description.first_block if last is None else last + 1
            self._add(Severity.NOTE, f"blocks from {following} on were not checked: {reason}")
        if not names:
            self._add(Severity.NOTE, f"{self._store.url}: no segment yet")

    def _add(self, severity: Severity, what: str, number: int | None = None) -> None:
        self.result.found.add(severity, what, number=number)

    def _fault(self, error: ArchiveDamaged) -> None:
        self._add(Severity.DAMAGE, str(error))

    def _report_block(self, what: str, offset: int, number: int) -> None:
        if self._network is None or self._network.reason is None:
            self.result.found.add(Severity.DAMAGE, what, offset=offset, number=number)

    # --- names ----------------------------------------------------------------------------------------------

    def _list(self, *, is_native: bool) -> tuple[list[SegmentName], frozenset[str]]:
        """List the archive; return its segments, one for each place, and its header pages."""
        names: list[SegmentName] = []
        headers = set()
        for text in self._store.names(""):
            name = segment_of(text)
            if name is not None and names and names[-1].first_page == name.first_page:
                others = f"{self._store.address(segment_name(*names[-1]))} and {segment_name(*name)}"
                pages = f"pages {name.first_page} to {name.first_page + SEGMENT_PAGES - 1}"
                self._add(Severity.DAMAGE, f"{others}: two nodes disagree about {pages}")
            elif name is not None:
                names.append(name)
            elif _is_header(text):
                headers.add(text)
            elif text != STREAM_NAME and not (is_native and text.startswith(_BLOCKS_FOLDER)):
                self._add(Severity.NOTE, f"{self._store.address(text)} is none of the archive's objects")
        ends = {header_name(name.first_page + SEGMENT_PAGES) for name in names}
        for text in sorted(headers - ends):
            what = f"{self._store.address(text)}: the segment that ends there is missing"
            self._add(Severity.DAMAGE, what)
        return names, frozenset(headers)

    # --- segments -------------------------------------------------------------------------------------------

    def _read(self, name: SegmentName, headers: frozenset[str]) -> _Read:
        found: SegmentObject | ArchiveDamaged
        try:
            found = read_segment_index(self._store, name)
        except ArchiveDamaged as error:
            found = error
        text = header_name(name.first_page + SEGMENT_PAGES)
        return _Read(name, found, self._store.get(text) if text in headers else None)

    def _check_segment(self, read: _Read, done: int, total: int, *, is_last: bool) -> None:
        result, where = self.result, self._store.address(segment_name(*read.name))
        if isinstance(read.segment, ArchiveDamaged):
            self._fault(read.segment)
            self._lose(read.name)
            return
        segment = read.segment
        if segment.first_page != self._next_page and self._blocks is not None:
            self._blocks.gap()
        self._next_page = segment.first_page + SEGMENT_PAGES
        self._check_header(read, segment, is_last=is_last)
        ends = SegmentEnds.of(segment, where)
        if not self._indexes_only:
            ends = self._check_pages(segment, where, done, total) or ends
        faults = self._order.add(ends)
        for fault in faults:
            self._fault(fault)
        found = result.found
        found.page_count += SEGMENT_PAGES
        found.entry_count += ends.entries_end - ends.entries_begin
        found.bookmark_count += len(segment.index.bookmarks)
        found.header = replace(
            self._stream.description.header, total_length=ends.total_length, total_entries=ends.entries_end
        )
        result.object_bytes += segment.frame_places[-1]
        result.block_count += len(segment.index.blocks)
        if ends.last_block is not None:
            result.last_block = ends.last_block
        self._progress(f"checking {result.url}", done + SEGMENT_PAGES, total)

    def _lose(self, name: SegmentName) -> None:
        self.result.lost_segments.append(name.first_page)
        self._order.lose(name.first_page)
        if self._blocks is not None:
            self._blocks.gap()

    def _check_header(self, read: _Read, segment: SegmentObject, *, is_last: bool) -> None:
        address = self._store.address(header_name(read.name.first_page + SEGMENT_PAGES))
        if read.header is None:
            what = f"{address} is missing" + ("; the uploader writes it next" if is_last else "")
            self._add(Severity.UNFINISHED if is_last else Severity.NOTE, what)
            return
        header = replace(
            self._stream.description.header,
            total_length=segment.total_length,
            total_entries=segment.entries_end,
        )
        fault = header_fault(read.header, header, address)
        if fault is not None:
            self._fault(fault)

    # --- pages ----------------------------------------------------------------------------------------------

    def _check_pages(self, segment: SegmentObject, where: str, done: int, total: int) -> SegmentEnds | None:
        """Check the pages of a segment; return its ends, or None if some are damaged."""
        check: SegmentCheck | None = SegmentCheck(segment, where, has_blocks=self._stream.has_blocks)
        pages = enumerate(self._pages(segment), segment.first_page)
        for number, page in pages:
            try:
                if isinstance(page, ArchiveDamaged):
                    raise page
                if check is not None:
                    check.add(page)
                self._visit(segment, number, page)
            except ArchiveDamaged as error:
                self._fault(error)
                self.result.found.bad_pages.append(number)
                check = None
                if self._blocks is not None:
                    self._blocks.gap()
            self._progress(f"checking {self.result.url}", done + number - segment.first_page, total)
        if check is None:
            return None
        try:
            return check.finish()
        except ArchiveDamaged as error:
            self._fault(error)
            return None

    def _pages(self, segment: SegmentObject) -> Iterator[bytes | ArchiveDamaged]:
        """Yield the pages of a segment, or what is wrong with one."""
        name = segment_name(*segment.name)
        where = self._store.address(name)
        firsts = range(segment.first_page, segment.first_page + SEGMENT_PAGES, RUN_PAGES)
        with ThreadPoolExecutor(PAGE_THREADS, "check-pages") as threads:
            calls = (
                partial(self._store.get_range, name, *segment.frames(first, RUN_PAGES)) for first in firsts
            )
            for first, frames in zip(firsts, in_order(threads, calls, 2 * PAGE_THREADS), strict=True):
                begin, _ = segment.frames(first, 1)
                for number in range(first, first + RUN_PAGES):
                    offset, end = segment.frames(number, 1)
                    one = frames[offset - begin : end - begin]
                    try:
                        yield from segment.pages_of(one, number, 1, where)
                    except ArchiveDamaged as error:
                        yield error

    def _visit(self, segment: SegmentObject, number: int, page: bytes) -> None:
        """Give the entries of a page to the check of the blocks."""
        blocks, network = self._blocks, self._network
        if blocks is None or (network is not None and network.reason is not None):
            return
        offset = page_start(number)
        for entry in _entries(segment, number, page):
            blocks.entry(entry, offset)
            offset += len(entry.data) + ENTRY_HEAD_SIZE


def _is_header(text: str) -> bool:
    digits = text.removeprefix("headers/").removesuffix(".zst")
    is_number = digits.isdecimal() and digits.isascii() and len(digits) <= _DIGITS_MAX
    return is_number and header_name(int(digits)) == text


def _entries(segment: SegmentObject, number: int, page: bytes) -> Iterator[Entry]:
    """Yield the entries of a page. Raises ArchiveDamaged."""
    record = segment.index.pages[number - segment.first_page]
    try:
        yield from entries_of(
            page[: record.data_end], record.first_entry, record.first_entry + record.entry_count
        )
    except PageFault as fault:
        raise ArchiveDamaged(f"page {number}", fault.found, fault.expected) from None


class _NetworkEntries:
    """The entries of the network's stream of a native archive, read once, in order."""

    def __init__(self, stream: StoredStream) -> None:
        self._stream = stream
        self._entries = self._all()
        self.reason: str | None = None
        """The reason that there are no more; None: there may be."""

    def _all(self) -> Iterator[Entry]:
        store = self._stream.store
        for name in segment_names(store):
            segment = read_segment_index(store, name)
            for number, page in enumerate(fetch_pages(store, segment), segment.first_page):
                yield from _entries(segment, number, page)

    def read(self, first: int, end: int) -> Iterable[NetworkEntry]:
        """Yield (type, data) of entries; each call begins where the one before ended, or later.

        Raises:
            LayoutError: there are no such entries; `reason` says why.
        """
        wanted = first
        try:
            for entry in self._entries:
                if entry.number < wanted:
                    continue
                if entry.number > wanted:
                    raise LayoutError(
                        f"mark of entry {wanted}", "an earlier one than before", str(entry.number)
                    )
                yield entry.type, entry.data
                wanted += 1
                if wanted == end:
                    return
            self.reason = f"their entries of the network, from {wanted} on, are not archived yet"
        except ArchiveDamaged as error:
            self.reason = f"the network's stream is damaged: {error}"
        raise LayoutError(f"entry {wanted} of the network", "nothing", "one in the archive")
