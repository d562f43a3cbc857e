"""What the publishers of a whole job or query did: reports of partitions, attempts and batches, added up.

Pure. A sink's racers are publishers of their own: racer 2 of `team` is `team.2` in partition 0, `team-3.2` in
partition 3, and `team-3-attempt-1.2` when that task is tried again. All of these are `team.2` here.

    QueryTotals.through(batch 0) ─► .through(batch 1) ─► .through(batch 2) ─► …

Spark may run the last batch of a query again, after a crash; it is counted once, as it went the last time. A
query that is begun anew, with an empty checkpoint, is another one: its batch 0 is added, also to a batch 0.
Source: docs/spark.md.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from publishers.limits import LATENCY_SAMPLES_MAX
from publishers.report import PublishReport, RefusedBlock, safe_through_of

__all__ = ["QueryTotals", "add_reports", "by_publisher"]

_SUMS = (
    *(
        "blocks",
        "offered",
        "won",
        "skipped",
        "acknowledged",
        "duplicate",
        "resent",
        "behind",
        "too_far_behind",
    ),
    *("reconnects", "failovers", "bytes_sent", "elapsed_ns"),
)


def add_reports(
    publisher_id: str, reports: Iterable[PublishReport], *, with_latency: bool = False
) -> PublishReport:
    """Add up reports.

    Args:
        publisher_id: the name of the sum.
        reports: in the order in which they were made.
        with_latency: keep the newest latencies, LATENCY_SAMPLES_MAX at most; else none, so that it stays
            small.

    Returns:
        Counts and times are sums, the first and last block, `safe_through` and `stored_from` those of all,
        `failure` is the last one there is, `trouble` that of the last report. Of a chain whose beginning no
        gateway stores, nothing counts as stored up to a block, though later parts of it may be.
    """
    given = list(reports)
    firsts = [report.first_block for report in given if report.first_block is not None]
    lasts = [report.last_block for report in given if report.last_block is not None]
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
        first_block=min(firsts, default=None),
        last_block=max(lasts, default=None),
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
    """Add up the reports of each publisher over partitions and attempts.

    Args:
        publisher_id: the option of the sink.
        reports: of its tasks.
        with_latency: as in `add_reports`.

    Returns:
        One for each racer, by name; one alone without a race.
    """
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
    """A streaming query up to its last batch."""

    publisher_id: str
    """The option of the sink."""
    batch_id: int = -1
    """Spark's number of the last batch; -1 before the first."""
    before: tuple[PublishReport, ...] = ()
    """Each publisher, without the last batch."""
    publishers: tuple[PublishReport, ...] = ()
    """Each publisher, with the last batch."""
    query_id: str | None = None
    """Spark's name of the last batch's query, the same from start to start; None: not known."""

    @property
    def total(self) -> PublishReport:
        """All publishers together: racers publish the same blocks, and each counts them."""
        return add_reports(self.publisher_id, self.publishers)

    def through(
        self, batch_id: int, reports: Sequence[PublishReport], query_id: str | None = None
    ) -> QueryTotals:
        """Add a batch; the last one again takes the place of what it was.

        Args:
            batch_id: Spark's number of it; a query that is begun anew begins with 0 again.
            reports: of its tasks.
            query_id: Spark's name of the query; None: not known, and taken for the same.
        """
        is_other = None not in (query_id, self.query_id) and query_id != self.query_id
        is_again = batch_id == self.batch_id and not is_other
        before = self.before if is_again else self.publishers
        added = by_publisher(self.publisher_id, (*before, *reports))
        return QueryTotals(self.publisher_id, batch_id, before, tuple(added), query_id or self.query_id)

    def to_json(self) -> str:
        """Encode as one JSON object."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> QueryTotals:
        """Decode what `to_json` made.

        Raises:
            ValueError: not JSON, or not this object's.
            TypeError: a field is unknown.
        """
        fields = json.loads(text)
        for name in ("before", "publishers"):
            fields[name] = tuple(PublishReport.from_json(json.dumps(report)) for report in fields[name])
        return cls(**fields)
