"""The source `datastream`: its readers without Spark, then a file and a server with it."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

from pyspark.sql.datasource import InputPartition

from sluice.gateway.store.block_store import BlockStore
from sluice.publishers import limits
from sluice.publishers.errors import BlockListError, OptionError, SourceUnreachable
from sluice.publishers.sources.event_rows import EVENT_COLUMNS
from sluice.publishers.spark.data_stream import (
    DataStreamDataSource,
    DataStreamReader,
    GrowingEntriesReader,
    ServedEntriesReader,
)
from tests.certificates import Authority
from tests.datastream.serving import ServerThread
from tests.datastream.streams import sample_file
from tests.nodes import make_blocks
from tests.publishers.node_thread import node_thread, store
from tests.publishers.stored import large_blocks, store_of, times_of
from tests.reference_data import needs_stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BLOCKS = large_blocks(12)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of a node that holds BLOCKS, on several data pages."""
    folder = tmp_path_factory.mktemp("node")
    with store_of(folder, BLOCKS):
        pass
    return folder


def reader_of(path: Path, **options: str) -> DataStreamReader:
    source = DataStreamDataSource({"path": str(path)} | options)
    reader = source.reader(source.schema())
    assert isinstance(reader, DataStreamReader)
    return reader


def rows_of(
    reader: DataStreamReader | GrowingEntriesReader | ServedEntriesReader,
    partitions: Sequence[InputPartition],
) -> list[dict[str, Any]]:
    reader, partitions = pickle.loads(pickle.dumps((reader, list(partitions))))  # as Spark sends them
    return [row for part in partitions for batch in reader.read(part) for row in batch.to_pylist()]


@pytest.mark.parametrize("partitions", ["1", "3", "100"])
def test_entries_of_a_file(node: Path, partitions: str) -> None:
    reader = reader_of(node, partitions=partitions)
    parts = reader.partitions()
    assert len(parts) == min(int(partitions), 4)
    rows = rows_of(reader, parts)
    assert [row["entry_number"] for row in rows] == list(range(len(rows)))
    items = [row["data"] for row in rows if row["entry_type"] not in (0xB0, 0xB1)]
    assert items == [item for block in BLOCKS for item in block.items]


@pytest.mark.parametrize("partitions", ["1", "2", "5"])
def test_blocks_of_a_file(node: Path, partitions: str) -> None:
    reader = reader_of(node / "datastream.bin", decode="blocks", partitions=partitions)
    rows = rows_of(reader, reader.partitions())
    assert [(row["block_number"], tuple(row["items"])) for row in rows] == [
        (block.number, block.items) for block in BLOCKS
    ]


@pytest.mark.parametrize("decode", ["entries", "blocks"])
def test_a_file_that_grows_after_it_was_planned_gives_what_was_there(tmp_path: Path, decode: str) -> None:
    with store_of(tmp_path, BLOCKS[:5]):
        pass
    reader = reader_of(tmp_path, decode=decode, partitions="1")
    parts = reader.partitions()
    there = rows_of(reader, parts)
    with store_of(tmp_path, BLOCKS[5:]):
        pass
    assert len(rows_of(reader, reader.partitions())) > len(there)
    assert rows_of(reader, parts) == there


@needs_stream
def test_events_of_the_sample(tmp_path: Path) -> None:
    reader = reader_of(sample_file(tmp_path), decode="events", partitions="2")
    rows = rows_of(reader, reader.partitions())
    assert len(rows) == 13_952
    assert list(rows[0]) == list(EVENT_COLUMNS)
    blocks = [row["block_number"] for row in rows if row["event"] == "L2Block"]
    assert blocks == list(range(blocks[0], blocks[0] + len(blocks)))
    assert {row["generation"] for row in rows} == {"network"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "option 'path': got nothing, expected the stream file, the data folder of a node, or "),
        (
            {"path": "x", "decode": "rows"},
            "option 'decode': got 'rows', expected one of entries, events, blocks",
        ),
        (
            {"path": "x", "partitions": str(limits.PARTITIONS_MAX + 1)},
            "option 'partitions': got 1000001, expected 1 to 1000000",
        ),
        ({"path": "x", "server": "a:1"}, "option 'server': got path as well, expected one of the two"),
        (
            {"path": "x", "starting_timestamp": "2026-01-31T12:00:00Z"},
            "option 'starting_timestamp': got decode=entries, expected a decode of blocks, which have a time",
        ),
        ({"path": "x", "generation": "old"}, "option 'generation': got 'old', expected one of auto, network"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], message: str) -> None:
    source = DataStreamDataSource(options)
    with pytest.raises(OptionError) as caught:
        source.reader(source.schema())
    assert str(caught.value).startswith(message)


def between(first: int | None, end: int | None) -> dict[str, str]:
    """Return the options for the blocks of BLOCKS from one up to another."""
    times, bounds = times_of(BLOCKS), {"starting_timestamp": first, "ending_timestamp": end}
    return {name: times[number] for name, number in bounds.items() if number is not None}


TIMES = [(None, None), (0, None), (3, None), (None, 7), (3, 7), (7, 3), (11, None), (None, 0), (5, 6)]


@pytest.mark.parametrize(("first", "end"), TIMES)
@pytest.mark.parametrize("decode", ["blocks", "headers"])
def test_blocks_between_two_times(
    node: Path, tmp_path: Path, first: int | None, end: int | None, decode: str
) -> None:
    expected = list(range(first or 0, 12 if end is None else end))
    reader = reader_of(node, decode=decode, partitions="3", **between(first, end))
    assert [row["block_number"] for row in rows_of(reader, reader.partitions())] == expected
    with store_of(tmp_path, BLOCKS) as store, ServerThread(store.streamer) as server:
        where = {"server": f"{server.host}:{server.port}", "decode": decode, "partitions": "3"}
        source = DataStreamDataSource(where | between(first, end))
        served = source.reader(source.schema())
        assert isinstance(served, ServedEntriesReader)
        assert [row["block_number"] for row in rows_of(served, served.partitions())] == expected


def test_no_block_is_of_a_time_that_has_not_come(node: Path, tmp_path: Path) -> None:
    late = {"decode": "blocks", "starting_timestamp": "2999-01-01T00:00:00Z"}
    BlockStore.open(tmp_path).close()
    for path in (node, tmp_path):
        reader = reader_of(path, **late)
        assert rows_of(reader, reader.partitions()) == []
    source = DataStreamDataSource({"path": str(node), **late})
    with pytest.raises(OptionError, match=r"'starting_timestamp': got '2999.*', expected nothing: a stream"):
        source.streamReader(source.schema())


def stream_of(server: str, **options: str) -> GrowingEntriesReader:
    source = DataStreamDataSource({"server": server} | options)
    return source.streamReader(source.schema())


def test_a_stream_of_a_server_in_batches(tmp_path: Path) -> None:
    with store_of(tmp_path, BLOCKS) as store, ServerThread(store.streamer) as server:
        for decode, expected in (("entries", 0), ("blocks", 12)):
            reader = stream_of(
                f"127.0.0.1:1,{server.host}:{server.port}", decode=decode, max_entries_per_trigger="13"
            )
            offset, rows = reader.initialOffset(), []
            while (end := reader.latestOffset(offset, reader.getDefaultReadLimit())) != offset:
                rows += rows_of(reader, reader.partitions(offset, end))
                offset = end
            if expected:
                assert [tuple(row["items"]) for row in rows] == [block.items for block in BLOCKS]
            else:
                assert [row["entry_number"] for row in rows] == list(range(offset["next"]))


@pytest.mark.parametrize("decode", ["entries", "blocks", "items"])
def test_a_stream_of_a_file_that_grows(tmp_path: Path, decode: str) -> None:
    with store_of(tmp_path, BLOCKS[:5]):
        pass
    source = DataStreamDataSource(
        {"path": str(tmp_path), "decode": decode, "max_entries_per_trigger": "13", "partitions": "2"}
    )
    reader = source.streamReader(source.schema())
    offset, rows = reader.initialOffset(), []

    def read_on() -> None:
        nonlocal offset
        while (end := reader.latestOffset(offset, reader.getDefaultReadLimit())) != offset:
            rows.extend(rows_of(reader, reader.partitions(offset, end)))
            offset = end

    read_on()
    there = len(rows)
    with store_of(tmp_path, BLOCKS[5:]):
        read_on()  # beside the node that writes it
    assert len(rows) > there > 0
    whole = reader_of(tmp_path, decode=decode)
    assert rows == rows_of(whole, whole.partitions())


@pytest.mark.parametrize(
    ("options", "numbers"),
    [({}, range(12)), ({"from": "3", "to": "7"}, range(3, 8)), ({"from": "11"}, range(11, 12))],
)
@pytest.mark.parametrize("decode", ["blocks", "headers"])
def test_a_batch_of_a_server(tmp_path: Path, options: dict[str, str], numbers: range, decode: str) -> None:
    with store_of(tmp_path, BLOCKS) as store, ServerThread(store.streamer) as server:
        source = DataStreamDataSource(
            {"server": f"{server.host}:{server.port}", "decode": decode, "partitions": "3"} | options
        )
        reader = source.reader(source.schema())
        assert isinstance(reader, ServedEntriesReader)
        rows = rows_of(reader, reader.partitions())
        assert [row["block_number"] for row in rows] == list(numbers)
        missing = DataStreamDataSource(
            {"server": f"{server.host}:{server.port}", "from": "99", "decode": decode}
        )
        with pytest.raises(BlockListError, match="block 99 is not there"):
            missing.reader(missing.schema()).partitions()
        entries = DataStreamDataSource(
            {"server": f"{server.host}:{server.port}", "from": "5", "to": "9", "partitions": "2"}
        )
        whole = entries.reader(entries.schema())
        assert isinstance(whole, ServedEntriesReader)
        assert [row["entry_number"] for row in rows_of(whole, whole.partitions())] == [5, 6, 7, 8, 9]


def test_a_stream_of_no_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path, "s3://bucket/archive"):
        source = DataStreamDataSource({"path": str(path)})
        with pytest.raises(
            OptionError, match=r"option 'path': got .*, expected a stream file or a node's data"
        ):
            source.streamReader(source.schema())


def test_a_server_with_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair, own = authority.issue("localhost"), authority.issue("reader")
    serving = {"tcp_tls_certificate": pair.certificate, "tcp_tls_key": pair.key}
    blocks = make_blocks(4)
    store(tmp_path / "node", blocks)
    with node_thread(tmp_path / "node", tcp_tls_client_ca=authority.path, **serving) as node:
        options = {"tls_ca": str(authority.path), "tls_certificate": str(own.certificate)}
        options |= {"tls_key": str(own.key), "tls_server_name": "localhost", "deadline_seconds": "0.01"}
        reader = stream_of(str(node.tcp_address), decode="blocks", **options)
        reader.prepareForTriggerAvailableNow()
        end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
        rows = rows_of(reader, reader.partitions(reader.initialOffset(), end))
        assert [tuple(row["items"]) for row in rows] == [block.items for block in blocks]
        with pytest.raises(SourceUnreachable, match="how many entries there are did not come"):
            stream_of(str(node.tcp_address)).prepareForTriggerAvailableNow()
    with pytest.raises(OptionError, match="option 'tls_certificate, tls_key': got a certificate without"):
        stream_of("a:1", tls_certificate="x")


def test_a_server_that_is_away_is_waited_for_and_then_an_error() -> None:
    reader = stream_of("127.0.0.1:1", deadline_seconds="0.01")
    start = reader.initialOffset()
    assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start
    with pytest.raises(SourceUnreachable):
        rows_of(reader, reader.partitions(start, {"next": 5}))
    with pytest.raises(OptionError, match="option 'server': got 'a', expected host:port"):
        stream_of("a")


def test_what_a_server_has_now_is_read_to_its_end_or_it_is_an_error(tmp_path: Path) -> None:
    """A query that ends without it would be taken for one that has read it."""
    with pytest.raises(SourceUnreachable, match=r"^how many entries there are did not come \(127.0.0.1:1: "):
        stream_of("127.0.0.1:1").prepareForTriggerAvailableNow()
    with store_of(tmp_path, BLOCKS) as store:
        with ServerThread(store.streamer) as server:
            reader = stream_of(
                f"{server.host}:{server.port}", deadline_seconds="0.01", max_entries_per_trigger="13"
            )
            reader.prepareForTriggerAvailableNow()
        last = reader.latestOffset({"next": 26}, reader.getDefaultReadLimit())
        assert last == {"first": 26, "next": 39}
        with pytest.raises(SourceUnreachable):
            rows_of(reader, reader.partitions({"next": 26}, last))


@pytest.mark.spark
def test_spark_reads_a_file_and_a_server(spark: SparkSession, tmp_path: Path) -> None:
    with store_of(tmp_path / "node", BLOCKS) as store, ServerThread(store.streamer) as server:
        frame = spark.read.format("datastream").option("decode", "blocks").load(str(tmp_path / "node"))
        rows = frame.orderBy("block_number").collect()
        assert [tuple(map(bytes, row["items"])) for row in rows] == [block.items for block in BLOCKS]
        seen: list[int] = []
        stream = (
            spark.readStream.format("datastream")
            .option("server", f"{server.host}:{server.port}")
            .option("decode", "blocks")
            .load()
        )
        query = (
            stream.writeStream.foreachBatch(
                lambda batch, _: seen.extend(row.block_number for row in batch.collect())
            )
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert sorted(seen) == list(range(12))
