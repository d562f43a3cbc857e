"""The README's transcript, run as it stands, in a folder of its own."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PORTS = (40840, 40841, 6900, 16007)
BLOCKS_SHOWN = 10
SECONDS = 200.0
"""The time for all of it; if somebody else takes its ports, it waits for ever."""


def transcript() -> str:
    """The second code block under "Try it", without its first line, which sets up."""
    readme = (REPOSITORY / "README.md").read_text("utf-8")
    blocks = re.findall(r"^```\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    (found,) = (block for block in blocks if "sluice serve" in block)
    set_up, _, rest = str(found).partition("\n")
    assert set_up == "make setup && . .venv/bin/activate"
    return rest


@contextmanager
def kept(ports: Sequence[int]) -> Iterator[list[int]]:
    """Reserve ports against connections, which the kernel gives free ones; return those in use.

    A bound socket that does not listen disturbs no server, since servers set SO_REUSEADDR.
    """
    busy = []
    with ExitStack() as stack:
        for port in ports:
            keeper = stack.enter_context(socket.socket())
            keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                keeper.bind(("127.0.0.1", port))
            except OSError:
                busy.append(port)
        yield busy


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("java")
def test_the_transcript_runs(tmp_path: Path) -> None:
    # `publish` waits for the node by itself; what follows it needs no pause either.
    script = "set -euo pipefail\n" + transcript()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with kept(PORTS) as busy:
        if busy:
            pytest.skip(f"the README's ports are in use here: {busy}")
        process = subprocess.Popen(
            ["bash", "-c", script],
            cwd=tmp_path,
            env=os.environ | {"PATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, errors = process.communicate(timeout=SECONDS)
        finally:
            with suppress(ProcessLookupError):  # what it has started would go on without it
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 0, errors
    entries = re.findall(r"^(\d+) (0x\w+) (\d+) bytes$", out, re.MULTILINE)
    assert [int(number) for number, _, _ in entries] == list(range(BLOCKS_SHOWN))
    assert [entry_type for _, entry_type, _ in entries[:3]] == ["0xb0", "0x1", "0x3"]


@pytest.mark.skipif(not (REPOSITORY / ".git").exists(), reason="needs a clone with its .git")
def test_what_the_transcript_leaves_in_a_clone_is_ignored() -> None:
    """A private key is among it."""
    left = ["network.key", "blocks/0.blk", "node.log", "sluice-data/datastream.bin"]
    assert all(name.split("/")[0] in f"{transcript()} sluice-data" for name in left)
    done = subprocess.run(
        ["git", "check-ignore", *left], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == left


def test_what_contributing_runs_selects_a_test() -> None:
    """pytest ends with a failure where nothing is selected, and so would `make`."""
    text = (REPOSITORY / "CONTRIBUTING.md").read_text("utf-8")
    (shown,) = re.findall(r'^make test ARGS="(\S+) -k (\w+)"$', text, re.MULTILINE)
    path, word = shown
    names = re.findall(r"^def (test_\w+)", (REPOSITORY / path).read_text("utf-8"), re.MULTILINE)
    assert [name for name in names if word in name]
