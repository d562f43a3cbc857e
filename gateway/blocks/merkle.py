"""SHA-384 hashes with their domain prefixes, and the streaming tree over them.

Pure. A streaming tree keeps only the roots of its perfect subtrees, one for each 1 bit of the leaf count.
Source: docs/spec/block-hash.md section 1.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Final, NamedTuple, Self

try:  # compiled where there is a compiler
    from sluice.gateway.blocks import _many_items
except ImportError:
    _IN_LANES, _LANES = False, 0
else:
    _IN_LANES, _LANES = True, _many_items.LANES_MAX

__all__ = [
    "EMPTY_HASH",
    "GROUP_LEAVES",
    "HASH_SIZE",
    "SINGLE_CHILD",
    "Sibling",
    "StreamingTree",
    "audit_path",
    "climb",
    "grow_one_by_one",
    "inner_hash",
    "leaf_hash",
    "leaf_hashes",
    "leaf_hashes_one_by_one",
    "root_one_by_one",
    "sides_of",
    "tree_root",
    "unary_hash",
]

HASH_SIZE: Final = 48

_LEAF, _UNARY, _INNER = b"\x00", b"\x01", b"\x02"


def _own_sha384() -> "Callable[[bytes], hashlib._Hash]":
    for module_name in ("_sha512", "_sha2"):  # CPython 3.11; 3.12 and later
        with suppress(ImportError):
            own: Callable[[bytes], hashlib._Hash] = import_module(module_name).sha384
            return own
    return hashlib.sha384


# For a single block of SHA-384 (128 bytes, 17 of them padding), Python's own code beats OpenSSL's set-up. For
# longer data, copying an OpenSSL context is cheaper than joining prefix and data.
_short_sha384 = _own_sha384()
_leaf_context = hashlib.sha384(_LEAF).copy
_SHORT_DATA_SIZE_MAX: Final = 128 - 17 - len(_LEAF)
GROUP_LEAVES: Final = 256
"""Leaves of a group, whose root `StreamingTree.push` keeps."""
_GROUP_HEIGHT: Final = GROUP_LEAVES.bit_length() - 1
_LONG_SIZE: Final = 32 * 1024
"""Bytes from which on OpenSSL is faster than one of many lanes that wait for it."""
_SCALAR_SIZE_MAX: Final = 512
"""Mean bytes of items up to which one lane is faster than calls of OpenSSL."""

EMPTY_HASH: Final = hashlib.sha384(b"\x00").digest()


def leaf_hash(data: bytes) -> bytes:
    """Return the hash of a leaf's data."""
    if len(data) <= _SHORT_DATA_SIZE_MAX:
        return _short_sha384(_LEAF + data).digest()
    context = _leaf_context()
    context.update(data)
    return context.digest()


def unary_hash(child: bytes) -> bytes:
    """Return the hash of a node with one child."""
    return _short_sha384(_UNARY + child).digest()


def inner_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of a node with two children."""
    return _short_sha384(_INNER + left + right).digest()


def leaf_hashes(
    items: Sequence[bytes], kinds: Sequence[int], subtree_of_kind: dict[int, int], subtree_count: int
) -> list[bytes]:
    """Return the leaf hashes of the items of each subtree, 48 bytes after 48 bytes.

    Args:
        kinds: the field number of each item.
        subtree_of_kind: -1: items of this kind have no leaf.
    """
    if _IN_LANES and (_LANES > 1 or sum(map(len, items)) < _SCALAR_SIZE_MAX * len(items)):
        return _many_items.leaves(items, kinds, subtree_of_kind, subtree_count, _LONG_SIZE, leaf_hash)
    return leaf_hashes_one_by_one(items, kinds, subtree_of_kind, subtree_count)


def leaf_hashes_one_by_one(
    items: Sequence[bytes], kinds: Sequence[int], subtree_of_kind: dict[int, int], subtree_count: int
) -> list[bytes]:
    """As `leaf_hashes`, where there is no compiled module."""
    hashes: list[list[bytes]] = [[] for _ in range(subtree_count + 1)]  # those without a leaf are the last
    append_of_kind = {kind: hashes[subtree].append for kind, subtree in subtree_of_kind.items()}
    for item, kind in zip(items, kinds, strict=True):
        append_of_kind[kind](leaf_hash(item))
    return [b"".join(of_subtree) for of_subtree in hashes[:subtree_count]]


def grow_one_by_one(peaks: list[bytes | None], leaves: bytes) -> None:
    """As `StreamingTree.extend`, where there is no compiled module."""
    nodes, height = leaves, 0
    while nodes:
        if height == len(peaks):
            peaks.append(None)
        peak = peaks[height]
        if peak is not None:
            nodes = peak + nodes
        is_odd = len(nodes) // HASH_SIZE % 2
        peaks[height] = nodes[-HASH_SIZE:] if is_odd else None
        pairs = range(0, len(nodes) - HASH_SIZE, 2 * HASH_SIZE)
        nodes = b"".join([_short_sha384(_INNER + nodes[at : at + 2 * HASH_SIZE]).digest() for at in pairs])
        height += 1


def root_one_by_one(peaks: list[bytes | None]) -> bytes | None:
    """As `StreamingTree.root`, where there is no compiled module; None: there are no leaves."""
    root: bytes | None = None
    for peak in peaks:
        if peak is not None:
            root = peak if root is None else inner_hash(peak, root)
    return root


_grow: Callable[[list[bytes | None], bytes], None] = _many_items.grow if _IN_LANES else grow_one_by_one
_root: Callable[[list[bytes | None]], bytes | None] = _many_items.root if _IN_LANES else root_one_by_one


def tree_root(hashes: Sequence[bytes]) -> bytes:
    """Return the root of a streaming tree over hashes."""
    peaks: list[bytes | None] = []
    _grow(peaks, b"".join(hashes))
    return _root(peaks) or EMPTY_HASH


class Sibling(NamedTuple):
    """The other child at one step up a tree."""

    is_left: bool
    hash: bytes  # 48 bytes, or none: the node has a single child


SINGLE_CHILD: Final = Sibling(False, b"")


def climb(value: bytes, siblings: Iterable[Sibling]) -> bytes:
    """Return the hash that siblings lead to, from the bottom up."""
    for is_left, sibling in siblings:
        if not sibling:
            value = unary_hash(value)
        elif is_left:
            value = inner_hash(sibling, value)
        else:
            value = inner_hash(value, sibling)
    return value


def audit_path(index: int, leaf_count: int, root_of: Callable[[int, int], bytes]) -> list[Sibling]:
    """Return the siblings on the way from a leaf of a streaming tree to its root.

    Args:
        root_of: takes the first of some leaves, and the one behind their last; returns the root over them.
    """
    return [Sibling(begin < index, root_of(begin, end)) for begin, end in _beside(index, leaf_count)]


def sides_of(index: int, leaf_count: int) -> list[bool]:
    """Return, of each sibling of an `audit_path`, whether it is the left child."""
    return [begin < index for begin, _ in _beside(index, leaf_count)]


def _beside(index: int, leaf_count: int) -> list[tuple[int, int]]:
    """Return the leaves below each sibling of a leaf's path, from the bottom up."""
    assert 0 <= index < leaf_count
    begin, end = 0, leaf_count
    beside = []
    while end - begin > 1:
        middle = begin + (1 << (end - begin - 1).bit_length() - 1)
        if index < middle:
            beside.append((middle, end))
            end = middle
        else:
            beside.append((begin, middle))
            begin = middle
    return beside[::-1]


class StreamingTree:
    """A Merkle tree over a stream of leaves, which are hashes."""

    __slots__ = ("_peaks", "group_root", "leaf_count")

    def __init__(self) -> None:
        self.leaf_count = 0
        self.group_root: bytes | None = None
        """The root over the last 256 leaves that were pushed and are a perfect subtree."""
        # By height: the root of a perfect subtree, if the count has a 1 bit there.
        self._peaks: list[bytes | None] = []

    def push(self, leaf: bytes) -> None:
        """Append one leaf."""
        assert len(leaf) == HASH_SIZE
        peaks = self._peaks
        node, height = leaf, 0
        while height < len(peaks) and (peak := peaks[height]) is not None:
            peaks[height] = None
            node = inner_hash(peak, node)
            height += 1
            if height == _GROUP_HEIGHT:
                self.group_root = node
        if height == len(peaks):
            peaks.append(node)
        else:
            peaks[height] = node
        self.leaf_count += 1

    def extend(self, leaves: bytes) -> None:
        """Append leaves, joined as they are, merged level by level."""
        assert len(leaves) % HASH_SIZE == 0
        self.leaf_count += len(leaves) // HASH_SIZE
        _grow(self._peaks, leaves)

    def root(self) -> bytes:
        """Return the root over the leaves so far."""
        return _root(self._peaks) or EMPTY_HASH

    def copy(self) -> Self:
        """Return an independent copy."""
        tree = type(self)()
        tree.leaf_count = self.leaf_count
        tree._peaks = self._peaks.copy()
        tree.group_root = self.group_root
        return tree

    def state(self) -> tuple[int, tuple[bytes, ...]]:
        """Return (leaf count, stack): the roots of the perfect subtrees, the largest first."""
        return self.leaf_count, tuple(peak for peak in reversed(self._peaks) if peak is not None)

    @classmethod
    def from_state(cls, leaf_count: int, stack: Sequence[bytes]) -> Self:
        """Return the tree that `state` described, or raise ValueError."""
        if leaf_count < 0 or len(stack) != leaf_count.bit_count() or any(len(h) != HASH_SIZE for h in stack):
            raise ValueError(
                f"tree state: got {len(stack)} hashes of {sorted({len(h) for h in stack})} bytes for "
                f"{leaf_count} leaves, expected one of {HASH_SIZE} bytes for each 1 bit of the count"
            )
        tree = cls()
        tree.leaf_count = leaf_count
        newest_first = iter(reversed(stack))
        tree._peaks = [
            next(newest_first) if leaf_count >> height & 1 else None
            for height in range(leaf_count.bit_length())
        ]
        return tree
