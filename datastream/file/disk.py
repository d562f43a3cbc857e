"""The disk: the calls that a stream file makes to the operating system.

`Disk` is the interface; `RealDisk` is a file. Tests inject faults here.

`read_past_cache` and `write_past_cache` show the state of the disk, which the page cache hides. They transfer
directly (O_DIRECT). Where the file system refuses direct transfers (tmpfs) or sends them through the cache
(btrfs with checksums), they drop the range from the cache first (POSIX_FADV_DONTNEED). Unlike
`Disk.read_past_cache` and `Disk.rewrite`, they touch nothing beside the range, so they may run beside
commits.

Offsets and sizes of what goes past the cache are multiples of 4,096.

Source: open(2), posix_fadvise(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
from pathlib import Path
from typing import Protocol

from sluice.datastream.file.append_window import AppendWindow
from sluice.datastream.file.file_lock import after_fork, unlock_file
from sluice.datastream.file.file_system import (
    EXT,
    XFS,
    file_system_of,
    flush_folder,
    has_no_disk,
    is_cached,
    takes_direct_writes,
)
from sluice.datastream.layout import page_end, page_number_of

__all__ = [
    "Disk",
    "RealDisk",
    "create_file",
    "drop_cached",
    "open_directly",
    "read_aligned",
    "read_past_cache",
    "write_aligned",
    "write_past_cache",
]

_pwrite = os.pwrite
_BLOCK_SIZE = 4096
_FOLIO_SIZE_MAX = 1 << 21
"""Largest folio of the page cache, which keeps and drops whole folios, aligned to their size."""
_REFRESH_TRIES = 4
"""Another program may write between two tries; its commits are at least 0.2 ms apart."""
_NO_WAY_PAST_CACHE = (
    "a flush failed, and this file system lets nobody read past its page cache: stop, unmount, mount, check"
)
_PUNCH_HOLE = 0x02 | 0x01
"""FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE of <linux/falloc.h>."""
_KEEPING_PLACES = (EXT, XFS)
"""File systems that overwrite bytes in place."""
_fallocate = getattr(ctypes.CDLL(None), "fallocate", None)


class Disk(Protocol):
    """One open file."""

    def pread(self, size: int, offset: int) -> bytes:
        """Return up to `size` bytes from `offset` on; fewer only at the end of the file."""
        ...

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Write all of `data` at `offset`; OSError leaves any part of it written."""
        ...

    def append(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Write as `pwrite`, over zeros past the end of the stream."""
        ...

    def make_room(self, size: int, offset: int) -> None:
        """Make later flushes of this range of zeros faster, or do nothing."""
        ...

    def replace(self, data: bytes, offset: int) -> None:
        """Write all of `data` over other bytes; OSError may lose old and new bytes.

        If possible, sockets that still hold the old bytes keep them.
        """
        ...

    def fdatasync(self) -> None:
        """Flush all writes and the file's size.

        A failed flush leaves in doubt everything written since the last successful one: another flush proves
        nothing. Only `rewrite` helps.
        """
        ...

    def rewrite(self, data: bytes, offset: int) -> None:
        """Write bytes past the page cache, read them back, compare.

        Raises:
            OSError: they are not on the disk, or nothing can tell. Reads return them nonetheless.
        """
        ...

    def discard(self, offset: int) -> None:
        """Make everything from `offset` on zeros, out of the page cache; the size stays.

        The next flush includes it.
        """
        ...

    def read_past_cache(self, size: int, offset: int) -> bytes | None:
        """Return the bytes on the disk, not in the page cache; None if nothing can tell.

        Dirty pages are written first.
        """
        ...

    def refresh(self, size: int, offset: int) -> None:
        """Make reads of a range return the bytes on the disk, if anything can tell.

        Dirty pages are flushed first.

        Raises:
            OSError: reads return something else.
        """
        ...

    def truncate(self, size: int) -> None:
        """Set the size in bytes; added bytes are zeros."""
        ...

    def size(self) -> int:
        """Return the size in bytes."""
        ...

    def has_data(self, offset: int) -> bool:
        """Return whether a byte from `offset` on may be non-zero; only False is certain."""
        ...

    def fileno(self) -> int:
        """Return the file descriptor, for sendfile."""
        ...

    def close(self) -> None:
        """Close the file; idempotent."""
        ...


def drop_cached(fd: int, size: int, offset: int) -> None:
    """Drop the clean pages of a range from the page cache."""
    os.posix_fadvise(fd, offset, size, os.POSIX_FADV_DONTNEED)


def open_directly(fd: int, flags: int) -> int:
    """Open a descriptor's file again, for direct transfers.

    O_DIRECT on the first descriptor would demand that all its reads are aligned.
    """
    return os.open(f"/proc/self/fd/{fd}", flags | os.O_DIRECT | os.O_CLOEXEC)


def read_aligned(direct_fd: int, size: int, offset: int) -> bytes:
    """Read from a descriptor of `open_directly`; fewer bytes only at the end of the file."""
    with mmap.mmap(-1, size) as aligned:
        count = os.preadv(direct_fd, [aligned], offset)
        while 0 < count < size and count % _BLOCK_SIZE == 0:
            with memoryview(aligned) as whole, whole[count:] as rest:
                more = os.preadv(direct_fd, [rest], offset + count)
            if not more:
                break
            count += more
        return aligned[:count]


def write_aligned(direct_fd: int, data: bytes, offset: int) -> int:
    """Write to a descriptor of `open_directly`; return how many bytes the disk took."""
    with mmap.mmap(-1, len(data)) as aligned:
        aligned[:] = data
        return os.pwrite(direct_fd, aligned, offset)


def _open_if_direct(fd: int, flags: int) -> int | None:
    """Open a descriptor's file again; None if direct transfers go through the cache."""
    if not takes_direct_writes(fd):
        return None
    try:
        return open_directly(fd, flags)
    except OSError:
        return None


def read_past_cache(fd: int, size: int, offset: int) -> bytes:
    """Read `size` bytes from the disk; fewer only at the end of the file."""
    direct_fd = _open_if_direct(fd, os.O_RDONLY)
    if direct_fd is None:
        drop_cached(fd, size, offset)
        return os.pread(fd, size, offset)
    try:
        return read_aligned(direct_fd, size, offset)
    finally:
        os.close(direct_fd)


def write_past_cache(fd: int, data: bytes, offset: int) -> None:
    """Write all of `data` to the disk, flushed; the cache holds nothing else."""
    # A reopened descriptor might be writable.
    if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EBADF, "the file is open for reading only")
    direct_fd = _open_if_direct(fd, os.O_WRONLY)
    try:
        written = os.pwrite(fd, data, offset) if direct_fd is None else write_aligned(direct_fd, data, offset)
        if written != len(data):
            raise OSError(errno.EIO, f"{written} of {len(data)} bytes written")
        os.fdatasync(fd)
    finally:
        if direct_fd is not None:
            os.close(direct_fd)


class RealDisk:
    """A file of the operating system.

    Args:
        writable: open it for reading and writing, otherwise for reading only.
    """

    def __init__(self, path: Path, *, writable: bool = True) -> None:
        # Opening a pipe for reading would wait for a writer.
        self._fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(self._fd, True)
        self._is_writable = writable
        self._window = AppendWindow(self._fd, self.pwrite)
        self._keeps_places: bool | None = None
        """True if the file system overwrites in place; None: unknown yet."""
        self.append = self._window.write  # type: ignore[method-assign]
        if writable:
            after_fork.add(self)

    def pread(self, size: int, offset: int) -> bytes:
        """See `Disk.pread`."""
        data = os.pread(self._fd, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        missing = size - len(data)
        while missing and data:
            data = os.pread(self._fd, missing, offset + size - missing)
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """See `Disk.pwrite`."""
        written = _pwrite(self._fd, data, offset)
        if written == len(data):
            return
        with memoryview(data) as rest:
            while written < len(rest):
                count = os.pwrite(self._fd, rest[written:], offset + written)
                if not count:
                    raise OSError(errno.EIO, "the file takes no more bytes")
                written += count

    def append(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """See `Disk.append`."""
        self._window.write(data, offset)

    def make_room(self, size: int, offset: int) -> None:
        """See `Disk.make_room`; writes zeros.

        The first flush of bytes in a hole allocates blocks, so it also writes the journal or the inode; later
        flushes do not. btrfs and ZFS allocate with each write.
        """
        if self._keeps_places is None:
            self._keeps_places = file_system_of(self._fd) in _KEEPING_PLACES
        if self._keeps_places:
            self.pwrite(bytes(size), offset)

    def replace(self, data: bytes, offset: int) -> None:
        """See `Disk.replace`; the new bytes get new pages in memory.

        `sendfile` gives a socket the pages themselves. A direct write removes them from the cache unchanged.
        A hole in a large folio (XFS, ext4 since Linux 6.16) zeros the page that the socket holds. So only
        file systems whose direct writes go through the cache get a hole.
        """
        self._window.forget()
        if takes_direct_writes(self._fd) and self._write_directly(data, offset):
            return
        if self._make_hole(len(data), offset) or not self._write_directly(data, offset):
            self.pwrite(data, offset)

    def _make_hole(self, size: int, offset: int) -> bool:
        if _fallocate is None:
            return False
        done: int = _fallocate(self._fd, _PUNCH_HOLE, ctypes.c_int64(offset), ctypes.c_int64(size))
        return done == 0

    def _write_directly(self, data: bytes, offset: int) -> bool:
        try:
            direct_fd = open_directly(self._fd, os.O_WRONLY)
        except OSError:
            return False
        try:
            return write_aligned(direct_fd, data, offset) == len(data)
        except OSError:
            return False
        finally:
            os.close(direct_fd)

    def fdatasync(self) -> None:
        """See `Disk.fdatasync`."""
        os.fdatasync(self._fd)

    def rewrite(self, data: bytes, offset: int) -> None:
        """See `Disk.rewrite`.

        A direct write drops the cached pages, and the kernel's belief about them. On other file systems the
        pages are dropped first.
        """
        self._window.forget()
        if has_no_disk(self._fd):
            self.pwrite(data, offset)
            return
        folios_size, start = _folios(len(data), offset)
        around = bytearray(self.pread(folios_size, start))
        around[offset - start : offset - start + len(data)] = data
        try:
            if takes_direct_writes(self._fd):
                if not self._write_directly(data, offset):
                    raise OSError(errno.EIO, f"the disk refuses a direct write at offset {offset}")
            else:
                if not self._drop_cached(len(around), start):
                    raise OSError(errno.EBUSY, _NO_WAY_PAST_CACHE)
                self.pwrite(data, offset)
        finally:
            self._keep_cached(around, start)
        os.fdatasync(self._fd)
        found = self.read_past_cache(len(data), offset)
        if found is None:
            raise OSError(errno.EBUSY, _NO_WAY_PAST_CACHE)
        if found != data:
            raise OSError(errno.EIO, f"the disk holds other bytes than it took at offset {offset}")

    def _keep_cached(self, data: bytes | bytearray, offset: int) -> None:
        """Write back what the page cache held: a dropped page took along its folio, perhaps with pages that
        never reached the disk."""
        found = self.pread(len(data), offset)
        for at in range(0, len(data), _BLOCK_SIZE) if found != data else ():
            if found[at : at + _BLOCK_SIZE] != data[at : at + _BLOCK_SIZE]:
                with contextlib.suppress(OSError):
                    self.pwrite(data[at : at + _BLOCK_SIZE], offset + at)

    def discard(self, offset: int) -> None:
        """See `Disk.discard`; if holes are refused, it writes zeros and cuts off whole pages."""
        self._window.forget()
        size = self.size()
        if offset >= size or self._make_hole(size - offset, offset):
            return
        rest_end = page_end(page_number_of(offset - 1))
        if rest_end > offset:
            self.rewrite(bytes(rest_end - offset), offset)
        self.truncate(rest_end)
        self.truncate(size)

    def read_past_cache(self, size: int, offset: int) -> bytes | None:
        """See `Disk.read_past_cache`; reads directly, or drops the cached range and reads again."""
        if has_no_disk(self._fd):
            return None
        if takes_direct_writes(self._fd):
            return self._read_directly(size, offset)
        if not self._is_writable:
            return None  # a dropped page could not be restored
        folios_size, start = _folios(size, offset)
        around = self.pread(folios_size, start)
        if not self._drop_cached(len(around), start):
            return None
        try:
            return self.pread(size, offset)
        finally:
            self._keep_cached(around, start)

    def refresh(self, size: int, offset: int) -> None:
        """See `Disk.refresh`."""
        # A failure of an earlier process: the comparison below finds its losses.
        with contextlib.suppress(OSError):
            os.fdatasync(self._fd)
        for _ in range(_REFRESH_TRIES):
            on_disk = self.read_past_cache(size, offset)
            if on_disk is None or on_disk == self.pread(size, offset):
                return
            self._drop_cached(*_folios(size, offset))
        what = f"the page cache holds other bytes than the disk at offset {offset}, and keeps them"
        raise OSError(errno.EIO, what)

    def _drop_cached(self, size: int, offset: int) -> bool:
        """Flush and drop a range from the page cache; return whether none of it is left.

        Only folios within the range are dropped.
        """
        os.fdatasync(self._fd)
        os.posix_fadvise(self._fd, offset, size, os.POSIX_FADV_DONTNEED)
        size = min(size, self.size() - offset)
        return size <= 0 or not is_cached(self._fd, size, offset)

    def _read_directly(self, size: int, offset: int) -> bytes:
        direct_fd = open_directly(self._fd, os.O_RDONLY)
        try:
            return read_aligned(direct_fd, size, offset)
        finally:
            os.close(direct_fd)

    def truncate(self, size: int) -> None:
        """See `Disk.truncate`."""
        self._window.forget()
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        """See `Disk.size`."""
        return os.fstat(self._fd).st_size

    def has_data(self, offset: int) -> bool:
        """See `Disk.has_data`."""
        try:
            os.lseek(self._fd, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return False
            if error.errno == errno.EINVAL:  # a file system without holes
                return True
            raise
        return True

    def fileno(self) -> int:
        """See `Disk.fileno`."""
        return self._fd

    def close(self) -> None:
        """See `Disk.close`."""
        self._window.forget()
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            unlock_file(fd)
            os.close(fd)

    def after_fork(self) -> None:
        """In a forked process: reopen the file, read-only; only the parent writes."""
        self._window.forget()
        if self._fd >= 0:
            fd = os.open(f"/proc/self/fd/{self._fd}", os.O_RDONLY | os.O_CLOEXEC)
            os.dup2(fd, self._fd, inheritable=False)
            os.close(fd)


def _folios(size: int, offset: int) -> tuple[int, int]:
    start, end = offset - offset % _FOLIO_SIZE_MAX, offset + size
    return end + -end % _FOLIO_SIZE_MAX - start, start


def create_file(path: Path, header_page: bytes, size: int) -> None:
    """Make a sparse file of `size` bytes that begins with `header_page`; `path` appears whole or not at all.

    A crash before the rename leaves only `path` + `.new`, which the next creation deletes.
    """
    new_path = path.with_name(path.name + ".new")
    new_path.unlink(missing_ok=True)  # the kernel may be wrong about its pages
    fd = os.open(new_path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        os.ftruncate(fd, size)
        os.pwrite(fd, header_page, 0)
        os.fsync(fd)
        new_path.rename(path)
    except OSError:
        with contextlib.suppress(OSError):
            new_path.unlink()
        raise
    finally:
        os.close(fd)
    flush_folder(path.parent)  # the name is durable only after that
