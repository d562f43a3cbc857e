"""The optimal ate pairing of BN254, for products of pairings: one squaring chain, one final exponentiation.

Pure. e(P, Q) for P in G1 and Q in G2 is f^((p^12 - 1)/q), where f is the product of the lines met on the way

    T = Q;  for each further digit of 6x + 2:  T = 2 T;  then T = T + Q or T - Q where the digit says so
    T = T + psi(Q);  T = T - psi^2(Q)

each line taken at P. `prepare` computes the lines of a Q once, as pairs (lambda, mu) for a line with slope
lambda through T:

    the line at (x, y), divided by y:   1 - lambda (x/y) w + mu (1/y) w^3        mu = lambda T.x - T.y

(the untwisted Q is (Q.x w^2, Q.y w^3); factors from Fp, such as 1/y, vanish in the final exponentiation). psi
is Frobenius on the curve of G2: psi(x, y) = (x' xi^((p-1)/3), y' xi^((p-1)/2)), ' conjugates over Fp.

Membership. In the curve's group, psi^2 - t psi + p = 0. For Q in G2, psi(Q) = p Q, and the loop ends with (6x
+ 2) Q + psi(Q) - psi^2(Q) = -psi^3(Q). The converse holds too: alpha = 6x + 2 + psi - psi^2 + psi^3 has a
norm whose greatest common divisor with the order of the curve, q (p - 1 + t), is q (`_LOOP_NORM`). So a point
with alpha Q = 0 has q Q = 0, and comparing the end of the loop with -psi^3(Q) is the whole check.

Source: docs/spec/tss.md section 6; Vercauteren 2010, "Optimal pairings"; Scott et al. 2009, "On the final
exponentiation for calculating pairings on ordinary elliptic curves" (`final_exponentiation`).
"""

from collections.abc import Sequence
from itertools import pairwise
from math import gcd
from typing import Final

from sluice.gateway.blocks.errors import ProofDataError
from sluice.gateway.blocks.proofs.bn254_curve import G1Point, G2Point, g2_negative
from sluice.gateway.blocks.proofs.bn254_fields import (
    FP12_ONE,
    ORDER,
    PRIME,
    TRACE,
    XI_POWERS,
    Fp2,
    Fp12,
    X,
    cyclotomic_square,
    fp2_inverse,
    fp2_multiply,
    fp12_conjugate,
    fp12_frobenius,
    fp12_inverse,
    fp12_multiply,
    fp12_multiply_by_line,
    fp12_square,
)

__all__ = ["PreparedG2", "final_exponentiation", "miller_product", "pairing", "pairing_product", "prepare"]

PreparedG2 = tuple[tuple[Fp2, Fp2], ...] | None
"""The lines (lambda, mu) of a point of G2, in the order of the loop; None for infinity."""
_Affine = tuple[Fp2, Fp2]


def _signed_digits(value: int) -> tuple[int, ...]:
    """Return the non-adjacent form, highest digit first."""
    digits = []
    while value:
        digit = 2 - value % 4 if value % 2 else 0
        digits.append(digit)
        value = (value - digit) // 2
    return tuple(reversed(digits))


_LOOP_DIGITS: Final = _signed_digits(6 * X + 2)

# alpha = a + b psi by psi^2 = t psi - p, and its norm a^2 + a b t + b^2 p.
_LOOP_A: Final = 6 * X + 2 + PRIME - TRACE * PRIME
_LOOP_B: Final = 1 - TRACE + TRACE * TRACE - PRIME
_LOOP_NORM: Final = _LOOP_A * _LOOP_A + _LOOP_A * _LOOP_B * TRACE + _LOOP_B * _LOOP_B * PRIME
assert gcd(_LOOP_NORM, ORDER * (PRIME - 1 + TRACE)) == ORDER


def prepare(point: G2Point, what: str) -> PreparedG2:
    """Compute the lines of a point of the curve of G2 (6).

    Raises ProofDataError, of `what`, if it is not in the group.
    """
    if point is None:
        return None
    minus = g2_negative(point)
    assert minus is not None
    lines: list[tuple[Fp2, Fp2]] = []
    at = point
    try:
        for digit in _LOOP_DIGITS[1:]:
            at = _tangent(at, lines)
            if digit:
                at = _chord(at, point if digit == 1 else minus, lines)
        once = _psi(point)
        twice = _psi(once)
        at = _chord(at, once, lines)
        at = _chord(at, (twice[0], _negative(twice[1])), lines)
    except ZeroDivisionError:  # T was Q, -Q or 0, which happens to no point of order q
        raise _outside(what) from None
    thrice = _psi(_psi(_psi(point)))
    if at != (thrice[0], _negative(thrice[1])):
        raise _outside(what)
    return tuple(lines)


def _outside(what: str) -> ProofDataError:
    return ProofDataError(what, "a point outside the group", "a point of order q")


def miller_product(pairs: Sequence[tuple[G1Point, PreparedG2]]) -> Fp12:
    """Return the product of the Miller loops of all pairs; a pair with infinity counts as 1."""
    points: list[tuple[int, int]] = []  # (-x/y, 1/y)
    chains: list[Sequence[tuple[Fp2, Fp2]]] = []
    for point, lines in pairs:
        if point is not None and lines is not None:
            inverse = pow(point[1], -1, PRIME)
            points.append((-point[0] * inverse % PRIME, inverse))
            chains.append(lines)
    steps = zip(*chains, strict=True)
    f = FP12_ONE

    def take_lines(f: Fp12) -> Fp12:
        for (minus_x_by_y, one_by_y), (slope, mu) in zip(points, next(steps), strict=True):
            f = fp12_multiply_by_line(
                f,
                (slope[0] * minus_x_by_y % PRIME, slope[1] * minus_x_by_y % PRIME),
                (mu[0] * one_by_y % PRIME, mu[1] * one_by_y % PRIME),
            )
        return f

    if not points:
        return f
    for digit in _LOOP_DIGITS[1:]:
        f = take_lines(fp12_square(f))
        if digit:
            f = take_lines(f)
    return take_lines(take_lines(f))


def final_exponentiation(f: Fp12) -> Fp12:
    """Return f^((p^12 - 1)/q) = (f^((p^6 - 1)(p^2 + 1)))^((p^4 - p^2 + 1)/q); f is not 0.

    The addition chain is that of Scott et al., section 5.
    """
    f = fp12_multiply(fp12_conjugate(f), fp12_inverse(f))
    f = fp12_multiply(_frobenius(f, 2), f)
    fx = _power_x(f)
    fx2 = _power_x(fx)
    fx3 = _power_x(fx2)
    y0 = fp12_multiply(fp12_multiply(_frobenius(f, 1), _frobenius(f, 2)), _frobenius(f, 3))
    y1 = fp12_conjugate(f)
    y2 = _frobenius(fx2, 2)
    y3 = fp12_conjugate(_frobenius(fx, 1))
    y4 = fp12_conjugate(fp12_multiply(fx, _frobenius(fx2, 1)))
    y5 = fp12_conjugate(fx2)
    y6 = fp12_conjugate(fp12_multiply(fx3, _frobenius(fx3, 1)))
    # y0 y1^2 y2^6 y3^12 y4^18 y5^30 y6^36
    t0 = fp12_multiply(fp12_multiply(cyclotomic_square(y6), y4), y5)
    t1 = fp12_multiply(fp12_multiply(y3, y5), t0)
    t0 = fp12_multiply(t0, y2)
    t1 = cyclotomic_square(fp12_multiply(cyclotomic_square(t1), t0))
    t0 = cyclotomic_square(fp12_multiply(t1, y1))
    return fp12_multiply(fp12_multiply(t1, y0), t0)


def pairing_product(pairs: Sequence[tuple[G1Point, PreparedG2]]) -> Fp12:
    """Return the product of e(P, Q) over the pairs (P, lines of Q) (6)."""
    return final_exponentiation(miller_product(pairs))


def pairing(point: G1Point, other: G2Point) -> Fp12:
    """Return e(P, Q). Raises ProofDataError if Q is not in the group."""
    return pairing_product([(point, prepare(other, "point of G2"))])


def _tangent(at: _Affine, lines: list[tuple[Fp2, Fp2]]) -> _Affine:
    """Append the tangent at T; return 2 T."""
    (x0, x1), (y0, y1) = at
    inverse = fp2_inverse((2 * y0 % PRIME, 2 * y1 % PRIME))
    # 3 x^2 / 2 y
    slope = fp2_multiply((3 * (x0 + x1) * (x0 - x1) % PRIME, 6 * x0 * x1 % PRIME), inverse)
    return _third_point(at, at, slope, lines)


def _chord(at: _Affine, other: _Affine, lines: list[tuple[Fp2, Fp2]]) -> _Affine:
    """Append the line through T and Q; return T + Q. Raises ZeroDivisionError if their x are the same."""
    (x0, x1), (y0, y1) = at
    (u0, u1), (v0, v1) = other
    slope = fp2_multiply((y0 - v0, y1 - v1), fp2_inverse((x0 - u0, x1 - u1)))
    return _third_point(at, other, slope, lines)


def _third_point(at: _Affine, other: _Affine, slope: Fp2, lines: list[tuple[Fp2, Fp2]]) -> _Affine:
    """Append the line with this slope; return the negative of its third point."""
    (x0, x1), (y0, y1) = at
    (u0, u1), _ = other
    s0, s1 = slope
    m0, m1 = fp2_multiply(slope, at[0])
    lines.append((slope, ((m0 - y0) % PRIME, (m1 - y1) % PRIME)))
    x = ((s0 + s1) * (s0 - s1) - x0 - u0) % PRIME, (2 * s0 * s1 - x1 - u1) % PRIME
    n0, n1 = fp2_multiply(slope, (x0 - x[0], x1 - x[1]))
    return x, ((n0 - y0) % PRIME, (n1 - y1) % PRIME)


def _psi(point: _Affine) -> _Affine:
    (x0, x1), (y0, y1) = point
    return fp2_multiply((x0, -x1), XI_POWERS[2]), fp2_multiply((y0, -y1), XI_POWERS[3])


def _negative(a: Fp2) -> Fp2:
    return -a[0] % PRIME, -a[1] % PRIME


def _frobenius(f: Fp12, count: int) -> Fp12:
    for _ in range(count):
        f = fp12_frobenius(f)
    return f


_X_DIGITS: Final = _signed_digits(X)
assert all(a == 0 or b == 0 for a, b in pairwise(_X_DIGITS))


def _power_x(f: Fp12) -> Fp12:
    """Return f^x for an f of the cyclotomic subgroup, where 1/f is the conjugate."""
    inverse = fp12_conjugate(f)
    result = f
    for digit in _X_DIGITS[1:]:
        result = cyclotomic_square(result)
        if digit:
            result = fp12_multiply(result, f if digit == 1 else inverse)
    return result
