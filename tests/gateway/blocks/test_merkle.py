"""Tests of `gateway.blocks.merkle`."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.gateway.blocks.merkle import (
    EMPTY_HASH,
    StreamingTree,
    hand_out_leaf_hashes,
    inner_hash,
    leaf_hash,
    tree_root,
    unary_hash,
)


def hashes(count: int) -> list[bytes]:
    """Distinct hashes."""
    return [hashlib.sha384(b"%d" % index).digest() for index in range(count)]


def defined_root(leaves: list[bytes]) -> bytes:
    """The root by its recursive definition (docs/spec/block-hash.md section 1)."""
    if not leaves:
        return EMPTY_HASH
    if len(leaves) == 1:
        return leaves[0]
    split = 1 << (len(leaves) - 1).bit_length() - 1
    joined = b"\x02" + defined_root(leaves[:split]) + defined_root(leaves[split:])
    return hashlib.sha384(joined).digest()


def leaf_hashes(items: list[bytes]) -> list[bytes]:
    """The hashes that each item's taker gets."""
    taken: list[bytes] = []
    hand_out_leaf_hashes(items, [taken.append] * len(items))
    return taken


def test_the_empty_hash_is_the_known_one() -> None:
    assert EMPTY_HASH.hex() == (
        "bec021b4f368e3069134e012c2b4307083d3a9bdd206e24e5f0d86e13d6636655933ec2b413465966817a9c208a11717"
    )


def test_trees_of_empty_leaves_are_the_known_ones() -> None:
    assert tree_root([EMPTY_HASH] * 8).hex() == (
        "cf7e7647f57807006f4f5870d2210b5b4038d000b2bfa711bceeb7f4a327346b50c61fda4e5c68110b03ce708fb91cf8"
    )
    assert tree_root([EMPTY_HASH] * 16).hex() == (
        "5028fe48c7fca408b16bd62b8089c8644be351cbc653e6786136ce144055d18f9495864b270772f664004eed7b97e6b7"
    )


def test_each_hash_has_its_prefix() -> None:
    left, right = hashes(2)
    assert leaf_hash(b"data") == hashlib.sha384(b"\x00data").digest()
    assert unary_hash(left) == hashlib.sha384(b"\x01" + left).digest()
    assert inner_hash(left, right) == hashlib.sha384(b"\x02" + left + right).digest()
    assert leaf_hashes([b"a", b"", b"c" * 5000]) == [leaf_hash(b"a"), EMPTY_HASH, leaf_hash(b"c" * 5000)]


@pytest.mark.parametrize("size", [0, 1, 109, 110, 111, 112, 127, 128, 129, 238, 239, 240, 5000])
def test_the_hash_is_the_same_on_both_sides_of_every_block_border(size: int) -> None:
    data = bytes(range(256)) * 20
    expected = hashlib.sha384(b"\x00" + data[:size]).digest()
    assert leaf_hash(data[:size]) == expected
    assert leaf_hashes([data[:size]]) == [expected]


def test_each_taker_gets_the_hashes_of_its_items() -> None:
    items = [b"a", b"b" * 200, b"c", b"d" * 200]
    even: list[bytes] = []
    odd: list[bytes] = []
    hand_out_leaf_hashes(items, [even.append, odd.append] * 2)
    assert even == [leaf_hash(items[0]), leaf_hash(items[2])]
    assert odd == [leaf_hash(items[1]), leaf_hash(items[3])]


@pytest.mark.parametrize("count", range(34))
def test_the_root_is_the_defined_one_at_every_count(count: int) -> None:
    leaves = hashes(count)
    tree = StreamingTree()
    for leaf in leaves:
        tree.push(leaf)
    assert tree.root() == defined_root(leaves) == tree_root(leaves)
    assert tree.leaf_count == count
    assert len(tree.state()[1]) == count.bit_count()


@given(st.lists(st.integers(0, 40), max_size=8))
def test_how_leaves_are_cut_into_calls_does_not_matter(counts: list[int]) -> None:
    leaves = hashes(sum(counts))
    tree, at = StreamingTree(), 0
    for count in counts:
        if count == 1:
            tree.push(leaves[at])
        else:
            tree.extend(leaves[at : at + count])
        at += count
        assert tree.root() == defined_root(leaves[:at])


@given(st.integers(0, 200), st.integers(0, 20))
def test_a_tree_goes_on_from_its_state(before: int, after: int) -> None:
    leaves = hashes(before + after)
    tree = StreamingTree()
    tree.extend(leaves[:before])
    taken_up = StreamingTree.from_state(*tree.state())
    assert taken_up.leaf_count == before
    taken_up.extend(leaves[before:])
    assert taken_up.root() == defined_root(leaves)
    assert tree.root() == defined_root(leaves[:before])


def test_a_copy_grows_on_its_own() -> None:
    leaves = hashes(4)
    tree = StreamingTree()
    tree.extend(leaves[:3])
    copy = tree.copy()
    copy.push(leaves[3])
    assert tree.root() == defined_root(leaves[:3])
    assert copy.root() == defined_root(leaves)


def test_extend_leaves_its_argument_alone() -> None:
    leaves = hashes(5)
    given_leaves = list(leaves)
    tree = StreamingTree()
    tree.push(leaves[0])
    tree.extend(given_leaves)
    assert given_leaves == leaves


@pytest.mark.parametrize(
    ("leaf_count", "stack"), [(1, []), (0, [EMPTY_HASH]), (2, [EMPTY_HASH] * 2), (1, [b"short"]), (-1, [])]
)
def test_a_state_that_does_not_hold_together_is_refused(leaf_count: int, stack: list[bytes]) -> None:
    with pytest.raises(
        ValueError, match=r"^tree state: got \d hashes of .* bytes for -?\d leaves, expected one"
    ):
        StreamingTree.from_state(leaf_count, stack)
