"""Jobs of a thread that the simulation stops in the middle and lets go on, never beside itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tests.datastream.fake_disk import PowerLost

__all__ = ["Job"]


class Job:
    """A call in a thread of its own, which runs only while `go_on` waits for it: to its next `pause`.

    Args:
        future: what awaits it; only kept.
        call: called with `arguments`.
    """

    def __init__(self, future: Any, call: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.future = future
        self.is_over = False
        self.result: Any = None
        """What the call has returned."""
        self.error: BaseException | None = None
        """What it has raised."""
        self._call, self._arguments = call, arguments
        self._is_dead = False
        self._goes, self._waits = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._has_started = False

    def go_on(self) -> None:
        """Let it run until it pauses or is over."""
        if not self._has_started:
            self._has_started = True
            self._thread.start()
        else:
            self._goes.release()
        self._waits.acquire()

    def pause(self) -> None:
        """In the job: wait for `go_on`.

        Raises:
            PowerLost: the process has ended meanwhile.
        """
        self._waits.release()
        self._goes.acquire()
        if self._is_dead:
            raise PowerLost

    def runs_here(self) -> bool:
        """Whether it is the job itself that asks."""
        return threading.current_thread() is self._thread

    def kill(self) -> None:
        """Let it do nothing more."""
        self._is_dead = True
        if self._has_started and not self.is_over:
            self.go_on()

    def _run(self) -> None:
        try:
            self.result = self._call(*self._arguments)
        except BaseException as error:
            self.error = error
        self.is_over = True
        self._waits.release()
