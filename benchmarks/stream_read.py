"""Reading a stream file in Spark, `spark.read.format("datastream")`, against a bare read of the file.

    python -m benchmarks.stream_read [--quick]

One file holds entries of 68 bytes; the other is a node's file, blocks of some hundred items. Both are in the
page cache. Spark reads them into the format `noop`, with one partition and with two, in a local session with
two task slots; the bare loop only reads the file page by page. All alternate; the best of each counts. The
time of a job with an empty stream, its start, is subtracted. The reader alone is the source's Python code, in
this process, without Spark.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

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
        try:
            return [_measure(spark, folder, *case, rounds) for case in _CASES]
        finally:
            spark.stop()


def _measure(
    spark: SparkSession, folder: Path, label: str, file: str, decode: str, rounds: int
) -> tuple[str, str]:
    path = folder / file / "datastream.bin"

    def job(partitions: int, of: Path = path) -> None:
        source = spark.read.format("datastream").option("decode", decode).option("partitions", partitions)
        source.load(str(of)).write.format("noop").mode("append").save()

    job(2)  # compiles, and starts the workers
    works = {
        "bare": lambda: _bare(path),
        "reader": lambda: _reader(path, decode),
        "start": lambda: job(1, folder / "empty" / "datastream.bin"),
        "one": lambda: job(1),
        "two": lambda: job(2),
    }
    best = {name: min(seconds_of(work) for _ in range(rounds)) for name, work in works.items()}
    megabytes = _used(path) / 1e6
    rates = {name: megabytes / best[name] for name in ("bare", "reader")}
    rates |= {name: megabytes / max(1e-3, best[name] - best["start"]) for name in ("one", "two")}
    text = (
        f"{rates['two']:,.0f} MB/s with 2 partitions, {rates['one']:,.0f} with 1, the reader alone "
        f"{rates['reader']:,.0f}; bare read {rates['bare']:,.0f} MB/s; "
        f"ratio {rates['two'] / rates['bare']:.3f}, of the reader {rates['reader'] / rates['bare']:.2f}; "
        f"a job's start {best['start']:.2f} s, taken off (load {os.getloadavg()[0]:.1f})"
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


def _reader(path: Path, decode: str) -> None:
    source = DataStreamDataSource({"path": str(path), "decode": decode, "partitions": "1"})
    reader = source.reader(source.schema())
    for partition in reader.partitions():
        for _ in reader.read(partition):
            pass


if __name__ == "__main__":
    print_rows(run)
