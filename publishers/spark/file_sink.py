"""The sink `blockfiles`: tasks write block files, and the driver makes the zips that no task has alone.

    rows of a partition ─► blocks ─► files, whole zips
                                     └── of other zips: staged blocks ─► the driver makes zips of them

Source: docs/spark.md, "Write block files".
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.errors import BlockRefused
from sluice.publishers.blocks.block_layouts import (
    STAGING,
    ZIP_DIGITS,
    BlockFormat,
    BlockLayout,
    check_format,
    default_format,
    zip_of,
)
from sluice.publishers.blocks.block_target import BlockTarget, TargetWriter, make_zips
from sluice.publishers.errors import FrameError, OptionError
from sluice.publishers.sources.chain_runs import named_numbers, runs_of
from sluice.publishers.spark.batches import rows_in
from sluice.publishers.spark.folders import target_of
from sluice.publishers.spark.option_types import BlockFilesSinkOptions, names_of
from sluice.publishers.spark.options import check_known, one_of
from sluice.publishers.spark.schema import BLOCK_NUMBER, ITEMS

__all__ = ["BlockFilesStreamWriter", "BlockFilesWriter", "BlocksWritten", "block_target"]

log = logging.getLogger(__name__)

_FORMATS: Final[dict[str, BlockFormat]] = {"none": "blk", "gzip": "blk.gz", "zstd": "blk.zstd"}
_ZIP_DIGITS: Final = {str(10**digits): digits for digits in range(1, 7)}
"""As block nodes allow them."""
_LAYOUTS: Final[dict[str, BlockLayout]] = {layout: layout for layout in get_args(BlockLayout)}


def block_target(options: Mapping[str, str], *, is_overwrite: bool) -> BlockTarget:
    """Return the target of the sink's options; raise OptionError, or BlockListError for an unknown store."""
    check_known(options, names_of(BlockFilesSinkOptions))
    word = one_of(options, "layout", tuple(_LAYOUTS))
    layout = _LAYOUTS["plain" if word is None else word]
    count = one_of(options, "blocks_per_archive", tuple(_ZIP_DIGITS))
    if count is not None and layout != "historic":
        raise OptionError("blocks_per_archive", f"{count} with layout {layout}", "it with layout historic")
    block_format = _format_of(options, layout)
    store, root = target_of(options.get("path", ""))
    # A batch has a job of its own. Of a query's two processes, both know the checkpoint.
    checkpoint = options.get("checkpointlocation")
    token = hashlib.sha256(checkpoint.encode()).hexdigest()[:16] if checkpoint else secrets.token_hex(8)
    return BlockTarget(
        store,
        root,
        layout,
        block_format,
        ZIP_DIGITS if count is None else _ZIP_DIGITS[count],
        is_overwrite,
        f".sluice-{token}",
    )


def _format_of(options: Mapping[str, str], layout: BlockLayout) -> BlockFormat:
    word = one_of(options, "compression", tuple(_FORMATS))
    if word is None:
        return default_format(layout)
    try:
        check_format(layout, _FORMATS[word])
    except OptionError as error:
        raise OptionError("compression", f"{word} ({_FORMATS[word]})", error.expected) from None
    return _FORMATS[word]


@dataclass
class BlocksWritten(WriterCommitMessage):
    """The message of a task to the driver."""

    first_block: int | None = None
    """The lowest number; None: it had no rows."""
    last_block: int | None = None
    zips: frozenset[str] = frozenset()
    staged: frozenset[str] = frozenset()
    """See `TargetWriter`."""


class BlockFilesWriter(DataSourceArrowWriter):
    """The writer of a batch."""

    def __init__(self, target: BlockTarget) -> None:
        self._target = target

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write the blocks of one task. Raises FrameError for a bad row, else as `TargetWriter.write`."""
        return _write(self._target, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make the zips whose blocks came to several tasks.

        Raises:
            FrameError: a zip has some blocks before and some after a missing one.
            BlockFileError, BlockListError: as `make_zips`.
        """
        written = [message for message in messages if isinstance(message, BlocksWritten)]
        waiting = _make_zips(self._target, written)
        firsts = [message.first_block for message in written if message.first_block is not None]
        lasts = [message.last_block for message in written if message.last_block is not None]
        for name, numbers in waiting.items():
            _, wanted = zip_of(numbers[0], self._target.zip_digits)
            inside = set(wanted) & set(range(max(min(firsts), wanted.start), min(max(lasts), wanted[-1])))
            if missing := runs_of(sorted(inside - set(numbers))):
                where = f"{self._target.path(name)} needs blocks {wanted.start} to {wanted[-1]}"
                remedy = f"its other blocks are in {self._target.path(STAGING)}; write the missing ones, too"
                raise FrameError(f"{named_numbers(missing)} missing: {where}", remedy)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove what is not whole. Files that are whole stay: the next run finds and keeps them."""
        self._target.clear()


class BlockFilesStreamWriter(DataSourceStreamArrowWriter):
    """The writer of a streaming query's batches; a batch that runs again changes nothing."""

    def __init__(self, target: BlockTarget) -> None:
        self._target = target

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write the blocks of one task; see `BlockFilesWriter`."""
        return _write(self._target, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Make the zips that are complete with this batch. Others wait for later ones."""
        _make_zips(self._target, [message for message in messages if isinstance(message, BlocksWritten)])

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Remove what is not whole."""
        self._target.clear()


def _write(target: BlockTarget, batches: Iterable[pa.RecordBatch]) -> BlocksWritten:
    first = last = None
    with TargetWriter(target, _local_folder()) as writer:
        for row in rows_in((batch.select([BLOCK_NUMBER, ITEMS]) for batch in batches), _refusal):
            number = row[BLOCK_NUMBER]
            writer.write(_block(number, row[ITEMS]))
            first = number if first is None else min(first, number)
            last = number if last is None else max(last, number)
    return BlocksWritten(first, last, frozenset(writer.zips), frozenset(writer.staged))


def _make_zips(target: BlockTarget, written: Iterable[BlocksWritten]) -> dict[str, list[int]]:
    zips = frozenset[str]().union(*(message.zips for message in written))
    staged = frozenset[str]().union(*(message.staged for message in written))
    waiting = make_zips(target, zips, staged, _local_folder())
    target.clear()
    if waiting:
        count, size = sum(map(len, waiting.values())), 10**target.zip_digits
        where = target.path(STAGING)
        log.info("%d blocks are in %s: a zip is written when its %d are there", count, where, size)
    return waiting


def _local_folder() -> str | None:
    """Return a folder of Spark's for temporary files, which it removes after a crash."""
    folder = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    return folder if folder and Path(folder).is_dir() else None


def _block(number: int, items: list[bytes]) -> Block:
    try:
        block = Block.from_items(items)
    except BlockRefused as error:
        raise _refusal(number, str(error)) from error
    if block.number != number:
        raise _refusal(number, f"the row has the items of block {block.number}")
    return block


def _refusal(number: int | None, reason: str) -> FrameError:
    what = reason if number is None else f"block {number}: {reason}"
    return FrameError(what, "every row is a block, with its number and all its items")
