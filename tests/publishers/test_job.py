"""Racing Spark jobs, in one session, against a node that lets them race."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from publishers.block_files import read_chain, write_block_file
from publishers.errors import BlockListError
from publishers.job import Head, JobProgress, JobReport, publish, reason_in
from publishers.maker import BlockMaker, MakerOptions, key_of_seed
from publishers.report import PublishReport
from tests.certificates import Authority
from tests.nodes import make_blocks
from tests.publishers.data import needs_real_blocks, real_chain
from tests.publishers.fake_node import FakeNode, FakeStream, racing, running
from tests.publishers.node_thread import node_thread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL = MakerOptions(rounds_per_block=1, events_per_round=2, transactions_per_block=4, item_bytes=300)

SPARK_ERROR = """\
An error occurred while calling o66.save.
: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed. SQLSTATE: 58030
Traceback (most recent call last):
  File "x.py", line 1, in f
gateway.errors.BlockRefused: a cause
Traceback (most recent call last):
publishers.errors.PublishFailed: publisher x: block 5 was refused SQLSTATE: 38000
\tat org.apache.spark.Task.run(Task.scala:147)
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (SPARK_ERROR, "publisher x: block 5 was refused"),
        (
            "An error occurred while calling o1.save.\n: java.lang.Error: no space\n\tat x",
            "java.lang.Error: no space",
        ),
        ("something else\nmore", "something else"),
        ("", "no reason given"),
    ],
)
def test_the_line_that_matters_is_found(text: str, reason: str) -> None:
    assert reason_in(text) == reason


def test_a_report_is_complete_when_nobody_failed_and_nothing_is_open() -> None:
    done = PublishReport("a", blocks=2, acknowledged=1, duplicate=1)
    assert JobReport(0, 1, (done,), (), 1.0).is_complete
    assert not JobReport(0, 1, (PublishReport("a", blocks=2, acknowledged=1),), (), 1.0).is_complete


def test_a_head_that_nobody_tells_is_unreachable() -> None:
    with Head(["127.0.0.1:1"]) as head:
        assert head.ask() == (None, False)


def test_a_chain_with_a_gap_is_refused_before_spark_is_asked(tmp_path: Path) -> None:
    for block in BlockMaker(1, key_of_seed(1), SMALL).blocks(3):
        if block.number != 1:
            write_block_file(tmp_path / f"{block.number}.blk", block)
    with pytest.raises(BlockListError, match="block 1 is missing"):
        publish(None, tmp_path, ["127.0.0.1:1"])  # type: ignore[arg-type]


@pytest.mark.spark
def test_three_publishers_race_and_every_block_is_stored_once(spark: SparkSession, tmp_path: Path) -> None:
    blocks = list(BlockMaker(1, key_of_seed(1), SMALL).blocks(200))
    for block in blocks:
        write_block_file(tmp_path / f"{block.number}.blk.zst", block)
    seen: list[JobProgress] = []
    with running(FakeNode(default=racing)) as node:
        report = publish(spark, tmp_path, [node.address], 3, deadline_seconds=60, on_progress=seen.append)
        again = publish(spark, tmp_path, [node.address], 1, publisher_prefix="again", deadline_seconds=60)
    assert report.is_complete, report.failures
    assert sorted(block.number for block in node.received) == list(range(200))
    assert sorted(node.received, key=lambda block: block.number) == blocks
    assert [published.publisher_id for published in report.publishers] == [
        "publisher-1",
        "publisher-2",
        "publisher-3",
    ]
    assert sum(published.won for published in report.publishers) <= 200
    for published in report.publishers:
        assert (published.blocks, published.unacknowledged, published.safe_through) == (200, 0, 199)
    assert max(progress.ready for progress in seen) == 3
    assert seen[-1].running == 0
    (published,) = again.publishers
    assert (again.is_complete, published.duplicate, published.won) == (True, 200, 0)


@pytest.mark.spark
@needs_real_blocks
@pytest.mark.parametrize("chain", ["signed-chain", "record-file-chain"])
def test_real_chains_arrive_byte_for_byte(spark: SparkSession, chain: str) -> None:
    with running(FakeNode()) as node:
        report = publish(spark, real_chain(chain), [node.address], deadline_seconds=60)
    assert report.is_complete, report.failures
    assert node.received == list(read_chain(real_chain(chain)))


@pytest.mark.spark
def test_a_refused_block_fails_with_one_line_and_the_others_go_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    for block in BlockMaker(1, key_of_seed(1), SMALL).blocks(3):
        write_block_file(tmp_path / f"{block.number}.blk", block)

    async def refuse(stream: FakeStream) -> None:
        if stream.publisher_id == "publisher-2":
            block = await stream.block()
            await stream.end("BAD_BLOCK_PROOF", 2**64 - 1, proximate=block.number)
            await stream.drain()
            return
        for number in range(3):
            await stream.block()
            await stream.acknowledge(number)

    with running(FakeNode(default=refuse)) as node:
        report = publish(spark, tmp_path, [node.address], 2, deadline_seconds=60)
    assert not report.is_complete
    (failure,) = report.failures
    assert failure.publisher_id == "publisher-2"
    assert failure.reason.startswith("block 0 was refused 3 times with BAD_BLOCK_PROOF: its proof is not of ")
    (published,) = report.publishers
    assert (published.publisher_id, published.won) == ("publisher-1", 3)


@pytest.mark.spark
def test_gateways_may_ask_for_certificates(spark: SparkSession, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, alice = authority.issue("localhost"), authority.issue("alice")
    for block in make_blocks(3):
        write_block_file(tmp_path / f"{block.number}.blk", block)
    settings = {
        "grpc_tls_certificate": server.certificate,
        "grpc_tls_key": server.key,
        "grpc_tls_client_ca": authority.path,
        "publish_allowed_subjects": ("CN=alice",),
    }
    with node_thread(tmp_path / "data", **settings) as node:
        gateways = [f"localhost:{node.grpc_address.port}"]
        report = publish(spark, tmp_path, gateways, deadline_seconds=30, tls=authority.client(alice))
        assert report.is_complete
        assert node.ledger.last_number == 2
