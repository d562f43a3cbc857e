"""Disks that lie: one in memory that keeps unflushed writes and tears them, and one that fails on demand.

After a failed flush they lie like ext4 over a former hole: the page cache holds the written bytes and takes
them for flushed, and later writes to these blocks through the cache never reach the disk. A direct write
does. Cutting a block off or making it a hole ends the lie.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from sluice.datastream.file.disk import Disk

SECTOR_SIZE = 512
BLOCK_SIZE = 4096


class PowerLost(BaseException):
    """The machine stopped; no code under test may catch this."""


@dataclass
class MemoryDisk:
    """A disk whose writes reach it only with a flush.

    `crash_at` counts changing calls; the machine stops before that call (0: the first).
    """

    cache: bytearray = field(default_factory=bytearray)
    crash_at: int | None = None
    steps: list[str] = field(default_factory=list)
    fail: Callable[[str], OSError | None] = lambda step: None
    _durable: bytearray = field(default_factory=bytearray)
    _unflushed: list[tuple[int, bytes | None]] = field(default_factory=list)
    _past_cache: set[int] = field(default_factory=set)
    """Writes past the page cache, by identity: a failed flush does not forget them."""
    lost: set[int] = field(default_factory=set)
    """Numbers of blocks whose flush failed: writes to them through the cache are lost."""

    @classmethod
    def of(cls, image: bytes) -> MemoryDisk:
        return cls(cache=bytearray(image), _durable=bytearray(image))

    def pread(self, size: int, offset: int) -> bytes:
        return bytes(self.cache[offset : offset + size])

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        self._step("pwrite")
        self._write(data, offset)

    def append(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Write in two parts, as a process may be killed while it copies into a mapped page."""
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
        self._step("make_room")
        self._write(bytes(size), offset)

    def replace(self, data: bytes, offset: int) -> None:
        self.pwrite(bytes(len(data)), offset)
        self._find_again(len(data), offset)
        self.pwrite(data, offset)

    def fdatasync(self) -> None:
        """Flush; like Linux, a failed flush forgets unflushed writes, but no size."""
        try:
            self._step("fdatasync")
        except OSError:
            self.forget()
            raise
        for offset, data in self._reaching():
            if data is None:
                _resize(self._durable, offset)
            else:
                if len(self._durable) < offset + len(data):
                    _resize(self._durable, offset + len(data))
                self._durable[offset : offset + len(data)] = data
        self._unflushed.clear()
        self._past_cache.clear()

    def forget(self) -> None:
        """Take all unflushed writes for written, as after a failed flush."""
        kept = []
        for change in self._unflushed:
            offset, data = change
            if data is None or id(change) in self._past_cache:
                kept.append(change)
            elif data:
                self.lost.update(range(offset // BLOCK_SIZE, (offset + len(data) - 1) // BLOCK_SIZE + 1))
        self._unflushed = kept

    def _reaching(self) -> Iterator[tuple[int, bytes | None]]:
        """Yield the unflushed writes that can reach the disk: none to lost blocks."""
        for change in self._unflushed:
            offset, data = change
            if data is None or id(change) in self._past_cache or not self.lost:
                yield change
                continue
            position = 0
            while position < len(data):
                block = (offset + position) // BLOCK_SIZE
                end = min(len(data), (block + 1) * BLOCK_SIZE - offset)
                if block not in self.lost:
                    yield offset + position, data[position:end]
                position = end

    def evict(self, rng: random.Random) -> None:
        """Drop some pages taken for written, as a kernel short of memory does."""
        dirty = {
            block
            for offset, data in self._unflushed
            for block in range(offset // BLOCK_SIZE, (offset + len(data or b"") - 1) // BLOCK_SIZE + 1)
        }
        for block in sorted(self.lost - dirty):
            if rng.random() < 0.3:
                start, size = block * BLOCK_SIZE, len(self.cache)
                on_disk = self._durable[start : start + BLOCK_SIZE]
                self.cache[start : start + BLOCK_SIZE] = on_disk.ljust(min(BLOCK_SIZE, size - start), b"\0")
                self.lost.discard(block)

    def _find_again(self, size: int, offset: int) -> None:
        """Drop a range from the cache, which ends its lie."""
        self.lost -= set(range(offset // BLOCK_SIZE, -(-(offset + size) // BLOCK_SIZE)))

    def _write_past_cache(self, data: bytes, offset: int) -> None:
        self._find_again(len(data), offset)
        self._write(data, offset)
        self._past_cache.add(id(self._unflushed[-1]))

    def rewrite(self, data: bytes, offset: int) -> None:
        assert offset % BLOCK_SIZE == len(data) % BLOCK_SIZE == 0
        self._step("pwrite")
        self._write_past_cache(data, offset)
        self.fdatasync()
        assert self._durable[offset : offset + len(data)] == data

    def discard(self, offset: int) -> None:
        assert offset % BLOCK_SIZE == 0
        self._step("discard")
        if offset < len(self.cache):
            self._write_past_cache(bytes(len(self.cache) - offset), offset)

    def read_past_cache(self, size: int, offset: int) -> bytes | None:
        """Write what can reach the disk, and read the disk."""
        if not self._unflushed:
            return bytes(self._durable[offset : offset + size])
        return self.image_after_crash("all", random.Random(0))[offset : offset + size]

    def refresh(self, size: int, offset: int) -> None:
        with contextlib.suppress(OSError):
            self.fdatasync()
        on_disk = self.read_past_cache(size, offset)
        if on_disk != bytes(self.cache[offset : offset + size]):
            self.cache[offset : offset + size] = on_disk or b""
            self._find_again(size, offset)

    def truncate(self, size: int) -> None:
        self._step("truncate")
        _resize(self.cache, size)
        self.lost = {block for block in self.lost if block * BLOCK_SIZE < size}
        self._unflushed.append((size, None))

    def size(self) -> int:
        return len(self.cache)

    def has_data(self, offset: int) -> bool:
        return self.cache.count(0, offset) != len(self.cache) - offset

    def fileno(self) -> int:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def close(self) -> None:
        """Do nothing."""

    def image_after_crash(self, how: str, rng: random.Random) -> bytes:
        """Return the disk after a power failure now.

        Args:
            how: which unflushed writes reached it: "none", "all", "prefix" (in order, the last cut at any
                byte, or at a sector where the disk has data) or "sectors" (any of their sectors, each whole).
        """
        image, changes = bytearray(self._durable), list(self._reaching())
        last = rng.randrange(len(changes) + 1) if how == "prefix" else len(changes)
        for position, (offset, data) in enumerate(changes):
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
                _write(image, offset, data[: self._cut(offset, rng.randrange(len(data) + 1))])
        return bytes(image)

    def _cut(self, offset: int, size: int) -> int:
        """Return `size`, or less if a write of so much would tear a sector with data, which no disk does."""
        over = (offset + size) % SECTOR_SIZE
        start = offset + size - over
        return max(0, size - over) if over and any(self._durable[start : start + SECTOR_SIZE]) else size

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
    """Write the bytes that lie inside the file: an unflushed size hides the rest."""
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

    `plan` lists the outcomes of a method's next calls: None works, an errno fails. ENOSPC writes the first
    half.
    """

    below: Disk
    plan: dict[str, list[int | None]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

    def _next(self, name: str) -> int | None:
        self.calls.append(name)
        planned = self.plan.get(name)
        return planned.pop(0) if planned else None

    def pread(self, size: int, offset: int) -> bytes:
        return self.below.pread(size, offset)

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        number = self._next("pwrite")
        if number is not None:
            if number == errno.ENOSPC:
                self.below.pwrite(bytes(data[: len(data) // 2]), offset)
            raise OSError(number, os.strerror(number))
        self.below.pwrite(data, offset)

    def append(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        number = self._next("append")
        if number is not None:
            self.below.append(data[: len(data) // 2], offset)
            raise OSError(number, os.strerror(number))
        self.below.append(data, offset)

    def make_room(self, size: int, offset: int) -> None:
        """Not among the `calls`, as commits do not depend on it."""
        planned = self.plan.get("make_room")
        number = planned.pop(0) if planned else None
        if number is not None:
            self.below.make_room(size // 2, offset)
            raise OSError(number, os.strerror(number))
        self.below.make_room(size, offset)

    def replace(self, data: bytes, offset: int) -> None:
        self.pwrite(data, offset)

    def fdatasync(self) -> None:
        self._flush_or_fail()
        self.below.fdatasync()

    def rewrite(self, data: bytes, offset: int) -> None:
        self._flush_or_fail()
        self.below.rewrite(data, offset)

    def _flush_or_fail(self) -> None:
        number = self._next("fdatasync")
        if number is not None:
            if isinstance(self.below, MemoryDisk):
                self.below.forget()
            raise OSError(number, os.strerror(number))

    def discard(self, offset: int) -> None:
        self.below.discard(offset)

    def read_past_cache(self, size: int, offset: int) -> bytes | None:
        return self.below.read_past_cache(size, offset)

    def refresh(self, size: int, offset: int) -> None:
        self.below.refresh(size, offset)

    def truncate(self, size: int) -> None:
        number = self._next("truncate")
        if number is not None:
            raise OSError(number, os.strerror(number))
        self.below.truncate(size)

    def size(self) -> int:
        return self.below.size()

    def has_data(self, offset: int) -> bool:
        return self.below.has_data(offset)

    def fileno(self) -> int:
        return self.below.fileno()

    def close(self) -> None:
        self.below.close()
