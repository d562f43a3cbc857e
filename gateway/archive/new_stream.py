"""A stream file that begins with an archive: what is believed of its segments, and at last the file itself.

    datastream.db     the records and bookmarks of the segments so far, flushed
    datastream.bin    holes, but page 0 and the pages of the last segment

A block may still be cut off while it is under way. So a segment is recorded once a block ends behind it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from sluice.datastream.file.bookmarks import BookmarkIndex
from sluice.datastream.file.disk import RealDisk, create_file
from sluice.datastream.file.pages import find_position
from sluice.datastream.file.remote_pages import (
    ROOTS_KEY,
    SEGMENT_PAGES,
    UNKNOWN_DIGEST,
    RemotePages,
    SegmentRecord,
    digest_of,
)
from sluice.datastream.file.streamfile import StreamFile
from sluice.datastream.layout import (
    HEADER_PAGE_SIZE,
    PAGE_SIZE,
    encode_header_page,
    file_size_of,
    page_number_of,
    page_start,
)
from sluice.gateway.archive.errors import ArchiveDamaged
from sluice.gateway.archive.objects import ArchiveStore
from sluice.gateway.archive.restore import StoredStream
from sluice.gateway.archive.segment import SegmentName, SegmentObject, decode_page, segment_name

__all__ = ["NewStream", "read_page"]

MARKS_MAX: Final = 1_000_000
"""Bookmarks and blocks of waiting segments: some 100 MiB."""


class NewStream:
    """One stream at work. Call `close` at the end.

    Args:
        folder: where its file will be.
    """

    def __init__(self, folder: Path, stored: StoredStream) -> None:
        self.stored = stored
        self.path = folder / stored.file_name
        self.index = BookmarkIndex(self.path)
        self.recorded = RemotePages(self.path, self.index.notes.get)
        """The records so far; `archived_pages` says how many."""
        self.recorded_entries = 0
        """Entries of the segments that this program recorded, and of those before."""
        self._waiting: list[SegmentObject] = []

    def close(self) -> None:
        """Release the index."""
        self.index.close()

    @property
    def recorded_count(self) -> int:
        """Segments that are recorded."""
        return self.recorded.archived_pages // SEGMENT_PAGES

    def has_names(self, names: list[SegmentName]) -> bool:
        """Return whether an archive has the recorded segments, and more."""
        records = (self.recorded.segment(place * SEGMENT_PAGES) for place in range(self.recorded_count))
        return len(names) > self.recorded_count and all(
            record.digest == name.digest for record, name in zip(records, names, strict=False)
        )

    def page_of_entry(self, number: int) -> int:
        """Return the recorded page of an entry, or the last one."""
        pages = range(self.recorded.archived_pages)
        return bisect_right(pages, number, key=lambda page: self.recorded.page(page).first_number) - 1

    def add(self, segment: SegmentObject) -> None:
        """Take the next segment, with the digests of its pages, or with the root hashes of its blocks."""
        self._waiting.append(segment)

    def settle(self, total_entries: int, least: int = 1, marks_max: int = MARKS_MAX) -> bool:
        """Record the segments before the one that has the last of so many entries; return whether any was.

        Args:
            least: record fewer another time,
            marks_max: unless those that wait have so many bookmarks and blocks.

        Raises:
            BookmarksUnavailable: the disk refuses.
        """
        count = 0
        while count < len(self._waiting) and self._waiting[count].entries_end < total_entries:
            count += 1
        marks = sum(len(one.index.bookmarks) + len(one.index.blocks) for one in self._waiting)
        if not count or (count < least and marks < marks_max):
            return False
        done, self._waiting = self._waiting[:count], self._waiting[count:]
        notes: dict[bytes, bytes] = {}
        for segment in done:
            notes |= _notes_of(segment)
            self._record(segment, segment.entries_end)
        self.index.write_pending()
        pages = done[-1].first_page + SEGMENT_PAGES
        self.index.put_flushed(notes | self.recorded.marks(pages, 0))
        self.recorded.archived_pages, self.recorded_entries = pages, done[-1].entries_end
        return True

    def _record(self, segment: SegmentObject, total_entries: int) -> None:
        marks = {mark.bookmark: mark.entry for mark in segment.index.bookmarks if mark.entry < total_entries}
        self.index.record(marks, total_entries)

    def last_segment(self, total_entries: int) -> SegmentObject:
        """Return the segment that has the last of so many entries.

        Raises:
            ArchiveDamaged: the archive has fewer segments than before.
        """
        self.settle(total_entries)
        if not self._waiting:
            got, expected = f"{total_entries} entries", "as many as at the last attempt"
            raise ArchiveDamaged("archive", got, expected, self.stored.store.url)
        return self._waiting[0]

    def write(self, total_entries: int, pages: Mapping[int, bytes]) -> bytes:
        """Make the stream file; return its page 0, empty without entries.

        Args:
            total_entries: of the stream; those behind them are cut off.
            pages: those of the last segment.

        Raises:
            ArchiveDamaged, ArchiveUnavailable: page 0 is another one, or the store does not give it.
            OSError, BookmarksUnavailable: the disk refuses.
        """
        description = self.stored.description
        self.path.unlink(missing_ok=True)
        if not total_entries:
            create_file(self.path, encode_header_page(description.header), HEADER_PAGE_SIZE)
            return b""
        last = self.last_segment(total_entries)
        total_length = _length_of(last, pages, total_entries)
        header = replace(description.header, total_length=total_length, total_entries=total_entries)
        last_page = page_number_of(total_length - 1)
        local = dict(pages)
        if last.first_page:
            local[0] = read_page(self.stored.store, self.recorded.segment(0), 0)
        create_file(self.path, encode_header_page(header), file_size_of(last_page + 1))
        disk = RealDisk(self.path)
        try:
            for page_number, page in local.items():
                if page_number <= last_page:
                    size = min(PAGE_SIZE, total_length - page_start(page_number))
                    disk.pwrite(page[:size], page_start(page_number))
            disk.fdatasync()
            archived = last.first_page
            marks = self.recorded.marks(archived, archived if archived > 1 else 0)
            self.index.put_flushed(_notes_of(last) | marks)
            self.index.fingerprint_at = StreamFile(self.path, disk, header).fingerprint_at
            self._record(last, total_entries)
            self.index.write_pending()
            self.index.put_flushed({})
        finally:
            disk.close()
        return local[0]


def _notes_of(segment: SegmentObject) -> dict[bytes, bytes]:
    notes = RemotePages.note_of(segment.record)
    if not segment.digests:  # its pages are compared with its proved root hashes when they are read
        notes[ROOTS_KEY + segment.first_page.to_bytes(8, "big")] = segment.roots_digest
    return notes


def _length_of(segment: SegmentObject, pages: Mapping[int, bytes], total_entries: int) -> int:
    """Return the length of the stream that ends with an entry of a segment."""
    for place, record in enumerate(segment.index.pages):
        end, page_number = record.first_entry + record.entry_count, segment.first_page + place
        if total_entries == end:
            return page_start(page_number) + int(record.data_end)
        if total_entries < end:
            data = pages[page_number][: record.data_end]
            return page_start(page_number) + find_position(data, record.first_entry, total_entries, end)
    raise AssertionError(total_entries)


def read_page(store: ArchiveStore, segment: SegmentRecord, page_number: int) -> bytes:
    """Read a page of a recorded segment.

    Raises:
        ArchiveDamaged: it is another one than was recorded.
        ArchiveUnavailable: the store does not give it.
    """
    name = segment_name(segment.first_page, segment.digest)
    where = f"{store.address(name)}: page {page_number}"
    page = segment.pages[page_number - segment.first_page]
    data = decode_page(store.get_range(name, *segment.frames(page_number, 1)), page.crc, where)
    if page.digest not in (UNKNOWN_DIGEST, digest_of(data)):
        raise ArchiveDamaged("page", "other bytes", "those that were verified", where)
    return data
