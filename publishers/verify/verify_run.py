"""A run of `sluice verify`.

    source ── jobs ──►  processes: read, hash, check the proofs  ──► here: links ──► verdicts, by number

If the keys allow it, a TSS network's ledger data come from block 0 of the source, once its own proof holds
with them.

Source: docs/spec/tss.md section 1.1.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import chain, islice
from types import FrameType
from typing import Final

from sluice.gateway.blocks.proofs import ProofVerifier
from sluice.gateway.blocks.refusal import Refusal
from sluice.gateway.blocks.root_hash import RootLayout
from sluice.gateway.blocks.trusted_keys import TrustedKeys, VerificationMode
from sluice.gateway.blocks.verification import BlockVerifier
from sluice.gateway.errors import Fatal
from sluice.gateway.store.trust_store import given_address_book, given_ledger
from sluice.publishers.verify.verdicts import BlockVerdict, ChainChecker, CheckedBlock
from sluice.publishers.verify.verify_sources import BlockSource, Job, check_job

__all__ = ["VerifyRun", "make_verifier"]


VERIFY_ALONE_BLOCKS_MAX: Final = 32
"""Starting others takes about a second."""

VERIFY_AHEAD_BLOCKS: Final = 4
"""Blocks on their way to each process, so that none waits and few are in memory."""


def make_verifier(
    keys: TrustedKeys, mode: VerificationMode, root_layout: RootLayout, rsa_threshold: int
) -> BlockVerifier:
    """Read the files that the keys name; raise LedgerKeyError.

    The arguments are those of the settings `verification.*`.
    """
    book = given_address_book(keys, mode, rsa_threshold)
    return BlockVerifier(ProofVerifier(keys, mode, given_ledger(keys, mode), book), root_layout)


class VerifyRun:
    """One run over a source; call `verdicts` once. With one worker, this process checks alone."""

    def __init__(self, source: BlockSource, verifier: BlockVerifier, workers_count: int) -> None:
        self._source = source
        self._verifier = verifier
        self._workers_count = workers_count
        self._links = ChainChecker()
        self.is_from_block_0 = False
        self.block_0_refusal: Refusal | None = None
        """The reason why block 0 gave no ledger data."""

    @property
    def count(self) -> int | None:
        """The count of blocks."""
        return self._source.count

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """The missing numbers so far: first and last of each gap."""
        return self._links.gaps

    @property
    def ledger_id(self) -> bytes | None:
        """The TSS network's ledger id, 32 bytes."""
        ledger = self._verifier.proofs.ledger
        return None if ledger is None else ledger.ledger_id

    def verdicts(self) -> Generator[BlockVerdict, None, None]:
        """Yield the verdicts on all blocks, in order.

        Raises:
            SourceUnreachable, SourceRefused: a node does not give a block.
            Fatal: a worker process was killed.
        """
        if self._verifier.awaits_block_0:
            self._believe_block_0()
        jobs = self._source.jobs()
        first = list(islice(jobs, VERIFY_ALONE_BLOCKS_MAX + 1))
        jobs = chain(first, jobs)
        alone = self._workers_count == 1 or len(first) <= VERIFY_ALONE_BLOCKS_MAX
        checked = (check_job(self._verifier, job) for job in jobs) if alone else self._in_processes(jobs)
        for block in checked:
            yield self._links.take(block)

    def _believe_block_0(self) -> None:
        job = self._source.block_0()
        if job is None:
            return
        checked = check_job(self._verifier, job)
        self.block_0_refusal = checked.refusal
        if checked.published is not None:
            self._verifier.believe(checked.published)
            self.is_from_block_0 = True

    def _in_processes(self, jobs: Iterator[Job]) -> Iterator[CheckedBlock]:
        # Spawned: a fork would not have gRPC's threads.
        pool = ProcessPoolExecutor(
            self._workers_count, multiprocessing.get_context("spawn"), _begin, (self._verifier,)
        )
        under_way: deque[Future[CheckedBlock]] = deque()
        try:
            for job in jobs:
                with _interrupts_held():  # a process may be started here
                    under_way.append(pool.submit(_check, job))
                if len(under_way) >= self._workers_count * VERIFY_AHEAD_BLOCKS:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        except BrokenProcessPool as error:
            raise Fatal(
                "a process that checks blocks", got="its sudden end", expected="memory enough for all of them"
            ) from error
        finally:
            # Otherwise Python waits at its end, and may print a traceback. A second Ctrl-C waits too, or
            # Python would hang on the pool.
            with _interrupts_held():
                pool.shutdown(wait=True, cancel_futures=True)


_verifier: BlockVerifier | None = None


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back until the end; a process that starts meanwhile never gets it.

    This process ends its workers itself.
    """
    with _interrupts_kept():
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _interrupts_kept() -> Iterator[None]:
    """Have the main thread handle an interrupt at the end only: with a mask, gRPC's threads would take the
    signal.
    """
    handler = signal.getsignal(signal.SIGINT)
    if handler is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    is_interrupted = False

    def keep(number: int, frame: FrameType | None) -> None:
        nonlocal is_interrupted
        is_interrupted = True

    signal.signal(signal.SIGINT, keep)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if is_interrupted:
            signal.raise_signal(signal.SIGINT)


def _begin(verifier: BlockVerifier) -> None:
    global _verifier
    _verifier = verifier
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when its parent does; a killed parent cannot say so."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _check(job: Job) -> CheckedBlock:
    assert _verifier is not None
    return check_job(_verifier, job)
