"""Ctrl-C, SIGTERM and SIGHUP for a command that has something to finish: the first asks, the second ends.

with Interrupts() as interrupts:
    prepare()                          each of the signals raises KeyboardInterrupt, at once
    with interrupts.graceful():
        run(stop=interrupts.asked)     the first one sets the event; the second raises KeyboardInterrupt

SIGHUP comes when the terminal is closed, from the kernel and from the shell, so only the first one counts.
Where it is ignored, as under nohup, it stays so.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

from gateway.ignored_signals import unless_ignored

__all__ = ["Interrupts"]


class Interrupts:
    """Handles the signals from `__enter__` to `__exit__`; outside the main thread it does nothing."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        """Set by the first signal in a graceful part."""
        self.is_raised = False
        """A signal has raised KeyboardInterrupt, whatever became of that on its way up."""
        self._is_graceful = False
        self._has_hung_up = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        """Take the signals."""
        self.claim()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Give them back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def claim(self) -> None:
        """Take the signals, again if need be: PySpark puts a handler of its own in the place of SIGINT's."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM, *unless_ignored(signal.SIGHUP)):
            before = signal.signal(number, self._handle)
            self._before.setdefault(number, before)

    @contextmanager
    def graceful(self) -> Iterator[threading.Event]:
        """Let the first signal set the event that is given."""
        self.claim()
        self._is_graceful = True
        try:
            yield self.asked
        finally:
            self._is_graceful = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            if self._has_hung_up:
                return
            self._has_hung_up = True
        if self._is_graceful and not self.asked.is_set():
            self.asked.set()
            return
        self.is_raised = True
        raise KeyboardInterrupt
