"""The checks of one publisher's answers on one stream, from the publisher's end.

They know only which headers were sent, and what came back. So they see what is lost, doubled, reordered or
misdirected on the way from the arbiter, and whether the publisher goes where it was sent.

    a header has at most one answer, and answers come in the order of the headers
    acknowledgements rise by one
    ResendBlock(N) is for a publisher that has offered N or more, and comes once
    nothing follows EndOfStream, which does not reproach an honest publisher
    after ResendBlock(N) or BehindPublisher(N - 1) the next header is N, or one below it

Source: the rules 1, 5 and 6 of the publish protocol (docs/protocol.md).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from sluice.publishers.protocol.messages import (
    Acknowledged,
    EndCode,
    Event,
    NodeBehind,
    ResendAsked,
    SendItems,
    Skipped,
    StreamEnded,
)
from tests.simulation.world import World

_REPROACHES = frozenset({EndCode.UNKNOWN, EndCode.INVALID_REQUEST, EndCode.ERROR, EndCode.BAD_BLOCK_PROOF})
_HEADER_FIELD = 1


class AnswerChecks:
    """Checks of one stream."""

    def __init__(self, world: World, name: str, first: int | None = None) -> None:
        self._world, self._name, self._first = world, name, first
        self._unanswered: deque[tuple[int, int]] = deque()
        """Headers, oldest first, with the count of earlier moves back."""
        self._moves_back = 0
        self._last_offered: int | None = None
        self._highest_offered = -1
        self._acknowledged: int | None = None
        self._go_back_to: int | None = None
        """The highest number that the next header may have."""
        self._asked_for: int | None = None
        """The last ResendBlock, until another header is sent."""
        self._end: StreamEnded | None = None

    # --- what the publisher does ---------------------------------------------------------------------------

    def sent(self, action: object, safe_through: int | None) -> None:
        """Note a message that it sends; `safe_through` is what it knows to be stored."""
        if not isinstance(action, SendItems) or action.items[0][0] >> 3 != _HEADER_FIELD:
            return
        number, last = action.number, self._last_offered
        if self._go_back_to is not None:
            most = max(self._go_back_to, -1 if safe_through is None else safe_through + 1)
            self._expect(
                number <= most,
                "A publisher that is sent back goes back",
                f"{self._name} offers {number}, was sent to {self._go_back_to}",
            )
        if last is not None and number <= last:
            self._moves_back += 1
        self._unanswered.append((number, self._moves_back))
        self._last_offered, self._highest_offered = number, max(self._highest_offered, number)
        self._go_back_to = self._asked_for = None

    # --- what it hears -------------------------------------------------------------------------------------

    def heard(self, event: Event) -> None:
        if self._end is not None:
            self._wrong("Nothing follows EndOfStream", f"{self._name} hears {event} after {self._end}")
        match event:
            case Acknowledged(number):
                expected = number if self._acknowledged is None else self._acknowledged + 1
                self._expect(
                    number == expected,
                    "Rule 5: acknowledgements rise by one",
                    f"{self._name} hears {number} after {self._acknowledged}",
                )
                self._acknowledged = number
            case Skipped(number):
                self._answered(event, lambda offered: offered == number)
            case NodeBehind(last):
                wanted = (self._first or 0) if last is None else last + 1
                if self._answered(event, lambda offered: offered > wanted):
                    self._send_back(wanted)
            case ResendAsked(number):
                self._resent(number)
            case StreamEnded():
                self._ended(event)

    def _answered(self, event: Event, fits: Callable[[int], bool]) -> bool:
        """Find the header of an answer; return whether the publisher is still where it offered it."""
        while self._unanswered:
            number, moves_back = self._unanswered.popleft()
            if fits(number):
                return moves_back == self._moves_back
        self._wrong("Rule 1: an answer is about a header, in their order", f"{self._name} hears {event}")
        return False

    def _resent(self, number: int) -> None:
        got = f"{self._name} is asked for {number}"
        self._expect(
            number <= self._highest_offered,
            "Rule 6: ResendBlock(N) only to those that have come to N",
            f"{got}, has offered up to {self._highest_offered}",
        )
        safe = self._acknowledged is not None and number <= self._acknowledged
        self._expect(not safe, "No ResendBlock of what is acknowledged", f"{got} after {self._acknowledged}")
        self._expect(number != self._asked_for, "Rule 6: ResendBlock is said once", f"{got} twice")
        self._asked_for = number
        if self._last_offered is not None and number <= self._last_offered:
            self._moves_back += 1  # it has gone back, though it has offered nothing there yet
        self._send_back(number)

    def _send_back(self, number: int) -> None:
        self._go_back_to = number if self._go_back_to is None else min(number, self._go_back_to)

    def _ended(self, end: StreamEnded) -> None:
        self._end = end
        got = f"{self._name} hears {end}"
        is_below = end.code is EndCode.ERROR and end.last is None
        if is_below:  # the chain began above its offer after it connected
            self._answered(end, lambda number: number == end.proximate)
        self._expect(
            is_below or end.code not in _REPROACHES,
            "A publisher that does right is not told that it is wrong",
            got,
        )
        if self._acknowledged is not None and not is_below:
            last = -1 if end.last is None else end.last
            self._expect(last >= self._acknowledged, "L never falls", f"{got} after {self._acknowledged}")
        if end.code is EndCode.DUPLICATE_BLOCK:
            self._answered(end, lambda number: end.last is not None and number <= end.last)
        if end.code is EndCode.TIMEOUT and end.proximate:
            self._expect(
                end.proximate <= self._highest_offered, "TIMEOUT is about a block that it sends", got
            )

    def _expect(self, is_right: bool, rule: str, got: str) -> None:
        self._world.expect(is_right, rule, got)

    def _wrong(self, rule: str, got: str) -> None:
        self._world.break_rule(rule, got)
