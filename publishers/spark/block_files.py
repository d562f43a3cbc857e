"""The Spark source `blockfiles`: blocks in files and archives as rows, one per block; batch and streaming.

A partition holds consecutive blocks in order, and reads only its own members of an archive. In a batch a
missing number is an error before anything is read. A stream waits for it; its offset is a block number.

Checking and hashing here saves a process: Spark would carry each block to it through the JVM. What only
writing needs is imported when it writes: each task is a new process that imports this module.
Source: docs/spark.md, "Sources", "Block files".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.errors import ItemError
from sluice.gateway.blocks.root_hash import BlockSummary
from sluice.publishers.blocks.block_check import OfferCheck
from sluice.publishers.blocks.block_places import (
    FILE_LOOK_SECONDS,
    FILE_WRITE_SECONDS_MAX,
    BlockFileReader,
    BlockPlace,
    FileStore,
    check_no_gaps,
    read_if_whole,
)
from sluice.publishers.errors import BadBlock, BlockFileError, BlockListError, PrepareError
from sluice.publishers.number_range import NumberRange, cut_by_weight
from sluice.publishers.rows.decodes import DECODES, table_batches
from sluice.publishers.rows.table import BlockView, Table
from sluice.publishers.spark.batches import row_batches
from sluice.publishers.spark.number_stream import NumberStreamReader
from sluice.publishers.spark.schema import (
    BLOCK_NUMBER,
    CORRUPT,
    ITEMS,
    block_columns,
    check_schema,
    columns_of,
    spark_schema,
)
from sluice.publishers.spark.source_options import FileOptions

if TYPE_CHECKING:
    from sluice.publishers.spark.file_sink import BlockFilesStreamWriter, BlockFilesWriter

__all__ = [
    "BlockFilesDataSource",
    "BlockFilesReader",
    "BlockFilesStreamReader",
    "FileRange",
]

_ROW_A_BLOCK: Final = ("blocks", "hashes", "headers")
T = TypeVar("T")
_ALL: Final = NumberRange()
_BLOCK_BYTES: Final = 16_384  # what a block costs beside its bytes


@dataclass
class FileRange(InputPartition):
    """One partition: the places of its blocks, by number."""

    places: tuple[BlockPlace, ...]


class BlockFilesDataSource(DataSource):
    """The data source `blockfiles`; the sink is in `file_sink`."""

    @classmethod
    def name(cls) -> str:
        """Return `blockfiles`."""
        return "blockfiles"

    def schema(self) -> StructType:
        """Return the wanted columns; raise OptionError."""
        return spark_schema(_columns(FileOptions.parse(self.options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch; raise OptionError or SchemaError."""
        options = FileOptions.parse(self.options)
        return BlockFilesReader(options, columns_of(schema, _columns(options)))

    def streamReader(self, schema: StructType) -> BlockFilesStreamReader:
        """Return the reader of a stream; raise as `reader`."""
        options = FileOptions.parse(self.options)
        return BlockFilesStreamReader(options, columns_of(schema, _columns(options)))

    def writer(self, schema: StructType, overwrite: bool) -> BlockFilesWriter:
        """Return the writer of a batch; raise OptionError or SchemaError."""
        from sluice.publishers.spark.file_sink import BlockFilesWriter, block_target

        check_schema(schema)
        return BlockFilesWriter(block_target(self.options, is_overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> BlockFilesStreamWriter:
        """Return the writer of a streaming query; raise as `writer`."""
        from sluice.publishers.spark.file_sink import BlockFilesStreamWriter, block_target

        check_schema(schema)
        return BlockFilesStreamWriter(block_target(self.options, is_overwrite=overwrite))


class BlockFilesReader(DataSourceReader):
    """The reader of a batch: plans partitions on the driver, and reads them on the workers.

    If `columns` has only the number, it opens no file.
    """

    def __init__(self, options: FileOptions, columns: Mapping[str, pa.DataType]) -> None:
        self._options = options
        self._columns = dict(columns)
        self._numbers = options.numbers

    def partitions(self) -> Sequence[InputPartition]:
        """Cut the chain into ranges of about the same size in bytes.

        Raises:
            BlockListError: there are no blocks, two of one number, or a gap.
        """
        places = self._options.folders.blocks(self._numbers)
        if places or not self._options.folders.blocks():
            check_no_gaps(self._options.folders.path, places)
        self._check_ends(places)
        # Without a partition Spark would make one itself.
        return _ranges(self._options, places) or [FileRange(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range as Arrow batches."""
        return _row_batches(self._options, self._columns, partition, is_stream=False)

    def _check_ends(self, places: list[BlockPlace]) -> None:
        there = {places[0].number, places[-1].number} if places else set()
        for number in (self._options.first_block, self._options.last_block):
            if number is not None and number in self._numbers and number not in there:
                raise BlockListError(self._options.folders.path, f"block {number} is missing")


class BlockFilesStreamReader(NumberStreamReader):
    """The reader of a stream: blocks in order of number, as soon as all before them are there."""

    def __init__(self, options: FileOptions, columns: Mapping[str, pa.DataType]) -> None:
        super().__init__(options.blocks_per_batch)
        self._options = options
        self._columns = dict(columns)

    def first_number(self) -> int | None:
        """Return `from`, or the lowest number there is."""
        if self._options.first_block is not None:
            return self._options.first_block
        places = self._places()
        return places[0].number if places else None

    def end_number(self, following: int) -> int:
        """Return how far the files go without a gap."""
        end = following
        for place in self._places(self._options.numbers.narrowed(following)):
            if place.number == end:
                end += 1
        return end

    def available_end(self) -> int:
        """Return the number after the highest: files of blocks that were read may be gone."""
        places = self._places()
        return places[-1].number + 1 if places else 0

    def cut(self, first: int, end: int) -> Sequence[InputPartition]:
        """Cut a range that had no gap when `end_number` was called.

        Raises:
            BlockListError: a file has gone since; the batch would count as read without its block.
        """
        places, where = self._places(NumberRange(first, end)), self._options.folders.path
        check_no_gaps(where, places)
        for number in (first, end - 1):
            if number not in (places[0].number, places[-1].number):
                raise BlockListError(where, f"block {number} is missing")
        return _ranges(self._options, places)

    def _places(self, numbers: NumberRange = _ALL) -> list[BlockPlace]:
        return self._options.folders.blocks(numbers, is_growing=True)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range as Arrow batches."""
        return _row_batches(self._options, self._columns, partition, is_stream=True)


def _columns(options: FileOptions) -> dict[str, pa.DataType]:
    """Return the columns of the source: names and Arrow types."""
    columns = dict(block_columns(options.decode))
    if options.is_permissive:
        columns[CORRUPT] = pa.string()
    return columns


def _ranges(options: FileOptions, places: Sequence[BlockPlace]) -> list[FileRange]:
    store = options.folders.store()

    def weight(place: BlockPlace) -> int:
        if place.entry >= 0:
            return _BLOCK_BYTES + place.size_bytes
        with suppress(OSError):  # `read` says what is wrong
            return _BLOCK_BYTES + store.state(place.path).size_bytes
        return _BLOCK_BYTES

    # In a bucket, asking for each size would cost more than it gains.
    weights = [
        _BLOCK_BYTES if options.folders.is_remote and place.entry < 0 else weight(place) for place in places
    ]
    cuts = cut_by_weight(weights, options.partition_count)
    return [FileRange(tuple(places[start:end])) for start, end in cuts]


def _row_batches(
    options: FileOptions, columns: Mapping[str, pa.DataType], partition: InputPartition, *, is_stream: bool
) -> Iterator[pa.RecordBatch]:
    assert isinstance(partition, FileRange)
    if set(columns) == {BLOCK_NUMBER} and options.decode in _ROW_A_BLOCK:
        return row_batches(({BLOCK_NUMBER: place.number} for place in partition.places), columns)
    if options.decode == "blocks":
        rows = _each(
            options,
            partition,
            lambda block, _: {BLOCK_NUMBER: block.number, ITEMS: block.items},
            lambda number, reason: {BLOCK_NUMBER: number, CORRUPT: reason},
            is_stream=is_stream,
        )
        return row_batches(rows, columns)
    table = DECODES[options.decode].table

    def opened(block: Block, summary: BlockSummary | None) -> tuple[Table, int]:
        return table(BlockView(block.number, block.items, summary), columns), block.size_bytes

    def corrupt(number: int, reason: str) -> tuple[Table, int]:
        return {BLOCK_NUMBER: [number], CORRUPT: [reason]}, len(reason)

    return table_batches(_each(options, partition, opened, corrupt, is_stream=is_stream), columns)


def _each(
    options: FileOptions,
    partition: FileRange,
    use: Callable[[Block, BlockSummary | None], T],
    refuse: Callable[[int, str], T],
    *,
    is_stream: bool,
) -> Iterator[T]:
    """Yield what `use` makes of each block, and `refuse` of the number of a damaged file and the reason."""
    check = OfferCheck() if options.is_checked else None
    with options.folders.reader() as reader:
        for place in partition.places:
            if is_stream and place.entry < 0:
                _await_whole(options.folders.store(), reader, place)
            try:
                used = _used(reader.read(place), place, check, use)
            except BlockFileError as error:
                if not options.is_permissive:
                    raise
                used = refuse(place.number, str(error))
            yield used


def _used(
    block: Block, place: BlockPlace, check: OfferCheck | None, use: Callable[[Block, BlockSummary | None], T]
) -> T:
    try:
        return use(block, None if check is None else check.check(block))
    except (BadBlock, PrepareError) as error:
        raise BlockFileError(str(place), f"bad block: {error.reason}") from error
    except ItemError as error:
        raise BlockFileError(str(place), f"bad block: {error}") from error


def _await_whole(store: FileStore, reader: BlockFileReader, place: BlockPlace) -> None:
    give_up_at = time.monotonic() + FILE_WRITE_SECONDS_MAX
    while store.is_being_written(place.path) and time.monotonic() < give_up_at:
        with suppress(BlockFileError):  # the caller reads it again, and says what is wrong
            if read_if_whole(store, reader, place) is not None:
                return
        time.sleep(FILE_LOOK_SECONDS)
