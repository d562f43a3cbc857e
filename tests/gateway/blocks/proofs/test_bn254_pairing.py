"""Tests of `gateway.blocks.proofs.bn254_pairing`: the laws of a pairing, and membership in G2."""

from __future__ import annotations

import random

import pytest

from sluice.gateway.blocks.errors import ProofDataError
from sluice.gateway.blocks.proofs.bn254_curve import g1_negative, g2_from_bytes
from sluice.gateway.blocks.proofs.bn254_fields import (
    FP12_ONE,
    ORDER,
    PRIME,
    TRACE,
    fp12_conjugate,
    fp12_multiply,
)
from sluice.gateway.blocks.proofs.bn254_pairing import (
    final_exponentiation,
    miller_product,
    pairing,
    pairing_product,
    prepare,
)
from tests.gateway.blocks.proofs.bn254_setup import G1_GENERATOR, G2_GENERATOR, g1, g2, g2_add
from tests.gateway.blocks.proofs.test_bn254_fields import fp12_power

RNG = random.Random(11)
E = pairing(G1_GENERATOR, G2_GENERATOR)


def curve_point(x: int) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Return a point of the curve of G2 with this x in Fp, if there is one; it is rarely in the group."""
    try:
        return g2_from_bytes(x.to_bytes(32, "little") + bytes(32), "Q")
    except ProofDataError:
        return None


def test_a_pairing_has_the_order_of_the_groups() -> None:
    assert E != FP12_ONE
    assert fp12_power(E, ORDER) == FP12_ONE


def test_pairings_are_bilinear() -> None:
    a, b = RNG.randrange(ORDER), RNG.randrange(ORDER)
    expected = fp12_power(E, a * b % ORDER)
    assert pairing(g1(a), g2(b)) == expected
    assert pairing(g1(a * b), G2_GENERATOR) == expected
    assert pairing(G1_GENERATOR, g2(a * b % ORDER)) == expected


def test_the_final_exponentiation_is_its_power() -> None:
    f = miller_product([(g1(3), prepare(g2(5), "Q"))])
    assert final_exponentiation(f) == fp12_power(f, (PRIME**12 - 1) // ORDER)


def test_a_product_is_the_product() -> None:
    lines = [prepare(g2(k), "Q") for k in (2, 3, 5)]
    pairs = list(zip([g1(7), g1(11), g1(13)], lines, strict=True))
    product = FP12_ONE
    for pair in pairs:
        product = fp12_multiply(product, pairing_product([pair]))
    assert pairing_product(pairs) == product == fp12_power(E, 14 + 33 + 65)


def test_infinity_counts_as_one() -> None:
    lines = prepare(G2_GENERATOR, "Q")
    assert prepare(None, "Q") is None
    assert pairing_product([]) == FP12_ONE
    assert pairing_product([(None, lines), (G1_GENERATOR, None)]) == FP12_ONE
    assert pairing_product([(None, lines), (G1_GENERATOR, lines)]) == E


def test_a_pair_and_its_negative_cancel() -> None:
    lines = prepare(g2(9), "Q")
    assert pairing_product([(g1(4), lines), (g1_negative(g1(4)), lines)]) == FP12_ONE
    assert fp12_conjugate(E) == pairing(g1(-1), G2_GENERATOR)


def test_points_outside_the_group_are_refused() -> None:
    points = [point for x in range(1, 12) if (point := curve_point(x)) is not None]
    assert len(points) >= 3
    for point in points:
        assert g2(ORDER, point) is not None
        with pytest.raises(ProofDataError) as caught:
            prepare(point, "B")
        assert str(caught.value) == "B: got a point outside the group, expected a point of order q"
        with pytest.raises(ProofDataError, match="outside the group"):
            prepare(g2_add(point, G2_GENERATOR), "B")


def test_points_of_small_order_are_refused() -> None:
    """The cofactor p - 1 + t has the factor 10069 (and 5864401…); such a point meets itself in the loop."""
    cofactor = PRIME - 1 + TRACE
    assert cofactor % 10069 == 0
    point = next(point for x in range(1, 50) if (point := curve_point(x)) is not None)
    small = g2(cofactor // 10069 * ORDER, point)
    assert small is not None
    assert g2(10069, small) is None
    with pytest.raises(ProofDataError, match="outside the group"):
        prepare(small, "B")


def test_points_of_the_cofactor_times_a_curve_point_are_in_the_group() -> None:
    point = next(point for x in range(1, 50) if (point := curve_point(x)) is not None)
    cleared = g2(PRIME - 1 + TRACE, point)
    assert cleared is not None
    lines = prepare(cleared, "B")
    assert fp12_power(pairing_product([(G1_GENERATOR, lines)]), ORDER) == FP12_ONE
