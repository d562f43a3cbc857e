"""The records of the long fuzzers: each parser's total processor time and its findings.

A JSON file beside the corpus, so that hours add up. To count a changed parser anew, remove its line or the
file; the corpus stays useful.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from tests.fuzzing.record import Progress

__all__ = ["Account", "Hours"]


@dataclass(frozen=True, slots=True)
class Account:
    """One parser's line."""

    cpu_seconds: float = 0.0
    """The processor time of its processes, from their first input on."""
    inputs: int = 0
    coverage: int = 0
    """The most edges that libFuzzer saw in one run."""
    slowest_seconds: float = 0.0
    """The processor time of its slowest input, instrumented."""
    findings: list[str] = field(default_factory=list)
    """Its findings, a line each."""

    def with_slice(self, progress: Progress, coverage: int = 0, findings: Iterable[str] = ()) -> Account:
        """Return the account with one more slice."""
        return replace(
            self,
            cpu_seconds=self.cpu_seconds + progress.cpu_seconds,
            inputs=self.inputs + progress.inputs,
            coverage=max(self.coverage, coverage),
            slowest_seconds=max(self.slowest_seconds, progress.slowest_seconds),
            findings=[*self.findings, *findings],
        )


class Hours:
    """All accounts, and their file.

    Args:
        path: of the JSON file, which need not exist.
        names: of the parsers; lines of other parsers stay unchanged.
    """

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self._path = path
        self._lines = {name: Account() for name in names}
        if path.exists():
            kept = json.loads(path.read_text())
            self._lines |= {name: Account(**line) for name, line in kept.items()}

    def __getitem__(self, name: str) -> Account:
        """Return a parser's line."""
        return self._lines[name]

    def __setitem__(self, name: str, account: Account) -> None:
        """Change a parser's line."""
        self._lines[name] = account

    def next(self, names: Iterable[str], cpu_seconds: float) -> str | None:
        """Return the parser with the least time below this; None: none."""
        short = [name for name in names if self._lines[name].cpu_seconds < cpu_seconds]
        return min(short, key=lambda name: self._lines[name].cpu_seconds, default=None)

    def save(self) -> None:
        """Replace the file."""
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps({name: asdict(line) for name, line in self._lines.items()}, indent=1))
        new.replace(self._path)

    def table(self, names: Iterable[str]) -> list[str]:
        """Return a title line, and a line for each parser."""
        rows = [f"{'parser':<18} {'CPU min':>8} {'inputs':>12} {'cover':>6} {'slowest':>9}  findings"]
        for name in names:
            line = self._lines[name]
            rows.append(
                f"{name:<18} {line.cpu_seconds / 60:>8.1f} {line.inputs:>12,} {line.coverage:>6} "
                f"{line.slowest_seconds:>7.2f} s  {len(line.findings) or 'none'}"
            )
            rows += [f"    {finding}" for finding in line.findings]
        return rows
