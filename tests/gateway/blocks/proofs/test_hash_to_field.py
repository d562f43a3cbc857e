"""Tests of `gateway.blocks.proofs.hash_to_field`."""

from __future__ import annotations

import pytest

from sluice.gateway.blocks.proofs.hash_to_field import RFC_Z_PAD_SIZE, element_size, expand, hash_to_field

BLS_R = 52435875175126190479447740508185965837690552500527637822603658699938581184513
BLS_P = int(
    "1a0111ea397fe69a4b1ba7b6434bacd764774b84f38512bf6730d2a0f6b0f6241eabfffeb153ffffb9feffffffffaaab",
    16,
)
JUBJUB_L = 2736030358979909402780800718157159386076813972158567259200215660948447373041
BN_Q = 21888242871839275222246405745257275088548364400416034343698204186575808495617

# RFC 9380 appendix K.1: DST, message, size of the output, first 32 bytes of it.
RFC_DST = b"QUUX-V01-CS02-with-expander-SHA256-128"
RFC_9380_K1 = [
    (b"", 0x20, "68a985b87eb6b46952128911f2a4412bbc302a9d759667f87f7a21d803f07235"),
    (b"abc", 0x20, "d8ccab23b5985ccea865c6c97b6e5b8350e794e603b4b97902f53a8a0d605615"),
    (b"", 0x80, "af84c27ccfd45d41914fdff5df25293e221afc53d8ad2ac06d5e3e29485dadbe"),
]


@pytest.mark.parametrize(("message", "size", "start"), RFC_9380_K1)
def test_with_the_padding_of_the_rfc_it_is_the_rfcs_function(message: bytes, size: int, start: str) -> None:
    output = expand(message, RFC_DST, size, RFC_Z_PAD_SIZE)
    assert len(output) == size
    assert output[:32].hex() == start


def test_the_padding_is_one_elements_share() -> None:
    assert [element_size(modulus) for modulus in (BLS_R, JUBJUB_L, BN_Q, BLS_P)] == [48, 48, 48, 64]
    assert element_size(BLS_P) == RFC_Z_PAD_SIZE
    output = expand(b"message", b"DST", 96, 48)
    assert output != expand(b"message", b"DST", 96, RFC_Z_PAD_SIZE)
    first, second = (int.from_bytes(output[start : start + 48], "big") % BN_Q for start in (0, 48))
    assert hash_to_field(b"message", b"DST", BN_Q, 2) == (first, second)


def test_every_input_counts() -> None:
    outputs = {
        expand(message, dst, size, pad)[:32]
        for message in (b"", b"m")
        for dst in (b"", b"D")
        for size in (32, 48)
        for pad in (48, 64)
    }
    assert len(outputs) == 16


def test_one_element_is_not_the_first_of_two() -> None:
    """The size of the output is hashed too."""
    assert hash_to_field(b"m", b"", JUBJUB_L)[0] != hash_to_field(b"m", b"", JUBJUB_L, 2)[0]
    assert all(element < JUBJUB_L for element in hash_to_field(b"m", b"", JUBJUB_L, 5))
