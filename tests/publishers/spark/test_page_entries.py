"""The entries of a page as columns: the same as a walk finds, whatever the page holds."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

pytest.importorskip("pyarrow", reason="needs the extra spark")

from sluice.datastream.file.pages import PageFault, walk_page
from sluice.datastream.layout import PAGE_SIZE, Entry, encode_entry
from sluice.publishers.spark.page_entries import read_page


def page_of(first_number: int, data: Sequence[bytes], kind: int = 7) -> tuple[bytes, list[Entry]]:
    """Make a page of entries with this data, and what follows it."""
    entries = [Entry(kind + index % 3, first_number + index, one) for index, one in enumerate(data)]
    page = b"".join(map(encode_entry, entries))
    assert len(page) <= PAGE_SIZE
    return page.ljust(PAGE_SIZE, b"\0"), entries


def check(page: bytes, entries: list[Entry], end: int = PAGE_SIZE) -> None:
    found = read_page(page, entries[0].number, end)
    assert found.entries() == entries
    assert len(found) == len(entries)
    assert found.numbers().to_pylist() == [entry.number for entry in entries]
    assert found.types.tolist() == [entry.type for entry in entries]
    assert found.data().to_pylist() == [entry.data for entry in entries]


@pytest.mark.parametrize("first_number", [0, 1, 65_000, 65_535, 16_777_000, 2**40 - 3])
def test_entries_of_all_sizes(first_number: int) -> None:
    rng = Random(first_number)
    data = [rng.randbytes(rng.choice((0, 1, 51, 51, 200, 3_000))) for _ in range(1_200)]
    check(*page_of(first_number, data))


def test_full_pages_and_ends() -> None:
    check(*page_of(3, [bytes(PAGE_SIZE - 17)]))
    check(*page_of(3, [bytes(PAGE_SIZE - 34), b""]))
    page, entries = page_of(60_000, [b""] * (PAGE_SIZE // 17))
    check(page, entries)
    page, entries = page_of(9, [b"abc", b"\x02" * 100])
    check(page, entries, end=20 + 117)
    check(page[: 20 + 117], entries, end=20 + 117)


def test_data_that_looks_like_entries() -> None:
    inner = encode_entry(Entry(1, 42, b"x" * 30))
    check(*page_of(40, [b"", inner, inner * 5, b"last"]))
    check(*page_of(0, [bytes([2, 0, 0, 0]) * 50, encode_entry(Entry(1, 1, b""))]))


def read_outcome(page: bytes, first_number: int, end: int) -> object:
    try:
        found = read_page(page, first_number, end)
    except PageFault as fault:
        return str(fault)
    data = b"".join(map(encode_entry, found.entries()))
    assert page.startswith(data)
    return first_number + len(found), len(data)


def walk_outcome(page: bytes, first_number: int, end: int) -> object:
    try:
        walk = walk_page(page, first_number, end)
    except PageFault as fault:
        return str(fault)
    return walk.entries_end, walk.data_end


@pytest.mark.parametrize("seed", range(40))
def test_damage_is_what_a_walk_says_it_is(seed: int) -> None:
    rng = Random(seed)
    page, entries = page_of(rng.choice((0, 65_530)), [rng.randbytes(rng.randrange(90)) for _ in range(300)])
    data_end = sum(17 + len(entry.data) for entry in entries)
    damaged = bytearray(page)
    for _ in range(rng.choice((1, 3))):
        damaged[rng.randrange(data_end + 30)] ^= 1 << rng.randrange(8)
    end = rng.choice((PAGE_SIZE, data_end, data_end - 1, data_end + 1, 16, 0))
    assert read_outcome(bytes(damaged), entries[0].number, end) == walk_outcome(
        bytes(damaged), entries[0].number, end
    )
