"""What the publish arbiter knows, and what can be read off it: the facts that its tables are looked up by.

Pure. `gateway.race.arbiter` changes these facts; nothing here does.

Invariants, asserted by `check()`, which the tests and the simulator call after every event
  - One attempt at a time for each block, and one block at a time for each publisher.
  - Blocks go to disk in order of number without gaps.
  - While a publisher is connected, some publisher may send block L + 1 unless it is live already, and will.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gateway.blocks.block_numbers import BLOCK_NUMBER_MAX
from gateway.errors import GatewayError
from gateway.race.actions import AttemptId, PublisherId
from gateway.race.records import BlockFacts, RaceRules, StreamFacts
from gateway.race.reputation import Reputations
from gateway.race.tables import BlockState, Standing, StreamState

__all__ = ["GONE", "LIVE", "RaceError", "RaceFacts"]


NEWCOMER_BLOCKS_MAX: Final = 8
"""Blocks above L + 1 that all newcomers together may have begun before others may go first."""
ADDRESS_BLOCKS_MAX: Final = 4
"""Of these, those of the newcomers of one address. Both are 1 while newcomers have failed of late."""
QUIET_PART: Final = 6
"""A block is held open without items coming when nothing came for it in this part of `block_timeout_ns`."""
_NOBODY: Final = 1 << 30


class RaceError(GatewayError):
    """The caller reported something that cannot be: our bug, never a publisher's."""


# Tuples, since to find a member of an enum in a set takes longer than to compare it with a few.
LIVE = (BlockState.STREAMING, BlockState.COMPLETE, BlockState.VERIFIED, BlockState.COMMITTING)
_SENDING = (StreamState.SENDING, StreamState.PROVEN)
GONE = (StreamState.FINISHED, StreamState.ENDED)
_TIMED = (StreamState.PROVEN, StreamState.FRESH, StreamState.FINISHED)


@dataclass(slots=True)
class _Held:
    """What publishers hold open, being sent."""

    quiet: set[tuple[str, str]]
    """Those who hold a block open without items coming, by name and address."""
    at_address: Counter[str]
    """Blocks of newcomers by address."""
    in_all: int = 0
    """Blocks of newcomers."""


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
        self.skipped_ns = 0
        """When the first of those who stand back was told to skip block L + 1; 0: none was."""
        self.pardoned: int | None = None
        """The block that anybody may send, because those who were to bring it have let their time go by."""
        self.reputations = Reputations(self.rules.block_timeout_ns)
        self.now_ns = 0
        """When something other than items came last: by this it goes who backs off."""
        self._before_others: PublisherId | None = None  # who stood back behind nobody when it was asked last
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

    def next_unstreamed_for(self, stream: StreamFacts) -> int:
        """U as it is for a publisher that failed block U and may not send it: it goes on behind that."""
        number = self.next_unstreamed
        while (
            (block := self.blocks.get(number)) is not None
            and stream.name in block.blamed
            and not self.may_send(stream, number)
        ):
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
            return self.may_send(stream, block.number)
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
            stream.asked_for is not None or self.may_send(stream, wanted.number)
        )

    def next_deadline_ns(self) -> int | None:
        """When `tick` has something to do at the latest; None: no time limit is running."""
        deadlines = [self.block_deadline(self.slowest()), self.pardon_deadline()]
        for stream in self.streams.values():
            # Asked after every event, of every stream: most have no time limit of their own.
            if stream.state in _TIMED or stream.owed_since_ns is not None:
                deadlines += (self.stream_deadline(stream), self.owed_deadline(stream))
        return min(filter(None, deadlines), default=None)

    def standing_of(self, number: int, stream: StreamFacts) -> Standing:
        """Where block `number` stands for a publisher."""
        anywhere = self.is_unbegun()
        if number < self.next_number and not anywhere:
            if self.last_number is None or number < (self.first_number or 0):
                return Standing.BELOW_FIRST
            window_start = self.next_number - self.rules.duplicate_skip_window
            return Standing.COMMITTED_JUST_NOW if number >= window_start else Standing.COMMITTED
        block = self.blocks.get(number)
        if block is not None and block.state is BlockState.STREAMING:
            gives_way = self.gives_way(block, stream)
            return Standing.HEADER_OF_NEWCOMER if gives_way else Standing.STREAMING
        if block is not None and block.state in LIVE:
            return Standing.HELD
        # The number that means "no block" is ahead wherever the chain begins, and wherever it ends.
        if number > BLOCK_NUMBER_MAX:
            return Standing.AHEAD
        if not anywhere and number > (unstreamed := self.next_unstreamed_for(stream)):
            stands_back = number <= stream.offered_max + 1 and not self.may_send(stream, unstreamed)
            return Standing.WANTED_BUT_P_STANDS_BACK if stands_back else Standing.AHEAD
        if self.may_send(stream, number):
            return Standing.WANTED
        if block is not None and stream.name in block.blamed:
            return Standing.WANTED_BUT_LOST_BY_P
        return Standing.WANTED_BUT_P_STANDS_BACK

    def may_send(self, stream: StreamFacts, number: int) -> bool:
        """Whether a publisher may win a block that nobody sends: nobody else who is connected goes first."""
        back = self.stands_back(stream, number)
        return not back or back <= self.least_back(number)

    def least_back(self, number: int) -> int:
        """How far those who are connected stand back for a block, who do so least."""
        held = self._held() if number > self.next_number else None
        first = self.streams.get(self._before_others or PublisherId(0))
        if first is not None and self._is_waited_for(first) and not self.stands_back(first, number, held):
            return 0
        least = _NOBODY
        for stream in self.streams.values():
            if self._is_waited_for(stream) and (back := self.stands_back(stream, number, held)) < least:
                least = back
                if not back:
                    self._before_others = stream.publisher_id
                    break
        return least

    def _is_waited_for(self, stream: StreamFacts) -> bool:
        return stream.state not in GONE and not stream.let_pass

    def stands_back(self, stream: StreamFacts, number: int, held: _Held | None = None) -> int:
        """How far a publisher stands back for a block that nobody sends; 0: behind nobody.

        First by what it backs off for, then for having failed this very block, then by what it holds already.

        Args:
            stream: the publisher's.
            number: of the block.
            held: what is held open above L + 1, where that is known.
        """
        block = self.blocks.get(number)
        is_blamed = block is not None and stream.name in block.blamed
        if stream.is_peer or number == self.pardoned or self.is_unbegun():
            return 4 if is_blamed else 0
        back = 8 * self.reputations.backoff(stream.name, stream.address, self.now_ns)
        if is_blamed:
            back += 4
        return back + self.share_of(stream, held or self._held()) if number > self.next_number else back

    def share_of(self, stream: StreamFacts, held: _Held) -> int:
        """Which share of open blocks is used up: 3 its own, 2 its address's, 1 all newcomers'; 0: none.

        Whoever it is may hold one block open without items coming. Newcomers may hold few, with or without: a
        header that came just now is nothing either, of one who has delivered no block.
        """
        who = stream.name, stream.address
        if who in held.quiet:
            return 3
        if not held.in_all or not self.reputations.is_newcomer(*who):
            return 0
        is_feared = self.reputations.fears_newcomers(self.now_ns)
        if held.at_address[stream.address] >= (1 if is_feared else ADDRESS_BLOCKS_MAX):
            return 2
        return 1 if held.in_all >= (1 if is_feared else NEWCOMER_BLOCKS_MAX) else 0

    def _held(self) -> _Held:
        """What publishers hold open."""
        held = _Held(set(), Counter())
        for block in self.sent_blocks():
            who = block.winner_name, block.winner_address
            is_newcomer = block.is_counted and self.reputations.is_newcomer(*who)
            if block.is_counted and (self._is_quiet(block) or (is_newcomer and block.item_count <= 1)):
                held.quiet.add(who)
            if is_newcomer:
                held.at_address[block.winner_address] += 1
                held.in_all += 1
        return held

    def _is_quiet(self, block: BlockFacts) -> bool:
        """Whether nothing has come for a block for a while, though its winner is read."""
        winner = None if block.winner is None else self.streams.get(block.winner)
        if winner is None or winner.held_back or winner.delayed_from_ns is not None:
            return False
        timeout_ns = self.rules.block_timeout_ns
        return timeout_ns > 0 and self.now_ns >= winner.since_ns + timeout_ns // QUIET_PART

    def gives_way(self, block: BlockFacts, stream: StreamFacts) -> bool:
        """Whether a block that is being sent goes to another publisher, who offers it.

        While newcomers have failed of late, one who delivers blocks is preferred to a newcomer of whose block
        nothing but the header has come. In peace the first is the first.
        """
        if block.item_count > 1 or not block.is_counted or stream.is_peer or not self.has_beginning:
            return False
        reputations = self.reputations
        return (
            reputations.fears_newcomers(self.now_ns)
            and reputations.is_newcomer(block.winner_name, block.winner_address)
            and not reputations.is_newcomer(stream.name, stream.address)
            and not self.stands_back(stream, block.number)
        )

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
        """The block that all others wait for, whose time runs: being sent, and all below it received."""
        number = self.next_number
        while (block := self.blocks.get(number)) is not None and block.state is not BlockState.OPEN:
            if block.state is BlockState.STREAMING:
                return block
            number += 1
        return None

    def sent_blocks(self) -> Iterable[BlockFacts]:
        """The blocks that are being sent."""
        return [block for block in self.blocks.values() if block.state is BlockState.STREAMING]

    def lowest_sent(self) -> BlockFacts | None:
        """The lowest block that is being sent, whatever is below it."""
        return min(self.sent_blocks(), key=lambda block: block.number, default=None)

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
        """When the winner of the block that all others wait for must have completed it; None: never.

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
        """When those who stand back may bring block L + 1 all the same; None: never, or they may.

        The others had the time of a whole block to offer it, and have not: the chain must not wait for them.
        """
        number, timeout_ns = self.next_number, self.rules.block_timeout_ns
        block = self.blocks.get(number)
        if not timeout_ns or number == self.pardoned:
            return None
        if block is None:
            if not self.has_beginning or not self._is_passed(number):
                return None
            return max(self.skipped_ns, self.lowest_since_ns) + timeout_ns
        if block.state is not BlockState.OPEN or not (block.blamed or self._is_passed(number)):
            return None
        return max(block.opened_ns, self.lowest_since_ns) + timeout_ns

    def _is_passed(self, number: int) -> bool:
        """Whether somebody has passed a block, who would come back for it if it were asked."""
        return any(
            stream.next_offer is not None and stream.next_offer > number and stream.state not in GONE
            for stream in self.streams.values()
        )

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
        able = [stream for stream in ready if self.may_send(stream, block.number)]
        assert able, f"block {block.number}: nobody may send it"
        for stream in able:
            assert stream.next_offer is None or stream.next_offer <= block.number, stream
