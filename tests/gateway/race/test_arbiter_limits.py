"""Limits of memory and time in the race, and misuse by the caller."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from sluice.gateway.blocks.block_numbers import BLOCK_NUMBER_MAX
from sluice.gateway.limits import ITEM_OVERHEAD_BYTES
from sluice.gateway.race.actions import Action, AttemptId, PublisherId, Resend, SendResponse
from sluice.gateway.race.arbiter import RaceError
from sluice.gateway.race.records import RaceRules
from sluice.gateway.race.tables import BlockState, Failure
from tests.gateway.racing import HEADER, ITEM, PROOF, SECOND_NS, Race, race_of_three

# --- memory -------------------------------------------------------------------------------------------------


def test_over_the_limit_only_the_next_block_goes_on() -> None:
    race = race_of_three(rules=RaceRules(inflight_bytes_max=2 * (len(HEADER) + ITEM_OVERHEAD_BYTES)))
    race.header("Alice", 9)
    assert race.readers() == ["Alice", "Bob", "Carol"]
    race.header("Bob", 10)
    assert race.readers() == ["Alice"]
    race.leave("Alice")
    assert race.readers() == ["Bob", "Carol"]


def test_over_the_limit_a_later_block_makes_way_for_the_one_that_was_asked_for() -> None:
    race = race_of_three(rules=RaceRules(inflight_bytes_max=3 * ITEM_OVERHEAD_BYTES))
    race.header("Alice", 9)
    race.block("Bob", 10)
    race.header("Carol", 11)
    race.items("Carol", ITEM, ITEM)
    held = race.arbiter.inflight_bytes
    race.leave("Alice")
    race.expect("Bob", "resend 9")
    race.expect("Carol", "resend 9")
    assert race.readers() == ["Bob", "Carol"]
    race.items("Carol", ITEM)  # sent before she was asked
    assert race.dropped == [(9, "LEFT"), (11, "SENT_BACK")]
    assert race.arbiter.inflight_bytes < held
    race.header("Carol", 11)  # nor is it accepted while all is full
    race.items("Carol", ITEM)
    assert race.arbiter.inflight_bytes < held
    race.header("Carol", 9)
    race.end("Carol", 9)
    race.expect("Carol", "ack 9", "ack 10")


def test_over_its_own_limit_a_publisher_waits_and_the_others_do_not() -> None:
    race = race_of_three(rules=RaceRules(publisher_bytes_max=3 * ITEM_OVERHEAD_BYTES))
    race.header("Alice", 9)
    race.block("Bob", 10)
    assert race.readers() == ["Alice", "Carol"]
    assert race.arbiter.publisher_bytes["Bob"] >= 3 * ITEM_OVERHEAD_BYTES
    race.items("Alice", *[ITEM] * 8)  # over the limit too, but all wait for its block
    assert race.readers() == ["Alice", "Carol"]
    race.end("Alice", 9)
    assert race.readers() == ["Alice", "Bob", "Carol"]
    assert race.arbiter.publisher_bytes == race.arbiter.address_bytes == {}


def test_who_is_over_its_own_limit_may_still_send_the_block_that_all_wait_for() -> None:
    race = race_of_three(rules=RaceRules(publisher_bytes_max=3 * ITEM_OVERHEAD_BYTES))
    race.header("Alice", 9)
    race.block("Bob", 10)
    race.header("Bob", 11)
    race.leave("Alice")
    race.leave("Carol")
    race.expect("Bob", "resend 9")
    assert race.readers() == ["Bob"]
    held = race.arbiter.inflight_bytes
    race.items("Bob", ITEM)  # sent before it was asked, and dropped: it costs no memory
    assert race.dropped == [(9, "LEFT"), (11, "SENT_BACK")]
    assert race.arbiter.inflight_bytes < held
    race.block("Bob", 9)
    race.expect("Bob", "ack 9", "ack 10")
    race.block("Bob", 11)
    race.expect("Bob", "ack 11")


def test_what_a_publisher_holds_counts_over_all_its_streams_and_stays_when_it_leaves() -> None:
    race = Race(8, "Alice", "Bob", rules=RaceRules(publisher_bytes_max=3 * ITEM_OVERHEAD_BYTES))
    race.header("Alice", 9)
    race.block("Bob", 10)
    race.leave("Bob")
    race.connect("Bob")
    assert race.readers() == ["Alice"]


def test_publishers_of_one_address_share_its_limit() -> None:
    race = Race(8, "Alice", rules=RaceRules(address_bytes_max=3 * ITEM_OVERHEAD_BYTES))
    race.connect("Bob", "Carol", address="192.0.2.1")
    race.connect("Dave", address="192.0.2.2")
    race.header("Alice", 9)
    race.block("Bob", 10)
    assert race.readers() == ["Alice", "Dave"]
    race.leave("Alice")  # now all may send block 9, whatever memory they use
    assert race.readers() == ["Bob", "Carol", "Dave"]
    race.header("Carol", 9)
    assert race.readers() == ["Carol", "Dave"]
    race.end("Carol", 9)
    assert race.readers() == ["Bob", "Carol", "Dave"]


def test_a_peer_that_is_followed_is_under_no_limit_of_its_own() -> None:
    race = Race(8, "Alice", rules=RaceRules(publisher_bytes_max=1, address_bytes_max=1))
    race.connect("peer", is_peer=True)
    race.header("Alice", 9)
    race.block("peer", 10)
    race.header("peer", 11)
    assert race.readers() == ["Alice", "peer"]
    assert "peer" not in race.arbiter.publisher_bytes


# --- why a block is asked for again -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lose", "failure"),
    [
        (lambda race: race.leave("Alice"), Failure.LEFT),
        (lambda race: race.header("Alice", 12), Failure.ABANDONED),
        (lambda race: race.bad_request("Alice"), Failure.BAD_REQUEST),
        (lambda race: (race.end("Alice", 9), race.refused(9)), Failure.REFUSED),
        (lambda race: (race.end("Alice", 9), race.refused(9, failure=Failure.DISPUTED)), Failure.DISPUTED),
        (lambda race: race.wait(6), Failure.TIMED_OUT),
        (lambda race: race.block("Bob", 11, 12), Failure.STALLED),
    ],
)
def test_a_resend_says_how_the_block_was_lost(lose: Callable[[Race], object], failure: Failure) -> None:
    race = race_of_three(hold="verified")
    race.header("Alice", 9)
    race.block("Bob", 10)
    lose(race)
    race.expect("Bob", "resend 9")
    assert {
        action.response.failure
        for action in race.log
        if isinstance(action, SendResponse) and isinstance(action.response, Resend)
    } == {failure}


def test_the_time_of_a_publisher_that_is_not_read_begins_anew() -> None:
    race = race_of_three()
    race.header("Alice", 9)
    race.header("Bob", 10)
    race.arbiter.pause_reading(race.ids["Bob"])
    race.arbiter.pause_reading(race.ids["Carol"])
    race.wait(5)
    race.end("Alice", 9)
    race.wait(400)
    race.expect("Bob", "ack 9")
    race.expect("Carol", "ack 9")
    for name in ("Bob", "Carol"):
        race.arbiter.resume_reading(race.ids[name], race.now_ns)
    race.wait(5.9)
    race.expect("Bob")
    race.wait(0.2)
    race.expect("Bob", "end TIMEOUT last 9 about 10")
    race.wait(293)
    race.expect("Carol")
    race.wait(1)
    race.expect("Carol", "end TIMEOUT last 9 about 0")


def test_while_the_node_keeps_a_message_no_time_of_its_publisher_passes() -> None:
    """At one message in four seconds, Alice's block takes longer than the block timeout."""
    race = race_of_three()
    for name in ("Alice", "Bob"):
        race.header(name, 9)
    race.expect("Bob", "skip 9")
    for _ in range(3):
        race.wait(1)
        race.arbiter.delay(race.ids["Alice"], race.now_ns)
        race.wait(4)
        race.arbiter.go_on(race.ids["Alice"], race.now_ns)
        race.items("Alice", ITEM)
    race.wait(2.9)  # 5.9 s of her own
    race.expect("Alice")
    race.wait(0.2)
    race.expect("Alice", "end TIMEOUT last 8 about 9")


def test_a_delay_from_before_a_publishers_time_ran_is_not_given_twice() -> None:
    race = race_of_three()
    race.header("Alice", 9)
    race.header("Bob", 10)
    race.arbiter.delay(race.ids["Bob"], race.now_ns)
    race.wait(5)
    race.block("Alice", 9)  # Bob's time begins
    race.wait(4)
    race.arbiter.go_on(race.ids["Bob"], race.now_ns)
    race.wait(5.9)
    race.expect("Bob", "ack 9")
    race.wait(0.2)
    race.expect("Bob", "end TIMEOUT last 9 about 10")


def test_a_delay_in_which_a_publishers_time_stops_costs_it_none() -> None:
    race = race_of_three(hold="verified")
    race.block("Alice", 9)
    race.header("Bob", 10)
    race.wait(4)
    race.arbiter.delay(race.ids["Bob"], race.now_ns)
    race.wait(3)
    race.refused(9)
    race.wait(3)
    race.arbiter.go_on(race.ids["Bob"], race.now_ns)
    race.block("Carol", 9)
    race.verified(9)
    race.wait(1.9)
    assert race.dropped == [(9, "REFUSED")]
    race.wait(0.2)
    assert race.dropped == [(9, "REFUSED"), (10, "TIMED_OUT")]


def test_a_message_behind_a_proof_is_waited_for_while_the_node_keeps_it() -> None:
    race = race_of_three()
    race.header("Alice", 9)
    race.items("Alice", ITEM, PROOF)
    race.wait(1)
    race.arbiter.delay(race.ids["Alice"], race.now_ns)
    race.wait(4)
    race.expect("Alice")
    race.arbiter.go_on(race.ids["Alice"], race.now_ns)
    race.wait(0.9)
    race.expect("Alice")
    race.items("Alice", PROOF)
    race.wait(2.1)
    race.expect("Alice", "ack 9")


def test_who_is_delayed_before_its_first_header_is_not_closed_for_that() -> None:
    race = race_of_three()
    race.wait(290)
    race.arbiter.delay(race.ids["Alice"], race.now_ns)
    race.wait(20)
    race.expect("Alice")
    race.expect("Bob", "end TIMEOUT last 8 about 0")
    race.arbiter.go_on(race.ids["Alice"], race.now_ns)
    race.wait(9)
    race.expect("Alice")
    race.wait(2)
    race.expect("Alice", "end TIMEOUT last 8 about 0")


def test_a_goodbye_is_over_in_its_time_whatever_is_delayed_behind_it() -> None:
    """Else a publisher that goes on sending would keep its place."""
    race = race_of_three()
    race.header("Alice", 9)
    race.header("Bob", 9)
    race.end_stream("Bob")
    race.arbiter.delay(race.ids["Bob"], race.now_ns)
    race.wait(0.9)
    assert race.closed == []
    race.wait(0.2)
    assert race.closed == ["Bob"]


def test_who_is_delayed_is_stalled_all_the_same() -> None:
    """Else a publisher above its pace would keep all others from the block that they wait for."""
    race = race_of_three(rules=RaceRules(stall_blocks=1))
    race.header("Alice", 9)
    race.arbiter.delay(race.ids["Alice"], race.now_ns)
    race.block("Bob", 10)
    race.expect("Alice", "end TIMEOUT last 8 about 9")
    race.arbiter.go_on(race.ids["Alice"], race.now_ns)  # its message is dropped


def test_who_was_not_delayed_does_not_go_on() -> None:
    race = race_of_three()
    with pytest.raises(RaceError, match=r"publisher 1 \(Alice\): goes on, but was not delayed"):
        race.arbiter.go_on(race.ids["Alice"], 0)


def test_the_time_that_the_node_stood_still_is_nobodys() -> None:
    """Nobody is timed out, silent or stalled while the node could not hear."""
    race = Race(8, "Alice", "Bob", "Carol", "Idle")
    race.header("Alice", 9)
    race.header("Bob", 10)
    race.items("Bob", PROOF)
    race.wait(0.05)
    race.now_ns += 400 * SECOND_NS
    race.arbiter.stood_still(400 * SECOND_NS, race.now_ns)
    race.wait(0.04)
    race.finish("Bob", 10)
    race.wait(5.8)
    race.expect("Alice")
    race.finish("Alice", 9)
    race.expect("Bob", "ack 9", "ack 10")
    race.wait(294)
    race.expect("Idle", "ack 9", "ack 10")
    race.wait(1)
    race.expect("Idle", "end TIMEOUT last 10 about 0")


def test_who_failed_a_block_is_pardoned_no_earlier_for_the_node_having_stood_still() -> None:
    race = race_of_three()
    race.header("Alice", 9)
    race.bad_request("Alice")
    race.connect("Alice")
    for _ in range(2):
        race.header("Alice", 9)
        race.expect("Alice", "skip 9")
        race.now_ns += 60 * SECOND_NS
        race.arbiter.stood_still(60 * SECOND_NS, race.now_ns)
        race.wait(2.9)
    race.header("Alice", 9)
    race.expect("Alice", "skip 9")
    race.wait(0.3)
    race.expect("Alice", "resend 9")


@pytest.mark.parametrize("is_first", [True, False])
def test_a_pardon_waits_for_the_pause_wherever_its_time_began(is_first: bool) -> None:
    """Its time begins with the failure or the commit of the block before, whichever is later."""
    race = Race(8 if is_first else 7, "Alice", "Bob")
    if is_first:
        race.wait(5)
        race.header("Alice", 9)
    else:
        race.header("Bob", 8)
        race.header("Alice", 9)
    race.bad_request("Alice")
    race.connect("Alice")
    if not is_first:
        race.wait(5)
        race.finish("Bob", 8)
    race.header("Alice", 9)
    race.heard["Alice"].clear()
    race.now_ns += 4 * SECOND_NS
    race.arbiter.stood_still(4 * SECOND_NS, race.now_ns)
    race.wait(5.9)
    race.expect("Alice")
    race.wait(0.2)
    race.expect("Alice", "resend 9")


def test_no_time_is_given_that_has_not_passed() -> None:
    """A pause may begin before a block does."""
    race = race_of_three()
    race.wait(1)
    race.header("Alice", 9)
    race.connect("Dave")
    race.arbiter.stood_still(1000 * SECOND_NS, race.now_ns)
    race.wait(5.9)
    race.expect("Alice")
    race.wait(0.2)
    race.expect("Alice", "end TIMEOUT last 8 about 9")
    race.connect("Alice")
    race.header("Alice", 9)
    race.arbiter.stood_still(1000 * SECOND_NS, race.now_ns)
    race.wait(6.1)
    race.expect("Alice", "skip 9", "resend 9")
    race.wait(293)
    race.expect("Dave")
    race.wait(1)
    race.expect("Dave", "end TIMEOUT last 8 about 0")


def test_the_next_time_limit_is_known_whatever_has_changed_it() -> None:
    """It is cached; `check` recomputes it after each event."""
    race = Race(
        8,
        rules=RaceRules(
            block_timeout_ns=6 * SECOND_NS, idle_timeout_ns=SECOND_NS, proof_idle_ns=SECOND_NS // 10
        ),
    )
    race.connect("Alice", "Bob", "Carol")
    race.connect("Peer", is_peer=True)

    def limit_at() -> float | None:
        race.arbiter.check()
        limit_ns = race.arbiter.next_deadline_ns()
        return None if limit_ns is None else limit_ns / SECOND_NS

    assert limit_at() == 1  # for each one's first header
    race.header("Peer", 9)
    race.wait(0.5)
    for name in ("Alice", "Bob"):
        race.header(name, 10 if name == "Alice" else 9)
        assert limit_at() == 1
    race.arbiter.pause_reading(race.ids["Carol"])
    assert limit_at() == 6  # Peer's; others have the block
    race.arbiter.resume_reading(race.ids["Carol"], race.now_ns)
    assert limit_at() == 1.5
    race.header("Carol", 9)  # the last one without a header
    assert limit_at() == 6
    race.wait(0.1)
    race.items("Alice", ITEM, PROOF)  # what follows the proof
    assert limit_at() == 0.7
    race.wait(0.05)
    race.items("Alice", PROOF)
    assert limit_at() == 0.75
    race.arbiter.delay(race.ids["Alice"], race.now_ns)
    assert limit_at() == 6
    race.wait(0.1)
    race.arbiter.go_on(race.ids["Alice"], race.now_ns)
    assert limit_at() == 0.85
    race.arbiter.stood_still(SECOND_NS // 50, race.now_ns)
    assert limit_at() == 0.85  # from now on; no later than that
    race.end("Alice", 10)
    assert limit_at() == 6.02


def test_the_time_of_a_peer_ends_earlier_once_others_have_come_to_its_block() -> None:
    race = Race(8, rules=RaceRules(block_timeout_ns=6 * SECOND_NS))
    race.connect("Peer", is_peer=True)
    race.header("Peer", 9)
    race.connect("Alice")
    race.header("Alice", 10)
    race.arbiter.pause_reading(race.ids["Alice"])
    race.wait(2)
    race.items("Peer", ITEM)
    race.leave("Alice")
    assert race.arbiter.next_deadline_ns() == 8 * SECOND_NS
    race.wait(1)
    race.items("Peer", ITEM)
    assert race.arbiter.next_deadline_ns() == 9 * SECOND_NS
    race.connect("Bob")
    race.header("Bob", 9)
    race.expect("Bob", "skip 9")
    assert race.arbiter.next_deadline_ns() == 6 * SECOND_NS
    race.items("Peer", ITEM)
    assert race.arbiter.next_deadline_ns() == 6 * SECOND_NS


def test_so_it_does_where_they_have_skipped_other_blocks_before() -> None:
    race = Race(8, "Alice", "Bob", rules=RaceRules(block_timeout_ns=6 * SECOND_NS), hold="verified")
    race.block("Alice", 9)
    race.header("Bob", 9)
    race.connect("Peer", is_peer=True)
    race.header("Peer", 10)
    race.wait(2)
    race.items("Peer", ITEM)
    assert race.arbiter.next_deadline_ns() == 8 * SECOND_NS
    race.header("Bob", 10)
    race.expect("Bob", "skip 9", "skip 10")
    assert race.arbiter.next_deadline_ns() == 6 * SECOND_NS


def test_a_stream_that_skips_what_was_on_disk_before_it_came_has_a_time_limit() -> None:
    race = Race(8, "Alice", rules=RaceRules(duplicate_skip_window=5, late_acknowledgement_ns=SECOND_NS))
    race.header("Alice", 9)
    race.connect("Bob")
    race.arbiter.check()
    race.header("Bob", 7)
    race.expect("Bob", "skip 7")
    assert race.arbiter.next_deadline_ns() == SECOND_NS


# --- misuse -------------------------------------------------------------------------------------------------


def test_misuse_is_refused_and_changes_nothing() -> None:
    race = race_of_three()
    arbiter = race.arbiter
    with pytest.raises(RaceError, match=r"^publisher 1 \(Alice\): connected twice$"):
        arbiter.connected(race.ids["Alice"], "Alice", 0)
    with pytest.raises(RaceError, match=r"^publisher 77: not connected$"):
        arbiter.left(PublisherId(77), 0)
    race.header("Alice", 9)
    with pytest.raises(RaceError, match=r"^block 9: cannot take COMMITTED in state STREAMING$"):
        arbiter.committed(race.attempt_of[9], 0)
    with pytest.raises(RaceError, match=r"^attempt 99: committed, but it is not in flight$"):
        arbiter.committed(AttemptId(99), 0)
    assert arbiter.blocks[9].state is BlockState.STREAMING
    arbiter.check()


REPORTS: dict[str, Callable[[Race], Sequence[Action]]] = {
    "VERIFIED": lambda race: race.arbiter.verified(race.attempt_of[9], 0),
    "LINKED": lambda race: race.arbiter.linked(race.attempt_of[9], 0),
    "COMMITTED": lambda race: race.arbiter.committed(race.attempt_of[9], 0),
}
STATES = (BlockState.STREAMING, BlockState.COMPLETE, BlockState.VERIFIED, BlockState.COMMITTING)
ALLOWED = {
    (BlockState.COMPLETE, "VERIFIED"),
    (BlockState.VERIFIED, "LINKED"),
    (BlockState.COMMITTING, "COMMITTED"),
}


@pytest.mark.parametrize("report", REPORTS)
@pytest.mark.parametrize("state", STATES)
def test_a_report_that_does_not_fit_the_state_of_its_block_is_refused(state: BlockState, report: str) -> None:
    race = race_of_three(hold="verified linked committed")
    race.header("Alice", 9)
    steps: list[Callable[[], None]] = [
        lambda: race.end("Alice", 9),
        lambda: race.verified(9),
        lambda: race._do(race.arbiter.linked(race.attempt_of[9], 0)),
    ]
    for step in steps[: STATES.index(state)]:
        step()
    assert race.arbiter.blocks[9].state is state
    if (state, report) in ALLOWED:
        race._do(REPORTS[report](race))
        return
    with pytest.raises(RaceError) as caught:
        REPORTS[report](race)
    assert str(caught.value) == f"block 9: cannot take {report} in state {state.name}"
    assert race.arbiter.blocks[9].state is state


def test_late_verdicts_of_dropped_attempts_are_ignored() -> None:
    race = race_of_three(hold="verified")
    race.block("Alice", 9)
    race.refused(9)
    race.verified(9)
    race.refused(9)
    assert race.arbiter.blocks[9].state is BlockState.OPEN


def test_a_publisher_that_is_alone_may_take_its_time_as_long_as_it_goes_on_sending() -> None:
    race = Race(8, "Alice", rules=RaceRules(idle_timeout_ns=300 * SECOND_NS))
    race.header("Alice", 9)
    for _ in range(3):
        race.wait(299)
        race.items("Alice", ITEM)
    race.expect("Alice")
    race.wait(301)
    race.expect("Alice", "end TIMEOUT last 8 about 9")


def test_the_time_of_one_that_was_alone_begins_when_another_comes_that_could_bring_the_block() -> None:
    race = Race(8, "Alice")
    race.header("Alice", 9)
    race.wait(100)
    race.connect("Bob")
    race.wait(5.9)
    race.expect("Alice")
    race.connect("Carol")  # a third publisher gives no more time
    race.wait(0.2)
    race.expect("Alice", "end TIMEOUT last 8 about 9")


def test_the_time_of_one_that_is_alone_again_does_not_run() -> None:
    race = Race(8, "Alice", "Bob")
    race.header("Alice", 9)
    race.wait(5)
    race.leave("Bob")
    race.wait(100)
    race.expect("Alice")
    race.finish("Alice", 9)
    race.expect("Alice", "ack 9")


def test_one_that_is_alone_never_has_less_time_than_one_that_is_not() -> None:
    race = Race(8, "Alice", rules=RaceRules(idle_timeout_ns=SECOND_NS))
    race.header("Alice", 9)
    race.wait(5.9)
    race.expect("Alice")
    race.wait(0.2)
    race.expect("Alice", "end TIMEOUT last 8 about 9")


@pytest.mark.parametrize("number", [BLOCK_NUMBER_MAX + 1, (1 << 64) - 1])
def test_what_no_block_can_have_is_behind_and_no_target(number: int) -> None:
    race = Race(8, "Alice")
    race.header("Alice", number)
    race.expect("Alice", "behind 8")
    race.end_stream("Alice", target=number)
    assert race.targets == []
