"""A chain whose blocks each have one long item, for tests of message limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.items import ItemKind, field_item
from sluice.gateway.blocks.merkle import EMPTY_HASH
from sluice.publishers.blocks.block_items import header_item
from sluice.publishers.blocks.linking import ChainStart, Linker, OpenBlock, sign_block
from sluice.publishers.blocks.maker_items import event_header, round_header
from tests.nodes import KEY

__all__ = ["CONSENSUS_NODE_ITEM_BYTES", "large_chain"]

CONSENSUS_NODE_ITEM_BYTES = 37_748_736
"""The longest item that consensus nodes send."""


def large_chain(sizes: Sequence[int]) -> Iterator[Block]:
    """Yield blocks signed with KEY; each has a transaction item of the given size."""
    linker = Linker(ChainStart())
    for number, size_bytes in enumerate(sizes):
        rng = Random(number)
        payload = rng.randbytes(size_bytes)
        head_bytes = len(field_item(ItemKind.SIGNED_TRANSACTION, payload[:-5])) - (size_bytes - 5)
        item = field_item(ItemKind.SIGNED_TRANSACTION, payload[: size_bytes - head_bytes])
        assert len(item) == size_bytes
        at_ns = (1_767_225_600 + 2 * number) * 1_000_000_000
        body = (
            header_item(number, at_ns),
            round_header(number + 1),
            event_header(rng, number + 1, 0, at_ns, 0),
            item,
        )
        block = OpenBlock(number, body, EMPTY_HASH)
        links = linker.link(number, block.path())
        yield Block(number, sign_block(number, block.closed(links), KEY))
