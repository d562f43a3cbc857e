"""The bytes of points and publications: what the readers in `blocks.proofs` read. Only tests write them."""

from __future__ import annotations

from collections.abc import Iterable

from sluice.gateway.blocks.items import WireType, varint
from sluice.gateway.blocks.proofs.bls12_381 import G1_SIZE, G2_SIZE, G1Point, G2Point

__all__ = ["g1_bytes", "g2_bytes", "publication_bytes"]

INFINITY = 0x40


def g1_bytes(point: G1Point) -> bytes:
    """Encode a point of G1 of BLS12-381: x and y, big-endian."""
    encoded = point.to_xy_bytes_be()
    return encoded if any(encoded) else bytes((INFINITY,)) + bytes(G1_SIZE - 1)


def g2_bytes(point: G2Point) -> bytes:
    """Encode a point of G2 of BLS12-381: x.c1, x.c0, y.c1, y.c0; the library has c0 first."""
    encoded = point.to_xy_bytes_be()
    if not any(encoded):
        return bytes((INFINITY,)) + bytes(G2_SIZE - 1)
    return encoded[48:96] + encoded[:48] + encoded[144:192] + encoded[96:144]


def publication_bytes(
    ledger_id: bytes, wraps_vk: bytes, contributions: Iterable[tuple[int, int, bytes]]
) -> bytes:
    """Encode a publication of a ledger id (tss.md 1.1).

    Args:
        ledger_id: 32 bytes.
        wraps_vk: 1,768 bytes, or none.
        contributions: node id, weight and attested key of each node.
    """
    parts = [_len_field(1, ledger_id), _len_field(2, wraps_vk)]
    for node_id, weight, key in contributions:
        numbers = b"".join(
            varint(number << 3 | WireType.VARINT) + varint(value)
            for number, value in ((1, node_id), (2, weight))
            if value
        )
        parts.append(_len_field(3, numbers + _len_field(3, key)))
    return b"".join(parts)


def _len_field(number: int, value: bytes) -> bytes:
    return varint(number << 3 | WireType.LEN) + varint(len(value)) + value if value else b""
