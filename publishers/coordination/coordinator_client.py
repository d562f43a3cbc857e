"""The connection of a task to the coordinator.

Without a coordinator a task publishes alone.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import time
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, Final, TypeVar

from sluice.publishers.client.client import PublishClient
from sluice.publishers.coordination.coordinator import NO_BATCH, CoordinatorAddress
from sluice.publishers.errors import PublishStopped
from sluice.publishers.limits import STATUS_POLL_SECONDS

__all__ = ["CoordinatorClient"]

log = logging.getLogger(__name__)

START_GATE_SECONDS: Final = 30.0
"""Longest wait for the other publishers to be ready; then the task starts alone."""
COORDINATOR_CONNECT_SECONDS: Final = 5.0
"""Longest wait for the coordinator; then the task starts alone."""
COORDINATOR_CLOSE_SECONDS: Final = 5.0
"""Then the task drops its last reports."""
_Result = TypeVar("_Result")


class CoordinatorClient:
    """The connection of one task; an async context manager. `publisher_id` is that of the whole job."""

    def __init__(
        self,
        address: str | None,
        publisher_id: str,
        task_name: str,
        batch: int = NO_BATCH,
        *,
        close_seconds: float = COORDINATOR_CLOSE_SECONDS,
    ) -> None:
        self._address = None if address is None else CoordinatorAddress.parse(address)
        self._hello = {"publisher": publisher_id, "task": task_name, "batch": batch}
        self._task_name = task_name
        self._close_seconds = close_seconds
        self._clients: list[PublishClient] = []
        self.opened_at = time.time()
        """The beginning of the race, in seconds since 1970; of a task that starts alone, its own."""
        self._go = asyncio.Event()
        self._stopped = asyncio.Event()
        self._writer: asyncio.StreamWriter | None = None
        self._helpers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> CoordinatorClient:
        if self._address is None:
            self._go.set()
            return self
        try:
            async with asyncio.timeout(COORDINATOR_CONNECT_SECONDS):
                reader, self._writer = await asyncio.open_connection(self._address.host, self._address.port)
                await self._send({"hello": self._address.token, **self._hello})
        except (OSError, TimeoutError) as error:
            log.warning("%s: no coordinator, starting alone: %s", self._task_name, error)
            self._go.set()
            return self
        self._helpers = [asyncio.create_task(self._listen(reader)), asyncio.create_task(self._tell())]
        return self

    async def __aexit__(self, *error: object) -> None:
        for helper in self._helpers:
            helper.cancel()
        await asyncio.gather(*self._helpers, return_exceptions=True)
        if self._writer is not None:
            with suppress(OSError, TimeoutError):
                # After a stop with latency samples: only then does the job have no report of its own.
                last = {"reports": self._reports(whole=self._stopped.is_set()), "final": True}
                async with asyncio.timeout(self._close_seconds):  # it may not read
                    await self._send(last)
            self._writer.close()

    async def go(self) -> None:
        """Wait for go, but not for ever: a missing publisher must not hold up the others.

        Raises:
            PublishStopped: stop came instead.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(START_GATE_SECONDS):
                await self.unless_stopped(self._go.wait())
                return
        log.warning("%s: the other publishers are not ready, starting alone", self._task_name)

    async def unless_stopped(self, awaitable: Awaitable[_Result]) -> _Result:
        """Return the result of `awaitable`; when stop comes, cancel it and raise PublishStopped."""
        work = asyncio.ensure_future(awaitable)
        stopped = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
            self.check()
            return work.result()
        finally:
            for future in (work, stopped):
                future.cancel()
            await asyncio.gather(work, stopped, return_exceptions=True)

    def watch(self, client: PublishClient) -> None:
        """Report on a client of this task, and stop it when stop comes."""
        self._clients.append(client)
        if self._stopped.is_set():
            client.stop()

    def check(self) -> None:
        """Raise PublishStopped if stop has come."""
        if self._stopped.is_set():
            raise PublishStopped(self._task_name)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        with suppress(OSError, ValueError, KeyError):
            while line := await reader.readline():
                said = json.loads(line)
                word = said.get("say")
                if word == "go":
                    self.opened_at = float(said["at"])
                    self._go.set()
                elif word == "stop":
                    self._stopped.set()
                    for client in self._clients:
                        client.stop()
        self._go.set()  # the coordinator has gone

    async def _tell(self) -> None:
        told: list[dict[str, Any]] = []
        with suppress(OSError):
            while True:
                reports = self._reports(whole=False)
                if reports != told:
                    await self._send({"reports": reports})
                    told = reports
                await asyncio.sleep(STATUS_POLL_SECONDS)

    def _reports(self, *, whole: bool) -> list[dict[str, Any]]:
        reports = [client.report() for client in self._clients]
        if not whole:
            reports = [dataclasses.replace(report, latency_ns=()) for report in reports]
        return [dataclasses.asdict(report) for report in reports]

    async def _send(self, message: dict[str, Any]) -> None:
        assert self._writer is not None
        self._writer.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        await self._writer.drain()
