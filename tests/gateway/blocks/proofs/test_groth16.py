"""Tests of `gateway.blocks.proofs.groth16`, with a setup whose trapdoors are known."""

from __future__ import annotations

import random

import pytest

from sluice.gateway.blocks.errors import ProofDataError
from sluice.gateway.blocks.proofs.bn254_fields import ORDER
from sluice.gateway.blocks.proofs.bn254_pairing import pairing_product, prepare
from sluice.gateway.blocks.proofs.encoding import LayoutReader
from sluice.gateway.blocks.proofs.groth16 import Groth16Key, Groth16Proof, groth16_pairs, read_groth16_key
from tests.gateway.blocks.proofs.bn254_setup import WrapsSetup, g1, g1_bytes, g2, g2_bytes

SETUP = WrapsSetup(seed=3)
RNG = random.Random(16)
INPUTS = [RNG.randrange(ORDER) for _ in SETUP.ic[1:]]
INPUTS[0] = 0


def key_of(serialized: bytes) -> Groth16Key:
    return read_groth16_key(LayoutReader(serialized[32:], "key"), len(INPUTS))


KEY = key_of(SETUP.key_bytes())


def holds(a: int, b: int, c: int, inputs: list[int]) -> bool:
    proof = Groth16Proof(g1(a), prepare(g2(b), "B"), g1(c))
    return pairing_product(groth16_pairs(KEY, proof, inputs)) == KEY.alpha_beta


def test_a_proof_holds_for_its_inputs_alone() -> None:
    a, b = RNG.randrange(ORDER), RNG.randrange(ORDER)
    c = SETUP.groth16_c(a, b, INPUTS)
    assert holds(a, b, c, INPUTS)
    assert holds(a * 5 % ORDER, b * pow(5, -1, ORDER) % ORDER, c, INPUTS)  # a proof is not unique
    assert not holds(a, b, c + 1, INPUTS)
    assert not holds(a + 1, b, c, INPUTS)
    assert not holds(a, b + 1, c, INPUTS)
    for index in (0, 1, len(INPUTS) - 1):
        assert not holds(a, b, c, [*INPUTS[:index], INPUTS[index] ^ 1, *INPUTS[index + 1 :]])
    assert SETUP.ic[7] == 0
    assert holds(a, b, c, [*INPUTS[:6], INPUTS[6] ^ 1, *INPUTS[7:]])  # the circuit does not use this one


def test_infinity_is_no_proof() -> None:
    assert pairing_product(groth16_pairs(KEY, Groth16Proof(None, None, None), INPUTS)) != KEY.alpha_beta


@pytest.mark.parametrize("part", ["alpha", "beta", "gamma", "delta"])
def test_infinity_in_a_key_is_refused(part: str) -> None:
    encoded = g1_bytes(None) if part == "alpha" else g2_bytes(None)
    with pytest.raises(ProofDataError, match=f"key: {part}: got infinity, expected another point of G"):
        key_of(SETUP.key_bytes(**{part: encoded}))


def test_another_count_of_inputs_is_refused() -> None:
    with pytest.raises(ProofDataError, match=r"key: IC: got 41 elements, expected 40$"):
        read_groth16_key(LayoutReader(SETUP.key_bytes()[32:], "key"), len(INPUTS) - 1)
