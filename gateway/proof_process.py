"""A process that checks proofs, so that their mathematics stops no event loop.

A shell around `gateway.verification`. Big integers and pairings hold Python's lock for milliseconds at a
time, in whatever thread, and the event loop of the node waits that long; another process has its own lock.

    node                                  python -m gateway.proof_process
    request  ──► standard input   ──►     keys, if they are others than before; summary; items of block 0
    answer   ◄── standard output  ◄──     Verdict or Refusal
    frame    u32 big-endian size, then so many bytes of pickle; both ends are ours

It ends when its standard input does, that is with the node, however the node ends; signals that reach the
whole group do not end it, since a stopping node still finishes the blocks it has. One that died is replaced
at the next request, which is asked again once: a block that ends the process twice is refused.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import IO, Final

from gateway.errors import BlockRefused
from gateway.proofs import ProofVerifier
from gateway.proofs.poseidon import round_constants
from gateway.root_hash import BlockSummary
from gateway.verdict import Refusal, RefusalKind
from gateway.verification import BlockVerifier, Verdict

__all__ = ["ProofProcess", "main"]

_SIZE: Final = struct.Struct(">I")
_ATTEMPTS: Final = 2
_END_SECONDS: Final = 5.0


class ProofProcess:
    """The node's end: starts the process, asks it, replaces it. One thread at a time may ask."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._proofs: ProofVerifier | None = None  # what the process has
        self._lock = threading.Lock()  # between the thread that asks, and whoever kills
        self._over = False

    @property
    def pid(self) -> int | None:
        """Process id, None while there is no process."""
        process = self._process
        return None if process is None else process.pid

    def start(self) -> None:
        """Start the process if there is none; it gets ready by itself. Raises OSError if it cannot start."""
        with self._lock:
            if self._over:
                raise OSError("the proof process has been ended for good")
            if self._process is not None and self._process.poll() is None:
                return
            self._discard()
            environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "gateway.proof_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
            )

    def check(self, proofs: ProofVerifier, summary: BlockSummary, items: Sequence[bytes]) -> Verdict:
        """Check the proofs of a block: `BlockVerifier(proofs).check(summary, items)`, there.

        Raises:
            BlockRefused: they do not hold, or the process died twice of them.
        """
        for _ in range(_ATTEMPTS):
            try:
                answer = self._ask(proofs, summary, items)
            except (OSError, EOFError):
                self._replace()
                continue
            if isinstance(answer, Refusal):
                raise BlockRefused(answer)
            return answer
        raise BlockRefused(
            Refusal(
                RefusalKind.UNSUPPORTED,
                "block proofs",
                f"{_ATTEMPTS} checks that did not come to an end",
                "proofs that can be checked",
            )
        )

    def kill(self, *, for_good: bool = False) -> None:
        """End the process at once; a check that waits for it is tried again with another.

        `for_good`: not any more, it fails.
        """
        with self._lock:
            self._over = self._over or for_good
            if self._process is not None:
                self._process.kill()

    def _replace(self) -> None:
        """Have the next request start another process: this one is dead, or dying."""
        with self._lock:
            if self._process is not None:
                self._process.kill()
            self._discard()

    def close(self) -> None:
        """Let the process end, and wait for it; nobody may be asking."""
        with self._lock:
            self._over = True
            self._discard()

    def _ask(self, proofs: ProofVerifier, summary: BlockSummary, items: Sequence[bytes]) -> Verdict | Refusal:
        self.start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        changed = None if proofs is self._proofs else proofs
        _write_frame(process.stdin, (changed, summary, tuple(items)))
        self._proofs = proofs
        answer = _read_frame(process.stdout)
        assert isinstance(answer, Verdict | Refusal)
        return answer

    def _discard(self) -> None:
        process, self._process, self._proofs = self._process, None, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except OSError:
                continue  # what was still to be written is lost with the process
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main() -> None:
    """Answer requests until standard input ends."""
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, signal.SIG_IGN)
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not write into the frames
    round_constants()  # 0.1 s that the first block need not wait for
    verifier: BlockVerifier | None = None
    while True:
        try:
            request = _read_frame(requests)
        except EOFError:
            return
        assert isinstance(request, tuple)
        proofs, summary, items = request
        if proofs is not None:
            verifier = BlockVerifier(proofs)
        assert verifier is not None
        answer: Verdict | Refusal
        try:
            answer = verifier.check(summary, items)
        except BlockRefused as refused:
            answer = refused.refusal
        try:
            _write_frame(answers, answer)
        except BrokenPipeError:
            return


def _write_frame(pipe: IO[bytes], message: object) -> None:
    encoded = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    pipe.write(_SIZE.pack(len(encoded)))
    pipe.write(encoded)
    pipe.flush()


def _read_frame(pipe: IO[bytes]) -> object:
    """Return the next message. Raises EOFError if there is no whole one."""
    head = pipe.read(_SIZE.size)
    if len(head) < _SIZE.size:
        raise EOFError
    (size,) = _SIZE.unpack(head)
    encoded = pipe.read(size)
    if len(encoded) < size:
        raise EOFError
    return pickle.loads(encoded)


if __name__ == "__main__":
    main()
