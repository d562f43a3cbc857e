"""The commands in docs/verification.md are taken by the command line; its columns are those of Spark."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import pytest

from publishers.commands import verify
from publishers.spark.verify import VERDICT_COLUMNS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "verification.md").read_text("utf-8")
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


def section_of(title: str) -> str:
    """The text under a title, up to the next one."""
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def test_each_known_answer_is_in_the_test_that_the_page_names() -> None:
    named = re.findall(r"`((?:tests/interop/)?test_\w+(?:\.\w+)*)`", section_of("Known answers"))
    assert len(named) == 10
    for name in named:
        if name.endswith(".py"):
            assert (ROOT / name).exists()
            continue
        module, _, test = name.partition(".")
        assert hasattr(importlib.import_module(f"tests.gateway.proofs.{module}"), test or "__doc__")


def test_each_equation_is_where_the_page_says() -> None:
    """Each function exists, and begins with its section."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section_of("From the equations to the code").splitlines()
        if line.startswith("| ")
    ][1:]
    assert [row[0] for row in rows] == sorted((row[0] for row in rows), key=_in_order)
    for section, _, where in rows:
        for name in re.findall(r"`([\w.]+)`", where):
            module, *path = name.split(".")
            found = importlib.import_module(f"gateway.proofs.{module}")
            for part in path:
                found = getattr(found, part)
            sections = (found.__doc__ or "").split(":")[0]
            assert re.search(rf"\b{section.split(',')[0]}\b", sections), f"{name}: {sections!r}"


def _in_order(section: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", section)]
