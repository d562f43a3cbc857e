"""Offsets that are numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from sluice.publishers.errors import BlockListError, OptionError, PublisherError
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


class Gapped(Numbers):
    """A source that lacks the numbers from `missing` to before `later`; what is there ends at `end`."""

    def __init__(self, missing: int, later: int, end: int) -> None:
        super().__init__(0, end)
        self.missing, self.later = missing, later

    def end_number(self, following: int) -> int:
        return max(following, self.missing) if following <= self.missing else self.end

    def gap(self, following: int) -> tuple[PublisherError, int] | None:
        if self.missing < self.later and following < self.end:
            return BlockListError("chain", f"block {following} is missing"), self.later - following
        return None

    def latest_end(self) -> int | None:
        return self.end


def test_available_now_fails_at_a_gap_after_what_is_before_it() -> None:
    source = Gapped(3, 5, 9)
    source.prepareForTriggerAvailableNow()
    end = source.latestOffset({"next": 0}, ALL)
    assert end == {"first": 0, "next": 3}
    with pytest.raises(BlockListError, match="block 3 is missing"):
        source.latestOffset(end, ALL)


def test_another_query_waits_for_a_gap_and_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    source = Gapped(3, 5, 9)
    for _ in range(3):
        assert source.latestOffset({"next": 3}, ALL) == {"next": 3}
    assert [one.getMessage() for one in caplog.records] == [
        "chain: block 3 is missing: the query waits for 2 blocks"
    ]
    source.missing = source.later = 9
    assert source.latestOffset({"next": 3}, ALL) == {"first": 3, "next": 9}
    assert source.latestOffset({"next": 9}, ALL) == {"next": 9}
    source.missing, source.later, source.end = 9, 10, 12
    source.latestOffset({"next": 9}, ALL)
    assert len(caplog.records) == 2


def test_progress_shows_what_is_there() -> None:
    assert Gapped(3, 5, 9).reportLatestOffset() == {"next": 9}
    assert Numbers(0, 4).reportLatestOffset() is None
