"""Keys and proofs over BN254 made with known trapdoors, so that tests can tell right from wrong ones.

A setup here knows what a real one has to forget: alpha, beta, gamma, delta, the exponents of IC, and tau.
With them a proof of any claim can be made, and so one that is wrong in just one place.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from sluice.gateway.blocks.proofs.bn254_curve import G1Point, G2Point, g1_sum_of_multiples, g2_negative
from sluice.gateway.blocks.proofs.bn254_fields import ORDER, PRIME, Fp2, fp2_inverse, fp2_multiply, fp2_square
from sluice.gateway.blocks.proofs.encoding import scalar_bytes
from sluice.gateway.blocks.proofs.wraps import INPUT_COUNT, limbs

G1_GENERATOR: Final = (1, 2)
# The generator of G2 in EIP-197 (there imaginary part first).
G2_GENERATOR: Final = (
    (
        10857046999023057135944570762232829481370756359578518086990519993285655852781,
        11559732032986387107991004021392285783925812861821192530917403151452391805634,
    ),
    (
        8495653923123431417604973247489272438418190587263600148770280649306958101930,
        4082367875863433681332203403145435568316851327593401208105741076214120093531,
    ),
)


def g1(scalar: int) -> G1Point:
    """Return scalar times the generator of G1."""
    return g1_sum_of_multiples([(scalar, G1_GENERATOR)])


def g2_add(a: G2Point, b: G2Point) -> G2Point:
    """Add on the curve of G2, by the textbook."""
    if a is None or b is None:
        return b if a is None else a
    (x1, y1), (x2, y2) = a, b
    if x1 == x2:
        if b == g2_negative(a):
            return None
        slope = fp2_multiply(_times(3, fp2_square(x1)), fp2_inverse(_times(2, y1)))
    else:
        slope = fp2_multiply(_minus(y1, y2), fp2_inverse(_minus(x1, x2)))
    x = _minus(_minus(fp2_square(slope), x1), x2)
    return x, _minus(fp2_multiply(slope, _minus(x1, x)), y1)


def g2(scalar: int, point: G2Point = G2_GENERATOR) -> G2Point:
    """Return scalar times a point of the curve of G2, by default the generator."""
    result: G2Point = None
    for bit in bin(scalar)[2:]:
        result = g2_add(result, result)
        if bit == "1":
            result = g2_add(result, point)
    return result


def g1_bytes(point: G1Point) -> bytes:
    """Compress a point of G1."""
    if point is None:
        return bytes(31) + b"\x40"
    x, y = point
    return (x | (y > PRIME - y) << 255).to_bytes(32, "little")


def g2_bytes(point: G2Point) -> bytes:
    """Compress a point of G2."""
    if point is None:
        return bytes(63) + b"\x40"
    (x0, x1), (y0, y1) = point
    larger = (y1 or y0) > PRIME - (y1 or y0)
    return x0.to_bytes(32, "little") + (x1 | larger << 255).to_bytes(32, "little")


@dataclass
class WrapsSetup:
    """A WRAPS key with its trapdoors."""

    seed: int = 1
    exponents: dict[str, int] = field(default_factory=dict)
    ic: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = random.Random(self.seed)
        for name in ("alpha", "beta", "gamma", "delta", "g", "gamma_g", "h", "tau", "pp_hash"):
            self.exponents[name] = rng.randrange(1, ORDER)
        self.ic = [rng.randrange(ORDER) for _ in range(INPUT_COUNT + 1)]
        self.ic[7] = 0  # an input that the circuit does not use

    def key_bytes(self, **changed: bytes) -> bytes:
        """Return the 1768 bytes of the key; a part may have other bytes."""
        exponents = self.exponents
        parts = {"pp_hash": scalar_bytes(exponents["pp_hash"]), "alpha": g1_bytes(g1(exponents["alpha"]))}
        for name in ("beta", "gamma", "delta"):
            parts[name] = g2_bytes(g2(exponents[name]))
        parts["count"] = len(self.ic).to_bytes(8, "little")
        parts["ic"] = b"".join(g1_bytes(g1(exponent)) for exponent in self.ic)
        parts |= {name: g1_bytes(g1(exponents[name])) for name in ("g", "gamma_g")}
        parts["h"] = g2_bytes(g2(exponents["h"]))
        parts["bh"] = g2_bytes(g2(exponents["h"] * exponents["tau"] % ORDER))
        return b"".join((parts | changed).values())

    def groth16_c(self, a: int, b: int, inputs: Sequence[int]) -> int:
        """Return the exponent of C for A = a g1 and B = b g2, from the equation of Groth16."""
        sums = self.ic[0] + sum(k * value for k, value in zip(self.ic[1:], inputs, strict=True))
        rest = a * b - self.exponents["alpha"] * self.exponents["beta"] - sums * self.exponents["gamma"]
        return rest * pow(self.exponents["delta"], -1, ORDER) % ORDER

    def witness(self, commitment: int, point: int, value: int) -> int:
        """Return the exponent of w with which the commitment opens to the value at the point."""
        difference = self.exponents["tau"] - point
        return (commitment - value * self.exponents["g"]) * pow(difference, -1, ORDER) % ORDER

    def proof_parts(
        self, ledger_id: int, vk_hash: int, *, i: int = 5, u_e: G1Point = None, seed: int = 2
    ) -> dict[str, bytes]:
        """Return the named parts of a proof of the claim; joined they are its 704 bytes."""
        rng = random.Random(seed)
        u_w, big_w, big_e, cm_t, a, b, rho, c0, c1, v0, v1, z1, zi0 = (
            rng.randrange(ORDER) for _ in range(13)
        )
        z0, zi = (ledger_id, z1), (zi0, vk_hash)
        commitment_w, commitment_e = big_w + rho * u_w, big_e + rho * cm_t
        points = [limbs(g1(exponent)) for exponent in (commitment_w, commitment_e, cm_t)]
        claim = [self.exponents["pp_hash"], i, *z0, *zi]
        inputs = [*claim, *points[0], *points[1], c0, c1, v0, v1, *points[2]]
        two = (2).to_bytes(8, "little")
        parts = {
            "i": scalar_bytes(i),
            "z0 count": two,
            "z0[0]": scalar_bytes(z0[0]),
            "z0[1]": scalar_bytes(z0[1]),
            "zi count": two,
            "zi[0]": scalar_bytes(zi[0]),
            "zi[1]": scalar_bytes(zi[1]),
            "U count": two,
            "U_W": g1_bytes(g1(big_w)),
            "U_E": g1_bytes(g1(big_e)),
            "u count": two,
            "u_W": g1_bytes(g1(u_w)),
            "u_E": g1_bytes(u_e),
            "A": g1_bytes(g1(a)),
            "B": g2_bytes(g2(b)),
            "C": g1_bytes(g1(self.groth16_c(a, b, inputs))),
        }
        for k, (c, v, commitment) in enumerate([(c0, v0, commitment_w), (c1, v1, commitment_e)]):
            parts[f"v{k}"] = scalar_bytes(v)
            parts[f"w{k}"] = g1_bytes(g1(self.witness(commitment, c, v)))
        parts |= {"cmT": g1_bytes(g1(cm_t)), "rho": scalar_bytes(rho)}
        return parts | {"c0": scalar_bytes(c0), "c1": scalar_bytes(c1)}


def _times(factor: int, a: Fp2) -> Fp2:
    return factor * a[0] % PRIME, factor * a[1] % PRIME


def _minus(a: Fp2, b: Fp2) -> Fp2:
    return (a[0] - b[0]) % PRIME, (a[1] - b[1]) % PRIME
