"""Tests of `sluice failover`: usage and output; tests/interop has real failovers."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from sluice.gateway.cluster.failover import NodeStatus
from sluice.gateway.cluster.roles import Phase
from sluice.gateway.commands.failover import choose_pair, command
from sluice.gateway.errors import FailoverFailed, Fatal, SettingError


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--to", "b:2", "--force"], "--force needs --from and --to: a dead node does not say what it is"),
        (["--from", "a:1", "--force"], "--force needs --from and --to"),
        (["--from", "a:x", "--to", "b:2"], "address: got 'a:x', expected HOST or HOST:PORT"),
        (["--from", "a:1", "--to", "a:1"], "--from and --to are the same node"),
    ],
)
def test_what_cannot_be_meant_is_refused(args: list[str], words: str) -> None:
    result = CliRunner().invoke(command, args)
    assert result.exit_code == 2
    assert words in result.output


def state(phase: Phase, *problems: str) -> NodeStatus:
    return NodeStatus(phase, 7, b"", "x:1", "x:1", problems=problems)


A, B, C = state(Phase.ACTIVE), state(Phase.STANDBY), state(Phase.STANDBY, "it is behind")
FOREIGN = replace(B, followed="z:1")
PAIR = {"a": A, "y": B}


@pytest.mark.parametrize(
    ("states", "source", "target", "pair"),
    [
        ({"a": A, "b": B}, None, None, ("a", "b")),
        ({"b": B, "c": C, "a": A}, None, None, ("a", "b")),
        ({"a": A, "b": B, "c": C}, None, "c", ("a", "c")),
        ({"a": A, "b": A}, None, "b", ("a", "b")),
        ({"a": A, "b": B, "d": B}, "a", "d", ("a", "d")),
    ],
)
def test_the_nodes_of_a_failover_are_found(
    states: dict[str, NodeStatus], source: str | None, target: str | None, pair: tuple[str, str]
) -> None:
    assert choose_pair(states, (), source, target) == pair


@pytest.mark.parametrize(
    ("states", "target", "words"),
    [
        ({"b": B}, "b", "got b is standby; x: gone, expected one active node, or --from"),
        (
            {"a": A, "b": A},
            None,
            "got a is active; b is active; x: gone, expected one active node, or --from",
        ),
        ({"a": A, "c": C}, None, "expected one standby that is ready, or --to"),
        ({"a": A, "b": B, "d": B}, None, "expected one standby that is ready, or --to"),
    ],
)
def test_a_choice_of_nodes_is_left_to_the_operator(
    states: dict[str, NodeStatus], target: str | None, words: str
) -> None:
    with pytest.raises(Fatal) as caught:
        choose_pair(states, ["x: gone"], None, target)
    assert str(caught.value).startswith("failover: got ")
    assert str(caught.value).endswith(words)


@pytest.mark.parametrize(
    ("states", "silent", "source", "target", "words"),
    [
        (PAIR, ["b: gone"], None, None, "b: gone, expected an answer of every node"),
        (PAIR, ["b: gone"], "a", None, "b: gone, expected an answer of every node"),
        (PAIR, ["b: gone"], None, "y", "b: gone, expected an answer of every node"),
        (PAIR | {"b": state(Phase.DRAINED)}, [], None, None, "none of them in a handover"),
        (PAIR | {"b": state(Phase.DRAINING)}, [], None, None, "none of them in a handover"),
        (PAIR | {"y": FOREIGN}, [], None, None, "got y, which follows z:1, expected a standby of a"),
        (PAIR | {"y": FOREIGN}, [], "a", None, "got y, which follows z:1, expected a standby of a"),
        (PAIR | {"y": FOREIGN}, [], None, "y", "got y, which follows z:1, expected a standby of a"),
    ],
)
def test_no_pair_is_chosen_that_may_be_of_two_clusters(
    states: dict[str, NodeStatus], silent: list[str], source: str | None, target: str | None, words: str
) -> None:
    with pytest.raises(Fatal) as caught:
        choose_pair(states, silent, source, target)
    assert words in str(caught.value)
    assert str(caught.value).endswith(", or both --from and --to")


def test_a_standby_of_the_source_is_chosen() -> None:
    for followed in ("x:1", "s:1"):
        standby = replace(B, followed=followed)
        assert choose_pair({"a": replace(A, subscriber_address="s:1"), "b": standby}, (), None, None) == (
            "a",
            "b",
        )


def test_nobody_who_answers_is_one_line() -> None:
    result = CliRunner().invoke(command, ["--node", "127.0.0.1:1"])
    assert str(result.exception) == (
        "failover: got 127.0.0.1:1: UNAVAILABLE: nobody listens there, expected one active node, or --from"
    )


def test_a_node_that_is_not_there_is_one_line() -> None:
    result = CliRunner().invoke(command, ["--from", "127.0.0.1:1", "--to", "127.0.0.1:2"])
    assert isinstance(result.exception, FailoverFailed)
    assert str(result.exception).startswith("failover: 127.0.0.1:1: UNAVAILABLE: ")
    assert str(result.exception).endswith("; nothing has changed; if that node is dead: --force")
    assert result.output == ""


def test_nodes_of_the_environment_are_none_of_a_failover_that_names_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLUICE_NODES", "a:41840")  # of which no control address is known
    result = CliRunner().invoke(command, ["--from", "127.0.0.1:1", "--to", "127.0.0.1:2"])
    assert isinstance(result.exception, FailoverFailed)
    assert isinstance(CliRunner().invoke(command, ["--from", "127.0.0.1:1"]).exception, SettingError)


def test_as_json_the_failure_is_in_the_object() -> None:
    result = CliRunner().invoke(command, ["--from", "127.0.0.1:1", "--to", "127.0.0.1:2", "--json"])
    printed = json.loads(result.output)
    assert printed["active"] is None
    assert printed["steps"] == []
    assert printed["error"] == str(result.exception)


def test_as_json_there_is_an_object_where_no_pair_is_found() -> None:
    result = CliRunner().invoke(command, ["--node", "127.0.0.1:1", "--json"])
    assert isinstance(result.exception, Fatal)
    assert json.loads(result.output) == {"steps": [], "active": None, "error": str(result.exception)}
