"""What the publish arbiter remembers of a block and of a stream, and the settings that it goes by.

Pure data: `gateway.race.arbiter` reads and changes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.limits import BLOCK_ITEMS_MAX, ITEM_OVERHEAD_BYTES
from gateway.race.actions import AttemptId, PublisherId
from gateway.race.tables import BlockState, Failure, StreamState

__all__ = ["BlockFacts", "RaceRules", "StreamFacts"]


@dataclass(frozen=True, slots=True)
class RaceRules:
    """The settings that the arbiter goes by. Times are nanoseconds; 0 means never."""

    block_bytes_max: int = 256 * 1024 * 1024
    block_items_max: int = BLOCK_ITEMS_MAX
    inflight_bytes_max: int = 1 << 30
    """Of all blocks together, `held_bytes` of each; beyond it, publishers have to wait."""
    publisher_bytes_max: int = 1 << 30
    """As `inflight_bytes_max`, of the blocks of one publisher, by name."""
    address_bytes_max: int = 1 << 30
    """As `inflight_bytes_max`, of the blocks that come from one network address."""
    proof_idle_ns: int = 2_000_000_000
    block_timeout_ns: int = 6_000_000_000
    stall_blocks: int = 3
    idle_timeout_ns: int = 300_000_000_000
    duplicate_skip_window: int = 0
    stray_messages_max: int = 1000
    """Messages in a row that belong to no block and are dropped on one stream."""
    late_acknowledgement_ns: int = 1_000_000_000
    """How long a stream that skipped a block from before it connected waits for a later acknowledgement."""
    goodbye_ns: int = 1_000_000_000
    """How long a stream that said EndStream still hears of its own blocks."""
    full_bytes_min: int = field(init=False)
    """The least of the three limits of bytes: with fewer in flight, it is full for nobody."""

    def __post_init__(self) -> None:
        """Find what is asked for with every message."""
        least = min(self.inflight_bytes_max, self.publisher_bytes_max, self.address_bytes_max)
        object.__setattr__(self, "full_bytes_min", least)


_NO_ATTEMPT = AttemptId(0)


@dataclass(slots=True)
class BlockFacts:
    """A block above L that was begun at least once."""

    number: int
    state: BlockState = BlockState.OPEN
    attempt_id: AttemptId = _NO_ATTEMPT
    winner: PublisherId | None = None
    """The stream that sends or sent the attempt; None when it has gone."""
    winner_name: str = ""
    winner_address: str = ""
    is_counted: bool = False
    """Its bytes count for its winner's name and address."""
    failure: Failure | None = None
    """Why it failed last; None: it has not."""
    blamed: set[str] = field(default_factory=set)
    """Names of the publishers that failed it."""
    size_bytes: int = 0
    """Of the items received so far."""
    item_count: int = 0
    """Of the items received so far."""
    order: int = 0
    """Its place in the order in which blocks were begun first, or read again, at whatever time."""
    begun_ns: int = 0
    """When its winner began it, or was read again."""
    runs_from_ns: int = 0
    """Since when the time of its winner runs, while all below it are received: nobody waits for it before."""
    timed_from_ns: int = 0
    """The same, less what has run before: where its time counts from. Time that the node took is added."""
    used_ns: int = 0
    """While its time does not run: how much of it has run. A block below it that fails stops it."""
    opened_ns: int = 0
    """When it failed last."""

    @property
    def held_bytes(self) -> int:
        """What its items cost in memory: their bytes, and what Python adds to each."""
        return self.size_bytes + self.item_count * ITEM_OVERHEAD_BYTES


@dataclass(slots=True)
class StreamFacts:
    """One publisher's stream."""

    publisher_id: PublisherId
    name: str
    state: StreamState
    since_ns: int
    """When it connected; when its last items came (SENDING, PROVEN); when it said goodbye (FINISHED)."""
    block: BlockFacts | None = None
    """The block that it is sending."""
    last_ended: int | None = None
    """The block that it sent last, once that is complete."""
    address: str = ""
    """The network address that it comes from."""
    is_peer: bool = False
    """It is this node's own subscription to another node: welcome while publishers are sent elsewhere, and
    under no limit of its own."""
    next_offer: int | None = None
    """The block that it will offer next by itself, as far as we can tell; None before its first header."""
    offered_max: int = -1
    let_pass: bool = False
    """Block L + 1 was its to bring, and it has let the time for that go by: nobody waits for it again before
    it offers something."""
    asked_for: int | None = None
    """It was sent ResendBlock of this block, and has not come back to it yet: what comes before it does was
    sent before it read that."""
    behind_from: int | None = None
    """It was answered BehindPublisher, and may come back to this block, the one after L."""
    stray_count: int = 0
    """Messages since its last header that belong to no block."""
    held_back: bool = False
    """The shell does not read it now, because too much is in flight."""
    delayed_from_ns: int | None = None
    """Since when the shell has kept a message of it that is not told yet: no time limit runs for it."""
    hears_from: int = 0
    """The first block whose acknowledgement this stream gets: L + 1 when it connected."""
    has_heard: bool = False
    """It was sent an acknowledgement, which says of every earlier block, too, that it is safe."""
    owed_since_ns: int | None = None
    """When it was told to skip a block committed before it connected: it waits to hear that it is safe."""
    closes_at_ns: int = 0
    """When a FINISHED stream is closed in any case; 0: only when its blocks are settled."""
