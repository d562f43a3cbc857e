"""Opening past damaged pages: what is passed over, and what never is."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from sluice.datastream import errors
from sluice.datastream.errors import EntriesDisagree, PageDamaged
from sluice.datastream.file.bookmarks import SUM_KEY, TABLE_KEY
from sluice.datastream.file.index_database import own_folder, plyvel
from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.layout import PAGE_SIZE, page_end, page_start
from sluice.datastream.limits import STREAM_LIMITS, StreamLimits
from tests.datastream.streams import bookmark, change_database, commit, u64


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.bin"


def paged(path: Path, page_count: int) -> None:
    """Make a stream of so many pages, three entries each, without sums, like earlier versions."""
    with DataStreamer.open(path, initial_pages=page_count) as streamer:
        for number in range(page_count):
            commit(streamer, bookmark(number), (1, b"x" * 1_000_000), (2, b"y" * 48_500), flush=True)
    database = plyvel.DB(str(own_folder(path.with_name("s.db"))))
    for number in range(page_count):
        database.delete(SUM_KEY + u64(number))
    database.close()


def damage(path: Path, page_number: int, kind: str) -> None:
    start = page_start(page_number)
    with path.open("r+b") as file:
        at, data = {
            "zeros": (start, bytes(page_end(page_number) - start)),
            "first head": (start + 16, b"\xee"),
            "a head": (start + 26, b"\7"),
        }[kind]
        file.seek(at)
        file.write(data)


@pytest.mark.parametrize("kind", ["zeros", "first head", "a head"])
@pytest.mark.parametrize("page_count", [4, 12])
def test_damaged_pages_are_passed_over_where_that_is_wanted(path: Path, page_count: int, kind: str) -> None:
    paged(path, page_count)
    for page_number in (0, 2):
        damage(path, page_number, kind)
    before = path.read_bytes()
    is_met_at_opening = page_count == 4 or kind != "a head"
    if is_met_at_opening:
        for _ in range(2):
            with pytest.raises(errors.EntriesDisagree, match="at entry"):
                DataStreamer.open(path)
    with DataStreamer.open(path, past_damage=True) as streamer:
        assert streamer.committed.total_entries == 3 * page_count
        for number in range(3 * page_count):
            if number // 3 in (0, 2):
                with pytest.raises(errors.EntriesDisagree):
                    streamer.get_entry(number)
            else:
                assert streamer.get_entry(number).number == number
        with pytest.raises(errors.EntriesDisagree):
            list(streamer.read_entries(3))
        assert commit(streamer, bookmark(99), flush=True) == [3 * page_count]
        assert streamer.get_bookmark(bookmark(99)[1]) == 3 * page_count
    end = page_end(page_count - 2)
    assert path.read_bytes()[4096:end] == before[4096:end]


@pytest.mark.parametrize("what", ["the last page", "no table", "a table of others", "too many"])
def test_damage_that_is_not_passed_over(path: Path, what: str) -> None:
    limits = STREAM_LIMITS
    paged(path, 5)
    damage(path, 4 if what == "the last page" else 1, "zeros")
    if what == "no table":
        with plyvel.DB(str(own_folder(path.with_suffix(".db")))) as database:
            database.delete(TABLE_KEY + u64(1))
    elif what == "a table of others":
        with plyvel.DB(str(own_folder(path.with_suffix(".db")))) as database:
            database.put(TABLE_KEY + u64(1), database.get(TABLE_KEY + u64(2)))
    elif what == "too many":
        damage(path, 3, "zeros")
        limits = StreamLimits(damaged_pages_passed_max=1)
    before = path.read_bytes()
    with pytest.raises(errors.EntriesDisagree, match="found packet type 0"):
        DataStreamer.open(path, past_damage=True, limits=limits)
    assert path.read_bytes() == before


# --- the header's version and system id ------------------------------------------------------------------


@pytest.mark.parametrize(("at", "flip"), [(21, 1), (21, 0x80), (22, 1), (29, 0x10)])
@pytest.mark.parametrize("read_only", [True, False])
def test_a_header_that_was_changed_is_put_back(path: Path, at: int, flip: int, read_only: bool) -> None:
    """Clients compare it; the file has no sum of it, but the index knows it."""
    paged(path, 2)
    before = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([before[at] ^ flip]))
    with DataStreamer.open(path, read_only=read_only) as streamer:
        assert (streamer.header.version, streamer.header.system_id) == (1, 137)
        assert streamer.get_bookmark(bookmark(1)[1]) == 3
    assert (path.read_bytes() == before) is not read_only


def test_a_stream_of_another_system_keeps_its_own(path: Path) -> None:
    with DataStreamer.open(path, system_id=5, version=2) as streamer:
        commit(streamer, bookmark(1), flush=True)
    for _ in range(2):
        with DataStreamer.open(path) as streamer:
            assert (streamer.header.version, streamer.header.system_id) == (2, 5)


# --- pages with a checksum ------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[4, 12])  # all pages of the one are walked at opening
def full(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    """A number of pages, and the folder of a stream that fills so many."""
    folder = tmp_path_factory.mktemp("full")
    with DataStreamer.open(folder / "s.bin", initial_pages=request.param + 1) as streamer:
        for number in range(request.param * 10 + 2):
            commit(streamer, bookmark(number), (1, bytes(104_000)), flush=True)
        assert streamer.sums.full_count == request.param
    return request.param, folder


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
    tmp_path: Path, full: tuple[int, Path], page: int, position: int, data: bytes
) -> None:
    pages, made = full
    path = tmp_path / "copy" / "s.bin"
    subprocess.run(["cp", "-r", "--sparse=always", made, path.parent], check=True)
    with DataStreamer.open(path) as streamer:
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
