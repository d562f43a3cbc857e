"""Limits that depend on each other; each limit's own test is with what keeps it."""

from __future__ import annotations

from sluice.gateway.workers.looking import SET_ITEMS_MAX
from sluice.publishers import limits
from sluice.publishers.blocks.maker import MAKER_ITEM_BYTES_MAX
from sluice.publishers.protocol.item_sets import size_in_set


def test_the_message_limit_leaves_room_for_framing() -> None:
    assert limits.ITEM_BYTES_MAX < limits.MESSAGE_BYTES_MAX
    assert limits.ITEM_SET_BYTES_DEFAULT <= limits.ITEM_BYTES_MAX


def test_a_node_takes_the_longest_set() -> None:
    assert limits.ITEM_SET_ITEMS_MAX <= SET_ITEMS_MAX


def test_the_window_lets_a_stalled_winner_be_overtaken() -> None:
    stall_blocks = 3  # the node's default
    assert stall_blocks < limits.WINDOW_BLOCKS_DEFAULT


def test_every_header_in_the_window_can_be_remembered() -> None:
    assert limits.OFFERS_MAX >= limits.WINDOW_BLOCKS_DEFAULT


def test_generated_items_can_be_published() -> None:
    assert MAKER_ITEM_BYTES_MAX < limits.ITEM_BYTES_MAX
    # Of a set that is one item: the tag and length of the item.
    assert size_in_set(bytes(MAKER_ITEM_BYTES_MAX)) <= limits.ITEM_BYTES_MAX
