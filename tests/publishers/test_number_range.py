"""Ranges of numbers, and how they are cut."""

from __future__ import annotations

import random

import pytest

from sluice.publishers.number_range import NumberRange, cut_by_weight, cut_evenly, number_of


@pytest.mark.parametrize(
    ("first", "end", "narrowed"),
    [
        (None, None, NumberRange(5, 10)),
        (3, 12, NumberRange(5, 10)),
        (7, 9, NumberRange(7, 9)),
        (11, None, NumberRange(11, 10)),
        (None, -4, NumberRange(5, 0)),
    ],
)
def test_narrowing_only_takes_away(first: int | None, end: int | None, narrowed: NumberRange) -> None:
    assert NumberRange(5, 10).narrowed(first, end) == narrowed


def test_a_range_without_end_gets_one() -> None:
    assert NumberRange().narrowed(end=3) == NumberRange(0, 3)
    assert 10**30 in NumberRange(4)


def test_what_is_in_it() -> None:
    assert [number for number in range(8) if number in NumberRange(2, 5)] == [2, 3, 4]


@pytest.mark.parametrize(
    ("parts", "cuts"),
    [
        (1, [(10, 20)]),
        (3, [(10, 13), (13, 16), (16, 20)]),
        (10, [(number, number + 1) for number in range(10, 20)]),
        (11, [(number, number + 1) for number in range(10, 20)]),
    ],
)
def test_parts_are_consecutive_and_about_the_same_size(parts: int, cuts: list[tuple[int, int]]) -> None:
    assert cut_evenly(10, 20, parts) == cuts


def test_an_empty_range_has_no_parts() -> None:
    assert cut_evenly(10, 10, 3) == []
    assert cut_evenly(10, 9, 3) == []


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("007", 7),
        ("255", 255),
        ("256", None),
        ("9" * 5_000, None),
        ("", None),
        ("-1", None),
        ("1.0", None),
        ("\u0663", None),
    ],
    ids=[
        "least",
        "zeros",
        "most",
        "above",
        "endless",
        "nothing",
        "negative",
        "fraction",
        "of another script",
    ],
)
def test_a_number_that_somebody_wrote(text: str, number: int | None) -> None:
    assert number_of(text, 255) == number


@pytest.mark.parametrize(
    ("weights", "parts", "cuts"),
    [
        ([], 3, []),
        ([5], 3, [(0, 1)]),
        ([1, 1, 1, 1], 2, [(0, 2), (2, 4)]),
        ([9, 1, 1, 1], 2, [(0, 1), (1, 4)]),
        ([1, 1, 1, 9], 2, [(0, 3), (3, 4)]),
        ([1, 100, 1], 3, [(0, 1), (1, 2), (2, 3)]),
        ([100, 1, 1], 3, [(0, 1), (1, 2), (2, 3)]),
        ([3, 3, 2, 2, 2], 2, [(0, 2), (2, 5)]),
    ],
)
def test_parts_of_about_the_same_weight(weights: list[int], parts: int, cuts: list[tuple[int, int]]) -> None:
    assert cut_by_weight(weights, parts) == cuts


def test_parts_cover_everything_whatever_the_weights() -> None:
    choose = random.Random(1)
    for _ in range(500):
        weights = [choose.choice((1, 5, 1000)) for _ in range(choose.randrange(1, 30))]
        parts = choose.randrange(1, 35)
        cuts = cut_by_weight(weights, parts)
        assert len(cuts) == min(parts, len(weights))
        assert [place for cut in cuts for place in range(*cut)] == list(range(len(weights)))
        assert all(first < end for first, end in cuts)
