"""The entry point of `sluice`: handles Ctrl-C during the imports, which take a tenth of a second or more."""

from __future__ import annotations

import os

__all__ = ["main"]

_STATUS_INTERRUPTED = 130


def main() -> int:
    """Import and run `gateway.commands.cli.main`; return its exit status."""
    # gRPC's own log lines, about clients that come and go, would mix with ours.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        from sluice.gateway.commands.cli import main as run

        return run()
    except KeyboardInterrupt:
        return _STATUS_INTERRUPTED
