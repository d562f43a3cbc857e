"""The evidence of header, index and file: a header that went back is refused, the traces of a crash are
not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.datastream.errors import EntriesDisagree, HeaderBehind, StreamFileUnavailable
from sluice.datastream.file.bookmarks import STREAM_KEY, BookmarkIndex
from sluice.datastream.file.disk import RealDisk
from sluice.datastream.file.evidence import BOOKMARKS_COMPARED_AT_OPEN_MAX, Evidence, Tail, entries_behind
from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.file.streamfile import inspect_header
from sluice.datastream.layout import (
    HEADER_OFFSET,
    HEADER_SIZE,
    Committed,
)
from sluice.datastream.limits import TAIL_LOOKED_AT_BYTES_MAX
from tests.datastream.file.test_opening import held_in
from tests.datastream.streams import Item, bookmark, change_database, commit, entries, operation, u64

OPERATIONS = 12
ITEMS = [item for number in range(OPERATIONS) for item in operation(number)]
BIG = (9, b"b" * 400_000)


def header_of(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(HEADER_OFFSET)
        return file.read(HEADER_SIZE)


def put_header(path: Path, header: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(HEADER_OFFSET)
        file.write(header)


def filled(path: Path, *extra: Item, flush: bool = True) -> list[bytes]:
    headers = []
    with DataStreamer.open(path, initial_pages=1, growth_pages=1) as streamer:
        for number in range(OPERATIONS):
            commit(streamer, *operation(number), *extra, flush=flush)
            headers.append(header_of(path))
    return headers


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.bin"


def refused(path: Path) -> str:
    """Open a stream that must be refused and stay unchanged; return the refusal."""
    content, held = path.read_bytes(), held_in(path.with_name("s.db"))
    for _ in range(2):
        with pytest.raises(HeaderBehind) as caught:
            DataStreamer.open(path)
    assert path.read_bytes() == content
    assert held_in(path.with_name("s.db")) == held
    return str(caught.value)


# --- a header that went back -----------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [0, 5, OPERATIONS - 2])
@pytest.mark.parametrize("extra", [(), (BIG,)], ids=["a page", "pages"])
@pytest.mark.parametrize("flush", [True, False])
def test_a_header_that_went_back_is_refused_and_nothing_is_changed(
    path: Path, kept: int, extra: tuple[Item, ...], flush: bool
) -> None:
    headers = filled(path, *extra, flush=flush)
    end = int.from_bytes(headers[-1][22:30], "big")
    start = int.from_bytes(headers[kept][22:30], "big")
    put_header(path, headers[kept])
    each = 5 + len(extra)
    count, total = each * (kept + 1), each * OPERATIONS
    assert refused(path) == (
        f"{path}: header: found a header that counts {count} entries in {start} bytes, an index of bookmarks "
        f"that covers {total} entries, and {total - count} whole entries, to offset {end} behind the header, "
        "expected a header that counts all that was committed; nothing was changed (see: sluice repair)"
    )
    with DataStreamer.open(path, read_only=True) as streamer:
        assert streamer.committed.total_entries == count
    put_header(path, headers[-1])
    with DataStreamer.open(path) as streamer:
        assert streamer.committed.total_entries == total


def test_an_empty_header_is_one_that_went_back(path: Path) -> None:
    DataStreamer.open(path, initial_pages=1).close()
    before = header_of(path)
    filled(path)
    put_header(path, before)
    assert "found a header that counts 0 entries in 4096 bytes" in refused(path)


def test_a_header_that_went_back_over_damage_is_refused_too(path: Path) -> None:
    """Some entries are missing, and the index knows of them."""
    headers = filled(path)
    put_header(path, headers[3])
    end = int.from_bytes(headers[7][22:30], "big")
    with path.open("r+b") as file:
        file.seek(end)
        file.write(bytes(40))
    assert f"and 20 whole entries, to offset {end} behind the header" in refused(path)


def test_a_file_that_is_older_than_its_folder_is_refused(path: Path) -> None:
    filled(path)
    shutil.copy(path, path.with_name("old"))
    with DataStreamer.open(path) as streamer:
        commit(streamer, bookmark(99), (1, b"later"), flush=True)
    shutil.copy(path.with_name("old"), path)
    assert "covers 62 entries, and no whole entry behind the header" in refused(path)


@pytest.mark.parametrize("key", ["fingerprint of fewer", "no fingerprint"])
def test_a_folder_without_a_fingerprint_of_it_all_is_known_by_its_bookmarks(path: Path, key: str) -> None:
    """Earlier versions counted entries, and did not name the stream."""
    headers = filled(path)
    put_header(path, headers[3])
    changes = {STREAM_KEY.decode(): None if key == "no fingerprint" else u64(4096) + u64(1) + bytes(16)}
    change_database(path.with_name("s.db"), **changes)
    assert "covers 60 entries, and 40 whole entries" in refused(path)


# --- what is not one ----------------------------------------------------------------------------------------


def test_a_stream_that_a_go_program_has_cut_is_opened(path: Path) -> None:
    """A Go program leaves our count as it is; its library appends to the log that ours began."""
    headers = filled(path)
    put_header(path, headers[3])
    log = path.with_name("s.db") / "LOG"
    text = log.read_bytes()
    log.write_bytes(
        text + b"=============== Nov 26, 2026 (UTC) ===============\n16:28:32.123456 db@open opening\n"
    )
    with DataStreamer.open(path) as streamer:
        assert list(streamer.read_entries(0)) == entries(*ITEMS[:20])
        commit(streamer, bookmark(77), flush=True)
    with DataStreamer.open(path) as streamer:
        assert streamer.get_bookmark(bookmark(77)[1]) == 20
    assert not any(path.read_bytes()[int.from_bytes(header_of(path)[22:30], "big") :])


def test_that_a_go_program_was_there_is_known_also_behind_an_opening_that_came_to_nothing(path: Path) -> None:
    """The failed opening has begun a new LevelDB log, which says nothing of it."""
    headers = filled(path)
    put_header(path, headers[3])
    with (path.with_name("s.db") / "LOG").open("ab") as log:
        log.write(b"16:28:32.123456 db@open opening\n")

    def stop(evidence: Evidence) -> None:
        raise InterruptedError

    for _ in range(2):
        with pytest.raises(StreamFileUnavailable):
            DataStreamer.open(path, judge=stop)
    with DataStreamer.open(path) as streamer:
        assert list(streamer.read_entries(0)) == entries(*ITEMS[:20])
        commit(streamer, bookmark(77), flush=True)
    put_header(path, headers[1])  # nobody opened it since
    assert "covers 21 entries" in refused(path)


@pytest.mark.parametrize("is_behind", [False, True])
def test_bookmarks_that_a_program_wrote_before_its_commit_do_not_count(path: Path, is_behind: bool) -> None:
    filled(path)
    changes = {"later": u64(70)} | ({"covered": u64(55)} if is_behind else {})
    change_database(path.with_name("s.db"), **changes)
    with DataStreamer.open(path) as streamer:
        assert streamer.committed.total_entries == 60


def test_a_larger_index_of_another_stream_is_made_anew(path: Path) -> None:
    """Also with a bookmark that both streams have at different entries."""
    other = path.with_name("x.bin")
    with DataStreamer.open(other, initial_pages=1) as streamer:
        commit(
            streamer, (1, b"first"), bookmark(0), *[item for at in range(9) for item in operation(at + 100)]
        )
    with DataStreamer.open(path, initial_pages=1) as streamer:
        commit(streamer, *operation(0), flush=True)
    shutil.rmtree(path.with_name("s.db"))
    shutil.copytree(path.with_name("x.db"), path.with_name("s.db"))
    with DataStreamer.open(path) as streamer:
        assert streamer.get_bookmark(bookmark(0)[1]) == 0


@pytest.mark.parametrize("differs_at", [BOOKMARKS_COMPARED_AT_OPEN_MAX - 1, BOOKMARKS_COMPARED_AT_OPEN_MAX])
def test_so_many_bookmarks_are_compared(path: Path, differs_at: int) -> None:
    """In the order of their bytes; each further one might need the walk of a page."""
    count = BOOKMARKS_COMPARED_AT_OPEN_MAX + 2
    with DataStreamer.open(path, initial_pages=1) as streamer:
        commit(streamer, *[bookmark(number) for number in range(count)], flush=True)
    changes = {bookmark(differs_at)[1].decode("latin-1"): None, "covered": u64(count + 5)}
    change_database(path.with_name("s.db"), **changes)
    change_database(path.with_name("s.db"), **{"\0" * 8 + chr(differs_at) + "!": u64(differs_at)})
    if differs_at < BOOKMARKS_COMPARED_AT_OPEN_MAX:
        DataStreamer.open(path).close()
    else:
        assert f"covers {count + 5} entries" in refused(path)


# --- the entries behind the header --------------------------------------------------------------------------


def behind(path: Path) -> list[tuple[int, int]]:
    disk = RealDisk(path, writable=False)
    try:
        return [
            (entry.number, offset) for entry, offset in entries_behind(disk, inspect_header(path, disk, 1))
        ]
    finally:
        disk.close()


def test_the_entries_behind_a_header_go_on_over_pages(path: Path) -> None:
    headers = filled(path, BIG)
    with DataStreamer.open(path, read_only=True) as streamer:
        offsets = [(number, streamer.offset_of(number)) for number in range(6 * OPERATIONS)]
    for kept, header in enumerate(headers):
        put_header(path, header)
        assert behind(path) == offsets[6 * (kept + 1) :]
    put_header(path, headers[0])
    for number in (7, 11, 40):  # a wrong number, length or type ends them
        for at, byte in ((0, 7), (1, 0xFF), (16, 0xEE), *(((4, 3),) if number == 7 else ())):
            content = path.read_bytes()
            with path.open("r+b") as file:
                file.seek(offsets[number][1] + at)
                file.write(bytes([byte]))
            assert behind(path) == offsets[6:number], (number, at)
            path.write_bytes(content)


def test_behind_the_end_of_a_file_is_nothing(path: Path) -> None:
    filled(path, BIG)
    assert behind(path) == []


def test_the_tail_is_looked_at_up_to_a_limit(path: Path) -> None:
    headers = filled(path)
    put_header(path, headers[0])
    start, end = (int.from_bytes(header[22:30], "big") for header in (headers[0], headers[1]))
    assert end - start < TAIL_LOOKED_AT_BYTES_MAX
    found: list[Tail] = []

    def judge(evidence: Evidence) -> None:
        found.extend((evidence.tail(), evidence.tail(end - start)))

    with pytest.raises(HeaderBehind):
        DataStreamer.open(path, judge=judge)
    last = int.from_bytes(headers[-1][22:30], "big")
    assert found == [Tail(55, last, is_all=True), Tail(5, end, is_all=False)]
    assert str(found[1]) == f"at least 5 whole entries, to offset {end}"


# --- a judge ------------------------------------------------------------------------------------------------


class No(Exception):
    """The refusal of a judge."""


def test_a_judge_is_asked_before_anything_is_changed(path: Path) -> None:
    headers = filled(path)
    put_header(path, headers[5])
    with path.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"x")
    content, held = path.read_bytes(), held_in(path.with_name("s.db"))

    def judge(evidence: Evidence) -> None:
        assert (evidence.index_count, evidence.header.total_entries) == (60, 30)
        assert evidence.index_totals == Committed(int.from_bytes(headers[-1][22:30], "big"), 60)
        raise No

    with pytest.raises(No):
        DataStreamer.open(path, judge=judge)
    assert (path.read_bytes(), held_in(path.with_name("s.db"))) == (content, held)


@pytest.mark.parametrize("taken", [2, 5, 8, OPERATIONS - 1])
@pytest.mark.parametrize("has_index", [True, False])
def test_what_a_judge_says_is_what_the_header_counts(path: Path, taken: int, has_index: bool) -> None:
    headers = filled(path, BIG)
    put_header(path, headers[5])
    if not has_index:
        shutil.rmtree(path.with_name("s.db"))
    totals = Committed(int.from_bytes(headers[taken][22:30], "big"), 6 * (taken + 1))
    with DataStreamer.open(path, judge=lambda evidence: totals) as streamer:
        assert streamer.committed == totals
        assert streamer.get_bookmark(bookmark(taken)[1]) == 6 * taken
        with pytest.raises(Exception, match="not found"):
            streamer.get_bookmark(bookmark(taken + 1)[1])
    assert header_of(path) == headers[taken]
    assert not any(path.read_bytes()[totals.total_length :])
    with DataStreamer.open(path) as streamer:
        assert list(streamer.read_entries(0)) == entries(
            *[item for number in range(taken + 1) for item in (*operation(number), BIG)]
        )


@pytest.mark.parametrize(
    "wrong",
    [
        lambda length, count: Committed(length + 1, count),
        lambda length, count: Committed(length, count + 1),
    ],
)
def test_a_judge_cannot_count_what_is_not_there(path: Path, wrong: Callable[[int, int], Committed]) -> None:
    headers = filled(path)
    put_header(path, headers[5])
    content, held = path.read_bytes(), held_in(path.with_name("s.db"))
    totals = wrong(int.from_bytes(headers[7][22:30], "big"), 40)
    with pytest.raises(EntriesDisagree):
        DataStreamer.open(path, judge=lambda evidence: totals)
    assert (path.read_bytes(), held_in(path.with_name("s.db"))) == (content, held)


def test_the_count_never_leads_the_header(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The basis of the evidence: at each batch of the index, the header on disk counts as much."""
    seen: list[tuple[int, int]] = []
    take_pending = BookmarkIndex._take_pending

    def watched(index: BookmarkIndex) -> object:
        batch = take_pending(index)
        if index._writing_covered is not None:
            seen.append((index._writing_covered, int.from_bytes(header_of(path)[30:38], "big")))
        return batch

    monkeypatch.setattr(BookmarkIndex, "_take_pending", watched)
    filled(path)
    with DataStreamer.open(path) as streamer:
        streamer.truncate_file(33)
        streamer.start_atomic_op()
        streamer.add_stream_entry(1, b"x")
        streamer.begin_commit()
        streamer.start_atomic_op()
        streamer.add_stream_entry(1, b"y")
        streamer.begin_commit()
        streamer.finish_commit()
    assert len(seen) > OPERATIONS
    assert all(covered <= counted for covered, counted in seen)
    assert seen[-3:] == [(33, 60), (34, 34), (35, 35)]
