"""A node whose starter is killed: real processes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from publishers.demo.node_process import NodeProcess

START_AND_WAIT = """
import sys, time
from pathlib import Path
from publishers.demo.node_process import NodeProcess
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
