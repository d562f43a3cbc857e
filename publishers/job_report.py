"""What racing publishers did, and what is known while they run: the same figures under the same names.

Pure. The names are those of `PublishReport`: blocks, won, skipped, acknowledged, duplicate, resent, …; a
publisher of the command is one row, whatever it consists of: shards (partitions), attempts of tasks, batches
of a streaming query. With the sink's option `race`, each racer is a row.

    progress bar    JobProgress    first_block, last_block, safe_through, blocks_per_second, publishers
    final table     JobReport      the same, and whether all is stored
    --json          JobReport.to_fields
    the sink        its reports, added up in `publishers`
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from publishers.report import PublishReport, percentile_ns, safe_through_of

__all__ = ["JobFailure", "JobProgress", "JobReport"]

_PERCENTS = (50, 99)


@dataclass(frozen=True, slots=True)
class JobFailure:
    """A publisher that gave up."""

    publisher_id: str
    reason: str
    """One line."""


@dataclass(frozen=True, slots=True)
class JobProgress:
    """What is known while the jobs run."""

    head: int | None
    """Last block stored by the first gateway that answers; None: it has none, or none answers."""
    is_reachable: bool
    """Whether a gateway answered."""
    ready: int
    """Publishers that are, or were, ready to send."""
    running: int
    """Publishers that are not done."""
    elapsed_seconds: float
    """Since the jobs were started."""
    first_block: int | None = None
    """Of the source; None: not known yet."""
    last_block: int | None = None
    """Of the source; None: not known, or without end."""
    safe_through: int | None = None
    """Every block of the source up to this one is known to be stored."""
    blocks_per_second: float = 0.0
    """Blocks acknowledged in a second, on average from when the first publisher could send to the last
    acknowledgement."""
    publishers: tuple[PublishReport, ...] = ()
    """What each has done so far, without latencies."""
    is_stopping: bool = False
    """Whether they were told to finish the block in flight."""


@dataclass(frozen=True, slots=True)
class JobReport:
    """What the publishers did."""

    first_block: int | None
    """Of the source; None: it was a stream, and nothing came."""
    last_block: int | None
    publishers: tuple[PublishReport, ...]
    """Of those that did something, in order of their names; one that failed has its figures here, too, as far
    as they are known."""
    failures: tuple[JobFailure, ...]
    elapsed_seconds: float
    """From the start of the jobs to the end of the last."""
    blocks_per_second: float = 0.0
    """As in `JobProgress`."""
    is_interrupted: bool = False
    """Whether they were stopped before they were done."""

    @property
    def is_complete(self) -> bool:
        """Whether every publisher knows that every block is stored: what it has taken, and all that there was
        when the source was looked at. A source may have less when it is read."""
        done = [report for report in self.publishers if report.failure is None]
        is_open = any(report.unacknowledged for report in done)
        known, last = self.safe_through, self.last_block
        is_short = last is not None and (known is None or known < last)
        return not (self.failures or self.is_interrupted or is_open or is_short)

    @property
    def safe_through(self) -> int | None:
        """Every block of the source up to this one is known to be stored."""
        return safe_through_of(self.publishers)

    def to_fields(self) -> dict[str, Any]:
        """Give all of it for JSON; times to acknowledge as percentiles."""
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
    del fields["latency_ns"]  # a number per block; the percentiles say enough
    for percent in _PERCENTS:
        fields[f"latency_p{percent}_ns"] = percentile_ns(report.latency_ns, percent)
    return fields
