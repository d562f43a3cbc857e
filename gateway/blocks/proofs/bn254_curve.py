"""The groups G1 and G2 of BN254: compressed points, sums, and sums of multiples.

Pure. Points are affine, `(x, y)`, with None for infinity. A point of the curve of G1 is in the group;
`bn254_pairing.prepare` checks that of G2. Inside, multiples have Jacobian coordinates: (X, Y, Z) is (X/Z^2,
Y/Z^3), and Z = 0 is infinity.
Source: docs/spec/tss.md section 6; Hankerson, Menezes and Vanstone, "Guide to Elliptic Curve Cryptography",
3.2.2 (Jacobian coordinates) and 3.3.3 (joint multiples).
"""

from collections.abc import Iterable, Sequence
from typing import Final

from sluice.gateway.blocks.errors import ProofDataError
from sluice.gateway.blocks.proofs.bn254_fields import (
    ORDER,
    PRIME,
    XI,
    Fp2,
    fp2_inverse,
    fp2_multiply,
    fp2_square,
    fp2_square_root,
    fp_square_root,
)
from sluice.gateway.blocks.proofs.encoding import integer_below

__all__ = [
    "G1_SIZE",
    "G2_SIZE",
    "G1Point",
    "G1Table",
    "G2Point",
    "g1_from_bytes",
    "g1_negative",
    "g1_sum_of_multiples",
    "g2_from_bytes",
    "g2_negative",
]

G1Point = tuple[int, int] | None
G2Point = tuple[Fp2, Fp2] | None
_Jacobian = tuple[int, int, int]

G1_SIZE: Final = 32
G2_SIZE: Final = 64

# tss.md section 6.
_B_G1: Final = 3
_B_G2: Final = fp2_multiply((_B_G1, 0), fp2_inverse(XI))
# In the two top bits of the last byte (section 6).
_FLAG_LARGER, _FLAG_INFINITY = 0x80, 0x40
_HALF: Final = (PRIME - 1) // 2

_WINDOW_BITS: Final = 4
"""Bits of a scalar per addition: each point has a table of 15 multiples."""
_INFINITY: Final[_Jacobian] = (1, 1, 0)


def g1_from_bytes(encoded: bytes, what: str) -> G1Point:
    """Decode a compressed point of G1 (6). Raises ProofDataError, of `what`, if it is none."""
    flags, plain = _without_flags(encoded, G1_SIZE, what)
    x = integer_below(PRIME, plain, f"{what} x")
    if flags == _FLAG_INFINITY:
        _require_zero(x, what)
        return None
    y = fp_square_root((x * x * x + _B_G1) % PRIME)
    if y is None:
        raise ProofDataError(what, f"x = {x:#x}", "the x of a point of G1")
    return x, y if (y > _HALF) == (flags == _FLAG_LARGER) else -y % PRIME


def g2_from_bytes(encoded: bytes, what: str) -> G2Point:
    """Decode a compressed point of the curve of G2 (6), perhaps outside the group. Errors as for G1."""
    flags, plain = _without_flags(encoded, G2_SIZE, what)
    x = (integer_below(PRIME, plain[:32], f"{what} x.c0"), integer_below(PRIME, plain[32:], f"{what} x.c1"))
    if flags == _FLAG_INFINITY:
        _require_zero(x[0] or x[1], what)
        return None
    cube = fp2_multiply(fp2_square(x), x)
    y = fp2_square_root(((cube[0] + _B_G2[0]) % PRIME, (cube[1] + _B_G2[1]) % PRIME))
    if y is None:
        raise ProofDataError(what, f"x = ({x[0]:#x}, {x[1]:#x})", "the x of a point of the curve of G2")
    is_larger = (y[1] or y[0]) > _HALF  # c1 decides; c0 where both y and -y have c1 = 0
    return x, y if is_larger == (flags == _FLAG_LARGER) else (-y[0] % PRIME, -y[1] % PRIME)


def g1_negative(point: G1Point) -> G1Point:
    """Return -P."""
    return None if point is None else (point[0], -point[1] % PRIME)


def g2_negative(point: G2Point) -> G2Point:
    """Return -Q."""
    return None if point is None else (point[0], (-point[1][0] % PRIME, -point[1][1] % PRIME))


class G1Table:
    """The multiples 1 to 15 of points, for cheap sums of their multiples."""

    __slots__ = ("_rows",)

    def __init__(self, points: Sequence[G1Point]) -> None:
        rows = [_multiples(point) for point in points]
        flat = _to_affine([multiple for row in rows for multiple in row])
        count = (1 << _WINDOW_BITS) - 1
        self._rows = [flat[at : at + count] for at in range(0, len(flat), count)]

    def sum_of_multiples(self, scalars: Sequence[int]) -> G1Point:
        """Return the sum of scalar k times point k; scalars are 0 or more, and small ones cost less."""
        width = max((scalar.bit_length() for scalar in scalars), default=0)
        total = _INFINITY
        for shift in range((width + _WINDOW_BITS - 1) // _WINDOW_BITS * _WINDOW_BITS, 0, -_WINDOW_BITS):
            if total[2]:
                for _ in range(_WINDOW_BITS):
                    total = _double(total)
            low = shift - _WINDOW_BITS
            for scalar, row in zip(scalars, self._rows, strict=True):
                digit = scalar >> low & 15
                if digit and (multiple := row[digit - 1]) is not None:
                    total = _add_affine(total, multiple)
        return _to_affine([total])[0]


def g1_sum_of_multiples(terms: Iterable[tuple[int, G1Point]]) -> G1Point:
    """Return the sum of k P over the pairs (k, P), for any integers k."""
    pairs = [(scalar % ORDER, point) for scalar, point in terms]
    return G1Table([point for _, point in pairs]).sum_of_multiples([scalar for scalar, _ in pairs])


def _multiples(point: G1Point) -> list[_Jacobian]:
    if point is None:
        return [_INFINITY] * 15
    row = [(point[0], point[1], 1)]
    row.append(_double(row[0]))
    while len(row) < 15:
        row.append(_add_affine(row[-1], point))
    return row


def _double(point: _Jacobian) -> _Jacobian:
    """Return 2 P, by the formulas for a = 0. No point of a group of odd order has y = 0."""
    x, y, z = point
    a = x * x % PRIME
    b = y * y % PRIME
    c = b * b % PRIME
    d = 4 * x * b % PRIME
    e = 3 * a
    x3 = (e * e - 2 * d) % PRIME
    return x3, (e * (d - x3) - 8 * c) % PRIME, 2 * y * z % PRIME


def _add_affine(point: _Jacobian, other: tuple[int, int]) -> _Jacobian:
    """Return P + Q for Q in affine form."""
    x1, y1, z1 = point
    x2, y2 = other
    if z1 == 0:
        return x2, y2, 1
    zz = z1 * z1 % PRIME
    h = (x2 * zz - x1) % PRIME
    r = (y2 * zz % PRIME * z1 - y1) % PRIME
    if h == 0:
        return _double(point) if r == 0 else _INFINITY
    hh = h * h % PRIME
    hhh = h * hh % PRIME
    v = x1 * hh % PRIME
    x3 = (r * r - hhh - 2 * v) % PRIME
    return x3, (r * (v - x3) - y1 * hhh) % PRIME, z1 * h % PRIME


def _to_affine(points: Sequence[_Jacobian]) -> list[G1Point]:
    """Return the points in affine form, with one inversion for all (Montgomery's trick)."""
    product = 1
    before: list[int] = []  # products of the Z before each, without infinity
    for _, _, z in points:
        before.append(product)
        if z:
            product = product * z % PRIME
    inverse = pow(product, -1, PRIME)
    result: list[G1Point] = [None] * len(points)
    for index in range(len(points) - 1, -1, -1):
        x, y, z = points[index]
        if z:
            z_inverse = inverse * before[index] % PRIME
            inverse = inverse * z % PRIME
            square = z_inverse * z_inverse % PRIME
            result[index] = (x * square % PRIME, y * square % PRIME * z_inverse % PRIME)
    return result


def _without_flags(encoded: bytes, size: int, what: str) -> tuple[int, bytes]:
    if len(encoded) != size:
        raise ProofDataError(what, f"{len(encoded)} bytes", f"{size}")
    flags = encoded[-1] & (_FLAG_LARGER | _FLAG_INFINITY)
    if flags == _FLAG_LARGER | _FLAG_INFINITY:
        raise ProofDataError(f"{what} flags", f"{flags:#x}", "not both of 0x80 and 0x40")
    return flags, encoded[:-1] + bytes([encoded[-1] ^ flags])


def _require_zero(x: int, what: str) -> None:
    """Refuse what is beside the flag of infinity; the reference ignores it."""
    if x:
        raise ProofDataError(what, "infinity with an x that is not 0", "nothing beside the flag")
