"""Reading a stream file in Spark, `spark.read.format("datastream")`, against a bare read of the file.

    python -m benchmarks.stream_read [--quick]

One file holds entries of 68 bytes; the other is a node's file, blocks of some hundred items. Both are in the
page cache. Spark reads them into the format `noop`, with one partition and with two, in a local session with
two task slots; the bare loop only reads the file page by page. All alternate; the best of each counts. The
time of a job with an empty stream, its start, is subtracted. The reader alone is the source's Python code, in
this process, without Spark. Spark alone is a source that yields the same few Arrow batches again and again,
and reads nothing: what Python's socket and the JVM's work on rows take.

Each job keeps a Python process and a thread of the JVM busy, so the processor seconds of both say how many
partitions the processors can carry.
"""

from __future__ import annotations

import itertools
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from benchmarks.cpu_seconds import cpu_seconds
from benchmarks.measuring import Rows, print_rows, seconds_of, write_small_entries
from sluice.datastream.layout import PAGE_SIZE
from sluice.gateway.store.block_store import BlockStore, VerifiedBlock
from sluice.publishers.blocks.maker import BlockMaker, MakerOptions, key_of_seed
from sluice.publishers.sources.stream_runs import PagesReader
from sluice.publishers.spark.data_stream import DataStreamDataSource
from sluice.publishers.spark.session import build_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["run"]

_MIB = 1 << 20
_REPEATED = 8
"""Batches that Spark gets again and again."""
_BLOCKS = MakerOptions(transactions_per_block=200)
_CASES = (
    ("entries of 68 B", "small", "entries"),
    ("entries of a chain", "chain", "entries"),
    ("blocks", "chain", "blocks"),
)


def run(quick: bool = False) -> Rows:
    """Measure, and return (label, text) rows."""
    size, rounds = (32 * _MIB, 2) if quick else (256 * _MIB, 3)
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as name:
        folder = Path(name)
        (folder / "small").mkdir()
        write_small_entries(folder / "small" / "datastream.bin", size)
        _make_chain(folder / "chain", size)
        (folder / "empty").mkdir()
        write_small_entries(folder / "empty" / "datastream.bin", 0)
        spark = build_session("local[2]", app_name="benchmark")
        by_value: Any = cloudpickle.register_pickle_by_value
        by_value(sys.modules[__name__])  # workers do not have this module
        spark.dataSource.register(Repeated)
        try:
            return [_measure(spark, folder, *case, rounds) for case in _CASES]
        finally:
            spark.stop()


class Repeated(DataSource):
    """The source `repeated`: the first batches of a stream file, `batches` in all."""

    @classmethod
    def name(cls) -> str:
        """Return `repeated`."""
        return "repeated"

    def schema(self) -> StructType:
        """Return the columns of `decode`."""
        return _source(self.options["path"], self.options["decode"]).schema()

    def reader(self, schema: StructType) -> RepeatedReader:
        """Return the reader."""
        return RepeatedReader(self.options["path"], self.options["decode"], int(self.options["batches"]))


class RepeatedReader(DataSourceReader):
    """The reader of `repeated`: one partition."""

    def __init__(self, path: str, decode: str, batches: int) -> None:
        self._path = path
        self._decode = decode
        self._batches = batches

    def partitions(self) -> Sequence[InputPartition]:
        """Return the only one."""
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the first batches, and yield them over and over."""
        batches = list(itertools.islice(_batches(Path(self._path), self._decode), _REPEATED))
        return itertools.islice(itertools.cycle(batches), self._batches)


def _source(path: str, decode: str) -> DataStreamDataSource:
    return DataStreamDataSource({"path": path, "decode": decode, "partitions": "1"})


def _batches(path: Path, decode: str) -> Iterator[pa.RecordBatch]:
    """Read a file as a worker does."""
    source = _source(str(path), decode)
    reader = source.reader(source.schema())
    return itertools.chain.from_iterable(map(reader.read, reader.partitions()))


def _count(path: Path, decode: str) -> int:
    return sum(1 for _ in _batches(path, decode))


def _measure(
    spark: SparkSession, folder: Path, label: str, file: str, decode: str, rounds: int
) -> tuple[str, str]:
    path = folder / file / "datastream.bin"

    def job(partitions: int, of: Path = path) -> None:
        source = spark.read.format("datastream").option("decode", decode).option("partitions", partitions)
        source.load(str(of)).write.format("noop").mode("append").save()

    def repeated(batches: int = _count(path, decode)) -> None:
        source = spark.read.format("repeated").option("decode", decode).option("batches", batches)
        source.load(str(path)).write.format("noop").mode("append").save()

    repeated()  # compiles
    job(2)  # and starts the workers
    megabytes = _used(path) / 1e6
    start = min(seconds_of(lambda: job(1, folder / "empty" / "datastream.bin")) for _ in range(rounds))
    works: dict[str, Callable[[], object]] = {
        "bare": lambda: _bare(path),
        "reader": lambda: _count(path, decode),
        "spark": repeated,
        "one": lambda: job(1),
        "two": lambda: job(2),
    }
    seconds = dict.fromkeys(works, math.inf)
    costs = dict.fromkeys(works, (math.inf, math.inf))
    for _, (name, work) in itertools.product(range(rounds), works.items()):
        before = cpu_seconds()
        seconds[name] = min(seconds[name], seconds_of(work))
        used = cpu_seconds().since(before)
        costs[name] = min(costs[name], (used.jvm, used.python), key=sum)
    rates = {
        name: megabytes / max(1e-3, best - (start if name in ("spark", "one", "two") else 0))
        for name, best in seconds.items()
    }
    cost = {name: " + ".join(f"{1e5 * part / megabytes:,.0f}" for part in costs[name]) for name in costs}
    text = (
        f"{rates['two']:,.0f} MB/s with 2 partitions, {rates['one']:,.0f} with 1 "
        f"({rates['two'] / rates['one']:.2f} times); ratio to Spark alone, {rates['spark']:,.0f} MB/s, "
        f"{rates['one'] / rates['spark']:.2f}, to the reader alone, {rates['reader']:,.0f} MB/s, "
        f"{rates['one'] / rates['reader']:.2f}, to a bare read, {rates['bare']:,.0f} MB/s, "
        f"{rates['two'] / rates['bare']:.3f}; processor time of JVM + Python for 100 MB "
        f"{cost['one']} ms, of Spark alone {cost['spark']} ms; a job's start {start:.2f} s, taken off "
        f"(load {os.getloadavg()[0]:.1f})"
    )
    return f"datastream source, {label}, {megabytes:,.0f} MB", text


def _make_chain(folder: Path, size: int) -> None:
    """Write a node's file of about `size` bytes."""
    folder.mkdir()
    blocks = BlockMaker(1, key_of_seed(1), _BLOCKS).blocks(50)
    made = [VerifiedBlock(block.number, block.items, bytes(48)) for block in blocks]
    store = BlockStore.open(folder)
    try:
        while store.streamer.committed.total_length < size:
            store.append(made)
            # The same items under further numbers: readers take the number from the layout.
            made = [VerifiedBlock(one.number + len(made), one.items, one.root_hash) for one in made]
    finally:
        store.close()


def _used(path: Path) -> int:
    """Return the bytes in use, without the empty pages at the end."""
    with PagesReader(path) as pages:
        return pages.header.total_length


def _bare(path: Path) -> None:
    rest = _used(path)
    with path.open("rb", buffering=0) as file:
        while rest > 0:
            rest -= len(file.read(min(PAGE_SIZE, rest)))


if __name__ == "__main__":
    print_rows(run)
