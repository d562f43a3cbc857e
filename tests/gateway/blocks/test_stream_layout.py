"""Tests of `gateway.blocks.stream_layout`."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.datastream.layout import BOOKMARK_TYPE, DATA_SIZE_MAX
from sluice.gateway.blocks.errors import ItemError, LayoutError
from sluice.gateway.blocks.items import field_item, kinds_of, stream_entry_item
from sluice.gateway.blocks.native_layout import ENTRIES_TYPE, MARKED_BYTES_MAX, encode_native
from sluice.gateway.blocks.stream_layout import (
    BLOCK_END_TYPE,
    CONTINUED,
    LAYOUTS,
    NEWEST_LAYOUT,
    BlockDecoder,
    StoredBlock,
    bookmark_of,
    bookmarks_of,
    encode,
    encode_runs,
    layout_of,
)
from sluice.gateway.limits import RUN_ITEMS_MAX, STORED_BLOCK_BYTES_MAX
from tests.gateway.block_makers import block_items

ROOT_HASH = bytes(range(48))
Entries = list[tuple[int, bytes]]


def item_of_size(kind: int, size: int) -> bytes:
    """An item of exactly this many bytes."""
    item = field_item(kind, bytes(size))
    item = field_item(kind, bytes(2 * size - len(item)))
    assert len(item) == size
    return item


def decoded(entries: Entries) -> list[StoredBlock]:
    decoder = BlockDecoder()
    return [block for entry in entries if (block := decoder.feed(*entry)) is not None]


# --- there --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "bookmark", "second"),
    [
        (0, "0802", "000000000000000000"),
        (1, "08021001", "000000000000000001"),
        (300, "080210ac02", "00000000000000012c"),
        ((1 << 64) - 1, "080210ffffffffffffffffff01", "00ffffffffffffffff"),
    ],
)
def test_bookmarks(number: int, bookmark: str, second: str) -> None:
    assert bookmark_of(number).hex() == bookmark
    assert [mark.hex() for mark in bookmarks_of(number, 2)] == [bookmark]
    assert [mark.hex() for mark in bookmarks_of(number, 1)] == [bookmark, second]


def test_a_block_becomes_bookmark_items_and_block_end() -> None:
    header, transaction, later = field_item(1, b"h"), field_item(4, b"t"), field_item(23, b"")
    entries = [
        (0xB0, bytes.fromhex("0802108202")),
        (1, header),
        (4, transaction),
        (23, later),
        (0xB1, bytes.fromhex("0000000000000102") + ROOT_HASH),
    ]
    assert encode(258, [header, transaction, later], ROOT_HASH) == entries
    assert layout_of(entries[1][0]) == NEWEST_LAYOUT == 2
    entries.insert(1, (0xB0, bytes.fromhex("000000000000000102")))
    assert encode(258, [header, transaction, later], ROOT_HASH, 1) == entries
    assert layout_of(entries[1][0]) == 1


@pytest.mark.parametrize(
    ("size", "pieces"),
    [
        (DATA_SIZE_MAX - 1, [DATA_SIZE_MAX - 1]),
        (DATA_SIZE_MAX, [DATA_SIZE_MAX]),
        (DATA_SIZE_MAX + 1, [DATA_SIZE_MAX, 1]),
        (2 * DATA_SIZE_MAX, [DATA_SIZE_MAX, DATA_SIZE_MAX]),
        (2 * DATA_SIZE_MAX + 5, [DATA_SIZE_MAX, DATA_SIZE_MAX, 5]),
    ],
)
def test_long_items_are_cut(size: int, pieces: list[int]) -> None:
    items = [field_item(1, b"h"), item_of_size(7, size), field_item(4, b"t")]
    entries = encode(5, items, ROOT_HASH)
    assert [len(data) for _, data in entries[2:-2]] == pieces
    assert [kind for kind, _ in entries[2:-2]] == [*[0x8000_0007] * (len(pieces) - 1), 7]
    assert decoded(entries) == [StoredBlock(5, tuple(items), ROOT_HASH)]


@pytest.mark.parametrize(
    ("sizes", "runs"),
    [
        ([10], [1]),
        ([10] * 16, [16]),
        ([10] * 33, [16, 16, 1]),
        ([10, 990, 10], [2, 1]),
        ([10, 991, 10], [1, 1, 1]),
        ([10, 10, 5_000, 10], [2, 1, 1]),
        ([10, 2 * DATA_SIZE_MAX + 10, 10], [1, 1, 1, 1, 1]),
        ([DATA_SIZE_MAX + 10], [1, 1]),
    ],
)
def test_entries_come_in_runs_of_limited_size(sizes: list[int], runs: list[int]) -> None:
    items = [item_of_size(4 + index % 3, size) for index, size in enumerate(sizes)]
    for kinds in (None, kinds_of(items)):
        made = list(encode_runs(5, items, ROOT_HASH, kinds, items_max=16, bytes_max=1_000))
        assert [len(run.data) for run in made] == [*runs[:-1], runs[-1] + 1]  # and the block end
        assert sum(run.size_bytes for run in made) == sum(sizes)
        entries = [entry for run in made for entry in zip(run.entry_types, run.data, strict=True)]
        assert entries == encode(5, items, ROOT_HASH)[1:]


def test_without_a_limit_of_bytes_only_an_item_that_is_cut_is_alone() -> None:
    sizes = [DATA_SIZE_MAX] * 3 + [DATA_SIZE_MAX + 10] + [10] * 2
    items = [item_of_size(4, size) for size in sizes]
    assert [len(run.data) for run in encode_runs(5, items[:3], ROOT_HASH)] == [3 + 1]
    made = list(encode_runs(5, items, ROOT_HASH))
    assert [len(run.data) for run in made] == [1, 1, 1, 1, 1, 2 + 1]
    entries = [entry for run in made for entry in zip(run.entry_types, run.data, strict=True)]
    assert decoded([*encode(5, items[:1], ROOT_HASH)[:1], *entries]) == [
        StoredBlock(5, tuple(items), ROOT_HASH)
    ]


def plainly(number: int, items: list[bytes]) -> Entries:
    """The entries of a block after its bookmarks, written from docs/spec/block-layout.md."""
    entries = []
    for item in items:
        rest, kind = item, kinds_of([item])[0]
        while len(rest) > DATA_SIZE_MAX:
            entries.append((0x8000_0000 | kind, rest[:DATA_SIZE_MAX]))
            rest = rest[DATA_SIZE_MAX:]
        entries.append((kind, rest))
    return [*entries, (BLOCK_END_TYPE, number.to_bytes(8, "big") + ROOT_HASH)]


SHORT = st.integers(0, 600)
AT_THE_EDGE = st.sampled_from(
    [DATA_SIZE_MAX - 8, DATA_SIZE_MAX - 4, *range(2 * DATA_SIZE_MAX - 6, 2 * DATA_SIZE_MAX)]
)
LONG = st.sampled_from([300_000, DATA_SIZE_MAX // 2, 3 * DATA_SIZE_MAX + 1])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(SHORT | SHORT | SHORT | SHORT | AT_THE_EDGE | LONG, min_size=1, max_size=40),
    st.integers(1, 50),
    st.sampled_from([1, 10, 1_000, 300_000, DATA_SIZE_MAX - 1, DATA_SIZE_MAX, DATA_SIZE_MAX + 1, 1 << 40]),
    st.booleans(),
)
def test_runs_are_the_plain_entries_however_they_are_cut(
    sizes: list[int], items_max: int, bytes_max: int, are_kinds_known: bool
) -> None:
    zeros = bytes(4 * DATA_SIZE_MAX)
    items = [field_item(1 + index % 12, zeros[:size]) for index, size in enumerate(sizes)]
    kinds = kinds_of(items) if are_kinds_known else None
    runs = list(encode_runs(9, items, ROOT_HASH, kinds, items_max=items_max, bytes_max=bytes_max))
    entries = [entry for run in runs for entry in zip(run.entry_types, run.data, strict=True)]
    assert entries == plainly(9, items)
    assert encode(9, items, ROOT_HASH)[1:] == entries
    for index, run in enumerate(runs):
        item_count = len(run.data) - (index == len(runs) - 1)  # the block end is not counted
        assert run.size_bytes == sum(map(len, run.data[:item_count]))
        assert 1 <= item_count <= items_max
        assert item_count == 1 or run.size_bytes <= bytes_max


def test_the_refused_item_is_told_by_its_place_in_the_block() -> None:
    items = [field_item(4, b"")] * RUN_ITEMS_MAX + [b"\x0a"]
    runs = encode_runs(5, items, ROOT_HASH)
    assert len(next(runs).data) == RUN_ITEMS_MAX
    with pytest.raises(ItemError, match=f"^item {RUN_ITEMS_MAX}: "):
        next(runs)


def test_what_cannot_be_laid_out_is_refused() -> None:
    with pytest.raises(LayoutError) as caught:
        encode(5, [], ROOT_HASH)
    assert str(caught.value) == "block 5: got no items, expected at least one"
    for kind in (0xB0, 0xB1):
        with pytest.raises(LayoutError) as caught:
            encode(5, [field_item(1, b""), field_item(kind, b"")], ROOT_HASH)
        assert str(caught.value) == (
            f"block 5: got item field {kind}, expected no field number that is the entry type of a mark"
        )
    with pytest.raises(ItemError):
        encode(5, [b"\x0a"], ROOT_HASH)


# --- and back -----------------------------------------------------------------------------------------------

LAYOUT = st.sampled_from(LAYOUTS)
items_strategy = st.lists(
    st.builds(field_item, st.sampled_from([*range(1, 13), 19, 23, 536_870_911]), st.binary(max_size=300)),
    min_size=1,
    max_size=20,
)


@given(st.lists(st.tuples(st.integers(0, (1 << 64) - 1), items_strategy), max_size=4), LAYOUT)
def test_blocks_read_back(blocks: list[tuple[int, list[bytes]]], layout: int) -> None:
    entries = [entry for number, items in blocks for entry in encode(number, items, ROOT_HASH, layout)]
    assert decoded(entries) == [StoredBlock(number, tuple(items), ROOT_HASH) for number, items in blocks]


@settings(max_examples=15)
@given(st.lists(st.integers(DATA_SIZE_MAX - 8, 3 * DATA_SIZE_MAX), min_size=1, max_size=3))
def test_long_items_read_back(sizes: list[int]) -> None:
    items = [field_item(1 + index, bytes(size)) for index, size in enumerate(sizes)]
    assert decoded(encode(1, items, ROOT_HASH)) == [StoredBlock(1, tuple(items), ROOT_HASH)]


@settings(max_examples=300)
@given(st.data(), LAYOUT)
def test_the_encoder_writes_exactly_what_the_decoder_takes(data: st.DataObject, layout: int) -> None:
    entries = encode(3, block_items(3), ROOT_HASH, layout)
    change = data.draw(st.sampled_from(["drop", "double", "swap", "type", "data"]))
    at = data.draw(st.integers(0, len(entries) - 1))
    entry_type, payload = entries[at]
    if change == "drop":
        del entries[at]
    elif change == "double":
        entries.insert(at, entries[at])
    elif change == "swap":
        other = data.draw(st.integers(0, len(entries) - 1))
        entries[at], entries[other] = entries[other], entries[at]
    elif change == "type":
        entries[at] = (data.draw(st.sampled_from([1, 4, 0xB0, 0xB1, 0x8000_0001, 0xFFFF_FFFF])), payload)
    else:
        spoiled = bytearray(payload)
        spoiled[data.draw(st.integers(0, len(payload) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        entries[at] = (entry_type, bytes(spoiled))
    try:
        blocks = decoded(entries)
    except LayoutError:
        return
    for block in blocks:
        assert entries in [encode(block.number, block.items, block.root_hash, one) for one in LAYOUTS]


BOOKMARK = (BOOKMARK_TYPE, bookmark_of(5))
BOOKMARKS: Entries = [(BOOKMARK_TYPE, bookmark) for bookmark in bookmarks_of(5, 1)]
HEADER = (1, field_item(1, b"h"))
END = (BLOCK_END_TYPE, (5).to_bytes(8, "big") + ROOT_HASH)
FULL_PIECE = item_of_size(7, DATA_SIZE_MAX + 1)[:DATA_SIZE_MAX]

REFUSED: dict[str, tuple[Entries, str]] = {
    "item before a bookmark": (
        [HEADER],
        "stream between blocks: got entry type 0x1, expected a bookmark (0xb0)",
    ),
    "end before a bookmark": (
        [END],
        "stream between blocks: got entry type 0xb1, expected a bookmark (0xb0)",
    ),
    "second bookmark first": (
        [BOOKMARKS[1]],
        "first bookmark of a block: got 000000000000000005, expected BookMark {type: 2, value: N}",
    ),
    "empty bookmark": (
        [(BOOKMARK_TYPE, b"")],
        "first bookmark of a block: got no bytes, expected BookMark {type: 2, value: N}",
    ),
    "bookmark of another type": (
        [(BOOKMARK_TYPE, bytes.fromhex("08011005"))],
        "first bookmark of a block: got 08011005, expected BookMark {type: 2, value: N}",
    ),
    "bookmark with a longer number": (
        [(BOOKMARK_TYPE, bytes.fromhex("0802108500"))],
        "first bookmark of a block: got 0802108500, expected BookMark {type: 2, value: N}",
    ),
    "bookmark with a number above 2^64": (
        [(BOOKMARK_TYPE, bytes.fromhex("080210ffffffffffffffffff02"))],
        "first bookmark of a block: got 080210ffffffffffffffffff02, expected BookMark {type: 2, value: N}",
    ),
    "bookmark with an explicit 0": (
        [(BOOKMARK_TYPE, bytes.fromhex("08021000"))],
        "first bookmark of a block: got 08021000, expected BookMark {type: 2, value: N}",
    ),
    "long bookmark": (
        [(BOOKMARK_TYPE, b"\xff" * 1_000_000)],
        (
            f"first bookmark of a block: got {'ff' * 16}… (1000000 bytes), "
            "expected BookMark {type: 2, value: N}"
        ),
    ),
    "no second bookmark in layout 1": (
        [*encode(4, [HEADER[1]], ROOT_HASH, 1), BOOKMARK, HEADER],
        "second bookmark of block 5: got entry type 0x1, expected a bookmark (0xb0)",
    ),
    "second bookmark in layout 2": (
        [*encode(4, [HEADER[1]], ROOT_HASH, 2), *BOOKMARKS],
        "block 5: got a bookmark (0xb0), expected an item",
    ),
    "nothing but a bookmark": (
        [BOOKMARK, END],
        "block 5: got the block end (0xb1), expected the block's second bookmark or an item",
    ),
    "bookmarks of two blocks": (
        [BOOKMARKS[0], (BOOKMARK_TYPE, bookmarks_of(6, 1)[1])],
        "second bookmark of block 5: got 000000000000000006, expected 000000000000000005",
    ),
    "third bookmark": (
        [*BOOKMARKS, BOOKMARKS[0]],
        "block 5: got a bookmark (0xb0), expected an item",
    ),
    "bookmark within a block": (
        [*BOOKMARKS, HEADER, BOOKMARKS[0]],
        "block 5: got a bookmark (0xb0), expected an item or the block end",
    ),
    "no items": (
        [*BOOKMARKS, END],
        "block 5: got the block end (0xb1), expected an item",
    ),
    "type is not the field number": (
        [*BOOKMARKS, HEADER, (5, field_item(4, b"t"))],
        "block 5: item 1: got entry type 0x5, expected 0x4, its field number",
    ),
    "not an item": (
        [*BOOKMARKS, (1, b"\x0a\x05")],
        "block 5: item 0: length of item field 1: got 5 bytes, expected 0, all that follow",
    ),
    "end of another block": (
        [*BOOKMARKS, HEADER, (BLOCK_END_TYPE, (6).to_bytes(8, "big") + ROOT_HASH)],
        "end of block 5: got block number 6, expected 5, as in its bookmark",
    ),
    "short end": (
        [*BOOKMARKS, HEADER, (BLOCK_END_TYPE, END[1][:-1])],
        "end of block 5: got 55 bytes, expected 56",
    ),
    "short piece": (
        [*BOOKMARKS, HEADER, (CONTINUED | 7, FULL_PIECE[:-1])],
        (
            f"block 5: piece 0 of item 1: got {DATA_SIZE_MAX - 1} bytes, "
            f"expected {DATA_SIZE_MAX}, as it is not the last piece"
        ),
    ),
    "end within an item": (
        [*BOOKMARKS, HEADER, (CONTINUED | 7, FULL_PIECE), END],
        "block 5: got the block end (0xb1), expected the next piece of the item",
    ),
    "bookmark within an item": (
        [*BOOKMARKS, (CONTINUED | 7, FULL_PIECE), BOOKMARKS[0]],
        "block 5: got a bookmark (0xb0), expected the next piece of the item",
    ),
    "another item within an item": (
        [*BOOKMARKS, (CONTINUED | 7, FULL_PIECE), (4, field_item(4, b""))],
        "block 5: piece 1 of item 0: got entry type 0x4, expected field number 7",
    ),
    "piece of another item": (
        [*BOOKMARKS, (CONTINUED | 7, FULL_PIECE), (CONTINUED | 4, FULL_PIECE)],
        "block 5: piece 1 of item 0: got entry type 0x80000004, expected field number 7",
    ),
    "empty last piece": (
        [*BOOKMARKS, (CONTINUED | 7, FULL_PIECE), (7, b"")],
        "block 5: piece 1 of item 0: got 0 bytes, expected at least 1 in the last piece",
    ),
    "pieces of no item": (
        [*BOOKMARKS, (CONTINUED | 7, FULL_PIECE), (7, b"xx")],
        "block 5: item 0: item field 7: got 1 bytes after its end, expected nothing after the only field",
    ),
    "pieces of another kind": (
        [*BOOKMARKS, (CONTINUED | 4, FULL_PIECE), (4, b"x")],
        "block 5: item 0: got entry type 0x4, expected 0x7, its field number",
    ),
    "the answer to a lookup that found nothing": (
        [*BOOKMARKS, HEADER, (0xFFFF_FFFF, b"")],
        f"block 5: piece 0 of item 1: got 0 bytes, expected {DATA_SIZE_MAX}, as it is not the last piece",
    ),
}


@pytest.mark.parametrize(("entries", "text"), REFUSED.values(), ids=REFUSED)
def test_entries_that_are_refused_change_nothing(entries: Entries, text: str) -> None:
    decoder = BlockDecoder()
    for entry in entries[:-1]:
        decoder.feed(*entry)
    before = decoder.block_number
    for _ in range(2):  # the second time it is in the same state, and says the same
        with pytest.raises(LayoutError) as caught:
            decoder.feed(*entries[-1])
        assert str(caught.value) == text
        assert decoder.block_number == before


def test_after_a_refusal_the_right_entry_is_taken() -> None:
    decoder = BlockDecoder()
    items = [HEADER[1], item_of_size(7, DATA_SIZE_MAX + 9)]
    for entry in encode(5, items, ROOT_HASH)[:-1]:
        for wrong in ((BOOKMARK_TYPE, b"wrong"), (BLOCK_END_TYPE, b"wrong"), (77, b"wrong")):
            with pytest.raises(LayoutError):
                decoder.feed(*wrong)
        assert decoder.feed(*entry) is None
    assert decoder.feed(*END) == StoredBlock(5, tuple(items), ROOT_HASH)


def test_the_size_of_a_block_is_limited() -> None:
    items = [field_item(1, bytes(50)), field_item(4, bytes(46))]
    entries = encode(5, items, ROOT_HASH)
    decoder = BlockDecoder(block_bytes_max=100)
    assert [decoder.feed(*entry) for entry in entries][-1] == StoredBlock(5, tuple(items), ROOT_HASH)
    decoder = BlockDecoder(block_bytes_max=99)
    for entry in entries[:2]:
        decoder.feed(*entry)
    with pytest.raises(LayoutError) as caught:
        decoder.feed(*entries[2])
    assert str(caught.value) == "block 5: got 100 bytes of items, expected at most 99"


def test_a_reset_forgets_the_block() -> None:
    decoder = BlockDecoder()
    entries = encode(5, block_items(5), ROOT_HASH)
    for entry in entries[:5]:
        decoder.feed(*entry)
    assert decoder.block_number == 5
    decoder.reset()
    assert decoder.block_number is None
    assert [decoder.feed(*entry) for entry in entries][-1] == StoredBlock(5, tuple(block_items(5)), ROOT_HASH)


def test_a_reader_of_entries_gives_a_block_up_where_the_limits_say() -> None:
    """1 GiB is too much for a test; `test_the_size_of_a_block_is_limited` exceeds a small limit."""
    assert BlockDecoder()._block_bytes_max == STORED_BLOCK_BYTES_MAX


@pytest.mark.parametrize(
    ("sizes", "counts"),
    [
        ((MARKED_BYTES_MAX // 2, MARKED_BYTES_MAX // 2), [2]),
        ((MARKED_BYTES_MAX // 2, MARKED_BYTES_MAX // 2 + 1), [1, 1]),
        ((MARKED_BYTES_MAX // 2 + 1, MARKED_BYTES_MAX // 2, 1, DATA_SIZE_MAX), [1, 2, 1]),
    ],
)
def test_one_mark_stands_for_entries_of_a_bounded_size(sizes: tuple[int, ...], counts: list[int]) -> None:
    items = [stream_entry_item(3, bytes(size)) for size in sizes]
    block = encode_native(7, items, ROOT_HASH, 40)
    marks = [
        data
        for run in block.runs
        for entry_type, data in zip(run.entry_types, run.data, strict=True)
        if entry_type == ENTRIES_TYPE
    ]
    firsts = [40 + sum(counts[:index]) for index in range(len(counts))]
    assert marks == [struct.pack(">QQ", *pair) for pair in zip(firsts, counts, strict=True)]
    assert [len(data) for _, data in block.network] == list(sizes)
