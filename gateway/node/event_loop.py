"""The event loop of a node: uvloop's, which gRPC wakes once for all that is ready.

What gRPC has done, a message received or sent, its own thread puts in a queue, and a byte for it in a socket
that the loop reads. For each time that it is woken the loop reads one byte, but takes all of the queue. So it
comes round for nothing once for each byte more, and with some 280 of them unread the thread stands still.
Here the loop reads all bytes but the last before gRPC reads that one: whatever they stand for was in the
queue before they were in the socket.

    done by gRPC    A B C                 D
    woken           A B C | - | - | D         by grpcio alone
    woken           A B C | D                 with this loop
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVarTuple

import uvloop

__all__ = ["NodeLoop"]

Ts = TypeVarTuple("Ts")

_WAKE_BYTES_MAX: Final = 1024
"""More than fit into the socket: Linux counts several hundred bytes for each that is written alone."""
_QUEUE_CLASS: Final = "PollerCompletionQueue"
"""Whose method gRPC has called when its socket is readable. Where that is not so, nothing is changed."""


class NodeLoop(uvloop.Loop):
    """uvloop's event loop, which reads all of gRPC's wake-ups at once."""

    def add_reader(self, fd: Any, callback: Callable[[*Ts], Any], *args: *Ts) -> None:
        """As `asyncio.AbstractEventLoop.add_reader`."""
        if isinstance(fd, socket.socket) and _is_of_grpc(callback):
            super().add_reader(fd, _read_all_but_one, fd, callback, *args)
        else:
            super().add_reader(fd, callback, *args)


def _is_of_grpc(callback: Callable[..., Any]) -> bool:
    method = callback.func if isinstance(callback, partial) else callback
    return type(getattr(method, "__self__", None)).__name__ == _QUEUE_CLASS


def _read_all_but_one(wake: socket.socket, callback: Callable[[*Ts], Any], *args: *Ts) -> None:
    """Call gRPC with one byte left to read, or with none where there is none: it knows what to do."""
    try:
        unread = len(wake.recv(_WAKE_BYTES_MAX, socket.MSG_PEEK))
        if unread > 1:
            wake.recv(unread - 1)
    except BlockingIOError:
        pass
    callback(*args)
