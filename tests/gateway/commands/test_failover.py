"""Tests of `sluice failover`: usage and output; tests/interop has real failovers."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from sluice.gateway.commands.failover import command
from sluice.gateway.errors import FailoverFailed


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--to", "b:2"], "Missing option '--from'"),
        (["--from", "a:1"], "Missing option '--to'"),
        (["--from", "a", "--to", "b:2"], "address: got 'a', expected host:port"),
        (["--from", "a:1", "--to", "a:1"], "--from and --to are the same node"),
    ],
)
def test_what_cannot_be_meant_is_refused(args: list[str], words: str) -> None:
    result = CliRunner().invoke(command, args)
    assert result.exit_code == 2
    assert words in result.output


def test_a_node_that_is_not_there_is_one_line() -> None:
    result = CliRunner().invoke(command, ["--from", "127.0.0.1:1", "--to", "127.0.0.1:2"])
    assert isinstance(result.exception, FailoverFailed)
    assert str(result.exception).startswith("failover: 127.0.0.1:1: UNAVAILABLE: ")
    assert str(result.exception).endswith("; nothing has changed; if that node is dead: --force")
    assert result.output == ""


def test_as_json_the_failure_is_in_the_object() -> None:
    result = CliRunner().invoke(command, ["--from", "127.0.0.1:1", "--to", "127.0.0.1:2", "--json"])
    printed = json.loads(result.output)
    assert printed["active"] is None
    assert printed["steps"] == []
    assert printed["error"] == str(result.exception)
