"""Tests of `gateway.cluster.cluster_view`: small clusters, second by second, without sockets.

`World` lets each node ask its peers once a second. A test says what happens, and which node sees which fault.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from sluice.gateway.cluster.cluster_view import (
    HOLD_SECONDS,
    SILENT_SECONDS,
    START_SECONDS,
    ClusterFault,
    ClusterView,
    Statement,
)
from sluice.gateway.cluster.node_status import NodeAnswer

NO_ACTIVE, TWO_ACTIVE, NO_SUCCESSOR = ClusterFault
WITHIN = 10
"""Seconds in which every node has to see a fault."""


@dataclass
class Host:
    """One node of a world."""

    peers: str
    role: str
    last: int | None = 100
    is_ready: bool = True
    has_one_active: bool = False
    is_old: bool = False
    """Of a version that says nothing of its cluster."""
    is_up: bool = True
    starts: int = 0
    view: ClusterView = field(init=False)
    faults: dict[ClusterFault, str] = field(default_factory=dict)


class World:
    """Some nodes with one-letter names; a clock that a test moves."""

    def __init__(self, **hosts: Host) -> None:
        self.now = 1_000.0
        self.hosts = hosts
        self.cuts: set[str] = set()
        """Pairs of names, in alphabetical order, that do not reach each other."""
        for name in hosts:
            self.start(name)

    def start(self, name: str) -> None:
        host = self.hosts[name]
        host.is_up, host.starts, host.faults = True, host.starts + 1, {}
        host.view = ClusterView(tuple(host.peers), self.now)

    def kill(self, *names: str) -> None:
        for name in names:
            self.hosts[name].is_up, self.hosts[name].faults = False, {}

    def statement(self, name: str) -> Statement:
        host = self.hosts[name]
        instance = f"{name}{host.starts}"
        if host.is_old or not host.role:
            return Statement(instance if host.role else "", host.role, host.last, host.is_ready)
        return Statement(
            instance,
            host.role,
            host.last,
            is_ready=host.is_ready,
            is_telling=True,
            has_one_active=host.has_one_active or host.role == "standby",
            hears=host.view.hears(),
            active_seconds_ago=host.view.active_seconds_ago(host.role, self.now),
        )

    def second(self) -> None:
        """Let every running node ask its peers, which takes all of the second, and judge."""
        asked_at, statements = self.now, {name: self.statement(name) for name in self.hosts}
        self.now += 1
        for name, host in self.hosts.items():
            for peer in host.peers if host.is_up else "":
                if self.hosts[peer].is_up and "".join(sorted(name + peer)) not in self.cuts:
                    host.view.heard(peer, statements[peer], self.now, asked_at)
                else:
                    host.view.failed(peer, "gone")
            if host.is_up and host.role and not host.is_old:
                host.faults = host.view.judge(self.statement(name), self.now)

    def seen(self) -> dict[str, set[ClusterFault]]:
        return {name: set(host.faults) for name, host in self.hosts.items() if host.faults}

    def quiet(self, seconds: int, each: Callable[[int], object] = lambda second: None) -> None:
        """Assert that nobody sees a fault for so long."""
        for second in range(seconds):
            each(second)
            self.second()
            assert self.seen() == {}, (second, [host.faults for host in self.hosts.values()])

    def comes(self, **expected: ClusterFault) -> None:
        """Assert that soon these nodes see this fault, and nobody sees another one before or then."""
        wanted = {name: {fault} for name, fault in expected.items()}
        for _ in range(WITHIN - 1):  # a request may come a second after what it finds
            self.second()
            assert all(faults <= wanted.get(name, set()) for name, faults in self.seen().items())
        assert self.seen() == wanted


def three(**changes: Host) -> World:
    """Return an active node and two standbys, an hour after their start."""
    hosts = {"a": Host("bc", "active"), "b": Host("ac", "standby"), "c": Host("ab", "standby")}
    world = World(**(hosts | changes))
    world.quiet(60)
    return world


def test_the_active_node_dies_and_comes_back() -> None:
    world = three()
    world.kill("a")
    world.comes(b=NO_ACTIVE, c=NO_ACTIVE)
    assert world.hosts["b"].faults[NO_ACTIVE] == (
        "no node is active: a does not answer (it was active, with block 100): gone; c is a standby with "
        "block 100; this node is a standby with block 100"
    )
    world.start("a")
    world.second()
    world.second()
    assert world.seen() == {}


def test_a_standby_takes_over() -> None:
    world = three()
    world.kill("a")
    world.comes(b=NO_ACTIVE, c=NO_ACTIVE)
    world.hosts["b"].role = "active"
    world.second()
    world.quiet(60)


def test_nobody_who_takes_over_does_it_without_the_blocks() -> None:
    world = three()
    world.kill("b", "c")
    world.comes(a=NO_SUCCESSOR)
    assert world.hosts["a"].faults[NO_SUCCESSOR] == (
        "nobody could take over without loss: b does not answer (it was standby, with block 100): gone; c "
        "does not answer (it was standby, with block 100): gone"
    )
    world.start("c")
    world.second()
    assert world.seen() == {}


def test_a_planned_handover_is_no_fault() -> None:
    world = three()

    def hand_over(second: int) -> None:
        a, b = world.hosts["a"], world.hosts["b"]
        if second == 0:
            a.role = "draining"
        elif second == 3:
            a.role = "drained"
        elif second == 20:
            b.role, b.has_one_active = "active", True
        elif second == 22:
            a.role = "standby"
        a.last = b.last = world.hosts["c"].last = 100 + second

    world.quiet(60, hand_over)


def test_a_handover_that_is_undone_is_no_fault() -> None:
    world = three()
    world.quiet(60, lambda second: setattr(world.hosts["a"], "role", "drained" if second < 30 else "active"))


def test_a_quick_restart_of_any_node_is_no_fault() -> None:
    world = three()
    for name in "abc":
        world.kill(name)
        world.quiet(4)
        world.start(name)
        world.quiet(20)


def test_nodes_that_start_one_after_the_other_are_no_fault() -> None:
    world = three()
    world.kill("a", "b", "c")
    world.start("c")
    world.quiet(12)
    world.start("b")
    world.quiet(12)
    world.start("a")
    world.quiet(60)


def test_a_node_that_starts_last_for_ever_is_one() -> None:
    world = three()
    world.kill("a", "b", "c")
    world.start("b")
    world.start("c")
    world.quiet(int(START_SECONDS) - 1)
    world.comes(b=NO_ACTIVE, c=NO_ACTIVE)


def test_a_cluster_that_starts_without_an_active_node_hears_it_at_once() -> None:
    world = World(a=Host("bc", "standby"), b=Host("ac", "standby"), c=Host("ab", "standby"))
    world.comes(a=NO_ACTIVE, b=NO_ACTIVE, c=NO_ACTIVE)


def test_one_node_that_cannot_reach_the_active_one_hears_of_it_from_another() -> None:
    world = three()
    world.cuts = {"ac"}
    world.quiet(120)
    world.kill("a")
    world.comes(b=NO_ACTIVE, c=NO_ACTIVE)


def test_standbys_in_a_row_hear_of_the_active_node_from_each_other() -> None:
    world = World(
        a=Host("b", "active"), b=Host("ac", "standby"), c=Host("bd", "standby"), d=Host("c", "standby")
    )
    world.quiet(120)
    world.kill("a")
    world.comes(b=NO_ACTIVE, c=NO_ACTIVE, d=NO_ACTIVE)


def test_two_nodes_that_are_cut_off_from_each_other_each_say_what_they_see() -> None:
    world = World(a=Host("b", "active"), b=Host("a", "standby"))
    world.quiet(60)
    world.cuts = {"ab"}
    world.comes(a=NO_SUCCESSOR, b=NO_ACTIVE)


def test_the_old_active_node_comes_back_after_a_forced_failover() -> None:
    world = World(a=Host("b", "active"), b=Host("a", "standby"))
    world.quiet(60)
    world.kill("a")
    world.comes(b=NO_ACTIVE)
    world.hosts["b"].role, world.hosts["b"].has_one_active = "active", True
    world.start("a")
    world.comes(a=TWO_ACTIVE, b=TWO_ACTIVE)
    assert world.hosts["b"].faults[TWO_ACTIVE] == "two nodes are active: a and this node"
    world.hosts["a"].role = "standby"
    world.second()
    assert world.seen() == {}


def test_two_active_nodes_beside_a_standby_of_both() -> None:
    world = three()
    world.hosts["b"].role = "active"  # started so, by its setting
    world.comes(a=TWO_ACTIVE, b=TWO_ACTIVE, c=TWO_ACTIVE)


def test_two_active_nodes_beside_a_standby_that_stopped_before() -> None:
    """Who heard it knows that one of them is to be active; the node that was started since then does not."""
    world = three()
    world.kill("b", "c")
    world.second()
    world.hosts["b"].role = "active"
    world.start("b")
    world.comes(a=TWO_ACTIVE)
    world.hosts["c"].role = "active"  # as all are meant to be now
    world.start("c")
    world.second()
    world.second()
    world.quiet(60)


def test_a_pair_of_which_the_active_node_has_no_peers() -> None:
    """The standby alone can see it."""
    world = World(a=Host("", "active"), b=Host("a", "standby"))
    world.quiet(60)
    world.hosts["b"].role, world.hosts["b"].has_one_active = "active", True
    world.comes(b=TWO_ACTIVE)


def test_two_nodes_that_are_meant_to_be_active() -> None:
    world = World(a=Host("b", "active"), b=Host("a", "active"))
    world.quiet(120)
    world.kill("b")
    world.comes(a=NO_SUCCESSOR)


def test_a_node_that_reads_from_another_cluster_is_not_of_it() -> None:
    world = three(e=Host("abc", "active"), f=Host("ab", "standby"))
    world.quiet(60)
    world.kill("b", "c", "f")
    world.comes(a=NO_SUCCESSOR)


@pytest.mark.parametrize(
    "foreign", [Host("", ""), Host("z", "active"), Host("z", "standby"), Host("z", "draining", last=900)]
)
def test_a_node_of_another_cluster_hides_no_dead_active_one(foreign: Host) -> None:
    """A standby also reads from it."""
    world = World(
        a=Host("b", "active"), b=Host("ax", "standby"), x=replace(foreign), z=Host("", "active", last=900)
    )
    world.quiet(60)
    world.kill("a")
    world.comes(b=NO_ACTIVE)
    world.start("a")
    world.second()
    world.second()
    assert world.seen() == {}


def test_a_node_of_another_cluster_takes_over_for_nobody() -> None:
    world = three(a=Host("bcxy", "active"), x=Host("y", "active", last=900), y=Host("x", "standby", last=900))
    world.quiet(60)
    world.kill("b")
    world.quiet(60)  # block 900 is none of theirs
    world.kill("c")
    world.comes(a=NO_SUCCESSOR)
    assert "x" not in world.hosts["a"].faults[NO_SUCCESSOR]


def test_two_standbys_of_a_cluster_that_does_not_list_them() -> None:
    world = three(d=Host("ae", "standby"), e=Host("ad", "standby"))
    world.quiet(60)


def test_standbys_that_know_only_the_active_node_leave_it_to_that_one() -> None:
    """One of them catches up; the other could take over."""
    for peers in ("", "bc"):
        world = World(
            a=Host(peers, "active"), b=Host("a", "standby", last=3, is_ready=False), c=Host("a", "standby")
        )
        world.quiet(60)


def test_standbys_that_know_each_other_speak_for_an_active_node_without_peers() -> None:
    world = three(a=Host("", "active"))
    for name in "bc":
        world.hosts[name].is_ready = False
    world.comes(b=NO_SUCCESSOR, c=NO_SUCCESSOR)


def test_a_standby_says_it_only_where_it_hears_whom_the_active_node_hears() -> None:
    world = three()
    for name in "bc":
        world.hosts[name].is_ready = False
    world.comes(a=NO_SUCCESSOR, b=NO_SUCCESSOR, c=NO_SUCCESSOR)
    world.hosts["c"].is_ready = True
    world.cuts = {"bc"}
    world.second()
    world.second()
    world.quiet(60)


def test_blocks_that_come_fast_are_no_lag() -> None:
    world = three()

    def publish(second: int) -> None:
        for name, behind in (("a", 0), ("b", 1), ("c", 4)):
            world.hosts[name].last = 100 + 5_000 * max(0, second - behind)

    world.quiet(60, publish)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"last": 40}, "is a standby with block 40, and needs block 100"),
        ({"last": None}, "is a standby with no block, and needs block 100"),
        ({"is_ready": False}, "is a standby with block 100, and not ready"),
    ],
)
def test_a_standby_that_catches_up_is_none_yet(changes: dict[str, Any], words: str) -> None:
    world = World(a=Host("b", "active"), b=Host("a", "standby", **changes))
    world.quiet(int(HOLD_SECONDS))
    world.comes(a=NO_SUCCESSOR, b=NO_SUCCESSOR)
    assert world.hosts["a"].faults[NO_SUCCESSOR] == f"nobody could take over without loss: b {words}"
    assert world.hosts["b"].faults[NO_SUCCESSOR] == f"nobody could take over without loss: this node {words}"
    world.hosts["b"].last, world.hosts["b"].is_ready = 100, True
    world.second()
    world.second()
    assert world.seen() == {}


def test_one_level_standby_is_enough() -> None:
    three(b=Host("ac", "standby", last=3)).quiet(60)


def test_nodes_of_an_earlier_version_cannot_say() -> None:
    """What they do not say is no fault, for as long as one of them answers."""
    world = three(a=Host("bc", "active", is_old=True), b=Host("ac", "standby", is_old=True))
    world.kill("a")
    world.comes()
    world.kill("b")
    world.comes(c=NO_ACTIVE)


def test_two_active_nodes_of_which_one_is_of_an_earlier_version() -> None:
    world = three(a=Host("bc", "active", is_old=True))
    world.hosts["b"].role = "active"
    world.comes()
    world.hosts["a"].is_old = False
    world.comes(a=TWO_ACTIVE, b=TWO_ACTIVE, c=TWO_ACTIVE)


def test_another_block_node_takes_publishers_and_never_takes_over() -> None:
    world = World(a=Host("x", "active"), b=Host("x", "standby"), x=Host("", ""))
    world.quiet(60)
    world.kill("x")
    world.comes(b=NO_ACTIVE)


def test_a_node_that_finds_only_itself_has_no_cluster() -> None:
    World(a=Host("a", "active")).quiet(120)


def test_a_node_without_peers_sees_nothing() -> None:
    world = World(a=Host("", "active"), b=Host("", "standby"))
    assert world.statement("a").hears is None
    world.kill("b")
    world.quiet(int(SILENT_SECONDS))


@pytest.mark.parametrize(
    "said", [None, [], "x", {"hears": 7, "active_seconds_ago": "x", "one_active": "yes"}]
)
@pytest.mark.parametrize("ago", [-1.0, float("nan"), float("inf"), 10**400, "1", None])
def test_an_answer_that_makes_no_sense_says_nothing(said: Any, ago: Any) -> None:
    if isinstance(said, dict):
        said |= {} if ago is None else {"active_seconds_ago": ago}
    answer = NodeAnswer(0, 7, "x", "standby", {"ready": True, "cluster": said})
    statement = Statement.of(answer)
    assert (statement.last, statement.is_ready, statement.hears, statement.active_seconds_ago) == (
        *(7, True, None, None),
    )
    assert not statement.has_one_active


def test_what_a_node_says_is_read_back() -> None:
    about = {"one_active": True, "hears": ["b1", "c1"], "active_seconds_ago": 1.5, "faults": ["no node is"]}
    report = {"ready": False, "cluster": about}
    assert Statement.of(NodeAnswer(0, 7, "a1", "standby", report)) == Statement(
        *("a1", "standby", 7, False, True, True, frozenset({"b1", "c1"}), 1.5)
    )
