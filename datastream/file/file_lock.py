"""Locks on a stream file itself, so that no two programs write it, by whatever name each knows it.

Both locks, `flock` and an OFD lock, belong to the open file description. So links, bind mounts and
/proc/self/fd lead to the same ones, closing another descriptor drops none of them, and an executed program
does not inherit them (O_CLOEXEC). A forked process shares the description: so the owner unlocks before
closing (`unlock_file`), and a forked process closes it at once (`after_fork`), or it would hold the locks of
a killed parent.

Source: datastream/README.md, "Locks"; flock(2); fcntl(2), "Open file description locks (non-POSIX)" and
"Leases"; proc_locks(5).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import struct
import weakref
from pathlib import Path
from typing import Protocol

from sluice.datastream.errors import StreamFileUnavailable, StreamInUse
from sluice.datastream.file.file_system import NETWORK, file_system_of

__all__ = ["after_fork", "holder_of", "lock_file", "lock_stream_file", "refuse_other_writers", "unlock_file"]

_RECORD = struct.Struct("@hhqqi0q")
"""`struct flock`: kind, whence, start, size (0: to the end), pid."""
_TAKEN = (errno.EAGAIN, errno.EACCES)


class _Forked(Protocol):
    def after_fork(self) -> None:
        """In a forked process: close the parent's descriptors."""


after_fork: weakref.WeakSet[_Forked] = weakref.WeakSet()
"""Holders of locks, for forked processes to close."""


def _begin_fork() -> None:
    for holder in list(after_fork):
        holder.after_fork()


os.register_at_fork(after_in_child=_begin_fork)


def lock_file(fd: int, *, shared: bool) -> None:
    """Take both locks or none, without waiting.

    Args:
        fd: open for writing, unless `shared`.

    Raises:
        BlockingIOError: another opener has one of them.
        OSError: the file system has no locks.
    """
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        _set_ofd_lock(fd, fcntl.F_RDLCK if shared else fcntl.F_WRLCK)
    except OSError as error:
        unlock_file(fd)
        if error.errno in _TAKEN:
            raise BlockingIOError(errno.EAGAIN, "another opener has locked it") from error
        raise


def unlock_file(fd: int) -> None:
    """Release both locks, even if a forked process still has the descriptor."""
    with contextlib.suppress(OSError):
        _set_ofd_lock(fd, fcntl.F_UNLCK)
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_UN)


def _set_ofd_lock(fd: int, kind: int) -> None:
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _RECORD.pack(kind, os.SEEK_SET, 0, 0, 0))


def lock_stream_file(path: Path, fd: int, *, shared: bool) -> None:
    """Lock an open stream file.

    Raises:
        StreamInUse: another opener has locked it.
        StreamFileUnavailable: to write, and the file system has no locks; a reader continues without.
    """
    try:
        lock_file(fd, shared=shared)
    except BlockingIOError as error:
        raise StreamInUse(path, path, holder_of(fd)) from error
    except OSError as error:
        if not shared:
            words = f"its file system has no locks ({error.strerror})"
            words += ", expected one where two writers are kept apart"
            raise StreamFileUnavailable(path, OSError(error.errno, words)) from error


def refuse_other_writers(path: Path) -> None:
    """Refuse a file that any program has open for writing; call this before opening it.

    This refuses nothing if the file belongs to another user, or its file system is a network's or has no
    leases.

    Raises:
        StreamInUse: a program has it open.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if file_system_of(fd) in NETWORK:
            return
        # The kernel signals us when an opener waits for the lease's end; the default signal would end the
        # process.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError as error:
        raise StreamInUse(path, None, holder_of(fd)) from error
    except OSError:
        return
    finally:
        os.close(fd)


def holder_of(fd: int) -> str:
    """Return who else has locked a file or has it open for writing: `process 12 (name)`, or empty."""
    try:
        status = os.fstat(fd)
        pid = _pid_of_lock(status) or _pid_of_writer(status, f"/proc/{os.getpid()}/fd/{fd}")
        if pid == os.getpid():
            return "this process"
        return f"process {pid} ({Path(f'/proc/{pid}/comm').read_text().strip()})" if pid else ""
    except (OSError, ValueError):  # no /proc, or the process has just ended
        return ""


def _pid_of_lock(status: os.stat_result) -> int:
    """Return the process that has locked a file; 0 if unknown, as for OFD locks."""
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for line in Path("/proc/locks").read_text().splitlines():
        # 1: FLOCK ADVISORY WRITE 359 fe:00:11691 0 EOF; with "->" behind the number: it waits
        words = line.split()
        if words[5:6] == [place] and int(words[4]) > 0:
            return int(words[4])
    return 0


def _pid_of_writer(status: os.stat_result, but: str) -> int:
    """Return a process that has a file open for writing, not by descriptor `but`; 0 without any."""
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError, ValueError):
            if str(descriptor) != but and os.path.samestat(descriptor.stat(), status):
                flags = (descriptor.parents[1] / "fdinfo" / descriptor.name).read_text().split("flags:")[1]
                if int(flags.split()[0], 8) & os.O_ACCMODE != os.O_RDONLY:
                    return int(descriptor.parents[1].name)
    return 0
