"""The record of an interrupted update: it counts only for its own, unchanged stream."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from sluice.datastream.file.bookmarks import UPDATE_KEY, BookmarkIndex
from sluice.datastream.file.disk import RealDisk
from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.file.updating import record_for
from sluice.datastream.layout import BOOKMARK_TYPE, PAGE_SIZE, StreamHeader
from tests.datastream.fake_disk import MemoryDisk, PowerLost
from tests.datastream.file.test_updating import ITEMS
from tests.datastream.streams import Item, change_database, commit, entries


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.bin"


@pytest.mark.parametrize(
    ("record", "found"),
    [(None, False), (b"short", False), ((5000, 2), True), ((5001, 2), False), ((5000, 3), False)],
)
def test_a_record_counts_for_the_totals_it_was_made_for(record: Any, found: bool) -> None:
    if isinstance(record, tuple):
        record = b"".join(number.to_bytes(8, "big") for number in (*record, 4096)) + b"blocks"
    disk = MemoryDisk.of(bytes(4096 + PAGE_SIZE))
    patch = record_for(record, StreamHeader(1, 137, 1, 5000, 2), disk)
    assert (patch == (4096, b"blocks")) if found else (patch is None)


class KilledDisk(RealDisk):
    """A file whose process ends before or during the replacement of blocks."""

    sectors: tuple[int, ...] = ()

    def replace(self, data: bytes, offset: int) -> None:
        for sector in self.sectors:
            self.pwrite(data[512 * sector : 512 * sector + 512], offset + 512 * sector)
        raise PowerLost


def kill_in_update(path: Path, number: int, entry_type: int, data: bytes, *sectors: int) -> None:
    """Leave an update with its record and only these sectors of its blocks on disk."""
    disk = KilledDisk(path)
    disk.sectors = sectors
    streamer = DataStreamer.open(path, disk=disk)
    with pytest.raises(PowerLost):
        streamer.update_entry_data(number, entry_type, data)
    streamer._bookmarks.close()
    disk.close()


def make_two(path: Path, first: tuple[Item, ...], second: tuple[Item, ...]) -> tuple[Path, Path]:
    paths = path.with_name("s.1.bin"), path.with_name("s.2.bin")
    for one, items in zip(paths, (first, second), strict=True):
        with DataStreamer.open(one, initial_pages=1) as streamer:
            commit(streamer, *items)
    return paths


def test_an_update_of_one_stream_is_not_finished_in_another(path: Path) -> None:
    """Not even with the same folder and totals."""
    paths = make_two(path, ((1, b"A" * 600),) * 20, ((1, b"B" * 600),) * 20)
    kill_in_update(paths[0], 3, 1, b"C" * 600, 5)
    before = paths[1].read_bytes()
    for read_only in (True, False):
        with DataStreamer.open(paths[1], read_only=read_only) as streamer:
            assert list(streamer.read_entries(0)) == entries(*((1, b"B" * 600),) * 20)
    assert paths[1].read_bytes() == before
    # The record outlived the new index.
    with DataStreamer.open(paths[0]) as streamer:
        assert list(streamer.read_entries(0)) == entries(
            *((1, b"A" * 600),) * 3, (1, b"C" * 600), *((1, b"A" * 600),) * 16
        )


@pytest.mark.parametrize("place", [0, 6])
def test_a_difference_outside_the_blocks_is_seen_too(path: Path, place: int) -> None:
    """Both streams have the same blocks around the entry."""
    items = ((1, b"A" * 9000),) * 7
    other = (*items[:place], (1, b"B" * 9000), *items[place + 1 :])
    paths = make_two(path, items, other)
    kill_in_update(paths[0], 3, 1, b"C" * 9000)
    with DataStreamer.open(paths[1]) as streamer:
        assert list(streamer.read_entries(0)) == entries(*other)


@pytest.mark.parametrize("sectors", [(), (0,), (1, 2, 7), tuple(range(8))])
@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_an_update_with_some_of_its_sectors_is_finished(
    path: Path, number: int, sectors: tuple[int, ...]
) -> None:
    """Also in the first and last bytes, which identify the stream."""
    items: list[Item] = [(BOOKMARK_TYPE, b"a"), (1, b"one" * 500), (1, b"x" * 3000), (BOOKMARK_TYPE, b"z")]
    with DataStreamer.open(path, initial_pages=1) as streamer:
        commit(streamer, *items)
    kind, data = items[number]
    items[number] = kind, b"c" * len(data)
    kill_in_update(path, number, *items[number], *sectors)
    with DataStreamer.open(path) as streamer:
        assert list(streamer.read_entries(0)) == entries(*items)
        assert streamer._bookmarks.update_record is None


def test_a_record_that_an_earlier_version_left_is_followed(path: Path) -> None:
    """It names its stream by the totals alone."""
    with DataStreamer.open(path, initial_pages=1) as streamer:
        commit(streamer, (1, b"one"))
        totals = streamer.committed
    block = path.read_bytes()[4096:8192].replace(b"one", b"two")
    change_database(
        path.with_name("s.db"), **{UPDATE_KEY.decode(): struct.pack(">QQQ", *totals, 4096) + block}
    )
    with DataStreamer.open(path) as streamer:
        assert list(streamer.read_entries(0)) == entries((1, b"two"))


@pytest.mark.parametrize("size", range(8, 60))
def test_a_record_that_was_cut_does_not_count(path: Path, size: int) -> None:
    with DataStreamer.open(path, initial_pages=1) as streamer:
        commit(streamer, (1, b"one"))
    kill_in_update(path, 0, 1, b"two")
    index = BookmarkIndex(path)
    record = index.update_record
    assert record is not None
    index.put_update_record(record[:size])
    index.close()
    with DataStreamer.open(path) as streamer:
        assert list(streamer.read_entries(0)) == entries((1, b"one"))


@pytest.mark.parametrize("number", [0, 1, 2, 6])
def test_a_changed_stream_is_still_that_of_its_index(
    path: Path, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    with DataStreamer.open(path, initial_pages=3) as streamer:
        commit(streamer, *ITEMS, flush=True)
        kind, data = ITEMS[number]
        streamer.update_entry_data(number, kind, b"!" * len(data))
    for kept in (7, 6, 4, 2, 0):
        with caplog.at_level("DEBUG", "sluice.datastream.file.opening"), DataStreamer.open(path) as streamer:
            streamer.truncate_file(kept)
    assert caplog.text == ""
