"""Mutants that no test can notice, because the cell is never looked up, or makes no difference; and why."""

from __future__ import annotations

__all__ = ["UNREACHABLE", "reason_of"]

UNREACHABLE: dict[str, str] = {}
"""How the mutant's name begins -> why nobody can notice."""


def reason_of(name: str) -> str | None:
    """Return why a mutant cannot be noticed; None where it should be."""
    return next((reason for prefix, reason in UNREACHABLE.items() if name.startswith(prefix)), None)
