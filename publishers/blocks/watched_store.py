"""A disk that remembers what it listed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sluice.publishers.blocks.block_layouts import is_archive_name
from sluice.publishers.blocks.block_places import BlockFileState, LocalStore

__all__ = ["WatchedStore"]

_UNSURE_NS: Final = 2_000_000_000
"""After a change this shortly before a listing another may have the same time: some disks count 2 s."""


class WatchedStore(LocalStore):
    """A disk that tells cheaply whether what it listed has changed."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self._began_ns = 0

    def begin(self) -> None:
        """Forget what was listed: all is listed again."""
        self._seen.clear()
        self._began_ns = time.time_ns()

    def has_changed(self) -> bool:
        """Return whether a folder or an archive may have changed since the listing began."""
        return any(
            changed_ns >= self._began_ns - _UNSURE_NS or _changed_ns(path) != changed_ns
            for path, changed_ns in self._seen.items()
        )

    def walk(self, root: str) -> Iterator[tuple[str, list[str]]]:
        """See `FileStore`."""
        for folder, names in super().walk(root):
            # Later than the listing; a change in between is too near to count as seen.
            self._seen[folder] = _changed_ns(folder)
            yield folder, names

    def state(self, path: str) -> BlockFileState:
        """See `FileStore`."""
        state = super().state(path)
        if is_archive_name(path.rpartition("/")[2]):
            self._seen[path] = state.changed_ns
        return state


def _changed_ns(path: str) -> int:
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return 0
