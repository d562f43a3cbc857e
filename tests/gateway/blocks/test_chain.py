"""Tests of `gateway.blocks.chain`."""

from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.gateway.blocks.chain import Chain, LastLayout
from sluice.gateway.blocks.errors import ChainMisuse, ChainStateError
from sluice.gateway.blocks.merkle import EMPTY_HASH, tree_root
from sluice.gateway.blocks.refusal import Refusal, RefusalKind
from sluice.gateway.blocks.root_hash import BlockSummary
from tests.gateway.block_makers import block_items, summary_of

PREVIOUS = "block footer field 1 (previous_block_root_hash)"
ALL_BLOCKS = "block footer field 2 (root_hash_of_all_block_hashes_tree)"


def roots(count: int) -> list[bytes]:
    return [hashlib.sha384(b"%d" % index).digest() for index in range(count)]


def block(number: int, previous: bytes, all_blocks: bytes) -> BlockSummary:
    return summary_of(block_items(number, previous, all_blocks))


def chain_of(count: int, first_number: int = 0) -> Chain:
    chain = Chain(first_number)
    for number, root in enumerate(roots(count), start=first_number):
        chain.advance(number, root)
    return chain


@pytest.mark.parametrize("count", range(10))
def test_both_links_are_checked_from_block_0_on(count: int) -> None:
    chain, previous_roots = chain_of(count), roots(count)
    previous = previous_roots[-1] if previous_roots else EMPTY_HASH
    all_blocks = tree_root(previous_roots)
    assert chain.links_of_next() == (previous, all_blocks)
    assert chain.check_links(block(count, previous, all_blocks)) is None
    assert chain.check_links(block(count, b"x" * 48, all_blocks)) == Refusal(
        RefusalKind.BAD_ROOT_HASH, PREVIOUS, (b"x" * 48).hex(), previous.hex()
    )
    assert chain.check_links(block(count, previous, b"y" * 48)) == Refusal(
        RefusalKind.BAD_ROOT_HASH, ALL_BLOCKS, (b"y" * 48).hex(), all_blocks.hex()
    )
    assert chain.anchor_note is None


def test_another_block_than_the_next_is_refused() -> None:
    chain = chain_of(3)
    for number in (0, 2, 4):
        assert chain.check_links(block(number, roots(3)[-1], tree_root(roots(3)))) == Refusal(
            RefusalKind.BAD_ROOT_HASH, "block number", str(number), "3, the next"
        )


def test_real_blocks_make_a_chain() -> None:
    chain = Chain()
    for number in range(6):
        previous, all_blocks = chain.links_of_next()
        assert previous is not None
        assert all_blocks is not None
        summary = block(number, previous, all_blocks)
        assert chain.check_links(summary) is None
        chain.advance(number, summary.root_hash)
    assert (chain.first_number, chain.last_number, chain.next_number) == (0, 5, 6)


def test_a_chain_that_begins_later_believes_its_first_block_and_says_so() -> None:
    chain = Chain(first_number=391)
    assert (chain.last_number, chain.last_root_hash, chain.next_number) == (None, None, 391)
    assert chain.check_links(block(391, b"p" * 48, b"a" * 48)) is None
    assert chain.check_links(block(0, EMPTY_HASH, EMPTY_HASH)) == Refusal(
        RefusalKind.BAD_ROOT_HASH, "block number", "0", "391, the next"
    )
    chain.advance(391, roots(1)[0])
    assert chain.check_links(block(392, roots(1)[0], b"whatever" * 6)) is None
    refusal = chain.check_links(block(392, b"x" * 48, b"whatever" * 6))
    assert refusal == Refusal(RefusalKind.BAD_ROOT_HASH, PREVIOUS, (b"x" * 48).hex(), roots(1)[0].hex())
    assert chain.anchor_note == (
        "the chain begins here with block 391: its footer's links are believed as they are, and "
        "root_hash_of_all_block_hashes_tree is not checked in the blocks after it"
    )


@pytest.mark.parametrize("number", [0, 2, 4])
def test_a_chain_advances_by_its_next_block_only(number: int) -> None:
    chain = chain_of(3)
    before = chain.state()
    with pytest.raises(ChainMisuse) as caught:
        chain.advance(number, EMPTY_HASH)
    assert str(caught.value) == f"chain: got block {number}, expected block 3"
    assert chain.state() == before


def test_a_copy_goes_on_alone() -> None:
    chain = chain_of(3)
    copy = chain.copy()
    copy.advance(3, EMPTY_HASH)
    assert (chain.last_number, copy.last_number) == (2, 3)
    assert chain.links_of_next() == (roots(3)[-1], tree_root(roots(3)))
    assert copy.links_of_next() == (EMPTY_HASH, tree_root([*roots(3), EMPTY_HASH]))


@given(st.integers(0, 70), st.integers(0, 5), st.sampled_from([0, 1, 391, 1 << 40]))
def test_a_chain_goes_on_from_its_state(before: int, after: int, first_number: int) -> None:
    state = json.loads(json.dumps(chain_of(before, first_number).state()))
    chain = Chain.from_state(state)
    assert chain.state() == state
    for number, root in list(enumerate(roots(before + after), start=first_number))[before:]:
        chain.advance(number, root)
    whole = chain_of(before + after, first_number)
    assert chain.state() == whole.state()
    assert chain.links_of_next() == whole.links_of_next()


GOOD = chain_of(3).state()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"first_number": "0"}, "chain state: first_number: got '0', expected a block number"),
        ({"first_number": True}, "chain state: first_number: got True, expected a block number"),
        ({"first_number": -1}, "chain state: first_number: got -1, expected a block number"),
        ({"last_number": 1 << 64}, f"chain state: last_number: got {1 << 64}, expected a block number"),
        ({"last_root_hash": None}, "chain state: last_root_hash: got None, expected 48 bytes in hex"),
        ({"last_root_hash": "zz"}, "chain state: last_root_hash: got 'zz', expected 48 bytes in hex"),
        ({"last_root_hash": "00"}, "chain state: last_root_hash: got 1 bytes, expected 48 bytes in hex"),
        (
            {"last_number": None},
            "chain state: last_root_hash: got a value, expected none, as there is no last_number",
        ),
        ({"last_number": 3}, "chain state: tree_stack: got 2 hashes, expected 1 for 4 blocks"),
        ({"tree_stack": None}, "chain state: tree_stack: got None, expected a list of hashes in hex"),
        ({"tree_stack": [1, 2]}, "chain state: tree_stack[0]: got 1, expected 48 bytes in hex"),
        (
            {"first_number": 1},
            "chain state: tree_stack: got a value, expected none, as the chain begins after block 0",
        ),
        ({"first_number": 3}, "chain state: last_number: got 2, expected at least 3, first_number"),
        (
            {"more": 1},
            (
                "chain state: got keys "
                "['first_number', 'last_number', 'last_root_hash', 'more', 'tree_stack', "
                "'tree_stack_before'], "
                "expected keys "
                "['first_number', 'last_number', 'last_root_hash', 'tree_stack', 'tree_stack_before']"
            ),
        ),
    ],
)
def test_a_state_that_describes_no_chain_is_refused(changes: dict[str, object], text: str) -> None:
    with pytest.raises(ChainStateError) as caught:
        Chain.from_state({**GOOD, **changes})
    assert str(caught.value) == text


# --- which layout a root has --------------------------------------------------------------------------------


def chain_with_two_roots(first_number: int = 0, *, count: int = 4, minor: int = 78) -> tuple[Chain, bytes]:
    """A chain whose last block may have two roots, and the other one."""
    chain = chain_of(count - 1, first_number)
    other = b"o" * 48
    chain.advance(chain.next_number, roots(count)[-1], LastLayout(minor, 16, other))
    return chain, other


@pytest.mark.parametrize("count", range(1, 9))
def test_the_next_block_tells_which_root_the_last_one_has(count: int) -> None:
    chain, other = chain_with_two_roots(count=count)
    before = roots(count)[:-1]
    by_version = block(count, roots(count)[-1], tree_root(roots(count)))
    assert chain.settled_by(by_version) == (chain, None)
    settled, refusal = chain.settled_by(block(count, other, tree_root([*before, other])))
    assert refusal is None
    assert settled is not chain
    assert (settled.last_root_hash, chain.last_root_hash) == (other, roots(count)[-1])
    assert settled.links_of_next() == (other, tree_root([*before, other]))
    back, refusal = settled.settled_by(by_version)
    assert refusal is None
    assert (back.links_of_next(), back.state()) == (chain.links_of_next(), chain.state())


def test_both_links_have_to_name_the_other_root() -> None:
    chain, other = chain_with_two_roots()
    own, before = roots(4)[-1], roots(4)[:-1]
    for previous, all_blocks in ((other, tree_root([*before, own])), (own, tree_root([*before, other]))):
        wrong = block(4, previous, all_blocks)
        assert chain.settled_by(wrong) == (chain, chain.check_links(wrong))
        assert chain.check_links(wrong) is not None


def test_a_chain_that_begins_later_has_no_tree_to_replace_a_root_in() -> None:
    chain, other = chain_with_two_roots(10)
    settled, refusal = chain.settled_by(block(14, other, b"t" * 48))
    assert (refusal, settled.last_root_hash) == (None, other)
    assert not chain.lacks_tree_before


def test_a_root_that_is_signed_is_not_replaced() -> None:
    chain = chain_of(3)
    assert chain.in_other_layout() is None
    chain.advance(3, roots(4)[-1], LastLayout(78, 16, None))
    assert chain.in_other_layout() is None
    wrong = block(4, b"o" * 48, tree_root([*roots(3), b"o" * 48]))
    assert chain.settled_by(wrong) == (chain, chain.check_links(wrong))


def test_a_block_has_the_layout_of_the_one_before_it_where_the_version_is_the_same() -> None:
    own = block(4, roots(4)[-1], tree_root(roots(4)))
    other = own.in_other_layout()
    assert (own.root_layout, own.hapi_minor) == (16, 78)
    assert other is not None
    chain, _ = chain_with_two_roots()
    assert chain.in_its_layout(own) == own
    assert chain.in_its_layout(other) == own
    settled = chain.in_other_layout()
    assert settled is not None
    assert settled.in_its_layout(own) == other
    assert chain_of(4).in_its_layout(own) == own  # nothing is known of the one before
    of_another_version = chain_with_two_roots(minor=77)[0].in_other_layout()
    assert of_another_version is not None
    assert of_another_version.in_its_layout(own) == own
    signed = own._replace(root_hash_other_layout=None)
    assert settled.in_its_layout(signed) == signed


def test_a_state_of_an_earlier_version_leaves_the_last_root_as_it_is() -> None:
    chain, other = chain_with_two_roots()
    kept = Chain.from_state(chain.state())
    assert not kept.lacks_tree_before
    kept.learn(LastLayout(78, 16, other))
    assert kept.settled_by(block(4, other, tree_root([*roots(3), other])))[1] is None
    state = chain.state()
    del state["tree_stack_before"]
    earlier = Chain.from_state(state)
    assert earlier.links_of_next() == chain.links_of_next()
    assert earlier.lacks_tree_before
    earlier.learn(LastLayout(78, 16, other))
    assert earlier.in_other_layout() is None
