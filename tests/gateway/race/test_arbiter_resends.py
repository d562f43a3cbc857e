"""The race after a failure: who is asked to resend, who may send, and whose time runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sluice.gateway.race.records import RaceRules
from tests.gateway.racing import ITEM, PROOF, Race, race_of_three


def test_alone_the_loser_of_a_block_may_send_it_again() -> None:
    race = race_of_three(hold="verified")
    race.block("Alice", 9)
    race.refused(9)
    race.connect("Alice")
    race.header("Alice", 9)
    race.expect("Alice", "skip 9")
    race.leave("Bob")
    race.expect("Alice")
    race.leave("Carol")
    race.expect("Alice", "resend 9")
    race.block("Alice", 9)
    race.verified(9)
    race.expect("Alice", "ack 9")


def test_where_all_have_failed_a_block_anyone_may_try_again() -> None:
    race = Race(8, "Alice", "Bob")
    for name in ("Alice", "Bob"):
        race.header(name, 9)
        race.leave(name)
        race.connect(name)
    race.block("Alice", 9)
    race.expect("Alice", "ack 9")


def test_alone_a_publisher_that_breaks_off_goes_back() -> None:
    race = Race(8, "Alice")
    race.header("Alice", 9)
    race.header("Alice", 10)
    race.expect("Alice", "behind 8")
    race.block("Alice", 9)
    race.expect("Alice", "ack 9")


def test_a_publisher_that_lost_a_block_goes_on_behind_it() -> None:
    """Behind would send it back to a block that it may not send, again and again."""
    race = Race(8, "Alice", "Bob")
    race.header("Alice", 9)
    race.header("Alice", 10)  # breaks off
    race.finish("Alice", 10)
    race.header("Alice", 12)
    race.header("Alice", 9)
    race.expect("Alice", "behind 8", "skip 9")
    race.header("Bob", 10)
    race.expect("Bob", "skip 10", "resend 9")
    race.block("Bob", 9)
    race.expect("Bob", "ack 9", "ack 10")


def test_a_publisher_that_lost_a_block_is_pardoned_when_nobody_else_brings_it() -> None:
    race = Race(8, "Alice", "Bob")
    race.header("Alice", 9)
    race.leave("Alice")
    race.connect("Alice")
    race.header("Alice", 9)
    race.expect("Alice", "skip 9")
    race.wait(5.9)
    race.header("Alice", 9)
    race.expect("Alice", "skip 9")
    race.wait(0.2)
    race.expect("Alice", "resend 9")
    race.expect("Bob")
    race.block("Alice", 9)
    race.expect("Alice", "ack 9")


def test_a_pardon_is_for_the_next_block_alone() -> None:
    """Nobody has waited for block 10 yet, so Bob may send it, and Alice, who failed it too, may not."""
    race = Race(8, "Alice", "Bob")
    race.header("Alice", 9)
    for number in (10, 11):
        race.leave("Alice")
        race.connect("Alice")
        race.header("Alice", number)
    race.wait(5.9)
    race.leave("Alice")
    race.connect("Alice")
    race.wait(0.2)  # from now on she may send 9 again
    race.block("Bob", 9)
    race.header("Alice", 10)
    race.expect("Alice", "ack 9", "skip 10")


def test_of_those_that_are_gone_only_so_many_are_remembered() -> None:
    """Each could come with another name while nobody brings the block."""
    race = Race(8, "Alice", "Bob", rules=RaceRules(blamed_publishers_kept=3))
    race.header("Alice", 9)
    race.header("Alice", 10)  # breaks off
    for number in range(20):
        name = f"passer-by {number}"
        race.connect(name)
        race.header(name, 9)
        race.leave(name)
    blamed = race.arbiter.blocks[9].blamed
    assert "Alice" in blamed
    assert len(blamed) <= 3
    race.header("Alice", 9)
    race.expect("Alice", "skip 9")
    race.block("Bob", 9)
    race.expect("Bob", "ack 9")


def test_a_header_that_crossed_with_a_resend_changes_nothing() -> None:
    """Carol had begun block 12 before she read that 9 is wanted: she is neither asked twice nor blamed."""
    race = race_of_three()
    race.header("Alice", 9)
    race.block("Bob", 10)
    race.header("Carol", 11)
    race.leave("Alice")
    race.expect("Carol", "resend 9")
    race.finish("Carol", 11)
    race.header("Carol", 12)
    race.expect("Carol")
    race.header("Carol", 9)
    assert race.dropped == [(9, "LEFT"), (12, "SENT_BACK")]
    race.finish("Carol", 9)
    race.header("Carol", 12)
    race.expect("Carol", "ack 9", "ack 10", "ack 11")
    assert race.winner_of[12] == "Carol"


def test_a_header_that_crossed_with_behind_is_nobodys_fault() -> None:
    race = race_of_three()
    race.header("Alice", 9)
    race.header("Carol", 11)
    race.header("Bob", 10)
    race.header("Carol", 11)  # sent before: the next unstreamed block by now
    race.header("Carol", 9)  # goes back, as Behind asked
    race.expect("Carol", "behind 8", "skip 9")
    assert race.dropped == [(11, "SENT_BACK")]


def test_a_publisher_that_asked_again_further_on_is_still_asked_to_resend() -> None:
    """It would not have come back to 9 by itself."""
    race = Race(8, "Alice", "Bob")
    race.header("Bob", 11)
    race.header("Alice", 9)
    race.items("Alice", PROOF)
    race.header("Alice", 10)
    race.header("Bob", 11)
    race.expect("Bob", "behind 8", "ack 9")
    race.leave("Alice")
    race.expect("Bob", "resend 10")


def test_resend_waits_until_the_block_is_next() -> None:
    race = race_of_three()
    race.header("Alice", 9)
    race.header("Bob", 9)
    race.header("Bob", 10)
    race.header("Carol", 9)
    race.header("Carol", 10)
    race.leave("Bob")
    race.expect("Carol", "skip 9", "skip 10")
    race.finish("Alice", 9)
    race.expect("Carol", "ack 9", "resend 10")
    race.expect("Alice", "ack 9")


def test_a_publisher_that_was_sent_back_is_not_told_again() -> None:
    race = race_of_three()
    race.header("Alice", 9)
    race.header("Bob", 9)
    race.header("Carol", 9)
    race.leave("Alice")
    race.expect("Bob", "skip 9", "resend 9")
    race.header("Carol", 9)
    race.leave("Carol")
    race.expect("Bob")
    race.block("Bob", 9)
    race.expect("Bob", "ack 9")


def test_a_block_that_was_begun_before_does_not_stall_the_one_that_is_sent_again() -> None:
    race = race_of_three()
    race.header("Alice", 9)
    race.block("Bob", 10, 11)
    race.header("Bob", 12)
    race.header("Carol", 13)
    race.finish("Bob", 12)
    race.expect("Alice", "end TIMEOUT last 8 about 9")
    race.header("Bob", 9)
    race.items("Carol", PROOF)
    race.end("Carol", 13)  # crossed with the request to resend 9
    race.expect("Bob", "resend 9")
    race.finish("Bob", 9)
    race.expect("Bob", *(f"ack {number}" for number in range(9, 14)))


def test_a_winner_is_stalled_by_a_block_that_was_complete_before_all_waited_for_it() -> None:
    race = race_of_three(hold="committed")
    race.connect("Dave")
    race.header("Alice", 9)
    race.header("Bob", 10)
    race.block("Carol", 11)
    race.block("Dave", 12)
    race.expect("Alice", "end TIMEOUT last 8 about 9")
    race.block("Carol", 13)  # far ahead of Bob, but nobody waits for Bob
    race.expect("Bob", "resend 9")
    race.block("Dave", 9)
    race.expect("Bob", "end TIMEOUT last 8 about 10")


def test_the_time_of_a_winner_above_an_open_block_stands_still() -> None:
    """Bob may have to go back for block 9."""
    race = race_of_three()
    race.header("Alice", 9)
    race.header("Bob", 10)
    race.wait(4)
    race.leave("Alice")
    race.expect("Bob", "resend 9")  # and does nothing more
    race.wait(20)
    race.expect("Bob")
    race.block("Carol", 9)
    race.wait(5.9)
    race.expect("Bob", "ack 9")
    race.wait(0.2)
    race.expect("Bob", "end TIMEOUT last 9 about 10")


def test_the_time_of_a_winner_does_not_begin_anew_when_others_fail() -> None:
    """Carol's false blocks 9 stop Bob's time for block 10, and give him no more."""
    race = race_of_three(hold="verified")
    race.header("Bob", 9)  # each of them will have failed block 9 once, so any may send it
    race.header("Bob", 10)
    race.wait(6)
    for name in ("Carol", "Alice"):
        race.block(name, 9)
        race.wait(2)
        race.refused(9)
        race.connect(name)
    race.wait(20)
    race.block("Carol", 9)
    race.verified(9)
    race.wait(1.9)
    assert (10, "TIMED_OUT") not in race.dropped
    race.wait(0.2)
    assert (10, "TIMED_OUT") in race.dropped


# --- who is blamed ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fail", "failure"),
    [
        (lambda race: race.bad_request("Alice"), "BAD_REQUEST"),
        (lambda race: race.items("Alice", *[ITEM] * 3), "TOO_LARGE"),
        (lambda race: race.wait(6), "TIMED_OUT"),
        (lambda race: (race.header("Bob", 9), race.block("Bob", 10)), "STALLED"),
        (lambda race: race.leave("Alice"), "LEFT"),
        (lambda race: race.header("Alice", 10), "ABANDONED"),
        (lambda race: (race.end("Alice", 9), race.refused(9)), "REFUSED"),
    ],
)
def test_who_failed_a_block_does_not_win_it_again_while_others_may(
    fail: Callable[[Race], object], failure: str
) -> None:
    race = Race(8, "Alice", "Bob", rules=RaceRules(block_items_max=3, stall_blocks=1), hold="verified")
    race.header("Alice", 9)
    fail(race)
    assert race.dropped == [(9, failure)]
    race.connect("Alice")
    race.header("Alice", 9)
    race.expect("Alice", "skip 9")


def test_who_was_not_at_fault_may_win_the_block_again() -> None:
    race = Race(8, "Alice", "Bob")
    race.header("Alice", 9)
    race._do(race.arbiter.publisher_failed(race.ids["Alice"], "a bug of ours", race.now_ns))
    race.connect("Alice")
    race.block("Alice", 9)
    race.expect("Alice", "ack 9")


def test_a_block_that_does_not_continue_the_chain_is_open_again() -> None:
    race = race_of_three(hold="linked")
    race.block("Alice", 9)
    race.refused(9)  # the link
    race.expect("Alice", "end BAD_BLOCK_PROOF last 8 about 9")
    race.header("Bob", 9)
    assert race.winner_of[9] == "Bob"
