"""Tests of `gateway.blocks.proofs.baby_jubjub`."""

from __future__ import annotations

import pytest

from sluice.gateway.blocks.errors import ProofDataError
from sluice.gateway.blocks.proofs.baby_jubjub import (
    BASE,
    FIELD_PRIME,
    IDENTITY,
    SUBGROUP_ORDER,
    D,
    Point,
    add,
    compressed,
    is_on_curve,
    multiply,
    point_bytes,
    read_curve_point,
    read_point,
    weighted_sum,
)
from sluice.gateway.blocks.proofs.encoding import scalar_bytes

q = FIELD_PRIME
ORDER_2: Point = (0, q - 1)
BETWEEN = point_bytes(add([BASE, ORDER_2]))
"""A point of order 2 * l."""


def plain_add(left: Point, right: Point) -> Point:
    """The addition law of Edwards curves by its definition, in affine coordinates."""
    (x1, y1), (x2, y2) = left, right
    t = D * x1 * x2 * y1 * y2
    x = (x1 * y2 + y1 * x2) * pow(1 + t, -1, q) % q
    return x, (y1 * y2 - x1 * x2) * pow(1 - t, -1, q) % q


def test_the_generator_is_of_prime_order() -> None:
    assert is_on_curve(BASE)
    assert multiply(SUBGROUP_ORDER, BASE) == IDENTITY
    assert multiply(SUBGROUP_ORDER + 1, BASE) == BASE
    assert pow(2, SUBGROUP_ORDER - 1, SUBGROUP_ORDER) == 1


def test_the_curve_has_eight_times_the_points() -> None:
    """By Hasse, the order is within 2 sqrt(q) of q + 1, and only the cofactor 8 fits."""
    assert abs(8 * SUBGROUP_ORDER - (q + 1)) ** 2 <= 4 * q


def test_addition_is_the_curves() -> None:
    two = plain_add(BASE, BASE)
    three = plain_add(two, BASE)
    assert add([BASE, BASE]) == multiply(2, BASE) == two
    assert add([BASE, two]) == multiply(3, BASE) == three
    assert add([]) == IDENTITY == multiply(0, BASE)
    assert add([BASE, (q - BASE[0], BASE[1])]) == IDENTITY
    assert add([IDENTITY, BASE, IDENTITY]) == BASE
    assert add([ORDER_2, ORDER_2]) == IDENTITY


@pytest.mark.parametrize("scalars", [(5, 7), (0, 9), (2**250 + 3, 1), (SUBGROUP_ORDER - 1, SUBGROUP_ORDER)])
def test_a_weighted_sum_is_the_sum(scalars: tuple[int, int]) -> None:
    other = multiply(12345, BASE)
    separately = add([multiply(scalars[0], BASE), multiply(scalars[1], other)])
    assert weighted_sum([(scalars[0], BASE), (scalars[1], other)]) == separately
    assert separately == multiply((scalars[0] + 12345 * scalars[1]) % SUBGROUP_ORDER, BASE)
    assert weighted_sum([]) == IDENTITY


def test_points_read_back() -> None:
    for point in (BASE, IDENTITY, multiply(77, BASE)):
        assert read_point(point_bytes(point), "p") == point


def test_the_compressed_form_tells_the_two_x_apart() -> None:
    x, y = BASE
    negative = (q - x, y)
    assert x > q - x
    assert compressed(BASE) == scalar_bytes(y | 1 << 255)
    assert compressed(negative) == scalar_bytes(y)
    assert compressed(IDENTITY) == scalar_bytes(1)


@pytest.mark.parametrize(
    ("encoded", "message"),
    [
        (b"", "p: got 0 bytes, expected 64"),
        (bytes(63), "p: got 63 bytes, expected 64"),
        (
            scalar_bytes(q) + scalar_bytes(1),
            f"p x: got {q:#x}, expected less than {q:#x}",
        ),
        (scalar_bytes(0) + b"\xff" * 32, f"p y: got 0x{'ff' * 32}, expected less than {q:#x}"),
        (
            scalar_bytes(1) + scalar_bytes(1),
            "p: got 0100000000000000…, which is not on Baby Jubjub, expected a point of it",
        ),
        (
            point_bytes(ORDER_2),
            "p: got 0000000000000000…, of another order, expected a point of order l",
        ),
        (
            BETWEEN,
            f"p: got {BETWEEN[:8].hex()}…, of another order, expected a point of order l",
        ),
    ],
)
def test_what_is_no_point_of_the_subgroup_is_refused(encoded: bytes, message: str) -> None:
    with pytest.raises(ProofDataError) as caught:
        read_point(encoded, "p")
    assert str(caught.value) == message


def test_a_point_of_the_curve_need_not_be_of_the_subgroup() -> None:
    for point in (BASE, ORDER_2):
        assert read_curve_point(point_bytes(point), "p") == point
    with pytest.raises(ProofDataError, match=r"^p: got 0100000000000000…, which is not on Baby Jubjub"):
        read_curve_point(scalar_bytes(1) + scalar_bytes(1), "p")
