"""Tests of `gateway.blocks.proofs.bls12_381`."""

from __future__ import annotations

import pytest
from py_arkworks_bls12381 import Scalar

from sluice.gateway.blocks.errors import ProofDataError
from sluice.gateway.blocks.proofs.bls12_381 import (
    FIELD_PRIME,
    G1_SIZE,
    G2_SIZE,
    GROUP_ORDER,
    G1Point,
    G2Point,
    hash_to_g2,
    pairing_product_is_one,
    read_g1,
    read_g2,
    weighted_sum,
    weighted_sum_g2,
)
from tests.gateway.blocks.proofs.encoders import g1_bytes, g2_bytes

# The generators, draft-irtf-cfrg-pairing-friendly-curves section 4.2.1: x and y; x.c1, x.c0, y.c1, y.c0.
G1_GENERATOR = bytes.fromhex(
    "17f1d3a73197d7942695638c4fa9ac0fc3688c4f9774b905a14e3a3f171bac586c55e83ff97a1aeffb3af00adb22c6bb"
    "08b3f481e3aaa0f1a09e30ed741d8ae4fcf5e095d5d00af600db18cb2c04b3edd03cc744a2888ae40caa232946c5e7e1"
)
G2_GENERATOR = bytes.fromhex(
    "13e02b6052719f607dacd3a088274f65596bd0d09920b61ab5da61bbdc7f5049334cf11213945d57e5ac7d055d042b7e"
    "024aa2b2f08f0a91260805272dc51051c6e47ad4fa403b02b4510b647ae3d1770bac0326a805bbefd48056c8c121bdb8"
    "0606c4a02ea734cc32acd2b02bc28b99cb3e287e85a763af267492ab572e99ab3f370d275cec1da1aaa9075ff05f79be"
    "0ce5d527727d6e118cc9cdc6da2e351aadfd9baa8cbdd3a76d429a695160d12c923ac9cc3baca289e193548608b82801"
)
# RFC 9380 appendix J.10.1 has another DST; this is the known answer of tss.md section 8.
ROOT_HASH = bytes.fromhex(
    "1c417b370965dd85e274b568694d0a5b3325b39f619a840df0161339864a30e389ba3aec4c7763236d2f4c505d031921"
)
HASHED_ROOT = (
    "ab341ea2af7a4e56eaa8574705ae93b90a7eea02cc41b5cb60101f58c0d0f44289843881dcb6dc4e88ae54e754c4b11c"
    "0079961fbae26d77e753ac3057ce9763d67ea3432e62de7f65f9ed48e2f111ad5e485c5212e5711bb7a2496e8c76cb50"
)


def test_the_generators_read_back() -> None:
    assert read_g1(G1_GENERATOR, "g") == G1Point()
    assert g1_bytes(G1Point()) == G1_GENERATOR
    assert read_g2(G2_GENERATOR, "h") == G2Point()
    assert g2_bytes(G2Point()) == G2_GENERATOR


def test_infinity_is_a_flag_and_zeros() -> None:
    infinity_1, infinity_2 = b"\x40" + bytes(G1_SIZE - 1), b"\x40" + bytes(G2_SIZE - 1)
    assert read_g1(infinity_1, "p") == G1Point.identity()
    assert g1_bytes(G1Point.identity()) == infinity_1
    assert read_g2(infinity_2, "p") == G2Point.identity()
    assert g2_bytes(G2Point.identity()) == infinity_2


def test_the_prime_is_the_known_one() -> None:
    known = "1a0111ea397fe69a4b1ba7b6434bacd764774b84f38512bf6730d2a0f6b0f6241eabfffeb153ffffb9feffffffffaaab"
    assert f"{FIELD_PRIME:x}" == known


def off_curve(encoded: bytes) -> bytes:
    return encoded[:-1] + bytes((encoded[-1] ^ 1,))


def flagged(encoded: bytes, flag: int) -> bytes:
    return bytes((encoded[0] | flag,)) + encoded[1:]


def outside_subgroup() -> bytes:
    """A point of the curve y^2 = x^3 + 4 whose order is not r, as for most points."""
    for x in range(1, 50):
        square = (x**3 + 4) % FIELD_PRIME
        y = pow(square, (FIELD_PRIME + 1) // 4, FIELD_PRIME)
        if y * y % FIELD_PRIME == square:
            encoded = x.to_bytes(48, "big") + y.to_bytes(48, "big")
            assert not G1Point.from_xy_bytes_unchecked_be(encoded).is_in_subgroup()
            return encoded
    raise AssertionError("no such point")


PRIME_AS_ZERO = FIELD_PRIME.to_bytes(48, "big")


@pytest.mark.parametrize(
    ("encoded", "message"),
    [
        (b"", "p: got 0 bytes, expected 96"),
        (G1_GENERATOR[:-1], "p: got 95 bytes, expected 96"),
        (G1_GENERATOR + b"\0", "p: got 97 bytes, expected 96"),
        (bytes(96), "p: got zeros alone, expected a point; infinity is 0x40 and zeros"),
        (
            b"\x40" + bytes(94) + b"\1",
            "p: got a point at infinity with coordinates, expected zeros after 0x40",
        ),
        (flagged(G1_GENERATOR, 0x80), "p: got flags 0x80, expected 0, or 0x40 for infinity"),
        (b"\xc0" + bytes(95), "p: got flags 0xc0, expected 0, or 0x40 for infinity"),
        (flagged(G1_GENERATOR, 0x20), "p: got flags 0x20, expected 0, or 0x40 for infinity"),
        (
            PRIME_AS_ZERO + G1_GENERATOR[48:],
            f"p: got coordinate {PRIME_AS_ZERO.hex()}, expected less than the field's prime",
        ),
        (
            G1_GENERATOR[:48] + b"\xff" * 48,
            f"p: got coordinate {'ff' * 48}, expected less than the field's prime",
        ),
        (off_curve(G1_GENERATOR), "p: got 17f1d3a73197d794…, which is not in G1, expected a point of G1"),
        (outside_subgroup(), "p: got 0000000000000000…, which is not in G1, expected a point of G1"),
    ],
)
def test_what_is_no_point_of_g1_is_refused(encoded: bytes, message: str) -> None:
    with pytest.raises(ProofDataError) as caught:
        read_g1(encoded, "p")
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("encoded", "message"),
    [
        (G2_GENERATOR[:96], "p: got 96 bytes, expected 192"),
        (bytes(192), "p: got zeros alone, expected a point; infinity is 0x40 and zeros"),
        (flagged(G2_GENERATOR, 0x80), "p: got flags 0x80, expected 0, or 0x40 for infinity"),
        (
            G2_GENERATOR[:144] + PRIME_AS_ZERO,
            f"p: got coordinate {PRIME_AS_ZERO.hex()}, expected less than the field's prime",
        ),
        (off_curve(G2_GENERATOR), "p: got 13e02b6052719f60…, which is not in G2, expected a point of G2"),
        (
            G2_GENERATOR[48:96] + G2_GENERATOR[:48] + G2_GENERATOR[144:] + G2_GENERATOR[96:144],
            "p: got 024aa2b2f08f0a91…, which is not in G2, expected a point of G2",
        ),
    ],
)
def test_what_is_no_point_of_g2_is_refused(encoded: bytes, message: str) -> None:
    with pytest.raises(ProofDataError) as caught:
        read_g2(encoded, "p")
    assert str(caught.value) == message


def test_a_message_is_hashed_to_g2() -> None:
    assert hash_to_g2(ROOT_HASH).to_compressed_bytes().hex() == HASHED_ROOT


def test_sums_and_products() -> None:
    g, h = G1Point(), G2Point()
    assert weighted_sum([g, g], [5, -3]) == g + g
    assert weighted_sum([g], [GROUP_ORDER]) == G1Point.identity() == weighted_sum([g], [0])
    assert [weighted_sum([g], [scalar]) for scalar in (1, -1, 7, -2)] == [g, -g, g * Scalar(7), -(g + g)]
    assert weighted_sum([], []) == G1Point.identity()
    assert weighted_sum_g2([h, h, -h], [5, -3, 1 << 128]) == h * Scalar(2) - h * Scalar(1 << 128)
    assert weighted_sum_g2([h], [GROUP_ORDER]) == G2Point.identity() == weighted_sum_g2([], [])
    assert pairing_product_is_one([g * Scalar(6), -g], [h, h * Scalar(6)])
    assert not pairing_product_is_one([g * Scalar(6), -g], [h, h * Scalar(5)])
