"""Publishers on a Spark cluster whose executors, workers and drivers die: real processes, on one machine.

In each case every node has every block once in the end, in the same bytes, and no process is left.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

from tests.interop.sinking import (
    Driver,
    Gateway,
    SparkCluster,
    check_reports,
    check_whole,
    gateways,
    spark_cluster,
    wait_until,
    write_chain,
)
from tests.interop.test_publish_command import Command, started
from tests.nodes import make_blocks

COUNT = 160
BLOCKS = make_blocks(COUNT)
RATE = 40
"""Blocks a second: each kill is to come in mid-publish."""
SMALL = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("java"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with spark_cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chain(tmp_path_factory.mktemp("chain") / "blocks", BLOCKS)


def addresses(nodes: Sequence[Gateway]) -> str:
    return ",".join(f"{node.address}/1" for node in nodes)


def await_block(number: int, nodes: Sequence[Gateway], *publishing: Driver | Command) -> None:
    """Wait until a node has a block, while all who publish run."""

    def has_come() -> bool:
        assert all(one.is_running for one in publishing), "it has ended too early"
        return max(node.head for node in nodes) >= number

    wait_until(has_come, f"block {number}")


def await_executors(cluster: SparkCluster, count: int = 1) -> list[int]:
    wait_until(lambda: len(cluster.executors()) >= count, "executors")
    return sorted(cluster.executors())


def first_of(folder: Path) -> int | None:
    """Return the partition of the last task that an executor has begun."""
    begun = re.findall(r"Running task (\d+)\.\d+ in stage", (folder / "stderr").read_text())
    return int(begun[-1]) if begun else None


# --- jobs ---------------------------------------------------------------------------------------------------


def publishing(
    cluster: SparkCluster, folder: Path, chain: Path, nodes: Sequence[Gateway], **settings: str
) -> dict[str, Any]:
    """Orders for a driver that races two publishers in each of two parts."""
    return {
        "log_path": folder / "driver.log",
        "do": "publish",
        "master": cluster.master,
        "settings": SMALL | settings,
        "chain": str(chain),
        "partitions": 2,
        "gateways": addresses(nodes),
    }


def test_executors_that_are_killed(cluster: SparkCluster, chain: Path, tmp_path: Path) -> None:
    """Before the first block, in mid-block while the other one waits for its part, and before the end."""
    options = {"race": 2, "deadline_seconds": 240, "blocks_per_second": RATE}
    settings = {"spark.task.maxFailures": "9"}
    with gateways(tmp_path) as nodes:
        orders = publishing(cluster, tmp_path, chain, nodes, **settings)
        with Driver(**orders, options=options) as driver:
            cluster.kill_executor(await_executors(cluster)[0])
            for number in (COUNT // 4, COUNT // 2, COUNT - 8):
                await_block(number, nodes, driver)
                for executor in await_executors(cluster):
                    cluster.kill_executor(executor)
            reports = driver.reports()
        check_reports(reports)
        assert all("-attempt-" in report.publisher_id for report in reports), "each task was killed"
        check_whole(nodes, COUNT)
    cluster.await_empty()


def test_a_worker_that_is_lost_takes_its_slot_along(chain: Path, tmp_path: Path) -> None:
    """The only slot that is left is that of the task that waits for the lost one: it has to give it up."""
    options = {"race": 2, "deadline_seconds": 240, "blocks_per_second": RATE, "part_order_seconds": 5}
    with spark_cluster(tmp_path) as cluster, gateways(tmp_path) as nodes:
        with Driver(**publishing(cluster, tmp_path, chain, nodes), options=options) as driver:
            await_block(COUNT // 5, nodes, driver)
            (folder,) = [where for where in cluster.executors().values() if first_of(where) == 0]
            cluster.kill_worker(
                next(place for place in (0, 1) if cluster.work_folder(place) in folder.parents)
            )
            reports = driver.reports()
        check_reports(reports)
        assert {report.publisher_id for report in reports} == {
            *("spark-attempt-1.1", "spark-attempt-1.2"),
            *("spark-1-attempt-1.1", "spark-1-attempt-1.2"),
        }
        check_whole(nodes, COUNT)


def test_a_task_that_runs_twice_by_speculation(cluster: SparkCluster, chain: Path, tmp_path: Path) -> None:
    """When the first part is stored, its slot is free for a second attempt of the other one."""
    speculation = {
        "spark.speculation": "true",
        "spark.speculation.multiplier": "1.01",
        "spark.speculation.quantile": "0.1",
    }
    options = {"race": 2, "deadline_seconds": 240, "blocks_per_second": RATE / 2}
    before = set(cluster.folder.glob("work-*/*/*/stderr"))
    with gateways(tmp_path) as nodes:
        orders = publishing(cluster, tmp_path, chain, nodes, **speculation)
        with Driver(**orders, options=options) as driver:
            reports = driver.reports()
        logs = set(cluster.folder.glob("work-*/*/*/stderr")) - before
        assert "Running task 1.1 in stage" in "".join(log.read_text() for log in logs)
        check_reports(reports)
        check_whole(nodes, COUNT)
    cluster.await_empty()


# --- queries ------------------------------------------------------------------------------------------------


def following(
    cluster: SparkCluster, log_path: Path, live: Path, checkpoint: Path, nodes: Sequence[Gateway]
) -> Driver:
    """Start a query with one of the cluster's two slots."""
    return Driver(
        log_path,
        do="follow",
        master=cluster.master,
        settings=SMALL | {"spark.cores.max": "1"},
        chain=str(live),
        checkpoint=str(checkpoint),
        gateways=addresses(nodes),
        max_blocks_per_trigger=20,
    )


def test_two_queries_that_race_while_executors_and_a_driver_die(
    cluster: SparkCluster, tmp_path: Path
) -> None:
    live, states = write_chain(tmp_path / "live", BLOCKS[:1]), [tmp_path / "state-a", tmp_path / "state-b"]
    logs = [tmp_path / "driver-a.log", tmp_path / "driver-b.log"]
    with gateways(tmp_path) as nodes, following(cluster, logs[0], live, states[0], nodes) as first:
        with following(cluster, logs[1], live, states[1], nodes) as doomed:
            write_chain(live, BLOCKS[1 : COUNT // 2])
            await_block(COUNT // 4, nodes, first, doomed)
            for executor in await_executors(cluster, 2):
                cluster.kill_executor(executor)
            await_block(COUNT // 2 - 8, nodes, first, doomed)
        with following(cluster, logs[1], live, states[1], nodes) as again:
            write_chain(live, BLOCKS[COUNT // 2 :])
            for state in states:
                wait_until(lambda: committed(state) == COUNT, f"the end of {state.name}")  # noqa: B023
            for driver in (first, again):
                driver.end_input()
                driver.answer()
        check_whole(nodes, COUNT)
    cluster.await_empty()


def committed(checkpoint: Path) -> int:
    """Return the number after the last block of a query's finished batches."""
    batches = [int(path.name) for path in checkpoint.glob("commits/[0-9]*")]
    if not batches:
        return 0
    last: int = json.loads((checkpoint / "offsets" / str(max(batches))).read_text().splitlines()[2])["next"]
    return last


def test_two_queries_on_one_checkpoint(cluster: SparkCluster, tmp_path: Path) -> None:
    """Spark fails one of them by name, as soon as both are to note a batch; the other one goes on."""
    live, state = write_chain(tmp_path / "live", BLOCKS[:1]), tmp_path / "state"
    with (
        gateways(tmp_path) as nodes,
        following(cluster, tmp_path / "a.log", live, state, nodes) as one,
        following(cluster, tmp_path / "b.log", live, state, nodes) as other,
    ):
        for number in range(1, COUNT):
            write_chain(live, BLOCKS[number : number + 1])
            wait_until(lambda: max(node.head for node in nodes) >= number, f"block {number}")  # noqa: B023
            if not (one.is_running and other.is_running):
                break
        lost, left = (other, one) if one.is_running else (one, other)
        assert left.is_running
        assert re.search("Multiple streaming (queries|jobs)", lost.log), lost.log[-4000:]
        write_chain(live, BLOCKS)
        wait_until(lambda: committed(state) == COUNT, "the end")
        left.end_input()
        left.answer()
        check_whole(nodes, COUNT)
    cluster.await_empty()


# --- the command --------------------------------------------------------------------------------------------


def test_the_command_follows_on_a_cluster(cluster: SparkCluster, tmp_path: Path) -> None:
    """Executors die; the command dies, with two publishers; the same command goes on, and ends."""
    live = write_chain(tmp_path / "live", BLOCKS[: COUNT // 2])
    settings = SMALL | {"spark.driver.host": "127.0.0.1"}
    with gateways(tmp_path) as nodes:
        words = (
            *("--source", live, "--follow", "--checkpoint", tmp_path / "state", "--to", COUNT - 1, "--json"),
            *("--gateway", addresses(nodes), "--publishers", 2, "--rate", RATE, "--master", cluster.master),
            *("--option", "max_blocks_per_trigger=25", "--option", "partitions=1"),
            *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
        )
        with started(*words) as command:
            cluster.kill_executor(await_executors(cluster)[0])
            await_block(COUNT // 8, nodes, command)
            cluster.kill_executor(await_executors(cluster)[0])
            await_block(COUNT // 4, nodes, command)
            os.killpg(command.process.pid, signal.SIGKILL)
            command.ended()
        cluster.await_empty()
        write_chain(live, BLOCKS)
        with started(*words) as command:
            await_block(COUNT * 5 // 8, nodes, command)
            cluster.kill_executor(await_executors(cluster)[0])
            status, out, err = command.ended()
        assert status == 0, err
        said = json.loads(out)
        assert (said["complete"], said["failures"]) == (True, [])
        assert [row["safe_through"] for row in said["publishers"]] == [COUNT - 1, COUNT - 1]
        check_whole(nodes, COUNT)
    cluster.await_empty()
