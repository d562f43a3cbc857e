"""Blocks out of foreign records: any DataFrame with a binary payload and a time becomes a chain.

    records_to_blocks(events, payload="body", time="at", items_per_block=500)

Records are numbered in order of time, then of `order_by`, then of their payloads' bytes. Block N has the
records from N times `items_per_block` on; the last block may have fewer.

    time    a small job reads the times alone, for bounds that cut them into parts of about the same size
    part    each part is sorted; a record's number is its place there plus the count of the parts before
    block   the records of each block are gathered and wrapped (`publishers.blocks.block_items`)

One task sorts all records of the same time; Spark spills. Spark reads the DataFrame several times:
`persist()` it if that is expensive, and always if it may differ each time. Source: docs/spark-prepare.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from sluice.gateway.blocks.items import ItemKind
from sluice.publishers.blocks.block_items import check_item_kind, record_block
from sluice.publishers.blocks.linking import ChainStart
from sluice.publishers.errors import PrepareError, SchemaError
from sluice.publishers.spark.batches import row_batches
from sluice.publishers.spark.options import whole_argument
from sluice.publishers.spark.prepare import link_and_sign_blocks, link_blocks
from sluice.publishers.spark.schema import BLOCK_COLUMNS, BLOCK_NUMBER, BLOCK_SCHEMA, ITEMS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, DataFrame

__all__ = ["records_to_blocks", "records_to_signed_blocks"]

RECORDS_PER_BLOCK_DEFAULT: Final = 1_000
RECORDS_PER_BLOCK_MAX: Final = 1_000_000
"""Half the items that a gateway takes in a block; one task holds them in memory."""
RECORD_PARTS_MAX: Final = 256
"""Parts that records are sorted in; the expression that finds a record's part has a case for each."""
_BALANCE_ERROR: Final = 0.001
_MICROSECOND_NS: Final = 1_000

_PAYLOAD, _TIME, _PART, _INDEX = "payload", "time", "part", "index"
_PAYLOADS, _HAS_NO_TIME = "payloads", "has_no_time"


def records_to_blocks(
    records: DataFrame,
    payload: str = "payload",
    time: str = "time",
    items_per_block: int = RECORDS_PER_BLOCK_DEFAULT,
    order_by: Sequence[str] = (),
    item_kind: int = ItemKind.SIGNED_TRANSACTION,
    previous: ChainStart | None = None,
) -> DataFrame:
    """Make a chain of linked blocks out of records, not signed; this runs a small job over the times.

    Args:
        records: any DataFrame; only the named columns are read.
        payload: a BINARY column; each value is the content of an item.
        time: a TIMESTAMP column, or a BIGINT one with nanoseconds since 1970; a block has the time of its
            first record.
        items_per_block: 1 to 1,000,000.
        order_by: columns that order records of the same time, before their payloads do.
        item_kind: field number of the items in `BlockItem`; by default 4, signed transaction.
        previous: where the chain goes on (`chain_start`); None: it begins with block 0.

    Returns:
        `block_number BIGINT, items ARRAY<BINARY>`, in no order.

    Raises:
        PrepareError: the DataFrame is streaming. When the result is read, PrepareError or ItemTooLarge names
            the block: a null, a time before 1970, too many bytes.
    """
    return link_blocks(
        _bodies(records, payload, time, items_per_block, order_by, item_kind, previous), previous
    )


def records_to_signed_blocks(
    records: DataFrame,
    payload: str = "payload",
    time: str = "time",
    items_per_block: int = RECORDS_PER_BLOCK_DEFAULT,
    order_by: Sequence[str] = (),
    item_kind: int = ItemKind.SIGNED_TRANSACTION,
    previous: ChainStart | None = None,
    key_file: str | os.PathLike[str] | None = None,
    key_env: str | None = None,
) -> DataFrame:
    """Make a chain of linked and signed blocks out of records, with one proof each.

    Arguments and errors are those of `records_to_blocks` and `sign_blocks`.
    """
    bodies = _bodies(records, payload, time, items_per_block, order_by, item_kind, previous)
    return link_and_sign_blocks(bodies, key_file, key_env, previous)


def _bodies(
    records: DataFrame,
    payload: str,
    time: str,
    items_per_block: int,
    order_by: Sequence[str],
    item_kind: int,
    previous: ChainStart | None,
    *,
    parts_max: int = RECORD_PARTS_MAX,
) -> DataFrame:
    from pyspark.sql import functions as F

    items_per_block = whole_argument("items_per_block", items_per_block, 1, RECORDS_PER_BLOCK_MAX)
    check_item_kind(item_kind)
    if records.isStreaming:
        reason = "a stream has no last record; make blocks of each batch, in foreachBatch"
        raise PrepareError(None, reason)
    unit_ns = _check_columns(records, payload, time, order_by)
    ties = [f"tie_{index}" for index in range(len(order_by))]
    moment = F.unix_micros(records[time]) if unit_ns == _MICROSECOND_NS else records[time].cast("bigint")
    keyed = records.select(
        moment.alias(_TIME),
        records[payload].alias(_PAYLOAD),
        *(records[name].alias(tie) for name, tie in zip(order_by, ties, strict=True)),
    )
    numbered = _numbered(keyed, [_TIME, *ties, _PAYLOAD], parts_max)
    first_block = 0 if previous is None else previous.next_number
    blocks = (
        numbered.groupBy(F.expr(f"{_INDEX} div {items_per_block} + {first_block}").alias(BLOCK_NUMBER))
        .agg(
            F.min(_TIME).alias(_TIME),
            F.bool_or(F.col(_TIME).isNull()).alias(_HAS_NO_TIME),
            F.sort_array(F.collect_list(F.struct(_INDEX, _PAYLOAD))).alias(_PAYLOADS),
        )
        .select(BLOCK_NUMBER, _TIME, _HAS_NO_TIME, F.col(f"{_PAYLOADS}.{_PAYLOAD}").alias(_PAYLOADS))
    )
    return blocks.mapInArrow(partial(_wrap_batches, unit_ns, item_kind), BLOCK_SCHEMA)


def _check_columns(records: DataFrame, payload: str, time: str, order_by: Sequence[str]) -> int:
    """Check the columns; return the unit of the time's integers in nanoseconds."""
    types = {field.name: field.dataType.simpleString() for field in records.schema.fields}
    got = types.get(payload, "no such column")
    if got != "binary":
        raise SchemaError(payload, got, "BINARY")
    got = types.get(time, "no such column")
    if got not in ("timestamp", "bigint", "int"):
        raise SchemaError(time, got, "TIMESTAMP, or BIGINT with nanoseconds since 1970")
    for name in order_by:
        if name not in types:
            raise SchemaError(name, "no such column", "a column to order by")
    return _MICROSECOND_NS if got == "timestamp" else 1


def _numbered(keyed: DataFrame, order: Sequence[str], parts_max: int) -> DataFrame:
    """Number records in the order of some columns; the first is the time."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    shuffle_partitions = keyed.sparkSession.conf.get("spark.sql.shuffle.partitions") or "1"
    part_count = max(1, min(parts_max, int(shuffle_partitions)))
    shares = [part / part_count for part in range(1, part_count)]
    quantiles = keyed.approxQuantile(_TIME, shares, _BALANCE_ERROR) if shares else []
    bounds = sorted(set(map(int, quantiles)))
    parted = keyed.withColumn(_PART, _part_of(F.col(_TIME), bounds))
    counts = parted.groupBy(_PART).agg(F.count("*").alias("part_count"))
    # One row a part: this window is cheap.
    before = F.sum("part_count").over(Window.orderBy(_PART)) - F.col("part_count")
    offsets = counts.select(F.col(_PART).alias("offset_part"), before.alias("offset"))
    place = F.row_number().over(Window.partitionBy(_PART).orderBy(*order)) - 1
    return (
        parted.withColumn("place", place)
        .join(F.broadcast(offsets), F.col(_PART) == F.col("offset_part"))
        .select((F.col("offset") + F.col("place")).alias(_INDEX), _TIME, _PAYLOAD)
    )


def _part_of(moment: Column, bounds: Sequence[int], first_part: int = 0) -> Column:
    """Return the part of a time, by bisection: part P has the times from bound P - 1 to before bound P.

    A null is below everything, as in Spark's sort.
    """
    from pyspark.sql import functions as F

    if not bounds:
        return F.lit(first_part)
    middle = len(bounds) // 2
    lower = _part_of(moment, bounds[:middle], first_part)
    upper = _part_of(moment, bounds[middle + 1 :], first_part + middle + 1)
    return F.when(moment >= bounds[middle], upper).otherwise(lower)


def _wrap_batches(
    unit_ns: int, item_kind: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    return row_batches(_wrapped(unit_ns, item_kind, batches), BLOCK_COLUMNS)


def _wrapped(unit_ns: int, item_kind: int, batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        for row in batch.to_pylist():
            number = row[BLOCK_NUMBER]
            at_ns = None if row[_HAS_NO_TIME] else row[_TIME] * unit_ns
            yield {BLOCK_NUMBER: number, ITEMS: record_block(number, at_ns, row[_PAYLOADS], item_kind)}
