"""Tests of the verification of one block: which root the proofs are held against, and what is refused."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import pytest

from sluice.gateway.api import block_pb2
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.errors import BlockRefused
from sluice.gateway.blocks.items import field_item, varint
from sluice.gateway.blocks.merkle import inner_hash, leaf_hash
from sluice.gateway.blocks.proofs import ProofVerifier, RsaBook
from sluice.gateway.blocks.proofs.ledger_data import FIELDS_MAX, LedgerData
from sluice.gateway.blocks.proofs.poseidon import hash_array_number, round_constants
from sluice.gateway.blocks.proofs.state_proof import STATE_PROOF_SIBLINGS_MAX
from sluice.gateway.blocks.refusal import Refusal, RefusalKind
from sluice.gateway.blocks.root_hash import PROOFS_PER_BLOCK_MAX, BlockSummary, RootLayout
from sluice.gateway.blocks.trusted_keys import TrustedKeys, VerificationMode
from sluice.gateway.blocks.verification import BlockVerifier, Verdict
from tests.gateway.block_makers import KEY, PUBLIC_KEY, block_items, proof_item, summary_of
from tests.gateway.blocks.proofs import record_files, state_proofs
from tests.gateway.blocks.proofs.bn254_setup import WrapsSetup
from tests.gateway.blocks.proofs.tss_chain import TssChain, publishing_transaction
from tests.gateway.blocks.proofs.tss_network import TssNetwork

NETWORK, OTHER = TssNetwork((1, 1, 1)), TssNetwork((1, 1, 1), seed=2)
CHAIN = TssChain(NETWORK)
WRAPS = WrapsSetup()


def verify(
    items: list[bytes], *, mode: VerificationMode = "full", root_layout: RootLayout = "auto"
) -> BlockSummary:
    """Verify a block with the key of `blocks`."""
    keys = TrustedKeys.parse((f"ed25519:{PUBLIC_KEY.hex()}",))
    verifier = BlockVerifier(ProofVerifier(keys, mode), root_layout)
    hasher = verifier.hasher()
    hasher.add(items)
    return verifier.verify(hasher)


@pytest.mark.parametrize("minor", [73, 77, 78, 80])
@pytest.mark.parametrize("signed", [8, 16])
def test_the_root_that_the_proof_fits_is_the_blocks(minor: int, signed: RootLayout) -> None:
    """The header's version does not matter."""
    summary = verify(block_items(minor=minor, root_layout=signed))
    assert summary.root_layout == signed


def test_a_layout_that_is_set_is_the_only_one_tried() -> None:
    assert verify(block_items(root_layout=8), root_layout=8).root_layout == 8
    with pytest.raises(BlockRefused) as caught:
        verify(block_items(root_layout=8), root_layout=16)
    assert caught.value.refusal.kind is RefusalKind.BAD_PROOF


def test_mode_hash_takes_the_layout_of_the_version() -> None:
    items = block_items(minor=78, root_layout=8)
    assert verify(items, mode="hash").root_layout == 16
    assert verify(items, mode="hash", root_layout=8).root_layout == 8


def test_a_proof_that_fits_neither_root_is_told_for_the_likely_one() -> None:
    items = [*block_items()[:-1], proof_item(0, bytes(64))]
    with pytest.raises(BlockRefused) as caught:
        verify(items)
    refusal = caught.value.refusal
    assert refusal.kind is RefusalKind.BAD_PROOF
    with pytest.raises(BlockRefused) as alone:
        verify(items, root_layout=16)
    assert alone.value.refusal == refusal
    assert verify(items, mode="hash").number == 0  # there is a proof, and it is not looked at


@pytest.mark.parametrize(
    ("cut", "missing"),
    [(1, "block proof"), (2, "block footer"), (8, "items")],
    ids=["proof", "footer", "all"],
)
@pytest.mark.parametrize("mode", ["full", "hash"])
def test_what_is_missing_is_refused_in_either_mode(mode: VerificationMode, cut: int, missing: str) -> None:
    items = block_items()
    with pytest.raises(BlockRefused) as caught:
        verify(items[: len(items) - cut], mode=mode)
    refusal = caught.value.refusal
    assert (refusal.kind, refusal.got) == (RefusalKind.MISSING_ITEM, f"no {missing}")


def test_an_item_that_cannot_be_placed_is_refused_when_it_comes() -> None:
    keys = TrustedKeys.parse((f"ed25519:{PUBLIC_KEY.hex()}",))
    hasher = BlockVerifier(ProofVerifier(keys, "full")).hasher()
    hasher.add(block_items()[:3])
    with pytest.raises(BlockRefused) as caught:
        hasher.add([field_item(14, b"")])
    assert caught.value.refusal.kind is RefusalKind.UNSUPPORTED


def test_hashers_do_not_know_each_other() -> None:
    keys = TrustedKeys.parse((f"ed25519:{PUBLIC_KEY.hex()}",))
    verifier = BlockVerifier(ProofVerifier(keys, "full"))
    items = block_items()
    first, second = verifier.hasher(), verifier.hasher()
    for item in items:
        first.add([item])
        second.add([item])
    assert verifier.verify(first) == verifier.verify(second)


# --- block 0 of a TSS network -------------------------------------------------------------------------------


def verdict_on(
    block: Block, keys: TrustedKeys, known: LedgerData | None = None, mode: VerificationMode = "full"
) -> Verdict:
    """Check a block of a TSS network with these keys."""
    return BlockVerifier(ProofVerifier(keys, mode, known)).check(summary_of(list(block.items)), block.items)


@pytest.mark.parametrize(
    "keys", [TrustedKeys(), TrustedKeys(tss_block0=True), TrustedKeys(tss_id=NETWORK.ledger.ledger_id)]
)
def test_block_0_brings_the_ledger_data(keys: TrustedKeys) -> None:
    verifier = BlockVerifier(ProofVerifier(keys, "full"))
    assert verifier.awaits_block_0
    assert verdict_on(CHAIN.block(0), keys).published == NETWORK.ledger
    with pytest.raises(BlockRefused) as caught:
        verdict_on(CHAIN.block(1), keys)
    assert caught.value.refusal.kind is RefusalKind.MISSING_VERIFICATION_DATA
    verifier.believe(NETWORK.ledger)
    assert not verifier.awaits_block_0
    assert verifier.check(summary_of(list(CHAIN.block(1).items))).published is None


@pytest.mark.parametrize(
    "keys", [TrustedKeys((PUBLIC_KEY,)), TrustedKeys(rsa_file="book"), TrustedKeys(tss_file="f")]
)
def test_block_0_is_not_asked_where_other_keys_are_given(keys: TrustedKeys) -> None:
    assert not BlockVerifier(ProofVerifier(keys, "full")).awaits_block_0
    with pytest.raises(BlockRefused) as caught:
        verdict_on(CHAIN.block(0), keys)
    assert caught.value.refusal.kind is RefusalKind.MISSING_VERIFICATION_DATA


def test_block_0_of_another_network_is_refused() -> None:
    pinned = TrustedKeys(tss_id=OTHER.ledger.ledger_id)
    with pytest.raises(BlockRefused) as caught:
        verdict_on(CHAIN.block(0), pinned)
    assert caught.value.refusal == Refusal(
        RefusalKind.BAD_PROOF,
        "ledger id publication: ledger id",
        NETWORK.ledger.ledger_id.hex(),
        f"{OTHER.ledger.ledger_id.hex()}, the ledger key",
    )
    with pytest.raises(BlockRefused) as caught:
        verdict_on(CHAIN.block(0), TrustedKeys(tss_file="file"), OTHER.ledger)
    assert caught.value.refusal == Refusal(
        RefusalKind.BAD_PROOF,
        "ledger id publication: ledger id",
        NETWORK.ledger.ledger_id.hex(),
        f"{OTHER.ledger.ledger_id.hex()}, the ledger key",
    )
    twin = TssNetwork((1, 1, 1), wraps_vk=bytes(1768))
    with pytest.raises(BlockRefused, match="ledger id publication in block 0: WRAPS key"):
        verdict_on(CHAIN.block(0), TrustedKeys(tss_file="file"), twin.ledger)
    assert (
        verdict_on(CHAIN.block(0), TrustedKeys(tss_file="file"), NETWORK.ledger).published == NETWORK.ledger
    )


def test_a_publication_that_is_believed_is_not_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_again(*_: object) -> None:
        raise AssertionError("to check a publication of 128 nodes takes half a second")

    monkeypatch.setattr("sluice.gateway.blocks.verification.published_ledger", check_again)
    keys = TrustedKeys(tss_file="file")
    assert verdict_on(CHAIN.block(0), keys, NETWORK.ledger).published is NETWORK.ledger
    with pytest.raises(AssertionError):
        verdict_on(CHAIN.block(0), keys, OTHER.ledger)


class Forger(TssNetwork):
    """Signs with its own keys. A WRAPS proof, with its own key too, says that NETWORK vouches for them."""

    def sign(
        self, root_hash: bytes, signers: Sequence[int] | None = None, vouchers: Sequence[int] | None = None
    ) -> bytes:
        """A whole TSS signature, 3,432 bytes."""
        ledger_number = int.from_bytes(NETWORK.ledger.ledger_id, "little")
        proof = WRAPS.proof_parts(ledger_number, hash_array_number(self.vk))
        return super().sign(root_hash)[:2728] + b"".join(proof.values())


def test_a_pinned_id_does_not_let_block_0_choose_the_key_that_vouches_for_it() -> None:
    network, forger = TssNetwork((1, 1, 1), wraps_vk=WRAPS.key_bytes()), Forger((1, 1, 1), seed=2)
    chain = TssChain(network)
    assert network.ledger.ledger_id == NETWORK.ledger.ledger_id
    pinned, forged = TrustedKeys(tss_id=network.ledger.ledger_id), chain.block(0, signed_by=forger)
    with pytest.raises(BlockRefused) as caught:
        verdict_on(forged, pinned)
    assert caught.value.refusal == Refusal(
        RefusalKind.MISSING_VERIFICATION_DATA,
        "TSS block proof: WRAPS address-book proof",
        "no WRAPS key that is believed",
        "one, of tss:FILE or of a block 0 that has a Schnorr address-book proof",
    )
    # The proof itself is sound: it holds with the key from a file that the operator trusts.
    assert verdict_on(forged, pinned, network.ledger).published == network.ledger
    # A block 0 that the network signed brings the key for later blocks.
    ledger = verdict_on(chain.block(0), pinned).published
    assert ledger == network.ledger
    assert verdict_on(chain.block(1, signed_by=forger), pinned, ledger).summary.number == 1


def test_a_publication_that_no_proof_covers_is_not_believed() -> None:
    """The proof of a record file covers nothing beside it, so anyone can add a publication there."""
    network = TssNetwork((1, 1, 1), wraps_vk=WRAPS.key_bytes())
    file = record_files.contents()
    proof = record_files.record_file_proof([(0, record_files.sign(file, 0)), (1, record_files.sign(file, 1))])
    header, *rest = record_files.block_items(record_files.record_file_item(file), proof)
    plain, forged = [header, *rest], [header, publishing_transaction(network.publication), *rest]
    book = RsaBook(record_files.book_bytes(3))
    pinned = TrustedKeys(ed25519=(PUBLIC_KEY,), rsa_file="book", tss_id=network.ledger.ledger_id)

    def verdict(items: list[bytes], ledger: LedgerData | None = None) -> Verdict:
        return BlockVerifier(ProofVerifier(pinned, "full", ledger, book)).check(summary_of(items), items)

    assert verdict(plain).published is None
    with pytest.raises(BlockRefused) as caught:
        verdict(forged)
    assert caught.value.refusal == Refusal(
        RefusalKind.BAD_PROOF,
        "ledger id publication in block 0",
        "proofs of the record file alone",
        "one that covers the whole block",
    )
    # A node that knows the ledger takes nothing from there. A signature of the whole block vouches for it.
    assert verdict(forged, network.ledger).published == network.ledger
    signed = [*forged, proof_item(0, KEY.sign(summary_of(forged).root_hash))]
    assert verdict(signed).published == network.ledger


def test_a_block_0_signed_by_others_than_it_publishes_is_refused() -> None:
    with pytest.raises(BlockRefused, match="Schnorr address-book proof: challenge"):
        verdict_on(CHAIN.block(0, signed_by=OTHER), TrustedKeys())


@pytest.mark.parametrize(
    ("publishes", "kind", "what"),
    [
        ((), RefusalKind.MISSING_VERIFICATION_DATA, "TSS block proof"),
        ((b"x",), RefusalKind.CANNOT_PARSE, "ledger id publication: value of field at byte 0"),
        (
            (NETWORK.publication, OTHER.publication),
            RefusalKind.BAD_PROOF,
            "ledger id publication in block 0",
        ),
        (
            (NETWORK.publication[:2] + bytes(32) + NETWORK.publication[34:],),
            RefusalKind.BAD_PROOF,
            "ledger id publication: ledger id (tss.md 7.2)",
        ),
    ],
)
def test_a_block_0_has_to_publish_one_ledger(
    publishes: tuple[bytes, ...], kind: RefusalKind, what: str
) -> None:
    block = TssChain(NETWORK, publishes=publishes).block(0)
    with pytest.raises(BlockRefused) as caught:
        verdict_on(block, TrustedKeys())
    assert (caught.value.refusal.kind, caught.value.refusal.what) == (kind, what)
    known = TrustedKeys(tss_file="file")
    if NETWORK.publication in publishes:  # what else is published is of no concern to who knows the ledger
        assert verdict_on(block, known, NETWORK.ledger).published == NETWORK.ledger
    elif publishes:
        with pytest.raises(BlockRefused):
            verdict_on(block, known, NETWORK.ledger)
    else:
        assert verdict_on(block, known, NETWORK.ledger).published is None
    assert verdict_on(block, TrustedKeys(), mode="hash").published is None


# --- what a block may cost ----------------------------------------------------------------------------------


def wraps_signature(book: TssNetwork, signer: TssNetwork, root_hash: bytes, number: int) -> bytes:
    """A good signature by the key of `signer`, with a WRAPS proof of its own."""
    signers = [node for node in range(len(signer.weights)) if node != number]
    ledger_number = int.from_bytes(book.ledger.ledger_id, "little")
    parts = WRAPS.proof_parts(ledger_number, hash_array_number(signer.vk), seed=number)
    return signer.vk + signer.hints_signature(root_hash, signers) + b"".join(parts.values())


def long_state_proof(summary: BlockSummary, number: int, sibling_count: int) -> tuple[bytes, bytes]:
    """The paths of a state proof that holds for both roots of a block, and the root to sign."""
    other = summary.in_other_layout()
    assert other is not None
    left, timestamp = leaf_hash(bytes((number,))), b"\x08" + bytes((number + 1,))
    value = summary.root_hash
    for _ in range(sibling_count):
        value = inner_hash(left, value)
    paths = [
        state_proofs.path((6, timestamp), [], 3),
        state_proofs.path((3, summary.root_hash), [(left,)] * sibling_count, 3),
        state_proofs.path((3, other.root_hash), [], 4),
        state_proofs.path(None, [], 4),
        state_proofs.path(None, [], state_proofs.END),
    ]
    encoded = b"".join(state_proofs.len_field(1, path) for path in paths)
    return encoded, inner_hash(inner_hash(leaf_hash(timestamp), value), other.root_hash)


@pytest.mark.skipif(
    os.environ.get("SLUICE_LONG") != "1", reason="takes much processor time; SLUICE_LONG=1 runs it"
)
def test_the_dearest_block_takes_less_than_a_second() -> None:
    """Block 0 has 128 nodes, a full search, and all proofs with all siblings, refused for both roots."""
    book = TssNetwork(tuple((1 << 62) + node for node in range(128)), wraps_vk=WRAPS.key_bytes())
    signer = TssNetwork((1,) * 7, seed=3)
    searched = b"\x0a" + varint(2 * FIELDS_MAX - 996) + b"\x1a\x02\xea\x04" + b"\x10\x01" * (FIELDS_MAX - 500)
    items = [*block_items()[:1], publishing_transaction(book.publication), field_item(4, searched)]
    items += block_items()[1:-1]
    summary = summary_of([*items, proof_item(0)])
    for number in range(PROOFS_PER_BLOCK_MAX):
        siblings = STATE_PROOF_SIBLINGS_MAX // PROOFS_PER_BLOCK_MAX
        encoded, signed = long_state_proof(summary, number, siblings)
        is_last = number == PROOFS_PER_BLOCK_MAX - 1
        signature = wraps_signature(book, signer, bytes(48) if is_last else signed, number)
        proof = encoded + state_proofs.len_field(2, state_proofs.len_field(1, signature))
        message = block_pb2.BlockProof(block=0, block_state_proof=proof)
        items.append(field_item(9, message.SerializeToString()))
    round_constants()
    verifier = BlockVerifier(ProofVerifier(TrustedKeys()))
    began = time.process_time()
    with pytest.raises(BlockRefused, match=r"state proof: hinTS signature: pairings 1: "):
        verifier.check(summary_of(items), items)
    assert time.process_time() - began < 1.0
