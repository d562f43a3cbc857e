"""The commands in docs/verification.md are taken by the command line; its columns are those of Spark."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from publishers.commands import verify
from publishers.spark.verify import VERDICT_COLUMNS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "verification.md").read_text("utf-8")
LINES = [line for line in PAGE.splitlines() if line.startswith("sluice ")]


@pytest.mark.parametrize("line", LINES)
def test_a_command_is_taken(line: str) -> None:
    words = shlex.split(line.split("#")[0])
    assert words[1] == "verify"
    with verify.command.make_context("verify", words[2:]) as context:
        assert not context.args


def test_what_the_page_says() -> None:
    assert len(LINES) == 5
    assert f"# {', '.join(VERDICT_COLUMNS)}\n" in PAGE
