"""The server processes of publishing benchmarks, and a publisher that sends a whole chain."""

from __future__ import annotations

import asyncio
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from grpc import aio

from benchmarks.chains import Chain
from benchmarks.measuring import running
from benchmarks.watched_node import worst_pause_seconds
from sluice.gateway.api import publish_pb2
from sluice.publishers.demo.node_process import NodeProcess

__all__ = [
    "METHOD",
    "BareLoop",
    "Call",
    "Facts",
    "bare_loop",
    "bare_process",
    "bare_server",
    "free_addresses",
    "node",
    "open_call",
    "publish",
]

METHOD = "/org.hiero.block.api.BlockStreamPublishService/publishBlockStream"
Call = aio.StreamStreamCall[bytes, publish_pb2.PublishStreamResponse]


@dataclass(slots=True)
class Facts:
    """The figures of a node, complete once it has ended."""

    address: str
    """The address for publishers."""
    process_id: int
    flush_count: int = 0
    worst_pause_seconds: float = 0.0
    """The longest iteration of its event loop, if it was watched."""
    worst_own_pause_seconds: float = 0.0
    worst_processor_pause_seconds: float = 0.0
    """The longest own part of a pause, and the most processor time in one (`benchmarks.bare_loop`)."""
    process_seconds_in_worst_pause: float = 0.0
    """The processor time of all threads of the node in the longest pause."""


@dataclass(slots=True)
class BareLoop:
    """The figures of a bare loop, complete once it has ended."""

    worst_pause_seconds: float = 0.0
    """Its longest iteration, though it had nothing to do."""


@contextmanager
def node(
    chain: Chain, arguments: Sequence[str] = (), *, watched: bool = False, has_door: bool = True
) -> Iterator[Facts]:
    """Run a node, `sluice serve` in mode full, on an empty folder; its facts are complete at the end.

    `has_door`: False for a node without the front door (`benchmarks.doorless_node`).
    `watched`: record its pauses, which costs 500 iterations a second.
    """
    with tempfile.TemporaryDirectory() as folder:
        log_path = Path(folder, "node.log")
        words = ["--ledger-key", chain.ledger_key, *arguments]
        module = "benchmarks.watched_node" if watched else "sluice.gateway.commands.cli"
        if not has_door:
            module = "benchmarks.doorless_node"
        with NodeProcess(Path(folder, "data"), log_path, words, module=module) as process:
            facts = Facts(process.grpc, process.process_id)
            yield facts
            facts.flush_count = int(process.metrics()["sluice_flushes_total"])
        if watched:
            facts.worst_pause_seconds = worst_pause_seconds(log_path)
            facts.worst_own_pause_seconds = worst_pause_seconds(log_path, "own_")
            facts.worst_processor_pause_seconds = worst_pause_seconds(log_path, "processor_")
            facts.process_seconds_in_worst_pause = worst_pause_seconds(log_path, "process_")


@contextmanager
def bare_loop() -> Iterator[BareLoop]:
    """Run `benchmarks.bare_loop` meanwhile; its pause is known at the end."""
    with running("benchmarks.bare_loop") as (process, _):
        found = BareLoop()
        try:
            yield found
        finally:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            found.worst_pause_seconds = float(process.stdout.readline())


@contextmanager
def bare_server(work: str, blocks_per_pair: float, block_count: int) -> Iterator[str]:
    """Run `benchmarks.bare_server`; yield its address."""
    with bare_process(work, blocks_per_pair, block_count) as (address, _):
        yield address


@contextmanager
def bare_process(work: str, blocks_per_pair: float, block_count: int) -> Iterator[tuple[str, int]]:
    """Run `benchmarks.bare_server`; yield its address and the id of its process."""
    with tempfile.TemporaryDirectory() as folder:
        words = [str(Path(folder, "bare")), work, str(blocks_per_pair), str(block_count)]
        with running("benchmarks.bare_server", *words) as (process, port):
            try:
                yield f"127.0.0.1:{port}", process.pid
            finally:
                process.terminate()


def free_addresses(count: int) -> list[str]:
    """Return free addresses, for nodes that must know each other before they start."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]


def open_call(channel: aio.Channel, name: str = "benchmark") -> Call:
    """Open a publish stream that takes serialized messages."""
    return channel.stream_stream(METHOD, response_deserializer=publish_pb2.PublishStreamResponse.FromString)(
        metadata=(("publisher-id", name),)
    )


async def publish(
    address: str, chain: Chain, first: int = 0, *, blocks_per_second: float | None = None
) -> float:
    """Send a chain that begins with block `first`; return the seconds to the last acknowledgement.

    `blocks_per_second`: begin no block earlier; None: as fast as they go.
    """
    async with aio.insecure_channel(address) as channel:
        await channel.channel_ready()
        call = open_call(channel)

        async def send() -> None:
            for index, messages in enumerate(chain.messages):
                if blocks_per_second is not None:
                    await asyncio.sleep(started + index / blocks_per_second - time.perf_counter())
                for message in messages:
                    await call.write(message)
            await call.done_writing()

        started = time.perf_counter()
        sending = asyncio.ensure_future(send())
        for number in range(first, first + len(chain.messages)):
            response = await call.read()
            assert isinstance(response, publish_pb2.PublishStreamResponse), "the node closed the stream"
            if not response.HasField("acknowledgement") or response.acknowledgement.block_number != number:
                raise SystemExit(f"block {number}: got {response}, expected its acknowledgement")
        seconds = time.perf_counter() - started
        await sending
        return seconds
