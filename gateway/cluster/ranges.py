"""Ranges of missing blocks from several peers at once: who brings which, and how much waits in memory.

Pure. The shell (`cluster.peer_ranges`) reports events and obeys:

    joined, left        a peer has answered with the blocks that it has; it brings none any more
    next_for            the next range of a peer; a peer brings one range at a time
    may_hold            whether the node may read a further message of a range now
    came, taken         a message has come and waits for its turn; the race has taken it
    fetched             all of a range has come: its peer may have the next one
    passed              the race has taken all of a range: the turn of the next one
    failed              a range will not come whole: what would follow it is of no use

The ranges follow one another without gaps, each begins behind the one before, and the race takes them in that
order. A range is what its peer brings in `seconds`, so that a slow peer has a short one and keeps nobody
waiting. The plan asks for no block twice: if a range fails, the shell gives the plan up, and drops the blocks
that wait behind it. They are few.

Invariants
  - Bytes that wait are at most `held_bytes_max` and one message for each peer. The range whose turn it is may
    always read its next message, so that memory stops nobody for ever.
Source: gateway/README.md, "From a peer".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from sluice.gateway.cluster.catch_up import Range

__all__ = ["RANGE_RULES", "RangePlan", "RangeRules", "count_of"]


@dataclass(frozen=True, slots=True)
class RangeRules:
    """The limits of ranges."""

    blocks_min: int = 64
    """A node that lacks fewer blocks, and fewer bytes than `held_bytes_max`, takes them from one peer."""
    peers_max: int = 4
    """Peers that bring blocks at the same time."""
    seconds: float = 2.0
    """The time in which a peer brings a range."""
    late_factor: float = 3.0
    """A peer is late when its range takes this many times as long, from its turn on."""
    pace_factor: float = 4.0
    """The most by which the pace of a peer is taken to have changed from one range to the next."""
    range_bytes_max: int = 8 * 1024 * 1024
    """The bytes of one range, as far as earlier blocks tell."""
    held_bytes_max: int = 64 * 1024 * 1024
    """The bytes that wait for their turn, of all peers. They do not count as in flight."""

    def is_worth_while(self, missing_count: int, blocks_per_second: float, block_bytes: float) -> bool:
        """Return whether several peers are to bring the missing blocks, by what one of them has shown."""
        if missing_count < self.blocks_min and missing_count * block_bytes < self.held_bytes_max:
            return False
        return missing_count >= 2 * self.seconds * blocks_per_second


RANGE_RULES: Final = RangeRules()


@dataclass(slots=True)
class _Peer:
    first: int
    last: int
    blocks_per_second: float
    is_busy: bool = False


@dataclass(slots=True)
class _Given:
    """A range that the race has not taken whole."""

    expected_bytes: int
    held_bytes: int = 0


@dataclass(slots=True)
class RangePlan:
    """The blocks from `next_number` to `end_number`, dealt out to peers.

    Args:
        next_number: the first block that nobody was asked for.
        blocks_per_second: the pace of the first peer that was asked. The others count as slower until they
            have shown their pace, so that none is late with its first range for that.
        block_bytes: the bytes of one block, as far as earlier blocks tell.
        asked: the peers that have not answered yet.
    """

    next_number: int
    end_number: int
    blocks_per_second: float
    block_bytes: float
    asked: list[str]
    rules: RangeRules = RANGE_RULES
    held_bytes: int = field(default=0, init=False)
    _known: str = field(init=False)
    _peers: dict[str, _Peer] = field(default_factory=dict, init=False)
    _given: dict[int, _Given] = field(default_factory=dict, init=False)
    """By the first block, in order."""

    def __post_init__(self) -> None:
        self._known = self.asked[0]

    @property
    def addresses(self) -> list[str]:
        """The peers that bring blocks."""
        return sorted(self._peers)

    def joined(self, address: str, first: int, last: int) -> None:
        """Note the blocks that a peer has."""
        self.asked.remove(address)
        factor = 1.0 if address == self._known else self.rules.pace_factor
        self._peers[address] = _Peer(first, last, self.blocks_per_second / factor)

    def left(self, address: str) -> None:
        """Note that a peer brings nothing any more, whether it has joined or not."""
        if self._peers.pop(address, None) is None:
            self.asked.remove(address)

    def last_beside(self, address: str) -> int | None:
        """Return the last block of the other peers; None: there is no other."""
        return max((peer.last for other, peer in self._peers.items() if other != address), default=None)

    def is_over_for(self, address: str) -> bool:
        """Return whether a peer will be given no further range.

        A single peer sends everything in one call, so no range is worth while without a second one.
        """
        peer = self._peers[address]
        able = sum(other.first <= self.next_number <= other.last for other in self._peers.values())
        has_helper = able > 1 or (able == 1 and bool(self.asked))
        return self.next_number > min(self.end_number, peer.last) or not has_helper

    def next_for(self, address: str) -> Range | None:
        """Return the next range for a peer; None: it has to wait, or has no further one."""
        peer = self._peers[address]
        if peer.is_busy or peer.first > self.next_number or self.is_over_for(address):
            return None
        count = self._count_for(peer)
        if count < 1:
            return None
        start = self.next_number
        end = min(start + count - 1, self.end_number, peer.last)
        self._given[start] = _Given(int((end - start + 1) * self.block_bytes))
        self.next_number, peer.is_busy = end + 1, True
        return Range(start, end)

    def _count_for(self, peer: _Peer) -> int:
        """Return how many blocks fit; a peer brings at least one where nothing else is under way."""
        rules = self.rules
        promised_bytes = sum(max(given.expected_bytes, given.held_bytes) for given in self._given.values())
        room_bytes = min(rules.range_bytes_max, rules.held_bytes_max - promised_bytes)
        fitting = int(room_bytes / max(1.0, self.block_bytes))
        wanted = max(1, int(peer.blocks_per_second * rules.seconds))
        return min(wanted, fitting if self._given else max(1, fitting))

    def patience_seconds(self, address: str, blocks: Range) -> float:
        """Return how long the race waits for a range before its peer is late."""
        expected_seconds = count_of(blocks) / self._peers[address].blocks_per_second
        return self.rules.late_factor * max(self.rules.seconds, expected_seconds)

    @property
    def is_full(self) -> bool:
        """True if what waits takes all the memory that it may."""
        return self.held_bytes >= self.rules.held_bytes_max

    def may_hold(self, start: int) -> bool:
        """Return whether the node may read a further message of the range that begins with `start`."""
        if not self.is_full:
            return True
        return start == next(iter(self._given)) and not self._given[start].held_bytes

    def came(self, start: int, size_bytes: int) -> None:
        """Note a message that waits for its turn."""
        self.held_bytes += size_bytes
        self._given[start].held_bytes += size_bytes

    def taken(self, start: int, size_bytes: int) -> None:
        """Note a message that waits no more."""
        self.held_bytes -= size_bytes
        self._given[start].held_bytes -= size_bytes

    def fetched(self, address: str, blocks: Range, size_bytes: int, seconds: float) -> None:
        """Note that all of a range has come.

        Args:
            seconds: the time that it took, without pauses of the node.
        """
        count, peer = count_of(blocks), self._peers[address]
        before, factor = peer.blocks_per_second, self.rules.pace_factor
        peer.blocks_per_second = max(before / factor, min(before * factor, count / max(seconds, 1e-3)))
        peer.is_busy = False
        self.block_bytes = size_bytes / count
        if (given := self._given.get(blocks.start_number)) is not None:
            given.expected_bytes = 0  # what it holds is known now

    def failed(self) -> None:
        """Give out no further range."""
        self.end_number = self.next_number - 1

    def passed(self, start: int) -> None:
        """Note that the race has taken all of a range."""
        self.held_bytes -= self._given.pop(start).held_bytes


def count_of(blocks: Range) -> int:
    """Return the number of blocks of a range that has an end."""
    assert blocks.end_number is not None
    return blocks.end_number - blocks.start_number + 1
