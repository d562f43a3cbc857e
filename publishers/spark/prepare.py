"""Blocks prepared in parallel: root hashes, links, signatures; DataFrames of blocks in and out.

Tasks hash all of each block but its links, which leaves 200 bytes a block (`blocks.linking`). One task
computes links and root hashes from these, in order of number. Tasks then make footers and signatures in
parallel. Everything is lazy, and no block passes through the driver. Spark reads the DataFrame twice:
`persist()` it if that is expensive, and always if it may differ each time.

Results are in no order. Source: docs/spark-prepare.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from sluice.gateway.blocks.root_hash import RootLayout
from sluice.publishers.blocks.block_items import proof_item
from sluice.publishers.blocks.linking import (
    ChainStart,
    Linker,
    LinkPath,
    Links,
    open_block,
    sign_block,
    summary_of,
)
from sluice.publishers.blocks.signing_key import KeyPlace
from sluice.publishers.errors import PrepareError
from sluice.publishers.limits import ARROW_BATCH_HASHES, ARROW_BATCH_ROWS
from sluice.publishers.spark.batches import root_row, row_batches, rows_in
from sluice.publishers.spark.options import check_root_layout
from sluice.publishers.spark.schema import (
    ALL_BLOCKS,
    BLOCK_COLUMNS,
    BLOCK_NUMBER,
    ITEMS,
    PREVIOUS,
    ROOT,
    ROOT_COLUMNS,
    check_schema,
    spark_schema,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "chain_start",
    "link_and_sign_blocks",
    "link_blocks",
    "root_hashes",
    "sign_blocks",
]

_PATH: Final = "path"
_START: Final = "chain_start"
_NUMBER_OF_LINKS: Final = "number_of_links"

_PATH_COLUMNS: Final = {BLOCK_NUMBER: pa.int64(), _PATH: pa.binary()}
_LINK_COLUMNS: Final = {
    _NUMBER_OF_LINKS: pa.int64(),
    PREVIOUS: pa.binary(),
    ALL_BLOCKS: pa.binary(),
    ROOT: pa.binary(),
}

Rows = Iterable[Mapping[str, Any]]


def root_hashes(blocks: DataFrame, root_layout: RootLayout = "auto") -> DataFrame:
    """Compute the root hashes of blocks, without reading proofs.

    For block files, the option `decode=hashes` gives the same rows and moves no items between processes.

    Args:
        blocks: `block_number BIGINT, items ARRAY<BINARY>`; batch or streaming.
        root_layout: leaves of the top hash tree, 8 or 16; `auto` goes by the version in the header.

    Returns:
        A row for each block: block_number BIGINT, root_layout BIGINT (8 or 16), and BINARY of 48 bytes:
        root_hash, and the footer's links, previous_root_hash and all_blocks_root_hash.

    Raises:
        PrepareError: when the result is read: a block that no gateway would take.
    """
    check_root_layout(root_layout)
    return _mapped(blocks, partial(_hash_rows, root_layout), ROOT_COLUMNS, ARROW_BATCH_HASHES)


def chain_start(
    blocks: DataFrame, start: ChainStart | None = None, root_layout: RootLayout = "auto"
) -> ChainStart:
    """Check the links of a chain and return where it goes on; this runs a job.

    Args:
        blocks: all blocks from `start` on, with footers, in any order.
        start: where the chain begins; None: with block 0.
        root_layout: as in `root_hashes`.

    Returns:
        The `start` of `link_blocks` for the block after the last.

    Raises:
        PySparkException: with the text of a PrepareError, which names the block: a gap, a number twice, a
            wrong link.
    """
    begin = start or ChainStart()
    roots = _in_order(root_hashes(blocks, root_layout))
    rows = _mapped(
        roots, partial(_end_rows, begin), {_START: pa.string()}, ARROW_BATCH_HASHES, check=False
    ).collect()
    return ChainStart.from_json(rows[0][0]) if rows else begin


def link_blocks(
    blocks: DataFrame,
    start: ChainStart | None = None,
    root_layout: RootLayout = "auto",
    broadcast_links: bool = True,
) -> DataFrame:
    """Add the footers that make blocks one chain.

    It replaces an existing footer except for its state root, and drops proofs, which sign other root hashes.

    Args:
        blocks: `block_number BIGINT, items ARRAY<BINARY>`, in any order, with or without footer and proofs.
        start: where the chain goes on (`chain_start`); None: the first block is block 0.
        root_layout: as in `root_hashes`.
        broadcast_links: whether the links (some 200 bytes a block) go to every worker, through the driver;
            False: Spark shuffles both sides, for very long chains.

    Raises:
        PrepareError: the DataFrame is streaming. When the result is read, it names the block: a gap, a number
            twice, a first block that does not follow `start`, a block that no gateway would take.
    """
    return _linked(blocks, None, start, root_layout, broadcast_links)


def sign_blocks(
    blocks: DataFrame,
    key_file: str | os.PathLike[str] | None = None,
    key_env: str | None = None,
    root_layout: RootLayout = "auto",
) -> DataFrame:
    """Sign blocks: each gets one proof, an Ed25519 signature of its root hash, in place of its proofs.

    Args:
        blocks: `block_number BIGINT, items ARRAY<BINARY>`, with footers; batch or streaming.
        key_file: path of a key file (`sluice keygen`) that every worker has.
        key_env: environment variable of the workers with the text of such a file.
        root_layout: as in `root_hashes`; the blocks' links must have the same layout.

    Raises:
        OptionError: not exactly one of file and variable is given.
        KeyFileError, PrepareError: when the result is read: the key, or a block, cannot be used.
    """
    check_root_layout(root_layout)
    sign_rows = partial(_sign_rows, KeyPlace.parse(key_file, key_env), root_layout)
    return _mapped(blocks, sign_rows, BLOCK_COLUMNS)


def link_and_sign_blocks(
    blocks: DataFrame,
    key_file: str | os.PathLike[str] | None = None,
    key_env: str | None = None,
    start: ChainStart | None = None,
    root_layout: RootLayout = "auto",
    broadcast_links: bool = True,
) -> DataFrame:
    """Link and sign blocks as `link_blocks` and then `sign_blocks`, but hash each block once.

    Arguments and errors are those of the two functions.
    """
    return _linked(blocks, KeyPlace.parse(key_file, key_env), start, root_layout, broadcast_links)


def _linked(
    blocks: DataFrame,
    key_place: KeyPlace | None,
    start: ChainStart | None,
    root_layout: RootLayout,
    broadcast_links: bool,
) -> DataFrame:
    from pyspark.sql.functions import broadcast

    check_schema(blocks.schema)
    if blocks.isStreaming:
        reason = "a stream has no last block to link from; link each batch, in foreachBatch"
        raise PrepareError(None, reason)
    check_root_layout(root_layout)
    paths = _mapped(blocks, partial(_path_rows, root_layout), _PATH_COLUMNS, ARROW_BATCH_HASHES)
    link_rows = partial(_link_rows, start or ChainStart())
    links = _mapped(_in_order(paths), link_rows, _LINK_COLUMNS, ARROW_BATCH_HASHES, check=False)
    joined = blocks.select(BLOCK_NUMBER, ITEMS).join(
        broadcast(links) if broadcast_links else links,
        on=blocks[BLOCK_NUMBER] == links[_NUMBER_OF_LINKS],
    )
    return _mapped(joined, partial(_close_rows, key_place), BLOCK_COLUMNS, check=False)


def _in_order(rows: DataFrame) -> DataFrame:
    """Return all rows in one partition, sorted; Spark spills what does not fit in memory."""
    return rows.repartition(1).sortWithinPartitions(BLOCK_NUMBER)


def _mapped(
    frame: DataFrame,
    rows: Callable[[Rows], Iterator[dict[str, Any]]],
    columns: Mapping[str, pa.DataType],
    rows_max: int = ARROW_BATCH_ROWS,
    *,
    check: bool = True,
) -> DataFrame:
    """Run a function over rows, as Arrow batches; with `check` they are blocks."""
    if check:
        check_schema(frame.schema)
        frame = frame.select(BLOCK_NUMBER, ITEMS)
    return frame.mapInArrow(partial(_map_batches, rows, columns, rows_max), spark_schema(columns))


def _map_batches(
    rows: Callable[[Rows], Iterator[dict[str, Any]]],
    columns: Mapping[str, pa.DataType],
    rows_max: int,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    return row_batches(rows(rows_in(batches, PrepareError)), columns, rows_max)


# --- what runs on the workers -------------------------------------------------------------------------------


def _hash_rows(root_layout: RootLayout, rows: Rows) -> Iterator[dict[str, Any]]:
    for row in rows:
        yield root_row(summary_of(row[BLOCK_NUMBER], row[ITEMS], root_layout))


def _path_rows(root_layout: RootLayout, rows: Rows) -> Iterator[dict[str, Any]]:
    for row in rows:
        path = open_block(row[BLOCK_NUMBER], row[ITEMS]).path(root_layout)
        yield {BLOCK_NUMBER: row[BLOCK_NUMBER], _PATH: path.to_bytes()}


def _link_rows(start: ChainStart, rows: Rows) -> Iterator[dict[str, Any]]:
    linker = Linker(start)
    for row in rows:
        links = linker.link(row[BLOCK_NUMBER], LinkPath.from_bytes(row[_PATH]))
        yield {
            _NUMBER_OF_LINKS: row[BLOCK_NUMBER],
            PREVIOUS: links.previous_root_hash,
            ALL_BLOCKS: links.all_blocks_root_hash,
            ROOT: links.root_hash,
        }


def _end_rows(start: ChainStart, rows: Rows) -> Iterator[dict[str, Any]]:
    linker = Linker(start)
    for row in rows:
        linker.follow(row[BLOCK_NUMBER], Links(row[PREVIOUS], row[ALL_BLOCKS], row[ROOT]))
    yield {_START: linker.end.to_json()}


def _close_rows(key_place: KeyPlace | None, rows: Rows) -> Iterator[dict[str, Any]]:
    key = None
    for row in rows:
        number = row[BLOCK_NUMBER]
        items = open_block(number, row[ITEMS]).closed(Links(row[PREVIOUS], row[ALL_BLOCKS], row[ROOT]))
        if key_place is not None:
            key = key or key_place.load()
            items = (*items, proof_item(number, key.sign(row[ROOT])))
        yield {BLOCK_NUMBER: number, ITEMS: items}


def _sign_rows(key_place: KeyPlace, root_layout: RootLayout, rows: Rows) -> Iterator[dict[str, Any]]:
    key = None
    for row in rows:
        key = key or key_place.load()
        items = sign_block(row[BLOCK_NUMBER], row[ITEMS], key, root_layout)
        yield {BLOCK_NUMBER: row[BLOCK_NUMBER], ITEMS: items}
