"""A node as a process: real ones."""

from __future__ import annotations

import os
import urllib.request
from pathlib import Path

import pytest

from publishers.demo.node_process import (
    NodeNotStarted,
    NodeProcess,
    _started_entry,
    environment_without_settings,
)


def is_running(process_id: int) -> bool:
    """Whether there is such a process."""
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


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
    assert "ledger key 'dsa:00': got unknown kind 'dsa'" in caught.value.last_words
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
