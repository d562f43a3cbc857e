"""Changing committed entries: updates of an entry's data in place, and truncation. Numbered steps.

The committing thread does both, between two operations; `concurrent_changes.py` says what readers see.
Nothing recovers a crash during the write of an update plus the loss of the folder.

Source: datastream/README.md, "Changing what is committed"; docs/spec/stream-file.md section 3.2.
"""

from __future__ import annotations

import logging
import struct
from array import array
from dataclasses import dataclass
from enum import Enum

from sluice.datastream.errors import (
    BookmarksUnavailable,
    CommitFailed,
    EntryNotFound,
    UpdateSizeDiffers,
    UpdateTypeDiffers,
)
from sluice.datastream.file.appending import Appender
from sluice.datastream.file.bookmarks import BookmarkIndex
from sluice.datastream.file.concurrent_changes import Patch
from sluice.datastream.file.disk import Disk
from sluice.datastream.file.fingerprint import FINGERPRINT_SIZE, fingerprint_of
from sluice.datastream.file.streamfile import StreamFile
from sluice.datastream.layout import (
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
"""_MARK, fingerprint without the blocks, offset of the blocks; then their new and their old bytes."""
_EARLIER_RECORD = struct.Struct(">QQQ")
"""The record of earlier versions: total_length (never _MARK), total_entries, offset of the blocks; their new
bytes."""


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
    end: int
    bookmarks: dict[bytes, int | None]
    """The bookmarks that it changes; empty if the entry is none."""
    page_sum: int | None
    """The new sum of its page; None if the page has none."""


class Changer:
    """Updates and truncates a stream; used by the thread that commits."""

    def __init__(self, file: StreamFile, bookmarks: BookmarkIndex, appender: Appender) -> None:
        self._file = file
        self._bookmarks = bookmarks
        self._appender = appender
        self._unfinished: _Unfinished | None = None
        self._in_doubt = False
        """A flush of the unfinished update failed."""
        self._record_left = False
        """The DB may hold a record that must not be followed."""
        self.overdue = False
        """True if `finish` has something to do. Set in advance, so that Ctrl-C cannot come between."""

    def finish(self) -> None:
        """Finish an interrupted update, or raise OSError or BookmarksUnavailable."""
        if self._record_left:
            self._bookmarks.put_update_record(None)
            self._record_left = False
        if self._unfinished is not None:
            self._finish(self._unfinished)
        self.overdue = False

    # --- updating ----------------------------------------------------------------------------------------

    def update(self, number: int, entry_type: int, data: bytes) -> None:
        """Replace the data of a committed entry in place, flushed.

        Raises:
            EntryNotFound, UpdateTypeDiffers, UpdateSizeDiffers: nothing was changed.
            CommitFailed: the entry is unchanged.
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
        # Before the blocks are read, or leftovers of a failed commit in the last block would come back.
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
            _logger.error(
                "%s: entry %d is updated, but not in the file yet: %s", self._file.path, number, error
            )
        else:
            self.overdue = False

    def _flush(self) -> None:
        """Do step 1: the record counts for this header, so the header must be on disk."""
        try:
            self._appender.flush()
        except OSError as error:
            raise CommitFailed(self._file.path, UpdateStep.FLUSH.value, error) from error

    def _record(self, patch: Patch, before: bytes) -> None:
        """Do step 2: from here on, the update happens.

        Until the caller notes that, the record must not be followed.
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
        """Do steps 3 to 6; after an interruption, again."""
        patch, committed = unfinished.patch, self._file.committed
        with self._file.sums.lock:
            self._file.sums.put_sum(page_number_of(patch.offset), unfinished.page_sum)
            if self._file.changes.patch is not patch:
                self._file.changes.begin_update(patch, unfinished.offset, unfinished.end)
        # In memory, so the update stands even if the disk refuses the blocks. Also without bookmarks: this
        # entry may identify the stream to the index.
        pages = pages_used(committed.total_length)
        self._bookmarks.correct(unfinished.bookmarks, committed.total_entries, pages)
        self._write(patch)
        self._bookmarks.write_pending()
        self._bookmarks.put_update_record(None)
        self._file.changes.end_update()
        self._unfinished = None

    def _write(self, patch: Patch) -> None:
        """Do step 4; past the page cache if a flush of these blocks failed."""
        disk = self._file.disk
        if self._in_doubt:
            with self._file.sums.lock:  # `rewrite` restores the cached pages around
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
        corrected: dict[bytes, int | None] = {}
        known = self._bookmarks.get(old)
        if known is None or known < number:  # an entry of this type that is not in the index
            return {}
        pointed = self._bookmarks.get(new)
        if pointed is None or pointed < number:
            corrected[new] = number
        if known == number:
            corrected.update(self._newest_before({old}, number))
        return corrected

    # --- truncating --------------------------------------------------------------------------------------

    def truncate(self, number: int) -> Committed:
        """Drop the entries from `number` on; return the new totals, which readers already see.

        The caller then does step 6, `Appender.clear_dropped`.

        Raises:
            EntryNotFound: `number` is above the number of entries.
            EntriesDisagree: a page on the way is damaged; nothing was changed.
            CommitFailed: the stream is unchanged.
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
                # In memory, and in the DB with the next batch; until then its count tells what it lacks.
                self._bookmarks.record(dropped, old.total_entries)
        return new

    def _correct_index(self, bookmarks: dict[bytes, int | None], number: int, pages_kept: int) -> None:
        # The last kept page may get other entries.
        self._bookmarks.correct(bookmarks, number, max(pages_kept - 1, 0))
        try:
            self._bookmarks.write_pending()
        except BookmarksUnavailable as error:
            raise CommitFailed(self._file.path, "1 index", OSError(str(error))) from error

    def _bookmarks_from(self, number: int) -> dict[bytes, int]:
        index = self._file.index
        return {
            bookmark: entry_number
            for page_number in range(index.page_of_entry(number), index.page_count)
            # A damaged page may be cut off, too.
            for bookmark, entry_number in self._file.walk(page_number, is_checked=False).bookmarks
            if entry_number >= number
        }

    def _newest_before(self, bookmarks: set[bytes], number: int) -> dict[bytes, int | None]:
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
        position_end = new.total_length - page_start(page_number)
        return array("I", [at for at in self._file.walk(page_number).checkpoints if at < position_end])


def record_for(record: bytes | None, header: StreamHeader, disk: Disk) -> Patch | None:
    """Return the bytes that an unfinished update must write; None if the record does not count."""
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
    """Return the same for an earlier version's record, which names its stream by totals alone."""
    if len(record) < _EARLIER_RECORD.size:
        return None
    total_length, total_entries, offset = _EARLIER_RECORD.unpack_from(record)
    patch = Patch(offset, record[_EARLIER_RECORD.size :])
    totals = (header.total_length, header.total_entries)
    if (total_length, total_entries) != totals or not HEADER_PAGE_SIZE <= offset < patch.end <= size:
        return None
    return patch


def is_kept_for_another(record: bytes | None) -> bool:
    """Return whether a record that does not count must outlive the index, for its own stream.

    An earlier version's record must not: with the right totals it would count for any stream.
    """
    return record is not None and record.startswith(_MARK)


def write_recorded(disk: Disk, patch: Patch) -> None:
    """Finish an interrupted update, flushed."""
    disk.replace(patch.data, patch.offset)
    disk.fdatasync()
