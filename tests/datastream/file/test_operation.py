"""The entries of an atomic operation: the page rule in the buffer, sealing, rolling back, updating."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.datastream import errors
from sluice.datastream.file import operation
from sluice.datastream.file.operation import (
    OPERATION_GROUP_BYTES_MAX,
    TRANSITIONS,
    Call,
    OperationGroup,
    OperationState,
    Wrong,
    append_one_by_one,
)
from sluice.datastream.file.pages import walk_page
from sluice.datastream.layout import (
    BOOKMARK_TYPE,
    DATA_SIZE_MAX,
    ENTRY_HEAD_SIZE,
    HEADER_PAGE_SIZE,
    PAGE_SIZE,
    Committed,
    Entry,
    encode_entry,
    page_start,
)
from sluice.datastream.limits import BOOKMARK_SIZE_MAX, BOOKMARK_SIZE_MIN

NEW = Committed(HEADER_PAGE_SIZE, 0)


def test_the_buffer_is_what_the_file_will_hold() -> None:
    group = OperationGroup(Committed(HEADER_PAGE_SIZE + 100, 7))
    group.begin()
    assert group.add_bookmark(b"b") == 7
    assert group.add_entry(3, b"data") == 8
    expected = [Entry(BOOKMARK_TYPE, 7, b"b"), Entry(3, 8, b"data")]
    assert group.buffer == b"".join(map(encode_entry, expected))
    assert group.end == Committed(HEADER_PAGE_SIZE + 100 + 18 + 21, 9)
    assert group.bookmarks == {b"b": 7}
    assert group.page_starts == []


def facts(group: OperationGroup) -> tuple[object, ...]:
    lists = (group.page_starts, group.page_ends, group.bookmarks, group.checkpoints)
    return group.state, bytes(group.buffer), group.end, [list(one) for one in lists]


def columns(entries: Sequence[tuple[int, bytes]]) -> tuple[list[int], list[bytes]]:
    return [entry_type for entry_type, _ in entries], [data for _, data in entries]


SIZES = st.sampled_from([0, 1, 110, 5_000, PAGE_SIZE // 3, DATA_SIZE_MAX - 1, DATA_SIZE_MAX])


@given(
    st.lists(st.lists(SIZES, max_size=5).flatmap(lambda few: st.just(few * 30)), max_size=3),
    st.integers(0, 200),
)
@settings(max_examples=50)
def test_entries_together_are_the_same_as_one_by_one(runs: list[list[int]], number: int) -> None:
    page = bytes(DATA_SIZE_MAX)
    one_by_one, together = (OperationGroup(Committed(page_start(1) - 300, number)) for _ in range(2))
    for sizes in runs:
        one_by_one.begin()
        together.begin()
        entries = [(index % 5 + 1, page[:size]) for index, size in enumerate(sizes[:16])]
        for entry in entries:
            one_by_one.add_entry(*entry)
        together.add_entries(*columns(entries))
        one_by_one.move(Call.SEAL)
        together.move(Call.SEAL)
    assert facts(together) == facts(one_by_one)


DATA: st.SearchStrategy[Any] = st.binary(max_size=40) | st.just(bytearray(b"x"))
ENTRY_TYPES = st.sampled_from([0, 1, 4, BOOKMARK_TYPE, 0xFFFF_FFFE, 0xFFFF_FFFF, 1 << 32, 1 << 80, -1])


@given(
    st.lists(st.tuples(ENTRY_TYPES, DATA), max_size=30),
    st.integers(0, 3),
    st.sampled_from([0, 1, 255, (1 << 64) - 40]),
    st.integers(0, 400),
    st.integers(1, 5),
)
def test_the_compiled_module_appends_as_python_does(
    entries: list[tuple[int, Any]], at: int, number: int, room: int, interval: int
) -> None:
    if len(entries) < at:
        return
    entry_types, data = columns(entries)
    one_by_one, at_once = bytearray(b"before"), bytearray(b"before")
    given_rest = list(entry_types), list(data), at, number, room, interval
    expected = append_one_by_one(one_by_one, *given_rest)
    assert operation.append_many(at_once, *given_rest) == expected
    assert at_once == one_by_one


def test_the_compiled_module_refuses_what_would_read_beyond_a_list() -> None:
    append = pytest.importorskip("sluice.datastream.file._many_entries").append
    for entry_types, data, at in (([1], [], 0), ([1], [b""], 2), ([1], [b""], -1)):
        with pytest.raises(ValueError, match="at: got"):
            append(bytearray(), entry_types, data, at, 0, 99, 1)
    with pytest.raises(ValueError, match="interval: got 0"):
        append(bytearray(), [1], [b""], 0, 0, 99, 0)
    held = bytearray()
    with memoryview(held), pytest.raises(BufferError):
        append(held, [1], [b"a"], 0, 0, 99, 1)


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        ((0xFFFFFFFF, b""), errors.EntryTypeReserved),
        ((1 << 32, b""), errors.EntryTypeReserved),
        ((-1, b""), errors.EntryTypeReserved),
        ((1, bytes(DATA_SIZE_MAX + 1)), errors.EntryTooLong),
        ((1, bytes(DATA_SIZE_MAX)), errors.OperationTooLarge),
    ],
)
def test_of_entries_together_none_is_added_where_one_is_refused(
    entry: tuple[int, bytes], error: type[Exception]
) -> None:
    group = OperationGroup(NEW, size_max=2 * PAGE_SIZE)
    group.begin()
    group.add_entry(7, b"before")
    before = facts(group)
    one_by_one = OperationGroup(NEW, size_max=2 * PAGE_SIZE)
    one_by_one.begin()
    one_by_one.add_entry(7, b"before")
    filling = [(1, bytes(DATA_SIZE_MAX))] * (error is errors.OperationTooLarge)
    entries = [(1, b"a"), *filling, entry, (1, b"b")]
    for one in entries[:-2]:
        one_by_one.add_entry(*one)
    with pytest.raises(error) as alone:
        one_by_one.add_entry(*entry)
    with pytest.raises(error) as caught:
        group.add_entries(*columns(entries))
    assert str(caught.value) == str(alone.value)
    assert facts(group) == before
    assert group.add_entry(8, b"after") == 1


@pytest.mark.parametrize("entries", [[], [(1, b"a")]])
def test_entries_together_need_an_open_operation(entries: list[tuple[int, bytes]]) -> None:
    group = OperationGroup(NEW)
    with pytest.raises(errors.NoOperationOpen, match=r"^add_stream_entry: "):
        group.add_entries(*columns(entries))
    group.begin()
    group.add_entries([1], [b"a"])
    assert group.end == Committed(HEADER_PAGE_SIZE + ENTRY_HEAD_SIZE + 1, 1)


@pytest.mark.parametrize("gap", [0, 1, 16, 17, 40])
def test_page_rule(gap: int) -> None:
    group = OperationGroup(NEW)
    group.begin()
    group.add_entry(1, b"a" * (PAGE_SIZE - ENTRY_HEAD_SIZE - gap))
    group.add_entry(2, b"b" * 24)  # 41 bytes: never fits
    assert len(group.buffer) == PAGE_SIZE + 41
    assert group.buffer[PAGE_SIZE - gap : PAGE_SIZE] == bytes(gap)
    assert group.page_starts == [(0, 0), (1, 1)]
    assert group.page_ends == [(0, page_start(1) - gap)]
    assert walk_page(bytes(group.buffer[:PAGE_SIZE]), 0).data_end == PAGE_SIZE - gap


def test_an_entry_that_just_fits_stays_on_the_page() -> None:
    group = OperationGroup(Committed(page_start(1) - 20, 5))
    group.begin()
    group.add_entry(1, b"abc")
    assert group.page_starts == []
    group.add_entry(1, b"")
    assert group.page_starts == [(1, 6)]
    assert group.page_ends == [(0, page_start(1))]


def test_a_border_that_the_group_did_not_write() -> None:
    group = OperationGroup(Committed(page_start(1), 5))
    group.begin()
    group.add_entry(1, b"")
    assert group.page_starts == [(1, 5)]
    assert group.page_ends == []  # the file learns where page 0 ends


@pytest.mark.parametrize("size", [DATA_SIZE_MAX, 0, 1])
def test_sizes_that_fit(size: int) -> None:
    group = OperationGroup(NEW)
    group.begin()
    group.add_entry(1, bytes(size))
    assert len(group.buffer) == ENTRY_HEAD_SIZE + size


@pytest.mark.parametrize(
    ("entry_type", "data", "error", "message"),
    [
        (
            1,
            bytes(DATA_SIZE_MAX + 1),
            errors.EntryTooLong,
            "entry data: got 1048560 bytes, at most 1048559 fit",
        ),
        (0xFFFFFFFF, b"", errors.EntryTypeReserved, "entry type 0xffffffff: means 'not found' to clients"),
        (-1, b"", errors.EntryTypeReserved, "entry type -0x1: is not an unsigned 32-bit number"),
        (1 << 32, b"", errors.EntryTypeReserved, "entry type 0x100000000: is not an unsigned 32-bit number"),
    ],
)
def test_refused_entries(entry_type: int, data: bytes, error: type[Exception], message: str) -> None:
    group = OperationGroup(NEW)
    group.begin()
    group.add_entry(1, b"before")
    before = (bytes(group.buffer), group.end, list(group.page_starts))
    with pytest.raises(error) as caught:
        group.add_entry(entry_type, data)
    assert str(caught.value).startswith(message)
    assert (bytes(group.buffer), group.end, group.page_starts) == before
    assert group.add_entry(1, b"after") == 1


@pytest.mark.parametrize("size", [BOOKMARK_SIZE_MIN - 1, BOOKMARK_SIZE_MAX + 1])
def test_refused_bookmarks(size: int) -> None:
    group = OperationGroup(NEW)
    group.begin()
    with pytest.raises(errors.BookmarkSizeWrong, match=rf"bookmark: got {size} bytes, expected 1 to 16$"):
        group.add_bookmark(bytes(size))
    assert group.end == NEW
    assert group.add_bookmark(bytes(BOOKMARK_SIZE_MAX)) == 0
    assert group.add_bookmark(bytes(BOOKMARK_SIZE_MIN)) == 1


def test_one_past_the_size_limit() -> None:
    group = OperationGroup(NEW, size_max=2 * PAGE_SIZE)
    group.begin()
    group.add_entry(1, bytes(DATA_SIZE_MAX))
    group.add_entry(1, bytes(DATA_SIZE_MAX))
    with pytest.raises(errors.OperationTooLarge) as caught:
        group.add_entry(1, b"")
    assert str(caught.value) == (
        "uncommitted operations: 2097169 bytes with this entry, at most 2097152 are allowed"
    )
    assert group.number_next == 2


def test_rollback_leaves_what_was_sealed() -> None:
    group = OperationGroup(NEW)
    group.begin()
    group.add_bookmark(b"kept")
    sealed = (bytes(group.buffer), group.end, list(group.page_starts), list(group.checkpoints))
    group.move(Call.SEAL)
    group.begin()
    group.add_bookmark(b"dropped")
    group.add_entry(1, bytes(DATA_SIZE_MAX))
    group.rollback()
    assert (bytes(group.buffer), group.end, group.page_starts, group.checkpoints) == sealed
    assert (group.sealed_bookmarks, group.bookmarks) == ({b"kept": 0}, {})
    assert group.page_ends == []
    group.begin()
    assert group.add_entry(1, b"next") == 1


def test_checkpoints_are_offsets_of_every_64th_entry() -> None:
    group = OperationGroup(Committed(HEADER_PAGE_SIZE + 20, 63))
    group.begin()
    for _ in range(130):
        group.add_entry(1, b"abc")
    assert group.checkpoints == [HEADER_PAGE_SIZE + 20 + 20 * position for position in (1, 65, 129)]


def test_what_is_not_bytes_changes_nothing() -> None:
    group = OperationGroup(NEW)
    group.begin()
    with pytest.raises(TypeError):
        group.add_entry(1, "text")  # type: ignore[arg-type]
    assert (bytes(group.buffer), group.end, group.page_starts) == (b"", NEW, [])
    assert group.add_entry(1, b"bytes") == 0


@pytest.mark.parametrize(
    "data", [array("I", [1, 2, 3]), memoryview(array("Q", [7])), memoryview(bytes(8)).cast("B", (2, 4))]
)
def test_a_buffer_of_larger_items_changes_nothing(data: Any) -> None:
    """Its `len` counts items: the commit would succeed, and no opening take the file."""
    group = OperationGroup(NEW)
    group.begin()
    group.add_entry(1, b"a")
    before = facts(group)
    for add in (
        lambda: group.add_entry(1, data),
        lambda: group.add_bookmark(data),
        lambda: group.add_entries([1, 1, 1], [b"b", data, b"c"]),
    ):
        with pytest.raises(TypeError, match=r"data: got \d+ bytes with heads, expected \d+: len does not"):
            add()
        assert facts(group) == before


def test_buffers_of_bytes_are_bytes() -> None:
    group, other = OperationGroup(NEW), OperationGroup(NEW)
    kinds: list[tuple[OperationGroup, Any]] = [(group, bytes), (other, bytearray)]
    for one, kind in kinds:
        one.begin()
        one.add_entry(1, kind(b"a"))
        one.add_bookmark(kind(b"b"))
        one.add_entries([1, 2], [kind(b"c"), memoryview(kind(b"d"))])  # type: ignore[list-item]
    assert facts(group) == facts(other)


def test_restart() -> None:
    group = OperationGroup(NEW)
    group.begin()
    group.add_bookmark(b"b")
    group.add_entry(1, bytes(DATA_SIZE_MAX))
    end = group.end
    group.move(Call.COMMIT)
    group.move(Call.COMMIT_DONE)
    group.restart(end)
    assert group.end == end
    assert (bytes(group.buffer), group.bookmarks, group.page_starts, group.checkpoints) == (b"", {}, [], [])
    group.begin()
    assert group.add_entry(1, b"") == 2
    assert group.page_starts == [(2, 2)]


@pytest.mark.parametrize("together", [False, True])
def test_entries_of_the_type_of_bookmarks_are_not_indexed(together: bool) -> None:
    """As by Go's AddStreamEntry; of any size."""
    entries = [
        (1, b"x"),
        (BOOKMARK_TYPE, b"b"),
        (BOOKMARK_TYPE, b""),
        (BOOKMARK_TYPE, bytes(70_000)),
        (2, b""),
    ]
    group = OperationGroup(Committed(HEADER_PAGE_SIZE, 0))
    group.begin()
    group.add_bookmark(b"b")
    if together:
        group.add_entries(*columns(entries))
    else:
        for entry in entries:
            group.add_entry(*entry)
    items = [(BOOKMARK_TYPE, b"b"), *entries]
    expected = [Entry(kind, number, data) for number, (kind, data) in enumerate(items)]
    assert group.buffer == b"".join(map(encode_entry, expected))
    assert (group.bookmarks, group.unindexed) == ({b"b": 0}, {2, 3, 4})
    group.update(2, BOOKMARK_TYPE, b"still none")
    group.update(3, 5, b"")
    group.update(1, BOOKMARK_TYPE, b"one")
    assert (group.bookmarks, group.unindexed) == ({b"b": 0, b"one": 1}, {2, 4})
    group.move(Call.SEAL)
    group.begin()
    group.add_entry(BOOKMARK_TYPE, b"c")
    group.rollback()
    group.begin()
    group.add_bookmark(b"c")
    group.update(6, BOOKMARK_TYPE, b"d")
    assert group.all_bookmarks == {b"b": 0, b"one": 1, b"d": 6}


# --- updating an entry of the open operation -------------------------------------------------------------


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize(
    ("place", "replacement"),
    [
        (0, (1, b"event instead of a bookmark")),
        (1, (BOOKMARK_TYPE, b"bookmark")),
        (1, (7, b"x" * DATA_SIZE_MAX)),  # those after it move to another page
        (2, (1, b"")),
        (3, (3, b"y" * 70)),
    ],
)
def test_updates_leave_what_adding_at_once_would(
    sealed: bool, place: int, replacement: tuple[int, bytes]
) -> None:
    items = [(BOOKMARK_TYPE, b"b"), (1, b"a" * 600_000), (2, b"c" * 900_000), (3, b"d")]

    def group_of(items: list[tuple[int, bytes]]) -> OperationGroup:
        group = OperationGroup(Committed(HEADER_PAGE_SIZE + 10, 60))
        if sealed:
            group.begin()
            group.add_bookmark(b"sealed")
            group.move(Call.SEAL)
        group.begin()
        for kind, data in items:
            group.add_bookmark(data) if kind == BOOKMARK_TYPE else group.add_entry(kind, data)
        return group

    group = group_of(items)
    group.update(60 + sealed + place, *replacement)
    items[place] = replacement
    expected = group_of(items)
    for name in OperationGroup.__slots__:
        assert getattr(group, name) == getattr(expected, name), name


@pytest.mark.parametrize(
    ("number", "entry_type", "data", "error", "message"),
    [
        (5, 1, b"", errors.EntrySealed, "entry 5: its operation is sealed; update it after the commit"),
        (9, 1, b"", errors.EntryNotFound, "entry 9: not found; the stream has 9 entries"),
        (7, 1, bytes(DATA_SIZE_MAX + 1), errors.EntryTooLong, "entry data: got 1048560 bytes"),
        (7, 0xFFFFFFFF, b"", errors.EntryTypeReserved, "entry type 0xffffffff: means 'not found'"),
        (7, BOOKMARK_TYPE, bytes(17), errors.BookmarkSizeWrong, "bookmark: got 17 bytes, expected 1 to 16"),
    ],
)
def test_refused_updates(
    number: int, entry_type: int, data: bytes, error: type[Exception], message: str
) -> None:
    group = OperationGroup(Committed(HEADER_PAGE_SIZE + 10, 5))
    group.begin()
    group.add_entry(1, b"sealed")
    group.move(Call.SEAL)
    group.begin()
    for text in (b"a", b"b", b"c"):
        group.add_entry(1, text)
    before = {name: getattr(group, name) for name in OperationGroup.__slots__ if name != "buffer"}
    content = bytes(group.buffer)
    with pytest.raises(error) as caught:
        group.update(number, entry_type, data)
    assert str(caught.value).startswith(message)
    assert {name: getattr(group, name) for name in OperationGroup.__slots__ if name != "buffer"} == before
    assert group.buffer == content


@pytest.mark.parametrize(
    "state",
    [state for state in OperationState if state not in (OperationState.OPEN, OperationState.OPEN_SEALED)],
)
def test_nothing_is_added_in_the_wrong_state(state: OperationState) -> None:
    group = OperationGroup(NEW, state=state)
    for call, add in (
        (Call.ADD_ENTRY, lambda: group.add_entry(1, b"x")),
        (Call.ADD_BOOKMARK, lambda: group.add_bookmark(b"x")),
        (Call.UPDATE, lambda: group.update(0, 1, b"x")),
    ):
        refusal = TRANSITIONS[state][call]
        assert isinstance(refusal, Wrong)
        with pytest.raises(refusal.value):
            add()
    assert group.end == NEW


def test_the_size_limit_is_that_of_the_limits() -> None:
    """`test_one_past_the_size_limit` fills a small one."""
    assert OperationGroup(NEW)._size_max == OPERATION_GROUP_BYTES_MAX


def test_a_refused_run_leaves_the_bookmarks_of_its_operation() -> None:
    group = OperationGroup(Committed(HEADER_PAGE_SIZE, 0))
    group.begin()
    group.add_bookmark(b"a")
    for entry_types in ([1, 0xFFFFFFFF], [BOOKMARK_TYPE, 1 << 32]):
        with pytest.raises(errors.EntryTypeReserved):
            group.add_entries(entry_types, [b"x", b"y"])
        assert (group.bookmarks, group.number_next, group.unindexed) == ({b"a": 0}, 1, set())
    group.rollback()
    assert group.bookmarks == {}
    group.begin()
    group.add_bookmark(b"b")
    group.move(Call.SEAL)
    group.begin()
    group.add_bookmark(b"c")
    group.rollback()
    assert (group.sealed_bookmarks, group.bookmarks) == ({b"b": 0}, {})
