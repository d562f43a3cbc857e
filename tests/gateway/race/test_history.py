"""Tests of `gateway.race.history`."""

from __future__ import annotations

from gateway.race.history import RACE_HISTORY_BLOCKS, RaceHistory, Won


def test_nothing_won_is_nothing() -> None:
    history = RaceHistory()
    assert (history.blocks, history.counts(), history.median_seconds()) == ((), [], None)


def test_winners_are_counted_most_first_and_then_by_name() -> None:
    history = RaceHistory()
    for number, name in enumerate(("bob", "alice", "carol", "carol")):
        history.won(number, name, 0.01 * number)
    assert history.counts() == [("carol", 2), ("alice", 1), ("bob", 1)]
    assert history.blocks[-1] == Won(3, "carol", 0.03)
    assert history.median_seconds() == 0.02


def test_the_oldest_are_forgotten() -> None:
    history = RaceHistory()
    for number in range(RACE_HISTORY_BLOCKS + 5):
        history.won(number, "alice", 0.0)
    assert len(history.blocks) == RACE_HISTORY_BLOCKS
    assert history.blocks[0].number == 5
    assert history.counts() == [("alice", RACE_HISTORY_BLOCKS)]
