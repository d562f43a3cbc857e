"""Tests of `gateway.workers.subprocess_worker`: a real process that answers, dies, hangs and is replaced."""

from __future__ import annotations

import asyncio
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
from sluice.gateway.workers.malloc import is_glibc
from sluice.gateway.workers.subprocess_worker import HELPER_LOOK_LATE_SECONDS_MAX, WorkerProcess

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
    f"helper: got {got}, expected an answer"
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


def with_helper(
    play: Callable[[WorkerProcess], Awaitable[None]],
    *,
    seconds_max: float = 60.0,
    run: Callable[..., None] = uvloop.run,
) -> None:
    """Run a scene with a process, and close it."""

    async def main() -> None:
        helper = WorkerProcess("helper", "shouting", seconds_max)
        assert helper.pid is None
        try:
            await play(helper)
        finally:
            helper.close()
        assert helper.pid is None

    run(main())


async def lost(answered: asyncio.Future[bytes]) -> WorkerProcessLost:
    with pytest.raises(WorkerProcessLost) as caught:
        await answered
    return caught.value


@pytest.mark.parametrize("run", [uvloop.run, asyncio.run])
def test_requests_are_answered_in_order(run: Callable[..., None]) -> None:
    async def play(helper: WorkerProcess) -> None:
        long = b"x" * 1_000_000
        asked = [helper.ask(request) for request in (b"a", b"", long, b"d")]
        answers = [(await one).partition(b" ")[2] for one in asked]
        assert answers == [b"A", b"", long.upper(), b"D"]
        assert helper.start_count == 1

    with_helper(play, run=run)


def test_what_waits_is_taken_together_up_to_a_limit() -> None:
    async def play(helper: WorkerProcess) -> None:
        await helper.ask(b"ready")
        assert helper.pid is not None
        os.kill(helper.pid, signal.SIGSTOP)
        asked = [helper.ask(b"%d" % index) for index in range(5)]
        await asyncio.sleep(0)
        os.kill(helper.pid, signal.SIGCONT)
        assert [await one for one in asked] == [b"3 0", b"3 1", b"3 2", b"2 3", b"2 4"]

    with_helper(play)


def test_where_several_came_more_are_waited_for(tmp_path: Path) -> None:
    """One alone is answered at once; after two together, three are gathered."""
    (tmp_path / "shouting.py").write_text(GATHERING)

    async def play(helper: WorkerProcess) -> None:
        assert await helper.ask(b"a") == b"1 A"
        assert await helper.ask(b"b") == b"1 B"
        assert helper.pid is not None
        os.kill(helper.pid, signal.SIGSTOP)
        two = [helper.ask(b"c"), helper.ask(b"d")]
        await asyncio.sleep(0)
        os.kill(helper.pid, signal.SIGCONT)
        assert [await one for one in two] == [b"2 C", b"2 D"]
        first = helper.ask(b"e")
        await asyncio.sleep(0)
        assert not first.done()
        assert [await one for one in (helper.ask(b"f"), helper.ask(b"g"))] == [b"3 F", b"3 G"]
        assert await first == b"3 E"
        assert await helper.ask(b"z") == b"1 Z"  # which announces nothing
        assert await helper.ask(b"h") == b"1 H"

    with_helper(play)


def test_who_gives_up_is_passed_over() -> None:
    async def play(helper: WorkerProcess) -> None:
        first, second, third = (helper.ask(request) for request in (b"a", b"b", b"c"))
        second.cancel()
        assert (await first)[-1:] == b"A"
        assert (await third)[-1:] == b"C"

    with_helper(play)


def test_all_that_was_asked_is_lost_with_the_process_and_the_first_is_named() -> None:
    async def play(helper: WorkerProcess) -> None:
        await helper.ask(b"ready")
        asked = [helper.ask(request) for request in (b"die", b"b", b"c")]
        errors = [await lost(one) for one in asked]
        assert {str(error) for error in errors} <= GONE
        assert [error.is_first for error in errors] == [True, False, False]
        assert helper.pid is None
        assert await helper.ask(b"again") == b"1 AGAIN"
        assert helper.start_count == 2

    with_helper(play)


def test_one_that_hangs_is_given_up() -> None:
    async def play(helper: WorkerProcess) -> None:
        await helper.ask(b"ready")
        assert helper.pid is not None
        os.kill(helper.pid, signal.SIGSTOP)
        helper._seconds_max = 0.05
        helper._look(None)  # everything so far was answered; the next look comes soon
        helper._watch_over()
        error = await lost(helper.ask(b"a"))
        assert str(error) == "helper: got no answer in 0.05 s, expected an answer"
        assert error.is_first
        assert helper.pid is None

    with_helper(play)


def stand_still(seconds: float) -> None:
    """Block the event loop for so long."""
    time.sleep(seconds)


@pytest.mark.parametrize("run", [uvloop.run, asyncio.run])
@pytest.mark.parametrize("extra_seconds", [-0.5, 0.5])
def test_a_node_that_stood_still_looks_again(
    run: Callable[..., None], extra_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a paused container: at its end the time is over, and no answer can have come."""

    async def play(helper: WorkerProcess) -> None:
        await helper.ask(b"ready")
        looked, look = asyncio.Event(), helper._look

        def spy(oldest: asyncio.Future[bytes] | None) -> None:
            look(oldest)
            looked.set()

        monkeypatch.setattr(helper, "_look", spy)
        assert helper._watch is not None
        helper._watch.cancel()
        helper._watch, helper._seconds_max = None, 0.1
        assert helper.pid is not None
        os.kill(helper.pid, signal.SIGSTOP)
        answered = helper.ask(b"a")
        stand_still(0.1 + HELPER_LOOK_LATE_SECONDS_MAX + extra_seconds)
        helper._seconds_max = 60.0
        await looked.wait()
        if extra_seconds < 0:
            assert str(await lost(answered)) == "helper: got no answer in 60 s, expected an answer"
        else:
            os.kill(helper.pid, signal.SIGCONT)
            assert await answered == b"1 A"
            assert helper.start_count == 1

    with_helper(play, run=run)


def test_one_that_goes_on_answering_is_not_given_up() -> None:
    """Each look finds another request at the head."""

    async def play(helper: WorkerProcess) -> None:
        await helper.ask(b"ready")
        asked = [helper.ask(b"a"), helper.ask(b"b")]
        helper._look(asyncio.get_running_loop().create_future())
        assert [(await one)[-1:] for one in asked] == [b"A", b"B"]
        assert helper.start_count == 1

    with_helper(play)


@pytest.mark.parametrize(
    ("executable", "got"),
    [
        ("/bin/false", GONE),
        (
            "/no/such/python",
            {"helper: got [Errno 2] No such file or directory: '/no/such/python', expected an answer"},
        ),
    ],
)
def test_one_that_does_not_start_is_lost(
    executable: str, got: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", executable)

    async def play(helper: WorkerProcess) -> None:
        assert str(await lost(helper.ask(b"a"))) in got
        assert helper.pid is None

    with_helper(play)


def test_one_that_was_ready_is_told_from_one_that_never_was(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(helper: WorkerProcess) -> None:
        assert await helper.ask(b"a") == b"1 A"
        assert (await lost(helper.ask(b"die"))).was_ready
        monkeypatch.setattr(sys, "executable", "/bin/false")
        assert not (await lost(helper.ask(b"a"))).was_ready

    with_helper(play)


def test_without_file_descriptors_none_is_started_and_later_one_is() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def play(helper: WorkerProcess) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            answered = helper.ask(b"a")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert str(await lost(answered)) == "helper: got [Errno 24] Too many open files, expected an answer"
        assert await helper.ask(b"b") == b"1 B"

    with_helper(play)


def test_once_closed_it_is_not_started_again() -> None:
    async def play(helper: WorkerProcess) -> None:
        await helper.ask(b"ready")
        pid, waiting = helper.pid, helper.ask(b"a")
        assert pid is not None
        helper.close()
        helper.close()
        assert helper.is_over
        assert str(await lost(waiting)) == "helper: got its end, expected an answer"
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        helper.start()
        assert str(await lost(helper.ask(b"b"))) == "helper: got its end, expected an answer"
        assert helper.pid is None

    with_helper(play)


def test_signals_to_the_group_do_not_end_it() -> None:
    async def play(helper: WorkerProcess) -> None:
        await helper.ask(b"ready")
        assert helper.pid is not None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(helper.pid, number)
        assert await helper.ask(b"a") == b"1 A"
        assert helper.start_count == 1

    with_helper(play)


@pytest.mark.skipif(not is_glibc(), reason="the C library is not glibc")
def test_memory_that_an_answer_took_is_there_for_the_next(tmp_path: Path) -> None:
    (tmp_path / "shouting.py").write_text(FAULTING)

    async def play(helper: WorkerProcess) -> None:
        faults = [int(await helper.ask(b"a")) for _ in range(5)]
        assert faults[0] > 300  # of 768 pages of 4 KiB; some memory was free before
        assert max(faults[1:]) < 30

    with_helper(play)
