"""An event loop with nothing to do, watched: how late the machine itself makes a loop come round.

    python -m benchmarks.bare_loop

It runs beside what is measured, in the same seconds, and prints its worst pause at the end of its standard
input. `PauseRecord` is how both are recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys

import uvloop

from gateway.loop_watch import LoopWatch

__all__ = ["WATCH_SECONDS", "PauseRecord"]

WATCH_SECONDS = 0.002


class PauseRecord:
    """The worst pauses of the running loop; made in the loop's thread.

    A pause is by how much a sleep of WATCH_SECONDS came too late. Of a pause, the *own* part is what is left
    without the time in which the loop's thread was ready and had no processor (/proc/thread-self/schedstat,
    Linux): the loop's callbacks, and its waits for threads of its own process. On a busy machine that is more
    than the process itself is to blame for: a thread that has Python's lock may wait for a processor, too.
    """

    def __init__(self) -> None:
        self.worst_seconds = 0.0
        self.worst_own_seconds = 0.0
        self._schedstat: int | None = None
        with contextlib.suppress(OSError):
            self._schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        self._waited_before = self._waited_seconds()
        self._watch = LoopWatch(self._take, WATCH_SECONDS)

    def close(self) -> None:
        """End it."""
        self._watch.close()
        if self._schedstat is not None:
            os.close(self._schedstat)

    def _take(self, late_seconds: float) -> None:
        waited = self._waited_seconds()
        own = late_seconds - (waited - self._waited_before)
        self._waited_before = waited
        self.worst_seconds = max(self.worst_seconds, late_seconds)
        self.worst_own_seconds = max(self.worst_own_seconds, own)

    def _waited_seconds(self) -> float:
        """Seconds that this thread has waited for a processor."""
        if self._schedstat is None:
            return 0.0
        _, waited_ns, _ = os.pread(self._schedstat, 80, 0).split()
        return int(waited_ns) / 1e9


async def _run() -> None:
    record = PauseRecord()
    print("watching", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    record.close()
    print(record.worst_seconds, record.worst_own_seconds, flush=True)


if __name__ == "__main__":
    uvloop.run(_run())
