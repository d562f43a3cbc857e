"""Locks on a bookmark folder's LOCK file, so that no two programs write one stream.

    to write     `flock` and `fcntl`, both exclusive: the Go server takes the first, LevelDB's own library the
                 second, and they do not see each other
    to read      the same two, shared, on a descriptor that cannot write: nothing in the folder is touched

A list in this process keeps out a second opener here: closing any descriptor of a file drops all of the
process's `fcntl` locks on it, so a second opener that fails and closes its own would silently unlock the
first.

Source: wire.md 2.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path

from datastream.errors import BookmarksUnavailable, StreamInUse

__all__ = ["FolderLock", "SharedFolderLock"]

_OPENED_BY_GO = b" db@open "
_LOG_LOOKED_AT_BYTES = 1 << 20
_held: dict[tuple[int, int], int] = {}
"""(device, inode) of the LOCK files that this process holds -> readers, or _WRITER."""
_WRITER = -1
_held_lock = threading.Lock()


def _key_of(lock_path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(lock_path)  # noqa: PTH116 - with each batch of bookmarks, and quicker
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


class FolderLock:
    """Both locks on the LOCK file of a LevelDB folder, held until `release`.

    Raises:
        StreamInUse: another opener has one of them.
        BookmarksUnavailable: the folder or the file cannot be made.
    """

    def __init__(self, stream_path: Path, folder: Path) -> None:
        self._path = lock_path = folder / "LOCK"
        with _held_lock:
            try:
                folder.mkdir(exist_ok=True)
                if _key_of(lock_path) in _held:
                    raise StreamInUse(stream_path, lock_path)
                self._fd = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except OSError as error:
                raise BookmarksUnavailable(folder, error.strerror or str(error)) from error
            _lock(self._fd, fcntl.LOCK_EX, stream_path, lock_path)
            status = os.fstat(self._fd)
            self._key = (status.st_dev, status.st_ino)
            _held[self._key] = _WRITER
        self.was_opened_by_go = _was_opened_by_go(folder)
        """Whether goleveldb was the last to open the folder, before this."""

    def check(self) -> None:
        """Refuse when others no longer meet this lock, because the folder was taken away or made anew.

        Raises:
            OSError: it was.
        """
        found = _key_of(self._path)
        if found != self._key:
            what = "gone" if found is None else "another file"
            raise FileNotFoundError(
                errno.ENOENT, f"LOCK is {what}, expected the one that was locked when the stream was opened"
            )

    def renew(self) -> None:
        """Take the `fcntl` lock again after LevelDB closed its own descriptor, which dropped it.

        Raises:
            OSError: as `check`, or another program has the lock.
        """
        self.check()
        fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def release(self) -> None:
        """Let others in; a second time does nothing."""
        with _held_lock:
            if self._fd >= 0:
                del _held[self._key]
                os.close(self._fd)
                self._fd = -1


class SharedFolderLock:
    """Both locks, shared with other readers; none when there is no LOCK file, which a reader does not make.

    Raises:
        StreamInUse: a writer has one of them.
        BookmarksUnavailable: the file cannot be opened.
    """

    def __init__(self, stream_path: Path, folder: Path) -> None:
        lock_path = folder / "LOCK"
        self._fd = -1
        with _held_lock:
            key = _key_of(lock_path)
            if key is None:
                return
            if _held.get(key) == _WRITER:
                raise StreamInUse(stream_path, lock_path)
            try:
                self._fd = os.open(lock_path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise BookmarksUnavailable(folder, error.strerror or str(error)) from error
            _lock(self._fd, fcntl.LOCK_SH, stream_path, lock_path)
            self._key = key
            _held[key] = _held.get(key, 0) + 1

    def release(self) -> None:
        """Let writers in; a second time does nothing.

        While this process has several readers, the first that ends drops the `fcntl` lock of all; `flock`
        stays, and keeps out the Go server and us.
        """
        with _held_lock:
            if self._fd >= 0:
                _held[self._key] -= 1
                if not _held[self._key]:
                    del _held[self._key]
                os.close(self._fd)
                self._fd = -1


def _was_opened_by_go(folder: Path) -> bool:
    """Look into LevelDB's log for people: our library begins a new one with each opening, Go's goes on."""
    try:
        with (folder / "LOG").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_LOOKED_AT_BYTES))
            return _OPENED_BY_GO in file.read()
    except OSError:
        return False


def _lock(fd: int, kind: int, stream_path: Path, lock_path: Path) -> None:
    """Take both locks, or close `fd` and raise."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
        fcntl.lockf(fd, kind | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if error.errno in (errno.EAGAIN, errno.EACCES):
            raise StreamInUse(stream_path, lock_path) from error
        raise BookmarksUnavailable(lock_path.parent, error.strerror or str(error)) from error
