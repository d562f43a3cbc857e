"""The state of an archive, for the node's report. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

__all__ = ["ArchiveState", "room_ends"]

ROOM_SECONDS: Final = 86_400.0
"""Room for longer than this is enough, whatever the archive does."""


class ArchiveState(NamedTuple):
    """The state of one stream's archive."""

    url: str
    archived_pages: int
    behind_pages: int
    """Full pages that are not archived."""
    local_pages: int
    cached_pages: int
    error: str | None
    """The failure of the last upload."""
    read_error: str | None
    disagreement: str | None
    room_ends: str | None
    """The disk fills before the archive catches up: in words."""


def room_ends(samples: Sequence[tuple[float, int, int]], free_pages: int) -> str | None:
    """Return in words when the disk is full, if that is before the archive has caught up; else None. Pure.

    Args:
        samples: (seconds, full pages, archived pages), in order.
        free_pages: room on the disk.
    """
    begin, now = samples[0], samples[-1]
    seconds = now[0] - begin[0]
    if seconds <= 0:
        return None
    growth, progress = ((now[place] - begin[place]) / seconds for place in (1, 2))
    if growth <= 0 or free_pages / growth > ROOM_SECONDS:
        return None
    behind = now[1] - now[2]
    if progress > growth and behind / (progress - growth) < free_pages / growth:
        return None
    minutes = free_pages / growth / 60
    return f"{behind} pages behind, and the disk is full in {minutes:.0f} minutes at the rate of now"
