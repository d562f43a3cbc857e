"""The publish arbiter: who sends which block, what each publisher hears, what is committed next.

Pure: no gRPC type, no clock, no lock. Every event is a method; it takes the time as `now_ns` where time
matters and returns the actions (`gateway.race.actions`) to perform, in order. What happens on each event is
looked up in `gateway.race.tables`; `gateway.race.steps` carries out what the tables say.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.race.actions import (
    Acknowledgement,
    Action,
    AttemptId,
    Commit,
    PublisherId,
    SourceError,
)
from gateway.race.facts import GONE, RaceError
from gateway.race.records import RaceRules, StreamFacts
from gateway.race.steps import RaceSteps, Said
from gateway.race.tables import (
    BlockEvent,
    EndStatus,
    Failure,
    StreamEvent,
    StreamState,
)

__all__ = ["Arbiter", "RaceError", "RaceRules"]


class Arbiter(RaceSteps):
    """The publish race of one node; arguments as for `RaceFacts`."""

    # --- events from publishers ----------------------------------------------------------------------------

    def connected(
        self, publisher_id: PublisherId, name: str, now_ns: int, *, address: str = "", is_peer: bool = False
    ) -> list[Action]:
        """A publisher has opened a stream.

        Args:
            name: who it is; two streams may have the same.
            address: the network address that it comes from; many may have the same.
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
            hears_from=self.next_number if self.has_beginning else 0,
            address=address,
            is_peer=is_peer,
        )
        alone = [other for other in self.streams.values() if other.state not in GONE]
        self.streams[publisher_id] = stream
        if self.persistence_failed is not None:
            self._end(
                stream,
                EndStatus.PERSISTENCE_FAILED,
                self.persistence_failed,
                proximate_number=self.persistence_number,
            )
        elif self.is_closing or (self.retired is not None and not is_peer):
            self._end(stream, EndStatus.SUCCESS, self._closing_reason())
        elif len(alone) == 1 and not alone[0].is_peer and (block := alone[0].block) is not None:
            block.used_ns = 0  # somebody else could bring it from now on
            block.runs_from_ns = block.timed_from_ns = now_ns
        return self._settle()

    def header(
        self,
        publisher_id: PublisherId,
        number: int,
        items: Sequence[bytes],
        now_ns: int,
        *,
        kinds: Sequence[int],
        proven: bool = False,
    ) -> list[Action]:
        """An item set that begins with the header of block `number`; `kinds`, `proven` as for `items`."""
        self._now_ns = self.now_ns = now_ns
        stream = self.stream(publisher_id)
        said = Said(now_ns, "", number, items, kinds, proven)
        if stream.block is not None:  # which it leaves
            asked, behind = stream.asked_for, stream.behind_from
            said.reason = f"got the header of block {number}, expected the rest of the block"
            if stream.block.number == number:
                said.failure = Failure.RESTARTED
            elif (asked is not None and number <= asked) or (behind is not None and number <= behind):
                said.failure = Failure.SENT_BACK
            else:
                said.failure = Failure.ABANDONED
        return self._react(stream, StreamEvent.HEADER, said)

    def items(
        self,
        publisher_id: PublisherId,
        items: Sequence[bytes],
        now_ns: int,
        *,
        kinds: Sequence[int],
        proven: bool,
        only_proofs: bool,
    ) -> list[Action]:
        """An item set without a header.

        Args:
            kinds: the items' field numbers; handed on in `Append`.
            proven: it ends with a proof.
            only_proofs: it has nothing but proofs.
        """
        self._now_ns = now_ns
        stream = self.stream(publisher_id)
        after = "after the block's proof" if stream.state is StreamState.PROVEN else "without a header before"
        reason = f"got {len(items)} items {after}, expected a block header"
        said = Said(now_ns, reason, items=items, kinds=kinds, proven=proven)
        return self._react(stream, StreamEvent.PROOFS if only_proofs else StreamEvent.ITEMS, said)

    def block_end(self, publisher_id: PublisherId, number: int, now_ns: int) -> list[Action]:
        """The message end_of_block."""
        self._now_ns = now_ns
        stream = self.stream(publisher_id)
        current = stream.block.number if stream.block is not None else stream.last_ended
        event = StreamEvent.BLOCK_END if number == current else StreamEvent.OTHER_BLOCK_END
        expected = "a block header" if current is None else f"end_of_block({current})"
        return self._react(stream, event, Said(now_ns, f"got end_of_block({number}), expected {expected}"))

    def end_stream(
        self,
        publisher_id: PublisherId,
        now_ns: int,
        *,
        target: int | None = None,
        is_error: bool = False,
        reason: str = "",
    ) -> list[Action]:
        """The message EndStream.

        Args:
            target: the block that this node has to take from others, where it said TOO_FAR_BEHIND.
            is_error: it said ERROR.
            reason: for the log.
        """
        self._now_ns = now_ns
        stream = self.stream(publisher_id)
        if stream.state not in GONE:
            if target is not None and target >= self.next_number:
                self._offered_ahead(target)
            if is_error and self.source_count == 1:
                self._actions.append(SourceError(publisher_id))
        said = Said(now_ns, reason, closes_at_ns=now_ns + self.rules.goodbye_ns)
        return self._react(stream, StreamEvent.GOODBYE, said)

    def half_closed(self, publisher_id: PublisherId, now_ns: int) -> list[Action]:
        """The publisher closed its sending side in order; it still hears of the blocks that it offered."""
        self._now_ns = now_ns
        said = Said(now_ns, "the publisher closed its side")
        return self._react(self.stream(publisher_id), StreamEvent.GOODBYE, said)

    def left(
        self, publisher_id: PublisherId, now_ns: int, reason: str = "the connection is gone"
    ) -> list[Action]:
        """The stream is gone: broken, cancelled, or closed after the node ended it. Said once, always."""
        self._now_ns = now_ns
        return self._react(self.stream(publisher_id), StreamEvent.LOST, Said(now_ns, reason))

    def bad_request(self, publisher_id: PublisherId, reason: str, now_ns: int) -> list[Action]:
        """A message that breaks the protocol in itself; `reason` says what, got, expected."""
        self._now_ns = now_ns
        stream = self.stream(publisher_id)
        if stream.state not in GONE:
            self._refuse(stream, Said(now_ns, reason))
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
            if block.is_counted:
                self.reputations.delivered(block.winner_name, block.winner_address)
        return self._settle()

    def linked(self, attempt_id: AttemptId, now_ns: int) -> list[Action]:
        """The block continues the one before it."""
        self._now_ns = now_ns
        block = self.attempts.get(attempt_id)
        if block is not None:
            self._move(block, BlockEvent.LINKED)
            self._actions.append(Commit(attempt_id))
        return self._settle()

    def refused(
        self, attempt_id: AttemptId, reason: str, now_ns: int, *, failure: Failure = Failure.REFUSED
    ) -> list[Action]:
        """The block cannot be accepted; `reason` says what, got, expected.

        Args:
            failure: REFUSED: structure, root hash, link or proof is wrong. UNCHECKED: nobody can tell here.
                DISPUTED: the link is wrong, and it may be that the node's own last block is.
        """
        self._now_ns = now_ns
        block = self.attempts.get(attempt_id)
        if block is not None:
            self._fail(block, failure, reason)
        return self._settle()

    def committed(self, attempt_id: AttemptId, now_ns: int) -> list[Action]:
        """The block is on disk, and wherever else it has to be: it is acknowledged."""
        self._now_ns = now_ns
        block = self.attempts.get(attempt_id)
        if block is None:
            raise RaceError(f"attempt {attempt_id}: committed, but it is not in flight")
        if block.number != self.next_number:
            raise RaceError(f"block {block.number}: committed, expected block {self.next_number}")
        self._move(block, BlockEvent.COMMITTED)
        self.last_number, self.lowest_since_ns, self.skipped_ns = block.number, now_ns, 0
        self._forget(block)
        del self.blocks[block.number]
        acknowledgement = Acknowledgement(block.number)
        for stream in self.streams.values():
            if stream.state is not StreamState.ENDED:
                stream.owed_since_ns, stream.has_heard = None, True
                self._send(stream, acknowledgement)
        return self._settle()

    def commit_failed(self, attempt_id: AttemptId, reason: str, now_ns: int) -> list[Action]:
        """The disk refused. This block and all above it are dropped, and every publisher is ended.

        Those below it are on disk and wait to be acknowledged: they stay.
        """
        self._now_ns = now_ns
        failed = self.attempts.get(attempt_id)
        number = failed.number if failed is not None else self.next_number
        self.persistence_failed, self.persistence_number = reason, number
        self._drop_all(reason, number)
        self._end_all(EndStatus.PERSISTENCE_FAILED, reason, proximate_number=number)
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

    def give_up(self, now_ns: int) -> list[Action]:
        """The time of a shutdown is over: end every stream with SUCCESS, whatever is not finished."""
        self._now_ns = now_ns
        self._end_all(EndStatus.SUCCESS, self._closing_reason())
        return self._settle()

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
        self._now_ns = self.now_ns = now_ns
        for stream in list(self.streams.values()):
            owed_at = self.owed_deadline(stream)
            if owed_at is not None and now_ns >= owed_at:
                # No later block has come whose acknowledgement would have said it too.
                stream.owed_since_ns, stream.has_heard = None, True
                self._send(stream, Acknowledgement(stream.hears_from - 1))
            at = self.stream_deadline(stream)
            if at is None or now_ns < at:
                continue
            if stream.state is StreamState.PROVEN:
                self._complete(stream, Said(now_ns, "nothing followed its proof"))
            elif stream.state is StreamState.FRESH:
                seconds = self.rules.idle_timeout_ns / 1e9
                self._end(stream, EndStatus.TIMEOUT, f"no block header in {seconds:g} s")
            elif stream.state is StreamState.FINISHED:
                self._close(stream)
        self._run_time()  # a block below another may be complete now
        block, seconds, what = self.slowest(), self.rules.block_timeout_ns / 1e9, "not complete after"
        at, pardon_at = self.block_deadline(block), self.pardon_deadline()
        if pardon_at is not None and now_ns >= pardon_at:
            self._pardon()
        if block is not None and at is not None and now_ns >= at:
            if self.source_count == 1:
                seconds, what = self.rules.idle_timeout_ns / 1e9, "nothing came of it for"
            self._fail(block, Failure.TIMED_OUT, f"{what} {seconds:g} s")
        return self._settle()

    def forget_catch_up_target(self) -> None:
        """The target was wrong, as far as anybody can tell: the next one is told, though it be lower."""
        self.catch_up_target = None

    def hold_back(self, publisher_id: PublisherId) -> None:
        """The shell does not read this publisher, because `may_read` says no: no time limit runs for it."""
        self.stream(publisher_id).held_back = True
        self._deadline_is_known = False

    def let_go(self, publisher_id: PublisherId, now_ns: int) -> None:
        """The shell reads this publisher again: its time begins anew."""
        self._now_ns = now_ns
        stream = self.stream(publisher_id)
        stream.held_back, self._deadline_is_known = False, False
        stream.since_ns = now_ns
        if stream.block is not None:
            self._begin_time(stream.block)

    def delay(self, publisher_id: PublisherId, now_ns: int) -> None:
        """The shell keeps a message of this publisher for a while: none of its time passes."""
        stream = self.stream(publisher_id)
        stream.delayed_from_ns, self._deadline_is_known = now_ns, False

    def go_on(self, publisher_id: PublisherId, now_ns: int) -> None:
        """The message that was kept is told now: the publisher's time goes on where it was."""
        stream = self.stream(publisher_id)
        from_ns, stream.delayed_from_ns, self._deadline_is_known = stream.delayed_from_ns, None, False
        if from_ns is None:
            raise RaceError(f"publisher {publisher_id} ({stream.name}): goes on, but was not delayed")
        stream.since_ns += now_ns - max(from_ns, stream.since_ns)
        if (block := stream.block) is not None:
            block.begun_ns += now_ns - max(from_ns, block.begun_ns)
            if block is self._timed:
                block.timed_from_ns += now_ns - max(from_ns, block.runs_from_ns)

    def stood_still(self, for_ns: int, now_ns: int) -> None:
        """The node did not run for so long, up to now, and heard nobody: nobody's time has passed."""
        self._deadline_is_known = False
        for stream in self.streams.values():
            stream.since_ns = min(now_ns, stream.since_ns + for_ns)
        for block in self.blocks.values():
            block.begun_ns = min(now_ns, block.begun_ns + for_ns)
            block.runs_from_ns = min(now_ns, block.runs_from_ns + for_ns)
            block.timed_from_ns = min(now_ns, block.timed_from_ns + for_ns)
            block.opened_ns = min(now_ns, block.opened_ns + for_ns)
        self.lowest_since_ns = min(now_ns, self.lowest_since_ns + for_ns)
        self.skipped_ns = min(now_ns, self.skipped_ns + for_ns) if self.skipped_ns else 0
