"""Opening a stream file: each refusal with its error, other programs' files, and finding entries."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.datastream import errors
from sluice.datastream.errors import StreamFileRefused
from sluice.datastream.file.page_index import NoPageTables
from sluice.datastream.file.recovery import TailState
from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.file.streamfile import FULL_CHECK_PAGES_MAX, StreamFile, inspect_header
from sluice.datastream.layout import (
    BOOKMARK_TYPE,
    HEADER_PAGE_SIZE,
    PAGE_SIZE,
    Committed,
    Entry,
    StreamHeader,
    encode_entry,
    encode_header_page,
    page_end,
    page_start,
)
from tests.datastream.fake_disk import MemoryDisk
from tests.datastream.streams import commit

PATH = Path("s.bin")
Change = Callable[[bytearray], None]


def image(*pages: list[int], fill: bytes = b"\0", spare_pages: int = 1) -> bytearray:
    """Return a file whose pages hold entries of these data sizes, and padding of `fill`."""
    number = 0
    data = bytearray()
    total_length = HEADER_PAGE_SIZE
    for page_number, sizes in enumerate(pages):
        page = b""
        for size in sizes:
            page += encode_entry(Entry(1, number, bytes([number % 251]) * size))
            number += 1
        total_length = page_start(page_number) + len(page)
        data += (page + b"\0"[: PAGE_SIZE - len(page)]).ljust(PAGE_SIZE, fill)
    header = encode_header_page(StreamHeader(1, 137, 1, total_length, number))
    return bytearray(header + data + bytes(spare_pages * PAGE_SIZE))


def load(content: bytes) -> StreamFile:
    disk = MemoryDisk.of(content)
    file = StreamFile(PATH, disk, inspect_header(PATH, disk, 1))
    file.load()
    assert disk.steps == []  # reading changes nothing
    return file


def put(offset: int, data: bytes) -> Change:
    def change(content: bytearray) -> None:
        content[offset : offset + len(data)] = data

    return change


U64 = 8
REFUSALS: list[tuple[str, Change, type[StreamFileRefused], str]] = [
    (
        "one entry more",
        put(46, (6).to_bytes(U64, "big")),
        errors.EntriesDisagree,
        "found the page's end after 5 entries at entry 5, offset 1052763, expected TotalEntries 6",
    ),
    (
        "one entry less",
        put(46, (4).to_bytes(U64, "big")),
        errors.EntriesDisagree,
        "found the page's end after 5 entries at entry 5, offset 1052763, expected TotalEntries 4",
    ),
    (
        "no entries but a length",
        put(46, bytes(U64)),
        errors.EntriesDisagree,
        "found entry number 0 at entry 0, offset 4096, expected none there, as the header counts 0 entries",
    ),
    (
        "entries but no length",
        put(38, (4096).to_bytes(U64, "big")),
        errors.EntriesDisagree,
        "found TotalEntries 5 at entry 0, offset 4096, expected 0, as TotalLength is 4096",
    ),
    (
        "length inside an entry",
        put(38, (page_start(1) + 90).to_bytes(U64, "big")),
        errors.EntriesDisagree,
        "found length 57 at entry 4, offset 1052706, expected a length of at most 56",
    ),
    (
        "head of a page",
        put(page_start(1), b"\3"),
        errors.EntriesDisagree,
        "found packet type 3 at entry 1, offset 1052672, expected packet type 2, as a page begins",
    ),
    (
        "number of a page",
        put(page_start(1) + 16, b"\0"),
        errors.EntriesDisagree,
        "found entry number 0 at entry 1, offset 1052672, expected 1 to 4 of 5",
    ),
    (
        "number inside",
        put(page_start(0) + 37 + 16, b"\7"),
        errors.EntriesDisagree,
        "found entry number 7 at entry 1, offset 4133, expected entry number 1",
    ),
    (
        "length inside",
        put(page_start(0) + 4, b"\x10"),
        errors.EntriesDisagree,
        "found length 16 at entry 0, offset 4096, expected a length of at least 17",
    ),
    (
        "page ends early",
        put(page_start(0) + 37 * 2, b"\0"),
        errors.EntriesDisagree,
        "found the page's end after 2 entries at entry 2, offset 4170, expected the next page begins with 3",
    ),
]


@pytest.mark.parametrize(("name", "change", "error", "message"), REFUSALS, ids=[case[0] for case in REFUSALS])
def test_refusals(name: str, change: Change, error: type[StreamFileRefused], message: str) -> None:
    content = image([20, 20, 20], [17, 40])
    load(bytes(content))
    change(content)
    with pytest.raises(error) as caught:
        load(bytes(content))
    assert str(caught.value).startswith("s.bin: ")
    assert message in str(caught.value)


def test_an_empty_stream() -> None:
    file = load(bytes(image()))
    assert file.committed == Committed(4096, 0)
    assert list(file.entries(0)) == []
    assert file.offset_of(0) == 4096
    assert file.boundary_from(4096) == 4096


@pytest.mark.parametrize("fill", [b"\0", b"\xff", b"\2"])
@pytest.mark.parametrize("page_count", [2, 12])
def test_entries_and_their_places(fill: bytes, page_count: int) -> None:
    sizes = [[5 + (7 * entry + page) % 60 for entry in range(150)] for page in range(page_count)]
    content = bytes(image(*sizes, fill=fill))
    file = load(content)
    found = list(file.entries(0))
    assert [len(entry.data) for entry in found] == [size for page in sizes for size in page]
    assert [entry.number for entry in found] == list(range(150 * page_count))
    offset = HEADER_PAGE_SIZE
    for entry in found:
        if entry.number % 150 == 0:
            offset = page_start(entry.number // 150)
        assert file.offset_of(entry.number) == offset
        assert file.boundary_from(offset) == offset
        size = 17 + len(entry.data)
        assert file.boundary_from(offset + 1) == file.boundary_from(offset + size - 1) == offset + size
        offset += size
    assert [file.read_entry(entry.number) for entry in found[::7]] == found[::7]
    assert (
        list(file.entries(140, 310 if page_count > 2 else 160)) == found[140 : 310 if page_count > 2 else 160]
    )


def test_padding_is_no_data() -> None:
    file = load(bytes(image([100] * 3, [100], fill=b"\xff")))
    end = page_start(0) + 3 * 117
    assert file.data_end(0, file.committed.total_length) == end
    assert file.boundary_from(end) == end
    assert file.boundary_from(end + 50) == end + 50
    assert file.data_end(1, file.committed.total_length) == file.committed.total_length


def test_exactly_full_pages() -> None:
    file = load(bytes(image([PAGE_SIZE - 17], [PAGE_SIZE - 17], spare_pages=0)))
    assert file.committed == Committed(HEADER_PAGE_SIZE + 2 * PAGE_SIZE, 2)
    assert file.disk.size() == file.committed.total_length
    assert file.data_end(1, file.committed.total_length) == page_end(1)
    assert file.offset_of(2) == page_end(1)
    assert file.tail_state() is TailState.ZERO


def test_a_length_that_counts_the_padding() -> None:
    content = image([10, 10])
    content[38:46] = page_end(0).to_bytes(8, "big")
    file = load(bytes(content))
    assert file.data_end(0, page_end(0)) == page_start(0) + 54
    assert [entry.number for entry in file.entries(0)] == [0, 1]


@pytest.mark.parametrize(
    ("name", "offset", "state"),
    [("just past", 27, TailState.NOT_ZERO), ("end of the page", PAGE_SIZE - 1, TailState.NOT_ZERO)],
)
def test_tail_on_the_last_page(name: str, offset: int, state: TailState) -> None:
    content = image([10])
    assert load(bytes(content)).tail_state() is TailState.ZERO
    content[page_start(0) + offset] = 1
    assert load(bytes(content)).tail_state() is state


@pytest.mark.parametrize("page_count", [2, 12])
def test_fingerprints_of_fewer_entries_are_those_of_a_shorter_stream(tmp_path: Path, page_count: int) -> None:
    """Truncations and rebuilds in batches need them in advance."""
    items = [(kind, bytes([page]) * 400_000) for page in range(page_count) for kind in (1, 2)]
    with DataStreamer.open(tmp_path / "s.bin", initial_pages=page_count) as streamer:
        known = [streamer._file.fingerprint_at(0)]
        for item in items:
            commit(streamer, item)
            known.append(streamer._file.fingerprint_at(len(known)))
        assert len(set(known)) == len(items) + 1
        assert [streamer._file.fingerprint_at(count) for count in range(len(known))] == known
        with pytest.raises(errors.EntryNotFound):
            streamer._file.fingerprint_at(len(known))


def test_tail_on_later_pages() -> None:
    content = image([10], spare_pages=3)
    content[page_start(2) + 5000] = 1
    assert load(bytes(content)).tail_state() is TailState.NOT_ZERO


def test_a_big_file_is_not_walked() -> None:
    content = image(*[[50] * 20 for _ in range(12)])
    content[page_start(5) + 67] = 9  # damage in the middle of a page
    file = load(bytes(content))
    assert file.read_entry(0).number == 0
    with pytest.raises(errors.EntriesDisagree, match="found packet type 9 at entry 101, offset 5247043"):
        file.read_entry(110)
    with pytest.raises(errors.EntriesDisagree):
        list(file.entries(95))


@pytest.mark.parametrize("page_count", [FULL_CHECK_PAGES_MAX, FULL_CHECK_PAGES_MAX + 1])
def test_so_many_pages_are_walked_and_not_one_more(page_count: int) -> None:
    content = image(*[[50] * 20 for _ in range(page_count)])
    content[page_start(1) + 67] = 9  # damage in the middle of a page
    if page_count <= FULL_CHECK_PAGES_MAX:
        with pytest.raises(errors.EntriesDisagree, match="found packet type 9 at entry 21"):
            load(bytes(content))
    else:
        assert load(bytes(content)).read_entry(0).number == 0


@pytest.mark.parametrize("number", [-1, 5, 1 << 63])
def test_entries_that_are_not_there(number: int) -> None:
    file = load(bytes(image([1] * 5)))
    with pytest.raises(errors.EntryNotFound, match=f"entry {number}: not found; the stream has 5 entries"):
        file.read_entry(number)


@pytest.mark.parametrize(("from_number", "to_number"), [(-1, None), (6, None), (3, 2), (0, 6)])
def test_ranges_that_are_not_there(from_number: int, to_number: int | None) -> None:
    file = load(bytes(image([1] * 5)))
    with pytest.raises(errors.BadEntryRange):
        file.entries(from_number, to_number)


@pytest.mark.parametrize("size_wanted", [1, 5, 100, 1 << 20])
@pytest.mark.parametrize("page_count", [1, 3])
def test_columns_are_the_entries_of_one_page(size_wanted: int, page_count: int) -> None:
    pages = [[3, 0, 40_000], [PAGE_SIZE - 17], [1, 2, 3, 300_000, 4]][:page_count]
    file = load(bytes(image(*pages)))
    entries = list(file.entries(0, None))
    number = 0
    while number < len(entries):
        types, column = file.columns(number, size_wanted)
        expected = entries[number : number + len(types)]
        assert types == [entry.type for entry in expected]
        assert column == [entry.data for entry in expected]
        assert len(types) == 1 or sum(map(len, column[:-1])) < size_wanted
        number += len(types)


def test_columns_of_what_is_not_there_or_damaged() -> None:
    content = image([3, 5, 7])
    file = load(bytes(content))
    with pytest.raises(errors.EntryNotFound):
        file.columns(3, 10)
    offset = file.offset_of(1)
    file.disk.pwrite(b"\x07", offset)
    with pytest.raises(errors.EntriesDisagree, match=r"at entry 1, "):
        file.columns(0, 1_000)


def test_a_file_that_somebody_cuts_under_a_reader(tmp_path: Path) -> None:
    """A reader behind the cut gets an error and does not wait for ever."""
    path = tmp_path / "s.bin"
    with DataStreamer.open(path, initial_pages=1) as streamer:
        commit(streamer, *[(1, bytes([number % 251]) * 100) for number in range(2_000)])
        reader = streamer.read_entries(0)
        assert next(reader).number == 0
        os.truncate(path, 100_000)
        cut = r"found the end of the file at entry \d+, offset 100000, expected \d+ committed bytes more"
        with pytest.raises(errors.EntriesDisagree, match=cut):
            list(reader)
        for number in (1_000, 1_900):
            with pytest.raises(errors.EntriesDisagree, match=cut):
                streamer.get_entry(number)
            with pytest.raises(errors.EntriesDisagree, match=cut):
                streamer.read_columns(number, 1_000)
        assert streamer.get_entry(10).data == bytes([10]) * 100


class TruncatingDisk(MemoryDisk):
    """A disk where another thread truncates the stream just before or after a read."""

    before_read: list[Callable[[], None]]
    """Each is called before a read, the last one first."""
    behind_it = False

    def pread(self, size: int, offset: int) -> bytes:
        call = self.before_read.pop() if self.before_read else lambda: None
        if not self.behind_it:
            call()
        data = super().pread(size, offset)
        if self.behind_it:
            call()
        return data


def test_an_entry_before_a_truncation_is_found_during_it(tmp_path: Path) -> None:
    disk = TruncatingDisk()
    disk.before_read = []
    with DataStreamer.open(tmp_path / "s.bin", disk=disk, initial_pages=1) as streamer:
        commit(streamer, *[(1, b"%d" % number) for number in range(200)])
        disk.before_read.append(lambda: streamer.truncate_file(100))
        assert streamer.get_entry(70).data == b"70"
        assert streamer.committed.total_entries == 100
        disk.before_read.append(lambda: streamer.truncate_file(80))
        with pytest.raises(errors.EntryNotFound, match="entry 90: not found; the stream has 80 entries"):
            streamer.get_entry(90)


QUERIES: dict[str, Callable[[DataStreamer, int], list[Entry]]] = {
    "entry": lambda streamer, number: [streamer.get_entry(number)],
    "event": lambda streamer, _: [streamer.get_first_event_after_bookmark(b"b")],
    "entries": lambda streamer, number: list(streamer.read_entries(number, number + 150)),
    "columns": lambda streamer, number: [
        Entry(kind, number + place, data)
        for place, (kind, data) in enumerate(zip(*streamer.read_columns(number, 90_000), strict=True))
    ],
}


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("grows_again", [False, True])
@pytest.mark.parametrize("from_end", [2, pytest.param(80, marks=pytest.mark.slow)])
@pytest.mark.parametrize("behind_it", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_query_during_a_truncation_finds_what_was_or_what_is(
    tmp_path: Path, query: str, grows_again: bool, from_end: int, behind_it: bool
) -> None:
    """Zeros or new entries in the same place are not taken for damage."""
    old = [(1, b"o" * (9_000 + number % 7)) for number in range(1_200)]
    new = [*old[:100], *((2, b"n" * (5_000 + number % 11)) for number in range(2_000))]
    number = 2 * (PAGE_SIZE // 9_020) - from_end  # towards the end of the second page
    old[number] = (BOOKMARK_TYPE, b"b")
    new[number - 50] = (BOOKMARK_TYPE, b"b")
    disk = TruncatingDisk()
    disk.behind_it = behind_it
    for read_number in range(5):
        disk.before_read, disk.cache[:] = [], b""
        (tmp_path / str(read_number)).mkdir()
        with DataStreamer.open(
            tmp_path / str(read_number) / "s.bin", disk=disk, initial_pages=12
        ) as streamer:
            commit(streamer, *old)
            streamer._file.tables = NoPageTables()
            streamer._file.load_index()  # nothing is known of the pages yet

            def change(streamer: DataStreamer = streamer) -> None:
                streamer.truncate_file(100)
                if grows_again:
                    commit(streamer, *new[100:])

            disk.before_read = [change, *[lambda: None] * read_number]
            try:
                found = QUERIES[query](streamer, number)
            except (errors.EntryNotFound, errors.BookmarkNotFound):
                assert not grows_again or query == "event"
                continue
            assert found
            for entry in found:
                versions = [items[entry.number] for items in (old, new) if entry.number < len(items)]
                assert (entry.type, entry.data) in versions


# --- the header page ------------------------------------------------------------------------------------


def cut(size: int) -> Change:
    def change(content: bytearray) -> None:
        del content[size:]

    return change


def extend(data: bytes) -> Change:
    def change(content: bytearray) -> None:
        content.extend(data)

    return change


HEADER_REFUSALS: list[tuple[str, Change, type[StreamFileRefused], str]] = [
    ("empty", cut(0), errors.ShorterThanHeaderPage, "file size: found 0 bytes, expected at least 4096"),
    ("short", cut(4095), errors.ShorterThanHeaderPage, "file size: found 4095 bytes, expected at least 4096"),
    (
        "cut",
        cut(HEADER_PAGE_SIZE + 3 * PAGE_SIZE - 1),
        errors.NotWholePages,
        "file size: found 3149823 bytes, 1048575 after the last whole page, expected 4096 plus a multiple",
    ),
    (
        "one more byte",
        extend(b"\0"),
        errors.NotWholePages,
        "file size: found 3149825 bytes, 1 after the last whole",
    ),
    (
        "magic",
        put(0, b"P"),
        errors.WrongMagic,
        "magic bytes: found b'PolygonDATSTREAM', expected b'polygonDATSTREAM'",
    ),
    (
        "packet type",
        put(16, b"\2"),
        errors.WrongPacketType,
        "packet type of the header entry: found 2, expected 1",
    ),
    (
        "header length",
        put(20, b"\x27"),
        errors.WrongHeaderSize,
        "length of the header entry: found 39, expected 38",
    ),
    ("stream type", put(37, b"\5"), errors.WrongStreamType, "stream type: found 5, expected 1"),
    (
        "beyond the file",
        put(38, (HEADER_PAGE_SIZE + 3 * PAGE_SIZE + 1).to_bytes(U64, "big")),
        errors.TotalLengthOutOfFile,
        "TotalLength: found 3149825, expected 4096 to 3149824, the file's size",
    ),
    (
        "inside the header",
        put(38, (4095).to_bytes(U64, "big")),
        errors.TotalLengthOutOfFile,
        "TotalLength: found 4095, expected 4096 to 3149824, the file's size",
    ),
]


@pytest.mark.parametrize(
    ("name", "change", "error", "message"), HEADER_REFUSALS, ids=[case[0] for case in HEADER_REFUSALS]
)
def test_refusals_of_the_header(
    name: str, change: Change, error: type[StreamFileRefused], message: str
) -> None:
    content = image([20, 20, 20], [17, 40])
    before = MemoryDisk.of(bytes(content))
    total_length = HEADER_PAGE_SIZE + PAGE_SIZE + 34 + 57
    assert inspect_header(PATH, before, 1) == StreamHeader(1, 137, 1, total_length, 5)
    change(content)
    disk = MemoryDisk.of(bytes(content))
    with pytest.raises(error) as caught:
        inspect_header(PATH, disk, 1)
    assert str(caught.value).startswith("s.bin: ")
    assert message in str(caught.value)
    assert disk.steps == []


def test_of_two_things_that_are_wrong_the_first_is_told() -> None:
    content = image([20])
    content[37] = 5  # the stream type
    content[0:1] = b"P"
    with pytest.raises(errors.WrongMagic):
        inspect_header(PATH, MemoryDisk.of(bytes(content)), 1)
    content += b"\0"
    content[0:1] = b"p"
    with pytest.raises(errors.NotWholePages):
        inspect_header(PATH, MemoryDisk.of(bytes(content)), 1)
