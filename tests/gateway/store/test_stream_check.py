"""The check of stored blocks: a sound chain, and each fault with its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import pytest

from sluice.datastream.layout import Entry
from sluice.gateway.blocks.merkle import EMPTY_HASH, StreamingTree
from sluice.gateway.blocks.root_hash import BlockHasher
from sluice.gateway.blocks.stream_layout import BLOCK_END_TYPE, encode
from sluice.gateway.store.stream_check import BlockCheck
from tests.gateway.block_makers import block_items, summary_of
from tests.nodes import make_blocks

Entries = list[tuple[int, bytes]]


def serialized(first: int = 0) -> list[Entries]:
    """Return the entries of each of five blocks."""
    found = []
    for block in make_blocks(first + 5)[first:]:
        hasher = BlockHasher()
        hasher.add(block.items)
        found.append(encode(block.number, block.items, hasher.finish().root_hash))
    return found


BLOCKS = serialized()


def check(
    blocks: Sequence[Entries], gap_before: int | None = None
) -> tuple[BlockCheck, list[tuple[str, int]]]:
    """Feed blocks; return the check and its reports, as (what, entry number)."""
    reports: list[tuple[str, int]] = []
    checker = BlockCheck(lambda what, offset, number: reports.append((what, number)))
    number = 0
    for place, entries in enumerate(blocks):
        if place == gap_before:
            checker.gap()
        for kind, data in entries:
            checker.entry(Entry(kind, number, data), 4096 + number)
            number += 1
    checker.end()
    return checker, reports


@pytest.mark.parametrize("first", [0, 3])
def test_a_sound_chain(first: int) -> None:
    checker, reports = check(serialized(first))
    assert reports == []
    assert checker.is_block_stream
    assert (checker.block_count, checker.last_number) == (5, first + 4)


def in_layouts(layouts: Sequence[Literal[8, 16]], minor: int) -> list[Entries]:
    """Return a chain that was committed with the roots of these layouts, whatever its version suggests."""
    found, roots = [], [EMPTY_HASH]
    tree = StreamingTree()
    for number, layout in enumerate(layouts):
        items = block_items(number, roots[-1], tree.root(), minor=minor, root_layout=layout)
        roots.append(summary_of(items, layout).root_hash)
        tree.push(roots[-1])
        found.append(encode(number, items, roots[-1]))
    return found


@pytest.mark.parametrize("minor", [77, 78])
def test_a_chain_whose_versions_do_not_tell_the_layout(minor: int) -> None:
    """The stored root, which a proof signed, shows the layout of a block."""
    checker, reports = check(in_layouts([8, 16, 16, 8, 16], minor))
    assert reports == []
    assert checker.block_count == 5


def replaced(place: int, entry: int, data: bytes) -> list[Entries]:
    blocks = [list(entries) for entries in BLOCKS]
    blocks[place][entry] = (blocks[place][entry][0], data)
    return blocks


WRONG_END = BLOCKS[2][-1][1][:-1] + bytes([BLOCKS[2][-1][1][-1] ^ 1])
CASES: list[tuple[str, Callable[[], list[Entries]], list[str], int]] = [
    ("root hash", lambda: replaced(2, -1, WRONG_END), ["block 2: root hash "], 5),
    ("a block is missing", lambda: BLOCKS[:2] + BLOCKS[3:], ["block 3: block number: got 3, expected 2"], 4),
    ("no end", lambda: [*BLOCKS[:4], BLOCKS[4][:-1]], ["block 4 has no end"], 4),
    (
        "an entry is missing",
        lambda: [*BLOCKS[:2], [BLOCKS[2][0], *BLOCKS[2][2:]], *BLOCKS[3:]],
        ["block 2: missing item: first item: got round header (field 3)"],
        5,
    ),
    (
        "an item is of another type",
        lambda: [*BLOCKS[:2], [*BLOCKS[2][:2], (77, BLOCKS[2][2][1]), *BLOCKS[2][3:]], *BLOCKS[3:]],
        ["block 2: item 1: got entry type 0x4d"],
        4,
    ),
]


@pytest.mark.parametrize(("name", "blocks", "starts", "count"), CASES, ids=[case[0] for case in CASES])
def test_what_is_wrong(name: str, blocks: Callable[[], list[Entries]], starts: list[str], count: int) -> None:
    checker, reports = check(blocks())
    assert len(reports) == len(starts), reports
    for (what, _), start in zip(reports, starts, strict=True):
        assert what.startswith(start), what
    assert checker.block_count == count


def test_after_a_gap_the_chain_is_taken_up() -> None:
    checker, reports = check([*BLOCKS[:2], *BLOCKS[3:]], gap_before=2)
    assert reports == []
    assert checker.block_count == 4


def test_other_streams_are_left_alone() -> None:
    for stream in (
        [(1, b"event")] * 5,
        [(0xB0, b"\0mark"), (1, b"event")] * 3,
        [(0xB0, b"\x08\x02"), (1, b"x")],
    ):
        checker, reports = check([stream])
        assert reports == []
        assert not checker.is_block_stream
    assert BLOCKS[0][-1][0] == BLOCK_END_TYPE
