"""The C library's memory settings: a process that takes blocks keeps some freed memory for the next.

A shell around mallopt(3). By default glibc returns free memory at the end of a heap to the kernel from 128
KiB on, and maps each longer piece by itself: the memory of a block is returned with the block and taken anew
for the next one, with a page fault and 4 KiB of zeros for each page. For a block of 1.5 MB that was 520 to
750 faults in the node and 290 in the process that hashes; with kept memory it is 70 to 156, and 2. Without
it, such blocks take the node a sixth more processor time.

A process never keeps more than it had in use before, and memory beyond the limit is returned as ever.
Source: mallopt(3), M_TRIM_THRESHOLD and M_MMAP_THRESHOLD.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Final

__all__ = ["is_glibc", "keep_freed_memory"]

FREE_MEMORY_KEPT_BYTES: Final = 64 * 1024 * 1024
"""Free memory at the end of a heap that stays in the process, for the next block: what several take that are
received, hashed and laid out at once. What is more, as after a very large block, is given back."""

OWN_MAPPING_BYTES_MIN: Final = 32 * 1024 * 1024
"""From here on a piece of memory has a mapping of its own, and is given back as soon as it is freed. This is
the most that glibc takes."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
"""Of <malloc.h>."""
_GLIBC: Final = "gnu_get_libc_version"
"""A function that no other C library has: elsewhere these numbers may mean something else, or nothing."""
_VARIABLES: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")
_TUNABLES: Final = "GLIBC_TUNABLES"


def is_glibc() -> bool:
    """Return whether the C library of this process is glibc."""
    return hasattr(ctypes.CDLL(None), _GLIBC)


def keep_freed_memory(environment: Mapping[str, str]) -> bool:
    """Make this process keep memory that it frees, up to `FREE_MEMORY_KEPT_BYTES` a heap; return whether so.

    It does nothing under another C library than glibc, or where the environment configures glibc.

    Args:
        environment: of the process.
    """
    has_chosen = "glibc.malloc." in environment.get(_TUNABLES, "")
    if has_chosen or not environment.keys().isdisjoint(_VARIABLES) or not is_glibc():
        return False
    libc = ctypes.CDLL(None)
    libc.mallopt.argtypes = (ctypes.c_int, ctypes.c_int)
    told = (
        libc.mallopt(_M_MMAP_THRESHOLD, OWN_MAPPING_BYTES_MIN),
        libc.mallopt(_M_TRIM_THRESHOLD, FREE_MEMORY_KEPT_BYTES),
    )
    return all(told)
