"""Blocks out of a network's stream: a DataFrame of entries becomes a chain of linked blocks.

    batch      a small job finds where blocks begin; tasks then wrap entries in parallel, gather each block's,
               and link (`link_blocks`)
    streaming  one task takes the entries in order; its state is a `StreamPoint`: links, and the entries of
               the block that is not complete

Both make the same bytes. `blocks.stream_grouping` says which entries make a block.
Source: docs/spark.md, "The stream of a network".
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from sluice.publishers.blocks.block_items import SECOND_NS, header_item
from sluice.publishers.blocks.stream_grouping import (
    BlockPlan,
    GroupBy,
    Grouping,
    Mark,
    Segment,
    StreamBlocks,
    StreamPoint,
    entry_item,
    plan_blocks,
    segments_of,
)
from sluice.publishers.errors import OptionError, SchemaError, SparkJobFailed
from sluice.publishers.limits import ARROW_BATCH_HASHES, BLOCK_FILE_BYTES_MAX
from sluice.publishers.number_range import NUMBER_MAX
from sluice.publishers.spark.batches import row_batches
from sluice.publishers.spark.data_stream import (
    DATA,
    ENTRY_COLUMNS,
    ENTRY_NUMBER,
    ENTRY_TYPE,
)
from sluice.publishers.spark.failures import reason_in
from sluice.publishers.spark.options import whole_argument
from sluice.publishers.spark.prepare import link_blocks
from sluice.publishers.spark.schema import BLOCK_COLUMNS, BLOCK_NUMBER, BLOCK_SCHEMA, ITEMS, spark_schema
from sluice.publishers.spark.source_options import NetworkOptions, generation_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.state import GroupState

__all__ = ["entries_to_blocks", "plan_entries", "planned_blocks", "streamed_blocks"]

_SEGMENT_COLUMNS: Final[Mapping[str, pa.DataType]] = {name: pa.int64() for name in Segment._fields}
_ITEM: Final = "item"
_ITEM_COLUMNS: Final[Mapping[str, pa.DataType]] = {
    BLOCK_NUMBER: pa.int64(),
    ENTRY_NUMBER: pa.int64(),
    _ITEM: pa.binary(),
}
_ENTRIES, _CHAIN = "entries", "chain"
_POINT_SCHEMA: Final = "point BINARY"
_NO_NUMBER: Final = -1

Entries = Iterable[tuple[int, int, bytes]]


def entries_to_blocks(
    entries: DataFrame,
    group_by: GroupBy = "batch",
    *,
    generation: str = "auto",
    keep_incomplete: bool = False,
    max_block_bytes: int = BLOCK_FILE_BYTES_MAX,
) -> DataFrame:
    """Make a chain of linked blocks out of a network's entries, without proofs (`sign_blocks` adds them).

    Of a batch DataFrame this runs a small job, which finds where blocks begin.

    Args:
        entries: `entry_number BIGINT, entry_type BIGINT, data BINARY`, as the source `datastream` gives them:
            all from entry 0 on, in any order; batch or streaming.
        group_by: `batch`, `l2block`, `bookmark`, or a number of entries.
        generation: `network` or `original`, that of the events; `auto`: the bytes tell.
        keep_incomplete: whether the last block is there though the next one has not begun; only of a batch.
            With more entries it would be another block.
        max_block_bytes: the gateways' `publish.max_block_bytes`.

    Returns:
        `block_number BIGINT, items ARRAY<BINARY>`, in no order; of a stream in order.

    Raises:
        PrepareError: entries are missing or repeated, or make a block that no gateway takes. Of a stream, or
            of a batch that has other rows the second time, reading the result raises it.
        SparkJobFailed: the entries of a batch cannot be read, or no stream has one of them; it says why.
    """
    options = NetworkOptions(
        Grouping.parse(group_by, generation_of({"generation": generation})),
        keep_incomplete,
        whole_argument("max_block_bytes", max_block_bytes, 1),
    )
    if not entries.isStreaming:
        return planned_blocks(entries, plan_entries(entries, options))
    if keep_incomplete:
        raise OptionError("keep_incomplete", "True", "False for a stream, which has no last block")
    return streamed_blocks(entries, options)


def streamed_blocks(entries: DataFrame, options: NetworkOptions) -> DataFrame:
    """Return the linked blocks of a stream."""
    from pyspark.sql import functions as F
    from pyspark.sql.streaming.state import GroupStateTimeout

    take = partial(_take_entries, options.grouping, options.block_bytes_max)
    keyed = _checked(entries).withColumn(_CHAIN, F.lit(0))
    return keyed.groupBy(_CHAIN).applyInPandasWithState(
        take, BLOCK_SCHEMA, _POINT_SCHEMA, "append", GroupStateTimeout.NoTimeout
    )


def plan_entries(entries: DataFrame, options: NetworkOptions) -> BlockPlan:
    """Find the blocks of a batch; raise as `entries_to_blocks`."""
    grouping = options.grouping
    find = partial(_segment_batches, grouping)
    checked = _checked(entries)
    try:
        found = checked.mapInArrow(find, spark_schema(_SEGMENT_COLUMNS)).toArrow()
    except (PySparkException, Py4JError) as error:
        raise SparkJobFailed(reason_in(str(error))) from error
    columns = [column.to_pylist() for column in found.sort_by(Segment._fields[0]).columns]
    segments = (
        Segment(first, end, size_bytes, Mark(mark), value, seconds, bool(ends_with_bookmark))
        for first, end, size_bytes, mark, value, seconds, ends_with_bookmark in zip(*columns, strict=True)
    )
    return plan_blocks(
        grouping, segments, is_whole=options.keep_incomplete, block_bytes_max=options.block_bytes_max
    )


def planned_blocks(entries: DataFrame, plan: BlockPlan) -> DataFrame:
    """Return the linked blocks of a plan and its entries."""
    from pyspark.sql import functions as F

    items = _checked(entries).mapInArrow(partial(_item_batches, plan), spark_schema(_ITEM_COLUMNS))
    gathered = items.groupBy(BLOCK_NUMBER).agg(
        F.sort_array(F.collect_list(F.struct(ENTRY_NUMBER, _ITEM))).alias(_ENTRIES)
    )
    # The header comes first: its number is minus the count of entries.
    is_whole = F.col(_ENTRIES)[0][ENTRY_NUMBER] == 1 - F.size(_ENTRIES)
    changed = F.concat(
        F.lit("block "),
        F.col(BLOCK_NUMBER).cast("string"),
        F.lit(" has other entries than when its stream was read first; cache the DataFrame"),
    )
    whole = F.when(is_whole, F.col(f"{_ENTRIES}.{_ITEM}")).otherwise(F.raise_error(changed))
    return link_blocks(gathered.select(BLOCK_NUMBER, whole.alias(ITEMS)))


def _checked(entries: DataFrame) -> DataFrame:
    """Return the three columns; a null number or type is -1, which no entry has."""
    from pyspark.sql import functions as F

    types = {column.name: column.dataType.simpleString() for column in entries.schema.fields}
    for name, kinds in (
        (ENTRY_NUMBER, ("bigint", "int")),
        (ENTRY_TYPE, ("bigint", "int")),
        (DATA, ("binary",)),
    ):
        got = types.get(name, "no such column")
        if got not in kinds:
            raise SchemaError(name, got, kinds[0].upper())
    whole = [
        F.coalesce(entries[name].cast("bigint"), F.lit(_NO_NUMBER)).alias(name)
        for name in (ENTRY_NUMBER, ENTRY_TYPE)
    ]
    return entries.select(*whole, entries[DATA])


# --- what runs on the workers -------------------------------------------------------------------------------


def _entries_in(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, int, bytes]]:
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in ENTRY_COLUMNS]
        yield from zip(*columns, strict=True)


def _segment_batches(grouping: Grouping, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    segments = segments_of(grouping, _entries_in(batches))
    return row_batches(map(_segment_row, segments), _SEGMENT_COLUMNS, ARROW_BATCH_HASHES)


def _segment_row(segment: Segment) -> dict[str, Any]:
    row = segment._asdict() | {"ends_with_bookmark": int(segment.ends_with_bookmark)}
    if segment.value is not None and segment.value > NUMBER_MAX:
        row["value"] = None  # no column holds it
    return row


def _item_batches(plan: BlockPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return row_batches(_item_rows(plan, _entries_in(batches)), _ITEM_COLUMNS, ARROW_BATCH_HASHES)


def _item_rows(plan: BlockPlan, entries: Entries) -> Iterator[dict[str, Any]]:
    for number, entry_type, data in entries:
        if number >= plan.end:  # of the block that is not complete
            continue
        item = entry_item(number, entry_type, data)
        block = bisect_right(plan.starts, number) - 1
        if number == plan.starts[block]:
            header = header_item(block, plan.seconds[block] * SECOND_NS)
            yield {BLOCK_NUMBER: block, ENTRY_NUMBER: -plan.entry_count(block), _ITEM: header}
        yield {BLOCK_NUMBER: block, ENTRY_NUMBER: number, _ITEM: item}


def _take_entries(
    grouping: Grouping,
    block_bytes_max: int,
    key: tuple[Any, ...],
    frames: Iterator[Any],
    state: GroupState,
) -> Iterator[Any]:
    point = StreamPoint.from_bytes(bytes(state.get[0])) if state.exists else None
    maker = StreamBlocks(grouping, point, block_bytes_max=block_bytes_max)
    next_entry = 0 if point is None else point.next_entry
    blocks = (maker.feed(*entry) for entry in _in_order(frames, next_entry))
    rows = ({BLOCK_NUMBER: block.number, ITEMS: block.items} for block in blocks if block is not None)
    for batch in row_batches(rows, BLOCK_COLUMNS):
        yield batch.to_pandas()
    state.update((maker.point.to_bytes(),))


def _in_order(frames: Iterable[Any], next_entry: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield the entries of frames by their numbers, and hold only those that came early.

    A gap, or a repeated number, stays; whoever takes the entries refuses it.
    """
    held: list[tuple[int, int, int, bytes]] = []
    for frame in frames:
        for number, entry_type, data in zip(*(frame[name].tolist() for name in ENTRY_COLUMNS), strict=True):
            heapq.heappush(held, (number, len(held), entry_type, data))
            while held and held[0][0] <= next_entry:
                early, _, its_type, its_data = heapq.heappop(held)
                yield early, its_type, its_data
                next_entry = early + 1
    for number, _, entry_type, data in sorted(held):
        yield number, entry_type, data
