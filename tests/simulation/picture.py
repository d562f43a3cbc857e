"""The oracle's picture of the race: what the publishers have said, and what the rules make of it.

It follows the protocol's text, not the arbiter's tables: the same facts, found in another way.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from sluice.gateway.race.actions import Response
from sluice.gateway.race.records import RaceRules
from tests.simulation.options import Options
from tests.simulation.prices import Prices, Who
from tests.simulation.world import MILLISECOND_NS, SECOND_NS

SLACK_NS = 50 * MILLISECOND_NS
"""How late a node that is not busy may notice a time limit."""
HALF_CLOSE_NS = SECOND_NS // 2
"""Time in which the race hears of a closed sending side."""


@dataclass(slots=True)
class Block:
    number: int
    attempt_id: int
    winner: int
    winner_name: str
    timed_from_ns: int
    """Since when its time counts while everybody waits for it, plus the time that the node took."""
    address: str = ""
    begun_ns: int = 0
    """When its winner began it, or was read again."""
    runs_from_ns: int = 0
    used_ns: int = 0
    """Time that has run, while nobody waits for it."""
    order: int = 0
    items: list[bytes] = field(default_factory=list)
    size_bytes: int = 0
    complete: bool = False
    is_of_peer: bool = False
    """A peer sends it, and has time as long as it sends."""
    falls: bool = False


@dataclass(slots=True)
class Stream:
    publisher_id: int
    name: str
    since_ns: int
    hears_from: int
    context: object
    state: str = "fresh"
    """fresh, sending, proven, dropping, between, finished, ended."""
    address: str = ""
    is_peer: bool = False
    offered_max: int = -1
    """The highest block that it has offered without a BehindPublisher."""
    let_pass: bool = False
    closed: bool = False
    is_paused: bool = False
    delayed_from_ns: int | None = None
    """Since when the node has kept a message of it."""
    block: Block | None = None
    last_ended: int | None = None
    next_offer: int | None = None
    sent_back_to: int | None = None
    """The block that it was asked for, while it has offered only later ones since."""
    proof_ns: int = 0
    stray_count: int = 0
    """Messages that belong to no block, since its last header."""
    acknowledged: int | None = None
    skipped_old: bool = False
    """It skipped a block from before its connection."""
    close_by_ns: int | None = None
    half_closed_ns: int | None = None
    """When the service read the end of its messages."""
    said: deque[Response] = field(default_factory=deque)
    """Answers that the service has not written yet."""

    def offers(self, number: int, next_number: int) -> None:
        """Note a header, unless it was on its way when the publisher was sent back."""
        if self.sent_back_to is not None and next_number <= self.sent_back_to < number:
            return
        self.next_offer, self.sent_back_to = number + 1, None

    @property
    def who(self) -> Who:
        return self.name, self.address

    @property
    def is_ready(self) -> bool:
        return self.state not in ("finished", "ended")


class Picture:
    """Streams, and blocks above L."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.streams: dict[int, Stream] = {}
        self.blocks: dict[int, Block] = {}
        self.blamed: dict[int, set[str]] = {}
        """Who failed each block."""
        self.last: int | None = None
        self.first: int | None = 0
        self.shutting_down = self.retired = self.idle = False
        self.disk_failed = False
        self.keeps_time = True
        self._rules = RaceRules()
        self.slack_ns = SLACK_NS
        """How late the node may notice a time limit now."""
        self.prices = Prices(self._rules.block_timeout_ns, options.forgiving_blocks)
        self.opened_ns: dict[int, int] = {}
        """When each open block failed last."""
        self.lowest_since_ns = self.skipped_ns = 0
        """When L was committed; when the first who stands back was told to skip L + 1, 0: none was."""
        self.pardoned: int | None = None
        """The block that anybody may send, because those who went first did not."""
        self.ranked_ns = 0
        """The time by which backoff is judged."""
        self._timed: Block | None = None
        self._order_count = 0
        self._pardonable_ns = 0
        """When a pardon was last impossible."""
        self._lowest = (0, 0)
        """The lowest attempt that is being sent, and since when."""

    def add_time(self, stream: Stream, took_ns: Callable[[int], int]) -> None:
        stream.since_ns += took_ns(stream.since_ns)
        stream.proof_ns += took_ns(stream.proof_ns)

    def run_time(self, now_ns: int) -> None:
        block, before = self.lowest_in_flight(), self._timed
        if block is before:
            return
        if before is not None and self.blocks.get(before.number) is before and not before.complete:
            kept_ns = self.streams[before.winner].delayed_from_ns
            before.used_ns = max(0, (now_ns if kept_ns is None else kept_ns) - before.timed_from_ns)
        if block is not None:
            block.runs_from_ns, block.timed_from_ns = now_ns, now_ns - block.used_ns
        self._timed = block

    def begin_time(self, block: Block, now_ns: int) -> None:
        block.begun_ns = block.runs_from_ns = block.timed_from_ns = now_ns
        block.used_ns, block.order = 0, self.next_order()

    def pay(self, block: Block, now_ns: int) -> list[tuple[str, str, int, int]]:
        """Have a publisher pay for a failed block; other blocks of those that back off may be overdue."""
        told = self.prices.fail((block.winner_name, block.address), now_ns)
        for other in self.blocks.values():
            if other.complete or other.is_of_peer or other is self._timed or self.is_paused(other):
                continue
            if self.prices.distance((other.winner_name, other.address), now_ns):
                other.used_ns = max(other.used_ns, now_ns - other.begun_ns)
                other.falls = other.used_ns >= self._rules.block_timeout_ns
        return told

    def next_order(self) -> int:
        self._order_count += 1
        return self._order_count

    def held_in_all(self) -> int:
        return sum(memory_bytes(block.items) for block in self.blocks.values())

    def held_by_name(self, *, but: int = -1) -> Counter[str]:
        """Count the memory of each publisher's blocks, without block `but`; peers have no limit."""
        held: Counter[str] = Counter()
        for block in self.blocks.values():
            if block.number != but and not block.is_of_peer:
                held[block.winner_name] += memory_bytes(block.items)
        return held

    @property
    def next_number(self) -> int:
        return self.last + 1 if self.last is not None else self.first or 0

    @property
    def is_closing(self) -> bool:
        return self.shutting_down or (self.retired and not self.idle)

    @property
    def reported_last(self) -> int | None:
        """L as publishers hear it; None for an empty node."""
        return self.last

    @property
    def next_unstreamed(self) -> int:
        return max([*self.blocks, self.next_number - 1]) + 1

    @property
    def is_unsettled(self) -> bool:
        """Whether the node may still begin with any block: none is committed or was asked for."""
        return self.options.first_block == "any" and self.last is None

    def is_unbegun(self) -> bool:
        """Whether the first offer becomes the beginning."""
        return self.options.first_block == "any" and self.last is None and not self.blocks

    def may_send(self, stream: Stream, number: int) -> bool:
        """Rule 1: neither a publisher that failed the block, nor one that stands back, while another may."""
        behind = self.stands_behind(stream, number)
        return not any(
            self.stands_behind(other, number) < behind
            for other in self.streams.values()
            if other.is_ready and not other.let_pass
        )

    def stands_behind(self, stream: Stream, number: int) -> tuple[int, bool, int]:
        """Return how far a publisher stands back: for failures, for this block, for its open blocks."""
        failed_it = stream.name in self.blamed.get(number, set())
        if stream.is_peer or number == self.pardoned or self.is_unbegun():
            return 0, failed_it, 0
        share = self.used_share(stream) if number > self.next_number else 0
        return self.prices.distance(stream.who, self.ranked_ns), failed_it, share

    def used_share(self, stream: Stream) -> int:
        """Return which share of open blocks is used up: 3 its own, 2 its address's, 1 all newcomers'."""
        held = [block for block in self.blocks.values() if not (block.complete or block.is_of_peer)]
        own = [block for block in held if (block.winner_name, block.address) == stream.who]
        if any(map(self._is_quiet, own)):
            return 3
        if self.prices.has_delivered(stream.who):
            return 0
        of_newcomers = [
            block for block in held if not self.prices.has_delivered((block.winner_name, block.address))
        ]
        most_here, most = (1, 1) if self.prices.newcomers_failed(self.ranked_ns) else (4, 8)
        if any(len(block.items) <= 1 for block in own):
            return 3
        if sum(block.address == stream.address for block in of_newcomers) >= most_here:
            return 2
        return 1 if len(of_newcomers) >= most else 0

    def _is_quiet(self, block: Block) -> bool:
        winner = self.streams[block.winner]
        if winner.is_paused or winner.delayed_from_ns is not None or not self._rules.block_timeout_ns:
            return False
        return self.ranked_ns - winner.proof_ns >= self._rules.block_timeout_ns // 6

    def gives_way(self, block: Block, stream: Stream) -> bool:
        """Return whether a newcomer's block, of which only the header came, goes to a publisher with
        delivered blocks."""
        if block.complete or len(block.items) > 1 or block.is_of_peer or stream.is_peer or self.is_unsettled:
            return False
        is_better = self.prices.has_delivered(stream.who)
        is_better = is_better and not self.prices.has_delivered((block.winner_name, block.address))
        is_better = is_better and self.prices.newcomers_failed(self.ranked_ns)
        return is_better and self.stands_behind(stream, block.number) == (0, False, 0)

    def is_alone(self, stream: Stream) -> bool:
        """Whether nobody else could bring a block."""
        return not any(other.is_ready for other in self.streams.values() if other is not stream)

    def late_at_ns(self, block: Block) -> int | None:
        """Rule 7: return when the winner of a block has had its time; None: never.

        A publisher that is alone has time as long as it sends.
        """
        timeout_ns, idle_ns = self._rules.block_timeout_ns, self._rules.idle_timeout_ns
        winner = self.streams[block.winner]
        if not timeout_ns or block is not self._timed:
            return None
        if block.is_of_peer or not self.is_alone(winner):
            return block.timed_from_ns + timeout_ns
        return max(block.timed_from_ns + timeout_ns, winner.proof_ns + idle_ns) if idle_ns else None

    def lowest_in_flight(self) -> Block | None:
        number = self.next_number
        while (block := self.blocks.get(number)) is not None:
            if not block.complete:
                return block
            number += 1
        return None

    def is_paused(self, block: Block) -> bool:
        winner = self.streams.get(block.winner)
        return winner is not None and winner.is_paused

    def is_delayed(self, block: Block) -> bool:
        winner = self.streams.get(block.winner)
        return winner is not None and winner.delayed_from_ns is not None

    def stalled(self) -> Block | None:
        """Return the block that all wait for, if one begun later is complete far ahead of it."""
        slow, limit = self.lowest_in_flight(), self._rules.stall_blocks
        if slow is None or not limit or self.is_paused(slow):
            return None
        for other in self.blocks.values():
            is_ahead = other.complete and other.number >= slow.number + limit
            is_by_another = other.winner_name != slow.winner_name
            if is_ahead and is_by_another and other.order > slow.order:  # resumed reading starts it anew
                return slow
        return None

    def expected_answer(self, stream: Stream, number: int) -> str:
        """Rule 1."""
        if self.is_unbegun():
            return "accept" if self.may_send(stream, number) else "skip"
        if number < self.next_number and (self.last is None or number < (self.first or 0)):
            return "below first"
        if number < self.next_number:
            is_close = number >= self.next_number - self._rules.duplicate_skip_window
            return "skip" if is_close else "duplicate"
        if number in self.blocks:
            return "accept" if self.gives_way(self.blocks[number], stream) else "skip"
        unstreamed = self.next_unstreamed
        while stream.name in self.blamed.get(unstreamed, set()) and not self.may_send(stream, unstreamed):
            unstreamed += 1  # it goes on after what it failed
        if number > unstreamed:
            goes_on = number <= stream.offered_max + 1 and not self.may_send(stream, unstreamed)
            return "skip" if goes_on else "behind"
        return "accept" if self.may_send(stream, number) else "skip"

    # --- what must hold between any two events -------------------------------------------------------------

    def pardon_at_ns(self) -> int | None:
        """Return when anybody may bring block L + 1; None: that is no matter of time."""
        number, timeout_ns = self.next_number, self._rules.block_timeout_ns
        if not timeout_ns or number in self.blocks or number == self.pardoned:
            return None
        ready = [stream for stream in self.streams.values() if stream.is_ready]
        is_passed = any(stream.next_offer is not None and stream.next_offer > number for stream in ready)
        if not is_passed and not (number in self.opened_ns and self.blamed.get(number)):
            return None
        if number not in self.opened_ns and self.is_unsettled:
            return None
        return max(self.opened_ns.get(number, self.skipped_ns), self.lowest_since_ns) + timeout_ns

    def pardon(self, now_ns: int) -> None:
        """Apply that time."""
        number, at_ns = self.next_number, self.pardon_at_ns()
        if at_ns is None or now_ns < at_ns:
            return
        ready = [stream for stream in self.streams.values() if stream.is_ready]
        for stream in [stream for stream in ready if self.may_send(stream, number)]:
            stream.let_pass = True
        self.pardoned = number
        self.blamed.pop(number, None)

    def faults(self, now_ns: int) -> Iterator[tuple[str, str]]:
        """Yield the rules that are broken now, and by what."""
        number = self.next_number
        for stream in self.streams.values():
            yield from self._stream_faults(stream, now_ns)
        slow = self.lowest_in_flight()
        due_ns = None if not self.keeps_time or slow is None or slow.is_of_peer else self.late_at_ns(slow)
        if slow is not None and due_ns and not (self.is_paused(slow) or self.is_delayed(slow)):
            if self._lowest[0] != slow.attempt_id:
                self._lowest = slow.attempt_id, now_ns  # it may be late already, and is noticed from now on
            if now_ns - max(due_ns, self._lowest[1]) > self.slack_ns:
                yield "Rule 7: block timeout", f"block {slow.number} of {slow.winner_name}"
        pardon_at_ns = self.pardon_at_ns() if self.keeps_time else None
        if pardon_at_ns is not None and now_ns > max(pardon_at_ns, self._pardonable_ns) + self.slack_ns:
            yield "After its time anybody may bring block L + 1", f"{number} since {pardon_at_ns}"
        if pardon_at_ns is None:
            self._pardonable_ns = now_ns  # it may be due at once, and is noticed from now on
        for block in self.blocks.values():
            if block.falls and not block.complete:
                yield "What was held open by who backs off falls", f"{block.number} of {block.winner_name}"
        if (stalled := self.stalled()) is not None:
            yield "Rule 7: a stalled winner is timed out", f"block {stalled.number}"
        if number not in self.blocks and not (self.is_closing or self.disk_failed or self.is_unbegun()):
            yield from self._open_faults(number)

    def _stream_faults(self, stream: Stream, now_ns: int) -> Iterator[tuple[str, str]]:
        hears = stream.state != "ended" and self.last is not None and self.last >= stream.hears_from
        if hears and stream.acknowledged != self.last:
            got = f"{stream.name} heard {stream.acknowledged}, L is {self.last}"
            yield "Rule 5: every connected publisher hears of every commit", got
        if not self.keeps_time:
            return
        is_heard = not stream.is_paused and stream.delayed_from_ns is None
        if stream.close_by_ns is not None and now_ns > stream.close_by_ns + self.slack_ns:
            yield "Rule 8: the stream is ended after EndStream", stream.name
        idle_ns = self._rules.idle_timeout_ns
        waits = stream.state == "fresh" and bool(idle_ns) and is_heard
        if waits and now_ns > stream.since_ns + idle_ns + self.slack_ns:
            yield "Rule 7: idle timeout", f"{stream.name} since {stream.since_ns}"

        silent_ns = now_ns - stream.proof_ns - self._rules.proof_idle_ns
        if stream.state == "proven" and is_heard and silent_ns > self.slack_ns:
            yield "Rule 4: a proof and silence complete a block", f"{stream.name} since {stream.proof_ns}"
        eof_ns = stream.half_closed_ns
        if eof_ns is not None and stream.is_ready and now_ns > eof_ns + HALF_CLOSE_NS + self.slack_ns:
            yield "Rule 8: a closed sending side is taken as a goodbye", f"{stream.name} since {eof_ns}"

    def _open_faults(self, number: int) -> Iterator[tuple[str, str]]:
        """Block L + 1 is open: somebody may send it, and everybody who may comes to it."""
        ready = [stream for stream in self.streams.values() if stream.is_ready]
        able = [stream for stream in ready if self.may_send(stream, number)]
        if ready and not able:
            yield "Never a block that nobody may send", f"block {number}"
        for stream in able:
            if stream.next_offer is not None and stream.next_offer > number:
                got = f"block {number}, {stream.name} comes to {stream.next_offer}"
                yield "Rule 6: who has passed an open block L + 1 is asked to resend it", got


def memory_bytes(items: Sequence[bytes]) -> int:
    """Return the memory of items in flight: their bytes, and Python's overhead for each."""
    return sum(map(len, items)) + 64 * len(items)
