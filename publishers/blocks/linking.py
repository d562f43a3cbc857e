"""The linking of blocks into a chain: hashing per block, then one short pass over the chain.

Pure. The rest of a block's hashes does not depend on its links. So the pass needs only the three or four
hashes between links and root:

    root ─┬─ time leaf
          └─ M ─┬─ core ─┬─ half ─┬─ node(previous_block_root_hash, root_hash_of_all_block_hashes_tree)
                │        │        └─ state side = node(state root, consensus headers)
                │        └─ items side = node(node(inputs, outputs), node(state changes, trace data))
                └─ extension side: layout 16; in layout 8 there is none, and M = unary(core)

Source: docs/spec/block-hash.md sections 3 and 4.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from sluice.gateway.blocks.errors import BlockRefused, ItemError
from sluice.gateway.blocks.items import ItemKind, kinds_of, read_footer
from sluice.gateway.blocks.merkle import (
    EMPTY_HASH,
    HASH_SIZE,
    StreamingTree,
    inner_hash,
    leaf_hash,
    tree_root,
    unary_hash,
)
from sluice.gateway.blocks.root_hash import BlockHasher, BlockSummary, RootLayout
from sluice.publishers.blocks.block_items import SIGNATURE_SIZE, footer_item, proof_item
from sluice.publishers.errors import PrepareError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = ["ChainStart", "LinkPath", "Linker", "Links", "OpenBlock", "open_block", "sign_block", "summary_of"]

_NO_SIGNATURE: Final = bytes(SIGNATURE_SIZE)
_HASHED_WHEN_ABSENT: Final = {8: bytes(HASH_SIZE), 16: EMPTY_HASH}
"""By layout (docs/spec/block-hash.md sections 3.1 and 3.2)."""


@dataclass(frozen=True, slots=True)
class LinkPath:
    """The hashes between a block's links and its root."""

    state_side: bytes
    items_side: bytes
    extension_side: bytes
    """Empty in layout 8."""
    time_leaf: bytes

    def root(self, previous_root_hash: bytes, all_blocks_root_hash: bytes) -> bytes:
        """Return the root hash of the block with these links."""
        half = inner_hash(inner_hash(previous_root_hash, all_blocks_root_hash), self.state_side)
        core = inner_hash(half, self.items_side)
        top = inner_hash(core, self.extension_side) if self.extension_side else unary_hash(core)
        return inner_hash(self.time_leaf, top)

    def to_bytes(self) -> bytes:
        """Return the hashes joined."""
        return self.time_leaf + self.state_side + self.items_side + self.extension_side

    @classmethod
    def from_bytes(cls, joined: bytes) -> Self:
        """Return the path of joined hashes."""
        assert len(joined) in (3 * HASH_SIZE, 4 * HASH_SIZE)
        time_leaf, state_side, items_side, extension_side = (
            joined[start : start + HASH_SIZE] for start in range(0, 4 * HASH_SIZE, HASH_SIZE)
        )
        return cls(state_side, items_side, extension_side, time_leaf)


@dataclass(frozen=True, slots=True)
class OpenBlock:
    """A block without its links and proofs."""

    number: int
    body: tuple[bytes, ...]
    state_root_hash: bytes
    """48 bytes, or none."""

    def closed(self, links: Links) -> tuple[bytes, ...]:
        """Return the items with a footer that has these links, without a proof."""
        footer = footer_item(links.previous_root_hash, links.all_blocks_root_hash, self.state_root_hash)
        return (*self.body, footer)

    def path(self, root_layout: RootLayout = "auto") -> LinkPath:
        """Hash everything that does not depend on the links. Raises PrepareError if no gateway would take the
        block.
        """
        hasher = BlockHasher(root_layout)
        if not self.body:
            raise PrepareError(self.number, "it has no items before the footer")
        try:
            hasher.add(self.body)
            _check_number(hasher, self.number)
            frame = footer_item(EMPTY_HASH, EMPTY_HASH, self.state_root_hash)
            hasher.add((frame, proof_item(self.number, _NO_SIGNATURE)))
            summary = hasher.finish()
        except BlockRefused as error:
            raise PrepareError(self.number, str(error.refusal)) from error
        consensus, inputs, outputs, changes, trace, *extensions = hasher.subtree_roots()
        state = self.state_root_hash or _HASHED_WHEN_ABSENT[summary.root_layout]
        path = LinkPath(
            state_side=inner_hash(state, consensus),
            items_side=inner_hash(inner_hash(inputs, outputs), inner_hash(changes, trace)),
            extension_side=tree_root(extensions) if summary.root_layout == 16 else b"",
            time_leaf=leaf_hash(summary.timestamp),
        )
        assert path.root(EMPTY_HASH, EMPTY_HASH) == summary.root_hash
        return path


def open_block(number: int, items: Sequence[bytes]) -> OpenBlock:
    """Remove footer and proofs of a block. If it had no footer, its state root is that of an empty tree.

    Raises:
        PrepareError: an item or the footer is malformed, or more than proofs follow the footer.
    """
    try:
        kinds = kinds_of(items)
        if ItemKind.BLOCK_FOOTER not in kinds:
            return OpenBlock(number, tuple(items), EMPTY_HASH)
        end = kinds.index(ItemKind.BLOCK_FOOTER)
        footer = read_footer(items[end])
    except ItemError as error:
        raise PrepareError(number, str(error)) from error
    except BlockRefused as error:
        raise PrepareError(number, str(error.refusal)) from error
    for index, kind in enumerate(kinds[end + 1 :], start=end + 1):
        if kind != ItemKind.BLOCK_PROOF:
            raise PrepareError(number, f"item {index}, of field {kind}, stands after the footer")
    return OpenBlock(number, tuple(items[:end]), footer.state_root_hash)


def summary_of(number: int, items: Sequence[bytes], root_layout: RootLayout = "auto") -> BlockSummary:
    """Hash a block that has its footer, with or without proofs. Raises PrepareError as `OpenBlock.path`."""
    hasher = BlockHasher(root_layout)
    try:
        kinds = kinds_of(items)
        hasher.add(items, kinds)
        _check_number(hasher, number)
        if kinds and kinds[-1] == ItemKind.BLOCK_FOOTER:
            hasher.add((proof_item(number, _NO_SIGNATURE),))
        return hasher.finish()
    except ItemError as error:
        raise PrepareError(number, str(error)) from error
    except BlockRefused as error:
        raise PrepareError(number, str(error.refusal)) from error


def sign_block(
    number: int, items: Sequence[bytes], key: Ed25519PrivateKey, root_layout: RootLayout = "auto"
) -> tuple[bytes, ...]:
    """Replace the proofs of a block by a signature of its root hash.

    Raises:
        PrepareError: no gateway would take the block, or it has no footer.
    """
    summary = summary_of(number, items, root_layout)
    body_count = len(items)
    while items[body_count - 1] != summary.footer:
        body_count -= 1
    return (*items[:body_count], proof_item(number, key.sign(summary.root_hash)))


def _check_number(hasher: BlockHasher, number: int) -> None:
    if hasher.number is not None and hasher.number != number:
        raise PrepareError(number, f"its header says that it is block {hasher.number}")


# --- the pass over the chain --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChainStart:
    """The point from which a chain continues; by default before block 0."""

    next_number: int = 0
    previous_root_hash: bytes = EMPTY_HASH
    """Root of the block before; for block 0 the hash of the empty tree."""
    tree_stack: tuple[bytes, ...] = ()
    """Of the streaming tree over the roots of all blocks before (`StreamingTree.state`)."""

    def __post_init__(self) -> None:
        """Raises PrepareError if the three cannot fit together."""
        try:
            StreamingTree.from_state(self.next_number, self.tree_stack)
        except ValueError as error:
            raise PrepareError(self.next_number, str(error)) from error
        expected = None
        if self.next_number == 0:
            expected = EMPTY_HASH
        elif self.next_number % 2:  # the last root is not merged with another yet
            expected = self.tree_stack[-1]
        if len(self.previous_root_hash) != HASH_SIZE or self.previous_root_hash != (
            expected or self.previous_root_hash
        ):
            got = self.previous_root_hash.hex()
            reason = f"previous_root_hash of the chain's start: got {got}, expected the root before it"
            raise PrepareError(self.next_number, reason)

    def to_json(self) -> str:
        """Return it as one line."""
        return json.dumps(
            {
                "next_number": self.next_number,
                "previous_root_hash": self.previous_root_hash.hex(),
                "tree_stack": [root.hex() for root in self.tree_stack],
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the text of `to_json`. Raises PrepareError for another text."""
        try:
            fields = json.loads(text)
            number, previous = int(fields["next_number"]), bytes.fromhex(fields["previous_root_hash"])
            stack = tuple(bytes.fromhex(root) for root in fields["tree_stack"])
        except (ValueError, TypeError, KeyError) as error:
            raise PrepareError(None, "the text of a chain's start is not what to_json writes") from error
        return cls(number, previous, stack)


@dataclass(frozen=True, slots=True)
class Links:
    """The links of one block and its root, 48 bytes each."""

    previous_root_hash: bytes
    """Footer field 1."""
    all_blocks_root_hash: bytes
    """Footer field 2."""
    root_hash: bytes


class Linker:
    """The pass over a chain; it holds one hash per level of the tree."""

    def __init__(self, start: ChainStart) -> None:
        self._tree = StreamingTree.from_state(start.next_number, start.tree_stack)
        self._previous = start.previous_root_hash
        self._is_first = True

    @property
    def end(self) -> ChainStart:
        """The place where the chain continues."""
        count, stack = self._tree.state()
        return ChainStart(count, self._previous, stack)

    def link(self, number: int, path: LinkPath) -> Links:
        """Link the next block. Raises PrepareError, and changes nothing, for another one."""
        self._check_next(number)
        previous, all_blocks = self._previous, self._tree.root()
        root = path.root(previous, all_blocks)
        self._take(root)
        return Links(previous, all_blocks, root)

    def follow(self, number: int, links: Links) -> None:
        """Take the next block as it is. Raises PrepareError if its number or links are not those of this
        chain.
        """
        self._check_next(number)
        for what, got, expected in (
            ("previous_block_root_hash", links.previous_root_hash, self._previous),
            ("root_hash_of_all_block_hashes_tree", links.all_blocks_root_hash, self._tree.root()),
        ):
            if got != expected:
                raise PrepareError(number, f"{what}: got {got.hex()}, expected {expected.hex()}")
        self._take(links.root_hash)

    def _take(self, root: bytes) -> None:
        self._tree.push(root)
        self._previous = root
        self._is_first = False

    def _check_next(self, number: int) -> None:
        expected = self._tree.leaf_count
        if number == expected:
            return
        if self._is_first:
            remedy = f"the chain goes on with block {expected}"
            raise PrepareError(number, f"it is the first block, but {remedy} (give the chain's start)")
        if number == expected - 1:
            raise PrepareError(number, "it is there more than once")
        missing = (
            f"block {expected} is" if number == expected + 1 else f"blocks {expected} to {number - 1} are"
        )
        raise PrepareError(number, f"{missing} missing before it")
