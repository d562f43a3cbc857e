"""Facts about the file system of an open file.

Source: fstatfs(2); statx(2), STATX_DIOALIGN; mincore(2).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from pathlib import Path

__all__ = [
    "EXT",
    "NETWORK",
    "TMPFS",
    "XFS",
    "file_system_of",
    "flush_folder",
    "has_no_disk",
    "is_cached",
    "takes_direct_writes",
]

EXT = 0xEF53
"""ext2, ext3 and ext4. This and the next two are from <linux/magic.h>."""
TMPFS = 0x01021994
XFS = 0x58465342
NETWORK = (0x6969, 0xFE534D42, 0xFF534D42)
"""NFS, SMB and CIFS: the server may know openers that the local kernel does not."""
_RAMFS = 0x858458F6

_libc = ctypes.CDLL(None)
_statx = getattr(_libc, "statx", None)
_STATFS_SIZE = 256
"""More than `struct statfs` has on any 64-bit machine; its first word is the magic number."""
_STATX_SIZE = 256
_STATX_DIOALIGN = 0x2000
"""Since Linux 6.1; <linux/stat.h> has the offsets in the answer."""
_AT_EMPTY_PATH = 0x1000
_MASK = struct.Struct("=I")
_DIO_ALIGN = struct.Struct("=152x2I")
_OFFSET_ALIGN_MAX = 4096
"""Our direct writes are aligned to this."""


def file_system_of(fd: int) -> int:
    """Return the magic number of an open file's file system; 0 if unknown."""
    answer = ctypes.create_string_buffer(_STATFS_SIZE)
    return 0 if _libc.fstatfs(fd, answer) else ctypes.c_ulong.from_buffer(answer).value


def takes_direct_writes(fd: int) -> bool:
    """Return whether direct writes to an open file go past the page cache; False if unknown.

    An overlay answers for its upper folder's.
    """
    answer = ctypes.create_string_buffer(_STATX_SIZE)
    if _statx is not None and not _statx(fd, b"", _AT_EMPTY_PATH, _STATX_DIOALIGN, answer):
        memory_align, offset_align = _DIO_ALIGN.unpack_from(answer)
        if _MASK.unpack_from(answer)[0] & _STATX_DIOALIGN:
            return bool(memory_align != 0 and offset_align <= _OFFSET_ALIGN_MAX)
    return file_system_of(fd) == XFS  # older kernels do not say so


def has_no_disk(fd: int) -> bool:
    """Return whether a file lives in memory alone: no flush fails, and nothing is below the page cache."""
    return file_system_of(fd) in (TMPFS, _RAMFS)


def is_cached(fd: int, size: int, offset: int) -> bool:
    """Return whether the page cache holds any page of a range; True if unknown.

    Args:
        fd: of a file that this process owns or may write; the kernel tells nobody else.
        size: within the file.
        offset: a multiple of the page size.
    """
    with mmap.mmap(fd, size, access=mmap.ACCESS_COPY, offset=offset) as mapped:
        pages = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
        start = ctypes.c_char.from_buffer(mapped)
        status = _libc.mincore(ctypes.byref(start), ctypes.c_size_t(size), pages)
        del start  # or the map could not be closed
    return bool(status) or any(page & 1 for page in pages.raw)


def flush_folder(folder: Path) -> None:
    """Flush the names in a folder."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
