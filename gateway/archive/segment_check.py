"""Reading and checking segments: each with its name and its index, and one after the other.

Whoever fetches a segment gives each page to a `SegmentCheck`, and its result to a `SegmentOrder`.

Source: docs/spec/archive.md section 3.4.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final, NamedTuple, TypeVar

import zstandard

from sluice.datastream.file.pages import PageFault
from sluice.datastream.file.remote_pages import SEGMENT_PAGES
from sluice.datastream.layout import HEADER_PAGE_SIZE, PAGE_SIZE, StreamHeader, encode_header_page
from sluice.gateway.archive.errors import ArchiveDamaged
from sluice.gateway.archive.objects import ArchiveStore
from sluice.gateway.archive.segment import (
    INDEX_BYTES_MAX,
    SegmentBuilder,
    SegmentName,
    SegmentObject,
    index_size,
    read_index,
    segment_name,
    segment_of,
)

__all__ = [
    "SegmentCheck",
    "SegmentEnds",
    "SegmentOrder",
    "difference",
    "fetch_pages",
    "fetch_run",
    "header_fault",
    "in_order",
    "read_index_up_to",
    "read_segment_index",
    "segment_names",
]

INDEX_BYTES: Final = 1 << 17
"""Bytes at the end of a segment that are read at once; a longer index takes a second read."""
GO_ON_SECONDS: Final = 0.2
RUN_PAGES: Final = 8
"""Pages of one range read: a slow line gets them inside a request's timeout."""

_Result = TypeVar("_Result")


def segment_names(store: ArchiveStore) -> list[SegmentName]:
    """Return the names of an archive's segments, in order.

    Raises:
        ArchiveDamaged: one is missing, or there are two for the same pages.
    """
    names: list[SegmentName] = []
    # Each is looked at when it comes: the list of a store that lies may have no end.
    for name in filter(None, map(segment_of, store.names("segments/"))):
        place = len(names)
        expected = place * SEGMENT_PAGES
        if name.first_page != expected:
            found = store.address(segment_name(*name))
            before = names[place - 1] if place else None
            if before is not None and before.first_page == name.first_page:
                words = f"only one of it and {segment_name(*before)}: two nodes disagree about these entries"
                raise ArchiveDamaged("segment", found, words, store.url)
            raise ArchiveDamaged("segment", f"{found} next", f"the one of page {expected}", store.url)
        names.append(name)
    return names


def read_segment_index(store: ArchiveStore, name: SegmentName) -> SegmentObject:
    """Read the index of a segment.

    Raises:
        ArchiveDamaged: it is not that of this segment.
        ArchiveUnavailable: the store does not give it.
    """
    segment = read_index_up_to(store, name, INDEX_BYTES_MAX)
    assert segment is not None
    return segment


def read_index_up_to(store: ArchiveStore, name: SegmentName, most: int) -> SegmentObject | None:
    """Read the index of a segment, as `read_segment_index`; None: it has more bytes, with its trailer."""
    text = segment_name(*name)
    where = store.address(text)
    tail = store.get_tail(text, INDEX_BYTES)
    data, size = tail.data, index_size(tail.data, where)
    if size > most:
        return None
    if len(data) < size <= tail.object_size:
        data = bytes(store.get_range(text, tail.object_size - size, tail.object_size))
    return read_index(name, data, tail.object_size, where)


class SegmentEnds(NamedTuple):
    """The beginning and the end of a segment: all that the next one has to fit."""

    where: str
    """Address of its object."""
    first_page: int
    entries_begin: int
    entries_end: int
    total_length: int
    """Of the stream that ends with it."""
    first_block: int | None
    """The first block that ends in it; None: none does."""
    last_block: int | None
    block_begin: int | None
    """The first entry of the first block that ends in it."""
    next_begin: int | None = None
    """The first entry behind the last block that ends in it; None: not known, as its pages were not read."""

    @classmethod
    def of(cls, segment: SegmentObject, where: str) -> SegmentEnds:
        """Return what the index says."""
        blocks = segment.index.blocks
        return cls(
            where,
            segment.first_page,
            segment.entries_begin,
            segment.entries_end,
            segment.total_length,
            blocks[0].number if blocks else None,
            blocks[-1].number if blocks else None,
            blocks[0].entry if blocks else None,
        )


class SegmentCheck:
    """Compares the pages of one segment, in order, with its name and its index.

    Args:
        where: the address of its object, for errors.
        has_blocks: whether the stream holds blocks.
    """

    def __init__(self, segment: SegmentObject, where: str, *, has_blocks: bool) -> None:
        self._segment = segment
        self._where = where
        self._ends = SegmentEnds.of(segment, where)
        self._has_blocks = has_blocks
        # Without a block that ends here, no block's begin matters.
        begin = self._ends.block_begin or 0
        self._builder = SegmentBuilder(segment.first_page, begin if has_blocks else None)
        self._place = 0

    def add(self, page: bytes) -> None:
        """Take the next page.

        Raises:
            ArchiveDamaged: its entries cannot be walked, or are not those of the index.
        """
        stored = self._segment.index.pages[self._place]
        what = f"page {self._segment.first_page + self._place}"
        try:
            self._builder.add(page, stored.first_entry, b"")
        except PageFault as fault:
            raise ArchiveDamaged(what, fault.found, fault.expected, self._where) from None
        found = self._builder.pages[self._place]
        self._place += 1
        if page.count(0, found.data_end) != PAGE_SIZE - found.data_end:
            raise ArchiveDamaged(f"{what}: padding", "other bytes", "zeros", self._where)
        for name in ("entry_count", "data_end", "crc32c"):
            got, expected = getattr(found, name), getattr(stored, name)
            if got != expected:
                raise ArchiveDamaged(f"{what}: {name}", str(got), f"{expected}, as in the index", self._where)

    def finish(self) -> SegmentEnds:
        """Return the ends, after the last page; the segment has the digests of its pages then.

        Raises:
            ArchiveDamaged: the segment has another hash than its name, or other bookmarks or blocks than its
                index.
        """
        made, name = self._builder.segment, self._segment.name
        if made.name != name:
            expected = f"{name.digest.hex()}, as in the name"
            raise ArchiveDamaged("SHA-256 of the pages", made.name.digest.hex(), expected, self._where)
        for what, got, stored in (
            ("bookmark", _bookmarks(made), _bookmarks(self._segment)),
            ("block", list(made.blocks), list(self._segment.blocks)),
        ):
            if got != stored:
                place, found, expected = difference(got, stored)
                expected = f"{expected}, as in the index"
                raise ArchiveDamaged(f"{what} {place} on the pages", found, expected, self._where)
        self._segment.digests = made.digests
        begin = self._builder.block_begin if self._ends.last_block is not None else None
        return self._ends._replace(next_begin=begin)


def _bookmarks(segment: SegmentObject) -> list[tuple[bytes, int]]:
    return [(mark.bookmark, mark.entry) for mark in segment.index.bookmarks]


def difference(got: Sequence[object], expected: Sequence[object]) -> tuple[int, str, str]:
    """Return the place of the first difference, and in words what is there and what has to be."""
    place = next(
        (place for place, pair in enumerate(zip(got, expected, strict=False)) if pair[0] != pair[1]),
        min(len(got), len(expected)),
    )
    found, wanted = (str(one[place]) if place < len(one) else "none" for one in (got, expected))
    return place, found, wanted


class SegmentOrder:
    """Compares segments with those before them.

    Args:
        first_block: of the stream; None: it holds no blocks.
    """

    def __init__(self, first_block: int | None) -> None:
        self._next_page = 0
        self._next_entry: int | None = 0
        self._has_blocks = first_block is not None
        self._next_block = first_block
        self._next_begin: int | None = 0

    def add(self, ends: SegmentEnds) -> list[ArchiveDamaged]:
        """Take the next segment, and return its faults; go on from it."""
        faults = []
        if ends.first_page != self._next_page:
            missing = f"pages {self._next_page} to {ends.first_page - 1} before it"
            faults.append(ArchiveDamaged("segment", f"none with {missing}", "no gap", ends.where))
            self._next_entry = self._next_block = self._next_begin = None
        expected = self._next_entry
        if expected is not None and ends.entries_begin != expected:
            got = str(ends.entries_begin)
            faults.append(ArchiveDamaged("first entry", got, f"{expected}, as before it", ends.where))
        if ends.first_block is not None and not self._has_blocks:
            got = f"block {ends.first_block}"
            faults.append(ArchiveDamaged("index", got, "no blocks, as in stream.json", ends.where))
        elif ends.first_block is not None:
            faults += self._wrong_block(ends)
        self._next_page, self._next_entry = ends.first_page + SEGMENT_PAGES, ends.entries_end
        if ends.last_block is not None:
            self._next_block, self._next_begin = ends.last_block + 1, ends.next_begin
        return faults

    def lose(self, first_page: int) -> None:
        """Note that a segment cannot be read: the next one may begin as it likes."""
        self._next_page = first_page + SEGMENT_PAGES
        self._next_entry = self._next_block = self._next_begin = None

    def _wrong_block(self, ends: SegmentEnds) -> Iterator[ArchiveDamaged]:
        for what, got, expected in (
            ("first block that ends here", ends.first_block, self._next_block),
            (f"first entry of block {ends.first_block}", ends.block_begin, self._next_begin),
        ):
            if expected is not None and got != expected:
                yield ArchiveDamaged(what, str(got), f"{expected}, as before it", ends.where)


def fetch_pages(store: ArchiveStore, segment: SegmentObject) -> Iterator[bytes]:
    """Yield the pages of a segment, in order; raise as `fetch_run`."""
    for first_page in range(segment.first_page, segment.first_page + SEGMENT_PAGES, RUN_PAGES):
        yield from fetch_run(store, segment, first_page)


def fetch_run(
    store: ArchiveStore, segment: SegmentObject, first_page: int, count: int = RUN_PAGES
) -> Iterator[bytes]:
    """Yield consecutive pages of a segment, by one range read.

    Raises:
        ArchiveDamaged: a page is not what the index says.
        ArchiveUnavailable: the store does not give it.
    """
    name = segment_name(*segment.name)
    frames = store.get_range(name, *segment.frames(first_page, count))
    yield from segment.pages_of(frames, first_page, count, store.address(name))


def header_fault(found: bytes, header: StreamHeader, where: str) -> ArchiveDamaged | None:
    """Return what is wrong with the object of a header page; None: it is that of a header.

    Args:
        where: its address.
    """
    try:
        size = zstandard.get_frame_parameters(found).content_size
        page = zstandard.ZstdDecompressor().decompress(found) if size == HEADER_PAGE_SIZE else b""
    except zstandard.ZstdError as error:
        return ArchiveDamaged("zstd frame", str(error), "a header page", where)
    if page == encode_header_page(header):
        return None
    expected = f"that of {header.total_entries} entries in {header.total_length} bytes"
    return ArchiveDamaged("header page", f"another one of {size} bytes", expected, where)


def in_order(
    threads: ThreadPoolExecutor,
    calls: Iterable[Callable[[], _Result]],
    ahead: int,
    go_on: Callable[[], None] = lambda: None,
) -> Iterator[_Result]:
    """Yield the results of calls in threads, in order.

    Args:
        ahead: calls that are begun and whose results are not taken yet.
        go_on: called again and again; what it raises ends the waiting.
    """

    def result() -> _Result:
        future = waiting.popleft()
        while not wait((future,), GO_ON_SECONDS).done:
            go_on()
        go_on()
        return future.result()

    waiting: deque[Future[_Result]] = deque()
    try:
        for call in calls:
            waiting.append(threads.submit(call))
            if len(waiting) >= ahead:
                yield result()
        while waiting:
            yield result()
    finally:
        for future in waiting:
            future.cancel()
