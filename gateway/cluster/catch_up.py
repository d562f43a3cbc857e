"""Catching up: the choice of the next peer, the meaning of its answers, and its backoff.

Pure: no gRPC type, no clock. The shell (`cluster.peer_follower`) asks `step` what to do, and tries peers:

    Try(address)      ask its status and give it to `told`; subscribe to the `Range` that this returns; report
                      with `ended` how the attempt ended
    Pause(until_ns)   try nobody before; None: not before `aim`
    DONE              the target is reached

A node has one of two aims:
  - *catch up* to the highest block that publishers have told of (`aim`). A node that starts empty asks its
    peers for theirs; if none answers, publishers will tell.
  - *follow* a peer for ever: the first of the list that works. The node leaves a peer that has nothing more
    while another one has, since two standbys that follow each other would wait for ever. It leaves a standby
    for a peer that says that it is active (`active_beside`), so that a standby that hangs keeps no other one
    from its blocks. If all peers have sent what cannot be, that is a `problem` at once: the node has another
    chain than they.

A target is a claim. One that is implausibly far ahead is ignored (`is_plausible`); if the block is there all
the same, the peers tell of it, which are asked now and then. A target that no peer helps to reach costs
attempts at growing distances, and is a `problem` while the node does not get on. A target that only
publishers have told of, while no peer has so much as the next block, is given up after
`CatchUpRules.unconfirmed_ns` (`take_given_up`), and is no problem again before a block has come: a publisher
that is wrong must not keep a node out of service. If it was right, the node still finds out, since it asks
its peers again and again, and each publisher that comes tells it.
Source: docs/subscribing.md, "Nodes that read from each other"; docs/spec/wire.md section 2.
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
"""So far above all that a node and its peers have, a publisher is believed: over half a year of blocks."""


@dataclass(frozen=True, slots=True)
class CatchUpRules:
    """The settings of catching up, by default those of `gateway.settings.table`. Times are nanoseconds."""

    stalled_attempts_max: int = 5
    """Attempts without a further block after which that is a problem."""
    backoff_ns: int = 1_000_000_000
    """The backoff after a first failure; doubled with each further one."""
    backoff_max_ns: int = 60_000_000_000
    """The longest backoff."""
    unconfirmed_ns: int = 60_000_000_000
    """How long a node pursues a target that no peer confirms before it gives it up; 0: for ever."""
    ahead_blocks_max: int = TOLD_AHEAD_BLOCKS_MAX
    """A publisher is believed up to so many blocks above what the node and its peers have."""


class PeerBackoff(Enum):
    """How long a peer is not tried."""

    NONE = "none"
    SHORT = "the first backoff, each time"
    RISING = "doubled with each failure in a row"
    RISING_A_LITTLE = "the same, up to eight times the first"
    LONGEST = "the longest at once"


class AttemptOutcome(Enum):
    """How an attempt ended."""

    COMPLETE = "everything that was asked for has come"
    RACED = "a publisher was faster: begin again where the node is now"
    NOTHING = "the peer does not have the next block"
    UNREACHABLE = "the peer does not answer"
    CLOSED = "the peer ended the stream in order, and nothing was missing"
    BROKE_OFF = "the peer ended the stream too early"
    STALLED = "the peer sends nothing, or too little, though it has more"
    OUTRUN = "the peer has nothing more, though another one has"
    STANDBY = "the peer is a standby, and another one is active"
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
    AttemptOutcome.LIED: PeerBackoff.LONGEST,
    AttemptOutcome.NODE: PeerBackoff.RISING_A_LITTLE,
    AttemptOutcome.ITSELF: PeerBackoff.LONGEST,
}
"""The backoff after each outcome. An attempt that failed and brought blocks counts as the first failure."""


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
nothing wakes it when the peer is well again. A peer that told of blocks and did not bring them is none."""

_LITTLE_MAX: Final = 3
"""`PeerBackoff.RISING_A_LITTLE` doubles so often: a node that is well again is not to lag for long."""

_NO_ATTEMPT: Final = frozenset(
    {AttemptOutcome.RACED, AttemptOutcome.ITSELF, AttemptOutcome.STANDBY, AttemptOutcome.CLOSED}
)
"""These do not count as attempts without a further block."""

_SHUNNED: Final = frozenset({AttemptOutcome.STALLED, AttemptOutcome.LIED})
"""After these, no other peer is left for this one for a while, though it says that it is active."""


@dataclass(frozen=True, slots=True)
class Try:
    """Try this peer."""

    address: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Try nobody now."""

    until_ns: int | None
    """When to ask again; None: when something new is known."""


@dataclass(frozen=True, slots=True)
class Range:
    """The blocks to subscribe to."""

    start_number: int
    end_number: int | None
    """None: without end."""


class _Done(Enum):
    """The step that carries nothing."""

    DONE = "done"


DONE: Final = _Done.DONE
"""The target is reached."""

Step = Try | Pause | Literal[_Done.DONE]


@dataclass(slots=True)
class _Peer:
    """One peer."""

    address: str
    failures_count: int = 0
    """Those in a row that `PeerBackoff.RISING` answers, without a block between."""
    lapses_count: int = 0
    """Those that `PeerBackoff.RISING_A_LITTLE` answers; the peer was not level either between."""
    told: Told = Told.NOTHING
    """In the attempt that is under way."""
    backs_off_until_ns: int = 0
    last_number: int | None = None
    """Its last block, as it said."""
    began_number: int | None = None
    """The block that was needed when it was asked for blocks, or None."""
    has_answered: bool = False
    role: str = ""
    """Its role by its last answer; empty: it did not answer, or is no Sluice node."""
    first_seen: int | None = None
    """Its first block, as it said with its role."""
    last_seen: int | None = None
    """Its last block, as it said with its role; `last_number` is known of peers that were tried."""
    shunned_until_ns: int = 0
    """No other peer is left for it before."""
    is_itself: bool = False
    """Its address leads to this node, by its last answer."""
    lie: str = ""
    """What it sent last that cannot be, in words."""
    lied_at_number: int | None = None
    """The block that the node needed then."""
    stalled_at_number: int | None = None
    """The block that the node needed when the peer stalled last."""
    stalled_count: int = 0
    """How often in a row it stalled at that block."""


@dataclass(slots=True)
class CatchUp:
    """One aim, and the peers that help to reach it.

    Args:
        addresses: the peers, the preferred one first.
        rules: the settings.
        live: follow for ever; False: catch up to `target`.
        curious: ask every peer for its last block once, and aim at the highest.
    """

    addresses: Sequence[str]
    rules: CatchUpRules = field(default_factory=CatchUpRules)
    live: bool = False
    curious: bool = False
    target: int | None = field(default=None, init=False)
    """The highest block known of."""
    stalled_count: int = field(default=0, init=False)
    """Attempts in a row without a further block."""
    _peers: list[_Peer] = field(default_factory=list, init=False)
    _first_at: int = field(default=0, init=False)
    _next_number: int = field(default=-1, init=False)
    _reason: str = field(default="", init=False)
    _stalled_since_ns: int = field(default=0, init=False)
    """When `stalled_count` reached the limit."""
    _unconfirmed_since_ns: int | None = field(default=None, init=False)
    """Since when blocks have come by another way, and no peer has told of the next one."""
    _doubted_number: int = field(default=-1, init=False)
    """The node needed this block when it gave a target up."""
    _given_up: int | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Make the peers."""
        self._peers = [_Peer(address) for address in dict.fromkeys(self.addresses)]

    @property
    def problem(self) -> str | None:
        """Why the node does not get on, in words; None: it does."""
        if self.live and self._peers and all(peer.is_itself for peer in self._peers):
            addresses = ", ".join(peer.address for peer in self._peers)
            return f"the node has nobody to follow: {addresses} leads to the node itself"
        if self.live and (lies := self._lies()):
            return f"the node cannot follow: {'; '.join(lies)}"
        if self._doubted_number == self._next_number and self._is_unconfirmed():
            return None
        if self.stalled_count < self.rules.stalled_attempts_max or (self.target is None and not self.live):
            return None
        aim = "to its peers" if self.target is None else f"to block {self.target}"
        return (
            f"the node does not come closer {aim}: {self.stalled_count} attempts without a further block, "
            f"the last one with {self._reason}"
        )

    def _lies(self) -> list[str]:
        """Return what each peer sent that cannot be, if all of them did for the block that is needed.

        This node's chain is wrong then, or all peers are: further attempts would show nothing new.
        """
        others = [peer for peer in self._peers if not peer.is_itself]
        if any(peer.lied_at_number != self._next_number for peer in others):
            return []
        return [f"{peer.address} sent what cannot be: {peer.lie}" for peer in others]

    def distance(self, next_number: int) -> int:
        """Return how many blocks the node knows of and does not have."""
        return 0 if self.target is None else max(0, self.target - next_number + 1)

    def _is_unconfirmed(self) -> bool:
        """Return whether only publishers told of the target, and no peer of even the next block."""
        if self.live or self.target is None:
            return False
        lasts = (peer.last_number for peer in self._peers)
        return all(last is None or last < self._next_number for last in lasts)

    def _doubt_at_ns(self) -> int | None:
        """Return when the target is given up, if nothing comes between; None: it is not."""
        if not self.rules.unconfirmed_ns or not self._is_unconfirmed():
            return None
        since_ns = [] if self._unconfirmed_since_ns is None else [self._unconfirmed_since_ns]
        if self.stalled_count >= self.rules.stalled_attempts_max:
            since_ns.append(self._stalled_since_ns)
        return min(since_ns) + self.rules.unconfirmed_ns if since_ns else None

    def _note_unconfirmed(self, *, comes_forward: bool, now_ns: int) -> None:
        """Note since when no peer confirms the target while blocks come: no attempt stalls then."""
        if not self._is_unconfirmed():
            self._unconfirmed_since_ns = None
        elif comes_forward and self._unconfirmed_since_ns is None:
            self._unconfirmed_since_ns = now_ns

    def take_given_up(self) -> int | None:
        """Return the target that was given up since the last call; None: none was."""
        given_up, self._given_up = self._given_up, None
        return given_up

    def came_to(self, next_number: int) -> None:
        """Note the block that the node needs next: it gets on if that is a later one than before."""
        if next_number > self._next_number >= 0:
            self.stalled_count, self._next_number = 0, next_number

    def others(self, address: str, now_ns: int) -> list[str]:
        """Return the addresses of the other peers that do not back off now."""
        return [
            peer.address
            for peer in self._peers
            if peer.address != address and now_ns >= peer.backs_off_until_ns
        ]

    def stalled_at(self, address: str, next_number: int) -> int:
        """Return how often in a row a peer has stalled at the block that is needed now."""
        peer = self._peer(address)
        return peer.stalled_count if peer.stalled_at_number == next_number else 0

    def is_shunned(self, address: str, now_ns: int) -> bool:
        """Return whether no peer is left for this one: lately it told of blocks and did not bring them."""
        return now_ns < self._peer(address).shunned_until_ns

    def noted(self, address: str, first: int | None, last: int | None, role: str) -> None:
        """Note what a peer has and is, by its own words; an empty `role`: it did not answer."""
        peer = self._peer(address)
        peer.first_seen, peer.last_seen, peer.role = first, last, role

    def is_standby(self, address: str) -> bool:
        """Return whether the peer says that it is a standby: an active one would be better."""
        return self._peer(address).role == Phase.STANDBY.value

    def active_beside(self, address: str, next_number: int, now_ns: int) -> str | None:
        """Return an active peer that has as much as this one, and begins with `next_number` or before."""
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
        """Return whether it is active, and has brought a block since it lied."""
        return peer.role == Phase.ACTIVE.value and not peer.lie and not peer.is_itself

    def _in_order(self) -> list[_Peer]:
        """Return the peers as a follower prefers them: active ones first, of these the one with the most."""
        return sorted(
            self._peers,
            key=lambda peer: (0, -(peer.last_seen or 0)) if self._is_preferred(peer) else (1, 0),
        )

    def is_plausible(self, number: int, next_number: int) -> bool:
        """Return whether block `number` may exist: it is not too far above all that is known.

        `next_number` is the block that this node needs next.
        """
        known = [peer.last_number for peer in self._peers if peer.last_number is not None]
        return number <= max([next_number, *known]) + self.rules.ahead_blocks_max

    def aim(self, number: int) -> None:
        """Aim at block `number`, if that is higher than the target."""
        if not self.distance(self._next_number):
            self._unconfirmed_since_ns = None  # what it aimed at before is there
        if self.target is None or number > self.target:
            self.target = number

    def step(self, next_number: int, now_ns: int) -> Step:
        """Return what to do now; `next_number` is the block that this node needs next."""
        comes_forward = next_number > self._next_number >= 0
        if next_number != self._next_number:  # by whatever way: a publisher may have brought it
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
        # A follower goes back to the peer it prefers; one that catches up takes them in turn.
        candidates = (
            self._in_order()
            if self.live
            else [*self._peers[self._first_at :], *self._peers[: self._first_at]]
        )
        if not self.live and not self.distance(next_number):  # it only wants to know
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
        """Take the answer of a peer: its first and last block, None for an empty one.

        Args:
            next_number: the block that this node needs next; None for an empty one that begins with whatever
                comes.
            role: what the peer is; empty where it does not say.

        Returns:
            What to subscribe to; or why that is of no use, for `ended` with NOTHING.
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
        if first is None or last is None:
            if self.live and next_number is not None:
                return Range(next_number, None)
            return "it is empty"
        start = first if next_number is None else next_number
        if start < first:
            return f"it begins with block {first}, after block {start}"
        if self.live:
            if peer.told is Told.LEVEL:
                self.stalled_count, peer.lied_at_number = 0, None  # level with it
            return Range(start, None)
        if last < start:
            return f"it ends with block {last}, before block {start}"
        return Range(start, last if self.target is None else min(last, self.target))

    def heard(self, address: str, last: int | None, next_number: int) -> None:
        """Take a later answer of the peer that is subscribed to; `next_number` is needed next."""
        peer = self._peer(address)
        peer.last_number = last
        if self.live:
            if _is_level(last, next_number):
                peer.lapses_count = 0  # it is well again, though no block shows it
            self._aim_at_peers()

    def _aim_at_peers(self) -> None:
        """Aim at the highest block that a peer said last: its earlier word may have been wrong."""
        lasts = [peer.last_number for peer in self._peers if peer.last_number is not None]
        self.target = max(lasts, default=None)

    def ended(
        self, address: str, outcome: AttemptOutcome, reason: str, next_number: int, now_ns: int
    ) -> None:
        """Take the end of an attempt; `reason` is for people, `next_number` the block that is needed now."""
        peer = self._peer(address)
        answer = OUTCOMES[outcome]
        if self.live:
            answer = FOLLOWED.get((outcome, peer.told), answer)
        peer.is_itself = outcome is AttemptOutcome.ITSELF
        # Compared with the attempt's beginning: `came_to` may know of its blocks already.
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
        """Return how long the peer is not tried now, and count the failure."""
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
    """Return whether a peer with this last block has nothing for a node that needs `next_number` next."""
    return last is None or (next_number is not None and last < next_number)
