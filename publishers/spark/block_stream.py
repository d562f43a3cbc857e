"""The Spark source and sink `blockstream`: the blocks of gateways.

    blocks.write.format("blockstream").option("gateways", "a:40840,b:40840").mode("append").save()
    blocks.writeStream.format("blockstream").option("gateways", …).option("checkpointLocation", …).start()
    spark.read.format("blockstream").option("gateways", "a:40840,b:40840").load()
    spark.readStream.format("blockstream").option("gateways", "a:40840,b:40840").load()

Writing publishes: block_sink.py says what it promises, sink_options.py has the options. Reading subscribes:
block_subscription.py.
Source: docs/spark.md.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from publishers.errors import OptionError
from publishers.spark.block_sink import BlockStreamStreamWriter, BlockStreamWriter, make_report_folder
from publishers.spark.block_subscription import (
    BlockStreamReader,
    SubscriptionOptions,
    SubscriptionReader,
)
from publishers.spark.schema import BLOCK_COLUMNS, check_schema, columns_of, spark_schema
from publishers.spark.sink_options import SinkOptions

__all__ = ["BlockStreamDataSource"]


class BlockStreamDataSource(DataSource):
    """Spark's handle of source and sink."""

    @classmethod
    def name(cls) -> str:
        """Give the format's name."""
        return "blockstream"

    def schema(self) -> StructType:
        """Give the columns of reading."""
        return spark_schema(BLOCK_COLUMNS)

    def reader(self, schema: StructType) -> BlockStreamReader:
        """Make the reader of a batch."""
        return BlockStreamReader(SubscriptionOptions.parse(self.options), columns_of(schema, BLOCK_COLUMNS))

    def streamReader(self, schema: StructType) -> SubscriptionReader:
        """Make the reader of a stream."""
        return SubscriptionReader(SubscriptionOptions.parse(self.options), columns_of(schema, BLOCK_COLUMNS))

    def writer(self, schema: StructType, overwrite: bool) -> BlockStreamWriter:
        """Check options and columns on the driver, before any task.

        Raises:
            OptionError: an option is wrong, reports cannot be written where it says, or the mode is
                `overwrite`: a chain only grows.
            SchemaError: the DataFrame has other columns.
        """
        return BlockStreamWriter(self._checked_for_writing(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> BlockStreamStreamWriter:
        """Check options and columns on the driver, before any batch; as `writer`."""
        return BlockStreamStreamWriter(self._checked_for_writing(schema, overwrite))

    def _checked_for_writing(self, schema: StructType, overwrite: bool) -> SinkOptions:
        if overwrite:
            raise OptionError("mode", "overwrite", "append")
        check_schema(schema)
        options = SinkOptions.parse(self.options)
        if options.report_path is not None:
            make_report_folder(options.report_path)
        return options
