"""Updates in place and truncations beside readers of the stream.

A reader gets the old entry or the new one, whole: during an update, `Changes.read` and `RangeSender` lay the
new bytes over those of the file. Bytes that the kernel took for a client stay unchanged, too: an update gives
its blocks new pages (`Disk.replace`). A truncation does not: until it is disconnected, a client may receive
zeros or later bytes in place of dropped entries.

Source: datastream/README.md, "Changing what is committed".
"""

from __future__ import annotations

import os
import threading
from collections import deque
from pathlib import Path
from typing import NamedTuple

from sluice.datastream.errors import StreamChanged
from sluice.datastream.file.disk import Disk
from sluice.datastream.file.remote_pages import RemotePages
from sluice.datastream.layout import U64_MAX, page_number_of
from sluice.datastream.limits import RECEIVE_BYTES

__all__ = ["Changes", "Patch", "RangeSender"]

CHANGES_KEPT_MAX = 1_024
"""Changes remembered for active readers; one that missed more begins anew."""


class Patch(NamedTuple):
    """Committed bytes that may not be in the file yet."""

    offset: int
    data: bytes

    @property
    def end(self) -> int:
        """The offset just past the bytes."""
        return self.offset + len(self.data)


class Changes:
    """The changes so far, and the bytes of an unfinished one. One thread changes, any thread reads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Held to announce a change, and to hand bytes to a socket."""
        self.count = 0
        self.remote: RemotePages | None = None
        """Pages that the file has given up; None: none yet."""
        self._patch: Patch | None = None
        self._version = 0
        self._log: deque[tuple[int, int]] = deque(maxlen=CHANGES_KEPT_MAX)
        """(start, end): a reader strictly between them has lost its place."""

    @property
    def patch(self) -> Patch | None:
        """The bytes of an unfinished update."""
        return self._patch

    def begin_update(self, patch: Patch, start: int, end: int) -> None:
        """Show `patch` to readers.

        Args:
            patch: covers the entry; its other bytes are unchanged.
            start, end: offsets of the entry.
        """
        with self.lock:
            self._patch = patch
            self._version += 1
            self._note(start, end)

    def end_update(self) -> None:
        """End the update: its bytes are in the file."""
        # Twice: a reader must not meet the old version without the patch.
        self._version += 1
        self._patch = None
        self._version += 1

    def note_truncation(self, total_length: int) -> None:
        """Note a truncation to `total_length`, with `lock` held and later bytes out of readers' reach."""
        self._note(total_length, U64_MAX)

    def _note(self, start: int, end: int) -> None:
        self._log.append((start, end))
        self.count += 1

    def is_remote(self, offset: int) -> bool:
        """Return whether the file has given up the page of a byte."""
        return self.remote is not None and self.remote.holds(page_number_of(offset))

    def note_release(self, remote: RemotePages, end: int) -> None:
        """Send readers of the pages before `end` to the cache, with `lock` held; then the pages may go."""
        remote.end = end
        self.remote = remote
        self._version += 1  # last: a read that has begun is done again

    def is_disturbed(self, offset: int, seen: int) -> bool:
        """Return whether a reader at `offset`, which has seen `seen` changes, has lost its place."""
        missed = self.count - seen
        if missed > len(self._log):
            return True
        return any(start < offset < end for start, end in list(self._log)[len(self._log) - missed :])

    def read(self, disk: Disk, size: int, offset: int) -> bytes:
        """Read committed bytes, each entry whole, as before or after any update.

        Raises:
            PageUnchecked: the file has given up the page, and it is not in the cache.
        """
        while True:
            version = self._version
            if self.is_remote(offset):
                assert self.remote is not None
                return self.remote.read(size, offset)
            data = disk.pread(size, offset)
            patch = self._patch
            if version == self._version:
                break
        if patch is None or patch.end <= offset or offset + size <= patch.offset:
            return data
        start, end = max(offset, patch.offset), min(offset + size, patch.end)
        new = patch.data[start - patch.offset : end - patch.offset]
        return data[: start - offset] + new + data[end - offset :]


class RangeSender:
    """Sends or reads ranges of a stream file for one client's socket while nothing changes under it."""

    __slots__ = ("_changes", "_disk", "_path", "seen")

    def __init__(self, path: Path, disk: Disk, changes: Changes) -> None:
        self._path = path
        self._disk = disk
        self._changes = changes
        self.seen = changes.count
        """Changes of the stream that the client has seen."""

    def begin(self, seen: int | None = None) -> None:
        """Forget the first `seen` changes, or all; call this before looking up the client's next offset."""
        self.seen = self._changes.count if seen is None else seen

    def check(self, offset: int) -> None:
        """Check that no change concerns a client at `offset`; forget the changes so far.

        Raises:
            StreamChanged: the client has lost its place.
        """
        changes = self._changes
        if self.seen == changes.count:
            return
        with changes.lock:
            self._check(offset)

    def _check(self, offset: int) -> None:
        changes = self._changes
        if self.seen != changes.count:
            if changes.is_disturbed(offset, self.seen):
                raise StreamChanged(self._path, offset)
            self.seen = changes.count

    def read(self, size: int, offset: int) -> bytes:
        """Return up to `size` bytes from `offset` on, for a socket that cannot take them from the file."""
        with self._changes.lock:
            self._check(offset)
            return self._changes.read(self._disk, size, offset)

    def send(self, socket_fd: int, offset: int, size: int) -> int:
        """Send up to `size` bytes from `offset` on; return how many the socket took.

        Args:
            socket_fd: of a non-blocking socket.
            offset: the client's place: everything before it was sent.

        Raises:
            StreamChanged: see `check`.
            PageUnchecked: the file has given up the page, and it is not in the cache.
            BlockingIOError: the socket is full.
            OSError: the client is gone, or the disk fails.
        """
        changes = self._changes
        with changes.lock:
            self._check(offset)
            remote = changes.remote
            if remote is not None and changes.is_remote(offset):
                with remote.lock:
                    return os.sendfile(socket_fd, *remote.place(offset), size)
            patch = changes.patch
            if patch is None or patch.end <= offset or offset + size <= patch.offset:
                return os.sendfile(socket_fd, self._disk.fileno(), offset, size)
            if offset < patch.offset:
                return os.sendfile(socket_fd, self._disk.fileno(), offset, patch.offset - offset)
            return os.write(socket_fd, changes.read(self._disk, min(size, RECEIVE_BYTES), offset))
