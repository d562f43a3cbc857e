"""The driver's side of a race, heard over real sockets."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import pytest

from sluice.publishers.coordination.coordinator import (
    COORDINATOR_HELLO_BYTES_MAX,
    COORDINATOR_LINE_BYTES_MAX,
    NO_BATCH,
    Coordinator,
    CoordinatorAddress,
)
from sluice.publishers.errors import OptionError
from sluice.publishers.limits import (
    LATENCY_SAMPLES_MAX,
    RACE_MAX,
)
from sluice.publishers.report import PublishReport

SECONDS = 10.0


class Task:
    """A task's connection, line by line."""

    def __init__(
        self, coordinator: Coordinator, publisher: str, *, batch: int = NO_BATCH, token: str = ""
    ) -> None:
        address = coordinator.address
        self.socket = socket.create_connection((address.host, address.port), SECONDS)
        self.lines = self.socket.makefile("rb")
        self.say({"hello": token or address.token, "publisher": publisher, "task": "t", "batch": batch})

    def say(self, message: dict[str, Any]) -> None:
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def hears(self) -> str | None:
        line = self.lines.readline()
        return json.loads(line)["say"] if line else None

    def close(self) -> None:
        self.lines.close()
        self.socket.close()


@contextmanager
def task(coordinator: Coordinator, publisher: str = "p-1", **named: Any) -> Iterator[Task]:
    made = Task(coordinator, publisher, **named)
    try:
        yield made
    finally:
        made.close()


def test_everybody_starts_when_the_gate_is_opened_and_who_comes_later_at_once() -> None:
    with Coordinator() as coordinator, task(coordinator, "p-1") as one, task(coordinator, "p-2") as two:
        while coordinator.ready_count < 2:
            coordinator.await_idle(0.001)
        assert coordinator.task_count == 2
        coordinator.open_gate()
        coordinator.open_gate()
        with task(coordinator, "p-3") as late:
            assert [each.hears() for each in (one, two, late)] == ["go", "go", "go"]
        coordinator.stop()
        assert [one.hears(), two.hears()] == ["stop", "stop"]
        with task(coordinator, "p-4") as later:
            assert later.hears() == "stop"


def test_what_tasks_say_stays_until_it_is_forgotten() -> None:
    first, second = PublishReport("p-1", won=1), PublishReport("p-1", won=2)
    with Coordinator() as coordinator:
        for batch, report in ((0, first), (1, second)):
            with task(coordinator, batch=batch) as one:
                one.say({"reports": [asdict(report)]})
                one.say({"reports": [asdict(report)], "final": True})
                while coordinator.reports("p-1")[-1:] != [report]:
                    coordinator.await_idle(0.001)
            assert coordinator.await_idle(SECONDS)
        assert coordinator.reports("p-1") == [first, second]
        coordinator.forget("p-1", 0)
        assert coordinator.reports("p-1") == [second]
        assert coordinator.reports("p-2") == []
        assert (len(coordinator._tasks), coordinator.ready_count) == (1, 1)


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"GET / HTTP/1.1\r\n",
        b"[]\n",
        b"[" * 60_000 + b"\n",
        b'{"hello": "wrong", "publisher": "x", "task": "t", "batch": 0}\n',
    ],
)
def test_a_stranger_is_hung_up_on(line: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    with (
        Coordinator() as coordinator,
        socket.create_connection((coordinator.address.host, coordinator.address.port)) as stranger,
    ):
        stranger.settimeout(SECONDS)
        stranger.sendall(line)
        assert stranger.recv(1) == b""
        assert coordinator.ready_count == 0
    assert capfd.readouterr().err == ""  # nor does it fill the terminal


def test_a_task_that_talks_nonsense_is_lost_and_nobody_else() -> None:
    with Coordinator() as coordinator, task(coordinator, "p-1") as one, task(coordinator, "p-2") as two:
        while coordinator.ready_count < 2:
            coordinator.await_idle(0.001)
        one.say({"reports": [{"publisher": "unknown field"}]})
        assert one.hears() is None
        coordinator.open_gate()
        assert two.hears() == "go"
        assert not coordinator.await_idle(0)


def test_the_address_is_an_option() -> None:
    with Coordinator() as coordinator:
        assert CoordinatorAddress.parse(str(coordinator.address)) == coordinator.address
    for text in ("", "host", "host:1", "host:0/x", ":1/x", "host:x/y", "host:70000/y"):
        with pytest.raises(OptionError) as caught:
            CoordinatorAddress.parse(text)
        assert str(caught.value) == f"option 'coordinator': got {text!r}, expected host:port/token"


def padded(message: dict[str, Any], size: int) -> bytes:
    """The line of a message, with blanks up to so many bytes, the line's end among them."""
    return json.dumps(message).encode().ljust(size - 1) + b"\n"


def test_a_first_line_has_a_length_that_it_may_have_and_no_more() -> None:
    with Coordinator() as coordinator:
        address = coordinator.address
        for more_bytes in (1, 0):
            hello = {"hello": address.token, "publisher": f"p-{more_bytes}", "task": "t", "batch": NO_BATCH}
            with socket.create_connection((address.host, address.port)) as one:
                one.settimeout(SECONDS)
                one.sendall(padded(hello, COORDINATOR_HELLO_BYTES_MAX + more_bytes))
                if more_bytes:
                    assert one.recv(1) == b""
                    assert coordinator.ready_count == 0
                    coordinator.open_gate()
                else:
                    assert json.loads(one.makefile("rb").readline())["say"] == "go"


def test_a_report_has_a_length_that_it_may_have_and_no_more() -> None:
    """16 MiB otherwise: what the reports of all racers of a task need, with times of 100 seconds each."""
    longest = PublishReport("p", latency_ns=(100_000_000_000,) * LATENCY_SAMPLES_MAX)
    assert RACE_MAX * len(json.dumps(asdict(longest), separators=(",", ":"))) < COORDINATOR_LINE_BYTES_MAX
    report = PublishReport("p", won=1)
    with Coordinator(line_bytes_max=1000) as coordinator:
        for size, is_taken in ((1000, True), (1001, False)):
            name = f"p-{size}"
            with task(coordinator, name) as one:
                one.socket.sendall(padded({"reports": [asdict(report)]}, size))
                if is_taken:
                    while not coordinator.reports(name):
                        coordinator.await_idle(0.001)
                assert is_taken or one.hears() is None
            assert coordinator.await_idle(SECONDS)
            assert coordinator.reports(name) == [report] * is_taken
