"""File descriptors: how many this process may have, and which of them clients may take.

Near the limit of the process (`ulimit -n`, often 1,024), clients could leave none for LevelDB, publishers or
logs. A new descriptor has the lowest free number, so a high number means that few are left.

Source: datastream/README.md, "Limits".
"""

from __future__ import annotations

import resource

__all__ = ["client_descriptors_end", "descriptors_max", "raise_descriptors_max"]

SPARE_DESCRIPTORS = 64
"""File descriptors kept from clients: for files, LevelDB, logs and others."""


def descriptors_max() -> int | None:
    """Return how many descriptors this process may have; None: no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def raise_descriptors_max() -> None:
    """Raise the limit as far as allowed; call this at a program's start, before its threads.

    The low limit is for programs that use select(2).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def client_descriptors_end() -> int | None:
    """Return the first descriptor that no client may have; None: no limit.

    SPARE_DESCRIPTORS are kept, or half of all if there are few.
    """
    most = descriptors_max()
    return None if most is None else max(most - SPARE_DESCRIPTORS, most // 2)
