"""Worker processes that check proofs, so that their mathematics does not stop the event loop.

A shell around `blocks.verification`: `gateway.workers.subprocess_worker` with these frames, of pickle:

    request  a byte, 1 if another block is on its way; then
             keys, if they differ from the last ones; summary; items of block 0; whether to check it by itself
    answer   Refusal; or whether the root of the other layout is the right one, what block 0 publishes, and
             whether a proof signs the root

Acknowledgements wait for the process, so it has the node's priority, but yields to event loops (SCHED_BATCH).

    the process                          what it was asked
    dies, or takes too long              is asked of another process, each block by itself
    does so again over the same block    that block is refused as not checked, without blame
    does not start, or not get ready     is checked here, in a thread: no block is to blame
    did not, within the last seconds     is checked here, and no other process is started

A node that follows its network has one process. While it catches up, blocks wait, and each processor but the
event loop's gets a process of its own (`ProofProcesses`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path
from typing import Final

from sluice.gateway.blocks.errors import BlockRefused
from sluice.gateway.blocks.proofs import ProofVerifier
from sluice.gateway.blocks.proofs.ledger_data import LedgerData
from sluice.gateway.blocks.proofs.poseidon import LANES, permute
from sluice.gateway.blocks.refusal import Refusal, RefusalKind
from sluice.gateway.blocks.root_hash import BlockSummary
from sluice.gateway.blocks.verification import BlockVerifier, Verdict
from sluice.gateway.errors import WorkerProcessLost
from sluice.gateway.logs import fields
from sluice.gateway.workers.subprocess_worker import WorkerProcess, serve

__all__ = ["ProofProcess", "ProofProcesses", "main", "usable_processors"]

log = logging.getLogger(__name__)

PROOF_CHECK_SECONDS_MAX: Final = 30.0
"""The proofs of one block take 50 ms; then the process is replaced."""

PROOF_PROCESS_BACKOFF_SECONDS: Final = 5.0
"""Meanwhile a thread of the node checks."""

PROOFS_TOGETHER_MAX: Final = 8
"""Blocks whose proofs are checked together. Eight TSS signatures take 3.7 ms each together and 7.4 ms each
alone."""

PROOFS_GATHER_SECONDS: Final = 0.05
"""The time that the process waits for an announced block, if several waited last time. A node that catches up
gets a block each 10 to 20 ms, and proofs cost a third less together."""

WAITING_CHECKS_MAX: Final = 2 * PROOFS_TOGETHER_MAX
"""Open checks of each process from which on another one is started: one batch is checked, one waits."""

PROCESSES_AUTO_MAX: Final = 4
"""Without a setting; each takes 40 MB."""

PROCESS_IDLE_SECONDS: Final = 30.0
"""A further process that was not needed for so long ends."""

_CPU_LIMIT: Final = Path("/sys/fs/cgroup/cpu.max")
_ATTEMPTS: Final = 2
_Request = tuple[ProofVerifier | None, BlockSummary, tuple[bytes, ...], bool]
_Answer = Refusal | tuple[bool, LedgerData | None, bool]


class ProofProcess:
    """The node's end, for one event loop.

    Args:
        module: run by the process; another one only in tests.
    """

    def __init__(
        self,
        module: str = "sluice.gateway.workers.proof_process",
        *,
        check_seconds_max: float = PROOF_CHECK_SECONDS_MAX,
    ) -> None:
        self._worker = WorkerProcess(
            "proof process",
            module,
            check_seconds_max,
            on_ready=self._on_ready,
            on_lost=self._on_lost,
        )
        self._is_ready = False
        self._start_at = 0.0
        self._thread = ThreadPoolExecutor(1, "proofs")
        self._proofs: ProofVerifier | None = None  # what was sent last
        self._sent_to = 0  # the number of the process that got it
        self.open_count = 0
        """The checks that have not ended."""
        self.used_at = 0.0
        """The loop's time when it was last started or asked."""

    @property
    def is_ready(self) -> bool:
        """True if the process answers."""
        return self._is_ready

    @property
    def pid(self) -> int | None:
        """Process id."""
        return self._worker.pid

    def start(self) -> None:
        """Start the process, unless there is one or a backoff."""
        self.used_at = asyncio.get_running_loop().time()
        if self.pid is None and self.used_at >= self._start_at:
            self._worker.start()

    async def check(
        self, proofs: ProofVerifier, summary: BlockSummary, items: Sequence[bytes], *, more_come: bool = False
    ) -> Verdict:
        """Run `BlockVerifier(proofs).check(summary, items)` in the process.

        With `more_come`, the process may wait for another block, to check both together.

        Raises:
            BlockRefused: the proofs do not hold, or the process died twice of them.
        """
        self.open_count += 1
        try:
            return await self._check(proofs, summary, items, more_come=more_come)
        finally:
            self.open_count -= 1

    async def _check(
        self, proofs: ProofVerifier, summary: BlockSummary, items: Sequence[bytes], *, more_come: bool
    ) -> Verdict:
        lost_count, by_itself = 0, False
        while lost_count < _ATTEMPTS and not self._worker.is_over:
            self.start()
            if self.pid is None:
                return await self._check_here(proofs, summary, items)
            has_them = proofs is self._proofs and self._sent_to == self._worker.start_count
            self._proofs, self._sent_to = proofs, self._worker.start_count
            request: _Request = (None if has_them else proofs, summary, tuple(items), by_itself)
            try:
                answer: _Answer = pickle.loads(
                    await self._worker.ask(
                        bytes((more_come,)) + pickle.dumps(request, pickle.HIGHEST_PROTOCOL)
                    )
                )
            except WorkerProcessLost as lost:
                if not lost.was_ready:
                    continue
                lost_count += lost.is_first  # the others only waited behind it, or shared its check
                by_itself = True
                continue
            if isinstance(answer, Refusal):
                raise BlockRefused(answer)
            in_other_layout, published, is_root_signed = answer
            right = summary.in_other_layout() if in_other_layout else summary
            assert right is not None
            if is_root_signed:
                right = right._replace(root_hash_other_layout=None)
            return Verdict(right, published, is_root_signed)
        raise BlockRefused(
            Refusal(
                RefusalKind.NOT_CHECKED,
                "block proofs",
                f"{_ATTEMPTS} checks that did not come to an end",
                "proofs that can be checked",
            )
        )

    def close(self) -> None:
        """End the process; a waiting check fails."""
        self._worker.close()
        self._thread.shutdown(cancel_futures=True)

    async def _check_here(
        self, proofs: ProofVerifier, summary: BlockSummary, items: Sequence[bytes]
    ) -> Verdict:
        """This stops the event loop for some milliseconds."""
        check = BlockVerifier(proofs).check
        try:
            checking = self._thread.submit(check, summary, items)
        except RuntimeError:  # there may be no threads either
            return check(summary, items)
        return await asyncio.wrap_future(checking)

    def _on_ready(self) -> None:
        self._is_ready = True

    def _on_lost(self, got: str) -> None:
        was_ready, self._is_ready = self._is_ready, False
        if self._worker.is_over:
            return
        if not was_ready:
            self._start_at = asyncio.get_running_loop().time() + PROOF_PROCESS_BACKOFF_SECONDS
        log.warning("proof process lost", extra=fields(got=got, was_ready=was_ready))


class ProofProcesses:
    """The proof processes of one node: one, and more while blocks wait.

    Args:
        count_max: the most processes; 0: one for each processor but the event loop's, up to
            PROCESSES_AUTO_MAX. On two processors two processes are a fifth slower than one.
        make: makes one.
    """

    def __init__(
        self,
        count_max: int = 0,
        make: Callable[[], ProofProcess] = ProofProcess,
        *,
        idle_seconds: float = PROCESS_IDLE_SECONDS,
    ) -> None:
        self._count_max = count_max or min(max(1, usable_processors() - 1), PROCESSES_AUTO_MAX)
        self._make = make
        self._idle_seconds = idle_seconds
        self._processes = [make()]

    @property
    def pids(self) -> list[int]:
        """The process ids."""
        return [process.pid for process in self._processes if process.pid is not None]

    def start(self) -> None:
        """Start the first process."""
        self._processes[0].start()

    async def check(
        self, proofs: ProofVerifier, summary: BlockSummary, items: Sequence[bytes], *, more_come: bool = False
    ) -> Verdict:
        """Run `ProofProcess.check` in one of the processes. Raises BlockRefused as that does."""
        return await self._chosen().check(proofs, summary, items, more_come=more_come)

    def close(self) -> None:
        """End the processes; a waiting check fails."""
        for process in self._processes:
            process.close()

    def _chosen(self) -> ProofProcess:
        """Return the first process that can fill up its batch, or else the one with the fewest checks."""
        self._end_idle()
        first, *further = self._processes
        # One that is starting would keep back the blocks behind its own.
        able = [first, *(process for process in further if process.is_ready)]
        for process in able:
            if process.open_count < PROOFS_TOGETHER_MAX:
                return process
        least = min(able, key=lambda process: process.open_count)
        if least.open_count >= WAITING_CHECKS_MAX and len(able) == len(self._processes) < self._count_max:
            self._processes.append(self._make())
            self._processes[-1].start()
        return least

    def _end_idle(self) -> None:
        """End the last one, if it is not the first and nobody needed it for long."""
        last = self._processes[-1]
        idle_seconds = asyncio.get_running_loop().time() - last.used_at
        if len(self._processes) > 1 and not last.open_count and idle_seconds >= self._idle_seconds:
            self._processes.pop().close()


def usable_processors(cpu_limit: Path = _CPU_LIMIT) -> int:
    """Return how many processors this process may use: its affinity, and the limit of its container."""
    count = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):  # there is none: "max", or an older kernel
        quota, period = map(int, cpu_limit.read_text("ascii").split())
        count = min(count, -(-quota // period))
    return max(1, count)


def main() -> None:
    """Answer requests until the node ends."""
    if os.sched_getscheduler(0) == os.SCHED_OTHER:
        with contextlib.suppress(OSError):  # a container or service manager may forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    permute([0] * LANES)  # makes its constants before the first block
    serve(_Answers(), PROOFS_TOGETHER_MAX, PROOFS_GATHER_SECONDS, lambda request: request[0] == 1)


class _Answers:
    def __init__(self) -> None:
        self._verifier: BlockVerifier | None = None

    def __call__(self, requests: list[bytes]) -> Iterator[bytes]:
        decoded = [pickle.loads(memoryview(request)[1:]) for request in requests]
        for index, (proofs, summary, items, by_itself) in enumerate(decoded):
            if proofs is not None:
                self._verifier = BlockVerifier(proofs)
            assert self._verifier is not None
            if (proofs is not None or index == 0) and not by_itself:
                self._verifier.proofs.check_ahead(_summaries_of_same_keys(decoded[index:]))
            yield pickle.dumps(_answer(self._verifier, summary, items), pickle.HIGHEST_PROTOCOL)


def _summaries_of_same_keys(decoded: list[_Request]) -> list[BlockSummary]:
    """Return those up to the next request with other keys, or to be checked by itself."""
    same = takewhile(lambda request: request[0] is None and not request[3], decoded[1:])
    return [request[1] for request in (decoded[0], *same)]


def _answer(verifier: BlockVerifier, summary: BlockSummary, items: Sequence[bytes]) -> _Answer:
    try:
        verdict = verifier.check(summary, items)
    except BlockRefused as refused:
        return refused.refusal
    in_other_layout = verdict.summary.root_hash != summary.root_hash
    return in_other_layout, verdict.published, verdict.is_root_signed


if __name__ == "__main__":
    main()
