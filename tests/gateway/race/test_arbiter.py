"""The publish race: every rule, and the protocol's own example."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sluice.gateway.limits import BLOCK_ITEMS_MAX
from sluice.gateway.race.actions import Stray
from sluice.gateway.race.records import RaceRules
from tests.gateway.racing import ITEM, PROOF, Race, race_of_three

# --- the base protocol --------------------------------------------------------------------------------------


def test_the_next_block_is_accepted_and_acknowledged() -> None:
    race = Race(None, "Alice")
    race.block("Alice", 0, 1)
    race.expect("Alice", "ack 0", "ack 1")
    assert race.committed == [0, 1]


@pytest.mark.parametrize("number", [0, 7, 8])
def test_a_committed_block_is_answered_with_duplicate_and_the_stream_ends(number: int) -> None:
    race = Race(8, "Alice")
    race.header("Alice", number)
    race.expect("Alice", "end DUPLICATE_BLOCK last 8 about 0")
    assert race.closed == ["Alice"]
    race.block("Alice", 9)
    race.expect("Alice")
    assert race.committed == []


def test_a_skipped_block_from_before_the_stream_is_acknowledged_late() -> None:
    """The chain may have ended: no later acknowledgement says that the block is safe."""
    race = Race(8, "Alice", "Bob", rules=RaceRules(duplicate_skip_window=5))
    race.block("Alice", 9)
    race.connect("Carol")
    for name, number in (("Bob", 9), ("Carol", 8), ("Carol", 9)):
        race.header(name, number)
    race.expect("Bob", "ack 9", "skip 9")
    race.expect("Carol", "skip 8", "skip 9")
    race.half_close("Carol")
    race.wait(0.9)
    race.expect("Carol")
    race.wait(0.2)
    race.expect("Carol", "ack 9")
    assert race.closed == ["Carol"]
    race.wait(5)
    race.expect("Bob")


def test_a_later_acknowledgement_pays_what_is_owed() -> None:
    race = Race(8, "Alice", rules=RaceRules(duplicate_skip_window=5))
    race.header("Alice", 8)
    race.block("Alice", 9)
    race.wait(5)
    race.expect("Alice", "skip 8", "ack 9")


def test_a_block_ahead_is_answered_with_behind_and_the_stream_goes_on() -> None:
    race = Race(8, "Alice")
    race.header("Alice", 10)
    race.items("Alice", ITEM, PROOF)
    race.end("Alice", 10)
    race.header("Alice", 12)
    race.expect("Alice", "behind 8", "behind 8")
    assert race.arbiter.catch_up_target == 12
    race.block("Alice", 9)
    race.expect("Alice", "ack 9")


def test_an_empty_node_may_begin_later() -> None:
    race = Race(None, "Alice", first=5)
    race.header("Alice", 6)
    race.expect("Alice", "behind None")
    race.block("Alice", 5)
    race.expect("Alice", "ack 5")


def test_an_empty_node_may_begin_anywhere() -> None:
    race = Race(None, "Alice", "Bob", first=None)
    race.header("Alice", 7)
    race.header("Bob", 9)
    race.expect("Bob", "behind None")  # block 7 may still fail
    race.leave("Alice")
    race.block("Bob", 9, 10)
    race.expect("Bob", "ack 9", "ack 10")


@pytest.mark.parametrize(
    ("last", "first", "number"), [(None, 1000, 0), (None, 1000, 999), (1003, 1000, 5), (1000, 1000, 999)]
)
def test_nobody_hears_that_a_block_below_the_first_one_is_stored(
    last: int | None, first: int, number: int
) -> None:
    """A number, a skip or a later acknowledgement would count as stored."""
    race = Race(last, "Alice", "Bob", first=first, rules=RaceRules(duplicate_skip_window=5))
    race.header("Bob", number)
    race.items("Bob", ITEM)
    race.block("Alice", first if last is None else last + 1)
    race.expect("Bob", f"end ERROR last None about {number}")
    assert race.closed == ["Bob"]


def test_a_block_below_the_first_that_was_offered_is_not_taken_while_that_may_still_be_stored() -> None:
    race = Race(None, "Alice", "Bob", first=None, hold="committed")
    race.block("Alice", 7)
    race.header("Bob", 5)
    race.items("Bob", ITEM)
    race.commit(7)
    race.expect("Bob", "end ERROR last None about 5")
    assert race.committed == [7]


def test_an_empty_node_may_begin_below_what_failed_first() -> None:
    race = Race(None, "Alice", "Bob", first=None)
    race.header("Alice", 7)
    race.leave("Alice")
    race.block("Bob", 3, 4)
    race.expect("Bob", "ack 3", "ack 4")
    race.header("Bob", 2)
    race.expect("Bob", "end ERROR last None about 2")


def test_a_block_is_complete_at_the_next_header_after_its_proof() -> None:
    race = Race(None, "Alice")
    race.header("Alice", 0, proven=True)
    race.header("Alice", 1)
    race.expect("Alice", "ack 0")


def test_a_block_is_complete_when_nothing_follows_its_proof() -> None:
    race = Race(None, "Alice")
    race.header("Alice", 0)
    race.items("Alice", ITEM, PROOF)
    race.wait(1.9)
    race.items("Alice", PROOF)
    race.wait(1.9)
    race.expect("Alice")
    race.wait(0.2)
    race.expect("Alice", "ack 0")
    race.end("Alice", 0)  # late, harmless
    race.items("Alice", PROOF)  # late, too late
    race.expect("Alice")


# --- requests that break the protocol -----------------------------------------------------------------------


STRAYS: tuple[Callable[[Race], None], ...] = (
    lambda race: race.items("Alice"),
    lambda race: race.items("Alice", PROOF),
    lambda race: race.end("Alice", 9),
    lambda race: race.end("Alice", 7),
)


@pytest.mark.parametrize("stray", STRAYS)
@pytest.mark.parametrize("most", [0, 2])
def test_messages_that_belong_to_no_block_are_dropped_up_to_so_many_in_a_row(
    stray: Callable[[Race], None], most: int
) -> None:
    race = Race(8, "Alice", rules=RaceRules(stray_messages_max=most))
    for _ in range(most):
        stray(race)
    if most:
        race.block("Alice", 9)  # the stream goes on, and counts anew
        race.expect("Alice", "ack 9")
        race.items("Alice")
        race.end("Alice", 7)
        assert [action.is_first for action in race.log if isinstance(action, Stray)] == [True, False] * 2
    race.expect("Alice")
    race.items("Alice")
    race.expect("Alice", f"end INVALID_REQUEST last {9 if most else 8} about 0")


def test_a_malformed_message_opens_the_block_for_others() -> None:
    race = race_of_three()
    race.header("Alice", 9)
    race.header("Bob", 9)
    race.bad_request("Alice")
    race.expect("Alice", "end INVALID_REQUEST last 8 about 9")
    race.expect("Bob", "skip 9", "resend 9")
    race.block("Bob", 9)
    race.expect("Bob", "ack 9")


def test_a_block_above_the_limit_is_refused() -> None:
    race = Race(8, "Alice", rules=RaceRules(block_bytes_max=10))
    race.header("Alice", 9)
    race.items("Alice", ITEM)
    race.expect("Alice")
    race.items("Alice", b"x")
    race.expect("Alice", "end INVALID_REQUEST last 8 about 9")
    assert race.dropped == [(9, "TOO_LARGE")]
    assert race.arbiter.inflight_bytes == 0


def test_a_block_with_too_many_items_is_refused() -> None:
    assert RaceRules().block_items_max == BLOCK_ITEMS_MAX  # too many for a test
    race = Race(8, "Alice", rules=RaceRules(block_items_max=3))
    race.header("Alice", 9)
    race.items("Alice", ITEM, ITEM)
    race.expect("Alice")
    race.items("Alice", ITEM)
    race.expect("Alice", "end INVALID_REQUEST last 8 about 9")
    assert race.dropped == [(9, "TOO_LARGE")]


# --- several publishers -------------------------------------------------------------------------------------


def test_the_first_header_wins_and_all_hear_the_acknowledgement() -> None:
    race = race_of_three(hold="committed")
    race.block("Bob", 9)
    for name in ("Alice", "Carol"):
        race.header(name, 9)
        race.expect(name, "skip 9")
        race.items(name)
        race.end(name, 9)
    race.expect("Bob")
    race.commit(9)
    for name in ("Alice", "Bob", "Carol"):
        race.expect(name, "ack 9")


def test_a_publisher_that_connects_later_does_not_hear_old_acknowledgements() -> None:
    race = race_of_three()
    race.block("Alice", 9)
    race.connect("Dave")
    race.block("Alice", 10)
    race.expect("Dave", "ack 10")


def test_blocks_are_committed_in_order_though_verified_in_another() -> None:
    race = race_of_three(hold="verified")
    race.block("Alice", 9)
    race.block("Bob", 10)
    race.block("Carol", 11)
    race.verified(11)
    race.verified(10)
    assert race.committed == []
    race.verified(9)
    assert race.committed == [9, 10, 11]
    race.expect("Alice", "ack 9", "ack 10", "ack 11")


def test_a_refused_block_is_sent_by_another() -> None:
    race = race_of_three(hold="verified")
    race.block("Alice", 9)
    race.header("Bob", 9)
    race.refused(9)
    race.expect("Alice", "end BAD_BLOCK_PROOF last 8 about 9")
    race.expect("Bob", "skip 9", "resend 9")
    race.expect("Carol")
    race.connect("Alice")
    race.header("Alice", 9)
    race.expect("Alice", "skip 9")  # it failed this block, and others are here
    race.block("Carol", 9)
    race.verified(9)
    race.expect("Carol", "ack 9")


def test_a_refused_block_leaves_the_complete_ones_above_it() -> None:
    race = race_of_three(hold="verified")
    race.block("Alice", 9)
    race.block("Bob", 10)
    race.header("Carol", 11)
    race.refused(9)
    assert race.dropped == [(9, "REFUSED")]
    race.expect("Bob", "resend 9")
    race.block("Bob", 9, 10)
    race.expect("Bob", "skip 10")
    for number in (10, 9):
        race.verified(number)
    race.expect("Bob", "ack 9", "ack 10")


def test_a_winner_that_leaves_in_mid_block_opens_it() -> None:
    race = race_of_three()
    race.header("Alice", 9)
    race.header("Bob", 9)
    race.leave("Alice")
    race.expect("Bob", "skip 9", "resend 9")
    race.expect("Carol")  # will come to block 9 by itself
    race.block("Carol", 9)
    race.header("Bob", 9)
    race.expect("Carol", "ack 9")
    race.expect("Bob", "ack 9", "end DUPLICATE_BLOCK last 9 about 0")


def test_a_winner_that_leaves_after_the_end_keeps_its_block() -> None:
    race = race_of_three(hold="verified")
    race.block("Alice", 9)
    race.leave("Alice")
    race.verified(9)
    race.expect("Bob", "ack 9")
    race.expect("Carol", "ack 9")


def test_a_refused_block_of_a_winner_that_left_is_resent_by_others() -> None:
    race = race_of_three(hold="verified")
    race.block("Alice", 9)
    race.header("Bob", 9)
    race.leave("Alice")
    race.refused(9)
    race.expect("Bob", "skip 9", "resend 9")


def test_the_same_header_again_starts_the_block_over() -> None:
    race = race_of_three()
    race.header("Alice", 9)
    race.items("Alice")
    race.block("Alice", 9)
    race.expect("Alice", "ack 9")
    race.expect("Bob", "ack 9")
    assert race.dropped == [(9, "RESTARTED")]


def test_the_example_of_the_protocol() -> None:
    race = race_of_three()
    race.header("Alice", 9)
    race.header("Bob", 9)
    race.header("Carol", 9)
    race.block("Bob", 10)
    race.header("Carol", 10)
    race.now_ns += 3_000_000_000
    race.header("Carol", 11)
    race.expect("Bob", "skip 9")
    race.expect("Carol", "skip 9", "skip 10")
    race.wait(3)
    race.expect("Alice", "end TIMEOUT last 8 about 9")
    race.expect("Bob", "resend 9")
    race.expect("Carol", "resend 9")
    race.held = {"committed"}
    race.header("Bob", 9)
    for number in (9, 10, 11):
        race.header("Carol", number)
    race.expect("Carol", "skip 9", "skip 10")
    assert race.winner_of[11] == "Carol"
    race.finish("Bob", 9)
    race.header("Bob", 10)
    race.header("Bob", 11)
    race.expect("Bob", "skip 10", "skip 11")
    race.commit(9)
    race.commit(10)
    race.expect("Bob", "ack 9", "ack 10")
    race.leave("Alice")
    race.connect("Alice")
    race.header("Alice", 9)
    race.expect("Alice", "end DUPLICATE_BLOCK last 10 about 0")
    race.leave("Alice")
    race.connect("Alice")
    race.header("Alice", 11)
    race.header("Alice", 12)
    race.expect("Alice", "skip 11")
    assert race.winner_of[12] == "Alice"
    race.finish("Carol", 11)
    race.commit(11)
    for name in ("Alice", "Bob", "Carol"):
        race.expect(name, *(["ack 9", "ack 10"] if name == "Carol" else []), "ack 11")


# --- time ---------------------------------------------------------------------------------------------------


def test_only_the_winner_of_the_lowest_block_is_timed_out() -> None:
    race = race_of_three()
    race.header("Alice", 9)
    race.header("Bob", 9)
    race.header("Bob", 10)
    race.wait(5.9)
    race.expect("Alice")
    race.wait(0.2)
    race.expect("Alice", "end TIMEOUT last 8 about 9")
    race.expect("Bob", "skip 9", "resend 9")
    assert race.dropped == [(9, "TIMED_OUT")]


def test_a_winner_is_timed_out_when_others_are_far_ahead() -> None:
    race = race_of_three()
    race.header("Alice", 9)
    race.block("Bob", 10, 11)
    race.expect("Alice")
    race.block("Bob", 12)
    race.expect("Alice", "end TIMEOUT last 8 about 9")
    race.expect("Bob", "resend 9")
    race.block("Bob", 9)
    race.expect("Bob", "ack 9", "ack 10", "ack 11", "ack 12")


def test_a_publisher_without_a_header_is_closed() -> None:
    race = race_of_three()
    race.header("Alice", 9)
    race.header("Bob", 9)
    race.wait(301)
    race.expect("Carol", "end TIMEOUT last 8 about 0")
    assert "Carol" in race.closed
