"""A network's entries become blocks in Spark: the same in parallel, as a stream, and entry by entry."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.layout import BOOKMARK_TYPE, Entry
from sluice.gateway.blocks.items import stream_entry_of
from sluice.publishers.blocks.stream_grouping import Grouping, StreamBlocks
from sluice.publishers.errors import OptionError, PrepareError, SchemaError, SparkJobFailed
from sluice.publishers.sources.stream_runs import PagesReader
from sluice.publishers.spark import chain_start, entries_to_blocks, link_blocks
from sluice.publishers.spark.network_stream import _in_order, plan_entries, planned_blocks
from sluice.publishers.spark.source_options import NetworkOptions
from tests.datastream.serving import ServerThread
from tests.datastream.streams import sample_file
from tests.reference_data import needs_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "entry_number BIGINT, entry_type BIGINT, data BINARY"
SHUFFLE = "spark.sql.shuffle.partitions"
Blocks = list[tuple[int, tuple[bytes, ...]]]


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sample_file(tmp_path_factory.mktemp("sample"))


def entries_in(path: Path) -> list[Entry]:
    with PagesReader(path) as pages:
        return [entry for page in pages.pages_from(pages.run_from(0)) for entry in page]


def one_by_one(entries: Iterable[Entry], by: object, *, is_whole: bool) -> Blocks:
    maker = StreamBlocks(Grouping.parse(by))
    made = [maker.feed(entry.number, entry.type, entry.data) for entry in entries]
    if is_whole:
        made.append(maker.finish())
    return [(block.number, block.items) for block in made if block is not None]


def blocks_in(blocks: DataFrame) -> Blocks:
    return sorted((row[0], tuple(map(bytes, row[1]))) for row in blocks.collect())


def entries_of(blocks: Blocks) -> list[tuple[int, bytes]]:
    return [stream_entry_of(item) for _, items in blocks for item in items[1:-1]]


def frame_of(spark: SparkSession, rows: Sequence[tuple[Any, ...]], schema: str = SCHEMA) -> DataFrame:
    return spark.createDataFrame(rows, schema)


# --- a batch ------------------------------------------------------------------------------------------------


@pytest.mark.spark
@needs_stream
@pytest.mark.parametrize(
    "by", ["batch", *(pytest.param(by, marks=pytest.mark.slow) for by in ("l2block", "bookmark", 1000))]
)
def test_the_sample_in_parallel_and_back(spark: SparkSession, sample: Path, by: Any) -> None:
    entries = entries_in(sample)
    frame = spark.read.format("datastream").option("partitions", 2).load(str(sample))
    whole = blocks_in(entries_to_blocks(frame, by, keep_incomplete=True))
    assert entries_of(whole) == [(entry.type, entry.data) for entry in entries]
    assert whole == one_by_one(entries, by, is_whole=True)


@pytest.mark.spark
@needs_stream
def test_an_incomplete_block_stays_out_and_order_and_partitions_change_nothing(
    spark: SparkSession, sample: Path
) -> None:
    entries = entries_in(sample)[:1200]
    rows = [(entry.number, entry.type, bytearray(entry.data)) for entry in entries]
    expected = one_by_one(entries, "batch", is_whole=False)
    assert 0 < len(entries_of(expected)) < 1200
    Random(3).shuffle(rows)
    shuffled = entries_to_blocks(frame_of(spark, rows).repartition(3), "batch")
    assert blocks_in(shuffled) == expected
    assert chain_start(shuffled).next_number == len(expected)
    assert blocks_in(link_blocks(shuffled)) == expected


@pytest.mark.spark
def test_no_entries_make_no_blocks(spark: SparkSession) -> None:
    blocks = entries_to_blocks(frame_of(spark, []))
    assert blocks.columns == ["block_number", "items"]
    assert blocks.collect() == []


@pytest.mark.spark
@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([(1, 1, b"")], "entry 0 is missing before entry 1"),
        ([(0, 1, b""), (2, 1, b"")], "entry 1 is missing before entry 2"),
        ([(0, 1, b""), (1, 1, b""), (1, 2, b"")], "entry 1 is there more than once"),
    ],
)
def test_a_stream_with_holes_is_refused_at_once(
    spark: SparkSession, rows: list[tuple[int, int, bytes]], said: str
) -> None:
    with pytest.raises(PrepareError, match=said):
        entries_to_blocks(frame_of(spark, rows), "bookmark")


@pytest.mark.spark
@pytest.mark.parametrize(
    ("row", "said"),
    [
        ((None, 1, b""), "an entry has the number -1, expected 0 or above"),
        ((0, None, b""), "entry 0 has type -1, expected 0 to 4294967294"),
        ((0, 1, None), "entry 0 has no data (null)"),
        ((0, 1 << 32, b""), "entry 0 has type 4294967296"),
        ((0, 1, bytes(1_048_560)), "entry 0 has 1048560 bytes, at most 1048559 are allowed"),
    ],
)
def test_an_entry_that_no_stream_has(spark: SparkSession, row: tuple[Any, ...], said: str) -> None:
    with pytest.raises(SparkJobFailed, match=re.escape(said)):
        entries_to_blocks(frame_of(spark, [row]), "bookmark")


@pytest.mark.spark
def test_a_block_that_no_gateway_takes_is_named_before_it_is_gathered(spark: SparkSession) -> None:
    rows = [(0, BOOKMARK_TYPE, b"\x08\x01\x10\x05"), *((number, 9, bytes(9000)) for number in range(1, 9))]
    said = r"block 0 cannot be prepared: it \(batch 5, entries 0 to 8\) has \d+ bytes"
    with pytest.raises(PrepareError, match=said):
        entries_to_blocks(frame_of(spark, rows), "batch", max_block_bytes=65_000)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("schema", "column", "got"),
    [
        ("entry_number BIGINT, entry_type BIGINT", "data", "no such column"),
        ("entry_number STRING, entry_type BIGINT, data BINARY", "entry_number", "string"),
        ("entry_number BIGINT, entry_type BIGINT, data STRING", "data", "string"),
    ],
)
def test_other_columns(spark: SparkSession, schema: str, column: str, got: str) -> None:
    with pytest.raises(SchemaError, match=f"column '{column}': got {got}"):
        entries_to_blocks(frame_of(spark, [], schema))


@pytest.mark.spark
@pytest.mark.parametrize(
    "arguments",
    [{"group_by": "blocks"}, {"generation": "next"}, {"max_block_bytes": 0}, {"group_by": 0}],
)
def test_arguments_out_of_range(spark: SparkSession, arguments: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(arguments))):
        entries_to_blocks(frame_of(spark, []), **arguments)


@pytest.mark.spark
@pytest.mark.parametrize("changed", ["first", "last", "twice"])
def test_a_frame_with_other_rows_the_second_time_fails(spark: SparkSession, changed: str) -> None:
    rows = [(number, BOOKMARK_TYPE, b"") for number in range(8)]
    plan = plan_entries(frame_of(spark, rows), NetworkOptions(Grouping(4)))
    again = {"first": [*rows[:4], *rows[5:]], "last": rows[:-1], "twice": [*rows, rows[5]]}[changed]
    blocks = planned_blocks(frame_of(spark, again), plan)
    with pytest.raises(Exception, match="block 1 has other entries than when its stream was read first"):
        blocks.collect()


# --- a stream -----------------------------------------------------------------------------------------------


def test_entries_that_come_early_wait_for_their_turn_alone() -> None:
    pd: Any = pytest.importorskip("pandas", reason="needs the extra spark")
    entries = [(number, 1, b"%d" % number) for number in range(20)]
    shuffled = [*entries[:5], *Random(1).sample(entries[5:], 15)]
    frames = [
        pd.DataFrame(shuffled[at : at + 4], columns=["entry_number", "entry_type", "data"])
        for at in range(0, 20, 4)
    ]
    assert list(_in_order(iter(frames), 0)) == entries
    assert list(itertools.islice(_in_order(iter(frames[:1]), 0), 4)) == entries[:4]  # at once
    twice = [*frames, frames[0]]
    assert [number for number, _, _ in _in_order(iter(twice), 0)] == [*range(20), *range(4)]
    gap = [number for number, _, _ in _in_order(iter(frames[1:]), 0)]
    assert gap == sorted(number for number, _, _ in shuffled[4:])


def _add(batches: list[Blocks], blocks: DataFrame, batch: int) -> None:
    del batch
    batches.append([(row[0], tuple(map(bytes, row[1]))) for row in blocks.collect()])


def run_query(spark: SparkSession, address: str, by: object, checkpoint: Path) -> list[Blocks]:
    """Run a query to where the stream ends now, and return the blocks of each batch."""
    entries = spark.readStream.format("datastream").options(
        server=address, max_entries_per_trigger="300", partitions="2"
    )
    batches: list[Blocks] = []
    query = (
        entries_to_blocks(entries.load(), by)  # type: ignore[arg-type]
        .writeStream.foreachBatch(partial(_add, batches))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return batches


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[DataStreamer]:
    with DataStreamer.open(tmp_path / "growing.bin") as streamer:
        yield streamer


@pytest.fixture
def shuffled(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[str]:
    """Shuffle into so many partitions."""
    before = str(spark.conf.get(SHUFFLE))
    spark.conf.set(SHUFFLE, request.param)
    yield request.param
    spark.conf.set(SHUFFLE, before)


def append(streamer: DataStreamer, entries: Iterable[Entry]) -> None:
    streamer.start_atomic_op()
    for entry in entries:
        if entry.type == BOOKMARK_TYPE:
            streamer.add_stream_bookmark(entry.data)
        else:
            streamer.add_stream_entry(entry.type, entry.data)
    streamer.commit_atomic_op(flush=False)


@pytest.mark.spark
@needs_stream
@pytest.mark.parametrize(
    ("by", "shuffled"),
    # All rows have one key: other partitions only cost a task and a state store in each batch.
    [
        ("l2block", "1"),
        *(
            pytest.param(*given, marks=pytest.mark.slow)
            for given in (("batch", "4"), ("bookmark", "1"), (300, "1"))
        ),
    ],
    indirect=["shuffled"],
)
def test_a_stream_makes_the_blocks_of_a_batch_and_goes_on_after_a_restart(
    spark: SparkSession, sample: Path, growing: DataStreamer, shuffled: str, tmp_path: Path, by: object
) -> None:
    entries = entries_in(sample)[:1200]
    with ServerThread(growing) as server:
        address = f"{server.host}:{server.port}"
        append(growing, entries[:600])
        batches = run_query(spark, address, by, tmp_path / "state")
        first = [block for batch in batches for block in batch]
        assert first == one_by_one(entries[:600], by, is_whole=False)
        append(growing, entries[600:])
        batches += run_query(spark, address, by, tmp_path / "state")
    blocks = [block for batch in batches for block in batch]
    assert blocks == one_by_one(entries, by, is_whole=False)
    assert len(batches) >= 4


@pytest.mark.spark
def test_a_stream_has_no_last_block(spark: SparkSession) -> None:
    entries = spark.readStream.format("datastream").option("server", "127.0.0.1:1").load()
    with pytest.raises(OptionError, match="keep_incomplete"):
        entries_to_blocks(entries, keep_incomplete=True)


@pytest.mark.spark
def test_a_query_that_begins_in_the_middle_of_a_stream_is_refused(
    spark: SparkSession, growing: DataStreamer, tmp_path: Path
) -> None:
    append(growing, [Entry(1, number, b"") for number in range(4)])
    with ServerThread(growing) as server:
        entries = spark.readStream.format("datastream").options(
            server=f"{server.host}:{server.port}", **{"from": "2"}
        )
        query = (
            entries_to_blocks(entries.load(), 2)
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / "state"))
            .trigger(availableNow=True)
            .start()
        )
        with pytest.raises(Exception, match="entries 0 to 1 are missing before entry 2"):
            query.awaitTermination()
