"""A node that logs the worst pause of its event loop at its end.

    python -m benchmarks.watched_node serve …

`benchmarks.bare_loop` defines pauses and their parts.
"""

from __future__ import annotations

import json
import logging
import os
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from sluice.gateway.node.grpc_engine import use_poller

use_poller(os.environ, version("grpcio"))  # as the node does, before it loads gRPC
import sluice.gateway.node.run  # noqa: E402
from benchmarks.bare_loop import PauseRecord  # noqa: E402
from sluice.gateway.commands.cli import main  # noqa: E402
from sluice.gateway.logs import fields  # noqa: E402
from sluice.gateway.node.node import Node  # noqa: E402

__all__ = ["WatchedNode", "worst_pause_seconds"]

LAST_WORDS = "event loop watched"
log = logging.getLogger(__name__)


class WatchedNode(Node):
    """A node that records its pauses."""

    _record: PauseRecord

    async def start(self) -> None:
        """Start, then watch."""
        await super().start()
        self._record = PauseRecord()

    async def stop(self) -> None:
        """Log the worst pauses, and stop."""
        self._record.close()
        log.warning(
            LAST_WORDS,
            extra=fields(
                worst_pause_seconds=self._record.worst_seconds,
                worst_own_pause_seconds=self._record.worst_own_seconds,
                worst_processor_pause_seconds=self._record.worst_processor_seconds,
                worst_process_pause_seconds=self._record.process_seconds_in_worst,
            ),
        )
        await super().stop()


def worst_pause_seconds(log_path: Path, part: Literal["", "own_", "processor_", "process_"] = "") -> float:
    """Return the worst pause in the log of a node that has ended, or the worst part of one.

    `process_`: the processor time of all threads of the node in the worst pause.
    """
    for line in log_path.read_text("utf-8").splitlines():
        entry = json.loads(line)
        if entry["message"] == LAST_WORDS:
            return float(entry[f"worst_{part}pause_seconds"])
    raise SystemExit(f"{log_path}: no line {LAST_WORDS!r}")


if __name__ == "__main__":
    sluice.gateway.node.run.Node = WatchedNode  # type: ignore[attr-defined]
    main()
