"""What docs/verification.md says of the code.

Its commands are taken by the command line, its columns are those of Spark, and each equation, rule and known
answer is where the page says.
"""

from __future__ import annotations

import importlib
import re
import shlex

import pytest

from publishers.commands import verify
from publishers.spark.verify import VERDICT_COLUMNS
from tests.interop.doc_tables import ROOT, found, functions_in, names_in, page, rows_of, section_of

PAGE = page("verification.md")
LINES = [line for line in PAGE.splitlines() if line.startswith("sluice ")]


@pytest.mark.parametrize("line", LINES)
def test_a_command_is_taken(line: str) -> None:
    words = shlex.split(line.split("#")[0])
    assert words[1] == "verify"
    with verify.command.make_context("verify", words[2:]) as context:
        assert not context.args


def test_what_the_page_says() -> None:
    assert len(LINES) == 6
    assert f"# {', '.join(VERDICT_COLUMNS)}\n" in PAGE


def test_each_known_answer_is_in_the_test_that_the_page_names() -> None:
    named = re.findall(r"`((?:tests/interop/)?test_\w+(?:\.\w+)*)`", section_of(PAGE, "Known answers"))
    assert len(named) == 10
    for name in named:
        if name.endswith(".py"):
            assert (ROOT / name).exists()
            continue
        module, _, test = name.partition(".")
        assert hasattr(importlib.import_module(f"tests.gateway.blocks.proofs.{module}"), test or "__doc__")


def test_each_equation_is_where_the_page_says() -> None:
    """Each function exists, and begins with its section."""
    rows = rows_of(section_of(PAGE, "From the equations to the code"))
    assert len(rows) > 20
    assert [row[0] for row in rows] == sorted((row[0] for row in rows), key=_in_order)
    for section, _, where in rows:
        for name in names_in(where):
            _, thing = found(name, "gateway.blocks.proofs")
            sections = (thing.__doc__ or "").split(":")[0]
            assert re.search(rf"\b{section.split(',')[0]}\b", sections), f"{name}: {sections!r}"


def _in_order(section: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", section)]


RULES = {
    title: section_of(PAGE, f"From {title} to the code and the tests")
    for title in ("the root hash", "the proofs")
}


@pytest.mark.parametrize(
    ("title", "sections"), [("the root hash", {1, 2, 3, 4}), ("the proofs", {1, 2, 4, 5})]
)
def test_each_rule_is_where_the_page_says(title: str, sections: set[int]) -> None:
    """Each thing exists, in a module that names one of the two pages as its source."""
    rows = rows_of(RULES[title])
    assert {int(re.split(r"\D", row[0])[0]) for row in rows} == sections
    assert [row[0] for row in rows] == sorted((row[0] for row in rows), key=_first_in_order)
    for _, _, where, tests in rows:
        assert names_in(where)
        assert names_in(tests)
        for name in names_in(where):
            module, _ = found(name)
            assert re.search(r"\b(block-hash|proofs)\.md", module.__doc__ or ""), name


def _first_in_order(section: str) -> list[int]:
    return _in_order(section.split(",")[0])


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_each_test_of_a_rule_is_there(rules: str) -> None:
    named = {name for row in rows_of(rules) for name in names_in(row[3])}
    assert len(named) > 20
    assert named - functions_in("gateway", "interop", "publishers") == set()
