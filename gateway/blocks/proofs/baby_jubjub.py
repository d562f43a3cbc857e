"""Baby Jubjub, the twisted Edwards curve over the scalar field of BN254, in plain integers.

Pure. Callers see affine points (x, y). Inside, points have the extended coordinates (X, Y, Z, T) with x =
X/Z, y = Y/Z, x*y = T/Z. Since 1 is a square in Fq and d is not, their addition is complete: equal points and
the identity need no case. Nothing here is secret, so nothing runs in constant time.
Source: docs/spec/tss.md section 2.4; Hisil, Wong, Carter, Dawson: "Twisted Edwards Curves Revisited" (2008),
sections 3.1 and 3.3.
"""

from collections.abc import Iterable
from typing import Final

from sluice.gateway.blocks.errors import ProofDataError
from sluice.gateway.blocks.proofs.bn254_fields import ORDER
from sluice.gateway.blocks.proofs.encoding import SCALAR_SIZE, integer_below, scalar_bytes

__all__ = [
    "BASE",
    "FIELD_PRIME",
    "IDENTITY",
    "POINT_SIZE",
    "SUBGROUP_ORDER",
    "Point",
    "add",
    "compressed",
    "is_on_curve",
    "multiply",
    "point_bytes",
    "read_curve_point",
    "read_point",
    "weighted_sum",
]

Point = tuple[int, int]

FIELD_PRIME: Final = ORDER
"""q, the scalar prime of BN254 (2.4)."""
q: Final = FIELD_PRIME

SUBGROUP_ORDER: Final = 2736030358979909402780800718157159386076813972158567259200215660948447373041
"""l, the prime order of the subgroup (tss.md 2.4)."""

D: Final = 168696 * pow(168700, -1, q) % q
"""The curve's coefficient (tss.md 2.4)."""
assert D == 9706598848417545097372247223557719406784115219466060233080913168975159366771  # 2.4
assert pow(D, (q - 1) // 2, q) == q - 1  # no square: the addition is complete

BASE: Final[Point] = (
    19698561148652590122159747500897617769866003486955115824547446575314762165298,
    19298250018296453272277890825869354524455968081175474282777126169995084727839,
)
"""G, the generator of the subgroup (tss.md 2.4)."""

IDENTITY: Final[Point] = (0, 1)

POINT_SIZE: Final = 64

_Extended = tuple[int, int, int, int]
_IDENTITY: Final[_Extended] = (0, 1, 1, 0)
_WINDOW_BITS: Final = 4
"""Bits of a scalar per addition: each point has a table of 15 multiples."""


def read_point(encoded: bytes, what: str) -> Point:
    """Decode a point of the subgroup (2.4). Raises ProofDataError, of `what`, if it is none."""
    point = read_curve_point(encoded, what)
    if multiply(SUBGROUP_ORDER, point) != IDENTITY:
        raise ProofDataError(what, f"{encoded[:8].hex()}…, of another order", "a point of order l")
    return point


def read_curve_point(encoded: bytes, what: str) -> Point:
    """Decode a point of the curve (2.4), perhaps outside the subgroup. Raises as `read_point`."""
    if len(encoded) != POINT_SIZE:
        raise ProofDataError(what, f"{len(encoded)} bytes", f"{POINT_SIZE}")
    point = (
        integer_below(q, encoded[:SCALAR_SIZE], f"{what} x"),
        integer_below(q, encoded[SCALAR_SIZE:], f"{what} y"),
    )
    if not is_on_curve(point):
        raise ProofDataError(what, f"{encoded[:8].hex()}…, which is not on Baby Jubjub", "a point of it")
    return point


def point_bytes(point: Point) -> bytes:
    """Encode a point, as `read_point` reads it."""
    return scalar_bytes(point[0]) + scalar_bytes(point[1])


def compressed(point: Point) -> bytes:
    """Encode a point in 32 bytes: y, and the choice of x in the top bit (2.4)."""
    x, y = point
    return scalar_bytes(y | (1 << 255 if x > -x % q else 0))


def is_on_curve(point: Point) -> bool:
    """Return whether x^2 + y^2 = 1 + d x^2 y^2 (2.4)."""
    xx, yy = point[0] * point[0] % q, point[1] * point[1] % q
    return (xx + yy - 1 - D * xx * yy) % q == 0


def add(points: Iterable[Point]) -> Point:
    """Return the sum of points."""
    total = _IDENTITY
    for point in points:
        total = _add(total, _extended(point))
    return _affine(total)


def multiply(scalar: int, point: Point) -> Point:
    """Return scalar * point."""
    return weighted_sum([(scalar, point)])


def weighted_sum(terms: Iterable[tuple[int, Point]]) -> Point:
    """Return the sum of scalar * point over all terms; scalars are 0 or more.

    Straus' method: the doublings are shared, and four bits of a scalar cost one addition.
    """
    digits_of, tables = [], []
    for scalar, point in terms:
        digits_of.append(_digits(scalar))
        tables.append(_multiples(point))
    total = _IDENTITY
    for position in range(max(map(len, digits_of), default=0) - 1, -1, -1):
        if total != _IDENTITY:
            for _ in range(_WINDOW_BITS):
                total = _double(total)
        for digits, table in zip(digits_of, tables, strict=True):
            if position < len(digits) and digits[position]:
                total = _add(total, table[digits[position]])
    return _affine(total)


def _digits(scalar: int) -> list[int]:
    digits = []
    while scalar:
        digits.append(scalar & (1 << _WINDOW_BITS) - 1)
        scalar >>= _WINDOW_BITS
    return digits


def _multiples(point: Point) -> list[_Extended]:
    one = _extended(point)
    table = [_IDENTITY, one]
    while len(table) < 1 << _WINDOW_BITS:
        table.append(_add(table[-1], one))
    return table


def _extended(point: Point) -> _Extended:
    x, y = point
    return x, y, 1, x * y % q


def _affine(point: _Extended) -> Point:
    inverse = pow(point[2], -1, q)  # never 0: the addition is complete
    return point[0] * inverse % q, point[1] * inverse % q


def _add(left: _Extended, right: _Extended) -> _Extended:
    """Section 3.1 of the paper, for a = 1: 9 multiplications."""
    x1, y1, z1, t1 = left
    x2, y2, z2, t2 = right
    a = x1 * x2
    b = y1 * y2
    c = D * (t1 * t2 % q)
    d = z1 * z2
    e = ((x1 + y1) * (x2 + y2) - a - b) % q
    f, g, h = (d - c) % q, (d + c) % q, (b - a) % q
    return e * f % q, g * h % q, f * g % q, e * h % q


def _double(point: _Extended) -> _Extended:
    """Section 3.3 of the paper, for a = 1: 4 squarings and 4 multiplications."""
    x, y, z, _ = point
    a = x * x
    b = y * y
    e = ((x + y) * (x + y) - a - b) % q
    g, h = (a + b) % q, (a - b) % q
    f = (g - 2 * z * z) % q
    return e * f % q, g * h % q, f * g % q, e * h % q
