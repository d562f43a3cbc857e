"""Tests of `gateway.workers.proof_process`: a real process that checks, dies, and is replaced."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
import uvloop

from sluice.gateway.blocks.errors import BlockRefused
from sluice.gateway.blocks.proofs import ProofVerifier
from sluice.gateway.blocks.refusal import Refusal
from sluice.gateway.blocks.root_hash import BlockSummary
from sluice.gateway.blocks.trusted_keys import TrustedKeys
from sluice.gateway.blocks.verification import BlockVerifier, Verdict
from sluice.gateway.workers.proof_process import (
    PROOF_PROCESS_BACKOFF_SECONDS,
    PROOFS_TOGETHER_MAX,
    WAITING_CHECKS_MAX,
    ProofProcess,
    ProofProcesses,
    _Answers,
    usable_processors,
)
from tests.gateway.block_makers import PUBLIC_KEY, block_items, summary_of
from tests.gateway.blocks.proofs.tss_chain import TssChain
from tests.gateway.blocks.proofs.tss_network import TssNetwork

NETWORK = TssNetwork((1, 1, 1))
CHAIN = TssChain(NETWORK)
KNOWING = ProofVerifier(TrustedKeys((PUBLIC_KEY,)), "full", NETWORK.ledger)
SUMMARIES = [summary_of(list(block.items)) for block in CHAIN.blocks(5)]
SUMMARY = SUMMARIES[1]
FORGED = summary_of(list(CHAIN.block(1, signed_by=TssNetwork((1, 1, 1), seed=2)).items))


def with_process(
    play: Callable[[ProofProcess], Awaitable[None]], module: str = "sluice.gateway.workers.proof_process"
) -> None:
    """Run a scene with a process, and close it."""

    async def main() -> None:
        process = ProofProcess(module)
        try:
            await play(process)
        finally:
            process.close()
        assert process.pid is None

    uvloop.run(main())


async def outcome(
    process: ProofProcess, proofs: ProofVerifier, summary: BlockSummary, items: Sequence[bytes] = ()
) -> Verdict | Refusal:
    try:
        return await process.check(proofs, summary, items)
    except BlockRefused as refused:
        return refused.refusal


def here(proofs: ProofVerifier, summary: BlockSummary) -> Verdict | Refusal:
    try:
        return BlockVerifier(proofs).check(summary)
    except BlockRefused as refused:
        return refused.refusal


def test_it_answers_as_the_verifier_here_does() -> None:
    async def play(process: ProofProcess) -> None:
        assert process.pid is None
        for summary in (SUMMARY, FORGED, summary_of(block_items(3))):
            assert await outcome(process, KNOWING, summary) == here(KNOWING, summary)
        assert isinstance(here(KNOWING, FORGED), Refusal)

    with_process(play)


def test_it_has_the_share_of_the_node_and_preempts_nobody() -> None:
    async def play(process: ProofProcess) -> None:
        await process.check(KNOWING, SUMMARY, ())
        assert process.pid is not None
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == os.getpriority(os.PRIO_PROCESS, 0)
        assert os.sched_getscheduler(process.pid) == os.SCHED_BATCH

    with_process(play)


@pytest.mark.parametrize(
    ("name", "replacement"),
    [
        ("sched_setscheduler", "forbid"),
        ("sched_getscheduler", "lambda pid: os.SCHED_RR"),  # the node's policy
    ],
)
def test_it_checks_with_the_policy_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, replacement: str
) -> None:
    """Service managers and containers may forbid a change, or have chosen a policy for the node."""
    (tmp_path / "forbidden.py").write_text(
        "import os\n"
        "from sluice.gateway.workers.proof_process import main\n"
        "def forbid(*of):\n"
        "    raise PermissionError(1, 'Operation not permitted')\n"
        f"os.{name} = {replacement}\n"
        "main()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    async def play(process: ProofProcess) -> None:
        assert await outcome(process, KNOWING, SUMMARY) == here(KNOWING, SUMMARY)
        assert process.pid is not None
        assert os.sched_getscheduler(process.pid) == os.SCHED_OTHER

    with_process(play, "forbidden")


def test_what_is_asked_together_is_answered_one_by_one() -> None:
    async def play(process: ProofProcess) -> None:
        summaries = [*SUMMARIES[1:3], FORGED, *SUMMARIES[3:]]
        asked = [asyncio.ensure_future(outcome(process, KNOWING, summary)) for summary in summaries]
        assert [await one for one in asked] == [here(KNOWING, summary) for summary in summaries]

    with_process(play)


def test_it_checks_with_the_keys_of_each_request() -> None:
    other = ProofVerifier(TrustedKeys(), "full", TssNetwork((1, 1, 1), seed=2).ledger)
    keys = (ProofVerifier(TrustedKeys(), "full"), KNOWING, other, KNOWING)

    async def play(process: ProofProcess) -> None:
        asked = [asyncio.ensure_future(outcome(process, proofs, SUMMARY)) for proofs in keys]
        assert [isinstance(await one, Verdict) for one in asked] == [False, True, False, True]

    with_process(play)


def test_the_keys_are_sent_once_to_each_process(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bool] = []

    async def play(process: ProofProcess) -> None:
        ask = process._worker.ask

        def spy(request: bytes) -> asyncio.Future[bytes]:
            sent.append(pickle.loads(request[1:])[0] is not None)
            return ask(request)

        monkeypatch.setattr(process._worker, "ask", spy)
        for _ in range(3):
            await process.check(KNOWING, SUMMARY, ())
        process._worker.lose("a test")
        await process.check(KNOWING, SUMMARY, ())

    with_process(play)
    assert sent == [True, False, False, True]


def test_what_block_0_publishes_comes_back() -> None:
    block_0 = CHAIN.block(0)

    async def play(process: ProofProcess) -> None:
        keys = ProofVerifier(TrustedKeys(), "full")
        verdict = await process.check(keys, SUMMARIES[0], block_0.items)
        assert verdict.published == NETWORK.ledger
        assert verdict.published is not None
        assert verdict.published.publication == NETWORK.publication

    with_process(play)


def test_the_root_of_the_other_layout_comes_back() -> None:
    other = SUMMARY.in_other_layout()
    assert other is not None

    async def play(process: ProofProcess) -> None:
        verdict = await process.check(KNOWING, other, ())
        assert verdict == Verdict(SUMMARY._replace(root_hash_other_layout=None), None, is_root_signed=True)

    with_process(play)


def test_one_that_was_killed_is_replaced_and_asked_again() -> None:
    async def play(process: ProofProcess) -> None:
        await process.check(KNOWING, SUMMARY, ())
        first = process.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)  # before it answers
        asked = [asyncio.ensure_future(outcome(process, KNOWING, summary)) for summary in SUMMARIES[1:]]
        await asyncio.sleep(0)
        os.kill(first, signal.SIGKILL)
        assert [await one for one in asked] == [here(KNOWING, summary) for summary in SUMMARIES[1:]]
        assert process.pid not in (None, first)

    with_process(play)


@pytest.mark.parametrize("executable", ["/bin/false", "/no/such/python"])
def test_where_it_cannot_be_started_the_node_checks_itself(
    executable: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No block, and no publisher, is to blame."""
    monkeypatch.setattr(sys, "executable", executable)
    summaries = [*SUMMARIES[1:3], FORGED, *SUMMARIES[3:]]

    async def play(process: ProofProcess) -> None:
        asked = [asyncio.ensure_future(outcome(process, KNOWING, summary)) for summary in summaries]
        assert [await one for one in asked] == [here(KNOWING, summary) for summary in summaries]
        assert process._worker.start_count == 1

    with_process(play)
    assert [record.getMessage() for record in caplog.records] == ["proof process lost"]


def test_after_a_rest_it_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    python, now_seconds = sys.executable, 1_000.0
    monkeypatch.setattr(sys, "executable", "/no/such/python")

    async def play(process: ProofProcess) -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_seconds, raising=False)
        assert await outcome(process, KNOWING, SUMMARY) == here(KNOWING, SUMMARY)
        monkeypatch.setattr(sys, "executable", python)
        let_time_go_by(PROOF_PROCESS_BACKOFF_SECONDS - 0.01)
        assert await outcome(process, KNOWING, SUMMARY) == here(KNOWING, SUMMARY)
        assert process.pid is None
        let_time_go_by(0.01)
        assert await outcome(process, KNOWING, SUMMARY) == here(KNOWING, SUMMARY)
        assert process.pid is not None

    def let_time_go_by(more_seconds: float) -> None:
        nonlocal now_seconds
        now_seconds += more_seconds

    with_process(play)


def test_where_no_thread_can_be_had_either_it_checks_in_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A container's limit of processes counts threads, too."""
    monkeypatch.setattr(sys, "executable", "/no/such/python")

    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def play(process: ProofProcess) -> None:
        monkeypatch.setattr(threading.Thread, "start", start)
        for summary in (SUMMARY, FORGED):
            assert await outcome(process, KNOWING, summary) == here(KNOWING, summary)

    with_process(play)


# A proof process that dies of block 2.
MODULE = """
import os
from sluice.gateway.workers import proof_process
from sluice.gateway.blocks.verification import BlockVerifier

check = BlockVerifier.check

def deadly(self, summary, items):
    if summary.number == 2:
        os._exit(3)
    return check(self, summary, items)

BlockVerifier.check = deadly
proof_process.main()
"""


def test_a_block_that_ends_it_is_refused_and_those_asked_with_it_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deadly.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)

    async def play(process: ProofProcess) -> None:
        asked = [asyncio.ensure_future(outcome(process, KNOWING, summary)) for summary in SUMMARIES[1:]]
        outcomes = [await one for one in asked]
        assert [isinstance(one, Verdict) for one in outcomes] == [True, False, True, True]
        assert str(outcomes[1]) == (
            "not checked: block proofs: got 2 checks that did not come to an end, expected proofs that can "
            "be checked"
        )

    with_process(play, "deadly")


def test_a_request_that_is_asked_again_is_checked_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process must die of the right block."""
    ahead: list[list[int]] = []

    def spy(self: ProofVerifier, summaries: Sequence[BlockSummary]) -> None:
        ahead.append([summary.number for summary in summaries])

    monkeypatch.setattr(ProofVerifier, "check_ahead", spy)
    keys = [KNOWING, None, None, KNOWING, None]
    for by_itself, expected in (
        ([False] * 5, [[0, 1, 2], [3, 4]]),
        ([False, False, True, False, False], [[0, 1], [3, 4]]),
        ([True] * 5, []),
    ):
        requests = [
            b"\0" + pickle.dumps((proofs, summary, (), flag))
            for proofs, summary, flag in zip(keys, SUMMARIES, by_itself, strict=True)
        ]
        ahead.clear()
        assert len(list(_Answers()(requests))) == 5
        assert ahead == expected


def test_once_closed_it_is_not_started_again() -> None:
    async def play(process: ProofProcess) -> None:
        process.start()
        waiting = asyncio.ensure_future(outcome(process, KNOWING, SUMMARY))
        await asyncio.sleep(0)
        process.close()
        assert isinstance(await waiting, Refusal)
        assert isinstance(await outcome(process, KNOWING, SUMMARY), Refusal)

    with_process(play)


ORPHAN = """
import asyncio
import sys
from sluice.gateway.workers.proof_process import ProofProcess
async def main():
    process = ProofProcess()
    process.start()
    print(process.pid, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
asyncio.run(main())
"""


def test_it_ends_with_a_node_that_was_killed() -> None:
    node = subprocess.Popen(
        [sys.executable, "-c", ORPHAN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert node.stdout is not None
    pid = int(node.stdout.readline())
    node.kill()
    node.communicate()
    deadline = time.monotonic() + 20
    while is_running(pid):
        assert time.monotonic() < deadline, "the process outlived its node"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


NOTING = """
import sys
from sluice.gateway.workers import proof_process

answer = proof_process._Answers.__call__

def noting(self, requests):
    with open({path!r}, "a") as file:
        file.write(str(len(requests)) + chr(10))
    return answer(self, requests)

proof_process._Answers.__call__ = noting
proof_process.main()
"""


def test_so_many_blocks_are_checked_together_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = tmp_path / "noted"
    (tmp_path / "noting.py").write_text(NOTING.format(path=str(noted)))
    monkeypatch.syspath_prepend(tmp_path)

    async def play(process: ProofProcess) -> None:
        await process.check(KNOWING, SUMMARY, ())
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        asked = [
            asyncio.ensure_future(process.check(KNOWING, SUMMARY, ())) for _ in range(PROOFS_TOGETHER_MAX + 1)
        ]
        await asyncio.sleep(0)
        os.kill(process.pid, signal.SIGCONT)
        await asyncio.gather(*asked)

    with_process(play, "noting")
    assert noted.read_text().split() == ["1", str(PROOFS_TOGETHER_MAX), "1"]


# --- several ------------------------------------------------------------------------------------------------


def with_processes(
    play: Callable[[ProofProcesses], Awaitable[None]], count_max: int, idle_seconds: float = 3600.0
) -> None:
    """Run a scene with so many processes at most, and close them."""

    async def main() -> None:
        processes = ProofProcesses(count_max, idle_seconds=idle_seconds)
        try:
            await asyncio.wait_for(play(processes), 60)
        finally:
            processes.close()
        assert not processes.pids

    uvloop.run(main())


async def asked_of_many(processes: ProofProcesses, count: int) -> list[int]:
    """Have so many blocks checked at once, one of them forged; return the open checks of each process."""
    summaries = [*SUMMARIES[1:], *[SUMMARY] * (count - len(SUMMARIES)), FORGED]
    asked = [asyncio.ensure_future(outcome_of(processes, summary)) for summary in summaries]
    await asyncio.sleep(0)
    counts = [process.open_count for process in processes._processes]
    assert [await one for one in asked] == [here(KNOWING, summary) for summary in summaries]
    assert not any(process.open_count for process in processes._processes)
    return counts


async def outcome_of(processes: ProofProcesses, summary: BlockSummary) -> Verdict | Refusal:
    try:
        return await processes.check(KNOWING, summary, ())
    except BlockRefused as refused:
        return refused.refusal


async def until_ready(processes: ProofProcesses, count: int) -> None:
    while sum(process.is_ready for process in processes._processes) < count:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def test_while_blocks_wait_there_are_more_processes_and_each_fills_its_batch() -> None:
    async def play(processes: ProofProcesses) -> None:
        assert await asked_of_many(processes, WAITING_CHECKS_MAX) == [WAITING_CHECKS_MAX]
        assert len(processes.pids) == 1
        assert (await asked_of_many(processes, WAITING_CHECKS_MAX + 1))[0] == WAITING_CHECKS_MAX + 1
        await until_ready(processes, 2)
        full = PROOFS_TOGETHER_MAX
        assert await asked_of_many(processes, full) == [full, 0]
        assert await asked_of_many(processes, full + 1) == [full, 1]
        assert await asked_of_many(processes, 2 * WAITING_CHECKS_MAX) == [WAITING_CHECKS_MAX] * 2
        assert await asked_of_many(processes, 2 * WAITING_CHECKS_MAX + 2) == [WAITING_CHECKS_MAX + 1] * 2
        assert len(processes.pids) == 2  # the most

    with_processes(play, count_max=2)


def test_a_process_that_nobody_needs_ends_and_the_first_one_stays() -> None:
    async def play(processes: ProofProcesses) -> None:
        await asked_of_many(processes, WAITING_CHECKS_MAX + 1)
        await until_ready(processes, 2)
        await asyncio.sleep(0.05)
        first = processes.pids[0]
        for _ in range(2):
            await outcome_of(processes, SUMMARY)
        assert processes.pids == [first]

    with_processes(play, count_max=2, idle_seconds=0.05)


def test_one_of_several_that_dies_takes_no_block_with_it() -> None:
    async def play(processes: ProofProcesses) -> None:
        await asked_of_many(processes, WAITING_CHECKS_MAX + 1)
        await until_ready(processes, 2)
        for pid in processes.pids:
            os.kill(pid, signal.SIGSTOP)
        checks = asyncio.ensure_future(asked_of_many(processes, 2 * WAITING_CHECKS_MAX))
        await asyncio.sleep(0.01)
        first, second = processes.pids
        os.kill(second, signal.SIGKILL)
        os.kill(first, signal.SIGCONT)
        assert await checks == [WAITING_CHECKS_MAX] * 2

    with_processes(play, count_max=2)


def test_one_that_does_not_start_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(processes: ProofProcesses) -> None:
        await outcome_of(processes, SUMMARY)
        monkeypatch.setattr(sys, "executable", "/no/such/python")
        await asked_of_many(processes, WAITING_CHECKS_MAX + 1)
        assert [process.pid is None for process in processes._processes] == [False, True]
        assert await asked_of_many(processes, WAITING_CHECKS_MAX + 1) == [WAITING_CHECKS_MAX + 1, 0]

    with_processes(play, count_max=3)


@pytest.mark.parametrize(
    ("limit", "count"), [("max 100000\n", None), ("100000 100000\n", 1), ("1000 100000\n", 1), ("", None)]
)
def test_the_processors_of_a_container_count(tmp_path: Path, limit: str, count: int | None) -> None:
    path = tmp_path / "cpu.max"
    allowed = len(os.sched_getaffinity(0))
    assert usable_processors(path) == allowed
    path.write_text(limit)
    assert usable_processors(path) == (allowed if count is None else count)
    path.write_text("100000000 100000\n")
    assert usable_processors(path) == allowed
