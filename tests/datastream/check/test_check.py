"""Checking and repairing streams: each kind of damage is reported with its place, nothing is written."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sluice.datastream.check.check import (
    CHECK_FINDINGS_MAX,
    CheckFinding,
    CheckResult,
    Severity,
    check_stream,
    repair_stream,
)
from sluice.datastream.errors import StreamInUse
from sluice.datastream.file.bookmarks import COVERED_KEY
from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.layout import (
    BOOKMARK_TYPE,
    ENTRY_HEAD_SIZE,
    HEADER_PAGE_SIZE,
    PAGE_SIZE,
    Entry,
    file_size_of,
    page_start,
)
from tests.datastream.file.test_page_sums import stored
from tests.datastream.streams import bookmark, change_database, commit, operation, sample_file, u64
from tests.reference_data import needs_stream

ENTRY = (1, b"x" * 51)  # 68 bytes
PER_PAGE = PAGE_SIZE // 68


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "s.bin"
    with DataStreamer.open(path, initial_pages=4) as streamer:
        for number in range(3):
            commit(streamer, bookmark(number), *[ENTRY] * (PER_PAGE - 100))
        commit(streamer, bookmark(1), *operation(3))
    return path


@pytest.fixture
def path(template: Path, tmp_path: Path) -> Path:
    shutil.copytree(template.parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / "s.bin"


def put(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def lines(result: CheckResult) -> list[str]:
    """The findings, without those about sums, which have their own tests."""
    return [
        f"{finding.severity.value}: {finding}"
        for finding in result.findings
        if "is not as it was written" not in finding.what and "no checksum yet" not in finding.what
    ]


def offset_of(path: Path, number: int) -> int:
    with DataStreamer.open(path, read_only=True) as streamer:
        return streamer.offset_of(number)


def test_a_sound_stream(path: Path) -> None:
    pages: list[tuple[int, int]] = []
    result = check_stream(path, progress=lambda done, total: pages.append((done, total)))
    assert lines(result) == []
    assert result.is_sound
    assert result.entry_count == 3 * (PER_PAGE - 99) + 6
    assert result.bookmark_count == 6
    assert pages == [(1, 3), (2, 3), (3, 3)]
    assert repair_stream(path, result) == []


@needs_stream
def test_the_sample(tmp_path: Path) -> None:
    path = sample_file(tmp_path)
    result = check_stream(path)
    assert lines(result) == ["fixable: there is no bookmark folder sample.db"]
    assert (result.entry_count, result.header and result.header.total_entries) == (13_952, 13_952)
    assert repair_stream(path, result) == [
        "made the index of bookmarks anew from 13952 entries",
        "made the checksums of 1 pages",
    ]
    assert lines(check_stream(path)) == []


HEADER_CASES: list[tuple[str, int, bytes, str]] = [
    (
        "magic",
        0,
        b"P",
        "damage: offset 0: magic bytes: found b'PolygonDATSTREAM', expected b'polygonDATSTREAM'",
    ),
    ("packet", 16, b"\2", "damage: offset 16: packet type of the header entry: found 2, expected 1"),
    ("length", 20, b"\x27", "damage: offset 17: length of the header entry: found 39, expected 38"),
    ("rest", 100, b"x", "note: offset 54: the rest of the header page is not zero"),
]


@pytest.mark.parametrize(
    ("name", "offset", "data", "line"), HEADER_CASES, ids=[case[0] for case in HEADER_CASES]
)
def test_the_header(path: Path, name: str, offset: int, data: bytes, line: str) -> None:
    put(path, offset, data)
    result = check_stream(path)
    assert lines(result) == [line]
    assert result.entry_count > PER_PAGE  # it goes on
    assert repair_stream(path, result) == []


def test_more_than_one_thing_in_more_than_one_place(path: Path) -> None:
    """Each is reported; after a broken chain the check resumes at the next page."""
    at_10, at_5000 = offset_of(path, 10), offset_of(path, PER_PAGE + 5000)
    put(path, 16, b"\3")
    put(path, at_10 + 1, b"\xff")  # the length
    put(path, at_5000 + 16, b"\0")  # the number
    result = check_stream(path)
    number = PER_PAGE + 5000
    wrong = number & ~0xFF
    room = page_start(1) - at_10
    assert lines(result) == [
        "damage: offset 16: packet type of the header entry: found 3, expected 1",
        f"damage: entry 10, offset {at_10}: length {0xFF000044}, expected 17 to {room}",
        f"damage: entry {number}, offset {at_5000}: entry number {wrong}, expected {number}",
    ]
    assert repair_stream(path, result) == []


def test_the_index_of_another_stream_is_told(path: Path) -> None:
    """The index covers as many entries, with other bookmarks."""
    content = path.read_bytes()
    start = offset_of(path, 0) + ENTRY_HEAD_SIZE
    path.write_bytes(content[:start] + b"!" + content[start + 1 :])
    for page in "\0\1":  # otherwise the first page would be damaged
        change_database(path.with_name("s.db"), **{"sluice/page-sum/" + "\0" * 7 + page: None})
    result = check_stream(path)
    assert "fixable: the index is of another stream, or of other entries" in lines(result)
    assert repair_stream(path, result)
    assert check_stream(path).is_sound


def test_entries_that_are_missing_are_told_once(path: Path) -> None:
    """The second page is a copy of the third: the numbers jump once."""
    content = bytearray(path.read_bytes())
    content[page_start(1) : page_start(2)] = content[page_start(2) : page_start(3)]
    path.write_bytes(content)
    damage = [line for line in lines(check_stream(path)) if line.startswith("damage")]
    assert 1 <= len(damage) <= 4
    assert f"offset {page_start(1)}: entry number" in damage[0]


@pytest.mark.parametrize(
    "size", [0, 100, 4095, 4096, 4097, page_start(1), page_start(2) + 77, file_size_of(4) - 1]
)
def test_a_file_that_was_cut(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)
    result = check_stream(path)
    assert result.counts[Severity.DAMAGE] >= 1
    assert repair_stream(path, result) == []
    assert path.stat().st_size == size


def test_a_flip_anywhere_among_the_heads_is_told(path: Path, request: pytest.FixtureRequest) -> None:
    """Each byte of a head, and of the header entry except version, system and type; by default a fifth."""
    head = offset_of(path, 700)
    told = [*range(16), *range(16, 21), *range(38, 54), *range(head, head + 5), *range(head + 9, head + 17)]
    content = path.read_bytes()
    for offset in told[:: 1 if request.config.getoption("slow") else 5]:
        put(path, offset, bytes([content[offset] ^ 0x10]))
        result = check_stream(path)
        assert not result.is_sound, offset
        put(path, offset, content[offset : offset + 1])
    assert check_stream(path).is_sound


def test_the_tail(path: Path) -> None:
    end = offset_of(path, 3 * (PER_PAGE - 99) + 6)
    put(path, end + 1000, b"garbage")
    result = check_stream(path)
    what = "what lies past the end of the stream is not zero, as of a commit that was not finished"
    assert lines(result) == [f"unfinished: offset {end + 1000}: {what}"]
    assert result.is_sound
    assert repair_stream(path, result) == [
        f"wrote zeros from offset {end + 1000} on, past the end of the stream"
    ]
    assert lines(check_stream(path)) == []


def test_padding_of_other_programs(path: Path) -> None:
    with DataStreamer.open(path, read_only=True) as streamer:
        end = streamer.data_end(0, streamer.committed.total_length)
    put(path, end + 5, b"left over")
    assert check_stream(path).bad_pages == [0]  # in a file of ours
    for page in "\0\1":
        change_database(path.with_name("s.db"), **{"sluice/page-sum/" + "\0" * 7 + page: None})
    result = check_stream(path)
    what = "the padding of the page is not all zeros, as other programs leave it"
    assert what in [finding.what for finding in result.findings]
    assert result.is_sound


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        ("missing", {"gone": None}, "bookmark 676f6e65 is not in the index"),
        ("an older one", {"twice": u64(0)}, "bookmark 7477696365 points at entry 0 in the index"),
        (
            "not there",
            {"ghost": u64(2)},
            "entry 2: the index has bookmark ",
        ),
        ("past the end", {"ghost": u64(99)}, "entry 99: the index has bookmark 67686f7374 here"),
    ],
)
def test_bookmarks_both_ways(
    tmp_path: Path, name: str, change: dict[str, bytes | None], expected: str
) -> None:
    path = tmp_path / "s.bin"
    with DataStreamer.open(path, initial_pages=1) as streamer:
        names = [(BOOKMARK_TYPE, name) for name in (b"twice", b"gone", b"twice")]
        commit(streamer, *[item for name in names for item in (name, (1, b"event"))])
    change_database(path.with_name("s.db"), **change)
    result = check_stream(path)
    assert any(expected in line for line in lines(result)), lines(result)
    assert result.counts[Severity.DAMAGE] == 0
    assert repair_stream(path, result) == ["made the index of bookmarks anew from 6 entries"]
    assert lines(check_stream(path)) == []
    with DataStreamer.open(path) as streamer:
        assert (streamer.get_bookmark(b"twice"), streamer.get_bookmark(b"gone")) == (4, 2)


def test_an_index_that_a_kill_left_behind_its_bookmarks(path: Path) -> None:
    """Bookmarks and the count are in two databases: a kill may come between their batches."""
    with DataStreamer.open(path) as streamer:
        end = streamer.committed.total_entries
        commit(streamer, bookmark(7), ENTRY)
        commit(streamer, bookmark(8), ENTRY)
    change_database(path.with_name("s.db"), covered=u64(end))
    result = check_stream(path)
    assert lines(result) == [f"unfinished: the index covers {end} entries, the stream has {end + 4}"]
    assert result.is_sound
    change_database(path.with_name("s.db"), ghost=u64(end + 1))
    assert f"fixable: entry {end + 1}: the index has bookmark 67686f7374 here" in lines(check_stream(path))[1]


def test_an_index_of_the_go_server(path: Path) -> None:
    change_database(path.with_name("s.db"), covered=None)
    result = check_stream(path)
    assert lines(result) == ["note: the index does not say what it covers, as another program's does"]
    assert result.is_sound
    assert COVERED_KEY


def test_an_index_that_is_damaged(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    current = path.with_name("s.db") / "CURRENT"
    current.write_bytes(b"junk")
    result = check_stream(path)
    assert lines(result) == [
        "fixable: the index is damaged: Corruption: CURRENT file does not end with newline"
    ]
    assert (current.read_bytes(), caplog.text) == (b"junk", "")
    entry_count = result.entry_count
    assert repair_stream(path, result) == [
        f"made the index of bookmarks anew from {entry_count} entries",
        "made the checksums of 2 pages",
    ]
    assert lines(check_stream(path)) == []


def test_nothing_is_written_and_nobody_may_write(path: Path) -> None:
    put(path, file_size_of(4) - 1, b"x")
    before = {file: file.read_bytes() for file in path.parent.rglob("*") if file.is_file()}
    assert check_stream(path).counts[Severity.UNFINISHED] == 1
    assert {file: file.read_bytes() for file in path.parent.rglob("*") if file.is_file()} == before
    with DataStreamer.open(path), pytest.raises(StreamInUse, match="the stream is in use by another program"):
        check_stream(path)


def test_one_finding_too_many_is_only_counted() -> None:
    result = CheckResult(Path("s.bin"))
    for number in range(CHECK_FINDINGS_MAX + 1):
        result.add(Severity.NOTE, "seen", number=number)
    assert len(result.findings) == CHECK_FINDINGS_MAX
    assert result.counts[Severity.NOTE] == CHECK_FINDINGS_MAX + 1
    assert str(CheckFinding(Severity.NOTE, "what", 5, 7)) == "entry 7, offset 5: what"


def test_a_visitor_hears_of_entries_and_gaps(path: Path) -> None:
    class Visitor:
        entries: list[tuple[int, int]]

        def __init__(self) -> None:
            self.entries = []

        def entry(self, entry: Entry, offset: int) -> None:
            self.entries.append((entry.number, offset))

        def gap(self) -> None:
            self.entries.append((-1, -1))

    put(path, HEADER_PAGE_SIZE + 26 + 68, b"\7")
    visitor = Visitor()
    check_stream(path, visitor=visitor)
    assert visitor.entries[:3] == [(0, 4096), (1, 4096 + 26), (-1, -1)]
    assert visitor.entries[3][1] == page_start(1)


def test_notes_hide_nothing_that_can_be_repaired() -> None:
    """Another program's file has a note for each page; `repair` goes by the findings."""
    result = CheckResult(Path("s.bin"))
    for number in range(CHECK_FINDINGS_MAX + 1):
        result.add(Severity.NOTE, "seen", number=number)
    result.add(Severity.FIXABLE, "bookmark 61 is not in the index")
    assert result.findings[-1] == CheckFinding(Severity.FIXABLE, "bookmark 61 is not in the index")
    assert len(result.findings) == CHECK_FINDINGS_MAX + 1


# --- sums ---------------------------------------------------------------------------------------------------


@pytest.fixture
def paged(tmp_path: Path) -> Path:
    """A stream of four full pages and a bit."""
    path = tmp_path / "p.bin"
    with DataStreamer.open(path) as streamer:
        for number in range(45):
            commit(streamer, bookmark(number), (1, bytes(104_000)), flush=True)
        assert streamer.sums.full_count == 4
    return path


@pytest.mark.parametrize("position", [70_000, PAGE_SIZE - 1])
def test_a_damaged_page_is_named_and_not_repaired(paged: Path, position: int) -> None:
    put(paged, page_start(2) + position, b"\7")
    result = check_stream(paged)
    assert result.bad_pages == [2]
    (line,) = [str(one) for one in result.findings if one.severity is Severity.DAMAGE]
    assert "data page 2 is not as it was written: its CRC32C is" in line
    assert line.startswith("entry 41, offset 2101248: ")
    assert repair_stream(paged, result) == []


def test_pages_without_a_sum_are_noted_and_repair_makes_them(paged: Path) -> None:
    changes = {"sluice/page-sum/" + "\0" * 7 + chr(page): None for page in (1, 3)}
    change_database(paged.with_name("p.db"), **changes)
    result = check_stream(paged)
    assert result.is_sound
    assert result.unsummed_pages == [1, 3]
    assert "2 of 4 full pages have no checksum yet" in [one.what for one in result.findings]
    assert repair_stream(paged, result) == ["made the checksums of 2 pages"]
    assert check_stream(paged).unsummed_pages == []
    put(paged, page_start(3) + 9_000, b"\7")
    assert check_stream(paged).bad_pages == [3]


def test_an_index_that_is_made_anew_by_a_repair_keeps_the_sums_of_pages(paged: Path) -> None:
    with DataStreamer.open(paged) as streamer:
        commit(streamer, bookmark(7), flush=True)
    change_database(paged.with_name("p.db"), **{bookmark(7)[1].decode("latin-1"): None})
    before = stored(paged)
    assert len(before) == 4
    result = check_stream(paged)
    assert any("is not in the index" in finding.what for finding in result.findings)
    assert repair_stream(paged, result)
    assert stored(paged) == before


def test_a_check_takes_nothing_out_of_memory_that_may_be_there_alone(
    paged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing reads past the page cache, as on btrfs with checksums."""
    monkeypatch.setattr("sluice.datastream.file.disk.takes_direct_writes", lambda fd: False)
    monkeypatch.setattr("sluice.datastream.file.disk.takes_direct_writes", lambda fd: False)
    dropped: list[int] = []
    monkeypatch.setattr("os.posix_fadvise", lambda fd, offset, size, advice: dropped.append(offset))
    assert check_stream(paged).is_sound
    assert not dropped
