"""The blocks of pages: found, proven, and serialized again to the same bytes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.datastream.errors import PageDamaged
from sluice.datastream.file.page_sums import PageState
from sluice.datastream.layout import PAGE_SIZE
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.errors import LayoutError
from sluice.gateway.blocks.stream_layout import bookmark_of
from sluice.gateway.store.block_store import BlockStore
from sluice.gateway.store.page_blocks import PageBlocks, PageBuilder, root_of
from tests.rotten import drop_sums, flip, large_blocks, page_bytes, store, stored_sums

SMALL = large_blocks(40, 90_000)
LARGE = large_blocks(5, 2_500_000)


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[tuple[BlockStore, PageBlocks]]:
    block_store = BlockStore.open(folder)
    try:
        yield block_store, PageBlocks(block_store)
    finally:
        block_store.close()


@pytest.fixture(params=["small", "large"])
def blocks(request: pytest.FixtureRequest) -> list[Block]:
    return SMALL if request.param == "small" else LARGE


@pytest.fixture
def folder(tmp_path: Path, blocks: list[Block]) -> Path:
    store(tmp_path / "data", blocks)
    return tmp_path / "data"


def long_item(block_store: BlockStore, number: int) -> int:
    """Return the offset of a byte in a long item of a block."""
    start = block_store.streamer.get_bookmark(bookmark_of(number))
    entry = next(entry for entry in block_store.streamer.read_entries(start) if len(entry.data) > 50_000)
    return block_store.streamer.offset_of(entry.number) + 40_000


def test_every_page_is_made_again_from_its_blocks(folder: Path, blocks: list[Block]) -> None:
    with opened(folder) as (block_store, page_blocks):
        pages = block_store.streamer.sums.full_count
        assert pages > 3
        for page in range(pages):
            found = page_blocks.of_page(page)
            assert found is not None
            builder = PageBuilder(page, found.origin, 2)
            for block in blocks[found.first : found.last + 1]:
                root, _ = root_of(block.number, block.items, block_store.root_hash_at(block.number))
                builder.add(block.number, block.items, root)
            assert builder.page() == page_bytes(folder, page)
            # The smallest range.
            if blocks is SMALL:
                assert found.last - found.first <= PAGE_SIZE // 90_000 + 2


def test_pages_around_a_bad_one_tell_its_blocks(folder: Path) -> None:
    flip(folder, 1, 5000)
    flip(folder, 2, 5000)
    with opened(folder) as (block_store, page_blocks):
        for page in (1, 2):
            with pytest.raises(PageDamaged):
                block_store.streamer.sums.check(page)
        first, second = page_blocks.of_page(1), page_blocks.of_page(2)
        assert first is not None
        assert second is not None
        assert first.origin == second.origin  # the last readable page before them


def test_an_empty_ledger_has_no_blocks(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as (_, page_blocks):
        assert page_blocks.of_page(0) is None


def test_pages_without_a_sum_are_proven_before_they_are_read(folder: Path, blocks: list[Block]) -> None:
    drop_sums(folder)
    with opened(folder) as (block_store, _):
        sums = block_store.streamer.sums
        assert sums.state(1) is PageState.UNKNOWN
        block_store.streamer.get_entry(sums.first_number(1))
        assert sums.state(1) is PageState.GOOD
        assert sums.has_sum(1)
        if blocks is LARGE:  # and the others that the same block fills
            assert sums.has_sum(2)
        assert [block_store.read_block(block.number).items for block in blocks] == [  # type: ignore[union-attr]
            block.items for block in blocks
        ]
    assert stored_sums(folder) == set(range(sums.full_count))


def test_a_block_that_is_not_what_was_committed_makes_its_pages_bad(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    firsts = store(folder, SMALL)
    drop_sums(folder)
    with opened(folder) as (block_store, _):
        offset = long_item(block_store, 14)
    page, position = divmod(offset - 4096, PAGE_SIZE)
    drop_sums(folder)
    flip(folder, page, position)
    with opened(folder) as (block_store, _):
        with pytest.raises(PageDamaged, match="block 14: root hash "):
            block_store.read_block(14)
        assert page in block_store.streamer.sums.bad
        assert block_store.read_block(30) is not None
    assert page not in stored_sums(folder)
    assert len(firsts) > 3


def test_the_blocks_of_the_last_page_are_looked_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    store(folder, SMALL)
    with opened(folder) as (block_store, page_blocks):
        streamer = block_store.streamer
        last = streamer.sums.full_count
        number = next(
            number
            for number in range(39, 0, -1)
            if streamer.page_of_entry(streamer.get_bookmark(bookmark_of(number))) < last
        )
        # The first that lies wholly on it and has a long item.
        number = next(n for n in range(number + 1, 39) if max(map(len, SMALL[n].items)) > 50_000)
        position = long_item(block_store, number) - 4096 - last * PAGE_SIZE
        for block in SMALL:
            page_blocks.ensure_block(block.number)
    flip(folder, last, position)
    with opened(folder) as (block_store, page_blocks):
        with pytest.raises(LayoutError, match=f"block {number}: root hash"):
            page_blocks.ensure_block(number)
        page_blocks.ensure_block(number - 1)
        page_blocks.ensure_block(39)


def test_a_root_that_nobody_else_knows() -> None:
    root, summary = root_of(3, SMALL[3].items, None)
    assert root == summary.root_hash
    assert root_of(3, SMALL[3].items, root)[0] == root
    with pytest.raises(LayoutError, match="as the chain here has it"):
        root_of(3, SMALL[3].items, bytes(48))
    with pytest.raises(LayoutError, match="the header of block 3"):
        root_of(4, SMALL[3].items, None)


def test_a_page_beside_a_bad_one_that_cannot_be_proven_is_read_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    store(folder, SMALL)
    drop_sums(folder)
    flip(folder, 1, PAGE_SIZE - 1)  # in its padding
    block_store = BlockStore.open(folder)
    first = block_store.streamer.get_entry(1)  # before anybody could prove it
    PageBlocks(block_store)
    with pytest.raises(PageDamaged, match="padding"):
        block_store.streamer.sums.check(1)
    assert block_store.streamer.get_entry(1) == first
    assert block_store.streamer.sums.state(0) is PageState.GOOD
    assert not block_store.streamer.sums.has_sum(0)
    block_store.close()
