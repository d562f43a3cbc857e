"""Preparing blocks in Spark: decode, hash and check, with two partitions against one, in a local session.

    python -m benchmarks.prepare [--quick]

Block files (zstd) are decoded, hashed and checked in two ways: by the source `blockfiles` with
`decode=hashes`, in the one Python worker that reads the file; and by `root_hashes` over the source's blocks,
which the JVM carries to a second worker. Then they are linked and signed. Each runs with one partition and
with two, alternating, in a session with two task slots; the best of each counts. The time of a job with a
single block, its start, is subtracted.

The bare loop decodes and hashes the same files in one process, and half of them in each of two. A partition
of `root_hashes` is two workers and the JVM at once: it keeps more than one core busy, and two partitions
cannot be faster than the cores allow. So one line compares two of them with one that is held to one core.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.cpu_seconds import cpu_seconds, process_tree
from benchmarks.measuring import Rows, print_rows
from sluice.gateway.key_files import create_private_key
from sluice.publishers.blocks.block_files import read_block_file, write_block_file
from sluice.publishers.blocks.linking import summary_of
from sluice.publishers.blocks.maker import BlockMaker, MakerOptions, key_of_seed
from sluice.publishers.spark import link_and_sign_blocks, root_hashes
from sluice.publishers.spark.session import build_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["run"]

OPTIONS = MakerOptions(transactions_per_block=200)


@dataclass(frozen=True, slots=True)
class _Took:
    """The figures of one run, without its start."""

    seconds: float
    python_seconds: float
    """Processor time of Spark's Python workers."""
    jvm_seconds: float

    @property
    def busy_cores(self) -> float:
        """The count of busy processors."""
        return (self.python_seconds + self.jvm_seconds) / self.seconds


def run(quick: bool = False) -> Rows:
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

    def hashed_by_source(self, partitions: int, last: int | None = None) -> None:
        """Decode, hash and check in the worker that reads."""
        _run_all(self._read(partitions, last, decode="hashes"))

    def hashed(self, partitions: int, last: int | None = None) -> None:
        """Decode in one worker, hash and check in another."""
        _run_all(root_hashes(self._read(partitions, last)))

    def signed(self, partitions: int, last: int | None = None) -> None:
        """Decode, hash, link, sign."""
        _run_all(link_and_sign_blocks(self._read(partitions, last), key_file=self._key_file))

    def _read(self, partitions: int, last: int | None, **options: str) -> DataFrame:
        source = self._spark.read.format("blockfiles").option("partitions", partitions).options(**options)
        if last is not None:
            source = source.option("to", last)
        return source.load(str(self.folder))


def _run_all(frame: DataFrame) -> None:
    frame.write.format("noop").mode("append").save()


def _measure(jobs: _Jobs, block_count: int, size_bytes: int, rounds: int) -> Rows:
    one_process, two_processes = _bare_speeds(jobs.folder, block_count, rounds)
    each = f"{block_count} blocks of {size_bytes // block_count / 1e3:,.0f} kB"
    bare = f"{one_process:,.0f} blocks/s, two processes at once {two_processes:,.0f}"
    rows = [(f"Spark, preparing: bare loop, {each}", f"{bare}; ratio {two_processes / one_process:.2f}")]
    for label, work in (
        (f"Spark, decode, hash, check in the source, {each}", jobs.hashed_by_source),
        ("Spark, the same with root_hashes, in a second worker", jobs.hashed),
        ("Spark, decode, hash, link, sign", jobs.signed),
    ):
        work(2)  # compiles, and starts the workers
        start = min((_took(lambda w=work: w(1, 0)) for _ in range(rounds)), key=_seconds_of)  # type: ignore[misc]
        one, two = [], []
        for _ in range(rounds):
            one.append(_took(lambda w=work: w(1), start))  # type: ignore[misc]
            two.append(_took(lambda w=work: w(2), start))  # type: ignore[misc]
        rows.append((label, _text(min(one, key=_seconds_of), min(two, key=_seconds_of), start, block_count)))
        if work == jobs.hashed:
            with _one_core():
                narrow = min((_took(lambda: jobs.hashed(1), start) for _ in range(rounds)), key=_seconds_of)
            ratio = narrow.seconds / min(two, key=_seconds_of).seconds
            text = f"{block_count / narrow.seconds:,.0f} blocks/s; ratio {ratio:.2f}"
            rows.append(("Spark, 1 partition of that on one core, against 2 on all", text))
    return rows


def _text(one: _Took, two: _Took, start: _Took, block_count: int) -> str:
    cores = len(os.sched_getaffinity(0))
    python, jvm = _each(one.python_seconds, block_count), _each(one.jvm_seconds, block_count)
    return (
        f"1 partition {block_count / one.seconds:,.0f} blocks/s, 2 partitions "
        f"{block_count / two.seconds:,.0f}; ratio {one.seconds / two.seconds:.2f}, "
        f"{_limit_text(one.busy_cores, cores)}; a block takes {python} of Python and {jvm} of the JVM; "
        f"a job's start {start.seconds:.2f} s, taken off (load {os.getloadavg()[0]:.1f})"
    )


def _bare_speeds(folder: Path, block_count: int, rounds: int) -> tuple[float, float]:
    """Measure the bare loop: blocks a second in one process, and in two with half the blocks each."""
    one, two = float("inf"), float("inf")
    half = block_count // 2
    with ProcessPoolExecutor(2, get_context("spawn")) as processes:
        list(processes.map(_bare, [folder] * 2, [0] * 2, [half] * 2))  # starts them
        for _ in range(rounds):
            one = min(one, processes.submit(_bare, folder, 0, block_count).result())
            started = time.perf_counter()
            list(processes.map(_bare, [folder] * 2, [0, half], [half, block_count]))
            two = min(two, time.perf_counter() - started)
    return block_count / one, block_count / two


def _limit_text(busy_cores: float, cores: int) -> str:
    return f"1 partition keeps {busy_cores:.1f} of {cores} cores busy, so at most {cores / busy_cores:.1f}"


def _each(seconds: float, block_count: int) -> str:
    return f"{seconds / block_count * 1e3:.2f} ms"


def _took(work: Callable[[], None], start: _Took | None = None) -> _Took:
    """Run, and subtract the figures of `start`."""
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
    """Hold this process, the JVM and its Python workers to one core."""
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


def _bare(folder: Path, first: int, end: int) -> float:
    """Decode and hash the blocks from `first` to `end` - 1; return the seconds."""
    started = time.perf_counter()
    for number in range(first, end):
        block = read_block_file(folder / f"{number}.blk.zst")
        summary_of(block.number, block.items)
    return time.perf_counter() - started


if __name__ == "__main__":
    print_rows(run)
