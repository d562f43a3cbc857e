"""The state of one subscriber of `subscribeBlockStream`: its request, its next block, its final status.

Pure. The shell asks `step` what to do, and reports each sent message with `wrote`:

    READ              send committed blocks, from `next_number` on
    WAIT              all committed blocks were sent: ask again when there are more
    SubscriptionEnd   send this status; nothing follows

Refusals, in this order. max is 2^64 - 1, F and L are the first and last block held; an empty node has its
first block to be, and the one before it:

    end before start                                INVALID_END_BLOCK_NUMBER
    start below F                                   INVALID_START_BLOCK_NUMBER
    start max and end below F                       INVALID_END_BLOCK_NUMBER
    start more than `future_blocks_max` above L     NOT_AVAILABLE
    an empty node that begins with any block        waits, and decides when it knows F

A subscriber is *live* once it has had to wait. A source error ends live ones only, an orderly shutdown all.
Each first gets its present block to the end, a live one all blocks up to L.

Source: docs/spec/wire.md section 2.2; docs/subscribing.md, "From a program".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

from sluice.gateway.api import subscribe_pb2
from sluice.gateway.blocks.block_numbers import U64_MAX

__all__ = ["READ", "WAIT", "Held", "Step", "Subscriber", "SubscriptionEnd"]

_Code = subscribe_pb2.SubscribeStreamResponse.Code


@dataclass(frozen=True, slots=True)
class Held:
    """The blocks that the node holds now."""

    first: int | None
    last: int | None

    @property
    def height(self) -> int | None:
        """L (see above): -1 for an empty node that begins with block 0."""
        if self.last is not None:
            return self.last
        return None if self.first is None else self.first - 1


@dataclass(frozen=True, slots=True)
class SubscriptionEnd:
    """The final status."""

    status: int
    """A `SubscribeStreamResponse.Code`."""
    reason: str


class _Do(Enum):
    READ = "read"
    WAIT = "wait"


READ: Final = _Do.READ
WAIT: Final = _Do.WAIT

Step = Literal[_Do.READ, _Do.WAIT] | SubscriptionEnd


class Subscriber:
    """One call of `subscribeBlockStream`; a start may lie `future_blocks_max` above the last block."""

    def __init__(self, start: int, end: int, future_blocks_max: int) -> None:
        self.start = start
        self.end = end
        self.next_number: int | None = None
        """The block sent now or next."""
        self.live = False
        """It has received all committed blocks, and waits for more."""
        self._future_blocks_max = future_blocks_max
        self._in_block = False
        self._ending: SubscriptionEnd | None = None
        self._ends_after = -1

    @property
    def last_wanted(self) -> int | None:
        """The last block of the request."""
        return None if self.end == U64_MAX else self.end

    def lag(self, held: Held) -> int:
        """Return how many committed blocks are still to be sent."""
        if self.next_number is None or held.last is None:
            return 0
        last = held.last if self.last_wanted is None else min(held.last, self.last_wanted)
        return max(0, last - self.next_number + 1)

    def take_place(self, held: Held) -> None:
        """Fix the first block to send, also against later commits; `step` returns refusals."""
        self.step(held)

    def step(self, held: Held) -> Step:
        """Return what to do now."""
        if self._in_block:
            return READ
        if self.next_number is None:
            refusal = self._place(held)
            if refusal is not None:
                return refusal
        number = self.next_number
        if number is not None:
            if number > self.end:
                return SubscriptionEnd(_Code.SUCCESS, "everything was sent")
            if self._ending is not None and number > self._ends_after:
                return self._ending
            if held.last is not None and number <= held.last:
                return READ
        self.live = True
        return self._ending or WAIT

    def wrote(self, ended: int | None) -> bool:
        """Note a sent message, and the block that it ends; return whether its batch goes on."""
        self._in_block = ended is None
        if ended is None:
            return True
        self.next_number = ended + 1
        return ended < self.end and (self._ending is None or ended < self._ends_after)

    def source_failed(self, held: Held, reason: str) -> bool:
        """Note that the last publisher failed; return whether this ends the subscriber."""
        if not self.live or self._ending is not None:
            return False
        self._end(_Code.ERROR, reason, held)
        return True

    def shut_down(self, held: Held) -> None:
        """End the subscriber: the node stops in order."""
        if self._ending is None:
            self._end(_Code.SUCCESS, "the node stops", held if self.live else None)

    def _end(self, status: int, reason: str, held: Held | None) -> None:
        self._ending = SubscriptionEnd(status, reason)
        self._ends_after = held.last if held is not None and held.last is not None else -1

    def _place(self, held: Held) -> SubscriptionEnd | None:
        start, end = self.start, self.end
        asked = f"start {_text(start)}, end {_text(end)}"
        if start != U64_MAX and end < start:
            return SubscriptionEnd(_Code.INVALID_END_BLOCK_NUMBER, f"{asked}: got an end before the start")
        first, height = held.first, held.height
        if first is None or height is None:
            return None
        if start == U64_MAX:
            if end < first:
                return SubscriptionEnd(_Code.INVALID_END_BLOCK_NUMBER, f"{asked}: the first block is {first}")
            # A live subscriber waited for the unknown first block of an empty node.
            self.next_number = first if end != U64_MAX or self.live else height + 1
            return None
        if start < first:
            return SubscriptionEnd(_Code.INVALID_START_BLOCK_NUMBER, f"{asked}: the first block is {first}")
        if start > height + self._future_blocks_max:
            got = f"{start - height} blocks above the last, at most {self._future_blocks_max} are waited for"
            return SubscriptionEnd(_Code.NOT_AVAILABLE, f"{asked}: {got}")
        self.next_number = start
        return None


def _text(number: int) -> str:
    return "max" if number == U64_MAX else str(number)
