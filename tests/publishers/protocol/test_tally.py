"""Counting."""

from __future__ import annotations

import pytest

from sluice.publishers.limits import LATENCY_SAMPLES_MAX
from sluice.publishers.protocol.tally import Tally
from sluice.publishers.report import RefusedBlock


def test_skips_count_once_per_block() -> None:
    tally = Tally("alice")
    for again in (False, True):
        tally.skip(again=again)
    assert tally.report(None, 0).skipped == 1


def test_refusals_are_reported_in_order_of_number_with_their_last_code() -> None:
    tally = Tally("alice")
    assert tally.refuse(7, "INVALID_REQUEST") == 1
    assert tally.refuse(3, "BAD_BLOCK_PROOF") == 1
    assert tally.refuse(7, "BAD_BLOCK_PROOF") == 2
    assert tally.report(None, 0).refused == (
        RefusedBlock(3, "BAD_BLOCK_PROOF", 1),
        RefusedBlock(7, "BAD_BLOCK_PROOF", 2),
    )


def test_the_newest_latencies_are_kept() -> None:
    tally = Tally("alice")
    for sample in range(LATENCY_SAMPLES_MAX + 1):
        tally.win(sample, sample)
    report = tally.report(None, 0)
    assert (len(report.latency_ns), report.latency_ns[0]) == (LATENCY_SAMPLES_MAX, 1)
    assert report.won == LATENCY_SAMPLES_MAX + 1


def wins(*numbers: int) -> Tally:
    tally = Tally("alice")
    tally.begin_stream()
    for number in numbers:
        tally.win(number, latency_ns=number)
    return tally


@pytest.mark.parametrize(
    ("number", "left", "skipped", "sure"),
    [(5, (6, 7), 1, 0), (6, (5, 7), 1, 1), (7, (5, 6), 1, 2), (4, (5, 6, 7), 0, 0), (8, (5, 6, 7), 0, 3)],
)
def test_a_skip_of_a_stored_block_takes_back_its_win_and_makes_those_before_sure(
    number: int, left: tuple[int, ...], skipped: int, sure: int
) -> None:
    tally = wins(5, 6, 7)
    tally.skip_stored(number)
    report = tally.report(None, 0)
    assert (report.won, report.latency_ns, report.skipped) == (len(left), left, skipped)
    tally.retract_wins(0)
    assert tally.report(None, 0).won == sure


@pytest.mark.parametrize(
    ("from_number", "left"), [(9, (5, 6, 7, 8)), (8, (5, 6, 7)), (7, (5, 6)), (5, ()), (0, ())]
)
def test_wins_are_taken_back_from_a_block_on(from_number: int, left: tuple[int, ...]) -> None:
    tally = wins(5, 6, 7, 8)
    tally.retract_wins(from_number)
    report = tally.report(None, 0)
    assert (report.won, report.latency_ns) == (len(left), left)


def test_wins_before_a_skip_stand() -> None:
    tally = wins(5, 6)
    tally.skip(again=False)
    tally.win(8, 8)
    tally.retract_wins(0)
    assert tally.report(None, 0).won == 2


def test_wins_of_earlier_streams_stay() -> None:
    tally = wins(5, 6)
    tally.begin_stream()
    tally.retract_wins(0)
    assert tally.report(None, 0).won == 2


def test_the_first_stream_is_no_reconnect() -> None:
    tally = Tally("alice")
    assert tally.report(None, 0).reconnects == 0
    for _ in range(3):
        tally.begin_stream()
    assert tally.report(None, 0).reconnects == 2


def test_a_stream_at_another_gateway_is_a_failover() -> None:
    tally = Tally("alice")
    for gateway in (0, 0, 1, 0, 2, 2):
        tally.begin_stream(gateway)
    report = tally.report(None, 0)
    assert (report.reconnects, report.failovers) == (5, 3)
