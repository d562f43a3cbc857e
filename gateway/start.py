"""The first thing that the command `sluice` runs: from here on it takes Ctrl-C, also while it imports."""

from __future__ import annotations

__all__ = ["main"]

_STATUS_INTERRUPTED = 130


def main() -> int:
    """Import and run `gateway.cli.main`, and give its exit status."""
    try:
        from gateway.cli import main as run

        return run()
    except KeyboardInterrupt:
        return _STATUS_INTERRUPTED
