"""How streams end, by the publisher's word and by the node's trouble, and what becomes of blocks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sluice.gateway.race.actions import Idle
from sluice.gateway.race.tables import Failure
from tests.gateway.racing import ITEM, PROOF, Race, race_of_three

# --- the end of a stream ------------------------------------------------------------------------------------


def test_end_stream_right_after_the_proof_completes_the_block() -> None:
    race = Race(8, "Alice", hold="committed")
    race.header("Alice", 9, proven=True)
    race.end_stream("Alice")
    assert race.closed == []
    race.commit(9)
    race.expect("Alice", "ack 9")
    assert race.closed == ["Alice"]


def test_too_far_behind_sets_the_target_of_catch_up() -> None:
    race = Race(8, "Alice")
    race.header("Alice", 20)
    race.end_stream("Alice", target=33)
    race.expect("Alice", "behind 8")
    assert race.arbiter.catch_up_target == 33
    assert race.targets == [20, 33]


def test_only_a_higher_target_of_catch_up_is_told() -> None:
    race = Race(8, "Alice", "Bob")
    for number in (20, 15, 20, 21):
        race.header("Alice", number)
    race.end_stream("Bob", target=15)
    assert race.targets == [20, 21]
    race.end_stream("Bob", target=99)  # it has gone
    assert race.arbiter.catch_up_target == 21


@pytest.mark.parametrize(("target", "targets"), [(8, []), (9, [9])])
def test_what_too_far_behind_names_is_a_target_where_the_node_lacks_it(
    target: int, targets: list[int]
) -> None:
    race = Race(8, "Alice")
    race.end_stream("Alice", target=target)
    assert race.targets == targets


def test_the_error_of_the_last_publisher_is_told_to_subscribers() -> None:
    race = race_of_three()
    race.header("Alice", 9)
    race.end_stream("Alice", is_error=True)
    race.end_stream("Bob")
    assert race.source_errors == []
    race.end_stream("Carol", is_error=True)
    assert race.source_errors == ["Carol"]
    race.end_stream("Carol", is_error=True)
    assert race.source_errors == ["Carol"]


def test_after_half_close_a_publisher_hears_of_its_blocks() -> None:
    race = race_of_three(hold="committed")
    race.block("Alice", 9)
    race.header("Bob", 9)
    race.half_close("Alice")
    race.half_close("Bob")
    race.half_close("Carol")
    race.wait(3)  # however long they take
    assert race.closed == ["Carol"]
    race.commit(9)
    race.expect("Alice", "ack 9")
    race.expect("Bob", "skip 9", "ack 9")
    assert race.closed == ["Carol", "Alice", "Bob"]


def test_a_stream_that_said_goodbye_is_closed_in_time() -> None:
    race = Race(8, "Alice", hold="committed")
    race.block("Alice", 9)
    race.end_stream("Alice")
    race.wait(1.1)
    assert race.closed == ["Alice"]
    race.commit(9)
    race.expect("Alice")


@pytest.mark.parametrize(
    "say",
    [
        lambda race: race.header("Alice", 10),
        lambda race: race.items("Alice", ITEM),
        lambda race: race.items("Alice", PROOF),
        lambda race: race.end("Alice", 9),
        lambda race: race.end("Alice", 10),
        lambda race: race.half_close("Alice"),
    ],
)
def test_what_comes_after_goodbye_gives_no_more_time(say: Callable[[Race], None]) -> None:
    race = Race(8, "Alice", hold="committed")
    race.block("Alice", 9)
    race.end_stream("Alice")
    say(race)
    race.wait(1.1)
    assert race.closed == ["Alice"]


# --- the node's own trouble ---------------------------------------------------------------------------------


def test_a_failed_commit_ends_every_stream_and_drops_everything() -> None:
    race = race_of_three(hold="committed")
    race.block("Alice", 9)
    race.block("Bob", 10)
    race.header("Carol", 11)
    race.commit_failed(9)
    for name in ("Alice", "Bob", "Carol"):
        race.expect(name, "end PERSISTENCE_FAILED last 8 about 9")
    assert race.arbiter.inflight_bytes == 0
    race.connect("Dave")
    race.expect("Dave", "end PERSISTENCE_FAILED last 8 about 9")
    race.arbiter.disk_recovered()
    race.connect("Erin")
    race.block("Erin", 9)
    race.commit(9)
    race.expect("Erin", "ack 9")


def test_a_failed_commit_leaves_the_blocks_below_it() -> None:
    """They are on disk and wait for standbys."""
    race = race_of_three(hold="committed")
    race.block("Alice", 9, 10)
    race.header("Bob", 11)
    race.commit_failed(10)
    assert race.dropped == [(10, "NODE"), (11, "NODE")]
    race.expect("Carol", "end PERSISTENCE_FAILED last 8 about 10")
    race.connect("late")
    race.expect("late", "end PERSISTENCE_FAILED last 8 about 10")
    race.arbiter.disk_recovered()
    race.connect("Dave")
    race.header("Dave", 9)
    race.commit(9)
    race.expect("Dave", "skip 9", "ack 9")
    race.header("Dave", 10)
    assert race.winner_of[10] == "Dave"


def test_an_error_with_one_message_ends_one_stream() -> None:
    race = race_of_three()
    race.header("Alice", 9)
    race.header("Bob", 9)
    race._do(race.arbiter.publisher_failed(race.ids["Alice"], "ValueError", race.now_ns))
    race.expect("Alice", "end ERROR last 8 about 0")
    race.expect("Bob", "skip 9", "resend 9")
    race.expect("Carol")


def test_shutdown_finishes_complete_blocks_and_ends_all_streams() -> None:
    race = race_of_three(hold="committed")
    race.block("Alice", 9)
    race.header("Bob", 10)
    race.shutdown()
    race.expect("Alice")
    race.commit(9)
    for name in ("Alice", "Bob", "Carol"):
        race.expect(name, "ack 9", "end SUCCESS last 9 about 0")
    assert race.log.count(Idle()) == 1
    race.connect("Dave")
    race.expect("Dave", "end SUCCESS last 9 about 0")


def test_a_shutdown_whose_time_is_over_ends_all_streams_though_a_block_is_not_acknowledged() -> None:
    race = race_of_three(hold="committed")
    race.block("Alice", 9)
    race.header("Bob", 10)
    race.shutdown()
    race.give_up()
    for name in ("Alice", "Bob", "Carol"):
        race.expect(name, "end SUCCESS last 8 about 0")
    race.commit(9)
    for name in ("Alice", "Bob", "Carol"):
        race.expect(name)
    assert race.log.count(Idle()) == 1


@pytest.mark.parametrize("failure", [Failure.DISPUTED, Failure.UNCHECKED])
def test_who_may_be_right_hears_error_and_does_not_keep_others_from_the_block(failure: Failure) -> None:
    """DISPUTED: the node's own block may be wrong, too. UNCHECKED: the node cannot tell."""
    race = race_of_three(hold="verified")
    race.block("Alice", 9)
    race.header("Bob", 9)
    race.refused(9, failure=failure)
    race.expect("Alice", "end ERROR last 8 about 9")
    race.expect("Bob", "skip 9", "resend 9")
    race.connect("Alice")
    race.header("Alice", 9)
    race.expect("Alice", "skip 9")
