"""Every example of `docs/datastream.md` runs, and prints what the page says."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from sluice.datastream import BlockingStreamFollower, FollowLimits
from tests.chaos.network import free_ports

TEXT = (Path(__file__).parents[2] / "docs" / "datastream.md").read_text(encoding="utf-8")
PORTS = ("6900", "7900")


def two_ports() -> list[str]:
    """Ports that no connection of another test gets meanwhile."""
    return [str(port) for port in free_ports(len(PORTS))]


def with_ports(text: str, ports: list[str]) -> str:
    """Put free ports in the place of the page's, in one go: 47900 ends in one of the page's."""
    return re.sub(rf"\b({'|'.join(PORTS)})\b", lambda port: ports[PORTS.index(port[0])], text)


def transcript() -> Iterator[tuple[str, list[str]]]:
    """Yield the commands of the page, with the lines that they print."""
    command = ""
    lines: list[str] = []
    for line in "\n".join(re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL)).splitlines():
        if line.startswith("$ "):
            if command:
                yield command, lines
            command, lines = line[2:], []
        elif line:
            lines.append(line)
    yield command, lines


def pattern_of(line: str) -> str:
    """Return what a printed line must match: sizes and counts differ, and … stands for the rest."""
    text = re.sub(r"(?<=total_length=|otal_entries=)\d+", "N", re.sub(r"^\d+(?= entries)", "N", line))
    return re.escape(text).replace("N", r"\d+").replace("…", ".*")


@pytest.mark.slow
def test_the_commands(tmp_path: Path) -> None:
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    script = bin_folder / "sluice"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m sluice.gateway.commands.cli "$@"\n')
    script.chmod(0o755)
    environment = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}"}
    root = str(Path(__file__).parents[2])
    environment["PYTHONPATH"] = root
    serving: list[subprocess.Popen[str]] = []
    ports = two_ports()
    try:
        for command, lines in transcript():
            # The default port may be taken on this machine.
            client = "ds client" if "--server" in command else "ds client --server 127.0.0.1:6900"
            where = with_ports(command.replace("ds client", client, 1), ports)
            if where.endswith(" &"):
                words = where.removesuffix(" &").split()
                process = subprocess.Popen(
                    words, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
                )
                serving.append(process)
                assert process.stderr is not None
                assert any("listening on" in line for line in process.stderr), command
                if len(serving) == 1:
                    wait_for_entries(int(ports[0]), 25)
                continue
            done = subprocess.run(
                where, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
            )
            assert done.returncode == 0, done.stderr
            printed = done.stdout.splitlines()
            assert len(printed) == len(lines), (command, printed)
            for line, expected in zip(printed, lines, strict=True):
                assert re.fullmatch(pattern_of(expected), line), (command, line, expected)
    finally:
        for process in serving:
            process.kill()
            process.communicate(timeout=10)


def wait_for_entries(port: int, count: int) -> None:
    """Wait until a server is there and has so many entries."""
    limits = FollowLimits(backoff_first_seconds=0.02, backoff_max_seconds=0.1)
    with BlockingStreamFollower([("127.0.0.1", port)], limits=limits) as follower:
        assert len(list(islice(follower, count))) == count


async def test_the_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    ports = two_ports()
    blocks = [with_ports(block, ports) for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)]
    names: dict[str, Any] = {}
    exec(blocks[0], names)
    exec(blocks[1], names)

    stop = asyncio.Event()
    serving = asyncio.ensure_future(names["serve"](stop))
    await asyncio.to_thread(wait_for_entries, int(ports[0]), 2)
    for block in blocks[2:]:
        await asyncio.to_thread(exec, block, names)
    await names["ask"]()
    await names["follow"](2)
    await asyncio.wait_for(names["relay"](), 20)
    stop.set()
    await serving
    assert "0 176 b'block 7'" in capsys.readouterr().out
