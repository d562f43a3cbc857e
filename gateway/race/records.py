"""The arbiter's records of a block and of a stream, and its settings.

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
"""Publishers that are remembered for having failed one block. Beyond it, those that are gone are forgotten: a
name costs its publisher nothing, and nobody may bring the block for long."""


@dataclass(frozen=True, slots=True)
class RaceRules:
    """The settings of the arbiter. Times are nanoseconds; 0 means never."""

    block_bytes_max: int = 256 * 1024 * 1024
    block_items_max: int = BLOCK_ITEMS_MAX
    inflight_bytes_max: int = 1 << 30
    """Sum of `memory_bytes` over all blocks beyond which publishers have to wait."""
    publisher_bytes_max: int = 1 << 30  # the same for the blocks of one publisher, by name
    address_bytes_max: int = 1 << 30  # the same for the blocks of one network address
    proof_idle_ns: int = 2_000_000_000
    block_timeout_ns: int = 6_000_000_000
    stall_blocks: int = 3
    idle_timeout_ns: int = 300_000_000_000
    duplicate_skip_window: int = 0
    stray_messages_max: int = 1000
    """Messages in a row on one stream that belong to no block and are dropped."""
    blamed_publishers_kept: int = BLAMED_PUBLISHERS_KEPT
    forgiving_blocks: int = FORGIVING_BLOCKS
    """Blocks that a publisher delivers for one failure to be forgotten."""
    late_acknowledgement_ns: int = 1_000_000_000
    """How long a stream that skipped a block from before it connected waits for a later acknowledgement."""
    goodbye_ns: int = 1_000_000_000
    """How long a stream that said EndStream still hears of its own blocks."""
    full_bytes_min: int = field(init=False)
    """The lowest of the three limits of bytes: with fewer in flight, memory is full for nobody."""

    def __post_init__(self) -> None:
        """Compute what is needed for every message."""
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
    """The stream that sends or sent the attempt; None once it is gone."""
    winner_name: str = ""
    winner_address: str = ""
    is_counted: bool = False
    """Its bytes count for its winner's name and address; not so for a peer's."""
    failure: Failure | None = None  # why it failed last; None: never
    blamed: set[str] = field(default_factory=set)
    size_bytes: int = 0  # of the items received so far
    item_count: int = 0  # of the items received so far
    memory_bytes: int = 0  # of these items: their own bytes, and what Python adds to each
    order: int = 0
    """Position in the order in which winners began their blocks, or were read again."""
    begun_ns: int = 0  # when its winner began it, or was read again
    runs_from_ns: int = 0
    """Since when the time of its winner runs: since all blocks below are received."""
    timed_from_ns: int = 0
    """The same, less the time that ran before. Time that the node took is added."""
    used_ns: int = 0
    """How much of its time has run, while it does not: a block below that fails stops it."""
    opened_ns: int = 0  # when it failed last


@dataclass(slots=True)
class StreamRecord:
    """One publisher's stream."""

    publisher_id: PublisherId
    name: str
    state: StreamState
    since_ns: int
    """When it connected, when its last items came (SENDING, PROVEN), or when it said goodbye (FINISHED)."""
    block: BlockRecord | None = None
    last_ended: int | None = None  # the last block that it completed
    address: str = ""
    is_peer: bool = False
    """It is this node's own subscription to another node: accepted while publishers are sent elsewhere, and
    under no limit of its own."""
    next_offer: int | None = None
    """The block that it is expected to offer next by itself; None before its first header."""
    offered_max: int = -1
    let_pass: bool = False
    """It let the time for block L + 1 go by: nobody waits for it until it offers a block."""
    asked_for: int | None = None
    """The block that it was asked for with ResendBlock and has not come back to: until then it sends what it
    had on its way."""
    behind_from: int | None = None
    """The block after L that it may come back to after a BehindPublisher."""
    stray_count: int = 0  # messages since its last header that belong to no block
    is_paused: bool = False
    """The caller does not read it now, because too much is in flight."""
    delayed_from_ns: int | None = None
    """Since when the caller keeps a message of it back: no time limit runs for it."""
    hears_from: int = 0
    """The first block whose acknowledgement it gets: L + 1 as it was when it connected."""
    has_heard: bool = False
    """It was sent an acknowledgement, which covers every earlier block."""
    owed_since_ns: int | None = None
    """When it skipped a block that was committed before it connected: it must hear that this is safe."""
    closes_at_ns: int = 0
    """When a FINISHED stream is closed at the latest; 0: when its blocks are settled."""
