"""The rules of the election, and the promise on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.gateway.cluster.election import (
    CLOCK_DRIFT_MAX,
    ClusterRecord,
    Election,
    ElectionRules,
    Holder,
    Promise,
    Seen,
    TermPhase,
    read_promise,
    write_promise,
)
from sluice.gateway.errors import Fatal, InvalidInput

RULES = ElectionRules(3, 1, 10.0)
NODES = {"a:1": "disk-a", "b:1": "disk-b", "c:1": "disk-c"}
FREE = Seen(ClusterRecord(4, 3, 1, NODES), None)
HELD = Seen(ClusterRecord(4, 3, 1, NODES), Holder(4, "b:1", "B"))


def election(promised: int = 0, rules: ElectionRules = RULES) -> Election:
    return Election(rules, "a:1", "A", Promise("disk-a", promised))


def taking(at: float = 100.0) -> Election:
    """Epoch 5, claimed at that time, and promised here."""
    node = election()
    node.looked(FREE, at)
    node.claimed(node.claim()[1].epoch, at)
    node.promised(Promise("disk-a", 5, "A"))
    return node


def leading(at: float = 100.0) -> Election:
    node = taking(at)
    node.lead()
    return node


@pytest.mark.parametrize("node_count", range(1, 8))
@pytest.mark.parametrize("min_standbys", range(7))
def test_those_who_have_a_block_and_those_who_are_asked_share_a_node(
    node_count: int, min_standbys: int
) -> None:
    needed = ElectionRules(node_count, min_standbys).nodes_needed
    assert needed >= 1
    assert needed + min_standbys + 1 > node_count


def test_a_lease_is_counted_shorter_than_the_coordinator_counts_it_and_from_the_question_on() -> None:
    node, end = leading(), 100 + 10 * (1 - CLOCK_DRIFT_MAX)
    assert node.may_acknowledge(end - 0.001)
    assert not node.may_acknowledge(end)
    node.renewed(102.5)
    assert node.may_acknowledge(end + 2.4)
    node.renewed(101.0)  # an earlier question, answered later
    assert node.may_acknowledge(end + 2.4)
    assert not node.may_acknowledge(end + 2.5)
    assert node.why_lost(end + 2.5) == "the lease could not be renewed"


def test_nobody_acknowledges_before_it_leads_or_when_a_later_epoch_is_known() -> None:
    node = taking()
    assert node.holds(101)
    assert not node.may_acknowledge(101)
    node.lead()
    assert node.may_acknowledge(101)
    node.heard(6)  # what others say ends nothing here
    assert node.may_acknowledge(101)
    node.promised(Promise("disk-a", 6, "B"))  # asked by another node
    assert not node.may_acknowledge(101)
    assert node.why_lost(101) == "another node has begun epoch 6"
    node.gave_up(101)
    node.looked(FREE, 102)
    assert node.claim()[1].epoch == 7


def test_a_node_leads_when_enough_have_promised_and_it_has_what_they_have() -> None:
    node = taking()
    assert node.lacks([], 7) == "0 other nodes have promised epoch 5, expected 1"
    assert node.lacks([8], 7) == "block 8 is on another node and not here yet"
    assert node.lacks([0], None) == "block 0 is on another node and not here yet"
    for others, last in (([7], 7), ([None], None), ([None], 3), ([3, 2], 3)):
        assert node.lacks(others, last) is None
    node = election()
    node.looked(FREE, 100)
    node.claimed(5, 100)
    assert node.lacks([7], 7) == "the promise of epoch 5 is not on disk"
    assert ElectionRules(5, 2).nodes_needed == 3


@pytest.mark.parametrize(
    ("rules", "nodes"), [((3, 1), 2), ((5, 2), 3), ((5, 1), 4), ((2, 1), 2), ((3, 2), 3)], ids=str
)
def test_a_node_claims_by_itself_only_with_others_that_can_promise_and_confirm(
    rules: tuple[int, int], nodes: int
) -> None:
    assert ElectionRules(*rules).nodes_to_claim == nodes


def test_when_a_node_claims_by_itself() -> None:
    def should(node: Election, now: float, answering: int = 2, *, is_behind: bool = False) -> bool:
        node.answering = answering
        return node.should_claim(now, is_behind=is_behind, jitter=0.0)

    node = election()
    assert not should(node, 100)  # it has seen nothing
    node.looked(FREE, 100)
    assert not should(node, 100.9)
    assert should(node, 101)
    assert not should(node, 101, 1)  # nobody could promise
    assert not should(node, 101.9, is_behind=True)
    assert should(node, 102, is_behind=True)
    node.looked(HELD, 103)
    assert not should(node, 110)
    node.looked(FREE, 111)
    node.failed("nobody listens there", 111.5)
    assert not should(node, 120)  # the silence counts for nothing
    node.looked(FREE, 121)
    assert not should(node, 121.5)
    node.gave_up(121.5, 5.0)
    node.looked(FREE, 122)
    assert not should(node, 126)
    assert should(node, 127)


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (FREE, None),
        (HELD, "b:1 holds the lease of epoch 4"),
        (Seen(HELD.cluster, Holder(4, "b:1", "B", "A")), None),
        (Seen(HELD.cluster, Holder(4, "b:1", "B", "C")), "b:1 holds the lease of epoch 4"),
        (Seen(None, None), "not all nodes of the cluster have answered yet"),
        (
            Seen(ClusterRecord(4, 3, 1, NODES | {"a:1": "other"}), None),
            (
                "a:1 has another disk than the one that joined the cluster: it takes part again when it has "
                "the blocks of the active node"
            ),
        ),
        (Seen(ClusterRecord(4, 3, 1, {"b:1": "disk-b"}), None), "this node has not joined the cluster yet"),
        (
            Seen(ClusterRecord(4, 3, 1, {"b:1": "", "c:1": "", "d:1": ""}), None),
            "this node is a:1, and the cluster at the coordinator has 3 nodes already: b:1, c:1, d:1",
        ),
        (
            Seen(ClusterRecord(4, 5, 2, NODES), None),
            "this node has 3 nodes and commit.min_standbys 1, the cluster at the coordinator 5 nodes and 2",
        ),
    ],
)
def test_who_may_claim(seen: Seen, reason: str | None) -> None:
    node = election()
    node.looked(seen, 100)
    assert node.may_claim() == reason


def test_joining() -> None:
    node, own = election(), {"a:1": "disk-a"}
    node.looked(Seen(None, None), 100)
    node.answering = 2
    assert node.joined(is_level=False) is None  # the first record takes all nodes
    node.answering = 3
    assert node.joined(is_level=False) == ClusterRecord(0, 3, 1, own)
    node.looked(Seen(ClusterRecord(7, 3, 1, {"b:1": "disk-b"}), None), 100)
    node.answering = 1
    assert node.joined(is_level=False) == ClusterRecord(7, 3, 1, {"b:1": "disk-b"} | own)
    assert not node.is_member
    for seen in (FREE, Seen(ClusterRecord(4, 3, 1, {"b:1": "", "c:1": "", "d:1": ""}), None)):
        node.looked(seen, 100)
        assert node.joined(is_level=True) is None
        assert node.is_member is (seen is FREE)


def test_a_new_disk_at_an_old_address_joins_when_it_has_what_the_active_node_has() -> None:
    node = election()
    node.looked(Seen(ClusterRecord(4, 3, 1, NODES | {"a:1": "other"}), HELD.holder), 100)
    assert not node.is_member
    assert node.joined(is_level=False) is None
    assert node.joined(is_level=True) == ClusterRecord(4, 3, 1, NODES)


def test_the_next_epoch_is_above_all_that_are_known() -> None:
    for promised, heard, epoch in ((0, 0, 5), (9, 0, 10), (2, 11, 12), (9, 1 << 60, 10)):
        node = election(promised)
        node.heard(heard)
        node.looked(FREE, 100)
        assert node.claim() == (ClusterRecord(epoch, 3, 1, NODES), Holder(epoch, "a:1", "A"))


def test_what_reports_say() -> None:
    node = election()
    node.looked(HELD, 100)
    state = node.state(101, "no room")
    assert (state.phase, state.epoch, state.holder, state.problem) == (
        TermPhase.FREE,
        0,
        HELD.holder,
        "no room",
    )
    node.looked(FREE, 101)
    assert node.state(101, None).problem == "1 node of the cluster can be reached, expected 2"
    node.answering = 2
    assert node.state(101, None).problem is None
    state = leading().state(103, None)
    assert (state.phase, state.epoch, state.holder) == (TermPhase.LEADING, 5, Holder(5, "a:1", "A"))
    assert state.lease_seconds_left == pytest.approx(6.5)


@pytest.mark.parametrize("record", [ClusterRecord(1 << 40, 3, 1, NODES), Holder(7, "a:1", "A", "B")])
def test_records_come_back(record: ClusterRecord | Holder) -> None:
    assert type(record).decode(record.encode()) == record


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xff", b"7", b"[]", b"{}", b"[" * 100_000,
        b'{"epoch": true, "node_count": 3, "min_standbys": 1, "nodes": {}}',
        b'{"epoch": -1, "node_count": 3, "min_standbys": 1, "nodes": {}}',
        b'{"epoch": 9223372036854775808, "node_count": 3, "min_standbys": 1, "nodes": {}}',
        b'{"epoch": 1, "node_count": 3, "min_standbys": 1, "nodes": ["a:1"]}',
        b'{"epoch": 1, "node_count": 3, "min_standbys": 1, "nodes": {"a:1": 7}}',
        b'{"epoch": 1, "address": 7, "instance": "A", "successor": ""}',
        b'{"epoch": "1", "address": "a:1", "instance": "A", "successor": ""}',
    ],
)  # fmt: skip
def test_records_that_are_none(data: bytes) -> None:
    for kind in (ClusterRecord, Holder):
        with pytest.raises(InvalidInput, match="record of the coordinator: got b"):
            kind.decode(data)


def test_a_term_that_leads_to_nothing_ends() -> None:
    node = taking()
    node.renewed(155)
    assert node.why_lost(159) is None
    assert node.why_lost(160) == "the node was not active within 60 s"


def test_a_promise_is_kept_on_disk(tmp_path: Path) -> None:
    first = read_promise(tmp_path)
    assert (first.epoch, first.candidate, len(first.disk)) == (0, "", 16)
    assert read_promise(tmp_path) == first
    write_promise(tmp_path, Promise(first.disk, 7, "B"))
    assert read_promise(tmp_path) == Promise(first.disk, 7, "B")
    for content in (
        b"", b"7", b"\xff", b"[" * 100_000, b'{"epoch": 7}',
        b'{"epoch": -1, "candidate": "B", "disk": "x"}',
        b'{"epoch": 1.5, "candidate": "B", "disk": "x"}',
        b'{"epoch": true, "candidate": "B", "disk": "x"}',
        b'{"epoch": 1, "candidate": "B", "disk": ""}',
        b'{"epoch": 1, "candidate": 7, "disk": "x"}',
        b'{"epoch": 9223372036854775807, "candidate": "B", "disk": "x"}',
    ):  # fmt: skip
        (tmp_path / "promise.json").write_bytes(content)
        with pytest.raises(Fatal, match=r"promise\.json: got .*, expected an object such as"):
            read_promise(tmp_path)
