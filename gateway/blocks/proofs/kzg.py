"""KZG over BN254: checks that a commitment C opens to the value v at the point c, with a witness w.

Pure. Several openings share h and bh, so with a weight r for each they are one equation in two pairings,

    e( sum of r (C - v g + c w), h ) e( -sum of r w, bh ) = 1

which wrong openings satisfy with a chance of 2^-128, if nobody knew the weights before.
Source: docs/spec/tss.md section 6.3 (step 6); Kate, Zaverucha and Goldberg 2010, "Constant-size commitments
to polynomials and their applications", section 3.3.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sluice.gateway.blocks.proofs.bn254_curve import G1Point, g1_sum_of_multiples
from sluice.gateway.blocks.proofs.bn254_pairing import PreparedG2

__all__ = ["KzgKey", "Opening", "kzg_pairs"]


@dataclass(frozen=True, slots=True)
class KzgKey:
    """A verification key; the lines of its points of G2 are prepared."""

    g: G1Point
    h: PreparedG2
    bh: PreparedG2


@dataclass(frozen=True, slots=True)
class Opening:
    """The claim that a committed polynomial has a value at a point."""

    commitment: G1Point
    point: int  # c, in [0, q)
    value: int  # v, in [0, q)
    witness: G1Point  # w


def kzg_pairs(
    key: KzgKey, openings: Sequence[Opening], weights: Sequence[int]
) -> list[tuple[G1Point, PreparedG2]]:
    """Return the pairs whose product of pairings is 1 if the openings hold (6.3, 6)."""
    at_h: list[tuple[int, G1Point]] = []
    at_bh: list[tuple[int, G1Point]] = []
    value_sum = 0
    for opening, weight in zip(openings, weights, strict=True):
        at_h.append((weight, opening.commitment))
        at_h.append((weight * opening.point, opening.witness))
        value_sum += weight * opening.value
        at_bh.append((-weight, opening.witness))
    at_h.append((-value_sum, key.g))
    return [(g1_sum_of_multiples(at_h), key.h), (g1_sum_of_multiples(at_bh), key.bh)]
