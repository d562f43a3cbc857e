"""Spark finds the data source `blockfiles` by the name of this module, without `register`. docs/spark.md."""

from sluice.publishers.spark.by_name import source_named

DefaultSource = source_named("blockfiles", "sluice.publishers.spark.block_files", "BlockFilesDataSource")
