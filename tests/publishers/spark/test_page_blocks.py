"""Blocks out of pages: the same as the decoder finds, entry by entry, and the same refusals."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from random import Random

import pytest

pytest.importorskip("pyarrow", reason="needs the extra spark")

from sluice.datastream.layout import DATA_SIZE_MAX, PAGE_SIZE, Entry, encode_entry
from sluice.gateway.blocks.errors import LayoutError
from sluice.gateway.blocks.items import ItemKind, field_item
from sluice.gateway.blocks.stream_layout import encode
from sluice.publishers.sources.entry_blocks import blocks_that_begin_in
from sluice.publishers.spark import page_blocks
from sluice.publishers.spark.page_blocks import block_batches
from sluice.publishers.spark.page_entries import PageEntries, read_page
from sluice.publishers.spark.schema import BLOCK_COLUMNS, BLOCK_NUMBER
from tests.nodes import make_blocks

Pair = tuple[int, bytes]
Blocks = list[tuple[int, tuple[bytes, ...]]]


def items_of(*sizes: int) -> list[bytes]:
    return [
        field_item(ItemKind.SIGNED_TRANSACTION, bytes([index % 256]) * size)
        for index, size in enumerate(sizes)
    ]


def entries_of(pairs: Sequence[Pair]) -> list[Entry]:
    return [Entry(kind, number, data) for number, (kind, data) in enumerate(pairs)]


def pages_of(entries: Sequence[Entry], page_size: int = 4_000) -> list[PageEntries]:
    """Lay entries out on pages; short ones, so that blocks lie across many."""
    pages: list[list[Entry]] = [[]]
    size = 0
    for entry in entries:
        if pages[-1] and size + 17 + len(entry.data) > page_size:
            pages.append([])
            size = 0
        pages[-1].append(entry)
        size += 17 + len(entry.data)
    return [
        read_page(b"".join(map(encode_entry, page)).ljust(PAGE_SIZE, b"\0"), page[0].number, PAGE_SIZE)
        for page in pages
    ]


def found_in(pages: Sequence[PageEntries], first: int, end: int) -> Blocks:
    batches = list(block_batches(iter(pages), first, end, BLOCK_COLUMNS))
    return [(row["block_number"], tuple(row["items"])) for batch in batches for row in batch.to_pylist()]


def expected_in(entries: Sequence[Entry], first: int, end: int) -> Blocks:
    return [(one.number, one.items) for one in blocks_that_begin_in(iter(entries[first:]), first, end)]


def outcome(find: Callable[..., Blocks], *arguments: object) -> Blocks | str:
    """Give what was found, or why nothing was."""
    try:
        return find(*arguments)
    except LayoutError as error:
        return str(error)


BLOCKS = make_blocks(30)
PLAIN = entries_of([pair for block in BLOCKS for pair in encode(block.number, block.items, bytes(48))])
ODD = entries_of(
    [
        pair
        for number, items in enumerate(
            [
                items_of(5),
                items_of(1, 127, 126, 128, 129, 16_383, 16_384, 70_000, 0),
                items_of(2_500_000, 3),
                items_of(*[40] * 500),
                [field_item(23, b"x"), field_item(2_000, b"y" * 300)],
                items_of(DATA_SIZE_MAX),
                items_of(7),
            ]
        )
        for pair in encode(number, items, bytes(48))
    ]
)


@pytest.fixture
def no_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the decoder fail the test: what is ordinary has to go without."""

    def fail(*_: object) -> Iterator[dict[str, object]]:
        raise AssertionError("the decoder was asked")

    monkeypatch.setattr(page_blocks, "_decoded", fail)


@pytest.mark.usefixtures("no_decoder")
def test_every_cut_between_pages_gives_every_block_once() -> None:
    pages = pages_of(PLAIN)
    assert len(pages) > 3
    starts = [page.first_number for page in pages]
    for cut in range(1, len(pages)):
        before = found_in(pages, 0, starts[cut])
        after = found_in(pages[cut:], starts[cut], len(PLAIN))
        assert before + after == [(block.number, block.items) for block in BLOCKS]
        assert before == expected_in(PLAIN, 0, starts[cut])


@pytest.mark.parametrize("page_size", [200, 30_000, PAGE_SIZE])
def test_items_of_all_sizes(page_size: int) -> None:
    pages = pages_of(ODD, page_size)
    for run in ((0, len(pages)), *itertools.pairwise(range(0, len(pages), 3))):
        first = pages[run[0]].first_number
        end = pages[run[1]].first_number if run[1] < len(pages) else len(ODD)
        assert found_in(pages[run[0] :], first, end) == expected_in(ODD, first, end)


def test_numbers_alone() -> None:
    batches = list(block_batches(pages_of(PLAIN), 0, len(PLAIN), {BLOCK_NUMBER: BLOCK_COLUMNS[BLOCK_NUMBER]}))
    assert [number for batch in batches for number in batch.column(0).to_pylist()] == list(range(30))
    assert {batch.num_columns for batch in batches} == {1}


def test_nothing_is_asked_for_beyond_the_last_block() -> None:
    pages = iter(pages_of(PLAIN))
    assert len(list(block_batches(pages, 0, 1, BLOCK_COLUMNS))) == 1
    assert next(pages).first_number <= 3 * len(encode(0, BLOCKS[0].items, bytes(48)))


def drop(entries: list[Pair], at: int, _: Random) -> None:
    del entries[at]


def repeat(entries: list[Pair], at: int, _: Random) -> None:
    entries.insert(at, entries[at])


def retype(entries: list[Pair], at: int, rng: Random) -> None:
    entries[at] = (rng.choice((0xB0, 0xB1, 4, 5, 0x8000_0004)), entries[at][1])


def flip(entries: list[Pair], at: int, rng: Random) -> None:
    kind, data = entries[at]
    changed = bytearray(data)
    changed[rng.randrange(min(12, len(data)))] ^= 1 << rng.randrange(8)
    entries[at] = (kind, bytes(changed))


def shorten(entries: list[Pair], at: int, _: Random) -> None:
    entries[at] = (entries[at][0], entries[at][1][:-1])


@pytest.mark.parametrize("change", [drop, repeat, retype, flip, shorten])
@pytest.mark.parametrize("seed", range(12))
def test_what_is_wrong_is_what_the_decoder_says(
    change: Callable[[list[Pair], int, Random], None], seed: int
) -> None:
    rng = Random(seed)
    pairs = [(entry.type, entry.data) for entry in PLAIN]
    change(pairs, rng.randrange(len(pairs)), rng)
    entries = entries_of(pairs)
    assert outcome(found_in, pages_of(entries), 0, len(entries)) == outcome(
        expected_in, entries, 0, len(entries)
    )


def test_a_stream_of_something_else_is_refused_at_once() -> None:
    first, *others = pages_of(entries_of([(1, b"x")] * 1_000))

    def pages() -> Iterator[PageEntries]:
        yield first
        raise AssertionError("more was asked for")

    with pytest.raises(LayoutError, match="stream between blocks: got entry type 0x1"):
        list(block_batches(pages(), 0, 1_000, BLOCK_COLUMNS))
    assert list(block_batches(iter(others), others[0].first_number, 1_000, BLOCK_COLUMNS)) == []


def test_a_block_without_end_is_refused() -> None:
    message = "block 29: got the end of the stream, expected the block end \\(0xb1\\)"
    with pytest.raises(LayoutError, match=message):
        found_in(pages_of(PLAIN[:-1]), 0, len(PLAIN))
    with pytest.raises(LayoutError, match=message):
        expected_in(PLAIN[:-1], 0, len(PLAIN))
