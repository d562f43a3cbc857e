"""Tests of `gateway.workers.subprocess_worker`: a real process that answers, dies, hangs and is replaced."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from sluice.gateway.errors import WorkerProcessLost
from sluice.gateway.logs import set_up_logging
from sluice.gateway.workers.malloc import is_glibc
from sluice.gateway.workers.subprocess_worker import WORKER_LOOK_LATE_SECONDS_MAX, WorkerProcess

# It answers with the number of requests taken at once, and the request in capitals; `die` ends it.
MODULE = """
import os
from sluice.gateway.workers.subprocess_worker import serve

def answers(requests):
    for request in requests:
        if request == b"die":
            os._exit(3)
        yield b"%d " % len(requests) + request.upper()

serve(answers, 3)
"""
GONE = {
    f"worker: got {got}, expected an answer"
    for got in ("the end of its socket", "[Errno 104] Connection reset by peer", "[Errno 32] Broken pipe")
}


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts the module where the process finds it."""
    (tmp_path / "shouting.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)


# It waits up to a minute for three requests, if there were two last time; but not behind `z`.
GATHERING = MODULE.replace("serve(answers, 3)", "serve(answers, 3, 60.0, lambda request: request != b'z')")

# It answers with its page faults over 3 MB, which it took and freed.
FAULTING = """
import resource
from sluice.gateway.workers.subprocess_worker import serve

def answers(requests):
    for request in requests:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        pieces = [b"x" * 65_536 for _ in range(48)]
        del pieces
        yield b"%d" % (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

serve(answers)
"""


def with_worker(
    play: Callable[[WorkerProcess], Awaitable[None]],
    *,
    seconds_max: float = 60.0,
    run: Callable[..., None] = uvloop.run,
) -> None:
    """Run a scene with a process, and close it."""

    async def main() -> None:
        worker = WorkerProcess("worker", "shouting", seconds_max)
        assert worker.pid is None
        try:
            await play(worker)
        finally:
            worker.close()
        assert worker.pid is None

    run(main())


async def lost(answered: asyncio.Future[bytes]) -> WorkerProcessLost:
    with pytest.raises(WorkerProcessLost) as caught:
        await answered
    return caught.value


@pytest.mark.parametrize("run", [uvloop.run, asyncio.run])
def test_requests_are_answered_in_order(run: Callable[..., None]) -> None:
    async def play(worker: WorkerProcess) -> None:
        long = b"x" * 1_000_000
        asked = [worker.ask(request) for request in (b"a", b"", long, b"d")]
        answers = [(await one).partition(b" ")[2] for one in asked]
        assert answers == [b"A", b"", long.upper(), b"D"]
        assert worker.start_count == 1

    with_worker(play, run=run)


def test_what_waits_is_taken_together_up_to_a_limit() -> None:
    async def play(worker: WorkerProcess) -> None:
        await worker.ask(b"ready")
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGSTOP)
        asked = [worker.ask(b"%d" % index) for index in range(5)]
        await asyncio.sleep(0)
        os.kill(worker.pid, signal.SIGCONT)
        assert [await one for one in asked] == [b"3 0", b"3 1", b"3 2", b"2 3", b"2 4"]

    with_worker(play)


def test_where_several_came_more_are_waited_for(tmp_path: Path) -> None:
    """One alone is answered at once; after two together, three are gathered."""
    (tmp_path / "shouting.py").write_text(GATHERING)

    async def play(worker: WorkerProcess) -> None:
        assert await worker.ask(b"a") == b"1 A"
        assert await worker.ask(b"b") == b"1 B"
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGSTOP)
        two = [worker.ask(b"c"), worker.ask(b"d")]
        await asyncio.sleep(0)
        os.kill(worker.pid, signal.SIGCONT)
        assert [await one for one in two] == [b"2 C", b"2 D"]
        first = worker.ask(b"e")
        await asyncio.sleep(0)
        assert not first.done()
        assert [await one for one in (worker.ask(b"f"), worker.ask(b"g"))] == [b"3 F", b"3 G"]
        assert await first == b"3 E"
        assert await worker.ask(b"z") == b"1 Z"  # which announces nothing
        assert await worker.ask(b"h") == b"1 H"

    with_worker(play)


def test_who_gives_up_is_passed_over() -> None:
    async def play(worker: WorkerProcess) -> None:
        first, second, third = (worker.ask(request) for request in (b"a", b"b", b"c"))
        second.cancel()
        assert (await first)[-1:] == b"A"
        assert (await third)[-1:] == b"C"

    with_worker(play)


def test_all_that_was_asked_is_lost_with_the_process_and_the_first_is_named() -> None:
    async def play(worker: WorkerProcess) -> None:
        await worker.ask(b"ready")
        asked = [worker.ask(request) for request in (b"die", b"b", b"c")]
        errors = [await lost(one) for one in asked]
        assert {str(error) for error in errors} <= GONE
        assert [error.is_first for error in errors] == [True, False, False]
        assert worker.pid is None
        assert await worker.ask(b"again") == b"1 AGAIN"
        assert worker.start_count == 2

    with_worker(play)


def test_one_that_hangs_is_given_up() -> None:
    async def play(worker: WorkerProcess) -> None:
        await worker.ask(b"ready")
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGSTOP)
        worker._seconds_max = 0.05
        worker._look(None)  # everything so far was answered; the next look comes soon
        worker._watch_over()
        error = await lost(worker.ask(b"a"))
        assert str(error) == "worker: got no answer in 0.05 s, expected an answer"
        assert error.is_first
        assert worker.pid is None

    with_worker(play)


def stand_still(seconds: float) -> None:
    """Block the event loop for so long."""
    time.sleep(seconds)


@pytest.mark.parametrize("run", [uvloop.run, asyncio.run])
@pytest.mark.parametrize("extra_seconds", [-0.5, 0.5])
def test_a_node_that_stood_still_looks_again(
    run: Callable[..., None], extra_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a paused container: at its end the time is over, and no answer can have come."""

    async def play(worker: WorkerProcess) -> None:
        await worker.ask(b"ready")
        looked, look = asyncio.Event(), worker._look

        def spy(oldest: asyncio.Future[bytes] | None) -> None:
            look(oldest)
            looked.set()

        monkeypatch.setattr(worker, "_look", spy)
        assert worker._watch is not None
        worker._watch.cancel()
        worker._watch, worker._seconds_max = None, 0.1
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGSTOP)
        answered = worker.ask(b"a")
        stand_still(0.1 + WORKER_LOOK_LATE_SECONDS_MAX + extra_seconds)
        worker._seconds_max = 60.0
        await looked.wait()
        if extra_seconds < 0:
            assert str(await lost(answered)) == "worker: got no answer in 60 s, expected an answer"
        else:
            os.kill(worker.pid, signal.SIGCONT)
            assert await answered == b"1 A"
            assert worker.start_count == 1

    with_worker(play, run=run)


def test_one_that_goes_on_answering_is_not_given_up() -> None:
    """Each look finds another request at the head."""

    async def play(worker: WorkerProcess) -> None:
        await worker.ask(b"ready")
        asked = [worker.ask(b"a"), worker.ask(b"b")]
        worker._look(asyncio.get_running_loop().create_future())
        assert [(await one)[-1:] for one in asked] == [b"A", b"B"]
        assert worker.start_count == 1

    with_worker(play)


@pytest.mark.parametrize(
    ("executable", "got"),
    [
        ("/bin/false", GONE),
        (
            "/no/such/python",
            {"worker: got [Errno 2] No such file or directory: '/no/such/python', expected an answer"},
        ),
    ],
)
def test_one_that_does_not_start_is_lost(
    executable: str, got: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", executable)

    async def play(worker: WorkerProcess) -> None:
        assert str(await lost(worker.ask(b"a"))) in got
        assert worker.pid is None

    with_worker(play)


def test_one_that_was_ready_is_told_from_one_that_never_was(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(worker: WorkerProcess) -> None:
        assert await worker.ask(b"a") == b"1 A"
        assert (await lost(worker.ask(b"die"))).was_ready
        monkeypatch.setattr(sys, "executable", "/bin/false")
        assert not (await lost(worker.ask(b"a"))).was_ready

    with_worker(play)


def test_without_file_descriptors_none_is_started_and_later_one_is() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def play(worker: WorkerProcess) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            answered = worker.ask(b"a")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert str(await lost(answered)) == "worker: got [Errno 24] Too many open files, expected an answer"
        assert await worker.ask(b"b") == b"1 B"

    with_worker(play)


def test_once_closed_it_is_not_started_again() -> None:
    async def play(worker: WorkerProcess) -> None:
        await worker.ask(b"ready")
        pid, waiting = worker.pid, worker.ask(b"a")
        assert pid is not None
        worker.close()
        worker.close()
        assert worker.is_over
        assert str(await lost(waiting)) == "worker: got its end, expected an answer"
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        worker.start()
        assert str(await lost(worker.ask(b"b"))) == "worker: got its end, expected an answer"
        assert worker.pid is None

    with_worker(play)


def test_signals_to_the_group_do_not_end_it() -> None:
    async def play(worker: WorkerProcess) -> None:
        await worker.ask(b"ready")
        assert worker.pid is not None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(worker.pid, number)
        assert await worker.ask(b"a") == b"1 A"
        assert worker.start_count == 1

    with_worker(play)


@pytest.mark.skipif(not is_glibc(), reason="needs glibc, which most Linux distributions have")
def test_memory_that_an_answer_took_is_there_for_the_next(tmp_path: Path) -> None:
    (tmp_path / "shouting.py").write_text(FAULTING)

    async def play(worker: WorkerProcess) -> None:
        faults = [int(await worker.ask(b"a")) for _ in range(5)]
        assert faults[0] > 300  # of 768 pages of 4 KiB; some memory was free before
        assert max(faults[1:]) < 30

    with_worker(play)


# It warns while it is imported, and ends on an error of its own.
FAILING = """
import warnings
from sluice.gateway.workers.subprocess_worker import serve

warnings.warn("as the node did, too", UserWarning)

def answers(requests):
    raise RuntimeError("a bug")
    yield b""

serve(answers)
"""


async def test_its_last_words_are_in_the_form_of_the_nodes_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    set_up_logging(form="json")
    try:
        worker = WorkerProcess("worker", "failing", 30.0)
        with pytest.raises(WorkerProcessLost):
            await worker.ask(b"x")
        worker.close()
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    (line,) = capfd.readouterr().err.splitlines()
    entry = json.loads(line)
    assert (entry["level"], entry["message"]) == ("critical", "uncaught error")
    assert entry["error"].endswith("\nRuntimeError: a bug")
