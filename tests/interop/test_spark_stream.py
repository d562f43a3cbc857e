"""A streaming query from block files to a node, and what a node has back to files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

from pyspark.sql.functions import count, max
from pyspark.sql.streaming.listener import StreamingQueryProgress

from sluice.publishers.blocks.block_files import write_block_file
from sluice.publishers.spark import read_totals
from tests.nodes import make_blocks
from tests.publishers.node_thread import node_thread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

BLOCKS = make_blocks(12)


def test_a_query_goes_on_from_its_checkpoint_and_without_one_passes_over_what_is_stored(
    spark: SparkSession, tmp_path: Path
) -> None:
    chain = tmp_path / "chain"
    chain.mkdir()

    def follow(gateway: str, checkpoint: str) -> list[StreamingQueryProgress]:
        blocks = spark.readStream.format("blockfiles").option("max_blocks_per_trigger", 6).load(str(chain))
        query = (
            blocks.observe("sent", count("*").alias("blocks"), max("block_number").alias("last"))
            .writeStream.format("blockstream")
            .queryName("follow")
            .option("gateways", gateway)
            .option("report_path", str(tmp_path))
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [progress for progress in query.recentProgress if progress.numInputRows]

    with node_thread(tmp_path / "node") as node:
        gateway = str(node.grpc_address)
        for block_count in (5, 12):
            for block in BLOCKS[:block_count]:
                write_block_file(chain / f"{block.number}.blk", block)
            batches = follow(gateway, "checkpoint")
            assert node.store.last_number == block_count - 1
            totals = read_totals(tmp_path)
            assert (totals.total.acknowledged, totals.total.safe_through) == (block_count, block_count - 1)
        # What Spark itself knows: the rows that go into the sink, not what comes of them.
        assert [progress.observedMetrics["sent"].asDict() for progress in batches] == [
            {"blocks": 6, "last": 10},
            {"blocks": 1, "last": 11},
        ]
        assert [progress.sink.numOutputRows for progress in batches] == [6, 1]
        follow(gateway, "another")
        assert None not in (totals.query_id, read_totals(tmp_path).query_id)
        assert read_totals(tmp_path).query_id != totals.query_id  # so that a batch of each number is added
        total = read_totals(tmp_path).total
        # Within the duplicate window a stored block is skipped and acknowledged, before it a duplicate.
        assert (total.acknowledged + total.duplicate, total.won) == (24, 12)
        assert total.acknowledged >= 12
        assert node.store.last_number == 11
        rows = spark.read.format("blockstream").option("gateways", gateway).load().collect()
    read = [(row["block_number"], tuple(bytes(item) for item in row["items"])) for row in rows]
    assert sorted(read) == [(block.number, block.items) for block in BLOCKS]
