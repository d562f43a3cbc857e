"""What the publish arbiter knows, and what can be read off it: the facts that its tables are looked up by.

Pure. `gateway.race` changes these facts; nothing here does.

Invariants, asserted by `check()`, which the tests and the simulator call after every event
  - One attempt at a time for each block, and one block at a time for each publisher.
  - Blocks go to disk in order of number without gaps.
  - While a publisher is connected, some publisher may send block L + 1 unless it is live already, and will.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.block_numbers import BLOCK_NUMBER_MAX
from gateway.errors import GatewayError
from gateway.limits import BLOCK_ITEMS_MAX, ITEM_OVERHEAD_BYTES
from gateway.race_actions import AttemptId, PublisherId
from gateway.race_tables import BlockState, Failure, Standing, StreamState

__all__ = ["GONE", "LIVE", "BlockFacts", "RaceError", "RaceFacts", "RaceRules", "StreamFacts"]


class RaceError(GatewayError):
    """The caller reported something that cannot be: our bug, never a publisher's."""


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
    turn: int = 0
    """Its place in the order in which blocks were begun first, or read again, at whatever time."""
    timed_from_ns: int = 0
    """Where the time of its winner counts from: when it began the block, or was read again; or when a block
    below it failed since, because that one may be wanted of it first. Time that the node took is added."""
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


# Tuples, since to find a member of an enum in a set takes longer than to compare it with a few.
LIVE = (BlockState.STREAMING, BlockState.COMPLETE, BlockState.VERIFIED, BlockState.COMMITTING)
_SENDING = (StreamState.SENDING, StreamState.PROVEN)
GONE = (StreamState.FINISHED, StreamState.ENDED)
_TIMED = (StreamState.PROVEN, StreamState.FRESH, StreamState.FINISHED)


class RaceFacts:
    """The facts of one node's publish race.

    Args:
        last_number: L, the last committed block; None for an empty node.
        first_number: the first block held; where there is none, that with which the node is to begin, None
            for the first that is offered.
        rules: limits and times.
    """

    def __init__(
        self, last_number: int | None, first_number: int | None = 0, rules: RaceRules | None = None
    ) -> None:
        self.rules = rules or RaceRules()
        self.last_number = last_number
        self.first_number = first_number
        self.catch_up_target: int | None = None
        """The highest block that a publisher has offered beyond what this node could take."""
        self.inflight_bytes = 0
        self.publisher_bytes: dict[str, int] = {}
        """Of these, the bytes of each publisher's blocks, by name; who has none is not in it."""
        self.address_bytes: dict[str, int] = {}
        """The same by network address."""
        self.persistence_failed: str | None = None
        """Why the disk cannot be written, while it cannot."""
        self.persistence_number = 0
        """The block that could not be: those below it may still wait to be acknowledged."""
        self.lowest_since_ns = 0
        """When block L was committed: since then, block L + 1 is the one that all wait for."""
        self.blocks: dict[int, BlockFacts] = {}
        self.attempts: dict[AttemptId, BlockFacts] = {}
        self.streams: dict[PublisherId, StreamFacts] = {}
        self.begins_anywhere = last_number is None and first_number is None
        self.shutting_down = False
        self.retired: str | None = None
        """Why publishers are sent elsewhere, while they are: the node is a standby, or becomes one."""
        self.idle = False
        """What was complete when the node shut down or retired is finished, and every stream was ended."""

    @property
    def is_closing(self) -> bool:
        """Whether the node finishes what is complete and takes nothing more."""
        return self.shutting_down or (self.retired is not None and not self.idle)

    @property
    def source_count(self) -> int:
        """How many streams are connected and not ended: publishers, and this node's own subscriptions."""
        return sum(stream.state not in GONE for stream in self.streams.values())

    @property
    def publisher_count(self) -> int:
        """How many of these are publishers."""
        return sum(not stream.is_peer and stream.state not in GONE for stream in self.streams.values())

    @property
    def next_number(self) -> int:
        """L + 1: the block that will be committed next; 0 for a node that begins with whatever is offered."""
        if self.last_number is not None:
            return self.last_number + 1
        return self.first_number or 0

    @property
    def has_beginning(self) -> bool:
        """Whether it is settled with which block the chain begins here."""
        return self.last_number is not None or not self.begins_anywhere

    @property
    def next_unstreamed(self) -> int:
        """U: one above the highest live block, else L + 1."""
        live = [block.number for block in self.blocks.values() if block.state in LIVE]
        return max(live) + 1 if live else self.next_number

    def next_unstreamed_for(self, name: str) -> int:
        """U as it is for a publisher that failed block U and may not send it: it goes on behind that."""
        number = self.next_unstreamed
        while (block := self.blocks.get(number)) is not None and not self.may_send(name, block):
            number += 1
        return number

    def is_full(self) -> bool:
        """Whether no more bytes should come in but those that free memory."""
        return self.inflight_bytes >= self.rules.inflight_bytes_max

    def is_full_for(self, stream: StreamFacts) -> bool:
        """Whether no more bytes should come in from this publisher, or from its address, but those."""
        if self.is_full():
            return True
        rules = self.rules
        return not stream.is_peer and (
            self.publisher_bytes.get(stream.name, 0) >= rules.publisher_bytes_max
            or self.address_bytes.get(stream.address, 0) >= rules.address_bytes_max
        )

    def may_read(self, publisher_id: PublisherId) -> bool:
        """Tell whether the shell may take another message from this publisher now.

        When all is full, or its own share is, only what leads to block L + 1 goes on, since only its commit
        frees memory: the publisher that sends it; while nobody does, each that may send it and is therefore
        to be heard. What these still send of later blocks is dropped then (`is_in_the_way`), so that it costs
        no memory. So no limit stops the race, whoever holds what: L + 1 is being sent by somebody who is
        read, or is to be sent by those who are read, or is held whole and will be committed.
        """
        if self.inflight_bytes < self.rules.full_bytes_min:
            return True
        stream = self.streams.get(publisher_id)
        if stream is None or stream.state in GONE or not self.is_full_for(stream):
            return True
        return self.next_number not in self.blocks or self.is_awaited(publisher_id)

    def is_awaited(self, publisher_id: PublisherId) -> bool:
        """Whether block L + 1 is there, and this publisher sends it, or may send it while nobody does."""
        block, stream = self.blocks.get(self.next_number), self.streams.get(publisher_id)
        if block is None or stream is None:
            return False
        if block.state is BlockState.OPEN:
            return self.may_send(stream.name, block)
        return block.state is BlockState.STREAMING and stream.block is block

    def is_in_the_way(self, stream: StreamFacts) -> bool:
        """Whether it is full, nobody sends L + 1, and the stream sends a later block but is to go back.

        That block it would drop anyway, once it has read what it was asked, or is asked now: it goes on from
        there upward, also where the block that it was asked for is safe by now.
        """
        if self.inflight_bytes < self.rules.full_bytes_min or stream.block is None:
            return False
        wanted = self.blocks.get(self.next_number)
        if wanted is None or wanted.state is not BlockState.OPEN or wanted.number >= stream.block.number:
            return False
        return self.is_full_for(stream) and (
            stream.asked_for is not None or self.may_send(stream.name, wanted)
        )

    def next_deadline_ns(self) -> int | None:
        """When `tick` has something to do at the latest; None: no time limit is running."""
        deadlines = [self.block_deadline(self.lowest_sent()), self.pardon_deadline()]
        for stream in self.streams.values():
            # Asked after every event, of every stream: most have no time limit of their own.
            if stream.state in _TIMED or stream.owed_since_ns is not None:
                deadlines += (self.stream_deadline(stream), self.owed_deadline(stream))
        return min(filter(None, deadlines), default=None)

    def standing_of(self, number: int, name: str) -> Standing:
        """Where block `number` stands for the publisher called `name`."""
        anywhere = self.is_unbegun()
        if number < self.next_number and not anywhere:
            if self.last_number is None or number < (self.first_number or 0):
                return Standing.BELOW_FIRST
            window_start = self.next_number - self.rules.duplicate_skip_window
            return Standing.COMMITTED_JUST_NOW if number >= window_start else Standing.COMMITTED
        block = self.blocks.get(number)
        if block is not None and block.state in LIVE:
            return Standing.STREAMING if block.state is BlockState.STREAMING else Standing.HELD
        # The number that means "no block" is ahead wherever the chain begins, and wherever it ends.
        if number > BLOCK_NUMBER_MAX or (number > self.next_unstreamed_for(name) and not anywhere):
            return Standing.AHEAD
        if block is not None and not self.may_send(name, block):
            return Standing.WANTED_BUT_LOST_BY_P
        return Standing.WANTED

    def may_send(self, name: str, block: BlockFacts) -> bool:
        """Whether `name` may win the open block: it did not fail it, or everybody who is connected did."""
        if name not in block.blamed:
            return True
        names = {stream.name for stream in self.streams.values() if stream.state not in GONE}
        return names <= block.blamed

    def awaits(self, stream: StreamFacts) -> bool:
        """Whether a block that the stream has offered is still in flight, or to be acknowledged late."""
        return stream.owed_since_ns is not None or any(
            block.state in LIVE and block.number <= stream.offered_max for block in self.blocks.values()
        )

    def is_finishing(self) -> bool:
        """Whether block L + 1 is in flight."""
        block = self.blocks.get(self.next_number)
        return block is not None and block.state in LIVE

    def is_unbegun(self) -> bool:
        """An empty node that begins with whatever block is offered, while it holds none."""
        if not self.begins_anywhere or self.last_number is not None:
            return False
        return not any(block.state in LIVE for block in self.blocks.values())

    def slowest(self) -> BlockFacts | None:
        """The block that all others wait for: being sent, and everything below it received."""
        number = self.next_number
        while (block := self.blocks.get(number)) is not None and block.state is not BlockState.OPEN:
            if block.state is BlockState.STREAMING:
                return block
            number += 1
        return None

    def lowest_sent(self) -> BlockFacts | None:
        """The lowest block that is being sent, whatever is below it: the one whose time runs."""
        sent = [block for block in self.blocks.values() if block.state is BlockState.STREAMING]
        return min(sent, key=lambda block: block.number, default=None)

    def is_stalled(self, block: BlockFacts) -> bool:
        """Whether another publisher has begun and completed a block `stall_blocks` ahead since this one."""
        ahead = self.rules.stall_blocks
        if not ahead or self.next_unstreamed <= block.number + ahead or self.is_held_back(block):
            return False
        return any(
            other.number >= block.number + ahead
            and other.state in LIVE
            and other.state is not BlockState.STREAMING
            and other.winner_name != block.winner_name
            and other.turn > block.turn
            for other in self.blocks.values()
        )

    def is_held_back(self, block: BlockFacts) -> bool:
        """Whether its winner is not read now."""
        winner = None if block.winner is None else self.streams.get(block.winner)
        return winner is not None and winner.held_back

    def block_deadline(self, block: BlockFacts | None) -> int | None:
        """When the winner of the lowest block that is being sent must have completed it; None: never.

        A publisher that is alone may take its time as long as it goes on sending: nobody else could bring the
        block. So may a peer that sends history, unless a publisher has that block, too: a large block over a
        slow line would never come otherwise.
        """
        if block is None or not self.rules.block_timeout_ns or self.is_held_back(block):
            return None
        winner = None if block.winner is None else self.streams.get(block.winner)
        if winner is not None and winner.delayed_from_ns is not None:
            return None
        since_ns = block.timed_from_ns
        if winner is not None and not winner.is_peer and self.source_count == 1:
            if not self.rules.idle_timeout_ns:
                return None
            return max(since_ns + self.rules.block_timeout_ns, winner.since_ns + self.rules.idle_timeout_ns)
        if winner is not None and winner.is_peer and not self._others_offer(block):
            since_ns = max(since_ns, winner.since_ns)
        return since_ns + self.rules.block_timeout_ns

    def _others_offer(self, block: BlockFacts) -> bool:
        """Whether a publisher that is connected has come to a block, so that it could send it."""
        return any(
            stream.offered_max >= block.number
            for stream in self.streams.values()
            if not stream.is_peer and stream.state not in GONE
        )

    def pardon_deadline(self) -> int | None:
        """When those who failed block L + 1 may try again, though others are connected; None: never.

        The others had the time of a whole block to offer it, and have not: the chain must not wait for them.
        """
        block = self.blocks.get(self.next_number)
        if block is None or block.state is not BlockState.OPEN or not block.blamed:
            return None
        if not self.rules.block_timeout_ns:
            return None
        return max(block.opened_ns, self.lowest_since_ns) + self.rules.block_timeout_ns

    def stream_deadline(self, stream: StreamFacts) -> int | None:
        """When the stream's own time limit runs out; None: none is running."""
        if stream.state is StreamState.FINISHED and stream.closes_at_ns:
            return stream.closes_at_ns  # whatever it still sends
        if stream.held_back or stream.delayed_from_ns is not None:
            return None  # what it has sent since is not read, or not told
        # A peer always says where a block ends, and its line may be slow between two proofs.
        if stream.state is StreamState.PROVEN and not stream.is_peer:
            return stream.since_ns + self.rules.proof_idle_ns
        # Nobody knows when there is a block for a peer to send; its subscription has time limits of its own.
        if stream.state is StreamState.FRESH and self.rules.idle_timeout_ns and not stream.is_peer:
            return stream.since_ns + self.rules.idle_timeout_ns
        return None

    def owed_deadline(self, stream: StreamFacts) -> int | None:
        """When the stream must hear that what it skipped is safe; None: nothing is owed."""
        if stream.owed_since_ns is None or stream.state is StreamState.ENDED:
            return None
        return stream.owed_since_ns + self.rules.late_acknowledgement_ns

    def stream(self, publisher_id: PublisherId) -> StreamFacts:
        """The connected stream of this id.

        Raises:
            RaceError: there is none.
        """
        stream = self.streams.get(publisher_id)
        if stream is None:
            raise RaceError(f"publisher {publisher_id}: not connected")
        return stream

    def check(self) -> None:
        """Assert the invariants at the top of this module that can be seen between events."""
        sending: dict[int, PublisherId] = {}
        for stream in self.streams.values():
            assert (stream.block is not None) == (stream.state in _SENDING), stream
            if stream.block is not None:
                assert stream.block.state is BlockState.STREAMING, stream
                assert stream.block.winner == stream.publisher_id, stream
                assert stream.block.number not in sending, stream
                sending[stream.block.number] = stream.publisher_id
        for number, block in self.blocks.items():
            assert block.number == number >= self.next_number, block
            assert (block.state is BlockState.STREAMING) == (number in sending), block
            assert (block.attempt_id in self.attempts) == (block.state in LIVE), block
            if block.state is BlockState.COMMITTING:
                below = self.blocks.get(number - 1)
                assert number == self.next_number or (below and below.state is BlockState.COMMITTING), block
        assert self.inflight_bytes == sum(block.held_bytes for block in self.blocks.values())
        self._check_shares()
        self._check_progress()

    def _check_shares(self) -> None:
        """What counts for a name and an address is what their blocks hold."""
        by_name: dict[str, int] = {}
        by_address: dict[str, int] = {}
        for block in self.blocks.values():
            if block.is_counted and block.held_bytes:
                by_name[block.winner_name] = by_name.get(block.winner_name, 0) + block.held_bytes
                address = block.winner_address
                by_address[address] = by_address.get(address, 0) + block.held_bytes
        assert (self.publisher_bytes, self.address_bytes) == (by_name, by_address)

    def _check_progress(self) -> None:
        """Some publisher will bring block L + 1 by itself, was asked to, or has yet to offer anything."""
        block = self.blocks.get(self.next_number)
        ready = [stream for stream in self.streams.values() if stream.state not in GONE]
        if block is None or block.state is not BlockState.OPEN or not ready or self.is_closing:
            return
        able = [stream for stream in ready if self.may_send(stream.name, block)]
        assert able, f"block {block.number}: nobody may send it"
        for stream in able:
            assert stream.next_offer is None or stream.next_offer <= block.number, stream
