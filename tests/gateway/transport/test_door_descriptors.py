"""Tests of `gateway.transport.door`: many clients at once, and no file descriptor left for one."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from gateway.transport.door import Door, DoorPlan
from gateway.transport.door_notes import DoorNotes
from gateway.transport.doorkeeper import DoorLimits
from gateway.transport.frames import (
    CLIENT_PREFACE,
    FrameKind,
    frame,
)
from tests.gateway.transport.test_door import ANSWER_SECONDS, plan, serving, wait_until, who_is
from tests.network_double import NetworkDouble

CLIENTS = 200


def test_many_clients_that_come_at_once_are_all_answered() -> None:
    together = threading.Barrier(CLIENTS)

    def call(_: int) -> list[str]:
        together.wait(ANSWER_SECONDS)
        with NetworkDouble(served.address) as double:
            told = who_is(double)
            together.wait(ANSWER_SECONDS)  # all are there before the first one goes
            return told

    with serving(plan(connections_max=2 * CLIENTS)) as served:  # some places are kept
        with ThreadPoolExecutor(CLIENTS) as threads:
            told = list(threads.map(call, range(CLIENTS)))
        assert {address for _, address in told} == {"127.0.0.1"}
        assert len({peer for peer, _ in told}) == CLIENTS
        wait_until(lambda: not served.server.door.connection_count, "the end of all connections")
        assert (served.notes.refusals, served.notes.endings) == ([], [])


def test_a_client_for_whom_there_is_no_socket_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> int:
        door = Door(DoorPlan(DoorLimits()), DoorNotes("grpc.listen"))
        door.listen([listener])
        with socket.create_connection(listener.getsockname()[:2]) as client:
            while not door.connections:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            with monkeypatch.context() as patch:
                patch.setattr("gateway.transport.door.socket.socket", _no_socket)
                client.sendall(CLIENT_PREFACE + frame(FrameKind.PING, 0, 0, b"a secret"))
                await asyncio.sleep(0.2)
            count = len(door.connections)
        door.close()
        return count

    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert asyncio.run(main()) == 0


def _no_socket(*_: object) -> socket.socket:
    raise OSError(errno.EMFILE, "Too many open files")
