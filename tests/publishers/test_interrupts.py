"""Signals that this process sends itself."""

from __future__ import annotations

import signal
import threading

import pytest

from publishers.interrupts import Interrupts

BOTH = (signal.SIGINT, signal.SIGTERM)


@pytest.mark.parametrize("number", BOTH)
def test_outside_a_graceful_part_a_signal_ends_at_once(number: signal.Signals) -> None:
    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        assert not interrupts.asked.is_set()
        assert interrupts.is_raised


@pytest.mark.parametrize("number", BOTH)
def test_the_first_asks_and_the_second_ends(number: signal.Signals) -> None:
    with Interrupts() as interrupts, interrupts.graceful() as asked:
        signal.raise_signal(number)
        assert (asked.is_set(), interrupts.is_raised) == (True, False)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)


def test_a_handler_that_was_put_in_its_place_is_replaced_again() -> None:
    before = [signal.getsignal(number) for number in BOTH]
    with Interrupts() as interrupts:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # as PySpark does
        with interrupts.graceful() as asked:
            signal.raise_signal(signal.SIGINT)
            assert asked.is_set()
    assert [signal.getsignal(number) for number in BOTH] == before


def test_in_another_thread_nothing_is_taken() -> None:
    found: list[object] = []

    def run() -> None:
        with Interrupts() as interrupts, interrupts.graceful():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGTERM)]
