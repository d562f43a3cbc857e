"""Spark finds the data source `datastream` by the name of this module, without `register`. docs/spark.md."""

from sluice.publishers.spark.by_name import source_named

DefaultSource = source_named("datastream", "sluice.publishers.spark.data_stream", "DataStreamDataSource")
