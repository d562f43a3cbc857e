"""Opening a LevelDB whose log has no hole: LevelDB itself may pass over one in silence.

    file      block of 32,768 bytes | block | ...         the last one may be shorter
    block     record | record | ... | up to 6 zeros, where no head fits
    record    crc u32 | size u16 | type u8, 1 to 4 | data                   little-endian

A log is not flushed with each batch, so a power failure, or a disk that refused, may leave zeros in it where
batches were, with later ones behind them. LevelDB finds that where a record is cut. Where one ends just
before the zeros, it takes them for room that was never used, and goes on with the next block: batches are
gone, and later ones say that the index covers everything. Zeros up to the end are no hole: the last batches
are missing, and the count of covered entries with them. MANIFEST files have the same form.

Source: LevelDB, doc/log_format.md; LevelDB, db/log_reader.cc: ReadPhysicalRecord of "kZeroType".
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import plyvel

__all__ = ["has_hole", "open_leveldb"]

_BLOCK_SIZE = 32_768
_HEAD = struct.Struct("<IHB")


def has_hole(log: bytes) -> bool:
    """Tell whether there are zeros in the place of records, and something behind them."""
    used = len(log.rstrip(b"\0"))
    for start in range(0, used, _BLOCK_SIZE):
        position, end = start, min(start + _BLOCK_SIZE, used)
        while position + _HEAD.size <= end:
            checksum, size, kind = _HEAD.unpack_from(log, position)
            if not (checksum or size or kind):
                return True
            position += _HEAD.size + size
    return False


def open_leveldb(folder: str) -> Any:
    """Open the LevelDB in a folder, or make one there.

    Raises:
        plyvel.CorruptionError: it is damaged, or a log has a hole.
        plyvel.Error, OSError: it cannot be opened.
    """
    for pattern in ("*.log", "MANIFEST-*"):
        for path in Path(folder).glob(pattern):
            if has_hole(path.read_bytes()):
                raise plyvel.CorruptionError(f"{path.name} has a hole")
    # Its name as bytes: a file name need not be UTF-8, and plyvel refuses a text that is none.
    return plyvel.DB(os.fsencode(folder), create_if_missing=True, paranoid_checks=True)
