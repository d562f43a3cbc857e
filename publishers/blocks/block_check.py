"""The check of blocks before they are offered: structure, root hash, and the links between them.

Pure. A gateway checks the same without keys, so a bad block is found at its source. The links of the first
block are believed, unless it is block 0.

Source: docs/spec/block-hash.md sections 3.3 and 4.
"""

from __future__ import annotations

from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.chain import Chain, LastLayout
from sluice.gateway.blocks.errors import BlockRefused, ItemError
from sluice.gateway.blocks.root_hash import BlockHasher, BlockSummary
from sluice.publishers.errors import BadBlock

__all__ = ["OfferCheck"]


class OfferCheck:
    """Takes the blocks of a part of a chain in order."""

    def __init__(self) -> None:
        self._chain = Chain()

    def check(self, block: Block) -> BlockSummary:
        """Check the next block; one that does not follow the last begins a new part.

        Raises:
            BadBlock: no gateway would take it.
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
        number, chain = block.number, self._chain
        if number == 0 or number != chain.next_number:
            chain = Chain(number)
        got, (expected, _) = summary.previous_root_hash, chain.links_of_next()
        if expected is not None and got != expected:
            other = chain.in_other_layout()
            if other is None or got != other.last_root_hash:
                what = f"it links to a block with root hash {got.hex()}"
                raise BadBlock(number, f"{what}, but that of block {number - 1} is {expected.hex()}")
            chain = other
        if chain.check_links(summary) is not None:
            raise BadBlock(number, "its root_hash_of_all_block_hashes_tree is not that of the blocks before")
        chain.advance(number, summary.root_hash, LastLayout.of(summary))
        self._chain = chain
        return summary
