"""The route of one small block, one TCP command and one row of a DataFrame through the source files.

    python -m benchmarks.route [--sequence ROUTE]

With `--sequence block` (or `door`, `command`, `row`) it takes that route alone and prints its calls in order.

A profiler sees every call of a Python function, in all threads of this process. A change of file is a call of
a function in another file than the function called before it, in the same thread. A resumed coroutine counts
as called. Only files of `gateway/` and `datastream/` count, without generated code (`gateway/api`). The
figures say how far a reader has to jump, not how long anything takes.

    block        16 items in one message, then the end of the block; from the gRPC message to the
                 acknowledgement, and again with the front door before it
    TCP command  Start at entry 0 of a stream of three entries, until the client has them
    row          one row, a block of 16 items, through a task of the sink; files of `publishers/` count too

The shortest of several routes counts, since timers of the node fall into some of them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import struct
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pyarrow as pa
import uvloop
from grpc import aio

import sluice.gateway.node.servers
from benchmarks.chains import Chain, make_chain
from benchmarks.doorless_node import start_doorless
from benchmarks.publish_processes import bare_server, open_call
from sluice.datastream import DataStreamer, StreamServer
from sluice.gateway.addresses import Address
from sluice.gateway.api import publish_pb2
from sluice.gateway.node.node import Node
from sluice.gateway.node.run import NodeLoop
from sluice.gateway.settings.table import Settings
from sluice.publishers.spark.block_stream import BlockStreamDataSource
from sluice.publishers.spark.schema import BLOCK_COLUMNS, arrow_schema, spark_schema

__all__ = ["Route", "main"]

_ROOT = Path(__file__).resolve().parent.parent
_Request = publish_pb2.PublishStreamRequest
_LOOPBACK = Address("127.0.0.1", 0)
_BLOCK_COUNT = 12
_WARM_UP_COUNT = 4
"""Blocks that fill caches, before the first that counts."""
_SETTLE_SECONDS = 0.3
_ITEMS_PER_BLOCK = 13
"""With header, footer and proof 16 items."""


@dataclass
class Route:
    """The files of one route, in all threads."""

    visits: Counter[str] = field(default_factory=Counter)
    """Changes into each file."""
    sequence: list[tuple[int, str, str]] = field(default_factory=list)
    """Each change of file: the thread, the file, and the function that was called."""

    @property
    def change_count(self) -> int:
        """The number of changes of file."""
        return self.visits.total()


class _Tracer:
    """A profiler that counts changes of file while it traces."""

    def __init__(self, packages: tuple[str, ...]) -> None:
        self._folders = tuple(f"{_ROOT / package}/" for package in packages)
        self._left_out = f"{_ROOT / 'gateway' / 'api'}/"
        self._names: dict[CodeType, str | None] = {}
        self._local = threading.local()
        self._route: Route | None = None

    @contextmanager
    def tracing(self) -> Iterator[Route]:
        """Trace meanwhile; each thread begins in no file."""
        self._local = threading.local()
        route = self._route = Route()
        try:
            yield route
        finally:
            self._route = None

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Take an event of the profiler."""
        route = self._route
        if route is None or event != "call":
            return
        name = self._name_of(frame.f_code)
        if name is not None and getattr(self._local, "name", None) != name:
            self._local.name = name
            route.visits[name] += 1
            route.sequence.append((threading.get_ident(), name, frame.f_code.co_qualname))

    def _name_of(self, code: CodeType) -> str | None:
        """Return the file of a function relative to the project; None if it does not count."""
        try:
            return self._names[code]
        except KeyError:
            path = os.path.realpath(code.co_filename)
            counts = path.startswith(self._folders) and not path.startswith(self._left_out)
            name = self._names[code] = path.removeprefix(f"{_ROOT}/") if counts else None
            return name


@contextmanager
def _tracer(*packages: str) -> Iterator[_Tracer]:
    """Profile this thread, and those that start meanwhile."""
    tracer = _Tracer(packages)
    threading.setprofile(tracer)
    sys.setprofile(tracer)
    try:
        yield tracer
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def _settings(data_dir: Path, chain: Chain) -> Settings:
    return Settings(
        data_dir=data_dir,
        grpc_address=_LOOPBACK,
        tcp_address=_LOOPBACK,
        http_address=_LOOPBACK,
        control_address=_LOOPBACK,
        ledger_keys=(chain.ledger_key,),
        tcp_max_connections=100,
    )


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sluice-route-") as name:
        yield Path(name)


# --- a block ---------------------------------------------------------------------------------------------


async def _block(*, has_door: bool) -> Route:
    if not has_door:
        sluice.gateway.node.servers.start_server = start_doorless  # type: ignore[attr-defined,assignment]
    chain = make_chain(_BLOCK_COUNT, _ITEMS_PER_BLOCK, 100)
    routes = []
    with _folder() as folder, _tracer("gateway", "datastream") as tracer:
        node = Node(_settings(folder, chain))
        await node.start()
        async with aio.insecure_channel(str(node.grpc_address)) as channel:
            call = open_call(channel)
            for index, messages in enumerate(chain.messages):
                await asyncio.sleep(_SETTLE_SECONDS if index >= _WARM_UP_COUNT else 0.0)
                with tracer.tracing() as route:
                    for message in messages:
                        await call.write(message)
                    response = await call.read()
                assert isinstance(response, publish_pb2.PublishStreamResponse)
                assert response.acknowledgement.block_number == index
                if index >= _WARM_UP_COUNT:
                    routes.append(route)
        await node.stop()
    return _shortest(routes)


# --- a TCP command ---------------------------------------------------------------------------------------


async def _command() -> Route:
    routes = []
    with _folder() as folder, DataStreamer.open(folder / "datastream.bin") as streamer:
        streamer.start_atomic_op()
        for _ in range(3):
            streamer.add_stream_entry(1, bytes(20))
        streamer.commit_atomic_op()
        size = 11 + streamer.committed.total_length - 4096
        server = StreamServer(streamer, "127.0.0.1", 0)
        with _tracer("gateway", "datastream") as tracer:
            await server.start()
            for _ in range(_BLOCK_COUNT):
                reader, writer = await asyncio.open_connection("127.0.0.1", server.address[1])
                await asyncio.sleep(_SETTLE_SECONDS / 3)
                with tracer.tracing() as route:
                    writer.write(struct.pack(">QQQ", 1, 1, 0))
                    await reader.readexactly(size)
                    await asyncio.sleep(_SETTLE_SECONDS / 3)
                routes.append(route)
                writer.close()
            await server.close()
    return _shortest(routes)


# --- a row -----------------------------------------------------------------------------------------------


def _row() -> Route:
    chain = make_chain(1, _ITEMS_PER_BLOCK, 100)
    items = _Request.FromString(chain.messages[0][0]).block_items.block_items
    batch = pa.record_batch([[0], [list(items)]], schema=arrow_schema(BLOCK_COLUMNS))
    routes = []
    with _tracer("gateway", "datastream", "publishers") as tracer:
        for _ in range(_WARM_UP_COUNT):
            with bare_server("echo", 1, 1) as address:
                writer = BlockStreamDataSource({"gateways": address}).writer(
                    spark_schema(BLOCK_COLUMNS), overwrite=False
                )
                with tracer.tracing() as route:
                    writer.write(iter([batch]))
            routes.append(route)
    return _shortest(routes)


def _shortest(routes: list[Route]) -> Route:
    return min(routes, key=lambda route: route.change_count)


def _print_sequence(route: Route) -> None:
    threads: dict[int, int] = {}
    for thread, name, function in route.sequence:
        print(f"  thread {threads.setdefault(thread, len(threads))}  {name}  {function}")


_ROUTES: dict[str, tuple[str, Callable[[], Route]]] = {
    "door": ("block, with the front door", lambda: uvloop.run(_block(has_door=True), loop_factory=NodeLoop)),
    "block": ("block", lambda: uvloop.run(_block(has_door=False), loop_factory=NodeLoop)),
    "command": ("TCP command", lambda: uvloop.run(_command())),
    "row": ("row", _row),
}
"""The door stands first: without it, `_block` replaces the node's server for good."""


def main() -> None:
    """Print the routes, or one of them in order."""
    parser = argparse.ArgumentParser(
        description="Count the changes of file on the routes of a block, a command and a row."
    )
    parser.add_argument(
        "--sequence", choices=_ROUTES, help="print the calls of this route in order, and no other route"
    )
    only = parser.parse_args().sequence
    for key, (label, take) in _ROUTES.items():
        if only not in (None, key):
            continue
        route = take()
        print(f"{label}: {len(route.visits)} files, {route.change_count} changes of file")
        if only:
            _print_sequence(route)
            continue
        for name, count in route.visits.most_common():
            print(f"  {count:4}  {name}")


if __name__ == "__main__":
    main()
