"""File descriptors: how many this process may have, and which of them are not for clients.

Every client takes one. Without a bound below the limit of the process (`ulimit -n`, often 1,024) clients
could take the last one, and then nothing else gets any: no file of LevelDB, no publisher, no log. A new
descriptor has the lowest free number, so a high number says that few are left, whoever has the others.

Source: datastream/README.md, "Limits".
"""

from __future__ import annotations

import resource

__all__ = ["client_descriptors_end", "descriptors_max", "raise_descriptors_max"]

SPARE_DESCRIPTORS = 64
"""File descriptors that clients cannot have: for files, LevelDB, logs, and whoever else comes."""


def descriptors_max() -> int | None:
    """Return how many descriptors this process may have; None: as many as it wants."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def raise_descriptors_max() -> None:
    """Let this process have as many as it is allowed to ask for; for a program's start, before its threads.

    The low limit is there for programs that use select(2), which we do not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def client_descriptors_end() -> int | None:
    """Return the first descriptor that is not for a client; None: there is none.

    SPARE_DESCRIPTORS are kept, half of all where there are few.
    """
    most = descriptors_max()
    return None if most is None else max(most - SPARE_DESCRIPTORS, most // 2)
