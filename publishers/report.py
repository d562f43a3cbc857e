"""Reports of publishers.

Pure. Each racer of a sink is a publisher: racer 2 of `team` is `team.2` in partition 0, `team-3.2` in
partition 3, and `team-3-attempt-1.2` when Spark retries that task. All of these add up to `team.2`.

After a crash Spark may run the last batch of a query again; only its last run counts. A query with an empty
checkpoint is another query: its batch 0 is added, even to a batch 0.

Source: docs/spark.md.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sluice.publishers.limits import LATENCY_SAMPLES_MAX

__all__ = [
    "AcknowledgementRate",
    "JobFailure",
    "JobProgress",
    "JobReport",
    "PublishReport",
    "QueryTotals",
    "RefusedBlock",
    "add_reports",
    "by_publisher",
    "ends_of",
    "percentile_ns",
    "safe_through_of",
]

_PERCENTS: Final = (50, 99)


@dataclass(frozen=True, slots=True)
class RefusedBlock:
    """A block that a gateway refused."""

    number: int
    code: str
    """The answer's name, e.g. `BAD_BLOCK_PROOF`."""
    refused_count: int


@dataclass(frozen=True, slots=True)
class PublishReport:
    """The counts of one publisher, of blocks unless a field names another unit."""

    publisher_id: str
    first_block: int | None = None
    last_block: int | None = None
    """Taken from the source."""
    safe_through: int | None = None
    """The last block known to be stored, with all before it."""
    stored_from: int | None = None
    """No gateway stores blocks below this one."""
    blocks: int = 0
    """Taken from the source."""
    offered: int = 0
    """Header sent at least once."""
    won: int = 0
    """Sent whole here, acknowledged, and not skipped. After a DUPLICATE_BLOCK that names no block, those
    since the last skip do not count."""
    skipped: int = 0
    """Taken by a gateway from another publisher at least once."""
    acknowledged: int = 0
    """Stored, by an acknowledgement."""
    duplicate: int = 0
    """Stored, by a DUPLICATE_BLOCK or behind answer."""
    resent: int = 0
    """Times that a gateway asked for a block again."""
    behind: int = 0
    """Times that a gateway was behind."""
    too_far_behind: int = 0
    """Times that a gateway wanted a block not held here."""
    reconnects: int = 0
    """Streams opened after the first."""
    failovers: int = 0
    """Streams at another gateway than before."""
    bytes_sent: int = 0
    """Bytes of block items, repetitions included."""
    refused: tuple[RefusedBlock, ...] = ()
    """The refused blocks, by number."""
    elapsed_ns: int = 0
    latency_ns: tuple[int, ...] = field(default=(), repr=False)
    """Times of the newest blocks won, from the last byte sent to the acknowledgement."""
    failure: str | None = None
    trouble: str | None = None
    """The last fault of a stream since a block was last stored."""

    @property
    def unacknowledged(self) -> int:
        """Blocks taken from the source and not known to be stored."""
        return self.blocks - self.acknowledged - self.duplicate

    def to_json(self) -> str:
        """Return one JSON object."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> PublishReport:
        """Read the text of `to_json`; raise ValueError or TypeError."""
        return cls.from_fields(json.loads(text))

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> PublishReport:
        """Raises TypeError for an unknown field."""
        fields = dict(fields)
        fields["refused"] = tuple(RefusedBlock(**refused) for refused in fields.get("refused", ()))
        fields["latency_ns"] = tuple(fields.get("latency_ns", ()))
        return cls(**fields)


def safe_through_of(reports: Iterable[PublishReport]) -> int | None:
    """Return the block up to which all are known to be stored; None: nothing is known.

    A report with `stored_from` does not count: it says nothing of earlier blocks.
    """
    known = (report.safe_through for report in reports if report.stored_from is None)
    return max((safe for safe in known if safe is not None), default=None)


def percentile_ns(samples_ns: tuple[int, ...] | list[int], percent: float) -> int | None:
    """Return the nearest-rank percentile (0 < percent ≤ 100)."""
    if not samples_ns:
        return None
    ordered = sorted(samples_ns)
    rank = max(1, -(-len(ordered) * percent // 100))
    return ordered[int(rank) - 1]


# --- sums ---------------------------------------------------------------------------------------------------


_SUMS: Final = tuple(one.name for one in dataclasses.fields(PublishReport) if one.default == 0)


def add_reports(
    publisher_id: str, reports: Iterable[PublishReport], *, with_latency: bool = False
) -> PublishReport:
    """Add up reports, oldest first, under the name `publisher_id`.

    `with_latency` keeps the newest LATENCY_SAMPLES_MAX latencies; otherwise none.

    Returns:
        Counts and times are sums; `failure` is the last one, `trouble` that of the last report. If no gateway
        stores the beginning of the chain, `safe_through` is None, though later parts may be stored.
    """
    given = list(reports)
    first, last = ends_of(given, None, None)
    stored_from = max((one.stored_from for one in given if one.stored_from is not None), default=None)
    failures = [report.failure for report in given if report.failure is not None]
    refused: dict[tuple[int, str], int] = {}
    for block in (block for report in given for block in report.refused):
        key = (block.number, block.code)
        refused[key] = refused.get(key, 0) + block.refused_count
    latency_ns = [sample for report in given for sample in report.latency_ns] if with_latency else []
    return PublishReport(
        publisher_id,
        latency_ns=tuple(latency_ns[-LATENCY_SAMPLES_MAX:]),
        first_block=first,
        last_block=last,
        safe_through=safe_through_of(given) if stored_from is None else None,
        stored_from=stored_from,
        refused=tuple(RefusedBlock(*key, count) for key, count in sorted(refused.items())),
        failure=failures[-1] if failures else None,
        trouble=given[-1].trouble if given else None,
        **{name: sum(getattr(report, name) for report in given) for name in _SUMS},
    )


def by_publisher(
    publisher_id: str, reports: Iterable[PublishReport], *, with_latency: bool = False
) -> list[PublishReport]:
    """Add up over partitions and attempts, as `add_reports`; sorted by name."""
    name = re.compile(rf"{re.escape(publisher_id)}(-\d+)?(-attempt-\d+)?(?P<racer>\.\d+)?")
    groups: dict[str, list[PublishReport]] = {}
    for report in reports:
        match = name.fullmatch(report.publisher_id)
        racer = report.publisher_id if match is None else publisher_id + (match["racer"] or "")
        groups.setdefault(racer, []).append(report)
    by_length = sorted(groups, key=lambda racer: (len(racer), racer))
    return [add_reports(racer, groups[racer], with_latency=with_latency) for racer in by_length]


@dataclass(frozen=True, slots=True)
class QueryTotals:
    """The sums of a streaming query up to its last batch."""

    publisher_id: str
    batch_id: int = -1
    """-1: there was none."""
    before: tuple[PublishReport, ...] = ()
    """Each publisher, without the last batch."""
    publishers: tuple[PublishReport, ...] = ()
    """Each publisher, with the last batch."""
    query_id: str | None = None
    """Spark's id, the same over restarts."""

    @property
    def total(self) -> PublishReport:
        """The sum over all publishers; racers publish the same blocks, and each counts them."""
        return add_reports(self.publisher_id, self.publishers)

    def through(
        self, batch_id: int, reports: Sequence[PublishReport], query_id: str | None = None
    ) -> QueryTotals:
        """Add a batch; the last one again replaces its earlier run.

        Args:
            batch_id: Spark's number, 0 for a query that begins anew.
            query_id: Spark's id of the query; None: taken for the same.
        """
        is_other = None not in (query_id, self.query_id) and query_id != self.query_id
        is_again = batch_id == self.batch_id and not is_other
        before = self.before if is_again else self.publishers
        added = by_publisher(self.publisher_id, (*before, *reports))
        return QueryTotals(self.publisher_id, batch_id, before, tuple(added), query_id or self.query_id)

    def to_json(self) -> str:
        """Return one JSON object."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> QueryTotals:
        """Read the text of `to_json`; raise ValueError or TypeError."""
        fields = json.loads(text)
        for name in ("before", "publishers"):
            fields[name] = tuple(map(PublishReport.from_fields, fields[name]))
        return cls(**fields)


def ends_of(
    reports: Iterable[PublishReport], first: int | None, last: int | None
) -> tuple[int | None, int | None]:
    """Return the first and last block of a job: those of its source, or those that were taken from it."""
    given = list(reports)
    firsts = [one.first_block for one in given if one.first_block is not None]
    lasts = [one.last_block for one in given if one.last_block is not None]
    return (
        min(firsts, default=None) if first is None else first,
        max(lasts, default=None) if last is None else last,
    )


# --- jobs ---------------------------------------------------------------------------------------------------


class AcknowledgementRate:
    """The rate of acknowledgements: that of the publisher with the most, as each hears of every block.

    A task that dies takes its report along, and another one finds its blocks stored: what was heard counts.
    """

    def __init__(self) -> None:
        self._count = 0
        self._at = 0.0

    def of(self, rows: Iterable[PublishReport], since: float, now: float) -> float:
        """Return acknowledgements a second, from `since` to the newest one; times are in seconds."""
        rows = tuple(rows)
        count = max((row.acknowledged for row in rows), default=0)
        if count > self._count:
            self._count, self._at = count, now
        # Two attempts of a task may both have heard of a block.
        blocks = min(self._count, max((row.blocks for row in rows), default=0))
        seconds = self._at - since
        return blocks / seconds if blocks and seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class JobFailure:
    """A publisher that gave up."""

    publisher_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class JobProgress:
    """The progress of running jobs."""

    last_stored: int | None
    """Last block of the first gateway that answers; None: it has none, or none answers."""
    is_reachable: bool
    ready: int
    """Publishers that have been ready to send."""
    running: int
    elapsed_seconds: float
    first_block: int | None = None
    last_block: int | None = None
    """None: not known, or the source has no end."""
    safe_through: int | None = None
    blocks_per_second: float = 0.0
    """Acknowledged blocks, since the first publisher could send."""
    publishers: tuple[PublishReport, ...] = ()
    """So far, without latencies."""
    is_stopping: bool = False
    awaited: str | None = None
    """What a source that is followed waits for, since when, and why; None: it has blocks, or is Spark's."""


@dataclass(frozen=True, slots=True)
class JobReport:
    """The report of finished jobs; `sluice publish --json` prints `to_fields`."""

    first_block: int | None
    """None: the source was a stream, and nothing came."""
    last_block: int | None
    publishers: tuple[PublishReport, ...]
    """Those that did something, by name."""
    failures: tuple[JobFailure, ...]
    elapsed_seconds: float
    """The time to the end of the last job."""
    blocks_per_second: float = 0.0
    is_interrupted: bool = False

    @property
    def is_complete(self) -> bool:
        """True if every publisher knows that every block is stored: all that it took, and all that the source
        had at first. A source may have fewer when it is read.
        """
        done = [report for report in self.publishers if report.failure is None]
        is_open = any(report.unacknowledged for report in done)
        known, last = self.safe_through, self.last_block
        is_short = last is not None and (known is None or known < last)
        return not (self.failures or self.is_interrupted or is_open or is_short)

    @property
    def safe_through(self) -> int | None:
        """See `PublishReport.safe_through`."""
        return safe_through_of(self.publishers)

    def to_fields(self) -> dict[str, Any]:
        """Return the report for JSON, with percentiles of latencies."""
        return {
            "complete": self.is_complete,
            "interrupted": self.is_interrupted,
            "first_block": self.first_block,
            "last_block": self.last_block,
            "safe_through": self.safe_through,
            "blocks_per_second": round(self.blocks_per_second, 1),
            "elapsed_seconds": round(self.elapsed_seconds, 3),
            "publishers": [_fields_of(report) for report in self.publishers],
            "failures": [dataclasses.asdict(failure) for failure in self.failures],
        }


def _fields_of(report: PublishReport) -> dict[str, Any]:
    fields = dataclasses.asdict(report)
    del fields["latency_ns"]  # the percentiles say enough
    for percent in _PERCENTS:
        fields[f"latency_p{percent}_ns"] = percentile_ns(report.latency_ns, percent)
    return fields
