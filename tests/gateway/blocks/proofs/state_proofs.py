"""Chains of made-up hashes and the state proofs of their blocks, in every form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sluice.gateway.api import block_pb2
from sluice.gateway.blocks.items import WireType, varint
from sluice.gateway.blocks.merkle import inner_hash, leaf_hash, unary_hash
from sluice.gateway.blocks.root_hash import BlockSummary
from tests.gateway.block_makers import block_items, summary_of

END = 0xFFFF_FFFF
SIGNATURE = b"the signature of a network"
Sibling = bytes | tuple[bytes] | None
"""A hash on the right, one on the left in a tuple, or None for a node with a single child."""
_SUMMARY = summary_of(block_items())


def len_field(number: int, value: bytes) -> bytes:
    """Encode a length-delimited field, an empty one too."""
    return varint(number << 3 | WireType.LEN) + varint(len(value)) + value


def varint_field(number: int, value: int) -> bytes:
    """Encode a varint field, 0 too."""
    return varint(number << 3 | WireType.VARINT) + varint(value)


def sibling(value: Sibling) -> bytes:
    """Encode a SiblingNode."""
    if value is None:
        return b""
    if isinstance(value, tuple):
        return varint_field(1, 1) + len_field(2, value[0])
    return len_field(2, value)


def path(content: tuple[int, bytes] | None, siblings: Sequence[Sibling], next_index: int) -> bytes:
    """Encode a MerklePath; content is (field number, bytes)."""
    encoded = b"".join(len_field(1, sibling(value)) for value in siblings)
    if next_index:
        encoded += varint_field(2, next_index)
    return encoded if content is None else encoded + len_field(*content)


def proof(paths: Sequence[bytes], signature: bytes = SIGNATURE) -> bytes:
    """Encode a StateProof."""
    return b"".join(len_field(1, each) for each in paths) + len_field(2, len_field(1, signature))


def h(text: str) -> bytes:
    """A hash of its own."""
    return leaf_hash(text.encode())


@dataclass(frozen=True)
class FakeBlock:
    """The hashes of a block for state proofs: made up, except the roots."""

    number: int
    layout: Literal[8, 16]
    previous_root: bytes

    @property
    def time(self) -> bytes:
        """The serialized timestamp."""
        return block_pb2.Timestamp(seconds=1_700_000_000 + self.number, nanos=7).SerializeToString()

    @property
    def right(self) -> list[bytes]:
        """The hashes on the right of the previous root, from the bottom up, without the last step."""
        return [h(f"{self.number} {part}") for part in ("all blocks", "state", "inputs")]

    @property
    def extension(self) -> bytes:
        """Right half of layout 16."""
        return h(f"{self.number} extension")

    @property
    def top(self) -> bytes:
        """The right child of the root."""
        value = self.previous_root
        for other in self.right:
            value = inner_hash(value, other)
        return unary_hash(value) if self.layout == 8 else inner_hash(value, self.extension)

    @property
    def root(self) -> bytes:
        """Root hash of the block."""
        return inner_hash(leaf_hash(self.time), self.top)

    @property
    def summary(self) -> BlockSummary:
        """The parts of a summary that a state proof is checked against."""
        return _SUMMARY._replace(
            number=self.number,
            root_layout=self.layout,
            root_hash=self.root,
            root_hash_other_layout=None,
            previous_root_hash=self.previous_root,
        )


def chain(layouts: Sequence[Literal[8, 16]]) -> list[FakeBlock]:
    """Linked blocks, one of each named layout."""
    blocks: list[FakeBlock] = []
    for number, layout in enumerate(layouts):
        blocks.append(FakeBlock(number, layout, blocks[-1].root if blocks else h("before")))
    return blocks


def hops(blocks: Sequence[FakeBlock]) -> list[Sibling]:
    """Siblings from the root before the blocks to the top of the last one, in forms B and C."""
    siblings: list[Sibling] = []
    for block in blocks:
        siblings += [*block.right, None if block.layout == 8 else block.extension, (leaf_hash(block.time),)]
    return siblings[:-1]


def direct_paths(blocks: Sequence[FakeBlock], k: int) -> list[bytes]:
    """The paths of block k in form B or C, to the last of the blocks."""
    return [
        path((6, blocks[-1].time), [], 2),
        path((3, blocks[k].root), hops(blocks[k + 1 :]), 2),
        path(None, [], END),
    ]


def form_a_paths(blocks: Sequence[FakeBlock], k: int) -> list[bytes]:
    """The paths of block k in form A, to the last of the blocks."""
    siblings: list[Sibling] = []
    for block in blocks[k:]:
        siblings += [*block.right, (leaf_hash(block.time),)]
    return [
        path((6, blocks[-1].time), [], 2),
        path((3, blocks[k].previous_root), siblings[:-1], 2),
        path(None, [], END),
    ]
