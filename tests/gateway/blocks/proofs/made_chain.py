"""Chains of a made network in every layout, with every kind of item, and signatures only now and then.

Blocks without a signature of their own carry a state proof to the next one that has one, in form C or B by
the layouts on the way (docs/spec/proofs.md section 5): what real chains show of it is a small part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sluice.gateway.api import block_pb2
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.items import ItemKind, field_item
from sluice.gateway.blocks.merkle import EMPTY_HASH, StreamingTree, inner_hash, leaf_hash, tree_root
from sluice.gateway.blocks.root_hash import BlockHasher
from tests.gateway.block_makers import STATE_HASH, footer_item, header_item, proof_item
from tests.gateway.blocks.proofs import state_proofs
from tests.gateway.blocks.proofs.tss_chain import publishing_transaction
from tests.gateway.blocks.proofs.tss_network import TssNetwork

__all__ = ["BlockPlan", "MadeChain"]


@dataclass(frozen=True)
class BlockPlan:
    """The properties of one block."""

    layout: Literal[8, 16] = 16
    minor: int = 78
    """Minor HAPI version, which need not fit the layout."""
    body: tuple[bytes, ...] = ()
    state: bytes = STATE_HASH
    """48 bytes, or none."""
    is_signed: bool = True
    """The last block must be signed."""


class _Parts:
    """The hashes of one block that state proofs need."""

    def __init__(self, plan: BlockPlan, items: Sequence[bytes], number: int, all_blocks: bytes) -> None:
        hasher = BlockHasher(plan.layout)
        hasher.add([*items, proof_item(number)])
        summary, trees = hasher.finish(), hasher.subtree_roots()
        self.items = items
        self.root = summary.root_hash
        self.time = summary.timestamp
        state = plan.state or (bytes(48) if plan.layout == 8 else EMPTY_HASH)
        headers, inputs, outputs, changes, trace = trees[:5]
        self.hop: list[state_proofs.Sibling] = [
            all_blocks,
            inner_hash(state, headers),
            inner_hash(inner_hash(inputs, outputs), inner_hash(changes, trace)),
            tree_root(trees[5:]) if plan.layout == 16 else None,
        ]


class MadeChain:
    """The blocks of a plan.

    Args:
        network: signs them; block 0 publishes it.
        plans: of blocks 0, 1, …; the last one is signed.
    """

    def __init__(self, network: TssNetwork, plans: Sequence[BlockPlan]) -> None:
        self.network = network
        self._plans = plans
        self._parts: list[_Parts] = []
        tree = StreamingTree()
        for number, plan in enumerate(plans):
            published = [publishing_transaction(network.publication)] if number == 0 else []
            header = header_item(number, minor=plan.minor, seconds=1_700_000_000 + 2 * number)
            previous = self._parts[-1].root if number else EMPTY_HASH
            footer = footer_item(previous, tree.root(), plan.state)
            parts = _Parts(plan, [header, *published, *plan.body, footer], number, tree.root())
            self._parts.append(parts)
            tree.push(parts.root)

    @property
    def roots(self) -> list[bytes]:
        """The root hash of each block in its own layout."""
        return [parts.root for parts in self._parts]

    def blocks(self) -> list[Block]:
        """All blocks, each with its one planned proof."""
        return [
            self.block(number, self.signed_proof(number) if plan.is_signed else self.state_proof(number))
            for number, plan in enumerate(self._plans)
        ]

    def block(self, number: int, *proofs: bytes) -> Block:
        """One block with these proofs."""
        return Block.from_items([*self._parts[number].items, *proofs])

    def signed_proof(self, number: int) -> bytes:
        """The signature of a block's own root hash."""
        return proof_item(number, self.network.sign(self._parts[number].root))

    def state_proof(self, number: int) -> bytes:
        """The proof of a block through the next signed block."""
        signed = next(at for at in range(number + 1, len(self._plans)) if self._plans[at].is_signed)
        siblings: list[state_proofs.Sibling] = []
        for parts in self._parts[number + 1 : signed + 1]:
            siblings += [*parts.hop, (leaf_hash(parts.time),)]
        paths = [
            state_proofs.path((6, self._parts[signed].time), [], 2),
            state_proofs.path((3, self._parts[number].root), siblings[:-1], 2),
            state_proofs.path(None, [], state_proofs.END),
        ]
        return self._state_proof_item(number, signed, paths)

    def form_a_proof(self, number: int) -> bytes:
        """The proof of a block in form A; blocks up to the next signed one have layout 8."""
        signed = next(at for at in range(number + 1, len(self._plans)) if self._plans[at].is_signed)
        siblings: list[state_proofs.Sibling] = []
        for parts in self._parts[number : signed + 1]:
            siblings += [*parts.hop[:3], (leaf_hash(parts.time),)]
        paths = [
            state_proofs.path((6, self._parts[signed].time), [], 2),
            state_proofs.path((3, self._parts[number - 1].root), siblings[:-1], 2),
            state_proofs.path(None, [], state_proofs.END),
        ]
        return self._state_proof_item(number, signed, paths)

    def _state_proof_item(self, number: int, signed: int, paths: Sequence[bytes]) -> bytes:
        proof = state_proofs.proof(paths, self.network.sign(self._parts[signed].root))
        message = block_pb2.BlockProof(block=number, block_state_proof=proof)
        return field_item(ItemKind.BLOCK_PROOF, message.SerializeToString())
