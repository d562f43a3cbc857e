"""One publisher's side of the publish protocol: its unacknowledged blocks, and what to send next.

Pure: no gRPC type, no clock, no task. The shell passes each event with `now_ns` (a monotonic clock) and
performs the actions that come back. Sends come back from `Writable` only, one message at a time, so that an
answer that arrives between two messages takes effect at once.

Rules
  - A block leaves the cache only when a gateway said that it is stored (an acknowledgement, or the last
    block of DUPLICATE_BLOCK or of a behind answer). Skipped is not stored.
  - Every stream begins with the oldest block held.
  - A block that is known to be stored is not offered, nor is the rest of it sent.
  - Whoever is sent back goes back: `ResendBlock(N)` restarts at N's header even in mid-block; the gateway
    lets the same publisher start a block over.

Source: publish-block-stream.md; the tables are in machine_tables.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from publishers import limits
from publishers.cache import BlockCache, HeldBlock, Standing
from publishers.errors import MachineError
from publishers.machine_tables import ENDINGS, FINAL_STATES, TABLE, Gateway, Pace, State, Step
from publishers.offers import Offers
from publishers.report import PublishReport
from publishers.route import Route
from publishers.signals import (
    NO_BLOCK,
    Acknowledged,
    Action,
    BlockReady,
    CloseStream,
    Connect,
    Disconnected,
    EndCode,
    EndStreamCode,
    Event,
    Finish,
    HalfClose,
    NodeBehind,
    Outcome,
    ResendAsked,
    SendEndOfBlock,
    SendEndStream,
    SendItems,
    Skipped,
    SourceFailed,
    StreamEnded,
)
from publishers.tally import Tally

__all__ = ["MachineLimits", "PublisherMachine"]

SECOND_NS: Final = 1_000_000_000

_BAD_PROOF_MEANS: Final = (
    ": its proof is not of the gateway's ledger keys, or it does not continue the gateway's chain; "
    "the gateway's log says which"
)


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """What bounds one publisher; the reasons are in limits.py."""

    cache_bytes_max: int = limits.CACHE_BYTES_DEFAULT
    """Bytes of unacknowledged blocks held."""
    window_blocks_max: int = limits.WINDOW_BLOCKS_DEFAULT
    """Blocks offered and not acknowledged."""
    bad_proof_retries_max: int = limits.BAD_PROOF_RETRIES_MAX
    """Times that a block is offered again after BAD_BLOCK_PROOF."""
    invalid_request_retries_max: int = limits.INVALID_REQUEST_RETRIES_MAX
    """Streams in a row that INVALID_REQUEST may end before the last."""
    answer_timeout_ns: int = int(limits.ANSWER_TIMEOUT_SECONDS_DEFAULT * SECOND_NS)
    """Silence of a gateway that is borne."""
    close_timeout_ns: int = int(limits.CLOSE_TIMEOUT_SECONDS * SECOND_NS)
    """How long the other side may take to end a stream."""
    stop_timeout_ns: int = int(limits.STOP_TIMEOUT_SECONDS * SECOND_NS)
    """How long the block in flight may take when the user wants to end."""
    deadline_ns: int | None = None
    """Give up after so long without a block becoming safe; None: never."""
    reset_interval_ns: int | None = None
    """Leave a stream in good order (RESET, between blocks) after so long; None: never."""


@dataclass(frozen=True, slots=True)
class _Departure:
    """What follows the stream that is ending."""

    reason: str
    gateway: Gateway = Gateway.SAME
    pace: Pace = Pace.BACKOFF
    outcome: Outcome | None = None
    """None: another stream; else the end."""


class PublisherMachine:
    """The protocol core of one publisher. See the module's docstring for how a shell drives it."""

    def __init__(self, publisher_id: str, gateway_count: int, options: MachineLimits | None = None) -> None:
        """Start in RESTING: nothing happens before the first block.

        Args:
            publisher_id: for the report.
            gateway_count: length of the shell's list of gateways, at least 1.
            options: the bounds.
        """
        self.state = State.RESTING
        self._limits = options or MachineLimits()
        self._route = Route(gateway_count)
        self._gateway_count = gateway_count
        self._cache = BlockCache(self._limits.cache_bytes_max)
        self._gateway = 0  # of the present stream, or of the next
        self._source_ended = False
        self._cursor = 0
        self._position = (
            0  # sets of the cursor's block that were sent; as many as it has: only its end is left
        )
        self._offers = Offers(limits.OFFERS_MAX)
        self._offered_first: int | None = None  # on the present stream; no later one is lower
        self._behind_count = 0  # on the present stream, since a block last became safe
        self._acked_through = -1
        self._safe_through = -1
        self._invalid_streak = 0
        self._departure = _Departure("")
        self._parting: deque[Action] = deque()
        self._last_trouble = ""
        self._progress_at_ns: int | None = None
        self._heard_at_ns = 0
        self._began_at_ns = 0
        self._close_by_ns = 0
        self._started_at_ns: int | None = None
        self._now_ns = 0
        self._tally = Tally(publisher_id)
        self._steps: dict[Step, Callable[[Event], list[Action]]] = {
            Step.NOTHING: lambda event: [],
            Step.TAKE_BLOCK: self._take_block,
            Step.END_SOURCE: self._end_source,
            Step.FAIL: self._fail_source,
            Step.LEAVE_BROKEN: self._leave_broken,
            Step.BEGIN: self._begin,
            Step.RETRY: self._retry_lost,
            Step.SEND: self._send,
            Step.SEND_PARTING: self._send_parting,
            Step.WATCH: self._watch,
            Step.CLOSE_OVERDUE: self._close_overdue,
            Step.COUNT_SAFE: self._count_safe,
            Step.SKIP: self._skip,
            Step.RESEND: self._resend,
            Step.BEHIND: self._behind,
            Step.OBEY_END: self._obey_end,
            Step.STOP_AFTER_BLOCK: self._stop_after_block,
            Step.STOP_NOW: lambda event: self._finish(Outcome.STOPPED, None),
            Step.STOP_CLOSED: self._stop_closed,
            Step.DEPART: self._depart,
            Step.FINISHED: lambda event: self._finish(Outcome.DONE, None),
            Step.CLOSE: self._close,
        }

    # --- what the shell asks --------------------------------------------------------------------------------

    def handle(self, event: Event, now_ns: int) -> list[Action]:
        """Take one event and say what to do.

        Args:
            event: what happened.
            now_ns: monotonic clock, nanoseconds, never less than before.

        Returns:
            The actions, to be performed in order.

        Raises:
            MachineError: the event cannot happen in this state; nothing is changed.
            BlockOrderError: `BlockReady` with a number that is not the next; nothing is changed.
        """
        step = TABLE[self.state][event.kind]
        if step is Step.REFUSE:
            raise MachineError(event.kind.value, self.state.value)
        self._now_ns = now_ns
        if self._started_at_ns is None:
            self._started_at_ns = now_ns
        return self._steps[step](event)

    @property
    def wants_block(self) -> bool:
        """Whether the shell should take the next block from the source."""
        if self._source_ended or self.state in FINAL_STATES or self.state is State.STOPPING:
            return False
        first, following = self._cache.first, self._cache.next_number
        if first is None or following is None:
            return True
        return not self._cache.is_full and following - max(self._cursor, first) < limits.READ_AHEAD_BLOCKS

    @property
    def wake_at_ns(self) -> int | None:
        """When the shell should send `Clock` at the latest; None: never."""
        if self.state in (State.LEAVING, State.FINISHING, State.STOPPING):
            return self._close_by_ns
        if self.state not in (State.CONNECTING, State.STREAMING):
            return None
        times = [self._deadline_at_ns(), self._silence_at_ns()]
        return min((at for at in times if at is not None), default=None)

    @property
    def safe_through(self) -> int | None:
        """Every block up to this one is known to be stored."""
        return self._safe_through if self._safe_through >= 0 else None

    def report(self) -> PublishReport:
        """Say what was done so far."""
        return self._tally.report(self.safe_through, self._now_ns - (self._started_at_ns or self._now_ns))

    # --- the source -----------------------------------------------------------------------------------------

    def _take_block(self, event: Event) -> list[Action]:
        assert isinstance(event, BlockReady)
        self._cache.check_order(event.number)
        self._tally.took(event.number)
        if event.number <= self._safe_through:
            self._cache.pass_over(event.number)
            self._tally.safe(acknowledged=event.number <= self._acked_through)
            return []
        if not self._cache:
            self._progress_at_ns = self._now_ns
            self._heard_at_ns = self._now_ns
            self._cursor = max(self._cursor, event.number)
        self._cache.add(HeldBlock(event.number, event.sets, event.size_bytes))
        if self.state is State.RESTING:
            return self._connect(self._route.first())
        return []

    def _end_source(self, event: Event) -> list[Action]:
        self._source_ended = True
        if self._cache:
            return []
        if self.state is State.STREAMING:
            return self._half_close()
        if self.state in (State.RESTING, State.CONNECTING):
            return self._finish(Outcome.DONE, None)
        return []

    def _fail_source(self, event: Event) -> list[Action]:
        assert isinstance(event, SourceFailed)
        return self._finish(Outcome.FAILED, event.reason)

    def _leave_broken(self, event: Event) -> list[Action]:
        assert isinstance(event, SourceFailed)
        return self._leave(EndStreamCode.ERROR, _Departure(event.reason, outcome=Outcome.FAILED))

    # --- the stream's beginning and end ---------------------------------------------------------------------

    def _connect(self, connect: Connect) -> list[Action]:
        self.state = State.CONNECTING
        self._gateway = connect.gateway
        return [connect]

    def _begin(self, event: Event) -> list[Action]:
        self.state = State.STREAMING
        self._tally.begin_stream(self._gateway)
        self._began_at_ns = self._heard_at_ns = self._now_ns
        self._offers.clear()
        self._offered_first = None
        self._behind_count = 0
        self._position = 0
        self._cursor = self._cache.first if self._cache.first is not None else self._cursor
        for block in self._cache.blocks_from(self._cursor):
            block.clear_marks()
        return []

    def _retry_lost(self, event: Event) -> list[Action]:
        assert isinstance(event, Disconnected)
        return self._go_on(_Departure(event.reason, Gateway.NEXT, Pace.BACKOFF))

    def _go_on(self, departure: _Departure) -> list[Action]:
        """Do what follows a stream: finish, rest, or ask for another one."""
        self._position = 0
        if departure.outcome is not None:
            return self._finish(departure.outcome, departure.reason)
        if not self._cache:
            if self._source_ended:
                return self._finish(Outcome.DONE, None)
            self.state = State.RESTING
            return []
        self._last_trouble = departure.reason
        if self._is_past(self._deadline_at_ns()):
            return self._finish(Outcome.FAILED, self._deadline_reason())
        return self._connect(self._route.after(departure.gateway, departure.pace))

    def _depart(self, event: Event) -> list[Action]:
        return self._go_on(self._departure)

    def _leave(self, code: EndStreamCode, departure: _Departure) -> list[Action]:
        """End the stream from this side, saying which blocks are held."""
        earliest = self._cache.first
        following = self._cache.next_number or 0
        latest = max(0, following - 1)
        self._parting = deque(
            [SendEndStream(code, latest if earliest is None else earliest, latest), HalfClose()]
        )
        return self._start_leaving(departure)

    def _start_leaving(self, departure: _Departure) -> list[Action]:
        self.state = State.LEAVING
        self._departure = departure
        self._close_by_ns = self._now_ns + self._limits.close_timeout_ns
        return []

    def _half_close(self) -> list[Action]:
        self.state = State.FINISHING
        self._parting = deque([HalfClose()])
        self._close_by_ns = self._now_ns + self._limits.close_timeout_ns
        return []

    def _finish(self, outcome: Outcome, reason: str | None) -> list[Action]:
        self.state = {
            Outcome.DONE: State.DONE,
            Outcome.FAILED: State.FAILED,
            Outcome.STOPPED: State.STOPPED,
        }[outcome]
        if outcome is Outcome.FAILED:
            self._tally.failure = reason
        return [Finish(outcome, reason if outcome is Outcome.FAILED else None)]

    def _stop_after_block(self, event: Event) -> list[Action]:
        if self.state is State.LEAVING:
            if self._departure.outcome is None:
                self._departure = _Departure("stopped", outcome=Outcome.STOPPED)
            return []
        if self._position == 0:
            return self._leave(EndStreamCode.RESET, _Departure("stopped", outcome=Outcome.STOPPED))
        self.state = State.STOPPING
        self._close_by_ns = self._now_ns + self._limits.stop_timeout_ns
        return []

    def _close(self, event: Event) -> list[Action]:
        """The gateway ended a stream that we were ending, too."""
        self._take_back_wins(event)
        self._parting.clear()
        return [CloseStream("the gateway ended the stream")]

    def _stop_closed(self, event: Event) -> list[Action]:
        self._take_back_wins(event)
        self._start_leaving(_Departure("stopped", outcome=Outcome.STOPPED))
        return [CloseStream("the gateway ended the stream")]

    # --- sending --------------------------------------------------------------------------------------------

    def _send(self, event: Event) -> list[Action]:
        if self._position == 0:
            if self.state is State.STOPPING:
                self._leave(EndStreamCode.RESET, _Departure("stopped", outcome=Outcome.STOPPED))
                return self._send_parting(event)
            if self._is_reset_due():
                self._leave(EndStreamCode.RESET, _Departure("routine reset", Gateway.NEXT, Pace.AT_ONCE))
                return self._send_parting(event)
        block = self._cache.get(self._cursor)
        if block is None:
            return []
        if self._position == 0:
            first = self._cache.first
            if first is not None and self._cursor - first >= self._limits.window_blocks_max:
                return []
            self._offers.sent(block.number)
            if self._offered_first is None:
                self._offered_first = block.number
            self._tally.offer(block)
        self._heard_at_ns = self._now_ns  # a gateway that takes bytes is not silent
        if self._position < len(block.sets):
            items = block.sets[self._position]
            self._position += 1
            self._tally.bytes_sent += sum(map(len, items))
            return [SendItems(block.number, items)]
        block.whole_at_ns = self._now_ns
        self._move_to(block.number + 1)
        return [SendEndOfBlock(block.number)]

    def _send_parting(self, event: Event) -> list[Action]:
        return [self._parting.popleft()] if self._parting else []

    def _move_to(self, number: int) -> None:
        """Go on with block `number`, from its header."""
        self._cursor = number
        self._position = 0

    def _go_back_to(self, number: int) -> None:
        """Offer block `number` and all after it again, on this stream."""
        self._offers.sent_back()
        self._move_to(number)
        for block in self._cache.blocks_from(number):
            block.clear_marks()

    # --- answers --------------------------------------------------------------------------------------------

    def _count_safe(self, event: Event) -> list[Action]:
        assert isinstance(event, Acknowledged)
        self._heard_at_ns = self._now_ns
        if event.number == NO_BLOCK:
            # No gateway has that many blocks; to believe it would mean to forget everything.
            return self._leave_if_streaming("the gateway acknowledged block 2^64 - 1")
        self._acked_through = max(self._acked_through, event.number)
        self._mark_safe(event.number, acknowledged=True)
        return self._close_if_all_safe()

    def _leave_if_streaming(self, reason: str) -> list[Action]:
        if self.state is not State.STREAMING:
            return []
        return self._leave(EndStreamCode.ERROR, _Departure(reason, Gateway.NEXT, Pace.BACKOFF))

    def _close_if_all_safe(self) -> list[Action]:
        if self.state is State.STREAMING and self._source_ended and not self._cache:
            return self._half_close()
        return []

    def _mark_safe(self, number: int, *, acknowledged: bool) -> bool:
        """Let go of every block up to `number`; say whether that is news."""
        if number <= self._safe_through:
            return False
        self._safe_through = number
        self._progress_at_ns = self._now_ns
        self._route.progress()
        self._invalid_streak = self._behind_count = 0
        for block in self._cache.drop_through(number):
            self._tally.safe(acknowledged=acknowledged)
            if acknowledged and block.whole_at_ns is not None and not block.skipped:
                self._tally.win(block.number, self._now_ns - block.whole_at_ns)
        if self._cursor <= number:
            # It may be the block that is being sent: the rest of it is not wanted any more.
            self._move_to(number + 1)
        self._offers.drop_through(number)
        return True

    def _skip(self, event: Event) -> list[Action]:
        assert isinstance(event, Skipped)
        self._heard_at_ns = self._now_ns
        is_present = self._offers.answered(lambda number: number == event.number)
        block = self._cache.get(event.number)
        if block is None or not is_present:
            return []  # safe meanwhile, never offered here, or about a header from before we were sent back
        block.skipped = True
        self._tally.skip(block)
        if self._cursor == event.number:
            self._move_to(event.number + 1)
        return []

    def _resend(self, event: Event) -> list[Action]:
        assert isinstance(event, ResendAsked)
        self._heard_at_ns = self._now_ns
        standing = self._cache.standing_of(event.number)
        if standing is Standing.GONE:
            return self._leave_too_far_behind(event.number)
        if standing is Standing.COMING or (self._cursor, self._position) <= (event.number, 0):
            return []  # it is still to be offered on this stream
        self._tally.resent += 1
        self._go_back_to(event.number)
        return []

    def _behind(self, event: Event) -> list[Action]:
        assert isinstance(event, NodeBehind)
        self._heard_at_ns = self._now_ns
        wanted = 0 if event.last is None else event.last + 1
        is_late = self._offers.answered(lambda number: number > wanted) is False
        if event.last is not None:
            self._mark_safe(event.last, acknowledged=False)
        if not self._cache:
            return self._close_if_all_safe()
        standing = self._cache.standing_of(wanted)
        if standing is Standing.GONE:
            return self._leave_too_far_behind(wanted)
        self._tally.behind += 1
        if standing is not Standing.HELD or is_late or (self._cursor, self._position) <= (wanted, 0):
            return []
        self._behind_count += 1
        if self._behind_count > limits.BEHIND_ANSWERS_MAX:
            # Or it would go on at the speed of the line.
            return self._leave_too_far_behind(wanted)
        self._go_back_to(wanted)
        return []

    def _leave_too_far_behind(self, wanted: int) -> list[Action]:
        self._tally.too_far_behind += 1
        if self.state is State.STOPPING:
            departure = _Departure("stopped", outcome=Outcome.STOPPED)
        else:
            earliest = self._cache.first
            held = "nothing is held here any more" if earliest is None else f"the earliest here is {earliest}"
            reason = f"the gateway wants block {wanted}, {held}"
            departure = _Departure(reason, Gateway.NEXT, Pace.BACKOFF)
        return self._leave(EndStreamCode.TOO_FAR_BEHIND, departure)

    def _obey_end(self, event: Event) -> list[Action]:
        assert isinstance(event, StreamEnded)
        ending = ENDINGS[event.code]
        reason = f"{event.code.name}: {ending.why}"
        departure = _Departure(reason, ending.gateway, ending.pace)
        if event.code is EndCode.DUPLICATE_BLOCK:
            self._take_back_wins(event)
            if not self._explains_itself(event):
                # Or it would go round and round: this gateway says what cannot be.
                departure = replace(departure, gateway=Gateway.NEXT, pace=Pace.BACKOFF)
        elif event.code is EndCode.BAD_BLOCK_PROOF:
            departure = self._count_bad_proof(event, departure)
        elif event.code is EndCode.INVALID_REQUEST:
            departure = self._count_invalid(event, departure)
        self._start_leaving(departure)
        return [CloseStream(reason)]

    def _explains_itself(self, event: StreamEnded) -> bool:
        """Believe the last block of DUPLICATE_BLOCK; say whether the next stream will begin elsewhere for it.

        That is so where it is news, and where a block up to it was offered: an acknowledgement that crossed
        with the header has told of it already, and the node ends the stream all the same.
        """
        if event.last is None:
            return False
        is_news = self._mark_safe(event.last, acknowledged=False)
        return is_news or (self._offered_first is not None and self._offered_first <= event.last)

    def _take_back_wins(self, event: Event) -> None:
        """Correct the count when our header was not accepted although its block was acknowledged."""
        if isinstance(event, StreamEnded) and event.code is EndCode.DUPLICATE_BLOCK:
            self._tally.take_back_wins(event.proximate)

    def _count_bad_proof(self, event: StreamEnded, departure: _Departure) -> _Departure:
        last = -1 if event.last is None else event.last
        # Gateways that do not know the field leave 0 in it; they verify in order, so it is the one after
        # `last`.
        number = event.proximate if event.proximate > last else last + 1
        if self._cache.get(number) is None:
            return departure
        refused_count = self._tally.refuse(number, event.code.name)
        if refused_count <= self._limits.bad_proof_retries_max or refused_count < self._gateway_count:
            return departure
        reason = f"block {number} was refused {refused_count} times with BAD_BLOCK_PROOF{_BAD_PROOF_MEANS}"
        return replace(departure, reason=reason, outcome=Outcome.FAILED)

    def _count_invalid(self, event: StreamEnded, departure: _Departure) -> _Departure:
        self._invalid_streak += 1
        number = event.proximate if self._cache.get(event.proximate) else self._cursor
        if self._position == 0 and number == self._cursor and self._cache.get(number - 1):
            number -= 1  # the block just sent whole
        if self._cache.get(number):
            self._tally.refuse(number, event.code.name)
        streak, retries_max = self._invalid_streak, self._limits.invalid_request_retries_max
        if streak <= retries_max or streak < self._gateway_count:
            return departure
        reason = (
            f"the gateway answered INVALID_REQUEST {streak} times in a row, "
            f"last at block {number}; see its log"
        )
        return replace(departure, reason=reason, outcome=Outcome.FAILED)

    # --- clocks ---------------------------------------------------------------------------------------------

    def _watch(self, event: Event) -> list[Action]:
        if self._is_past(self._deadline_at_ns()):
            reason = self._deadline_reason()
            if self.state is State.CONNECTING:
                return self._finish(Outcome.FAILED, reason)
            return self._leave(EndStreamCode.TIMEOUT, _Departure(reason, outcome=Outcome.FAILED))
        if self._is_past(self._silence_at_ns()):
            seconds = self._limits.answer_timeout_ns / SECOND_NS
            reason = f"the gateway was silent for {seconds:g} s"
            return self._leave(EndStreamCode.TIMEOUT, _Departure(reason, Gateway.NEXT, Pace.BACKOFF))
        return []

    def _close_overdue(self, event: Event) -> list[Action]:
        if not self._is_past(self._close_by_ns):
            return []
        self._close_by_ns = self._now_ns + self._limits.close_timeout_ns
        return [CloseStream("the gateway did not end the stream", force=True)]

    def _is_past(self, at_ns: int | None) -> bool:
        return at_ns is not None and self._now_ns >= at_ns

    def _deadline_at_ns(self) -> int | None:
        if self._limits.deadline_ns is None or self._progress_at_ns is None or not self._cache:
            return None
        return self._progress_at_ns + self._limits.deadline_ns

    def _deadline_reason(self) -> str:
        seconds = (self._limits.deadline_ns or 0) / SECOND_NS
        trouble = f" ({self._last_trouble})" if self._last_trouble else ""
        return f"block {self._cache.first} was not acknowledged within {seconds:g} s{trouble}"

    def _silence_at_ns(self) -> int | None:
        if self.state is not State.STREAMING or not self._cache:
            return None
        if (self._cursor, self._position) == (self._cache.first, 0):
            return None  # nothing is offered, so nothing is owed
        return self._heard_at_ns + self._limits.answer_timeout_ns

    def _is_reset_due(self) -> bool:
        interval = self._limits.reset_interval_ns
        return interval is not None and self._now_ns >= self._began_at_ns + interval
