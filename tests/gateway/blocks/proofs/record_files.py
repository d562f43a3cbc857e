"""Small record-file blocks, and a network of RSA keys that signs them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache

from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from sluice.gateway.api import block_pb2
from sluice.gateway.blocks.items import ItemKind, field_item
from sluice.gateway.blocks.proofs.record_file import signed_payload
from sluice.gateway.blocks.root_hash import BlockSummary
from tests.gateway.block_makers import footer_item, header_item, summary_of
from tests.gateway.blocks.proofs.state_proofs import len_field, varint_field

VERSION = block_pb2.SemanticVersion(minor=78).SerializeToString()
TIME = block_pb2.Timestamp(seconds=1_700_000_000, nanos=5).SerializeToString()
ZEROS = bytes(48)


@cache
def private_key(node_id: int) -> RSAPrivateKey:
    """The key of a node."""
    return generate_private_key(65537, 2048)


def public_key_hex(node_id: int) -> str:
    """The key of a node, as in an address book."""
    key = private_key(node_id).public_key()
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo).hex()


def book_bytes(node_count: int, *more: object) -> bytes:
    """An address book of nodes 0 to node_count - 1, and of further entries."""
    entries: list[object] = [{"RSAPubKey": public_key_hex(0)}]
    entries += [{"RSAPubKey": public_key_hex(k), "nodeId": str(k)} for k in range(1, node_count)]
    return json.dumps({"nodeAddress": [*entries, *more]}).encode()


def hash_object(value: bytes) -> bytes:
    """Encode a HashObject."""
    return varint_field(1, 1) + varint_field(2, 48) + len_field(3, value)


def contents(number: int = 0, **changed: bytes) -> bytes:
    """A RecordStreamFile of two records; parts may be given in other bytes."""
    parts = {
        "version": len_field(1, VERSION),
        "start": len_field(2, hash_object(ZEROS)),
        "records": len_field(3, b"record") + len_field(3, b""),
        "end": len_field(4, hash_object(b"\x77" * 48)),
        "number": varint_field(5, number) if number else b"",
    }
    return b"".join((parts | changed).values())


def record_file_item(inner: bytes, time: bytes = TIME, more: bytes = b"") -> bytes:
    """The item that wraps a record file."""
    return field_item(ItemKind.RECORD_FILE, len_field(1, time) + len_field(2, inner) + more)


def sign(inner: bytes, node_id: int) -> bytes:
    """A node's signature of a record file."""
    return private_key(node_id).sign(signed_payload(inner), PKCS1v15(), SHA384())


def record_file_proof(signatures: list[tuple[int, bytes]], version: int = 6) -> bytes:
    """Encode a SignedRecordFileProof."""
    encoded = varint_field(1, version) if version else b""
    for node_id, signature in signatures:
        number = varint_field(2, node_id) if node_id else b""
        encoded += len_field(2, len_field(1, signature) + number)
    return encoded


def block_items(item: bytes, proof: bytes, number: int = 0) -> list[bytes]:
    """A block around a record file and its proof."""
    message = block_pb2.BlockProof(block=number, signed_record_file_proof=proof)
    proof_item = field_item(ItemKind.BLOCK_PROOF, message.SerializeToString())
    return [header_item(number), item, footer_item(), proof_item]


def signed(
    node_ids: list[int], number: int = 0, inner: Mapping[str, bytes] | None = None
) -> tuple[bytes, BlockSummary]:
    """Return (proof, summary) of a block that these nodes signed."""
    file = contents(number, **(inner or {}))
    proof = record_file_proof([(node_id, sign(file, node_id)) for node_id in node_ids])
    return proof, summary_of(block_items(record_file_item(file), proof, number))
