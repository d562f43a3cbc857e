"""What Spark's filters on a number column leave of a range of numbers.

`WHERE block_number >= 100 AND block_number < 200` then reads 100 blocks, not the whole chain.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from publishers.number_range import NumberRange

__all__ = ["narrow"]


def narrow(numbers: NumberRange, column: str, filters: Sequence[Filter]) -> tuple[NumberRange, list[Filter]]:
    """Apply filters to a range.

    Args:
        numbers: what would be read without filters.
        column: the column that holds the number; it is never null.
        filters: all of them must hold, as Spark gives them.

    Returns:
        What is left to read, and the filters that Spark still has to apply to the rows.
    """
    unsupported = []
    for condition in filters:
        if getattr(condition, "attribute", None) != (column,):
            unsupported.append(condition)
            continue
        narrowed = _narrow_by(numbers, condition)
        if narrowed is None:
            unsupported.append(condition)
            continue
        numbers = narrowed
        if isinstance(condition, In):
            unsupported.append(condition)  # the range has the smallest and the largest, and all between
    return numbers, unsupported


def _narrow_by(numbers: NumberRange, condition: Filter) -> NumberRange | None:
    """Narrow by one filter on the column; None for a filter that says nothing about ranges."""
    match condition:
        case IsNotNull():
            return numbers
        case In(value=values) if values and all(map(_is_whole, values)):
            return numbers.narrowed(min(values), max(values) + 1)
        case EqualTo(value=value) | EqualNullSafe(value=value) if _is_whole(value):
            return numbers.narrowed(value, value + 1)
        case GreaterThan(value=value) if _is_whole(value):
            return numbers.narrowed(value + 1)
        case GreaterThanOrEqual(value=value) if _is_whole(value):
            return numbers.narrowed(value)
        case LessThan(value=value) if _is_whole(value):
            return numbers.narrowed(end=value)
        case LessThanOrEqual(value=value) if _is_whole(value):
            return numbers.narrowed(end=value + 1)
    return None


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
