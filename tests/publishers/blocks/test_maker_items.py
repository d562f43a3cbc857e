"""Made-up items are well-formed, and as large as asked for."""

from __future__ import annotations

from random import Random

import pytest

from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.items import ItemKind, fields_of, kind_of, payload_of
from sluice.publishers.blocks.block_files import read_block_file
from sluice.publishers.blocks.maker import MAKER_ITEM_BYTES_MAX
from sluice.publishers.blocks.maker_items import (
    ITEM_BYTES_MIN,
    event_header,
    round_header,
    timestamp,
    transaction,
)
from tests.publishers.data import needs_real_blocks, real_chain

NOON_NS = 1_767_268_800_123_456_789


def shape(message: bytes, depth: int = 1) -> dict[int, object]:
    """Field numbers of a message, to `depth` levels; deeper ones count as None."""
    return {
        field.number: shape(field.value, depth - 1) if depth and isinstance(field.value, bytes) else None
        for field in fields_of(message)
    }


@pytest.mark.parametrize(
    "item_bytes", [ITEM_BYTES_MIN, 257, 300, 383, 384, 1024, 16_500, 16_600, MAKER_ITEM_BYTES_MAX]
)
def test_topic_messages_have_the_size_asked_for(item_bytes: int) -> None:
    seeds = range(12 if item_bytes < MAKER_ITEM_BYTES_MAX else 2)
    sizes = {len(transaction(Random(seed), NOON_NS, item_bytes).items[0]) for seed in seeds}
    assert {item_bytes, item_bytes - 1} & sizes
    assert max(sizes) <= item_bytes


def test_every_transaction_has_its_items_in_order() -> None:
    orders = set()
    for seed in range(60):
        made = transaction(Random(seed), NOON_NS, 400)
        orders.add(tuple(kind_of(item) for item in made.items))
        assert made.items[-1] == made.state_changes
    assert orders == {(4, 5, 7), (4, 5, 6, 7)}


def test_the_state_of_a_topic_is_kept_at_its_number() -> None:
    """The key is a TopicID (shard, realm, number), not a message around one, which other parsers refuse."""
    for seed in range(60):
        for change in list(fields_of(payload_of(transaction(Random(seed), NOON_NS, 400).state_changes)))[1:]:
            assert isinstance(change.value, bytes)
            update = shape(change.value, 4)[5]
            assert isinstance(update, dict)
            key = update[1]
            if 12 in key:
                assert key == {12: {1: None, 2: None, 3: None}}
                return
    pytest.fail("no transaction changed a topic")


def test_events_name_their_parents() -> None:
    first = payload_of(event_header(Random(1), 5, 2, NOON_NS, events_before=0))
    third = payload_of(event_header(Random(1), 5, 2, NOON_NS, events_before=2))
    assert [field.number for field in fields_of(first)] == [1, 2, 2]
    assert shape(third) == {1: {1: None, 2: None, 3: None}, 2: {}}  # parent 0 is the default, so not there


def test_a_timestamp_is_canonical() -> None:
    assert {field.number: field.value for field in fields_of(timestamp(NOON_NS))} == {
        1: 1_767_268_800,
        2: 123_456_789,
    }
    assert timestamp(0) == b""


@needs_real_blocks
def test_items_have_the_fields_of_real_ones() -> None:
    block: Block = read_block_file(real_chain("signed-chain") / "3.blk.gz")
    real = {kind_of(item): payload_of(item) for item in block.items}
    made = {
        kind_of(item): payload_of(item)
        for seed in range(20)
        for item in transaction(Random(seed), NOON_NS, 400).items
    }
    made[ItemKind.ROUND_HEADER] = payload_of(round_header(212))
    made[ItemKind.EVENT_HEADER] = payload_of(event_header(Random(1), 5, 2, NOON_NS, 0))
    for kind in (ItemKind.ROUND_HEADER, ItemKind.EVENT_HEADER, ItemKind.STATE_CHANGES):
        assert set(shape(made[kind], 0)) == set(shape(real[kind], 0)), kind
    assert set(shape(made[ItemKind.SIGNED_TRANSACTION], 0)) <= {1, 2, 3}
    assert set(shape(made[ItemKind.TRANSACTION_RESULT], 0)) == {1, 2, 6, 7}
