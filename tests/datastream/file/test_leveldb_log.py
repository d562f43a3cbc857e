"""Holes in LevelDB's log: LevelDB passes over one that cuts no record; here the index is made anew."""

from __future__ import annotations

from pathlib import Path

import plyvel
import pytest

from datastream.file.bookmarks import has_hole, open_leveldb
from datastream.file.streamer import DataStreamer
from tests.datastream.streams import bookmark, commit

BLOCK = 32_768
HEAD = 7
BATCH_HEAD = 12


def batch_of(size: int, key: bytes) -> dict[bytes, bytes]:
    """One pair whose batch takes so many bytes of a log, head included."""
    # tag, key length, value length of three bytes
    value_size = size - HEAD - BATCH_HEAD - 1 - 1 - len(key) - 3
    return {key: b"v" * value_size}


def log_of(folder: Path, *sizes: int) -> Path:
    """Make a DB whose log has a record for each size; return the log."""
    database = plyvel.DB(str(folder), create_if_missing=True)
    for number, size in enumerate(sizes):
        with database.write_batch() as batch:
            for key, value in batch_of(size, b"key %d" % number).items():
                batch.put(key, value)
    database.close()
    (log,) = folder.glob("*.log")
    return log


def punch(log: Path, start: int, end: int) -> None:
    with log.open("r+b") as file:
        file.seek(start)
        file.write(bytes(end - start))


def keys_of(folder: Path, *, paranoid: bool = True) -> list[bytes]:
    database = plyvel.DB(str(folder), paranoid_checks=paranoid)
    with database.iterator(include_value=False) as keys:
        found = list(keys)
    database.close()
    return found


def test_leveldb_passes_over_a_hole_that_cuts_no_record(tmp_path: Path) -> None:
    """What makes all this necessary."""
    folder = tmp_path / "s.db"
    log = log_of(folder, BLOCK, 20_000, BLOCK - 20_000, 20_000)
    punch(log, BLOCK, BLOCK + 4_096)
    assert has_hole(log.read_bytes())
    with pytest.raises(plyvel.CorruptionError, match=r"\.log has a hole"):
        open_leveldb(str(folder))
    assert keys_of(folder) == [b"key 0", b"key 3"]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 0, False),
        (0, 4_096, True),
        (BLOCK, BLOCK + 7, True),
        (BLOCK + 20_000, BLOCK + 20_007, True),
        (12_288, 16_384, False),  # it cuts a record: LevelDB finds that
        (2 * BLOCK, 3 * BLOCK, False),  # up to the end: the last batches are missing, and what they cover
        (BLOCK, 3 * BLOCK, False),
    ],
)
def test_holes(tmp_path: Path, start: int, end: int, expected: bool) -> None:
    log = log_of(tmp_path / "s.db", BLOCK, 20_000, BLOCK - 20_000, 20_000)
    size = log.stat().st_size
    punch(log, start, min(end, size))
    assert has_hole(log.read_bytes()) is expected


def test_records_of_all_sizes_have_no_hole(tmp_path: Path) -> None:
    """Also with ends of blocks in which no head fits, and records that go over blocks."""
    sizes = [BLOCK - 6, 300, BLOCK - 307, 1, *range(200, 400, 7), 3 * BLOCK, 500, BLOCK - 7]
    log = log_of(tmp_path / "s.db", *(max(size, 300) for size in sizes))
    assert not has_hole(log.read_bytes())
    assert not has_hole(b"")
    assert not has_hole(bytes(100_000))


def test_an_index_with_a_hole_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "s.bin"
    with DataStreamer.open(path, initial_pages=1) as streamer:
        for number in range(3_000):
            commit(streamer, bookmark(number), (1, b"x"))
        streamer._bookmarks.write_pending()
        commit(streamer, bookmark(3_000), flush=True)
        end = streamer.committed.total_entries
    (log,) = path.with_name("s.db").glob("*.log")
    content = log.read_bytes()
    first_size = HEAD + int.from_bytes(content[4:6], "little")
    punch(log, 0, min(first_size, BLOCK))
    assert has_hole(log.read_bytes())
    with DataStreamer.open(path) as streamer:
        found = [streamer.get_bookmark(bookmark(number)[1]) for number in range(3_001)]
        assert found == list(range(0, end, 2))
