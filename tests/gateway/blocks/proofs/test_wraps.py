"""Tests of `blocks.proofs.wraps`: proofs of known trapdoors, each wrong in one place, and a real one."""

from __future__ import annotations

import hashlib

import pytest

from sluice.gateway.blocks.errors import ProofDataError
from sluice.gateway.blocks.items import fields_of, payload_of, proof_of
from sluice.gateway.blocks.proofs import wraps
from sluice.gateway.blocks.proofs.bn254_fields import ORDER
from sluice.gateway.blocks.refusal import Refusal, RefusalKind
from tests.gateway.blocks.proofs import real
from tests.gateway.blocks.proofs.bn254_setup import WrapsSetup, g1, g1_bytes, g2_bytes

# tss.md section 6.1: the built-in key of the reference library.
DEFAULT_KEY_SHA256 = "5a6d78fb8d0d1ef989db3ca9c6aff7e2bd336665af8f5ec904892522ec8f2b3d"

SETUP = WrapsSetup()
KEY = wraps.prepare(SETUP.key_bytes())
LEDGER_ID = bytes(range(1, 33))
VK_HASH = 0x5EED
PARTS = SETUP.proof_parts(int.from_bytes(LEDGER_ID, "little"), VK_HASH)
PROOF = b"".join(PARTS.values())


def check(proof: bytes, ledger_id: bytes = LEDGER_ID, vk_hash: int = VK_HASH) -> Refusal | None:
    return wraps.check(KEY, proof, ledger_id, vk_hash)


def with_part(name: str, encoded: bytes) -> bytes:
    assert len(encoded) == len(PARTS[name])
    return b"".join((PARTS | {name: encoded}).values())


def test_a_good_proof_is_accepted() -> None:
    assert len(PROOF) == wraps.WRAPS_PROOF_SIZE
    assert len(SETUP.key_bytes()) == wraps.WRAPS_KEY_SIZE
    assert check(PROOF) is None


def test_limbs() -> None:
    assert wraps.limbs(None) == [0] * 10
    x, y = 2**253 + 2**55 + 1, 3
    assert wraps.limbs((x, y)) == [1, 1, 0, 0, 1 << 33, 3, 0, 0, 0, 0]


def test_the_random_weights_are_asked_for_once_each() -> None:
    asked: list[int] = []

    def bits(count: int) -> int:
        asked.append(count)
        return (1 << count) - len(asked)

    assert wraps.check(KEY, PROOF, LEDGER_ID, VK_HASH, random_bits=bits) is None
    assert asked == [128, 128]


def test_a_proof_for_another_network_or_key_is_refused() -> None:
    other = bytes([9]) + LEDGER_ID[1:]
    assert check(PROOF, ledger_id=other) == Refusal(
        RefusalKind.BAD_PROOF,
        "WRAPS proof: z0[0]",
        f"{int.from_bytes(LEDGER_ID, 'little'):#x}",
        f"{int.from_bytes(other, 'little'):#x}, the ledger id",
    )
    assert check(PROOF, vk_hash=VK_HASH + 1) == Refusal(
        RefusalKind.BAD_PROOF,
        "WRAPS proof: zi[1]",
        "0x5eed",
        "0x5eee, the hash of the hinTS verification key",
    )
    assert check(PROOF, ledger_id=b"\xff" * 32) is not None  # at least q: no proof can speak of it


def test_the_first_steps_are_refused() -> None:
    for i in (0, 1):
        parts = SETUP.proof_parts(int.from_bytes(LEDGER_ID, "little"), VK_HASH, i=i)
        refusal = check(b"".join(parts.values()))
        assert refusal == Refusal(RefusalKind.BAD_PROOF, "WRAPS proof: i", str(i), "more than 1")


def test_a_folded_instance_must_not_be_relaxed() -> None:
    parts = SETUP.proof_parts(int.from_bytes(LEDGER_ID, "little"), VK_HASH, u_e=g1(3))
    assert check(b"".join(parts.values())) == Refusal(
        RefusalKind.BAD_PROOF, "WRAPS proof: u_E", "a point other than infinity", "infinity"
    )


@pytest.mark.parametrize("name", [name for name in PARTS if "count" not in name and name != "u_E"])
def test_no_part_can_be_another(name: str) -> None:
    """Each part is replaced by another well-formed one."""
    if name == "B":
        encoded = g2_bytes(None)
    elif len(PARTS[name]) == 32 and (name[0] in "UuACw" or name == "cmT"):
        encoded = g1_bytes(g1(77))
    else:
        encoded = (9).to_bytes(32, "little")
    refusal = check(with_part(name, encoded))
    assert refusal is not None
    assert refusal.kind is RefusalKind.BAD_PROOF


@pytest.mark.parametrize("name", ["z0", "zi", "U", "u"])
@pytest.mark.parametrize("count", [0, 1, 3, 2**63])
def test_counts_are_fixed(name: str, count: int) -> None:
    refusal = check(with_part(f"{name} count", count.to_bytes(8, "little")))
    assert refusal == Refusal(RefusalKind.CANNOT_PARSE, f"WRAPS proof: {name}", f"{count} elements", "2")


def test_infinity_has_one_encoding() -> None:
    assert PARTS["u_E"] == bytes(31) + b"\x40"
    for bit in (0, 8, 253):
        encoded = ((1 << 254) | (1 << bit)).to_bytes(32, "little")
        refusal = check(with_part("u_E", encoded))
        assert refusal == Refusal(
            RefusalKind.CANNOT_PARSE,
            "WRAPS proof: u_E",
            "infinity with an x that is not 0",
            "nothing beside the flag",
        )


def test_scalars_have_one_encoding() -> None:
    rho = int.from_bytes(PARTS["rho"], "little")
    refusal = check(with_part("rho", (rho + ORDER).to_bytes(32, "little")))
    assert refusal is not None
    assert (refusal.kind, refusal.what) == (RefusalKind.CANNOT_PARSE, "WRAPS proof: rho")


@pytest.mark.parametrize("size", [0, 31, 703, 705])
def test_other_sizes_are_refused(size: int) -> None:
    refusal = check((PROOF + b"\0")[:size])
    assert refusal is not None
    assert refusal.kind is RefusalKind.CANNOT_PARSE


def test_malformed_keys_are_refused() -> None:
    good = SETUP.key_bytes()
    with pytest.raises(ProofDataError, match=r"^WRAPS verification key: bh: got 63 bytes at offset 1704"):
        wraps.prepare(good[:-1])
    with pytest.raises(ProofDataError, match=r"^WRAPS verification key: got 1 bytes after offset 1768"):
        wraps.prepare(good + b"\0")
    for part, encoded in (("g", g1_bytes(None)), ("h", g2_bytes(None)), ("bh", g2_bytes(None))):
        with pytest.raises(ProofDataError, match=f"WRAPS verification key: {part}: got infinity"):
            wraps.prepare(SETUP.key_bytes(**{part: encoded}))
    with pytest.raises(ProofDataError, match="WRAPS verification key: pp_hash: got"):
        wraps.prepare(SETUP.key_bytes(pp_hash=b"\xff" * 32))


# --- a real network -----------------------------------------------------------------------------------------


def publication() -> tuple[bytes, bytes]:
    """Return (ledger id, WRAPS key) of the network, tss.md section 1.1."""
    for item in real.block("wraps-chain", 0).items:
        if item[0] == 0x22:
            body = next((field.value for field in fields_of(payload_of(item)) if field.number == 1), b"")
            assert isinstance(body, bytes)
            for field in fields_of(body):
                if field.number == 77:
                    assert isinstance(field.value, bytes)
                    values = {part.number: part.value for part in fields_of(field.value)}
                    ledger_id, key = values[1], values[2]
                    assert isinstance(ledger_id, bytes)
                    assert isinstance(key, bytes)
                    return ledger_id, key
    raise AssertionError("no publication")


@real.needs_real_blocks
def test_a_proof_of_a_real_network() -> None:
    ledger_id, serialized_key = publication()
    assert hashlib.sha256(serialized_key).hexdigest() == DEFAULT_KEY_SHA256
    key = wraps.prepare(serialized_key)
    proof = proof_of(real.block("wraps-chain", 391).items[-1]).signed_block_proof.block_signature[2728:]
    # zi[1], which for an accepted block is hashArray of the hinTS key in its signature.
    vk_hash = int.from_bytes(proof[144:176], "little")
    assert vk_hash == 0x15FCEACA7E2900A7B4E01A2961679A36BC39F4F8B426AFC946A878F5A5DA6551
    assert wraps.check(key, proof, ledger_id, vk_hash) is None
    refusal = check(proof, ledger_id, vk_hash)  # with the key of another network
    assert refusal is not None
    assert refusal.what == "WRAPS proof: pairing equations of Groth16 and KZG"
    for offset in range(0, len(proof), 29):
        altered = bytearray(proof)
        altered[offset] ^= 1
        assert wraps.check(key, bytes(altered), ledger_id, vk_hash) is not None, offset
