"""Groth16 over BN254: checks a proof (A, B, C) that public inputs satisfy the circuit of a key.

Pure. The key has e(alpha, beta), the lines of gamma and delta, and the multiples of IC precomputed.
`groth16_pairs` returns three Miller loops as pairs, so that a caller can add further equations to the same
product. A proof is not unique: (s A, B/s, C) holds if (A, B, C) does. It proves knowledge, not an author.
Source: docs/spec/tss.md sections 6.1 and 6.3 (step 5); Groth 2016, "On the size of pairing-based
non-interactive arguments", section 3.2.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sluice.gateway.blocks.errors import ProofDataError
from sluice.gateway.blocks.proofs.bn254_curve import (
    G1_SIZE,
    G2_SIZE,
    G1Point,
    G1Table,
    G2Point,
    g1_from_bytes,
    g1_negative,
    g2_from_bytes,
)
from sluice.gateway.blocks.proofs.bn254_fields import Fp12
from sluice.gateway.blocks.proofs.bn254_pairing import PreparedG2, pairing_product, prepare
from sluice.gateway.blocks.proofs.encoding import LayoutReader

__all__ = ["Groth16Key", "Groth16Proof", "groth16_pairs", "read_g1", "read_g2", "read_groth16_key"]


@dataclass(frozen=True, slots=True)
class Groth16Key:
    """A verification key with the constants prepared."""

    alpha_beta: Fp12
    gamma: PreparedG2
    delta: PreparedG2
    ic: G1Table


@dataclass(frozen=True, slots=True)
class Groth16Proof:
    """A proof; B is in the group."""

    a: G1Point
    b: PreparedG2
    c: G1Point


def read_groth16_key(reader: LayoutReader, input_count: int) -> Groth16Key:
    """Read alpha, beta, gamma, delta and IC, and prepare them; IC has `input_count` + 1 points.

    Raises:
        ProofDataError: also if a point beside those of IC is infinity.
    """
    alpha = read_g1(reader, "alpha", may_be_infinity=False)
    beta, gamma, delta = (
        prepare(read_g2(reader, name, may_be_infinity=False), reader.named(name))
        for name in ("beta", "gamma", "delta")
    )
    reader.expect_count(input_count + 1, "IC")
    ic = G1Table([read_g1(reader, f"IC[{index}]") for index in range(input_count + 1)])
    return Groth16Key(pairing_product([(alpha, beta)]), gamma, delta, ic)


def groth16_pairs(
    key: Groth16Key, proof: Groth16Proof, inputs: Sequence[int]
) -> list[tuple[G1Point, PreparedG2]]:
    """Return the pairs whose product of pairings is `key.alpha_beta` iff the proof holds (6.3, 5)."""
    public_input_point = key.ic.sum_of_multiples([1, *inputs])
    return [
        (proof.a, proof.b),
        (g1_negative(public_input_point), key.gamma),
        (g1_negative(proof.c), key.delta),
    ]


def read_g1(reader: LayoutReader, name: str, *, may_be_infinity: bool = True) -> G1Point:
    """Read a compressed point of G1. Raises ProofDataError."""
    point = g1_from_bytes(reader.take(G1_SIZE, name), reader.named(name))
    if point is None and not may_be_infinity:
        raise ProofDataError(reader.named(name), "infinity", "another point of G1")
    return point


def read_g2(reader: LayoutReader, name: str, *, may_be_infinity: bool = True) -> G2Point:
    """Read a compressed point of the curve of G2, perhaps outside the group. Errors as `read_g1`."""
    point = g2_from_bytes(reader.take(G2_SIZE, name), reader.named(name))
    if point is None and not may_be_infinity:
        raise ProofDataError(reader.named(name), "infinity", "another point of G2")
    return point
