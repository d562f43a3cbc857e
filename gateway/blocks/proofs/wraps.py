"""WRAPS: the succinct form of the address book proof, a folded Groth16 proof with two KZG openings.

Pure. It shows that the network with this ledger id vouches, through any number of address books, for a hinTS
verification key. The three equations are one product of six pairings, with random weights for the openings.
Stricter than the reference: vectors have 2 elements, infinity has one encoding, and no point of the key that
takes part, but IC, is infinity.
Source: docs/spec/tss.md sections 6.1, 6.2 and 6.3.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sluice.gateway.blocks.errors import ProofDataError
from sluice.gateway.blocks.proofs.bn254_curve import G1Point, g1_sum_of_multiples
from sluice.gateway.blocks.proofs.bn254_fields import ORDER
from sluice.gateway.blocks.proofs.bn254_pairing import pairing_product
from sluice.gateway.blocks.proofs.bn254_pairing import prepare as prepare_g2
from sluice.gateway.blocks.proofs.encoding import LayoutReader
from sluice.gateway.blocks.proofs.groth16 import (
    Groth16Key,
    Groth16Proof,
    groth16_pairs,
    read_g1,
    read_g2,
    read_groth16_key,
)
from sluice.gateway.blocks.proofs.kzg import KzgKey, Opening, kzg_pairs
from sluice.gateway.blocks.refusal import Refusal, RefusalKind

__all__ = ["WRAPS_KEY_SIZE", "WRAPS_PROOF_SIZE", "PreparedWrapsKey", "check", "prepare"]

WRAPS_KEY_SIZE: Final = 1768
WRAPS_PROOF_SIZE: Final = 704

LIMB_BITS: Final = 55
"""Bits of a coordinate in one public input (tss.md 6.3, step 4)."""
LIMB_COUNT: Final = 5
POINT_LIMB_COUNT: Final = 2 * LIMB_COUNT
INPUT_COUNT: Final = 2 + 2 + 2 + 3 * POINT_LIMB_COUNT + 4
"""pp_hash and i, z0, zi, three points, c0, c1, v0, v1."""
assert INPUT_COUNT == 40
assert (LIMB_COUNT - 1) * LIMB_BITS < 254 <= LIMB_COUNT * LIMB_BITS
assert 32 + 32 + 3 * 64 + 8 + (INPUT_COUNT + 1) * 32 + 2 * 32 + 2 * 64 == WRAPS_KEY_SIZE
assert WRAPS_PROOF_SIZE == 32 + 2 * (8 + 64) + 2 * (8 + 64) + (32 + 64 + 32) + 2 * 64 + 32 + 32 + 64

WEIGHT_BITS: Final = 128
"""Of an equation's random weight: a wrong proof passes with a chance of 2^-128."""


@dataclass(frozen=True, slots=True)
class PreparedWrapsKey:
    """A network's WRAPS key with the constants prepared; threads may share it."""

    pp_hash: int  # hash of the folding scheme's public parameters
    groth16: Groth16Key
    kzg: KzgKey


@dataclass(frozen=True, slots=True)
class _WrapsProof:
    """A decoded proof, with the names of 6.2."""

    i: int
    z0: tuple[int, int]
    zi: tuple[int, int]
    U_W: G1Point
    U_E: G1Point
    u_W: G1Point
    u_E: G1Point
    groth16: Groth16Proof
    v0: int
    w0: G1Point
    v1: int
    w1: G1Point
    cmT: G1Point
    rho: int
    c0: int
    c1: int


def prepare(wraps_vk: bytes) -> PreparedWrapsKey:
    """Read a network's WRAPS key (6.1) and prepare the constants, some 25 ms of work.

    Raises ProofDataError.
    """
    reader = LayoutReader(wraps_vk, "WRAPS verification key")
    pp_hash = reader.scalar(ORDER, "pp_hash")
    groth16 = read_groth16_key(reader, INPUT_COUNT)
    g = read_g1(reader, "g", may_be_infinity=False)
    read_g1(reader, "gamma_g")
    h, bh = (
        prepare_g2(read_g2(reader, name, may_be_infinity=False), reader.named(name)) for name in ("h", "bh")
    )
    reader.finish()
    return PreparedWrapsKey(pp_hash, groth16, KzgKey(g, h, bh))


def check(
    key: PreparedWrapsKey,
    proof: bytes,
    ledger_id: bytes,
    vk_hash: int,
    *,
    random_bits: Callable[[int], int] = secrets.randbits,
) -> Refusal | None:
    """Return why a proof does not show that the network vouches for a hinTS key, or None.

    Args:
        vk_hash: hashArray of the hinTS key (tss.md section 2.5).
        random_bits: returns bits that the sender cannot know.
    """
    try:
        read = _read_proof(proof)
    except ProofDataError as error:
        return Refusal(RefusalKind.CANNOT_PARSE, error.what, error.got, error.expected)
    refusal = _check_claim(read, int.from_bytes(ledger_id, "little"), vk_hash)
    if refusal is not None:
        return refusal
    CW, CE = folded_commitments(read)
    # 6.3, 5 and 6, in one product.
    openings = [Opening(CW, read.c0, read.v0, read.w0), Opening(CE, read.c1, read.v1, read.w1)]
    product = pairing_product(
        [
            *groth16_pairs(key.groth16, read.groth16, public_inputs(key.pp_hash, read, CW, CE)),
            *kzg_pairs(key.kzg, openings, [random_bits(WEIGHT_BITS) for _ in openings]),
        ]
    )
    if product != key.groth16.alpha_beta:
        return _bad("pairing equations of Groth16 and KZG", "sides that differ", "equal sides")
    return None


def folded_commitments(proof: _WrapsProof) -> tuple[G1Point, G1Point]:
    """Return CW = U_W + rho*u_W and CE = U_E + rho*cmT (6.3, 3)."""
    CW = g1_sum_of_multiples([(1, proof.U_W), (proof.rho, proof.u_W)])
    CE = g1_sum_of_multiples([(1, proof.U_E), (proof.rho, proof.cmT)])
    return CW, CE


def public_inputs(pp_hash: int, proof: _WrapsProof, CW: G1Point, CE: G1Point) -> list[int]:
    """Return the 40 public inputs of the Groth16 proof (6.3, 4)."""
    return [
        pp_hash,
        proof.i,
        *proof.z0,
        *proof.zi,
        *limbs(CW),
        *limbs(CE),
        proof.c0,
        proof.c1,
        proof.v0,
        proof.v1,
        *limbs(proof.cmT),
    ]


def limbs(point: G1Point) -> list[int]:
    """Return a point as ten public inputs: x, then y, each in five limbs of 55 bits, lowest first (6.3, 4).

    Infinity is ten zeros, which are no point of the curve.
    """
    if point is None:
        return [0] * POINT_LIMB_COUNT
    mask = (1 << LIMB_BITS) - 1
    return [coordinate >> LIMB_BITS * index & mask for coordinate in point for index in range(LIMB_COUNT)]


def _check_claim(proof: _WrapsProof, ledger_id: int, vk_hash: int) -> Refusal | None:
    """Check z0[0] = ledger id; zi[1] = hashArray(VK); i > 1; u_E = infinity (6.3, 1 and 2)."""
    if proof.z0[0] != ledger_id:
        return _bad("z0[0]", f"{proof.z0[0]:#x}", f"{ledger_id:#x}, the ledger id")
    if proof.zi[1] != vk_hash:
        return _bad("zi[1]", f"{proof.zi[1]:#x}", f"{vk_hash:#x}, the hash of the hinTS verification key")
    if proof.i <= 1:
        return _bad("i", str(proof.i), "more than 1")
    if proof.u_E is not None:
        return _bad("u_E", "a point other than infinity", "infinity")
    return None


def _bad(what: str, got: str, expected: str) -> Refusal:
    return Refusal(RefusalKind.BAD_PROOF, f"WRAPS proof: {what}", got, expected)


def _read_proof(proof: bytes) -> _WrapsProof:
    """Decode a proof (6.2). Raises ProofDataError."""
    reader = LayoutReader(proof, "WRAPS proof")

    def scalar(name: str) -> int:
        return reader.scalar(ORDER, name)

    def point(name: str) -> G1Point:
        return read_g1(reader, name)

    i = scalar("i")
    reader.expect_count(2, "z0")
    z0 = scalar("z0[0]"), scalar("z0[1]")
    reader.expect_count(2, "zi")
    zi = scalar("zi[0]"), scalar("zi[1]")
    reader.expect_count(2, "U")
    U_W, U_E = point("U_W"), point("U_E")
    reader.expect_count(2, "u")
    u_W, u_E = point("u_W"), point("u_E")
    A = point("A")
    B = prepare_g2(read_g2(reader, "B"), reader.named("B"))
    groth16 = Groth16Proof(A, B, point("C"))
    v0, w0 = scalar("v0"), point("w0")
    v1, w1 = scalar("v1"), point("w1")
    cmT, rho, c0, c1 = point("cmT"), scalar("rho"), scalar("c0"), scalar("c1")
    reader.finish()
    return _WrapsProof(i, z0, zi, U_W, U_E, u_W, u_E, groth16, v0, w0, v1, w1, cmT, rho, c0, c1)
