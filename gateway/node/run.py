"""The process of `sluice serve`, which runs one `gateway.node.node.Node` until it is told to stop.

A shell: signals, the event loop, the garbage collector, and the exit status.

    SIGINT, SIGTERM, SIGHUP    the node stops in order, exit status 0; SIGHUP not under nohup
    the node is broken         the same, exit status 1

The event loop is uvloop's, which takes 6 to 9 % less processor time for small blocks. gRPC's thread queues
its events and writes a byte for each into a socket. At each wake-up the loop reads one byte but takes the
whole queue, so it wakes in vain for each further byte; with some 280 unread bytes the thread stands still.
`NodeLoop` reads all bytes but the last before gRPC reads that one, which saves a tenth of the processor time
of a race of 16:

    done by gRPC    A B C                 D
    woken           A B C | - | - | D         by grpcio alone
    woken           A B C | D                 with `NodeLoop`

Source: docs/operations.md, "Run a node".
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVarTuple

import uvloop

from sluice.datastream import DatastreamError
from sluice.gateway.errors import Fatal, StartAbandoned
from sluice.gateway.ignored_signals import unless_ignored
from sluice.gateway.limits import THREAD_SWITCH_SECONDS
from sluice.gateway.node.node import Node
from sluice.gateway.settings.table import Settings
from sluice.gateway.workers.malloc import keep_freed_memory

__all__ = ["NodeLoop", "run_node"]

log = logging.getLogger(__name__)

GC_OBJECTS_MIN: Final = 10_000
"""New objects that start a garbage collection. Python's default, 700, blocks the event loop for 2 to 5 ms
several times a second at a high rate. Blocks leave no such garbage; a closed stream leaves 16 kB at most."""


Ts = TypeVarTuple("Ts")

_WAKE_BYTES_MAX: Final = 1024
"""Bytes of one look; the socket holds fewer."""
_QUEUE_CLASS: Final = "PollerCompletionQueue"
"""The class of gRPC's callback for its socket."""


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
    """Call gRPC with one unread byte at most."""
    try:
        unread = len(wake.recv(_WAKE_BYTES_MAX, socket.MSG_PEEK))
        if unread > 1:
            wake.recv(unread - 1)
    except BlockingIOError:
        pass
    callback(*args)


def run_node(settings: Settings) -> int:
    """Run one node until a signal stops it; return the exit status of `sluice serve`.

    Raises:
        GatewayError: it cannot start.
    """
    sys.setswitchinterval(THREAD_SWITCH_SECONDS)
    gc.set_threshold(GC_OBJECTS_MIN)
    keep_freed_memory(os.environ)
    return uvloop.run(_run(settings), loop_factory=NodeLoop)


async def _run(settings: Settings) -> int:
    node = Node(settings)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, *unless_ignored(signal.SIGHUP)):
        loop.add_signal_handler(number, stop.set)
    # These objects stay; walking them in every full collection would block the event loop for 30 ms.
    gc.collect()
    gc.freeze()
    asked = asyncio.ensure_future(stop.wait())
    starting = asyncio.ensure_future(node.start())
    await asyncio.wait({asked, starting}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        node.abandon_start()
    try:
        await starting
    except StartAbandoned:
        log.info("node stopped before it had started")
        return 0
    except DatastreamError as error:
        raise Fatal(
            f"data_dir {settings.data_dir}", got=str(error), expected="a stream that can be opened"
        ) from error
    gc.freeze()  # the start's objects stay too; no collection before, as blocks may be coming
    waits: set[asyncio.Future[Any]] = {asked, node.broken}
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    broken = node.broken.exception() if node.broken.done() else None
    if broken is not None:
        log.critical("the node stops on an internal error", exc_info=broken)
    asked.cancel()
    await node.stop()
    return 1 if broken is not None else 0
