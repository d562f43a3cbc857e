"""Reading and writing a file past the page cache: what the disk has, not what memory remembers of it.

A page that is in the page cache hides what became of it on the disk. So the scrubber reads directly
(O_DIRECT), and what heals a page is written directly and read back. Where direct reads are refused (tmpfs),
or go through the cache (btrfs with checksums), the range is dropped from the cache first, which the kernel
does (POSIX_FADV_DONTNEED) for what is clean and not mapped; on tmpfs memory is the disk.

Unlike `Disk.read_past_cache` and `Disk.rewrite` this touches nothing beside the range, so that it may run
beside commits. Offsets and sizes are multiples of 4,096.

Source: open(2), posix_fadvise(2).
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os

from datastream.file_system import takes_direct_writes

__all__ = ["drop_cached", "read_past_cache", "write_past_cache"]


def drop_cached(fd: int, size: int, offset: int) -> None:
    """Have the kernel forget what it holds of a range, as far as that is on the disk."""
    os.posix_fadvise(fd, offset, size, os.POSIX_FADV_DONTNEED)


def _open_directly(fd: int, flags: int) -> int | None:
    """Open the file of a descriptor again, for direct transfers; None where there are none."""
    if not takes_direct_writes(fd):
        return None
    try:
        return os.open(f"/proc/self/fd/{fd}", flags | os.O_DIRECT | os.O_CLOEXEC)
    except OSError:
        return None


def read_past_cache(fd: int, size: int, offset: int) -> bytes:
    """Read `size` bytes from the disk; fewer only at the end of the file.

    Raises:
        OSError: the disk refuses.
    """
    direct_fd = _open_directly(fd, os.O_RDONLY)
    if direct_fd is None:
        drop_cached(fd, size, offset)
        return os.pread(fd, size, offset)
    try:
        with mmap.mmap(-1, size) as aligned:
            count = os.preadv(direct_fd, [aligned], offset)
            return aligned[:count]
    finally:
        os.close(direct_fd)


def write_past_cache(fd: int, data: bytes, offset: int) -> None:
    """Write all of `data` to the disk; it is there on return, and the cache has nothing else.

    Raises:
        OSError: the disk refuses.
    """
    if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:  # opened again, it might be written
        raise OSError(errno.EBADF, "the file is open for reading only")
    direct_fd = _open_directly(fd, os.O_RDWR)
    try:
        if direct_fd is None:
            written = os.pwrite(fd, data, offset)
        else:
            with mmap.mmap(-1, len(data)) as aligned:
                aligned[:] = data
                written = os.pwrite(direct_fd, aligned, offset)
        if written != len(data):
            raise OSError(errno.EIO, f"{written} of {len(data)} bytes written")
        os.fdatasync(fd)
    finally:
        if direct_fd is not None:
            os.close(direct_fd)
