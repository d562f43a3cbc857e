"""The pages that a stream file has given up, since they are in an archive; and a cache of those fetched back.

    page 0        stays: it tells whose the bookmarks are
    pages 1 …     given up, up to `end`: holes in the file, which keeps its length. Read from the cache
    from `end`    local, as ever: the local window

    release   archived ──► the mark is on disk ──► readers are sent to the cache ──► holes
    fetch     `source` puts pages into the cache; the oldest of more than `cache_pages_max` leave it

The cache is a sparse file without a name, with a place of FOLIO_BYTES for each page. Nothing flushes it, and
it ends with the process.

`sendfile` gives a socket pages of the kernel's page cache. A hole that covers whole folios removes them and
leaves them as they are, one that covers a part of a folio makes that part zeros. So holes are made of whole
folios only.

The bookmark folder keeps the mark and a record of each archived segment, which stands in for the heads of its
pages:

    SHA-256 of its pages, 32 bytes
    for each page: u64 first entry, u32 data end, u32 frame size, u32 CRC32C, 16 bytes of its BLAKE3

Fetched bytes count only if they have that digest: an archive is not believed. A node that began with an
archive by one proof has zeros there: it proves the blocks on a page once, and then keeps its digest under
DIGEST_KEY.

Source: docs/spec/archive.md.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import lru_cache
from io import BufferedRandom
from pathlib import Path
from typing import Final, NamedTuple

from blake3 import blake3

from sluice.datastream.errors import PageNotLocal, PageUnchecked
from sluice.datastream.layout import PAGE_SIZE, page_number_of, page_start

__all__ = [
    "ARCHIVE_KEY",
    "GONE_DIGEST",
    "ROOTS_KEY",
    "SEGMENT_KEY",
    "SEGMENT_PAGES",
    "UNKNOWN_DIGEST",
    "ArchivedPage",
    "RemotePages",
    "SegmentRecord",
    "digest_of",
    "punch_pages",
]

SEGMENT_PAGES: Final = 64
"""Pages of a segment of an archive."""
ARCHIVE_KEY: Final = b"sluice/archived-pages"
"""u64 pages that are archived, u64 pages that are given up."""
SEGMENT_KEY: Final = b"sluice/archived-segment/"
"""Then u64, the number of its first page: the record of a segment."""
ROOTS_KEY: Final = b"sluice/archived-roots/"
"""Then u64, as SEGMENT_KEY: the digest of proved root hashes (`gateway.archive.new_stream`)."""
CACHE_BYTES: Final = 1 << 30
"""Default size of the cache."""
FOLIO_BYTES: Final = 1 << 21
"""The largest folio of the page cache; folios are aligned to their size."""
PUNCH_BYTES: Final = 2 * FOLIO_BYTES
"""Of one hole."""
GONE_DIGEST: Final = bytes(32)
"""In place of the digest of a segment that is in no archive: its pages are gone for good."""
_U64: Final = struct.Struct(">Q")
_MARK: Final = struct.Struct(">QQ")
DIGEST_KEY: Final = b"sluice/archived-page/"
"""Then u64, its number: the digest of a page that was proved."""
_PAGE: Final = struct.Struct(">QIII16s")
UNKNOWN_DIGEST: Final = bytes(16)
"""In place of the digest of a page that was not proved yet."""
_DIGEST_SIZE: Final = 32
_RECORDS_KEPT: Final = 256
_PUNCH_HOLE: Final = 0x02 | 0x01
"""FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE of <linux/falloc.h>."""
_fallocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate64", None)


def punch(fd: int, size: int, offset: int) -> None:
    """Give a range of a file back to the file system; it reads as zeros, and the file keeps its length.

    Args:
        size, offset: multiples of FOLIO_BYTES, if a socket may hold bytes of the file.

    Raises:
        OSError: the file system cannot.
    """
    if _fallocate is None or _fallocate(fd, _PUNCH_HOLE, ctypes.c_int64(offset), ctypes.c_int64(size)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def punch_pages(fd: int, begin: int, end: int) -> None:
    """Give data pages of a stream file back to the file system, as far as whole folios go.

    A write to the file waits for a hole that is being made, some 20 ms for one of 64 MiB. So it makes many.
    """
    start = -(-page_start(begin) // FOLIO_BYTES) * FOLIO_BYTES
    stop = page_start(end) // FOLIO_BYTES * FOLIO_BYTES
    for offset in range(start, stop, PUNCH_BYTES):
        punch(fd, min(PUNCH_BYTES, stop - offset), offset)


def digest_of(page: bytes) -> bytes:
    """Return the digest of a page: 16 bytes of its BLAKE3."""
    return blake3(page).digest(16)


class ArchivedPage(NamedTuple):
    """A page in an archive."""

    first_number: int
    """The number of its first entry."""
    data_end: int
    """The position just past its last entry."""
    frame_size: int
    """Bytes of its frame in the segment's object."""
    crc: int
    """CRC32C of the page."""
    digest: bytes = UNKNOWN_DIGEST
    """`digest_of` it; zeros: it was not proved yet."""


class SegmentRecord(NamedTuple):
    """The record of a segment."""

    first_page: int
    digest: bytes
    """SHA-256 of its pages, which is in its name."""
    pages: tuple[ArchivedPage, ...]

    @property
    def end_page(self) -> int:
        """The number of the page behind it."""
        return self.first_page + len(self.pages)

    def frames(self, first_page: int, count: int) -> tuple[int, int]:
        """Return the range (offset, end) in its object of the frames of consecutive pages."""
        sizes = [page.frame_size for page in self.pages[: first_page - self.first_page + count]]
        return sum(sizes[:-count]), sum(sizes)

    def encode(self) -> bytes:
        """Return the bytes of the record."""
        return self.digest + b"".join(_PAGE.pack(*page) for page in self.pages)

    @classmethod
    def decode(cls, first_page: int, data: bytes | None) -> SegmentRecord | None:
        """Read a record; None: it is missing, or none."""
        if data is None or len(data) != _DIGEST_SIZE + SEGMENT_PAGES * _PAGE.size:
            return None
        pages = tuple(ArchivedPage(*page) for page in _PAGE.iter_unpack(data[_DIGEST_SIZE:]))
        return cls(first_page, data[:_DIGEST_SIZE], pages)


class RemotePages:
    """The given up pages of one stream file. Any thread reads; `release` has one caller at a time.

    Args:
        path: the stream file.
        get: returns a note of the bookmark folder.
    """

    def __init__(self, path: Path, get: Callable[[bytes], bytes | None] = lambda key: None) -> None:
        self.path = path
        self.source: Callable[[int], None] | None = None
        """Called before the first read of a page: caches it, or raises PageNotLocal. None: nobody can."""
        self.cache_pages_max = CACHE_BYTES // PAGE_SIZE
        self.on_drop: Callable[[int], None] = lambda page_number: None
        """Called when a page leaves the cache, with `lock` held."""
        self.lock = threading.RLock()
        """Held to change what is cached, and to hand cached bytes to a socket. No lock is taken inside."""
        self.evictions = 0
        """Pages that have left the cache. A reader compares it before and after."""
        self._cached: OrderedDict[int, bytes] = OrderedDict()
        """Page -> digest of its bytes."""
        self._file: BufferedRandom | None = None
        self._get = get
        mark = get(ARCHIVE_KEY)
        sound = mark is not None and len(mark) == _MARK.size
        self.archived_pages: int
        """Pages that are archived, and so never change; durable."""
        self.end: int
        """The page behind those that are given up; 0: none is. Durable."""
        self.archived_pages, self.end = _MARK.unpack(mark or b"") if sound else (0, 0)
        self.segment = lru_cache(_RECORDS_KEPT)(self._segment)
        """Returns the record of the segment that has a page."""

    # --- what is where --------------------------------------------------------------------------------------

    def holds(self, page_number: int) -> bool:
        """Return whether a page is given up."""
        return 0 < page_number < self.end

    def is_gone(self, page_number: int) -> bool:
        """Return whether a given up page is in no archive."""
        return self.segment(page_number).digest == GONE_DIGEST

    def is_cached(self, page_number: int) -> bool:
        """Return whether a given up page is in the cache."""
        return page_number in self._cached

    def cached_digest(self, page_number: int) -> bytes | None:
        """Return the digest of a page in the cache; None: it is not there."""
        return self._cached.get(page_number)

    @property
    def cached_count(self) -> int:
        """Pages in the cache."""
        return len(self._cached)

    def marks(self, archived_pages: int, end: int) -> dict[bytes, bytes]:
        """Return the note of these marks."""
        return {ARCHIVE_KEY: _MARK.pack(archived_pages, end)}

    @staticmethod
    def note_of(segment: SegmentRecord) -> dict[bytes, bytes]:
        """Return the note of a segment's record."""
        return {SEGMENT_KEY + _U64.pack(segment.first_page): segment.encode()}

    def _note(self, page_number: int) -> tuple[int, bytes | None]:
        first_page = page_number - page_number % SEGMENT_PAGES
        return first_page, self._get(SEGMENT_KEY + _U64.pack(first_page))

    def _segment(self, page_number: int) -> SegmentRecord:
        """Raises PageNotLocal."""
        segment = SegmentRecord.decode(*self._note(page_number))
        if segment is None:
            raise self.error(page_number, "the record of its segment is missing in the bookmark folder")
        return segment

    def pages(self) -> Iterator[ArchivedPage]:
        """Yield the given up pages, in order.

        Raises:
            PageNotLocal: a record is missing.
        """
        for first_page in range(0, self.end, SEGMENT_PAGES):
            segment = self._segment(first_page)
            yield from segment.pages[max(1 - first_page, 0) : self.end - first_page]

    def page(self, page_number: int) -> ArchivedPage:
        """Return a given up page.

        Raises:
            PageNotLocal: its record is missing.
        """
        return self.segment(page_number).pages[page_number % SEGMENT_PAGES]

    def digest(self, page_number: int) -> bytes | None:
        """Return the digest that a page must have; None: it is to be proved.

        Raises:
            PageNotLocal: its record is missing.
        """
        digest = self.page(page_number).digest
        if digest != UNKNOWN_DIGEST:
            return digest
        return self._get(DIGEST_KEY + _U64.pack(page_number))

    @staticmethod
    def digest_note(page_number: int, page: bytes) -> dict[bytes, bytes]:
        """Return the note of a proved page."""
        return {DIGEST_KEY + _U64.pack(page_number): digest_of(page)}

    def error(self, page_number: int, reason: str) -> PageNotLocal:
        """Return the error for the readers of a page."""
        record = SegmentRecord.decode(*self._note(page_number))
        number = 0 if record is None else record.pages[page_number % SEGMENT_PAGES].first_number
        return PageNotLocal(self.path, page_number, number, reason)

    # --- the cache ------------------------------------------------------------------------------------------

    def fetch(self, page_number: int) -> None:
        """Put a page into the cache; return when it is there.

        Raises:
            PageNotLocal: nobody has it.
        """
        if self.segment(page_number).digest == GONE_DIGEST:
            raise self.error(page_number, "nothing: it was given up for good")
        if self.source is not None:
            self.source(page_number)
        elif not self.is_cached(page_number):
            raise self.error(page_number, "one from the archive, which this program was not given")

    def put(self, page_number: int, data: bytes) -> None:
        """Put bytes into the cache as those of a page.

        Raises:
            PageNotLocal: the page was archived with other bytes.
            OSError: the disk is full, or refuses.
        """
        digest = digest_of(data)
        if self.digest(page_number) not in (None, digest):
            raise self.error(page_number, "the bytes that were archived, and these are others")
        with self.lock:
            if page_number in self._cached:
                return
            while len(self._cached) >= max(1, self.cache_pages_max):
                self.drop(next(iter(self._cached)))
            try:
                self._write(page_number, data)
            except OSError:
                if not self._cached:
                    raise
                while self._cached:  # the room of all others
                    self.drop(next(iter(self._cached)))
                self._write(page_number, data)
            self._cached[page_number] = digest

    def _write(self, page_number: int, data: bytes) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self.path.parent)  # noqa: SIM115
        fd, place = self._file.fileno(), page_number * FOLIO_BYTES
        try:
            if os.pwrite(fd, data, place) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            punch(fd, FOLIO_BYTES, place)
            raise

    def drop(self, page_number: int) -> None:
        """Take a page out of the cache."""
        with self.lock:
            if page_number not in self._cached:
                return
            assert self._file is not None
            self.on_drop(page_number)
            del self._cached[page_number]
            self.evictions += 1
            punch(self._file.fileno(), FOLIO_BYTES, page_number * FOLIO_BYTES)

    def place(self, offset: int) -> tuple[int, int]:
        """Return (descriptor, offset) in the cache of a byte of the stream file, while `lock` is held.

        Raises:
            PageUnchecked: its page is not in the cache.
        """
        page_number = page_number_of(offset)
        if page_number not in self._cached or self._file is None:
            raise PageUnchecked(page_number)
        return self._file.fileno(), page_number * FOLIO_BYTES + offset - page_start(page_number)

    def read(self, size: int, offset: int) -> bytes:
        """Read bytes of one cached page.

        Raises:
            PageUnchecked: it is not in the cache.
        """
        while True:
            seen = self.evictions
            fd, place = self.place(offset)
            data = os.pread(fd, size, place)
            if seen == self.evictions:
                return data

    def close(self) -> None:
        """Give the cache back."""
        with self.lock:
            self._cached.clear()
            self.evictions += 1
            if self._file is not None:
                self._file.close()
                self._file = None
