"""Spark data sources and sinks for blocks: `register(spark)` makes them known to a session.

    blockfiles    read: a folder of block files                        (block_files.py)
    blockstream   write: publish to gateways, acknowledged             (block_stream.py)

Between them: `block_number BIGINT, items ARRAY<BINARY>`, each item a serialized `BlockItem`.

    from publishers.spark import register
    register(spark)
    blocks = spark.read.format("blockfiles").option("partitions", 1).load("chain/")
    blocks.write.format("blockstream").option("gateways", "127.0.0.1:40840").mode("append").save()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make the data sources known to a session; again is harmless."""
    from publishers.spark.block_files import BlockFilesDataSource
    from publishers.spark.block_stream import BlockStreamDataSource
    from publishers.spark.data_stream import DataStreamDataSource

    for source in (BlockFilesDataSource, BlockStreamDataSource, DataStreamDataSource):
        spark.dataSource.register(source)
    # Off by default in Spark 4, and Spark refuses a source that can take filters while it is off.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
