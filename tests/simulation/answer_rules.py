"""The rules about what publishers hear: one of them has to allow each answer of the arbiter.

They follow the protocol's text, not the arbiter's tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sluice.gateway.race.actions import (
    Acknowledgement,
    Action,
    Behind,
    Drop,
    EndOfStream,
    EndResponses,
    Resend,
    SendResponse,
    Skip,
)
from sluice.gateway.race.tables import EndStatus, Failure
from sluice.gateway.store.block_store import BlockStore
from tests.simulation.options import Options
from tests.simulation.picture import Block, Picture, Stream
from tests.simulation.storage import Storage
from tests.simulation.texts import text_of
from tests.simulation.true_chain import image_from
from tests.simulation.world import World


@dataclass(slots=True)
class Moment:
    """An event of the arbiter, and its actions."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    actions: Sequence[Action]
    sender: Stream | None
    """The stream of the publisher that caused it."""
    started_over: Block | None = None
    """The block that its winner dropped in this event to begin it again."""
    gave_way: Block | None = None
    """The block taken from a newcomer in this event, until it hears Skip."""
    taken_over: Block | None = None
    """The same block, for the header that takes it."""


HEADER_PAGE_SIZE = 4096


class DiskChecks:
    """Checks of one life of the node."""

    def __init__(self, world: World, options: Options, storage: Storage, store: BlockStore) -> None:
        self._world, self._options, self._storage, self._store = world, options, storage, store

    def durable_through(self) -> int:
        """Return the last block that is on disk, every byte compared; blocks below the first count."""
        durable = self._storage.durable
        length = int.from_bytes(durable[38:46], "big")
        entries = int.from_bytes(durable[46:54], "big")
        first = self._store.first_number
        if length == HEADER_PAGE_SIZE or first is None:
            begin = self._options.first_block
            return begin - 1 if isinstance(begin, int) else -1
        image = image_from(first)
        number = image.number_at.get(length)
        if number is None or image.entries_of[number] != entries:
            self._world.break_rule("What is on disk ends with a block", f"{length} bytes, {entries} entries")
            return -1
        size = length - HEADER_PAGE_SIZE
        if durable[HEADER_PAGE_SIZE:length] != image.data[:size]:
            self._world.break_rule("What is on disk is the true chain, byte for byte", f"{length} bytes")
        return number

    def check_visible(self, length: int) -> None:
        """Check that readers see only a prefix of the true chain that is on disk."""
        store = self._store
        if store.first_number is None:
            if length == HEADER_PAGE_SIZE:
                return
            # The reader is a step ahead of the store, which learns of its first block right after.
            bookmark = store.streamer.get_entry(0).data
            first = bookmark[3] if len(bookmark) > 2 else 0
        else:
            first = store.first_number
        image = image_from(first)
        self._world.expect(length in image.number_at, "Readers see whole blocks", f"{length} bytes")
        seen = store.streamer.read_bytes(length - HEADER_PAGE_SIZE, HEADER_PAGE_SIZE)
        self._world.expect(
            seen == image.data[: len(seen)], "Readers see a prefix of the chain", f"{length} bytes"
        )
        on_disk = int.from_bytes(self._storage.durable[38:46], "big")
        self._world.expect(
            length <= on_disk, "Readers see only what is on disk", f"{length}, {on_disk} bytes"
        )


class AnswerRules(Picture):
    """The rules about what publishers hear."""

    def __init__(self, world: World, options: Options, storage: Storage, store: BlockStore) -> None:
        super().__init__(options)
        self.world, self.storage, self.store = world, storage, store
        self.disk = DiskChecks(world, options, storage, store)
        self.target: int | None = None
        """The highest block offered beyond U."""
        self._answered = False
        self._before = ""
        self._is_alone = False
        """Whether no other stream was open before the event."""
        self._now = Moment("", (), {}, (), None)

    def _wrong(self, rule: str, got: str) -> None:
        self.world.break_rule(rule, got)

    def _expect(self, is_right: bool, rule: str, got: str) -> None:
        if not is_right:
            self.world.break_rule(rule, got)

    def _answer(self, stream: Stream, number: int, got: str) -> None:
        expected = self.expected_answer(stream, number)
        over = self._now.started_over
        if over is not None and over.number == number:
            expected = "accept"  # rule 3: it stays the winner, though it may have failed the block before
        if self._now.taken_over is not None and self._now.taken_over.number == number:
            expected = "accept"  # the block was in flight when the header came, also above an open L + 1
        self._expect(
            got == expected,
            "Rule 1: the answer to a header",
            f"{stream.name} offers {number}: got {got}, expected {expected} "
            f"(L + 1 = {self.next_number}, in flight {sorted(self.blocks)})",
        )
        self._expect(not self._answered, "One answer for a header", f"{stream.name} offers {number}")
        self._answered = True

    def _must_end(self, publisher_id: int, status: EndStatus, proximate: int | None = None) -> None:
        actions = self._now.actions
        for action in actions:
            if isinstance(action, SendResponse) and action.publisher_id == publisher_id:
                response = action.response
                is_it = isinstance(response, EndOfStream) and response.status is status
                if is_it and proximate in (None, getattr(response, "proximate_number", None)):
                    return
        self._wrong(f"It hears EndOfStream({status.name})", f"stream {publisher_id}, block {proximate}")

    def _catch_up_due(self) -> int | None:
        """Return the target that the event must raise; None: it must not."""
        now = self._now
        number: int | None = None
        if now.name == "header":
            if any(isinstance(one, SendResponse) and isinstance(one.response, Behind) for one in now.actions):
                number = now.args[1]
        elif now.name == "end_stream" and self._before:
            target = now.kwargs.get("target")
            number = target if target is not None and target >= self.next_number else None
        if number is None or number >= 1 << 63:  # no block can have this number
            return None
        return number if (self.target is None or number > self.target) else None

    def _is_last_source(self) -> bool:
        """Return whether the sender was the last source and said ERROR. Those timed out in this event were
        still there."""
        return bool(self._now.kwargs.get("is_error")) and bool(self._before) and self._is_alone

    # --- answers -------------------------------------------------------------------------------------------

    def _sent(self, action: SendResponse) -> None:
        now = self._now
        name, args = now.name, now.args
        stream = self.streams.get(action.publisher_id)
        if stream is None or stream.state == "ended":
            self._wrong("Nothing is said on a stream after its end", f"{text_of(action)} on {name}")
            return
        stream.said.append(action.response)
        match action.response:
            case Acknowledgement(number):
                self._acknowledged(stream, number)
            case Skip(number) if now.gave_way is not None and now.gave_way.winner == stream.publisher_id:
                self._expect(number == now.gave_way.number, "Who gives way hears Skip", f"{number}")
                now.gave_way, stream.state = None, "dropping"
            case Skip(number):
                self._header_answer(stream, number, "skip")
                stream.skipped_old |= number < stream.hears_from
            case Behind(last):
                self._header_answer(stream, args[1], "behind")
                self._expect(
                    last == self.reported_last, "Behind tells L", f"{last}, not {self.reported_last}"
                )
                stream.next_offer = 0 if self.is_unsettled else self.next_number
            case Resend(number):
                self._resent(stream, number)
            case EndOfStream() as end:
                self._ended(stream, end)

    def _header_answer(self, stream: Stream, number: int, got: str) -> None:
        now = self._now
        name, args, sender = now.name, now.args, now.sender
        if name != "header" or sender is not stream or args[1] != number:
            self._wrong("Skip and Behind answer a header", f"{got} {number} to {stream.name} on {name}")
            return
        self._answer(stream, number, got)
        if got == "skip":
            is_next = number == self.next_number and number not in self.blocks
            if is_next and number not in self.opened_ns and not self.skipped_ns:
                self.skipped_ns = self.world.now_ns
            stream.offered_max = max(stream.offered_max, number)
        stream.state = "dropping"
        stream.offers(number, self.next_number)

    def _acknowledged(self, stream: Stream, number: int) -> None:
        name = self._now.name
        late = name == "tick" and stream.skipped_old and number == stream.hears_from - 1
        self._expect(
            name == "committed" or (late and stream.acknowledged is None),
            "Rule 5: an acknowledgement follows a commit",
            f"block {number} to {stream.name} on {name}",
        )
        if stream.acknowledged is not None:
            is_next = number == stream.acknowledged + 1
        else:
            anywhere = self.options.first_block == "any" and stream.hears_from == 0
            is_next = late or number == stream.hears_from or anywhere
        self._expect(
            is_next,
            "Rule 5: acknowledgements in order and once, none of before the connection",
            f"block {number} to {stream.name} after {stream.acknowledged}, connected at {stream.hears_from}",
        )
        stream.acknowledged = number
        self._expect(
            number <= self.disk.durable_through(),
            "Acknowledged means on disk",
            f"block {number}, on disk up to {self.disk.durable_through()}",
        )

    def _resent(self, stream: Stream, number: int) -> None:
        offered = stream.next_offer
        wanted = number == self.next_number or self.is_unsettled
        self._expect(wanted, "Rule 6: ResendBlock(N) only for N = L + 1", f"{number}")
        self._expect(number not in self.blocks, "ResendBlock only for a block that is open", f"{number}")
        self._expect(self.may_send(stream, number), "Not to one that failed it, or stands back", stream.name)
        self._expect(stream.is_ready, "ResendBlock to one that still sends", f"{stream.name} {stream.state}")
        self._expect(
            offered is not None and offered > number,
            "Rule 6: only to those that have come beyond it, and once",
            f"block {number} to {stream.name}, which comes to {offered}",
        )
        stream.next_offer = stream.sent_back_to = number

    def _ended(self, stream: Stream, end: EndOfStream) -> None:
        now = self._now
        name, args, sender, actions = now.name, now.args, now.sender, now.actions
        now_ns = self.world.now_ns
        drops = [action for action in actions if isinstance(action, Drop)]
        is_below = name == "header" and end.status is EndStatus.ERROR
        told = None if is_below else self.reported_last  # nobody may take such a block as stored
        self._expect(end.last_number == told, "EndOfStream tells L", f"{end.last_number} {told}")
        match end.status:
            case EndStatus.SUCCESS:
                right = self.shutting_down or self.retired
            case EndStatus.INVALID_REQUEST:
                right = sender is stream and name in ("bad_request", "header", "items", "block_end")
            case EndStatus.ERROR:
                right = (name in ("publisher_failed", "header") and sender is stream) or any(
                    drop.block_number == end.proximate_number and drop.failure is Failure.UNCHECKED
                    for drop in drops
                )
                if is_below:
                    self._answer(stream, args[1], "below first")
            case EndStatus.TIMEOUT:
                idle_ns = self._rules.idle_timeout_ns
                idle = stream.state == "fresh" and bool(idle_ns) and now_ns >= stream.since_ns + idle_ns
                timed_out = any(
                    drop.block_number == end.proximate_number
                    and drop.failure in (Failure.TIMED_OUT, Failure.STALLED)
                    for drop in drops
                )
                right = idle or timed_out
            case EndStatus.DUPLICATE_BLOCK:
                right = name == "header" and sender is stream
                if right:
                    self._answer(stream, args[1], "duplicate")
            case EndStatus.BAD_BLOCK_PROOF:
                right = any(
                    drop.block_number == end.proximate_number and drop.failure is Failure.REFUSED
                    for drop in drops
                )
            case EndStatus.PERSISTENCE_FAILED:
                right = self.disk_failed
        self._expect(right, "EndOfStream for a reason", f"{end.status.name} to {stream.name} on {name}")
        self._expect(
            any(isinstance(one, EndResponses) and one.publisher_id == stream.publisher_id for one in actions),
            "A stream that is ended is closed",
            stream.name,
        )
        stream.state = "ended"
