"""`sluice serve` as a process: refused starts, stops, answers."""

from __future__ import annotations

import asyncio
import gzip
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from sluice.datastream import StreamClient
from sluice.gateway.api import publish_pb2_grpc
from sluice.publishers.demo.node_process import NodeProcess, environment_without_settings
from tests.nodes import ANSWER_SECONDS, Publisher, ledger_key, make_blocks
from tests.reference_data import STREAM, needs_stream
from tests.serving import ANYWHERE, ServeProcess, refused

KEY = ("--ledger-key", ledger_key())
BLOCKS = make_blocks(3)


# --- refused: one line, no traceback, the right status ------------------------------------------------------


@contextmanager
def taken_port() -> Iterator[int]:
    """A port that somebody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize(
    "name", ["grpc", *(pytest.param(name, marks=pytest.mark.slow) for name in ("tcp", "http"))]
)
def test_a_busy_port(tmp_path: Path, name: str) -> None:
    with taken_port() as port:
        got = refused(*ANYWHERE, *KEY, "--data-dir", tmp_path, f"--{name}", f"127.0.0.1:{port}")
    assert got == (
        1,
        (
            f"sluice: {name}.address 127.0.0.1:{port}: got Address already in use, "
            "expected an address that is free here\n"
        ),
    )


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    got = refused(*ANYWHERE, *KEY, "--data-dir", tmp_path / "file")
    line = f"data_dir {tmp_path}/file: got File exists, expected a folder that can be written"
    assert got == (1, f"sluice: {line}\n")


@pytest.mark.skipif(
    not Path("/proc/self").is_dir(),
    reason="needs /proc, which Linux has: a folder that refuses everybody's files",
)
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    status, text = refused(*ANYWHERE, *KEY, "--data-dir", "/proc/self/sluice-data")
    assert status == 1
    assert re.fullmatch(
        "sluice: data_dir /proc/self/sluice-data: got .*, expected a folder that can be written\n", text
    )


def test_a_file_that_is_no_stream(tmp_path: Path) -> None:
    (tmp_path / "datastream.bin").write_bytes(b"hello")
    got = refused(*ANYWHERE, *KEY, "--data-dir", tmp_path)
    assert got == (
        1,
        (
            f"sluice: data_dir {tmp_path}: got {tmp_path}/datastream.bin: file size: found 5 bytes, "
            "expected at least 4096, the header page, expected a stream that can be opened\n"
        ),
    )
    assert [path.name for path in tmp_path.iterdir()] == ["datastream.bin"]


@needs_stream
def test_a_stream_of_other_things(tmp_path: Path) -> None:
    (tmp_path / "datastream.bin").write_bytes(gzip.decompress(STREAM.read_bytes()))
    got = refused(*ANYWHERE, *KEY, "--data-dir", tmp_path)
    assert got == (
        1,
        (
            f"sluice: stream file {tmp_path}/datastream.bin, entry 13951: "
            "got an entry of type 0x6 with 3 bytes, "
            "expected a block's end (type 0xb1, 56 bytes): does the stream hold blocks?\n"
        ),
    )


BAD_USAGE = [
    (("--nothing",), r"sluice serve: No such option.*--nothing.* \(see: sluice serve --help\)\n"),
    (("--ledger-key", "dsa:00"), r"sluice: ledger key 'dsa:00': got unknown kind 'dsa', expected .*\n"),
    (("--role", "standby", *KEY), r'sluice: role: got "standby", expected at least one --peer .*\n'),
    pytest.param(
        ("--ledger-key", "ed25519:12"),
        r"sluice: .*ed25519.*: got .*, expected .*\n",
        marks=pytest.mark.slow,
    ),
    pytest.param(
        ("--ledger-key", "tss:00"), r"sluice: .*tss.*: got .*, expected .*\n", marks=pytest.mark.slow
    ),
]


@pytest.mark.parametrize(("arguments", "line"), BAD_USAGE)
def test_bad_usage_makes_nothing(tmp_path: Path, arguments: tuple[str, ...], line: str) -> None:
    status, text = refused(*ANYWHERE, "--data-dir", tmp_path / "never", *arguments)
    assert (status, text.count("\n")) == (2, 1)
    assert re.fullmatch(line, text)
    assert not (tmp_path / "never").exists()


def test_the_command_is_installed() -> None:
    sluice = Path(sys.executable).with_name("sluice")
    if not sluice.exists():
        pytest.skip("needs sluice-gateway beside this interpreter; pip install -e . installs it")
    done = subprocess.run([sluice, "serve", "--help"], capture_output=True, text=True, check=True)
    assert "Run one node: take blocks from publishers over gRPC" in done.stdout


# --- running ------------------------------------------------------------------------------------------------


def publisher_of(channel: aio.Channel) -> Publisher:
    """A publish stream."""
    return Publisher(publish_pb2_grpc.BlockStreamPublishServiceStub(channel).publishBlockStream())


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        *(pytest.param(number, marks=pytest.mark.slow) for number in (signal.SIGINT, signal.SIGHUP)),
    ],
)
async def test_a_signal_stops_the_node_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    """Publishers and clients are connected, one of them in mid-block, and another node knocks."""

    # On a machine with much to do, to start the second node takes longer than a block may.
    with ServeProcess(tmp_path / "data", "--publish-block-timeout-seconds", "600") as node:
        await node.start()
        async with (
            aio.insecure_channel(str(node.grpc_address)) as channel,
            StreamClient.connect(node.tcp_address.host, node.tcp_address.port) as client,
        ):
            alice, bob = publisher_of(channel), publisher_of(channel)
            await bob.call.initial_metadata()  # the node knows of it, and tells it of each block
            await alice.block(*BLOCKS[:2])
            await alice.expect("ack 0", "ack 1")
            await alice.items(*BLOCKS[2].items[:3])
            await client.start(0)
            second = await asyncio.to_thread(refused, *ANYWHERE, *KEY, "--data-dir", node.data_dir)
            node.send(number)
            await alice.expect("end SUCCESS last 1 about 0", "closed")
            assert (await bob.answers(3))[-1] == "end SUCCESS last 1 about 0"
            assert await node.ended() == 0
        assert "Traceback" not in node.log_text()
        assert node.logged("node stopped")[0]["last_block"] == 1
        status, said = second
        assert status == 1
        assert said.startswith(f"sluice: data_dir {node.data_dir}: got {node.data_dir}/datastream.bin: ")
        held = r"\(which has it open for writing, process \d+ \(.*\)\)"
        assert re.search(f"the stream is in use by another program or opener {held}", said)


def test_a_node_under_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", tmp_path / "node.log", KEY, prefix=["nohup"]) as node:
        node.send(signal.SIGHUP)
        assert "sluice_publishers" in node.metrics()
        assert node.stop() == 0


def test_a_node_whose_standard_streams_are_closed_gives_their_numbers_to_nothing(tmp_path: Path) -> None:
    """Neither its event loop nor its stream file may have them."""
    closed = ["sh", "-c", 'exec "$@" <&- >&-', "sh"]
    with NodeProcess(tmp_path / "data", tmp_path / "node.log", KEY, prefix=closed) as node:
        assert "sluice_publishers" in node.metrics()
        assert node.stop() == 0


async def test_health_reflection_and_the_warning_of_mode_hash(tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "data", "--verify", "hash") as node:
        await node.start(key=False)
        (warning,) = node.logged("verification mode is hash: the signatures of block proofs are not checked")
        assert warning["level"] == "warning"
        async with aio.insecure_channel(str(node.grpc_address)) as channel:
            anything: Any = channel  # these stubs have no types for asyncio
            health: Any = health_pb2_grpc.HealthStub(anything)
            request = health_pb2.HealthCheckRequest()
            answer = await health.Check(request, timeout=ANSWER_SECONDS)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            reflection: Any = reflection_pb2_grpc.ServerReflectionStub(anything)
            wanted = "org.hiero.block.api.BlockStreamPublishService"
            call = reflection.ServerReflectionInfo(
                iter([reflection_pb2.ServerReflectionRequest(file_containing_symbol=wanted)])
            )
            response = await call.read()
            (file,) = [
                file
                for file in response.file_descriptor_response.file_descriptor_proto
                if b"BlockStreamPublishService" in file
            ]
            assert b"publishBlockStream" in file
        node.send(signal.SIGTERM)
        assert await node.ended() == 0


def test_settings_of_the_environment_reach_the_process(tmp_path: Path) -> None:
    changed = environment_without_settings() | {"SLUICE_TCP_ADDRESS": "nowhere"}
    done = subprocess.run(
        [sys.executable, "-m", "sluice.gateway.commands.cli", "serve", "--data-dir", tmp_path / "never"],
        capture_output=True,
        text=True,
        check=False,
        env=changed,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("sluice: tcp.address: got 'nowhere', expected ")
    assert done.stderr.endswith("(environment SLUICE_TCP_ADDRESS)\n")
