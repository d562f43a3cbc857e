"""The entry point of `sluice`: takes Ctrl-C while the rest is imported, a tenth of a second or more."""

from __future__ import annotations

import os

__all__ = ["main"]

_STATUS_INTERRUPTED = 130


def main() -> int:
    """Import and run `gateway.commands.cli.main`, and return its exit status."""
    # gRPC's own lines, of clients that are gone and servers that say goodbye, would stand between ours.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        from sluice.gateway.commands.cli import main as run

        return run()
    except KeyboardInterrupt:
        return _STATUS_INTERRUPTED
