"""`sluice subscribe` against a real node."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sluice.gateway.commands.cli import main
from sluice.gateway.node.node import Node
from sluice.publishers.blocks.block_places import read_chain
from sluice.publishers.commands.subscribe import _View, command
from tests.nodes import make_blocks
from tests.publishers.node_thread import node_thread, store

BLOCKS = make_blocks(10)
NOBODY = "127.0.0.1:1"
SLUICE = (sys.executable, "-m", "sluice.gateway.commands.cli")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node that holds the blocks."""
    data_dir = tmp_path_factory.mktemp("node")
    store(data_dir, BLOCKS)
    with node_thread(data_dir) as running:
        yield running


def run(*arguments: object) -> Result:
    """Run the command; what it raises is in the result."""
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def test_lines_for_a_pipe(node: Node) -> None:
    result = run("--gateway", node.grpc_address, "--from", 3, "--to", 5)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert [line.split(":")[0] for line in lines[:3]] == ["block 3", "block 4", "block 5"]
    assert lines[3].startswith("3 blocks, ")


def test_json_lines(node: Node) -> None:
    result = run("--gateway", f"{NOBODY},{node.grpc_address}", "--from", "first", "--to", 2, "--json")
    objects = [json.loads(line) for line in result.stdout.splitlines()]
    assert [one["number"] for one in objects] == [0, 1, 2]
    assert {one["gateway"] for one in objects} == {str(node.grpc_address)}
    assert all(len(one["root_hash"]) == 96 for one in objects)
    (trouble,) = result.stderr.splitlines()
    assert trouble.startswith(f"sluice: {NOBODY}: UNAVAILABLE: ")
    assert trouble.endswith("; going on with the next node")


@pytest.mark.parametrize("block_format", ["blk", "blk.gz", "blk.zst", "blk.zstd"])
def test_block_files(node: Node, tmp_path: Path, block_format: str) -> None:
    folder = tmp_path / "new" / "folder"
    result = run(
        "--gateway", node.grpc_address, "--from", 2, "--to", 6, "--out", folder, "--format", block_format
    )
    assert result.exit_code == 0, result.output
    assert result.output.startswith("5 blocks, ")
    assert sorted(path.name for path in folder.iterdir()) == [f"{n}.{block_format}" for n in range(2, 7)]
    assert list(read_chain(folder)) == BLOCKS[2:7]


@pytest.mark.parametrize(
    ("layout", "name"),
    [
        ("consensus", f"{6:036}.mf"),
        ("recent", f"000/000/000/000/000/0/{6:019}.blk.zstd"),
        ("historic", f"staging/000/000/000/000/000/0/{6:019}.blk.zstd"),
        ("bucket", "0000/0000/0000/0000/006.blk.zstd"),
    ],
)
def test_layouts_of_other_software(node: Node, tmp_path: Path, layout: str, name: str) -> None:
    arguments = ("--gateway", node.grpc_address, "--out", tmp_path, "--layout", layout)
    for first, last in ((2, 4), (3, 6)):  # begun again
        result = run(*arguments, "--from", first, "--to", last)
        assert result.exit_code == 0, result.output
    assert (tmp_path / name).is_file()
    assert list(read_chain(tmp_path)) == BLOCKS[2:7]
    staged = f"sluice: 5 blocks are in {tmp_path}/staging: a zip is written when its 10,000 are there\n"
    assert result.stderr == (staged if layout == "historic" else "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--from", "5", "--to", "4"], "--to 4 is before --from 5"),
        (["--from", "-1"], "'-1' is not a block number, 'first' or 'new'"),
        (
            ["--from", "18446744073709551615"],
            "'18446744073709551615' is not a block number, 'first' or 'new'",
        ),
        (["--from", "9" * 5000], "9' is not a block number, 'first' or 'new'"),
        (["--patience", "nan"], "'--patience': got nan, expected a number"),
        (["--layout", "recent"], "--layout and --format need --out DIR"),
        (["--format", "blk"], "--layout and --format need --out DIR"),
        (["--layout", "recent", "--format", "blk.zst"], "got blk.zst, expected blk.zstd or blk with layout"),
        (["--gateway", "no:where"], "address: got 'no:where', expected HOST or HOST:PORT"),
    ],
)
def test_what_makes_no_sense(node: Node, arguments: list[str], words: str) -> None:
    result = run("--gateway", node.grpc_address, *arguments)
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())


def test_errors_are_one_line(node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address = str(node.grpc_address)
    assert main(["subscribe", "--gateway", address, "--from", "9000"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"sluice: cannot get block 9000: {address} says NOT_AVAILABLE"
    )
    assert main(["subscribe", "--gateway", NOBODY, "--from", "0", "--patience", "0.1"]) == 1
    *troubles, end = capsys.readouterr().err.splitlines()
    assert troubles[0].endswith("; trying again")
    assert end.startswith("sluice: block 0 did not come within 0.1 s (")
    (tmp_path / "file").touch()
    arguments = ["subscribe", "--gateway", address, "--from", "0", "--to", "1", "--out"]
    assert main([*arguments, str(tmp_path / "file")]) in (1, 2)
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(("end", "status"), [((), 0), (("--to", "50"), 130)])
def test_an_interrupt_ends_it_after_the_block_in_hand(node: Node, end: tuple[str, ...], status: int) -> None:
    process = subprocess.Popen(
        [*SLUICE, "subscribe", "--gateway", str(node.grpc_address), "--from", "8", *end],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(2)]
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=20)
    assert [line.split(":")[0] for line in lines] == ["block 8", "block 9"]
    assert rest.startswith("2 blocks, ")
    assert process.returncode == status


def test_a_reader_that_has_enough_is_no_error(node: Node) -> None:
    program = f"'{sys.executable}' -m sluice.gateway.commands.cli"
    line = f"{program} subscribe --gateway {node.grpc_address} --from 0 --to 9 | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("block 0: ")
    assert (done.stderr, done.returncode) == ("", 0)


def test_a_table_on_a_terminal(node: Node) -> None:
    master, terminal = pty.openpty()
    gateways = f"{NOBODY},{node.grpc_address}"
    arguments = [*SLUICE, "subscribe", "--gateway", gateways, "--from", "0", "--to", "9"]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "200"}
    with subprocess.Popen(arguments, stdout=terminal, stderr=terminal, env=environment) as process:
        os.close(terminal)
        shown = bytearray()
        try:
            while data := os.read(master, 65536):
                shown += data
        except OSError:
            pass  # how a terminal says that nobody writes any more
    os.close(master)
    text = shown.decode()
    assert process.returncode == 0
    assert "10 blocks, " in text
    assert "of those up to block 9" in text
    assert f"{NOBODY}: UNAVAILABLE: " in text


def test_what_a_node_said_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    _View("trying again").trouble("a:1: UNKNOWN: \x1b[2Jgone")
    assert capsys.readouterr().err == "sluice: a:1: UNKNOWN: \\x1b[2Jgone; trying again\n"
