"""A publisher that sends blocks when they are due, in one thread and without an event loop.

Between two blocks it waits for answers until the next block is due (`select`, to the microsecond). An event
loop has timers of whole milliseconds: a second thread would have to wake it for each block, on the processors
that the node is measured on. See `benchmarks.bare_call`.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Sequence
from statistics import quantiles
from typing import NamedTuple

from benchmarks.bare_call import BareCall
from benchmarks.chains import Chain
from benchmarks.publish_processes import METHOD
from sluice.gateway.addresses import parse_address
from sluice.gateway.api import publish_pb2

__all__ = ["Latency", "latencies", "p99"]

_READ_BYTES = 1 << 16
_SILENCE_SECONDS_MAX = 30.0
"""A node that owes an answer and is silent for so long has failed."""


class Latency(NamedTuple):
    """The times at which a block was due, sent and acknowledged, in seconds of `time.perf_counter`."""

    due_at: float
    sent_at: float
    heard_at: float

    @property
    def since_sent(self) -> float:
        """The time from sending to acknowledgement."""
        return self.heard_at - self.sent_at

    @property
    def since_due(self) -> float:
        """The time from when it was due: a machine that stands still delays the sending, too."""
        return self.heard_at - self.due_at


class _Publisher:
    """One connection with one publish stream, which sends a chain."""

    def __init__(self, address: str, chain: Chain) -> None:
        self._messages = chain.messages
        self._due_and_sent_at: list[tuple[float, float]] = []
        self.latencies: list[Latency] = []
        """One for each block."""
        place = parse_address(address)
        self._socket = socket.create_connection((place.host, place.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._call = BareCall(METHOD, "benchmark", self._write, self._hear)

    def run(self, blocks_per_second: float) -> None:
        """Send each block when it is due, and wait for the last acknowledgement."""
        with self._socket:
            self._call.open()
            while not self._call.is_taken:
                self._await_answer()
            begun = time.perf_counter()
            for number, messages in enumerate(self._messages):
                due = begun + number / blocks_per_second
                while (wait_seconds := due - time.perf_counter()) > 0:
                    self._receive(wait_seconds)
                self._due_and_sent_at.append((due, time.perf_counter()))
                self._call.send(messages)
            while len(self.latencies) < len(self._messages):
                self._await_answer()

    def _await_answer(self) -> None:
        if not self._receive(_SILENCE_SECONDS_MAX):
            raise RuntimeError(f"the node said nothing for {_SILENCE_SECONDS_MAX:.0f} s")

    def _receive(self, wait_seconds: float) -> bool:
        """Process answers for at most `wait_seconds`; return whether any came."""
        if not select.select([self._socket], [], [], wait_seconds)[0]:
            return False
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise RuntimeError("the node closed the connection")
        self._call.receive(data)
        return True

    def _write(self, parts: Sequence[bytes | memoryview]) -> None:
        self._socket.sendall(b"".join(parts))

    def _hear(self, heard: bytes | str) -> None:
        number = len(self.latencies)
        answer = heard if isinstance(heard, str) else publish_pb2.PublishStreamResponse.FromString(heard)
        if isinstance(answer, str) or answer.WhichOneof("response") != "acknowledgement":
            raise RuntimeError(f"block {number}: got {answer}, expected its acknowledgement")
        if answer.acknowledgement.block_number != number:
            got = answer.acknowledgement.block_number
            raise RuntimeError(f"block {number}: got the acknowledgement of block {got}, expected its own")
        self.latencies.append(Latency(*self._due_and_sent_at[number], time.perf_counter()))


def latencies(address: str, chain: Chain, blocks_per_second: float) -> list[Latency]:
    """Send blocks at a steady pace; return the times of each.

    Raises:
        RuntimeError: the node answered something else, or nothing.
    """
    publisher = _Publisher(address, chain)
    publisher.run(blocks_per_second)
    return publisher.latencies


def p99(values: Sequence[float]) -> float:
    """Return the 99th percentile."""
    return quantiles(values, n=100)[98]
