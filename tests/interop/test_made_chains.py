"""Chains of every valid layout, item and mixture of proofs that real chains do not show."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.gateway.api import block_pb2
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.chain import Chain
from sluice.gateway.blocks.errors import BlockRefused
from sluice.gateway.blocks.items import ItemKind, field_item
from sluice.gateway.blocks.proofs import ProofVerifier, RsaBook
from sluice.gateway.blocks.refusal import RefusalKind
from sluice.gateway.blocks.root_hash import BlockHasher, BlockSummary
from sluice.gateway.blocks.trusted_keys import TrustedKeys
from sluice.gateway.blocks.verification import BlockVerifier
from tests.gateway.block_makers import KEY, body_items, proof_item, summary_of
from tests.gateway.blocks.proofs import record_files
from tests.gateway.blocks.proofs.made_chain import BlockPlan, MadeChain
from tests.gateway.blocks.proofs.tss_network import TssNetwork

NETWORK = TssNetwork((5, 1, 3))
KEYS = TrustedKeys((KEY.public_key().public_bytes_raw(),))
VERIFIER = BlockVerifier(ProofVerifier(KEYS, "full", NETWORK.ledger))
EVERY_LAYOUT_KINDS = (2, 3, 4, 5, 6, 7, 11, 23, 24, 25, 26, 27, 20, 39, 40, 44, 123, 2_000_004)
EXTENSION_KINDS = (28, 29, 35, 48, 55, 1_000_008)


def checked(block: Block, verifier: BlockVerifier = VERIFIER) -> BlockSummary:
    """Verify a block. Raises BlockRefused."""
    hasher = verifier.hasher()
    hasher.add(block.items)
    return verifier.check(hasher.finish(), block.items).summary


def assert_holds(chain: MadeChain) -> None:
    """Every block is accepted with the root of its own layout, and continues the chain."""
    links = Chain()
    for block, root in zip(chain.blocks(), chain.roots, strict=True):
        summary = checked(block)
        assert summary.root_hash == root
        assert links.check_links(summary) is None
        links.advance(summary.number, root)


def test_layouts_change_within_a_chain_and_versions_say_little() -> None:
    """0.77 exists in both layouts; an unsigned block of either may lead to a signed one of either."""
    plans = [
        BlockPlan(8, 73, is_signed=False),
        BlockPlan(8, 75, is_signed=False),
        BlockPlan(8, 77),
        BlockPlan(16, 77, is_signed=False),
        BlockPlan(8, 77, is_signed=False),
        BlockPlan(16, 78),
        BlockPlan(16, 73),
        BlockPlan(8, 80, is_signed=False),
        BlockPlan(16, 0, is_signed=False),
        BlockPlan(16, 81),
    ]
    assert_holds(MadeChain(NETWORK, plans))


def test_every_kind_of_item_in_its_place() -> None:
    common = tuple(field_item(kind, b"%d" % kind) for kind in EVERY_LAYOUT_KINDS)
    extension = tuple(field_item(kind, b"%d" % kind) for kind in EXTENSION_KINDS)
    nothing = tuple(field_item(kind, b"") for kind in EVERY_LAYOUT_KINDS)
    plans = [
        BlockPlan(16, body=(*common, *extension), is_signed=False),
        BlockPlan(8, 77, body=common, is_signed=False),
        BlockPlan(16, 77, body=extension, is_signed=False),
        BlockPlan(16, body=nothing),
        BlockPlan(8, 73, body=nothing),
    ]
    assert_holds(MadeChain(NETWORK, plans))


def test_blocks_of_nothing_but_header_footer_and_proof() -> None:
    plans = [BlockPlan(8, 73, state=b""), BlockPlan(state=b"", is_signed=False), BlockPlan(state=b"")]
    assert_holds(MadeChain(NETWORK, [*plans, BlockPlan(8, 77, state=b"", is_signed=False), BlockPlan()]))


bodies = st.lists(
    st.builds(field_item, st.sampled_from(EVERY_LAYOUT_KINDS), st.binary(max_size=40)), max_size=20
).map(tuple)
plans = st.builds(
    BlockPlan,
    layout=st.sampled_from([8, 16]),
    minor=st.integers(70, 85),
    body=bodies,
    state=st.sampled_from([bytes(range(48)), b"", bytes(48)]),
    is_signed=st.booleans(),
)


@settings(max_examples=12)
@given(st.lists(plans, max_size=7), plans)
def test_any_chain(before: list[BlockPlan], last: BlockPlan) -> None:
    assert_holds(MadeChain(NETWORK, [*before, replace(last, is_signed=True)]))


def test_a_block_0_that_is_proven_by_a_later_one_brings_the_ledger_data() -> None:
    chain = MadeChain(NETWORK, [BlockPlan(is_signed=False), BlockPlan(8, 77, is_signed=False), BlockPlan()])
    fresh = BlockVerifier(ProofVerifier(TrustedKeys(tss_id=NETWORK.ledger.ledger_id)))
    assert fresh.awaits_block_0
    block = chain.blocks()[0]
    hasher = fresh.hasher()
    hasher.add(block.items)
    verdict = fresh.check(hasher.finish(), block.items)
    assert verdict.published == NETWORK.ledger
    assert verdict.summary.root_hash == chain.roots[0]


# --- several proofs in one block ----------------------------------------------------------------------------


TWO = MadeChain(NETWORK, [BlockPlan(body=tuple(body_items()), is_signed=False), BlockPlan()])
UNKNOWN = field_item(ItemKind.BLOCK_PROOF, bytes.fromhex("9a0103616263"))  # BlockProof field 19, for block 0


def ed25519_proof(chain: MadeChain, number: int, key: Ed25519PrivateKey = KEY) -> bytes:
    return proof_item(number, key.sign(chain.roots[number]))


def test_proofs_of_several_kinds_in_any_order() -> None:
    direct, state, own = TWO.signed_proof(0), TWO.state_proof(0), ed25519_proof(TWO, 0)
    for proofs in ((direct, state), (state, direct), (own, UNKNOWN, state), (UNKNOWN, direct, own, state)):
        assert checked(TWO.block(0, *proofs)).root_hash == TWO.roots[0]


@pytest.mark.parametrize("good_first", [True, False])
def test_one_bad_proof_among_good_ones_refuses_the_block(good_first: bool) -> None:
    stranger = Ed25519PrivateKey.from_private_bytes(bytes(32))
    other = MadeChain(TssNetwork((5, 1, 3), seed=9), [BlockPlan(body=tuple(body_items())), BlockPlan()])
    good = TWO.signed_proof(0)
    for bad in (ed25519_proof(TWO, 0, stranger), proof_item(0, other.network.sign(TWO.roots[0]))):
        proofs = (good, bad) if good_first else (bad, good)
        with pytest.raises(BlockRefused) as refused:
            checked(TWO.block(0, *proofs))
        assert refused.value.refusal.kind is RefusalKind.BAD_PROOF


def test_proofs_that_fit_different_layouts_do_not_hold_together() -> None:
    """Each proof holds for one of two roots, but a block has one root."""
    body = tuple(body_items())
    old, new = (MadeChain(NETWORK, [BlockPlan(layout, 77, body)]) for layout in (8, 16))
    for one, other in ((old, new), (new, old)):
        assert checked(one.block(0, one.signed_proof(0))).root_hash == one.roots[0]
        with pytest.raises(BlockRefused):
            checked(one.block(0, one.signed_proof(0), ed25519_proof(other, 0)))


def test_a_record_file_that_the_network_signed_as_a_block_too() -> None:
    """From the change to TSS on: both proofs have to hold, each with its own key."""
    proof, made = record_files.signed([0, 1])
    assert made.record_file is not None
    items = [made.header, made.record_file, made.footer]
    message = block_pb2.BlockProof(block=made.number, signed_record_file_proof=proof)
    rsa = field_item(ItemKind.BLOCK_PROOF, message.SerializeToString())
    root = summary_of([*items, rsa]).root_hash
    tss, forged = (proof_item(made.number, NETWORK.sign(signed)) for signed in (root, bytes(48)))
    verifier = BlockVerifier(ProofVerifier(KEYS, "full", NETWORK.ledger, RsaBook(record_files.book_bytes(3))))
    for proofs in ((rsa,), (tss,), (rsa, tss), (tss, rsa)):
        assert checked(Block.from_items([*items, *proofs]), verifier).root_hash == root
    for proofs in ((rsa, forged), (forged, rsa)):
        with pytest.raises(BlockRefused) as refused:
            checked(Block.from_items([*items, *proofs]), verifier)
        assert refused.value.refusal.what.startswith("hinTS signature: ")
    with pytest.raises(BlockRefused) as refused:
        checked(Block.from_items([*items, rsa, tss]))
    assert refused.value.refusal.kind is RefusalKind.MISSING_VERIFICATION_DATA


# --- what cannot be processed -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [8, 19, 13, 18, 21, 22, 36, 38, 1_000_001])
def test_a_signed_block_with_an_item_that_cannot_be_hashed(kind: int) -> None:
    """Filtered and redacted items, too: the rest of the block does not give its root."""
    good = TWO.block(0, TWO.signed_proof(0))
    items = [good.items[0], field_item(kind, b"x"), *good.items[1:]]
    with pytest.raises(BlockRefused) as refused:
        BlockHasher().add(items)
    assert refused.value.refusal.kind is RefusalKind.UNSUPPORTED
    assert str(kind) in refused.value.refusal.got


def test_an_item_that_is_not_hashed_is_no_part_of_what_is_signed() -> None:
    """Numbers 0 and 19 modulo 20 are not hashed, and the reference takes them."""
    good = TWO.block(0, TWO.signed_proof(0))
    for kind in (20, 39):
        items = [good.items[0], field_item(kind, b"x"), *good.items[1:]]
        assert checked(Block.from_items(items)).root_hash == TWO.roots[0]


def test_a_state_proof_of_another_block_or_to_another_time() -> None:
    chain = MadeChain(NETWORK, [BlockPlan(is_signed=False), BlockPlan(is_signed=False), BlockPlan()])
    assert_holds(chain)
    message = block_pb2.BlockProof.FromString(chain.state_proof(1)[3:])
    moved = block_pb2.BlockProof(block=0, block_state_proof=message.block_state_proof)
    item = field_item(ItemKind.BLOCK_PROOF, moved.SerializeToString())
    with pytest.raises(BlockRefused) as refused:
        checked(chain.block(0, item))
    assert refused.value.refusal.what == "state proof: paths"
    assert refused.value.refusal.got == "no hash that is the block's root hash"
    for named in (1, 2):  # a proof that says it is of another block than it is in
        with pytest.raises(BlockRefused) as refused:
            checked(chain.block(0, chain.state_proof(1) if named == 1 else chain.signed_proof(2)))
        assert refused.value.refusal.what == "block proof field 1 (block)"
