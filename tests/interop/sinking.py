"""Helpers for tests of the sink: gateways that die and return, Spark drivers in processes, and a local Spark
cluster.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

from click.testing import CliRunner

from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.stream_layout import BLOCK_END_TYPE
from sluice.gateway.commands import check
from sluice.publishers.blocks.block_files import write_block_file
from sluice.publishers.demo.node_process import NodeProcess, environment_without_settings
from sluice.publishers.report import PublishReport
from sluice.publishers.sources.block_gateways import BlockGateways
from sluice.publishers.sources.stream_runs import PagesReader, stream_file_in
from tests.chaos.network import free_ports
from tests.nodes import ledger_key

ROOT: Final = Path(__file__).parents[2]
WAIT_SECONDS: Final = 900.0 if os.environ.get("SLUICE_LONG") == "1" else 240.0
_LOOK_SECONDS: Final = (
    0.1  # each check is a connection: more often would take the processor from those waited for
)
_EXECUTOR: Final = b"CoarseGrainedExecutorBackend"
_PYTHON: Final = b"pyspark.daemon"
_QUICK_JAVA: Final = {"SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
_CATCH_UP: Final = (
    *("--block-time", "1", "--catchup-stall-seconds", "2", "--catchup-backoff-seconds", "0.2"),
    *("--catchup-max-backoff-seconds", "1"),
)


def write_chain(folder: Path, blocks: Iterable[Block]) -> Path:
    """Write block files into a folder that may not be there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    for block in blocks:
        write_block_file(folder / f"{block.number}.blk", block)
    return folder


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    """Wait for something in another process."""
    give_up_at = time.monotonic() + WAIT_SECONDS
    while not is_so():
        assert time.monotonic() < give_up_at, f"{what}: not within {WAIT_SECONDS:g} s"
        time.sleep(_LOOK_SECONDS)


class Gateway:
    """A node on a fixed port and folder, which can start and die repeatedly."""

    def __init__(self, data_dir: Path, port: int, arguments: Sequence[str]) -> None:
        self.data_dir = data_dir
        self.address = f"127.0.0.1:{port}"
        self._arguments = [*arguments, "--grpc", self.address]
        self._process: NodeProcess | None = None

    def start(self) -> None:
        """Start it, and wait until it listens."""
        log = self.data_dir.with_name(self.data_dir.name + ".log")
        self._process = NodeProcess(self.data_dir, log, self._arguments)

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.kill()

    def stop(self) -> None:
        """Stop it in order, if it runs."""
        if self._process is not None:
            self._process.stop()

    @property
    def head(self) -> int:
        """Return its last block; -1: none, or no answer."""
        held = BlockGateways((self.address,)).held()
        return -1 if held is None or held.last is None else held.last

    def await_head(self, number: int) -> None:
        """Wait until it holds a block."""
        wait_until(lambda: self.head >= number, f"block {number} at {self.address}")


@contextmanager
def gateways(folder: Path, count: int = 2) -> Iterator[list[Gateway]]:
    """Active nodes, each with the others as peers."""
    ports = free_ports(count)
    nodes = []
    for place, port in enumerate(ports):
        peers = [word for other in ports if other != port for word in ("--peer", f"127.0.0.1:{other}")]
        arguments = ["--ledger-key", ledger_key(), *_CATCH_UP, *peers]
        nodes.append(Gateway(folder / f"node-{place}", port, arguments))
    try:
        for node in nodes:
            node.start()
        yield nodes
    finally:
        for node in nodes:
            node.stop()


def check_streams(*data_dirs: Path) -> None:
    """Run `sluice check` on each data folder, and compare all data pages with the first ones."""
    first, *others = data_dirs
    commands: list[tuple[str, ...]] = [(str(folder),) for folder in data_dirs]
    commands += [(str(first), "--against", str(other)) for other in others]
    for words in commands:
        done = CliRunner().invoke(check.command, words)
        assert done.exit_code == 0, done.output


def check_whole(nodes: Sequence[Gateway], count: int) -> None:
    """Wait until each node has the last of `count` blocks, stop all nodes, and compare them."""
    for node in nodes:
        node.await_head(count - 1)
    for node in nodes:
        node.stop()
        assert block_count(node.data_dir) == count
    check_streams(*(node.data_dir for node in nodes))


def block_count(data_dir: Path) -> int:
    """Return the number of blocks in a stopped node's stream, with repetitions."""
    with PagesReader(stream_file_in(data_dir)) as pages:
        (run,) = pages.plan(1)
        return sum(entry.type == BLOCK_END_TYPE for page in pages.pages_from(run) for entry in page)


def check_reports(reports: Sequence[PublishReport]) -> None:
    """Check that at least one racer of each shard reports each block as stored."""
    shards: dict[int, bool] = {}
    for report in reports:
        assert report.first_block is not None
        shards[report.first_block] = shards.get(report.first_block, False) or report.unacknowledged == 0
    assert 0 in shards
    assert all(shards.values())


class Driver:
    """A Spark driver in its own process: `tests.interop.sink_driver`.

    Args:
        log_path: for its standard error.
        orders: what it should do.
    """

    def __init__(self, log_path: Path, **orders: Any) -> None:
        self._log_path = log_path
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.interop.sink_driver", json.dumps(orders)],
                cwd=ROOT,
                # A session in this process has changed its children's module path.
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kill it and its JVM with SIGKILL, like a power failure."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def end_input(self) -> None:
        """End its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.stdin = None

    @property
    def log(self) -> str:
        """What it has written to standard error."""
        return self._log_path.read_text(errors="replace")

    def answer(self) -> list[Any]:
        """Wait for its end; return its lines, each a JSON value."""
        out, _ = self._process.communicate(timeout=3 * WAIT_SECONDS)
        assert self._process.returncode == 0, self.log[-4000:]
        return [json.loads(line) for line in out.splitlines()]

    def reports(self) -> list[PublishReport]:
        """`answer` of a driver that publishes."""
        return [PublishReport.from_json(json.dumps(fields)) for fields in self.answer()]

    def __enter__(self) -> Self:
        """Return self."""
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()


class SparkCluster:
    """A standalone Spark cluster of local processes; `spark_cluster` starts it.

    Spark gives a speculative task no second place on one host, so each worker has an address of its own.
    """

    def __init__(self, folder: Path, master: str) -> None:
        self.master = master
        self.folder = folder
        self.workers: list[subprocess.Popen[bytes]] = []

    def executors(self) -> dict[int, Path]:
        """Return the executors that run: process ids and working folders, where their logs are."""
        found = ((pid, self._folder_of(pid, _EXECUTOR)) for pid in _process_ids())
        return {pid: folder for pid, folder in found if folder is not None}

    def pythons(self) -> list[int]:
        """Return the Python processes of the executors."""
        return [pid for pid in _process_ids() if self._folder_of(pid, _PYTHON) is not None]

    def kill_executor(self, process_id: int) -> None:
        """SIGKILL: the worker starts another one."""
        with suppress(ProcessLookupError):
            os.kill(process_id, signal.SIGKILL)

    def kill_worker(self, place: int) -> None:
        """Kill a worker and its executors, as if their machine were gone."""
        self.workers[place].kill()
        for pid, folder in self.executors().items():
            if folder.is_relative_to(self.work_folder(place)):
                self.kill_executor(pid)

    def work_folder(self, place: int) -> Path:
        """Return a worker's folder."""
        return self.folder / f"work-{place}"

    def await_empty(self) -> None:
        """Wait until no executor is left, and no Python of one."""
        wait_until(lambda: not self.executors() and not self.pythons(), "the end of all executors")

    def _folder_of(self, process_id: int, mark: bytes) -> Path | None:
        """Return the working folder of a process of this cluster with a mark in its command."""
        process = Path(f"/proc/{process_id}")
        with suppress(OSError):
            folder = (process / "cwd").readlink()
            if folder.is_relative_to(self.folder) and mark in (process / "cmdline").read_bytes():
                return folder
        return None


def _process_ids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


@contextmanager
def spark_cluster(folder: Path, worker_count: int = 2) -> Iterator[SparkCluster]:
    """Run a standalone cluster with workers of one core each."""
    import pyspark

    home = Path(pyspark.__file__).parent
    master_port, page_port = free_ports(2)
    cluster = SparkCluster(folder, f"spark://127.0.0.1:{master_port}")
    with ExitStack() as stack:
        log = stack.enter_context((folder / "cluster.log").open("wb"))

        def start(kind: str, host: str, *words: str) -> subprocess.Popen[bytes]:
            variables = {"SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_IP": host}
            process = subprocess.Popen(
                [
                    str(home / "bin" / "spark-class"),
                    f"org.apache.spark.deploy.{kind}",
                    "--host",
                    host,
                    *words,
                ],
                cwd=folder,
                env=environment_without_settings() | _QUICK_JAVA | variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)
            return process

        start("master.Master", "127.0.0.1", "--port", str(master_port), "--webui-port", str(page_port))
        for place in range(worker_count):
            size = ("--cores", "1", "--memory", "1g", "--webui-port", "0")
            words = (*size, "--work-dir", str(cluster.work_folder(place)), cluster.master)
            cluster.workers.append(start("worker.Worker", f"127.0.0.{place + 2}", *words))
        wait_until(lambda: _alive_workers(page_port) == worker_count, "the cluster's workers")
        yield cluster


def _alive_workers(page_port: int) -> int:
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{page_port}/json/", timeout=5) as page:
        count: int = json.load(page)["aliveworkers"]
        return count
    return 0
