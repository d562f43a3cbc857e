"""`sluice block` against a real node."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.block import Block
from gateway.cli import main
from gateway.node import Node
from publishers import limits
from publishers.block_files import read_block_file
from publishers.block_summary import summarize
from publishers.commands.block import command
from tests.nodes import make_blocks
from tests.publishers.node_thread import node_thread, store

BLOCKS = make_blocks(4)
NOBODY = "127.0.0.1:1"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node that holds the blocks."""
    data_dir = tmp_path_factory.mktemp("node")
    store(data_dir, BLOCKS)
    with node_thread(data_dir) as running:
        yield running


def run(*arguments: object) -> Result:
    """Run the command."""
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def test_a_summary(node: Node) -> None:
    result = run(2, "--gateway", node.grpc_address)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0] == "block      2"
    assert lines[2] == f"root hash  {summarize(BLOCKS[2]).root_hash}"
    assert "           1 block header" in lines


@pytest.mark.parametrize(("number", "index"), [("latest", 3), ("0", 0)])
def test_json(node: Node, number: str, index: int) -> None:
    result = run(number, "--gateway", node.grpc_address, "--json")
    assert json.loads(result.output) == summarize(BLOCKS[index]).as_json()


@pytest.mark.parametrize("name", ["1.blk", "1.blk.gz", "1.blk.zst"])
def test_a_file(node: Node, tmp_path: Path, name: str) -> None:
    result = run(1, "--gateway", node.grpc_address, "--out", tmp_path / name)
    assert result.exit_code == 0, result.output
    assert read_block_file(tmp_path / name) == BLOCKS[1]


def test_standard_output(node: Node) -> None:
    result = run(1, "--gateway", node.grpc_address, "--out", "-")
    assert Block.from_bytes(result.stdout_bytes) == BLOCKS[1]


def test_errors_are_one_line(node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address = str(node.grpc_address)
    cases = {
        ("7", "--gateway", address): (1, f"sluice: block 7 cannot be had: {address} says NOT_FOUND"),
        ("x", "--gateway", address): (2, "'x' is not a block number or 'latest'"),
        ("0", "--gateway", NOBODY): (1, f"sluice: block 0 cannot be had: {NOBODY}: UNAVAILABLE: "),
        ("0", "--gateway", address, "--out", str(tmp_path / "no" / "x")): (1, "No such file or directory"),
    }
    for arguments, (status, words) in cases.items():
        assert main(["block", *arguments]) == status
        [line] = capsys.readouterr().err.splitlines()
        assert words in line


def test_a_node_that_says_nothing_is_waited_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BLOCK_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert main(["block", "0", "--gateway", address]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"sluice: block 0 did not come within 0.2 s ({address}: DEADLINE_EXCEEDED: ")
