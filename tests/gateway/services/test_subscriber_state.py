"""Tests of `gateway.services.subscriber_state`: every range in every state of the node, and every end."""

from __future__ import annotations

import random

import pytest

from sluice.gateway.api import subscribe_pb2
from sluice.gateway.blocks.block_numbers import U64_MAX as MAX
from sluice.gateway.services.subscriber_state import READ, WAIT, Held, Step, Subscriber, SubscriptionEnd
from sluice.gateway.services.subscription_client import status_name

FUTURE = 10
FROM_5_TO_9 = Held(5, 9)
EMPTY = Held(0, None)
EMPTY_FROM_5 = Held(5, None)
EMPTY_ANYWHERE = Held(None, None)


def named(step: Step) -> str:
    """`READ`, `WAIT`, or the name of the status."""
    return status_name(step.status) if isinstance(step, SubscriptionEnd) else step.name


@pytest.mark.parametrize(
    ("held", "start", "end", "expected", "next_number"),
    [
        # a node with blocks 5 to 9
        (FROM_5_TO_9, 5, 9, "READ", 5),
        (FROM_5_TO_9, 7, 7, "READ", 7),
        (FROM_5_TO_9, 7, 20, "READ", 7),
        (FROM_5_TO_9, 7, MAX, "READ", 7),
        (FROM_5_TO_9, 5, MAX - 1, "READ", 5),
        (FROM_5_TO_9, MAX, MAX, "WAIT", 10),
        (FROM_5_TO_9, MAX, 5, "READ", 5),
        (FROM_5_TO_9, MAX, 7, "READ", 5),
        (FROM_5_TO_9, MAX, 1_000_000, "READ", 5),
        (FROM_5_TO_9, MAX, 4, "INVALID_END_BLOCK_NUMBER", None),
        (FROM_5_TO_9, MAX, 0, "INVALID_END_BLOCK_NUMBER", None),
        (FROM_5_TO_9, 4, 9, "INVALID_START_BLOCK_NUMBER", None),
        (FROM_5_TO_9, 0, MAX, "INVALID_START_BLOCK_NUMBER", None),
        (FROM_5_TO_9, 0, 0, "INVALID_START_BLOCK_NUMBER", None),
        (FROM_5_TO_9, 7, 6, "INVALID_END_BLOCK_NUMBER", None),
        (FROM_5_TO_9, 4, 3, "INVALID_END_BLOCK_NUMBER", None),
        (FROM_5_TO_9, MAX - 1, 0, "INVALID_END_BLOCK_NUMBER", None),
        (FROM_5_TO_9, 10, MAX, "WAIT", 10),
        (FROM_5_TO_9, 19, 19, "WAIT", 19),
        (FROM_5_TO_9, 20, MAX, "NOT_AVAILABLE", None),
        (FROM_5_TO_9, MAX - 1, MAX, "NOT_AVAILABLE", None),
        # an empty node that begins with block 0
        (EMPTY, 0, 0, "WAIT", 0),
        (EMPTY, MAX, MAX, "WAIT", 0),
        (EMPTY, MAX, 0, "WAIT", 0),
        (EMPTY, 9, MAX, "WAIT", 9),
        (EMPTY, 10, MAX, "NOT_AVAILABLE", None),
        # an empty node that begins with block 5
        (EMPTY_FROM_5, 4, MAX, "INVALID_START_BLOCK_NUMBER", None),
        (EMPTY_FROM_5, MAX, 4, "INVALID_END_BLOCK_NUMBER", None),
        (EMPTY_FROM_5, MAX, MAX, "WAIT", 5),
        (EMPTY_FROM_5, 14, MAX, "WAIT", 14),
        (EMPTY_FROM_5, 15, MAX, "NOT_AVAILABLE", None),
        # an empty node that begins with whatever comes
        (EMPTY_ANYWHERE, 1_000_000, MAX, "WAIT", None),
        (EMPTY_ANYWHERE, 3, 2, "INVALID_END_BLOCK_NUMBER", None),
        (EMPTY_ANYWHERE, MAX, MAX, "WAIT", None),
        (EMPTY_ANYWHERE, MAX, 3, "WAIT", None),
    ],
)
def test_what_a_request_is_answered(
    held: Held, start: int, end: int, expected: str, next_number: int | None
) -> None:
    subscriber = Subscriber(start, end, FUTURE)
    assert named(subscriber.step(held)) == expected
    assert subscriber.next_number == next_number
    assert named(subscriber.step(held)) == expected, "asked again, with nothing new"


@pytest.mark.parametrize(
    ("start", "end", "first", "expected"),
    [
        (MAX, MAX, 1_000, "READ from 1000"),
        (MAX, 1_005, 1_000, "READ from 1000"),
        (MAX, 999, 1_000, "INVALID_END_BLOCK_NUMBER"),
        (999, MAX, 1_000, "INVALID_START_BLOCK_NUMBER"),
        (1_000, MAX, 1_000, "READ from 1000"),
        (1_010, MAX, 1_000, "WAIT from 1010"),
        (1_011, MAX, 1_000, "NOT_AVAILABLE"),
    ],
)
def test_who_waited_for_a_node_that_begins_anywhere_is_answered_when_it_has(
    start: int, end: int, first: int, expected: str
) -> None:
    subscriber = Subscriber(start, end, FUTURE)
    assert subscriber.step(EMPTY_ANYWHERE) is WAIT
    step = subscriber.step(Held(first, first))
    place = "" if isinstance(step, SubscriptionEnd) else f" from {subscriber.next_number}"
    assert named(step) + place == expected


def test_the_reason_says_what_was_asked_and_what_is_there() -> None:
    reasons = []
    for start, end in ((3, MAX), (7, 6), (MAX, 2), (20, MAX)):
        step = Subscriber(start, end, FUTURE).step(FROM_5_TO_9)
        assert isinstance(step, SubscriptionEnd)
        reasons.append(step.reason)
    assert reasons == [
        "start 3, end max: the first block is 5",
        "start 7, end 6: got an end before the start",
        "start max, end 2: the first block is 5",
        "start 20, end max: 11 blocks above the last, at most 10 are waited for",
    ]


def test_a_range_ends_with_success_and_nothing_behind_it_is_sent() -> None:
    subscriber = Subscriber(7, 8, FUTURE)
    assert subscriber.step(FROM_5_TO_9) is READ
    assert subscriber.wrote(None)
    assert subscriber.wrote(7), "block 8 may follow at once"
    assert subscriber.wrote(None)
    assert not subscriber.wrote(8), "block 9 was read, too, and is not for this one"
    assert subscriber.step(FROM_5_TO_9) == SubscriptionEnd(
        subscribe_pb2.SubscribeStreamResponse.Code.SUCCESS, "everything was sent"
    )
    assert not subscriber.live


def test_the_last_number_there_is() -> None:
    subscriber = Subscriber(MAX - 1, MAX, FUTURE)
    held = Held(0, MAX - 1)
    assert subscriber.step(held) is READ
    subscriber.wrote(MAX - 1)
    assert subscriber.step(held) is WAIT


def test_within_a_block_it_reads_on_whatever_happens() -> None:
    subscriber = Subscriber(5, MAX, FUTURE)
    subscriber.step(FROM_5_TO_9)
    subscriber.wrote(None)
    subscriber.shut_down(FROM_5_TO_9)
    assert subscriber.step(FROM_5_TO_9) is READ
    assert not subscriber.wrote(5)
    assert named(subscriber.step(FROM_5_TO_9)) == "SUCCESS"


def level(last: int) -> Subscriber:
    """A subscriber that was sent everything up to block `last`."""
    subscriber = Subscriber(last, MAX, FUTURE)
    subscriber.step(Held(0, last))
    subscriber.wrote(last)
    assert subscriber.step(Held(0, last)) is WAIT
    return subscriber


def test_a_source_error_ends_a_live_subscriber_when_it_has_all_that_is_committed() -> None:
    subscriber = level(9)
    assert subscriber.source_failed(Held(0, 11), "gone")
    assert subscriber.step(Held(0, 11)) is READ
    assert subscriber.wrote(10)
    assert not subscriber.wrote(11)
    assert subscriber.step(Held(0, 11)) == SubscriptionEnd(
        subscribe_pb2.SubscribeStreamResponse.Code.ERROR, "gone"
    )


def test_a_source_error_ends_who_waits_for_a_block_to_come() -> None:
    for subscriber in (Subscriber(12, 13, FUTURE), Subscriber(MAX, MAX, FUTURE)):
        assert subscriber.step(FROM_5_TO_9) is WAIT
        assert subscriber.source_failed(FROM_5_TO_9, "gone")
        assert named(subscriber.step(FROM_5_TO_9)) == "ERROR"
    subscriber = Subscriber(3, MAX, FUTURE)
    assert subscriber.step(EMPTY_ANYWHERE) is WAIT
    assert subscriber.source_failed(EMPTY_ANYWHERE, "gone")
    assert named(subscriber.step(EMPTY_ANYWHERE)) == "ERROR"


def test_a_source_error_leaves_ranges_in_history_alone() -> None:
    for end in (9, MAX):
        subscriber = Subscriber(5, end, FUTURE)
        assert subscriber.step(FROM_5_TO_9) is READ
        assert not subscriber.source_failed(FROM_5_TO_9, "gone")
        assert [subscriber.wrote(number) for number in range(5, 10)] == [True] * 4 + [end == MAX]
        assert named(subscriber.step(FROM_5_TO_9)) == ("WAIT" if end == MAX else "SUCCESS")


def test_the_first_reason_to_end_is_the_one_that_counts() -> None:
    subscriber = level(9)
    subscriber.shut_down(FROM_5_TO_9)
    assert not subscriber.source_failed(FROM_5_TO_9, "gone")
    assert named(subscriber.step(FROM_5_TO_9)) == "SUCCESS"
    subscriber = level(9)
    assert subscriber.source_failed(FROM_5_TO_9, "gone")
    subscriber.shut_down(FROM_5_TO_9)
    assert named(subscriber.step(FROM_5_TO_9)) == "ERROR"


def test_a_shutdown_ends_history_at_once_and_live_ones_when_they_have_all() -> None:
    in_history, live = Subscriber(5, MAX, FUTURE), level(8)
    assert in_history.step(FROM_5_TO_9) is READ
    in_history.wrote(5)
    for subscriber in (in_history, live):
        subscriber.shut_down(FROM_5_TO_9)
    assert named(in_history.step(FROM_5_TO_9)) == "SUCCESS"
    assert live.step(FROM_5_TO_9) is READ
    live.wrote(9)
    assert named(live.step(FROM_5_TO_9)) == "SUCCESS"


def test_who_comes_during_a_shutdown_is_sent_away() -> None:
    subscriber = Subscriber(5, MAX, FUTURE)
    subscriber.shut_down(FROM_5_TO_9)
    assert named(subscriber.step(FROM_5_TO_9)) == "SUCCESS"


def test_lag_is_what_is_committed_and_wanted_and_was_not_sent() -> None:
    subscriber = Subscriber(6, 8, FUTURE)
    assert subscriber.lag(FROM_5_TO_9) == 0, "not known yet"
    subscriber.step(FROM_5_TO_9)
    assert subscriber.lag(FROM_5_TO_9) == 3
    subscriber.wrote(6)
    assert subscriber.lag(FROM_5_TO_9) == 2
    assert level(9).lag(FROM_5_TO_9) == 0
    assert Subscriber(0, MAX, FUTURE).lag(EMPTY) == 0


@pytest.mark.parametrize("seed", range(20))
def test_history_and_live_are_one_stream_without_gap_or_repeat(seed: int) -> None:
    rng = random.Random(seed)
    first, last = 5, rng.randrange(5, 12)
    start, end = rng.choice([(MAX, 20), (MAX, 12), (5, 6), (6, 12), (11, 20), (5, MAX), (11, MAX)])
    subscriber = Subscriber(start, end, FUTURE)
    sent: list[int] = []
    reading: list[int] = []  # messages read and not sent yet; -1: an item set
    while True:
        if last < 30 and rng.random() < 0.3:
            last += rng.randrange(1, 4)
        if reading:
            number = reading.pop(0)
            if number >= 0:
                sent.append(number)
            if not subscriber.wrote(None if number < 0 else number):
                reading.clear()
            continue
        step = subscriber.step(Held(first, last))
        if isinstance(step, SubscriptionEnd) or (step is WAIT and last >= 30):
            break
        if step is READ:
            assert subscriber.next_number is not None
            for number in range(subscriber.next_number, min(last, subscriber.next_number + 3) + 1):
                reading += [-1, number]
    first_sent = first if start == MAX else start
    assert sent == list(range(first_sent, (last if end == MAX else end) + 1))
