"""Each source of `sluice publish` as a DataFrame."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

from sluice.gateway.node.node import Node
from sluice.publishers.blocks.block_files import write_block_file
from sluice.publishers.errors import (
    BlockListError,
    FrameError,
    OptionError,
    PublisherError,
    SchemaError,
    SourceUnreachable,
)
from sluice.publishers.number_range import NumberRange
from sluice.publishers.spark.chain_sources import (
    ChainFrame,
    batch_frame,
    check_before_spark,
    check_options,
    checked_where_read,
    stream_frame,
)
from sluice.publishers.spark.source_names import parse_source, parse_sources
from tests.certificates import Authority
from tests.nodes import make_blocks
from tests.publishers import field_files
from tests.publishers.node_thread import node_thread, store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

BLOCKS = make_blocks(9)
ALL = NumberRange()
SOME = NumberRange(2, 7)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`chain/`: block files; `node/`: a node's data."""
    made = tmp_path_factory.mktemp("sources")
    (made / "chain").mkdir()
    for block in BLOCKS:
        write_block_file(made / "chain" / f"{block.number}.blk", block)
    store(made / "node", BLOCKS)
    return made


@pytest.fixture(scope="module")
def node(folder: Path) -> Iterator[Node]:
    with node_thread(folder / "node") as made:
        yield made


def partitions_of(chain: ChainFrame) -> list[list[int]]:
    """The block numbers of each partition, in order; blocks have all their items."""
    rows = chain.frame.rdd.mapPartitionsWithIndex(
        lambda at, part: [(at, [(row["block_number"], len(row["items"])) for row in part])]
    ).collect()
    for _, part in rows:
        assert all(count == len(BLOCKS[number].items) for number, count in part)
    return [[number for number, _ in part] for _, part in sorted(rows)]


def chain_of(spark: SparkSession, text: str, numbers: NumberRange = ALL, shards: int = 1) -> ChainFrame:
    return batch_frame(spark, parse_source(text), numbers, shards)


def refusal(spark: SparkSession, text: str, numbers: NumberRange = ALL) -> str:
    with pytest.raises(PublisherError) as caught:
        chain_of(spark, text, numbers)
    return str(caught.value)


def test_block_files_are_cut_into_shards_and_bounded(spark: SparkSession, folder: Path) -> None:
    chain = chain_of(spark, str(folder / "chain"), shards=2)
    assert partitions_of(chain) == [[0, 1, 2, 3], [4, 5, 6, 7, 8]]
    assert (chain.first_block, chain.last_block, chain.is_streaming) == (0, 8, False)
    chain = chain_of(spark, str(folder / "chain"), SOME)
    assert (partitions_of(chain), chain.first_block, chain.last_block) == ([[2, 3, 4, 5, 6]], 2, 6)


def test_several_places_of_block_files_are_one_chain(spark: SparkSession, tmp_path: Path) -> None:
    field_files.in_zip(tmp_path / "historic/000/0.zip", BLOCKS[:5])
    field_files.in_recent_folder(tmp_path / "live", BLOCKS[4:])
    source = parse_sources([f"{tmp_path}/**/*.zip", f"blockfiles:{tmp_path}/live"])
    check_options(source)
    check_before_spark(source, ALL)
    chain = batch_frame(spark, source, ALL, 3)
    assert partitions_of(chain) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert (chain.first_block, chain.last_block) == (0, 8)
    seen: list[int] = []
    stream = stream_frame(spark, source, SOME, 2).frame.writeStream.foreachBatch(
        lambda batch, _: seen.extend(row.block_number for row in batch.collect())
    )
    query = stream.option("checkpointLocation", str(tmp_path / "state")).trigger(availableNow=True).start()
    query.awaitTermination()
    assert seen == [2, 3, 4, 5, 6]


def test_ends_that_are_not_there_are_named(spark: SparkSession, folder: Path) -> None:
    name = f"blockfiles:{folder / 'chain'}"
    said = f"{name}: block 9 is not there; the first is 0 and the last 8"
    for numbers in (NumberRange(9), NumberRange(3, 10)):
        with pytest.raises(BlockListError) as caught:
            check_before_spark(parse_source(name), numbers)
        assert str(caught.value) == said
    assert refusal(spark, name, NumberRange(9)) == said


def test_a_node_over_grpc(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    name = f"blockstream:{node.grpc_address}"
    assert partitions_of(chain_of(spark, name, SOME, 2)) == [[2, 3], [4, 5, 6]]
    said = f"{name}: block 20 is not there; the first is 0 and the last 8"
    assert refusal(spark, name, NumberRange(20)) == said
    with pytest.raises(SourceUnreachable, match=r"what blockstream:127\.0\.0\.1:1 holds"):
        chain_of(spark, "blockstream:127.0.0.1:1")
    with node_thread(tmp_path) as empty:
        name = f"blockstream:{empty.grpc_address}"
        assert refusal(spark, name) == f"{name}: the node has no blocks"


def test_a_stream_file_and_a_data_folder(spark: SparkSession, folder: Path) -> None:
    chain = chain_of(spark, str(folder / "node"), SOME)
    assert (partitions_of(chain), chain.first_block, chain.last_block) == ([[2, 3, 4, 5, 6]], 2, 6)
    assert partitions_of(chain_of(spark, f"datastream:{folder}/node/datastream.bin")) == [list(range(9))]


def test_a_data_streamer_is_a_stream_that_begins_at_the_block(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    chain = chain_of(spark, f"datastream:{node.tcp_address}", SOME)
    assert (chain.is_streaming, chain.first_block, chain.last_block) == (True, 2, 6)
    query = (
        chain.frame.select("block_number")
        .writeStream.format("memory")
        .queryName("found")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sorted(row[0] for row in spark.table("found").collect()) == [2, 3, 4, 5, 6]
    assert query.lastProgress is not None
    assert '"next": 0' not in str(query.lastProgress["sources"][0]["startOffset"])
    with pytest.raises(SourceUnreachable, match=r"what datastream:127\.0\.0\.1:1 holds"):
        chain_of(spark, "datastream:127.0.0.1:1", SOME)
    with pytest.raises(SourceUnreachable, match=r"block 2 of datastream:127\.0\.0\.1:1"):
        stream_frame(spark, parse_source("datastream:127.0.0.1:1"), SOME, 1)


def test_a_data_streamer_with_tls(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("localhost")
    store(tmp_path / "node", BLOCKS)
    with node_thread(
        tmp_path / "node", tcp_tls_certificate=pair.certificate, tcp_tls_key=pair.key
    ) as secured:
        for kind in ("datastream", "server"):
            name = f"{kind}:{secured.tcp_address}"
            options = {"tls_ca": str(authority.path), "tls_server_name": "localhost"}
            assert batch_frame(spark, parse_source(name, options), ALL, 1).is_streaming
            assert "what " + name in refusal(spark, name)


def test_a_data_streamer_without_the_blocks_that_are_wanted_is_refused(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    """A query over none of them would end as if all were published."""
    name = f"datastream:{node.tcp_address}"
    assert refusal(spark, name, NumberRange(20)) == f"{name}: block 20 is not there"
    assert refusal(spark, name, NumberRange(3, 10)) == f"{name}: block 9 is not there"
    with node_thread(tmp_path) as empty:
        name = f"datastream:{empty.tcp_address}"
        assert refusal(spark, name) == f"{name}: the stream has no entries"


def test_tables_are_sorted_and_cut(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    rows = spark.read.format("blockfiles").load(str(folder / "chain"))
    path = tmp_path / "table"
    rows.selectExpr("items", "block_number", "1 AS other").orderBy(
        "block_number", ascending=False
    ).repartition(3).write.parquet(str(path))
    for name in (f"parquet:{path}", str(path), f"table:parquet.`{path}`"):
        chain = chain_of(spark, name, SOME, 2)
        assert [number for part in partitions_of(chain) for number in part] == [2, 3, 4, 5, 6]
        assert (chain.first_block, chain.last_block) == (2, 6)
    spark.read.parquet(str(path)).createOrReplaceTempView("lake_blocks")
    assert partitions_of(chain_of(spark, "table:lake_blocks")) == [list(range(9))]
    assert (
        refusal(spark, "table:lake_blocks", NumberRange(20))
        == "table:lake_blocks: no blocks of these numbers"
    )
    spark.table("lake_blocks").where("block_number != 4").createOrReplaceTempView("lake_gap")
    with pytest.raises(FrameError, match="block 4 is missing"):
        chain_of(spark, "table:lake_gap")
    spark.range(3).createOrReplaceTempView("lake_numbers")
    with pytest.raises(SchemaError, match="column 'block_number': got no such column, expected BIGINT"):
        chain_of(spark, "table:lake_numbers")
    said = refusal(spark, "table:no_such_table")
    assert said.startswith("table:no_such_table: [TABLE_OR_VIEW_NOT_FOUND] The table or view `no_such_table`")
    assert "\n" not in said


@pytest.mark.usefixtures("small_parts")
def test_a_view_whose_numbers_alone_are_in_one_partition_is_sorted(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    """The newest row of each block, say: Spark gives its numbers in order, and whole rows as they come."""
    rows = spark.read.format("blockfiles").load(str(folder / "chain"))
    rows.selectExpr("*", "1 AS version").write.parquet(str(tmp_path / "table"))
    place = "row_number() OVER (PARTITION BY block_number ORDER BY version) AS place"
    newest = spark.read.parquet(str(tmp_path / "table")).selectExpr("*", place).where("place = 1")
    newest.createOrReplaceTempView("lake_newest")
    assert partitions_of(chain_of(spark, "table:lake_newest")) == [list(range(9))]


def test_what_can_be_followed(spark: SparkSession, folder: Path, node: Node) -> None:
    for name in (
        f"blockfiles:{folder}/chain",
        f"blockstream:{node.grpc_address}",
        f"datastream:{node.tcp_address}",
    ):
        chain = stream_frame(spark, parse_source(name), ALL, 1)
        assert chain.frame.isStreaming
        assert (chain.first_block, chain.last_block, chain.is_streaming) == (None, None, True)
    with pytest.raises(OptionError, match="expected to be followed over TCP: datastream:HOST:PORT"):
        stream_frame(spark, parse_source(f"datastream:{folder}/node"), ALL, 1)
    with pytest.raises(OptionError, match="which cannot be followed, expected another source"):
        stream_frame(spark, parse_source("table:x"), ALL, 1)


def test_what_spark_says_of_a_source_that_is_followed_is_one_line(spark: SparkSession, folder: Path) -> None:
    source = parse_source(f"blockfiles:{folder}/chain", {"foo": "3"})
    with pytest.raises(BlockListError) as caught:
        stream_frame(spark, source, ALL, 1)
    assert str(caught.value).startswith(f"{source}: option 'foo': got an unknown option, expected one of ")
    assert "\n" not in str(caught.value)


def test_options_of_formats_of_ours_are_checked_without_spark(folder: Path) -> None:
    for name in (
        f"blockfiles:{folder}/chain",
        "blockstream:a:1",
        f"datastream:{folder}/node",
        "datastream:a:1",
    ):
        check_options(parse_source(name, {"Partitions": "3"}))
        with pytest.raises(OptionError, match="'partitions': got 'x'"):
            check_options(parse_source(name, {"Partitions": "x"}))
    check_options(parse_source("table:x", {"Partitions": "x"}))


def test_block_files_are_checked_where_they_are_read(folder: Path) -> None:
    files = parse_source(f"blockfiles:{folder / 'chain'}", {"mode": "failfast"})
    source, sink = checked_where_read(files, {"race": "2"})
    assert (source.kind, source.location) == (files.kind, files.location)
    assert (source.options, sink) == (
        {"mode": "failfast", "check": "true"},
        {"race": "2", "check": "false"},
    )
    assert files.options == {"mode": "failfast"}
    assert checked_where_read(files, {}, is_signed_next=True) == (files, {})
    for said in ("true", "false"):  # somebody has decided
        assert checked_where_read(files, {"check": said}) == (files, {"check": said})
        chosen = parse_source(f"blockfiles:{folder / 'chain'}", {"check": said})
        assert checked_where_read(chosen, {}) == (chosen, {})
    stream = parse_source(f"datastream:{folder / 'node'}")
    assert checked_where_read(stream, {}) == (stream, {})
