"""A node that watches its event loop: `sluice serve`, and at its end a log line with the worst pause.

    python -m benchmarks.watched_node serve …

A task sleeps for WATCH_SECONDS again and again; a pause is by how much it comes too late. That
includes what the machine gives to other processes; the part of a pause in which this process itself was at
work, in any thread, is told too.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from pathlib import Path

import gateway.node
from gateway.cli import main
from gateway.logs import fields

__all__ = ["WATCH_SECONDS", "WatchedNode", "worst_pause_seconds"]

WATCH_SECONDS = 0.002
LAST_WORDS = "event loop watched"
log = logging.getLogger(__name__)


class WatchedNode(gateway.node.Node):
    """A node with one task more."""

    _watching: asyncio.Task[None]
    _worst_seconds = 0.0
    _worst_own_seconds = 0.0

    async def start(self) -> None:
        """Start, then watch."""
        await super().start()
        self._watching = asyncio.create_task(self._watch_loop())

    async def stop(self) -> None:
        """Say what was seen, and stop."""
        self._watching.cancel()
        log.warning(
            LAST_WORDS,
            extra=fields(
                worst_pause_seconds=self._worst_seconds, worst_own_pause_seconds=self._worst_own_seconds
            ),
        )
        await super().stop()

    async def _watch_loop(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, worked = loop.time() + WATCH_SECONDS, time.process_time()
            await asyncio.sleep(WATCH_SECONDS)
            pause = loop.time() - due
            own = min(pause, time.process_time() - worked)
            self._worst_seconds = max(self._worst_seconds, pause)
            self._worst_own_seconds = max(self._worst_own_seconds, own)


def worst_pause_seconds(log_path: Path, *, own: bool = False) -> float:
    """Read the worst pause from the log of a node that has ended; `own`: of what it was itself at work."""
    for line in log_path.read_text("utf-8").splitlines():
        entry = json.loads(line)
        if entry["message"] == LAST_WORDS:
            return float(entry["worst_own_pause_seconds" if own else "worst_pause_seconds"])
    raise SystemExit(f"{log_path}: no line {LAST_WORDS!r}")


if __name__ == "__main__":
    gateway.node.Node = WatchedNode  # type: ignore[misc]
    main()
