"""Tests of `gateway.blocks.proofs.schnorr`."""

from __future__ import annotations

import pytest

from sluice.gateway.blocks.errors import ProofDataError
from sluice.gateway.blocks.proofs.baby_jubjub import (
    BASE,
    FIELD_PRIME,
    SUBGROUP_ORDER,
    add,
    multiply,
    point_bytes,
    weighted_sum,
)
from sluice.gateway.blocks.proofs.encoding import scalar_bytes
from sluice.gateway.blocks.proofs.poseidon import hash_array
from sluice.gateway.blocks.proofs.schnorr import (
    MEMBERS_MAX,
    SIGNATURE_SIZE,
    AttestedKey,
    RosterMember,
    check,
    knowledge_challenge,
    knows_secret,
    read_attested_key,
    read_signature,
    signed_message,
)
from sluice.gateway.blocks.refusal import Refusal, RefusalKind
from tests.gateway.blocks.proofs import real
from tests.gateway.blocks.proofs.tss_network import TssNetwork, attested_key

MESSAGE = bytes(range(64))
NETWORK = TssNetwork((3, 2, 1, 0))
WHAT = "Schnorr address-book proof"


def refused_weight(got: str, expected: str = "at least half") -> Refusal:
    return Refusal(RefusalKind.BAD_PROOF, f"{WHAT}: weight that signed (tss.md 5.3)", got, expected)


OTHER_HASH = Refusal(
    RefusalKind.BAD_PROOF,
    f"{WHAT}: challenge (tss.md 5.4)",
    "another hash",
    "the challenge of the signature",
)


@real.needs_real_blocks
def test_known_answers_of_a_real_block() -> None:
    ledger, signature = real.ledger("signed-chain"), real.signature("signed-chain", 5)
    vk, proof = signature[:1096], signature[2728:]
    assert hash_array(vk).hex() == "c1e6c6f6ee2cd14cc9a868af18a674d35e1bbe236afe78bd7923b8eae34b5914"
    decoded = read_signature(proof)
    assert decoded.bitmap == bytes((0, 1, 1, 1)) + bytes(124)
    members = [RosterMember(node.key.Y, node.weight) for node in ledger.nodes]
    A = add(member.Y for member, bit in zip(members, decoded.bitmap, strict=False) if bit)
    assert point_bytes(A).hex() == (
        "b65209b7b62adc53f7efa94aba6e6544ac5978719b7d393feea815b7b88f640d"
        "59b4b691b40ca971eaaa7ce86393ad21ea11458e575219c9c000eb873b7b3327"
    )
    message = signed_message(ledger.ledger_id, hash_array(vk))
    assert check(members, proof, message) is None
    assert check(members, proof, message[:-1] + b"\0") == OTHER_HASH
    other_book = [RosterMember(node.key.Y, node.weight) for node in real.ledger("wraps-chain").nodes]
    assert check(other_book, proof, message) == OTHER_HASH
    assert all(knows_secret(node.key) for node in ledger.nodes)


@pytest.mark.parametrize(
    ("weights", "signers", "refusal"),
    [
        ((1, 1, 1, 1), (0, 1), None),  # exactly half
        ((1, 1, 1, 1), (3,), refused_weight("1 of 4")),
        ((1, 1, 1), (0, 1), None),
        ((1, 1, 1), (2,), refused_weight("1 of 3")),
        ((3, 2, 1, 0), (0,), None),
        ((3, 2, 1, 0), (1, 3), refused_weight("2 of 6")),
        ((3, 2, 1, 0), (0, 3), None),  # a member of weight 0 may sign
        ((0, 5), (0,), refused_weight("0 of 5")),
        ((5,), (0,), None),
        ((5,), (), refused_weight("0 of 5")),
        ((0, 0), (0, 1), refused_weight("a book of weight 0", "some weight")),
        ((0, 0), (), refused_weight("a book of weight 0", "some weight")),
        (((1 << 63) - 1, (1 << 63) - 1), (1,), None),
        (((1 << 63) - 1, (1 << 63) - 2), (1,), refused_weight(f"{(1 << 63) - 2} of {(1 << 64) - 3}")),
    ],
)
def test_half_of_the_weight_has_to_sign(
    weights: tuple[int, ...], signers: tuple[int, ...], refusal: Refusal | None
) -> None:
    network = TssNetwork(weights)
    assert check(network.members, network.vouch(MESSAGE, signers), MESSAGE) == refusal


def test_the_largest_book() -> None:
    network = TssNetwork((1,) * 2)
    members = network.members * 64
    assert len(members) == MEMBERS_MAX
    # Each node has 64 entries in the book; the first signs for its own.
    A = multiply(64 * network.schnorr_secrets[0] % SUBGROUP_ORDER, BASE)
    bitmap = bytes((1, 0)) * 64
    assert add(member.Y for member, bit in zip(members, bitmap, strict=True) if bit) == A
    doubled = TssNetwork((1,))
    doubled.schnorr_secrets = [64 * network.schnorr_secrets[0] % SUBGROUP_ORDER]
    proof = doubled.vouch(MESSAGE, [0], bitmap)
    assert check(members, proof, MESSAGE) is None


def test_a_bit_for_no_member_is_refused() -> None:
    for index in (4, 127):
        bitmap = bytearray(128)
        bitmap[0] = bitmap[index] = 1
        assert check(NETWORK.members, NETWORK.vouch(MESSAGE, [0], bytes(bitmap)), MESSAGE) == Refusal(
            RefusalKind.BAD_PROOF,
            f"{WHAT}: bitmap (tss.md 5.3)",
            f"a bit for entry {index}",
            "bits for 4 entries",
        )


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (0, b"\2", f"{WHAT}: bitmap: got a byte 2, expected 0 or 1 in every byte"),
        (127, b"\xff", f"{WHAT}: bitmap: got a byte 255, expected 0 or 1 in every byte"),
        (
            128,
            scalar_bytes(SUBGROUP_ORDER),
            f"{WHAT}: z: got {SUBGROUP_ORDER:#x}, expected less than {SUBGROUP_ORDER:#x}",
        ),
        (160, b"\xff" * 32, f"{WHAT}: c: got 0x{'ff' * 32}, expected less than {SUBGROUP_ORDER:#x}"),
    ],
)
def test_what_is_no_signature_is_refused(at: int, value: bytes, message: str) -> None:
    proof = NETWORK.vouch(MESSAGE, [0])
    with pytest.raises(ProofDataError) as caught:
        check(NETWORK.members, proof[:at] + value + proof[at + len(value) :], MESSAGE)
    assert str(caught.value) == message


@pytest.mark.parametrize("size", [0, 191, 193])
def test_another_size_is_refused(size: int) -> None:
    with pytest.raises(ProofDataError):
        check(NETWORK.members, bytes(size), MESSAGE)
    assert SIGNATURE_SIZE == 192


def test_a_response_has_one_form() -> None:
    """z + l solves the equation too; only z below l is a signature."""
    proof = NETWORK.vouch(MESSAGE, [0])
    z = int.from_bytes(proof[128:160], "little") + SUBGROUP_ORDER
    with pytest.raises(ProofDataError):
        check(NETWORK.members, proof[:128] + scalar_bytes(z) + proof[160:], MESSAGE)


def test_the_signature_is_of_the_message_and_by_the_signers() -> None:
    proof = NETWORK.vouch(MESSAGE, [0, 1])
    assert check(NETWORK.members, proof, MESSAGE) is None
    assert check(NETWORK.members, proof, MESSAGE[::-1]) == OTHER_HASH
    one_more = bytes((1, 1, 1)) + proof[3:]
    assert check(NETWORK.members, one_more, MESSAGE) == OTHER_HASH
    one_less = bytes((1, 0)) + proof[2:]
    assert check(NETWORK.members, one_less, MESSAGE) == OTHER_HASH


def test_a_key_is_taken_with_a_proof_of_its_secret_only() -> None:
    encoded = attested_key(987654321, 13)
    assert knows_secret(read_attested_key(encoded, "key"))
    stolen = attested_key(5, 13)[:64] + encoded[64:]
    assert not knows_secret(read_attested_key(stolen, "key"))
    for at in (128, 160):
        changed = bytearray(encoded)
        changed[at] ^= 1
        assert not knows_secret(read_attested_key(bytes(changed), "key"))


def test_a_commitment_of_another_order_shows_nothing() -> None:
    """Reading R only checks that it is on the curve; the equation of 5.1 checks the subgroup."""
    secret, nonce = 5, 13
    Y = multiply(secret, BASE)
    R = add([multiply(nonce, BASE), (0, FIELD_PRIME - 1)])  # and a point of order 2
    c = knowledge_challenge(Y, R)
    z = (nonce + c * secret) % SUBGROUP_ORDER
    proof = point_bytes(R) + scalar_bytes(c) + scalar_bytes(z)
    assert not knows_secret(read_attested_key(point_bytes(Y) + proof, "key"))
    with pytest.raises(ProofDataError, match=r"^key: Y: got [0-9a-f]{16}…, of another order, expected"):
        read_attested_key(point_bytes(R) + proof, "key")


def test_who_chooses_the_challenge_proves_nothing() -> None:
    """With R = z*G - c*Y the equation of 5.1 holds for any key, so the challenge must be the hash."""
    Y, c, z = multiply(777, BASE), 13, 17
    R = weighted_sum([(z, BASE), (SUBGROUP_ORDER - c, Y)])
    key = AttestedKey(Y, R, c, z)
    assert multiply(z, BASE) == weighted_sum([(1, R), (c, Y)])
    assert not knows_secret(key)


def test_what_is_no_attested_key_is_refused() -> None:
    encoded = attested_key(5, 13)
    cases = {
        encoded[:-1]: "key: z: got 31 bytes at offset 160, expected 32",
        encoded + b"\0": "key: got 1 bytes after offset 192, expected none",
        bytes(64) + encoded[64:]: (
            "key: Y: got 0000000000000000…, which is not on Baby Jubjub, expected a point of it"
        ),
        encoded[:64] + bytes(64) + encoded[128:]: (
            "key: R: got 0000000000000000…, which is not on Baby Jubjub, expected a point of it"
        ),
        encoded[:128] + scalar_bytes(SUBGROUP_ORDER) + encoded[160:]: (
            f"key: c: got {SUBGROUP_ORDER:#x}, expected less than {SUBGROUP_ORDER:#x}"
        ),
    }
    for spoiled, message in cases.items():
        with pytest.raises(ProofDataError) as caught:
            read_attested_key(spoiled, "key")
        assert str(caught.value) == message
