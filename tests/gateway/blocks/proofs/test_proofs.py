"""Tests of `gateway.blocks.proofs`: which kind a proof is, and what becomes of a block."""

from __future__ import annotations

import pickle

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sluice.gateway.api import block_pb2
from sluice.gateway.blocks.items import ItemKind, field_item, proof_of
from sluice.gateway.blocks.proofs import (
    QUICK_PROOFS_BYTES_MAX,
    QUICK_SIGNATURES_MAX,
    ProofKind,
    ProofVerifier,
    RsaBook,
    kind_of_proof,
)
from sluice.gateway.blocks.refusal import Refusal, RefusalKind
from sluice.gateway.blocks.root_hash import BlockSummary
from sluice.gateway.blocks.trusted_keys import TrustedKeys
from tests.gateway.block_makers import KEY, PUBLIC_KEY, block_items, proof_item, summary_of
from tests.gateway.blocks.proofs import real, record_files, state_proofs
from tests.gateway.blocks.proofs.tss_chain import TssChain
from tests.gateway.blocks.proofs.tss_network import TssNetwork

KEYS = TrustedKeys((PUBLIC_KEY,))
FULL = ProofVerifier(KEYS, "full")
NO_LEDGER = Refusal(
    RefusalKind.MISSING_VERIFICATION_DATA,
    "TSS block proof",
    "no ledger data",
    "a --ledger-key tss:FILE, or a publication in block 0 and --ledger-key tss:block0 or tss:id=HEX",
)


def with_proofs(*proofs: bytes) -> BlockSummary:
    """A valid block with other proofs."""
    return summary_of(block_items(3))._replace(proofs=proofs)


def good_proof() -> bytes:
    return summary_of(block_items(3)).proofs[0]


def state_proof() -> bytes:
    message = block_pb2.BlockProof(block=3, block_state_proof=b"x")
    return field_item(ItemKind.BLOCK_PROOF, message.SerializeToString())


def record_file_proof() -> bytes:
    message = block_pb2.BlockProof(block=3, signed_record_file_proof=b"x")
    return field_item(ItemKind.BLOCK_PROOF, message.SerializeToString())


LATER_KIND = field_item(ItemKind.BLOCK_PROOF, bytes.fromhex("08032a0101"))


@pytest.mark.parametrize(
    ("proof", "kind"),
    [
        ({"signed_block_proof": {"block_signature": bytes(64)}}, ProofKind.ED25519),
        ({"signed_block_proof": {"block_signature": bytes(2920)}}, ProofKind.TSS),
        ({"signed_block_proof": {"block_signature": bytes(3432)}}, ProofKind.TSS),
        ({"signed_block_proof": {"block_signature": bytes(65)}}, ProofKind.UNKNOWN_SIGNATURE),
        ({"signed_block_proof": {}}, ProofKind.UNKNOWN_SIGNATURE),
        ({"block_state_proof": b"x"}, ProofKind.STATE),
        ({"signed_record_file_proof": b"x"}, ProofKind.RECORD_FILE),
        ({}, ProofKind.UNKNOWN),
    ],
)
def test_the_content_tells_the_kind(proof: dict[str, object], kind: ProofKind) -> None:
    assert kind_of_proof(block_pb2.BlockProof(**proof)) is kind  # type: ignore[arg-type]


def test_a_signed_block_is_accepted() -> None:
    assert FULL.verify(summary_of(block_items(3))) is None
    assert FULL.mode == "full"


def test_the_wrong_key_is_refused() -> None:
    summary = summary_of(block_items(3, key=Ed25519PrivateKey.from_private_bytes(b"\x09" * 32)))
    refusal = FULL.verify(summary)
    assert refusal is not None
    assert refusal.kind is RefusalKind.BAD_PROOF
    assert refusal.expected == f"a signature of block root {summary.root_hash.hex()}"


def test_every_known_proof_must_hold_and_one_must_be_there() -> None:
    assert FULL.verify(with_proofs(good_proof(), good_proof())) is None
    assert FULL.verify(with_proofs(LATER_KIND, good_proof())) is None
    for bad in (proof_item(3), state_proof(), proof_item(3, bytes(2920))):
        for proofs in ((bad,), (good_proof(), bad), (bad, good_proof())):
            assert FULL.verify(with_proofs(*proofs)) == FULL.verify(with_proofs(bad))
            assert FULL.verify(with_proofs(*proofs)) is not None
    assert FULL.verify(with_proofs(LATER_KIND)) == Refusal(
        RefusalKind.UNSUPPORTED, "block proofs", "only unknown kinds", "at least one of a known kind"
    )


def test_record_files_need_an_address_book() -> None:
    assert FULL.verify(with_proofs(record_file_proof())) == Refusal(
        RefusalKind.MISSING_VERIFICATION_DATA,
        "RSA record-file proof",
        "no address book",
        "a --ledger-key rsa:ADDRESS_BOOK.json",
    )


def test_record_files_are_checked_with_the_address_book() -> None:
    proof, summary = record_files.signed([0, 1])
    assert verifier_with_book(0).verify(summary) is None
    assert verifier_with_book(2).verify(summary) is None
    _, signed_by_one = record_files.signed([0])
    assert verifier_with_book(1).verify(signed_by_one) is None
    refusal = verifier_with_book(0).verify(signed_by_one)
    assert refusal is not None
    assert (refusal.got, refusal.expected) == ("1 nodes that signed", "at least 2")
    refusal = verifier_with_book(3).verify(summary)
    assert refusal is not None
    assert (refusal.got, refusal.expected) == ("2 nodes that signed", "at least 3")
    assert proof_of(summary.proofs[0]).signed_record_file_proof == proof


def verifier_with_book(needed_count: int) -> ProofVerifier:
    book = RsaBook(record_files.book_bytes(4), needed_count)
    return ProofVerifier(TrustedKeys(rsa_file="book"), "full", None, book)


def test_tss_signatures_are_checked_with_the_ledger_data() -> None:
    network = TssNetwork((1, 1, 1))
    summary = summary_of(list(TssChain(network).block(1).items))
    knowing = FULL.with_ledger(network.ledger)
    assert FULL.ledger is None
    assert FULL.verify(summary) == NO_LEDGER
    assert knowing.ledger == network.ledger
    assert knowing.verify(summary) is None
    assert knowing.verify(summary_of(block_items(3))) is None
    assert FULL.with_ledger(TssNetwork((1, 1, 1), seed=2).ledger).verify(summary) is not None


@real.needs_real_blocks
def test_real_state_proofs_need_the_ledger_data() -> None:
    for chain, numbers in (("signed-chain", range(1, 5)), ("layout-8-chain", range(1, 4))):
        knowing = FULL.with_ledger(real.ledger(chain))
        for number in numbers:
            assert knowing.verify(real.summary(chain, number)) is None
            refusal = FULL.verify(real.summary(chain, number))
            assert refusal is not None
            assert refusal.kind is RefusalKind.MISSING_VERIFICATION_DATA
            assert refusal.what == "state proof: TSS block proof"


def test_which_proofs_are_quick() -> None:
    quick = [good_proof(), LATER_KIND, proof_item(3, bytes(63)), field_item(ItemKind.BLOCK_PROOF, b"\xff")]
    slow = [proof_item(3, bytes(2920)), proof_item(3, bytes(3432)), state_proof(), record_file_proof()]
    for proof in quick:
        assert FULL.is_quick(with_proofs(proof))
    for proof in slow:
        assert not FULL.is_quick(with_proofs(good_proof(), proof))
        assert ProofVerifier(TrustedKeys(), "hash").is_quick(with_proofs(proof))
    assert not FULL.needs_process
    assert verifier_with_book(0).needs_process
    assert FULL.with_ledger(TssNetwork((1,)).ledger).needs_process


def test_many_signatures_and_long_proofs_are_not_quick() -> None:
    """Trying a signature with 64 keys takes 6 ms, twice for both layouts."""
    keys = tuple(bytes([number]) * 32 for number in range(1, QUICK_SIGNATURES_MAX + 1))
    other = proof_item(3, b"\x02" * 64)
    assert ProofVerifier(TrustedKeys(keys)).is_quick(with_proofs(other))
    assert not ProofVerifier(TrustedKeys((*keys, PUBLIC_KEY))).is_quick(with_proofs(other))
    assert not ProofVerifier(TrustedKeys(keys)).is_quick(with_proofs(good_proof(), other))
    rest = QUICK_PROOFS_BYTES_MAX - len(good_proof())
    for more, is_quick in ((0, True), (1, False)):
        long = proof_item(3, bytes(rest - 11 + more))
        assert len(long) == rest + more
        assert FULL.is_quick(with_proofs(good_proof(), long)) is is_quick


def test_siblings_of_all_state_proofs_of_a_block_are_counted() -> None:
    """Both proofs hold, with four and with nine siblings."""
    network, blocks = TssNetwork((1,)), state_proofs.chain([16] * 4)
    proofs = []
    for last in (2, 3):
        paths = state_proofs.direct_paths(blocks[: last + 1], 1)
        proof = state_proofs.proof(paths, network.sign(blocks[last].root))
        message = block_pb2.BlockProof(block=1, block_state_proof=proof)
        proofs.append(field_item(ItemKind.BLOCK_PROOF, message.SerializeToString()))
    summary = blocks[1].summary._replace(proofs=tuple(proofs))
    assert ProofVerifier(KEYS, "full", network.ledger, siblings_max=13).verify(summary) is None
    bounded = ProofVerifier(KEYS, "full", network.ledger, siblings_max=12)
    text = "cannot parse: state proof path 1: got more siblings, expected at most 12 in all"
    assert str(bounded.verify(summary)) == text
    assert bounded.verify(summary._replace(proofs=tuple(proofs[1:]))) is None


def test_it_can_be_sent_to_another_process() -> None:
    ledger = TssNetwork((1, 1)).ledger
    sent = verifier_with_book(2).with_ledger(ledger)
    there = pickle.loads(pickle.dumps(sent))
    assert isinstance(there, ProofVerifier)
    assert (there.keys, there.mode, there.ledger) == (sent.keys, sent.mode, ledger)
    assert there.verify(record_files.signed([0, 1])[1]) is None


def test_a_signature_of_no_known_size_is_refused_not_passed_over() -> None:
    refusal = Refusal(
        RefusalKind.UNSUPPORTED,
        "signed block proof",
        "a signature of 63 bytes",
        "64 (Ed25519), 2920 or 3432 (TSS)",
    )
    assert FULL.verify(with_proofs(proof_item(3, bytes(63)))) == refusal
    assert FULL.verify(with_proofs(good_proof(), proof_item(3, bytes(63)))) == refusal
    empty = FULL.verify(with_proofs(good_proof(), proof_item(3, b"")))
    assert empty is not None
    assert empty.kind is RefusalKind.MISSING_FIELD


def test_a_bad_proof_goes_before_one_that_cannot_be_checked() -> None:
    bad, unchecked = proof_item(3), proof_item(3, bytes(2920))
    for proofs in ((bad, unchecked), (unchecked, bad)):
        assert FULL.verify(with_proofs(*proofs)) == FULL.verify(with_proofs(bad))
    for proofs in ((good_proof(), unchecked), (unchecked, good_proof())):
        refusal = FULL.verify(with_proofs(*proofs))
        assert refusal is not None
        assert refusal.kind is RefusalKind.MISSING_VERIFICATION_DATA


def test_a_proof_that_does_not_parse_is_refused() -> None:
    refusal = FULL.verify(with_proofs(field_item(ItemKind.BLOCK_PROOF, b"\xff")))
    assert refusal is not None
    assert refusal.kind is RefusalKind.CANNOT_PARSE


def test_mode_hash_checks_no_signature() -> None:
    verifier = ProofVerifier(TrustedKeys(), "hash")
    assert verifier.mode == "hash"
    for proof in (proof_item(3), proof_item(3, b""), proof_item(3, bytes(2920)), LATER_KIND):
        assert verifier.verify(with_proofs(proof)) is None


def test_mode_full_without_a_key_verifies_nothing() -> None:
    verifier = ProofVerifier(TrustedKeys(), "full")
    assert verifier.verify(with_proofs(good_proof())) == Refusal(
        RefusalKind.MISSING_VERIFICATION_DATA,
        "Ed25519 block proof",
        "no Ed25519 ledger key",
        "at least one --ledger-key ed25519:HEX",
    )
    for signature in (bytes(2920), bytes(3432)):
        assert verifier.verify(with_proofs(proof_item(3, signature))) == NO_LEDGER


def test_the_signature_decides_between_the_layouts() -> None:
    """A block of HAPI 0.77 has layout 16, against the header's version."""
    items = block_items(3, minor=77, root_layout=16)
    summary = summary_of(items)
    other = summary.in_other_layout()
    assert summary.root_layout == 8
    assert FULL.verify(summary) is not None
    assert other is not None
    assert FULL.verify(other) is None


def test_the_key_of_the_tests_signs_a_root() -> None:
    summary = summary_of(block_items(3))
    assert summary.proofs == (proof_item(3, KEY.sign(summary.root_hash)),)


def test_tss_signatures_of_several_blocks_are_checked_ahead() -> None:
    network = TssNetwork((1, 1, 1))
    chain = TssChain(network)
    summaries = [summary_of(list(block.items)) for block in chain.blocks(3)]
    verifier = ProofVerifier(TrustedKeys((PUBLIC_KEY,)), "full", network.ledger)
    assert verifier._tss is not None
    verifier.check_ahead(summaries[:1])
    assert verifier._tss._ahead == set()  # one alone: nothing is gained
    own = summary_of(block_items(3))
    verifier.check_ahead([*summaries, own])
    assert {root for _, root in verifier._tss._ahead} == {summary.root_hash for summary in summaries}
    assert [verifier.verify(summary) for summary in [*summaries, own]] == [None] * 4
    ProofVerifier(TrustedKeys((PUBLIC_KEY,))).check_ahead(summaries)  # no ledger data: nothing to do
