"""The true chain, the material of lies, and the expected stream file."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache

from sluice.gateway.api import block_pb2
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.root_hash import BlockHasher
from sluice.publishers.blocks.maker import BlockMaker, MakerOptions, key_of_seed
from tests.nodes import KEY

BLOCKS_MAX = 24
_OPTIONS = MakerOptions(
    rounds_per_block=1, events_per_round=1, transactions_per_block=0, item_bytes=256, block_time_seconds=2.0
)
_ENTRY_HEAD = struct.Struct(">BIIQ")
_HEADER_PAGE_SIZE = 4096


@cache
def true_blocks() -> tuple[Block, ...]:
    """The chain: six items a block."""
    return tuple(BlockMaker(7, KEY, _OPTIONS).blocks(BLOCKS_MAX))


@cache
def other_blocks() -> tuple[Block, ...]:
    """Another chain signed with the right key: each block is right, but not as the next one."""
    return tuple(BlockMaker(8, KEY, _OPTIONS).blocks(BLOCKS_MAX))


@cache
def forged_blocks() -> tuple[Block, ...]:
    """The same chain signed with an unknown key."""
    return tuple(BlockMaker(7, key_of_seed(99), _OPTIONS).blocks(BLOCKS_MAX))


@cache
def root_hashes() -> tuple[bytes, ...]:
    roots = []
    for block in true_blocks():
        hasher = BlockHasher()
        hasher.add(block.items)
        roots.append(hasher.finish().root_hash)
    return tuple(roots)


@dataclass(frozen=True, slots=True)
class Image:
    """The expected data pages of a stream that begins with one block."""

    data: bytes
    """From offset 4096 on, less than one page."""
    number_at: dict[int, int]
    """Used length of the file -> the block that ends there; the empty stream has the one before the first."""
    end_of: dict[int, int]
    entries_of: dict[int, int]
    """Block -> number of entries up to its end."""


@cache
def image_from(first_number: int) -> Image:
    """Serialize the chain as docs/spec/block-layout.md says, without the node's code."""
    data, entry_number = bytearray(), 0
    number_at = {_HEADER_PAGE_SIZE: first_number - 1}
    entries_of = {first_number - 1: 0}
    for block in true_blocks()[first_number:]:
        big_endian = block.number.to_bytes(8, "big")
        bookmark = b"\x08\x02" + (b"\x10" + bytes([block.number]) if block.number else b"")
        entries = [(0xB0, bookmark)]
        entries += [(item[0] >> 3, item) for item in block.items]
        entries.append((0xB1, big_endian + root_hashes()[block.number]))
        for entry_type, content in entries:
            data += _ENTRY_HEAD.pack(2, 17 + len(content), entry_type, entry_number) + content
            entry_number += 1
        number_at[_HEADER_PAGE_SIZE + len(data)] = block.number
        entries_of[block.number] = entry_number
    assert len(data) < 1 << 20
    return Image(bytes(data), number_at, {number: end for end, number in number_at.items()}, entries_of)


@cache
def with_broken_proof(number: int) -> Block:
    """Flip one bit of the signature."""
    block = true_blocks()[number]
    item = block_pb2.BlockItem.FromString(block.items[-1])
    signed = item.block_proof.signed_block_proof
    signed.block_signature = bytes([signed.block_signature[0] ^ 1]) + signed.block_signature[1:]
    return Block(number, (*block.items[:-1], item.SerializeToString()))


@cache
def with_proof_of_no_key(number: int) -> Block:
    """Add a TSS proof, by its size: the node has no key for it."""
    block = true_blocks()[number]
    item = block_pb2.BlockItem.FromString(block.items[-1])
    item.block_proof.signed_block_proof.block_signature = bytes(2920)
    return Block(number, (*block.items[:-1], item.SerializeToString()))


@cache
def with_altered_item(number: int) -> Block:
    """Replace a signed state change."""
    block, other = true_blocks()[number], true_blocks()[(number + 1) % BLOCKS_MAX]
    return Block(number, (*block.items[:2], other.items[2], *block.items[3:]))


@cache
def with_item_missing(number: int) -> Block:
    """Leave one item out."""
    block = true_blocks()[number]
    return Block(number, (*block.items[:2], *block.items[3:]))


@cache
def with_body_of_another(number: int) -> Block:
    """Join the header of one block to the rest of the next."""
    block, other = true_blocks()[number], true_blocks()[(number + 1) % BLOCKS_MAX]
    return Block(number, (block.items[0], *other.items[1:]))
