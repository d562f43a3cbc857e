"""The Spark source `blockfiles`: blocks in files and archives as rows, one per block; batch and streaming.

A partition holds consecutive blocks in order, and reads only its own members of an archive. In a batch a
missing number is an error before anything is read. A stream waits for it (`number_stream`); its offset is a
block number.

Checking and hashing here saves a process: Spark would carry each block to it through the JVM. What only
writing needs is imported when it writes: each task is a new process that imports this module.
Source: docs/spark.md, "Sources", "Block files".
"""

from __future__ import annotations

import os
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
from sluice.publishers.blocks.block_items import block_time_ns
from sluice.publishers.blocks.block_places import (
    FILE_LOOK_SECONDS,
    FILE_WRITE_SECONDS_MAX,
    BlockFileReader,
    BlockPlace,
    FileStore,
    check_no_gaps,
    missing_before,
    read_if_whole,
)
from sluice.publishers.blocks.place_runs import PlaceRun, places_of, runs_of
from sluice.publishers.errors import BadBlock, BlockFileError, BlockListError, PrepareError, PublisherError
from sluice.publishers.number_range import cut_by_weight, first_at
from sluice.publishers.rows.decodes import DECODES, table_batches
from sluice.publishers.rows.table import BlockView, Table
from sluice.publishers.spark.batches import row_batches
from sluice.publishers.spark.listed_places import ListedPlaces
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
from sluice.publishers.spark.source_options import FileOptions, TimeBounds

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
_BLOCK_BYTES: Final = 16_384  # what a block costs beside its bytes
_SIZES_LOOKED_AT: Final = 5_000  # in a plan: a hundred thousand take most of a second


@dataclass
class FileRange(InputPartition):
    """One partition: the places of its blocks, as runs."""

    runs: tuple[PlaceRun, ...] = ()

    @property
    def places(self) -> Iterator[BlockPlace]:
        """The places, by number."""
        return places_of(self.runs)


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
            BlockFileError: a block whose time is asked for cannot be read.
        """
        places = self._options.folders.blocks(self._numbers)
        bounds = self._options.times
        if bounds != TimeBounds():
            places = places[slice(*_within(self._options, bounds, places))]
        if places or not self._options.folders.blocks():
            check_no_gaps(self._options.folders.path, places)
        self._check_ends(places)
        # Without a partition Spark would make one itself.
        return _ranges(self._options, places) or [FileRange()]

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
        options.times.check_endless()
        super().__init__(options.max_blocks_per_trigger)
        self._options = options
        self._columns = dict(columns)
        self._listed = ListedPlaces(options.folders, options.numbers)

    def first_number(self) -> int | None:
        """Return `from`, the first block of the starting time, or the lowest number there is."""
        if self._options.first_block is not None:
            return self._options.first_block
        first = self._listed.first()
        if first is None or self._options.times.first is None:
            return first
        places = self._listed.between(first, self._listed.end_of_run(first))
        at, _ = _within(self._options, self._options.times, places)
        return first + at

    def end_number(self, following: int) -> int:
        """Return how far the files go without a gap; if gaps do not matter, how far they go."""
        end = self._listed.end_of_run(following)
        if end == following and not self._options.fail_on_data_loss:
            return max(following, self._listed.known_end())
        return end

    def available_end(self) -> int:
        """Return the number after the highest: files of blocks that were read may be gone."""
        return self._listed.after_all()

    def gap(self, following: int) -> tuple[PublisherError, int] | None:
        """See `NumberStreamReader`."""
        later = self._listed.next_one(following)
        if later is None or later.number == following:
            return None
        where = self._options.folders.path
        return missing_before(where, following, later), later.number - following

    def bounded(self, first: int, end: int) -> int:
        """Return where `max_bytes_per_trigger` ends a batch, after one block at least."""
        bytes_max = self._options.max_bytes_per_trigger
        if bytes_max is None:
            return end
        size_bytes = 0
        store = self._options.folders.store()
        for place in self._listed.between(first, end):
            size_bytes += _stored_bytes(store, place)
            if size_bytes > bytes_max and place.number > first:
                return place.number
        return end

    def latest_end(self) -> int | None:
        """See `NumberStreamReader`."""
        return self._listed.known_end() or None

    def cut(self, first: int, end: int) -> Sequence[InputPartition]:
        """Cut a range that had no gap when `end_number` was called.

        Raises:
            BlockListError: a file has gone since; the batch would count as read without its block.
        """
        places = self._listed.between(first, end)
        if not self._options.folders.is_remote and not all(map(_is_there, places)):
            places = self._listed.between(first, end, again=True)  # a block node has put it into a zip
        if not self._options.fail_on_data_loss:
            return _ranges(self._options, places) or [FileRange()]
        where = self._options.folders.path
        check_no_gaps(where, places)
        for number in (first, end - 1):
            if number not in (places[0].number, places[-1].number):
                raise BlockListError(where, f"block {number} is missing")
        return _ranges(self._options, places)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range as Arrow batches."""
        return _row_batches(self._options, self._columns, partition, is_stream=True)


def _is_there(place: BlockPlace) -> bool:
    return os.path.lexists(place.path)


def _within(options: FileOptions, bounds: TimeBounds, places: Sequence[BlockPlace]) -> tuple[int, int]:
    """Return which of some places, in order, have blocks of the wanted times; reads a few of them."""
    with options.folders.reader() as reader:

        def time_at(index: int) -> int:
            return block_time_ns(reader.read(places[index]).items[0])

        start = 0 if bounds.first is None else first_at(0, len(places), bounds.first, time_at)
        end = len(places) if bounds.end is None else first_at(start, len(places), bounds.end, time_at)
        return start, end


def _columns(options: FileOptions) -> dict[str, pa.DataType]:
    """Return the columns of the source: names and Arrow types."""
    columns = dict(block_columns(options.decode))
    if options.is_permissive:
        columns[CORRUPT] = pa.string()
    return columns


def _ranges(options: FileOptions, places: Sequence[BlockPlace]) -> list[FileRange]:
    cuts = cut_by_weight(_weights(options, places), options.partition_count)
    return [FileRange(runs_of(places[start:end])) for start, end in cuts]


def _weights(options: FileOptions, places: Sequence[BlockPlace]) -> list[int]:
    """Return about what each block costs. Of many files some are looked at, which stand for those behind."""
    if options.partition_count == 1:
        return [1] * len(places)
    store = options.folders.store()
    # In a bucket, asking for each size would cost more than it gains.
    step = 0 if options.folders.is_remote else max(1, len(places) // _SIZES_LOOKED_AT)
    weights: list[int] = []
    last = _BLOCK_BYTES
    for at, place in enumerate(places):
        if place.entry >= 0:
            weights.append(_BLOCK_BYTES + place.size_bytes)
            continue
        if step and at % step == 0:
            last = _BLOCK_BYTES + _stored_bytes(store, place)
        weights.append(last)
    return weights


def _stored_bytes(store: FileStore, place: BlockPlace) -> int:
    if place.entry >= 0:
        return place.size_bytes
    with suppress(OSError):  # `read` says what is wrong
        return store.state(place.path).size_bytes
    return 0


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
