"""The election of the active node: who may claim a term, how long it holds, and when it is safe to lead.

Pure. `cluster.term_keeper` is the shell; a coordinator (`cluster.coordinator`) keeps a lease.

    term        the time of one active node. Its number, the epoch, rises with each; the coordinator grants an
                epoch once, to one node, while no other node holds the lease
    lease       the node that holds the term renews it. Without a renewal it ends, and others may claim
    promise     a node that is asked for an epoch, which the coordinator granted to the asker, writes it to
                its disk. From then on it reports its blocks to the node of that epoch alone
    member      a node whose disk has joined the cluster's record. A new disk at an old address is none until
                it has what the active node has: it would promise for blocks that went with the old disk

    FREE        no term here                          looks at the coordinator; claims when nobody holds it
    TAKING      has the term, is not active yet       collects promises, and fetches what it lacks
    LEADING     is active                             acknowledges while `may_acknowledge`

Why no acknowledged block is lost, whatever clocks and lines do: a block is acknowledged in epoch E when it is
on the node's own disk and, by reports of epoch E, on `min_standbys` others. A node leads in a later epoch
only after `nodes_needed` nodes of the cluster have promised it that epoch, and when it has the highest block
that any of them had then. These and those share at least one node, as `nodes_needed + min_standbys + 1` is
more than all nodes. That one reported the block before it promised, or it would have refused.

Why two nodes never acknowledge at a time: a node counts its lease from the moment at which it asked for it,
and by `CLOCK_DRIFT_MAX` shorter than the coordinator does. The time is that of CLOCK_BOOTTIME, which goes on
while a machine sleeps.

Source: docs/operations.md, "Let the cluster fail over by itself".
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Final

from sluice.gateway.errors import Fatal, InvalidInput
from sluice.gateway.regular_files import read_small_text, replace_file

__all__ = [
    "CLOCK_DRIFT_MAX",
    "ClusterRecord",
    "Election",
    "ElectionRules",
    "ElectionState",
    "Holder",
    "Promise",
    "Seen",
    "TermPhase",
    "read_promise",
    "write_promise",
]

CLOCK_DRIFT_MAX: Final = 0.05
"""The share by which two clocks may run differently. Real ones differ by less than a thousandth; the rest is
for virtual machines whose clock stands for a while."""

LOOK_SECONDS: Final = 1.0
"""Time between two looks at the coordinator, and the time without a holder before a node claims the term."""
TAKING_SECONDS_MAX: Final = 60.0
"""The longest time that a node keeps a term without being active."""
HEARD_AHEAD_MAX: Final = 1_000_000
"""The highest distance from the granted epochs at which an epoch that a node tells of is believed."""
BEHIND_SECONDS: Final = 1.0
"""The further wait of a node that knows of one with more blocks: that one need not fetch them."""
JITTER_SECONDS: Final = 0.5
"""The longest further wait that is drawn, so that two nodes seldom claim at a time."""
RENEWALS_PER_LEASE: Final = 4
"""Three renewals may fail before the lease ends."""

PROMISE_FILE_NAME = "promise.json"
_EPOCH_MAX: Final = 1 << 62


class TermPhase(Enum):
    """The phase of one node in the election; the value is for people."""

    FREE = "has no term"
    TAKING = "takes over"
    LEADING = "leads"


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """The record of a cluster at the coordinator: it outlives every lease."""

    epoch: int
    """The last that was granted; 0: none was."""
    node_count: int
    min_standbys: int
    nodes: Mapping[str, str]
    """The addresses of those that have joined, `host:port` each, and the name of the disk of each."""

    def encode(self) -> bytes:
        """Return it as JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> ClusterRecord:
        """Raises InvalidInput if it is none."""
        try:
            found = json.loads(data)
            nodes = dict(found["nodes"].items())
            numbers = [found["epoch"], found["node_count"], found["min_standbys"]]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise _unreadable("cluster", data) from None
        if not all(map(_is_count, numbers)) or not _are_texts(*nodes.values()):
            raise _unreadable("cluster", data)
        return cls(numbers[0], numbers[1], numbers[2], nodes)


@dataclass(frozen=True, slots=True)
class Holder:
    """The node that holds the term, as it says at the coordinator."""

    epoch: int
    address: str
    """Where publishers reach it, `host:port`."""
    instance: str
    """The name of its process."""
    successor: str = ""
    """The process that may take the term from it: `sluice failover` hands over. Empty: none."""

    def encode(self) -> bytes:
        """Return it as JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Holder:
        """Raises InvalidInput if it is none."""
        try:
            found = json.loads(data)
            words = [found["address"], found["instance"], found["successor"]]
            epoch = found["epoch"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise _unreadable("holder", data) from None
        if not _is_count(epoch) or not _are_texts(*words):
            raise _unreadable("holder", data)
        return cls(epoch, *words)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= _EPOCH_MAX


def _are_texts(*values: object) -> bool:
    return all(isinstance(one, str) for one in values)


def _unreadable(what: str, data: bytes) -> InvalidInput:
    return InvalidInput(f"{what} record of the coordinator", repr(data[:200]), "JSON that Sluice wrote")


@dataclass(frozen=True, slots=True)
class Seen:
    """The records of one cluster at the coordinator, at one moment."""

    cluster: ClusterRecord | None
    holder: Holder | None
    version: Any = None
    """What the coordinator compares: a later change makes a write that is based on this one fail."""


@dataclass(frozen=True, slots=True)
class ElectionState:
    """A node's part in the election, for reports."""

    phase: TermPhase
    epoch: int
    """Of the term that this node has; 0: none."""
    holder: Holder | None
    """Who has the term, as far as this node knows."""
    lease_seconds_left: float
    away: str | None
    """Why the coordinator does not answer; None: it does."""
    misfit: str | None
    """Why this node takes no part."""
    problem: str | None
    """Why its last attempt to take over failed."""


@dataclass(frozen=True, slots=True)
class ElectionRules:
    """The settings of the election."""

    node_count: int
    min_standbys: int
    lease_seconds: float = 10.0

    @property
    def nodes_needed(self) -> int:
        """The number of nodes, with itself, that must promise an epoch to the node that is to lead in it."""
        return max(1, self.node_count - self.min_standbys)

    @property
    def nodes_to_claim(self) -> int:
        """The number of nodes, with itself, that a node must reach to claim by itself.

        With fewer it could not lead, or could not acknowledge.
        """
        return max(self.nodes_needed, self.min_standbys + 1)

    @property
    def held_seconds(self) -> float:
        """The time for which a node holds a lease, by its own clock, from the moment at which it asked."""
        return self.lease_seconds * (1 - CLOCK_DRIFT_MAX)

    @property
    def renew_seconds(self) -> float:
        """Time between two renewals."""
        return self.lease_seconds / RENEWALS_PER_LEASE


@dataclass(frozen=True, slots=True)
class Promise:
    """The promise of a node, as it is on its disk."""

    disk: str
    """The name of the disk: what is lost with it is known to be lost."""
    epoch: int = 0
    candidate: str = ""
    """The process that it was given to."""


class Election:
    """The election, as one node takes part in it. Times are seconds of one clock.

    Args:
        address: this node's, `host:port`: its name among the cluster's nodes.
        instance: the name of this process.
        promise: what is on its disk.
    """

    def __init__(self, rules: ElectionRules, address: str, instance: str, promise: Promise) -> None:
        self.rules = rules
        self.address = address
        self.phase = TermPhase.FREE
        self.epoch = 0
        """Of the term that this node has; 0: it has none."""
        self.promise = promise
        self._heard = promise.epoch
        """The highest epoch that it has heard of."""
        self.answering = 1
        """Nodes that answer this one, with itself."""
        self.is_member = False
        """It has joined the cluster, at the coordinator: only then its promise counts."""
        self.away: str | None = "it was not asked yet"
        """Why the coordinator does not answer; None: it does."""
        self.misfit: str | None = None
        """Why this node may not take part, in words."""
        self.seen: Seen | None = None
        self.instance = instance
        self._claimed_at = self._ends_at = 0.0
        self._renew_at = 0.0
        self._look_at = 0.0
        self._free_since: float | None = None
        self._pause_until = 0.0

    # --- the coordinator -----------------------------------------------------------------------------------

    def looked(self, seen: Seen, now: float) -> None:
        """Take what the coordinator has."""
        self.away, self.seen, self._look_at = None, seen, now + LOOK_SECONDS
        if seen.holder is None:
            self._free_since = now if self._free_since is None else self._free_since
        else:
            self._free_since = None
        self.misfit = self._misfit(seen.cluster)
        self.is_member = self.misfit is None and self._disk_there == self.promise.disk

    @property
    def _disk_there(self) -> str | None:
        """The disk that has joined at this node's address."""
        cluster = None if self.seen is None else self.seen.cluster
        return None if cluster is None else cluster.nodes.get(self.address)

    def failed(self, why: str, now: float) -> None:
        """The coordinator did not answer. A lease goes on until it ends."""
        self.away, self._free_since = why, None
        self._look_at = now + LOOK_SECONDS
        self._renew_at = now + self.rules.renew_seconds / 2

    def joined(self, *, is_level: bool) -> ClusterRecord | None:
        """Return the record with this node, to be written if it is unchanged; None: it does not join now.

        The first record needs all nodes.

        Args:
            is_level: this node has what the active node has: a new disk needs that.
        """
        rules, found = self.rules, None if self.seen is None else self.seen.cluster
        if self.misfit is not None or self.is_member or (self._disk_there is not None and not is_level):
            return None
        if found is None:
            if self.answering < rules.node_count:
                return None
            found = ClusterRecord(0, rules.node_count, rules.min_standbys, {})
        return replace(found, nodes={**found.nodes, self.address: self.promise.disk})

    def why_no_member(self) -> str | None:
        """Return why this node's promise does not count; None: it does."""
        if self.is_member:
            return None
        if self.misfit is not None or self.seen is None or self.seen.cluster is None:
            return self.misfit or self.away or "not all nodes of the cluster have answered yet"
        if self._disk_there is None:
            return "this node has not joined the cluster yet"
        return (
            f"{self.address} has another disk than the one that joined the cluster: it takes part again when "
            "it has the blocks of the active node"
        )

    def _misfit(self, cluster: ClusterRecord | None) -> str | None:
        if cluster is None:
            return None
        rules = self.rules
        if (cluster.node_count, cluster.min_standbys) != (rules.node_count, rules.min_standbys):
            return (
                f"this node has {_nodes(rules.node_count)} and commit.min_standbys {rules.min_standbys}, the "
                f"cluster at the coordinator {_nodes(cluster.node_count)} and {cluster.min_standbys}"
            )
        if self.address not in cluster.nodes and len(cluster.nodes) >= cluster.node_count:
            return (
                f"this node is {self.address}, and the cluster at the coordinator has "
                f"{_nodes(cluster.node_count)} already: {', '.join(cluster.nodes)}"
            )
        return None

    # --- claiming ------------------------------------------------------------------------------------------

    def is_look_due(self, now: float) -> bool:
        """Return whether it is time to look at the coordinator."""
        return self.phase is TermPhase.FREE and now >= self._look_at

    def may_claim(self) -> str | None:
        """Return why nobody may claim the term here now, even if it is asked to; None: it may."""
        seen = self.seen
        if self.away is not None or seen is None:
            return self.away
        if (why_not := self.why_no_member()) is not None:
            return why_not
        holder = seen.holder
        if holder is None or holder.successor == self.instance:
            return None
        return f"{holder.address} holds the lease of epoch {holder.epoch}"

    def should_claim(self, now: float, *, is_behind: bool, jitter: float) -> bool:
        """Return whether this node should claim the term by itself.

        Args:
            is_behind: another node that answers has more blocks.
            jitter: 0 to 1, drawn for each claim.
        """
        if self.phase is not TermPhase.FREE or self.may_claim() is not None or self._free_since is None:
            return False
        if not self._is_enough() or now < self._pause_until:
            return False
        wait = LOOK_SECONDS + jitter * JITTER_SECONDS + (BEHIND_SECONDS if is_behind else 0.0)
        return now - self._free_since >= wait

    def claim(self) -> tuple[ClusterRecord, Holder]:
        """Return the records to write, with the next epoch, if the coordinator has what was seen."""
        found = None if self.seen is None else self.seen.cluster
        assert found is not None
        heard = self._heard if self._heard <= found.epoch + HEARD_AHEAD_MAX else self.promise.epoch
        epoch = max(found.epoch, heard) + 1
        return replace(found, epoch=epoch), Holder(epoch, self.address, self.instance)

    def claimed(self, epoch: int, asked_at: float) -> None:
        """The coordinator granted the term."""
        self.phase, self.epoch, self._free_since = TermPhase.TAKING, epoch, None
        self._claimed_at = asked_at
        self._ends_at = asked_at + self.rules.held_seconds
        self._renew_at = asked_at + self.rules.renew_seconds

    # --- a term --------------------------------------------------------------------------------------------

    def is_renewal_due(self, now: float) -> bool:
        """Return whether it is time to renew the lease."""
        return self.phase is not TermPhase.FREE and now >= self._renew_at

    def renewed(self, asked_at: float) -> None:
        """The coordinator renewed the lease; only later times count."""
        self.away = None
        self._ends_at = max(self._ends_at, asked_at + self.rules.held_seconds)
        self._renew_at = asked_at + self.rules.renew_seconds

    def promised(self, promise: Promise) -> None:
        """This node's promise is on its disk."""
        self.promise = promise
        self._heard = max(self._heard, promise.epoch)

    def heard(self, epoch: int) -> None:
        """Another node says that it has promised this epoch to somebody: the next claim goes beyond it."""
        self._heard = max(self._heard, epoch)

    def holds(self, now: float) -> bool:
        """Return whether this node has a term that nobody can have followed."""
        return self.epoch > 0 and now < self._ends_at and self.promise.epoch <= self.epoch

    def why_lost(self, now: float) -> str | None:
        """Return why the term has ended, in words; None: there is none, or it holds."""
        if self.epoch == 0:
            return None
        if self.phase is TermPhase.TAKING and now - self._claimed_at >= TAKING_SECONDS_MAX:
            return f"the node was not active within {TAKING_SECONDS_MAX:g} s"
        if self.holds(now):
            return None
        if self.promise.epoch > self.epoch:
            return f"another node has begun epoch {self.promise.epoch}"
        return "the lease could not be renewed" + (f": {self.away}" if self.away else "")

    def may_acknowledge(self, now: float) -> bool:
        """Return whether this node may tell publishers that blocks are safe."""
        return self.phase is TermPhase.LEADING and self.holds(now)

    def lacks(self, answers: Sequence[int | None], last: int | None) -> str | None:
        """Return why this node may not lead yet; None: it has every acknowledged block.

        Args:
            answers: the last block of each other node that has promised this term's epoch.
            last: of this node.
        """
        if self.promise.epoch != self.epoch:
            return f"the promise of epoch {self.epoch} is not on disk"
        needed = self.rules.nodes_needed - 1
        if len(answers) < needed:
            return (
                f"{len(answers)} other {'node has' if len(answers) == 1 else 'nodes have'} promised epoch "
                f"{self.epoch}, expected {needed}"
            )
        highest = max((one for one in answers if one is not None), default=None)
        if highest is not None and (last is None or last < highest):
            return f"block {highest} is on another node and not here yet"
        return None

    def lead(self) -> None:
        """This node is active."""
        assert self.phase is TermPhase.TAKING
        self.phase = TermPhase.LEADING

    def state(self, now: float, problem: str | None) -> ElectionState:
        """Return the state for reports, with the reason why the last attempt to take over failed."""
        holder = None if self.seen is None else self.seen.holder
        if problem is None and self.phase is TermPhase.FREE and holder is None and not self._is_enough():
            reached = f"{_nodes(self.answering)} of the cluster can be reached"
            problem = f"{reached}, expected {self.rules.nodes_to_claim}"
        return ElectionState(
            self.phase,
            self.epoch,
            Holder(self.epoch, self.address, self.instance) if self.epoch else holder,
            max(0.0, self._ends_at - now),
            self.away,
            None if self.away is not None else self.why_no_member(),
            problem,
        )

    def _is_enough(self) -> bool:
        return self.answering >= self.rules.nodes_to_claim

    def gave_up(self, now: float, pause_seconds: float = 0.0) -> None:
        """This node has no term any more; it claims none by itself for a while."""
        self.phase, self.epoch, self._ends_at = TermPhase.FREE, 0, 0.0
        self._look_at, self._free_since, self._pause_until = now, None, now + pause_seconds


def _nodes(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"


# --- the promise on disk ------------------------------------------------------------------------------------


def read_promise(data_dir: Path) -> Promise:
    """Return what this node has promised; a new disk gets a name, which is on disk on return.

    Raises:
        Fatal: the file cannot be read. A node that forgets its promise could make two nodes active.
        OSError: the disk refused the name.
    """
    path = data_dir / PROMISE_FILE_NAME
    expected = 'an object such as {"epoch": 7, "candidate": "5f0c…", "disk": "9d41…"}'
    text = read_small_text(path, expected)
    if text is None:
        promise = Promise(secrets.token_hex(8))
        write_promise(data_dir, promise)
        return promise
    try:
        found = json.loads(text)
        promise = Promise(found["disk"], found["epoch"], found["candidate"])
    except (ValueError, KeyError, TypeError, RecursionError):
        promise = Promise("")
    if not promise.disk or not _is_count(promise.epoch) or not _are_texts(promise.disk, promise.candidate):
        raise Fatal(str(path), got=repr(text[:200]), expected=expected)
    return promise


def write_promise(data_dir: Path, promise: Promise) -> None:
    """Write a promise; it is on disk on return.

    Raises:
        OSError: the disk refused.
    """
    content = {"epoch": promise.epoch, "candidate": promise.candidate, "disk": promise.disk}
    replace_file(data_dir / PROMISE_FILE_NAME, (json.dumps(content) + "\n").encode())
