"""Tables of the documents that say where something is in the code, and which test fails without it."""

from __future__ import annotations

import ast
import importlib
import re
from functools import cache, reduce
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


def page(name: str) -> str:
    """The text of a document in `docs`."""
    return (ROOT / "docs" / name).read_text("utf-8")


def section_of(text: str, title: str) -> str:
    """What stands under a title of the second level, up to the next one."""
    return text.split(f"## {title}\n")[1].split("\n## ")[0]


def rows_of(section: str) -> list[list[str]]:
    """The cells of each row whose first one begins with a digit: a rule, or a section of a text."""
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in section.splitlines()
        if re.match(r"\| \d", line)
    ]


def names_in(cell: str) -> list[str]:
    """The dotted names of a cell."""
    return re.findall(r"`([\w.]+)`", cell)


def found(name: str, package: str = "gateway") -> tuple[ModuleType, object]:
    """Return the module and the thing in it that a dotted name means: in a package, or of `publishers`.

    Raises:
        ModuleNotFoundError, AttributeError: there is none.
    """
    parts = (name if name.startswith("sluice.") else f"sluice.{package}.{name}").split(".")
    for size in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:size]))
        except ModuleNotFoundError:
            continue
        return module, reduce(getattr, parts[size:], module)
    raise ModuleNotFoundError(f"{name}: got no module of that name, expected one in {package}")


@cache
def functions_in(*folders: str) -> frozenset[str]:
    """The names of all test functions in the modules of these folders of `tests`."""
    return frozenset(
        node.name
        for folder in folders
        for path in (ROOT / "tests" / folder).rglob("test_*.py")
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
