"""Tests of `gateway.status.findings`: what is wrong, since when; each kind has advice and a section."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.gateway.cluster.cluster_view import ClusterFault
from sluice.gateway.cluster.election import ElectionState, Holder, TermPhase
from sluice.gateway.pipeline.dispute import Disputed
from sluice.gateway.pipeline.replication_quorum import QuorumState
from sluice.gateway.status.findings import (
    ADVICE,
    LACK_SECONDS,
    QUIET_BLOCK_TIMES,
    QUIET_SECONDS_MIN,
    FindingBook,
    FindingKind,
    look,
    slug,
)
from sluice.gateway.status.node_report import NodeReport

DISPUTED = Disputed(7, b"\1" * 48, b"\2" * 48, ("alice", "bob"), is_dead_end=True)
FINE = NodeReport(
    version="0.1.0",
    instance="feed",
    phase="active",
    verification_mode="full",
    grpc_address="127.0.0.1:40840",
    now_unix_seconds=1_700_000_000.0,
    block_time_seconds=2.0,
    publisher_count=3,
    quiet_seconds=1.0,
    last_block_age_seconds=1.0,
)
WAITING = "blocks 7 to 9 are not acknowledged before 2 other nodes (commit.min_standbys) have them on disk: "
STANDBYS = QuorumState(2, (("b:1", "has block 6"), ("c:1", "does not report: gone")), awaiting=(7, 9))
PAGE = Path(__file__).resolve().parents[3] / "docs" / "operations.md"


def kinds(report: NodeReport) -> list[FindingKind]:
    return [kind for kind, _ in look(report)]


def test_nothing_is_wrong_with_a_node_that_is_fine() -> None:
    assert look(FINE) == []


ELECTED = ElectionState(TermPhase.LEADING, 5, Holder(5, "a:1", "A"), 6.4, None, None, None)


@pytest.mark.parametrize(
    ("report", "kind", "text"),
    [
        (replace(FINE, is_starting=True), FindingKind.STARTING, "the node is starting"),
        (replace(FINE, is_stopping=True), FindingKind.STOPPING, "the node is stopping"),
        (replace(FINE, disk_failure="no space"), FindingKind.DISK, "blocks cannot be written: no space"),
        (
            replace(FINE, is_broken=True),
            FindingKind.BROKEN,
            "the publish race has stopped on an internal error, see the log",
        ),
        (replace(FINE, catch_up_problem="stands still"), FindingKind.BEHIND, "stands still"),
        (replace(FINE, disputed=DISPUTED), FindingKind.DEAD_END, DISPUTED.text),
        (
            replace(FINE, disputed=replace(DISPUTED, is_dead_end=False)),
            FindingKind.DOUBT,
            replace(DISPUTED, is_dead_end=False).text,
        ),
        *(
            (replace(FINE, cluster_faults=((fault, fault.value),)), kind, fault.value)
            for fault, kind in (
                (ClusterFault.NO_ACTIVE, FindingKind.NO_ACTIVE),
                (ClusterFault.TWO_ACTIVE, FindingKind.TWO_ACTIVE),
                (ClusterFault.NO_SUCCESSOR, FindingKind.NO_SUCCESSOR),
            )
        ),
        (
            replace(FINE, election=replace(ELECTED, misfit="other settings", away="e:1")),
            FindingKind.ELECTION,
            "the node takes no part in the election: other settings",
        ),
        (
            replace(FINE, election=replace(ELECTED, away="etcd does not answer: e:1")),
            FindingKind.COORDINATOR,
            "the lease ends in 6 s, and cannot be renewed: etcd does not answer: e:1",
        ),
        (
            replace(FINE, election=replace(ELECTED, phase=TermPhase.FREE, away="etcd does not answer: e:1")),
            FindingKind.ELECTION,
            "the node cannot take over: etcd does not answer: e:1",
        ),
        (
            replace(FINE, election=replace(ELECTED, phase=TermPhase.FREE, holder=None, problem="too few")),
            FindingKind.ELECTION,
            "the node could not take over: too few",
        ),
        (replace(FINE, processor="too little"), FindingKind.PROCESSOR, "too little"),
        (replace(FINE, publisher_count=0), FindingKind.NO_PUBLISHERS, "no publisher is connected"),
        (replace(FINE, publisher_count=1), FindingKind.ONE_PUBLISHER, "only one publisher is connected"),
        (
            replace(FINE, quiet_seconds=30.1),
            FindingKind.NO_BLOCKS,
            "no block was acknowledged for more than 30 s",
        ),
        (
            replace(FINE, quiet_seconds=101, block_time_seconds=10),
            FindingKind.NO_BLOCKS,
            "no block was acknowledged for more than 100 s",
        ),
        (
            replace(FINE, given_up_target=99),
            FindingKind.UNCONFIRMED,
            "publishers told of block 99, and no peer has it or one before it",
        ),
        (replace(FINE, refused_message="too long"), FindingKind.MESSAGE_TOO_LONG, "too long"),
        (
            replace(FINE, quorum=replace(STANDBYS, awaiting_seconds=3.0)),
            FindingKind.STANDBYS,
            WAITING + "b:1 has block 6; c:1 does not report: gone",
        ),
        (
            replace(FINE, quorum=QuorumState(1, (), awaiting=(7, 7), awaiting_seconds=9.0)),
            FindingKind.STANDBYS,
            "block 7 is not acknowledged before 1 other node (commit.min_standbys) have it on disk: ",
        ),
        (
            replace(FINE, quorum=replace(STANDBYS, refusal="not yet", awaiting_seconds=9.0)),
            FindingKind.STANDBYS,
            "not yet",
        ),
        (
            replace(FINE, quorum=replace(STANDBYS, other_chains=("b:1 has another chain", "c:1 too"))),
            FindingKind.OTHER_CHAIN,
            "b:1 has another chain; c:1 too",
        ),
    ],
)
def test_what_is_found(report: NodeReport, kind: FindingKind, text: str) -> None:
    assert look(report) == [(kind, text)]


def test_blocks_that_wait_for_standbys_for_a_moment_are_nothing_to_look_at() -> None:
    assert look(replace(FINE, quorum=replace(STANDBYS, awaiting_seconds=2.9))) == []
    assert look(replace(FINE, quorum=QuorumState(2, ()))) == []


def test_a_standby_needs_no_publishers_and_no_blocks_of_theirs() -> None:
    assert look(replace(FINE, sent_elsewhere="to another", publisher_count=0, quiet_seconds=999)) == []


def test_a_node_that_stops_is_not_said_to_lack_anything() -> None:
    assert kinds(replace(FINE, is_stopping=True, publisher_count=0, quiet_seconds=999)) == [
        FindingKind.STOPPING
    ]


def test_problems_come_before_notes() -> None:
    report = replace(FINE, disk_failure="no space", catch_up_problem="stands still", publisher_count=0)
    assert kinds(report) == [FindingKind.DISK, FindingKind.BEHIND, FindingKind.NO_PUBLISHERS]


@pytest.mark.parametrize(
    ("stored_seconds", "stands"),
    [(None, True), (0.0, False), (LACK_SECONDS - 1, False), (LACK_SECONDS, True)],
)
def test_what_the_node_lacks_is_a_problem_where_the_chain_stands(
    stored_seconds: float | None, stands: bool
) -> None:
    """While blocks come, a proof that the node cannot check does not make it unready."""
    report = replace(
        FINE, lack="block 9 of mallory cannot be checked: …", last_block_age_seconds=stored_seconds
    )
    assert look(report) == ([(FindingKind.LACK, "block 9 of mallory cannot be checked: …")] if stands else [])
    assert ADVICE[FindingKind.LACK].is_problem


def test_since_when_is_remembered_as_long_as_it_lasts() -> None:
    book = FindingBook()
    assert book.note([(FindingKind.DISK, "no space")], 100.0, 5.0)[0].since_unix_seconds == 100.0
    [finding] = book.note([(FindingKind.DISK, "no space, still")], 160.0, 65.0)
    assert (finding.text, finding.since_unix_seconds, finding.is_problem) == ("no space, still", 100.0, True)
    assert book.note([], 200.0, 105.0) == ()
    assert book.note([(FindingKind.DISK, "no space")], 300.0, 205.0)[0].since_unix_seconds == 300.0


@pytest.mark.parametrize("jump_seconds", [7_200.0, -7_200.0])
def test_a_clock_that_is_set_changes_nothing_of_how_long_something_lasts(jump_seconds: float) -> None:
    book = FindingBook()
    book.note([(FindingKind.DISK, "no space")], 10_000.0, 5.0)
    now_unix_seconds = 10_060.0 + jump_seconds
    [finding] = book.note([(FindingKind.DISK, "no space")], now_unix_seconds, 65.0)
    assert now_unix_seconds - finding.since_unix_seconds == 60.0


@pytest.mark.parametrize("kind", FindingKind)
def test_every_finding_has_advice_and_a_paragraph_of_the_page(kind: FindingKind) -> None:
    headings = re.findall(r"^## (.+)$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert ADVICE[kind].section in headings
    assert ADVICE[kind].words.endswith(".")


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("A node is behind", "a-node-is-behind"),
        ("The disk is slow or full", "the-disk-is-slow-or-full"),
        ("Back up, and restore!", "back-up-and-restore"),
    ],
)
def test_an_anchor(heading: str, anchor: str) -> None:
    assert slug(heading) == anchor


@pytest.mark.parametrize(
    ("block_time_seconds", "most_seconds"),
    [(QUIET_SECONDS_MIN / QUIET_BLOCK_TIMES, QUIET_SECONDS_MIN), (10.0, QUIET_BLOCK_TIMES * 10.0)],
)
def test_no_block_for_a_while_is_nothing_and_for_longer_is(
    block_time_seconds: float, most_seconds: float
) -> None:
    report = replace(FINE, block_time_seconds=block_time_seconds)
    assert kinds(replace(report, quiet_seconds=most_seconds)) == []
    assert kinds(replace(report, quiet_seconds=most_seconds + 0.001)) == [FindingKind.NO_BLOCKS]


def test_the_report_for_other_nodes_has_room_in_the_metadata_of_an_answer() -> None:
    """gRPC takes 8 KiB; what peers say and are called is repeated in it."""
    bad = tuple("\U0001f4a3" * 60 + str(number) for number in range(1_000))
    faults = tuple((fault, "\U0001f4a3" * 5_000) for fault in ClusterFault)
    report = replace(FINE, hears=(*bad, "0123456789abcdef"), cluster_faults=faults)
    said = json.dumps(report.for_status())
    assert len(said) < 7_000
    about = json.loads(said)["cluster"]
    assert about["hears"][0] == "0123456789abcdef"
    assert len(about["hears"]) > 3
    assert [text[:20] for text in about["faults"]] == ["\U0001f4a3" * 20] * len(faults)
