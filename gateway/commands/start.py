"""The first thing that the command `sluice` runs: from here on it takes Ctrl-C, also while it imports."""

from __future__ import annotations

import os

__all__ = ["main"]

_STATUS_INTERRUPTED = 130


def main() -> int:
    """Import and run `gateway.commands.cli.main`, and give its exit status."""
    # Its own lines, of clients that are gone and servers that say goodbye, would stand between ours.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        from gateway.commands.cli import main as run

        return run()
    except KeyboardInterrupt:
        return _STATUS_INTERRUPTED
