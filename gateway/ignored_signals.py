"""Signals that the parent told this process to ignore, as nohup does with SIGHUP."""

from __future__ import annotations

import signal

__all__ = ["unless_ignored"]


def unless_ignored(*numbers: signal.Signals) -> tuple[signal.Signals, ...]:
    """Return the signals that are not ignored, which may be handled."""
    return tuple(number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN)
