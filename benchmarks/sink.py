"""The Spark sink against the plain Python publisher, on the same block files and the same gateway.

    python -m benchmarks.sink [--quick]

The plain publisher (`benchmarks.plain_publisher`) reads the files and publishes them in one process, once
without checks and once with. The sink gets them from the source `blockfiles`, which checks every block
(`check=true`, as `sluice publish` does), and publishes them with `publishers.spark.publish`, in one
partition. There are two gateways: a node (`sluice serve`, mode full, Ed25519 proofs), and a server that only
stores and acknowledges, so the publisher is the bottleneck. Every run has a fresh gateway.

The steady state is from a publisher's first block to the last acknowledgement, by its own report. The job's
start is the rest of `publish`: planning, workers, commit. All alternate; the best of each counts.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.cpu_seconds import CpuSeconds, cpu_seconds
from benchmarks.measuring import Rows, print_rows
from benchmarks.publish_processes import bare_server
from sluice.gateway.key_files import public_key_hex
from sluice.publishers.blocks.block_files import write_block_file
from sluice.publishers.blocks.maker import BlockMaker, MakerOptions, key_of_seed
from sluice.publishers.demo.node_process import NodeProcess
from sluice.publishers.spark import publish
from sluice.publishers.spark.session import build_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["run"]

_KEY = key_of_seed(1)
_BLOCKS_PER_FLUSH = 32
_CASES = (
    ("small blocks", MakerOptions(), 2_000),
    ("large blocks", MakerOptions(transactions_per_block=200), 200),
)


class _Runs:
    """The times of one publisher's runs; the best counts."""

    def __init__(self) -> None:
        self.steady_seconds = float("inf")
        self.start_seconds = float("inf")
        self.cpu = CpuSeconds(0, 0, 0)

    def add(self, steady_seconds: float, whole_seconds: float, cpu: CpuSeconds) -> None:
        if steady_seconds < self.steady_seconds:
            self.steady_seconds, self.cpu = steady_seconds, cpu
        self.start_seconds = min(self.start_seconds, whole_seconds - steady_seconds)


def run(quick: bool = False) -> Rows:
    """Measure both gateways with each kind of block; return a label and a text for each figure."""
    rows = []
    spark = build_session("local[2]", app_name="benchmark")
    try:
        for label, options, block_count in _CASES[:1] if quick else _CASES:
            with tempfile.TemporaryDirectory(prefix="sluice-bench-") as name:
                size_bytes = 0
                for block in BlockMaker(1, _KEY, options).blocks(block_count):
                    write_block_file(Path(name) / f"{block.number}.blk.zst", block)
                    size_bytes += block.size_bytes
                for gateway, open_gateway in (("node", _node), ("bare server", _bare(block_count))):
                    text = _measure(spark, Path(name), block_count, open_gateway, 1 if quick else 2)
                    each = f"{size_bytes // block_count / 1e3:,.0f} kB"
                    rows.append((f"Spark sink to a {gateway}, {label} of {each}", text))
    finally:
        spark.stop()
    return rows


def _measure(
    spark: SparkSession,
    folder: Path,
    block_count: int,
    open_gateway: Callable[[], AbstractContextManager[str]],
    rounds: int,
) -> str:
    plain, checking, sink = _Runs(), _Runs(), _Runs()
    for round_number in range(rounds + 1):
        for runs, once in ((plain, _plain), (checking, _checking), (sink, _sink)):
            with open_gateway() as address:
                before, started = cpu_seconds(), time.perf_counter()
                steady_seconds = once(spark, address, folder)
                took = time.perf_counter() - started
            if round_number:  # the first compiles, and starts the workers
                runs.add(steady_seconds, took, cpu_seconds().since(before))
    ratios = [runs.steady_seconds / sink.steady_seconds for runs in (plain, checking)]
    return (
        f"{block_count / sink.steady_seconds:,.0f} blocks/s, plain publisher "
        f"{block_count / plain.steady_seconds:,.0f}; ratio {ratios[0]:.2f}, "
        f"to one that checks {ratios[1]:.2f}; "
        f"a job's start {sink.start_seconds:.1f} s (plain {plain.start_seconds:.1f}); processor time with "
        f"the gateway {sink.cpu.total:.1f} s, the JVM {sink.cpu.jvm:.1f} of it (plain {plain.cpu.total:.1f})"
    )


def _plain(_: SparkSession, address: str, folder: Path, *words: str) -> float:
    command = [sys.executable, "-m", "benchmarks.plain_publisher", address, str(folder), *words]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise SystemExit(f"plain publisher: {done.stderr.strip()[-500:]}")
    return float(done.stdout)


def _checking(spark: SparkSession, address: str, folder: Path) -> float:
    return _plain(spark, address, folder, "--check")


def _sink(spark: SparkSession, address: str, folder: Path) -> float:
    source = spark.read.format("blockfiles").option("partitions", 1).option("check", "true")
    (report,) = publish(source.load(str(folder)), address, deadline_seconds=30, check=False)
    return report.elapsed_ns / 1e9


@contextmanager
def _node() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as name:
        words = ["--ledger-key", f"ed25519:{public_key_hex(_KEY)}"]
        with NodeProcess(Path(name) / "data", Path(name) / "node.log", words) as node:
            yield node.grpc


def _bare(block_count: int) -> Callable[[], AbstractContextManager[str]]:
    return lambda: bare_server("echo", _BLOCKS_PER_FLUSH, block_count)


if __name__ == "__main__":
    print_rows(run)
