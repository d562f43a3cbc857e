"""Signals that the parent has this process ignore: under nohup a closed terminal ends nothing."""

from __future__ import annotations

import signal

__all__ = ["unless_ignored"]


def unless_ignored(*numbers: signal.Signals) -> tuple[signal.Signals, ...]:
    """Return those of the signals that are not ignored, as SIGHUP is under nohup: they may be handled."""
    return tuple(number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN)
