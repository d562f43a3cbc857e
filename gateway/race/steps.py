"""What the publish arbiter does: the steps that its tables name, and what follows after each event.

Pure. `race.arbiter` turns events into these steps; the facts that they change are in `gateway.race.facts`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gateway.blocks.block_numbers import BLOCK_NUMBER_MAX
from gateway.limits import BLAMED_PUBLISHERS_KEPT
from gateway.race.actions import (
    Action,
    AimCatchUp,
    Append,
    AttemptId,
    Begin,
    Behind,
    CheckLink,
    CloseStream,
    Drop,
    EndOfStream,
    Idle,
    Resend,
    Response,
    SendResponse,
    Skip,
    Stray,
    Verify,
)
from gateway.race.facts import GONE, LIVE, RaceError, RaceFacts
from gateway.race.records import BlockFacts, RaceRules, StreamFacts
from gateway.race.tables import (
    BLOCK_TABLE,
    CONSEQUENCES,
    ON_HEADER,
    STREAM_TABLE,
    BlockEvent,
    BlockState,
    EndStatus,
    Failure,
    HeaderAnswer,
    Reaction,
    Standing,
    StreamEvent,
    StreamState,
)

__all__ = ["RaceSteps", "Said"]


@dataclass(slots=True)  # made for every message: a frozen one takes twice as long to make
class Said:
    """What a publisher's message carries, as far as a reaction may need it."""

    now_ns: int
    reason: str
    """For the log, if the message turns out to be wrong: got, expected."""
    number: int = 0
    """Block number of the header."""
    items: Sequence[bytes] = ()
    kinds: Sequence[int] = ()
    """Field numbers of the items."""
    proven: bool = False
    """The items end with a proof."""
    failure: Failure = Failure.LEFT
    """What it means for a block in progress."""
    closes_at_ns: int = 0
    """When the stream is closed though its blocks are not settled; 0: not before they are."""


_APPEND_ONLY = (Reaction.APPEND,)
_OFFER_ONLY = (Reaction.OFFER,)


class RaceSteps(RaceFacts):
    """The facts of one node's publish race, and all that changes them; arguments as for `RaceFacts`."""

    def __init__(
        self, last_number: int | None, first_number: int | None = 0, rules: RaceRules | None = None
    ) -> None:
        super().__init__(last_number, first_number, rules)
        self._attempt_count = 0
        self._turn_count = 0
        self._link_asked = AttemptId(0)
        self._link_from = 0  # every block from L + 1 up to this one, exclusive, is on its way to disk
        self._sent: dict[int, BlockFacts] = {}
        self._timed: BlockFacts | None = None  # the one whose winner's time runs
        self._overdue: list[BlockFacts] = []
        self._open: dict[int, BlockFacts] = {}
        self._highest_live: int | None = None
        self._deadline_ns: int | None = None
        self._deadline_is_known = False
        self._now_ns = 0
        self._actions: list[Action] = []
        self._steps: dict[Reaction, Callable[[StreamFacts, Said], None]] = {
            Reaction.OFFER: self._offer,
            Reaction.APPEND: self._append,
            Reaction.COMPLETE: self._complete,
            Reaction.ABANDON: self._abandon,
            Reaction.FINISH: self._finish,
            Reaction.LEAVE: self._leave,
            Reaction.STRAY: self._stray,
            Reaction.REFUSE: self._refuse,
        }

    # --- facts that are asked for after every event: known at once, however many blocks are in flight ------

    @property
    def next_unstreamed(self) -> int:
        """U, as in `RaceFacts`."""
        return self.next_number if self._highest_live is None else self._highest_live + 1

    def sent_blocks(self) -> Iterable[BlockFacts]:
        """As in `RaceFacts`."""
        return self._sent.values()

    def lowest_sent(self) -> BlockFacts | None:
        """As in `RaceFacts`."""
        return self._sent[min(self._sent)] if self._sent else None

    def slowest(self) -> BlockFacts | None:
        """As in `RaceFacts`: everything below the lowest block that is sent is held, unless one is open."""
        block = self.lowest_sent()
        return block if block is not None and all(number > block.number for number in self._open) else None

    def next_deadline_ns(self) -> int | None:
        """As in `RaceFacts`."""
        if not self._deadline_is_known:
            self._deadline_ns, self._deadline_is_known = super().next_deadline_ns(), True
        return self._deadline_ns

    def check(self) -> None:
        """As in `RaceFacts`; and what is known at once is what can be counted."""
        super().check()
        known_ns, deadline_ns = self.next_deadline_ns(), super().next_deadline_ns()
        # That of a publisher who is alone moves on with its messages; looked at too early, it is found anew.
        assert known_ns == deadline_ns or (known_ns is not None and self.source_count == 1), (
            known_ns,
            deadline_ns,
        )
        in_flight = [block.number for block in self.blocks.values() if block.state in LIVE]
        assert self._highest_live == max(in_flight, default=None), self._highest_live
        assert self.lowest_sent() is super().lowest_sent()
        assert self.slowest() is super().slowest()
        assert self._timed is self.slowest()
        assert set(self._open) == {block.number for block in self.blocks.values()} - set(in_flight)

    def _index(self, block: BlockFacts) -> None:
        """Take note of a block's new state."""
        number = block.number
        self._sent.pop(number, None)
        self._open.pop(number, None)
        if block.state is BlockState.STREAMING:
            self._sent[number] = block
            self._highest_live = max(number, -1 if self._highest_live is None else self._highest_live)
        elif block.state is BlockState.OPEN:
            self._open[number] = block
            self._link_from = min(self._link_from, number)
        if block.state not in LIVE and number == self._highest_live:
            live = (other.number for other in self.blocks.values() if other.state in LIVE)
            self._highest_live = max(live, default=None)

    # --- what the tables ask for ---------------------------------------------------------------------------

    def _react(self, stream: StreamFacts, event: StreamEvent, said: Said) -> list[Action]:
        """Do what STREAM_TABLE says, step by step."""
        reactions = STREAM_TABLE[stream.state][event]
        for reaction in reactions:
            self._steps[reaction](stream, said)
        if reactions == _APPEND_ONLY and stream.block is not None:
            # The hot path: nothing else can have changed but a time limit, behind a proof and for a peer.
            if stream.state is StreamState.PROVEN or stream.is_peer:
                self._deadline_is_known = False
            return self._take()
        if reactions == _OFFER_ONLY and self._has_only_skipped(stream):
            return self._take()  # so it is with all but one of the headers of a block
        return self._settle()

    def _has_only_skipped(self, stream: StreamFacts) -> bool:
        """Whether an offer has changed no more than where its stream stands, and block L + 1 is in flight.

        Nothing follows from that: no block is in another state, none is to be asked for, no time limit began.
        """
        actions = self._actions
        if (
            len(actions) != 1
            or type(action := actions[0]) is not SendResponse
            or type(action.response) is not Skip
        ):
            return False
        if stream.owed_since_ns is not None:
            return False  # an acknowledgement in time
        lowest_sent = self.lowest_sent()
        if lowest_sent is not None and not lowest_sent.is_counted:
            return False  # a peer's: its time limit depends on who else has come to it
        block = self.blocks.get(self.next_number)
        return block is not None and block.state in LIVE

    def _offer(self, stream: StreamFacts, said: Said) -> None:
        number = said.number
        self._note_way(stream, number)
        if stream.state is StreamState.FRESH:
            self._deadline_is_known = False  # its own has ended
        stream.state, stream.stray_count = StreamState.DROPPING, 0
        answer = None if self.is_closing else ON_HEADER[self._standing(stream, said)]
        # What nobody may send yet is no block that it could hear of.
        if answer is not HeaderAnswer.BEHIND and number > stream.offered_max:
            stream.offered_max = number
        if answer is None:
            return
        if answer is HeaderAnswer.ACCEPT:
            self._accept(stream, said)
        elif answer is HeaderAnswer.SKIP:
            if number < stream.hears_from and not stream.has_heard and stream.owed_since_ns is None:
                stream.owed_since_ns = said.now_ns
            if number == self.next_number and not self.skipped_ns and number not in self.blocks:
                self.skipped_ns = said.now_ns  # by one who stands back: others have their time from now on
            self._send(stream, Skip(number))
        elif answer is HeaderAnswer.BEHIND:
            self._offered_ahead(number)
            stream.next_offer = stream.behind_from = self.next_number if self.has_beginning else 0
            self._send(stream, Behind(self.last_number))
        elif answer is HeaderAnswer.END_BELOW_FIRST:
            reason = (
                f"got the header of block {number}, expected {self.first_number}, the first here, or later"
            )
            self._end(stream, EndStatus.ERROR, reason, proximate_number=number, says_last=False)
        else:
            reason = f"got the header of block {number}, expected {self.next_number} or later"
            self._end(stream, EndStatus.DUPLICATE_BLOCK, reason)

    def _standing(self, stream: StreamFacts, said: Said) -> Standing:
        if said.failure is Failure.RESTARTED and self.blocks[said.number].state is BlockState.OPEN:
            return Standing.STARTED_OVER  # it was dropped just now; behind a proof it would be whole
        return self.standing_of(said.number, stream)

    def _note_way(self, stream: StreamFacts, number: int) -> None:
        """Note where the stream stands on its way through the chain, now that it offers block `number`."""
        stream.let_pass = False
        asked, behind = stream.asked_for, stream.behind_from
        if asked is not None and (number <= asked or asked < self.next_number):
            stream.asked_for = asked = None
        if behind is not None and (number <= behind or behind < self.next_number):
            stream.behind_from = None
        # A later block than it was asked for: that header was on its way when it was asked, or it finishes
        # first what it is at. It comes back by itself, and is not to be asked twice.
        stream.next_offer = number + 1 if asked is None else asked

    def _accept(self, stream: StreamFacts, said: Said) -> None:
        number = said.number
        before = self.blocks.get(number)
        if before is not None and before.state is BlockState.STREAMING:
            self._fail(before, Failure.GAVE_WAY, f"{stream.name} offers the block, and delivers blocks")
        if self.is_unbegun():
            self.first_number = self._link_from = number
            for other in [other for other in self.blocks if other != number]:
                del self.blocks[other]
                self._open.pop(other, None)
        block = self.blocks.setdefault(number, BlockFacts(number))
        self._move(block, BlockEvent.HEADER_ACCEPTED)
        self._attempt_count += 1
        block.attempt_id = AttemptId(self._attempt_count)
        block.winner, block.winner_name, block.winner_address = (
            stream.publisher_id,
            stream.name,
            stream.address,
        )
        block.is_counted = not stream.is_peer
        if said.failure is not Failure.RESTARTED:  # who starts over has no more time: it could do so for ever
            self._begin_time(block)
        self.attempts[block.attempt_id] = block
        stream.block, stream.state = block, StreamState.SENDING
        self._actions.append(Begin(block.attempt_id, number, stream.publisher_id))
        self._append(stream, said)

    def _append(self, stream: StreamFacts, said: Said) -> None:
        block = stream.block
        assert block is not None
        if self.is_in_the_way(stream):
            reason = f"block {self.next_number} is to come first, and too many bytes are in flight"
            self._fail(block, Failure.SENT_BACK, reason)
            return
        held_bytes = block.held_bytes
        items_bytes = sum(map(len, said.items))
        size_bytes = block.size_bytes + items_bytes
        item_count = block.item_count + len(said.items)
        for got, most, unit in (
            (size_bytes, self.rules.block_bytes_max, "bytes of items"),
            (item_count, self.rules.block_items_max, "items"),
        ):
            if got > most:
                self._fail(block, Failure.TOO_LARGE, f"got {got} {unit}, expected at most {most}")
                return
        block.size_bytes, block.item_count = size_bytes, item_count
        self._hold(block, block.held_bytes - held_bytes)
        stream.state = StreamState.PROVEN if said.proven else StreamState.SENDING
        stream.since_ns = said.now_ns
        self._actions.append(Append(block.attempt_id, said.items, said.kinds, items_bytes))

    def _abandon(self, stream: StreamFacts, said: Said) -> None:
        assert stream.block is not None
        self._fail(stream.block, said.failure, said.reason)

    def _refuse(self, stream: StreamFacts, said: Said) -> None:
        if stream.block is not None:
            self._fail(stream.block, Failure.BAD_REQUEST, said.reason)
        else:
            self._end(stream, EndStatus.INVALID_REQUEST, said.reason)

    def _stray(self, stream: StreamFacts, said: Said) -> None:
        stream.stray_count += 1
        if stream.stray_count > self.rules.stray_messages_max:
            reason = f"{said.reason}; {stream.stray_count} such messages in a row"
            self._end(stream, EndStatus.INVALID_REQUEST, reason)
        else:
            is_first = stream.stray_count == 1
            self._actions.append(Stray(stream.publisher_id, said.reason, is_first))

    def _finish(self, stream: StreamFacts, said: Said) -> None:
        stream.state, stream.closes_at_ns = StreamState.FINISHED, said.closes_at_ns

    def _leave(self, stream: StreamFacts, said: Said) -> None:
        del self.streams[stream.publisher_id]
        for block in self.blocks.values():
            if block.winner == stream.publisher_id:
                block.winner = None

    def _complete(self, stream: StreamFacts, said: Said) -> None:
        block = stream.block
        assert block is not None
        self._move(block, BlockEvent.ENDED)
        stream.block, stream.last_ended, stream.state = None, block.number, StreamState.BETWEEN
        self._actions.append(Verify(block.attempt_id))

    def _fail(self, block: BlockFacts, failure: Failure, reason: str) -> None:
        """Drop the attempt at `block`, and give its winner what CONSEQUENCES says."""
        consequence = CONSEQUENCES[failure]
        winner = None if block.winner is None else self.streams.get(block.winner)
        self._actions.append(Drop(block.attempt_id, block.number, failure, reason))
        self._move(block, BlockEvent.FAILED)
        self._forget(block)
        if consequence.blamed:
            self._blame(block)
        block.winner, block.opened_ns, block.failure = None, self._now_ns, failure
        if self.pardoned == block.number:
            self.pardoned = None
        if not self.has_beginning and block.number == self.first_number:
            # What was to follow this beginning has nothing to follow now: begin with whatever comes next.
            for other in list(self.blocks.values()):
                if other.state in LIVE:
                    self._fail(other, Failure.NODE, "the block that the chain was to begin with has failed")
        if winner is None:
            return
        if winner.block is block:
            winner.block, winner.state = None, StreamState.DROPPING
        if consequence.skips:
            self._send(winner, Skip(block.number))
        if consequence.end_status is not None and winner.state is not StreamState.ENDED:
            self._end(winner, consequence.end_status, reason, proximate_number=block.number)

    def _blame(self, block: BlockFacts) -> None:
        """Remember who failed a block; beyond the limit, of those who are connected alone. It pays."""
        block.blamed.add(block.winner_name)
        if len(block.blamed) > BLAMED_PUBLISHERS_KEPT:
            block.blamed &= {stream.name for stream in self.streams.values()}
        if not block.is_counted:
            return
        name, address = block.winner_name, block.winner_address
        self.now_ns = self._now_ns
        self._actions += self.reputations.failed(name, address, self._now_ns)
        # What those hold who back off now has its time from when it was begun: what has had all of it falls.
        for other in self._sent.values():
            if other is self._timed or not other.is_counted or self.is_held_back(other):
                continue
            if self.reputations.backoff(other.winner_name, other.winner_address, self._now_ns):
                other.used_ns = max(other.used_ns, self._now_ns - other.begun_ns)
                if other.used_ns >= self.rules.block_timeout_ns:
                    self._overdue.append(other)

    # --- after every event ---------------------------------------------------------------------------------

    def _settle(self) -> list[Action]:
        """Do what follows from the facts as they now are, and hand over the actions."""
        self._deadline_is_known, self.now_ns = False, self._now_ns
        self._link_next()
        self._end_stalled()
        while self._overdue:
            if (block := self._overdue.pop()).state is BlockState.STREAMING:
                self._fail(block, Failure.TIMED_OUT, "its publisher backs off, and it has had its time")
        self._send_back()
        for stream in list(self.streams.values()):
            if stream.state is StreamState.FINISHED and not self.awaits(stream):
                self._close(stream)
        if self.is_closing and not self.idle and not self.is_finishing():
            self.idle = True
            self._end_all(EndStatus.SUCCESS, self._closing_reason())
            self._drop_all(self._closing_reason())
            self._actions.append(Idle())
        self._run_time()
        return self._take()

    def _run_time(self) -> None:
        """Have the time of the winner run that all wait for, and nobody's else.

        It runs from when all below its block is received, stops when one of these fails, since that may be
        wanted of it first, and goes on where it was when that one is received again.
        """
        block, before, now_ns = self.slowest(), self._timed, self._now_ns
        if block is before:
            return
        if before is not None and before.state is BlockState.STREAMING:
            winner = None if before.winner is None else self.streams.get(before.winner)
            kept_ns = None if winner is None else winner.delayed_from_ns
            before.used_ns = max(0, (now_ns if kept_ns is None else kept_ns) - before.timed_from_ns)
        if block is not None:
            block.runs_from_ns, block.timed_from_ns = now_ns, now_ns - block.used_ns
        self._timed = block

    def _take(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions

    def _link_next(self) -> None:
        """Ask for the link check of the lowest verified block, if the one before it is linked."""
        number = max(self._link_from, self.next_number)
        while (block := self.blocks.get(number)) is not None and block.state is BlockState.COMMITTING:
            number += 1
        self._link_from = number
        if block is not None and block.state is BlockState.VERIFIED and block.attempt_id != self._link_asked:
            self._link_asked = block.attempt_id
            self._actions.append(CheckLink(block.attempt_id))

    def _end_stalled(self) -> None:
        """End the winner that all wait for, if others are far ahead of it.

        "If, while receiving a block from one node, another node completes a later block …"
        """
        block = self.slowest()
        if block is not None and self.is_stalled(block):
            ahead = self.rules.stall_blocks
            self._fail(block, Failure.STALLED, f"a block {ahead} or more ahead is complete")

    def _send_back(self) -> None:
        """If nobody sends block L + 1, ask those who will not offer it by themselves.

        It has failed, or they have passed it while the chain was about to begin with a later one.
        """
        number = self.next_number
        block = self.blocks.get(number)
        is_wanted = self.has_beginning if block is None else block.state is BlockState.OPEN
        if self.is_closing or not is_wanted:
            return
        least: int | None = None  # found once, and only where somebody stands back
        for stream in self.streams.values():
            if stream.next_offer is None or stream.next_offer <= number or stream.state in GONE:
                continue
            if back := self.stands_back(stream, number):
                least = self.least_back(number) if least is None else least
            if not back or back <= (least or 0):
                stream.next_offer = stream.asked_for = number
                self._send(stream, Resend(number, None if block is None else block.failure))

    def _pardon(self) -> None:
        """Let anybody bring block L + 1, and wait no more for those who could have."""
        number, least = self.next_number, self.least_back(self.next_number)
        for stream in self.streams.values():
            if stream.state not in GONE and self.stands_back(stream, number) <= least:
                stream.let_pass = True
        self.pardoned = number
        if (block := self.blocks.get(number)) is not None:
            block.blamed.clear()

    def _close_doors(self) -> list[Action]:
        """Give up what is not complete; `_settle` ends the streams when what is complete is finished."""
        for block in list(self.blocks.values()):
            if block.state is BlockState.STREAMING:
                self._fail(block, Failure.NODE, self._closing_reason())
        return self._settle()

    def _closing_reason(self) -> str:
        return "the node is shutting down" if self.shutting_down else self.retired or "the node is closed"

    # --- small steps ---------------------------------------------------------------------------------------

    def _move(self, block: BlockFacts, event: BlockEvent) -> None:
        target = BLOCK_TABLE[block.state].get(event)
        if target is None:
            raise RaceError(f"block {block.number}: cannot take {event.name} in state {block.state.name}")
        block.state = target
        self._index(block)

    def _forget(self, block: BlockFacts) -> None:
        """The attempt is over: free its bytes."""
        self.attempts.pop(block.attempt_id, None)
        self._hold(block, -block.held_bytes)
        block.size_bytes = block.item_count = 0

    def _begin_time(self, block: BlockFacts) -> None:
        """The time of its winner begins, or begins anew."""
        self._turn_count += 1
        block.turn, block.used_ns = self._turn_count, 0
        block.begun_ns = block.runs_from_ns = block.timed_from_ns = self._now_ns

    def _hold(self, block: BlockFacts, more_bytes: int) -> None:
        """Count bytes that a block holds more, or no longer: in all, and for its winner."""
        self.inflight_bytes += more_bytes
        if not block.is_counted or not more_bytes:
            return
        for shares, key in (
            (self.publisher_bytes, block.winner_name),
            (self.address_bytes, block.winner_address),
        ):
            held_bytes = shares.get(key, 0) + more_bytes
            if held_bytes:
                shares[key] = held_bytes
            else:
                del shares[key]

    def _drop_all(self, reason: str, from_number: int = 0) -> None:
        """Forget every block from this number on, in whatever state."""
        dropped = [block for block in self.blocks.values() if block.number >= from_number]
        for block in dropped:
            if block.state in LIVE:
                self._fail(block, Failure.NODE, reason)
        for block in dropped:
            self.blocks.pop(block.number, None)
            self._open.pop(block.number, None)

    def _offered_ahead(self, number: int) -> None:
        if number <= BLOCK_NUMBER_MAX and (self.catch_up_target is None or number > self.catch_up_target):
            self.catch_up_target = number
            self._actions.append(AimCatchUp(number))

    def _send(self, stream: StreamFacts, response: Response) -> None:
        self._actions.append(SendResponse(stream.publisher_id, response))

    def _end(
        self,
        stream: StreamFacts,
        status: EndStatus,
        reason: str,
        *,
        proximate_number: int | None = None,
        says_last: bool = True,
    ) -> None:
        block, stream.state = stream.block, StreamState.ENDED
        stream.block = None
        self._send(
            stream, EndOfStream(status, self.last_number if says_last else None, proximate_number, reason)
        )
        self._actions.append(CloseStream(stream.publisher_id))
        if block is not None:
            self._fail(block, Failure.STREAM_ENDED, reason)

    def _end_all(self, status: EndStatus, reason: str, *, proximate_number: int | None = None) -> None:
        for stream in self.streams.values():
            if stream.state is not StreamState.ENDED:
                self._end(stream, status, reason, proximate_number=proximate_number)

    def _close(self, stream: StreamFacts) -> None:
        stream.state = StreamState.ENDED
        self._actions.append(CloseStream(stream.publisher_id))
