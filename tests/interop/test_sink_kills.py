"""The sink under kills: a gateway that dies and returns, tasks that fail, die and run twice.

In each case the job succeeds, and in the end every node has every block once, in the same bytes.
SLUICE_LONG=1 takes 5,000 blocks, and a cluster with speculation.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

from sluice.publishers.report import add_reports, by_publisher
from sluice.publishers.spark import publish
from tests.interop.sinking import (
    Driver,
    Gateway,
    check_reports,
    check_whole,
    gateways,
    spark_cluster,
    write_chain,
)
from tests.nodes import make_blocks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONG = os.environ.get("SLUICE_LONG") == "1"
COUNT = 5000 if LONG else 120
RETRIES = {"spark.task.maxFailures": "12"}

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(1800 if LONG else 600)]


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of COUNT block files."""
    return write_chain(tmp_path_factory.mktemp("sink") / "chain", make_blocks(COUNT))


def addresses(nodes: Sequence[Gateway]) -> str:
    """The nodes as the option `gateways`, all of the same priority."""
    return ",".join(f"{node.address}/1" for node in nodes)


def test_a_gateway_that_is_killed_in_mid_job_and_comes_back(
    spark: SparkSession, chain: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with gateways(tmp_path) as nodes, ThreadPoolExecutor(1) as threads:
        doomed, other = nodes

        def kill_and_start_again() -> int:
            doomed.await_head(COUNT // 5)
            doomed.kill()
            at = other.head
            other.await_head(COUNT // 2)
            doomed.start()
            return at

        script = threads.submit(kill_and_start_again)
        frame = spark.read.format("blockfiles").option("partitions", 3).load(str(chain))
        pace = {} if LONG else {"blocks_per_second": 30}  # three seconds are left to kill it
        reports = publish(frame, addresses(nodes), race=3, deadline_seconds=120, **pace)
        assert script.result() < COUNT - 1, "it was killed in mid-job"
        check_reports(reports)
        racers = by_publisher("spark", reports)
        assert [report.publisher_id for report in racers] == ["spark.1", "spark.2", "spark.3"]
        total = add_reports("all", racers)
        assert total.failovers >= 1
        record_property("total", str(total))
        check_whole(nodes, COUNT)


def test_tasks_that_fail_and_die_at_random(chain: Path, tmp_path: Path) -> None:
    seed = random.randrange(10**6) if LONG else 494  # its first attempts: killed, failed, and failed late
    with (
        gateways(tmp_path) as nodes,
        Driver(
            tmp_path / "driver.log",
            do="publish",
            master="local[3,12]",
            chain=str(chain),
            partitions=3,
            gateways=addresses(nodes),
            options={"race": 2, "deadline_seconds": 120},
            seed=seed,
        ) as driver,
    ):
        reports = driver.reports()
        assert LONG or all("-attempt-" in report.publisher_id for report in reports)
        check_reports(reports)
        check_whole(nodes, COUNT)


@pytest.mark.skipif(not LONG, reason="a cluster of five JVMs, for SLUICE_LONG=1")
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_speculative_tasks_on_a_cluster(chain: Path, tmp_path: Path, seed: int) -> None:
    speculation = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1",
        "spark.speculation.quantile": "0.1",
        "spark.speculation.minTaskRuntime": "100ms",
        "spark.executor.memory": "512m",
    }
    with (
        spark_cluster(tmp_path) as cluster,
        gateways(tmp_path) as nodes,
        Driver(
            tmp_path / "driver.log",
            do="publish",
            master=cluster.master,
            settings=RETRIES | speculation,
            chain=str(chain),
            partitions=8,
            gateways=addresses(nodes),
            options={"race": 3, "deadline_seconds": 120, "part_order_seconds": 10},
            seed=seed,
        ) as driver,
        ThreadPoolExecutor(1) as threads,
    ):

        def kill_and_start_again() -> None:
            nodes[0].await_head(COUNT // 3)
            nodes[0].kill()
            nodes[1].await_head(COUNT // 2)
            nodes[0].start()

        script = threads.submit(kill_and_start_again)
        check_reports(driver.reports())
        script.result()
        check_whole(nodes, COUNT)
