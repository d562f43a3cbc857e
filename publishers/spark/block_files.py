"""The Spark source `blockfiles`: a folder of block files as rows, one per block; batch and streaming.

    spark.read.format("blockfiles").load("chain/")
    spark.readStream.format("blockfiles").load("chain/")

    option            meaning                                                             default
    path              the folder (what `load` is given); a URL of an object store, too    needed
    from              the first block to read                                             the first there is
    to                the last block to read                                              the last there is
    partitions        parts of about as many consecutive blocks                           the processors
    decode            `blocks`, or `hashes`: a row has the root hash and the links of its  blocks
                      block, as `root_hashes` gives them, and no items
    check             `true`: a block that no gateway would take (structure, root hash,    false
                      links within the partition) is like a damaged file
    mode              `failfast`: a damaged file is an error; `permissive`: it is a row    failfast
                      without a block whose column `_corrupt` says why
    blocks_per_batch  streaming: blocks in one batch at most                              1000

A partition holds consecutive blocks in order. Batch: a missing number is an error that names it, before
anything is read. Streaming: a missing number is waited for, and what comes after it waits with it; the offset
is a block number. A damaged file that was changed a moment ago is being written, and is waited for, too.
What is checked or hashed here need not be in another process: Spark would carry each block
to it, through the JVM.
Source: design.md, "Spark".
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from gateway.errors import ItemError
from gateway.items import ItemKind, kind_of
from publishers.block_check import BlockCheck
from publishers.block_files import check_no_gaps
from publishers.errors import BadBlock, BlockFileError, BlockListError, PrepareError
from publishers.limits import (
    ARROW_BATCH_HASHES,
    BLOCKS_PER_BATCH_DEFAULT,
    FILE_LOOK_SECONDS,
    FILE_WRITE_SECONDS_MAX,
    PARTITIONS_MAX,
)
from publishers.linking import summary_of
from publishers.number_range import NUMBER_MAX, NumberRange, cut_evenly
from publishers.spark.batches import row_batches
from publishers.spark.block_rows import root_row
from publishers.spark.folders import BlockFolder, folder_of
from publishers.spark.number_stream import NumberStreamReader
from publishers.spark.options import block_bounds, check_known, flag, one_of, whole_number
from publishers.spark.schema import (
    BLOCK_COLUMNS,
    BLOCK_NUMBER,
    CORRUPT,
    ITEMS,
    ROOT_COLUMNS,
    columns_of,
    spark_schema,
)

__all__ = [
    "BlockFilesDataSource",
    "BlockFilesReader",
    "BlockFilesStreamReader",
    "FileOptions",
    "FileRange",
    "folder_of",
]

_KNOWN: Final = frozenset(("path", "from", "to", "partitions", "decode", "check", "mode", "blocks_per_batch"))
_COLUMNS: Final = {"blocks": BLOCK_COLUMNS, "hashes": ROOT_COLUMNS}
"""The columns of each `decode`."""
_MODES: Final = ("failfast", "permissive")


@dataclass(frozen=True)
class FileOptions:
    """The source's options, read and checked."""

    folder: BlockFolder
    first_block: int | None
    """Where to begin; None: with the first there is."""
    last_block: int | None
    """Where to end; None: with the last there is."""
    partition_count: int
    """At most so many partitions."""
    decode: str
    """`blocks` or `hashes`."""
    is_checked: bool
    """Whether blocks are checked as gateways do, but for their proofs."""
    is_permissive: bool
    """Whether a damaged file is a row, not an error."""
    blocks_per_batch: int

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> FileOptions:
        """Read what Spark was given.

        Raises:
            OptionError: naming the option, what it was, and what it may be.
        """
        check_known(options, _KNOWN)
        first, last = block_bounds(options)
        return cls(
            folder=BlockFolder(options.get("path", "")),
            first_block=first,
            last_block=last,
            partition_count=whole_number(options, "partitions", os.cpu_count() or 1, 1, PARTITIONS_MAX),
            decode=one_of(options, "decode", "blocks", tuple(_COLUMNS)),
            is_checked=flag(options, "check"),
            is_permissive=one_of(options, "mode", "failfast", _MODES) == "permissive",
            blocks_per_batch=whole_number(
                options, "blocks_per_batch", BLOCKS_PER_BATCH_DEFAULT, 1, NUMBER_MAX
            ),
        )

    @property
    def numbers(self) -> NumberRange:
        """The blocks to read, as far as options say."""
        end = None if self.last_block is None else self.last_block + 1
        return NumberRange(self.first_block or 0, end)

    @property
    def columns(self) -> dict[str, pa.DataType]:
        """The columns that the source has."""
        columns = dict(_COLUMNS[self.decode])
        if self.is_permissive:
            columns[CORRUPT] = pa.string()
        return columns


@dataclass
class FileRange(InputPartition):
    """One partition: numbers and paths of block files, by number."""

    files: tuple[tuple[int, str], ...]


class BlockFilesDataSource(DataSource):
    """Spark's handle of the source; the module's docstring has the options."""

    @classmethod
    def name(cls) -> str:
        """Give the format's name."""
        return "blockfiles"

    def schema(self) -> StructType:
        """Give the columns."""
        return spark_schema(FileOptions.parse(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Make the reader of a batch."""
        options = FileOptions.parse(self.options)
        return BlockFilesReader(options, columns_of(schema, options.columns))

    def streamReader(self, schema: StructType) -> BlockFilesStreamReader:
        """Make the reader of a stream."""
        options = FileOptions.parse(self.options)
        return BlockFilesStreamReader(options, columns_of(schema, options.columns))


class BlockFilesReader(DataSourceReader):
    """Plans the partitions on the driver and reads them on the workers.

    Args:
        options: of the source.
        columns: that are wanted. Files are not opened when only their numbers are.
    """

    def __init__(self, options: FileOptions, columns: Mapping[str, pa.DataType]) -> None:
        self._options = options
        self._columns = dict(columns)
        self._numbers = options.numbers

    def partitions(self) -> Sequence[InputPartition]:
        """Cut the chain into ranges of about the same number of blocks.

        Raises:
            BlockListError: the folder has no blocks, a number twice, or a gap in what is to be read.
        """
        listed = self._options.folder.files()
        files = [file for file in listed if file[0] in self._numbers]
        if files or not listed:
            check_no_gaps(self._options.folder.path, files)
        self._check_ends(files)
        # Spark reads a partition of its own making when there is none.
        return _ranges(files, self._options.partition_count) or [FileRange(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range as Arrow batches, bounded in rows and bytes."""
        return _row_batches(self._options, self._columns, partition, is_stream=False)

    def _check_ends(self, files: list[tuple[int, str]]) -> None:
        """Check that the blocks that `from` and `to` name are there."""
        there = {files[0][0], files[-1][0]} if files else set()
        for number in (self._options.first_block, self._options.last_block):
            if number is not None and number in self._numbers and number not in there:
                raise BlockListError(self._options.folder.path, f"block {number} is missing")


class BlockFilesStreamReader(NumberStreamReader):
    """Follows a folder: blocks in order of number, as soon as all before them are there.

    Args:
        options: of the source.
        columns: that are wanted.
    """

    def __init__(self, options: FileOptions, columns: Mapping[str, pa.DataType]) -> None:
        super().__init__(options.blocks_per_batch)
        self._options = options
        self._columns = dict(columns)

    def first_number(self) -> int | None:
        """Give `from`, else the lowest number there is."""
        if self._options.first_block is not None:
            return self._options.first_block
        files = self._options.folder.files()
        return files[0][0] if files else None

    def end_number(self, following: int) -> int:
        """Look how far the files go without a gap."""
        end = following
        for number, _ in self._options.folder.files():
            if number == end and number in self._options.numbers:
                end += 1
        return end

    def available_end(self) -> int:
        """Give the number after the highest; files of blocks that were read before may be gone."""
        return max((number + 1 for number, _ in self._options.folder.files()), default=0)

    def cut(self, first: int, end: int) -> Sequence[InputPartition]:
        """Cut a range that was complete when its end was looked for.

        Raises:
            BlockListError: a file has gone since; without its block the batch would count as read.
        """
        files = [file for file in self._options.folder.files() if first <= file[0] < end]
        check_no_gaps(self._options.folder.path, files)
        for number in (first, end - 1):
            if number not in (files[0][0], files[-1][0]):
                raise BlockListError(self._options.folder.path, f"block {number} is missing")
        return _ranges(files, self._options.partition_count)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range as Arrow batches, bounded in rows and bytes."""
        return _row_batches(self._options, self._columns, partition, is_stream=True)


def _ranges(files: list[tuple[int, str]], count: int) -> list[FileRange]:
    return [FileRange(tuple(files[start:end])) for start, end in cut_evenly(0, len(files), count)]


def _row_batches(
    options: FileOptions, columns: Mapping[str, pa.DataType], partition: InputPartition, *, is_stream: bool
) -> Iterator[pa.RecordBatch]:
    """Read one range as Arrow batches, bounded in rows and bytes."""
    assert isinstance(partition, FileRange)
    rows_max = ARROW_BATCH_HASHES if options.decode == "hashes" else None
    return row_batches(_rows(options, columns, partition, is_stream), columns, rows_max)


def _rows(
    options: FileOptions, columns: Mapping[str, pa.DataType], partition: FileRange, is_stream: bool
) -> Iterator[dict[str, Any]]:
    if set(columns) == {BLOCK_NUMBER}:
        yield from ({BLOCK_NUMBER: number} for number, _ in partition.files)
        return
    check = BlockCheck() if options.is_checked else None
    for number, path in partition.files:
        if is_stream:
            _await_whole(options.folder, path)
        try:
            row = _row(options, check, path)
        except BlockFileError as error:
            if not options.is_permissive:
                raise
            row = {BLOCK_NUMBER: number, CORRUPT: str(error)}
        yield row


def _await_whole(folder: BlockFolder, path: str) -> None:
    """Wait for a file that is being written, until it holds a whole block or is left alone."""
    give_up_at = time.monotonic() + FILE_WRITE_SECONDS_MAX
    while folder.is_being_written(path) and time.monotonic() < give_up_at:
        with suppress(BlockFileError, ItemError):
            # What is cut off between two items can be read all the same; the proofs come last.
            if kind_of(folder.read(path).items[-1]) == ItemKind.BLOCK_PROOF:
                return
        time.sleep(FILE_LOOK_SECONDS)


def _row(options: FileOptions, check: BlockCheck | None, path: str) -> dict[str, Any]:
    """Read one block, check or hash it as far as that is wanted, and give its row."""
    block = options.folder.read(path)
    try:
        summary = None if check is None else check.check(block)
        if options.decode == "blocks":
            return {BLOCK_NUMBER: block.number, ITEMS: block.items}
        return root_row(summary or summary_of(block.number, block.items))
    except (BadBlock, PrepareError) as error:
        raise BlockFileError(path, f"bad block: {error.reason}") from error
