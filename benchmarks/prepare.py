"""Preparing blocks in Spark: decode, hash and check, with two partitions against one, in a local session.

    python -m benchmarks.prepare [--quick]

Block files (zstd) are read by the source `blockfiles` and hashed by `root_hashes`, which refuses what no
gateway would take; then linked and signed. Each runs with one partition and with two, in turns, in the same
session with two task slots; the best of each counts. What a job takes with a single block, its start, is
measured too and shown, not subtracted. The bare loop decodes and hashes the same files in this process. The
ratio says something only where two cores are free, so the load of the machine is shown beside it.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from gateway.key_files import create_private_key
from publishers.block_files import read_block_file, write_block_file
from publishers.linking import summary_of
from publishers.maker import BlockMaker, MakerOptions, key_of_seed
from publishers.spark import link_and_sign_blocks, root_hashes
from publishers.spark.session import build_session

__all__ = ["run"]

OPTIONS = MakerOptions(transactions_per_block=200)


def run(quick: bool = False) -> list[tuple[str, str]]:
    """Measure all; return a label and a text for each figure."""
    block_count, rounds = (200, 2) if quick else (1_000, 3)
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as name:
        folder = Path(name) / "chain"
        folder.mkdir()
        size_bytes = 0
        for block in BlockMaker(1, key_of_seed(1), OPTIONS).blocks(block_count):
            write_block_file(folder / f"{block.number}.blk.zst", block)
            size_bytes += block.size_bytes
        create_private_key(Path(name) / "key.pem")
        return _measure(folder, Path(name) / "key.pem", block_count, size_bytes, rounds)


def _measure(
    folder: Path, key_file: Path, block_count: int, size_bytes: int, rounds: int
) -> list[tuple[str, str]]:
    spark = build_session("local[2]", app_name="benchmark")

    def hashed(partitions: int, last: int = block_count - 1) -> None:
        source = spark.read.format("blockfiles").option("partitions", partitions).option("to", last)
        root_hashes(source.load(str(folder))).write.format("noop").mode("append").save()

    def signed(partitions: int) -> None:
        source = spark.read.format("blockfiles").option("partitions", partitions).load(str(folder))
        link_and_sign_blocks(source, key_file=key_file).write.format("noop").mode("append").save()

    try:
        hashed(2)  # compiles, and starts the workers
        start_seconds = _best(lambda: hashed(1, last=0), rounds)
        rows = []
        for label, work in (("decode, hash, check", hashed), ("decode, hash, link, sign", signed)):
            load = os.getloadavg()[0]
            one, two = [], []
            for _ in range(rounds):
                one.append(_seconds(lambda work=work: work(1)))  # type: ignore[misc]
                two.append(_seconds(lambda work=work: work(2)))  # type: ignore[misc]
            text = (
                f"1 partition {block_count / min(one):,.0f} blocks/s, 2 partitions "
                f"{block_count / min(two):,.0f} blocks/s; ratio {min(one) / min(two):.2f} "
                f"(load {load:.1f}, {os.cpu_count()} cores)"
            )
            rows.append((f"Spark, {label}, {block_count} blocks of {size_bytes // block_count:,} B", text))
        bare = _best(lambda: _bare(folder, block_count), rounds)
        text = f"a job's start {start_seconds:.2f} s; bare loop {block_count / bare:,.0f} blocks/s"
        return [*rows, ("beside it", text)]
    finally:
        spark.stop()


def _bare(folder: Path, block_count: int) -> None:
    for number in range(block_count):
        block = read_block_file(folder / f"{number}.blk.zst")
        summary_of(block.number, block.items)


def _best(work: Callable[[], None], rounds: int) -> float:
    return min(_seconds(work) for _ in range(rounds))


def _seconds(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    for label, text in run(quick="--quick" in sys.argv):
        print(f"{label}: {text}")
