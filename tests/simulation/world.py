"""A fake clock, one queue of events, and an asyncio event loop that runs on them.

Nothing here reads a clock or opens a socket, and nothing runs in parallel: a job's thread runs only in its
slot. The seed alone decides what happens: events run in order of time, those of one time in the order of
their scheduling.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
import threading
import zlib
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any

from tests.datastream.fake_disk import PowerLost

MILLISECOND_NS = 1_000_000
SECOND_NS = 1_000_000_000


class Violation(Exception):
    """A broken rule, and what broke it."""

    def __init__(self, rule: str, got: str) -> None:
        super().__init__(f"{rule}: {got}")
        self.rule = rule
        self.got = got


class Job:
    """A call in a thread that runs only inside `go_on`, up to its next `pause`.

    Args:
        future: of whoever awaits it; only kept.
        call: called with `arguments`.
    """

    def __init__(self, future: Any, call: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.future = future
        self.is_over = False
        self.result: Any = None
        self.error: BaseException | None = None
        self._call, self._arguments = call, arguments
        self._is_dead = False
        self._goes, self._waits = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._has_started = False

    def go_on(self) -> None:
        """Run until it pauses or is over."""
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
        return threading.current_thread() is self._thread

    def kill(self) -> None:
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


class World:
    """The clock, the queue and the dice of one run.

    Args:
        seed: decides everything.
        trace_lines: last events to keep for the report; 0: no trace.
    """

    def __init__(self, seed: int, trace_lines: int = 400) -> None:
        self.random = random.Random(seed)
        self.now_ns = SECOND_NS
        self.step_count = 0
        self.is_tracing = trace_lines > 0
        self.violation: Violation | None = None
        """The first one. It is not only raised, since code under test may swallow exceptions."""
        self.trace: deque[tuple[int, str]] = deque(maxlen=trace_lines)
        self.late_ns = 0
        """How far behind the node may be now, because it was busy or stood still."""
        self.folder = ""
        """Left out of the trace, because it differs in every process."""
        self.digest = 0
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0

    def at(self, delay_ns: int, call: Callable[..., None], *args: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (self.now_ns + max(0, delay_ns), self._sequence, call, args))

    def next(self) -> bool:
        """Run the next event; return False when there is none."""
        if not self._heap:
            return False
        at_ns, _, call, args = heapq.heappop(self._heap)
        self.now_ns = max(self.now_ns, at_ns)
        call(*args)
        return True

    def is_near(self, most_ns: int) -> bool:
        """Return whether the next event comes within so much time."""
        return bool(self._heap) and self._heap[0][0] <= self.now_ns + most_ns

    def between(self, least_ns: int, most_ns: int) -> int:
        return self.random.randint(least_ns, max(least_ns, most_ns))

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def note(self, text: str) -> None:
        if not self.is_tracing:
            return
        text = text.replace(self.folder, "") if self.folder else text
        self.trace.append((self.now_ns, text))
        self.digest = zlib.crc32(text.encode(), zlib.crc32(self.now_ns.to_bytes(8, "big"), self.digest))

    def break_rule(self, rule: str, got: str) -> None:
        """Note a broken rule; the run ends after this step."""
        if self.violation is None:
            self.violation = Violation(rule, got)
            self.note(f"VIOLATION {rule}: {got}")

    def expect(self, is_right: bool, rule: str, got: str) -> None:
        if not is_right:
            self.break_rule(rule, got)


class SimLoop(asyncio.AbstractEventLoop):
    """The event loop of one node, which runs one callback at each `step`.

    Args:
        world: time and chance.
        job_ns: least and most time that a thread takes to begin a job, and again to report it.
        pause_ns: least and most pause of a job of the commit thread.
        on_power_lost: called when a job dies because the machine stopped.
    """

    def __init__(
        self,
        world: World,
        job_ns: tuple[int, int],
        pause_ns: tuple[int, int],
        on_power_lost: Callable[[], None],
    ) -> None:
        self._world = world
        self._job_ns = job_ns
        self._pause_ns = pause_ns
        self._on_power_lost = on_power_lost
        self.ready: deque[asyncio.Handle] = deque()
        self.tasks: list[asyncio.Task[Any]] = []
        self.dead = False
        self.job_count = 0
        self._jobs: deque[Job] = deque()
        """Of the commit thread; the first one runs."""
        # Its own dice keep the other draws of the seed.
        self._dice = random.Random(f"jobs {world.random.getstate()[1][:3]}")

    # --- what asyncio asks ---------------------------------------------------------------------------------

    def time(self) -> float:
        return self._world.now_ns / 1e9

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Any = None
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self.tasks.append(task)
        if len(self.tasks) > 200:
            self.tasks = [one for one in self.tasks if not one.done()]
        return task

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self.ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run a callback a microsecond late, as real timers are."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._world.at(int(when * 1e9) - self._world.now_ns + 1_000, self._fire, timer)
        return timer

    def _fire(self, timer: asyncio.TimerHandle) -> None:
        if not timer.cancelled() and not self.dead:
            self.ready.append(timer)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are skipped."""

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run a job, which only reads or computes, at one random moment, and report it at a later one.

        Jobs run in any order, as in a pool of several threads. Those of the commit thread pause.
        """
        if getattr(executor, "_thread_name_prefix", "") == "commit":
            return self.run_job(func, *args)
        world, future = self._world, self.create_future()
        begin_ns = world.now_ns + world.between(*self._job_ns)
        end_ns = begin_ns + world.between(*self._job_ns)
        world.at(begin_ns - world.now_ns, self._work, future, end_ns, func, args)
        return future

    def _work(
        self, future: asyncio.Future[Any], end_ns: int, func: Callable[..., Any], args: tuple[Any, ...]
    ) -> None:
        if self.dead:
            return
        self.job_count += 1
        error: BaseException | None = None
        result: Any = None
        try:
            result = func(*args)
        except Exception as caught:
            error = caught
        self._world.at(end_ns - self._world.now_ns, self._report, future, result, error)

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    # --- jobs that pause -----------------------------------------------------------------------------------

    def run_job(self, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Run a job in the commit thread: one at a time, in order, each reported after a while."""
        job = Job(self.create_future(), func, args)
        self._jobs.append(job)
        if len(self._jobs) == 1:
            self._world.at(self._world.between(*self._job_ns), self._go_on)
        future: asyncio.Future[Any] = job.future
        return future

    def pause_job(self) -> None:
        """In a job of the commit thread: let other things happen first."""
        if self._jobs and self._jobs[0].runs_here():
            self._jobs[0].pause()

    def _go_on(self) -> None:
        if self.dead:
            return
        job = self._jobs[0]
        self.job_count += 1
        job.go_on()
        if not job.is_over:
            self._world.at(self._dice.randint(*self._pause_ns), self._go_on)
        elif isinstance(job.error, PowerLost):
            self._on_power_lost()
        else:
            self._world.at(self._world.between(*self._job_ns), self._end_job)

    def _end_job(self) -> None:
        if self.dead:
            return
        job = self._jobs.popleft()
        self._report(job.future, job.result, job.error)
        if self._jobs:
            self._world.at(self._world.between(*self._job_ns), self._go_on)

    def _report(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        if self.dead or future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.dead:
            error = context.get("exception")
            self._world.break_rule(
                "No error in our own code", f"{context.get('message')}: {type(error).__name__}: {error}"
            )

    # --- what the simulation asks --------------------------------------------------------------------------

    def run(self, call: Callable[[], Any]) -> Any:
        """Call something as if from inside the loop."""
        asyncio._set_running_loop(self)
        try:
            return call()
        finally:
            asyncio._set_running_loop(None)

    def step(self) -> None:
        handle = self.ready.popleft()
        if not handle.cancelled():
            asyncio._set_running_loop(self)
            try:
                handle._run()
            finally:
                asyncio._set_running_loop(None)

    def kill(self) -> None:
        """End it as a process ends: no callback or job runs any more."""
        self.dead = True
        for job in self._jobs:
            job.kill()
        self.ready.clear()
        for task in self.tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                coro = task.get_coro()
                assert coro is not None
                # Its `finally` clauses run now and find everything dead. One that awaits goes no further.
                with suppress(RuntimeError):
                    self.run(coro.close)
        self.ready.clear()
        self.tasks.clear()
