"""Chains of small blocks that a `TssNetwork` signs; block 0 publishes its ledger id."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.items import ItemKind, WireType, field_item, varint
from sluice.gateway.blocks.merkle import EMPTY_HASH, StreamingTree
from tests.gateway.block_makers import body_items, footer_item, header_item, proof_item, summary_of
from tests.gateway.blocks.proofs.tss_network import TssNetwork


def publishing_transaction(publication: bytes) -> bytes:
    """An item that publishes a ledger id."""
    body = varint(77 << 3 | WireType.LEN) + varint(len(publication)) + publication
    return field_item(ItemKind.SIGNED_TRANSACTION, varint(1 << 3 | 2) + varint(len(body)) + body)


class TssChain:
    """The blocks of one network.

    Args:
        network: signs them.
        body: further items of every block.
        publishes: the publication of block 0, by default the network's.
    """

    def __init__(
        self, network: TssNetwork, body: Sequence[bytes] = (), publishes: Sequence[bytes] | None = None
    ) -> None:
        self.network = network
        self._body = tuple(body) or tuple(body_items())
        self._publishes = (network.publication,) if publishes is None else tuple(publishes)
        self._blocks: list[Block] = []
        self._roots: list[bytes] = []

    def block(self, number: int, *, signed_by: TssNetwork | None = None) -> Block:
        """One block, with those before it. A block that another network signs is not kept."""
        while len(self._blocks) <= number:
            at = len(self._blocks)
            block, root_hash = self._make(at, self.network)
            self._blocks.append(block)
            self._roots.append(root_hash)
        return self._blocks[number] if signed_by is None else self._make(number, signed_by)[0]

    def blocks(self, count: int) -> list[Block]:
        """The first blocks."""
        return [self.block(number) for number in range(count)]

    def _make(self, number: int, signer: TssNetwork) -> tuple[Block, bytes]:
        tree = StreamingTree()
        for root_hash in self._roots[:number]:
            tree.push(root_hash)
        previous = self._roots[number - 1] if number else EMPTY_HASH
        published = [publishing_transaction(each) for each in self._publishes] if number == 0 else []
        items = [header_item(number), *published, *self._body, footer_item(previous, tree.root())]
        root_hash = summary_of([*items, proof_item(number)]).root_hash
        return Block.from_items([*items, proof_item(number, signer.sign(root_hash))]), root_hash
