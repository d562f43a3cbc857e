"""The chain of blocks as this node has it: the two links that the next block's footer must hold.

Pure. Block N's footer names the root of block N-1 and the root of the streaming tree over the roots of blocks
0 to N-1, each fed as it is. For block 0 both are the hash of the empty tree.

    chain begins at     previous_block_root_hash        root_hash_of_all_block_hashes_tree
    block 0             checked for every block         checked for every block
    block A > 0         block A: believed, the anchor   block A: believed; later: not checked, since a tree
                        later: checked                  cannot be continued from its root alone

Source: wire.md section 7 ("Link"), proofs.md sections 3.5 and 4.
"""

from collections.abc import Mapping
from typing import Final, Self

from gateway.errors import ChainMisuse, ChainStateError
from gateway.merkle import EMPTY_HASH, HASH_SIZE, StreamingTree
from gateway.root_hash import BlockSummary
from gateway.verdict import Refusal, RefusalKind

__all__ = ["Chain"]

_STATE_KEYS: Final = {"first_number", "last_number", "last_root_hash", "tree_stack"}


class Chain:
    """The roots of the blocks that were committed, from the first that this node has.

    `check_links` changes nothing; `advance` takes a block in once it is committed.
    """

    __slots__ = ("_first_number", "_last_number", "_last_root_hash", "_tree")

    def __init__(self, first_number: int = 0) -> None:
        """Begin an empty chain.

        Args:
            first_number: the block it begins with (setting `first block`); above 0 that block is the anchor.
        """
        self._first_number = first_number
        self._last_number: int | None = None
        self._last_root_hash: bytes | None = None
        self._tree: StreamingTree | None = StreamingTree() if first_number == 0 else None

    @property
    def first_number(self) -> int:
        """The block that the chain begins with."""
        return self._first_number

    @property
    def last_number(self) -> int | None:
        """The last block taken in, None before the first."""
        return self._last_number

    @property
    def last_root_hash(self) -> bytes | None:
        """Root of the last block taken in, 48 bytes, None before the first."""
        return self._last_root_hash

    @property
    def next_number(self) -> int:
        """The block that comes next."""
        return self._first_number if self._last_number is None else self._last_number + 1

    @property
    def anchor_note(self) -> str | None:
        """What is believed and not checked because the chain begins after block 0; None if all is checked."""
        if self._tree is not None:
            return None
        return (
            f"the chain begins here with block {self._first_number}: its footer's links are believed as they "
            "are, and root_hash_of_all_block_hashes_tree is not checked in the blocks after it"
        )

    def links_of_next(self) -> tuple[bytes | None, bytes | None]:
        """Return what the next footer's fields 1 and 2 must be, None for what cannot be known here."""
        previous = self._last_root_hash
        if previous is None and self._first_number == 0:
            previous = EMPTY_HASH
        return previous, None if self._tree is None else self._tree.root()

    def check_links(self, summary: BlockSummary) -> Refusal | None:
        """Return why the block cannot be the next one, or None if it continues the chain."""
        if summary.number != self.next_number:
            return Refusal(
                RefusalKind.BAD_ROOT_HASH,
                "block number",
                str(summary.number),
                f"{self.next_number}, the next",
            )
        previous, all_blocks = self.links_of_next()
        if previous is not None and summary.previous_root_hash != previous:
            return Refusal(
                RefusalKind.BAD_ROOT_HASH,
                "block footer field 1 (previous_block_root_hash)",
                summary.previous_root_hash.hex(),
                previous.hex(),
            )
        if all_blocks is not None and summary.all_blocks_root_hash != all_blocks:
            return Refusal(
                RefusalKind.BAD_ROOT_HASH,
                "block footer field 2 (root_hash_of_all_block_hashes_tree)",
                summary.all_blocks_root_hash.hex(),
                all_blocks.hex(),
            )
        return None

    def advance(self, number: int, root_hash: bytes) -> None:
        """Take in the next block: it is committed.

        Raises:
            ChainMisuse: it is not the next one; the chain is unchanged.
        """
        if number != self.next_number:
            raise ChainMisuse(number, self.next_number)
        assert len(root_hash) == HASH_SIZE
        if self._tree is not None:
            self._tree.push(root_hash)
        self._last_number = number
        self._last_root_hash = root_hash

    def copy(self) -> Self:
        """Return a chain that goes on from here on its own, to check blocks ahead of their commit."""
        chain = type(self)(self._first_number)
        chain._last_number = self._last_number
        chain._last_root_hash = self._last_root_hash
        chain._tree = None if self._tree is None else self._tree.copy()
        return chain

    def state(self) -> dict[str, object]:
        """Return all of it as plain values for JSON, hashes in hex."""
        return {
            "first_number": self._first_number,
            "last_number": self._last_number,
            "last_root_hash": None if self._last_root_hash is None else self._last_root_hash.hex(),
            "tree_stack": None if self._tree is None else [root.hex() for root in self._tree.state()[1]],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, object]) -> Self:
        """Return the chain that `state()` described.

        Raises:
            ChainStateError: the values do not describe a chain.
        """
        if set(state) != _STATE_KEYS:
            raise ChainStateError("chain state", f"keys {sorted(state)}", f"keys {sorted(_STATE_KEYS)}")
        first = _number(state, "first_number")
        chain = cls(first)
        if state["last_number"] is not None:
            last = _number(state, "last_number")
            if last < first:
                raise ChainStateError(
                    "chain state: last_number", str(last), f"at least {first}, first_number"
                )
            chain._last_number = last
            chain._last_root_hash = _hash(state["last_root_hash"], "last_root_hash")
        elif state["last_root_hash"] is not None:
            raise ChainStateError(
                "chain state: last_root_hash", "a value", "none, as there is no last_number"
            )
        chain._tree = _tree(state["tree_stack"], first, chain.next_number)
        return chain


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
    """Return the tree over all roots; a chain that begins with block 0 has one leaf for each block."""
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
