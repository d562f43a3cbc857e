"""Run every benchmark: `python -m benchmarks [--quick] [NAME …]`, which is what `make bench` does.

Each runs in a process of its own, with a deadline. When one is stopped at its deadline, the table says so and
the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.goals import goal_of
from benchmarks.measuring import Rows

NAMES = (
    "append",
    "queries",
    "publish",
    "publish_parts",
    "front_door",
    "publish_race",
    "publish_latency",
    "failover",
    "standbys",
    "proofs",
    "tss_blocks",
    "tcp_history",
    "tcp_tls",
    "tcp_live",
    "live_subscribers",
    "archive",
    "archive_latency",
    "catch_up",
    "slow_links",
    "prepare",
    "stream_read",
    "block_files",
    "sink",
)
DEADLINE_SECONDS = 240.0
"""Far above what the longest takes on a busy machine."""
STOP_SECONDS = 30.0
"""Time for an interrupted benchmark to end its nodes."""
_RUN = (
    "import importlib, json, sys; name, quick, path = sys.argv[1:]; "
    "rows = importlib.import_module(f'benchmarks.{name}').run(quick == '1'); "
    "json.dump(rows, open(path, 'w'))"
)
"""The program of a benchmark's process: it writes its rows to a file."""


def main() -> int:
    """Run the named benchmarks, or all, and print one table; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure, as ratios to a bare loop in the same run.",
        epilog=f"names: {', '.join(NAMES)}",
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="what to run; else all, a quarter of an hour"
    )
    parser.add_argument("--quick", action="store_true", help="less of everything: does it run at all?")
    options = parser.parse_args()
    names, quick = options.names or list(NAMES), options.quick
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        parser.error(f"got {', '.join(unknown)}, expected some of {', '.join(NAMES)}")
    console = Console()
    console.print(f"{os.cpu_count()} cores, Python {platform.python_version()}, Linux {platform.release()}")
    table = Table("what", "figures", "goal", title="Ratios are to a bare loop in the same run")
    started = time.monotonic()
    failed = []
    for name in names:
        console.print(f"running {name} …", style="dim", end=" ")
        begun = time.monotonic()
        rows, reason = run_one(name, quick)
        for label, text in rows:
            table.add_row(label, text, goal_of(label))
        if reason:
            failed.append(name)
            table.add_row(name, f"[red]{reason}[/red]", "")
        console.print(f"{time.monotonic() - begun:.0f} s", style="dim")
    console.print(table)
    console.print(f"{time.monotonic() - started:.0f} s in all")
    return 1 if failed else 0


def run_one(name: str, quick: bool, deadline_seconds: float = DEADLINE_SECONDS) -> tuple[Rows, str]:
    """Run one benchmark in a process of its own.

    Returns:
        Its rows, and the reason why there are none, else empty.
    """
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        rows, log = Path(folder) / "rows.json", Path(folder) / "log"
        with log.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, "-c", _RUN, name, str(int(quick)), str(rows)],
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        try:
            status = process.wait(deadline_seconds)
        except subprocess.TimeoutExpired:
            return [], f"did not end within {deadline_seconds:g} s"
        finally:
            _stop(process)
        if status:
            said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            return [], f"failed: {said[-1] if said else f'exit status {status}'}"
        return [(label, text) for label, text in json.loads(rows.read_text())], ""


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Interrupt a running benchmark, so that it ends its nodes itself; then kill the rest."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


if __name__ == "__main__":
    sys.exit(main())
