"""What a publisher did: the counts that are shown at the end, and how they travel as JSON.

Pure. `PublishReport` is one publisher; it crosses process borders as JSON (Spark's sink writes it to a file).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["PublishReport", "RefusedBlock", "percentile_ns", "safe_through_of"]


@dataclass(frozen=True, slots=True)
class RefusedBlock:
    """A block that a gateway refused."""

    number: int
    """Block number."""
    code: str
    """The answer's name, e.g. `BAD_BLOCK_PROOF`."""
    refused_count: int
    """How often it was refused."""


@dataclass(frozen=True, slots=True)
class PublishReport:
    """What one publisher did with its source. All counts are of blocks where nothing else is said."""

    publisher_id: str
    """The name sent as metadata `publisher-id`."""
    first_block: int | None = None
    """Number of the first block of the source; None when the source was empty."""
    last_block: int | None = None
    """Number of the last block taken from the source."""
    safe_through: int | None = None
    """Every block up to this number is known to be stored by a gateway; None: nothing is known."""
    stored_from: int | None = None
    """No gateway stores the blocks of the source below this one; None: some gateway may."""
    blocks: int = 0
    """Taken from the source."""
    offered: int = 0
    """Whose header was sent at least once."""
    won: int = 0
    """Sent whole by this publisher, acknowledged, and not skipped. Where a gateway ends a stream with
    DUPLICATE_BLOCK and does not say for which block, those since the last skip do not count."""
    skipped: int = 0
    """That the gateway wanted from another publisher at least once."""
    acknowledged: int = 0
    """Known to be stored by an acknowledgement."""
    duplicate: int = 0
    """Known to be stored already, by a DUPLICATE_BLOCK or behind answer instead of an acknowledgement."""
    resent: int = 0
    """Times (not blocks) that the gateway sent this publisher back to a block."""
    behind: int = 0
    """Times that a gateway said it was behind."""
    too_far_behind: int = 0
    """Times that a gateway wanted a block that is not held here any more, or never was."""
    reconnects: int = 0
    """Streams opened after the first."""
    failovers: int = 0
    """Streams opened at another gateway than the one before."""
    bytes_sent: int = 0
    """Bytes of block items sent, repetitions included."""
    refused: tuple[RefusedBlock, ...] = ()
    """Blocks refused at least once, in order of number."""
    elapsed_ns: int = 0
    """From the first event to the last, nanoseconds."""
    latency_ns: tuple[int, ...] = field(default=(), repr=False)
    """For blocks won: from the last byte sent to the acknowledgement, nanoseconds, newest kept."""
    failure: str | None = None
    """Why the publisher gave up; None when it did not."""
    trouble: str | None = None
    """What went wrong with a stream since a block last became safe, the last of it; None: nothing."""

    @property
    def unacknowledged(self) -> int:
        """Blocks taken from the source and not known to be stored."""
        return self.blocks - self.acknowledged - self.duplicate

    def to_json(self) -> str:
        """Encode as one JSON object."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> PublishReport:
        """Decode what `to_json` made.

        Raises:
            ValueError: not JSON, or not this object's.
            TypeError: a field is unknown.
        """
        return cls.from_fields(json.loads(text))

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> PublishReport:
        """Make it of its fields, as they are in JSON.

        Raises:
            TypeError: a field is unknown.
        """
        fields = dict(fields)
        fields["refused"] = tuple(RefusedBlock(**refused) for refused in fields.get("refused", ()))
        fields["latency_ns"] = tuple(fields.get("latency_ns", ()))
        return cls(**fields)


def safe_through_of(reports: Iterable[PublishReport]) -> int | None:
    """Give the highest block up to which all are known to be stored; None: nothing is known.

    Publishers whose gateways do not store all that they have tell nothing of what comes before.
    """
    known = (report.safe_through for report in reports if report.stored_from is None)
    return max((safe for safe in known if safe is not None), default=None)


def percentile_ns(samples_ns: tuple[int, ...] | list[int], percent: float) -> int | None:
    """Give the nearest-rank percentile, or None without samples.

    Args:
        samples_ns: in any order.
        percent: 0 < percent ≤ 100.
    """
    if not samples_ns:
        return None
    ordered = sorted(samples_ns)
    rank = max(1, -(-len(ordered) * percent // 100))
    return ordered[int(rank) - 1]
