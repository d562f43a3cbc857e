"""How long the parts of a chain may wait for their turn, by the task slots that a session has.

    slots     parts     a failed task is
    enough    any       tried again at once, in the slot that it had                   600 s
    too few   any       not tried again: the job fails, and the waiting ones with it   600 s
    too few   any       tried again when a slot is free, but those that wait for it     60 s
                        have them all, and go on only when it has gone on

Source: docs/spark.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from publishers.limits import TURN_SECONDS_CROWDED, TURN_SECONDS_DEFAULT
from publishers.spark.session import failures_allowed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["turn_seconds", "turn_seconds_for"]


def turn_seconds(part_count: int, slot_count: int, failures_max: int) -> float:
    """Decide how long a part waits for its turn without any progress of the gateways.

    Args:
        part_count: parts that are published at once, each a task.
        slot_count: tasks that can run at once.
        failures_max: of one task, with which the job fails.
    """
    is_crowded = part_count > slot_count and failures_max > 1
    return TURN_SECONDS_CROWDED if is_crowded else TURN_SECONDS_DEFAULT


def turn_seconds_for(spark: SparkSession, part_count: int) -> float:
    """Decide it for a session.

    A cluster that grows with its tasks gives a failed one a slot; a session over Spark Connect does not say
    what it has.
    """
    try:
        context = spark.sparkContext
    except Exception:  # Connect has an error of its own for it, which only exists where Connect is installed
        return TURN_SECONDS_DEFAULT
    settings = context.getConf()
    if settings.get("spark.dynamicAllocation.enabled") == "true":
        return TURN_SECONDS_DEFAULT
    cpus = int(settings.get("spark.task.cpus") or 1)
    failures_max = failures_allowed(str(context.master), settings.get("spark.task.maxFailures"))
    return turn_seconds(part_count, context.defaultParallelism // cpus, failures_max)
