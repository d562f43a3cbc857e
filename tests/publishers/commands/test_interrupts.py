"""Signals that this process sends itself."""

from __future__ import annotations

import signal
import threading
from itertools import product

import pytest

from sluice.publishers.commands.publish import Interrupts

ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.mark.parametrize("number", ALL)
def test_outside_a_graceful_part_a_signal_ends_at_once(number: signal.Signals) -> None:
    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        assert not interrupts.asked.is_set()
        assert interrupts.is_raised


@pytest.mark.parametrize(
    ("first", "second"), [pair for pair in product(ALL, ALL) if pair != (signal.SIGHUP, signal.SIGHUP)]
)
def test_the_first_asks_and_the_second_ends(first: signal.Signals, second: signal.Signals) -> None:
    with Interrupts() as interrupts, interrupts.graceful() as asked:
        signal.raise_signal(first)
        assert (asked.is_set(), interrupts.is_raised) == (True, False)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(second)


def test_a_handler_that_was_put_in_its_place_is_replaced_again() -> None:
    before = [signal.getsignal(number) for number in ALL]
    with Interrupts() as interrupts:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # as PySpark does
        with interrupts.graceful() as asked:
            signal.raise_signal(signal.SIGINT)
            assert asked.is_set()
    assert [signal.getsignal(number) for number in ALL] == before


def test_a_terminal_that_is_closed_is_said_twice_and_counts_once() -> None:
    with Interrupts() as interrupts, interrupts.graceful() as asked:
        for _ in range(2):  # by the shell that dies, and by the kernel
            signal.raise_signal(signal.SIGHUP)
        assert (asked.is_set(), interrupts.is_raised) == (True, False)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    with Interrupts():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)  # while it unwinds


def test_under_nohup_a_closed_terminal_is_none_of_its_business() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts, interrupts.graceful() as asked:
            signal.raise_signal(signal.SIGHUP)
            assert not asked.is_set()
            signal.raise_signal(signal.SIGTERM)
            assert asked.is_set()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_in_another_thread_nothing_is_taken() -> None:
    found: list[object] = []

    def run() -> None:
        with Interrupts() as interrupts, interrupts.graceful():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGTERM)]
