"""Live subscribers: from a block's last message to its receipt by each, beside some that do not read.

    python -m benchmarks.live_subscribers [--quick]

A publisher sends small blocks at a steady pace to a node (`sluice serve`, mode full). One process reads for
all subscribers, each with a connection of its own (`benchmarks.bare_call`), so its time is in the figures.
The bare loop is a server of gRPC alone that writes messages of the same size to as many streams at the same
pace, to the same reader; there a block counts from the time when its writing begins.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import select
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import grpc
import uvloop
from grpc import aio

from benchmarks.bare_call import BareCall
from benchmarks.chains import make_chain
from benchmarks.measuring import Rows, print_rows, running
from benchmarks.paced_publisher import latencies
from benchmarks.publish_processes import node
from sluice.gateway.addresses import parse_address
from sluice.gateway.api import block_items_pb2, subscribe_pb2
from sluice.gateway.blocks.block_numbers import U64_MAX

__all__ = ["run"]

_MODULE = "benchmarks.live_subscribers"
_SERVICE, _NAME = "org.hiero.block.api.BlockStreamSubscribeService", "subscribeBlockStream"
_METHOD = f"/{_SERVICE}/{_NAME}"
_ITEMS_PER_BLOCK, _ITEM_BYTES = 30, 165
_BLOCKS_PER_SECOND = 2.0
_READ_BYTES = 1 << 18
_Request = subscribe_pb2.SubscribeStreamRequest
_Response = subscribe_pb2.SubscribeStreamResponse
_BlockEnd = block_items_pb2.BlockEnd
_UNKNOWN_FIELD = b"\x82\x7d"  # field 2000, bytes


# --- the subscribers ---------------------------------------------------------------------------------------


class _Reader:
    """One subscriber; it notes when each block's end came."""

    def __init__(self, address: str) -> None:
        place = parse_address(address)
        self.socket = socket.create_connection((place.host, place.port))
        self.heard_at: list[int] = []
        self._call = BareCall(_METHOD, "reader", self._write, self._hear)
        self._call.open()
        request = _Request(start_block_number=0, end_block_number=U64_MAX)
        self._call.send([request.SerializeToString()])

    def read(self) -> None:
        """Take what has come."""
        data = self.socket.recv(_READ_BYTES)
        if not data:
            raise SystemExit("the node closed a connection")
        self._call.receive(data)

    def until_taken(self) -> None:
        """Read until the node has taken the call."""
        while not self._call.is_taken:
            self.read()

    def _write(self, parts: Sequence[bytes | memoryview]) -> None:
        self.socket.sendall(b"".join(parts))

    def _hear(self, answer: bytes | str) -> None:
        if isinstance(answer, str):
            raise SystemExit(f"the node ended a call: {answer}")
        if _Response.FromString(answer).HasField("end_of_block"):
            self.heard_at.append(time.monotonic_ns())


def _listen(address: str, count: str, blocks: str) -> None:
    """Receive `blocks` with each; read when each was sent (ns); print median and 99th percentile (ns)."""
    _raise_limits()
    readers = {}
    poller = select.epoll()
    for _ in range(int(count)):
        reader = _Reader(address)
        reader.until_taken()
        readers[reader.socket.fileno()] = reader
        poller.register(reader.socket, select.EPOLLIN)
    print("ready", flush=True)
    missing = set(readers)
    while missing:
        for fd, _ in poller.poll():
            readers[fd].read()
            if len(readers[fd].heard_at) >= int(blocks):
                missing.discard(fd)
    sent_at = json.loads(sys.stdin.readline())
    found = sorted(
        heard - sent
        for reader in readers.values()
        for heard, sent in zip(reader.heard_at, sent_at, strict=True)
    )
    print(json.dumps([found[len(found) // 2], found[len(found) * 99 // 100]]), flush=True)


def _ignore(address: str, count: str) -> None:
    """Subscribe and never read."""
    _raise_limits()
    readers = [_Reader(address) for _ in range(int(count))]
    for reader in readers:
        reader.until_taken()
    print("ready", flush=True)
    sys.stdin.read()


def _raise_limits() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


# --- the bare loop -----------------------------------------------------------------------------------------


def _bare(size: str, count: str) -> None:
    """Write `count` messages of `size` bytes to each stream when a line comes; print when each was begun."""
    uvloop.run(_bare_server(int(size), int(count)))


async def _bare_server(size: int, count: int) -> None:
    _raise_limits()
    end = _Response(end_of_block=_BlockEnd(block_number=1))
    message = end.SerializeToString() + _UNKNOWN_FIELD + _varint(size) + bytes(size)
    turns = [asyncio.Event() for _ in range(count)]

    async def subscribe(_: bytes, context: aio.ServicerContext[Any, Any]) -> None:
        await context.send_initial_metadata(())
        for turn in turns:
            await turn.wait()
            await context.write(message)
        await asyncio.Event().wait()

    handler: grpc.RpcMethodHandler[Any, Any] = grpc.unary_stream_rpc_method_handler(subscribe)
    server = aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {_NAME: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    begun = []
    for turn in turns:
        begun.append(time.monotonic_ns())
        turn.set()
        await asyncio.sleep(1 / _BLOCKS_PER_SECOND)
    print(json.dumps(begun), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    os._exit(0)


def _varint(number: int) -> bytes:
    parts = []
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


# --- measuring ---------------------------------------------------------------------------------------------


def _received(reader: Any, sent_at: list[int]) -> tuple[float, float]:
    reader.stdin.write(json.dumps(sent_at) + "\n")
    reader.stdin.flush()
    median, p99 = json.loads(reader.stdout.readline())
    return median / 1e6, p99 / 1e6


def _served(blocks: int, count: int, silent: int) -> tuple[float, float]:
    """Return median and 99th percentile, in ms, with `silent` others that never read."""
    chain = make_chain(blocks, _ITEMS_PER_BLOCK, _ITEM_BYTES)
    places = str(count + silent + 10)
    words = []
    for option in ("subscriber-max-streams", "grpc-max-connections"):
        words += [f"--{option}", places, f"--{option}-per-address", places]
    with ExitStack() as stack:
        address = stack.enter_context(node(chain, words)).address
        reader, _ = stack.enter_context(running(_MODULE, "listen", address, str(count), str(blocks)))
        if silent:
            stack.enter_context(running(_MODULE, "ignore", address, str(silent)))
        return _published(address, chain, reader)


def _published(address: str, chain: Any, reader: Any) -> tuple[float, float]:
    offset = time.monotonic_ns() - time.perf_counter_ns()
    found = latencies(address, chain, _BLOCKS_PER_SECOND)
    return _received(reader, [int(one.sent_at * 1e9) + offset for one in found])


def _bare_figures(blocks: int, count: int) -> tuple[float, float]:
    size = _ITEMS_PER_BLOCK * _ITEM_BYTES
    with ExitStack() as stack:
        server, address = stack.enter_context(running(_MODULE, "bare", str(size), str(blocks)))
        reader, _ = stack.enter_context(running(_MODULE, "listen", address, str(count), str(blocks)))
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write("go\n")
        server.stdin.flush()
        return _received(reader, json.loads(server.stdout.readline()))


def run(quick: bool = False) -> Rows:
    """Measure; return a label and a text."""
    count, silent, blocks = (200, 20, 5) if quick else (1_000, 100, 30)
    rows = []
    bare = _bare_figures(blocks, count)
    for label, others in ((f"{count:,}", 0), (f"{count:,} beside {silent} that never read", silent)):
        median, p99 = _served(blocks, count, others)
        text = f"block sent to receipt: median {median:.1f} ms, p99 {p99:.1f} ms"
        text += f"; bare gRPC {bare[0]:.1f} and {bare[1]:.1f} ms, ratio of p99 {bare[1] / p99:.2f}"
        rows.append((f"live subscribers, {label}", text))
    return rows


_ROLES: dict[str, Callable[..., None]] = {"listen": _listen, "ignore": _ignore, "bare": _bare}

if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in _ROLES:
        _ROLES[sys.argv[1]](*sys.argv[2:])
    else:
        print_rows(run)
