"""The chain of blocks on this node: it knows the links that the next block's footer must hold.

Pure. A chain that begins above block 0 believes the first footer, and checks only its field 1 later. Nodes
with the same blocks have the same roots, since each decides by the same order which layout a root has.

Source: docs/spec/block-hash.md sections 3.3 and 4; docs/verification.md.
"""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, Self

from sluice.gateway.blocks.errors import ChainMisuse, ChainStateError
from sluice.gateway.blocks.merkle import EMPTY_HASH, GROUP_LEAVES, HASH_SIZE, StreamingTree
from sluice.gateway.blocks.refusal import Refusal, RefusalKind
from sluice.gateway.blocks.root_hash import BlockSummary

__all__ = ["Chain", "LastLayout"]

_STATE_KEYS: Final = {"first_number", "last_number", "last_root_hash", "tree_stack"}
_LATER_STATE_KEY: Final = "tree_stack_before"
"""Absent in states of earlier versions."""


class LastLayout(NamedTuple):
    """The layout of the last block's root, and its root in the other layout."""

    hapi_minor: int  # of its header
    root_layout: Literal[8, 16]
    other_root_hash: bytes | None
    """None: a proof or a setting has decided the layout, or there is no other root."""

    @classmethod
    def of(cls, summary: BlockSummary) -> Self:
        """Return the layout of a block."""
        return cls(summary.hapi_minor, summary.root_layout, summary.root_hash_other_layout)


class Chain:
    """The roots of this node's committed blocks."""

    __slots__ = ("_last_layout", "_tree", "_tree_before", "first_number", "last_number", "last_root_hash")

    def __init__(self, first_number: int = 0) -> None:
        """Begin an empty chain with block `first_number`; above 0 it is the anchor."""
        self.first_number = first_number
        self.last_number: int | None = None
        """None before the first block."""
        self.last_root_hash: bytes | None = None
        """48 bytes."""
        self._tree: StreamingTree | None = StreamingTree() if first_number == 0 else None
        self._tree_before: StreamingTree | None = None  # without the last root
        self._last_layout: LastLayout | None = None

    @classmethod
    def ending_with(cls, first_number: int, last_number: int, root_hash: bytes) -> Self:
        """Return a chain that begins above block 0: it needs the last root hash only."""
        assert first_number > 0
        chain = cls(first_number)
        chain.last_number, chain.last_root_hash = last_number, root_hash
        return chain

    @property
    def next_number(self) -> int:
        """The number of the next block."""
        return self.first_number if self.last_number is None else self.last_number + 1

    @property
    def anchor_note(self) -> str | None:
        """The checks that a chain omits as it begins after block 0, in words; else None."""
        if self._tree is not None:
            return None
        return (
            f"the chain begins here with block {self.first_number}: its footer's links are believed as they "
            "are, and root_hash_of_all_block_hashes_tree is not checked in the blocks after it"
        )

    def links_of_next(self) -> tuple[bytes | None, bytes | None]:
        """Return fields 1 and 2 that the next footer must have, if known."""
        previous = self.last_root_hash
        if previous is None and self.first_number == 0:
            previous = EMPTY_HASH
        return previous, None if self._tree is None else self._tree.root()

    @property
    def all_blocks_root_of_last(self) -> bytes | None:
        """Field 2 that the last block's footer must have, if known."""
        return None if self._tree_before is None else self._tree_before.root()

    @property
    def group_before(self) -> tuple[int, bytes] | None:
        """Number and root of the group of 256 root hashes that the last block's footer is the first to cover.

        None: it does not end there, or a start has not read it.
        """
        tree = self._tree_before
        if tree is None or tree.group_root is None or tree.leaf_count % GROUP_LEAVES:
            return None
        return tree.leaf_count // GROUP_LEAVES - 1, tree.group_root

    def check_links(self, summary: BlockSummary) -> Refusal | None:
        """Return why the block does not continue the chain, or None if it does."""
        bad = RefusalKind.BAD_ROOT_HASH
        if summary.number != self.next_number:
            return Refusal(bad, "block number", str(summary.number), f"{self.next_number}, the next")
        previous, all_blocks = self.links_of_next()
        for field, got, expected in (
            ("1 (previous_block_root_hash)", summary.previous_root_hash, previous),
            ("2 (root_hash_of_all_block_hashes_tree)", summary.all_blocks_root_hash, all_blocks),
        ):
            if expected is not None and got != expected:
                return Refusal(bad, f"block footer field {field}", got.hex(), expected.hex())
        return None

    def settled_by(self, summary: BlockSummary) -> tuple[Self, Refusal | None]:
        """Return the chain that a block continues, or this chain and a refusal.

        A block may link to the last root in the other layout: then the result is a copy with that root.
        """
        refusal = self.check_links(summary)
        if refusal is not None:
            other = self.in_other_layout()
            if other is not None and other.check_links(summary) is None:
                return other, None
        return self, refusal

    def in_other_layout(self) -> Self | None:
        """Return the chain with the last block's root in the other layout, if there is one."""
        layout = self._last_layout
        if layout is None or layout.other_root_hash is None or self.last_root_hash is None:
            return None
        chain = self.copy()
        if self._tree is not None:
            if self._tree_before is None:
                return None
            chain._tree = self._tree_before.copy()
            chain._tree.push(layout.other_root_hash)
        chain.last_root_hash = layout.other_root_hash
        chain._last_layout = LastLayout(
            layout.hapi_minor, 8 if layout.root_layout == 16 else 16, self.last_root_hash
        )
        return chain

    def in_its_layout(self, summary: BlockSummary) -> BlockSummary:
        """Return the next block's summary, in the layout of the last block if that has precedence."""
        last = self._last_layout
        if last is None or last.hapi_minor != summary.hapi_minor or last.root_layout == summary.root_layout:
            return summary
        return summary.in_other_layout() or summary

    @property
    def lacks_tree_before(self) -> bool:
        """The last root cannot be replaced: an earlier version wrote the state."""
        return self.last_number is not None and self._tree is not None and self._tree_before is None

    def learn(self, layout: LastLayout) -> None:
        """Set the layout of the last block."""
        self._last_layout = layout

    def advance(self, number: int, root_hash: bytes, layout: LastLayout | None = None) -> None:
        """Add the next block, once it is committed; `learn` may tell the layout of its root later."""
        if number != self.next_number:
            raise ChainMisuse(number, self.next_number)
        assert len(root_hash) == HASH_SIZE
        if self._tree is not None:
            self._tree_before = self._tree.copy()
            self._tree.push(root_hash)
        self.last_number = number
        self.last_root_hash = root_hash
        self._last_layout = layout

    def copy(self) -> Self:
        """Return an independent copy."""
        chain = type(self)(self.first_number)
        chain.last_number = self.last_number
        chain.last_root_hash = self.last_root_hash
        chain._tree = None if self._tree is None else self._tree.copy()
        chain._tree_before = self._tree_before  # nobody changes it
        chain._last_layout = self._last_layout
        return chain

    def state(self) -> dict[str, object]:
        """Return the chain as plain values for JSON, without the last block's layout."""
        return {
            "first_number": self.first_number,
            "last_number": self.last_number,
            "last_root_hash": None if self.last_root_hash is None else self.last_root_hash.hex(),
            "tree_stack": _stack(self._tree),
            _LATER_STATE_KEY: _stack(self._tree_before),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, object]) -> Self:
        """Return the chain that `state` described, or raise ChainStateError."""
        if set(state) - {_LATER_STATE_KEY} != _STATE_KEYS:
            expected = f"keys {sorted(_STATE_KEYS | {_LATER_STATE_KEY})}"
            raise ChainStateError("chain state", f"keys {sorted(state)}", expected)
        first = _number(state, "first_number")
        chain = cls(first)
        if state["last_number"] is not None:
            last = _number(state, "last_number")
            if last < first:
                raise ChainStateError(
                    "chain state: last_number", str(last), f"at least {first}, first_number"
                )
            chain.last_number = last
            chain.last_root_hash = _hash(state["last_root_hash"], "last_root_hash")
        elif state["last_root_hash"] is not None:
            raise ChainStateError(
                "chain state: last_root_hash", "a value", "none, as there is no last_number"
            )
        chain._tree = _tree(state["tree_stack"], first, chain.next_number)
        before = state.get(_LATER_STATE_KEY)
        if before is not None and chain.last_number is not None:
            chain._tree_before = _tree(before, first, chain.last_number)
        return chain


def _stack(tree: StreamingTree | None) -> list[str] | None:
    return None if tree is None else [root.hex() for root in tree.state()[1]]


def _number(state: Mapping[str, object], key: str) -> int:
    value = state[key]
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 64:
        raise ChainStateError(f"chain state: {key}", repr(value), "a block number")
    return value


def _hash(value: object, key: str) -> bytes:
    expected = f"{HASH_SIZE} bytes in hex"
    if not isinstance(value, str):
        raise ChainStateError(f"chain state: {key}", repr(value), expected)
    try:
        decoded = bytes.fromhex(value)
    except ValueError:
        raise ChainStateError(f"chain state: {key}", repr(value), expected) from None
    if len(decoded) != HASH_SIZE:
        raise ChainStateError(f"chain state: {key}", f"{len(decoded)} bytes", expected)
    return decoded


def _tree(value: object, first_number: int, leaf_count: int) -> StreamingTree | None:
    """Return the tree over all roots, if the chain begins with block 0."""
    if first_number > 0:
        if value is not None:
            raise ChainStateError(
                "chain state: tree_stack", "a value", "none, as the chain begins after block 0"
            )
        return None
    if not isinstance(value, list):
        raise ChainStateError("chain state: tree_stack", repr(value), "a list of hashes in hex")
    stack = [_hash(root, f"tree_stack[{index}]") for index, root in enumerate(value)]
    if len(stack) != leaf_count.bit_count():
        expected = f"{leaf_count.bit_count()} for {leaf_count} blocks"
        raise ChainStateError("chain state: tree_stack", f"{len(stack)} hashes", expected)
    return StreamingTree.from_state(leaf_count, stack)
