"""An idle event loop that measures how late the machine itself makes its iterations.

    python -m benchmarks.bare_loop

It runs beside the measured program and prints its worst pause when its standard input ends. Both use
`PauseRecord`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time

import uvloop

__all__ = ["WATCH_SECONDS", "PauseRecord"]

WATCH_SECONDS = 0.002


class PauseRecord:
    """A record of the running loop's worst pauses; made in the loop's thread.

    A pause is how late a sleep of WATCH_SECONDS ends. Its *own* part excludes the time in which the loop's
    thread was ready and had no processor (/proc/thread-self/schedstat, Linux): the loop's callbacks and its
    waits for other threads remain. It is an upper bound, since the thread may have waited for a processor
    during the sleep, and the thread that holds Python's lock, or the whole machine, may have waited too. The
    loop's own work is at most the *processor time* of its thread. Where all threads of the process together
    ran for much less than the worst pause, none of them was at work.
    """

    def __init__(self) -> None:
        self.worst_seconds = 0.0
        self.worst_own_seconds = 0.0
        self.worst_processor_seconds = 0.0
        self.process_seconds_in_worst = 0.0
        """Processor time of all threads of the process in the worst pause."""
        self._schedstat: int | None = None
        with contextlib.suppress(OSError):
            self._schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        self._task = asyncio.get_running_loop().create_task(self._watch())

    def close(self) -> None:
        """End it."""
        self._task.cancel()
        if self._schedstat is not None:
            os.close(self._schedstat)

    async def _watch(self) -> None:
        while True:
            # Not the loop's clock: it is updated once an iteration, in whole milliseconds.
            waited_before, used_before = self._waited_seconds(), time.thread_time()
            process_before, began = time.process_time(), time.perf_counter()
            await asyncio.sleep(WATCH_SECONDS)
            seconds = time.perf_counter() - began
            late = seconds - WATCH_SECONDS
            without_waits = seconds - (self._waited_seconds() - waited_before)
            if late > self.worst_seconds:
                self.worst_seconds = late
                self.process_seconds_in_worst = time.process_time() - process_before
            used = time.thread_time() - used_before
            self.worst_own_seconds = max(self.worst_own_seconds, min(late, without_waits))
            self.worst_processor_seconds = max(self.worst_processor_seconds, min(late, used))

    def _waited_seconds(self) -> float:
        """Return the seconds that this thread has waited for a processor."""
        if self._schedstat is None:
            return 0.0
        _, waited_ns, _ = os.pread(self._schedstat, 80, 0).split()
        return int(waited_ns) / 1e9


async def _run() -> None:
    record = PauseRecord()
    print("watching", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    record.close()
    print(record.worst_seconds, flush=True)


if __name__ == "__main__":
    uvloop.run(_run())
