"""Tests of `gateway.blocks.merkle`."""

from __future__ import annotations

import hashlib
import random
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.gateway.blocks.merkle import (
    EMPTY_HASH,
    GROUP_LEAVES,
    StreamingTree,
    grow_one_by_one,
    inner_hash,
    leaf_hash,
    leaf_hashes,
    leaf_hashes_one_by_one,
    root_one_by_one,
    tree_root,
    unary_hash,
)

try:
    from sluice.gateway.blocks import _many_items
except ImportError:
    LANES: list[int] = []
else:
    LANES = [lanes for lanes in (1, 4, 8) if lanes <= _many_items.LANES_MAX]
OF_KIND = {2: 0, 4: 1, 5: 3, 9: -1, 1008: 2}


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


SIZES = [*range(260), 366, 367, 368, 511, 512, 513, 5000, 32_767, 32_768, 40_000]


@pytest.mark.parametrize("size", [0, 1, 109, 110, 111, 112, 127, 128, 129, 238, 239, 240, 5000])
def test_the_hash_is_the_same_on_both_sides_of_every_block_border(size: int) -> None:
    data = (bytes(range(256)) * 20)[:size]
    assert leaf_hash(data) == hashlib.sha384(b"\x00" + data).digest()


def in_lanes(items: list[bytes], kinds: list[int], lanes: int) -> list[bytes]:
    """`leaf_hashes` of the compiled module, in so many lanes."""
    return _many_items.leaves(items, kinds, OF_KIND, 4, 32_768, leaf_hash, lanes)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_the_module_is_compiled_where_there_is_a_compiler() -> None:
    assert LANES


@pytest.mark.parametrize("lanes", LANES)
def test_lanes_hash_items_of_every_size_as_one_by_one(lanes: int) -> None:
    random_ = random.Random(lanes)
    for count in (0, 1, 2, 7, 8, 9, len(SIZES)):
        items = [random_.randbytes(size) for size in random_.sample(SIZES, count)]
        kinds = [random_.choice(list(OF_KIND)) for _ in items]
        expected = [
            b"".join(
                hashlib.sha384(b"\0" + item).digest()
                for item, kind in zip(items, kinds, strict=True)
                if OF_KIND[kind] == subtree
            )
            for subtree in range(4)
        ]
        assert in_lanes(items, kinds, lanes) == expected
        assert leaf_hashes(items, kinds, OF_KIND, 4) == expected
        assert leaf_hashes_one_by_one(items, kinds, OF_KIND, 4) == expected


@pytest.mark.parametrize("lanes", LANES)
def test_a_tree_grows_in_lanes_as_one_by_one(lanes: int) -> None:
    """However its leaves are cut; also past the size from which on other threads run."""
    random_ = random.Random(lanes)
    for cuts in ([0], [1], [2], [3], [1, 1], [7, 1, 8], [5, 0, 27, 300], [1, 2_500, 1, 2_047], [5_000, 3]):
        peaks: list[bytes | None] = []
        expected: list[bytes | None] = []
        for count in cuts:
            leaves = random_.randbytes(48 * count)
            _many_items.grow(peaks, leaves, lanes)
            grow_one_by_one(expected, leaves)
            assert peaks == expected
            assert _many_items.root(peaks) == root_one_by_one(peaks)


@pytest.mark.parametrize("lanes", LANES)
def test_lanes_hash_in_several_threads_at_once(lanes: int) -> None:
    items = [bytes([place]) * 3_000 for place in range(64)]
    expected = in_lanes(items, [4] * 64, lanes)
    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(in_lanes, items, [4] * 64, lanes) for _ in range(40)]:
            assert done.result() == expected


@pytest.mark.skipif(not LANES, reason="the module is not compiled")
def test_the_compiled_module_refuses_what_it_cannot_hash() -> None:
    item, kinds = [b"item"], [4]
    for call, error, words in (
        (
            lambda: _many_items.leaves(item, [4, 4], OF_KIND, 4, 9, leaf_hash),
            ValueError,
            "kinds: got 2, expected 1",
        ),
        (lambda: _many_items.leaves(item, [6], OF_KIND, 4, 9, leaf_hash), KeyError, "6"),
        (
            lambda: _many_items.leaves(item, kinds, {4: 4}, 4, 9, leaf_hash),
            ValueError,
            "got 4, expected -1 to 3",
        ),
        (lambda: _many_items.leaves(item, kinds, {4: -2}, 4, 9, leaf_hash), ValueError, "got -2"),
        (lambda: _many_items.leaves(item, kinds, {4: "x"}, 4, 9, leaf_hash), TypeError, "str"),  # type: ignore[dict-item]
        (lambda: _many_items.leaves(item, kinds, OF_KIND, 65, 9, leaf_hash), ValueError, "count: got 65"),
        (lambda: _many_items.leaves(["x"], kinds, OF_KIND, 4, 9, leaf_hash), TypeError, "item 0: got str"),  # type: ignore[list-item]
        (lambda: _many_items.leaves(item, kinds, OF_KIND, 4, 1, lambda _: b"short"), ValueError, "48 bytes"),
        (lambda: _many_items.leaves(item, kinds, OF_KIND, 4, 1, lambda _: [][0]), IndexError, "range"),
        (lambda: _many_items.leaves(item, kinds, OF_KIND, 4, 9, leaf_hash, 3), ValueError, "lanes: got 3"),
        (lambda: _many_items.grow([], bytes(95)), ValueError, "got 95 bytes, expected hashes of 48"),
        (lambda: _many_items.grow([], b"", 16), ValueError, "lanes: got 16"),
        (lambda: _many_items.grow((), bytes(48)), TypeError, "must be list, not tuple"),  # type: ignore[arg-type]
        (lambda: _many_items.grow([b"short"], bytes(48)), ValueError, "peak 0: got bytes, expected 48"),
        (lambda: _many_items.grow([None, 7], bytes(96)), ValueError, "peak 1: got int"),  # type: ignore[list-item]
        (lambda: _many_items.root([None, bytes(47)]), ValueError, "peak 1: got bytes, expected 48 bytes or"),
        (lambda: _many_items.root(()), TypeError, "peaks: got tuple, expected a list"),  # type: ignore[arg-type]
    ):
        with pytest.raises(error, match=words):
            call()


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
            tree.extend(b"".join(leaves[at : at + count]))
        at += count
        assert tree.root() == defined_root(leaves[:at])


@given(st.integers(0, 200), st.integers(0, 20))
def test_a_tree_goes_on_from_its_state(before: int, after: int) -> None:
    leaves = hashes(before + after)
    tree = StreamingTree()
    tree.extend(b"".join(leaves[:before]))
    taken_up = StreamingTree.from_state(*tree.state())
    assert taken_up.leaf_count == before
    taken_up.extend(b"".join(leaves[before:]))
    assert taken_up.root() == defined_root(leaves)
    assert tree.root() == defined_root(leaves[:before])


def test_a_copy_grows_on_its_own() -> None:
    leaves = hashes(4)
    tree = StreamingTree()
    tree.extend(b"".join(leaves[:3]))
    copy = tree.copy()
    copy.push(leaves[3])
    assert tree.root() == defined_root(leaves[:3])
    assert copy.root() == defined_root(leaves)


@pytest.mark.parametrize(
    ("leaf_count", "stack"), [(1, []), (0, [EMPTY_HASH]), (2, [EMPTY_HASH] * 2), (1, [b"short"]), (-1, [])]
)
def test_a_state_that_does_not_hold_together_is_refused(leaf_count: int, stack: list[bytes]) -> None:
    with pytest.raises(
        ValueError, match=r"^tree state: got \d hashes of .* bytes for -?\d leaves, expected one"
    ):
        StreamingTree.from_state(leaf_count, stack)


def test_the_root_of_the_last_whole_group_is_kept() -> None:
    leaves = hashes(3 * GROUP_LEAVES)
    tree = StreamingTree()
    for count, leaf in enumerate(leaves, 1):
        tree.push(leaf)
        begin = (count // GROUP_LEAVES - 1) * GROUP_LEAVES
        if count % GROUP_LEAVES in (0, 1, GROUP_LEAVES - 1):
            expected = None if begin < 0 else defined_root(leaves[begin : begin + GROUP_LEAVES])
            assert tree.group_root == tree.copy().group_root == expected
