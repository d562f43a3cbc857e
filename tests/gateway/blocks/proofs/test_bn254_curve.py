"""Tests of `blocks.proofs.bn254_curve`: the one form of encodings, sums of multiples against plain ones."""

from __future__ import annotations

import random

import pytest

from sluice.gateway.blocks.errors import ProofDataError
from sluice.gateway.blocks.proofs.bn254_curve import (
    G1Point,
    G1Table,
    g1_from_bytes,
    g1_negative,
    g1_sum_of_multiples,
    g2_from_bytes,
    g2_negative,
)
from sluice.gateway.blocks.proofs.bn254_fields import ORDER, PRIME
from tests.gateway.blocks.proofs.bn254_setup import (
    G1_GENERATOR,
    G2_GENERATOR,
    g1,
    g1_bytes,
    g2,
    g2_add,
    g2_bytes,
)

RNG = random.Random(7)

# Twice the generator, from the precompiled contracts of Ethereum (EIP-196, the same curve).
TWICE = (
    0x030644E72E131A029B85045B68181585D97816A916871CA8D3C208C16D87CFD3,
    0x15ED738C0E0A7C92E7845F96B2AE9C0A68A6A449E3538FC7FF3EBF7A5A18A2C4,
)


def plain_add(a: G1Point, b: G1Point) -> G1Point:
    """Add by the textbook."""
    if a is None or b is None:
        return b if a is None else a
    if a[0] == b[0]:
        if a[1] != b[1]:
            return None
        slope = 3 * a[0] * a[0] * pow(2 * a[1], -1, PRIME)
    else:
        slope = (a[1] - b[1]) * pow(a[0] - b[0], -1, PRIME)
    x = (slope * slope - a[0] - b[0]) % PRIME
    return x, (slope * (a[0] - x) - a[1]) % PRIME


def test_known_multiples() -> None:
    assert g1(1) == G1_GENERATOR
    assert g1(2) == TWICE
    assert g1(ORDER) is None
    assert g1(ORDER - 1) == g1_negative(G1_GENERATOR)
    assert g1(-2) == g1_negative(TWICE)


def test_small_multiples_are_repeated_sums() -> None:
    total: G1Point = None
    for factor in range(70):
        assert g1(factor) == total
        total = plain_add(total, G1_GENERATOR)


def test_sums_of_multiples_are_linear() -> None:
    a, b, c = (RNG.randrange(ORDER) for _ in range(3))
    points = [g1(3), None, g1(5), g1(-3)]
    assert g1_sum_of_multiples(zip([a, 9, b, c], points, strict=True)) == g1(3 * a + 5 * b - 3 * c)
    assert g1_sum_of_multiples([]) is None
    assert g1_sum_of_multiples([(0, G1_GENERATOR)]) is None
    assert g1_sum_of_multiples([(a, None)]) is None
    # sums that double or cancel midway
    assert g1_sum_of_multiples([(17, G1_GENERATOR), (17, G1_GENERATOR)]) == g1(34)
    assert g1_sum_of_multiples([(a, G1_GENERATOR), (a, g1(-1)), (1, TWICE)]) == TWICE


def test_a_table_can_be_used_again() -> None:
    table = G1Table([g1(2), g1(3)])
    assert table.sum_of_multiples([5, 7]) == g1(31)
    assert table.sum_of_multiples([0, ORDER - 1]) == g1(-3)
    with pytest.raises(ValueError, match="longer"):
        table.sum_of_multiples([1])


def test_the_other_half_of_a_group() -> None:
    assert g1_negative(None) is None
    assert g2_negative(None) is None
    assert g2_add(g2(5), g2_negative(g2(5))) is None


@pytest.mark.parametrize("scalar", [1, 2, 3, 4, 5, ORDER - 1, ORDER // 2, 12345])
def test_points_read_back(scalar: int) -> None:
    assert g1_from_bytes(g1_bytes(g1(scalar)), "P") == g1(scalar)
    assert g2_from_bytes(g2_bytes(g2(scalar)), "Q") == g2(scalar)


def test_infinity_reads_back() -> None:
    assert g1_from_bytes(bytes(31) + b"\x40", "P") is None
    assert g2_from_bytes(bytes(63) + b"\x40", "Q") is None


def test_the_flag_of_the_larger_y() -> None:
    y = max(2, PRIME - 2)
    assert g1_from_bytes(b"\x01" + bytes(30) + b"\x80", "P") == (1, y)
    assert g1_from_bytes(b"\x01" + bytes(31), "P") == (1, PRIME - y)
    x = G2_GENERATOR[0]
    plain = x[0].to_bytes(32, "little") + x[1].to_bytes(32, "little")
    smaller = g2_from_bytes(plain, "Q")
    larger = g2_from_bytes(plain[:-1] + bytes([plain[-1] | 0x80]), "Q")
    assert smaller == g2_negative(larger)
    assert smaller is not None
    assert smaller[1][1] < PRIME - smaller[1][1]


@pytest.mark.parametrize(
    ("encoded", "text"),
    [
        (bytes(31), "P: got 31 bytes, expected 32"),
        (bytes(31) + b"\xc0", "P flags: got 0xc0, expected not both of 0x80 and 0x40"),
        (b"\x01" + bytes(30) + b"\x40", "P: got infinity with an x that is not 0, expected nothing beside"),
        (PRIME.to_bytes(32, "little"), f"P x: got {PRIME:#x}, expected less than {PRIME:#x}"),
        (b"\x04" + bytes(31), "P: got x = 0x4, expected the x of a point of G1"),
    ],
)
def test_malformed_points_of_g1(encoded: bytes, text: str) -> None:
    with pytest.raises(ProofDataError) as caught:
        g1_from_bytes(encoded, "P")
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize(
    ("encoded", "text"),
    [
        (bytes(32), "Q: got 32 bytes, expected 64"),
        (bytes(63) + b"\xc0", "Q flags: got 0xc0, expected not both of 0x80 and 0x40"),
        (b"\x01" + bytes(62) + b"\x40", "Q: got infinity with an x that is not 0, expected nothing beside"),
        (bytes(32) + b"\x01" + bytes(30) + b"\x40", "Q: got infinity with an x that is not 0, expected noth"),
        (PRIME.to_bytes(32, "little") + bytes(32), f"Q x.c0: got {PRIME:#x}, expected less than"),
        (bytes(32) + PRIME.to_bytes(32, "little"), f"Q x.c1: got {PRIME:#x}, expected less than"),
        (bytes(64), "Q: got x = (0x0, 0x0), expected the x of a point of the curve of G2"),
    ],
)
def test_malformed_points_of_g2(encoded: bytes, text: str) -> None:
    with pytest.raises(ProofDataError) as caught:
        g2_from_bytes(encoded, "Q")
    assert str(caught.value).startswith(text)
