"""Changes of what is committed, under the eyes of readers: updates in place and truncations.

A reader never sees half of an update:

    reads      `read` lays the new bytes over what it read while they are being written, and reads again when
               a change began or ended meanwhile; so it gets the entry whole, as it was or as it is now
    sendfile   `RangeSender.send` looks for changes and sends under one lock, which a change takes to announce
               itself; while the bytes are being written it sends the new ones from memory. A client that has
               one half of the entry, or entries that were truncated, has to begin anew (StreamChanged)

What the kernel has taken for a client stays as it was, too: an update gives its blocks new pages
(`Disk.replace`) instead of changing those that a socket may still hold. A truncation does not: what a client
receives of the dropped entries before its connection ends may be zeros, or bytes of those that took their
place.

Source: docs/spec/stream-file.md section 2; datastream/README.md, "Invariants".
"""

from __future__ import annotations

import os
import threading
from collections import deque
from pathlib import Path
from typing import NamedTuple

from datastream.errors import StreamChanged
from datastream.file.disk import Disk
from datastream.layout import U64_MAX
from datastream.limits import RECEIVE_BYTES

__all__ = ["Changes", "Patch", "RangeSender"]

CHANGES_KEPT_MAX = 1_024
"""Updates and truncations that are remembered for readers under way; one that missed more begins anew."""


class Patch(NamedTuple):
    """Bytes that are committed, but perhaps not in the file yet."""

    offset: int
    data: bytes

    @property
    def end(self) -> int:
        """The offset just past the bytes."""
        return self.offset + len(self.data)


class Changes:
    """What was changed, and the bytes of a change that is under way. One thread changes, any may read."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Held while a change announces itself, and while bytes are handed to a socket."""
        self.count = 0
        """How many changes there were."""
        self._patch: Patch | None = None
        self._version = 0
        self._log: deque[tuple[int, int]] = deque(maxlen=CHANGES_KEPT_MAX)
        """(start, end): a reader whose offset lies between, both excluded, has lost its place."""

    @property
    def patch(self) -> Patch | None:
        """The bytes of an update that is not finished."""
        return self._patch

    def begin_update(self, patch: Patch, start: int, end: int) -> None:
        """Show `patch` to readers from now on.

        Args:
            patch: covers the entry; what it holds beside the entry is as it was.
            start: offset of the entry.
            end: offset just past it.
        """
        with self.lock:
            self._patch = patch
            self._version += 1
            self._note(start, end)

    def end_update(self) -> None:
        """The bytes are in the file."""
        # Twice: who read before the bytes were all there must not meet the same version without the patch.
        self._version += 1
        self._patch = None
        self._version += 1

    def note_truncation(self, total_length: int) -> None:
        """What lies past `total_length` is gone; `lock` is held, and no reader can reach it anew."""
        self._note(total_length, U64_MAX)

    def _note(self, start: int, end: int) -> None:
        self._log.append((start, end))
        self.count += 1

    def is_disturbed(self, offset: int, seen: int) -> bool:
        """Whether a reader that reached `offset` when there were `seen` changes has lost its place."""
        missed = self.count - seen
        if missed > len(self._log):
            return True
        return any(start < offset < end for start, end in list(self._log)[len(self._log) - missed :])

    def read(self, disk: Disk, size: int, offset: int) -> bytes:
        """Read committed bytes, with each entry whole, before or after any update."""
        while True:
            version = self._version
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
    """Sends ranges of a stream file to the socket of one client, as long as they are what it began with."""

    __slots__ = ("_changes", "_disk", "_path", "_seen")

    def __init__(self, path: Path, disk: Disk, changes: Changes) -> None:
        self._path = path
        self._disk = disk
        self._changes = changes
        self._seen = changes.count

    def begin(self) -> None:
        """Forget the past: the client stands nowhere. Call this before its next offset is looked up."""
        self._seen = self._changes.count

    def check(self, offset: int) -> None:
        """Take in that the client stands at `offset`; what changed before this does not concern it later.

        Raises:
            StreamChanged: the client has lost its place.
        """
        changes = self._changes
        if self._seen == changes.count:
            return
        with changes.lock:
            self._check(offset)

    def _check(self, offset: int) -> None:
        changes = self._changes
        if self._seen != changes.count:
            if changes.is_disturbed(offset, self._seen):
                raise StreamChanged(self._path, offset)
            self._seen = changes.count

    def send(self, socket_fd: int, offset: int, size: int) -> int:
        """Send up to `size` bytes from `offset` on; return how many the socket took.

        Args:
            socket_fd: of a non-blocking socket.
            offset: where the client stands: what lies before was sent to it.

        Raises:
            StreamChanged: the client has lost its place.
            BlockingIOError: the socket takes nothing now.
            OSError: the client is gone, or the disk fails.
        """
        changes = self._changes
        with changes.lock:
            self._check(offset)
            patch = changes.patch
            if patch is None or patch.end <= offset or offset + size <= patch.offset:
                return os.sendfile(socket_fd, self._disk.fileno(), offset, size)
            if offset < patch.offset:
                return os.sendfile(socket_fd, self._disk.fileno(), offset, patch.offset - offset)
            return os.write(socket_fd, changes.read(self._disk, min(size, RECEIVE_BYTES), offset))
