"""Verdicts on blocks, and the links between them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

import pytest

from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.merkle import EMPTY_HASH, StreamingTree
from sluice.gateway.blocks.proofs import ProofVerifier
from sluice.gateway.blocks.refusal import RefusalKind
from sluice.gateway.blocks.trusted_keys import TrustedKeys
from sluice.gateway.blocks.verification import BlockVerifier
from sluice.publishers.verify.verdicts import (
    BlockVerdict,
    ChainChecker,
    CheckedBlock,
    check_block,
    kinds_text,
    unreadable,
)
from tests.gateway.block_makers import body_items, footer_item, header_item, proof_item, summary_of
from tests.gateway.blocks.proofs.made_chain import BlockPlan, MadeChain
from tests.gateway.blocks.proofs.tss_network import TssNetwork
from tests.nodes import ledger_key, make_blocks

BLOCKS = make_blocks(9)
KINDS = ("Ed25519 block proof",)
VERIFIER = BlockVerifier(ProofVerifier(TrustedKeys.parse([ledger_key()])))
BELIEVED = "the links to the blocks before it are believed"


def checked(number: int) -> CheckedBlock:
    """One good block, checked alone."""
    return check_block(VERIFIER, BLOCKS[number])


def spoiled(number: int) -> CheckedBlock:
    """The same with a transaction changed, checked alone."""
    items = list(BLOCKS[number].items)
    items[3] = items[3][:-1] + bytes([items[3][-1] ^ 1])
    return check_block(VERIFIER, Block.from_items(items))


def verdicts(blocks: Iterable[CheckedBlock]) -> tuple[list[BlockVerdict], list[tuple[int, int]]]:
    """The verdicts on a chain, and its gaps."""
    checker = ChainChecker()
    return [checker.take(block) for block in blocks], checker.gaps


def test_a_whole_chain() -> None:
    found, gaps = verdicts(map(checked, range(9)))
    assert [(verdict.number, verdict.refusal, verdict.note) for verdict in found] == [
        (number, None, None) for number in range(9)
    ]
    assert gaps == []
    assert {verdict.proof_kinds for verdict in found} == {KINDS}
    for verdict, block in zip(found[:-1], BLOCKS[1:], strict=True):
        following = check_block(VERIFIER, block).summary
        assert following is not None
        assert following.previous_root_hash == verdict.root_hash


def test_an_altered_block_is_the_only_one_that_is_refused() -> None:
    for altered in range(9):
        blocks = [spoiled(number) if number == altered else checked(number) for number in range(9)]
        found, _ = verdicts(blocks)
        assert [verdict.number for verdict in found if not verdict.is_accepted] == [altered]
        refusal = found[altered].refusal
        assert refusal is not None
        assert refusal.kind is RefusalKind.BAD_PROOF
        notes = {verdict.number: verdict.note for verdict in found if verdict.note}
        bridged = f"the root hash of block {altered} is taken from this block's footer"
        assert notes == ({altered + 1: bridged} if altered < 8 else {})


def test_a_block_of_another_chain_breaks_its_own_links_only() -> None:
    stranger = check_block(VERIFIER, make_blocks(5, seed=8)[4])
    assert stranger.refusal is None
    found, _ = verdicts([stranger if number == 4 else checked(number) for number in range(9)])
    [refused] = [verdict for verdict in found if not verdict.is_accepted]
    assert refused.number == 4
    assert refused.refusal is not None
    assert refused.refusal.what == "block footer field 1 (previous_block_root_hash)"
    assert found[3].root_hash is not None
    assert refused.refusal.expected == found[3].root_hash.hex()


def test_the_root_of_the_missing_block_is_held_against_the_tree() -> None:
    summary = checked(5).summary
    assert summary is not None
    false = dataclasses.replace(checked(5), summary=summary._replace(previous_root_hash=bytes(48)))
    found, gaps = verdicts([checked(0), checked(1), checked(2), checked(3), false])
    assert gaps == [(4, 4)]
    assert found[-1].refusal is not None
    assert found[-1].refusal.what == "block footer field 2 (root_hash_of_all_block_hashes_tree)"


def test_anchors_in_the_middle() -> None:
    found, gaps = verdicts(map(checked, (3, 4, 7, 8)))
    assert [verdict.note for verdict in found] == [BELIEVED, None, BELIEVED, None]
    assert gaps == [(5, 6)]
    assert all(verdict.is_accepted for verdict in found)


def test_a_wrong_link_after_an_anchor() -> None:
    stranger = check_block(VERIFIER, make_blocks(5, seed=8)[4])
    found, _ = verdicts([checked(3), stranger])
    assert [verdict.is_accepted for verdict in found] == [True, False]


def test_a_block_that_cannot_be_hashed() -> None:
    bare = check_block(VERIFIER, Block.from_items(BLOCKS[2].items[:1]))
    assert bare.summary is None
    assert str(bare.refusal) == (
        "missing item: block: got no block footer, expected one after the other items"
    )
    file = unreadable(2, "2.blk", "truncated")
    assert str(file.refusal) == "cannot parse: 2.blk: got truncated, expected the file of block 2"
    for block in (bare, file):
        [verdict], _ = verdicts([block])
        assert verdict.as_json() == {
            "number": 2,
            "verdict": "refused",
            "proofs": [],
            "root_hash": None,
            "note": None,
            "reason": {
                "kind": block.refusal.kind.value if block.refusal else None,
                "what": block.refusal.what if block.refusal else None,
                "got": block.refusal.got if block.refusal else None,
                "expected": block.refusal.expected if block.refusal else None,
            },
        }


def test_names_of_proofs() -> None:
    assert kinds_text(()) == "none"
    assert kinds_text(("state proof", "TSS block proof", "state proof")) == "state proof, TSS block proof"


def test_what_travels_is_small() -> None:
    summary = checked(1).summary
    assert summary is not None
    assert (summary.proofs, summary.record_file, summary.header, summary.footer) == ((), None, b"", b"")


# --- blocks whose root no proof signs -----------------------------------------------------------------------


def in_layouts(layouts: Sequence[int], minor: int) -> list[Block]:
    """A chain whose links name each block's root in a layout, whatever its version suggests."""
    blocks: list[Block] = []
    tree, previous = StreamingTree(), EMPTY_HASH
    for number, layout in enumerate(layouts):
        items = [header_item(number, minor=minor), *body_items(), footer_item(previous, tree.root())]
        items.append(proof_item(number))
        summary = summary_of(items)
        if summary.root_layout != layout:
            summary = summary.in_other_layout() or summary
        blocks.append(Block.from_items(items))
        previous = summary.root_hash
        tree.push(previous)
    return blocks


UNSIGNED = BlockVerifier(ProofVerifier(TrustedKeys(), "hash"))


@pytest.mark.parametrize("minor", [77, 78])
@pytest.mark.parametrize("layouts", list(itertools.product((8, 16), repeat=4)))
def test_where_no_proof_signs_the_root_the_next_footer_says_which_layout_it_has(
    layouts: tuple[int, ...], minor: int
) -> None:
    blocks = [check_block(UNSIGNED, block) for block in in_layouts(layouts, minor)]
    found, _ = verdicts(blocks)
    taken: int = 8 if minor == 77 else 16  # for the first block, by its version; then as the last one's is
    notes: list[str | None] = [None]
    for number, layout in enumerate(layouts):
        summary = blocks[number].summary
        assert summary is not None
        roots: dict[int, bytes] = {summary.root_layout: summary.root_hash}
        roots[24 - summary.root_layout] = summary.root_hash_other_layout or b""
        assert found[number].root_hash == roots[taken]
        other = f"the root hash of block {number} is that of the other layout, {roots[layout].hex()}"
        notes.append(None if layout == taken else f"{other}, as this block's footer says")
        taken = layout
    assert [(verdict.refusal, verdict.note) for verdict in found] == [(None, note) for note in notes[:-1]]


def test_the_other_layout_helps_across_a_gap_and_no_other_root() -> None:
    chain = [check_block(UNSIGNED, block) for block in in_layouts([16] * 6, 77)]
    found, gaps = verdicts([*chain[:3], *chain[4:]])
    assert gaps == [(3, 3)]
    assert [verdict.is_accepted for verdict in found] == [True] * 5
    stranger = check_block(UNSIGNED, in_layouts([8, 16, 8, 8], 77)[3])
    found, _ = verdicts([*chain[:3], stranger, *chain[4:]])
    assert [verdict.number for verdict in found if not verdict.is_accepted] == [3]


@pytest.mark.parametrize("altered", range(6))
def test_an_altered_block_whose_root_no_proof_signs_costs_the_one_behind_it_alone(altered: int) -> None:
    chain = [check_block(UNSIGNED, block) for block in in_layouts([8] * 7, 77)]
    items = list(in_layouts([8] * 7, 77)[altered].items)
    changed = check_block(UNSIGNED, Block.from_items([*items[:3], *items[4:]]))
    found, _ = verdicts([*chain[:altered], changed, *chain[altered + 1 :]])
    assert [verdict.number for verdict in found if not verdict.is_accepted] == [altered + 1]
    notes = {verdict.number: verdict.note for verdict in found if verdict.note}
    assert notes == ({altered + 2: BELIEVED} if altered < 5 else {})


def test_a_root_that_a_proof_signs_is_believed_against_all_footers() -> None:
    """A footer that does not fit a block with a signed root is the one that is wrong, and costs no links."""
    strangers = [check_block(VERIFIER, block) for block in make_blocks(5, seed=8)[3:]]
    found, _ = verdicts([checked(0), checked(1), checked(2), *strangers, *map(checked, (5, 6))])
    assert [verdict.is_accepted for verdict in found] == [True, True, True, False, False, True, True]
    assert [verdict.note for verdict in found[-2:]] == [BELIEVED, None]


def test_a_root_that_a_proof_signs_is_no_other() -> None:
    signed = checked(0).summary
    assert signed is not None
    assert signed.root_hash_other_layout is None
    network = TssNetwork((1, 1))
    chain = MadeChain(network, [BlockPlan(is_signed=False), BlockPlan()])
    knowing = BlockVerifier(ProofVerifier(TrustedKeys(), "full", network.ledger))
    for block, root_hash in zip(chain.blocks(), chain.roots, strict=True):  # by a state proof; by TSS
        summary = check_block(knowing, block).summary
        assert summary is not None
        assert (summary.root_hash, summary.root_hash_other_layout) == (root_hash, None)
    unsigned = check_block(UNSIGNED, BLOCKS[0]).summary
    assert unsigned is not None
    assert unsigned.root_hash_other_layout is not None
