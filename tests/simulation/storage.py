"""The storage that survives a crash: disk of the stream file, bookmark DB, chain snapshot; and its faults."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sluice.datastream.file.bookmarks import COVERED_KEY, bookmarks_folder
from sluice.datastream.file.index_database import own_folder, plyvel
from sluice.datastream.layout import (
    ENTRY_HEAD,
    HEADER_OFFSET,
    HEADER_PAGE_SIZE,
    HEADER_SIZE,
    PACKET_PADDING,
    StreamHeader,
    encode_header_page,
    file_size_of,
    page_end,
    page_number_of,
)
from sluice.gateway.blocks.stream_layout import BLOCK_END_TYPE
from sluice.gateway.store.chain_file import SNAPSHOT_NAME
from sluice.gateway.store.evidence import STREAM_FILE_NAME
from tests.datastream.fake_disk import MemoryDisk, PowerLost

CRASH_KINDS = ("none", "all", "prefix", "sectors", "sectors")
"""What a power failure may do to unflushed writes."""
PROCESS_ENDS = "process"


class MemoryDatabase:
    """A LevelDB in memory, as far as the bookmark index uses it.

    A batch is whole or absent. A power failure may lose batches that were written without `sync`, the newest
    first.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.pairs: dict[bytes, bytes] = {}
        self._durable: dict[bytes, bytes] = {}
        self._unsynced: list[list[tuple[bytes, bytes | None]]] = []

    def get(self, key: bytes) -> bytes | None:
        return self.pairs.get(key)

    def put(self, key: bytes, value: bytes, *, sync: bool) -> None:
        self.apply([(key, value)], sync=sync)

    def delete(self, key: bytes, *, sync: bool) -> None:
        self.apply([(key, None)], sync=sync)

    def write_batch(self, *, sync: bool = False) -> MemoryBatch:
        return MemoryBatch(self, sync)

    @contextlib.contextmanager
    def iterator(self, start: bytes = b"", stop: bytes | None = None) -> Iterator[Any]:
        yield iter(
            [
                (key, self.pairs[key])
                for key in sorted(self.pairs)
                if key >= start and (not stop or key < stop)
            ]
        )

    def close(self) -> None:
        """Do nothing."""

    def apply(self, changes: list[tuple[bytes, bytes | None]], *, sync: bool) -> None:
        """Write a batch, unless the disk refuses."""
        self._storage.step("database")
        _change(self.pairs, changes)
        self._unsynced.append(changes)
        if sync:
            self._durable = dict(self.pairs)
            self._unsynced.clear()

    def lose_power(self, how: str, rng: random.Random) -> None:
        count = {"none": 0, "all": len(self._unsynced)}.get(how, rng.randrange(len(self._unsynced) + 1))
        for changes in self._unsynced[:count]:
            _change(self._durable, changes)
        self.pairs = dict(self._durable)
        self._unsynced.clear()

    def wipe(self) -> None:
        """Forget everything: the files were deleted."""
        self.pairs, self._durable = {}, {}
        self._unsynced.clear()


def _change(pairs: dict[bytes, bytes], changes: list[tuple[bytes, bytes | None]]) -> None:
    for key, value in changes:
        if value is None:
            pairs.pop(key, None)
        else:
            pairs[key] = value


class MemoryBatch:
    def __init__(self, database: MemoryDatabase, sync: bool) -> None:
        self._database = database
        self._sync = sync
        self._changes: list[tuple[bytes, bytes | None]] = []

    def put(self, key: bytes, value: bytes) -> None:
        self._changes.append((key, value))

    def delete(self, key: bytes) -> None:
        self._changes.append((key, None))

    def write(self) -> None:
        self._database.apply(self._changes, sync=self._sync)


class Storage:
    """The disk of one node over all its lives.

    Args:
        folder: a real, empty one, for the lock file and the chain's snapshot.
        pages: data pages of the new stream; 0 makes the first commit grow the file.
    """

    def __init__(self, folder: Path, pages: int) -> None:
        self.folder = folder
        page = encode_header_page(StreamHeader(1, 137, 1, HEADER_PAGE_SIZE, 0))
        self.disk = MemoryDisk.of(page + bytes(file_size_of(pages) - len(page)))
        self.disk.fail = self._failure
        self.bookmarks = MemoryDatabase(self)
        self.keys = MemoryDatabase(self)
        """The DB of our own keys beside the bookmarks."""
        self.faults: dict[str, int] = {}
        """The errno of each failing step: "pwrite", "fdatasync", "truncate", "database", "probe"."""
        self.fault_passes = 0
        """Such steps that still succeed."""
        self.fault_count = 0
        self.power_fails_after: int | None = None
        """Steps until the power fails; None: it does not."""
        self.only_process_ends = False
        self.is_dead = False
        """Its process is gone: nothing that is left of it can write."""
        self.pause: Callable[[], None] = lambda: None
        """Called before each flush, to let other things happen."""

    @property
    def durable(self) -> bytes | bytearray:
        """The stream file after a power failure that lost every unflushed write."""
        return self.disk._durable

    def open_database(self, folder: str) -> MemoryDatabase:
        """Open a DB of the bookmark folder, empty if its files were deleted."""
        self.step("open")
        marker = Path(folder) / "CURRENT"
        database = self.bookmarks if marker.parent.suffix else self.keys
        if not marker.exists():
            marker.touch()
            database.wipe()
        return database

    def step(self, name: str) -> None:
        """Count a step; refuse it when the disk does.

        Raises:
            PowerLost: now.
            plyvel.IOError: the disk refuses.
        """
        error = self._failure(name)
        if error is not None:
            raise plyvel.IOError(str(error))

    def probe(self) -> None:
        """Replace the file that the store's probe writes.

        Raises:
            OSError: the disk refuses.
        """
        error = self._failure("probe")
        if error is not None:
            raise error

    def _failure(self, name: str) -> OSError | None:
        if name == "fdatasync":
            self.pause()
        if self.is_dead:
            return OSError(errno.EIO, "the process is gone")
        if self.power_fails_after is not None:
            if self.power_fails_after <= 0:
                raise PowerLost
            self.power_fails_after -= 1
        number = self.faults.get(name)
        if number is None:
            return None
        if self.fault_passes:
            self.fault_passes -= 1
            return None
        self.fault_count += 1
        return OSError(number, os.strerror(number))

    def end_process(self) -> None:
        self.is_dead = True

    @contextlib.contextmanager
    def header_gone_back(self) -> Iterator[int | None]:
        """Let the header count fewer blocks than the index covers, as after a lost write.

        Gives the number of entries that it counts; None: the index covers no more. Only the header decides
        which, so the rest of the run stays the same.
        """
        header = bytes(self.disk.cache[HEADER_OFFSET : HEADER_OFFSET + HEADER_SIZE])
        keys = own_folder(bookmarks_folder(self.folder / STREAM_FILE_NAME))
        is_there = (keys / "CURRENT").exists()  # a crash may come after a rebuild deleted it
        covered = int.from_bytes(self.keys.pairs.get(COVERED_KEY, b""), "big") if is_there else 0
        ends = [end for end in self._block_ends() if end[1] < covered]
        rng = random.Random(header)
        # Opening would flush what is unflushed, perhaps the right header too.
        if not ends or self.faults or self.disk._unflushed or rng.random() < 0.5:
            yield None
            return
        older = header[: -2 * 8] + struct.pack(">QQ", *rng.choice(ends))
        for image in (self.disk.cache, self.disk._durable):
            image[HEADER_OFFSET : HEADER_OFFSET + HEADER_SIZE] = older
        try:
            yield int.from_bytes(older[-8:], "big")
        finally:
            for image in (self.disk.cache, self.disk._durable):
                image[HEADER_OFFSET : HEADER_OFFSET + HEADER_SIZE] = header

    def _block_ends(self) -> Iterator[tuple[int, int]]:
        """Yield (length, entries) of the stream without blocks, and up to the end of each but the last."""
        content = self.disk.cache
        length = int.from_bytes(content[HEADER_OFFSET + 22 : HEADER_OFFSET + 30], "big")
        offset = HEADER_PAGE_SIZE
        if length > offset:
            yield offset, 0
        while offset < length:
            packet_type, size, entry_type, number = ENTRY_HEAD.unpack_from(content, offset)
            if packet_type == PACKET_PADDING:  # or entries that never reached the disk
                offset = page_end(page_number_of(offset))
                continue
            offset += size
            if entry_type == BLOCK_END_TYPE and offset < length:
                yield offset, number + 1

    def crash(self, how: str, rng: random.Random) -> None:
        """Leave on the disk what a crash leaves.

        Args:
            how: see `MemoryDisk.image_after_crash`; or PROCESS_ENDS, which keeps unflushed writes readable
                and unflushed.
        """
        self.power_fails_after = None
        self.is_dead = False
        if how == PROCESS_ENDS:
            self.disk.evict(rng)
            return
        self.disk = MemoryDisk.of(self.disk.image_after_crash(how, rng))
        self.disk.fail = self._failure
        self.bookmarks.lose_power(how, rng)
        self.keys.lose_power(how, rng)
        snapshot = self.folder / SNAPSHOT_NAME
        if how != "all" and snapshot.exists():
            text = snapshot.read_bytes()
            # It is never flushed: whole, cut off, empty or gone.
            if rng.random() < 0.3:
                snapshot.unlink()
            else:
                snapshot.write_bytes(text[: rng.choice([len(text), rng.randrange(len(text) + 1), 0])])
