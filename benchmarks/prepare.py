"""Preparing blocks in Spark: decode, hash and check, with two partitions against one, in a local session.

    python -m benchmarks.prepare [--quick]

Block files (zstd) are read by the source `blockfiles` and hashed by `root_hashes`, which refuses what no
gateway would take; then linked and signed. Each runs with one partition and with two, in turns, in a session
with two task slots; the best of each counts. What a job takes with a single block, its start, is measured too
and taken off; the text says how much it is. The bare loop decodes and hashes the same files in this process.

A partition is more than one process: one Python worker decodes the files, the JVM passes the blocks on,
another worker hashes them, all at once. So one partition keeps more than one core busy, which is measured as
well (processor seconds a second), and two partitions cannot be faster than the cores over that: this quotient
stands beside the ratio. The line below it has two partitions against one in a session held to one core.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.cpu_seconds import cpu_seconds, process_tree
from gateway.key_files import create_private_key
from publishers.block_files import read_block_file, write_block_file
from publishers.linking import summary_of
from publishers.maker import BlockMaker, MakerOptions, key_of_seed
from publishers.spark import link_and_sign_blocks, root_hashes
from publishers.spark.session import build_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["run"]

OPTIONS = MakerOptions(transactions_per_block=200)


@dataclass(frozen=True, slots=True)
class _Took:
    """What one run took, its start taken off."""

    seconds: float
    python_seconds: float
    """Of processors, in Spark's Python workers."""
    jvm_seconds: float

    @property
    def busy_cores(self) -> float:
        """How many processors it kept busy."""
        return (self.python_seconds + self.jvm_seconds) / self.seconds


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
        spark = build_session("local[2]", app_name="benchmark")
        try:
            jobs = _Jobs(spark, folder, Path(name) / "key.pem")
            return _measure(jobs, block_count, size_bytes, rounds)
        finally:
            spark.stop()


class _Jobs:
    """The jobs, over one folder of block files."""

    def __init__(self, spark: SparkSession, folder: Path, key_file: Path) -> None:
        self._spark = spark
        self.folder = folder
        self._key_file = key_file

    def hashed(self, partitions: int, last: int | None = None) -> None:
        """Decode, hash, check."""
        source = self._spark.read.format("blockfiles").option("partitions", partitions)
        if last is not None:
            source = source.option("to", last)
        root_hashes(source.load(str(self.folder))).write.format("noop").mode("append").save()

    def signed(self, partitions: int, last: int | None = None) -> None:
        """Decode, hash, link, sign."""
        source = self._spark.read.format("blockfiles").option("partitions", partitions)
        if last is not None:
            source = source.option("to", last)
        blocks = source.load(str(self.folder))
        link_and_sign_blocks(blocks, key_file=self._key_file).write.format("noop").mode("append").save()


def _measure(jobs: _Jobs, block_count: int, size_bytes: int, rounds: int) -> list[tuple[str, str]]:
    cores = len(os.sched_getaffinity(0))
    rows = []
    for label, work in (("decode, hash, check", jobs.hashed), ("decode, hash, link, sign", jobs.signed)):
        work(2)  # compiles, and starts the workers
        start = min((_took(lambda w=work: w(1, 0)) for _ in range(rounds)), key=_seconds_of)  # type: ignore[misc]
        one, two = [], []
        for _ in range(rounds):
            one.append(_took(lambda w=work: w(1), start))  # type: ignore[misc]
            two.append(_took(lambda w=work: w(2), start))  # type: ignore[misc]
        best_one, best_two = min(one, key=_seconds_of), min(two, key=_seconds_of)
        text = (
            f"1 partition {block_count / best_one.seconds:,.0f} blocks/s, 2 partitions "
            f"{block_count / best_two.seconds:,.0f}; ratio {best_one.seconds / best_two.seconds:.2f}, "
            f"{_limit_text(best_one.busy_cores, cores)}; a block takes "
            f"{_each(best_one.python_seconds, block_count)} of Python and "
            f"{_each(best_one.jvm_seconds, block_count)} of the JVM; a job's start "
            f"{start.seconds:.2f} s, taken off (load {os.getloadavg()[0]:.1f})"
        )
        each = f"{size_bytes // block_count / 1e3:,.0f} kB"
        rows.append((f"Spark, {label}, {block_count} blocks of {each}", text))
        if label == "decode, hash, check":
            with _one_core():
                narrow = min((_took(lambda: jobs.hashed(1), start) for _ in range(rounds)), key=_seconds_of)
            text = (
                f"{block_count / narrow.seconds:,.0f} blocks/s; ratio {narrow.seconds / best_two.seconds:.2f}"
            )
            rows.append(("Spark, the same with 1 partition on one core, against 2 on all", text))
    bare = min(_took(lambda: _bare(jobs.folder, block_count)).seconds for _ in range(rounds))
    return [*rows, ("Spark, preparing: bare loop in one process", f"{block_count / bare:,.0f} blocks/s")]


def _limit_text(busy_cores: float, cores: int) -> str:
    return f"1 partition keeps {busy_cores:.1f} of {cores} cores busy, so at most {cores / busy_cores:.1f}"


def _each(seconds: float, block_count: int) -> str:
    return f"{seconds / block_count * 1e3:.2f} ms"


def _took(work: Callable[[], None], start: _Took | None = None) -> _Took:
    """Run; what `start` took is taken off."""
    before, started = cpu_seconds(), time.perf_counter()
    work()
    seconds, cpu = time.perf_counter() - started, cpu_seconds().since(before)
    if start is None:
        return _Took(seconds, cpu.python, cpu.jvm)
    return _Took(
        max(1e-3, seconds - start.seconds),
        max(0.0, cpu.python - start.python_seconds),
        max(0.0, cpu.jvm - start.jvm_seconds),
    )


def _seconds_of(took: _Took) -> float:
    return took.seconds


@contextmanager
def _one_core() -> Iterator[None]:
    """Hold this process, the JVM and its Python workers, all their threads, to one core."""
    allowed = os.sched_getaffinity(0)
    try:
        _allow({min(allowed)})
        yield
    finally:
        _allow(allowed)


def _allow(cores: set[int]) -> None:
    for pid in process_tree():
        for thread in Path(f"/proc/{pid}/task").iterdir():
            try:
                os.sched_setaffinity(int(thread.name), cores)
            except ProcessLookupError:
                continue  # it has ended meanwhile


def _bare(folder: Path, block_count: int) -> None:
    for number in range(block_count):
        block = read_block_file(folder / f"{number}.blk.zst")
        summary_of(block.number, block.items)


if __name__ == "__main__":
    for label, text in run(quick="--quick" in sys.argv):
        print(f"{label}: {text}")
