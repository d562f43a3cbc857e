"""The publish machine: one publisher from stream to stream, until every block is stored.

Pure. The shell passes each event with `now_ns` (a monotonic clock) and performs the actions that the machine
returns. Only `Writable` returns sends, one message at a time, so an answer takes effect before the next
message.

    event ──► TABLE (machine_tables) ──► one step here ──┬── send_window   which block is sent next
                                                         └── retries       which gateway, when, how often

Rules
  - The machine never believes that a gateway stores a block below that gateway's first one. So it leaves a
    gateway that begins above the oldest block held, and asks one that may begin anywhere for its first block
    before it counts an acknowledgement.
  - To end a stream, the machine says why and which blocks it holds, closes its side, and waits a bounded time
    for the gateway.

Source: docs/protocol.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from sluice.gateway.blocks.block_numbers import BLOCK_NUMBER_MAX
from sluice.publishers import limits
from sluice.publishers.errors import MachineError
from sluice.publishers.protocol.machine_tables import (
    ENDINGS,
    FINAL_STATES,
    TABLE,
    Gateway,
    MachineState,
    MachineStep,
    Pace,
)
from sluice.publishers.protocol.messages import (
    Acknowledged,
    Action,
    AskFirst,
    BlockReady,
    CloseStream,
    Connected,
    ConnectGateway,
    Disconnected,
    EndCode,
    EndStreamCode,
    Event,
    Finish,
    FirstTold,
    HalfClose,
    NodeBehind,
    ResendAsked,
    SendEndStream,
    Skipped,
    SourceFailed,
    StreamEnded,
    StreamOutcome,
)
from sluice.publishers.protocol.retries import GatewayChoice, Refusals
from sluice.publishers.protocol.send_window import SendWindow
from sluice.publishers.protocol.tally import Tally
from sluice.publishers.report import PublishReport

__all__ = ["MachineLimits", "PublisherMachine"]

SECOND_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """The limits of one publisher."""

    cache_bytes_max: int = limits.CACHE_BYTES_DEFAULT
    window_blocks_max: int = limits.WINDOW_BLOCKS_DEFAULT
    bad_proof_retries_max: int = limits.BAD_PROOF_RETRIES_MAX
    invalid_request_retries_max: int = limits.INVALID_REQUEST_RETRIES_MAX
    answer_timeout_ns: int = int(limits.ANSWER_TIMEOUT_SECONDS_DEFAULT * SECOND_NS)
    close_timeout_ns: int = int(limits.CLOSE_TIMEOUT_SECONDS * SECOND_NS)
    stop_timeout_ns: int = int(limits.STOP_TIMEOUT_SECONDS * SECOND_NS)
    deadline_ns: int | None = None
    """Give up after so long without a newly stored block; None: never."""
    reset_interval_ns: int | None = None
    """Leave a stream in order (RESET, between blocks) after so long; None: never."""


@dataclass(frozen=True, slots=True)
class _Departure:
    reason: str
    gateway: Gateway = Gateway.SAME
    pace: Pace = Pace.BACKOFF
    outcome: StreamOutcome | None = None
    """None: another stream follows."""


_STOPPED: Final = _Departure("stopped", outcome=StreamOutcome.STOPPED)


class PublisherMachine:
    """The protocol core of one publisher."""

    def __init__(self, publisher_id: str, gateway_count: int, options: MachineLimits | None = None) -> None:
        """Start in IDLE; connect when the first block comes."""
        self.state = MachineState.IDLE
        self._limits = bounds = options or MachineLimits()
        self._tally = Tally(publisher_id)
        self._window = SendWindow(self._tally, bounds.cache_bytes_max, bounds.window_blocks_max)
        self._refusals = Refusals(
            self._tally, gateway_count, bounds.bad_proof_retries_max, bounds.invalid_request_retries_max
        )
        self._choice = GatewayChoice(gateway_count)
        self._gateway = 0  # of the present stream, or of the next
        self._first: int | None = 0  # the first block of the present gateway; None: unknown
        self._unplaced: int | None = None  # acknowledged by a gateway that has yet to tell its first block
        self._source_ended = False
        self._departure = _Departure("")
        self._parting: deque[Action] = deque()
        self._progress_at_ns: int | None = None  # of the last newly stored block, or of the first block
        self._heard_at_ns = 0  # the gateway's last news, or the last message that it took
        self._is_writing = False  # the stream has not taken the last message yet
        self._began_at_ns = 0
        self._has_gained = True  # a block was stored since the last routine reset
        self._close_by_ns = 0  # then the shell cancels a stream that is ending
        self._started_at_ns: int | None = None
        self._now_ns = 0
        self._steps: dict[MachineStep, Callable[[Event], list[Action]]] = {
            MachineStep.NOTHING: lambda event: [],
            MachineStep.TAKE_BLOCK: self._take_block,
            MachineStep.END_SOURCE: self._end_source,
            MachineStep.FAIL: self._fail_source,
            MachineStep.LEAVE_BROKEN: self._leave_broken,
            MachineStep.BEGIN: self._begin,
            MachineStep.RETRY: self._retry_lost,
            MachineStep.SEND: self._send,
            MachineStep.SEND_PARTING: self._send_parting,
            MachineStep.WATCH: self._watch,
            MachineStep.CLOSE_OVERDUE: self._close_overdue,
            MachineStep.COUNT_SAFE: self._count_safe,
            MachineStep.SKIP: self._skip,
            MachineStep.RESEND: self._resend,
            MachineStep.BEHIND: self._behind,
            MachineStep.OBEY_END: self._obey_end,
            MachineStep.LEARN_FIRST: self._learn_first,
            MachineStep.STOP_AFTER_BLOCK: self._stop_after_block,
            MachineStep.STOP_NOW: lambda event: self._finish(StreamOutcome.STOPPED, None),
            MachineStep.STOP_CLOSED: self._stop_closed,
            MachineStep.DEPART: self._depart,
            MachineStep.FINISHED: lambda event: self._finish(StreamOutcome.DONE, None),
            MachineStep.CLOSE: self._close,
        }

    # --- for the shell --------------------------------------------------------------------------------------

    def handle(self, event: Event, now_ns: int) -> list[Action]:
        """Take one event and return the actions.

        `now_ns` is monotonic.

        Raises:
            MachineError: the event cannot happen in this state; nothing is changed.
            BlockOrderError: `BlockReady` with a number that is not the next; nothing is changed.
        """
        step = TABLE[self.state][event.kind]
        if step is MachineStep.REFUSE:
            raise MachineError(event.kind.value, self.state.value)
        self._now_ns = now_ns
        if self._started_at_ns is None:
            self._started_at_ns = now_ns
        place = self._window.place
        actions = self._steps[step](event)
        if self._window.place != place:
            # A gateway that repeats itself counts as silent.
            self._heard_at_ns = now_ns
        return actions

    @property
    def wants_block(self) -> bool:
        """True if the shell should take the source's next block."""
        if self._source_ended or self.state in FINAL_STATES or self.state is MachineState.STOPPING:
            return False
        return self._window.wants_block

    @property
    def wake_at_ns(self) -> int | None:
        """The latest time for the shell's next `Clock`."""
        if self.state in (MachineState.LEAVING, MachineState.FINISHING, MachineState.STOPPING):
            return self._close_by_ns
        if self.state not in (MachineState.CONNECTING, MachineState.STREAMING):
            return None
        times = [self._deadline_at_ns(), self._silence_at_ns()]
        return min((at for at in times if at is not None), default=None)

    @property
    def safe_through(self) -> int | None:
        """The last block of the chain that is known to be stored, with all before it."""
        return self._window.safe_through

    def report(self) -> PublishReport:
        """Return the report so far."""
        return self._tally.report(self.safe_through, self._now_ns - (self._started_at_ns or self._now_ns))

    # --- the source -----------------------------------------------------------------------------------------

    def _take_block(self, event: Event) -> list[Action]:
        assert isinstance(event, BlockReady)
        was_empty = self._window.is_empty
        self._window.take(event)
        if self._window.is_empty:
            return []
        if was_empty:
            self._progress_at_ns = self._now_ns
            self._heard_at_ns = self._now_ns
        if self.state is MachineState.IDLE:
            return self._connect(self._choice.first())
        return []

    def _end_source(self, event: Event) -> list[Action]:
        self._source_ended = True
        if not self._window.is_empty:
            return []
        if self.state is MachineState.STREAMING:
            return self._half_close()
        if self.state in (MachineState.IDLE, MachineState.CONNECTING):
            return self._finish(StreamOutcome.DONE, None)
        return []

    def _fail_source(self, event: Event) -> list[Action]:
        assert isinstance(event, SourceFailed)
        return self._finish(StreamOutcome.FAILED, event.reason)

    def _leave_broken(self, event: Event) -> list[Action]:
        assert isinstance(event, SourceFailed)
        return self._leave(EndStreamCode.ERROR, _Departure(event.reason, outcome=StreamOutcome.FAILED))

    # --- the stream's beginning and end ---------------------------------------------------------------------

    def _connect(self, connect: ConnectGateway) -> list[Action]:
        self.state = MachineState.CONNECTING
        self._gateway = connect.gateway
        return [connect]

    def _begin(self, event: Event) -> list[Action]:
        self.state = MachineState.STREAMING
        self._tally.begin_stream(self._gateway)
        self._began_at_ns = self._heard_at_ns = self._now_ns
        self._is_writing = False
        self._window.begin_stream()
        assert isinstance(event, Connected)
        self._first, self._unplaced = None, None
        return [] if event.first is None else self._place_first(event.first)

    def _place_first(self, first: int) -> list[Action]:
        """Leave a gateway that begins above the oldest block held."""
        self._first = first
        self._refusals.begins_with(self._gateway, first)
        number = self._window.first
        if (
            number is None
            or number >= first
            or self.state not in (MachineState.STREAMING, MachineState.STOPPING)
        ):
            return []
        reason = f"the gateway begins with block {first}, and does not store block {number}"
        departure = _Departure(reason, Gateway.NEXT, Pace.BACKOFF)
        if self.state is MachineState.STOPPING:
            departure = _STOPPED
        elif (final := self._refusals.stored_nowhere(number)) is not None:
            departure = _Departure(final, outcome=StreamOutcome.FAILED)
        return self._leave(EndStreamCode.RESET, departure)

    def _learn_first(self, event: Event) -> list[Action]:
        assert isinstance(event, FirstTold)
        number, self._unplaced = self._unplaced, None
        if event.first is None or number is None:
            return []  # its acknowledgement does not count; the next one makes us ask again
        self._place_first(event.first)
        self._mark_safe(number, acknowledged=True)
        return self._close_if_all_safe()

    def _retry_lost(self, event: Event) -> list[Action]:
        assert isinstance(event, Disconnected)
        departure = _Departure(event.reason, Gateway.NEXT, Pace.LOST)
        if event.is_too_long and self._refusals.too_long():
            departure = replace(departure, outcome=StreamOutcome.FAILED)
        return self._go_on(departure)

    def _go_on(self, departure: _Departure) -> list[Action]:
        """Finish, become idle, or connect again."""
        if departure.outcome is not None:
            return self._finish(departure.outcome, departure.reason)
        if self._window.is_empty:
            if self._source_ended:
                return self._finish(StreamOutcome.DONE, None)
            self._choice.aim(departure.gateway)
            self.state = MachineState.IDLE
            return []
        self._tally.trouble = None if departure.pace is Pace.AT_ONCE else departure.reason  # that is routine
        if self._is_past(self._deadline_at_ns()):
            return self._finish(StreamOutcome.FAILED, self._deadline_reason())
        return self._connect(self._choice.after(departure.gateway, departure.pace))

    def _depart(self, event: Event) -> list[Action]:
        return self._go_on(self._departure)

    def _leave(self, code: EndStreamCode, departure: _Departure) -> list[Action]:
        self._parting = deque([SendEndStream(code, *self._window.range_held()), HalfClose()])
        return self._start_leaving(departure)

    def _start_leaving(self, departure: _Departure) -> list[Action]:
        self.state = MachineState.LEAVING
        self._departure = departure
        self._close_by_ns = self._now_ns + self._limits.close_timeout_ns
        return []

    def _half_close(self) -> list[Action]:
        self.state = MachineState.FINISHING
        self._parting = deque([HalfClose()])
        self._close_by_ns = self._now_ns + self._limits.close_timeout_ns
        return []

    def _finish(self, outcome: StreamOutcome, reason: str | None) -> list[Action]:
        self.state = {
            StreamOutcome.DONE: MachineState.DONE,
            StreamOutcome.FAILED: MachineState.FAILED,
            StreamOutcome.STOPPED: MachineState.STOPPED,
        }[outcome]
        if outcome is StreamOutcome.FAILED:
            self._tally.failure = reason
        return [Finish(outcome, reason if outcome is StreamOutcome.FAILED else None)]

    def _stop_after_block(self, event: Event) -> list[Action]:
        if self.state is MachineState.LEAVING:
            if self._departure.outcome is None:
                self._departure = _STOPPED
            return []
        if self._window.is_between_blocks:
            return self._leave(EndStreamCode.RESET, _STOPPED)
        self.state = MachineState.STOPPING
        self._close_by_ns = self._now_ns + self._limits.stop_timeout_ns
        return []

    def _close(self, event: Event) -> list[Action]:
        self._retract_wins(event)
        self._parting.clear()
        return [CloseStream("the gateway ended the stream")]

    def _stop_closed(self, event: Event) -> list[Action]:
        self._retract_wins(event)
        self._start_leaving(_STOPPED)
        return [CloseStream("the gateway ended the stream")]

    # --- sending --------------------------------------------------------------------------------------------

    def _send(self, event: Event) -> list[Action]:
        if self._window.is_between_blocks:
            if self.state is MachineState.STOPPING:
                self._leave(EndStreamCode.RESET, _STOPPED)
                return self._send_parting(event)
            if self._is_reset_due():
                self._has_gained = False
                self._leave(EndStreamCode.RESET, _Departure("routine reset", Gateway.NEXT, Pace.AT_ONCE))
                return self._send_parting(event)
        message = self._window.next_message(self._now_ns)
        self._is_writing = message is not None
        if message is None:
            return []
        return [message]

    def _send_parting(self, event: Event) -> list[Action]:
        return [self._parting.popleft()] if self._parting else []

    # --- answers --------------------------------------------------------------------------------------------

    def _count_safe(self, event: Event) -> list[Action]:
        assert isinstance(event, Acknowledged)
        if event.number > BLOCK_NUMBER_MAX:
            # No gateway has that many blocks; believing it would drop everything.
            return self._leave_if_streaming(f"the gateway acknowledged block {event.number}")
        if self._first is None:
            was_asked, self._unplaced = self._unplaced is not None, max(self._unplaced or 0, event.number)
            return [] if was_asked else [AskFirst()]
        self._mark_safe(event.number, acknowledged=True)
        return self._close_if_all_safe()

    def _leave_if_streaming(self, reason: str) -> list[Action]:
        if self.state is not MachineState.STREAMING:
            return []
        return self._leave(EndStreamCode.ERROR, _Departure(reason, Gateway.NEXT, Pace.BACKOFF))

    def _close_if_all_safe(self) -> list[Action]:
        if self.state is MachineState.STREAMING and self._source_ended and self._window.is_empty:
            return self._half_close()
        return []

    def _mark_safe(self, number: int, *, acknowledged: bool) -> bool:
        """Drop every block up to `number`, if the gateway stores them all; return whether that is news."""
        oldest = self._window.first
        if self._first is None or (oldest is not None and oldest < self._first):
            return False
        if not self._window.stored(number, self._now_ns, acknowledged=acknowledged):
            return False
        self._progress_at_ns, self._tally.trouble = self._now_ns, None
        self._has_gained = True
        self._choice.progress()
        self._refusals.progress()
        return True

    def _skip(self, event: Event) -> list[Action]:
        assert isinstance(event, Skipped)
        self._window.skip(event.number)
        return []

    def _resend(self, event: Event) -> list[Action]:
        assert isinstance(event, ResendAsked)
        return [] if self._window.resend(event.number) else self._leave_too_far_behind(event.number)

    def _behind(self, event: Event) -> list[Action]:
        assert isinstance(event, NodeBehind)
        wanted = (self._first or 0) if event.last is None else event.last + 1
        answered = self._window.hear_behind(wanted)  # before `_mark_safe` forgets the header
        if event.last is not None and answered is not None:  # else no header of ours is ahead of it
            self._mark_safe(event.last, acknowledged=False)
        if self._window.is_empty:
            return self._close_if_all_safe()
        is_there = self._window.go_on_from(wanted, is_late=answered is False)
        return [] if is_there else self._leave_too_far_behind(wanted)

    def _leave_too_far_behind(self, wanted: int) -> list[Action]:
        self._tally.too_far_behind += 1
        if self.state is MachineState.STOPPING:
            departure = _STOPPED
        else:
            earliest = self._window.first
            held = "nothing is held here any more" if earliest is None else f"the earliest here is {earliest}"
            if self._window.holds(wanted):
                held = "again and again, and does not take it"
            reason = f"the gateway wants block {wanted}, {held}"
            departure = _Departure(reason, Gateway.NEXT, Pace.BACKOFF)
        return self._leave(EndStreamCode.TOO_FAR_BEHIND, departure)

    def _obey_end(self, event: Event) -> list[Action]:
        assert isinstance(event, StreamEnded)
        ending = ENDINGS[event.code]
        reason = f"{event.code.name}: {ending.why}"
        departure = _Departure(reason, ending.gateway, ending.pace)
        if event.code is EndCode.DUPLICATE_BLOCK:
            self._retract_wins(event)
            if not self._explains_itself(event):
                # The gateway contradicts itself; retrying it at once would loop.
                departure = replace(departure, gateway=Gateway.NEXT, pace=Pace.BACKOFF)
        elif event.code is EndCode.BAD_BLOCK_PROOF:
            departure = self._count_bad_proof(event, departure)
        elif event.code is EndCode.INVALID_REQUEST:
            departure = self._count_invalid(event, departure)
        self._start_leaving(departure)
        return [CloseStream(reason)]

    def _explains_itself(self, event: StreamEnded) -> bool:
        """Believe the last block of DUPLICATE_BLOCK; return whether it explains the end of the stream.

        It does if it is news, or if we offered a block up to it: a crossing acknowledgement may have brought
        the news.
        """
        if event.last is None:
            return False
        is_news = self._mark_safe(event.last, acknowledged=False)
        return is_news or (self._first is not None and self._window.has_offered_through(event.last))

    def _retract_wins(self, event: Event) -> None:
        """Correct the count of wins: the gateway did not accept our header, although it acknowledged the
        block.
        """
        if isinstance(event, StreamEnded) and event.code is EndCode.DUPLICATE_BLOCK:
            self._tally.retract_wins(event.proximate)

    def _count_bad_proof(self, event: StreamEnded, departure: _Departure) -> _Departure:
        last = -1 if event.last is None else event.last
        # Gateways that do not know the field leave it 0. They verify in order, so they mean the block after
        # `last`, or the first block held.
        known = event.proximate > max(last, 0)
        number = event.proximate if known else max(last + 1, self._window.first or 0)
        reason = self._refusals.bad_proof(number) if self._window.holds(number) else None
        return (
            departure if reason is None else replace(departure, reason=reason, outcome=StreamOutcome.FAILED)
        )

    def _count_invalid(self, event: StreamEnded, departure: _Departure) -> _Departure:
        number = self._window.last_sent(event.proximate)
        reason = self._refusals.invalid_request(number, is_held=self._window.holds(number))
        return (
            departure if reason is None else replace(departure, reason=reason, outcome=StreamOutcome.FAILED)
        )

    # --- clocks ---------------------------------------------------------------------------------------------

    def _watch(self, event: Event) -> list[Action]:
        if self._is_past(self._deadline_at_ns()):
            reason = self._deadline_reason()
            if self.state is MachineState.CONNECTING:
                return self._finish(StreamOutcome.FAILED, reason)
            return self._leave(EndStreamCode.TIMEOUT, _Departure(reason, outcome=StreamOutcome.FAILED))
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
        if self._limits.deadline_ns is None or self._progress_at_ns is None or self._window.is_empty:
            return None
        return self._progress_at_ns + self._limits.deadline_ns

    def _deadline_reason(self) -> str:
        seconds = (self._limits.deadline_ns or 0) / SECOND_NS
        trouble = f" ({self._tally.trouble})" if self._tally.trouble else ""
        return f"block {self._window.first} was not acknowledged within {seconds:g} s{trouble}"

    def _silence_at_ns(self) -> int | None:
        # A stuck message counts as silence, whatever the gateway says meanwhile.
        if self.state is not MachineState.STREAMING or not (self._window.is_owed or self._is_writing):
            return None
        return self._heard_at_ns + self._limits.answer_timeout_ns

    def _is_reset_due(self) -> bool:
        interval = self._limits.reset_interval_ns
        # Only after a newly stored block, or every stream to a slow gateway would end too early.
        if not (self._window.has_offered and self._has_gained):
            return False
        return interval is not None and self._now_ns >= self._began_at_ns + interval
