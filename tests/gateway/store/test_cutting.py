"""Cutting: what is written of the cut entries, and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.datastream import DataStreamer
from sluice.datastream.check.check import Severity, check_stream
from sluice.datastream.layout import BOOKMARK_TYPE, DATA_SIZE_MAX
from sluice.gateway.blocks.stream_layout import bookmark_of
from sluice.gateway.errors import Fatal
from sluice.gateway.store.block_store import BlockStore
from sluice.gateway.store.cutting import block_time, check_place, look_at, write_cut
from tests.datastream.streams import commit, entries, operation
from tests.gateway.store.test_block_store import BLOCKS
from tests.gateway.store.test_block_store import commit as commit_blocks


def plain(path: Path, count: int = 5, **options: int) -> DataStreamer:
    streamer = DataStreamer.open(path, initial_pages=1, growth_pages=1, **options)  # type: ignore[arg-type]
    for number in range(count):
        commit(streamer, *operation(number))
    return streamer


def test_what_is_cut_is_a_stream_of_its_own_with_the_same_header(tmp_path: Path) -> None:
    place = tmp_path / "cut.bin"
    with plain(tmp_path / "s.bin", stream_type=7, system_id=9, version=2) as streamer:
        write_cut(streamer, 12, place)
        expected = list(streamer.read_entries(12))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut.bin", "s.bin", "s.db"]
    with DataStreamer.open(place, stream_type=7) as cut:
        assert [(one.type, one.data) for one in cut.read_entries(0)] == [
            (one.type, one.data) for one in expected
        ]
        assert (cut.header.system_id, cut.header.version) == (9, 2)
        marks = [one for one in expected if one.type == BOOKMARK_TYPE]
        assert [cut.get_bookmark(one.data) for one in marks] == [one.number - 12 for one in marks]
    assert not check_stream(place).counts[Severity.DAMAGE]


def test_much_is_written_in_several_commits(tmp_path: Path) -> None:
    calls: list[None] = []
    large = [(9, bytes([number]) * DATA_SIZE_MAX) for number in range(7)]
    with plain(tmp_path / "s.bin", 0) as streamer:
        commit(streamer, *large)
        go_on = lambda: calls.append(None)  # noqa: E731
        write_cut(streamer, 0, tmp_path / "cut.bin", go_on, commit_bytes=2 * DATA_SIZE_MAX)
    assert len(calls) == 3
    with DataStreamer.open(tmp_path / "cut.bin") as cut:
        assert list(cut.read_entries(0)) == entries(*large)


def test_the_same_again_is_taken_and_anything_else_refused(tmp_path: Path) -> None:
    place = tmp_path / "cut.bin"
    with plain(tmp_path / "s.bin") as streamer:
        write_cut(streamer, 12, place)
        before = place.read_bytes()
        check_place(place, 13)
        write_cut(streamer, 12, place)
        assert place.read_bytes() == before
        with pytest.raises(Fatal, match=r"--cut-to overwrites nothing"):
            check_place(place, 12)
        with pytest.raises(Fatal, match=r"--cut-to overwrites nothing"):
            write_cut(streamer, 13, place)
        with pytest.raises(Fatal, match=r"s\.bin: got a file or folder of that name"):
            check_place(tmp_path / "s.bin", 13)
        assert place.read_bytes() == before
    for taken in ("text", "folder", "link"):
        other = tmp_path / taken
        if taken == "link":
            other.symlink_to("nowhere")
        elif taken == "folder":
            other.mkdir()
        else:
            other.touch()
        with pytest.raises(Fatal, match=f"{taken}: got a file or folder of that name"):
            check_place(other, 13)
    with pytest.raises(Fatal, match=r"no such folder"):
        check_place(tmp_path / "gone" / "cut.bin", 13)


def test_nothing_is_left_of_one_that_failed_and_what_a_kill_left_is_in_nobodys_way(tmp_path: Path) -> None:
    left = tmp_path / ".cut.bin.part"
    left.mkdir()
    (left / "cut.bin").write_bytes(b"half")
    with plain(tmp_path / "s.bin") as streamer:
        (tmp_path / "cut.bin").mkdir()
        with pytest.raises(Fatal, match=r"--cut-to overwrites nothing"):
            write_cut(streamer, 12, tmp_path / "cut.bin")
        assert not left.exists()
        (tmp_path / "cut.bin").rmdir()
        write_cut(streamer, 12, tmp_path / "cut.bin")
        assert not left.exists()
        with pytest.raises(Fatal, match=r"/proc/cut\.bin: got .*, expected a file that can be written"):
            write_cut(streamer, 12, Path("/proc/cut.bin"))


def test_what_a_stream_holds_is_seen_without_a_lock(tmp_path: Path) -> None:
    with plain(tmp_path / "s.bin", stream_type=5):
        looked = look_at(tmp_path / "s.bin")
        assert (looked.header.total_entries, looked.header.stream_type) == (25, 5)
        assert not looked.holds_blocks
    with plain(tmp_path / "empty.bin", 0):
        assert not look_at(tmp_path / "empty.bin").holds_blocks
    store = BlockStore.open(tmp_path / "node")
    commit_blocks(store, BLOCKS[:3])
    assert look_at(tmp_path / "node" / "datastream.bin").holds_blocks
    streamer = store.streamer
    times = [block_time(streamer, streamer.get_bookmark(bookmark_of(number))) for number in range(3)]
    assert times == [1767225600 + 2 * number for number in range(3)]
    assert block_time(streamer, 3) is None  # in mid-block: no header
    store.close()
