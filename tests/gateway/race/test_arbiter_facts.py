"""What the arbiter reads off its records, without any event."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import pytest

from sluice.gateway.blocks.block_numbers import BLOCK_NUMBER_MAX
from sluice.gateway.race.actions import AttemptId, PublisherId
from sluice.gateway.race.arbiter import Arbiter, RaceError
from sluice.gateway.race.records import BlockRecord, RaceRules, StreamRecord
from sluice.gateway.race.tables import LIVE, BlockState, Standing, StreamState
from tests.gateway.racing import Race

LAST = 8
NEXT = LAST + 1
RECEIVED = (BlockState.COMPLETE, BlockState.VERIFIED, BlockState.COMMITTING)


def facts_with(*blocks: BlockRecord, last: int | None = LAST, rules: RaceRules | None = None) -> Arbiter:
    facts = Arbiter(last, 0, rules)
    for block in blocks:
        put(facts, block)
    return facts


def put(facts: Arbiter, block: BlockRecord) -> BlockRecord:
    """Add a block in its state, or update it."""
    facts.blocks[block.number] = block
    state = block.state
    for block.state in (BlockState.STREAMING, state):
        facts._index(block)
    facts._deadline_is_known = False
    return block


def connect(facts: Arbiter, name: str, state: StreamState = StreamState.BETWEEN) -> StreamRecord:
    publisher_id = PublisherId(len(facts.streams) + 1)
    stream = StreamRecord(publisher_id, name, state, since_ns=0)
    facts.streams[publisher_id] = stream
    facts._deadline_is_known = False
    return stream


def named(name: str) -> StreamRecord:
    return StreamRecord(PublisherId(99), name, StreamState.BETWEEN, since_ns=0)


# --- where a block stands -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "blamed", "others", "above"),
    list(product([None, BlockState.OPEN, BlockState.STREAMING, *RECEIVED], *[[False, True]] * 3)),
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
        put(facts, BlockRecord(NEXT, state, blamed={"P"} if blamed else set()))
    if above:
        put(facts, BlockRecord(NEXT + 1, BlockState.STREAMING))
    if state is BlockState.STREAMING:
        expected = Standing.STREAMING
    elif state in RECEIVED:
        expected = Standing.RECEIVED
    elif state is BlockState.OPEN and blamed and others:
        expected = Standing.WANTED_BUT_LOST_BY_P
    else:
        expected = Standing.WANTED
    assert facts.standing_of(NEXT, named("P")) is expected


def test_blocks_below_and_above() -> None:
    facts = facts_with(
        BlockRecord(9, BlockState.COMMITTING),
        BlockRecord(10, BlockState.OPEN),
        BlockRecord(11, BlockState.STREAMING),
    )
    connect(facts, "P")
    standings = [facts.standing_of(number, named("P")) for number in (0, 8, 9, 10, 11, 12, 13)]
    assert standings == [
        Standing.COMMITTED,
        Standing.COMMITTED,
        Standing.RECEIVED,
        Standing.WANTED,
        Standing.STREAMING,
        Standing.WANTED,
        Standing.AHEAD,
    ]


def test_the_duplicate_skip_window() -> None:
    facts = facts_with(rules=RaceRules(duplicate_skip_window=3))
    standings = {number: facts.standing_of(number, named("P")) for number in range(4, 10)}
    assert standings == {
        4: Standing.COMMITTED,
        5: Standing.COMMITTED,
        6: Standing.COMMITTED_JUST_NOW,
        7: Standing.COMMITTED_JUST_NOW,
        8: Standing.COMMITTED_JUST_NOW,
        9: Standing.WANTED,
    }


@pytest.mark.parametrize("window", [0, 3])
def test_what_is_below_the_first_block_is_never_taken_for_stored(window: int) -> None:
    rules = RaceRules(duplicate_skip_window=window)
    below = Standing.BELOW_FIRST
    empty = Arbiter(None, 5, rules)
    assert [empty.standing_of(number, named("P")) for number in (0, 4, 5)] == [below, below, Standing.WANTED]
    one = Arbiter(5, 5, rules)
    stored = Standing.COMMITTED_JUST_NOW if window else Standing.COMMITTED
    assert [one.standing_of(number, named("P")) for number in (0, 4, 5, 6)] == [
        below,
        below,
        stored,
        Standing.WANTED,
    ]


@pytest.mark.parametrize("last_number", [None, BLOCK_NUMBER_MAX - 1, BLOCK_NUMBER_MAX])
def test_the_number_that_means_no_block_is_ahead_wherever_the_chain_begins_or_ends(
    last_number: int | None,
) -> None:
    facts = Arbiter(last_number, None)
    assert facts.standing_of(BLOCK_NUMBER_MAX + 1, named("P")) is Standing.AHEAD
    expected = Standing.COMMITTED if last_number == BLOCK_NUMBER_MAX else Standing.WANTED
    assert facts.standing_of(BLOCK_NUMBER_MAX, named("P")) is expected


@pytest.mark.parametrize("number", [0, 5, BLOCK_NUMBER_MAX])
def test_a_node_that_begins_anywhere_wants_any_block_until_it_has_one(number: int) -> None:
    facts = Arbiter(None, None)
    assert facts.standing_of(number, named("P")) is Standing.WANTED
    put(facts, BlockRecord(7, BlockState.OPEN))
    assert facts.standing_of(number, named("P")) is Standing.WANTED
    facts.blocks[7].state = BlockState.STREAMING
    facts.first_number = 7
    expected = Standing.BELOW_FIRST if number < 7 else Standing.AHEAD
    assert facts.standing_of(number, named("P")) is expected
    facts.blocks.clear()
    facts.last_number = 7
    assert facts.standing_of(number, named("P")) is expected


def test_who_may_send_a_block_that_failed() -> None:
    block = BlockRecord(NEXT, BlockState.OPEN, blamed={"P", "gone"})
    facts = facts_with(block)
    connect(facts, "P")
    assert facts.may_send(named("P"), NEXT)  # all who are connected failed it
    assert facts.may_send(named("Q"), NEXT)
    connect(facts, "left", StreamState.ENDED)
    assert facts.may_send(named("P"), NEXT)
    connect(facts, "Q")
    assert not facts.may_send(named("P"), NEXT)
    assert facts.may_send(named("Q"), NEXT)


# --- numbers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last", "first", "next_number"),
    [(8, 0, 9), (None, 0, 0), (None, 5, 5), (None, None, 0), (0, 0, 1), (8, 5, 9)],
)
def test_the_next_block(last: int | None, first: int | None, next_number: int) -> None:
    facts = Arbiter(last, first)
    assert (facts.next_number, facts.next_unstreamed) == (next_number, next_number)


def test_the_next_unstreamed_block_is_above_all_live_ones() -> None:
    facts = facts_with(BlockRecord(9, BlockState.OPEN), BlockRecord(12, BlockState.OPEN))
    assert facts.next_unstreamed == 9
    put(facts, BlockRecord(10, BlockState.COMPLETE))
    assert facts.next_unstreamed == 11


@pytest.mark.parametrize("state", list(BlockState))
def test_the_slowest_block_is_sent_now_and_has_all_below_it(state: BlockState) -> None:
    streaming = BlockRecord(10, BlockState.STREAMING)
    below = BlockRecord(9, state)
    expected = {BlockState.OPEN: None, BlockState.STREAMING: below}.get(state, streaming)
    assert facts_with(streaming, below).slowest() is expected


@pytest.mark.parametrize("state", list(BlockState))
def test_a_stream_awaits_what_it_offered(state: BlockState) -> None:
    facts = facts_with(BlockRecord(10, state))
    stream = connect(facts, "P")
    assert not facts.awaits(stream)
    stream.offered_max = 10
    assert facts.awaits(stream) == (state in LIVE)
    stream.offered_max = 9
    assert not facts.awaits(stream)


@pytest.mark.parametrize("state", [None, *BlockState])
def test_shutting_down_finishes_the_next_block_if_it_is_in_flight(state: BlockState | None) -> None:
    facts = facts_with(BlockRecord(10, BlockState.VERIFIED))
    assert not facts.is_finishing()
    if state is not None:
        put(facts, BlockRecord(9, state))
    assert facts.is_finishing() == (state in LIVE)


def test_publishers_that_have_gone_do_not_count() -> None:
    facts = facts_with()
    for state in StreamState:
        connect(facts, state.name, state)
    assert facts.publisher_count == facts.source_count == len(StreamState) - 2


# --- pushing back -------------------------------------------------------------------------------------------

SMALL = RaceRules(inflight_bytes_max=100)


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
    facts = facts_with(rules=SMALL)
    winner, loser = connect(facts, "P", StreamState.SENDING), connect(facts, "Q")
    if state is not None:
        put(facts, BlockRecord(9, state))
        winner.block = facts.blocks[9] if state is BlockState.STREAMING else None
    facts.inflight_bytes = 1000
    assert facts.may_read(winner.publisher_id) == sender
    assert facts.may_read(loser.publisher_id) == other


@pytest.mark.parametrize("state", [StreamState.FINISHED, StreamState.ENDED])
def test_who_has_gone_is_read_to_its_end(state: StreamState) -> None:
    facts = facts_with(BlockRecord(9, BlockState.STREAMING), rules=SMALL)
    facts.inflight_bytes = 1000
    assert facts.may_read(connect(facts, "P", state).publisher_id)
    assert facts.may_read(PublisherId(99))


def test_over_the_limit_who_may_not_send_the_next_block_waits_for_those_who_may() -> None:
    facts = facts_with(BlockRecord(9, BlockState.OPEN, blamed={"P"}), rules=SMALL)
    blamed, able = connect(facts, "P"), connect(facts, "Q")
    facts.inflight_bytes = 1000
    assert not facts.may_read(blamed.publisher_id)
    assert facts.may_read(able.publisher_id)
    able.state = StreamState.ENDED
    assert facts.may_read(blamed.publisher_id)


@pytest.mark.parametrize(
    ("inflight", "asked_for", "blamed", "state", "number", "expected"),
    [
        (1000, 9, (), BlockState.OPEN, 12, True),
        (1000, None, (), BlockState.OPEN, 12, True),  # it is asked at once
        (1000, 9, ("P",), BlockState.OPEN, 12, True),
        (1000, None, ("P",), BlockState.OPEN, 12, False),
        (99, 9, (), BlockState.OPEN, 12, False),
        (1000, 9, (), BlockState.STREAMING, 12, False),
        (1000, 9, (), BlockState.COMPLETE, 12, False),
        (1000, 9, (), BlockState.OPEN, None, False),
        (1000, 9, (), BlockState.OPEN, 9, False),
        (1000, 9, (), None, 12, False),
    ],
)
def test_what_is_in_the_way_of_a_block_that_is_wanted(
    inflight: int,
    asked_for: int | None,
    blamed: Sequence[str],
    state: BlockState | None,
    number: int | None,
    expected: bool,
) -> None:
    facts = facts_with(rules=SMALL)
    if state is not None:
        put(facts, BlockRecord(9, state, blamed=set(blamed)))
    stream = connect(facts, "P")
    connect(facts, "Q")
    stream.block = None if number is None else BlockRecord(number, BlockState.STREAMING)
    stream.asked_for, facts.inflight_bytes = asked_for, inflight
    assert facts.is_in_the_way(stream) == expected


@pytest.mark.parametrize(("name", "expected"), [("P", True), ("Q", False)])
def test_in_the_way_is_who_holds_too_much(name: str, expected: bool) -> None:
    facts = facts_with(BlockRecord(9), rules=RaceRules(publisher_bytes_max=100))
    stream = connect(facts, name)
    stream.block, stream.asked_for = BlockRecord(12, BlockState.STREAMING), 9
    facts.publisher_bytes, facts.inflight_bytes = {"P": 1000}, 1000
    assert facts.is_in_the_way(stream) == expected


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


def test_a_peer_need_not_begin_a_block_and_says_where_it_ends() -> None:
    facts = facts_with(rules=RULES)
    stream = connect(facts, "P", StreamState.FRESH)
    stream.since_ns, stream.is_peer = 7, True
    assert facts.stream_deadline(stream) is None
    stream.state = StreamState.PROVEN
    assert facts.stream_deadline(stream) is None


def test_a_limit_of_0_is_none() -> None:
    facts = facts_with(
        BlockRecord(9, BlockState.STREAMING, timed_from_ns=7),
        rules=RaceRules(block_timeout_ns=0, idle_timeout_ns=0),
    )
    for state in (StreamState.FRESH, StreamState.FINISHED):
        stream = connect(facts, state.name, state)
        stream.since_ns = 7
        assert facts.stream_deadline(stream) is None
    assert facts.next_deadline_ns() is None


def test_no_time_limit_runs_for_who_is_not_read() -> None:
    block = BlockRecord(9, BlockState.STREAMING, timed_from_ns=50, winner=PublisherId(1))
    facts = facts_with(block, rules=RULES)
    stream = connect(facts, "P", StreamState.PROVEN)
    assert facts.is_paused(block) is False
    assert facts.next_deadline_ns() == 10
    facts.pause_reading(stream.publisher_id)
    assert facts.is_paused(block) is True
    assert facts.next_deadline_ns() is None


@pytest.mark.parametrize(
    ("below", "expected"), [(BlockState.OPEN, None), (BlockState.COMPLETE, 150), (BlockState.COMMITTING, 150)]
)
def test_the_time_of_the_block_that_all_wait_for_runs(below: BlockState, expected: int | None) -> None:
    block = BlockRecord(10, BlockState.STREAMING, timed_from_ns=50)
    later = BlockRecord(12, BlockState.STREAMING, timed_from_ns=1)
    facts = facts_with(later, BlockRecord(9, below), block, BlockRecord(11, BlockState.OPEN), rules=RULES)
    assert facts.lowest_sent() is block
    assert facts.block_deadline(block) == 150
    assert facts.next_deadline_ns() == expected  # nobody waits for it yet: a lower block is open


def test_nobody_sends_nothing_runs() -> None:
    facts = facts_with(BlockRecord(9, BlockState.COMPLETE), BlockRecord(10, BlockState.OPEN), rules=RULES)
    assert facts.lowest_sent() is None
    assert facts.next_deadline_ns() is None


@pytest.mark.parametrize(
    ("state", "blamed", "opened_ns", "lowest_since_ns", "expected"),
    [
        (BlockState.OPEN, {"P"}, 30, 0, 130),
        (BlockState.OPEN, {"P"}, 30, 70, 170),
        (BlockState.OPEN, set(), 30, 0, None),
        (BlockState.COMPLETE, {"P"}, 30, 0, None),
    ],
)
def test_who_failed_a_block_is_pardoned_when_nobody_else_has_come(
    state: BlockState, blamed: set[str], opened_ns: int, lowest_since_ns: int, expected: int | None
) -> None:
    facts = facts_with(BlockRecord(9, state, blamed=blamed, opened_ns=opened_ns), rules=RULES)
    facts.lowest_since_ns = lowest_since_ns
    assert facts.pardon_deadline() == facts.next_deadline_ns() == expected
    facts.rules = RaceRules(block_timeout_ns=0)
    assert facts.pardon_deadline() is None


@pytest.mark.parametrize(
    ("number", "state", "order", "stall_blocks", "expected"),
    [
        (12, BlockState.COMPLETE, 3, 3, True),
        (12, BlockState.VERIFIED, 3, 3, True),
        (13, BlockState.COMMITTING, 3, 3, True),
        (12, BlockState.COMPLETE, 1, 3, False),  # begun before, so its publisher is not faster
        (12, BlockState.STREAMING, 3, 3, False),
        (12, BlockState.OPEN, 3, 3, False),
        (11, BlockState.COMPLETE, 3, 3, False),
        (12, BlockState.COMPLETE, 3, 0, False),
    ],
)
def test_a_winner_is_stalled_when_a_later_attempt_far_ahead_is_complete(
    number: int, state: BlockState, order: int, stall_blocks: int, expected: bool
) -> None:
    slow = BlockRecord(9, BlockState.STREAMING, AttemptId(2), PublisherId(1), order=2, winner_name="P")
    between = [BlockRecord(other, BlockState.OPEN) for other in (10, 11)]
    ahead = BlockRecord(number, state, AttemptId(3), order=order, winner_name="Q")
    facts = facts_with(slow, *between, ahead, rules=RaceRules(stall_blocks=stall_blocks))
    winner = connect(facts, "P", StreamState.SENDING)
    assert facts.is_stalled(slow) == expected
    ahead.winner_name = "P"  # on another stream
    assert not facts.is_stalled(slow)
    ahead.winner_name, winner.is_paused = "Q", True
    assert not facts.is_stalled(slow)


def test_for_who_failed_the_next_unstreamed_block_the_one_behind_it_is_next() -> None:
    facts = facts_with(
        BlockRecord(9, BlockState.COMPLETE),
        BlockRecord(10, BlockState.OPEN, blamed={"P"}),
        BlockRecord(11, BlockState.OPEN, blamed={"P", "Q"}),
        BlockRecord(12, BlockState.OPEN, blamed={"Q"}),
    )
    connect(facts, "P")
    assert [facts.next_unstreamed_for(named(name)) for name in ("P", "Q", "R")] == [10, 10, 10]
    connect(facts, "R")
    assert [facts.next_unstreamed_for(named(name)) for name in ("P", "Q", "R")] == [12, 10, 10]
    assert facts.standing_of(12, named("P")) is Standing.WANTED
    assert facts.standing_of(13, named("P")) is Standing.AHEAD
    assert facts.standing_of(10, named("P")) is Standing.WANTED_BUT_LOST_BY_P


def test_the_first_deadline_comes_first() -> None:
    facts = facts_with(BlockRecord(9, BlockState.STREAMING, timed_from_ns=50), rules=RULES)
    assert facts.next_deadline_ns() == 150
    connect(facts, "P", StreamState.PROVEN).since_ns = 60
    assert facts.next_deadline_ns() == 70


# --- misuse, and the invariants -----------------------------------------------------------------------------


def test_a_stream_that_is_not_there_is_our_bug() -> None:
    with pytest.raises(RaceError) as caught:
        facts_with().stream(PublisherId(3))
    assert str(caught.value) == "publisher 3: not connected"


def sound() -> Arbiter:
    """P sends block 9; all invariants hold."""
    race = Race(LAST, "P")
    race.header("P", 9)
    return race.arbiter


SPOILERS: list[Callable[[Arbiter], object]] = [
    lambda facts: setattr(facts, "inflight_bytes", 6),
    lambda facts: setattr(facts.blocks[9], "state", BlockState.COMPLETE),
    lambda facts: setattr(facts.blocks[9], "winner", PublisherId(2)),
    lambda facts: setattr(facts.blocks[9], "number", 8),
    lambda facts: facts.attempts.clear(),
    lambda facts: setattr(facts.streams[PublisherId(1)], "block", None),
    lambda facts: setattr(facts.streams[PublisherId(1)], "state", StreamState.BETWEEN),
    lambda facts: setattr(facts, "last_number", 9),
    lambda facts: facts.blocks.update({11: BlockRecord(11, BlockState.COMMITTING)}),
]


@pytest.mark.parametrize("spoil", SPOILERS)
def test_check_sees_each_broken_invariant(spoil: Callable[[Arbiter], object]) -> None:
    facts = sound()
    spoil(facts)
    with pytest.raises(AssertionError):
        facts.check()


@pytest.mark.parametrize(("next_offer", "is_stuck"), [(None, False), (9, False), (10, True)])
def test_check_sees_a_race_that_is_stuck(next_offer: int | None, is_stuck: bool) -> None:
    facts = facts_with(BlockRecord(9, BlockState.OPEN))
    connect(facts, "P").next_offer = next_offer
    if is_stuck:
        with pytest.raises(AssertionError):
            facts.check()
    else:
        facts.check()
