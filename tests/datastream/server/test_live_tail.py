"""What waiting clients lack after a commit: shared bytes when they are few, else the file."""

from __future__ import annotations

from pathlib import Path

from datastream.file.streamer import DataStreamer
from datastream.layout import PAGE_SIZE, page_start
from datastream.server.connection import TAIL_BYTES_MAX, LiveTail
from tests.datastream.streams import commit


def test_what_a_client_lacks(tmp_path: Path) -> None:
    with DataStreamer.open(tmp_path / "s.bin") as streamer:
        start = streamer.committed.total_length
        assert LiveTail(streamer).after(start) is None
        commit(streamer, (1, b"one"))
        middle = streamer.committed.total_length
        commit(streamer, (1, b"two"))
        tail = LiveTail(streamer)
        first = bytes.fromhex("02 00000014 00000001 0000000000000000") + b"one"
        second = bytes.fromhex("02 00000014 00000001 0000000000000001") + b"two"
        assert tail.after(start) == (start, first + second)
        assert tail.after(middle) == (middle, second)
        assert tail.after(middle + 17) == (middle + 17, b"two")
        assert tail.after(start) is tail.after(start)  # read once
        commit(streamer, (1, b"three"))
        assert tail.limit == middle + 20  # as of when it was made
        assert tail.after(middle) == (middle, second)
        assert tail.after(streamer.committed.total_length) is None


def test_the_most_that_is_shared(tmp_path: Path) -> None:
    with DataStreamer.open(tmp_path / "s.bin") as streamer:
        start = streamer.committed.total_length
        commit(streamer, (1, bytes(TAIL_BYTES_MAX - 17)))
        found = LiveTail(streamer).after(start)
        assert found is not None
        assert len(found[1]) == TAIL_BYTES_MAX
        commit(streamer, (1, b""))
        assert LiveTail(streamer).after(start) is None


def test_page_ends(tmp_path: Path) -> None:
    with DataStreamer.open(tmp_path / "s.bin") as streamer:
        commit(streamer, (1, bytes(PAGE_SIZE - 17 - 100)))
        before = streamer.committed.total_length
        commit(streamer, (1, b"x" * 50))
        end_of_page = streamer.committed.total_length
        commit(streamer, (1, b"y" * 50))  # does not fit any more
        tail = LiveTail(streamer)
        assert tail.after(before) is None  # on two pages
        found = tail.after(end_of_page)  # padding between
        assert found is not None
        assert found[0] == page_start(1)
        assert found[1].endswith(b"y" * 50)
        assert len(found[1]) == 67


def test_a_file_that_is_exactly_full(tmp_path: Path) -> None:
    with DataStreamer.open(tmp_path / "s.bin", initial_pages=1) as streamer:
        commit(streamer, (1, bytes(PAGE_SIZE - 17)))
        full = streamer.committed.total_length
        assert full == page_start(1)
        assert LiveTail(streamer).after(full) is None
        commit(streamer, (1, b"z"))
        found = LiveTail(streamer).after(full)
        assert found is not None
        assert found == (full, bytes.fromhex("02 00000012 00000001 0000000000000001") + b"z")
