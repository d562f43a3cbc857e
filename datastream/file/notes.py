"""What a bookmark folder holds beside bookmarks: keys and values that were put and wait for the next batch.

    put ── pending ── add_to(batch) ── writing ── written          each is found all the time
                         └─────── take_back ◄──────┘               where the batch was refused

`bookmarks.py` has the keys. Any thread may put and get; one thread writes batches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from datastream.errors import BookmarksUnavailable

__all__ = ["Notes"]


class Notes:
    """The notes of one folder.

    Args:
        read: reads a key of the DB; raises BookmarksUnavailable.
    """

    def __init__(self, read: Callable[[bytes], bytes | None]) -> None:
        self._read = read
        self._pending: dict[bytes, bytes | None] = {}
        """None stands for a note that is to be deleted."""
        self._writing: dict[bytes, bytes | None] = {}
        self._guard = threading.Lock()

    @property
    def has_pending(self) -> bool:
        """Whether any note waits for a batch."""
        return bool(self._pending)

    @property
    def is_writing(self) -> bool:
        """Whether a batch holds notes of which it is not known whether they were written."""
        return bool(self._writing)

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a note; None without one, also when the DB cannot be read."""
        for notes in (self._pending, self._writing):  # in the order in which a note moves
            try:
                return notes[key]
            except KeyError:
                pass
        try:
            return self._read(key)
        except BookmarksUnavailable:
            return None

    def put(self, key: bytes, value: bytes | None) -> None:
        """Set a note, or with None delete it."""
        with self._guard:
            self._pending[key] = value

    def put_all(self, notes: Mapping[bytes, bytes]) -> None:
        """Set several."""
        with self._guard:
            self._pending.update(notes)

    def drop(self, prefix: bytes, first: bytes, stored: Iterable[bytes]) -> None:
        """Delete the notes whose key has this prefix, from the key `first` on.

        Args:
            stored: the keys of those that are in the DB.
        """
        with self._guard:
            gone = [
                key for key in (*self._pending, *self._writing) if key.startswith(prefix) and key >= first
            ]
            self._pending.update(dict.fromkeys((*gone, *stored)))

    def add_to(self, batch: Any) -> None:
        """Add what is pending to a LevelDB batch; `written` or `take_back` is to follow."""
        with self._guard:
            self._writing = self._pending  # before the next line: a reader finds each all the time
            self._pending = {}
        for key, value in self._writing.items():
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)

    def written(self) -> None:
        """Take note that the batch is in the DB."""
        self._writing = {}

    def take_back(self) -> None:
        """Have what the batch held wait again."""
        with self._guard:
            self._pending = {**self._writing, **self._pending}
        self._writing = {}
