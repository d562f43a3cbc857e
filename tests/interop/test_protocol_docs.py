"""What docs/protocol.md says of the code: each rule is where the page says, and so is its test.

Its tables are compared with those of the code in tests/gateway/test_race_tables.py.
"""

from __future__ import annotations

import ast
import importlib
import re
from functools import reduce
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SECTION = (
    (ROOT / "docs" / "protocol.md")
    .read_text("utf-8")
    .split("## From the rules to the code and the tests\n")[1]
    .split("\n## ")[0]
)
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in SECTION.splitlines()
    if re.match(r"\| \d", line)
]


def test_each_rule_is_where_the_page_says() -> None:
    assert sorted({int(row[0]) for row in ROWS}) == list(range(1, 11))
    for _, _, where, _ in ROWS:
        names = re.findall(r"`([\w.]+)`", where)
        assert names
        for name in names:
            module, *path = name.split(".")
            reduce(getattr, path, importlib.import_module(f"gateway.{module}"))


def test_each_test_is_there() -> None:
    functions = {
        node.name
        for path in (ROOT / "tests" / "interop" / "rules").glob("test_*.py")
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }
    named = re.findall(r"`(test_\w+)`", SECTION)
    assert len(named) > len(ROWS)
    assert set(named) <= functions
