"""`sluice status` against real nodes."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sluice import gateway
from sluice.gateway.cluster.node_status import NodesView
from sluice.gateway.commands import status
from sluice.gateway.commands.status import command
from sluice.gateway.node.node import Node
from tests.nodes import make_blocks
from tests.publishers.node_thread import node_thread, store

BLOCKS = make_blocks(3)
SLUICE = (sys.executable, "-m", "sluice.gateway.commands.cli")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    data_dir = tmp_path_factory.mktemp("node")
    store(data_dir, BLOCKS)
    with node_thread(data_dir) as running:
        yield running


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def test_a_table(node: Node) -> None:
    result = run(node.grpc_address, node.grpc_address)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[1].split()[:5] == [str(node.grpc_address), "active", "yes", "0", "2"]
    assert lines[-1] == "the nodes agree on block 2"


def test_json(node: Node) -> None:
    printed = json.loads(run(node.grpc_address, "--json").output)
    assert printed["common_block"] == 2
    assert printed["agree"] is None
    assert printed["nodes"][0]["verification_mode"] == "full"
    detail = printed["nodes"][0]["detail"]
    assert detail["version"] == gateway.__version__
    assert detail["stored_ranges"] == [[0, 2]]
    assert "Ed25519 block proof" in detail["plugins"]["sluice.verification"]
    assert (detail["tss"], detail["address_books"]) == (None, [])


def test_the_detail_in_words(node: Node) -> None:
    lines = run(node.grpc_address, "--detail").output.splitlines()
    assert lines[2:5] == [
        "",
        str(node.grpc_address),
        f"  version       {gateway.__version__}, blocks of HAPI 0.78.0",
    ]
    assert "  blocks        0 to 2" in lines
    assert "  sluice.block-access: getBlock" in lines
    assert len(run(node.grpc_address).output.splitlines()) == 2


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        ("nan", "'--interval': got nan, expected a number"),
        ("inf", "'--interval': inf is not in the range 0.1<=x<=86400"),
    ],
)
def test_an_interval_is_a_number(node: Node, interval: str, words: str) -> None:
    result = run(node.grpc_address, "--watch", "--interval", interval)
    assert result.exit_code == 2
    assert words in result.output


def test_a_node_that_is_away(node: Node) -> None:
    result = run(node.grpc_address, "127.0.0.1:1")
    assert result.exit_code == 1
    assert "127.0.0.1:1: UNAVAILABLE: " in result.output


def test_an_address_that_is_none() -> None:
    result = run("no:where")
    assert result.exit_code == 2
    assert "address: got 'no:where', expected HOST or HOST:PORT" in " ".join(result.output.split())


def test_watching_prints_again_and_again_until_it_is_interrupted(node: Node, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*SLUICE, "status", str(node.grpc_address), "--json", "--watch", "--interval", "0.1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = [json.loads(process.stdout.readline()) for _ in range(3)]
    process.send_signal(signal.SIGINT)
    _, complaints = process.communicate(timeout=20)
    assert {line["common_block"] for line in lines} == {2}
    assert (process.returncode, complaints.strip()) == (130, "")


def test_watching_has_one_event_loop_that_ctrl_c_ends_at_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def collect(_: object, __: object, *, detail: bool) -> NodesView:
        loops.append(asyncio.get_running_loop())
        assert len(loops) <= 3, "the signal was lost"
        if len(loops) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return NodesView([], None)

    monkeypatch.setattr(status, "collect", collect)
    assert run("127.0.0.1:1", "--watch", "--interval", "0.1").exit_code == 1
    assert len(loops) == 3
    assert len(set(loops)) == 1


def on_a_terminal(columns: int, *words: str) -> list[str]:
    """Run a command on a terminal of this width; return its lines."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    names_of_width = ("COLUMNS", "LINES")
    environment = {name: value for name, value in os.environ.items() if name not in names_of_width}
    process = subprocess.Popen([*SLUICE, *words], stdin=theirs, stdout=theirs, env=environment)
    os.close(theirs)
    text = b""
    try:
        while piece := os.read(ours, 4096):
            text += piece
    except OSError:  # Linux's error when the other side is closed
        pass
    os.close(ours)
    assert process.wait(20) == 0
    return text.decode().splitlines()


def test_a_table_that_a_terminal_is_too_narrow_for_lies_on_its_side(node: Node) -> None:
    address = str(node.grpc_address)
    lines = on_a_terminal(80, "status", address, address)
    assert max(map(len, lines)) <= 80
    assert lines[:2] == [f"node         {address}  {address}", "role         active           active"]
    assert on_a_terminal(200, "status", address)[1].split()[:2] == [address, "active"]
