"""`sluice serve` as a process, and publishers that record their answers."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sluice.gateway.addresses import Address, parse_address
from sluice.publishers.client.client import ClientOptions, PublishClient
from sluice.publishers.demo.node_process import NodeProcess, environment_without_settings
from sluice.publishers.protocol.messages import Acknowledged, Action, Disconnected, Event
from tests.chaos.network import free_ports
from tests.nodes import ledger_key

SLUICE = (sys.executable, "-m", "sluice.gateway.commands.cli")
ANYWHERE = (
    "--grpc",
    "127.0.0.1:0",
    "--tcp",
    "127.0.0.1:0",
    "--http",
    "127.0.0.1:0",
    "--control",
    "127.0.0.1:0",
)
START_SECONDS = 30.0
COMMAND_SECONDS = 400.0
"""The longest time of a command: large items and Spark take long on a busy machine."""
_given_ports: set[int] = set()


def sluice(*words: object) -> subprocess.CompletedProcess[str]:
    """Run a command of `sluice` to its end."""
    return subprocess.run(
        [*SLUICE, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
        env=environment_without_settings(),
    )


def refused(*arguments: object) -> tuple[int, str]:
    """Run `sluice serve`, which has to refuse; return exit status and output without the log."""
    done = sluice("serve", "--log-level", "error", *arguments)
    assert done.stdout == ""
    return done.returncode, done.stderr


def free_port() -> int:
    """Return a free port that was not returned before."""
    while (port := free_ports(1)[0]) in _given_ports:
        pass
    _given_ports.add(port)
    return port


class ServeProcess:
    """One node in a process of its own; a test that ends kills it.

    Args:
        data_dir: its folder.
        arguments: further options.
        log_path: its log, beside the folder by default.
    """

    def __init__(self, data_dir: Path, *arguments: object, log_path: Path | None = None) -> None:
        self.data_dir = data_dir
        self._arguments = [str(argument) for argument in arguments]
        self._log_path = log_path or data_dir.with_name(data_dir.name + ".log")
        self._process: NodeProcess | None = None
        self.grpc_address = self.tcp_address = self.http_address = Address("127.0.0.1", 0)

    async def start(self, *, key: bool = True) -> None:
        """Start it, and wait until it listens."""
        keys = ["--ledger-key", ledger_key()] if key else []
        self._log_path.unlink(missing_ok=True)
        words = [*keys, *self._arguments]
        node = await asyncio.to_thread(NodeProcess, self.data_dir, self._log_path, words)
        self._process = node
        self.grpc_address, self.http_address = parse_address(node.grpc), parse_address(node.http)
        self.tcp_address = Address(*node.tcp)

    def log_text(self) -> str:
        """Return the output of this run."""
        return self._log_path.read_text("utf-8")

    def logged(self, *messages: str) -> list[dict[str, Any]]:
        """Return the complete log lines of this run with one of these messages."""
        whole = self.log_text().rpartition("\n")[0]
        lines = [json.loads(line) for line in whole.splitlines() if line.startswith("{")]
        return [line for line in lines if line["message"] in messages]

    def send(self, signal_number: signal.Signals) -> None:
        """Send a signal."""
        assert self._process is not None
        self._process.send(signal_number)

    async def ended(self) -> int:
        """Wait for its end; return the exit status, negative for a signal."""
        assert self._process is not None
        return await asyncio.to_thread(self._process.wait, START_SECONDS)

    async def kill(self) -> None:
        """End it with SIGKILL."""
        self.send(signal.SIGKILL)
        assert await self.ended() == -signal.SIGKILL

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Leave no process behind."""
        if self._process is not None:
            self._process.kill()


class Listener(PublishClient):
    """A publisher that records every acknowledgement, and why a stream failed."""

    def __init__(self, gateways: Sequence[str], name: str, options: ClientOptions | None = None) -> None:
        super().__init__(gateways, name, options)
        self.acknowledged: list[int] = []
        self.disconnected: list[str] = []

    def _hear(self, event: Event) -> list[Action]:
        if isinstance(event, Acknowledged):
            self.acknowledged.append(event.number)
        elif isinstance(event, Disconnected):
            self.disconnected.append(event.reason)
        return super()._hear(event)
