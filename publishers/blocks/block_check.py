"""Checks blocks before they are offered: structure, root hash, and the links between them.

Pure. What a gateway checks without keys is checked here, so that a bad block is found where it comes from,
and nothing after it is sent. Proofs are not verified: that needs the network's keys.

The first block's links are believed, unless it is block 0, whose links are known. A block whose layout is not
certain has two roots; the next block's link says which one it is.
Source: docs/spec/block-hash.md sections 3.3 and 4.
"""

from __future__ import annotations

from gateway.blocks.block import Block
from gateway.blocks.errors import BlockRefused, ItemError
from gateway.blocks.merkle import EMPTY_HASH, StreamingTree
from gateway.blocks.root_hash import BlockHasher, BlockSummary
from publishers.errors import BadBlock

__all__ = ["OfferCheck"]


class OfferCheck:
    """Takes the blocks of a part of a chain in order."""

    def __init__(self) -> None:
        """Begin anywhere in the chain."""
        self._roots: tuple[bytes, ...] = ()
        self._next_number: int | None = None
        self._tree: StreamingTree | None = None

    def check(self, block: Block) -> BlockSummary:
        """Check the next block; one that does not follow the last begins a new part.

        Raises:
            BadBlock: no gateway would take it; nothing is changed.
        """
        hasher = BlockHasher()
        try:
            hasher.add(block.items)
            summary = hasher.finish()
        except BlockRefused as error:
            raise BadBlock(block.number, str(error.refusal)) from error
        except ItemError as error:
            raise BadBlock(block.number, str(error)) from error
        if summary.number != block.number:
            raise BadBlock(block.number, f"its header says that it is block {summary.number}")
        self._check_links(summary)
        return summary

    def _check_links(self, summary: BlockSummary) -> None:
        number, previous = summary.number, summary.previous_root_hash
        roots, tree = self._roots, self._tree
        if number == 0:
            roots, tree = (EMPTY_HASH,), StreamingTree()
        elif number != self._next_number:
            roots, tree = (), None
        if roots and previous not in roots:
            got, expected = previous.hex(), roots[0].hex()
            what = f"it links to a block with root hash {got}"
            raise BadBlock(number, f"{what}, but that of block {number - 1} is {expected}")
        if tree is not None:
            if number:
                tree = tree.copy()
                tree.push(previous)
            if summary.all_blocks_root_hash != tree.root():
                raise BadBlock(
                    number, "its root_hash_of_all_block_hashes_tree is not that of the blocks before"
                )
        other = summary.root_hash_other_layout
        self._roots = (summary.root_hash,) if other is None else (summary.root_hash, other)
        self._tree = tree
        self._next_number = number + 1
