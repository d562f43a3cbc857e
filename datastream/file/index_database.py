"""The two LevelDBs of a bookmark index, as one: bookmarks, which Go programs share, and our own keys.

No write is atomic in both. The order of a batch (`IndexBatch`) makes what our keys say true at any moment, or
detectably too much.

The record of an update is in the shared DB: an earlier version, too, has to finish it. A folder of an earlier
version has all keys there. They count until they are moved, with the first batch.

Source: datastream/README.md, "The file"; docs/spec/stream-file.md section 3.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

try:
    import plyvel
except ModuleNotFoundError:  # the same code under another name, with wheels for later Pythons and for Arm
    import plyvel_next as plyvel

__all__ = [
    "COVERED_KEY",
    "UPDATE_KEY",
    "IndexDatabase",
    "OpenDatabase",
    "has_hole",
    "open_leveldb",
    "own_folder",
    "plyvel",
]

OpenDatabase = Callable[[str], Any]

COVERED_KEY = b"sluice/entries-covered"
UPDATE_KEY = b"sluice/update-under-way!"
_OWN_PREFIX, _OWN_END = b"sluice/", b"sluice0"
"""All our keys lie between these two; none but ours is so long."""
_MOVED_BATCH_KEYS = 4_096

_LOG_BLOCK_SIZE = 32_768
_LOG_HEAD = struct.Struct("<IHB")


def has_hole(log: bytes) -> bool:
    """Return whether a LevelDB log has zeros in place of records, with records behind them.

        file      block of 32,768 bytes | block | ...         the last one may be shorter
        block     record | record | ... | up to 6 zeros, where no head fits
        record    crc u32 | size u16 | type u8, 1 to 4 | data                   little-endian

    LevelDB notices a cut record, but skips zeros that begin where a record ends: batches are gone, and later
    ones claim that the index covers everything. Zeros up to the end are no hole: the last batches take their
    count of covered entries with them. MANIFEST files have the same form.

    Source: LevelDB, doc/log_format.md; LevelDB, db/log_reader.cc: ReadPhysicalRecord of "kZeroType".
    """
    used = len(log.rstrip(b"\0"))
    for start in range(0, used, _LOG_BLOCK_SIZE):
        position, end = start, min(start + _LOG_BLOCK_SIZE, used)
        while position + _LOG_HEAD.size <= end:
            checksum, size, kind = _LOG_HEAD.unpack_from(log, position)
            if not (checksum or size or kind):
                return True
            position += _LOG_HEAD.size + size
    return False


def own_folder(folder: str | Path) -> Path:
    """Return the folder of our keys, inside that of the bookmarks."""
    return Path(folder) / "sluice"


def open_leveldb(folder: str) -> Any:
    """Open or create the LevelDB in a folder.

    Raises:
        plyvel.CorruptionError: also if a log has a hole.
    """
    for pattern in ("*.log", "MANIFEST-*"):
        for path in Path(folder).glob(pattern):
            if has_hole(path.read_bytes()):
                raise plyvel.CorruptionError(f"{path.name} has a hole")
    # Plyvel refuses a name that is not UTF-8.
    return plyvel.DB(os.fsencode(folder), create_if_missing=True, paranoid_checks=True)


class IndexDatabase:
    """Both DBs of a folder.

    Raises:
        plyvel.Error, OSError: one cannot be opened.
    """

    def __init__(self, folder: Path, open_database: OpenDatabase) -> None:
        self._own: Any = None
        self.bookmarks = open_database(str(folder))
        """The shared DB."""
        try:
            own_folder(folder).mkdir(exist_ok=True)
            self._own = open_database(str(own_folder(folder)))
            self.is_old = self.bookmarks.get(COVERED_KEY) is not None
            """True if an earlier version was the last to write: our keys are in the shared DB."""
        except BaseException:
            self.close()
            raise
        self.keys = self.bookmarks if self.is_old else self._own

    def move_keys(self) -> None:
        """Move our keys out of the shared DB, if they are there; after a crash, again."""
        if not self.is_old:
            return
        batch = self._own.write_batch(sync=True)
        for key in _keys_in(self._own):  # older than the earlier version's
            batch.delete(key)
        moved = [key for key in _keys_in(self.bookmarks) if key != UPDATE_KEY]
        for number, key in enumerate(moved, 1):
            batch.put(key, self.bookmarks.get(key))
            if number % _MOVED_BATCH_KEYS == 0:
                batch.write()
                batch = self._own.write_batch(sync=True)
        batch.write()
        batch = self.bookmarks.write_batch(sync=True)
        for key in moved:
            batch.delete(key)
        batch.write()
        self.keys, self.is_old = self._own, False

    def write_batch(self, *, sync: bool, keys_first: bool) -> IndexBatch:
        """Return a batch for both.

        Args:
            keys_first: flush it, and write our keys before bookmarks.
        """
        self.move_keys()
        return IndexBatch(self.bookmarks, self._own, sync=sync, keys_first=keys_first)

    def close(self) -> None:
        """Close both."""
        try:
            self.bookmarks.close()
        finally:
            if self._own is not None:
                self._own.close()


def _keys_in(database: Any) -> list[bytes]:
    with database.iterator(start=_OWN_PREFIX, stop=_OWN_END) as pairs:
        return [key for key, _ in pairs]


class IndexBatch:
    """A batch for both DBs; see `IndexDatabase.write_batch`."""

    def __init__(self, bookmarks: Any, own: Any, *, sync: bool, keys_first: bool) -> None:
        self.bookmarks = bookmarks.write_batch(sync=sync or keys_first)
        self.keys = own.write_batch(sync=sync or keys_first)
        self._flush = bookmarks.write_batch(sync=True) if keys_first else None

    def write(self) -> None:
        """Write it."""
        if self._flush is None:
            self.bookmarks.write()
            self.keys.write()
        else:
            self._flush.write()  # bookmarks of earlier batches, which the count includes
            self.keys.write()
            self.bookmarks.write()
