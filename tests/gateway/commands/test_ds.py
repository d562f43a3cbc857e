"""`sluice ds server` and `relay`: options and refusals. `tests/interop/test_ds.py` has processes."""

from __future__ import annotations

import os
import resource
import signal
import socket
import time
from pathlib import Path

import click
import pytest

from sluice.datastream import DataStreamer
from sluice.datastream.events.sanity import SanityCheck
from sluice.datastream.file.streamfile import StreamFile
from sluice.datastream.layout import PAGE_SIZE
from sluice.gateway.commands import cli
from sluice.gateway.commands.ds_options import TIME_MAX, ServersType, run_until_stopped, server_limits
from tests.datastream.streams import commit

SERVER = ["ds", "server", "--log", "error", "--host", "127.0.0.1"]


def test_the_commands_and_options_of_the_demo_app(capsys: pytest.CaptureFixture[str]) -> None:
    options = {
        "server": "--port --file --log --sleep --opers --writetimeout --inactivitytimeout --read-only",
        "client": "--server --from --frombookmark --header --entry --bookmark --bookmarktype --sanitycheck "
        "--dumpbatch --log --json",
        "relay": "--server --port --file --log --writetimeout --inactivitytimeout",
    }
    for name, flags in options.items():
        assert cli.main(["ds", name, "--help"]) == 0
        text = capsys.readouterr().out
        assert [flag for flag in flags.split() if f"{flag} " not in text] == []


def test_a_server_ends_after_its_operations_and_goes_on_the_next_time(tmp_path: Path) -> None:
    path = tmp_path / "d.bin"
    for _ in range(2):
        assert cli.main([*SERVER, "--port", "0", "--file", str(path), "--opers", "20"]) == 0
    check = SanityCheck()
    with DataStreamer.open(path) as streamer:
        assert streamer.header.system_id == 137
        assert streamer.committed.total_entries == 200
        assert [line for entry in streamer.read_entries(0) for line in check.feed(entry)] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "words", [["server"], ["server", "--read-only"], ["relay", "--server", "127.0.0.1:1"]], ids=" ".join
)
def test_one_that_opens_a_large_file_can_be_stopped(
    tmp_path: Path, words: list[str], number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the twelve pages takes a third of a second here."""
    path = tmp_path / "d.bin"
    with DataStreamer.open(path, initial_pages=12) as streamer:
        commit(streamer, *[(1, bytes(PAGE_SIZE - 17))] * 12)
    path.with_suffix(".db").rename(tmp_path / "gone")  # forces a walk over all pages
    walk, walked = StreamFile.walk, []

    def slow(file: StreamFile, page_number: int) -> object:
        walked.append(page_number)
        os.kill(os.getpid(), number)
        time.sleep(0.3)
        return walk(file, page_number)

    monkeypatch.setattr(StreamFile, "walk", slow)
    command = ["ds", *words, "--log", "error", "--host", "127.0.0.1", "--port", "0", "--file", str(path)]
    assert cli.main(command) == 0
    assert len(walked) <= 2


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "d.bin"
    server = [*SERVER, "--file", str(path)]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        assert cli.main([*server, "--port", port]) == 1
        assert f"sluice: 127.0.0.1:{port}: cannot listen: Address already in use" in capsys.readouterr().err
    assert cli.main([*server, "--port", "70000"]) == 2
    assert "'--port': 70000 is not in the range" in capsys.readouterr().err
    for option in ("--sleep", "--writetimeout", "--inactivitytimeout"):
        assert cli.main([*server, "--port", "0", option, str(TIME_MAX + 1)]) == 2
        said = f"'{option}': {TIME_MAX + 1} is not in the range 0<=x<={TIME_MAX}"
        assert said in capsys.readouterr().err
    assert cli.main([*server, "--port", "0", "--read-only", "--file", f"{path}x"]) == 1
    assert capsys.readouterr().err == f"sluice: {path}x: the file to serve does not exist\n"
    path.write_bytes(b"x")
    assert cli.main([*server, "--port", "0"]) == 1
    assert capsys.readouterr().err == (
        f"sluice: {path}: file size: found 1 bytes, expected at least 4096, the header page\n"
    )
    assert cli.main([*server, "--serve-tls-key", "a.key"]) == 2
    assert "TLS needs --serve-tls-certificate and --serve-tls-key" in capsys.readouterr().err
    assert cli.main([*server, "--serve-tls-certificate", f"{path}.crt", "--serve-tls-key", "a.key"]) == 2
    assert f"serve_tls_certificate: got {path}.crt (No such file or directory)" in capsys.readouterr().err
    with DataStreamer.open(tmp_path / "e.bin"):
        assert cli.main([*SERVER, "--port", "0", "--file", str(tmp_path / "e.bin")]) == 1
        assert "is in use by another program or opener" in capsys.readouterr().err


def test_a_name_without_a_dot_is_that_of_the_original_with_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A new file beside the original's would share its folder of bookmarks."""
    with DataStreamer.open(tmp_path / "stream.bin") as streamer:
        streamer.start_atomic_op()
        streamer.add_stream_bookmark(b"mine")
        streamer.commit_atomic_op()
    assert cli.main([*SERVER, "--port", "0", "--file", str(tmp_path / "stream"), "--opers", "0"]) == 0
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["stream.bin"]
    with DataStreamer.open(tmp_path / "stream.bin") as streamer:
        assert streamer.get_bookmark(b"mine") == 0
        relay = ["ds", "relay", "--host", "127.0.0.1", "--port", "0", "--file", str(tmp_path / "stream")]
        assert cli.main(relay) == 1
        assert f"{tmp_path / 'stream.bin'}: the stream is in use" in capsys.readouterr().err
    (tmp_path / "stream.bin").rename(tmp_path / "stream")
    assert cli.main([*SERVER, "--port", "0", "--file", str(tmp_path / "stream"), "--opers", "0"]) == 0
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["stream"]
    (tmp_path / "stream").unlink()
    (tmp_path / "stream").symlink_to("away/stream")
    assert cli.main([*SERVER, "--port", "0", "--file", str(tmp_path / "stream"), "--opers", "0"]) == 1
    assert "it is a link to away/stream, and there is no file" in capsys.readouterr().err


def test_servers() -> None:
    servers = ServersType().convert("127.0.0.1:6900,[::1]:7", None, None)
    assert servers == [("127.0.0.1", 6900), ("::1", 7)]
    with pytest.raises(click.BadParameter, match="expected a port from 1 to 65535"):
        ServersType().convert("127.0.0.1:0", None, None)


def test_limits() -> None:
    limits = server_limits(1500, 0)
    assert limits.write_timeout_seconds == 1.5
    assert limits.inactivity_timeout_seconds == 0


def test_work_that_ends_by_itself() -> None:
    async def work() -> int:
        return 7

    assert run_until_stopped(work()) == 7


def test_a_server_may_open_as_many_files_as_it_is_allowed_to() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def work() -> int:
        return int(resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard))

    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, hard - 1), hard))
    try:
        assert run_until_stopped(work()) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
