"""Telling late answers from present ones."""

from __future__ import annotations

from publishers.protocol.offers import Offers


def offers_of(*numbers: int, count_max: int = 10) -> Offers:
    offers = Offers(count_max)
    for number in numbers:
        offers.sent(number)
    return offers


def test_an_answer_forgets_its_header_and_those_before() -> None:
    offers = offers_of(5, 6, 7)
    assert offers.answered(lambda number: number == 6) is True
    assert len(offers) == 1
    assert offers.answered(lambda number: number == 6) is None


def test_an_answer_to_a_header_from_before_is_late() -> None:
    offers = offers_of(5, 6)
    offers.sent_back()
    offers.sent(5)
    offers.sent(6)
    assert offers.answered(lambda number: number == 6) is False
    assert offers.answered(lambda number: number == 6) is True


def test_a_new_stream_forgets_everything() -> None:
    offers = offers_of(5)
    offers.sent_back()
    offers.clear()
    offers.sent(5)
    assert offers.answered(lambda number: number == 5) is True


def test_acknowledged_headers_are_forgotten() -> None:
    offers = offers_of(5, 6, 7)
    offers.drop_through(6)
    assert len(offers) == 1


def test_beyond_the_limit_the_oldest_is_forgotten() -> None:
    offers = offers_of(5, 6, 7, count_max=2)
    assert offers.answered(lambda number: number == 5) is None
    assert len(offers) == 2
