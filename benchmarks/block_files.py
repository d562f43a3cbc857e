"""Block files in Spark, `spark.read.format("blockfiles")`, against Spark's `binaryFile` and a small parser.

    python -m benchmarks.block_files [--quick]

Files of some hundred items are read into the format `noop` in a local session with two task slots. The bare
loop is a job over `binaryFile` whose Python function parses each file and gives the same rows; the source
also looks for gaps, damage and other numbers. Both alternate; the best of each counts. The time of a job over
one file, its start, is subtracted.

The second part lists many small files: what a batch plan takes, and which part of a streaming query over all
of them, in batches of 1,000 blocks, goes into listing and planning.
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from benchmarks.measuring import Rows, print_rows, seconds_of
from sluice.gateway.api import block_pb2
from sluice.publishers.blocks.maker import BlockMaker, MakerOptions, key_of_seed
from sluice.publishers.spark.block_files import BlockFilesDataSource
from sluice.publishers.spark.session import build_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["run"]

_FILES = MakerOptions(transactions_per_block=400)
_SMALL = MakerOptions(transactions_per_block=1)
_SCHEMAS = {
    "blocks": "block_number BIGINT, items ARRAY<BINARY>",
    "items": "block_number BIGINT, item_index BIGINT, kind STRING, item BINARY",
}
_KINDS = {1 << 3 | 2: "block_header", 9 << 3 | 2: "block_proof", 12 << 3 | 2: "block_footer"}


def run(quick: bool = False) -> Rows:
    """Measure, and return (label, text) rows."""
    file_count, small_count, rounds = (300, 5_000, 2) if quick else (1_000, 100_000, 3)
    with tempfile.TemporaryDirectory(prefix="sluice-bench-", dir=_fastest()) as name:
        large, one, small = (Path(name) / part for part in ("large", "one", "small"))
        size_bytes = _write(large, file_count, _FILES)
        _write(one, 1, _FILES)
        _write(small, small_count, _SMALL)
        spark = build_session("local[2]", app_name="benchmark")
        try:
            rows = [
                _throughput(spark, decode, large, one, size_bytes, rounds) for decode in ("blocks", "items")
            ]
            rows.append(_transactions(spark, large, one, size_bytes, rounds))
            rows.append(_plan(small, small_count))
            rows.append(_stream(spark, small, small_count))
        finally:
            spark.stop()
        return rows


def _fastest() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _write(folder: Path, count: int, options: MakerOptions) -> int:
    folder.mkdir()
    size_bytes = 0
    for block in BlockMaker(1, key_of_seed(1), options).blocks(count):
        data = block.to_bytes()
        (folder / f"{block.number}.blk").write_bytes(data)
        size_bytes += len(data)
    return size_bytes


# --- throughput ---------------------------------------------------------------------------------------------


def _parse_blocks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        numbers, items = [], []
        for content in batch.column(0).to_pylist():
            block = block_pb2.Block.FromString(content)
            found = list(block.items)
            numbers.append(block_pb2.BlockItem.FromString(found[0]).block_header.number)
            items.append(found)
        arrays = [pa.array(numbers, pa.int64()), pa.array(items, pa.list_(pa.binary()))]
        yield pa.RecordBatch.from_arrays(arrays, ["block_number", "items"])


def _parse_items(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        numbers: list[int] = []
        indexes: list[int] = []
        kinds: list[str] = []
        items: list[bytes] = []
        for content in batch.column(0).to_pylist():
            found = list(block_pb2.Block.FromString(content).items)
            number = block_pb2.BlockItem.FromString(found[0]).block_header.number
            numbers += [number] * len(found)
            indexes += range(len(found))
            kinds += [_KINDS.get(item[0], "other") for item in found]
            items += found
        arrays = [
            pa.array(numbers, pa.int64()),
            pa.array(indexes, pa.int64()),
            pa.array(kinds, pa.string()),
            pa.array(items, pa.binary()),
        ]
        yield pa.RecordBatch.from_arrays(arrays, ["block_number", "item_index", "kind", "item"])


def _best(works: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    for work in works.values():
        work()  # compiles, and starts the workers
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            times[name].append(seconds_of(work))
    return {name: min(each) for name, each in times.items()}


def _save(frame: Any) -> None:
    frame.write.format("noop").mode("append").save()


def _source(spark: SparkSession, decode: str, folder: Path) -> Any:
    reader = spark.read.format("blockfiles").option("decode", decode)
    if decode in _SCHEMAS:
        reader = reader.schema(_SCHEMAS[decode])
    return reader.load(str(folder))


def _throughput(
    spark: SparkSession, decode: str, large: Path, one: Path, size_bytes: int, rounds: int
) -> tuple[str, str]:
    parse = {"blocks": _parse_blocks, "items": _parse_items}[decode]

    def bare(folder: Path) -> None:
        files = spark.read.format("binaryFile").load(str(folder)).select("content")
        _save(files.mapInArrow(parse, _SCHEMAS[decode]))

    works = {
        "bare": lambda: bare(large),
        "bare start": lambda: bare(one),
        "ours": lambda: _save(_source(spark, decode, large)),
        "start": lambda: _save(_source(spark, decode, one)),
    }
    best = _best(works, rounds)
    megabytes = size_bytes / 1e6
    ours = megabytes / max(1e-3, best["ours"] - best["start"])
    theirs = megabytes / max(1e-3, best["bare"] - best["bare start"])
    text = (
        f"{ours:,.0f} MB/s; binaryFile and a parser {theirs:,.0f} MB/s; ratio {ours / theirs:.2f}, "
        f"of whole jobs {best['bare'] / best['ours']:.2f}; starts {best['start']:.2f} and "
        f"{best['bare start']:.2f} s, taken off (load {os.getloadavg()[0]:.1f})"
    )
    return f"blockfiles source, decode={decode}, {megabytes:,.0f} MB", text


def _transactions(
    spark: SparkSession, large: Path, one: Path, size_bytes: int, rounds: int
) -> tuple[str, str]:
    works = {
        "all": lambda: _save(_source(spark, "transactions", large)),
        "start": lambda: _save(_source(spark, "transactions", one)),
    }
    best = _best(works, rounds)
    count = _source(spark, "transactions", large).count()
    rate = count / max(1e-3, best["all"] - best["start"])
    megabytes = size_bytes / 1e6
    text = f"{rate:,.0f} transactions a second, {rate * megabytes / count:,.0f} MB/s"
    return f"blockfiles source, decode=transactions, {megabytes:,.0f} MB", text


# --- many files ---------------------------------------------------------------------------------------------


def _plan(small: Path, count: int) -> tuple[str, str]:
    def plan() -> int:
        source = BlockFilesDataSource({"path": str(small), "partitions": "8"})
        return len(source.reader(source.schema()).partitions())

    times = [seconds_of(plan) for _ in range(3)]
    before = time.process_time()
    plan()
    used = time.process_time() - before
    text = f"{times[0]:.2f} s, then {min(times[1:]):.2f} s, of which {used:.2f} s of a processor"
    return f"blockfiles source, plan of {count:,} files", f"{text} (load {os.getloadavg()[0]:.1f})"


def _stream(spark: SparkSession, small: Path, count: int) -> tuple[str, str]:
    rows = spark.readStream.format("blockfiles").option("max_blocks_per_trigger", 1_000).load(str(small))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="sluice-bench-", dir=_fastest()) as checkpoint:
        query = (
            rows.writeStream.format("noop")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        seconds = time.perf_counter() - started
        durations = [progress["durationMs"] for progress in query.recentProgress]
    parts = [
        sum(one.get(name, 0) for name in ("latestOffset", "queryPlanning", "getBatch")) for one in durations
    ]
    batches = len(durations)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    text = (
        f"{seconds:.1f} s in {batches} batches of 1,000; listing and planning "
        f"{sum(parts) / 10 / seconds:.1f} % of it, first {parts[0] / 1000:.2f} s, median "
        f"{sorted(parts)[batches // 2]} ms; this process grew by {grown} MiB"
    )
    return f"blockfiles source, availableNow over {count:,} files", text


if __name__ == "__main__":
    print_rows(run)
