"""Whether a node gets the processor time that it needs: how long its threads were ready and had no processor.

A shell around `Shortage`, which is pure. Linux counts for each thread how long it ran, and how long it waited
for a processor, also where a limit of its container made it wait:

    /proc/PID/task/TID/schedstat    ran_ns waited_ns slices

    task        what is looked at
    event loop  the thread that this lives in: messages, answers, timers
    commits     the threads that write to the disk
    proofs      the process that checks proofs
    hashing     the processes that hash items

All of them stand on the way to an acknowledgement. What a thread waits for a disk, or for another thread of
its process, is not counted. Where the kernel does not say, nothing is found.

Source: Linux, Documentation/scheduler/sched-stats.rst.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from gateway.logs import fields
from gateway.metrics import Metrics

__all__ = ["ProcessorWatch", "Shortage", "Spent"]

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
"""How often a look is taken; it costs a tenth of a millisecond."""

WINDOW_SECONDS: Final = 10.0
"""The time that is judged: some blocks."""

WAITED_SECONDS_MIN: Final = 2.0
"""A task that waits less in that time holds up nobody much."""

WAITED_TIMES_MIN: Final = 2.0
"""So many times as long as it runs, a task waits that gets too little: its work takes three times as long.
Where four busy processes share two cores fairly, it waits once as long."""

SAID_SECONDS: Final = 60.0
"""Time between two log lines that say so."""

_COMMITS: Final = "commit"
"""The name of the threads that write to the disk."""


class Spent(NamedTuple):
    """The time of a task."""

    ran_seconds: float
    """On a processor."""
    waited_seconds: float
    """For a processor."""


class Shortage:
    """Tells from what tasks spent in the last `WINDOW_SECONDS` whether one waits too long."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, Mapping[str, Spent]]] = deque()
        self._is_whole = False
        """Whether so much time has gone by: a start is not judged, which needs more than what follows."""

    def note(self, now_seconds: float, spent: Mapping[str, Spent]) -> None:
        """Take in what each task has spent since the look before."""
        self._looks.append((now_seconds, spent))
        while now_seconds - self._looks[0][0] >= WINDOW_SECONDS:
            self._looks.popleft()
            self._is_whole = True

    @property
    def words(self) -> str | None:
        """Which tasks get too little, in words; None: none does."""
        short = [
            f"{task} ran {spent.ran_seconds:.1f} s and waited {spent.waited_seconds:.1f} s for a processor"
            for task, spent in self._sums().items()
            if self._is_whole
            and spent.waited_seconds >= WAITED_SECONDS_MIN
            and spent.waited_seconds >= WAITED_TIMES_MIN * spent.ran_seconds
        ]
        if not short:
            return None
        return f"the node gets too little processor: in {WINDOW_SECONDS:g} s, {'; '.join(short)}"

    def _sums(self) -> dict[str, Spent]:
        sums: dict[str, Spent] = {}
        for _, spent in self._looks:
            for task, (ran_seconds, waited_seconds) in spent.items():
                before = sums.get(task, Spent(0.0, 0.0))
                sums[task] = Spent(before.ran_seconds + ran_seconds, before.waited_seconds + waited_seconds)
        return sums


class ProcessorWatch:
    """Watches the node of the running event loop; made and closed in it.

    Args:
        metrics: is told how long each task has waited.
        processes: gives the processes that work for the node, each with the name of its task; None is none.
    """

    def __init__(self, metrics: Metrics, processes: Callable[[], list[tuple[str, int | None]]]) -> None:
        self._metrics = metrics
        self._processes = processes
        self._loop_thread = threading.get_native_id()
        self._shortage = Shortage()
        self._before: dict[tuple[str, Path], Spent] = {}
        self._said_at = -SAID_SECONDS
        self._is_said = False
        self._look()
        self._task = asyncio.get_running_loop().create_task(self._watch())

    @property
    def words(self) -> str | None:
        """What is wrong now, in words; None: nothing is."""
        return self._shortage.words

    def close(self) -> None:
        """End it; a second time does nothing."""
        self._task.cancel()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._shortage.note(loop.time(), self._look())
            self._say(loop.time())

    def _look(self) -> dict[str, Spent]:
        """Return what each task has spent since the last look."""
        found = {place: spent for place in self._places() if (spent := _read(place[1])) is not None}
        since: dict[str, Spent] = {}
        for place, (ran_seconds, waited_seconds) in found.items():
            ran_before, waited_before = self._before.get(place, (ran_seconds, waited_seconds))
            ran, waited = since.get(place[0], Spent(0.0, 0.0))
            waited_since = max(0.0, waited_seconds - waited_before)
            since[place[0]] = Spent(ran + max(0.0, ran_seconds - ran_before), waited + waited_since)
            self._metrics.processor_wait_seconds.labels(task=place[0]).inc(waited_since)
        self._before = found
        return since

    def _places(self) -> list[tuple[str, Path]]:
        """Give the threads to look at, each with the name of its task."""
        threads = [("event loop", self._loop_thread)]
        for thread in threading.enumerate():
            if thread.name == _COMMITS and thread.native_id is not None:
                threads.append(("commits", thread.native_id))
        places = [(task, Path(f"/proc/{os.getpid()}/task/{thread}/schedstat")) for task, thread in threads]
        places += [
            (task, Path(f"/proc/{pid}/schedstat")) for task, pid in self._processes() if pid is not None
        ]
        return places

    def _say(self, now_seconds: float) -> None:
        """Log when it begins and when it is over, and the first not too often."""
        words = self.words
        if words is not None and not self._is_said and now_seconds - self._said_at >= SAID_SECONDS:
            self._is_said, self._said_at = True, now_seconds
            log.warning("the node gets too little processor", extra=fields(reason=words))
        elif words is None and self._is_said:
            self._is_said = False
            extra = fields(in_seconds=round(now_seconds - self._said_at))
            log.info("the node gets the processor that it needs again", extra=extra)


def _read(path: Path) -> Spent | None:
    """Read what a thread has spent; None: it is gone, or the kernel does not say."""
    try:
        ran_ns, waited_ns = path.read_text().split()[:2]
        return Spent(int(ran_ns) / 1e9, int(waited_ns) / 1e9)
    except (OSError, ValueError):
        return None
