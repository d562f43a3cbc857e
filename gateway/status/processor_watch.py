"""The watch over processor time: how long a node's tasks were ready and had no processor.

A shell around `Shortage`, which is pure. Linux counts how long each thread ran, and how long it waited for a
processor, also under a container's limit:

    /proc/PID/task/TID/schedstat    ran_ns waited_ns slices

    task        threads and processes
    event loop  the thread that made the watch
    commits     the threads that write to the disk
    proofs      the process that checks proofs
    hashing     the threads that hash items

Source: Linux, Documentation/scheduler/sched-stats.rst; docs/operations.md, "The processor is too slow".
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

from sluice.gateway.logs import fields
from sluice.gateway.metrics import Metrics

__all__ = ["ProcessorWatch", "Shortage", "Spent"]

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
"""Time between two looks, of 0.1 ms each."""

WINDOW_SECONDS: Final = 10.0
"""The time that is judged: some blocks."""

WAITED_SECONDS_MIN: Final = 2.0

WAITED_TIMES_MIN: Final = 2.0
"""Shortage: a task waits so many times as long as it runs. Of four busy processes on two cores, each waits as
long as it runs."""

SAID_SECONDS: Final = 60.0

_TASK_OF_THREADS: Final = {"commit_": "commits", "hash_": "hashing"}
"""By how the names of the threads begin."""


class Spent(NamedTuple):
    """The processor time of a task."""

    ran_seconds: float
    waited_seconds: float


class Shortage:
    """The judgement whether a task waited too long lately."""

    def __init__(
        self, *, window_seconds: float = WINDOW_SECONDS, waited_seconds_min: float = WAITED_SECONDS_MIN
    ) -> None:
        self._window_seconds = window_seconds
        self._waited_seconds_min = waited_seconds_min
        self._looks: deque[tuple[float, Mapping[str, Spent]]] = deque()
        self._is_whole = False
        """True if a window is over: a start, which needs more time, is not judged."""

    def note(self, now_seconds: float, spent: Mapping[str, Spent]) -> None:
        """Take what each task spent since the last look."""
        self._looks.append((now_seconds, spent))
        while now_seconds - self._looks[0][0] >= self._window_seconds:
            self._looks.popleft()
            self._is_whole = True

    @property
    def words(self) -> str | None:
        """The tasks that get too little, as text, if any."""
        short = [
            f"{task} ran {spent.ran_seconds:.1f} s and waited {spent.waited_seconds:.1f} s for a processor"
            for task, spent in self._sums().items()
            if self._is_whole
            and spent.waited_seconds >= self._waited_seconds_min
            and spent.waited_seconds >= WAITED_TIMES_MIN * spent.ran_seconds
        ]
        if not short:
            return None
        return f"the node gets too little processor: in {self._window_seconds:g} s, {'; '.join(short)}"

    def _sums(self) -> dict[str, Spent]:
        sums: dict[str, Spent] = {}
        for _, spent in self._looks:
            for task, (ran_seconds, waited_seconds) in spent.items():
                before = sums.get(task, Spent(0.0, 0.0))
                sums[task] = Spent(before.ran_seconds + ran_seconds, before.waited_seconds + waited_seconds)
        return sums


class ProcessorWatch:
    """The watch of one node; made and closed in its event loop.

    Args:
        processes: returns the worker processes, each with its task's name.
    """

    def __init__(
        self,
        metrics: Metrics,
        processes: Callable[[], list[tuple[str, int | None]]],
        *,
        shortage: Shortage | None = None,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._look_seconds = look_seconds
        self._metrics = metrics
        self._processes = processes
        self._loop_thread = threading.get_native_id()
        self._shortage = shortage or Shortage()
        self._before: dict[tuple[str, Path], Spent] = {}
        self._said_at = -SAID_SECONDS
        self._is_said = False
        self._look()
        self._task = asyncio.get_running_loop().create_task(self._watch())

    @property
    def words(self) -> str | None:
        """The shortage as text, if there is one."""
        return self._shortage.words

    def close(self) -> None:
        """End the watch."""
        self._task.cancel()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._look_seconds)
            self._shortage.note(loop.time(), self._look())
            self._say(loop.time())

    def _look(self) -> dict[str, Spent]:
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
        threads = [("event loop", self._loop_thread)]
        for thread in threading.enumerate():
            for begin, task in _TASK_OF_THREADS.items():
                if thread.name.startswith(begin) and thread.native_id is not None:
                    threads.append((task, thread.native_id))
        places = [(task, Path(f"/proc/{os.getpid()}/task/{thread}/schedstat")) for task, thread in threads]
        places += [
            (task, Path(f"/proc/{pid}/schedstat")) for task, pid in self._processes() if pid is not None
        ]
        return places

    def _say(self, now_seconds: float) -> None:
        words = self.words
        if words is not None and not self._is_said and now_seconds - self._said_at >= SAID_SECONDS:
            self._is_said, self._said_at = True, now_seconds
            log.warning("the node gets too little processor", extra=fields(reason=words))
        elif words is None and self._is_said:
            self._is_said = False
            extra = fields(in_seconds=round(now_seconds - self._said_at))
            log.info("the node gets the processor that it needs again", extra=extra)


def _read(path: Path) -> Spent | None:
    try:
        ran_ns, waited_ns = path.read_text().split()[:2]
        return Spent(int(ran_ns) / 1e9, int(waited_ns) / 1e9)
    except (OSError, ValueError):
        return None
