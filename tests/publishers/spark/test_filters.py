"""What filters leave of a range."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from publishers.number_range import NumberRange
from publishers.spark.filters import narrow

N = ("block_number",)


@pytest.mark.parametrize(
    ("condition", "left"),
    [
        (EqualTo(N, 7), NumberRange(7, 8)),
        (EqualNullSafe(N, 7), NumberRange(7, 8)),
        (GreaterThan(N, 7), NumberRange(8, 100)),
        (GreaterThanOrEqual(N, 7), NumberRange(7, 100)),
        (LessThan(N, 7), NumberRange(0, 7)),
        (LessThanOrEqual(N, 7), NumberRange(0, 8)),
        (LessThanOrEqual(N, -7), NumberRange(0, 0)),
        (IsNotNull(N), NumberRange(0, 100)),
    ],
)
def test_a_filter_on_the_number_is_taken(condition: Filter, left: NumberRange) -> None:
    assert narrow(NumberRange(0, 100), "block_number", [condition]) == (left, [])


def test_filters_together() -> None:
    filters = [GreaterThan(N, 9), LessThan(N, 20), IsNotNull(N)]
    assert narrow(NumberRange(), "block_number", filters) == (NumberRange(10, 20), [])


def test_a_list_narrows_and_is_left_to_spark() -> None:
    condition = In(N, (9, 3, 5))
    assert narrow(NumberRange(), "block_number", [condition]) == (NumberRange(3, 10), [condition])


@pytest.mark.parametrize(
    "condition",
    [
        EqualTo(("other",), 7),
        EqualTo((*N, "part"), 7),
        Not(EqualTo(N, 7)),
        IsNull(N),
        EqualTo(N, 7.5),
        EqualTo(N, True),
        In(N, ()),
        In(N, (1, None)),
    ],
)
def test_other_filters_are_left_to_spark(condition: Filter) -> None:
    assert narrow(NumberRange(0, 9), "block_number", [condition]) == (NumberRange(0, 9), [condition])
