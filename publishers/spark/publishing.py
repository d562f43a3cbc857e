"""Publishes a DataFrame of blocks, whatever the order of its rows.

It reads the block numbers first, then partitions by range and sorts rows that are not in order or come from a
shuffle. Adaptive execution merges a shuffle's partitions by size: numbers alone may come in one partition and
whole blocks in several, in any order.

Of a source of ours it reads the numbers without the blocks. Another DataFrame it reads twice. Cache one that
is expensive, or may have other rows the second time.
Source: docs/spark.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import TaskContext
from pyspark.errors import PySparkException

from sluice.publishers.errors import FrameError, SparkJobFailed
from sluice.publishers.report import PublishReport, safe_through_of
from sluice.publishers.sources.chain_runs import ChainPlan, ChainRun, plan_chain, runs_of
from sluice.publishers.spark.block_sink import (
    REPORT_SCHEMA,
    make_report_folder,
    published_rows,
    say_what_is_safe,
    write_reports,
)
from sluice.publishers.spark.failures import reason_in
from sluice.publishers.spark.folders import folder_of
from sluice.publishers.spark.options import current_names, whole_argument
from sluice.publishers.spark.schema import BLOCK_NUMBER, ITEMS, check_schema
from sluice.publishers.spark.session import active_session, part_order_seconds_for, task_slots
from sluice.publishers.spark.sink_options import FORMER_NAMES, SinkOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["is_shuffled", "observed", "plan_frame", "publish", "reports_frame"]

_RUN_SCHEMA: Final = "partition INT, first BIGINT, last BIGINT"
_RUN_COLUMNS: Final = pa.schema([("partition", pa.int32()), ("first", pa.int64()), ("last", pa.int64())])
_NO_NUMBER: Final = -1
_REPORT_TYPES: Final = {
    "publisher_id": "STRING",
    "refused": "ARRAY<STRUCT<number BIGINT, code STRING, refused_count BIGINT>>",
    "latency_ns": "ARRAY<BIGINT>",
    "failure": "STRING",
    "trouble": "STRING",
}
"""The types of a report's fields that are no numbers."""
_OURS: Final = ("blockfiles", "blockstream", "datastream")
_SPARK_ERRORS: Final = (PySparkException, Py4JError)
"""PySpark (4.3) makes the second of a job that was cancelled, or a worker that crashed."""


def publish(
    blocks: DataFrame, gateways: str | Sequence[str], *, shards: int | None = None, **options: Any
) -> list[PublishReport]:
    """Publish all blocks of a DataFrame, and return when each is known to be stored.

    Args:
        blocks: `block_number BIGINT, items ARRAY<BINARY>`, in any order, perhaps with other columns.
        gateways: `host:port`, comma list or sequence, the preferred one first; as the option `gateways`.
        shards: parts that are prepared in parallel and published in order; None: the DataFrame's partitions.
        options: options of the sink (docs/spark.md), such as `race=3`; None leaves one out.

    Returns:
        A report of each publisher of each partition; none for a DataFrame without blocks.

    Raises:
        FrameError: a number is missing or repeated, or the DataFrame is streaming; nothing was published.
            Also if the last blocks were missing when the rows were read; those that came are stored.
        SparkJobFailed: a task gave up; it says why. Acknowledged blocks are stored; publish again to go on.
    """
    check_schema(blocks.schema)
    if blocks.isStreaming:
        remedy = 'write it with blocks.writeStream.format("blockstream")'
        raise FrameError("the DataFrame is a stream, which has no last block", remedy)
    if shards is not None:
        shards = whole_argument("shards", shards, 1)
    given = {name: _text(value) for name, value in options.items() if value is not None}
    texts = current_names(given, FORMER_NAMES)
    texts["gateways"] = gateways if isinstance(gateways, str) else ",".join(gateways)
    if "report_path" in texts:
        # The writer may have another working directory.
        texts["report_path"] = str(folder_of(texts["report_path"], "report_path").absolute())
    if (folder := SinkOptions.parse(texts).report_path) is not None:
        make_report_folder(folder)
    with active_session(blocks.sparkSession):
        return _publish(blocks.select(BLOCK_NUMBER, ITEMS), shards, texts)


def _publish(rows: DataFrame, shards: int | None, texts: dict[str, str]) -> list[PublishReport]:
    plan = plan_frame(rows)
    if plan is None:
        return []
    texts["first_block"] = str(plan.first_block)
    shuffled = is_shuffled(rows)
    parts = shards or plan.partition_count
    if shards is None and shuffled:  # whatever number of partitions the shuffle has left
        parts = min(parts, _slots(rows) or parts)
    count = min(parts, plan.block_count)
    # A waiting task holds a slot, which a failed task may need.
    texts.setdefault("part_order_seconds", str(part_order_seconds_for(rows.sparkSession, count)))
    if not plan.is_ordered or count != plan.partition_count or shuffled:
        rows = rows.repartitionByRange(count, BLOCK_NUMBER).sortWithinPartitions(BLOCK_NUMBER)
    options = SinkOptions.parse(texts)
    try:
        found = rows.mapInArrow(partial(published_rows, texts), REPORT_SCHEMA).collect()
    except _SPARK_ERRORS as error:
        say_what_is_safe(options, [])
        raise SparkJobFailed(reason_in(str(error))) from error
    reports = [PublishReport.from_json(row["report"]) for row in found]
    write_reports(options, reports)
    _check_all_came(plan, reports)
    return reports


def _slots(frame: DataFrame) -> int | None:
    """Return how many tasks run at once; None: over Spark Connect it is not known."""
    session = frame.sparkSession
    return None if getattr(session, "_jvm", None) is None else task_slots(session)


def _check_all_came(plan: ChainPlan, reports: list[PublishReport]) -> None:
    """Check that the second read had the last block, too; a gap fails the job by itself."""
    known = safe_through_of(reports)
    if known is None or known < plan.last_block:
        came = "no block" if known is None else f"only blocks up to {known}"
        reason = (
            f"block {plan.last_block} was there when the numbers were read, and {came} when the blocks were"
        )
        remedy = "the DataFrame had fewer rows the second time; cache it, and publish it again"
        raise FrameError(reason, remedy)


def observed(blocks: DataFrame, name: str = "blocks") -> DataFrame:
    """Count the blocks that pass, in the progress of a streaming query and for its listeners.

    `observedMetrics[name]` of a progress has `count`, `first_block`, `last_block`, and `bytes` of the items.
    """
    from pyspark.sql import functions as F

    size = F.aggregate(ITEMS, F.lit(0).cast("bigint"), lambda sum_, item: sum_ + F.octet_length(item))
    return blocks.observe(
        name,
        F.count(F.lit(1)).alias("count"),
        F.min(BLOCK_NUMBER).alias("first_block"),
        F.max(BLOCK_NUMBER).alias("last_block"),
        F.sum(size).alias("bytes"),
    )


def reports_frame(spark: SparkSession, reports: Sequence[PublishReport]) -> DataFrame:
    """Return reports as a DataFrame, a row each, its columns named as the fields of `PublishReport`.

    Refused blocks are an array of structs; times are nanoseconds.
    """
    types = {field.name: _REPORT_TYPES.get(field.name, "BIGINT") for field in fields(PublishReport)}
    schema = ", ".join(f"{name} {kind}" for name, kind in types.items())
    rows = [json.loads(report.to_json()) for report in reports]
    with active_session(spark):
        return spark.createDataFrame([tuple(row[name] for name in types) for row in rows], schema)


def plan_frame(blocks: DataFrame) -> ChainPlan | None:
    """Read only the block numbers of a DataFrame, and plan the chain; None: there are no rows.

    Raises:
        FrameError: the rows are no chain; it names the numbers.
        SparkJobFailed: the DataFrame cannot be read.
    """
    try:
        with active_session(blocks.sparkSession):
            rows = _numbers_of(blocks).mapInArrow(_runs_of_partition, _RUN_SCHEMA).collect()
    except _SPARK_ERRORS as error:
        raise SparkJobFailed(reason_in(str(error))) from error
    runs = [ChainRun(row["partition"], row["first"], row["last"]) for row in rows]
    if any(run.first < 0 for run in runs):
        raise FrameError("a row has no block_number, or a negative one", "every row is a block of a chain")
    return plan_chain(runs)


def _numbers_of(blocks: DataFrame) -> DataFrame:
    """Return the block numbers alone, of the same partitions.

    Spark tells a Python source no columns, so a `select` over it would read every block. A DataFrame that
    only selects columns of a source of ours is read anew from it with this column.
    """
    numbers = blocks.select(BLOCK_NUMBER)
    frame_in_jvm = getattr(blocks, "_jdf", None)
    if frame_in_jvm is None:
        return numbers
    node = frame_in_jvm.queryExecution().analyzed()
    while (kind := node.getClass().getSimpleName()) == "SubqueryAlias" or (
        kind == "Project" and _only_selects(node)
    ):
        node = node.child()
    if kind != "DataSourceV2Relation" or node.table().name() not in _OURS:
        return numbers
    options = node.options()
    given = {name: options.get(name) for name in options.keySet()}
    source = blocks.sparkSession.read.format(node.table().name()).options(**given)
    return source.schema(f"{BLOCK_NUMBER} BIGINT").load()


def _only_selects(project: Any) -> bool:
    """Return whether a node hands on columns as they are, the block number among them under its name."""
    columns = project.projectList()
    names = [columns.apply(at) for at in range(columns.size())]
    return all(one.getClass().getSimpleName() == "AttributeReference" for one in names)


def is_shuffled(frame: DataFrame) -> bool:
    """Return whether a DataFrame's partitions and order come from a shuffle, and so may differ each time.

    A cached DataFrame does not change. Over Spark Connect the result is True, as nothing is known.
    """
    frame_in_jvm = getattr(frame, "_jdf", None)
    if frame_in_jvm is None:
        return True
    nodes = [frame_in_jvm.queryExecution().executedPlan()]
    while nodes:
        node = nodes.pop()
        kind = node.getClass().getSimpleName()
        if kind.endswith("ExchangeExec") and not kind.startswith("Broadcast"):
            return True
        if kind == "AdaptiveSparkPlanExec":  # has no children, but an initial plan
            nodes.append(node.initialPlan())
        children = node.children()
        nodes += [children.apply(position) for position in range(children.size())]
    return False


def _runs_of_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    partition = 0 if context is None else context.partitionId()
    numbers = (
        _NO_NUMBER if number is None else number
        for batch in batches
        for number in batch.column(0).to_pylist()
    )
    runs = runs_of(numbers)
    columns = [[partition] * len(runs), [first for first, _ in runs], [last for _, last in runs]]
    yield pa.record_batch(columns, schema=_RUN_COLUMNS)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
