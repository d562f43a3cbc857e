"""The bookmark index: a LevelDB folder beside the stream file, with both locks.

    key 1 to 16 bytes        value u64 big-endian: number of the newest entry with that bookmark
    key COVERED_KEY (22 B)   value u64 big-endian: how many entries of the stream this index covers

Invariants
  - It is an index: what it lacks is added from the stream, and what it says is checked against the stream.
  - A batch holds its bookmarks and the new count of covered entries, so both are there or neither.
  - While we have the folder open, nobody else has: `flock` keeps the Go server out, `fcntl` LevelDB's C++
    library, and a list in this process keeps out a second opener here. The last is needed because closing
    any descriptor of a file drops all of the process's `fcntl` locks on it: a second opener that fails and
    closes its own would silently unlock the first.

Source: wire.md 2.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import struct
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import plyvel

from datastream.errors import BookmarksUnavailable, StreamInUse
from datastream.limits import BOOKMARK_SIZE_MAX, REBUILD_BATCH_BOOKMARKS

__all__ = ["COVERED_KEY", "BookmarkIndex", "OpenDatabase", "bookmarks_folder"]

_logger = logging.getLogger(__name__)
COVERED_KEY = b"sluice/entries-covered"
assert len(COVERED_KEY) > BOOKMARK_SIZE_MAX  # no bookmark can have this key
_U64 = struct.Struct(">Q")
_DATABASE_FILES = ("CURRENT", "LOG", "LOG.old", "MANIFEST-*", "*.ldb", "*.sst", "*.log", "*.dbtmp")

_held: set[tuple[int, int]] = set()
"""(device, inode) of the LOCK files that this process holds."""
_held_lock = threading.Lock()

OpenDatabase = Callable[[str], Any]
"""Opens the LevelDB in a folder; a test gives one that fails."""


def _open_leveldb(folder: str) -> Any:
    return plyvel.DB(folder, create_if_missing=True)


def bookmarks_folder(stream_path: Path) -> Path:
    """Return the folder of a stream's bookmarks: the path up to the first `.` in the name, plus `.db`."""
    return stream_path.with_name(stream_path.name.split(".", 1)[0] + ".db")


class _FolderLock:
    """Both locks on the LOCK file of a LevelDB folder, held until `release`."""

    def __init__(self, stream_path: Path, folder: Path) -> None:
        lock_path = folder / "LOCK"
        with _held_lock:
            try:
                folder.mkdir(exist_ok=True)
                if lock_path.exists():
                    status = lock_path.stat()
                    if (status.st_dev, status.st_ino) in _held:
                        raise StreamInUse(stream_path, lock_path)
                self._fd = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except OSError as error:
                raise BookmarksUnavailable(folder, error.strerror or str(error)) from error
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(self._fd)
                if error.errno in (errno.EAGAIN, errno.EACCES):
                    raise StreamInUse(stream_path, lock_path) from error
                raise BookmarksUnavailable(folder, error.strerror or str(error)) from error
            status = os.fstat(self._fd)
            self._key = (status.st_dev, status.st_ino)
            _held.add(self._key)

    def renew(self) -> None:
        """Take the `fcntl` lock again after LevelDB closed its own descriptor, which dropped it."""
        fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def release(self) -> None:
        """Let others in; a second time does nothing."""
        with _held_lock:
            if self._key in _held and self._fd >= 0:
                _held.discard(self._key)
                os.close(self._fd)
                self._fd = -1


class BookmarkIndex:
    """The bookmarks of one stream, locked for this opener.

    One thread writes, any may read. Bookmarks that were recorded but not yet written to the DB are found too.

    Args:
        stream_path: the stream file; the folder is found from its name.
        open_database: opens the LevelDB.

    Raises:
        StreamInUse: another opener has the folder.
        BookmarksUnavailable: the folder or the DB cannot be opened.
    """

    def __init__(self, stream_path: Path, open_database: OpenDatabase = _open_leveldb) -> None:
        self.folder = bookmarks_folder(stream_path)
        self._open_database = open_database
        self._pending: dict[bytes, int] = {}
        self._pending_covered: int | None = None
        self._guard = threading.Lock()
        """Held while the DB is read or exchanged."""
        self._database: Any = None
        self.failed = False
        """A write failed: the DB has to be opened again before the next."""
        self._lock = _FolderLock(stream_path, self.folder)
        try:
            self._open()
        except BaseException:
            self._lock.release()
            raise

    def _open(self) -> None:
        """Open the DB; a damaged one is replaced by an empty one, which opening the stream then fills."""
        try:
            self._database = self._open_database(str(self.folder))
        except plyvel.CorruptionError as error:
            _logger.warning("%s: the bookmark DB is damaged (%s); it is made anew", self.folder, error)
            self._remove_files()
            self._open_after_removal()
        except (plyvel.Error, OSError) as error:
            raise BookmarksUnavailable(self.folder, str(error)) from error

    def _open_after_removal(self) -> None:
        try:
            self._lock.renew()
            self._database = self._open_database(str(self.folder))
        except (plyvel.Error, OSError) as error:
            raise BookmarksUnavailable(self.folder, str(error)) from error

    def _remove_files(self) -> None:
        """Delete LevelDB's files, all but LOCK, which we hold."""
        try:
            for pattern in _DATABASE_FILES:
                for path in self.folder.glob(pattern):
                    path.unlink()
        except OSError as error:
            raise BookmarksUnavailable(self.folder, error.strerror or str(error)) from error

    # --- reading -----------------------------------------------------------------------------------------

    def get(self, bookmark: bytes) -> int | None:
        """Return the number of the newest entry with this bookmark, None without one; the caller checks it.

        Raises:
            BookmarksUnavailable: the DB cannot be read.
        """
        number = self._pending.get(bookmark)
        if number is not None:
            return number
        return self._get_number(bookmark)

    @property
    def covered(self) -> int | None:
        """How many entries the DB covers; None when it does not say."""
        return self._get_number(COVERED_KEY)

    def _get_number(self, key: bytes) -> int | None:
        with self._guard:
            try:
                value = self._database.get(key)
            except (plyvel.Error, RuntimeError) as error:
                raise BookmarksUnavailable(self.folder, str(error)) from error
        # A value of another length is not ours; the index is rebuilt when the count is missing.
        return _U64.unpack(value)[0] if value is not None and len(value) == _U64.size else None

    def highest_number(self, count_max: int) -> int | None:
        """Return the highest entry number of up to `count_max` bookmarks; None when there is none.

        Raises:
            BookmarksUnavailable: the DB cannot be read.
        """
        highest: int | None = None
        try:
            with self._guard, self._database.iterator() as pairs:
                for _, (key, value) in zip(range(count_max + 1), pairs, strict=False):
                    if len(key) <= BOOKMARK_SIZE_MAX and len(value) == _U64.size:
                        number = _U64.unpack(value)[0]
                        highest = number if highest is None else max(highest, number)
        except (plyvel.Error, RuntimeError) as error:
            raise BookmarksUnavailable(self.folder, str(error)) from error
        return highest

    # --- writing: one thread -----------------------------------------------------------------------------

    def record(self, bookmarks: Iterable[tuple[bytes, int]], covered: int) -> None:
        """Take in bookmarks of entries that are committed; they are found from now on.

        Args:
            bookmarks: (bookmark, entry number), oldest first.
            covered: how many entries the index covers with them.
        """
        self._pending.update(bookmarks)
        self._pending_covered = covered

    @property
    def pending_count(self) -> int:
        """Number of bookmarks that are not in the DB yet."""
        return len(self._pending)

    def write_pending(self) -> None:
        """Write what was recorded in one batch, and the count of covered entries with it.

        Raises:
            BookmarksUnavailable: the DB refused; what was recorded is kept and found, `failed` is set.
        """
        if self._pending_covered is None:
            return
        try:
            with self._database.write_batch() as batch:
                for bookmark, number in self._pending.items():
                    batch.put(bookmark, _U64.pack(number))
                batch.put(COVERED_KEY, _U64.pack(self._pending_covered))
        except (plyvel.Error, OSError, RuntimeError) as error:
            self.failed = True
            raise BookmarksUnavailable(self.folder, str(error)) from error
        self._pending = {}  # not cleared: a reader may hold the old one
        self._pending_covered = None

    def recover(self) -> None:
        """Open the DB again after a failed write, and write what is pending.

        Raises:
            BookmarksUnavailable: it still cannot be written.
        """
        with self._guard:
            self._close_database()
            try:
                self._lock.renew()
                self._database = self._open_database(str(self.folder))
            except (plyvel.Error, OSError) as error:
                raise BookmarksUnavailable(self.folder, str(error)) from error
        self.write_pending()
        self.failed = False

    def wipe(self) -> None:
        """Empty the index."""
        with self._guard:
            self._close_database()
            self._remove_files()
            self._open_after_removal()
        self._pending = {}
        self._pending_covered = None

    def rebuild(self, pages: Iterable[tuple[list[tuple[bytes, int]], int]]) -> None:
        """Add the bookmarks of many entries, batch by batch; a crash goes on after the last batch.

        Args:
            pages: (bookmarks, number of entries covered after them), in order.
        """
        for bookmarks, covered in pages:
            self.record(bookmarks, covered)
            if self.pending_count >= REBUILD_BATCH_BOOKMARKS:
                self.write_pending()
        self.write_pending()

    def _close_database(self) -> None:
        database, self._database = self._database, _Closed()
        database.close()

    def close(self) -> None:
        """Close the DB, then let go of both locks; a second time does nothing."""
        with self._guard:
            self._close_database()
        self._lock.release()


class _Closed:
    """Stands where a DB was: reading says that it is closed."""

    def get(self, key: bytes) -> bytes | None:
        """Refuse."""
        raise RuntimeError("the bookmark DB is closed")

    def write_batch(self) -> Any:
        """Refuse."""
        raise RuntimeError("the bookmark DB is closed")

    def close(self) -> None:
        """Do nothing."""
