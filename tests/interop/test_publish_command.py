"""`sluice publish` with real Spark: interrupts, spark-submit, checkpoints, and errors without Spark.

Most as processes, each with a JVM of its own, which costs some twenty seconds of processor time.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

import pyspark

from sluice.gateway.commands.cli import main
from sluice.gateway.node.node import Node
from sluice.publishers.blocks.block_files import write_block_file
from sluice.publishers.job.job import GatewayStatus
from sluice.publishers.job.submit import sluice_publish
from tests.nodes import KEY, make_blocks
from tests.publishers.fake_node import FakeNode, running
from tests.publishers.node_thread import node_thread

SECONDS = 250.0
LOOK_SECONDS = 0.1
pytestmark = pytest.mark.usefixtures("java")
LONG = pytest.mark.skipif("SLUICE_LONG" not in os.environ, reason="a JVM or several; SLUICE_LONG=1 runs it")
BLOCKS = make_blocks(400)
TAKES_TERMINAL = """
import fcntl, sys, termios
from sluice.gateway.commands.cli import main

fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # makes its standard input its terminal, as a shell does
sys.exit(main())
"""
ON_A_TERMINAL = (sys.executable, "-c", TAKES_TERMINAL, "publish", "--engine", "spark")
BY_SPARK = ("--engine", "spark")
SUBMIT = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chain")
    for block in BLOCKS:
        write_block_file(folder / f"{block.number}.blk", block)
    return folder


Program = tuple[str, ...]
Environment = dict[str, str] | None


class Command:
    """One run in its own process group, as a shell starts it."""

    def __init__(
        self,
        *words: object,
        program: Program = (),
        environment: Environment = None,
        terminal: FileIO | None = None,
    ) -> None:
        program = program or (sys.executable, "-m", "sluice.gateway.commands.cli", "publish", *BY_SPARK)
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))
        }
        self.process = subprocess.Popen(
            [*program, *map(str, words)],
            stdin=terminal,
            stdout=subprocess.PIPE if terminal is None else terminal,
            stderr=subprocess.PIPE,
            text=True,
            env=kept | (environment or {}),
            start_new_session=True,
        )

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def ended(self) -> tuple[int, str, str]:
        """Wait for its end: exit status, standard output and standard error."""
        out, err = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, out, err

    def kill(self) -> None:
        """Leave nothing behind."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(SECONDS)


@contextmanager
def started(
    *words: object, program: Program = (), environment: Environment = None, terminal: FileIO | None = None
) -> Iterator[Command]:
    command = Command(*words, program=program, environment=environment, terminal=terminal)
    try:
        yield command
    finally:
        command.kill()


def ran(*words: object, program: Program = (), environment: Environment = None) -> tuple[int, str, str]:
    with started(*words, program=program, environment=environment) as command:
        return command.ended()


def await_head(node: Node, number: int, command: Command) -> None:
    """Wait until a node has a block, while the publishing command runs."""
    with GatewayStatus([str(node.grpc_address)]) as head:
        while (last := head.ask()[0]) is None or last < number:
            assert command.process.poll() is None, (last, command.ended())
            time.sleep(LOOK_SECONDS)


# --- interrupts ---------------------------------------------------------------------------------------------


def check_interrupted(node: Node, status: int, out: str, err: str) -> None:
    """Check what a command says whose Ctrl-C came behind block 10."""
    said = json.loads(out)
    assert (status, said["interrupted"], said["complete"], said["failures"]) == (130, True, False, [])
    safe = said["safe_through"]
    assert 10 <= safe < 399
    # The next run skips blocks that were stored without an acknowledgement.
    assert (node.store.last_number or 0) >= safe
    assert f"sluice: interrupted; blocks up to {safe} are stored. Go on with:\n" in err
    line = err.splitlines()[-1]
    assert line == said["go_on"]
    assert line.endswith(f"--json --from {safe + 1}")
    assert line.startswith("sluice publish --engine spark --source ")


@pytest.mark.spark
@pytest.mark.usefixtures("spark_for_commands")
def test_ctrl_c_finishes_the_block_and_says_how_to_go_on(
    chain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with node_thread(tmp_path / "node") as node, ThreadPoolExecutor(1) as threads:

        def interrupt() -> None:
            with GatewayStatus([str(node.grpc_address)]) as head:
                while (head.ask()[0] or 0) < 10:
                    time.sleep(LOOK_SECONDS)
            os.kill(os.getpid(), signal.SIGINT)

        words = ("--source", chain, "--gateway", node.grpc_address, "--publishers", 2, "--rate", 30)
        interrupting = threads.submit(interrupt)
        status = main(["publish", *BY_SPARK, *map(str, words), "--json"])
        interrupting.result()
        check_interrupted(node, status, *capsys.readouterr())


@pytest.mark.spark
@LONG
def test_ctrl_c_of_a_terminal_reaches_the_jvm_too(chain: Path, tmp_path: Path) -> None:
    with node_thread(tmp_path / "node") as node:
        words = ("--source", chain, "--gateway", node.grpc_address, "--publishers", 2, "--rate", 30)
        with started(*words, "--json") as command:
            await_head(node, 10, command)
            os.killpg(command.process.pid, signal.SIGINT)
            check_interrupted(node, *command.ended())


@pytest.mark.spark
@LONG
def test_the_end_of_its_terminal_ends_it_and_leaves_nothing(chain: Path, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    terminal, its_end = (os.fdopen(fd, "rb", buffering=0) for fd in os.openpty())
    with terminal, its_end, node_thread(tmp_path / "node") as node:
        words = ("--source", chain, "--gateway", node.grpc_address, "--rate", 30)
        environment = {"TMPDIR": str(temporary)}
        with started(*words, program=ON_A_TERMINAL, environment=environment, terminal=its_end) as command:
            its_end.close()
            await_head(node, 10, command)
            assert any(temporary.iterdir())
            terminal.close()  # SIGHUP to all its processes: to the JVM, too
            status, _, err = command.ended()
        last = node.store.last_number
    # It finishes the block in flight, but cannot say so.
    assert (status, err.splitlines()[-1]) == (
        1,
        "sluice: what is written: got Input/output error, expected room for it",
    )
    assert last is not None
    assert 10 <= last < 399
    assert list(temporary.iterdir()) == []


@pytest.mark.spark
@LONG
def test_workers_that_stand_still_do_not_keep_it_from_ending(chain: Path, tmp_path: Path) -> None:
    state, mark = tmp_path / "state", str(uuid.uuid4())
    workers: list[int] = []
    with node_thread(tmp_path / "node") as node:
        words = ("--source", chain, "--gateway", node.grpc_address, "--rate", 30)
        following = ("--follow", "--checkpoint", state)
        with started(*words, *following, environment={"MARK": mark}) as command:
            try:
                await_head(node, 10, command)
                workers += [pid for pid in marked(mark) if is_worker(pid)]
                for pid in workers:
                    os.kill(pid, signal.SIGSTOP)
                os.killpg(command.process.pid, signal.SIGINT)
                status, out, err = command.ended()
            finally:
                for pid in workers:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        last = node.store.last_number
    assert workers
    assert status == 130, err
    match = re.search(r"^blocks 0 to \d+: interrupted, safe_through (\d+), ", out, re.MULTILINE)
    assert match is not None, out
    assert last is not None
    assert 0 <= int(match[1]) <= last
    assert err.splitlines()[-1].endswith(f"--follow --checkpoint {state}")


def marked(mark: str) -> Iterator[int]:
    """Find the processes that have a mark in their environment."""
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit() and f"MARK={mark}".encode() in (folder / "environ").read_bytes():
                yield int(folder.name)


def is_worker(process_id: int) -> bool:
    """Tell whether a process is one of those in which Spark runs Python."""
    return b"pyspark.daemon" in Path(f"/proc/{process_id}/cmdline").read_bytes()


@pytest.mark.slow
@pytest.mark.spark
def test_spark_submit_runs_it_and_hands_its_sigterm_on(chain: Path, tmp_path: Path) -> None:
    program = (SUBMIT, "--master", "local[1]", "--conf", "spark.ui.enabled=false", sluice_publish.__file__)
    with node_thread(tmp_path / "node") as node:
        words = ("--source", chain, "--gateway", node.grpc_address, "--rate", 30)
        # The JVM is there before us: on a machine whose name has no address, its user has to tell it.
        environment = {
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # a short job mostly compiles
        }
        with started(*words, program=program, environment=environment) as command:
            await_head(node, 10, command)
            command.process.send_signal(signal.SIGTERM)  # to the JVM, which is all that a supervisor knows
            status, out, err = command.ended()
        last = node.store.last_number
    assert status == 130, err
    # spark-submit writes both of Python's outputs to its standard output.
    match = re.search(r"^blocks 0 to 399: interrupted, safe_through (\d+), ", out, re.MULTILINE)
    assert match is not None, out
    safe = int(match[1])
    assert last is not None
    assert 0 <= safe <= last < 399
    line = out.splitlines()[-1]
    assert line.startswith("spark-submit --master 'local[1]' --conf spark.ui.enabled=false ")
    given = f"--source {shlex.quote(str(chain))} --gateway {node.grpc_address} --rate 30"
    assert line.endswith(f"sluice_publish.py {given} --from {safe + 1}")


# --- following ----------------------------------------------------------------------------------------------


@pytest.mark.spark
@LONG
def test_following_signs_and_goes_on_after_a_kill(tmp_path: Path) -> None:
    chain, state = tmp_path / "chain", tmp_path / "state"
    chain.mkdir()
    for block in BLOCKS[:30]:
        write_block_file(chain / f"{block.number}.blk", block)
    with node_thread(tmp_path / "node") as node:
        words = (
            *("--source", chain, "--gateway", node.grpc_address, "--follow", "--checkpoint", state),
            *("--option", "max_blocks_per_trigger=10", "--sign", "env:SIGNING_KEY"),
        )
        key = {"SIGNING_KEY": pem(KEY)}
        with started(*words, environment=key) as command:
            await_head(node, 20, command)
            os.killpg(command.process.pid, signal.SIGKILL)
            command.ended()
        for block in BLOCKS[30:45]:
            write_block_file(chain / f"{block.number}.blk", block)
        with started(*words, environment=key) as command:
            await_head(node, 44, command)
            with started(*words, environment=key) as second:
                assert second.ended() == (
                    1,
                    "",
                    f"sluice: checkpoint {state}: another `sluice publish` is using it\n",
                )
            command.process.send_signal(signal.SIGTERM)
            status, out, err = command.ended()
        assert status == 130, err
        assert "safe_through 44" in out
        assert err.splitlines()[-1].endswith(
            f"--follow --checkpoint {state} --option max_blocks_per_trigger=10 --sign env:SIGNING_KEY"
        )
        assert node.store.last_number == 44
    other = tmp_path / "other"
    shutil.copytree(chain, other)
    status, _, err = ran("--source", other, *words[2:], environment=key)
    there, given = f"blockfiles:{chain}", f"blockfiles:{other}"
    assert (status, err) == (
        1,
        f"sluice: checkpoint {state}: it was begun with --source {there}, not {given}\n",
    )


def pem(key: object) -> str:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    assert isinstance(key, Ed25519PrivateKey)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


# --- what goes wrong ----------------------------------------------------------------------------------------


@pytest.mark.spark
@LONG
def test_two_of_the_same_at_once_and_no_gateway(chain: Path) -> None:
    with running(FakeNode()) as node:
        words = ("--source", chain, "--gateway", node.address, "--to", 30, "--json", "--deadline", 60)
        with started(*words) as one, started(*words) as two:
            ends = [one.ended(), two.ended()]
    assert [status for status, _, _ in ends] == [0, 0]
    rows = [json.loads(out)["publishers"][0] for _, out, _ in ends]
    assert sum(row["won"] for row in rows) == 31
    assert all(row["acknowledged"] + row["duplicate"] == 31 for row in rows)
    status, out, err = ran("--source", chain, "--gateway", "127.0.0.1:1", "--deadline", "0.5")
    assert status == 1
    assert out.startswith("blocks 0 to 399: not all stored as far as is known, safe_through -")
    failed, *rest = err.splitlines()[-3:]
    why = "block 0 was not acknowledged within 0.5 s (cannot connect to 127.0.0.1:1: "
    assert failed.startswith(f"sluice: publisher publisher-1 failed: {why}")
    go_on = f"--source {shlex.quote(str(chain))} --gateway 127.0.0.1:1 --deadline 0.5"
    assert rest == [
        "sluice: no block is known to be stored. Go on with:",
        f"sluice publish --engine spark {go_on}",
    ]


def refused(chain: Path, *words: object, **environment: str) -> str:
    """Run the command where it cannot work; return its one line."""
    status, out, err = ran("--source", chain, "--gateway", "127.0.0.1:1", *words, environment=environment)
    assert (status, out) == (1, "")
    said, line = err.splitlines()
    assert said == "sluice: no gateway takes blocks (127.0.0.1:1: nobody listens there); trying on"
    return line


def test_an_old_java_is_said(chain: Path, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    java.chmod(0o755)
    line = refused(chain, JAVA_HOME=str(tmp_path))
    assert line.startswith(
        f"sluice: Spark needs Java 17: JAVA_HOME ({tmp_path}) is version 8; install Java 17"
    )


def another_python() -> str | None:
    """An interpreter of another version than this one; None: there is none here."""
    for minor in range(8, 16):
        found = shutil.which(f"python3.{minor}")
        if found is not None and minor != sys.version_info.minor:
            done = subprocess.run([found, "-c", ""], capture_output=True, check=False)
            if done.returncode == 0:
                return found
    return None


def test_other_interpreters_and_a_clash_of_modules_are_said(chain: Path, tmp_path: Path) -> None:
    line = refused(chain, PYSPARK_PYTHON=f"{tmp_path}/python9")
    assert line.startswith(
        f"sluice: the workers' interpreter {tmp_path}/python9 (PYSPARK_PYTHON) does not start"
    )
    other = another_python()
    if other is not None:
        here = f"{sys.version_info.major}.{sys.version_info.minor}"
        line = refused(chain, PYSPARK_PYTHON=other)
        assert line.startswith(f"sluice: the workers' interpreter {other} is Python 3.")
        assert f", and this is Python {here}; set PYSPARK_PYTHON to" in line
    line = refused(chain, SPARK_LOCAL_DIRS="/proc/x")
    assert line.startswith("sluice: Spark's folder for temporary files, /proc/x, cannot be written to: ")


@pytest.mark.slow
@pytest.mark.spark
def test_a_port_in_use_is_said(chain: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        line = refused(chain, "--conf", f"spark.driver.port={port}", "--conf", "spark.port.maxRetries=0")
    assert line.startswith("sluice: Spark does not start: a port that Spark was told to use is in use")
