"""The demo's three nodes: at fixed addresses, each a process that ends with this one."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from sluice.datastream.layout import HEADER_OFFSET, HEADER_SIZE, decode_header
from sluice.gateway.cluster.control_client import ControlClient
from sluice.gateway.cluster.failover import Failover, FailoverStep
from sluice.gateway.errors import GatewayError
from sluice.publishers.demo.node_process import NodeProcess

__all__ = ["NODES", "Cluster", "name_of"]

NODES: Final = 3
_PORTS: Final = range(15_000, 32_000)
_WORDS: Final = (
    *("--commit-min-standbys", "1", "--block-time", "1", "--shutdown-grace-seconds", "2"),
    *("--catchup-backoff-seconds", "0.2", "--catchup-max-backoff-seconds", "1"),
    *("--tcp-inactivity-timeout-seconds", "3600"),
)
"""A block counts as stored when another node has it, too. The readers may wait for Spark for minutes."""


class Cluster:
    """Three nodes at fixed addresses; the first is active at first."""

    def __init__(
        self, folder: Path, arguments: Sequence[str], grpc: str | None = None, tcp: str | None = None
    ) -> None:
        self._folder = folder
        self._arguments = tuple(arguments)
        free = _free_addresses(4 * NODES)
        self.grpc, self.tcp, self.http, self.control = (free[at::4] for at in range(4))
        self.grpc[0] = grpc or self.grpc[0]
        self.tcp[0] = tcp or self.tcp[0]
        self.active = 0
        self._processes: list[NodeProcess | None] = [None] * NODES

    def start(self, on_started: Callable[[int], None]) -> None:
        """Start all nodes at once; tell how many have started."""
        roles = ["active" if at == self.active else "standby" for at in range(NODES)]
        with ThreadPoolExecutor(NODES) as threads:
            starts = [threads.submit(self.start_one, at, role) for at, role in enumerate(roles)]
            for count, start in enumerate(as_completed(starts), 1):
                start.result()
                on_started(count)

    def start_one(self, at: int, role: str) -> None:
        """Start a node in a role."""
        words = [*self._arguments, *_WORDS, "--role", role]
        for flag, addresses in (
            ("--grpc", self.grpc),
            ("--tcp", self.tcp),
            ("--http", self.http),
            ("--control", self.control),
        ):
            words += [flag, addresses[at]]
        for other in range(NODES):
            if other != at:
                words += ["--peer", self.grpc[other]]
        self._processes[at] = NodeProcess(
            self._folder / name_of(at), self._folder / f"{name_of(at)}.log", words, is_bound=True
        )

    def kill_active(self) -> int:
        """Kill the active node (SIGKILL); return its place."""
        at = self.active
        process, self._processes[at] = self._processes[at], None
        assert process is not None
        process.kill()
        return at

    def take_over(self, report: Callable[[FailoverStep], None]) -> int:
        """Activate the standby with the most blocks, as `sluice failover --force` does; return its place."""
        dead = self.active
        heads = [-1 if head is None else head for head in self.heads()]
        target = max((at for at in range(NODES) if at != dead), key=heads.__getitem__)
        asyncio.run(self._failover(dead, target, report))
        self.active = target
        return target

    async def _failover(self, dead: int, target: int, report: Callable[[FailoverStep], None]) -> None:
        async with ControlClient(self.control[dead]) as one, ControlClient(self.control[target]) as other:
            await Failover(one, other, report).force()

    def heads(self) -> list[int | None]:
        """Return the last block of each node; None: none, or it does not answer."""
        return asyncio.run(self._heads())

    async def _heads(self) -> list[int | None]:
        async def head(address: str) -> int | None:
            try:
                async with ControlClient(address) as control:
                    return (await control.state()).last_number
            except GatewayError:
                return None

        return list(await asyncio.gather(*map(head, self.control)))

    def stop(self) -> None:
        """Stop all nodes in order."""
        for process in self._processes:
            if process is not None:
                process.stop()
        self._processes = [None] * NODES

    def kill(self) -> None:
        """Kill what still runs."""
        for process in self._processes:
            if process is not None:
                process.kill()

    def digests(self) -> list[str]:
        """Return the SHA-256 of each node's stream, after `stop`."""
        return [_digest(self._folder / name_of(at) / "datastream.bin") for at in range(NODES)]


def name_of(at: int) -> str:
    """Return a node's name."""
    return f"node-{at + 1}"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        head = file.read(HEADER_OFFSET + HEADER_SIZE)
        total = decode_header(head[HEADER_OFFSET:]).header.total_length
        file.seek(0)
        return hashlib.sha256(file.read(total)).hexdigest()


def _free_addresses(count: int) -> list[str]:
    """Return addresses that were free a moment ago, all different.

    Their ports are below those that Linux gives to outgoing connections: a node that was killed finds its own
    free again.
    """
    with ExitStack() as opened:
        addresses: list[str] = []
        while len(addresses) < count:
            address = ("127.0.0.1", random.choice(_PORTS))
            with contextlib.suppress(OSError):
                opened.enter_context(socket.create_server(address))
                addresses.append(f"{address[0]}:{address[1]}")
        return addresses
