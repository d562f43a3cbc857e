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

from datastream.file.file_system import takes_direct_writes

__all__ = [
    *("drop_cached", "open_directly", "read_aligned", "read_past_cache", "write_aligned"),
    "write_past_cache",
]

_BLOCK_SIZE = 4096


def drop_cached(fd: int, size: int, offset: int) -> None:
    """Have the kernel forget what it holds of a range, as far as that is on the disk."""
    os.posix_fadvise(fd, offset, size, os.POSIX_FADV_DONTNEED)


def open_directly(fd: int, flags: int) -> int:
    """Open the file of a descriptor again, for direct transfers.

    With O_DIRECT on the first descriptor, reads meanwhile would have to be aligned, too.

    Raises:
        OSError: the file system has none, or there are no descriptors left.
    """
    return os.open(f"/proc/self/fd/{fd}", flags | os.O_DIRECT | os.O_CLOEXEC)


def read_aligned(direct_fd: int, size: int, offset: int) -> bytes:
    """Read from a descriptor of `open_directly`; fewer bytes only at the end of the file.

    Raises:
        OSError: the disk cannot be read.
    """
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
    """Write to a descriptor of `open_directly`; return how many bytes the disk took.

    Raises:
        OSError: it takes none.
    """
    with mmap.mmap(-1, len(data)) as aligned:
        aligned[:] = data
        return os.pwrite(direct_fd, aligned, offset)


def _open_if_direct(fd: int, flags: int) -> int | None:
    """Open the file of a descriptor again; None where direct transfers do not go past the cache."""
    if not takes_direct_writes(fd):
        return None
    try:
        return open_directly(fd, flags)
    except OSError:
        return None


def read_past_cache(fd: int, size: int, offset: int) -> bytes:
    """Read `size` bytes from the disk; fewer only at the end of the file.

    Raises:
        OSError: the disk refuses.
    """
    direct_fd = _open_if_direct(fd, os.O_RDONLY)
    if direct_fd is None:
        drop_cached(fd, size, offset)
        return os.pread(fd, size, offset)
    try:
        return read_aligned(direct_fd, size, offset)
    finally:
        os.close(direct_fd)


def write_past_cache(fd: int, data: bytes, offset: int) -> None:
    """Write all of `data` to the disk; it is there on return, and the cache has nothing else.

    Raises:
        OSError: the disk refuses.
    """
    if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:  # opened again, it might be written
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
