"""The bookmark index: a LevelDB folder beside the stream file, under both locks (`folder_lock.py`).

Keys longer than a bookmark have a LevelDB of their own, inside the folder (`index_database.py`).

Invariants
  - The stream completes the index and confirms its answers.
  - The count of covered entries and their fingerprint are of one batch. Their bookmarks are in the DB, or
    `lacks_bookmarks` says so. The index may lag behind the stream; memory holds the rest, at most twice
    PENDING_BOOKMARKS_MAX bookmarks.
  - A read-only opening works on a copy of the folder, made under shared locks.

Source: docs/spec/stream-file.md section 3.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import struct
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sluice.datastream.errors import BookmarksUnavailable, DatastreamError
from sluice.datastream.file.folder_lock import (
    FolderLock,
    OtherFolderLocks,
    SharedFolderLock,
    bookmarks_folder,
    fork_folder,
    link_folder,
)
from sluice.datastream.file.index_database import (
    COVERED_KEY,
    UPDATE_KEY,
    IndexDatabase,
    OpenDatabase,
    has_hole,
    open_leveldb,
    own_folder,
    plyvel,
)
from sluice.datastream.file.page_index import PageTable, decode_table, encode_table
from sluice.datastream.limits import BOOKMARK_SIZE_MAX, REBUILD_BATCH_BOOKMARKS

__all__ = [
    "COVERED_KEY",
    "LAST_KEY",
    "STREAM_KEY",
    "SUMS_OF_KEY",
    "SUM_KEY",
    "TABLE_KEY",
    "UPDATE_KEY",
    "BookmarkIndex",
    "Notes",
    "OpenDatabase",
    "Undo",
    "bookmarks_folder",
    "has_hole",
    "open_leveldb",
]

_logger = logging.getLogger(__name__)

REOPEN_ROOM_BYTES = 1 << 20
"""Free bytes that reopening a failed bookmark DB needs. With less room the DB stays open, so that it can be
read."""

LAST_KEY = b"sluice/bookmark-of-last-batch"
STREAM_KEY = b"sluice/stream-fingerprint"
TABLE_KEY = b"sluice/page-table/"
SUM_KEY = b"sluice/page-sum/"
SUMS_OF_KEY = b"sluice/page-sums-are-of"
ANOTHER_KEY = b"sluice/opened-by-another"
# No bookmark can have these keys.
assert (
    min(map(len, (COVERED_KEY, LAST_KEY, STREAM_KEY, TABLE_KEY, SUM_KEY + bytes(1), UPDATE_KEY)))
    > BOOKMARK_SIZE_MAX
)
_U64 = struct.Struct(">Q")
_DATABASE_FILES = ("CURRENT", "LOG", "LOG.old", "MANIFEST-*", "*.ldb", "*.sst", "*.log", "*.dbtmp")
_GONE = -1

Undo = tuple[dict[bytes, int], dict[bytes, int], int | None]
"""Bookmarks about to be recorded; the pending ones among them; the pending covered count."""


class Notes:
    """The tables and checksums of pages that wait for the next batch.

        put ── pending ── add_to(batch) ── writing ── written          each can be found at any time
                             └─────── roll_back ◄──────┘               if the batch was refused

    Any thread may put and get; one thread writes batches.
    """

    def __init__(self, read: Callable[[bytes], bytes | None]) -> None:
        self._read = read
        self._pending: dict[bytes, bytes | None] = {}
        self._writing: dict[bytes, bytes | None] = {}
        self._guard = threading.Lock()

    @property
    def has_pending(self) -> bool:
        """True if any note waits for a batch."""
        return bool(self._pending)

    @property
    def is_writing(self) -> bool:
        """True if the fate of a batch with notes is unknown."""
        return bool(self._writing)

    def get(self, key: bytes) -> bytes | None:
        """Return a note; None if there is none, or the DB cannot be read."""
        for notes in (self._pending, self._writing):  # in the order in which a note moves
            try:
                return notes[key]
            except KeyError:
                pass
        try:
            return self._read(key)
        except BookmarksUnavailable:
            return None

    def put(self, key: bytes, value: bytes | None) -> None:
        """Set a note; None deletes it."""
        with self._guard:
            self._pending[key] = value

    def put_all(self, notes: Mapping[bytes, bytes]) -> None:
        """Set several notes."""
        with self._guard:
            self._pending.update(notes)

    def drop(self, prefix: bytes, first: bytes, stored: Iterable[bytes]) -> None:
        """Delete the notes with this prefix, from the key `first` on; `stored` are their keys in the DB."""
        with self._guard:
            gone = [
                key for key in (*self._pending, *self._writing) if key.startswith(prefix) and key >= first
            ]
            self._pending.update(dict.fromkeys((*gone, *stored)))

    def add_to(self, batch: Any) -> None:
        """Add pending notes to a batch; call `written` or `roll_back` next."""
        with self._guard:
            self._writing = self._pending  # before the next line, so that a reader always finds each
            self._pending = {}
        for key, value in self._writing.items():
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)

    def written(self) -> None:
        """Forget the notes of the batch, which the DB now has."""
        self._writing = {}

    def roll_back(self) -> None:
        """Make the notes of the batch pending again."""
        with self._guard:
            self._pending = {**self._writing, **self._pending}
        self._writing = {}


class BookmarkIndex:
    """The bookmarks of one stream, locked for this opener.

    One thread writes, any thread reads. Readers also find bookmarks that wait for a batch.

    Args:
        stream_path: its name gives the folder.
        folder: instead of that one.
        read_only: work on a copy of the folder.

    Raises:
        StreamInUse: another opener has the folder.
        BookmarksUnavailable: the folder or the DB cannot be opened.
    """

    def __init__(
        self,
        stream_path: Path,
        open_database: OpenDatabase = open_leveldb,
        *,
        read_only: bool = False,
        folder: Path | None = None,
    ) -> None:
        self.folder = bookmarks_folder(stream_path) if folder is None else folder
        self._open_database = open_database
        self._pending: dict[bytes, int] = {}
        self.notes = Notes(self._get_value)
        self._pending_covered: int | None = None
        self._writing: dict[bytes, int] = {}
        """The batch under way; readers look here between `_pending` and the DB."""
        self._writing_covered: int | None = None
        self._writer: threading.Thread | None = None
        self._writer_error: Exception | None = None
        self._guard = threading.Lock()
        """Held to read the DB, and to replace it."""
        self._write_guard = threading.Lock()
        """Held to write, so that nothing follows a write that failed; taken before `_guard`."""
        self._database: Any = None
        self._written_covered: int | None = None
        self._sync_next = False
        """Flush the next batch: older contents of the DB would contradict the stream."""
        self._keys_first = False
        """The next batch takes bookmarks away: lower the count before."""
        self._writes_keys_first = False
        self.failed = False
        """A write may have failed: reopen the DB before the next one."""
        self.fingerprint_at: Callable[[int], bytes] | None = None
        """Returns the fingerprint of the stream's first entries."""
        self.was_opened_by_another = False
        """True if a Go program had the DB open since our last batch, so its count may be wrong."""
        self.sums_hold = False
        """True if checksums are valid: no program that ignores them has written the stream since."""
        self.damage: str | None = None
        """The reason why an empty DB replaced a damaged one."""
        self._shared_lock: SharedFolderLock | None = None
        self._other_locks: OtherFolderLocks | None = None
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        if read_only:
            self._shared_lock = SharedFolderLock(stream_path, self.folder)
            self._copy_folder()
        try:
            self._lock = FolderLock(stream_path, self.folder)
            try:
                if not read_only:
                    fork = fork_folder(stream_path)
                    if fork != stream_path and not os.path.lexists(fork):
                        link_folder(fork, self.folder)
                self._other_locks = OtherFolderLocks(stream_path, None if read_only else self._lock)
                self._open()
                with contextlib.suppress(BookmarksUnavailable):  # opening the stream finds that again
                    self._written_covered = self.covered
                    self._learn_who_wrote(read_only=read_only)
            except BaseException:
                self._lock.release()
                raise
        except BaseException:
            self._release_others()
            raise

    def _learn_who_wrote(self, *, read_only: bool) -> None:
        """Find out whether another program opened the DB since our last batch.

        LevelDB's LOG tells, but opening the DB starts a new one. So the DB stores the answer, in case this
        opening fails.
        """
        self.was_opened_by_another = self._lock.was_opened_by_go or self._get_value(ANOTHER_KEY) is not None
        self.sums_hold = not self.was_opened_by_another and self._get_value(SUMS_OF_KEY) == self.fingerprint
        if self.was_opened_by_another and not read_only:
            try:
                self._database.keys.put(ANOTHER_KEY, b"", sync=True)
            except (plyvel.Error, OSError) as error:
                raise BookmarksUnavailable(self.folder, error) from error

    def _copy_folder(self) -> None:
        try:
            self._copy = tempfile.TemporaryDirectory(prefix="sluice-index-")
            copy = Path(self._copy.name) / "index.db"
            for source, target in ((self.folder, copy), (own_folder(self.folder), own_folder(copy))):
                target.mkdir()
                for pattern in _DATABASE_FILES:
                    for path in source.glob(pattern):
                        shutil.copyfile(path, target / path.name)
        except OSError as error:
            self._release_others()
            raise BookmarksUnavailable(self.folder, error.strerror or str(error)) from error
        self.folder = copy

    def _release_others(self) -> None:
        if self._other_locks is not None:
            self._other_locks.release()
        if self._copy is not None:
            self._copy.cleanup()
            self._copy = None
        if self._shared_lock is not None:
            self._shared_lock.release()

    def _open(self) -> None:
        """Open the DB; replace a damaged one by an empty one, for the opening to fill."""
        try:
            self._database = IndexDatabase(self.folder, self._open_database)
        except plyvel.CorruptionError as error:
            self.damage = BookmarksUnavailable(self.folder, error).reason
            if self._copy is None:
                text = "%s: the bookmark DB is damaged (%s); it is made anew"
                _logger.warning(text, self.folder, self.damage)
            self._remove_files()
            self._open_after_removal()
        except (plyvel.Error, OSError) as error:
            raise BookmarksUnavailable(self.folder, error) from error

    def _open_after_removal(self) -> None:
        try:
            self._lock.renew()
            self._database = IndexDatabase(self.folder, self._open_database)
        except (plyvel.Error, OSError) as error:
            raise BookmarksUnavailable(self.folder, error) from error

    def _remove_files(self) -> None:
        try:
            for folder in (own_folder(self.folder), self.folder):
                for pattern in _DATABASE_FILES:
                    for path in folder.glob(pattern):
                        path.unlink()
        except OSError as error:
            raise BookmarksUnavailable(self.folder, error.strerror or str(error)) from error

    # --- reading -----------------------------------------------------------------------------------------

    def get(self, bookmark: bytes) -> int | None:
        """Return the indexed number of this bookmark's newest entry, or None. The caller checks the entry."""
        number = self._recorded(bookmark)
        if number is None:
            return self._number_in_database(bookmark)
        return None if number == _GONE else number

    def get_recorded(self, bookmark: bytes) -> int | None:
        """Return the same from memory alone."""
        number = self._recorded(bookmark)
        return None if number == _GONE else number

    def _recorded(self, bookmark: bytes) -> int | None:
        number = self._pending.get(bookmark)
        return self._writing.get(bookmark) if number is None else number

    @property
    def covered(self) -> int | None:
        """Number of entries that the DB covers; None if it does not say."""
        return _number(self._get_value(COVERED_KEY))

    @property
    def lacks_bookmarks(self) -> bool:
        """True if bookmarks of covered entries are missing: a power failure took batches, or files were lost.

        LevelDB loses the newest batches first, so one bookmark of the last batch tells.
        """
        last = self._get_value(LAST_KEY)
        if last is None or len(last) < _U64.size:
            return False
        number = self._number_in_database(last[_U64.size :])
        # A Go program may have added it again.
        return number is None or number < _U64.unpack_from(last)[0]

    @property
    def was_changed_by_another(self) -> bool:
        """True if bookmarks past the count may be those of a program that rolled back or truncated."""
        return self.was_opened_by_another or bool(self._database.is_old)

    def _number_in_database(self, bookmark: bytes) -> int | None:
        with self._guard:
            try:
                value: bytes | None = self._database.bookmarks.get(bookmark)
            except (plyvel.Error, RuntimeError) as error:
                raise BookmarksUnavailable(self.folder, error) from error
        return _number(value)

    def _get_value(self, key: bytes) -> bytes | None:
        with self._guard:
            try:
                value: bytes | None = self._database.keys.get(key)
            except (plyvel.Error, RuntimeError) as error:
                raise BookmarksUnavailable(self.folder, error) from error
        return value

    def get_table(self, page_number: int) -> PageTable | None:
        """Return the stored table, if any."""
        value = self.notes.get(TABLE_KEY + _U64.pack(page_number))
        return None if value is None else decode_table(value)

    @property
    def fingerprint(self) -> bytes | None:
        """The fingerprint of the covered entries; None if the DB does not say."""
        return self._get_value(STREAM_KEY)

    @property
    def update_record(self) -> bytes | None:
        """Record of an unfinished update in place."""
        with self._guard:
            try:
                value: bytes | None = self._database.bookmarks.get(UPDATE_KEY)
            except (plyvel.Error, RuntimeError) as error:
                raise BookmarksUnavailable(self.folder, error) from error
        return value

    def highest_number(self, count_max: int) -> int | None:
        """Return the highest entry number of the first `count_max` bookmarks; None without any."""
        highest: int | None = None
        try:
            with self._guard, self._database.bookmarks.iterator() as pairs:
                for _, (key, value) in zip(range(count_max + 1), pairs, strict=False):
                    if len(key) <= BOOKMARK_SIZE_MAX and len(value) == _U64.size:
                        highest = max(_U64.unpack(value)[0], -1 if highest is None else highest)
        except (plyvel.Error, RuntimeError) as error:
            raise BookmarksUnavailable(self.folder, error) from error
        return highest

    def items(self) -> Iterator[tuple[bytes, int]]:
        """Yield (bookmark, entry number) of every bookmark in the DB, sorted."""
        try:
            with self._database.bookmarks.iterator() as pairs:
                for key, value in pairs:
                    if len(key) <= BOOKMARK_SIZE_MAX and len(value) == _U64.size:
                        yield key, _U64.unpack(value)[0]
        except (plyvel.Error, RuntimeError) as error:
            raise BookmarksUnavailable(self.folder, error) from error

    # --- writing: one thread -----------------------------------------------------------------------------

    def record(self, bookmarks: dict[bytes, int], covered: int) -> int:
        """Record bookmarks of committed entries; return the number of pending ones.

        Args:
            bookmarks: each with the number of its newest entry.
            covered: the number of entries that the index then covers.
        """
        pending = self._pending
        pending |= bookmarks
        self._pending_covered = covered
        return len(pending)

    def before(self, bookmarks: dict[bytes, int]) -> Undo:
        """Return what `roll_back` needs to undo a `record` of these bookmarks."""
        pending = self._pending
        if pending.keys().isdisjoint(bookmarks):  # as nearly always; this is quick
            return bookmarks, {}, self._pending_covered
        numbers = {bookmark: pending[bookmark] for bookmark in bookmarks if bookmark in pending}
        return bookmarks, numbers, self._pending_covered

    def roll_back(self, undo: Undo) -> None:
        """Undo everything recorded since `before` returned this."""
        bookmarks, numbers, self._pending_covered = undo
        for bookmark in bookmarks:
            self._pending.pop(bookmark, None)
        self._pending.update(numbers)

    def correct(self, bookmarks: dict[bytes, int | None], covered: int, page_count: int) -> None:
        """Record how a truncation or an update changes bookmarks.

        Args:
            bookmarks: each with its newest entry's number now, or None.
            page_count: drop the tables of full pages from this one on.
        """
        self._pending.update((key, _GONE if number is None else number) for key, number in bookmarks.items())
        self._pending_covered = covered
        self._sync_next = self._keys_first = True
        for prefix in (TABLE_KEY, SUM_KEY):
            first = prefix + _U64.pack(page_count)
            try:
                stored = self.stored_notes(prefix, first)
            except BookmarksUnavailable:
                stored = {}  # a leftover table does no harm: the file decides
            self.notes.drop(prefix, first, stored)

    def stored_notes(self, prefix: bytes, first: bytes = b"") -> dict[bytes, bytes]:
        """Return the DB's notes with this prefix, from the key `first` on."""
        try:
            stop = prefix[:-1] + bytes((prefix[-1] + 1,))
            with self._guard, self._database.keys.iterator(start=first or prefix, stop=stop) as pairs:
                return dict(pairs)
        except (plyvel.Error, RuntimeError) as error:
            raise BookmarksUnavailable(self.folder, error) from error

    def forget_sums(self) -> None:
        """Drop the checksums of all pages with the next batch."""
        with contextlib.suppress(BookmarksUnavailable):  # readers then do not find them, either
            self.notes.drop(SUM_KEY, SUM_KEY, self.stored_notes(SUM_KEY))

    def put_table(self, page_number: int, table: PageTable) -> None:
        """Store the table of a full page with the next batch. Any thread."""
        self.notes.put(TABLE_KEY + _U64.pack(page_number), encode_table(table))

    @property
    def pending_count(self) -> int:
        """The number of bookmarks that wait for a batch."""
        return len(self._pending)

    def write_pending(self) -> None:
        """Write everything pending and the covered count in one batch.

        Raises:
            BookmarksUnavailable: the DB refused; memory keeps the bookmarks, and `failed` is set.
        """
        self._await_writer()
        batch = self._take_pending()
        if batch is not None:
            self._write(batch)
            self._settle()

    def write_pending_behind(self) -> None:
        """Write everything pending in another thread, after the batch before; without a thread, in this one.

        Raises:
            BookmarksUnavailable: see `write_pending`; also for the batch before.
        """
        self._await_writer()
        batch = self._take_pending()
        if batch is None:
            return
        # Set before the thread runs: after an interruption the DB must not be closed under it.
        self._writer = threading.Thread(target=self._write, args=(batch,), name="bookmarks", daemon=True)
        try:
            self._writer.start()
        except RuntimeError as error:  # too many threads
            self._writer = None
            _logger.debug("%s: %s; a batch is written by this one", self.folder, error)
            self._write(batch)
            self._settle()

    def _take_pending(self) -> Any:
        if self._writing or self._writing_covered is not None or self.notes.is_writing:
            self._take_batch_back()
        if self._pending_covered is None and not self.notes.has_pending:
            return None
        fingerprint = self._fingerprint()
        try:
            self._lock.check()  # LevelDB writes its open files even if the folder is gone
            batch = self._database.write_batch(sync=self._sync_next, keys_first=self._keys_first)
        except (plyvel.Error, OSError, RuntimeError) as error:
            self.failed = True
            raise BookmarksUnavailable(self.folder, error) from error
        put, pack = batch.keys.put, _U64.pack
        kept = self._pending
        last = next(reversed(kept.items()), None)
        if _GONE in kept.values():  # only after a truncation or an update
            kept = {bookmark: number for bookmark, number in kept.items() if number != _GONE}
            for bookmark in self._pending.keys() - kept.keys():
                batch.bookmarks.delete(bookmark)
            last = next(reversed(kept.items()), None) or self._one_that_stays()
            if last is None:
                batch.keys.delete(LAST_KEY)
        any(map(batch.bookmarks.put, kept, map(pack, kept.values())))
        if last is not None:
            put(LAST_KEY, pack(last[1]) + last[0])
        if self._pending_covered is not None:
            put(COVERED_KEY, pack(self._pending_covered))
            if self.was_opened_by_another:
                batch.keys.delete(ANOTHER_KEY)
                self.was_opened_by_another = False
        if fingerprint is not None:
            put(STREAM_KEY, fingerprint)
            put(SUMS_OF_KEY, fingerprint)
        self.notes.add_to(batch.keys)
        # In this order, since readers look into the first, then into the second.
        self._writing = self._pending
        self._pending = {}
        self._sync_next = False
        self._writes_keys_first, self._keys_first = self._keys_first, False
        self._writing_covered, self._pending_covered = self._pending_covered, None
        return batch

    def _one_that_stays(self) -> tuple[bytes, int] | None:
        """Return a bookmark of the DB that the next batch leaves as it is."""
        for _, (bookmark, number) in zip(range(len(self._pending) + 1), self.items(), strict=False):
            if bookmark not in self._pending:
                return bookmark, number
        return None

    def _fingerprint(self) -> bytes | None:
        """Return the fingerprint for the next batch; None keeps the one before."""
        if self._pending_covered is None or self.fingerprint_at is None:
            return None
        try:
            return self.fingerprint_at(self._pending_covered)
        except (OSError, DatastreamError) as error:  # the old one stays: at worst, the index is made anew
            _logger.debug("%s: no fingerprint: %s", self.folder, error)
            return None

    def _write(self, batch: Any) -> None:
        with self._write_guard:
            try:
                batch.write()
            except (plyvel.Error, OSError, RuntimeError) as error:
                self.failed = True
                self._writer_error = error

    def _await_writer(self) -> None:
        if self._join_writer():
            self._settle()

    def _join_writer(self) -> bool:
        """Wait for the writing thread; return whether there was one.

        A batch whose thread never started stays in `_writing`; the next batch includes it.
        """
        writer = self._writer
        has_run = writer is not None and writer.ident is not None
        if writer is not None and has_run:
            writer.join()
        self._writer = None
        return has_run

    def _settle(self) -> None:
        error, self._writer_error = self._writer_error, None
        if error is None:
            if self._writing_covered is not None:
                self._written_covered = self._writing_covered
            self._writing, self._writing_covered = {}, None
            self.notes.written()
            return
        self._take_batch_back()
        self.failed = True
        raise BookmarksUnavailable(self.folder, error) from error

    def _take_batch_back(self) -> None:
        # Merged before it replaces the two, so that readers always find each bookmark.
        self._pending = {**self._writing, **self._pending}
        if self._pending_covered is None:
            self._pending_covered = self._writing_covered
        self.notes.roll_back()
        self._writing, self._writing_covered = {}, None
        self._keys_first |= self._writes_keys_first
        self._sync_next = True  # that batch may have needed a flush

    def put_update_record(self, record: bytes | None) -> None:
        """Write the record of an update in place, flushed; None deletes it.

        Raises:
            BookmarksUnavailable: `failed` is set.
        """
        self._await_writer()
        with self._write_guard:
            try:
                self._lock.check()
                if record is None:
                    self._database.bookmarks.delete(UPDATE_KEY, sync=True)
                else:
                    self._database.bookmarks.put(UPDATE_KEY, record, sync=True)
            except (plyvel.Error, OSError, RuntimeError) as error:
                self.failed = True
                raise BookmarksUnavailable(self.folder, error) from error

    @property
    def written_covered(self) -> int:
        """Number of entries that the DB covers, as far as its batches are written."""
        return self._written_covered or 0

    def put_flushed(self, notes: Mapping[bytes, bytes]) -> None:
        """Write notes at once, and flush all batches so far. Any thread.

        Raises:
            BookmarksUnavailable: the DB refused, or waits to be reopened: LevelDB loses what it appends to a
                log behind a record that was cut.
        """
        with self._write_guard:
            if self.failed:
                raise BookmarksUnavailable(self.folder, "a write failed; the next commit opens it again")
            try:
                self._lock.check()
                self._database.bookmarks.write_batch(sync=True).write()
                batch = self._database.keys.write_batch(sync=True)
                for key, value in notes.items():
                    batch.put(key, value)
                batch.write()
            except (plyvel.Error, OSError, RuntimeError) as error:
                self.failed = True
                raise BookmarksUnavailable(self.folder, error) from error

    def recover(self) -> None:
        """Reopen the DB after a failed write, and write everything pending.

        Raises:
            BookmarksUnavailable: it still cannot be written; or, until the stream is reopened, it is gone or
                lacks entries.
        """
        with contextlib.suppress(BookmarksUnavailable):  # it failed too: its bookmarks are pending again
            self._await_writer()
        self._look_for_room()
        with self._write_guard, self._guard:
            try:
                self._lock.check()  # before closing the DB: a deleted one can still be read
                self._close_database()
                self._lock.renew()
                self._database = IndexDatabase(self.folder, self._open_database)
            except (plyvel.Error, OSError) as error:
                raise BookmarksUnavailable(self.folder, error) from error
        self._refuse_lost_entries()
        self.write_pending()
        self.failed = False

    def _refuse_lost_entries(self) -> None:
        """Close a reopened DB that covers less than before: the next batch would claim more."""
        written, pending = self._written_covered, self._pending_covered
        if written is None:
            return
        expected = written if pending is None else min(written, pending)
        found = 0 if self.lacks_bookmarks else self.covered
        if found is None or found < expected:
            with self._guard:
                self._close_database()
            what = (
                f"it covers {found or 0} entries, expected at least {expected}, as before it was opened again"
            )
            raise BookmarksUnavailable(self.folder, what)

    def doubt(self) -> None:
        """Have the DB reopened after a failed flush of its disk: its log may be lost without notice.

        A reopened LevelDB writes the contents of its log to new files, flushed.
        """
        self.failed = True

    def _look_for_room(self) -> None:
        try:
            with tempfile.TemporaryFile(dir=self.folder.parent) as file:
                file.write(bytes(REOPEN_ROOM_BYTES))
                file.flush()
                os.fdatasync(file.fileno())
        except OSError as error:
            raise BookmarksUnavailable(self.folder, error.strerror or str(error)) from error

    def wipe(self) -> None:
        """Empty the index. Pending notes stay, since they describe the file."""
        with self._write_guard, self._guard:
            self._close_database()
            self._remove_files()
            self._open_after_removal()
        self._pending = {}
        self._pending_covered = self._written_covered = None

    def rebuild(
        self,
        pages: Iterable[tuple[list[tuple[bytes, int]], int]],
        batch_bookmarks: int = REBUILD_BATCH_BOOKMARKS,
    ) -> None:
        """Add the bookmarks of many entries in batches; after a crash, continue behind the last batch.

        Args:
            pages: (bookmarks, number of entries covered after them), in order.
            batch_bookmarks: fewest of a batch, except the last.
        """
        for bookmarks, covered in pages:
            self.record(dict(bookmarks), covered)
            if self.pending_count >= batch_bookmarks:
                self.write_pending()
        self.write_pending()

    def move_keys(self) -> None:
        """Move the keys of an earlier version out of the shared DB; if that fails, the next batch does it."""
        try:
            self._database.move_keys()
        except (plyvel.Error, OSError) as error:
            self.failed = True
            _logger.debug("%s: our keys are not moved yet: %s", self.folder, error)

    def _close_database(self) -> None:
        database, self._database = self._database, _Closed()
        database.close()

    def close(self) -> None:
        """Close the DB, then release all locks; idempotent."""
        try:
            self._join_writer()
            with self._write_guard, self._guard:
                self._close_database()
        finally:
            self._lock.release()
            self._release_others()


def _number(value: bytes | None) -> int | None:
    # A value of another length is not ours; a missing count has the index rebuilt.
    return _U64.unpack(value)[0] if value is not None and len(value) == _U64.size else None


class _Closed:
    def close(self) -> None:
        """Do nothing."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("the bookmark DB is closed")
