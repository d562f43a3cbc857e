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
from sluice.gateway.commands import check
from sluice.publishers.blocks.block_files import write_block_file
from sluice.publishers.demo.node_process import NodeProcess, environment_without_settings
from sluice.publishers.report import PublishReport
from sluice.publishers.sources.block_gateways import BlockGateways
from tests.chaos.network import free_ports
from tests.nodes import ledger_key

ROOT: Final = Path(__file__).parents[2]
WAIT_SECONDS: Final = 900.0 if os.environ.get("SLUICE_LONG") == "1" else 240.0
_LOOK_SECONDS: Final = (
    0.1  # each check is a connection: more often would take the processor from those waited for
)
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


@contextmanager
def spark_cluster(folder: Path, worker_count: int = 2) -> Iterator[str]:
    """Yield the master's address of a standalone cluster with workers of one core each."""
    import pyspark

    home = Path(pyspark.__file__).parent
    master_port, page_port = free_ports(2)
    master = f"spark://127.0.0.1:{master_port}"
    commands: list[tuple[str, ...]] = [
        ("master.Master", "--host", "127.0.0.1", "--port", str(master_port), "--webui-port", str(page_port))
    ]
    for place in range(worker_count):
        work = ("--work-dir", str(folder / f"work-{place}"), "--webui-port", "0")
        commands.append(
            ("worker.Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "1g", *work, master)
        )
    variables = {"SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_IP": "127.0.0.1"}
    with ExitStack() as stack:
        log = stack.enter_context((folder / "cluster.log").open("wb"))
        for kind, *words in commands:
            process = subprocess.Popen(
                [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *words],
                cwd=folder,
                env=environment_without_settings() | variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)
        wait_until(lambda: _alive_workers(page_port) == worker_count, "the cluster's workers")
        yield master


def _alive_workers(page_port: int) -> int:
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{page_port}/json/", timeout=5) as page:
        count: int = json.load(page)["aliveworkers"]
        return count
    return 0
