"""The coordinator of a race of Spark tasks, on the driver: it collects reports, and says go and stop.

    task   ──► {"hello": token, "publisher": …, "task": …, "batch": …}       it is ready to send
    driver ──► {"say": "go", "at": time}                                     all publishers are ready
    task   ──► {"reports": […]}                                              several times a second
    driver ──► {"say": "stop"}                                               Ctrl-C
    task   ──► {"reports": […], "final": true}, and closes                   the block in flight is finished

Each task sends one JSON object a line over TCP. A task that cannot reach the coordinator starts alone. The
token keeps out strangers who find the port; whoever can read the job's plan knows it. The time is that of the
first `go`, in seconds since 1970: the pace of all publishers counts from there.
Source: docs/spark.md.
"""

from __future__ import annotations

import json
import secrets
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, cast

from sluice.publishers.errors import OptionError
from sluice.publishers.report import PublishReport

__all__ = ["NO_BATCH", "Coordinator", "CoordinatorAddress"]

COORDINATOR_HELLO_BYTES_MAX: Final = 64 * 1024
"""Until the first line, a stranger may be at the other end."""
COORDINATOR_LINE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Longest line of a task: the reports of RACE_MAX publishers with all their latency samples."""
NO_BATCH: Final = -1
"""The batch of a task outside a streaming query."""


@dataclass(frozen=True, slots=True)
class CoordinatorAddress:
    """The coordinator's address; as text `host:port/token`."""

    host: str
    port: int
    token: str

    def __str__(self) -> str:
        return f"{self.host}:{self.port}/{self.token}"

    @classmethod
    def parse(cls, text: str) -> CoordinatorAddress:
        """Read the option; raise OptionError."""
        place, _, token = text.partition("/")
        host, _, port = place.rpartition(":")
        if not (host and token and port.isdecimal() and 0 < int(port) < 1 << 16):
            raise OptionError("coordinator", repr(text), "host:port/token")
        return cls(host, int(port), token)


@dataclass(slots=True)
class _Task:
    publisher: str
    batch: int
    reports: tuple[PublishReport, ...] = ()
    connection: socket.socket | None = None
    """None: the task is done, or gone."""
    sending: threading.Lock = field(default_factory=threading.Lock)

    def say(self, word: str, at: float | None) -> None:
        with self.sending, suppress(OSError):  # the task may be gone
            if self.connection is not None:
                self.connection.sendall(json.dumps({"say": word, "at": at}).encode() + b"\n")


class Coordinator:
    """A server for the tasks, until `close`; a context manager.

    Tasks find it by the name `advertised`, or else `host`.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        advertised: str | None = None,
        *,
        line_bytes_max: int = COORDINATOR_LINE_BYTES_MAX,
    ) -> None:
        self.line_bytes_max = line_bytes_max
        self._token = secrets.token_hex(16)
        self._tasks: dict[tuple[str, int, str], _Task] = {}
        self._publishers: set[str] = set()
        self._opened_at: float | None = None
        self._is_stopped = False
        self._changed = threading.Condition()
        self._server = _Server((host, 0), self)
        port = self._server.server_address[1]
        self.address = CoordinatorAddress(advertised or host, port, self._token)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="coordinator", daemon=True
        )
        self._thread.start()

    def __enter__(self) -> Coordinator:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening, and close all connections."""
        self._server.shutdown()
        self._server.server_close()
        with self._changed:
            tasks = list(self._tasks.values())
        for task in tasks:
            with task.sending, suppress(OSError):
                if task.connection is not None:
                    task.connection.shutdown(socket.SHUT_RDWR)

    def open_gate(self) -> None:
        """Let all tasks go, later ones too."""
        with self._changed:
            if self._opened_at is not None:
                return
            self._opened_at = time.time()
        self._say_to_all("go")

    def stop(self) -> None:
        """Tell all tasks, later ones too, to finish the block in flight and end."""
        with self._changed:
            self._is_stopped = True
        self._say_to_all("stop")

    @property
    def ready_count(self) -> int:
        """The count of publishers that have had a task ready to send."""
        with self._changed:
            return len(self._publishers)

    @property
    def task_count(self) -> int:
        """The count of tasks that are connected."""
        with self._changed:
            return sum(task.connection is not None for task in self._tasks.values())

    def await_idle(self, timeout_seconds: float) -> bool:
        """Wait until no task is connected; return False after the timeout."""
        give_up_at = time.monotonic() + timeout_seconds
        with self._changed:
            while any(task.connection is not None for task in self._tasks.values()):
                left_seconds = give_up_at - time.monotonic()
                if left_seconds <= 0:
                    return False
                self._changed.wait(left_seconds)
            return True

    def reports(self, publisher_id: str) -> list[PublishReport]:
        """Return the last reports of a publisher's tasks, in no order."""
        with self._changed:
            tasks = [task for task in self._tasks.values() if task.publisher == publisher_id]
            return [report for task in tasks for report in task.reports]

    def forget(self, publisher_id: str, through_batch: int) -> None:
        """Drop a publisher's reports up to a batch: they are counted elsewhere now."""
        with self._changed:
            for key, task in tuple(self._tasks.items()):
                if task.publisher == publisher_id and task.batch <= through_batch:
                    task.reports = ()
                    if task.connection is None:
                        del self._tasks[key]  # a query has endless batches

    # --- what the connections call --------------------------------------------------------------------------

    def admit(self, hello: dict[str, Any], connection: socket.socket) -> _Task | None:
        """Admit a task by its first line; None: its token is wrong."""
        if not secrets.compare_digest(str(hello.get("hello", "")).encode(), self._token.encode()):
            return None
        task = _Task(str(hello["publisher"]), int(hello["batch"]), connection=connection)
        with self._changed:
            self._tasks[task.publisher, task.batch, str(hello["task"])] = task
            self._publishers.add(task.publisher)
            opened_at, is_stopped = self._opened_at, self._is_stopped
            self._changed.notify_all()
        if opened_at is not None or is_stopped:
            task.say("stop" if is_stopped else "go", opened_at)
        return task

    def hear(self, task: _Task, message: dict[str, Any]) -> None:
        """Take a message with reports."""
        reports = tuple(PublishReport.from_fields(fields) for fields in message["reports"])
        with self._changed:
            task.reports = reports
            self._changed.notify_all()

    def lose(self, task: _Task) -> None:
        """Note that a task is done or gone; its reports stay."""
        with task.sending:
            task.connection = None
        with self._changed:
            self._changed.notify_all()

    def _say_to_all(self, word: str) -> None:
        with self._changed:
            tasks, opened_at = list(self._tasks.values()), self._opened_at
        for task in tasks:
            task.say(word, opened_at)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        super().__init__(address, _Connection)


class _Connection(socketserver.StreamRequestHandler):
    """A fault ends only this connection."""

    def handle(self) -> None:
        coordinator = cast("_Server", self.server).coordinator
        messages = self._messages(coordinator.line_bytes_max)
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            hello = next(messages, None)
            task = None if hello is None else coordinator.admit(hello, self.request)
            if task is None:
                return
            try:
                for message in messages:
                    coordinator.hear(task, message)
            finally:
                coordinator.lose(task)

    def _messages(self, line_bytes_max: int) -> Iterator[dict[str, Any]]:
        size_max = COORDINATOR_HELLO_BYTES_MAX  # until the task has shown the token
        while line := self.rfile.readline(size_max):
            if not line.endswith(b"\n"):  # too long or broken off, and perhaps JSON all the same
                return
            yield json.loads(line)
            size_max = line_bytes_max
