"""Tests of `gateway.commands.check`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sluice.datastream import DataStreamer
from sluice.gateway.commands.check import command
from sluice.gateway.commands.cli import main
from sluice.gateway.store.block_store import BlockStore
from tests.gateway.store.test_block_store import BLOCKS, commit


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A data folder with eight blocks."""
    store = BlockStore.open(tmp_path)
    commit(store, BLOCKS)
    store.close()
    return tmp_path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def test_a_sound_data_folder(data_dir: Path) -> None:
    result = run(data_dir)
    assert result.exit_code == 0, result.output
    entries = sum(len(block.items) + 2 for block in BLOCKS)
    assert result.output == (
        f"{data_dir}/datastream.bin: {entries} entries, 8 bookmarks, 1 pages, 8 blocks: sound\n"
    )


def test_json(data_dir: Path) -> None:
    result = run("--json", data_dir / "datastream.bin")
    printed = json.loads(result.output)
    assert result.exit_code == 0
    assert (printed["sound"], printed["blocks"], printed["last_block"], printed["findings"]) == (
        True,
        8,
        7,
        [],
    )


def test_damage_in_a_block(data_dir: Path) -> None:
    path = data_dir / "datastream.bin"
    with DataStreamer.open(path, read_only=True) as streamer:
        offset = streamer.offset_of(3) - 1  # in the header of block 0
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)
    result = run("--repair", data_dir)
    assert result.exit_code == 1
    *found, last = result.output.splitlines()
    assert found[0] == "fixable     the index is of another stream, or of other entries"  # unchanged
    assert found[1].startswith("damage      entry 0, offset 4096: block 0: ")
    assert last == (
        "Nothing was repaired: committed bytes are damaged. sluice repair shows the choices; or copy the "
        "file from another node."
    )
    assert path.read_bytes() == content


def test_repair(data_dir: Path) -> None:
    path = data_dir / "datastream.bin"
    with path.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"x")
    result = run(data_dir)
    assert result.exit_code == 0
    assert result.output.splitlines()[-1] == (
        "The next start of the node completes the unfinished work. Nothing is lost."
    )
    result = run("--repair", "--json", data_dir)
    assert result.exit_code == 0
    size = path.stat().st_size
    assert json.loads(result.output)["repaired"] == [
        f"wrote zeros from offset {size - 1} on, past the end of the stream"
    ]
    assert run(data_dir).exit_code == 0


def test_what_cannot_be_checked(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with DataStreamer.open(data_dir / "datastream.bin"):
        assert main(["check", str(data_dir)]) == 1
    assert "datastream.bin: the stream is in use by another program or opener" in capsys.readouterr().err
    assert main(["check", str(data_dir / "datastream.db")]) == 1
    assert "got a folder without datastream.bin, expected a stream file in it" in capsys.readouterr().err
    assert main(["check", os.devnull]) == 1
    assert f"{os.devnull}: got neither a file nor a folder, expected a stream file" in capsys.readouterr().err


def test_two_folders_of_the_same_blocks(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    store = BlockStore.open(other)
    commit(store, BLOCKS[:5])
    store.close()
    entries = sum(len(block.items) + 2 for block in BLOCKS)
    fewer = sum(len(block.items) + 2 for block in BLOCKS[:5])
    result = run(data_dir, "--against", other)
    assert result.exit_code == 0, result.output
    assert result.output == (
        f"{data_dir}/datastream.bin and {other}/datastream.bin: the same {fewer} entries, byte for byte; "
        f"{data_dir}/datastream.bin has {entries - fewer} entries more\n"
    )
    with (other / "datastream.bin").open("r+b") as file:
        file.seek(4096 + 3)
        file.write(b"\xff")
    result = run(data_dir, "--against", other, "--json")
    assert result.exit_code == 1
    assert json.loads(result.output)["difference"]["offset"] == 4096 + 3
    assert "differ: offset 4099, entry 0: 0x00 and 0xff" in run(data_dir, "--against", other).output


def test_a_comparison_repairs_nothing(data_dir: Path) -> None:
    result = run(data_dir, "--against", data_dir, "--repair")
    assert result.exit_code == 2
    assert "--against compares and repairs nothing" in result.output


INTERRUPTED = """
import signal, sys
from sluice.datastream.file.bookmarks import BookmarkIndex
from sluice.gateway.commands.cli import main

def look(index):
    assert "sluice-index-" in str(index.folder)
    signal.raise_signal(int(sys.argv[2]))

BookmarkIndex.covered = property(look)
sys.exit(main(["check", sys.argv[1]]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_check_that_is_ended_leaves_no_copy_of_the_index(
    data_dir: Path, tmp_path_factory: pytest.TempPathFactory, number: signal.Signals
) -> None:
    folder = tmp_path_factory.mktemp("temporary")
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(data_dir), str(int(number))],
        env=os.environ | {"TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 130, done.stderr
    assert list(folder.iterdir()) == []
