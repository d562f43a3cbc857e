"""A streaming query from block files to a node, and what a node has back to files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from publishers.block_files import write_block_file
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

    def follow(gateway: str, checkpoint: str) -> None:
        blocks = spark.readStream.format("blockfiles").option("blocks_per_batch", 4).load(str(chain))
        query = (
            blocks.writeStream.format("blockstream")
            .option("gateways", gateway)
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    with node_thread(tmp_path / "node") as node:
        gateway = str(node.grpc_address)
        for count in (5, 12):
            for block in BLOCKS[:count]:
                write_block_file(chain / f"{block.number}.blk", block)
            follow(gateway, "checkpoint")
            assert node.ledger.last_number == count - 1
        follow(gateway, "another")
        assert node.ledger.last_number == 11
        rows = spark.read.format("blockstream").option("gateways", gateway).load().collect()
    read = [(row["block_number"], tuple(bytes(item) for item in row["items"])) for row in rows]
    assert sorted(read) == [(block.number, block.items) for block in BLOCKS]
