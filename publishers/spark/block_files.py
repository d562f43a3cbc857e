"""The Spark source `blockfiles`: a folder of block files as rows, one per block.

    spark.read.format("blockfiles").load("chain/")

    option       meaning                                             default
    path         the folder (what `load` is given)                   needed
    partitions   parts of about as many consecutive blocks           the machine's processors

A partition holds consecutive blocks in order. A missing number is an error that names it, before anything is
read; a damaged file is an error that names the file and the reason.
Source: design.md, "Spark".
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from gateway.block import Block
from publishers import limits
from publishers.block_files import check_no_gaps, list_block_files, read_block_file
from publishers.spark.options import whole_number
from publishers.spark.schema import ARROW_SCHEMA, BLOCK_SCHEMA

__all__ = ["BlockFilesDataSource", "BlockFilesReader", "FileRange", "folder_of"]

_PARTITIONS_MAX: Final = 1_000_000


@dataclass
class FileRange(InputPartition):
    """One partition: paths of block files, by number."""

    paths: tuple[str, ...]


class BlockFilesDataSource(DataSource):
    """Spark's handle of the source; the module's docstring has the options."""

    @classmethod
    def name(cls) -> str:
        """Give the format's name."""
        return "blockfiles"

    def schema(self) -> str:
        """Give the columns."""
        return BLOCK_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Make the reader; the schema is always ours."""
        default = os.cpu_count() or 1
        partitions = whole_number(self.options, "partitions", default, 1, _PARTITIONS_MAX)
        return BlockFilesReader(folder_of(self.options.get("path", "")), partitions)


class BlockFilesReader(DataSourceReader):
    """Plans the partitions on the driver and reads them on the workers."""

    def __init__(self, folder: Path, partition_count: int) -> None:
        """Name the folder.

        Args:
            folder: must be readable under the same path on every worker.
            partition_count: at most so many partitions.
        """
        self._folder = folder
        self._partition_count = partition_count

    def partitions(self) -> Sequence[InputPartition]:
        """Cut the chain into ranges of about the same number of blocks."""
        files = list_block_files(self._folder)
        check_no_gaps(self._folder, files)
        paths = [str(path) for _, path in files]
        count = min(self._partition_count, len(paths))
        cuts = [len(paths) * cut // count for cut in range(count + 1)]
        return [FileRange(tuple(paths[start:end])) for start, end in itertools.pairwise(cuts)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read one range as Arrow batches, bounded in rows and bytes."""
        assert isinstance(partition, FileRange)
        return _batches(read_block_file(Path(path)) for path in partition.paths)


def folder_of(path: str) -> Path:
    """Make a folder of what `load` was given: a path, or a file: URL."""
    parts = urlsplit(path)
    return Path(unquote(parts.path)) if parts.scheme == "file" else Path(path)


def _batches(blocks: Iterator[Block]) -> Iterator[pa.RecordBatch]:
    batch: list[Block] = []
    batch_bytes = 0
    for block in blocks:
        batch.append(block)
        batch_bytes += block.size_bytes
        if len(batch) == limits.ARROW_BATCH_ROWS or batch_bytes >= limits.ARROW_BATCH_BYTES:
            yield _batch_of(batch)
            batch, batch_bytes = [], 0
    if batch:
        yield _batch_of(batch)


def _batch_of(blocks: list[Block]) -> pa.RecordBatch:
    numbers = pa.array([block.number for block in blocks], pa.int64())
    items = pa.array([block.items for block in blocks], ARROW_SCHEMA.field("items").type)
    return pa.record_batch([numbers, items], schema=ARROW_SCHEMA)
