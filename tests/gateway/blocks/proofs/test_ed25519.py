"""Tests of `gateway.blocks.proofs.ed25519`."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sluice.gateway.blocks.proofs.ed25519 import Ed25519Check
from sluice.gateway.blocks.refusal import Refusal, RefusalKind

# RFC 8032 section 7.1, tests 1 to 3: public key, message, signature.
RFC_8032 = [
    (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        (
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555"
            "fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
        ),
    ),
    (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        (
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da0"
            "85ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
        ),
    ),
    (
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        (
            "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac1"
            "8ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"
        ),
    ),
]
KEY = Ed25519PrivateKey.from_private_bytes(b"\x07" * 32)
PUBLIC_KEY = KEY.public_key().public_bytes_raw()
ROOT_HASH = bytes(range(48))
SIGNATURE_HEX = (
    "8407b2d15da1461596a444806bd5d7810028305e8a142f948b9d6656ea47f35e"
    "f62ceb7f983b853c83e69c3fd09a4aa59a6277fbe199d57047cb5cd482f1490c"
)
GROUP_ORDER = (1 << 252) + 27742317777372353535851937790883648493


@pytest.mark.parametrize(("public_key", "message", "signature"), RFC_8032)
def test_known_answers(public_key: str, message: str, signature: str) -> None:
    check = Ed25519Check([bytes.fromhex(public_key)])
    assert check.check(bytes.fromhex(signature), bytes.fromhex(message)) is None
    assert check.check(bytes.fromhex(signature), bytes.fromhex(message) + b"x") is not None


def test_a_known_answer_over_a_root_hash() -> None:
    """The `cryptography` library made it with this key; Ed25519 signatures are deterministic."""
    signature = KEY.sign(ROOT_HASH)
    assert PUBLIC_KEY.hex() == "ea4a6c63e29c520abef5507b132ec5f9954776aebebe7b92421eea691446d22c"
    assert signature.hex() == SIGNATURE_HEX
    assert Ed25519Check([PUBLIC_KEY]).check(signature, ROOT_HASH) is None


def test_any_of_the_keys_will_do() -> None:
    others = [
        Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32).public_key().public_bytes_raw() for n in (1, 2)
    ]
    signature = KEY.sign(ROOT_HASH)
    for keys in ([*others, PUBLIC_KEY], [PUBLIC_KEY, *others], [others[0], PUBLIC_KEY, others[1]]):
        assert Ed25519Check(keys).check(signature, ROOT_HASH) is None
    assert Ed25519Check(others).check(signature, ROOT_HASH) is not None


def test_every_flipped_bit_is_refused() -> None:
    check, signature = Ed25519Check([PUBLIC_KEY]), KEY.sign(ROOT_HASH)
    for bit in range(8 * 64):
        flipped = bytearray(signature)
        flipped[bit // 8] ^= 1 << bit % 8
        assert check.check(bytes(flipped), ROOT_HASH) == Refusal(
            RefusalKind.BAD_PROOF,
            "Ed25519 block proof",
            f"signature {flipped[:8].hex()}…, which no ledger key verifies",
            f"a signature of block root {ROOT_HASH.hex()}",
        )
    for bit in range(8 * 48):
        flipped = bytearray(ROOT_HASH)
        flipped[bit // 8] ^= 1 << bit % 8
        assert check.check(signature, bytes(flipped)) is not None


def test_a_second_form_of_the_same_signature_is_refused() -> None:
    """S + L satisfies the equation; RFC 8032 section 5.1.7 requires S below the group order."""
    signature = KEY.sign(ROOT_HASH)
    scalar = int.from_bytes(signature[32:], "little") + GROUP_ORDER
    assert (
        Ed25519Check([PUBLIC_KEY]).check(signature[:32] + scalar.to_bytes(32, "little"), ROOT_HASH)
        is not None
    )


@pytest.mark.parametrize("size", [0, 1, 63, 65])
def test_another_size_is_refused(size: int) -> None:
    refusal = Ed25519Check([PUBLIC_KEY]).check(bytes(size), ROOT_HASH)
    assert refusal is not None
    assert refusal.kind is RefusalKind.BAD_PROOF


@pytest.mark.parametrize("moved", [1, 47])
def test_what_was_signed_in_another_division_is_refused(moved: int) -> None:
    """The signature field holds a valid signature and the first bytes of its message, or a part of the
    signature.
    """
    signed = KEY.sign(ROOT_HASH) + ROOT_HASH
    check = Ed25519Check([PUBLIC_KEY])
    assert check.check(signed[: 64 + moved], signed[64 + moved :]) is not None
    assert check.check(signed[: 64 - moved], signed[64 - moved :]) is not None


def test_a_key_of_small_order_signs_nothing() -> None:
    """With the neutral element as key and as R, any message satisfies the equation."""
    neutral = (1).to_bytes(32, "little")
    assert Ed25519Check([neutral]).check(neutral + bytes(32), ROOT_HASH) is not None


def test_without_a_key_nothing_can_be_verified() -> None:
    assert Ed25519Check([]).check(KEY.sign(ROOT_HASH), ROOT_HASH) == Refusal(
        RefusalKind.MISSING_VERIFICATION_DATA,
        "Ed25519 block proof",
        "no Ed25519 ledger key",
        "at least one --ledger-key ed25519:HEX",
    )
