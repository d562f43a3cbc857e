"""Signals that whoever started this process has it ignore: under nohup a closed terminal ends nothing."""

from __future__ import annotations

import signal

__all__ = ["unless_ignored"]


def unless_ignored(*numbers: signal.Signals) -> tuple[signal.Signals, ...]:
    """Give those that may be handled; what is ignored, as SIGHUP is under nohup, is to do nothing.

    Args:
        numbers: what is to be handled.
    """
    return tuple(number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN)
