"""The limits of the pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sluice.gateway.limits import COMMIT_GROUP_BYTES_MAX, DISK_PROBE_SECONDS
from sluice.gateway.pipeline.dispute import SETTLE_NS

__all__ = ["PipelineLimits"]

SHARED_FLUSH_BYTES_MAX: Final = 64 * 1024
"""Above this, writing a group takes longer than the flush that sharing would save the group before it."""

GATHER_NS: Final = 4_000_000
"""The longest time for blocks to gather: with 30 items in each, a node takes a third more of them."""
IDLE_TURN_NS: Final = 100_000
"""A turn of the event loop that is shorter has no message in it..."""
GATHER_IDLE_TURNS: Final = 40
"""...and after so many in a row, for each block beyond the first of the last group, nothing more is on the
way: a block waits no longer. So a backlog is committed in large groups, and blocks at half that pace in small
ones: a node takes a tenth more small blocks from publishers, and two fifths more from a peer, with the same
latency."""

RELEASED_BLOCKS_MAX: Final = 64
"""Without it, a standby's return could put thousands of answers into an outbox at once."""

TIMER_LATE_SECONDS_MAX: Final = 0.005
"""A timer this late means that the node stood still. `Conductor.stood_still` may not have been called yet."""


@dataclass(frozen=True, slots=True)
class PipelineLimits:
    """The limits of one conductor and its stages."""

    responses_max: int = 4096
    group_blocks_max: int = 64
    group_bytes_max: int = COMMIT_GROUP_BYTES_MAX
    """Bytes of a group after which it takes no further block."""
    shared_flush_bytes_max: int = SHARED_FLUSH_BYTES_MAX
    gather_ns: int = GATHER_NS
    idle_turn_ns: int = IDLE_TURN_NS
    disk_probe_seconds: float = DISK_PROBE_SECONDS
    released_blocks_max: int = RELEASED_BLOCKS_MAX
    dispute_settle_ns: int = SETTLE_NS
    timer_late_seconds_max: float = TIMER_LATE_SECONDS_MAX
    """A later timer of the race waits once more before it ends anybody's time."""
