"""The commands in docs/subscribing.md are taken by the command line; its statuses are all there are."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from gateway.api import subscribe_pb2
from gateway.commands import status
from publishers.commands import block, subscribe

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "subscribing.md").read_text("utf-8")
COMMANDS = {"subscribe": subscribe.command, "block": block.command, "status": status.command}
LINES = [line for line in PAGE.splitlines() if line.startswith("sluice ")]


@pytest.mark.parametrize("line", LINES)
def test_a_command_is_taken(line: str) -> None:
    words = shlex.split(re.split(r" \| |#", line)[0])
    command: click.Command = COMMANDS[words[1]]
    with command.make_context(words[1], words[2:]) as context:
        assert not context.args


def test_every_status_has_a_row() -> None:
    named = re.findall(r"^\| ([A-Z_]{3,}) \|", PAGE, re.MULTILINE)
    codes = subscribe_pb2.SubscribeStreamResponse.Code.keys()
    assert sorted(named) == sorted(set(codes) - {"UNKNOWN"})
    assert len(LINES) == 8
