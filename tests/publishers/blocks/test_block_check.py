"""Blocks checked before they are offered."""

from __future__ import annotations

import dataclasses
from typing import Literal

import pytest

from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.merkle import EMPTY_HASH, tree_root
from sluice.publishers.blocks.block_check import OfferCheck
from sluice.publishers.blocks.block_places import read_chain
from sluice.publishers.errors import BadBlock
from tests.gateway.block_makers import block_items, summary_of
from tests.nodes import make_blocks
from tests.publishers.data import needs_real_blocks, real_chain

BLOCKS = make_blocks(6)
OTHERS = make_blocks(6, seed=8)


def reason_of(*blocks: Block) -> str:
    check = OfferCheck()
    for block in blocks[:-1]:
        check.check(block)
    with pytest.raises(BadBlock) as caught:
        check.check(blocks[-1])
    assert caught.value.number == blocks[-1].number
    return caught.value.reason


@pytest.mark.parametrize("first", [0, 1, 4])
def test_a_part_of_a_chain_is_good(first: int) -> None:
    check = OfferCheck()
    assert [check.check(block).number for block in BLOCKS[first:]] == list(range(first, 6))


@needs_real_blocks
@pytest.mark.parametrize("chain", ["signed-chain", "record-file-chain", "layout-8-chain"])
def test_real_chains_are_good(chain: str) -> None:
    check = OfferCheck()
    assert all(check.check(block) for block in read_chain(real_chain(chain)))


def test_structure() -> None:
    without_footer = Block(0, tuple(item for item in BLOCKS[0].items if item[0] >> 3 != 12))
    assert reason_of(without_footer).startswith("missing item: ")
    assert reason_of(Block(1, ())).startswith("missing item: ")
    assert reason_of(Block(0, (*BLOCKS[0].items, b"\xff"))).startswith("cannot parse")


def test_the_number_of_the_column_is_that_of_the_header() -> None:
    assert reason_of(dataclasses.replace(BLOCKS[3], number=4)) == "its header says that it is block 3"


def test_the_link_to_the_block_before() -> None:
    reason = reason_of(BLOCKS[1], OTHERS[2])
    assert reason.startswith("it links to a block with root hash ")
    assert ", but that of block 1 is " in reason


def test_block_0_links_to_nothing_and_a_changed_item_breaks_the_next_link() -> None:
    changed = list(BLOCKS[2].items)
    position = next(index for index, item in enumerate(changed) if item[0] >> 3 == 4)
    changed[position] = changed[position][:-1] + bytes([changed[position][-1] ^ 1])
    assert reason_of(BLOCKS[1], Block(2, tuple(changed)), BLOCKS[3]).startswith("it links to a block")


@pytest.mark.parametrize("minor", [77, 78])
def test_each_block_is_linked_to_in_its_own_layout(minor: int) -> None:
    """docs/spec/block-hash.md section 3.3: the next footer, not the version, tells the layout."""
    links, roots = (EMPTY_HASH, EMPTY_HASH), []
    check = OfferCheck()
    layouts: tuple[Literal[8, 16], ...] = (8, 16, 16, 8)
    for number, layout in enumerate(layouts):
        items = block_items(number, *links, minor=minor, root_layout=layout)
        assert check.check(Block.from_items(items)).number == number
        roots.append(summary_of(items, layout).root_hash)
        links = (roots[-1], tree_root(roots))
    strange = Block.from_items(block_items(4, links[0], b"x" * 48, minor=minor))
    with pytest.raises(BadBlock) as caught:
        check.check(strange)
    assert caught.value.reason == ("its root_hash_of_all_block_hashes_tree is not that of the blocks before")


def test_a_gap_begins_a_new_part_and_a_refused_block_changes_nothing() -> None:
    check = OfferCheck()
    check.check(BLOCKS[0])
    with pytest.raises(BadBlock):
        check.check(OTHERS[1])
    check.check(BLOCKS[1])
    check.check(OTHERS[4])
