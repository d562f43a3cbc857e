"""Publish throughput: one publisher, every block verified and flushed, against a bare loop in the same run.

    python -m benchmarks.publish [--quick]

The node is a process of its own (`sluice serve`, mode full, Ed25519 proofs); the publisher sends messages
that were serialized before. The bare loop (`benchmarks.bare_server`) receives the same messages over grpcio,
hashes the same items with hashlib, writes and flushes as often as the node did, and acknowledges; the bare
echo is the same without hashing. All three run one after the other, several times; the best of each counts.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop
from grpc import aio

from benchmarks.chains import Chain, make_chain
from gateway.api import publish_pb2

METHOD = "/org.hiero.block.api.BlockStreamPublishService/publishBlockStream"


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of chain."""

    label: str
    block_count: int
    items_per_block: int
    item_bytes: int


CASES = (
    Case("items of 110 B, 64 KiB sets", 40, 8_000, 110),
    Case("items of 1 kB, 64 KiB sets", 60, 1_500, 1_000),
    Case("items of 8 kB, 64 KiB sets", 60, 400, 8_000),
    Case("small blocks, 30 items, 5 kB", 2_000, 30, 165),
)


async def _publish(port: int, chain: Chain) -> float:
    """Send the whole chain and wait for the last acknowledgement; return the seconds."""
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        await channel.channel_ready()
        call: aio.StreamStreamCall[bytes, publish_pb2.PublishStreamResponse] = channel.stream_stream(
            METHOD, response_deserializer=publish_pb2.PublishStreamResponse.FromString
        )()

        async def send() -> None:
            for messages in chain.messages:
                for message in messages:
                    await call.write(message)
            await call.done_writing()

        started = time.perf_counter()
        sending = asyncio.ensure_future(send())
        for number in range(len(chain.messages)):
            response = await call.read()
            assert isinstance(response, publish_pb2.PublishStreamResponse), "the node closed the stream"
            if not response.HasField("acknowledgement") or response.acknowledgement.block_number != number:
                raise SystemExit(f"block {number}: got {response}, expected its acknowledgement")
        seconds = time.perf_counter() - started
        await sending
        return seconds


@contextmanager
def _process(*words: str) -> Iterator[subprocess.Popen[str]]:
    """Run a server and end it."""
    process = subprocess.Popen(
        [sys.executable, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


def _node(chain: Chain) -> tuple[float, float]:
    """Publish to a node; return seconds and blocks per commit."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["-m", "gateway.cli", "serve", "--data-dir", folder, "--ledger-key", chain.ledger_key]
        words += [
            "--grpc",
            "127.0.0.1:0",
            "--tcp",
            "127.0.0.1:0",
            "--http",
            "127.0.0.1:0",
            "--log-format",
            "json",
        ]
        with _process(*words) as process:
            assert process.stderr is not None
            for line in process.stderr:
                entry = json.loads(line)
                if entry["message"] == "node started":
                    break
            else:
                raise SystemExit("the node did not start")
            seconds = uvloop.run(_publish(int(entry["grpc"].rpartition(":")[2]), chain))
            with urllib.request.urlopen(f"http://{entry['http']}/metrics", timeout=10) as answer:
                metrics = dict(
                    line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if line[0] != "#"
                )
        return seconds, len(chain.messages) / float(metrics["sluice_flush_seconds_count"])


def _bare(chain: Chain, work: str, blocks_per_flush: float) -> float:
    """Publish to the bare loop; return seconds."""
    with tempfile.TemporaryDirectory() as folder:
        count = str(len(chain.messages))
        words = [
            "-m",
            "benchmarks.bare_server",
            str(Path(folder, "bare")),
            work,
            str(blocks_per_flush),
            count,
        ]
        with _process(*words) as process:
            assert process.stdout is not None
            return uvloop.run(_publish(int(process.stdout.readline()), chain))


def run(quick: bool = False) -> list[tuple[str, str]]:
    """Run every case; return a label and a text for each figure."""
    rows = []
    rounds = 1 if quick else 3
    for case in CASES[1:2] if quick else CASES:
        chain = make_chain(case.block_count, case.items_per_block, case.item_bytes)
        node, hashed, echo, per_flush = [], [], [], 1.0
        for _ in range(rounds):
            seconds, per_flush = _node(chain)
            node.append(seconds)
            hashed.append(_bare(chain, "hash", per_flush))
            echo.append(_bare(chain, "echo", per_flush))
        best, bare = min(node), min(hashed)
        megabytes = chain.size_bytes / 1e6
        text = (
            f"{case.block_count / best:,.0f} blocks/s, {chain.item_count / best:,.0f} items/s, "
            f"{megabytes / best:,.1f} MB/s; bare loop {megabytes / bare:,.1f} MB/s, "
            f"bare echo {megabytes / min(echo):,.1f} MB/s; ratio {bare / best:.2f} "
            f"({per_flush:.1f} blocks a flush)"
        )
        rows.append((f"publish, {case.label}", text))
    return rows


if __name__ == "__main__":
    for label, text in run(quick="--quick" in sys.argv):
        print(f"{label}: {text}")
