"""Tests of what is read off the facts of a race; nothing here changes any."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from gateway.race_actions import AttemptId, PublisherId
from gateway.race_facts import LIVE, BlockFacts, RaceError, RaceFacts, RaceRules, StreamFacts
from gateway.race_tables import BlockState, Standing, StreamState

LAST = 8
NEXT = LAST + 1
HELD = (BlockState.COMPLETE, BlockState.VERIFIED, BlockState.COMMITTING)


def facts_with(*blocks: BlockFacts, last: int | None = LAST, rules: RaceRules | None = None) -> RaceFacts:
    """Facts that have these blocks."""
    facts = RaceFacts(last, 0, rules)
    for block in blocks:
        facts.blocks[block.number] = block
    return facts


def connect(facts: RaceFacts, name: str, state: StreamState = StreamState.BETWEEN) -> StreamFacts:
    """Add a stream."""
    publisher_id = PublisherId(len(facts.streams) + 1)
    stream = StreamFacts(publisher_id, name, state, since_ns=0)
    facts.streams[publisher_id] = stream
    return stream


# --- where a block stands -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "blamed", "others", "above"),
    list(product([None, BlockState.OPEN, BlockState.STREAMING, *HELD], *[[False, True]] * 3)),
)
def test_exactly_one_standing_for_every_combination_of_facts(
    state: BlockState | None, blamed: bool, others: bool, above: bool
) -> None:
    """Block L + 1 in every state, failed by P or not, with and without others, with a live block above."""
    facts = facts_with()
    connect(facts, "P")
    if others:
        connect(facts, "Q")
    if state is not None:
        facts.blocks[NEXT] = BlockFacts(NEXT, state, blamed={"P"} if blamed else set())
    if above:
        facts.blocks[NEXT + 1] = BlockFacts(NEXT + 1, BlockState.STREAMING)
    if state is BlockState.STREAMING:
        expected = Standing.STREAMING
    elif state in HELD:
        expected = Standing.HELD
    elif state is BlockState.OPEN and blamed and others:
        expected = Standing.WANTED_BUT_LOST_BY_P
    else:
        expected = Standing.WANTED
    assert facts.standing_of(NEXT, "P") is expected


def test_blocks_below_and_above() -> None:
    facts = facts_with(
        BlockFacts(9, BlockState.COMMITTING),
        BlockFacts(10, BlockState.OPEN),
        BlockFacts(11, BlockState.STREAMING),
    )
    connect(facts, "P")
    standings = [facts.standing_of(number, "P") for number in (0, 8, 9, 10, 11, 12, 13)]
    assert standings == [
        Standing.COMMITTED,
        Standing.COMMITTED,
        Standing.HELD,
        Standing.WANTED,
        Standing.STREAMING,
        Standing.WANTED,
        Standing.AHEAD,
    ]


def test_the_duplicate_skip_window() -> None:
    facts = facts_with(rules=RaceRules(duplicate_skip_window=3))
    standings = {number: facts.standing_of(number, "P") for number in range(4, 10)}
    assert standings == {
        4: Standing.COMMITTED,
        5: Standing.COMMITTED,
        6: Standing.COMMITTED_JUST_NOW,
        7: Standing.COMMITTED_JUST_NOW,
        8: Standing.COMMITTED_JUST_NOW,
        9: Standing.WANTED,
    }


@pytest.mark.parametrize("number", [0, 5, 1 << 63])
def test_a_node_that_begins_anywhere_wants_any_block_until_it_has_one(number: int) -> None:
    facts = RaceFacts(None, None)
    assert facts.standing_of(number, "P") is Standing.WANTED
    facts.blocks[7] = BlockFacts(7, BlockState.OPEN)
    assert facts.standing_of(number, "P") is Standing.WANTED
    facts.blocks[7].state = BlockState.STREAMING
    facts.first_number = 7
    expected = Standing.COMMITTED if number < 7 else Standing.AHEAD
    assert facts.standing_of(number, "P") is expected


def test_who_may_send_a_block_that_failed() -> None:
    block = BlockFacts(NEXT, BlockState.OPEN, blamed={"P", "gone"})
    facts = facts_with(block)
    connect(facts, "P")
    assert facts.may_send("P", block)  # everybody who is connected failed it
    assert facts.may_send("Q", block)
    connect(facts, "left", StreamState.ENDED)
    assert facts.may_send("P", block)
    connect(facts, "Q")
    assert not facts.may_send("P", block)
    assert facts.may_send("Q", block)


# --- numbers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last", "first", "next_number", "reported"),
    [(8, 0, 9, 8), (None, 0, 0, None), (None, 5, 5, 4), (None, None, 0, None), (0, 0, 1, 0), (8, 5, 9, 8)],
)
def test_the_next_block_and_the_last_as_publishers_hear_it(
    last: int | None, first: int | None, next_number: int, reported: int | None
) -> None:
    facts = RaceFacts(last, first)
    assert (facts.next_number, facts.next_unstreamed, facts.reported_last()) == (
        next_number,
        next_number,
        reported,
    )


def test_the_next_unstreamed_block_is_above_all_live_ones() -> None:
    facts = facts_with(BlockFacts(9, BlockState.OPEN), BlockFacts(12, BlockState.OPEN))
    assert facts.next_unstreamed == 9
    facts.blocks[10] = BlockFacts(10, BlockState.COMPLETE)
    assert facts.next_unstreamed == 11


@pytest.mark.parametrize("state", [None, *BlockState])
def test_the_slowest_block_is_sent_now_and_has_all_below_it(state: BlockState | None) -> None:
    streaming = BlockFacts(10, BlockState.STREAMING)
    facts = facts_with(streaming)
    if state is not None:
        facts.blocks[9] = BlockFacts(9, state)
    if state is None or state is BlockState.OPEN:
        expected = None
    elif state is BlockState.STREAMING:
        expected = facts.blocks[9]
    else:
        expected = streaming
    assert facts.slowest() is expected


@pytest.mark.parametrize("state", list(BlockState))
def test_a_stream_awaits_what_it_offered(state: BlockState) -> None:
    facts = facts_with(BlockFacts(10, state))
    stream = connect(facts, "P")
    assert not facts.awaits(stream)
    stream.offered_max = 10
    assert facts.awaits(stream) == (state in LIVE)
    stream.offered_max = 9
    assert not facts.awaits(stream)


@pytest.mark.parametrize("state", [None, *BlockState])
def test_shutting_down_finishes_the_next_block_if_it_is_in_flight(state: BlockState | None) -> None:
    facts = facts_with(BlockFacts(10, BlockState.VERIFIED))
    assert not facts.is_finishing()
    if state is not None:
        facts.blocks[9] = BlockFacts(9, state)
    assert facts.is_finishing() == (state in LIVE)


def test_publishers_that_have_gone_do_not_count() -> None:
    facts = facts_with()
    for state in StreamState:
        connect(facts, state.name, state)
    assert facts.publisher_count == len(StreamState) - 2


# --- pushing back -------------------------------------------------------------------------------------------


def test_under_the_limit_everybody_is_read() -> None:
    facts = facts_with(BlockFacts(9, BlockState.STREAMING))
    stream = connect(facts, "P")
    facts.inflight_bytes = 99
    assert facts.may_read(stream.publisher_id, 100)
    facts.inflight_bytes = 100
    assert not facts.may_read(stream.publisher_id, 100)


@pytest.mark.parametrize(
    ("state", "sender", "other"),
    [
        (None, True, True),
        (BlockState.OPEN, True, True),
        (BlockState.STREAMING, True, False),
        (BlockState.COMPLETE, False, False),
        (BlockState.VERIFIED, False, False),
        (BlockState.COMMITTING, False, False),
    ],
)
def test_over_the_limit_only_what_frees_memory_is_read(
    state: BlockState | None, sender: bool, other: bool
) -> None:
    facts = facts_with()
    winner, loser = connect(facts, "P", StreamState.SENDING), connect(facts, "Q")
    if state is not None:
        facts.blocks[9] = BlockFacts(9, state)
        winner.block = facts.blocks[9] if state is BlockState.STREAMING else None
    facts.inflight_bytes = 1000
    assert facts.may_read(winner.publisher_id, 100) == sender
    assert facts.may_read(loser.publisher_id, 100) == other


@pytest.mark.parametrize("state", [StreamState.FINISHED, StreamState.ENDED])
def test_who_has_gone_is_read_to_its_end(state: StreamState) -> None:
    facts = facts_with(BlockFacts(9, BlockState.STREAMING))
    facts.inflight_bytes = 1000
    assert facts.may_read(connect(facts, "P", state).publisher_id, 100)
    assert facts.may_read(PublisherId(99), 100)


# --- time ---------------------------------------------------------------------------------------------------

RULES = RaceRules(proof_idle_ns=10, block_timeout_ns=100, idle_timeout_ns=1000)


@pytest.mark.parametrize("state", list(StreamState))
def test_the_time_limit_of_each_state(state: StreamState) -> None:
    facts = facts_with(rules=RULES)
    stream = connect(facts, "P", state)
    stream.since_ns, stream.closes_at_ns = 7, 77
    expected = {StreamState.PROVEN: 17, StreamState.FRESH: 1007, StreamState.FINISHED: 77}.get(state)
    assert facts.stream_deadline(stream) == expected
    assert facts.next_deadline_ns() == expected


def test_a_limit_of_0_is_none() -> None:
    facts = facts_with(
        BlockFacts(9, BlockState.STREAMING), rules=RaceRules(block_timeout_ns=0, idle_timeout_ns=0)
    )
    connect(facts, "fresh", StreamState.FRESH)
    connect(facts, "finished", StreamState.FINISHED)
    assert facts.next_deadline_ns() is None


def test_the_first_deadline_comes_first() -> None:
    facts = facts_with(BlockFacts(9, BlockState.STREAMING, begun_ns=50), rules=RULES)
    assert facts.next_deadline_ns() == 150
    connect(facts, "P", StreamState.PROVEN).since_ns = 60
    assert facts.next_deadline_ns() == 70


# --- misuse, and the invariants -----------------------------------------------------------------------------


def test_a_stream_that_is_not_there_is_our_bug() -> None:
    with pytest.raises(RaceError) as caught:
        facts_with().stream(PublisherId(3))
    assert str(caught.value) == "publisher 3: not connected"


def sound() -> RaceFacts:
    """P sends block 9; all invariants hold."""
    block = BlockFacts(9, BlockState.STREAMING, AttemptId(1), winner=PublisherId(1), size_bytes=5)
    facts = facts_with(block)
    facts.attempts[block.attempt_id] = block
    facts.inflight_bytes = 5
    stream = connect(facts, "P", StreamState.SENDING)
    stream.block = block
    facts.check()
    return facts


SPOILERS: list[Callable[[RaceFacts], object]] = [
    lambda facts: setattr(facts, "inflight_bytes", 6),
    lambda facts: setattr(facts.blocks[9], "state", BlockState.COMPLETE),
    lambda facts: setattr(facts.blocks[9], "winner", PublisherId(2)),
    lambda facts: setattr(facts.blocks[9], "number", 8),
    lambda facts: facts.attempts.clear(),
    lambda facts: setattr(facts.streams[PublisherId(1)], "block", None),
    lambda facts: setattr(facts.streams[PublisherId(1)], "state", StreamState.BETWEEN),
    lambda facts: setattr(facts, "last_number", 9),
    lambda facts: facts.blocks.update({11: BlockFacts(11, BlockState.COMMITTING)}),
]


@pytest.mark.parametrize("spoil", SPOILERS)
def test_check_sees_each_broken_invariant(spoil: Callable[[RaceFacts], object]) -> None:
    facts = sound()
    spoil(facts)
    with pytest.raises(AssertionError):
        facts.check()


@pytest.mark.parametrize(("next_offer", "is_stuck"), [(None, False), (9, False), (10, True)])
def test_check_sees_a_race_that_is_stuck(next_offer: int | None, is_stuck: bool) -> None:
    facts = facts_with(BlockFacts(9, BlockState.OPEN))
    connect(facts, "P").next_offer = next_offer
    if is_stuck:
        with pytest.raises(AssertionError):
            facts.check()
    else:
        facts.check()
