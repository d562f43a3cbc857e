"""Tests of `gateway.blocks.proofs.kzg`, with a setup whose tau is known."""

from __future__ import annotations

from dataclasses import replace

from sluice.gateway.blocks.proofs.bn254_fields import FP12_ONE, ORDER
from sluice.gateway.blocks.proofs.bn254_pairing import pairing_product, prepare
from sluice.gateway.blocks.proofs.kzg import KzgKey, Opening, kzg_pairs
from tests.gateway.blocks.proofs.bn254_setup import WrapsSetup, g1, g2

SETUP = WrapsSetup(seed=4)
EXPONENTS = SETUP.exponents
H = EXPONENTS["h"]
KEY = KzgKey(g1(EXPONENTS["g"]), prepare(g2(H), "h"), prepare(g2(H * EXPONENTS["tau"] % ORDER), "bh"))
WEIGHTS = [0x1234567890ABCDEF1234567890ABCDEF, 0x0FEDCBA987654321F0E1D2C3B4A59687]


def opening(commitment: int, point: int, value: int) -> Opening:
    return Opening(g1(commitment), point, value, g1(SETUP.witness(commitment, point, value)))


FIRST, SECOND = opening(111, 222, 333), opening(ORDER - 5, 7, 0)


def hold(*openings: Opening) -> bool:
    return pairing_product(kzg_pairs(KEY, openings, WEIGHTS[: len(openings)])) == FP12_ONE


def test_openings_hold() -> None:
    assert hold(FIRST)
    assert hold(FIRST, SECOND)
    assert hold(Opening(None, 3, 0, None))  # the polynomial 0 is 0 everywhere


def test_a_wrong_part_of_any_opening_is_noticed() -> None:
    wrong = (
        replace(FIRST, commitment=g1(112)),
        replace(FIRST, point=223),
        replace(FIRST, value=334),
        replace(FIRST, witness=g1(1)),
        replace(FIRST, witness=None),
    )
    for one in wrong:
        assert not hold(one)
        assert not hold(SECOND, one)
        assert not hold(one, SECOND)


def test_errors_that_cancel_without_weights_are_noticed() -> None:
    """One opening commits to too much and another to too little; the plain sum would hold."""
    high = replace(FIRST, commitment=g1(111 + 50))
    low = replace(SECOND, commitment=g1(ORDER - 5 - 50))
    assert pairing_product(kzg_pairs(KEY, [high, low], [1, 1])) == FP12_ONE
    assert not hold(high, low)
