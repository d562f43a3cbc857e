"""A Spark driver that does what its one argument says, a JSON object; `sinking.Driver` starts it.

{"do": "publish", "master", "settings", "chain", "partitions", "gateways", "options", "seed"}
    publish a folder of block files, with a sink whose tasks are killed at random if there is a seed;
    write a line for each report
{"do": "follow", "master", "settings", "chain", "gateways", "checkpoint", "max_blocks_per_trigger"}
    publish what comes into a folder until standard input ends, or the query fails
{"do": "round-trip", "master", "settings", "chain", "partitions", "gateways", "options", "copy"}
    publish, and write what the gateway has into another folder
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from sluice.gateway.blocks.block import Block
from sluice.publishers.blocks.block_files import write_block_file
from sluice.publishers.spark import publish, publishing
from sluice.publishers.spark.block_sink import published_rows
from sluice.publishers.spark.failures import is_passing
from sluice.publishers.spark.session import build_session

__all__ = ["copy_blocks", "main", "start_query"]

_HURT_ATTEMPTS = 3
"""Attempts of a task that may be hurt."""
_QUERY_STARTS = 5
"""Of one query: on a machine that has no time, Spark gives up on its own Python."""
_HURT_BATCHES = 8
"""Batches that a task may take before it is hurt; chance decides how many it has sent."""


class TaskKilledByTest(Exception):
    """The error that fails a task."""


def shaky_rows(
    seed: int, options: Mapping[str, str], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Publish one partition, as `published_rows`, in tasks that fail or are killed at random: it depends on
    seed, task and attempt.
    """
    context = TaskContext.get()
    assert context is not None
    chance = random.Random(f"{seed}/{context.partitionId()}/{context.attemptNumber()}")
    if context.attemptNumber() >= _HURT_ATTEMPTS:
        yield from published_rows(options, batches)
        return
    match chance.choice(("raise", "kill", "late", "nothing")):
        case "raise":
            yield from published_rows(options, _failing(batches, chance.randrange(_HURT_BATCHES)))
        case "kill":
            yield from published_rows(options, _dying(batches, chance.randrange(_HURT_BATCHES)))
        case "late":  # everything is published, but nobody learns of it
            list(published_rows(options, batches))
            raise TaskKilledByTest("after its last block")
        case _:
            yield from published_rows(options, batches)


def _dying(batches: Iterator[Any], count: int) -> Iterator[Any]:
    """Yield this many batches, and end the process silently."""
    yield from islice(batches, count)
    os.kill(os.getpid(), signal.SIGKILL)


def _failing(iterator: Iterator[Any], batch_count: int) -> Iterator[Any]:
    for place, batch in enumerate(iterator):
        if place == batch_count:
            raise TaskKilledByTest(f"before batch {place}")
        yield batch
    raise TaskKilledByTest("after its last batch")


def copy_blocks(frame: DataFrame, folder: Path) -> None:
    """Write the blocks of a DataFrame as files, from the workers, which see the same folder."""

    def write(rows: Iterable[Row]) -> None:
        for row in rows:
            block = Block(row["block_number"], tuple(map(bytes, row["items"])))
            write_block_file(folder / f"{block.number}.blk", block)

    frame.foreachPartition(write)


def _publish(spark: SparkSession, orders: dict[str, Any]) -> None:
    options = dict(orders.get("options", {}))
    if "seed" in orders:
        publishing.published_rows = partial(shaky_rows, orders["seed"])  # type: ignore[attr-defined]
    blocks = spark.read.format("blockfiles").option("partitions", orders["partitions"]).load(orders["chain"])
    for report in publish(blocks, orders["gateways"], **options):
        sys.stdout.write(report.to_json() + "\n")


def start_query(spark: SparkSession, orders: dict[str, Any]) -> StreamingQuery:
    """Start the query of `follow`."""
    source = spark.readStream.format("blockfiles").option(
        "max_blocks_per_trigger", orders["max_blocks_per_trigger"]
    )
    return (
        source.load(orders["chain"])
        .writeStream.format("blockstream")
        .option("gateways", orders["gateways"])
        .option("checkpointLocation", orders["checkpoint"])
        .start()
    )


def _follow(spark: SparkSession, orders: dict[str, Any]) -> None:
    is_over = threading.Event()

    def stop_at_end() -> None:
        sys.stdin.read()
        is_over.set()
        for query in spark.streams.active:
            query.stop()

    threading.Thread(target=stop_at_end, daemon=True).start()
    for starts_left in reversed(range(_QUERY_STARTS)):
        query = start_query(spark, orders)
        if is_over.is_set():
            query.stop()
        try:
            # It raises what the query failed with: whoever waits for its blocks is to know.
            query.awaitTermination()
            return
        except StreamingQueryException as error:
            if not starts_left or not is_passing(str(error)):
                raise


def _round_trip(spark: SparkSession, orders: dict[str, Any]) -> None:
    _publish(spark, orders)
    reader = spark.read.format("blockstream").option("gateways", orders["gateways"])
    copy_blocks(reader.option("partitions", orders["partitions"]).load(), Path(orders["copy"]))


def main(orders: dict[str, Any]) -> None:
    """Carry out the orders."""
    spark = build_session(orders["master"], app_name="driver", settings=orders.get("settings"))
    {"publish": _publish, "follow": _follow, "round-trip": _round_trip}[orders["do"]](spark, orders)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
