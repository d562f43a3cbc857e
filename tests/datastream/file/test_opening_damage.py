"""Opening streams with damaged pages: the page is not served, and no reason to refuse the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from datastream.errors import EntriesDisagree, PageDamaged
from datastream.file.streamer import DataStreamer
from datastream.layout import PAGE_SIZE, page_start
from tests.datastream.streams import bookmark, change_database, commit


@pytest.mark.parametrize("pages", [4, 12])  # all pages of the one are walked at opening
@pytest.mark.parametrize(
    ("page", "position", "data"),
    [
        (0, 0, b"\xff"),
        (0, 12, b"\xff"),
        (0, 500, b"\xff"),
        (2, 0, b"\0" * PAGE_SIZE),
        (2, 9, b"\xff"),
        (2, 90_000, b"\xff" * 60_000),
        (3, 0, b"\xff"),
        (3, PAGE_SIZE - 1, b"\xff"),
    ],
)
def test_a_stream_with_a_damaged_page_opens_and_serves_the_others(
    tmp_path: Path, pages: int, page: int, position: int, data: bytes
) -> None:
    path = tmp_path / "s.bin"
    with DataStreamer.open(path) as streamer:
        for number in range(pages * 10 + 2):
            commit(streamer, bookmark(number), (1, bytes(104_000)), flush=True)
        assert streamer.sums.full_count == pages
        firsts = list(streamer._file.index.first_numbers)
    good = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(page_start(page) + position)
        file.write(data)
    damaged = path.read_bytes()
    for _ in range(2):
        with DataStreamer.open(path) as streamer:
            assert list(streamer._file.index.first_numbers) == firsts
            end = streamer.committed.total_entries
            for number in range(end):
                if firsts[page] <= number < firsts[page + 1]:
                    with pytest.raises(PageDamaged):
                        streamer.get_entry(number)
                else:
                    assert streamer.get_entry(number).number == number
            assert streamer.get_bookmark(bookmark(pages * 10 + 1)[1]) == end - 2
        assert path.read_bytes() == damaged
    with DataStreamer.open(path) as streamer:
        with pytest.raises(PageDamaged):
            streamer.get_entry(firsts[page])
        streamer.sums.heal(page, good[page_start(page) : page_start(page + 1)])
        assert [entry.number for entry in streamer.read_entries(0)] == list(range(end))
    assert path.read_bytes() == good


def test_a_file_with_a_damaged_head_and_no_sums_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.bin"
    with DataStreamer.open(path) as streamer:
        for _ in range(40):
            commit(streamer, (1, bytes(104_000)), flush=True)
    change_database(path.with_name("s.db"), **{"sluice/page-sum/" + "\0" * 7 + "\2": None})
    with path.open("r+b") as file:
        file.seek(page_start(2))
        file.write(b"\xff")
    with pytest.raises(EntriesDisagree):
        DataStreamer.open(path)
