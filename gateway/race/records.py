"""The arbiter's records and settings.

Pure data: `gateway.race.arbiter` reads and changes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from sluice.gateway.limits import BLOCK_ITEMS_MAX
from sluice.gateway.race.actions import AttemptId, PublisherId
from sluice.gateway.race.reputation import FORGIVING_BLOCKS
from sluice.gateway.race.tables import BlockState, Failure, StreamState

__all__ = ["BlockRecord", "RaceRules", "StreamRecord"]

BLAMED_PUBLISHERS_KEPT: Final = 1_000
"""Names cost nothing, so beyond it those that are gone are forgotten."""


@dataclass(frozen=True, slots=True)
class RaceRules:
    """The settings of the arbiter. Times are nanoseconds; 0 means never."""

    block_bytes_max: int = 256 * 1024 * 1024
    block_items_max: int = BLOCK_ITEMS_MAX
    inflight_bytes_max: int = 1 << 30
    """Sum of `memory_bytes` of all blocks at which publishers have to wait."""
    publisher_bytes_max: int = 1 << 30  # the same for one publisher name
    address_bytes_max: int = 1 << 30  # the same for one network address
    proof_idle_ns: int = 2_000_000_000
    block_timeout_ns: int = 6_000_000_000
    stall_blocks: int = 3
    idle_timeout_ns: int = 300_000_000_000
    duplicate_skip_window: int = 0
    stray_messages_max: int = 1000
    blamed_publishers_kept: int = BLAMED_PUBLISHERS_KEPT
    forgiving_blocks: int = FORGIVING_BLOCKS
    """Delivered blocks that take one failure away."""
    late_acknowledgement_ns: int = 1_000_000_000
    """Time to wait for a later acknowledgement after a stream skipped a block from before it connected.
    """
    goodbye_ns: int = 1_000_000_000
    """Time in which a stream that said EndStream still hears of its own blocks."""
    full_bytes_min: int = field(init=False)
    """The lowest of the three byte limits: below it, memory is full for nobody."""

    def __post_init__(self) -> None:
        least = min(self.inflight_bytes_max, self.publisher_bytes_max, self.address_bytes_max)
        object.__setattr__(self, "full_bytes_min", least)


_NO_ATTEMPT = AttemptId(0)


@dataclass(slots=True)
class BlockRecord:
    """A block above L that was begun at least once."""

    number: int
    state: BlockState = BlockState.OPEN
    attempt_id: AttemptId = _NO_ATTEMPT
    winner: PublisherId | None = None
    """The stream of the attempt; None: it is gone."""
    winner_name: str = ""
    winner_address: str = ""
    is_counted: bool = False
    """A peer's do not."""
    failure: Failure | None = None  # the last one; None: none yet
    blamed: set[str] = field(default_factory=set)
    size_bytes: int = 0
    item_count: int = 0
    memory_bytes: int = 0  # their bytes, and Python's overhead for each
    order: int = 0
    """The order in which winners began, or were read again."""
    begun_ns: int = 0  # or when its winner was read again
    runs_from_ns: int = 0
    """The time when all blocks below were received."""
    timed_from_ns: int = 0
    """That start, less the time that ran before, plus the time that the node took."""
    used_ns: int = 0
    """Time that has run, while it is stopped because a block below failed."""
    opened_ns: int = 0  # its last failure


@dataclass(slots=True)
class StreamRecord:
    """One publisher's stream."""

    publisher_id: PublisherId
    name: str
    state: StreamState
    since_ns: int
    """The time of its connection, its last items (SENDING, PROVEN), or its goodbye (FINISHED)."""
    block: BlockRecord | None = None
    last_ended: int | None = None
    address: str = ""
    is_peer: bool = False
    """This node's subscription to another node: a standby accepts it too, and no byte limits apply."""
    next_offer: int | None = None
    """The block that it will offer next by itself; None before its first header."""
    offered_max: int = -1
    let_pass: bool = False
    """It did not bring L + 1 in time: nobody waits for it until it offers a block."""
    asked_for: int | None = None
    """The block of a ResendBlock to which it has not come back yet. Messages until then were on their way."""
    behind_from: int | None = None
    """The block to which it may come back after a BehindPublisher."""
    stray_count: int = 0
    is_paused: bool = False
    delayed_from_ns: int | None = None
    """The caller keeps a message since then: no time limit runs."""
    hears_from: int = 0
    """The first block whose acknowledgement it gets: L + 1 when it connected."""
    has_heard: bool = False
    """It was sent an acknowledgement, which covers all earlier blocks."""
    owed_since_ns: int | None = None
    """Since when it must hear that a block is safe: it skipped one from before it connected."""
    closes_at_ns: int = 0
    """The time to close a FINISHED stream at the latest; 0: close it when its blocks are settled."""
