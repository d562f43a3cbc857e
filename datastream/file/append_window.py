"""A window of a stream file past its end, mapped into memory: a small commit is a copy, not a system call.

A copy into a mapped page is in the page cache, as after `pwrite`: it survives the end of this process,
`pread` and `sendfile` see it, and `fdatasync` writes it. But where `pwrite` would raise OSError, a copy ends
the process (SIGBUS). So a page is mapped only when nothing can go wrong; otherwise `pwrite` does the work:

  - it has its blocks on the disk (`fallocate`), on a file system that overwrites in place;
  - it is in memory, writable (MADV_POPULATE_WRITE), and stays there (`mlock`);
  - code that cuts the file or punches a hole in it forgets the window first.

A window ends with its data page, so no page beyond the one in use looks written.

Source: mmap(2), madvise(2), mlock(2), fallocate(2).
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
from collections.abc import Callable

from sluice.datastream.file.file_system import EXT, TMPFS, file_system_of
from sluice.datastream.layout import page_end, page_number_of

__all__ = ["AppendWindow"]

_logger = logging.getLogger(__name__)

APPEND_WINDOW_BYTES = 1 << 18
"""Bytes of a window. They are locked in memory, where 8 MiB is the usual limit (RLIMIT_MEMLOCK). A larger
window saves nothing measurable.
"""

_libc = ctypes.CDLL(None, use_errno=True)
_KEEP_SIZE = 0x01
"""FALLOC_FL_KEEP_SIZE of <linux/falloc.h>."""
_MADV_POPULATE_WRITE = 23
"""Of <asm-generic/mman-common.h>, since Linux 5.14."""
_OVERWRITING = (EXT, TMPFS)
"""On other file systems overwriting a page may allocate, which a full disk refuses: btrfs and ZFS always, XFS
after a reflink."""

Bytes = bytes | bytearray | memoryview


class AppendWindow:
    """Writes past the end of one stream file.

    Args:
        fd: open for reading and writing; the caller closes it.
        write_otherwise: writes (data, offset) that cannot go through a window.
    """

    __slots__ = ("_fd", "_is_possible", "_map", "_size", "_start", "_write_otherwise")

    def __init__(self, fd: int, write_otherwise: Callable[[Bytes, int], None]) -> None:
        self._fd = fd
        self._write_otherwise = write_otherwise
        self._is_possible: bool | None = None
        self._map: mmap.mmap | None = None
        self._start = 0
        self._size = 0

    @property
    def range(self) -> tuple[int, int]:
        """Start and end offset of the window; empty without one."""
        return self._start, self._start + self._size

    def write(self, data: Bytes, offset: int) -> None:
        """Write all of `data` at `offset` past the end of the stream, through the window if possible."""
        position = offset - self._start
        end = position + len(data)
        if position >= 0 and end <= self._size:
            self._map[position:end] = data  # type: ignore[index]  # there is a window, as it has a size
        elif self._move(offset, len(data)):
            self.write(data, offset)
        else:
            self._write_otherwise(data, offset)

    def forget(self) -> None:
        """Drop the window; the next write makes another."""
        if self._map is not None:
            self._map.close()
            self._map = None
            self._size = 0

    def _move(self, offset: int, size: int) -> bool:
        """Make a window at `offset`; return whether `size` bytes fit in it."""
        if self._is_possible is None:
            self._is_possible = hasattr(_libc, "fallocate") and file_system_of(self._fd) in _OVERWRITING
        start = offset - offset % mmap.ALLOCATIONGRANULARITY
        end = min(start + APPEND_WINDOW_BYTES, page_end(page_number_of(offset)))
        if not self._is_possible or offset + size > end or end > os.fstat(self._fd).st_size:
            return False
        self.forget()
        try:
            self._map = _map_range(self._fd, start, end - start)
        except OSError as error:
            # For good: a full disk, no locked memory, or too old a kernel.
            _logger.info("appending without a window from offset %d on: %s", offset, error)
            self._is_possible = False
            return False
        self._start, self._size = start, end - start
        return True


def _map_range(fd: int, start: int, size: int) -> mmap.mmap:
    """Map a range of a file so that writes to it cannot fail."""
    _check(_libc.fallocate(fd, _KEEP_SIZE, ctypes.c_int64(start), ctypes.c_int64(size)))
    mapped = mmap.mmap(fd, size, mmap.MAP_SHARED, offset=start)
    try:
        mapped.madvise(_MADV_POPULATE_WRITE)
        # Last: locking absent pages would read them first.
        _check(_libc.mlock(ctypes.c_void_p(_address_of(mapped)), ctypes.c_size_t(size)))
    except OSError:
        mapped.close()
        raise
    return mapped


def _address_of(mapped: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(mapped))


def _check(status: int) -> None:
    if status:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
