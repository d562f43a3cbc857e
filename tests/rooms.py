"""The rooms of the three packages, and the imports between them.

    python -m tests.rooms        print the picture in docs/architecture.md

A room is a folder of a package; the modules beside the folders are the package's root. A room may import only
the rooms on the floors below it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

__all__ = ["FLOORS", "arrows", "picture", "room_of", "statements_of", "tree_of"]

ROOT = Path(__file__).resolve().parents[1]
FLOORS: dict[str, tuple[tuple[str, ...], ...]] = {
    "publishers": (
        ("commands",),
        ("demo",),
        ("job",),
        ("spark",),
        ("coordination", "rows", "verify"),
        ("blocks", "client"),
        ("protocol", "sources"),
        ("root",),
    ),
    "gateway": (
        ("commands",),
        ("node",),
        ("status",),
        ("cluster",),
        ("services",),
        ("pipeline",),
        ("workers",),
        ("archive",),
        ("race", "settings", "store"),
        ("blocks", "transport"),
        ("root",),
        ("api",),
    ),
    "datastream": (
        ("server",),
        ("check", "client"),
        ("file", "protocol"),
        ("events",),
        ("root",),
    ),
}
"""The floors of each package, from the top; each package stands on the next."""


def room_of(path: str) -> tuple[str, str] | None:
    """Return package and room of a path; None for a package's `__init__.py`, which is above its rooms."""
    package, *folders, name = path.split("/")
    if folders:
        return package, folders[0]
    return None if name == "__init__.py" else (package, "root")


@cache
def tree_of(path: str) -> ast.Module:
    """Parse a file of the repository, once."""
    return ast.parse((ROOT / path).read_text(encoding="utf-8"), path)


def statements_of(path: str) -> Iterator[ast.AST]:
    """Yield the module, and everything in it but expressions, which are most of it and have no import."""
    nodes: list[ast.AST] = [tree_of(path)]
    while nodes:
        node = nodes.pop()
        yield node
        nodes += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)]


@cache
def arrows() -> dict[tuple[tuple[str, str], tuple[str, str]], list[str]]:
    """Return each pair of rooms (importer, imported) with the places of the imports."""
    found: dict[tuple[tuple[str, str], tuple[str, str]], list[str]] = {}
    for package in FLOORS:
        for file in sorted((ROOT / package).rglob("*.py")):
            path = str(file.relative_to(ROOT))
            here = room_of(path)
            for line, target in _imports(path):
                there = room_of(target)
                if here is not None and there is not None and here != there:
                    found.setdefault((here, there), []).append(f"{path}:{line}")
    return found


def _imports(path: str) -> Iterator[tuple[int, str]]:
    """Yield line and path of each import from the three packages."""
    for node in statements_of(path):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names]
            names = [name if _path_of(name.removeprefix("sluice.")) else module for name in names]
        else:
            continue
        for name in names:
            top, _, module = name.partition(".")
            if top == "sluice" and (imported := _path_of(module)):
                yield node.lineno, imported


@cache
def _path_of(module: str) -> str | None:
    base = module.replace(".", "/")
    return next((path for path in (f"{base}.py", f"{base}/__init__.py") if (ROOT / path).is_file()), None)


def picture() -> str:
    """Return the floors as text, each room with its imports from its own package."""
    lines = []
    for package, floors in FLOORS.items():
        lines.append(f"{package}/")
        for floor in floors:
            for room in floor:
                pairs = (pair for pair in arrows() if pair[0] == (package, room))
                below = {there[1] for _, there in pairs if there[0] == package}
                order = [name for names in floors for name in names if name in below]
                lines.append(f"  {room:<13}{'→ ' if order else ''}{' '.join(order)}".rstrip())
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(picture() + "\n")
