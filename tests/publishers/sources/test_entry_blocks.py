"""Blocks out of parts of a stream."""

from __future__ import annotations

import itertools

import pytest

from sluice.datastream.layout import Entry
from sluice.gateway.blocks.errors import LayoutError
from sluice.gateway.blocks.stream_layout import encode
from sluice.publishers.sources.entry_blocks import blocks_that_begin_in
from tests.nodes import make_blocks

BLOCKS = make_blocks(4)
PAIRS = [pair for block in BLOCKS for pair in encode(block.number, block.items, bytes(48))]
ENTRIES = [Entry(kind, number, data) for number, (kind, data) in enumerate(PAIRS)]


def numbers_in(first: int, end: int) -> list[int]:
    return [stored.number for stored in blocks_that_begin_in(iter(ENTRIES[first:]), first, end)]


def test_every_cut_gives_every_block_once() -> None:
    for cut in range(1, len(ENTRIES)):
        assert numbers_in(0, cut) + numbers_in(cut, len(ENTRIES)) == [0, 1, 2, 3]


def test_small_parts_together_give_every_block_once() -> None:
    for size in (1, 2, 3, 7):
        cuts = [*range(0, len(ENTRIES), size), len(ENTRIES)]
        found = [numbers_in(first, end) for first, end in itertools.pairwise(cuts)]
        assert list(itertools.chain.from_iterable(found)) == [0, 1, 2, 3]


def test_the_blocks_are_whole() -> None:
    found = list(blocks_that_begin_in(iter(ENTRIES[5:]), 5, len(ENTRIES)))
    assert [stored.items for stored in found] == [block.items for block in BLOCKS[1:]]


def test_nothing_is_read_after_the_last_block() -> None:
    rest = iter(ENTRIES)
    list(blocks_that_begin_in(rest, 0, 1))
    assert next(rest).number == len(encode(0, BLOCKS[0].items, bytes(48)))


def test_a_stream_of_something_else_is_refused() -> None:
    with pytest.raises(LayoutError, match="stream between blocks"):
        list(blocks_that_begin_in(iter([Entry(1, 0, b"x")]), 0, 5))
    with pytest.raises(LayoutError, match="block 7: got the block end"):
        list(blocks_that_begin_in(iter([Entry(0xB0, 4, b"\x08\x02\x10\x07"), Entry(0xB1, 5, b"x")]), 4, 9))
