"""`sluice ds` as processes: a server, a relay and clients, stopped by Ctrl-C, SIGTERM and a closed pipe."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sluice.datastream import BlockingStreamClient, DataStreamer
from tests.datastream.serving import ServerThread
from tests.datastream.streams import commit, operation, sample_file
from tests.reference_data import needs_stream

SLUICE = [sys.executable, "-m", "sluice.gateway.commands.cli", "ds"]
LISTENING = re.compile(rb"listening on \S+:(\d+)")


def start(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*SLUICE, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def port_of(process: subprocess.Popen[bytes]) -> int:
    """Wait for the line of the log that names the port."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if found := LISTENING.search(line):
            return int(found[1])
    pytest.fail(b"".join(lines).decode())


@contextmanager
def running(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    process = start(*words)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=10)


def test_server_relay_and_client(tmp_path: Path) -> None:
    served, relayed = tmp_path / "d.bin", tmp_path / "r.bin"
    words = ["--host", "127.0.0.1", "--port", "0", "--file"]
    with running("server", *words, str(served), "--sleep", "5") as server:
        master = f"127.0.0.1:{port_of(server)}"
        with running("relay", *words, str(relayed), "--server", master) as relay:
            behind = f"127.0.0.1:{port_of(relay)}"
            with running("client", "--server", behind, "--from", "0", "--log", "error") as client:
                assert client.stdout is not None
                lines = [client.stdout.readline().decode() for _ in range(20)]
                assert [line.split("  ")[0] for line in lines] == [f"entry {at}" for at in range(20)]
                client.send_signal(signal.SIGINT)
                _, errors = client.communicate(timeout=20)
                assert (client.returncode, errors) == (0, b"")
            with running("client", "--server", behind, "--from", "0", "--log", "error") as client:
                assert client.stdout is not None
                client.stdout.readline()
                client.stdout.close()  # as `| head -1`
                assert client.wait(20) == 0
            relay.send_signal(signal.SIGTERM)
            assert relay.wait(20) == 0
        server.send_signal(signal.SIGINT)
        assert server.wait(20) == 0
    with DataStreamer.open(served) as one, DataStreamer.open(relayed) as other:
        assert other.header.system_id == one.header.system_id
        count = other.committed.total_entries
        assert 20 <= count <= one.committed.total_entries
        assert list(other.read_entries(0)) == list(one.read_entries(0, count))


def test_a_relay_of_another_stream_ends_with_one_line(tmp_path: Path) -> None:
    with (
        DataStreamer.open(tmp_path / "a.bin", initial_pages=1) as streamer,
        DataStreamer.open(tmp_path / "r.bin", initial_pages=1, system_id=5) as other,
        ServerThread(streamer) as serving,
    ):
        commit(streamer, *operation(0))
        other.close()
        master = f"127.0.0.1:{serving.port}"
        words = ["--server", master, "--port", "0", "--file", str(tmp_path / "r.bin"), "--log", "error"]
        process = start("relay", *words)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 1
    assert errors.decode() == "sluice: server: another stream: system id: got 137, expected 5\n"


@needs_stream
def test_the_sample_read_only(tmp_path: Path) -> None:
    sample = sample_file(tmp_path)
    content = sample.read_bytes()
    sample.chmod(0o400)
    names = sorted(tmp_path.iterdir())
    with running(
        "server", "--host", "127.0.0.1", "--port", "0", "--file", str(sample), "--read-only"
    ) as server:
        with BlockingStreamClient("127.0.0.1", port_of(server), timeout_seconds=20) as client:
            assert client.header().total_entries == 13_952
            assert client.bookmark(bytes.fromhex("0802 10a01f")).type == 2
            client.start(0)
            assert sum(1 for _ in zip(range(13_952), client.entries(), strict=False)) == 13_952
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0
    assert sample.read_bytes() == content
    assert sorted(tmp_path.iterdir()) == names
