"""A node as a process: real ones."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from sluice.publishers.demo.node_process import (
    NodeNotStarted,
    NodeProcess,
    _started_entry,
    environment_without_settings,
)

START_AND_WAIT = """
import sys, time
from pathlib import Path
from sluice.publishers.demo.node_process import NodeProcess
folder = Path(sys.argv[1])
node = NodeProcess(folder / "node", folder / "log", ["--verify", "hash"], is_bound=True)
print(node.process_id, flush=True)
time.sleep(600)
"""


def is_running(process_id: int) -> bool:
    """Whether there is such a process that has not ended; nobody may have asked for its status yet."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_node_starts_answers_and_stops(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "node", tmp_path / "log", ["--verify", "hash"]) as node:
        assert node.get("/readyz") == "ready\n"
        assert node.metrics()["sluice_last_block"] == -1
        assert node.grpc.startswith("127.0.0.1:")
        assert node.tcp[0] == "127.0.0.1"
        assert is_running(node.process_id)
    assert node.stop() == 0
    assert not is_running(node.process_id)


def test_a_node_is_asked_past_the_proxy_of_whoever_starts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setattr(urllib.request, "_opener", None)  # it remembers the proxies of its first use
    with NodeProcess(tmp_path / "node", tmp_path / "log", ["--verify", "hash"]) as node:
        assert node.get("/readyz") == "ready\n"


def test_a_killed_node_leaves_a_folder_that_another_can_use(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "node", tmp_path / "log", ["--verify", "hash"]) as node:
        node.kill()
    assert node.stop() == -9
    with NodeProcess(tmp_path / "node", tmp_path / "log", ["--verify", "hash"]) as again:
        assert again.get("/readyz") == "ready\n"


def test_a_node_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(NodeNotStarted) as caught:
        NodeProcess(tmp_path / "node", tmp_path / "log", ["--ledger-key", "dsa:00"])
    assert caught.value.got == "exit status 2"
    assert caught.value.last_words.startswith("sluice: ledger key 'dsa:00': got unknown kind 'dsa'")
    assert "\n" not in str(caught.value)


def test_a_line_of_the_log_that_is_still_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    line = '{"message": "node started", "grpc": "127.0.0.1:1"}\n'
    path = tmp_path / "log"
    with path.open("w") as written, path.open() as read:
        for part in ("a warning\n{}\n", line[:20], ""):
            written.write(part)
            written.flush()
            assert _started_entry(read) is None
        written.write(line[20:])
        written.flush()
        assert _started_entry(read) == {"message": "node started", "grpc": "127.0.0.1:1"}


def test_the_settings_of_whoever_starts_a_node_are_not_the_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_CONFIG", str(tmp_path / "none.toml"))
    monkeypatch.setenv("SLUICE_ROLE", "standby")
    with NodeProcess(tmp_path / "node", tmp_path / "log", ["--verify", "hash"]) as node:
        assert node.get("/readyz") == "ready\n"
    monkeypatch.setenv("OTHER", "stays")
    environment = environment_without_settings()
    assert environment["OTHER"] == "stays"
    assert [name for name in environment if name.startswith("SLUICE_")] == []


# --- nodes that end with their starter ----------------------------------------------------------------------


def test_it_ends_with_a_starter_that_is_killed(tmp_path: Path) -> None:
    words = [sys.executable, "-c", START_AND_WAIT, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        node_id = int(starter.stdout.readline())
        assert is_running(node_id)
        starter.kill()
    give_up_at = time.monotonic() + 30
    while is_running(node_id):
        assert time.monotonic() < give_up_at, (tmp_path / "log").read_text()
        time.sleep(0.05)


@pytest.mark.parametrize("is_killed", [False, True])
def test_it_is_a_node_like_others(tmp_path: Path, *, is_killed: bool) -> None:
    with NodeProcess(tmp_path / "node", tmp_path / "log", ["--verify", "hash"], is_bound=True) as node:
        assert node.get("/readyz") == "ready\n"
        if is_killed:
            node.kill()
    assert node.stop() == (-9 if is_killed else 0)
