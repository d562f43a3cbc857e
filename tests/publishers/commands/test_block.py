"""`sluice block` against a real node."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sluice.gateway.api import block_pb2, node_pb2
from sluice.gateway.blocks.block import Block
from sluice.gateway.commands.cli import main
from sluice.gateway.limits import BLOCK_ANSWER_BYTES_MAX
from sluice.gateway.node.node import Node
from sluice.gateway.transport.channels import WHOLE_BLOCKS
from sluice.publishers.blocks.block_files import read_block_file
from sluice.publishers.blocks.block_summary import summarize
from sluice.publishers.commands.block import command, get_block
from sluice.publishers.errors import SourceRefused, SourceUnreachable
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


@pytest.mark.parametrize("name", ["1.blk", "1.blk.gz", "1.blk.zst", "1.blk.zstd"])
def test_a_file(node: Node, tmp_path: Path, name: str) -> None:
    result = run(1, "--gateway", node.grpc_address, "--out", tmp_path / name)
    assert result.exit_code == 0, result.output
    assert read_block_file(tmp_path / name) == BLOCKS[1]


@pytest.mark.parametrize(
    ("layout", "name"),
    [
        ("plain", "1.blk.gz"),
        ("consensus", f"{1:036}.blk.gz"),
        ("recent", f"000/000/000/000/000/0/{1:019}.blk.zstd"),
        ("bucket", "0000/0000/0000/0000/001.blk.zstd"),
    ],
)
def test_a_file_in_a_layout_of_other_software(node: Node, tmp_path: Path, layout: str, name: str) -> None:
    result = run(1, "--gateway", node.grpc_address, "--out", tmp_path / "new", "--layout", layout)
    assert result.exit_code == 0, result.output
    assert read_block_file(tmp_path / "new" / name) == BLOCKS[1]


def test_a_file_that_is_there_is_replaced_where_a_link_leads(node: Node, tmp_path: Path) -> None:
    (tmp_path / "1.blk").write_bytes(b"before")
    (tmp_path / "link").symlink_to("1.blk")
    assert run(1, "--gateway", node.grpc_address, "--out", tmp_path / "link").exit_code == 0
    assert (tmp_path / "link").is_symlink()
    assert read_block_file(tmp_path / "1.blk") == BLOCKS[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.blk", "link"]


def test_standard_output(node: Node) -> None:
    result = run(1, "--gateway", node.grpc_address, "--out", "-")
    assert Block.from_bytes(result.stdout_bytes) == BLOCKS[1]


def test_errors_are_one_line(node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address = str(node.grpc_address)
    cases = {
        ("7", "--gateway", address): (1, f"sluice: cannot get block 7: {address} says NOT_AVAILABLE"),
        ("x", "--gateway", address): (2, "'x' is not a block number or 'latest'"),
        ("9" * 5000, "--gateway", address): (2, "9' is not a block number or 'latest'"),
        ("0", "--gateway", NOBODY): (1, f"sluice: cannot get block 0: {NOBODY}: UNAVAILABLE: "),
        ("0", "--gateway", address, "--out", str(tmp_path / "no" / "x")): (1, "No such file or directory"),
        ("0", "--gateway", address, "--out", str(tmp_path)): (
            2,
            f"got the folder {tmp_path}, expected a file",
        ),
        ("0", "--gateway", address, "--layout", "recent"): (2, "--layout needs --out DIR"),
        ("0", "--gateway", address, "--layout", "recent", "--out", "-"): (2, "--layout needs --out DIR"),
        ("0", "--gateway", address, "--layout", "historic"): (2, "'historic' is not one of 'plain', "),
    }
    for arguments, (status, words) in cases.items():
        assert main(["block", *arguments]) == status
        [line] = capsys.readouterr().err.splitlines()
        assert words in line


def test_a_node_that_says_nothing_is_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(SourceUnreachable) as caught:
            get_block(address, 0, timeout_seconds=0.2)
    assert str(caught.value).startswith(f"block 0 did not come within 0.2 s ({address}: DEADLINE_EXCEEDED: ")


def test_a_link_is_left_where_it_is(node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "loop").symlink_to("loop")
    words = ["block", "1", "--gateway", str(node.grpc_address), "--out", str(tmp_path / "loop")]
    assert main(words) == 1
    assert capsys.readouterr().err == f"sluice: {tmp_path / 'loop'}: Too many levels of symbolic links\n"
    assert (tmp_path / "loop").is_symlink()


@pytest.mark.parametrize("is_there", [False, True])
def test_a_disk_that_does_not_take_it_is_left_without_half_a_block(
    node: Node, tmp_path: Path, is_there: bool
) -> None:
    """What was there stays in its place: it may be a device."""
    path = tmp_path / "1.blk"
    if is_there:
        path.write_bytes(b"before")
    words = [
        "sh",
        "-c",
        'ulimit -f 0; exec "$@"',
        "sh",
        sys.executable,
        "-m",
        "sluice.gateway.commands.cli",
        "block",
        "1",
    ]
    words += ["--gateway", str(node.grpc_address), "--out", str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, f"sluice: {path}: File too large\n")
    assert path.exists() is is_there


def test_a_block_of_so_many_bytes_is_taken_and_of_one_more_not(node: Node) -> None:
    """Of an answer with 1 GiB otherwise."""
    assert dict(WHOLE_BLOCKS) == {"grpc.max_receive_message_length": BLOCK_ANSWER_BYTES_MAX}
    answer = node_pb2.BlockResponse(
        status=node_pb2.BlockResponse.Code.SUCCESS, block=block_pb2.Block(items=BLOCKS[1].items)
    )
    for more_bytes in (0, -1):
        options = (("grpc.max_receive_message_length", answer.ByteSize() + more_bytes),)
        if not more_bytes:
            assert get_block(str(node.grpc_address), 1, options=options) == BLOCKS[1]
            continue
        with pytest.raises(SourceRefused, match="RESOURCE_EXHAUSTED: "):
            get_block(str(node.grpc_address), 1, options=options)
