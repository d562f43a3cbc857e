"""Changing what is committed: an entry's data in place, and dropping the last entries. Numbered steps.

Both are done by the thread that commits, between two operations; `changes.py` says what readers see.

An update writes the blocks of 4,096 bytes around the entry. Before it touches them, a record of what they
will hold is flushed into the bookmark DB: what a crash leaves half-written, opening writes again from the
record. A record counts only for the stream that it was made for, by its fingerprint, and where each sector
of the blocks is as it was, or as it is to be, or zero as in the hole that is made for it: other streams may
have the same folder. (If a crash in the middle of writing meets the loss of the folder, the blocks cannot be
put right.)

A truncation is a commit of fewer entries: the header is the commit point. Bookmarks that pointed at dropped
entries point at their newest remaining entry again; that is looked up before, from the end of what remains.
The index goes first: one that covers more than the header counts says that the header went back.

Source: docs/spec/stream-file.md section 2.
"""

from __future__ import annotations

import logging
import struct
from array import array
from dataclasses import dataclass
from enum import Enum

from datastream.errors import (
    BookmarksUnavailable,
    CommitFailed,
    EntryNotFound,
    UpdateSizeDiffers,
    UpdateTypeDiffers,
)
from datastream.file.appending import Appender
from datastream.file.bookmarks import BookmarkIndex
from datastream.file.concurrent_changes import Patch
from datastream.file.disk import Disk
from datastream.file.fingerprint import FINGERPRINT_SIZE, fingerprint_of
from datastream.file.streamfile import StreamFile
from datastream.layout import (
    ENTRY_HEAD_SIZE,
    HEADER_PAGE_SIZE,
    Committed,
    StreamHeader,
    page_number_of,
    page_start,
    pages_used,
)

__all__ = [
    "TRUNCATE_STEPS",
    "UPDATE_STEPS",
    "Changer",
    "UpdateStep",
    "is_kept_for_another",
    "record_for",
    "write_recorded",
]

_logger = logging.getLogger(__name__)
_BLOCK_SIZE = 4096
_SECTOR_SIZE = 512
_MARK = b"\xff" * 8
_RECORD = struct.Struct(f">{len(_MARK)}s{FINGERPRINT_SIZE}sQ")
"""_MARK, fingerprint of all but the blocks, offset of the blocks; their new and their old bytes follow."""
_EARLIER_RECORD = struct.Struct(">QQQ")
"""As it was once: total_length, total_entries, offset of the blocks; their new bytes follow. No total_length
is _MARK."""


class UpdateStep(Enum):
    """The steps of an update in place, in order."""

    FLUSH = "1 flush"
    RECORD = "2 record"
    SHOW = "3 show"
    WRITE = "4 write"
    INDEX = "5 index"
    FORGET = "6 forget"


UPDATE_STEPS: dict[UpdateStep, tuple[str, str]] = {
    UpdateStep.FLUSH: ("`fdatasync`, if commits were not flushed", "the old entry"),
    UpdateStep.RECORD: (
        "One flushed LevelDB write: the blocks as they will be",
        "the new entry: opening writes it, and rebuilds the index",
    ),
    UpdateStep.SHOW: ("Readers get the new bytes and bookmarks from memory", "the new entry"),
    UpdateStep.WRITE: ("Replace the blocks, `fdatasync`", "the new entry"),
    UpdateStep.INDEX: ("Write the index, and whose it is", "the new entry"),
    UpdateStep.FORGET: ("Delete the record, flushed; readers get the file again", "the new entry"),
}
"""step -> (what is done, what opening finds when the machine stops just after it)."""

TRUNCATE_STEPS: dict[str, tuple[str, str]] = {
    "1 index": (
        "One flushed LevelDB batch: bookmarks of dropped entries deleted or set back",
        "the old stream, index behind: opening adds its bookmarks",
    ),
    "2 flush": ("`fdatasync`, if commits were not flushed", "the same"),
    "3 header": (
        "One `pwrite` of the header with the lower totals",
        "the old stream or the new one: the commit point",
    ),
    "4 flush": ("`fdatasync`", "the new stream; opening zeroes what was dropped"),
    "5 publish": ("Swap the committed view, tell the server", "the same"),
    "6 zero": ("Zeros over what was dropped", "the new stream"),
}
"""step -> (what is done, what opening finds when the machine stops just after it)."""


@dataclass(frozen=True, slots=True)
class _Unfinished:
    """An update whose record is on disk."""

    patch: Patch
    offset: int
    """Of the entry."""
    end: int
    """The offset just past it."""
    bookmarks: dict[bytes, int | None]
    """What it makes of bookmarks; empty when the entry is none."""
    page_sum: int | None
    """The sum of its page with it; None where that has none."""


class Changer:
    """Updates and truncates a stream; used by the thread that commits.

    Args:
        file: loaded.
        bookmarks: its index.
        appender: its writer.
    """

    def __init__(self, file: StreamFile, bookmarks: BookmarkIndex, appender: Appender) -> None:
        self._file = file
        self._bookmarks = bookmarks
        self._appender = appender
        self._unfinished: _Unfinished | None = None
        self._in_doubt = False
        """A flush of the unfinished update failed."""
        self._record_left = False
        """A record may be in the DB that must not be followed."""
        self.overdue = False
        """Whether `finish` has something to do. Set before there is, so that Ctrl-C cannot come between."""

    def finish(self) -> None:
        """Do what an earlier update could not.

        Raises:
            OSError, BookmarksUnavailable: it still cannot be done.
        """
        if self._record_left:
            self._bookmarks.put_update_record(None)
            self._record_left = False
        if self._unfinished is not None:
            self._finish(self._unfinished)
        self.overdue = False

    # --- updating ----------------------------------------------------------------------------------------

    def update(self, number: int, entry_type: int, data: bytes) -> None:
        """Replace the data of a committed entry, in place; it is on disk on return.

        Raises:
            EntryNotFound: no such entry.
            UpdateTypeDiffers, UpdateSizeDiffers: not the type and the length it is committed with.
            CommitFailed: the disk or the DB refused before the update was safe; the entry is as it was.
        """
        entry = self._file.read_entry(number)
        if entry_type != entry.type:
            raise UpdateTypeDiffers(number, entry_type, entry.type)
        if len(data) != len(entry.data):
            raise UpdateSizeDiffers(number, len(data), len(entry.data))
        if data == entry.data:
            return
        offset = self._file.offset_of(number)
        end = offset + ENTRY_HEAD_SIZE + len(data)
        bookmarks = self._bookmarks_after_update(number, entry.data, data) if entry.is_bookmark else {}
        # Before the blocks are read: what a failed commit left in the last of them would come back.
        self._flush()
        start = offset - offset % _BLOCK_SIZE
        before = self._file.read(-(-end // _BLOCK_SIZE) * _BLOCK_SIZE - start, start)
        blocks = bytearray(before)
        blocks[offset + ENTRY_HEAD_SIZE - start : end - start] = data
        patch = Patch(start, bytes(blocks))
        self._appender.running_sum.stop()
        unfinished = _Unfinished(patch, offset, end, bookmarks, self._file.sums.sum_after(patch, before))
        self._record(unfinished.patch, before)
        self._unfinished = unfinished
        self._record_left = False
        try:
            self._finish(unfinished)
        except (OSError, BookmarksUnavailable) as error:
            # It is safe in its record, and readers get it from memory.
            _logger.error(
                "%s: entry %d is updated, but not in the file yet: %s", self._file.path, number, error
            )
        else:
            self.overdue = False

    def _flush(self) -> None:
        """Do step 1: a record counts for the header that it was made for, so that has to be on disk."""
        try:
            self._appender.flush()
        except OSError as error:
            raise CommitFailed(self._file.path, UpdateStep.FLUSH.value, error) from error

    def _record(self, patch: Patch, before: bytes) -> None:
        """Do step 2: from then on the update is made, whatever happens.

        Until the caller takes note of that, the record counts as one that must not be followed.
        """
        file = self._file
        hole = (patch.offset, patch.end)
        fingerprint = fingerprint_of(file.header(file.committed), file.read, hole)
        record = _RECORD.pack(_MARK, fingerprint, patch.offset) + patch.data + before
        self._record_left = self.overdue = True
        try:
            self._bookmarks.put_update_record(record)
        except BookmarksUnavailable as error:
            raise CommitFailed(self._file.path, UpdateStep.RECORD.value, OSError(str(error))) from error

    def _finish(self, unfinished: _Unfinished) -> None:
        """Do steps 3 to 6; again, where they were interrupted."""
        patch, committed = unfinished.patch, self._file.committed
        with self._file.sums.lock:
            self._file.sums.put_sum(page_number_of(patch.offset), unfinished.page_sum)
            if self._file.changes.patch is not patch:
                self._file.changes.begin_update(patch, unfinished.offset, unfinished.end)
        # In memory: the update stands, also if the disk refuses the blocks. Without bookmarks, too: the entry
        # may be one by which the index knows the stream.
        pages = pages_used(committed.total_length)
        self._bookmarks.correct(unfinished.bookmarks, committed.total_entries, pages)
        self._write(patch)
        self._bookmarks.write_pending()
        self._bookmarks.put_update_record(None)
        self._file.changes.end_update()
        self._unfinished = None

    def _write(self, patch: Patch) -> None:
        """Do step 4; past the page cache where a flush of the same blocks failed."""
        disk = self._file.disk
        if self._in_doubt:
            with self._file.sums.lock:  # it puts back what the cache held of pages around, as they were
                disk.rewrite(patch.data, patch.offset)
            self._in_doubt = False
            return
        disk.replace(patch.data, patch.offset)
        try:
            disk.fdatasync()
        except OSError:
            self._in_doubt = True
            self._appender.doubt()
            raise

    def _bookmarks_after_update(self, number: int, old: bytes, new: bytes) -> dict[bytes, int | None]:
        """Return where the old bookmark and the new one of entry `number` point once it is updated."""
        corrected: dict[bytes, int | None] = {}
        pointed = self._bookmarks.get(new)
        if pointed is None or pointed < number:
            corrected[new] = number
        if self._bookmarks.get(old) == number:
            corrected.update(self._newest_before({old}, number))
        return corrected

    # --- truncating --------------------------------------------------------------------------------------

    def truncate(self, number: int) -> Committed:
        """Drop the entries from `number` on; return the new totals, which readers see already.

        That is all but step 6, `Appender.clear_dropped`, for which clients need not wait: what they are being
        sent of the dropped entries becomes zeros with it.

        Raises:
            EntryNotFound: `number` is above the number of entries.
            EntriesDisagree: a page that has to be walked is damaged; nothing was changed.
            CommitFailed: the index or the disk refused before the commit point; the stream is as it was.
        """
        file, old = self._file, self._file.committed
        if not 0 <= number <= old.total_entries:
            raise EntryNotFound(number, old.total_entries)
        if number == old.total_entries:
            return old
        new = Committed(file.length_without(number), number)
        dropped = self._bookmarks_from(number)
        corrected = self._newest_before(set(dropped), number)
        pages_kept = pages_used(new.total_length)
        table = self._checkpoints_below(new, pages_kept - 1) if pages_kept else None
        index = file.index.cut(pages_kept, table)
        try:
            self._appender.running_sum.stop()
            self._correct_index(corrected, number, pages_kept)  # step 1
            self._appender.shorten(new)  # steps 2 to 4
        finally:
            if self._appender.flushed is new:  # step 5, also after Ctrl-C: the header says so
                with file.sums.lock, file.changes.lock:  # sendfile uses the second, too
                    file.totals = new
                    file.index = index
                    file.changes.note_truncation(new.total_length)
                    file.sums.cut(file.full_count)
                self._appender.note_dropped(old.total_length)
            else:
                # In memory, and in the DB with the next batch; until then its count says what it lacks.
                self._bookmarks.record(dropped, old.total_entries)
        return new

    def _correct_index(self, bookmarks: dict[bytes, int | None], number: int, pages_kept: int) -> None:
        """Do step 1."""
        # The last page that is kept may be filled again, and otherwise than before.
        self._bookmarks.correct(bookmarks, number, max(pages_kept - 1, 0))
        try:
            self._bookmarks.write_pending()
        except BookmarksUnavailable as error:
            raise CommitFailed(self._file.path, "1 index", OSError(str(error))) from error

    def _bookmarks_from(self, number: int) -> dict[bytes, int]:
        """Return the bookmarks among the entries from `number` on, each with its newest entry."""
        index = self._file.index
        return {
            bookmark: entry_number
            for page_number in range(index.page_of_entry(number), index.page_count)
            # A damaged page may go, too: to cut it off is one way to be rid of it.
            for bookmark, entry_number in self._file.walk(page_number, is_checked=False).bookmarks
            if entry_number >= number
        }

    def _newest_before(self, bookmarks: set[bytes], number: int) -> dict[bytes, int | None]:
        """Return each bookmark's newest entry below `number`; walks back until all are found."""
        newest: dict[bytes, int | None] = dict.fromkeys(bookmarks)
        missing = set(bookmarks)
        page_number = self._file.index.page_of_entry(number - 1) if number else -1
        while missing and page_number >= 0:
            found = {
                bookmark: entry_number
                for bookmark, entry_number in self._file.walk(page_number).bookmarks
                if entry_number < number and bookmark in missing
            }
            newest.update(found)
            missing.difference_update(found)
            page_number -= 1
        return newest

    def _checkpoints_below(self, new: Committed, page_number: int) -> array[int]:
        """Return the checkpoints that the last page keeps."""
        position_end = new.total_length - page_start(page_number)
        return array("I", [at for at in self._file.walk(page_number).checkpoints if at < position_end])


def record_for(record: bytes | None, header: StreamHeader, disk: Disk) -> Patch | None:
    """Return the bytes that an unfinished update has to write; None when the record does not count.

    Args:
        record: from the bookmark DB.
        header: of the stream.
        disk: the stream file.

    Raises:
        OSError: the file cannot be read.
    """
    if record is None:
        return None
    size = disk.size()
    if not record.startswith(_MARK):
        return _earlier_record_for(record, header, size)
    if len(record) < _RECORD.size:
        return None
    _, fingerprint, offset = _RECORD.unpack_from(record)
    middle = (_RECORD.size + len(record)) // 2
    patch, before = Patch(offset, record[_RECORD.size : middle]), record[middle:]
    if not HEADER_PAGE_SIZE <= offset < patch.end <= size or len(before) != len(patch.data):
        return None
    if fingerprint != fingerprint_of(header, disk.pread, (offset, patch.end)):
        return None
    found = disk.pread(len(before), offset)
    for at in range(0, len(before), _SECTOR_SIZE):
        sector = slice(at, at + _SECTOR_SIZE)
        if found[sector] not in (before[sector], patch.data[sector], bytes(len(before[sector]))):
            return None
    return patch


def _earlier_record_for(record: bytes, header: StreamHeader, size: int) -> Patch | None:
    """Return the same of a record of an earlier version, which has the totals only to say whose it is."""
    if len(record) < _EARLIER_RECORD.size:
        return None
    total_length, total_entries, offset = _EARLIER_RECORD.unpack_from(record)
    patch = Patch(offset, record[_EARLIER_RECORD.size :])
    totals = (header.total_length, header.total_entries)
    if (total_length, total_entries) != totals or not HEADER_PAGE_SIZE <= offset < patch.end <= size:
        return None
    return patch


def is_kept_for_another(record: bytes | None) -> bool:
    """Return whether a record that does not count has to outlive the index: its own stream may yet be opened.

    One of an earlier version does not: with the right totals it would count for any stream.
    """
    return record is not None and record.startswith(_MARK)


def write_recorded(disk: Disk, patch: Patch) -> None:
    """Finish an update that a crash interrupted; it is on disk on return.

    Raises:
        OSError: the disk refuses.
    """
    disk.replace(patch.data, patch.offset)
    disk.fdatasync()
