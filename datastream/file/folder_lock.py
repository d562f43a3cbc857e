"""Locks on a bookmark folder's LOCK file, so that no two programs write one stream.

Each takes both `flock` and `fcntl`: the Go server takes the first, LevelDB's library the second, and they do
not see each other. Closing any descriptor of a file drops all of the process's `fcntl` locks on it: so a
failing second opener in this process would unlock the first, and a table keeps it out. Shared locks belong to
the open file description (`file_lock.py`). A write lock cannot: LevelDB's library would conflict with it in
its own process.

Source: datastream/README.md, "Locks"; docs/spec/stream-file.md section 3.1.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import threading
from pathlib import Path

from sluice.datastream.errors import BookmarksUnavailable, StreamInUse
from sluice.datastream.file.file_lock import after_fork, holder_of, lock_file, unlock_file

__all__ = [
    "FolderLock",
    "OtherFolderLocks",
    "SharedFolderLock",
    "bookmarks_folder",
    "fork_folder",
    "has_database",
    "link_folder",
    "other_folders",
    "relative_folders",
]

_WRITTEN_BY_GO = (b"=============== ", b" db@open ")
"""goleveldb logs the first on each opening, on each new day and in each new LOG."""
_LOG_LOOKED_AT_BYTES = 1 << 21
"""goleveldb begins a new LOG at 1 MiB."""
_logger = logging.getLogger(__name__)
_held: dict[tuple[int, int], FolderLock] = {}
"""(device, inode) of the LOCK files that this process has locked to write."""
_held_lock = threading.Lock()
_ATTEMPTS = 8


def _key_of(lock_path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(lock_path)  # noqa: PTH116 - with each batch of bookmarks, and quicker
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _key_of_fd(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
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
                    raise StreamInUse(stream_path, lock_path, "this process")
                self._fd = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except OSError as error:
                raise BookmarksUnavailable(folder, error.strerror or str(error)) from error
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise _refusal(error, self._fd, stream_path, lock_path) from error
            self._key = _key_of_fd(self._fd)
            if _key_of(lock_path) != self._key:  # another opener has just deleted it (`OtherFolderLocks`)
                os.close(self._fd)
                raise StreamInUse(stream_path, lock_path)
            _held[self._key] = self
            after_fork.add(self)
        self.was_opened_by_go = _was_opened_by_go(folder)
        """True if goleveldb was the last to open the folder before."""

    def check(self) -> None:
        """Raise OSError if the folder was deleted or replaced: others would miss this lock."""
        found = _key_of(self._path)
        if found != self._key:
            what = "gone" if found is None else "another file"
            raise FileNotFoundError(
                errno.ENOENT, f"LOCK is {what}, expected the one that was locked when the stream was opened"
            )

    def renew(self) -> None:
        """Take the `fcntl` lock again, which LevelDB dropped by closing its descriptor."""
        self.check()
        fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def release(self) -> None:
        """Release the locks; idempotent."""
        with _held_lock:
            if self._fd >= 0:
                del _held[self._key]
                fcntl.flock(self._fd, fcntl.LOCK_UN)  # a forked process may have a copy of it
                os.close(self._fd)
                self._fd = -1

    def after_fork(self) -> None:
        """In a forked process: hold no lock."""
        _held.pop(self._key, None)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class SharedFolderLock:
    """Both locks, shared with other readers; none without a LOCK file."""

    def __init__(self, stream_path: Path, folder: Path) -> None:
        lock_path = folder / "LOCK"
        self._fd = -1
        with _held_lock:
            key = _key_of(lock_path)
            if key is None:
                return
            if key in _held:
                raise StreamInUse(stream_path, lock_path, "this process")
            try:
                self._fd = os.open(lock_path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise BookmarksUnavailable(folder, error.strerror or str(error)) from error
            try:
                lock_file(self._fd, shared=True)
            except OSError as error:
                fd, self._fd = self._fd, -1
                raise _refusal(error, fd, stream_path, lock_path) from error

    def release(self) -> None:
        """Release the locks; idempotent."""
        if self._fd >= 0:
            unlock_file(self._fd)
            os.close(self._fd)
            self._fd = -1


def _refusal(
    error: OSError, fd: int, stream_path: Path, lock_path: Path
) -> StreamInUse | BookmarksUnavailable:
    is_taken = error.errno in (errno.EAGAIN, errno.EACCES)
    holder = holder_of(fd) if is_taken else ""
    os.close(fd)
    if is_taken:
        return StreamInUse(stream_path, lock_path, holder)
    return BookmarksUnavailable(lock_path.parent, f"LOCK: {error.strerror or error}")


# --- the folders of Go programs ----------------------------------------------------------------------------


def bookmarks_folder(stream_path: Path) -> Path:
    """Return the folder of a stream's bookmarks: the path up to the first `.` in the name, plus `.db`."""
    return stream_path.with_name(stream_path.name.split(".", 1)[0] + ".db")


def fork_folder(stream_path: Path) -> Path:
    """Return the folder of the reference's fork: the path up to the last `.` of the name, plus `.db`."""
    name = stream_path.name
    return stream_path.with_name((name.rpartition(".")[0] if "." in name else name) + ".db")


def other_folders(stream_path: Path) -> list[Path]:
    """Return the other folders in which Go programs may keep, and lock, the bookmarks of this file.

    file                     it was given               folder of the reference
    /srv/v1.2/s.a.bin        /srv/v1.2/s.a.bin          /srv/v1.db
                             s.a.bin, in /srv/v1.2      /srv/v1.2/s.db
                             ../v1.2/s.a.bin, in /srv   /srv/.db, see `relative_folders`
                                                        folder of the fork
                             any of them                /srv/v1.2/s.a.db
    """
    # With and without links resolved: a Go program goes by the given words.
    given = stream_path if stream_path.is_absolute() else Path.cwd() / stream_path
    ours = os.path.normpath(bookmarks_folder(given))
    found: dict[str, None] = {}
    for name in (os.path.normpath(given), os.path.realpath(given)):
        path = Path(name)
        for part in (*reversed(path.parents), path):
            if "." in part.name:
                found[str(bookmarks_folder(part))] = None
        found[str(fork_folder(path))] = None
    files = {os.path.normpath(given), os.path.realpath(given)}  # a file may have the name of a folder
    return [Path(name) for name in found if name != ours and name not in files]


def has_database(folder: Path) -> bool:
    """Return whether a folder holds a LevelDB, not just a LOCK."""
    return (folder / "CURRENT").exists()


def link_folder(link: Path, folder: Path) -> bool:
    """Make a relative link to a bookmark folder; return whether it could be made."""
    try:
        link.symlink_to(os.path.relpath(os.path.realpath(folder), os.path.realpath(link.parent)))
    except OSError as error:
        _logger.debug("%s: no link to %s: %s", link, folder, error)
        return False
    return True


def relative_folders(stream_path: Path) -> list[Path]:
    """Return the folders of Go programs that were given `./PATH` or `../PATH`, as far as can be guessed."""
    folders = list(Path(os.path.realpath(stream_path)).parents)
    with contextlib.suppress(FileNotFoundError):  # the working folder is gone
        folders.append(Path.cwd())
    return [folder / ".db" for folder in dict.fromkeys(folders)]


class OtherFolderLocks:
    """Shared locks on the folders that Go programs have for a file, held until `release`.

    They keep out Go programs, which lock exclusively, and none of ours. A writer makes a missing folder with
    only a LOCK, and deletes it in the end if nobody used it. A folder that cannot be made is not locked, nor
    one of `relative_folders` that is missing or in use for another file.

    Args:
        own: the lock on our own folder, which may be one of them under another name; None: to read.
    """

    def __init__(self, stream_path: Path, own: FolderLock | None) -> None:
        self._own = own
        self._locked: dict[Path, int] = {}
        """Folders, each with the descriptor of its LOCK."""
        after_fork.add(self)
        try:
            for folder in other_folders(stream_path):
                self._lock(stream_path, folder, make=own is not None)
            for folder in relative_folders(stream_path):
                with contextlib.suppress(StreamInUse):
                    self._lock(stream_path, folder, make=False)
        except BaseException:
            self.release()
            raise

    def _lock(self, stream_path: Path, folder: Path, *, make: bool) -> None:
        try:
            for _ in range(_ATTEMPTS):  # while others delete it
                if self._is_locked(stream_path, folder, make=make):
                    return
        except OSError as error:
            _logger.debug("%s: %s is not locked: %s", stream_path, folder, error)

    def _is_locked(self, stream_path: Path, folder: Path, *, make: bool) -> bool:
        """Return False only if the folder was deleted meanwhile."""
        lock_path = folder / "LOCK"
        with _held_lock:
            key = _key_of(lock_path)
            if key in _held:
                if _held[key] is self._own:
                    return True
                raise StreamInUse(stream_path, lock_path, "this process")
            if key is None and not make:
                return True
            if key is not None and key in map(_key_of_fd, self._locked.values()):
                return True
            if make:
                folder.mkdir(exist_ok=True)
            fd = os.open(lock_path, os.O_RDONLY | (os.O_CREAT if make else 0) | os.O_CLOEXEC, 0o644)
            try:
                lock_file(fd, shared=True)
            except BlockingIOError as error:
                raise _refusal(error, fd, stream_path, lock_path) from error
            except OSError:
                os.close(fd)
                raise
            self._locked[folder] = fd
            if _key_of(lock_path) == _key_of_fd(fd):
                return True
            os.close(self._locked.pop(folder))
            return False

    def release(self) -> None:
        """Release the locks and delete unused folders; idempotent."""
        while self._locked:
            folder, fd = self._locked.popitem()
            with _held_lock, contextlib.suppress(OSError):
                if [path.name for path in folder.iterdir()] == ["LOCK"] and not os.fstat(fd).st_size:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # no other of ours has it
                    (folder / "LOCK").unlink()
                    folder.rmdir()
            unlock_file(fd)
            os.close(fd)

    def after_fork(self) -> None:
        """In a forked process: hold no locks."""
        while self._locked:
            os.close(self._locked.popitem()[1])


def _was_opened_by_go(folder: Path) -> bool:
    """Return whether goleveldb wrote LevelDB's LOG last: it appends, while our library begins a new one."""
    try:
        with (folder / "LOG").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_LOOKED_AT_BYTES))
            text = file.read()
            return any(mark in text for mark in _WRITTEN_BY_GO)
    except OSError:
        return False
