"""Spark finds the data source `blockstream` by the name of this module, without `register`. docs/spark.md."""

from sluice.publishers.spark.by_name import source_named

DefaultSource = source_named("blockstream", "sluice.publishers.spark.block_stream", "BlockStreamDataSource")
