"""Tests of `gateway.transport.door`: a process that has no file descriptor left for gRPC."""

from __future__ import annotations

import asyncio
import errno
import socket

import pytest

from gateway.transport.door import Door, DoorPlan
from gateway.transport.door_notes import DoorNotes
from gateway.transport.doorkeeper import DoorLimits
from gateway.transport.frames import (
    CLIENT_PREFACE,
    Kind,
    frame,
)


def test_a_client_for_whom_there_is_no_socket_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> int:
        door = Door(DoorPlan(DoorLimits()), DoorNotes("grpc.listen"))
        door.listen([listener])
        with socket.create_connection(listener.getsockname()[:2]) as client:
            while not door.connections:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            with monkeypatch.context() as patch:
                patch.setattr("gateway.transport.door.socket.socket", _no_socket)
                client.sendall(CLIENT_PREFACE + frame(Kind.PING, 0, 0, b"a secret"))
                await asyncio.sleep(0.2)
            count = len(door.connections)
        door.close()
        return count

    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert asyncio.run(main()) == 0


def _no_socket(*_: object) -> socket.socket:
    raise OSError(errno.EMFILE, "Too many open files")
