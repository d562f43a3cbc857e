"""The driver's side of a race, heard over real sockets."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import pytest

from publishers.errors import OptionError
from publishers.report import PublishReport
from publishers.steward import NO_BATCH, Steward, StewardAddress

SECONDS = 10.0


class Task:
    """A task's connection, line by line."""

    def __init__(self, steward: Steward, publisher: str, *, batch: int = NO_BATCH, token: str = "") -> None:
        address = steward.address
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
def task(steward: Steward, publisher: str = "p-1", **named: Any) -> Iterator[Task]:
    made = Task(steward, publisher, **named)
    try:
        yield made
    finally:
        made.close()


def test_everybody_starts_when_the_gate_is_opened_and_who_comes_later_at_once() -> None:
    with Steward() as steward, task(steward, "p-1") as one, task(steward, "p-2") as two:
        while steward.ready_count < 2:
            steward.await_idle(0.001)
        steward.open_gate()
        steward.open_gate()
        with task(steward, "p-3") as late:
            assert [each.hears() for each in (one, two, late)] == ["go", "go", "go"]
        steward.stop()
        assert [one.hears(), two.hears()] == ["stop", "stop"]
        with task(steward, "p-4") as later:
            assert later.hears() == "stop"


def test_what_tasks_say_stays_until_it_is_forgotten() -> None:
    first, second = PublishReport("p-1", won=1), PublishReport("p-1", won=2)
    with Steward() as steward:
        for batch, report in ((0, first), (1, second)):
            with task(steward, batch=batch) as one:
                one.say({"reports": [asdict(report)]})
                one.say({"reports": [asdict(report)], "final": True})
                while steward.reports("p-1")[-1:] != [report]:
                    steward.await_idle(0.001)
            assert steward.await_idle(SECONDS)
        assert steward.reports("p-1") == [first, second]
        steward.forget("p-1", 0)
        assert steward.reports("p-1") == [second]
        assert steward.reports("p-2") == []
        assert (len(steward._tasks), steward.ready_count) == (1, 1)


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"GET / HTTP/1.1\r\n",
        b"[]\n",
        b'{"hello": "wrong", "publisher": "x", "task": "t", "batch": 0}\n',
    ],
)
def test_a_stranger_is_hung_up_on(line: bytes) -> None:
    with (
        Steward() as steward,
        socket.create_connection((steward.address.host, steward.address.port)) as stranger,
    ):
        stranger.settimeout(SECONDS)
        stranger.sendall(line)
        assert stranger.recv(1) == b""
        assert steward.ready_count == 0


def test_a_task_that_talks_nonsense_is_lost_and_nobody_else() -> None:
    with Steward() as steward, task(steward, "p-1") as one, task(steward, "p-2") as two:
        while steward.ready_count < 2:
            steward.await_idle(0.001)
        one.say({"reports": [{"publisher": "unknown field"}]})
        assert one.hears() is None
        steward.open_gate()
        assert two.hears() == "go"
        assert not steward.await_idle(0)


def test_the_address_is_an_option() -> None:
    with Steward() as steward:
        assert StewardAddress.parse(str(steward.address)) == steward.address
    for text in ("", "host", "host:1", "host:0/x", ":1/x", "host:x/y", "host:70000/y"):
        with pytest.raises(OptionError) as caught:
            StewardAddress.parse(text)
        assert str(caught.value) == f"option 'steward': got {text!r}, expected host:port/token"
