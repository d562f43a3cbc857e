"""The faults of a cluster, as one node sees them: who is active, and who could take over.

Pure. Every second `cluster.cluster_watch` brings what each peer says of itself, and asks for the faults.

    fault           holds while
    NO_ACTIVE       nobody has been active for 6 s, as far as this node or a peer that answers can see
    TWO_ACTIVE      two nodes are active for 5 s in a cluster that is to have one
    NO_SUCCESSOR    a node is active, and for 5 s no other ready node has the blocks that it had 5 s before

What is no fault:

    a handover                  the node that drains or is drained counts as active
    one cut line                a standby relays when an active node was last known; that time grows on the
                                way, so no two nodes keep a dead one alive for each other
    a start of all nodes        a peer that has not answered yet has 30 s
    two nodes that both take publishers by their settings: see `has_one_active`
    a peer of another cluster, which this node only reads from: it does not hear this node, and what it says
                                is no answer for this one, once a member was seen in charge
    a standby that does not hear whom the node in charge hears: it leaves NO_SUCCESSOR to that one
    a node of an earlier version, or another block node: what it cannot say is no fault

Source: docs/operations.md, "No node is active", "Two nodes are active", "Nobody could take over".
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from sluice.gateway.cluster.node_status import CLUSTER_KEY, NodeAnswer
from sluice.gateway.cluster.roles import Phase

__all__ = ["ClusterFault", "ClusterView", "Statement"]

SILENT_SECONDS: Final = 6.0
"""Time without an active node: five requests to each peer, and more than one slow answer."""

HOLD_SECONDS: Final = 5.0
"""Time that the other faults must last. Answers of different nodes are a second apart, or a slow answer."""

START_SECONDS: Final = 30.0
"""Time for a peer to answer first, after the start of this node: another one may take longer to start."""


class ClusterFault(Enum):
    """A fault of a cluster; the value is the label of its metric."""

    NO_ACTIVE = "no_active"
    TWO_ACTIVE = "two_active"
    NO_SUCCESSOR = "no_successor"


_WORDS: Final = {
    ClusterFault.NO_ACTIVE: "no node is active",
    ClusterFault.TWO_ACTIVE: "two nodes are active",
    ClusterFault.NO_SUCCESSOR: "nobody could take over without loss",
}
_IN_CHARGE: Final = frozenset(phase.value for phase in Phase if phase is not Phase.STANDBY)
_ACTIVE, _STANDBY = Phase.ACTIVE.value, Phase.STANDBY.value


@dataclass(frozen=True, slots=True)
class Statement:
    """The statement of a node about itself: who it is, what it holds, whom it hears."""

    instance: str = ""
    role: str = ""
    """Its `Phase`; empty for other block nodes."""
    last: int | None = None
    is_ready: bool = False
    is_telling: bool = False
    """It is of a version that makes statements about its cluster."""
    has_one_active: bool = False
    """It is to stand by, or a failover has set its role: of its cluster, one node is to be active."""
    hears: frozenset[str] | None = None
    """The instances of the peers that answer it; None: it has no peers."""
    active_seconds_ago: float | None = None
    """Seconds since it last knew of an active node; None: it never did."""

    @classmethod
    def of(cls, answer: NodeAnswer) -> Statement:
        """Read the answer of a node, which may be of any version, or wrong."""
        said = answer.report.get(CLUSTER_KEY)
        about: dict[str, Any] = said if isinstance(said, dict) else {}
        hears, ago = about.get("hears"), about.get("active_seconds_ago")
        return cls(
            answer.instance,
            answer.role,
            answer.last,
            answer.report.get("ready") is True,
            bool(about),
            about.get("one_active") is True,
            frozenset(one for one in hears if isinstance(one, str)) if isinstance(hears, list) else None,
            _age_of(ago),
        )


def _age_of(said: object) -> float | None:
    """Return the seconds that a node says; None if these are none."""
    try:
        age = float(said) if isinstance(said, int | float) else -1.0
    except OverflowError:
        return None
    return age if math.isfinite(age) and age >= 0 else None


@dataclass(slots=True)
class _Peer:
    address: str
    said: Statement | None = None
    """Its last answer; None: it never answered."""
    heard_at: float = 0.0
    failure: str | None = "not asked yet"
    """Why it did not answer the last request."""
    is_member: bool = False
    """It has shown that it is of this node's cluster (`_is_member`), which no silence undoes."""

    @property
    def answering(self) -> Statement | None:
        return self.said if self.failure is None else None


@dataclass(slots=True)
class ClusterView:
    """The knowledge of one node about its cluster. Times are seconds of one clock that never goes back."""

    addresses: Sequence[str]
    """The peers, `host:port` each."""
    started_at: float
    active_at: float | None = None
    """The time at which an active node was last known; None: none was."""
    _peers: dict[str, _Peer] = field(init=False)
    _own: Statement | None = field(default=None, init=False)
    """The last statement of this node."""
    _has_leader: bool = field(default=False, init=False)
    """A member was seen in charge: from then on, nodes of other clusters say nothing about this one."""
    _since: dict[ClusterFault, float] = field(default_factory=dict, init=False)
    _lasts: deque[tuple[float, int]] = field(default_factory=deque, init=False)
    """The last block of the active node over the last seconds."""

    def __post_init__(self) -> None:
        self._peers = {address: _Peer(address) for address in self.addresses}

    def heard(self, address: str, said: Statement, now: float, asked_at: float) -> None:
        """Note the answer of a peer, and when it was asked.

        What it relays counts from the question on. By the answer's time it would become younger on the way,
        and two nodes that hear of a dead one from each other would keep it alive.
        """
        peer = self._peers[address]
        peer.said, peer.heard_at, peer.failure = said, now, None
        own = self._own
        if own is not None and said.instance != own.instance and _is_member(said, own):
            peer.is_member = True
            self._has_leader = self._has_leader or said.role in _IN_CHARGE
        if self._has_leader and not _may_be_member(peer, said):
            return
        if said.role in _IN_CHARGE or not said.role:
            self._know_active(now)
        elif said.active_seconds_ago is not None:
            self._know_active(asked_at - said.active_seconds_ago)
        elif not said.is_telling:
            self._know_active(now)  # a standby of an earlier version cannot say whom it follows

    def failed(self, address: str, why: str) -> None:
        """Note that a peer does not answer."""
        self._peers[address].failure = why

    def hears(self) -> frozenset[str] | None:
        """Return the instances of the peers that answer; None without peers."""
        if not self._peers:
            return None
        return frozenset(said.instance for peer in self._peers.values() if (said := peer.answering))

    def active_seconds_ago(self, role: str, now: float) -> float | None:
        """Return how long ago an active node was known to this one of that role; None: never."""
        if role in _IN_CHARGE:
            return 0.0
        return None if self.active_at is None else max(0.0, now - self.active_at)

    def judge(self, own: Statement, now: float) -> dict[ClusterFault, str]:
        """Return the faults that hold, in words."""
        self._own = own
        if own.role in _IN_CHARGE:
            self._know_active(now)
        is_waiting = now - self.started_at < START_SECONDS and any(
            peer.said is None for peer in self._peers.values()
        )
        found = {
            ClusterFault.NO_ACTIVE: self._no_active(own, now, is_waiting=is_waiting),
            ClusterFault.TWO_ACTIVE: self._two_active(own),
            ClusterFault.NO_SUCCESSOR: None if is_waiting else self._no_successor(own, now),
        }
        self._since = {
            fault: self._since.get(fault, now) for fault, reason in found.items() if reason is not None
        }
        return {
            fault: f"{_WORDS[fault]}: {reason}"
            for fault, reason in found.items()
            if reason is not None
            and (fault is ClusterFault.NO_ACTIVE or now - self._since[fault] >= HOLD_SECONDS)
        }

    def neighbours(self) -> list[Statement]:
        """Return what each other node of this node's cluster says that answers."""
        own = self._own
        return [] if own is None else [said for _, said in self._members(own)]

    # --- the faults ----------------------------------------------------------------------------------------

    def _no_active(self, own: Statement, now: float, *, is_waiting: bool) -> str | None:
        known_at = self.started_at if self.active_at is None else self.active_at
        if (self.active_at is None and is_waiting) or now - known_at <= SILENT_SECONDS:
            return None
        return "; ".join((*map(_words, self._others(own)), f"this node {_role_words(own)}"))

    def _two_active(self, own: Statement) -> str | None:
        cluster = {said.instance: (address, said) for address, said in self._members(own)}
        cluster[own.instance] = ("this node", own)
        silent = [peer.said for peer in self._others(own) if peer.said is not None and peer.is_member]
        if not any(said.has_one_active for said in (*(said for _, said in cluster.values()), *silent)):
            return None
        active = [who for who, said in cluster.values() if said.role == _ACTIVE]
        return " and ".join(active) if len(active) > 1 else None

    def _no_successor(self, own: Statement, now: float) -> str | None:
        is_led = self._has_leader or own.role in _IN_CHARGE
        ours = [
            (peer, said)
            for peer in self._others(own)
            if (said := peer.answering) and said.role and (not is_led or _may_be_member(peer, said))
        ]
        here = [own, *(said for _, said in ours)]
        in_charge = [said for said in here if said.role in _IN_CHARGE]
        needed = self._needed(in_charge, now)
        if not in_charge or not self._has_successors(own) or self._is_left_to_others(own, in_charge):
            return None
        first = own if own in in_charge else in_charge[0]
        for said in here:
            is_level = needed is None or (said.last is not None and said.last >= needed)
            if said.instance != first.instance and said.is_ready and is_level:
                return None
        words = [_words(peer) for peer in self._others(own) if peer.answering is None]
        words += [
            f"{peer.address} {_candidate_words(said, needed)}"
            for peer, said in ours
            if said.instance != first.instance
        ]
        if own is not first:
            words.append(f"this node {_candidate_words(own, needed)}")
        return "; ".join(words)

    def _is_left_to_others(self, own: Statement, in_charge: Sequence[Statement]) -> bool:
        """Return whether the node in charge may know a standby that this node does not hear."""
        if own in in_charge or not all(said.is_telling for said in in_charge):
            return False
        heard = [said.hears for said in in_charge if said.hears is not None]
        if not heard:
            return len(self._others(own)) < 2
        known = {own.instance, *(self.hears() or ())}
        return not all(instances <= known for instances in heard)

    # --- what it knows -------------------------------------------------------------------------------------

    def _know_active(self, at: float) -> None:
        self.active_at = at if self.active_at is None else max(self.active_at, at)

    def _others(self, own: Statement) -> list[_Peer]:
        """Return the peers without those that lead to this node."""
        return [
            peer
            for peer in self._peers.values()
            if peer.said is None or not peer.said.instance or peer.said.instance != own.instance
        ]

    def _members(self, own: Statement) -> list[tuple[str, Statement]]:
        """Return the answering nodes of this node's cluster, which know this node."""
        return [
            (peer.address, said)
            for peer in self._others(own)
            if (said := peer.answering) and _is_member(said, own)
        ]

    def _has_successors(self, own: Statement) -> bool:
        """Return whether a peer is there for taking over, even if it is away now."""
        return any(
            peer.said is None or (peer.said.role and (not peer.said.is_telling or _is_member(peer.said, own)))
            for peer in self._others(own)
        )

    def _needed(self, in_charge: Sequence[Statement], now: float) -> int | None:
        """Return the last block that the active node had `HOLD_SECONDS` ago."""
        lasts = self._lasts
        if not in_charge:
            lasts.clear()
            return None
        last = max((said.last for said in in_charge if said.last is not None), default=None)
        if last is not None:
            lasts.append((now, last))
        while len(lasts) > 1 and lasts[1][0] <= now - HOLD_SECONDS:
            lasts.popleft()
        return lasts[0][1] if lasts and lasts[0][0] <= now - HOLD_SECONDS else None


def _is_member(said: Statement, own: Statement) -> bool:
    """Return whether a peer is of this node's cluster: it hears this node, or is an active node without peers
    that this node stands by for."""
    if not said.is_telling or not said.role:
        return False
    return own.has_one_active if said.hears is None else own.instance in said.hears


def _may_be_member(peer: _Peer, said: Statement) -> bool:
    """Return whether a peer is known as one of this cluster, or is of a version that cannot show it."""
    return peer.is_member or (bool(said.role) and not said.is_telling)


def _words(peer: _Peer) -> str:
    said = peer.said
    if peer.failure is None and said is not None:
        return f"{peer.address} {_role_words(said)}"
    before = f" (it was {said.role}, with {_block(said.last)})" if said is not None and said.role else ""
    return f"{peer.address} does not answer{before}: {peer.failure}"


def _role_words(said: Statement) -> str:
    is_what = "is a standby" if said.role == _STANDBY else f"is {said.role or 'no Sluice node'}"
    return f"{is_what} with {_block(said.last)}"


def _candidate_words(said: Statement, needed: int | None) -> str:
    if not said.is_ready:
        return f"{_role_words(said)}, and not ready"
    return f"{_role_words(said)}, and needs block {needed}"


def _block(number: int | None) -> str:
    return "no block" if number is None else f"block {number}"
