"""BLS12-381 in the hinTS part of a TSS signature: strict decoding of points, and hashing to G2.

Pure. `py_arkworks_bls12381` does the arithmetic; it takes c0 before c1, and zeros alone for infinity. The
reference tests the subgroup and not the curve; no honest signer can tell.
Source: docs/spec/tss.md sections 2.1 and 2.3; RFC 9380 section 8.8.2 (the suite of `hash_to_g2`).
"""

from collections.abc import Sequence
from typing import Final

from py_arkworks_bls12381 import GT, G1Point, G2Point, Scalar

from sluice.gateway.blocks.errors import ProofDataError

__all__ = [
    "FIELD_PRIME",
    "G1_SIZE",
    "G2_SIZE",
    "GROUP_ORDER",
    "G1Point",
    "G2Point",
    "hash_to_g2",
    "pairing_product_is_one",
    "read_g1",
    "read_g2",
    "weighted_sum",
    "weighted_sum_g2",
]

# The curve's parameter (draft-irtf-cfrg-pairing-friendly-curves section 4.2.1).
_X: Final = -0xD201_0000_0001_0000
GROUP_ORDER: Final = _X**4 - _X**2 + 1
"""r, the order of G1, G2 and GT, and the modulus of scalars."""
FIELD_PRIME: Final = (_X - 1) ** 2 * GROUP_ORDER // 3 + _X
"""p, the modulus of coordinates."""
assert GROUP_ORDER == 52435875175126190479447740508185965837690552500527637822603658699938581184513  # 2.1

G1_SIZE: Final = 96
G2_SIZE: Final = 192

MESSAGE_DST: Final = b"BLS_SIG_BLS12381G2_XMD:SHA-256_SSWU_RO_POP_"
"""Domain separation tag (2.3)."""

_COORDINATE_SIZE: Final = 48
_PRIME_BYTES: Final = FIELD_PRIME.to_bytes(_COORDINATE_SIZE, "big")
_COMPRESSED, _INFINITY, _SIGN = 0x80, 0x40, 0x20  # the top bits of byte 0 (2.1)
_INFINITY_G1: Final = bytes((_INFINITY,)) + bytes(G1_SIZE - 1)
_INFINITY_G2: Final = bytes((_INFINITY,)) + bytes(G2_SIZE - 1)


def read_g1(encoded: bytes, what: str) -> G1Point:
    """Decode a point of G1 (2.1). Raises ProofDataError, of `what`, if it is none."""
    if encoded == _INFINITY_G1:
        return G1Point.identity()
    _check_form(encoded, G1_SIZE, what)
    try:
        return G1Point.from_xy_bytes_be(encoded)
    except ValueError:
        raise _not_in_group(encoded, what, "G1") from None


def read_g2(encoded: bytes, what: str) -> G2Point:
    """Decode a point of G2 (2.1). Raises as `read_g1`."""
    if encoded == _INFINITY_G2:
        return G2Point.identity()
    _check_form(encoded, G2_SIZE, what)
    try:
        return G2Point.from_xy_bytes_be(_swapped(encoded))
    except ValueError:
        raise _not_in_group(encoded, what, "G2") from None


def hash_to_g2(message: bytes) -> G2Point:
    """2.3: H(m), the point of a message in signatures."""
    return G2Point.hash_to_curve(message, MESSAGE_DST)


def weighted_sum(points: Sequence[G1Point], scalars: Sequence[int]) -> G1Point:
    """Return the sum of each point times its scalar, which may be negative."""
    if len(points) == 1:  # saves 0.1 ms
        [point], [scalar] = points, scalars
        return point if scalar == 1 else -point if scalar == -1 else point * Scalar(scalar % GROUP_ORDER)
    return G1Point.multiexp_unchecked(list(points), [Scalar(scalar % GROUP_ORDER) for scalar in scalars])


def weighted_sum_g2(points: Sequence[G2Point], scalars: Sequence[int]) -> G2Point:
    """Return the same sum in G2."""
    return G2Point.multiexp_unchecked(list(points), [Scalar(scalar % GROUP_ORDER) for scalar in scalars])


def pairing_product_is_one(g1_points: Sequence[G1Point], g2_points: Sequence[G2Point]) -> bool:
    """Return whether the product of e(g1_points[i], g2_points[i]) is 1."""
    return GT.pairing_check(list(g1_points), list(g2_points))


def _check_form(encoded: bytes, size: int, what: str) -> None:
    """Refuse bytes of the wrong form before any arithmetic."""
    if len(encoded) != size:
        raise ProofDataError(what, f"{len(encoded)} bytes", f"{size}")
    flags = encoded[0] & (_COMPRESSED | _INFINITY | _SIGN)
    if flags == _INFINITY:
        raise ProofDataError(what, "a point at infinity with coordinates", "zeros after 0x40")
    if flags:
        raise ProofDataError(what, f"flags {flags:#x}", "0, or 0x40 for infinity")
    if not any(encoded):
        raise ProofDataError(what, "zeros alone", "a point; infinity is 0x40 and zeros")
    for offset in range(0, size, _COORDINATE_SIZE):
        coordinate = encoded[offset : offset + _COORDINATE_SIZE]
        if coordinate >= _PRIME_BYTES:  # big-endian bytes of one size compare like the numbers
            raise ProofDataError(what, f"coordinate {coordinate.hex()}", "less than the field's prime")


def _not_in_group(encoded: bytes, what: str, group: str) -> ProofDataError:
    return ProofDataError(what, f"{encoded[:8].hex()}…, which is not in {group}", f"a point of {group}")


def _swapped(encoded: bytes) -> bytes:
    return encoded[48:96] + encoded[:48] + encoded[144:192] + encoded[96:144]
