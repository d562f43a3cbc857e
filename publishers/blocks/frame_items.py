"""The items that frame a block: header, footer and proof, in canonical encoding.

Pure. Blocks that are made here have layout 16 of the block root.
Source: docs/spec/wire.md section 3; docs/spec/block-hash.md section 3.3.
"""

from __future__ import annotations

from typing import Final

from gateway.api import block_pb2

__all__ = ["SECOND_NS", "SIGNATURE_SIZE", "footer_item", "header_item", "proof_item"]

HAPI_MINOR: Final = 78
"""Layout 16 of the block root (docs/spec/block-hash.md section 3.3)."""
SIGNATURE_SIZE: Final = 64
"""Bytes of an Ed25519 signature."""
SECOND_NS: Final = 1_000_000_000


def header_item(number: int, at_ns: int) -> bytes:
    """Make a block header item.

    Args:
        number: of the block.
        at_ns: time of the block, nanoseconds since 1970.
    """
    seconds, nanos = divmod(at_ns, SECOND_NS)
    header = block_pb2.BlockHeader(
        hapi_proto_version=block_pb2.SemanticVersion(minor=HAPI_MINOR),
        software_version=block_pb2.SemanticVersion(minor=HAPI_MINOR, pre="sluice"),
        number=number,
        block_timestamp=block_pb2.Timestamp(seconds=seconds, nanos=nanos),
    )
    return block_pb2.BlockItem(block_header=header).SerializeToString(deterministic=True)


def footer_item(previous_root_hash: bytes, all_blocks_root_hash: bytes, state_root_hash: bytes) -> bytes:
    """Make a block footer item out of three hashes of 48 bytes; the last may be empty."""
    footer = block_pb2.BlockFooter(
        previous_block_root_hash=previous_root_hash,
        root_hash_of_all_block_hashes_tree=all_blocks_root_hash,
        start_of_block_state_root_hash=state_root_hash,
    )
    return block_pb2.BlockItem(block_footer=footer).SerializeToString(deterministic=True)


def proof_item(number: int, signature: bytes) -> bytes:
    """Make a block proof item out of a signature of the block's root hash."""
    signed = block_pb2.SignedBlockProof(block_signature=signature)
    proof = block_pb2.BlockProof(block=number, signed_block_proof=signed)
    return block_pb2.BlockItem(block_proof=proof).SerializeToString(deterministic=True)
