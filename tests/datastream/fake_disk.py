"""Disks that lie: one in memory that keeps unflushed writes and tears them, and one that fails on demand."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from datastream.disk import Disk

SECTOR_SIZE = 512


class PowerLost(BaseException):
    """The machine stopped; nothing that runs may catch this."""


@dataclass
class MemoryDisk:
    """A disk whose writes are on it only after a flush.

    `crash_at` counts calls that change something; the machine stops before that call (0: the first).
    """

    cache: bytearray = field(default_factory=bytearray)
    crash_at: int | None = None
    steps: list[str] = field(default_factory=list)
    fail: Callable[[str], OSError | None] = lambda step: None
    _durable: bytearray = field(default_factory=bytearray)
    _unflushed: list[tuple[int, bytes | None]] = field(default_factory=list)
    """(offset, bytes), or (size, None) for a truncation."""

    @classmethod
    def of(cls, image: bytes) -> MemoryDisk:
        """Return a disk that holds `image`, flushed."""
        return cls(cache=bytearray(image), _durable=bytearray(image))

    def pread(self, size: int, offset: int) -> bytes:
        """Read what the page cache holds."""
        return bytes(self.cache[offset : offset + size])

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Write to the page cache."""
        self._step("pwrite")
        self._write(data, offset)

    def append(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Write in two parts: a process may be killed while it copies into a mapped page."""
        self._step("append")
        half = len(data) // 2
        self._write(data[:half], offset)
        self._step("append, second half")
        self._write(data[half:], offset + half)

    def _write(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        if len(self.cache) < offset + len(data):
            self.cache.extend(bytes(offset + len(data) - len(self.cache)))
        self.cache[offset : offset + len(data)] = data
        self._unflushed.append((offset, bytes(data)))

    def make_room(self, size: int, offset: int) -> None:
        """Write zeros."""
        self._step("make_room")
        self._write(bytes(size), offset)

    def replace(self, data: bytes, offset: int) -> None:
        """Make a hole, then write, as a real disk does."""
        self.pwrite(bytes(len(data)), offset)
        self.pwrite(data, offset)

    def fdatasync(self) -> None:
        """Flush; one that fails forgets what was written and not flushed, as Linux does, but no size."""
        try:
            self._step("fdatasync")
        except OSError:
            self._unflushed = [change for change in self._unflushed if change[1] is None]
            raise
        # Only what is dirty: what a failed flush forgot does not come back with the next one.
        for offset, data in self._unflushed:
            if data is None:
                _resize(self._durable, offset)
            else:
                if len(self._durable) < offset + len(data):
                    _resize(self._durable, offset + len(data))
                self._durable[offset : offset + len(data)] = data
        self._unflushed.clear()

    def truncate(self, size: int) -> None:
        """Cut or extend."""
        self._step("truncate")
        _resize(self.cache, size)
        self._unflushed.append((size, None))

    def size(self) -> int:
        """Return the size in bytes."""
        return len(self.cache)

    def has_data(self, offset: int) -> bool:
        """Whether anything but zeros is at or after `offset`."""
        return self.cache.count(0, offset) != len(self.cache) - offset

    def fileno(self) -> int:
        """Refuse: there is no file."""
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def close(self) -> None:
        """Do nothing."""

    def image_after_crash(self, how: str, rng: random.Random) -> bytes:
        """Return what is on the disk after the power failed now.

        Args:
            how: which unflushed writes reached it: "none", "all", "prefix" (in order, the last cut at any
                byte) or "sectors" (any of their sectors). What lies inside one sector is whole or absent.
        """
        image = bytearray(self._durable)
        last = rng.randrange(len(self._unflushed) + 1) if how == "prefix" else len(self._unflushed)
        for position, (offset, data) in enumerate(self._unflushed):
            if how == "none" or position > last:
                break
            if data is None:
                _resize(image, offset)
                continue
            inside_sector = offset // SECTOR_SIZE == (offset + len(data) - 1) // SECTOR_SIZE
            if how == "sectors":
                _write_sectors(image, offset, data, rng)
            elif how == "all" or position < last:
                _write(image, offset, data)
            elif not inside_sector:
                _write(image, offset, data[: rng.randrange(len(data) + 1)])
        return bytes(image)

    def _step(self, name: str) -> None:
        if self.crash_at is not None and len(self.steps) >= self.crash_at:
            raise PowerLost
        self.steps.append(name)
        error = self.fail(name)
        if error is not None:
            raise error


def _resize(image: bytearray, size: int) -> None:
    del image[size:]
    image.extend(bytes(size - len(image)))


def _write(image: bytearray, offset: int, data: bytes) -> None:
    """Write what lies inside the file: a size that was not flushed hides the rest."""
    end = min(len(image), offset + len(data))
    image[offset:end] = data[: max(0, end - offset)]


def _write_sectors(image: bytearray, offset: int, data: bytes, rng: random.Random) -> None:
    position = 0
    while position < len(data):
        end = min(len(data), position + SECTOR_SIZE - (offset + position) % SECTOR_SIZE)
        if rng.random() < 0.5:
            _write(image, offset + position, data[position:end])
        position = end


@dataclass
class FailingDisk:
    """A disk that refuses chosen calls and passes on the others.

    `plan` says what becomes of the next calls of a method: None works, an errno fails. ENOSPC while writing
    writes the first half, as a disk that gets full does.
    """

    below: Disk
    plan: dict[str, list[int | None]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

    def _next(self, name: str) -> int | None:
        self.calls.append(name)
        planned = self.plan.get(name)
        return planned.pop(0) if planned else None

    def pread(self, size: int, offset: int) -> bytes:
        """Pass on."""
        return self.below.pread(size, offset)

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Write, or fail after a half."""
        number = self._next("pwrite")
        if number is not None:
            if number == errno.ENOSPC:
                self.below.pwrite(bytes(data[: len(data) // 2]), offset)
            raise OSError(number, os.strerror(number))
        self.below.pwrite(data, offset)

    def append(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Write, or fail after a half."""
        number = self._next("append")
        if number is not None:
            self.below.append(data[: len(data) // 2], offset)
            raise OSError(number, os.strerror(number))
        self.below.append(data, offset)

    def make_room(self, size: int, offset: int) -> None:
        """Pass on, or fail after a half; not among the `calls`, as commits do not depend on it."""
        planned = self.plan.get("make_room")
        number = planned.pop(0) if planned else None
        if number is not None:
            self.below.make_room(size // 2, offset)
            raise OSError(number, os.strerror(number))
        self.below.make_room(size, offset)

    def replace(self, data: bytes, offset: int) -> None:
        """Write or fail."""
        self.pwrite(data, offset)

    def fdatasync(self) -> None:
        """Flush or fail."""
        number = self._next("fdatasync")
        if number is not None:
            raise OSError(number, os.strerror(number))
        self.below.fdatasync()

    def truncate(self, size: int) -> None:
        """Set the size or fail."""
        number = self._next("truncate")
        if number is not None:
            raise OSError(number, os.strerror(number))
        self.below.truncate(size)

    def size(self) -> int:
        """Pass on."""
        return self.below.size()

    def has_data(self, offset: int) -> bool:
        """Pass on."""
        return self.below.has_data(offset)

    def fileno(self) -> int:
        """Pass on."""
        return self.below.fileno()

    def close(self) -> None:
        """Pass on."""
        self.below.close()
