"""Makers of small blocks for tests: valid ones, and parts to spoil one at a time."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sluice.gateway.api import block_pb2
from sluice.gateway.blocks.items import ItemKind, field_item
from sluice.gateway.blocks.merkle import EMPTY_HASH
from sluice.gateway.blocks.root_hash import BlockHasher, BlockSummary, RootLayout

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC_KEY = KEY.public_key().public_bytes_raw()
STATE_HASH = b"\x5a" * 48


def header_item(number: int = 0, *, minor: int = 78, seconds: int = 1_700_000_000, nanos: int = 5) -> bytes:
    """A header with all that a block needs."""
    message = block_pb2.BlockHeader(
        hapi_proto_version=block_pb2.SemanticVersion(minor=minor),
        number=number,
        block_timestamp=block_pb2.Timestamp(seconds=seconds, nanos=nanos),
    )
    return field_item(ItemKind.BLOCK_HEADER, message.SerializeToString())


def footer_item(
    previous: bytes = EMPTY_HASH, all_blocks: bytes = EMPTY_HASH, state: bytes = STATE_HASH
) -> bytes:
    """A footer; by default the one of a block 0."""
    message = block_pb2.BlockFooter(
        previous_block_root_hash=previous,
        root_hash_of_all_block_hashes_tree=all_blocks,
        start_of_block_state_root_hash=state,
    )
    return field_item(ItemKind.BLOCK_FOOTER, message.SerializeToString())


def proof_item(number: int = 0, signature: bytes = b"\x01" * 64) -> bytes:
    """A proof by a signature of the root hash."""
    signed = block_pb2.SignedBlockProof(block_signature=signature)
    message = block_pb2.BlockProof(block=number, signed_block_proof=signed)
    return field_item(ItemKind.BLOCK_PROOF, message.SerializeToString())


def body_items(count: int = 5) -> list[bytes]:
    """Items of the usual kinds, each with other bytes."""
    return [field_item(2 + index % 6, b"item %d" % index) for index in range(count)]


def summary_of(items: list[bytes], root_layout: RootLayout = "auto") -> BlockSummary:
    """Return the summary of a valid block."""
    hasher = BlockHasher(root_layout)
    hasher.add(items)
    return hasher.finish()


def block_items(
    number: int = 0,
    previous: bytes = EMPTY_HASH,
    all_blocks: bytes = EMPTY_HASH,
    *,
    minor: int = 78,
    key: Ed25519PrivateKey = KEY,
    root_layout: RootLayout = "auto",
) -> list[bytes]:
    """A whole block, signed with `key`."""
    items = [header_item(number, minor=minor), *body_items(), footer_item(previous, all_blocks)]
    root_hash = summary_of([*items, proof_item(number)], root_layout).root_hash
    return [*items, proof_item(number, key.sign(root_hash))]
