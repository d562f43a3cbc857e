"""The handle of `blockstream`, and reading from a real node: without Spark, then with it."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from sluice.publishers import limits
from sluice.publishers.blocks.block_files import write_block_file
from sluice.publishers.blocks.block_places import blocks_in, read_chain
from sluice.publishers.errors import OptionError, SchemaError, SourceUnreachable
from sluice.publishers.spark.block_stream import (
    BlockStreamDataSource,
    BlockStreamReader,
    SubscriptionReader,
)
from sluice.publishers.spark.schema import BLOCK_COLUMNS, spark_schema
from sluice.publishers.spark.source_options import SUBSCRIPTIONS_MAX, SubscriptionOptions
from tests.nodes import make_blocks
from tests.publishers.node_thread import node_thread, store
from tests.publishers.stored import times_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BLOCKS = make_blocks(12)
SCHEMA = spark_schema(BLOCK_COLUMNS)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real node that holds BLOCKS."""
    folder = tmp_path_factory.mktemp("node")
    store(folder, BLOCKS)
    with node_thread(folder) as node:
        yield str(node.grpc_address)


def reader_of(gateways: str, **options: str) -> BlockStreamReader:
    source = BlockStreamDataSource({"gateways": gateways} | {k.rstrip("_"): v for k, v in options.items()})
    return source.reader(source.schema())


def stream_of(gateways: str, **options: str) -> SubscriptionReader:
    source = BlockStreamDataSource({"gateways": gateways} | {k.rstrip("_"): v for k, v in options.items()})
    return source.streamReader(source.schema())


def numbers_of(
    reader: BlockStreamReader | SubscriptionReader, partitions: Sequence[InputPartition]
) -> list[int]:
    reader, partitions = pickle.loads(pickle.dumps((reader, list(partitions))))  # as Spark sends them
    rows = [row for part in partitions for batch in reader.read(part) for row in batch.to_pylist()]
    assert all(tuple(row["items"]) == BLOCKS[row["block_number"]].items for row in rows)
    return [row["block_number"] for row in rows]


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ({}, range(12)),
        ({"from_": "3", "to": "7", "partitions": "2"}, range(3, 8)),
        ({"from_": "latest"}, range(0)),
        ({"from_": "12"}, range(0)),
    ],
)
def test_what_is_held(gateway: str, options: dict[str, str], numbers: range) -> None:
    reader = reader_of(f"127.0.0.1:1,{gateway}", **options)
    assert numbers_of(reader, reader.partitions()) == list(numbers)


def test_blocks_between_two_times(gateway: str) -> None:
    times = times_of(BLOCKS)
    reader = reader_of(gateway, starting_timestamp=times[5], ending_timestamp=times[8])
    assert numbers_of(reader, reader.partitions()) == [5, 6, 7]
    late = reader_of(gateway, starting_timestamp="2999-01-01T00:00:00Z")
    assert numbers_of(late, late.partitions()) == []
    stream = stream_of(gateway, starting_timestamp=times_of(BLOCKS)[9])
    assert stream.initialOffset() == {"next": 9}
    end = stream.latestOffset({"next": 9}, stream.getDefaultReadLimit())
    assert numbers_of(stream, stream.partitions({"next": 9}, end)) == [9, 10, 11]
    assert stream.reportLatestOffset() == {"next": 12}
    with pytest.raises(OptionError, match="'ending_timestamp': got a time, expected nothing in a stream"):
        stream_of(gateway, ending_timestamp=times_of(BLOCKS)[9])


def test_nobody_answers() -> None:
    with pytest.raises(SourceUnreachable, match=r"^what the gateways hold did not come \(127.0.0.1:1: UNAV"):
        reader_of("127.0.0.1:1").partitions()
    reader = stream_of("127.0.0.1:1")
    assert reader.initialOffset() == {"next": -1}
    assert reader.latestOffset({"next": 5}, reader.getDefaultReadLimit()) == {"next": 5}
    with pytest.raises(SourceUnreachable, match=r"^what the gateways hold did not come \(127.0.0.1:1: UNAV"):
        reader.prepareForTriggerAvailableNow()


def test_after_the_latest_block_of_an_empty_gateway_comes_every_block(tmp_path: Path) -> None:
    with node_thread(tmp_path / "node") as node:
        reader = stream_of(str(node.grpc_address), from_="latest")
        offset = reader.initialOffset()
        assert offset == {"next": -1}
        assert reader.latestOffset(offset, reader.getDefaultReadLimit()) == offset
    store(tmp_path / "node", BLOCKS)
    with node_thread(tmp_path / "node") as node:
        reader = stream_of(str(node.grpc_address), from_="latest")
        end = reader.latestOffset(offset, reader.getDefaultReadLimit())
        assert end == {"first": 0, "next": 12}
        assert numbers_of(reader, reader.partitions(offset, end)) == list(range(12))


def test_what_the_latest_block_is_has_to_be_said() -> None:
    """As nothing it would make the chain's first block the beginning."""
    reader = stream_of("127.0.0.1:1", from_="latest", deadline_seconds="0.1")
    with pytest.raises(
        SourceUnreachable, match=r"^the latest block did not come within 0\.1 s \(127.0.0.1:1: U"
    ):
        reader.initialOffset()
    assert reader.latestOffset({"next": -1}, reader.getDefaultReadLimit()) == {"next": -1}


def test_what_a_gateway_holds_now_is_read_to_its_end(tmp_path: Path) -> None:
    store(tmp_path, BLOCKS)
    with node_thread(tmp_path) as node:
        reader = stream_of(str(node.grpc_address), max_blocks_per_trigger="5", to="8")
        reader.prepareForTriggerAvailableNow()
    last = reader.latestOffset({"next": 5}, reader.getDefaultReadLimit())
    assert last == {"first": 5, "next": 9}


@pytest.mark.parametrize(
    ("options", "begin"),
    [({}, 0), ({"from_": "first"}, 0), ({"from_": "latest"}, 12), ({"from_": "7"}, 7)],
)
def test_a_stream_begins_where_it_is_told(gateway: str, options: dict[str, str], begin: int) -> None:
    reader = stream_of(gateway, max_blocks_per_trigger="5", **options)
    offset = reader.initialOffset()
    assert offset == {"next": begin}
    seen: list[int] = []
    while (end := reader.latestOffset(offset, reader.getDefaultReadLimit())) != offset:
        seen += numbers_of(reader, reader.partitions(offset, end))
        offset = end
    assert seen == list(range(begin, 12))


def test_options() -> None:
    parts = {"partitions": str(SUBSCRIPTIONS_MAX)}
    options = SubscriptionOptions.parse({"gateways": "a:1", "from": "Latest", "to": "9"} | parts)
    assert options.partition_count == SUBSCRIPTIONS_MAX
    assert options.deadline_seconds == limits.SOURCE_DEADLINE_SECONDS_DEFAULT
    assert (options.begin, options.last_block, options.tls) == ("latest", 9, None)
    for wrong, message in (
        ({"from": "x"}, "option 'from': got 'x', expected a whole number from 0 to 9223372036854775806"),
        ({"from": "5", "to": "4"}, "option 'to': got 4, expected 5 to 9223372036854775806"),
        (
            {"partitions": str(SUBSCRIPTIONS_MAX + 1)},
            "option 'partitions': got 10001, expected 1 to 10000",
        ),
        ({"race": "2"}, "option 'race': got an unknown option, expected one of deadline_seconds, "),
    ):
        with pytest.raises(OptionError) as caught:
            SubscriptionOptions.parse({"gateways": "a:1"} | wrong)
        assert str(caught.value).startswith(message)


def _write_blocks(folder: str, rows: Any) -> None:
    from sluice.gateway.blocks.block import Block

    for row in rows:
        block = Block(row["block_number"], tuple(map(bytes, row["items"])))
        write_block_file(Path(folder) / f"{block.number}.blk", block)


@pytest.mark.spark
def test_spark_follows_a_gateway(spark: SparkSession, gateway: str, tmp_path: Path) -> None:
    folder = tmp_path / "chain"
    folder.mkdir()
    frame = spark.read.format("blockstream").option("gateways", gateway).option("partitions", 2).load()
    assert frame.where("block_number < 2").count() == 2
    stream = (
        spark.readStream.format("blockstream")
        .option("gateways", f"127.0.0.1:1,{gateway}")
        .option("max_blocks_per_trigger", 7)
        .load()
    )
    query = (
        stream.writeStream.foreachBatch(lambda batch, _: _write_blocks(str(folder), batch.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert len(blocks_in(folder)) == 12
    assert list(read_chain(folder)) == BLOCKS


# --- the handle ---------------------------------------------------------------------------------------------


def test_its_name_and_columns() -> None:
    source = BlockStreamDataSource({"gateways": "a:1"})
    assert (source.name(), source.schema()) == ("blockstream", SCHEMA)


def test_a_chain_cannot_be_overwritten_nor_made_of_other_columns() -> None:
    source = BlockStreamDataSource({"gateways": "a:1"})
    for make in (source.writer, source.streamWriter):
        with pytest.raises(OptionError, match="option 'mode': got overwrite, expected append"):
            make(SCHEMA, overwrite=True)
        with pytest.raises(SchemaError):
            make(StructType([]), overwrite=False)
        with pytest.raises(OptionError, match="option 'gateway': got an unknown option"):
            BlockStreamDataSource({"gateway": "a:1"}).writer(SCHEMA, overwrite=False)


def test_a_folder_for_reports_is_there_before_a_block_is_sent(tmp_path: Path) -> None:
    """Found out when all is published, it would make a failure of that."""
    options = {"gateways": "a:1", "report_path": str(tmp_path / "all" / "reports")}
    source = BlockStreamDataSource(options)
    for make in (source.writer, source.streamWriter):
        make(SCHEMA, overwrite=False)
        assert list((tmp_path / "all").iterdir()) == [tmp_path / "all" / "reports"]
    (tmp_path / "file").touch()
    options["report_path"] = "s3a://lake/reports"
    with pytest.raises(OptionError, match=r"option 'report_path': got 's3a://lake/reports', expected a path"):
        BlockStreamDataSource(options).writer(SCHEMA, overwrite=False)
    options["report_path"] = str(tmp_path / "file" / "x")
    with pytest.raises(OptionError, match=r"option 'report_path': got '.*/file/x' \(Not a directory\)"):
        BlockStreamDataSource(options).writer(SCHEMA, overwrite=False)
