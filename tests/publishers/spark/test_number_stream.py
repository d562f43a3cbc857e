"""Offsets that are numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from sluice.publishers.errors import OptionError
from sluice.publishers.spark.number_stream import NumberStreamReader

ALL = ReadAllAvailable()


class Numbers(NumberStreamReader):
    """A source of the numbers from `first` to before `end`."""

    def __init__(self, first: int | None, end: int, rows_max: int | None = None) -> None:
        super().__init__(rows_max)
        self.first, self.end = first, end

    def first_number(self) -> int | None:
        return self.first

    def end_number(self, following: int) -> int:
        return max(following, self.end)

    def available_end(self) -> int:
        return self.end

    def cut(self, first: int, end: int) -> Sequence[InputPartition]:
        return [InputPartition((first, end))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return iter(())


def ranges(partitions: Sequence[InputPartition]) -> list[tuple[int, int]]:
    return [partition.value for partition in partitions]


def test_a_query_reads_what_is_there_batch_by_batch() -> None:
    source = Numbers(5, 9, rows_max=3)
    start = source.initialOffset()
    assert start == {"next": 5}
    limit = source.getDefaultReadLimit()
    assert limit == ReadMaxRows(3)
    end = source.latestOffset(start, limit)
    assert end == {"first": 5, "next": 8}
    assert ranges(source.partitions(start, end)) == [(5, 8)]
    last = source.latestOffset(end, limit)
    assert last == {"first": 8, "next": 9}
    assert source.latestOffset(last, limit) == last
    assert source.partitions(last, last) == []


def test_without_a_limit_everything_is_one_batch() -> None:
    source = Numbers(5, 9)
    assert source.getDefaultReadLimit() == ALL
    assert source.latestOffset({"next": 5}, ALL) == {"first": 5, "next": 9}


def test_a_query_that_began_before_anything_was_there() -> None:
    source = Numbers(None, 0)
    start = source.initialOffset()
    assert start == {"next": -1}
    assert source.latestOffset(start, ALL) == start
    assert source.partitions(start, start) == []
    source.first, source.end = 7, 9
    end = source.latestOffset(start, ALL)
    assert end == {"first": 7, "next": 9}
    source.first = 3  # what comes below later does not change a batch that is run again
    assert ranges(source.partitions(start, end)) == [(7, 9)]


def test_a_beginning_that_moves_takes_nothing_from_a_batch() -> None:
    """Spark asks for it again when it runs the first batch, and when it runs that again after a crash."""
    source = Numbers(5, 9)
    end = source.latestOffset(source.initialOffset(), ALL)
    source.first, source.end = 9, 12
    assert ranges(source.partitions(source.initialOffset(), end)) == [(5, 9)]
    assert source.partitions({"next": 9}, {"next": -1}) == []
    assert ranges(source.partitions(end, source.latestOffset(end, ALL))) == [(9, 12)]


def test_available_now_is_what_was_there_when_it_was_asked_for() -> None:
    source = Numbers(0, 4)
    source.prepareForTriggerAvailableNow()
    source.end = 9
    assert source.latestOffset({"next": 1}, ALL) == {"first": 1, "next": 4}
    assert source.latestOffset({"next": 4}, ALL) == {"next": 4}
    empty = Numbers(None, 0)
    empty.prepareForTriggerAvailableNow()
    empty.first, empty.end = 2, 5
    assert empty.latestOffset({"next": -1}, ALL) == {"next": -1}


@pytest.mark.parametrize("offset", [{"file": 3}, {"next": None}, 5, [1]])
def test_a_checkpoint_of_another_source_is_named(offset: Any) -> None:
    source = Numbers(0, 4)
    said = (
        rf"option 'checkpointLocation': got the offset {re.escape(repr(offset))}, expected the checkpoint of "
    )
    with pytest.raises(OptionError, match=said):
        source.latestOffset(offset, ALL)
    with pytest.raises(OptionError, match=said):
        source.partitions(offset, {"next": 4})
