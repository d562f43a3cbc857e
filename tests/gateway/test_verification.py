"""Tests of the verification of one block: which root the proofs are held against, and what is refused."""

from __future__ import annotations

import pytest

from gateway.errors import BlockRefused
from gateway.items import field_item
from gateway.ledger_keys import LedgerKeys, VerificationMode
from gateway.proofs import ProofVerifier
from gateway.root_hash import BlockSummary, RootLayout
from gateway.verdict import RefusalKind
from gateway.verification import BlockVerifier
from tests.gateway.blocks import PUBLIC_KEY, block_items, proof_item


def verify(
    items: list[bytes], *, mode: VerificationMode = "full", root_layout: RootLayout = "auto"
) -> BlockSummary:
    """Verify a block with the key of `blocks`."""
    keys = LedgerKeys.parse((f"ed25519:{PUBLIC_KEY.hex()}",))
    verifier = BlockVerifier(ProofVerifier(keys, mode), root_layout)
    hasher = verifier.hasher()
    hasher.add(items)
    return verifier.verify(hasher)


@pytest.mark.parametrize("minor", [73, 77, 78, 80])
@pytest.mark.parametrize("signed", [8, 16])
def test_the_root_that_the_proof_fits_is_the_blocks(minor: int, signed: RootLayout) -> None:
    """Whatever the header's version suggests."""
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
    keys = LedgerKeys.parse((f"ed25519:{PUBLIC_KEY.hex()}",))
    hasher = BlockVerifier(ProofVerifier(keys, "full")).hasher()
    hasher.add(block_items()[:3])
    with pytest.raises(BlockRefused) as caught:
        hasher.add([field_item(14, b"")])
    assert caught.value.refusal.kind is RefusalKind.UNSUPPORTED


def test_hashers_do_not_know_each_other() -> None:
    keys = LedgerKeys.parse((f"ed25519:{PUBLIC_KEY.hex()}",))
    verifier = BlockVerifier(ProofVerifier(keys, "full"))
    items = block_items()
    first, second = verifier.hasher(), verifier.hasher()
    for item in items:
        first.add([item])
        second.add([item])
    assert verifier.verify(first) == verifier.verify(second)
