"""Tests of `blocks.proofs.bn254_fields`: the laws of a field, and each shortcut against the plain way."""

from __future__ import annotations

import random
from functools import reduce

import pytest

from sluice.gateway.blocks.proofs import bn254_fields as fields
from sluice.gateway.blocks.proofs.bn254_fields import FP2_ONE, FP12_ONE, PRIME, Fp2, Fp12

RNG = random.Random(254)
FP12_ZERO: Fp12 = (0,) * 12
W: Fp12 = (0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0)


def any_fp2() -> Fp2:
    return RNG.randrange(PRIME), RNG.randrange(PRIME)


def any_fp12() -> Fp12:
    values = [RNG.randrange(PRIME) for _ in range(12)]
    return tuple(values)  # type: ignore[return-value]


def fp12_add(a: Fp12, b: Fp12) -> Fp12:
    return tuple((x + y) % PRIME for x, y in zip(a, b, strict=True))  # type: ignore[return-value]


def fp12_power(a: Fp12, exponent: int) -> Fp12:
    result = FP12_ONE
    for bit in bin(exponent)[2:]:
        result = fields.fp12_multiply(result, result)
        if bit == "1":
            result = fields.fp12_multiply(result, a)
    return result


def test_fp_square_roots() -> None:
    for value in (0, 1, 4, RNG.randrange(PRIME) ** 2 % PRIME):
        root = fields.fp_square_root(value)
        assert root is not None
        assert root * root % PRIME == value
    assert fields.fp_square_root(PRIME - 1) is None  # p = 3 mod 4


def test_i_is_a_root_of_minus_one_and_w_a_sixth_root_of_xi() -> None:
    assert fields.fp2_square((0, 1)) == (PRIME - 1, 0)
    assert reduce(fields.fp12_multiply, [W] * 6) == (9, 1, *[0] * 10)


def test_fp2_is_a_field() -> None:
    for _ in range(20):
        a, b, c = any_fp2(), any_fp2(), any_fp2()
        ab = fields.fp2_multiply(a, b)
        assert ab == fields.fp2_multiply(b, a)
        assert fields.fp2_multiply(ab, c) == fields.fp2_multiply(a, fields.fp2_multiply(b, c))
        assert fields.fp2_square(a) == fields.fp2_multiply(a, a)
        assert fields.fp2_multiply(a, fields.fp2_inverse(a)) == FP2_ONE
    assert fields.fp2_power(a, PRIME * PRIME - 1) == FP2_ONE
    assert fields.fp2_power(a, 0) == FP2_ONE
    with pytest.raises(ZeroDivisionError, match="0 has no inverse in Fp2"):
        fields.fp2_inverse((0, 0))


def test_fp2_square_roots_are_found_exactly_where_they_are() -> None:
    found = 0
    for a in [(0, 0), (4, 0), (PRIME - 4, 0), (3, 0), *(any_fp2() for _ in range(40))]:
        root = fields.fp2_square_root(a)
        is_square = fields.fp2_power(a, (PRIME * PRIME - 1) // 2) != (PRIME - 1, 0)
        assert (root is not None) == is_square
        if root is not None:
            found += 1
            assert fields.fp2_square(root) == a
    assert 4 < found < 40


def test_fp12_is_a_field() -> None:
    for _ in range(5):
        a, b, c = any_fp12(), any_fp12(), any_fp12()
        ab = fields.fp12_multiply(a, b)
        assert ab == fields.fp12_multiply(b, a)
        assert fields.fp12_multiply(ab, c) == fields.fp12_multiply(a, fields.fp12_multiply(b, c))
        assert fields.fp12_multiply(a, fp12_add(b, c)) == fp12_add(ab, fields.fp12_multiply(a, c))
        assert fields.fp12_multiply(a, FP12_ONE) == a
        assert fields.fp12_multiply(a, fields.fp12_inverse(a)) == FP12_ONE
    with pytest.raises(ZeroDivisionError):
        fields.fp12_inverse(FP12_ZERO)


def test_the_shortcuts_of_fp12() -> None:
    for _ in range(5):
        a, u, v = any_fp12(), any_fp2(), any_fp2()
        assert fields.fp12_square(a) == fields.fp12_multiply(a, a)
        line: Fp12 = (1, 0, 0, 0, 0, 0, *u, *v, 0, 0)
        assert fields.fp12_multiply_by_line(a, u, v) == fields.fp12_multiply(a, line)


def test_frobenius_and_conjugate_are_powers() -> None:
    a = any_fp12()
    power = fields.fp12_frobenius(a)
    assert power == fp12_power(a, PRIME)
    for _ in range(5):
        power = fields.fp12_frobenius(power)
    assert power == fields.fp12_conjugate(a)


def test_cyclotomic_squares() -> None:
    a = any_fp12()
    assert fields.cyclotomic_square(a) != fields.fp12_square(a)
    a = fields.fp12_multiply(fields.fp12_conjugate(a), fields.fp12_inverse(a))
    a = fields.fp12_multiply(fields.fp12_frobenius(fields.fp12_frobenius(a)), a)
    assert fields.fp12_multiply(a, fields.fp12_conjugate(a)) == FP12_ONE
    assert fields.cyclotomic_square(a) == fields.fp12_square(a)
