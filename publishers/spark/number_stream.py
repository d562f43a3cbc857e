"""The base of streaming sources whose offset is a number: of a block, or of an entry.

    offset   {"next": N}                 everything below N is read
             {"first": F, "next": N}     the same, and this batch began at F
             {"next": -1}                nothing was there yet when the query began; the first number that
                                         comes is the beginning

An offset means the same numbers for ever, so a repeated batch reads the same rows. Spark asks again for the
beginning of a query when it runs the first batch; even if that has moved, the batch begins at F.

A number that is not there while later ones are is a gap. With the trigger `availableNow` it fails the query,
which would else end as if it had read everything; else the query waits for it, and warns once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from sluice.publishers.errors import OptionError, PublisherError
from sluice.publishers.sources.failover import warn

__all__ = ["NumberStreamReader"]

_UNKNOWN: Final = -1


class NumberStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The base class; a source defines its beginning, how far it goes, and the partitions of a range.

    A batch has at most `rows_max` numbers; None: all that are there.
    """

    def __init__(self, rows_max: int | None) -> None:
        self._rows_max = rows_max
        self._target: int | None = None
        self._warned_of = ""

    @abstractmethod
    def first_number(self) -> int | None:
        """Return the number that a new query begins with; None: nothing is there yet."""

    def first_arrival(self) -> int | None:
        """Return where a query begins that started when nothing was there; None: still nothing is.

        It includes all numbers since then, wherever a new query would begin now.
        """
        return self.first_number()

    @abstractmethod
    def end_number(self, following: int) -> int:
        """Return the number after the last before a gap; `following` if nothing is there."""

    @abstractmethod
    def available_end(self) -> int:
        """Return the number after the last that is there now; 0: nothing is there.

        Raises SourceUnreachable: with 0 a query would end as if all were read.
        """

    @abstractmethod
    def cut(self, first: int, end: int) -> Sequence[InputPartition]:
        """Return the partitions of a range that is not empty."""

    def gap(self, following: int) -> tuple[PublisherError, int] | None:
        """Return the error that names the numbers missing from `following` on, and how many they are; None:
        nothing later is there.
        """
        return None

    def bounded(self, first: int, end: int) -> int:
        """Return where a batch ends, for other reasons than its numbers."""
        return end

    def latest_end(self) -> int | None:
        """Return the number after the last that is known to be there, for the query's progress."""
        return None

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset of a new query."""
        first = self.first_number()
        return {"next": _UNKNOWN if first is None else first}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a batch."""
        return ReadAllAvailable() if self._rows_max is None else ReadMaxRows(self._rows_max)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return how far the next batch goes; `start` if there is nothing new."""
        first = self._beginning(start)
        if first is None:
            return start
        end = self.end_number(first)
        if end <= first:
            self._check_gap(first)
        if self._target is not None:
            end = min(end, self._target)
        if isinstance(limit, ReadMaxRows):
            end = min(end, first + limit.max_rows)
        return start if end <= first else {"first": first, "next": self.bounded(first, end)}

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the offset behind all that is there, which Spark shows as the source's latest one."""
        end = self.latest_end()
        return None if end is None else {"next": end}

    def _check_gap(self, following: int) -> None:
        gap = None if self._target is not None and following >= self._target else self.gap(following)
        if gap is None:
            self._warned_of = ""
            return
        error, count = gap
        if self._target is not None:
            raise error
        if str(error) != self._warned_of:
            self._warned_of = str(error)
            warn(f"{error}: the query waits for {count} block{'s' * (count != 1)}")

    def prepareForTriggerAvailableNow(self) -> None:
        """End the query with what is there now."""
        self._target = self.available_end()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Cut the range between two offsets."""
        first, following = _next_in(start), _next_in(end)
        if "first" not in start:  # no batch ended there, and the beginning may have moved
            first = end.get("first", first)
        if first == _UNKNOWN or following <= first:
            return []
        return self.cut(first, following)

    def _beginning(self, start: dict[str, Any]) -> int | None:
        following = _next_in(start)
        return self.first_arrival() if following == _UNKNOWN else following


def _next_in(offset: object) -> int:
    """Return the number after an offset; raise OptionError if another kind of query wrote the checkpoint."""
    number = offset.get("next") if isinstance(offset, dict) else None
    if not isinstance(number, int):
        got = f"the offset {offset!r}"
        raise OptionError("checkpointLocation", got, "the checkpoint of a query over this source")
    return number
