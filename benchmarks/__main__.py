"""Run every benchmark: `python -m benchmarks [--quick] [NAME …]`, which is what `make bench` does."""

from __future__ import annotations

import importlib
import os
import platform
import sys

from rich.console import Console
from rich.table import Table

NAMES = (
    "append",
    "queries",
    "publish",
    "publish_race",
    "publish_latency",
    "failover",
    "proofs",
    "tss_blocks",
    "tcp_history",
    "tcp_live",
    "catch_up",
    "prepare",
)


def main() -> None:
    """Run the benchmarks named, or all, and print their figures as a table."""
    quick = "--quick" in sys.argv
    names = [word for word in sys.argv[1:] if not word.startswith("-")] or list(NAMES)
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        raise SystemExit(f"benchmark: got {', '.join(unknown)}, expected some of {', '.join(NAMES)}")
    console = Console()
    console.print(f"{os.cpu_count()} cores, Python {platform.python_version()}, Linux {platform.release()}")
    table = Table("what", "figures", title="Ratios are to a bare loop in the same run")
    for name in names:
        console.print(f"running {name} …", style="dim")
        for label, text in importlib.import_module(f"benchmarks.{name}").run(quick):
            table.add_row(label, text)
    console.print(table)


if __name__ == "__main__":
    main()
