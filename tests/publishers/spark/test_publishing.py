"""Publishing DataFrames in Spark, to real nodes."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

import pyspark
from pyspark.sql import Window, functions

from sluice.gateway.blocks.block import Block
from sluice.publishers.blocks.block_files import write_block_file
from sluice.publishers.errors import FrameError, OptionError, SchemaError, SparkJobFailed
from sluice.publishers.report import PublishReport, RefusedBlock
from sluice.publishers.spark import observed, publish, reports_frame
from sluice.publishers.spark.block_sink import read_reports
from sluice.publishers.spark.publishing import is_shuffled, plan_frame
from sluice.publishers.spark.schema import BLOCK_SCHEMA
from tests.nodes import make_blocks
from tests.publishers.fake_node import FakeNode, running
from tests.publishers.node_thread import node_thread

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

BLOCKS = make_blocks(12)
SHUFFLED = [7, 2, 11, 0, 5, 9, 1, 10, 4, 8, 3, 6]


def frame_of(spark: SparkSession, blocks: Sequence[Block]) -> DataFrame:
    rows = [(block.number, [bytearray(item) for item in block.items]) for block in blocks]
    return spark.createDataFrame(rows, BLOCK_SCHEMA)


def test_a_shuffled_frame_is_sorted_and_published_by_shards_and_racers(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = frame_of(spark, [BLOCKS[number] for number in SHUFFLED])
    with node_thread(tmp_path) as node:
        reports = publish(frame, [str(node.grpc_address)], shards=3, race=2, publisher_id="team")
        assert node.store.last_number == 11
        again = publish(frame, str(node.grpc_address), shards=1, check=False)
    assert {report.publisher_id for report in reports} == {
        *("team.1", "team.2", "team-1.1", "team-1.2", "team-2.1", "team-2.2")
    }
    won = sum(report.won for report in reports)
    # A racer that is sent away with DUPLICATE_BLOCK cannot tell any more what it has won before.
    assert won == 12 or (won < 12 and any(one.won + one.skipped < one.offered for one in reports))
    (report,) = again
    assert (report.blocks, report.duplicate, report.won) == (12, 12, 0)


def test_an_ordered_frame_is_published_as_it_is_partitioned(spark: SparkSession) -> None:
    frame = frame_of(spark, BLOCKS).select("items", "block_number")
    plan = plan_frame(frame)
    assert plan is not None
    assert (plan.first_block, plan.last_block, plan.partition_count, plan.is_ordered) == (0, 11, 3, True)


@pytest.mark.usefixtures("small_parts")
def test_a_frame_whose_numbers_alone_are_in_one_partition_is_sorted(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark puts partitions of a shuffle together by their sizes, those of whole blocks otherwise."""
    newest = Window.partitionBy("block_number").orderBy("version")
    frame = frame_of(spark, BLOCKS).withColumn("version", functions.lit(1))
    frame = frame.withColumn("place", functions.row_number().over(newest)).where("place = 1")
    plan = plan_frame(frame)
    assert plan is not None
    assert (plan.partition_count, plan.is_ordered) == (1, True)
    with node_thread(tmp_path) as node:
        reports = publish(frame, str(node.grpc_address), deadline_seconds=20, part_order_seconds=5)
        assert node.store.last_number == 11
    assert [report.blocks for report in reports] == [12]


def test_what_comes_from_a_shuffle(spark: SparkSession) -> None:
    frame = frame_of(spark, BLOCKS)
    assert not is_shuffled(frame.where("block_number > 3").coalesce(1))
    sums = frame.groupBy("block_number").count()
    assert is_shuffled(sums)
    assert is_shuffled(frame.unionByName(frame.repartition(2)))
    assert not is_shuffled(frame.join(functions.broadcast(sums.persist()), "block_number"))
    sums.unpersist()


@pytest.mark.parametrize(
    ("numbers", "reason"),
    [
        ([0, 1, 4, 3], "block 2 is missing"),
        ([2, 1, 0, 1], "block 1 is there more than once"),
        ([0, 3, 3], "blocks 1 to 2 are missing and block 3 is there more than once"),
    ],
)
def test_a_frame_that_is_no_chain_is_refused_before_anything_is_sent(
    spark: SparkSession, numbers: list[int], reason: str
) -> None:
    with running(FakeNode()) as node, pytest.raises(FrameError) as caught:
        publish(frame_of(spark, [BLOCKS[number] for number in numbers]), node.address)
    assert str(caught.value) == f"{reason}; nothing was published: a chain has every number once"
    assert node.received == []


def test_a_frame_that_has_fewer_rows_the_second_time_is_no_success(
    spark: SparkSession, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"

    def fewer(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Leave out the last two rows, but not the first time."""
        table = pa.Table.from_batches(batches)
        yield from (table.slice(0, len(table) - 2) if seen.exists() else table).to_batches()
        seen.touch()

    frame = frame_of(spark, BLOCKS).coalesce(1).mapInArrow(fewer, BLOCK_SCHEMA)
    with running(FakeNode()) as node, pytest.raises(FrameError) as caught:
        publish(frame, node.address, report_path=tmp_path.as_uri())
    assert node.received == BLOCKS[:-2]
    assert str(caught.value) == (
        "block 11 was there when the numbers were read, and only blocks up to 9 when the blocks were; "
        "the DataFrame had fewer rows the second time; cache it, and publish it again"
    )


def test_reports_come_where_the_driver_is(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's processes stay in the directory that was the working one when they began."""
    monkeypatch.chdir(tmp_path)
    with running(FakeNode()) as node:
        (report,) = publish(frame_of(spark, BLOCKS).coalesce(1), node.address, report_path="reports")
        with pytest.raises(OptionError, match=r"^option 'report_path': got 's3a://lake/x', expected a path"):
            publish(frame_of(spark, BLOCKS), node.address, report_path="s3a://lake/x")
    assert read_reports(tmp_path / "reports", "spark") == [report]


def test_a_bad_block_and_an_unreachable_gateway_end_with_one_line(spark: SparkSession) -> None:
    damaged = dataclasses.replace(BLOCKS[1], items=BLOCKS[1].items[:-2])
    with running(FakeNode()) as node, pytest.raises(SparkJobFailed) as caught:
        publish(frame_of(spark, [BLOCKS[0], damaged, BLOCKS[2]]), node.address, shards=1)
    assert caught.value.reason.startswith("block 1 is bad; neither it nor later blocks were sent: ")
    assert [block.number for block in node.received] in ([], [0])
    with pytest.raises(SparkJobFailed, match=r"within 0\.3 s"):
        publish(frame_of(spark, BLOCKS), "127.0.0.1:1", shards=1, deadline_seconds=0.3)


def test_a_worker_that_crashes_ends_with_one_line(spark: SparkSession, tmp_path: Path) -> None:
    """PySpark has an error of another family for it than for one that raises."""
    is_planned = tmp_path / "planned"

    def crash(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if is_planned.exists():
            os._exit(1)
        yield from batches
        is_planned.touch()

    frame = frame_of(spark, BLOCKS).coalesce(1).mapInArrow(crash, BLOCK_SCHEMA)
    for what in ("when the rows are written", "when the numbers are read"):
        with running(FakeNode()) as node, pytest.raises(SparkJobFailed, match="crashed") as caught:
            publish(frame, node.address)
        assert "\n" not in caught.value.reason, what


def test_nothing_wrong_columns_and_wrong_options(spark: SparkSession) -> None:
    assert publish(frame_of(spark, []), "127.0.0.1:1") == []
    with pytest.raises(SchemaError):
        publish(spark.range(3), "127.0.0.1:1")
    stream = (
        spark.readStream.format("rate").load().selectExpr("value AS block_number", "array(X'00') AS items")
    )
    with pytest.raises(FrameError) as caught:
        publish(stream, "127.0.0.1:1")
    assert str(caught.value) == (
        "the DataFrame is a stream, which has no last block; "
        'write it with blocks.writeStream.format("blockstream")'
    )
    with pytest.raises(OptionError, match=r"option 'shards': got 0, expected at least 1$"):
        publish(frame_of(spark, BLOCKS), "127.0.0.1:1", shards=0)
    shards: Any = "2"
    with pytest.raises(OptionError, match=r"option 'shards': got '2', expected a whole number, at least 1$"):
        publish(frame_of(spark, BLOCKS), "127.0.0.1:1", shards=shards)
    with pytest.raises(OptionError, match="option 'racers': got an unknown option"):
        publish(frame_of(spark, BLOCKS), "127.0.0.1:1", racers=2)
    with pytest.raises(FrameError, match="a row has no block_number, or a negative one"):
        publish(spark.createDataFrame([(None, [])], BLOCK_SCHEMA), "127.0.0.1:1")


def test_a_session_that_knows_nothing_of_us_can_publish(spark: SparkSession) -> None:
    frame = frame_of(spark.newSession(), BLOCKS).coalesce(1)
    frame_of(spark, BLOCKS)  # makes the other session the active one again
    with running(FakeNode()) as node:
        (report,) = publish(frame, node.address)
    assert (report.blocks, node.received) == (12, BLOCKS)


def test_threads_can_publish(spark: SparkSession, tmp_path: Path) -> None:
    """A thread has no active session of its own."""
    for block in BLOCKS:
        write_block_file(tmp_path / f"{block.number}.blk", block)
    frame = spark.read.format("blockfiles").option("partitions", 1).load(str(tmp_path))
    with running(FakeNode()) as node, ThreadPoolExecutor(1) as threads:
        (report,) = threads.submit(publish, frame, node.address).result()
    assert (report.blocks, node.received) == (12, BLOCKS)


def test_the_numbers_of_a_source_are_read_without_its_blocks(spark: SparkSession, tmp_path: Path) -> None:
    for block in BLOCKS:
        write_block_file(tmp_path / f"{block.number}.blk", block)
    (tmp_path / "5.blk").write_bytes(b"damaged")
    frame = spark.read.format("blockfiles").option("partitions", "3").load(str(tmp_path))
    for same in (
        frame,
        frame.select("block_number", "items"),
        frame.alias("a").select("items", "block_number"),
    ):
        plan = plan_frame(same)
        assert plan is not None
        assert (plan.first_block, plan.last_block, plan.partition_count) == (0, BLOCKS[-1].number, 3)
    with pytest.raises(SparkJobFailed, match=r"5\.blk"):
        plan_frame(frame.where("size(items) > 0"))
    with pytest.raises(SparkJobFailed, match=r"5\.blk"):  # other numbers than the source's
        plan_frame(frame.selectExpr("block_number DIV 2 AS block_number", "items"))


def test_a_shuffle_of_many_partitions_takes_the_task_slots(spark: SparkSession, tmp_path: Path) -> None:
    frame = frame_of(spark, BLOCKS).repartition(60, "block_number")
    with node_thread(tmp_path) as node:
        reports = publish(frame, str(node.grpc_address))
    assert len(reports) <= spark.sparkContext.defaultParallelism
    assert sum(report.acknowledged for report in reports) == len(BLOCKS)


def test_a_querys_progress_counts_what_it_publishes(spark: SparkSession, tmp_path: Path) -> None:
    chain = tmp_path / "chain"
    chain.mkdir()
    for block in BLOCKS:
        write_block_file(chain / f"{block.number}.blk", block)
    blocks = spark.readStream.format("blockfiles").option("max_blocks_per_trigger", 8).load(str(chain))
    with node_thread(tmp_path / "node") as node:
        query = (
            observed(blocks)
            .writeStream.format("blockstream")
            .option("gateways", str(node.grpc_address))
            .option("checkpointLocation", str(tmp_path / "state"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert node.store.last_number == 11
    seen = [one["observedMetrics"]["blocks"] for one in query.recentProgress if one["observedMetrics"]]
    assert [(one["first_block"], one["last_block"], one["count"]) for one in seen] == [(0, 7, 8), (8, 11, 4)]
    assert sum(one["bytes"] for one in seen) == sum(block.size_bytes for block in BLOCKS)


def test_reports_are_rows_of_a_frame(spark: SparkSession) -> None:
    reports = [
        PublishReport("a", refused=(RefusedBlock(3, "BAD_BLOCK_PROOF", 1),), latency_ns=(5, 6), won=2),
        PublishReport("b", 0, 9, failure="no gateway answers"),
    ]
    frame = reports_frame(spark, reports)
    first, second = frame.collect()
    assert first.refused[0].code == "BAD_BLOCK_PROOF"
    assert (first.latency_ns, first.first_block, first.won) == ([5, 6], None, 2)
    assert (second.publisher_id, second.last_block, second.failure) == ("b", 9, "no gateway answers")
    assert reports_frame(spark, []).columns == frame.columns
    assert frame.columns == [field.name for field in dataclasses.fields(PublishReport)]


CONNECTED = """
import sys, tempfile
from pyspark.sql import SparkSession
from sluice.publishers.spark import publish, register

spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
register(spark)
tempfile.TemporaryDirectory = tempfile.mkdtemp = None  # no disk is shared with the server
blocks = spark.read.format("blockfiles").option("partitions", 2).load(sys.argv[2])
for report in publish(blocks, sys.argv[3]) + publish(blocks.where("block_number < 5"), sys.argv[3]):
    print("report", report.acknowledged, report.safe_through)
"""


@pytest.mark.slow
def test_over_connect_the_reports_come_to_the_client(tmp_path: Path, java: None) -> None:
    """A server of its own process, as a remote one is."""
    pytest.importorskip("grpc_status", reason="needs grpcio-status")
    home = Path(pyspark.__file__).parent
    chain = tmp_path / "chain"
    chain.mkdir()
    for block in BLOCKS:
        write_block_file(chain / f"{block.number}.blk", block)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {
        "spark.connect.grpc.binding.port": port,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
    }
    words = [f"--conf={name}={value}" for name, value in settings.items()]
    environment = {**os.environ, "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
    with (tmp_path / "server.log").open("w") as log, node_thread(tmp_path / "node") as node:
        server = subprocess.Popen(
            [
                home / "bin" / "spark-submit",
                "--class=org.apache.spark.sql.connect.service.SparkConnectServer",
                "--master=local[2]",
                *words,
                "spark-internal",
            ],
            env=environment,
            cwd=tmp_path,
            stdout=log,
            stderr=log,
        )
        try:
            deadline = time.monotonic() + 120
            while True:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                assert server.poll() is None
                assert time.monotonic() < deadline, (tmp_path / "server.log").read_text()[-2000:]
                time.sleep(0.2)
            done = subprocess.run(
                [sys.executable, "-c", CONNECTED, f"sc://127.0.0.1:{port}", chain, str(node.grpc_address)],
                env=environment,
                capture_output=True,
                text=True,
            )
        finally:
            server.terminate()
            server.wait()
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("report")]
    assert sum(int(line[1]) for line in lines[:2]) == len(BLOCKS)
    assert [line[2] for line in lines] == ["5", "11", "11"]
