"""Catching up: which peer is tried next, what its answers mean, and when it is given a rest.

Pure: no gRPC type, no clock. The shell (`cluster.peer_follower`) asks `step` what to do, and tries peers:

    Try(address)      ask its status and give it to `told`; subscribe to the `Range` that this returns; report
                      with `ended` how it ended
    Pause(until_ns)   nobody may be tried before; None: not before `aim`
    DONE              the target is reached

Two aims:
  - *catch up*: up to the highest block that publishers have told of (`aim`), then rest. A node that is empty
    asks its peers for theirs when it starts; if none answers, publishers will tell.
  - *follow*: stay level with a peer for ever, with the first of the list that works. One that has nothing
    more, while another has, is left: two standbys that follow each other would wait for ever. So is one that
    says that it is a standby, for one that says that it is active (`active_beside`): a standby that hangs
    then keeps no other one from its blocks. If all have sent what cannot be, that is a `problem` at once: the
    node has another chain than they.

The target is what somebody said, and is not believed: one that is implausibly far ahead is not looked for
(`is_plausible`); where it is there all the same, the peers tell of it, which are asked now and then. A target
that nobody can show the way to costs attempts at growing distances, and is reported (`problem`) when the node
itself does not come forward. One that only publishers have told of, while no peer has so much as the next
block, is given up after `CatchUpRules.unconfirmed_ns` (`take_given_up`), and does not become a problem again
before a block has come: a publisher that is wrong must not keep a node out of service. If it was right, the
node finds out without it, since it asks its peers again and again, and each publisher that comes tells it.
Source: docs/subscribing.md, "Nodes that read from each other"; docs/spec/wire.md section 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Literal

from gateway.cluster.roles import Phase
from gateway.limits import TOLD_AHEAD_BLOCKS_MAX

__all__ = [
    "DONE",
    "FOLLOWED",
    "OUTCOMES",
    "AttemptOutcome",
    "CatchUp",
    "CatchUpRules",
    "Pause",
    "Range",
    "Rest",
    "Step",
    "Told",
    "Try",
]


@dataclass(frozen=True, slots=True)
class CatchUpRules:
    """The settings that catching up goes by. Times are nanoseconds."""

    stalled_attempts_max: int = 5
    """Attempts without a further block after which the node says that it does not get on."""
    rest_ns: int = 1_000_000_000
    """The rest after a first failure; doubled with each further one."""
    rest_max_ns: int = 60_000_000_000
    """The longest rest."""
    unconfirmed_ns: int = 60_000_000_000
    """How long a node stands still for a target that no peer confirms before it gives that up; 0: never."""
    ahead_blocks_max: int = TOLD_AHEAD_BLOCKS_MAX
    """How far above what the node and its peers have a publisher may be, as far as it is believed."""


class Rest(Enum):
    """How long a peer is left alone."""

    NONE = "none"
    SHORT = "the first rest, each time"
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


OUTCOMES: Final[dict[AttemptOutcome, Rest]] = {
    AttemptOutcome.COMPLETE: Rest.NONE,
    AttemptOutcome.RACED: Rest.NONE,
    AttemptOutcome.NOTHING: Rest.SHORT,
    AttemptOutcome.UNREACHABLE: Rest.RISING,
    AttemptOutcome.CLOSED: Rest.SHORT,
    AttemptOutcome.BROKE_OFF: Rest.RISING,
    AttemptOutcome.STALLED: Rest.RISING,
    AttemptOutcome.OUTRUN: Rest.SHORT,
    AttemptOutcome.STANDBY: Rest.NONE,
    AttemptOutcome.LIED: Rest.LONGEST,
    AttemptOutcome.NODE: Rest.RISING_A_LITTLE,
    AttemptOutcome.ITSELF: Rest.LONGEST,
}
"""What the peer gets for it. An attempt that brought blocks counts as the first failure, if it is one."""


class Told(Enum):
    """What a peer has said in an attempt."""

    NOTHING = "it has not answered"
    LEVEL = "it has nothing that the node lacks"
    MORE = "it has blocks that the node lacks"


FOLLOWED: Final[dict[tuple[AttemptOutcome, Told], Rest]] = {
    (AttemptOutcome.UNREACHABLE, Told.NOTHING): Rest.RISING_A_LITTLE,
    (AttemptOutcome.UNREACHABLE, Told.LEVEL): Rest.RISING_A_LITTLE,
    (AttemptOutcome.BROKE_OFF, Told.LEVEL): Rest.RISING_A_LITTLE,
}
"""What goes before `OUTCOMES` where a peer is followed live: acknowledgements may wait for the follower, and
nothing wakes it when the peer is well again. One that told of blocks and did not bring them is not here."""

_LITTLE_MAX: Final = 3
"""So often `Rest.RISING_A_LITTLE` is doubled: a node that is well again is not to lag for long."""

_NO_ATTEMPT: Final = frozenset(
    {AttemptOutcome.RACED, AttemptOutcome.ITSELF, AttemptOutcome.STANDBY, AttemptOutcome.CLOSED}
)
"""These do not count as standing still."""

_SHUNNED: Final = frozenset({AttemptOutcome.STALLED, AttemptOutcome.LIED})
"""Whoever does this while it says that it is active would again be left only after long without blocks."""


@dataclass(frozen=True, slots=True)
class Try:
    """Try this peer."""

    address: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Nobody is to be tried now."""

    until_ns: int | None
    """When to ask again; None: not before something new is known."""


@dataclass(frozen=True, slots=True)
class Range:
    """What to subscribe to."""

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
    """What is known of one peer."""

    address: str
    failures_count: int = 0
    """Of those that `Rest.RISING` answers, in a row, without a block between."""
    lapses_count: int = 0
    """Of those that `Rest.RISING_A_LITTLE` answers: the same, and without a time of being level between."""
    told: Told = Told.NOTHING
    """In the attempt that is under way."""
    rests_until_ns: int = 0
    last_number: int | None = None
    """Its last block, as it said."""
    began_number: int | None = None
    """The block that was needed when it was asked for blocks, or None."""
    has_answered: bool = False
    role: str = ""
    """What it said that it is, when it answered last; empty: it did not, or is no Sluice node."""
    first_seen: int | None = None
    """Its first block, and"""
    last_seen: int | None = None
    """its last one, as it said with its role; `last_number` is only what a peer said that was tried."""
    shunned_until_ns: int = 0
    """Nobody is left for it before, though it says that it is active."""
    is_itself: bool = False
    """When it answered last, it was this node."""
    lie: str = ""
    """What it sent last that cannot be, in words."""
    lied_at_number: int | None = None
    """The node needed this block then."""
    stalled_at_number: int | None = None
    """The node needed this block when the peer stalled last."""
    stalled_count: int = 0
    """So often in a row it stalled at that block."""


@dataclass(slots=True)
class CatchUp:
    """One aim and the peers that it is reached with.

    Args:
        addresses: the peers, the preferred one first.
        rules: the settings.
        live: follow for ever; False: catch up to `target`.
        curious: ask every peer for its last block once, and aim at that.
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
    _turn: int = field(default=0, init=False)
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
        """Make the facts of each peer."""
        self._peers = [_Peer(address) for address in dict.fromkeys(self.addresses)]

    @property
    def problem(self) -> str | None:
        """Why the node does not get on, in words; None while it does."""
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
        """Say what each peer sent that cannot be, if there is no other peer for the block that is needed.

        One of two chains is wrong then, or all peers are: no need to wait for further attempts.
        """
        others = [peer for peer in self._peers if not peer.is_itself]
        if any(peer.lied_at_number != self._next_number for peer in others):
            return []
        return [f"{peer.address} sent what cannot be: {peer.lie}" for peer in others]

    def distance(self, next_number: int) -> int:
        """How many blocks the node knows of and does not have."""
        return 0 if self.target is None else max(0, self.target - next_number + 1)

    def _is_unconfirmed(self) -> bool:
        """Whether the target is only what publishers say: no peer has told of the next block."""
        if self.live or self.target is None:
            return False
        lasts = (peer.last_number for peer in self._peers)
        return all(last is None or last < self._next_number for last in lasts)

    def _doubt_at_ns(self) -> int | None:
        """When the target is given up, if nothing comes between; None: it is not."""
        if not self.rules.unconfirmed_ns or not self._is_unconfirmed():
            return None
        since_ns = [] if self._unconfirmed_since_ns is None else [self._unconfirmed_since_ns]
        if self.stalled_count >= self.rules.stalled_attempts_max:
            since_ns.append(self._stalled_since_ns)
        return min(since_ns) + self.rules.unconfirmed_ns if since_ns else None

    def _note_unconfirmed(self, *, comes_forward: bool, now_ns: int) -> None:
        """Take note of a target that no peer confirms while others bring blocks: no attempt stalls then."""
        if not self._is_unconfirmed():
            self._unconfirmed_since_ns = None
        elif comes_forward and self._unconfirmed_since_ns is None:
            self._unconfirmed_since_ns = now_ns

    def take_given_up(self) -> int | None:
        """The target that was given up since this was asked last; None: none was."""
        given_up, self._given_up = self._given_up, None
        return given_up

    def came_to(self, next_number: int) -> None:
        """The node needs this block next: if that is a later one than before, it gets on."""
        if next_number > self._next_number >= 0:
            self.stalled_count, self._next_number = 0, next_number

    def others(self, address: str, now_ns: int) -> list[str]:
        """Give the peers beside one that may be asked now how far they are."""
        return [
            peer.address for peer in self._peers if peer.address != address and now_ns >= peer.rests_until_ns
        ]

    def stalled_at(self, address: str, next_number: int) -> int:
        """How often a peer has stalled in a row at the block that is needed now."""
        peer = self._peer(address)
        return peer.stalled_count if peer.stalled_at_number == next_number else 0

    def is_shunned(self, address: str, now_ns: int) -> bool:
        """Whether nobody is to be left for a peer: not long ago, it told of blocks and did not bring them."""
        return now_ns < self._peer(address).shunned_until_ns

    def noted(self, address: str, first: int | None, last: int | None, role: str) -> None:
        """A peer said in passing what it has and is; an empty `role`: it did not answer."""
        peer = self._peer(address)
        peer.first_seen, peer.last_seen, peer.role = first, last, role

    def is_standby(self, address: str) -> bool:
        """Whether the peer says that it is one: there may be somebody better."""
        return self._peer(address).role == Phase.STANDBY.value

    def active_beside(self, address: str, next_number: int, now_ns: int) -> str | None:
        """Say which active peer has at least as much as this one, and begins with `next_number` or before."""
        followed = self._peer(address)
        last = -1 if followed.last_seen is None else followed.last_seen
        for peer in self._peers:
            may_be_tried = now_ns >= peer.rests_until_ns and not self.is_shunned(peer.address, now_ns)
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
        """Whether it is active; one that lied is so to others only, until it brings a block."""
        return peer.role == Phase.ACTIVE.value and not peer.lie and not peer.is_itself

    def _in_order(self) -> list[_Peer]:
        """The peers as a follower prefers them: active ones first, of these the one with the most."""
        return sorted(
            self._peers,
            key=lambda peer: (0, -(peer.last_seen or 0)) if self._is_preferred(peer) else (1, 0),
        )

    def is_plausible(self, number: int, next_number: int) -> bool:
        """Whether a publisher may be right that there is block `number`: not so far above all that is known.

        `next_number` is the block that this node needs next.
        """
        known = [peer.last_number for peer in self._peers if peer.last_number is not None]
        return number <= max([next_number, *known]) + self.rules.ahead_blocks_max

    def aim(self, number: int) -> None:
        """Somebody has told of block `number`."""
        if not self.distance(self._next_number):
            self._unconfirmed_since_ns = None  # what it aimed at before is there
        if self.target is None or number > self.target:
            self.target = number

    def step(self, next_number: int, now_ns: int) -> Step:
        """Say what to do now; `next_number` is the block that this node needs next."""
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
            self._in_order() if self.live else [*self._peers[self._turn :], *self._peers[: self._turn]]
        )
        if not self.live and not self.distance(next_number):  # it only wants to know
            candidates = [peer for peer in candidates if not peer.has_answered]
            if not candidates:
                self.curious = False
                return DONE
        for peer in candidates:
            if now_ns >= peer.rests_until_ns:
                self._turn = self._peers.index(peer)
                return Try(peer.address)
        wake_at_ns = [peer.rests_until_ns for peer in candidates]
        if doubt_at_ns is not None and wake_at_ns:
            wake_at_ns.append(doubt_at_ns)
        return Pause(min(wake_at_ns, default=None))

    def told(
        self, address: str, first: int | None, last: int | None, next_number: int | None, role: str = ""
    ) -> Range | str:
        """A peer has answered with its first and last block, None for an empty one.

        Args:
            next_number: the block that this node needs next; None for an empty one that begins with whatever
                comes.
            role: what the peer is; empty where it does not say.

        Returns:
            What to subscribe to; or why that would be of no use, for `ended` with NOTHING.
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
        """A peer that is subscribed to was asked again for its last block; `next_number` is needed next."""
        peer = self._peer(address)
        peer.last_number = last
        if self.live:
            if _is_level(last, next_number):
                peer.lapses_count = 0  # it is well again, though no block shows it
            self._aim_at_peers()

    def _aim_at_peers(self) -> None:
        """Aim at the highest block that a peer has, as each said last: one may have been wrong before."""
        lasts = [peer.last_number for peer in self._peers if peer.last_number is not None]
        self.target = max(lasts, default=None)

    def ended(
        self, address: str, outcome: AttemptOutcome, reason: str, next_number: int, now_ns: int
    ) -> None:
        """An attempt has ended; `reason` is for people, `next_number` the block that is needed now."""
        peer = self._peer(address)
        rest = OUTCOMES[outcome]
        if self.live:
            rest = FOLLOWED.get((outcome, peer.told), rest)
        peer.is_itself = outcome is AttemptOutcome.ITSELF
        # Since the attempt began: `came_to` may have been told of its blocks already.
        began_number, peer.began_number, peer.told = peer.began_number, None, Told.NOTHING
        came_forward = next_number > self._next_number >= 0
        came_forward |= began_number is not None and next_number > began_number
        if rest is not Rest.NONE:
            peer.role = ""  # it is to answer again before it is preferred
        if outcome in _SHUNNED:
            peer.shunned_until_ns = now_ns + self.rules.rest_max_ns
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
        rest_ns = self._rest_ns(peer, rest, came_forward=came_forward)
        peer.rests_until_ns = now_ns + rest_ns
        if rest_ns:
            self._turn = (self._peers.index(peer) + 1) % len(self._peers)

    def _rest_ns(self, peer: _Peer, rest: Rest, *, came_forward: bool) -> int:
        """Say how long the peer is left alone now, and count the failure."""
        rules = self.rules
        if rest is Rest.LONGEST:
            return rules.rest_max_ns
        if rest is Rest.SHORT:
            return rules.rest_ns
        if rest is Rest.RISING_A_LITTLE:
            count, peer.lapses_count = peer.lapses_count, min(peer.lapses_count + 1, _LITTLE_MAX)
            return min(rules.rest_max_ns, rules.rest_ns << count)
        if rest is Rest.RISING:
            count, peer.failures_count = min(peer.failures_count, 30), peer.failures_count + 1
            return min(rules.rest_max_ns, rules.rest_ns << count)
        return 0 if came_forward else rules.rest_ns >> 3  # nothing has changed: not without a breath

    def _peer(self, address: str) -> _Peer:
        return next(peer for peer in self._peers if peer.address == address)


def _is_level(last: int | None, next_number: int | None) -> bool:
    """Whether a peer with this last block has nothing that a node lacks that needs `next_number` next."""
    return last is None or (next_number is not None and last < next_number)
