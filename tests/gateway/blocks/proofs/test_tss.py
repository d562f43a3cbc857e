"""Tests of `blocks.proofs.tss`: both parts of a signature, the caches, and every altered bit."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest

from sluice.gateway.blocks.errors import ProofDataError
from sluice.gateway.blocks.proofs import hints, schnorr, tss
from sluice.gateway.blocks.proofs.bls12_381 import G2Point, read_g2
from sluice.gateway.blocks.proofs.ledger_data import read_publication, refusal_of
from sluice.gateway.blocks.proofs.poseidon import hash_array, hash_array_number
from sluice.gateway.blocks.proofs.tss import TssCheck
from sluice.gateway.blocks.refusal import Refusal, RefusalKind
from tests.gateway.blocks.proofs import real
from tests.gateway.blocks.proofs.bn254_setup import WrapsSetup
from tests.gateway.blocks.proofs.encoders import g2_bytes
from tests.gateway.blocks.proofs.tss_network import TssNetwork

ROOT = bytes(range(48))
NETWORK = TssNetwork((1, 1, 1, 1))
LONG = os.environ.get("SLUICE_LONG") == "1"
REAL_BLOCKS = [
    ("signed-chain", 0),
    ("signed-chain", 5),
    ("layout-8-chain", 0),
    ("layout-8-chain", 4),
    ("wraps-chain", 0),
    ("wraps-chain", 391),
]


@real.needs_real_blocks
@pytest.mark.parametrize(("chain", "number"), REAL_BLOCKS)
def test_real_signatures_hold(chain: str, number: int) -> None:
    check = TssCheck(real.ledger(chain))
    signature, root_hash = real.signature(chain, number), real.summary(chain, number).root_hash
    assert check.check(signature, root_hash) is None
    assert check.check(signature, root_hash) is None  # the key is known now


@real.needs_real_blocks
@pytest.mark.parametrize(("chain", "number"), REAL_BLOCKS)
def test_another_networks_ledger_refuses(chain: str, number: int) -> None:
    signature, root_hash = real.signature(chain, number), real.summary(chain, number).root_hash
    for other in {chain for chain, _ in REAL_BLOCKS} - {chain}:
        refusal = TssCheck(real.ledger(other)).check(signature, root_hash)
        assert refusal is not None
        assert refusal.kind is RefusalKind.BAD_PROOF
        if len(signature) == 2920:
            assert refusal.what == "Schnorr address-book proof: challenge (tss.md 5.4)"
        else:
            assert refusal.what == "WRAPS proof: z0[0]"


@real.needs_real_blocks
def test_a_wraps_proof_needs_a_wraps_key() -> None:
    published = real.ledger("wraps-chain")
    signature, root_hash = real.signature("wraps-chain", 391), real.summary("wraps-chain", 391).root_hash
    assert TssCheck(replace(published, wraps_vk=b"")).check(signature, root_hash) == Refusal(
        RefusalKind.MISSING_VERIFICATION_DATA,
        "TSS block proof: WRAPS address-book proof",
        "no WRAPS key that is believed",
        "one, of tss:FILE or of a block 0 that has a Schnorr address-book proof",
    )
    spoiled = TssCheck(replace(published, wraps_vk=b"\xff" * 1768)).check(signature, root_hash)
    assert spoiled is not None
    assert spoiled.what == "TSS block proof: WRAPS verification key: pp_hash"


def test_both_proofs_of_one_key_hold_side_by_side() -> None:
    """A network that changes from Schnorr to WRAPS proofs uses the same ledger data, in any order."""
    setup = WrapsSetup()
    network = TssNetwork((1, 1, 1), wraps_vk=setup.key_bytes())
    signature = network.sign(ROOT)
    ledger_number = int.from_bytes(network.ledger.ledger_id, "little")

    def with_wraps(ledger_number: int, vk_hash: int) -> bytes:
        return signature[:2728] + b"".join(setup.proof_parts(ledger_number, vk_hash).values())

    vk_hash = hash_array_number(network.vk)
    wraps = with_wraps(ledger_number, vk_hash)
    assert len(wraps) == 3432
    for order in ((signature, wraps, signature), (wraps, signature, wraps)):
        check = TssCheck(network.ledger)
        assert [check.check(each, ROOT) for each in order] == [None] * 3
        assert check.check(wraps, bytes(48)) is not None
    of_others = {
        "WRAPS proof: z0[0]": with_wraps(ledger_number + 1, vk_hash),
        "WRAPS proof: zi[1]": with_wraps(ledger_number, vk_hash + 1),
        "WRAPS proof: pairing equations of Groth16 and KZG": wraps[:-32] + bytes(32),
    }
    for what, other in of_others.items():
        refusal = check.check(other, ROOT)
        assert refusal is not None
        assert refusal.what == what
    stranger = TssCheck(TssNetwork((1, 1, 1), wraps_vk=WrapsSetup(seed=8).key_bytes()).ledger)
    refusal = stranger.check(wraps, ROOT)
    assert refusal is not None
    assert refusal.what == "WRAPS proof: pairing equations of Groth16 and KZG"


@real.needs_real_blocks
def test_the_signature_of_another_block_is_refused() -> None:
    check = TssCheck(real.ledger("signed-chain"))
    refusal = check.check(real.signature("signed-chain", 5), real.summary("signed-chain", 4).root_hash)
    assert refusal is not None
    assert refusal.what == "hinTS signature: pairings 1: e(apk, H(m)) = e(g0, asig) (tss.md 4.5)"


@pytest.mark.parametrize("size", [0, 64, 2919, 2921, 3431, 3433, 5000])
def test_another_size_is_refused(size: int) -> None:
    assert TssCheck(NETWORK.ledger).check(bytes(size), ROOT) == Refusal(
        RefusalKind.CANNOT_PARSE, "TSS block proof", f"{size} bytes", "2920 or 3432"
    )


@pytest.mark.parametrize(
    ("signers", "what"),
    [
        ((0, 1, 2, 3), None),
        ((1, 2, 3), None),
        ((0, 1), "hinTS signature: weight that signed (tss.md 4.1)"),
        ((2,), "Schnorr address-book proof: weight that signed (tss.md 5.3)"),
        ((), "Schnorr address-book proof: weight that signed (tss.md 5.3)"),
    ],
)
def test_both_thresholds_have_to_be_reached(signers: tuple[int, ...], what: str | None) -> None:
    refusal = TssCheck(NETWORK.ledger).check(NETWORK.sign(ROOT, signers), ROOT)
    assert (refusal and refusal.what) == what


def test_the_ledger_has_to_vouch_for_the_key() -> None:
    """Anyone can make a hinTS key and sign with it; the ledger's nodes did not."""
    stranger = TssNetwork((1, 1, 1, 1), seed=2)
    vouched, own = NETWORK.sign(ROOT), stranger.sign(ROOT)
    check = TssCheck(NETWORK.ledger)
    assert check.check(vouched, ROOT) is None
    refusal = check.check(own[:2728] + vouched[2728:], ROOT)
    assert refusal is not None
    assert refusal.what == "Schnorr address-book proof: challenge (tss.md 5.4)"
    assert check.check(own, ROOT) is not None
    assert TssCheck(stranger.ledger).check(own, ROOT) is None


def test_a_malformed_part_is_named() -> None:
    signature = NETWORK.sign(ROOT)
    cases = {
        2728: "TSS block proof: Schnorr address-book proof: bitmap",
        1096: "TSS block proof: hinTS signature: apk",
    }
    for at, what in cases.items():
        spoiled = signature[:at] + b"\xff" + signature[at + 1 :]
        refusal = TssCheck(NETWORK.ledger).check(spoiled, ROOT)
        assert refusal is not None
        assert (refusal.kind, refusal.what) == (RefusalKind.CANNOT_PARSE, what)


# --- what is remembered -------------------------------------------------------------------------------------


def test_a_key_is_vouched_for_once() -> None:
    check = TssCheck(NETWORK.ledger)
    for root_hash in (ROOT, ROOT[::-1], ROOT):
        assert check.check(NETWORK.sign(root_hash), root_hash) is None
    assert check._vouched_key.cache_info().misses == 1
    assert check.check(NETWORK.sign(ROOT, [1, 2, 3]), ROOT) is None  # another proof for the same key
    assert check._vouched_key.cache_info().misses == 2


def test_what_does_not_hold_is_not_remembered_and_pushes_nothing_out() -> None:
    check = TssCheck(NETWORK.ledger)
    signature = NETWORK.sign(ROOT)
    assert check.check(signature, ROOT) is None
    for index in range(tss.VOUCHED_KEYS_MAX + 1):
        false = signature[:2728] + bytes((1, 1)) + bytes(126) + index.to_bytes(64, "little")
        assert check.check(false, ROOT) is not None
    assert check._vouched_key.cache_info().currsize == 1


def test_the_memory_is_bounded() -> None:
    check = TssCheck(NETWORK.ledger)
    info = check._vouched_key.cache_info()
    assert info.maxsize == tss.VOUCHED_KEYS_MAX


def test_a_statement_is_checked_once_and_a_signature_each_time() -> None:
    check = TssCheck(NETWORK.ledger)
    assert check.check(NETWORK.sign(ROOT, [0, 1, 2]), ROOT) is None
    assert len(check._held) == 1
    other_root = ROOT[::-1]
    assert check.check(NETWORK.sign(other_root, [0, 1, 2]), other_root) is None
    assert len(check._held) == 1
    wrong_root = check.check(NETWORK.sign(ROOT, [0, 1, 2]), other_root)
    assert wrong_root is not None
    assert wrong_root.what == "hinTS signature: pairings 1: e(apk, H(m)) = e(g0, asig) (tss.md 4.5)"
    assert wrong_root == TssCheck(NETWORK.ledger).check(NETWORK.sign(ROOT, [0, 1, 2]), other_root)
    at = 1096 + 128
    signature = NETWORK.sign(ROOT, [0, 1, 2])
    malformed = check.check(signature[:at] + bytes(192) + signature[at + 192 :], ROOT)
    assert malformed is not None
    assert (malformed.kind, malformed.what) == (
        RefusalKind.CANNOT_PARSE,
        "TSS block proof: hinTS signature: asig",
    )
    assert check.check(NETWORK.sign(ROOT, [1, 2, 3]), ROOT) is None
    assert check.check(NETWORK.sign(ROOT, [1, 2]), ROOT) is not None
    assert len(check._held) == 2


def test_a_statement_holds_under_its_own_key_alone() -> None:
    """The same nodes vouch for two keys; the statement of one does not serve the other."""
    check = TssCheck(NETWORK.ledger)
    signature = NETWORK.sign(ROOT)
    twin = TssNetwork((1, 1, 1, 1), seed=2)
    message = schnorr.signed_message(NETWORK.ledger.ledger_id, hash_array(twin.vk))
    vouched = twin.vk + signature[1096:2728] + NETWORK.vouch(message, range(4))
    assert check.check(signature, ROOT) is None
    refusal = check.check(vouched, ROOT)
    assert refusal is not None
    assert refusal.what.startswith("hinTS signature: ")


def test_the_oldest_statements_are_forgotten() -> None:
    check = TssCheck(NETWORK.ledger, statements_max=2)
    for signers in ([0, 1, 2], [1, 2, 3], [0, 2, 3], [0, 1, 2]):
        assert check.check(NETWORK.sign(ROOT, signers), ROOT) is None
        assert len(check._held) <= 2


# --- several signatures at once -----------------------------------------------------------------------------

SIGNERS = ([0, 1, 2], [1, 2, 3], [0, 2, 3], [0, 1, 2, 3])
ROOTS = [bytes((index,)) * 48 for index in range(4)]


def claims_of(network: TssNetwork = NETWORK) -> list[tuple[bytes, bytes]]:
    return [
        (network.sign(root, signers, range(4)), root) for root, signers in zip(ROOTS, SIGNERS, strict=True)
    ]


def test_signatures_that_hold_together_are_not_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    check, claims = TssCheck(NETWORK.ledger), claims_of()
    check.check_ahead(claims)
    assert len(check._held) == 4
    monkeypatch.setattr(hints, "pairing_product_is_one", None)  # nothing more is computed
    assert [check.check(*claim) for claim in claims] == [None] * 4


def test_only_the_very_pairs_that_hold_are_known() -> None:
    check, claims = TssCheck(NETWORK.ledger), claims_of()
    check.check_ahead(claims)
    for (signature, _), root in zip(claims, [*ROOTS[1:], ROOTS[0]], strict=True):
        swapped = check.check(signature, root)
        assert swapped is not None
        assert swapped.what == "hinTS signature: pairings 1: e(apk, H(m)) = e(g0, asig) (tss.md 4.5)"
    check.check_ahead([])
    assert check._ahead == set()


def test_statements_that_are_known_join_those_that_are_not() -> None:
    check, claims = TssCheck(NETWORK.ledger), claims_of()
    assert check.check(*claims[1]) is None
    assert len(check._held) == 1
    check.check_ahead(claims)
    assert check._ahead == set(claims)
    assert len(check._held) == 4


@pytest.mark.parametrize("part", [2, 1096 + 130, 1096 + 400, 1096 + 1400, 2728, 2730, 2919])
@pytest.mark.parametrize("place", [0, 3])
def test_one_that_does_not_hold_is_told_from_the_others(part: int, place: int) -> None:
    check, claims = TssCheck(NETWORK.ledger), claims_of()
    signature, root = claims[place]
    claims[place] = (flipped(signature, 8 * part), root)
    check.check_ahead(claims)
    found = [check.check(*claim) for claim in claims]
    assert [refusal is None for refusal in found] == [index != place for index in range(4)]
    assert found[place] == TssCheck(NETWORK.ledger).check(*claims[place])


@pytest.mark.parametrize("count", [2, 3, 4])  # from three on, asig are summed in G2
def test_opposite_failings_do_not_make_up_for_each_other(count: int) -> None:
    """Two asig are wrong by opposite amounts: without random factors the product is 1."""
    first, second, *others = claims_of()[:count]
    claims = [
        (with_asig_off(first[0], G2Point()), first[1]),
        (with_asig_off(second[0], -G2Point()), second[1]),
        *others,
    ]
    careless = TssCheck(NETWORK.ledger, lambda count: 1)
    careless.check_ahead(claims)
    assert careless._ahead == set(claims)
    check = TssCheck(NETWORK.ledger)
    check.check_ahead(claims)
    assert check._ahead == set()
    assert [check.check(*claim) is None for claim in claims] == [False, False, *(True for _ in others)]


def with_asig_off(signature: bytes, off: G2Point) -> bytes:
    """Return the signature with `off` added to its asig."""
    at = slice(1096 + 128, 1096 + 320)
    altered = bytearray(signature)
    altered[at] = g2_bytes(read_g2(signature[at], "asig") + off)
    return bytes(altered)


@pytest.mark.parametrize("count", [2, 3, 4])  # from three on, H(m) of the same signers are summed in G2
def test_signatures_of_one_anothers_roots_do_not_make_up_for_each_other(count: int) -> None:
    """The same nodes signed two roots, and each signature has the other's root: the sums are the same."""
    claims = [(NETWORK.sign(root, (0, 1, 2), range(4)), root) for root in ROOTS[:count]]
    knowing = TssCheck(NETWORK.ledger)
    assert [knowing.check(*claim) for claim in claims] == [None] * count
    knowing.check_ahead(claims)
    assert knowing._ahead == set(claims)

    (first, first_root), (second, second_root), *others = claims
    claims = [(first, second_root), (second, first_root), *others]
    careless = TssCheck(NETWORK.ledger, lambda count: 1)
    careless.check_ahead(claims)
    assert careless._ahead == set(claims)
    knowing.check_ahead(claims)
    assert knowing._ahead == set()
    assert [knowing.check(*claim) is None for claim in claims] == [False, False, *(True for _ in others)]


def test_after_one_that_does_not_hold_the_next_are_checked_alone() -> None:
    check, claims = TssCheck(NETWORK.ledger), claims_of()
    bad = [(claims[0][0], ROOTS[1]), *claims[1:]]
    check.check_ahead(bad)
    for _ in range(tss.ALONE_AFTER_BAD // 4):
        check.check_ahead(claims)
        assert check._ahead == set()
    check.check_ahead(claims)
    assert check._ahead == set(claims)


def test_one_signature_alone_is_left_to_the_check() -> None:
    check, claims = TssCheck(NETWORK.ledger), claims_of()
    check.check_ahead([claims[0], (b"short", ROOTS[1])])
    assert check._ahead == set()
    assert check._held == {}


# --- what two keys may share --------------------------------------------------------------------------------


def test_a_key_with_the_same_hash_is_another_key() -> None:
    """The total weight w may be written as w + q. hashArray, and so the address book's proof, is the same for
    both keys, but the cache of one does not serve the other (tss.md section 9, pitfall 7).
    """
    q = 21888242871839275222246405745257275088548364400416034343698204186575808495617
    signature = NETWORK.sign(ROOT)
    check = TssCheck(NETWORK.ledger)
    assert check.check(signature, ROOT) is None
    # Bytes 32 to 63 are one piece of hashArray: the end of total_weight and the start of g0.
    piece = int.from_bytes(signature[32:64], "little")
    assert piece + q < 1 << 256
    twin = signature[:32] + (piece + q).to_bytes(32, "little") + signature[64:]
    assert hash_array(twin[:1096]) == hash_array(signature[:1096])
    refusal = check.check(twin, ROOT)
    assert refusal is not None
    assert refusal.kind is RefusalKind.CANNOT_PARSE


# --- tampering ----------------------------------------------------------------------------------------------


def flipped(signature: bytes, bit: int) -> bytes:
    changed = bytearray(signature)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def sampled_bits(size: int, seed: int) -> list[int]:
    """Some bits of every part; all of them in the long run."""
    if LONG:
        return list(range(8 * size))
    rng = random.Random(seed)
    if size == 3432:  # the rest of it is sampled with the other signatures, and a proof costs some 40 ms
        return [8 * 2728, *rng.sample(range(8 * 2728, 8 * size), 15)]
    edges = [
        at
        for start in (0, 8, 40, 1096, 1192, 1224, 2472, 2728, 2856, 2888)
        for at in (8 * start, 8 * start - 1)
    ]
    return sorted({at % (8 * size) for at in edges} | set(rng.sample(range(8 * size), 60)))


@real.needs_real_blocks
@pytest.mark.parametrize(
    ("chain", "number"), [("signed-chain", 5), ("layout-8-chain", 4), ("wraps-chain", 391)]
)
@pytest.mark.timeout(3600)
def test_no_altered_bit_is_accepted(chain: str, number: int) -> None:
    check = TssCheck(real.ledger(chain))
    signature, root_hash = real.signature(chain, number), real.summary(chain, number).root_hash
    assert check.check(signature, root_hash) is None
    accepted = [
        bit
        for bit in sampled_bits(len(signature), 5)
        if check.check(flipped(signature, bit), root_hash) is None
    ]
    assert accepted == []


@real.needs_real_blocks
@pytest.mark.timeout(3600)
def test_no_altered_bit_of_the_root_hash_is_accepted() -> None:
    check = TssCheck(real.ledger("signed-chain"))
    signature, root_hash = real.signature("signed-chain", 5), real.summary("signed-chain", 5).root_hash
    for bit in range(0, 8 * 48, 1 if LONG else 17):
        refusal = check.check(signature, flipped(root_hash, bit))
        assert refusal is not None
        assert refusal.what == "hinTS signature: pairings 1: e(apk, H(m)) = e(g0, asig) (tss.md 4.5)"


@real.needs_real_blocks
@pytest.mark.timeout(3600)
def test_no_altered_bit_of_a_publication_is_believed() -> None:
    """The bits of ledger id and address book. The WRAPS key is not covered: two bits of its tag make it a
    field of a later version, which leaves a publication without a WRAPS key.
    """
    publication, ledger = real.publication("signed-chain"), real.ledger("signed-chain")
    wraps_at = publication.index(ledger.wraps_vk)
    wraps_tag_bits = {8 * (wraps_at - 3) + 5, 8 * (wraps_at - 3) + 6}
    outside = [
        bit
        for bit in range(8 * len(publication))
        if not wraps_at <= bit // 8 < wraps_at + len(ledger.wraps_vk)
    ]
    believed = []
    for bit in outside if LONG else {*wraps_tag_bits, *random.Random(3).sample(outside, 20)}:
        try:
            altered = read_publication(flipped(publication, bit))
        except ProofDataError:
            continue
        if refusal_of(altered) is None:
            believed.append(bit)
            assert altered == replace(ledger, wraps_vk=b"")
    assert set(believed) == wraps_tag_bits
