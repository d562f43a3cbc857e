"""Catching up: which peer to try next, what its answers mean, and how long to back off.

Pure. The shell (`cluster.peer_follower`) calls `step` and obeys:

    Try(address)      ask the peer for its status, pass it to `told`, subscribe to the `Range` that `told`
                      returns, and report the end of the attempt with `ended`
    Pause(until_ns)   try nobody before that time; None: not before `aim`
    DONE              the target is reached

A node either
  - *catches up* to the highest block that publishers have told of (`aim`). An empty node first asks its peers
    for their last blocks.
  - or *follows* the first peer of the list that works, for ever. It leaves a peer that has nothing more for
    one that has: two standbys that follow each other would wait for ever. It leaves a standby for an active
    peer (`active_beside`), so that a hung standby keeps no other from its blocks. If every peer sends invalid
    data, that is a `problem` at once: this node has another chain than they.

A target is only a claim. The node ignores one that is implausibly far ahead, and gives up one that no peer
confirms: a publisher that is wrong must not keep a node out of service. If it was right, the node finds out
later from its peers or the next publisher.

Source: gateway/README.md, "From a peer"; docs/subscribing.md, "Nodes that read from each other";
docs/spec/wire.md section 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Literal

from sluice.gateway.backoff import backoff
from sluice.gateway.cluster.roles import Phase

__all__ = [
    "DONE",
    "FOLLOWED",
    "OUTCOMES",
    "AttemptOutcome",
    "CatchUp",
    "CatchUpRules",
    "Pause",
    "PeerBackoff",
    "Range",
    "Step",
    "Told",
    "Try",
]

TOLD_AHEAD_BLOCKS_MAX: Final = 10_000_000
"""Half a year of blocks."""


@dataclass(frozen=True, slots=True)
class CatchUpRules:
    """The settings of catching up. Times are nanoseconds."""

    stalled_attempts_max: int = 5
    backoff_ns: int = 1_000_000_000
    """The first backoff."""
    backoff_max_ns: int = 60_000_000_000
    unconfirmed_ns: int = 60_000_000_000
    """The time that a node pursues a target that no peer confirms; 0: for ever."""
    ahead_blocks_max: int = TOLD_AHEAD_BLOCKS_MAX


class PeerBackoff(Enum):
    """The backoff from a peer."""

    NONE = "none"
    SHORT = "the first backoff, each time"
    RISING = "doubled with each failure in a row"
    RISING_A_LITTLE = "the same, up to eight times the first"
    LONGEST = "the longest at once"


class AttemptOutcome(Enum):
    """The outcome of an attempt."""

    COMPLETE = "everything that was asked for has come"
    RACED = "a publisher was faster: begin again where the node is now"
    NOTHING = "the peer does not have the next block"
    UNREACHABLE = "the peer does not answer"
    CLOSED = "the peer ended the stream in order, and nothing was missing"
    BROKE_OFF = "the peer ended the stream too early"
    STALLED = "the peer sends nothing, or too little, though it has more"
    OUTRUN = "the peer has nothing more, though another one has"
    STANDBY = "the peer is a standby, and another one is active"
    SHARED = "the node mostly waits for the peer, and others may bring some of the blocks"
    LIED = "the peer sent what cannot be"
    NODE = "this node cannot take blocks now"
    ITSELF = "the peer is this node itself"


OUTCOMES: Final[dict[AttemptOutcome, PeerBackoff]] = {
    AttemptOutcome.COMPLETE: PeerBackoff.NONE,
    AttemptOutcome.RACED: PeerBackoff.NONE,
    AttemptOutcome.NOTHING: PeerBackoff.SHORT,
    AttemptOutcome.UNREACHABLE: PeerBackoff.RISING,
    AttemptOutcome.CLOSED: PeerBackoff.SHORT,
    AttemptOutcome.BROKE_OFF: PeerBackoff.RISING,
    AttemptOutcome.STALLED: PeerBackoff.RISING,
    AttemptOutcome.OUTRUN: PeerBackoff.SHORT,
    AttemptOutcome.STANDBY: PeerBackoff.NONE,
    AttemptOutcome.SHARED: PeerBackoff.NONE,
    AttemptOutcome.LIED: PeerBackoff.LONGEST,
    AttemptOutcome.NODE: PeerBackoff.RISING_A_LITTLE,
    AttemptOutcome.ITSELF: PeerBackoff.LONGEST,
}
"""The backoff after each outcome. A failed attempt that brought blocks counts as a first failure."""


class Told(Enum):
    """The answer of a peer in an attempt."""

    NOTHING = "it has not answered"
    LEVEL = "it has nothing that the node lacks"
    MORE = "it has blocks that the node lacks"


FOLLOWED: Final[dict[tuple[AttemptOutcome, Told], PeerBackoff]] = {
    (AttemptOutcome.UNREACHABLE, Told.NOTHING): PeerBackoff.RISING_A_LITTLE,
    (AttemptOutcome.UNREACHABLE, Told.LEVEL): PeerBackoff.RISING_A_LITTLE,
    (AttemptOutcome.BROKE_OFF, Told.LEVEL): PeerBackoff.RISING_A_LITTLE,
}
"""Exceptions to `OUTCOMES` for a peer that is followed live: acknowledgements may wait for the follower, and
nothing wakes it when the peer recovers. They exclude a peer that told of blocks and did not send them."""

_LITTLE_MAX: Final = 3
"""The doublings of `PeerBackoff.RISING_A_LITTLE`: a peer that recovers must not be left alone for long."""

_NO_ATTEMPT: Final = frozenset(
    {
        AttemptOutcome.RACED,
        AttemptOutcome.ITSELF,
        AttemptOutcome.STANDBY,
        AttemptOutcome.SHARED,
        AttemptOutcome.CLOSED,
    }
)
"""Outcomes that do not count as attempts without a new block."""

_SHUNNED: Final = frozenset({AttemptOutcome.STALLED, AttemptOutcome.LIED})
"""After these outcomes the node leaves no other peer for this one for a while, even if it says it is
active."""


@dataclass(frozen=True, slots=True)
class Try:
    """Try this peer."""

    address: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Try no peer for now."""

    until_ns: int | None
    """The time of the next call of `step`; None: after `aim`."""


@dataclass(frozen=True, slots=True)
class Range:
    """The blocks to subscribe to; `end_number` None: without end."""

    start_number: int
    end_number: int | None


class _Done(Enum):
    DONE = "done"


DONE: Final = _Done.DONE

Step = Try | Pause | Literal[_Done.DONE]


@dataclass(slots=True)
class _Peer:
    address: str
    failures_count: int = 0
    """Failures in a row that `PeerBackoff.RISING` counts, without a block between."""
    lapses_count: int = 0
    """Failures in a row that `PeerBackoff.RISING_A_LITTLE` counts; reaching the peer's last block ends them
    too."""
    told: Told = Told.NOTHING
    backs_off_until_ns: int = 0
    last_number: int | None = None
    """The last block that it reported when it was tried."""
    began_number: int | None = None
    """The block needed when it subscribed."""
    has_answered: bool = False
    role: str = ""
    """Empty: no answer, or not a Sluice node."""
    first_seen: int | None = None
    last_seen: int | None = None
    """The last block in that answer; `last_number` is known only of peers that were tried."""
    shunned_until_ns: int = 0
    is_itself: bool = False
    lie: str = ""
    """Its last invalid message, in words."""
    lied_at_number: int | None = None
    """The block that the node needed then."""
    stalled_at_number: int | None = None
    """The block that the node needed when the peer last stalled."""
    stalled_count: int = 0
    """The number of times in a row that it stalled at that block."""


@dataclass(slots=True)
class CatchUp:
    """One aim, and the peers that help to reach it.

    Args:
        live: follow for ever; False: catch up to `target`.
        curious: ask every peer for its last block once, and aim at the highest.
    """

    addresses: Sequence[str]
    rules: CatchUpRules = field(default_factory=CatchUpRules)
    live: bool = False
    curious: bool = False
    target: int | None = field(default=None, init=False)
    stalled_count: int = field(default=0, init=False)
    _peers: list[_Peer] = field(default_factory=list, init=False)
    _first_at: int = field(default=0, init=False)
    _next_number: int = field(default=-1, init=False)
    _reason: str = field(default="", init=False)
    _stalled_since_ns: int = field(default=0, init=False)
    _unconfirmed_since_ns: int | None = field(default=None, init=False)
    """Since when blocks arrive by another way while no peer has the next one."""
    _doubted_number: int = field(default=-1, init=False)
    """The block that the node needed when it gave a target up."""
    _given_up: int | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._peers = [_Peer(address) for address in dict.fromkeys(self.addresses)]

    @property
    def problem(self) -> str | None:
        """The reason why the node makes no progress, in words; None: it does."""
        if self.live and self._peers and all(peer.is_itself for peer in self._peers):
            addresses = ", ".join(peer.address for peer in self._peers)
            return f"the node has nobody to follow: {addresses} leads to the node itself"
        if self.live and (lies := self._lies()):
            return f"the node cannot follow: {'; '.join(lies)}"
        if self._doubted_number == self._next_number and self._is_unconfirmed():
            return None
        if self.stalled_count < self.rules.stalled_attempts_max or (self.target is None and not self.live):
            return None
        aim = f"to block {self.target}" if self.distance(self._next_number) else "to its peers"
        return (
            f"the node does not come closer {aim}: {self.stalled_count} attempts without a further block, "
            f"the last one with {self._reason}"
        )

    def _lies(self) -> list[str]:
        """This node's chain is wrong then, or all peers are: further attempts would show nothing new."""
        others = [peer for peer in self._peers if not peer.is_itself]
        if any(peer.lied_at_number != self._next_number for peer in others):
            return []
        return [f"{peer.address} sent what cannot be: {peer.lie}" for peer in others]

    def distance(self, next_number: int) -> int:
        """Return the number of blocks that the node knows of and lacks."""
        return 0 if self.target is None else max(0, self.target - next_number + 1)

    def _is_unconfirmed(self) -> bool:
        if self.live or self.target is None:
            return False
        lasts = (peer.last_number for peer in self._peers)
        return all(last is None or last < self._next_number for last in lasts)

    def _doubt_at_ns(self) -> int | None:
        if not self.rules.unconfirmed_ns or not self._is_unconfirmed():
            return None
        since_ns = [] if self._unconfirmed_since_ns is None else [self._unconfirmed_since_ns]
        if self.stalled_count >= self.rules.stalled_attempts_max:
            since_ns.append(self._stalled_since_ns)
        return min(since_ns) + self.rules.unconfirmed_ns if since_ns else None

    def _note_unconfirmed(self, *, comes_forward: bool, now_ns: int) -> None:
        """Note since when blocks arrive while no peer confirms the target."""
        if not self._is_unconfirmed():
            self._unconfirmed_since_ns = None
        elif comes_forward and self._unconfirmed_since_ns is None:
            self._unconfirmed_since_ns = now_ns

    def take_given_up(self) -> int | None:
        """Return the target given up since the last call."""
        given_up, self._given_up = self._given_up, None
        return given_up

    def came_to(self, next_number: int) -> None:
        """Note the block that the node needs next; a later one than before is progress."""
        if next_number > self._next_number >= 0:
            self.stalled_count, self._next_number = 0, next_number

    def others(self, address: str, now_ns: int) -> list[str]:
        """Return the addresses of the other peers that do not back off now."""
        return [
            peer.address
            for peer in self._peers
            if peer.address != address and now_ns >= peer.backs_off_until_ns
        ]

    def helpers(self, address: str, next_number: int, now_ns: int) -> list[str]:
        """Return the other peers that may bring some of the blocks from `next_number` on.

        A peer that has failed does not: it would fail again and again beside a peer that works. It helps once
        it has brought blocks alone.
        """
        return [
            peer.address
            for peer in self._peers
            if peer.address in self.others(address, now_ns)
            and not (peer.is_itself or peer.lie or peer.failures_count or peer.lapses_count)
            and not self.is_shunned(peer.address, now_ns)
            and (
                not peer.has_answered
                or (peer.last_seen is not None and (peer.first_seen or 0) <= next_number <= peer.last_seen)
            )
        ]

    def stalled_at(self, address: str, next_number: int) -> int:
        """Return how often in a row a peer stalled at the block that is needed now."""
        peer = self._peer(address)
        return peer.stalled_count if peer.stalled_at_number == next_number else 0

    def is_shunned(self, address: str, now_ns: int) -> bool:
        """Return whether a peer stalled or lied lately, so that no other is left for it."""
        return now_ns < self._peer(address).shunned_until_ns

    def noted(self, address: str, first: int | None, last: int | None, role: str) -> None:
        """Note a peer's blocks and role as it reported them; an empty `role`: it did not answer."""
        peer = self._peer(address)
        peer.first_seen, peer.last_seen, peer.role = first, last, role

    def is_standby(self, address: str) -> bool:
        """Return whether the peer reports that it is a standby."""
        return self._peer(address).role == Phase.STANDBY.value

    def active_beside(self, address: str, next_number: int, now_ns: int) -> str | None:
        """Return an active peer that has as many blocks as this one, and `next_number` or earlier ones."""
        followed = self._peer(address)
        last = -1 if followed.last_seen is None else followed.last_seen
        for peer in self._peers:
            may_be_tried = now_ns >= peer.backs_off_until_ns and not self.is_shunned(peer.address, now_ns)
            if peer is followed or not self._is_preferred(peer) or not may_be_tried:
                continue
            if (
                peer.last_seen is not None
                and peer.last_seen >= last
                and (peer.first_seen or 0) <= next_number
            ):
                return peer.address
        return None

    @staticmethod
    def _is_preferred(peer: _Peer) -> bool:
        """It is active, and has brought a block since it lied."""
        return peer.role == Phase.ACTIVE.value and not peer.lie and not peer.is_itself

    def _in_order(self) -> list[_Peer]:
        """Active peers come first, of these the longest chain."""
        return sorted(
            self._peers,
            key=lambda peer: (0, -(peer.last_seen or 0)) if self._is_preferred(peer) else (1, 0),
        )

    def is_plausible(self, number: int, next_number: int) -> bool:
        """Return whether block `number` may exist: it is not too far above all known blocks."""
        known = [peer.last_number for peer in self._peers if peer.last_number is not None]
        return number <= max([next_number, *known]) + self.rules.ahead_blocks_max

    def aim(self, number: int) -> None:
        """Aim at block `number`, if that is higher than the target."""
        if not self.distance(self._next_number):
            self._unconfirmed_since_ns = None  # the earlier target is reached
        if self.target is None or number > self.target:
            self.target = number

    def step(self, next_number: int, now_ns: int) -> Step:
        """Return the next step."""
        comes_forward = next_number > self._next_number >= 0
        if next_number != self._next_number:  # a publisher may have brought it
            if self._next_number >= 0:
                self.stalled_count, self.curious = 0, False
            self._next_number = next_number
        self._note_unconfirmed(comes_forward=comes_forward, now_ns=now_ns)
        doubt_at_ns = self._doubt_at_ns()
        if doubt_at_ns is not None and now_ns >= doubt_at_ns:
            self._given_up, self.target, self._doubted_number = self.target, None, next_number
            self._unconfirmed_since_ns = None
        if not self.live and not self.curious and not self.distance(next_number):
            self.stalled_count = 0
            return DONE
        # A follower returns to the peer it prefers; a node that catches up takes peers in turn.
        candidates = (
            self._in_order()
            if self.live
            else [*self._peers[self._first_at :], *self._peers[: self._first_at]]
        )
        if not self.live and not self.distance(next_number):  # curious
            candidates = [peer for peer in candidates if not peer.has_answered]
            if not candidates:
                self.curious = False
                return DONE
        for peer in candidates:
            if now_ns >= peer.backs_off_until_ns:
                self._first_at = self._peers.index(peer)
                return Try(peer.address)
        wake_at_ns = [peer.backs_off_until_ns for peer in candidates]
        if doubt_at_ns is not None and wake_at_ns:
            wake_at_ns.append(doubt_at_ns)
        return Pause(min(wake_at_ns, default=None))

    def told(
        self, address: str, first: int | None, last: int | None, next_number: int | None, role: str = ""
    ) -> Range | str:
        """Take a peer's answer: its first and last block, None if it is empty.

        Args:
            next_number: the block that this node needs next; None: any first block will do.

        Returns:
            What to subscribe to; or, for `ended` with NOTHING, why nothing.
        """
        peer = self._peer(address)
        peer.last_number, peer.has_answered = last, True
        peer.began_number = first if next_number is None else next_number
        peer.told = Told.LEVEL if _is_level(last, peer.began_number) else Told.MORE
        self.noted(address, first, last, role)
        if self.live:
            self._aim_at_peers()
        elif last is not None and self.curious:
            self.aim(last)
        if self.live and peer.told is Told.LEVEL:
            self.stalled_count, peer.lied_at_number = 0, None
        if first is None or last is None:
            if self.live and next_number is not None:
                return Range(next_number, None)
            return "it is empty"
        start = first if next_number is None else next_number
        if start < first:
            return f"it begins with block {first}, after block {start}"
        if self.live:
            return Range(start, None)
        if last < start:
            return f"it ends with block {last}, before block {start}"
        return Range(start, last if self.target is None else min(last, self.target))

    def heard(self, address: str, last: int | None, next_number: int) -> None:
        """Take a later answer of the peer that is subscribed to."""
        peer = self._peer(address)
        peer.last_number = last
        if self.live:
            if _is_level(last, next_number):
                peer.lapses_count = 0  # it has recovered, though no block shows it
            self._aim_at_peers()

    def _aim_at_peers(self) -> None:
        """Aim at the highest block that a peer reported last: an earlier report may have been wrong."""
        lasts = [peer.last_number for peer in self._peers if peer.last_number is not None]
        self.target = max(lasts, default=None)

    def ended(
        self, address: str, outcome: AttemptOutcome, reason: str, next_number: int, now_ns: int
    ) -> None:
        """Take the end of an attempt."""
        peer = self._peer(address)
        answer = OUTCOMES[outcome]
        if self.live:
            answer = FOLLOWED.get((outcome, peer.told), answer)
        peer.is_itself = outcome is AttemptOutcome.ITSELF
        # Compare with the attempt's beginning: `came_to` may already know of its blocks.
        began_number, peer.began_number, peer.told = peer.began_number, None, Told.NOTHING
        came_forward = next_number > self._next_number >= 0
        came_forward |= began_number is not None and next_number > began_number
        if answer is not PeerBackoff.NONE:
            peer.role = ""  # it must answer again to be preferred
        if outcome in _SHUNNED:
            peer.shunned_until_ns = now_ns + self.rules.backoff_max_ns
        if outcome is AttemptOutcome.STALLED:
            peer.stalled_count = self.stalled_at(address, next_number) + 1
            peer.stalled_at_number = next_number
        if came_forward:
            peer.lie = ""
        if outcome is AttemptOutcome.LIED:
            peer.lie, peer.lied_at_number = reason, next_number
        if came_forward or outcome is AttemptOutcome.COMPLETE:
            peer.failures_count = peer.lapses_count = 0
        if came_forward:
            self.stalled_count, self._next_number = 0, next_number
        elif outcome not in _NO_ATTEMPT and (self.live or self.curious or self.distance(next_number)):
            self.stalled_count += 1
            if self.stalled_count == self.rules.stalled_attempts_max:
                self._stalled_since_ns = now_ns
            if self.stalled_count >= self.rules.stalled_attempts_max:
                self.curious = False
        self._reason = f"{address}: {reason}"
        backoff_ns = self._backoff_ns(peer, answer, came_forward=came_forward)
        peer.backs_off_until_ns = now_ns + backoff_ns
        if backoff_ns:
            self._first_at = (self._peers.index(peer) + 1) % len(self._peers)

    def _backoff_ns(self, peer: _Peer, answer: PeerBackoff, *, came_forward: bool) -> int:
        rules = self.rules
        if answer is PeerBackoff.LONGEST:
            return rules.backoff_max_ns
        if answer is PeerBackoff.SHORT:
            return rules.backoff_ns
        if answer is PeerBackoff.RISING_A_LITTLE:
            count, peer.lapses_count = peer.lapses_count, min(peer.lapses_count + 1, _LITTLE_MAX)
            return backoff(rules.backoff_ns, rules.backoff_max_ns, count)
        if answer is PeerBackoff.RISING:
            count, peer.failures_count = peer.failures_count, peer.failures_count + 1
            return backoff(rules.backoff_ns, rules.backoff_max_ns, count)
        return 0 if came_forward else rules.backoff_ns >> 3  # nothing has changed: no busy loop

    def _peer(self, address: str) -> _Peer:
        return next(peer for peer in self._peers if peer.address == address)


def _is_level(last: int | None, next_number: int | None) -> bool:
    return last is None or (next_number is not None and last < next_number)
