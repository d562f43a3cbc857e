"""The publish arbiter: who sends which block, what each publisher hears, what is committed next.

Pure: no gRPC type, no clock, no lock. Every event is a method; it takes the time as `now_ns` where time
matters and returns the actions (`gateway.race_actions`) to perform, in order. What happens on each event is
looked up in `gateway.race_tables`; this module keeps the facts and carries out what the tables say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.race_actions import (
    Acknowledgement,
    Action,
    Append,
    AttemptId,
    Begin,
    Behind,
    CatchUp,
    CheckLink,
    Close,
    Commit,
    Drop,
    EndOfStream,
    Idle,
    PublisherId,
    Resend,
    Response,
    Send,
    Skip,
    SourceError,
    Verify,
)
from gateway.race_facts import GONE, LIVE, BlockFacts, RaceError, RaceFacts, RaceRules, StreamFacts
from gateway.race_tables import (
    BLOCK_TABLE,
    CONSEQUENCES,
    ON_HEADER,
    STREAM_TABLE,
    Answer,
    BlockEvent,
    BlockState,
    EndStatus,
    Failure,
    Reaction,
    StreamEvent,
    StreamState,
)

__all__ = ["Arbiter", "RaceError", "RaceRules"]


@dataclass(frozen=True, slots=True)
class _Said:
    """What a publisher's message carries, as far as a reaction may need it."""

    now_ns: int
    reason: str
    """For the log, if the message turns out to be wrong: got, expected."""
    number: int = 0
    """Block number of the header."""
    items: Sequence[bytes] = ()
    kinds: Sequence[int] | None = None
    """Field numbers of the items, where they are known."""
    proven: bool = False
    """The items end with a proof."""
    failure: Failure = Failure.LEFT
    """What it means for a block in progress."""
    closes_at_ns: int = 0
    """When the stream is closed though its blocks are not settled; 0: not before they are."""


_APPEND_ONLY = (Reaction.APPEND,)


class Arbiter(RaceFacts):
    """The publish race of one node; arguments as for `RaceFacts`."""

    def __init__(
        self, last_number: int | None, first_number: int | None = 0, rules: RaceRules | None = None
    ) -> None:
        super().__init__(last_number, first_number, rules)
        self._attempt_count = 0
        self._link_asked = AttemptId(0)
        self._now_ns = 0
        self._actions: list[Action] = []
        self._steps: dict[Reaction, Callable[[StreamFacts, _Said], None]] = {
            Reaction.OFFER: self._offer,
            Reaction.APPEND: self._append,
            Reaction.COMPLETE: self._complete,
            Reaction.ABANDON: self._abandon,
            Reaction.FINISH: self._finish,
            Reaction.LEAVE: self._leave,
            Reaction.REFUSE: self._refuse,
        }

    # --- events from publishers ----------------------------------------------------------------------------

    def connected(
        self, publisher_id: PublisherId, name: str, now_ns: int, *, is_peer: bool = False
    ) -> list[Action]:
        """A publisher has opened a stream.

        Args:
            name: who it is; two streams may have the same.
            is_peer: it is this node's own subscription to another node, which a standby takes as well.
        """
        self._now_ns = now_ns
        if publisher_id in self.streams:
            raise RaceError(f"publisher {publisher_id} ({name}): connected twice")
        stream = StreamFacts(
            publisher_id,
            name,
            StreamState.FRESH,
            since_ns=now_ns,
            hears_from=self.next_number,
            is_peer=is_peer,
        )
        self.streams[publisher_id] = stream
        if self.persistence_failed is not None:
            self._end(
                stream,
                EndStatus.PERSISTENCE_FAILED,
                self.persistence_failed,
                proximate_number=self.next_number,
            )
        elif self.is_closing or (self.retired is not None and not is_peer):
            self._end(stream, EndStatus.SUCCESS, self._closing_reason())
        return self._settle()

    def header(
        self,
        publisher_id: PublisherId,
        number: int,
        items: Sequence[bytes],
        now_ns: int,
        *,
        kinds: Sequence[int] | None = None,
        proven: bool = False,
    ) -> list[Action]:
        """An item set that begins with the header of block `number`; `kinds`, `proven` as for `items`."""
        self._now_ns = now_ns
        stream = self.stream(publisher_id)
        failure = Failure.ABANDONED
        if stream.block is not None and stream.block.number == number:
            failure = Failure.RESTARTED
        elif any(back is not None and number <= back for back in (stream.asked_for, stream.behind_from)):
            failure = Failure.SENT_BACK
        reason = f"got the header of block {number}, expected the rest of the block"
        said = _Said(now_ns, reason, number=number, items=items, kinds=kinds, proven=proven, failure=failure)
        return self._react(stream, StreamEvent.HEADER, said)

    def items(
        self,
        publisher_id: PublisherId,
        items: Sequence[bytes],
        now_ns: int,
        *,
        kinds: Sequence[int] | None = None,
        proven: bool,
        only_proofs: bool,
    ) -> list[Action]:
        """An item set without a header.

        Args:
            kinds: the items' field numbers, where they are known; handed on in `Append`.
            proven: it ends with a proof.
            only_proofs: it has nothing but proofs.
        """
        self._now_ns = now_ns
        stream = self.stream(publisher_id)
        after = "after the block's proof" if stream.state is StreamState.PROVEN else "without a header before"
        reason = f"got {len(items)} items {after}, expected a block header"
        said = _Said(now_ns, reason, items=items, kinds=kinds, proven=proven)
        return self._react(stream, StreamEvent.PROOFS if only_proofs else StreamEvent.ITEMS, said)

    def block_end(self, publisher_id: PublisherId, number: int, now_ns: int) -> list[Action]:
        """The message end_of_block."""
        self._now_ns = now_ns
        stream = self.stream(publisher_id)
        current = stream.block.number if stream.block is not None else stream.last_ended
        event = StreamEvent.BLOCK_END if number == current else StreamEvent.OTHER_BLOCK_END
        expected = "a block header" if current is None else f"end_of_block({current})"
        return self._react(stream, event, _Said(now_ns, f"got end_of_block({number}), expected {expected}"))

    def end_stream(
        self,
        publisher_id: PublisherId,
        now_ns: int,
        *,
        latest: int | None = None,
        is_error: bool = False,
        reason: str = "",
    ) -> list[Action]:
        """The message EndStream.

        Args:
            latest: the publisher's last block, where it said TOO_FAR_BEHIND.
            is_error: it said ERROR.
            reason: for the log.
        """
        self._now_ns = now_ns
        stream = self.stream(publisher_id)
        if stream.state not in GONE:
            if latest is not None and latest >= self.next_number:
                self._offered_ahead(latest)
            if is_error and self.publisher_count == 1:
                self._actions.append(SourceError(publisher_id))
        said = _Said(now_ns, reason, closes_at_ns=now_ns + self.rules.goodbye_ns)
        return self._react(stream, StreamEvent.GOODBYE, said)

    def half_closed(self, publisher_id: PublisherId, now_ns: int) -> list[Action]:
        """The publisher closed its sending side in order; it still hears of the blocks that it offered."""
        self._now_ns = now_ns
        said = _Said(now_ns, "the publisher closed its side")
        return self._react(self.stream(publisher_id), StreamEvent.GOODBYE, said)

    def left(
        self, publisher_id: PublisherId, now_ns: int, reason: str = "the connection is gone"
    ) -> list[Action]:
        """The stream is gone: broken, cancelled, or closed after the node ended it. Said once, always."""
        self._now_ns = now_ns
        return self._react(self.stream(publisher_id), StreamEvent.LOST, _Said(now_ns, reason))

    def bad_request(self, publisher_id: PublisherId, reason: str, now_ns: int) -> list[Action]:
        """A message that breaks the protocol in itself; `reason` says what, got, expected."""
        self._now_ns = now_ns
        stream = self.stream(publisher_id)
        if stream.state not in GONE:
            self._refuse(stream, _Said(now_ns, reason))
        return self._settle()

    def publisher_failed(self, publisher_id: PublisherId, reason: str, now_ns: int) -> list[Action]:
        """Handling this publisher's message went wrong on our side; the others go on."""
        self._now_ns = now_ns
        stream = self.stream(publisher_id)
        if stream.state not in GONE:
            self._end(stream, EndStatus.ERROR, reason)
        return self._settle()

    # --- events from the node ------------------------------------------------------------------------------

    def verified(self, attempt_id: AttemptId, now_ns: int) -> list[Action]:
        """Root hash and proof are right. Late news of a dropped attempt is ignored."""
        self._now_ns = now_ns
        block = self.attempts.get(attempt_id)
        if block is not None:
            self._move(block, BlockEvent.VERIFIED)
        return self._settle()

    def linked(self, attempt_id: AttemptId, now_ns: int) -> list[Action]:
        """The block continues the one before it."""
        self._now_ns = now_ns
        block = self.attempts.get(attempt_id)
        if block is not None:
            self._move(block, BlockEvent.LINKED)
            self._actions.append(Commit(attempt_id))
        return self._settle()

    def refused(self, attempt_id: AttemptId, reason: str, now_ns: int) -> list[Action]:
        """Structure, root hash, link or proof is wrong; `reason` says what, got, expected."""
        self._now_ns = now_ns
        block = self.attempts.get(attempt_id)
        if block is not None:
            self._fail(block, Failure.REFUSED, reason)
        return self._settle()

    def committed(self, attempt_id: AttemptId, now_ns: int) -> list[Action]:
        """The block is on disk."""
        self._now_ns = now_ns
        block = self.attempts.get(attempt_id)
        if block is None:
            raise RaceError(f"attempt {attempt_id}: committed, but it is not in flight")
        if block.number != self.next_number:
            raise RaceError(f"block {block.number}: committed, expected block {self.next_number}")
        self._move(block, BlockEvent.COMMITTED)
        self.last_number, self.lowest_since_ns = block.number, now_ns
        self._forget(block)
        del self.blocks[block.number]
        for stream in self.streams.values():
            if stream.state is not StreamState.ENDED:
                stream.owed_since_ns = None
                self._send(stream, Acknowledgement(block.number))
        return self._settle()

    def commit_failed(self, attempt_id: AttemptId, reason: str, now_ns: int) -> list[Action]:
        """The disk refused. Everything in flight is dropped and every publisher is ended."""
        self._now_ns = now_ns
        failed = self.attempts.get(attempt_id)
        number = failed.number if failed is not None else self.next_number
        self.persistence_failed = reason
        self._drop_all(reason)
        for stream in self.streams.values():
            if stream.state is not StreamState.ENDED:
                self._end(stream, EndStatus.PERSISTENCE_FAILED, reason, proximate_number=number)
        return self._settle()

    def disk_recovered(self) -> None:
        """The disk takes writes again: new streams are welcome."""
        self.persistence_failed = None

    def shutdown(self, now_ns: int) -> list[Action]:
        """Finish the blocks that are complete and next in line, then end every stream with SUCCESS."""
        self._now_ns = now_ns
        if not self.is_closing:
            self.idle = False  # a standby has streams of its own to end
        self.shutting_down = True
        return self._close_doors()

    def retire(self, reason: str, now_ns: int) -> list[Action]:
        """As `shutdown`, but not for good: publishers are sent elsewhere until `reinstate`.

        A retired node takes blocks from its peers only. `reason` is for the log.
        """
        self._now_ns = now_ns
        if self.retired is not None or self.shutting_down:
            return []
        self.retired = reason
        return self._close_doors()

    def reinstate(self) -> None:
        """Publishers are welcome again; so is the block that was given up when the node retired."""
        self.retired = None
        self.idle = self.shutting_down and self.idle

    def tick(self, now_ns: int) -> list[Action]:
        """Time has passed; call at `next_deadline_ns` or later."""
        self._now_ns = now_ns
        for stream in list(self.streams.values()):
            owed_at = self.owed_deadline(stream)
            if owed_at is not None and now_ns >= owed_at:
                # No later block has come whose acknowledgement would have said it too.
                stream.owed_since_ns = None
                self._send(stream, Acknowledgement(stream.hears_from - 1))
            at = self.stream_deadline(stream)
            if at is None or now_ns < at:
                continue
            if stream.state is StreamState.PROVEN:
                self._complete(stream, _Said(now_ns, "nothing followed its proof"))
            elif stream.state is StreamState.FRESH:
                seconds = self.rules.idle_timeout_ns / 1e9
                self._end(stream, EndStatus.TIMEOUT, f"no block header in {seconds:g} s")
            elif stream.state is StreamState.FINISHED:
                self._close(stream)
        block, seconds = self.lowest_sent(), self.rules.block_timeout_ns / 1e9
        at, pardon_at = self.block_deadline(block), self.pardon_deadline()
        if pardon_at is not None and now_ns >= pardon_at:
            self.blocks[self.next_number].blamed.clear()
        if block is not None and at is not None and now_ns >= at:
            self._fail(block, Failure.TIMED_OUT, f"not complete after {seconds:g} s")
        return self._settle()

    def hold_back(self, publisher_id: PublisherId) -> None:
        """The shell does not read this publisher, because `may_read` says no: no time limit runs for it."""
        self.stream(publisher_id).held_back = True

    def let_go(self, publisher_id: PublisherId, now_ns: int) -> None:
        """The shell reads this publisher again: its time begins anew."""
        stream = self.stream(publisher_id)
        stream.held_back = False
        stream.since_ns = now_ns
        if stream.block is not None:
            stream.block.begun_ns = now_ns

    # --- what the tables ask for ---------------------------------------------------------------------------

    def _react(self, stream: StreamFacts, event: StreamEvent, said: _Said) -> list[Action]:
        """Do what STREAM_TABLE says, step by step."""
        reactions = STREAM_TABLE[stream.state][event]
        for reaction in reactions:
            self._steps[reaction](stream, said)
        if reactions == _APPEND_ONLY and stream.block is not None:
            return self._take()  # the hot path: nothing else can have changed
        return self._settle()

    def _offer(self, stream: StreamFacts, said: _Said) -> None:
        number = said.number
        stream.offered_max = max(stream.offered_max, number)
        self._note_way(stream, number)
        stream.state = StreamState.DROPPING
        if self.is_closing:
            return
        answer = ON_HEADER[self.standing_of(number, stream.name)]
        if answer is Answer.ACCEPT:
            self._accept(stream, said)
        elif answer is Answer.SKIP:
            if number < stream.hears_from and stream.owed_since_ns is None:
                stream.owed_since_ns = said.now_ns
            self._send(stream, Skip(number))
        elif answer is Answer.BEHIND:
            self._offered_ahead(number)
            stream.next_offer = stream.behind_from = self.next_number
            self._send(stream, Behind(self.reported_last()))
        else:
            reason = f"got the header of block {number}, expected {self.next_number} or later"
            self._end(stream, EndStatus.DUPLICATE_BLOCK, reason)

    def _note_way(self, stream: StreamFacts, number: int) -> None:
        """Note where the stream stands on its way through the chain, now that it offers block `number`."""
        asked, behind = stream.asked_for, stream.behind_from
        if asked is not None and (number <= asked or asked < self.next_number):
            stream.asked_for = asked = None
        if behind is not None and (number <= behind or behind < self.next_number):
            stream.behind_from = None
        # A later block than it was asked for: that header was on its way when it was asked, or it finishes
        # first what it is at. It comes back by itself, and is not to be asked twice.
        stream.next_offer = number + 1 if asked is None else asked

    def _accept(self, stream: StreamFacts, said: _Said) -> None:
        number = said.number
        if self.is_unbegun():
            self.first_number = number
            for other in [other for other in self.blocks if other != number]:
                del self.blocks[other]
        block = self.blocks.setdefault(number, BlockFacts(number))
        self._move(block, BlockEvent.HEADER_ACCEPTED)
        self._attempt_count += 1
        block.attempt_id = AttemptId(self._attempt_count)
        block.winner, block.winner_name = stream.publisher_id, stream.name
        block.begun_ns = said.now_ns
        self.attempts[block.attempt_id] = block
        stream.block, stream.state = block, StreamState.SENDING
        self._actions.append(Begin(block.attempt_id, number, stream.publisher_id))
        self._append(stream, said)

    def _append(self, stream: StreamFacts, said: _Said) -> None:
        block = stream.block
        assert block is not None
        if self.is_in_the_way(stream):
            limit = self.rules.inflight_bytes_max
            self._fail(block, Failure.SENT_BACK, f"{self.inflight_bytes} bytes in flight, expected {limit}")
            return
        held_bytes = block.held_bytes
        size_bytes = block.size_bytes + sum(map(len, said.items))
        item_count = block.item_count + len(said.items)
        for got, most, unit in (
            (size_bytes, self.rules.block_bytes_max, "bytes of items"),
            (item_count, self.rules.block_items_max, "items"),
        ):
            if got > most:
                self._fail(block, Failure.TOO_LARGE, f"got {got} {unit}, expected at most {most}")
                return
        block.size_bytes, block.item_count = size_bytes, item_count
        self.inflight_bytes += block.held_bytes - held_bytes
        stream.state = StreamState.PROVEN if said.proven else StreamState.SENDING
        stream.since_ns = said.now_ns
        self._actions.append(Append(block.attempt_id, said.items, said.kinds))

    def _abandon(self, stream: StreamFacts, said: _Said) -> None:
        assert stream.block is not None
        self._fail(stream.block, said.failure, said.reason)

    def _refuse(self, stream: StreamFacts, said: _Said) -> None:
        if stream.block is not None:
            self._fail(stream.block, Failure.BAD_REQUEST, said.reason)
        else:
            self._end(stream, EndStatus.INVALID_REQUEST, said.reason)

    def _finish(self, stream: StreamFacts, said: _Said) -> None:
        stream.state, stream.closes_at_ns = StreamState.FINISHED, said.closes_at_ns

    def _leave(self, stream: StreamFacts, said: _Said) -> None:
        del self.streams[stream.publisher_id]
        for block in self.blocks.values():
            if block.winner == stream.publisher_id:
                block.winner = None

    def _complete(self, stream: StreamFacts, said: _Said) -> None:
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
            block.blamed.add(block.winner_name)
        block.winner, block.opened_ns = None, self._now_ns
        if winner is None:
            return
        if winner.block is block:
            winner.block, winner.state = None, StreamState.DROPPING
        if consequence.end_status is not None and winner.state is not StreamState.ENDED:
            self._end(winner, consequence.end_status, reason, proximate_number=block.number)

    # --- after every event ---------------------------------------------------------------------------------

    def _settle(self) -> list[Action]:
        """Do what follows from the facts as they now are, and hand over the actions."""
        self._link_next()
        self._end_stalled()
        self._send_back()
        for stream in list(self.streams.values()):
            if stream.state is StreamState.FINISHED and not self.awaits(stream):
                self._close(stream)
        if self.is_closing and not self.idle and not self.is_finishing():
            self.idle = True
            for stream in self.streams.values():
                if stream.state is not StreamState.ENDED:
                    self._end(stream, EndStatus.SUCCESS, self._closing_reason())
            self._drop_all(self._closing_reason())
            self._actions.append(Idle())
        return self._take()

    def _take(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions

    def _link_next(self) -> None:
        """Ask for the link check of the lowest verified block, if the one before it is linked."""
        number = self.next_number
        while (block := self.blocks.get(number)) is not None and block.state is BlockState.COMMITTING:
            number += 1
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
        """If block L + 1 failed and nobody sends it, ask those who will not offer it by themselves."""
        block = self.blocks.get(self.next_number)
        if block is None or block.state is not BlockState.OPEN or self.is_closing:
            return
        for stream in self.streams.values():
            passed = stream.next_offer is not None and stream.next_offer > block.number
            if passed and stream.state not in GONE and self.may_send(stream.name, block):
                stream.next_offer = stream.asked_for = block.number
                self._send(stream, Resend(block.number))

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

    def _forget(self, block: BlockFacts) -> None:
        """The attempt is over: free its bytes."""
        self.attempts.pop(block.attempt_id, None)
        self.inflight_bytes -= block.held_bytes
        block.size_bytes = block.item_count = 0

    def _drop_all(self, reason: str) -> None:
        for block in list(self.blocks.values()):
            if block.state in LIVE:
                self._fail(block, Failure.NODE, reason)
        self.blocks.clear()

    def _offered_ahead(self, number: int) -> None:
        if self.catch_up_target is None or number > self.catch_up_target:
            self.catch_up_target = number
            self._actions.append(CatchUp(number))

    def _send(self, stream: StreamFacts, response: Response) -> None:
        self._actions.append(Send(stream.publisher_id, response))

    def _end(
        self, stream: StreamFacts, status: EndStatus, reason: str, *, proximate_number: int | None = None
    ) -> None:
        block, stream.state = stream.block, StreamState.ENDED
        stream.block = None
        self._send(stream, EndOfStream(status, self.reported_last(), proximate_number, reason))
        self._actions.append(Close(stream.publisher_id))
        if block is not None:
            self._fail(block, Failure.STREAM_ENDED, reason)

    def _close(self, stream: StreamFacts) -> None:
        stream.state = StreamState.ENDED
        self._actions.append(Close(stream.publisher_id))
