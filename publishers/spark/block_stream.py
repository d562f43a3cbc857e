"""The Spark source and sink `blockstream`: the blocks of gateways; batch and streaming.

Writing publishes (block_sink.py). Reading subscribes to committed blocks; when one gateway fails, the next
takes over. The streaming offset is a block number. A query with `from` `latest` asks for the latest block
once, when it begins; if a gateway has no block then, every block is later.
Source: docs/spark.md, "Sources", "Options of the sink"; docs/spec/wire.md section 2.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from sluice.publishers.blocks.block_items import block_time_ns
from sluice.publishers.errors import OptionError
from sluice.publishers.number_range import NumberRange, cut_evenly, first_at
from sluice.publishers.sources.block_gateways import HeldRange
from sluice.publishers.spark.batches import decoded_batches
from sluice.publishers.spark.block_sink import BlockStreamStreamWriter, BlockStreamWriter, make_report_folder
from sluice.publishers.spark.number_stream import NumberStreamReader
from sluice.publishers.spark.options import processor_count
from sluice.publishers.spark.schema import (
    block_columns,
    check_schema,
    columns_of,
    spark_schema,
)
from sluice.publishers.spark.sink_options import SinkOptions
from sluice.publishers.spark.source_options import FIRST, LATEST, SubscriptionOptions

__all__ = [
    "BlockRange",
    "BlockStreamDataSource",
    "BlockStreamReader",
    "SubscriptionReader",
]


@dataclass
class BlockRange(InputPartition):
    """A partition: blocks `first` to `end` - 1."""

    first: int
    end: int


class BlockStreamDataSource(DataSource):
    """The data source and sink `blockstream`."""

    @classmethod
    def name(cls) -> str:
        """Return `blockstream`."""
        return "blockstream"

    def schema(self) -> StructType:
        """Return the columns that `decode` asks for; raise OptionError."""
        return spark_schema(block_columns(SubscriptionOptions.parse(self.options).decode))

    def reader(self, schema: StructType) -> BlockStreamReader:
        """Return the reader of a batch; raise OptionError or SchemaError."""
        options = SubscriptionOptions.parse(self.options)
        return BlockStreamReader(options, columns_of(schema, block_columns(options.decode)))

    def streamReader(self, schema: StructType) -> SubscriptionReader:
        """Return the reader of a stream; raise as `reader`."""
        options = SubscriptionOptions.parse(self.options)
        return SubscriptionReader(options, columns_of(schema, block_columns(options.decode)))

    def writer(self, schema: StructType, overwrite: bool) -> BlockStreamWriter:
        """Return the writer of a batch.

        Raises:
            OptionError: also if `report_path` cannot be written to, or the mode is `overwrite`: a chain only
                grows.
            SchemaError: the DataFrame does not have the columns of blocks.
        """
        return BlockStreamWriter(self._checked_for_writing(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> BlockStreamStreamWriter:
        """Return the writer of a streaming query; raise as `writer`."""
        return BlockStreamStreamWriter(self._checked_for_writing(schema, overwrite))

    def _checked_for_writing(self, schema: StructType, overwrite: bool) -> SinkOptions:
        if overwrite:
            raise OptionError("mode", "overwrite", "append")
        check_schema(schema)
        options = SinkOptions.parse(self.options)
        if options.report_path is not None:
            make_report_folder(options.report_path)
        return options


class BlockStreamReader(DataSourceReader):
    """The reader of a batch: the blocks that gateways hold now."""

    def __init__(self, options: SubscriptionOptions, columns: Mapping[str, pa.DataType]) -> None:
        self._options = options
        self._columns = dict(columns)

    def partitions(self) -> Sequence[InputPartition]:
        """Cut the blocks into ranges; raise SourceUnreachable if no gateway answers."""
        held = self._options.held()
        begin, last = self._options.begin, self._options.last_block
        numbers = NumberRange()
        if isinstance(begin, int):
            numbers = numbers.narrowed(begin)
        elif held.first is not None:
            numbers = numbers.narrowed(held.first if begin == FIRST else (held.last or 0) + 1)
        if last is None:
            last = -1 if held.last is None else held.last
        times = self._options.times
        if times.first is not None:
            numbers = numbers.narrowed(_first_at(self._options, held, times.first))
        if times.end is not None:
            last = min(last, _first_at(self._options, held, times.end) - 1)
        end = numbers.narrowed(end=last + 1).end
        assert end is not None
        parts = cut_evenly(numbers.first, end, self._options.partition_count or processor_count())
        # Without a partition Spark would make one itself.
        return [BlockRange(*part) for part in parts] or [BlockRange(0, 0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range as Arrow batches."""
        return _batches(self._options, self._columns, partition)


class SubscriptionReader(NumberStreamReader):
    """The reader of a stream: the blocks that gateways commit."""

    def __init__(self, options: SubscriptionOptions, columns: Mapping[str, pa.DataType]) -> None:
        options.times.check_endless()
        super().__init__(options.max_blocks_per_trigger)
        self._options = options
        self._columns = dict(columns)
        self._promised_end = 0
        """The result of `available_end`, which must hold."""
        self._seen_end: int | None = None

    def first_number(self) -> int | None:
        """Return the block that a new query begins with; None: the gateway has none yet.

        Raises SourceUnreachable if no gateway named its latest block within the deadline.
        """
        if (time := self._options.times.first) is not None:
            return _first_at(self._options, self._options.connect().held_in_time("the latest block"), time)
        if self._options.begin != LATEST:
            return self.first_arrival()
        # Silence must not count as an empty gateway: the query would begin with the first block.
        held = self._options.connect().held_in_time("the latest block")
        return None if held.last is None else held.last + 1

    def first_arrival(self) -> int | None:
        """Return the first wanted block that is there; None: no gateway names it."""
        if isinstance(self._options.begin, int):
            return self._options.begin
        held = self._options.connect().held()
        return None if held is None else held.first

    def end_number(self, following: int) -> int:
        """Return how far the chain is; without an answer there is nothing new."""
        self._seen_end = max(following, self._promised_end, self._end_in(self._options.connect().held()))
        return self._seen_end

    def latest_end(self) -> int | None:
        """See `NumberStreamReader`."""
        return self._seen_end

    def available_end(self) -> int:
        """Return how far the chain is; raise SourceUnreachable if no gateway answers."""
        self._promised_end = self._end_in(self._options.held())
        return self._promised_end

    def cut(self, first: int, end: int) -> Sequence[InputPartition]:
        """Cut a range; each part is a subscription."""
        return [BlockRange(*part) for part in cut_evenly(first, end, self._options.partition_count or 1)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range as Arrow batches."""
        return _batches(self._options, self._columns, partition)

    def _end_in(self, held: HeldRange | None) -> int:
        if held is None or held.last is None:
            return 0
        last = held.last if self._options.last_block is None else min(held.last, self._options.last_block)
        return last + 1


def _first_at(options: SubscriptionOptions, held: HeldRange, time_ns: int) -> int:
    """Return the first held block of that time or later, or the one after the last; asks for a few."""
    if held.first is None or held.last is None:
        return 0
    gateways = options.connect()

    def time_of(number: int) -> int:
        (block,) = gateways.blocks(number, number)
        return block_time_ns(block.items[0])

    return first_at(held.first, held.last + 1, time_ns, time_of)


def _batches(
    options: SubscriptionOptions, columns: Mapping[str, pa.DataType], partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    assert isinstance(partition, BlockRange)
    if partition.end <= partition.first:
        return
    blocks = options.connect().blocks(partition.first, partition.end - 1)
    yield from decoded_batches(((block.number, block.items) for block in blocks), options.decode, columns)
