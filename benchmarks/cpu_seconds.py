"""Processor seconds of this process and its descendants, such as those of a Spark job (Linux, /proc).

The processes of a Spark session live on from job to job, so a job takes the difference of two measurements;
the figures of parents include children that have ended.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CpuSeconds", "cpu_seconds", "process_seconds", "process_tree", "thread_seconds"]

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class CpuSeconds:
    """Seconds so far."""

    jvm: float
    python: float
    """Spark's Python workers, and other children."""
    own: float
    """The driver: this process."""

    @property
    def total(self) -> float:
        """The seconds of all processes."""
        return self.jvm + self.python + self.own

    def since(self, earlier: CpuSeconds) -> CpuSeconds:
        """Return the seconds since an earlier measurement."""
        return CpuSeconds(self.jvm - earlier.jvm, self.python - earlier.python, self.own - earlier.own)


def cpu_seconds() -> CpuSeconds:
    """Measure."""
    found = _processes()
    mine = _tree(found)
    own = found[os.getpid()][2]
    jvm = sum(found[pid][2] for pid in mine if found[pid][0] == "java")
    return CpuSeconds(jvm, sum(found[pid][2] for pid in mine) - jvm - own, own)


def process_tree() -> set[int]:
    """Return the ids of this process and of its living descendants."""
    return _tree(_processes())


def thread_seconds(process_id: int) -> float:
    """Return the seconds of a process's living threads, measured finer than the others."""
    tasks = Path(f"/proc/{process_id}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def process_seconds(process_id: int) -> tuple[float, list[float]]:
    """Return the seconds of a process, and of each of its living children."""
    found = _processes()
    children = [seconds for _, parent, seconds in found.values() if parent == process_id]
    return found[process_id][2], sorted(children, reverse=True)


def _processes() -> dict[int, tuple[str, int, float]]:
    """Return name, parent and processor seconds of each process."""
    found = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                name, _, rest = (path / "stat").read_text().partition("(")[2].rpartition(")")
            except OSError:
                continue  # it has ended meanwhile
            fields = rest.split()
            found[int(path.name)] = (name, int(fields[1]), sum(map(int, fields[11:15])) / _TICKS)
    return found


def _tree(found: dict[int, tuple[str, int, float]]) -> set[int]:
    mine = {os.getpid()}
    while more := {pid for pid, (_, parent, _) in found.items() if parent in mine} - mine:
        mine |= more
    return mine
