"""A stopped or killed streaming query resumes from its checkpoint: exactly once.

SLUICE_LONG=1 restarts it ten times, after a kill and a stop in turn.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

from sluice.publishers.spark.failures import is_passing
from tests.interop.sink_driver import start_query
from tests.interop.sinking import Driver, Gateway, check_streams, gateways, wait_until, write_chain
from tests.nodes import make_blocks, stream_bytes
from tests.publishers.node_thread import store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONG = os.environ.get("SLUICE_LONG") == "1"
COUNT = 600 if LONG else 60
RESTARTS = 10 if LONG else 1
STARTS_MAX = 5
"""Of one query: on a machine that has no time, Spark gives up on its own Python."""

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(1800 if LONG else 600)]


def test_a_query_that_is_stopped_and_killed_publishes_each_block_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    chance = random.Random(5)
    blocks = make_blocks(COUNT)
    chain = tmp_path / "chain"
    write_chain(chain, blocks[:1])
    with gateways(tmp_path, 1) as (node,):
        orders: dict[str, Any] = {
            "chain": str(chain),
            "gateways": node.address,
            "checkpoint": str(tmp_path / "checkpoint"),
            "max_blocks_per_trigger": 30,
        }
        written = 1
        for restart in range(RESTARTS):
            goal = COUNT * (restart + 1) // (RESTARTS + 1)
            write_chain(chain, blocks[written:goal])
            written = goal
            # Somewhere in a batch: the last block of none is waited for.
            until = chance.randrange(node.head + 1, goal - 1)
            if restart % 2:
                stop_at(spark, orders, node, until)
            else:
                kill_at(tmp_path / "driver.log", orders, node, until)
        write_chain(chain, blocks[written:])
        stop_at(spark, orders, node, COUNT - 1)
        node.stop()
    check_streams(node.data_dir)
    store(tmp_path / "expected", blocks)
    assert stream_bytes(node.data_dir) == stream_bytes(tmp_path / "expected")


def kill_at(log_path: Path, orders: dict[str, Any], node: Gateway, number: int) -> None:
    """Run the query in a driver of its own until the node has a block, and kill it."""
    for _ in range(STARTS_MAX):
        log_path.unlink(missing_ok=True)
        with Driver(log_path, do="follow", master="local[2]", **orders) as driver:
            wait_until(lambda: node.head >= number or not driver.is_running, f"block {number}")
            if driver.is_running:
                return
            assert is_passing(driver.log), driver.log[-4000:]
    raise AssertionError(f"{STARTS_MAX} drivers ended before block {number}")


def stop_at(spark: SparkSession, orders: dict[str, Any], node: Gateway, number: int) -> None:
    """Run the query until the node has a block, and stop it."""
    for _ in range(STARTS_MAX):
        query = start_query(spark, orders)
        wait_until(lambda: node.head >= number or not query.isActive, f"block {number}")  # noqa: B023
        query.stop()
        error = query.exception()
        if error is None:
            return
        assert is_passing(str(error)), str(error)
    raise AssertionError(f"{STARTS_MAX} queries ended before block {number}")
