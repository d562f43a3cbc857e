"""The C library's memory settings: a process that takes blocks keeps some freed memory for the next.

A shell around mallopt(3). By default glibc returns a block's memory to the kernel and takes it anew for the
next one, with a page fault for each page. Keeping it saves a node a seventh of its processor time for blocks
of 1.5 MB. A process never keeps more than it had in use before.
Source: mallopt(3), M_TRIM_THRESHOLD and M_MMAP_THRESHOLD.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Final

__all__ = ["is_glibc", "keep_freed_memory"]

FREE_MEMORY_KEPT_BYTES: Final = 64 * 1024 * 1024
"""The memory of several blocks under way."""

OWN_MAPPING_BYTES_MIN: Final = 32 * 1024 * 1024
"""A larger piece of memory is returned when freed; glibc's maximum."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_GLIBC: Final = "gnu_get_libc_version"
"""A function of glibc alone: elsewhere these numbers may mean something else."""
_VARIABLES: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")
_TUNABLES: Final = "GLIBC_TUNABLES"


def is_glibc() -> bool:
    """Return whether the C library of this process is glibc."""
    return hasattr(ctypes.CDLL(None), _GLIBC)


def keep_freed_memory(environment: Mapping[str, str]) -> bool:
    """Keep `FREE_MEMORY_KEPT_BYTES` of freed memory in each heap; return whether it does.

    It changes nothing under another C library, or if `environment` configures glibc.
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
