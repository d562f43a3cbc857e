"""Walking pages: sound ones, others' padding, and every kind of damage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.datastream.file.pages import (
    COLUMN_ENTRIES_MAX,
    PageFault,
    columns_at_once,
    columns_of,
    columns_one_by_one,
    entries_of,
    find_entry,
    find_position,
    split_at_once,
    split_one_by_one,
    walk_at_once,
    walk_one_by_one,
    walk_page,
)
from sluice.datastream.layout import BOOKMARK_TYPE, ENTRY_HEAD_SIZE, PAGE_SIZE, Entry, encode_entry

FIRST = (1 << 40) + 6
IS_COMPILED = columns_at_once(b"", 0, 1, 1) is not None
HEADS = st.tuples(st.sampled_from([0, 1, BOOKMARK_TYPE, 0xFFFF_FFFF]), st.binary(max_size=20))
CHANGES = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=2)


def damaged(entries: list[tuple[int, bytes]], changes: list[tuple[int, int]], cut: int) -> bytes:
    """Entries from FIRST on with some bytes changed, without the last `cut`."""
    data = bytearray(
        b"".join(encode_entry(Entry(kind, FIRST + place, one)) for place, (kind, one) in enumerate(entries))
    )
    for at, value in changes:
        if at < len(data):
            data[at] = value
    return bytes(data[: max(0, len(data) - cut)])


@given(st.lists(HEADS, max_size=20), CHANGES, st.integers(0, 40), st.integers(0, 40), st.integers(1, 5))
def test_the_compiled_module_walks_as_python_does(
    entries: list[tuple[int, bytes]], changes: list[tuple[int, int]], cut: int, before: int, interval: int
) -> None:
    data = damaged(entries, changes, cut)
    given_rest = FIRST, max(0, len(data) - before), interval, 16
    assert walk_at_once(data, *given_rest) == walk_one_by_one(data, *given_rest)
    assert split_at_once(data, *given_rest[:2]) == split_one_by_one(data, *given_rest[:2])


@given(
    st.lists(HEADS, max_size=20), CHANGES, st.integers(0, 40), st.integers(0, 22), st.sampled_from([0, 1, 99])
)
def test_the_compiled_module_reads_entries_as_python_does(
    entries: list[tuple[int, bytes]], changes: list[tuple[int, int]], cut: int, many: int, wanted: int
) -> None:
    data = damaged(entries, changes, cut)
    end_number = FIRST + many
    try:
        expected = columns_one_by_one(data, FIRST, end_number, wanted)
    except PageFault as fault:
        text = str(fault)
        assert columns_at_once(data, FIRST, end_number, wanted) is None
        if many == 22:
            with pytest.raises(PageFault) as caught:
                columns_of(data, FIRST, wanted)
            assert str(caught.value) == text
        with pytest.raises(PageFault):
            list(entries_of(data, FIRST, end_number))
    else:
        assert columns_at_once(data, FIRST, end_number, wanted) == (expected if IS_COMPILED else None)
        if many == 22:
            assert columns_of(data, FIRST, wanted) == expected


def test_so_many_entries_are_read_in_one_go() -> None:
    data = damaged([(1, b"")] * (COLUMN_ENTRIES_MAX + 1), [], 0)
    types, column = columns_of(data, FIRST, 1 << 20)
    assert len(types) == len(column) == COLUMN_ENTRIES_MAX
    assert len(list(entries_of(data, FIRST, FIRST + COLUMN_ENTRIES_MAX + 1))) == COLUMN_ENTRIES_MAX + 1


def test_entries_before_what_is_none_are_yielded() -> None:
    data = damaged([(1, b"a"), (2, b"b"), (3, b"c")], [(2 * 18, 7)], 0)
    found = entries_of(data, FIRST, FIRST + 3)
    assert [next(found), next(found)] == [Entry(1, FIRST, b"a"), Entry(2, FIRST + 1, b"b")]
    with pytest.raises(PageFault, match="packet type 7"):
        next(found)
    assert list(entries_of(data, FIRST, FIRST + 2)) == [Entry(1, FIRST, b"a"), Entry(2, FIRST + 1, b"b")]


def test_the_compiled_module_walks_no_further_than_the_page() -> None:
    compiled = pytest.importorskip("sluice.datastream.file._many_entries")
    for end, interval in ((3, 1), (-1, 1), (0, 0)):
        with pytest.raises(ValueError, match=f"end: got {end}"):
            compiled.walk(b"ab", 0, end, interval, 16)
    for size, end in ((2, 3), (2, -1), (PAGE_SIZE + 1, PAGE_SIZE + 1)):
        with pytest.raises(ValueError, match=f"end: got {end}"):
            compiled.split(bytes(size), 0, end)


def page_of(*sizes: int, first_number: int = 0, fill: bytes = b"\0") -> bytes:
    data = b"".join(
        encode_entry(Entry(1, first_number + position, b"d" * size)) for position, size in enumerate(sizes)
    )
    return data.ljust(PAGE_SIZE, fill)


def test_walk() -> None:
    walk = walk_page(page_of(*[3] * 200, first_number=60), 60)
    assert walk.entries_end == 260
    assert walk.data_end == 200 * 20
    assert list(walk.checkpoints) == [(64 - 60) * 20, (128 - 60) * 20, (192 - 60) * 20, (256 - 60) * 20]
    assert walk.bookmarks == []


def test_bookmarks_of_other_lengths_are_not_indexed() -> None:
    data = b"".join(encode_entry(Entry(0xB0, number, b"b" * number)) for number in range(18))
    assert [number for _, number in walk_page(data.ljust(PAGE_SIZE, b"\0"), 0).bookmarks] == list(
        range(1, 17)
    )


@pytest.mark.parametrize("gap", [0, 1, 5, 16, 17, 18, 1000])
def test_padding_of_any_length(gap: int) -> None:
    page = page_of(PAGE_SIZE - ENTRY_HEAD_SIZE - gap)
    assert walk_page(page, 0).data_end == PAGE_SIZE - gap


def test_garbage_after_packet_type_0() -> None:
    page = page_of(10)[:27] + b"\0" + b"\2garbage" * 1000
    walk = walk_page(page.ljust(PAGE_SIZE, b"\xff"), 0)
    assert (walk.entries_end, walk.data_end) == (1, 27)


def test_last_page_ends_inside() -> None:
    page = page_of(10, 20)
    assert walk_page(page[:64], 0, 64).entries_end == 2


@pytest.mark.parametrize(
    ("name", "page", "end", "message"),
    [
        (
            "wrong number",
            page_of(1, first_number=5),
            PAGE_SIZE,
            "entry 0 at position 0: found entry number 5",
        ),
        ("no entry", bytes(PAGE_SIZE), PAGE_SIZE, "entry 0 at position 0: found packet type 0"),
        ("packet type", page_of(1, fill=b"\7"), PAGE_SIZE, "entry 1 at position 18: found packet type 7"),
        ("padding inside", page_of(1), 18 + 20, "entry 1 at position 18: found packet type 0"),
        (
            "short length",
            b"\2\0\0\0\5" + bytes(PAGE_SIZE),
            PAGE_SIZE,
            "found length 5, expected a length of at",
        ),
        ("past the end", b"\2\0\x20\0\0" + bytes(PAGE_SIZE), PAGE_SIZE, "found length 2097152, expected"),
        ("cut", page_of(1, 1), 30, "entry 1 at position 18: found 12 bytes, not padding"),
    ],
)
def test_damage(name: str, page: bytes, end: int, message: str) -> None:
    with pytest.raises(PageFault) as caught:
        walk_page(page, 0, end)
    assert message in str(caught.value)


def test_find() -> None:
    data = b"".join(encode_entry(Entry(1, number, b"d" * number)) for number in range(10, 14))
    assert [find_position(data, 10, number) for number in range(10, 14)] == [0, 27, 55, 84]
    assert find_entry(data, 10, 0) == (10, 0)
    assert find_entry(data, 10, 1) == (11, 27)
    assert find_entry(data, 10, 27) == (11, 27)
    assert find_entry(data, 10, len(data)) == (14, len(data))
    with pytest.raises(PageFault):
        find_position(data[:60], 10, 13)
    with pytest.raises(PageFault):
        find_entry(data[:60], 10, 90)
    with pytest.raises(PageFault):
        find_position(data, 11, 12)
