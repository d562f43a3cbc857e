"""Made-up chains: linked, signed, and the same each time."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace

import pytest

from sluice.gateway.blocks.chain import Chain
from sluice.gateway.blocks.items import ItemKind, footer_of, header_of, kind_of, proof_of
from sluice.gateway.blocks.merkle import EMPTY_HASH, StreamingTree
from sluice.gateway.blocks.root_hash import BlockHasher, BlockSummary
from sluice.publishers.blocks.maker import (
    MAKER_BLOCK_BYTES_MAX,
    MAKER_COUNT_MAX,
    MAKER_EVENTS_MAX,
    MAKER_ITEM_BYTES_MAX,
    BlockMaker,
    MakerOptions,
    key_of_seed,
)
from sluice.publishers.errors import MakerOptionError

KEY = key_of_seed(1)
SMALL = MakerOptions(rounds_per_block=1, events_per_round=2, transactions_per_block=3, item_bytes=300)


def summary_of(items: tuple[bytes, ...]) -> BlockSummary:
    hasher = BlockHasher()
    hasher.add(items)
    return hasher.finish()


def test_the_links_hold() -> None:
    chain, tree, previous = Chain(), StreamingTree(), EMPTY_HASH
    for number, block in enumerate(BlockMaker(1, KEY, SMALL).blocks(20)):
        summary = summary_of(block.items)
        assert summary.number == block.number == number
        assert summary.hapi_minor == 78
        assert summary.previous_root_hash == previous
        assert summary.all_blocks_root_hash == tree.root()
        assert chain.check_links(summary) is None
        chain.advance(number, summary.root_hash)
        previous = summary.root_hash
        tree.push(previous)


def test_the_proof_is_a_signature_of_the_root() -> None:
    (block,) = BlockMaker(1, KEY, SMALL).blocks(1, first_number=3)
    proof = proof_of(block.items[-1])
    assert proof.block == 3
    KEY.public_key().verify(proof.signed_block_proof.block_signature, summary_of(block.items).root_hash)


def test_the_same_seed_gives_the_same_bytes() -> None:
    blocks = list(BlockMaker(1, KEY, SMALL).blocks(3))
    assert list(BlockMaker(1, KEY, SMALL).blocks(3)) == blocks
    assert list(BlockMaker(2, KEY, SMALL).blocks(3)) != blocks
    # Pinned: a change alters the blocks of everybody's seeds and belongs in CHANGELOG.md.
    digest = hashlib.sha256(b"".join(block.to_bytes() for block in blocks)).hexdigest()
    assert digest == "0e1a5e76de46e29ee3dc8521cf98a923e42745e49b420586e8c57d0646154e72"


def test_a_chain_may_begin_anywhere() -> None:
    blocks = list(BlockMaker(1, KEY, SMALL).blocks(6))
    assert list(BlockMaker(1, KEY, SMALL).blocks(2, first_number=4)) == blocks[4:]


def test_another_key_changes_the_proof_only() -> None:
    one = next(BlockMaker(1, KEY, SMALL).blocks(1))
    two = next(BlockMaker(1, key_of_seed(2), SMALL).blocks(1))
    assert one.items[:-1] == two.items[:-1]
    assert one.items[-1] != two.items[-1]


def test_counts_and_sizes_are_the_options() -> None:
    options = MakerOptions(
        rounds_per_block=3, events_per_round=2, transactions_per_block=200, item_bytes=2000
    )
    block = next(BlockMaker(1, KEY, options).blocks(1))
    kinds = Counter(kind_of(item) for item in block.items)
    assert kinds[ItemKind.ROUND_HEADER] == 3
    assert kinds[ItemKind.EVENT_HEADER] == 6
    assert kinds[ItemKind.SIGNED_TRANSACTION] == kinds[ItemKind.TRANSACTION_RESULT] == 200
    assert 0 < kinds[ItemKind.TRANSACTION_OUTPUT] < 50
    assert kinds[ItemKind.STATE_CHANGES] == 201
    sizes = [len(item) for item in block.items if kind_of(item) == ItemKind.SIGNED_TRANSACTION]
    assert 60 < sum(size == 2000 for size in sizes) < 140
    assert max(sizes) == 2000


def test_a_block_without_transactions_is_a_block() -> None:
    block = next(BlockMaker(1, KEY, replace(SMALL, transactions_per_block=0)).blocks(1))
    assert summary_of(block.items).item_count == 7


def test_time_advances_by_the_block_time() -> None:
    options = replace(SMALL, block_time_seconds=0.5, start_seconds=1000)
    stamps = [header_of(block.items[0]).block_timestamp for block in BlockMaker(1, KEY, options).blocks(4)]
    assert [stamp.seconds + stamp.nanos / 1e9 for stamp in stamps] == [1000, 1000.5, 1001, 1001.5]


def test_the_state_root_changes_with_each_block() -> None:
    roots = {
        footer_of(block.items[-2]).start_of_block_state_root_hash
        for block in BlockMaker(1, KEY, SMALL).blocks(5)
    }
    assert {len(root) for root in roots} == {48}
    assert len(roots) == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (replace(SMALL, rounds_per_block=0), "--rounds-per-block: got 0, expected 1 to 100000"),
        (replace(SMALL, events_per_round=-1), "--events-per-round: got -1, expected 1 to 100000"),
        (
            replace(SMALL, transactions_per_block=MAKER_COUNT_MAX + 1),
            "--transactions-per-block: got 100001, expected 0 to 100000",
        ),
        (replace(SMALL, item_bytes=255), f"--item-bytes: got 255, expected 256 to {MAKER_ITEM_BYTES_MAX}"),
        (
            replace(SMALL, rounds_per_block=1000, events_per_round=MAKER_EVENTS_MAX // 1000 + 1),
            "--rounds-per-block times --events-per-round: got 1001000, expected at most 1000000",
        ),
        (
            replace(SMALL, transactions_per_block=1024, item_bytes=MAKER_BLOCK_BYTES_MAX // 512 + 1),
            "half of --transactions-per-block times --item-bytes: got 268435968, expected at most 268435456",
        ),
        (replace(SMALL, block_time_seconds=0), "--block-time: got 0, expected 0.001 to 86400"),
    ],
)
def test_options_out_of_range_are_refused(options: MakerOptions, message: str) -> None:
    with pytest.raises(MakerOptionError) as caught:
        BlockMaker(1, KEY, options)
    assert str(caught.value) == message


def test_the_largest_options_are_taken() -> None:
    """Making such blocks would take hours."""
    replace(SMALL, transactions_per_block=MAKER_COUNT_MAX).check()
    replace(SMALL, rounds_per_block=1000, events_per_round=MAKER_EVENTS_MAX // 1000).check()
    replace(SMALL, transactions_per_block=1024, item_bytes=MAKER_BLOCK_BYTES_MAX // 512).check()
