"""The arbiter of the publish race: it decides who sends which block.

Pure. Each event is a method: a publisher's message, a verdict of the node, the passing of time. It returns
actions (`gateway.race.actions`), which the caller performs in order.

Theory of operation
===================

Two state machines run; `gateway.race.tables` has a table for each:

  - The stream (STREAM_TABLE), one machine per connected publisher. Its state decides what a message means.
  - The block (BLOCK_TABLE), one machine per block above L that somebody has begun. Complete blocks are
    verified in any order, linked and committed in order of number. A missing cell is the caller's bug and
    raises `RaceError`.

An accepted offer joins a stream to a block. The end of the block parts them, and so does a failure: when the
block fails, its stream drops items until its next header; when the stream ends, its block fails.

Four things are not tables:

  - The standing of a block (`standing_of`) depends on numbers (L, U, the first block), on who has failed the
    block, and on who else is connected.
  - Who goes first (`stands_back`) adds to a number. A publisher may send a block if no other connected one
    has a lower number, so somebody always may.
  - Time limits (`block_deadline` and its siblings) follow from the records. Timers that transitions start and
    stop would be a second copy of the state. The caller calls `tick` at `next_deadline_ns`.
  - The consequences of an event for the whole race (`_settle`) are checked once after each event.

Two paths are hot: the winner's items, and skipped headers. `_react` returns early on both.

Invariants, asserted by `check()` after every event of a test or simulation
  - One attempt at a time for each block, and one block at a time for each publisher.
  - Blocks go to disk in order of number without gaps.
  - While a publisher is connected, block L + 1 is live, or some publisher may send it and will.

Source: gateway/README.md, "The publish race", "The price of a block that fails".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from sluice.gateway.blocks.block_numbers import BLOCK_NUMBER_MAX
from sluice.gateway.errors import GatewayError
from sluice.gateway.limits import ITEM_OVERHEAD_BYTES
from sluice.gateway.race.actions import (
    Acknowledgement,
    Action,
    AimCatchUp,
    Append,
    AttemptId,
    Begin,
    Behind,
    CheckLink,
    Commit,
    Drop,
    EndOfStream,
    EndResponses,
    Idle,
    PublisherId,
    Resend,
    Response,
    SendResponse,
    Skip,
    SourceError,
    Stray,
    Verify,
)
from sluice.gateway.race.records import BlockRecord, RaceRules, StreamRecord
from sluice.gateway.race.reputation import Reputations
from sluice.gateway.race.tables import (
    BLOCK_TABLE,
    CONSEQUENCES,
    GONE,
    LIVE,
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

__all__ = ["Arbiter", "RaceError"]

NEWCOMER_BLOCKS_MAX: Final = 8
"""Blocks above L + 1 that all newcomers together may have begun."""
ADDRESS_BLOCKS_MAX: Final = 4
"""Those of one address. Both limits are 1 after recent failures of newcomers."""
QUIET_PART: Final = 6
"""A winner is quiet when it has sent nothing for this fraction of `block_timeout_ns`."""

_NOBODY: Final = 1 << 30
_APPEND_ONLY = (Reaction.APPEND,)
_OFFER_ONLY = (Reaction.OFFER,)
_SENDING = (StreamState.SENDING, StreamState.PROVEN)
_TIMED = (StreamState.PROVEN, StreamState.FRESH, StreamState.FINISHED)


class RaceError(GatewayError):
    """The caller reported an impossible event."""


@dataclass(slots=True)  # not frozen: that takes twice as long to make, for every message
class _Message:
    """A message, or the end of a stream, as reactions need it."""

    now_ns: int
    reason: str
    """For the log, if the message is wrong: got, expected."""
    number: int = 0
    items: Sequence[bytes] = ()
    kinds: Sequence[int] = ()
    size_bytes: int = 0
    """Of all items."""
    proven: bool = False
    failure: Failure = Failure.LEFT
    closes_at_ns: int = 0
    """The time to close the stream at the latest; 0: close it when its blocks are settled."""


@dataclass(slots=True)
class _BlocksSent:
    quiet: set[tuple[str, str]] = field(default_factory=set)
    """Name and address of quiet senders."""
    at_address: Counter[str] = field(default_factory=Counter)
    in_all: int = 0


class Arbiter:
    """The publish race of one node.

    Args:
        last_number: L; None for an empty node.
        first_number: the first stored block, or the block that an empty node begins with; None: any.
    """

    def __init__(
        self, last_number: int | None, first_number: int | None = 0, rules: RaceRules | None = None
    ) -> None:
        self.rules = rules or RaceRules()
        self.last_number = last_number
        self.first_number = first_number
        self.begins_anywhere = last_number is None and first_number is None
        self.catch_up_target: int | None = None
        """The highest block that a publisher has offered beyond U."""
        self.blocks: dict[int, BlockRecord] = {}
        """The blocks above L that were begun."""
        self.attempts: dict[AttemptId, BlockRecord] = {}
        """The live ones of these."""
        self.streams: dict[PublisherId, StreamRecord] = {}
        self.reputations = Reputations(
            self.rules.block_timeout_ns, forgiving_blocks=self.rules.forgiving_blocks
        )
        self.inflight_bytes = 0
        self.publisher_bytes: dict[str, int] = {}
        """By the winner's name; no entry is 0."""
        self.address_bytes: dict[str, int] = {}
        """By the winner's network address."""
        self.persistence_failed: str | None = None
        """The reason why the disk refuses writes."""
        self.persistence_number = 0
        """The first block that could not be written. Blocks below it may still wait for acknowledgement."""
        self.shutting_down = False
        self.retired: str | None = None
        """The reason why publishers are sent elsewhere."""
        self.idle = False
        """The shutdown or retirement is done."""
        self.lowest_since_ns = 0
        """The time of the commit of block L: all wait for L + 1 since then."""
        self.skipped_ns = 0
        """The time when a publisher that stands back first skipped L + 1; 0: none did."""
        self.pardoned: int | None = None
        """The block that anybody may send, because those who went first did not."""
        self.now_ns = 0
        """Time of the last event that was not items; backoff is judged by it."""

        self._now_ns = 0
        self._actions: list[Action] = []
        self._attempt_count = 0
        self._order_count = 0
        self._link_asked = AttemptId(0)
        self._link_from = 0  # all blocks from L + 1 to below this one are COMMITTING
        self._timed: BlockRecord | None = None
        self._overdue: list[BlockRecord] = []
        self._before_others: PublisherId | None = None  # the stream that went first at the last look
        # Indexes over `blocks`, kept by `_index`, because every event reads them.
        self._sent: dict[int, BlockRecord] = {}
        self._open: dict[int, BlockRecord] = {}
        self._highest_live: int | None = None
        self._deadline_ns: int | None = None
        self._deadline_is_known = False
        self._steps: dict[Reaction, Callable[[StreamRecord, _Message], None]] = {
            Reaction.OFFER: self._offer,
            Reaction.APPEND: self._append,
            Reaction.COMPLETE: self._complete,
            Reaction.ABANDON: self._abandon,
            Reaction.FINISH: self._finish,
            Reaction.LEAVE: self._leave,
            Reaction.STRAY: self._stray,
            Reaction.REFUSE: self._refuse,
        }

    # --- events from publishers ----------------------------------------------------------------------------

    def connected(
        self, publisher_id: PublisherId, name: str, now_ns: int, *, address: str = "", is_peer: bool = False
    ) -> list[Action]:
        """A publisher opens a stream. Streams may share a name, and names an address.

        `is_peer`: it is this node's subscription to another node. A standby accepts it too.
        """
        self._now_ns = now_ns
        if publisher_id in self.streams:
            raise RaceError(f"publisher {publisher_id} ({name}): connected twice")
        stream = StreamRecord(
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
            reason, number = self.persistence_failed, self.persistence_number
            self._end(stream, EndStatus.PERSISTENCE_FAILED, reason, proximate_number=number)
        elif self.is_closing or (self.retired is not None and not is_peer):
            self._end(stream, EndStatus.SUCCESS, self._closing_reason())
        elif len(alone) == 1 and not alone[0].is_peer and (block := alone[0].block) is not None:
            block.used_ns = 0  # its time runs only while somebody else could bring the block
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
        size_bytes: int,
        proven: bool = False,
    ) -> list[Action]:
        """An item set begins with the header of block `number`. The others are as in `items`."""
        self._now_ns = self.now_ns = now_ns
        stream = self.stream(publisher_id)
        message = _Message(now_ns, "", number, items, kinds, size_bytes, proven)
        if stream.block is not None:
            asked, behind = stream.asked_for, stream.behind_from
            message.reason = f"got the header of block {number}, expected the rest of the block"
            if stream.block.number == number:
                message.failure = Failure.RESTARTED
            elif (asked is not None and number <= asked) or (behind is not None and number <= behind):
                message.failure = Failure.SENT_BACK
            else:
                message.failure = Failure.ABANDONED
        return self._react(stream, StreamEvent.HEADER, message)

    def items(
        self,
        publisher_id: PublisherId,
        items: Sequence[bytes],
        now_ns: int,
        *,
        kinds: Sequence[int],
        size_bytes: int,
        proven: bool,
        only_proofs: bool,
    ) -> list[Action]:
        """An item set has no header.

        Args:
            kinds: the items' field numbers.
            size_bytes: of all items.
            proven: it ends with a proof.
        """
        self._now_ns = now_ns
        stream = self.stream(publisher_id)
        after = "after the block's proof" if stream.state is StreamState.PROVEN else "without a header before"
        reason = f"got {len(items)} items {after}, expected a block header"
        message = _Message(now_ns, reason, items=items, kinds=kinds, size_bytes=size_bytes, proven=proven)
        return self._react(stream, StreamEvent.PROOFS if only_proofs else StreamEvent.ITEMS, message)

    def block_end(self, publisher_id: PublisherId, number: int, now_ns: int) -> list[Action]:
        """The publisher sends end_of_block."""
        self._now_ns = now_ns
        stream = self.stream(publisher_id)
        current = stream.block.number if stream.block is not None else stream.last_ended
        event = StreamEvent.BLOCK_END if number == current else StreamEvent.OTHER_BLOCK_END
        expected = "a block header" if current is None else f"end_of_block({current})"
        return self._react(
            stream, event, _Message(now_ns, f"got end_of_block({number}), expected {expected}")
        )

    def end_stream(
        self,
        publisher_id: PublisherId,
        now_ns: int,
        *,
        target: int | None = None,
        is_error: bool = False,
        reason: str = "",
    ) -> list[Action]:
        """The publisher sends EndStream.

        Args:
            target: the block named by TOO_FAR_BEHIND, which this node needs from others.
            is_error: the code is ERROR.
        """
        self._now_ns = now_ns
        stream = self.stream(publisher_id)
        if stream.state not in GONE:
            if target is not None and target >= self.next_number:
                self._offered_ahead(target)
            if is_error and self.source_count == 1:
                self._actions.append(SourceError(publisher_id))
        message = _Message(now_ns, reason, closes_at_ns=now_ns + self.rules.goodbye_ns)
        return self._react(stream, StreamEvent.GOODBYE, message)

    def half_closed(self, publisher_id: PublisherId, now_ns: int) -> list[Action]:
        """The publisher closes its sending side. It still hears of the blocks that it offered."""
        self._now_ns = now_ns
        message = _Message(now_ns, "the publisher closed its side")
        return self._react(self.stream(publisher_id), StreamEvent.GOODBYE, message)

    def left(
        self, publisher_id: PublisherId, now_ns: int, reason: str = "the connection is gone"
    ) -> list[Action]:
        """The stream is gone: broken, cancelled, or closed after its end. Reported exactly once for every
        stream.
        """
        self._now_ns = now_ns
        return self._react(self.stream(publisher_id), StreamEvent.LOST, _Message(now_ns, reason))

    def bad_request(self, publisher_id: PublisherId, reason: str, now_ns: int) -> list[Action]:
        """A message is malformed."""
        self._now_ns = now_ns
        stream = self.stream(publisher_id)
        if stream.state not in GONE:
            self._refuse(stream, _Message(now_ns, reason))
        return self._settle()

    def publisher_failed(self, publisher_id: PublisherId, reason: str, now_ns: int) -> list[Action]:
        """The node failed to handle this publisher's message. Other publishers go on."""
        self._now_ns = now_ns
        stream = self.stream(publisher_id)
        if stream.state not in GONE:
            self._end(stream, EndStatus.ERROR, reason)
        return self._settle()

    # --- events from the node ------------------------------------------------------------------------------

    def verified(self, attempt_id: AttemptId, now_ns: int) -> list[Action]:
        """Root hash and proof are right. A late verdict on a dropped attempt is ignored."""
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
            failure: REFUSED: structure, root hash, link or proof is wrong. UNCHECKED: this node cannot tell.
                DISPUTED: the link is wrong, or the node's own last block is.
        """
        self._now_ns = now_ns
        block = self.attempts.get(attempt_id)
        if block is not None:
            self._fail(block, failure, reason)
        return self._settle()

    def committed(self, attempt_id: AttemptId, now_ns: int) -> list[Action]:
        """The block is durable here and in the replication quorum: acknowledge it."""
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
        """The disk refused the block: drop it and all above it, and end every stream.

        Blocks below it are on disk and still wait for their acknowledgement.
        """
        self._now_ns = now_ns
        failed = self.attempts.get(attempt_id)
        number = failed.number if failed is not None else self.next_number
        self.persistence_failed, self.persistence_number = reason, number
        self._drop_all(reason, number)
        self._end_all(EndStatus.PERSISTENCE_FAILED, reason, proximate_number=number)
        return self._settle()

    def disk_recovered(self) -> None:
        """The disk takes writes again: accept new streams."""
        self.persistence_failed = None

    def shutdown(self, now_ns: int) -> list[Action]:
        """Finish the complete blocks next in line, then end every stream with SUCCESS."""
        self._now_ns = now_ns
        if not self.is_closing:
            self.idle = False  # a standby was idle, and has streams of its own to end
        self.shutting_down = True
        return self._close_doors()

    def give_up(self, now_ns: int) -> list[Action]:
        """The shutdown took too long, or another node leads: end every stream with SUCCESS."""
        self._now_ns = now_ns
        self._end_all(EndStatus.SUCCESS, self._closing_reason())
        return self._settle()

    def retire(self, reason: str, now_ns: int) -> list[Action]:
        """Send publishers elsewhere until `reinstate`, after finishing blocks as `shutdown` does.

        Peers' blocks are still taken.
        """
        self._now_ns = now_ns
        if self.retired is not None or self.shutting_down:
            return []
        self.retired = reason
        return self._close_doors()

    def reinstate(self) -> None:
        """Accept publishers again, and the blocks that were dropped at retirement."""
        self.retired = None
        self.idle = self.shutting_down and self.idle

    def tick(self, now_ns: int) -> list[Action]:
        """Apply the time limits; call this at `next_deadline_ns` or later."""
        self._now_ns = self.now_ns = now_ns
        for stream in list(self.streams.values()):
            owed_at = self.owed_deadline(stream)
            if owed_at is not None and now_ns >= owed_at:
                # No later acknowledgement came that covers this one.
                stream.owed_since_ns, stream.has_heard = None, True
                self._send(stream, Acknowledgement(stream.hears_from - 1))
            at = self.stream_deadline(stream)
            if at is None or now_ns < at:
                continue
            if stream.state is StreamState.PROVEN:
                self._complete(stream, _Message(now_ns, "nothing followed its proof"))
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
        """Report the next target even if it is lower: this one seems wrong."""
        self.catch_up_target = None

    def pause_reading(self, publisher_id: PublisherId) -> None:
        """The caller pauses reading this publisher (`may_read`): no time limit runs for it."""
        self.stream(publisher_id).is_paused = True
        self._deadline_is_known = False

    def resume_reading(self, publisher_id: PublisherId, now_ns: int) -> None:
        """The caller reads this publisher again: its time starts anew."""
        self._now_ns = now_ns
        stream = self.stream(publisher_id)
        stream.is_paused, self._deadline_is_known = False, False
        stream.since_ns = now_ns
        if stream.block is not None:
            self._begin_time(stream.block)

    def delay(self, publisher_id: PublisherId, now_ns: int) -> None:
        """The caller keeps a message of this publisher for a while: its time stops."""
        stream = self.stream(publisher_id)
        stream.delayed_from_ns, self._deadline_is_known = now_ns, False

    def go_on(self, publisher_id: PublisherId, now_ns: int) -> None:
        """The kept message follows: the publisher's time goes on where it stopped."""
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
        """Take `for_ns`, in which the node did not run, off everybody's time."""
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

    # --- the race as it stands -----------------------------------------------------------------------------

    @property
    def is_closing(self) -> bool:
        """True while the node only finishes complete blocks."""
        return self.shutting_down or (self.retired is not None and not self.idle)

    @property
    def source_count(self) -> int:
        """Number of streams that may bring blocks: publishers' and peers'."""
        return sum(stream.state not in GONE for stream in self.streams.values())

    @property
    def publisher_count(self) -> int:
        """Number of these that are publishers'."""
        return sum(not stream.is_peer and stream.state not in GONE for stream in self.streams.values())

    @property
    def next_number(self) -> int:
        """L + 1; 0 on a node that begins with any block."""
        if self.last_number is not None:
            return self.last_number + 1
        return self.first_number or 0

    @property
    def has_beginning(self) -> bool:
        """True once the first block of this node's chain is known."""
        return self.last_number is not None or not self.begins_anywhere

    @property
    def next_unstreamed(self) -> int:
        """U: one above the highest live block, else L + 1."""
        return self.next_number if self._highest_live is None else self._highest_live + 1

    def next_unstreamed_for(self, stream: StreamRecord) -> int:
        """Return U for one publisher: it passes blocks that it failed and may not send."""
        number = self.next_unstreamed
        while (
            (block := self.blocks.get(number)) is not None
            and stream.name in block.blamed
            and not self.may_send(stream, number)
        ):
            number += 1
        return number

    def is_unbegun(self) -> bool:
        """Return whether nothing is stored or in flight, and any block may be the first."""
        if not self.begins_anywhere or self.last_number is not None:
            return False
        return not any(block.state in LIVE for block in self.blocks.values())

    def is_finishing(self) -> bool:
        """Return whether block L + 1 is in flight."""
        block = self.blocks.get(self.next_number)
        return block is not None and block.state in LIVE

    def sent_blocks(self) -> Iterable[BlockRecord]:
        """Return the blocks that are being sent."""
        return self._sent.values()

    def lowest_sent(self) -> BlockRecord | None:
        """Return the lowest block that is being sent."""
        return self._sent[min(self._sent)] if self._sent else None

    def slowest(self) -> BlockRecord | None:
        """Return the block that all wait for: it is being sent, and all below it are received."""
        block = self.lowest_sent()
        return block if block is not None and all(number > block.number for number in self._open) else None

    def awaits(self, stream: StreamRecord) -> bool:
        """Return whether an offered block of the stream is in flight, or is to be acknowledged late."""
        return stream.owed_since_ns is not None or any(
            block.state in LIVE and block.number <= stream.offered_max for block in self.blocks.values()
        )

    def is_paused(self, block: BlockRecord) -> bool:
        """Return whether the caller has paused reading the block's winner."""
        winner = self._winner(block)
        return winner is not None and winner.is_paused

    def _winner(self, block: BlockRecord) -> StreamRecord | None:
        return None if block.winner is None else self.streams.get(block.winner)

    def stream(self, publisher_id: PublisherId) -> StreamRecord:
        """Return a stream. Raises RaceError if there is none."""
        stream = self.streams.get(publisher_id)
        if stream is None:
            raise RaceError(f"publisher {publisher_id}: not connected")
        return stream

    # --- memory --------------------------------------------------------------------------------------------

    def is_full(self) -> bool:
        """Return whether the bytes in flight reach their limit."""
        return self.inflight_bytes >= self.rules.inflight_bytes_max

    def is_full_for(self, stream: StreamRecord) -> bool:
        """Return whether they do, or those of this publisher or its address."""
        if self.is_full():
            return True
        rules = self.rules
        return not stream.is_peer and (
            self.publisher_bytes.get(stream.name, 0) >= rules.publisher_bytes_max
            or self.address_bytes.get(stream.address, 0) >= rules.address_bytes_max
        )

    def may_read(self, publisher_id: PublisherId) -> bool:
        """Return whether the caller may take another message from this publisher now.

        When a limit of bytes is reached, only the commit of L + 1 frees memory. Then the caller reads only
        the publisher that sends L + 1 or, while nobody does, those that may; `is_in_the_way` drops what these
        still send of later blocks. So no limit stops the race: L + 1 is sent by a publisher that is read, may
        be sent by one, or is received and will be committed.
        """
        if self.inflight_bytes < self.rules.full_bytes_min:
            return True
        stream = self.streams.get(publisher_id)
        if stream is None or stream.state in GONE or not self.is_full_for(stream):
            return True
        return self.next_number not in self.blocks or self.is_awaited(publisher_id)

    def is_awaited(self, publisher_id: PublisherId) -> bool:
        """Return whether block L + 1 was begun and this publisher sends it, or may while nobody does."""
        block, stream = self.blocks.get(self.next_number), self.streams.get(publisher_id)
        if block is None or stream is None:
            return False
        if block.state is BlockState.OPEN:
            return self.may_send(stream, block.number)
        return block.state is BlockState.STREAMING and stream.block is block

    def is_in_the_way(self, stream: StreamRecord) -> bool:
        """Return whether memory is full and the stream sends a later block instead of the missing L + 1."""
        if self.inflight_bytes < self.rules.full_bytes_min or stream.block is None:
            return False
        wanted = self.blocks.get(self.next_number)
        if wanted is None or wanted.state is not BlockState.OPEN or wanted.number >= stream.block.number:
            return False
        return self.is_full_for(stream) and (
            stream.asked_for is not None or self.may_send(stream, wanted.number)
        )

    # --- where a block stands, and who goes first ----------------------------------------------------------

    def standing_of(self, number: int, stream: StreamRecord) -> Standing:
        """Return where block `number` stands for a publisher."""
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
            return Standing.RECEIVED
        # The number that means "no block" is always ahead.
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

    def may_send(self, stream: StreamRecord, number: int) -> bool:
        """Return whether a publisher may win a block that nobody sends."""
        back = self.stands_back(stream, number)
        return not back or back <= self.least_back(number)

    def least_back(self, number: int) -> int:
        """Return the lowest `stands_back` of the connected publishers for a block."""
        sent = self._count_sent() if number > self.next_number else None
        first = self.streams.get(self._before_others or PublisherId(0))
        if first is not None and self._is_waited_for(first) and not self.stands_back(first, number, sent):
            return 0
        least = _NOBODY
        for stream in self.streams.values():
            if self._is_waited_for(stream) and (back := self.stands_back(stream, number, sent)) < least:
                least = back
                if not back:
                    self._before_others = stream.publisher_id
                    break
        return least

    def _is_waited_for(self, stream: StreamRecord) -> bool:
        return stream.state not in GONE and not stream.let_pass

    def stands_back(self, stream: StreamRecord, number: int, sent: _BlocksSent | None = None) -> int:
        """Return how far a publisher stands back for a block that nobody sends; 0: it goes first.

        The backoff weighs most, then a failure of this very block, then other blocks that it is sending:
        `sent` if the caller has counted them.
        """
        block = self.blocks.get(number)
        is_blamed = block is not None and stream.name in block.blamed
        if stream.is_peer or number == self.pardoned or self.is_unbegun():
            return 4 if is_blamed else 0
        back = 8 * self.reputations.backoff(stream.name, stream.address, self.now_ns)
        if is_blamed:
            back += 4
        return back + self.share_of(stream, sent or self._count_sent()) if number > self.next_number else back

    def share_of(self, stream: StreamRecord, sent: _BlocksSent) -> int:
        """Return which share of open blocks is used up: 3 own, 2 its address's, 1 the newcomers'; 0: none."""
        who = stream.name, stream.address
        if who in sent.quiet:
            return 3
        if not sent.in_all or not self.reputations.is_newcomer(*who):
            return 0
        is_feared = self.reputations.fears_newcomers(self.now_ns)
        if sent.at_address[stream.address] >= (1 if is_feared else ADDRESS_BLOCKS_MAX):
            return 2
        return 1 if sent.in_all >= (1 if is_feared else NEWCOMER_BLOCKS_MAX) else 0

    def _count_sent(self) -> _BlocksSent:
        sent = _BlocksSent()
        for block in self.sent_blocks():
            who = block.winner_name, block.winner_address
            is_newcomer = block.is_counted and self.reputations.is_newcomer(*who)
            if block.is_counted and (self._is_quiet(block) or (is_newcomer and block.item_count <= 1)):
                sent.quiet.add(who)
            if is_newcomer:
                sent.at_address[block.winner_address] += 1
                sent.in_all += 1
        return sent

    def _is_quiet(self, block: BlockRecord) -> bool:
        winner = self._winner(block)
        if winner is None or winner.is_paused or winner.delayed_from_ns is not None:
            return False
        timeout_ns = self.rules.block_timeout_ns
        return timeout_ns > 0 and self.now_ns >= winner.since_ns + timeout_ns // QUIET_PART

    def gives_way(self, block: BlockRecord, stream: StreamRecord) -> bool:
        """Return whether a block that is being sent goes to another publisher that offers it.

        After recent failures of newcomers, a publisher with delivered blocks takes over a block of which a
        newcomer has sent only the header.
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

    # --- time limits ---------------------------------------------------------------------------------------

    def next_deadline_ns(self) -> int | None:
        """Return when the caller must call `tick`; None: no time limit is running."""
        if not self._deadline_is_known:
            self._deadline_ns, self._deadline_is_known = self._find_deadline_ns(), True
        return self._deadline_ns

    def _find_deadline_ns(self) -> int | None:
        deadlines = [self.block_deadline(self.slowest()), self.pardon_deadline()]
        for stream in self.streams.values():
            # Every event comes here for every stream, and most have no limit of their own.
            if stream.state in _TIMED or stream.owed_since_ns is not None:
                deadlines += (self.stream_deadline(stream), self.owed_deadline(stream))
        return min(filter(None, deadlines), default=None)

    def block_deadline(self, block: BlockRecord | None) -> int | None:
        """Return when the winner of the `slowest` block must have completed it; None: never.

        A publisher that is alone has time as long as it sends: nobody else could bring the block. So has a
        peer that sends history, unless a publisher has the block too: a large block over a slow line would
        never arrive.
        """
        if block is None or not self.rules.block_timeout_ns or self.is_paused(block):
            return None
        winner = self._winner(block)
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

    def _others_offer(self, block: BlockRecord) -> bool:
        """Return whether a connected publisher has this block: it has offered it or a later one."""
        return any(
            stream.offered_max >= block.number
            for stream in self.streams.values()
            if not stream.is_peer and stream.state not in GONE
        )

    def pardon_deadline(self) -> int | None:
        """Return when those who stand back may send block L + 1 all the same; None: never, or they may
        now.
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
        """A publisher has passed it, and would come back for it if asked."""
        return any(
            stream.next_offer is not None and stream.next_offer > number and stream.state not in GONE
            for stream in self.streams.values()
        )

    def stream_deadline(self, stream: StreamRecord) -> int | None:
        """Return when the stream's own time limit runs out."""
        if stream.state is StreamState.FINISHED and stream.closes_at_ns:
            return stream.closes_at_ns  # even while it goes on sending
        if stream.is_paused or stream.delayed_from_ns is not None:
            return None  # its next message may be unread
        # A peer always sends end_of_block, and may be slow between two proofs.
        if stream.state is StreamState.PROVEN and not stream.is_peer:
            return stream.since_ns + self.rules.proof_idle_ns
        # A peer may have no block for long; its subscription has its own limits.
        if stream.state is StreamState.FRESH and self.rules.idle_timeout_ns and not stream.is_peer:
            return stream.since_ns + self.rules.idle_timeout_ns
        return None

    def owed_deadline(self, stream: StreamRecord) -> int | None:
        """Return when the stream must hear that the block it skipped is safe; None: nothing is owed."""
        if stream.owed_since_ns is None or stream.state is StreamState.ENDED:
            return None
        return stream.owed_since_ns + self.rules.late_acknowledgement_ns

    def is_stalled(self, block: BlockRecord) -> bool:
        """Return whether another publisher began later and has completed a block `stall_blocks` ahead."""
        ahead = self.rules.stall_blocks
        if not ahead or self.next_unstreamed <= block.number + ahead or self.is_paused(block):
            return False
        return any(
            other.number >= block.number + ahead
            and other.state in LIVE
            and other.state is not BlockState.STREAMING
            and other.winner_name != block.winner_name
            and other.order > block.order
            for other in self.blocks.values()
        )

    # --- reactions: the steps that STREAM_TABLE names ------------------------------------------------------

    def _react(self, stream: StreamRecord, event: StreamEvent, message: _Message) -> list[Action]:
        reactions = STREAM_TABLE[stream.state][event]
        for reaction in reactions:
            self._steps[reaction](stream, message)
        if reactions == _APPEND_ONLY and stream.block is not None:
            # The hot path: only a time limit may have changed, after a proof or for a peer.
            if stream.state is StreamState.PROVEN or stream.is_peer:
                self._deadline_is_known = False
            return self._take()
        if reactions == _OFFER_ONLY and self._has_only_skipped(stream):
            return self._take()  # all but one of the headers of a block
        return self._settle()

    def _has_only_skipped(self, stream: StreamRecord) -> bool:
        """Return whether an offer has changed only its own stream, while block L + 1 is in flight.

        Then `_settle` has nothing to do.
        """
        actions = self._actions
        if (
            len(actions) != 1
            or type(action := actions[0]) is not SendResponse
            or type(action.response) is not Skip
        ):
            return False
        if stream.owed_since_ns is not None:
            return False  # it waits for a late acknowledgement, which has a time limit
        lowest_sent = self.lowest_sent()
        if lowest_sent is not None and not lowest_sent.is_counted:
            return False  # a peer's time limit depends on who else has offered the block
        block = self.blocks.get(self.next_number)
        return block is not None and block.state in LIVE

    def _offer(self, stream: StreamRecord, message: _Message) -> None:
        number = message.number
        self._note_way(stream, number)
        if stream.state is StreamState.FRESH:
            self._deadline_is_known = False  # its limit for a first header has ended
        stream.state, stream.stray_count = StreamState.DROPPING, 0
        answer = None if self.is_closing else ON_HEADER[self._standing(stream, message)]
        # A publisher that is behind hears no more of the block that it offered.
        if answer is not HeaderAnswer.BEHIND and number > stream.offered_max:
            stream.offered_max = number
        if answer is None:
            return
        if answer is HeaderAnswer.ACCEPT:
            self._accept(stream, message)
        elif answer is HeaderAnswer.SKIP:
            if number < stream.hears_from and not stream.has_heard and stream.owed_since_ns is None:
                stream.owed_since_ns = message.now_ns
            if number == self.next_number and not self.skipped_ns and number not in self.blocks:
                self.skipped_ns = message.now_ns  # the others' time runs from now on
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

    def _standing(self, stream: StreamRecord, message: _Message) -> Standing:
        if message.failure is Failure.RESTARTED and self.blocks[message.number].state is BlockState.OPEN:
            return Standing.STARTED_OVER  # dropped just now: after a proof the block would be complete
        return self.standing_of(message.number, stream)

    def _note_way(self, stream: StreamRecord, number: int) -> None:
        stream.let_pass = False
        asked, behind = stream.asked_for, stream.behind_from
        if asked is not None and (number <= asked or asked < self.next_number):
            stream.asked_for = asked = None
        if behind is not None and (number <= behind or behind < self.next_number):
            stream.behind_from = None
        # The publisher sent this header before it read the request, or finishes its block first. It comes
        # back by itself: do not ask twice.
        stream.next_offer = number + 1 if asked is None else asked

    def _accept(self, stream: StreamRecord, message: _Message) -> None:
        number = message.number
        before = self.blocks.get(number)
        if before is not None and before.state is BlockState.STREAMING:
            self._fail(before, Failure.GAVE_WAY, f"{stream.name} offers the block, and delivers blocks")
        if self.is_unbegun():
            self.first_number = self._link_from = number
            for other in [other for other in self.blocks if other != number]:
                del self.blocks[other]
                self._open.pop(other, None)
        block = self.blocks.setdefault(number, BlockRecord(number))
        self._move(block, BlockEvent.HEADER_ACCEPTED)
        self._attempt_count += 1
        block.attempt_id = AttemptId(self._attempt_count)
        block.winner = stream.publisher_id
        block.winner_name, block.winner_address = stream.name, stream.address
        block.is_counted = not stream.is_peer
        if message.failure is not Failure.RESTARTED:  # else it could start over for ever
            self._begin_time(block)
        self.attempts[block.attempt_id] = block
        stream.block, stream.state = block, StreamState.SENDING
        self._actions.append(Begin(block.attempt_id, number, stream.publisher_id))
        self._append(stream, message)

    def _append(self, stream: StreamRecord, message: _Message) -> None:
        block = stream.block
        assert block is not None
        if self.is_in_the_way(stream):
            reason = f"block {self.next_number} is to come first, and too many bytes are in flight"
            self._fail(block, Failure.SENT_BACK, reason)
            return
        size_bytes = block.size_bytes + message.size_bytes
        item_count = block.item_count + len(message.items)
        rules = self.rules
        if size_bytes > rules.block_bytes_max or item_count > rules.block_items_max:
            got, most, unit = size_bytes, rules.block_bytes_max, "bytes of items"
            if got <= most:
                got, most, unit = item_count, rules.block_items_max, "items"
            self._fail(block, Failure.TOO_LARGE, f"got {got} {unit}, expected at most {most}")
            return
        block.size_bytes, block.item_count = size_bytes, item_count
        self._count_bytes(block, message.size_bytes + len(message.items) * ITEM_OVERHEAD_BYTES)
        stream.state = StreamState.PROVEN if message.proven else StreamState.SENDING
        stream.since_ns = message.now_ns
        self._actions.append(Append(block.attempt_id, message.items, message.kinds, message.size_bytes))

    def _abandon(self, stream: StreamRecord, message: _Message) -> None:
        assert stream.block is not None
        self._fail(stream.block, message.failure, message.reason)

    def _refuse(self, stream: StreamRecord, message: _Message) -> None:
        if stream.block is not None:
            self._fail(stream.block, Failure.BAD_REQUEST, message.reason)
        else:
            self._end(stream, EndStatus.INVALID_REQUEST, message.reason)

    def _stray(self, stream: StreamRecord, message: _Message) -> None:
        stream.stray_count += 1
        if stream.stray_count > self.rules.stray_messages_max:
            reason = f"{message.reason}; {stream.stray_count} such messages in a row"
            self._end(stream, EndStatus.INVALID_REQUEST, reason)
        else:
            is_first = stream.stray_count == 1
            self._actions.append(Stray(stream.publisher_id, message.reason, is_first))

    def _finish(self, stream: StreamRecord, message: _Message) -> None:
        stream.state, stream.closes_at_ns = StreamState.FINISHED, message.closes_at_ns

    def _leave(self, stream: StreamRecord, message: _Message) -> None:
        del self.streams[stream.publisher_id]
        for block in self.blocks.values():
            if block.winner == stream.publisher_id:
                block.winner = None

    def _complete(self, stream: StreamRecord, message: _Message) -> None:
        block = stream.block
        assert block is not None
        self._move(block, BlockEvent.ENDED)
        stream.block, stream.last_ended, stream.state = None, block.number, StreamState.BETWEEN
        self._actions.append(Verify(block.attempt_id))

    def _fail(self, block: BlockRecord, failure: Failure, reason: str) -> None:
        consequence = CONSEQUENCES[failure]
        winner = self._winner(block)
        self._actions.append(Drop(block.attempt_id, block.number, failure, reason))
        self._move(block, BlockEvent.FAILED)
        self._forget(block)
        if consequence.blamed:
            self._blame(block)
        block.winner, block.opened_ns, block.failure = None, self._now_ns, failure
        if self.pardoned == block.number:
            self.pardoned = None
        if not self.has_beginning and block.number == self.first_number:
            # The blocks above have no beginning now: begin with the next offer.
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

    def _blame(self, block: BlockRecord) -> None:
        """Remember who failed a block and have it pay; beyond the limit, forget those that are gone."""
        block.blamed.add(block.winner_name)
        if len(block.blamed) > self.rules.blamed_publishers_kept:
            block.blamed &= {stream.name for stream in self.streams.values()}
        if not block.is_counted:
            return
        name, address = block.winner_name, block.winner_address
        self.now_ns = self._now_ns
        self._actions += self.reputations.failed(name, address, self._now_ns)
        # In backoff, the time of its other blocks runs from their beginning: some are overdue now.
        for other in self._sent.values():
            if other is self._timed or not other.is_counted or self.is_paused(other):
                continue
            if self.reputations.backoff(other.winner_name, other.winner_address, self._now_ns):
                other.used_ns = max(other.used_ns, self._now_ns - other.begun_ns)
                if other.used_ns >= self.rules.block_timeout_ns:
                    self._overdue.append(other)

    # --- after every event ---------------------------------------------------------------------------------

    def _settle(self) -> list[Action]:
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
        """The time stops when a block below fails, since the winner may have to bring that one first."""
        block, before, now_ns = self.slowest(), self._timed, self._now_ns
        if block is before:
            return
        if before is not None and before.state is BlockState.STREAMING:
            winner = self._winner(before)
            kept_ns = None if winner is None else winner.delayed_from_ns
            before.used_ns = max(0, (now_ns if kept_ns is None else kept_ns) - before.timed_from_ns)
        if block is not None:
            block.runs_from_ns, block.timed_from_ns = now_ns, now_ns - block.used_ns
        self._timed = block

    def _take(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions

    def _link_next(self) -> None:
        number = max(self._link_from, self.next_number)
        while (block := self.blocks.get(number)) is not None and block.state is BlockState.COMMITTING:
            number += 1
        self._link_from = number
        if block is not None and block.state is BlockState.VERIFIED and block.attempt_id != self._link_asked:
            self._link_asked = block.attempt_id
            self._actions.append(CheckLink(block.attempt_id))

    def _end_stalled(self) -> None:
        block = self.slowest()
        if block is not None and self.is_stalled(block):
            ahead = self.rules.stall_blocks
            self._fail(block, Failure.STALLED, f"a block {ahead} or more ahead is complete")

    def _send_back(self) -> None:
        """If nobody sends L + 1, ask those who will not offer it by themselves.

        It has failed, or they passed it while the chain was to begin with a later block.
        """
        number = self.next_number
        block = self.blocks.get(number)
        is_wanted = self.has_beginning if block is None else block.state is BlockState.OPEN
        if self.is_closing or not is_wanted:
            return
        least: int | None = None  # computed only if somebody stands back
        for stream in self.streams.values():
            if stream.next_offer is None or stream.next_offer <= number or stream.state in GONE:
                continue
            if back := self.stands_back(stream, number):
                least = self.least_back(number) if least is None else least
            if not back or back <= (least or 0):
                stream.next_offer = stream.asked_for = number
                self._send(stream, Resend(number, None if block is None else block.failure))

    def _pardon(self) -> None:
        number, least = self.next_number, self.least_back(self.next_number)
        for stream in self.streams.values():
            if stream.state not in GONE and self.stands_back(stream, number) <= least:
                stream.let_pass = True
        self.pardoned = number
        if (block := self.blocks.get(number)) is not None:
            block.blamed.clear()

    def _close_doors(self) -> list[Action]:
        """Drop incomplete blocks; `_settle` ends the streams after the complete ones."""
        for block in list(self.blocks.values()):
            if block.state is BlockState.STREAMING:
                self._fail(block, Failure.NODE, self._closing_reason())
        return self._settle()

    def _closing_reason(self) -> str:
        return "the node is shutting down" if self.shutting_down else self.retired or "the node is closed"

    # --- small steps ---------------------------------------------------------------------------------------

    def _move(self, block: BlockRecord, event: BlockEvent) -> None:
        target = BLOCK_TABLE[block.state].get(event)
        if target is None:
            raise RaceError(f"block {block.number}: cannot take {event.name} in state {block.state.name}")
        block.state = target
        self._index(block)

    def _index(self, block: BlockRecord) -> None:
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

    def _forget(self, block: BlockRecord) -> None:
        self.attempts.pop(block.attempt_id, None)
        self._count_bytes(block, -block.memory_bytes)
        block.size_bytes = block.item_count = 0

    def _begin_time(self, block: BlockRecord) -> None:
        self._order_count += 1
        block.order, block.used_ns = self._order_count, 0
        block.begun_ns = block.runs_from_ns = block.timed_from_ns = self._now_ns

    def _count_bytes(self, block: BlockRecord, more_bytes: int) -> None:
        block.memory_bytes += more_bytes
        self.inflight_bytes += more_bytes
        if not block.is_counted or not more_bytes:
            return
        for shares, key in (
            (self.publisher_bytes, block.winner_name),
            (self.address_bytes, block.winner_address),
        ):
            share_bytes = shares.get(key, 0) + more_bytes
            if share_bytes:
                shares[key] = share_bytes
            else:
                del shares[key]

    def _drop_all(self, reason: str, from_number: int = 0) -> None:
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

    def _send(self, stream: StreamRecord, response: Response) -> None:
        self._actions.append(SendResponse(stream.publisher_id, response))

    def _end(
        self,
        stream: StreamRecord,
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
        self._actions.append(EndResponses(stream.publisher_id))
        if block is not None:
            self._fail(block, Failure.STREAM_ENDED, reason)

    def _end_all(self, status: EndStatus, reason: str, *, proximate_number: int | None = None) -> None:
        for stream in self.streams.values():
            if stream.state is not StreamState.ENDED:
                self._end(stream, status, reason, proximate_number=proximate_number)

    def _close(self, stream: StreamRecord) -> None:
        stream.state = StreamState.ENDED
        self._actions.append(EndResponses(stream.publisher_id))

    # --- invariants ----------------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert the invariants."""
        sending: dict[int, PublisherId] = {}
        for stream in self.streams.values():
            assert (stream.block is not None) == (stream.state in _SENDING), stream
            if stream.block is not None:
                assert stream.block.state is BlockState.STREAMING, stream
                assert stream.block.winner == stream.publisher_id, stream
                assert stream.block.number not in sending, stream
                sending[stream.block.number] = stream.publisher_id
        by_name: Counter[str] = Counter()
        by_address: Counter[str] = Counter()
        for number, block in self.blocks.items():
            assert block.number == number >= self.next_number, block
            assert (block.state is BlockState.STREAMING) == (number in sending), block
            assert (block.attempt_id in self.attempts) == (block.state in LIVE), block
            if block.state is BlockState.COMMITTING:
                below = self.blocks.get(number - 1)
                assert number == self.next_number or (below and below.state is BlockState.COMMITTING), block
            if block.is_counted and block.memory_bytes:
                by_name[block.winner_name] += block.memory_bytes
                by_address[block.winner_address] += block.memory_bytes
        assert self.inflight_bytes == sum(block.memory_bytes for block in self.blocks.values())
        assert (self.publisher_bytes, self.address_bytes) == (by_name, by_address)
        self._check_indexes()
        self._check_progress()

    def _check_indexes(self) -> None:
        live = {number for number, block in self.blocks.items() if block.state in LIVE}
        assert self._highest_live == max(live, default=None), self._highest_live
        assert set(self._open) == set(self.blocks) - live
        assert set(self._sent) == {n for n in live if self.blocks[n].state is BlockState.STREAMING}
        number = self.next_number
        while number in live and number not in self._sent:
            number += 1
        assert self._timed is self.slowest() is self._sent.get(number)
        known_ns, deadline_ns = self.next_deadline_ns(), self._find_deadline_ns()
        # The limit of a lone publisher moves with its messages; `tick` finds it anew.
        assert known_ns == deadline_ns or (known_ns is not None and self.source_count == 1), (
            known_ns,
            deadline_ns,
        )

    def _check_progress(self) -> None:
        block = self.blocks.get(self.next_number)
        ready = [stream for stream in self.streams.values() if stream.state not in GONE]
        if block is None or block.state is not BlockState.OPEN or not ready or self.is_closing:
            return
        able = [stream for stream in ready if self.may_send(stream, block.number)]
        assert able, f"block {block.number}: nobody may send it"
        for stream in able:
            assert stream.next_offer is None or stream.next_offer <= block.number, stream
