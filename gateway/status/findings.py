"""The findings on a node: what is wrong, since when, and what to do.

Pure. `look` reads a moment's findings from a `NodeReport`; `FindingBook` remembers since when each is there.
A *problem* is a reason of `/readyz`; a *note* leaves the node ready.

Each kind names its section of docs/operations.md, which `/operations` serves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from sluice.gateway.cluster.cluster_view import ClusterFault
from sluice.gateway.cluster.election import ElectionState, TermPhase
from sluice.gateway.pipeline.replication_quorum import QuorumState, unconfirmed
from sluice.gateway.status.node_report import Finding, NodeReport

__all__ = ["ADVICE", "Advice", "FindingBook", "FindingKind", "Seen", "look", "slug"]

QUIET_BLOCK_TIMES: Final = 10
"""Block times without a block that are worth a note..."""

QUIET_SECONDS_MIN: Final = 30.0
"""...but no shorter time than this."""

STANDBY_WAIT_SECONDS: Final = 3.0
"""The time that a block of a ready node may wait for standbys: many times a working standby's delay."""


LACK_SECONDS: Final = 10.0
"""Time without an acknowledged block after which a block that the node could not check makes it unready.
While blocks come, any publisher could send such a block."""


class FindingKind(Enum):
    """The kind of a finding."""

    STARTING = "starting"
    STOPPING = "stopping"
    DISK = "disk"
    LACK = "lack"
    BROKEN = "broken"
    BEHIND = "behind"
    DEAD_END = "dead end"
    STANDBYS = "standbys"
    OTHER_CHAIN = "other chain"
    ELECTION = "election"
    COORDINATOR = "coordinator"
    NO_ACTIVE = "no active node"
    TWO_ACTIVE = "two active nodes"
    NO_SUCCESSOR = "no successor"
    NO_PUBLISHERS = "no publishers"
    ONE_PUBLISHER = "one publisher"
    NO_BLOCKS = "no blocks"
    UNCONFIRMED = "unconfirmed"
    DOUBT = "doubt"
    CERTIFICATE = "certificate"
    CONNECTIONS = "connections"
    MESSAGE_TOO_LONG = "message too long"
    BAD_PAGE = "bad page"
    BLOCKS_HELD = "blocks held open"
    PROCESSOR = "processor"
    ARCHIVE_ROOM = "archive room"
    ARCHIVE = "archive"
    ARCHIVE_DISAGREES = "archive disagrees"


@dataclass(frozen=True, slots=True)
class Advice:
    """The advice on a kind of finding."""

    words: str
    section: str
    """The heading in docs/operations.md."""
    is_problem: bool


ADVICE: Final[dict[FindingKind, Advice]] = {
    FindingKind.STARTING: Advice(
        "Nothing: it takes connections in a moment.", "A node is not ready", is_problem=True
    ),
    FindingKind.STOPPING: Advice(
        "Nothing: it finishes its blocks and ends.", "A node is not ready", is_problem=True
    ),
    FindingKind.DISK: Advice(
        "Make room, or mend the disk of data_dir: the node tries again twice a second and goes on by itself. "
        "Publishers with another address are there already. If the disk is dead: stop this node, fail over.",
        "The disk is slow or full",
        is_problem=True,
    ),
    FindingKind.LACK: Advice(
        "Give the node what it lacks, and restart it: the --ledger-key that is named, an address book that "
        "has the key, or a later Sluice for an item that it does not know.",
        "Blocks cannot be checked",
        is_problem=True,
    ),
    FindingKind.BROKEN: Advice(
        "Keep the log, restart the node, and report the bug.", "A node is not ready", is_problem=True
    ),
    FindingKind.BEHIND: Advice(
        "See whether the peers below answer and hold the next block: sluice status NODE PEER.",
        "A node is behind",
        is_problem=True,
    ),
    FindingKind.DEAD_END: Advice(
        "Compare its root hash with other nodes: sluice status NODE OTHER. Where this node is alone, stop it "
        "and cut that block: sluice truncate DATA_DIR --to-block N, one below it.",
        "The last block fits nobody",
        is_problem=True,
    ),
    FindingKind.STANDBYS: Advice(
        "Start the standbys that do not report, or see why they do not follow: sluice status NODE STANDBY. "
        "Without them, and without an election: add a node, or restart with --commit-min-standbys 0.",
        "Blocks wait for standbys",
        is_problem=True,
    ),
    FindingKind.OTHER_CHAIN: Advice(
        "Compare the nodes: sluice status NODE PEER. One of them was started on the data of another network.",
        "Blocks wait for standbys",
        is_problem=False,
    ),
    FindingKind.ELECTION: Advice(
        "See whether the coordinator answers (etcdctl endpoint health), whether enough nodes run, and if "
        "all have the same failover and commit.min_standbys settings. A new disk only has to catch up.",
        "Let the cluster fail over by itself",
        is_problem=True,
    ),
    FindingKind.COORDINATOR: Advice(
        "Bring the coordinator back before the lease ends: the node stops acknowledging then.",
        "Let the cluster fail over by itself",
        is_problem=False,
    ),
    # Notes, all three: this node works, and an unready one would leave readers to fewer.
    FindingKind.NO_ACTIVE: Advice(
        "With failover.automatic: wait for half a minute. Else see whether the node that was active answers "
        "elsewhere: sluice status. If it is dead: sluice failover --force to the node with the most blocks.",
        "No node is active",
        is_problem=False,
    ),
    FindingKind.TWO_ACTIVE: Advice(
        "Run sluice failover to the one that is not behind, in either direction; the other stands by then.",
        "Two nodes are active",
        is_problem=False,
    ),
    FindingKind.NO_SUCCESSOR: Advice(
        "Start the standbys that do not answer, or see on their pages why they do not follow. Until then, do "
        "not stop the active node.",
        "Nobody could take over",
        is_problem=False,
    ),
    FindingKind.NO_PUBLISHERS: Advice(
        "Ask the publishers whether they reach this address, and with which certificate.",
        "No blocks come",
        is_problem=False,
    ),
    FindingKind.ONE_PUBLISHER: Advice(
        "Find out where the others are: nobody takes over if this one fails.",
        "Publishers are missing",
        is_problem=False,
    ),
    FindingKind.NO_BLOCKS: Advice(
        "See below what each publisher does, and in the log whether blocks are refused.",
        "No blocks come",
        is_problem=False,
    ),
    FindingKind.UNCONFIRMED: Advice(
        "Find out which publisher is wrong, or which node has that block and make it a peer of this one.",
        "A node is behind",
        is_problem=False,
    ),
    FindingKind.DOUBT: Advice(
        "See whether others say the same: one publisher may be wrong. Compare with another node: "
        "sluice status NODE OTHER.",
        "The last block fits nobody",
        is_problem=False,
    ),
    FindingKind.CERTIFICATE: Advice(
        "Put a certificate and key into place that fit each other; they are taken up without a restart.",
        "A certificate ends",
        is_problem=False,
    ),
    FindingKind.CONNECTIONS: Advice(
        "See in the log who it is. One that should connect: raise the limit that is named. A stranger: keep "
        "it out with a firewall or client certificates; the node has ended what it did.",
        "Connections are refused or ended",
        is_problem=False,
    ),
    FindingKind.MESSAGE_TOO_LONG: Advice(
        "If it is a publisher of yours: raise grpc.max_message_bytes on every node, or have it send smaller "
        "items.",
        "Messages are refused",
        is_problem=False,
    ),
    # No problem: all but the page is served. An unready node would leave its work to others, and may be the
    # last one.
    FindingKind.BAD_PAGE: Advice(
        "Nothing, while a peer heals it. Else give the node a peer that has these blocks (peers), or restore "
        "a backup; and look at the disk (smartctl, dmesg).",
        "A page is bad",
        is_problem=False,
    ),
    FindingKind.BLOCKS_HELD: Advice(
        "See in the log what it failed: block dropped, block refused. One of yours: look at its line and its "
        "key. A stranger: keep it out with a firewall or client certificates; the chain goes on without it.",
        "A publisher holds blocks open",
        is_problem=False,
    ),
    FindingKind.PROCESSOR: Advice(
        "Find out what else uses the processors of this machine: top. Move it elsewhere, or give it a lower "
        "priority than the node (nice); in a container, raise the limit.",
        "The processor is too slow",
        is_problem=False,
    ),
    FindingKind.ARCHIVE_ROOM: Advice(
        "Make room on the disk of data_dir, or bring the archive back: only what is archived is given up.",
        "The archive is behind",
        is_problem=True,
    ),
    FindingKind.ARCHIVE: Advice(
        "See whether the store answers and takes these credentials. The node tries again by itself.",
        "The archive is behind",
        is_problem=False,
    ),
    FindingKind.ARCHIVE_DISAGREES: Advice(
        "Compare this node with the others before anything else: sluice status NODE OTHER. It gives up no "
        "pages meanwhile.",
        "The archive has other entries",
        is_problem=False,
    ),
}


_CLUSTER: Final = {
    ClusterFault.NO_ACTIVE: FindingKind.NO_ACTIVE,
    ClusterFault.TWO_ACTIVE: FindingKind.TWO_ACTIVE,
    ClusterFault.NO_SUCCESSOR: FindingKind.NO_SUCCESSOR,
}

Seen = tuple[FindingKind, str]


def look(report: NodeReport) -> list[Seen]:
    """Return what is wrong now, problems first."""
    seen: list[Seen] = []
    if report.is_starting:
        seen.append((FindingKind.STARTING, "the node is starting"))
    if report.is_stopping:
        seen.append((FindingKind.STOPPING, "the node is stopping"))
    if report.disk_failure is not None:
        seen.append((FindingKind.DISK, f"blocks cannot be written: {report.disk_failure}"))
    if report.lack is not None and _stands(report):
        seen.append((FindingKind.LACK, report.lack))
    if report.is_broken:
        seen.append((FindingKind.BROKEN, "the publish race has stopped on an internal error, see the log"))
    if report.catch_up_problem is not None:
        seen.append((FindingKind.BEHIND, report.catch_up_problem))
    if report.disputed is not None and report.disputed.is_dead_end:
        seen.append((FindingKind.DEAD_END, report.disputed.text))
    if report.quorum is not None:
        seen += _standbys(report.quorum)
    if report.election is not None:
        seen += _election(report.election)
    for archive in report.archives:
        if archive.room_ends is not None:
            seen.append((FindingKind.ARCHIVE_ROOM, f"archive {archive.url}: {archive.room_ends}"))
    return seen if report.is_stopping else seen + _notes(report)


def _stands(report: NodeReport) -> bool:
    """Return whether the chain stands still."""
    return report.last_block_age_seconds is None or report.last_block_age_seconds >= LACK_SECONDS


def _standbys(quorum: QuorumState) -> list[Seen]:
    seen: list[Seen] = []
    if quorum.refusal is not None:
        seen.append((FindingKind.STANDBYS, quorum.refusal))
    elif quorum.awaiting is not None and quorum.awaiting_seconds >= STANDBY_WAIT_SECONDS:
        seen.append((FindingKind.STANDBYS, unconfirmed(quorum, quorum.awaiting)))
    if quorum.other_chains:
        seen.append((FindingKind.OTHER_CHAIN, "; ".join(quorum.other_chains)))
    return seen


def _election(election: ElectionState) -> list[Seen]:
    if election.misfit is not None:
        return [(FindingKind.ELECTION, f"the node takes no part in the election: {election.misfit}")]
    if election.phase is TermPhase.LEADING:
        if election.away is None:
            return []
        text = f"the lease ends in {election.lease_seconds_left:.0f} s, and cannot be renewed"
        return [(FindingKind.COORDINATOR, f"{text}: {election.away}")]
    if election.away is not None:
        return [(FindingKind.ELECTION, f"the node cannot take over: {election.away}")]
    if election.holder is None and election.problem is not None:
        return [(FindingKind.ELECTION, f"the node could not take over: {election.problem}")]
    return []


def _notes(report: NodeReport) -> list[Seen]:
    seen: list[Seen] = [(_CLUSTER[fault], text) for fault, text in report.cluster_faults]
    if report.sent_elsewhere is None:
        if report.publisher_count == 0:
            seen.append((FindingKind.NO_PUBLISHERS, "no publisher is connected"))
        elif report.publisher_count == 1:
            seen.append((FindingKind.ONE_PUBLISHER, "only one publisher is connected"))
        quiet_seconds = max(QUIET_SECONDS_MIN, QUIET_BLOCK_TIMES * report.block_time_seconds)
        if report.quiet_seconds > quiet_seconds:
            seen.append(
                (FindingKind.NO_BLOCKS, f"no block was acknowledged for more than {quiet_seconds:g} s")
            )
    if report.given_up_target is not None:
        text = f"publishers told of block {report.given_up_target}, and no peer has it or one before it"
        seen.append((FindingKind.UNCONFIRMED, text))
    if report.disputed is not None and not report.disputed.is_dead_end:
        seen.append((FindingKind.DOUBT, report.disputed.text))
    if report.certificates:
        seen.append((FindingKind.CERTIFICATE, "; ".join(report.certificates)))
    if report.door:
        seen.append((FindingKind.CONNECTIONS, "; ".join(report.door)))
    if report.refused_message is not None:
        seen.append((FindingKind.MESSAGE_TOO_LONG, report.refused_message))
    if report.bad_pages:
        seen.append((FindingKind.BAD_PAGE, "; ".join(report.bad_pages)))
    if report.backing_off:
        worst, *others = report.backing_off
        text = f"{worst.words()}: {worst.failure_count} failed blocks in a row or more, backing off"
        seen.append((FindingKind.BLOCKS_HELD, text + (f"; so do {len(others)} others" if others else "")))
    if report.processor is not None:
        seen.append((FindingKind.PROCESSOR, report.processor))
    errors = [words for one in report.archives for words in (one.error, one.read_error) if words is not None]
    if errors:
        seen.append((FindingKind.ARCHIVE, "; ".join(dict.fromkeys(errors))))
    disagreements = [one.disagreement for one in report.archives if one.disagreement is not None]
    if disagreements:
        text = f"two nodes disagree in the archive: {'; '.join(disagreements)}"
        seen.append((FindingKind.ARCHIVE_DISAGREES, text))
    return seen


class FindingBook:
    """Remembers since when each kind of finding is there."""

    def __init__(self) -> None:
        self._since: dict[FindingKind, float] = {}

    def note(self, seen: Iterable[Seen], now_unix_seconds: float, now_seconds: float) -> tuple[Finding, ...]:
        """Note what is wrong now, and return it with since when.

        Args:
            now_unix_seconds: the time of day, which may be set forward and back.
            now_seconds: a time that only goes on, also while the machine sleeps.
        """
        seen = tuple(seen)
        self._since = {kind: self._since.get(kind, now_seconds) for kind, _ in seen}
        return tuple(
            Finding(
                text,
                now_unix_seconds - (now_seconds - self._since[kind]),
                ADVICE[kind].words,
                ADVICE[kind].section,
                ADVICE[kind].is_problem,
            )
            for kind, text in seen
        )


def slug(heading: str) -> str:
    """Return a heading's anchor in Markdown."""
    kept = "".join(letter for letter in heading.lower() if letter.isalnum() or letter in " -_")
    return kept.replace(" ", "-")
