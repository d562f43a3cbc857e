"""`sluice generate`."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from sluice.gateway.blocks.trusted_keys import TrustedKeys
from sluice.gateway.key_files import create_private_key, public_key_hex
from sluice.publishers.blocks.block_layouts import BlockLayout
from sluice.publishers.blocks.block_places import blocks_in, read_chain
from sluice.publishers.blocks.maker import BlockMaker, MakerOptions, key_of_seed
from sluice.publishers.commands.generate import KEY_FILE_NAME, command
from sluice.publishers.errors import BlockFileError, BlockListError, MakerOptionError
from sluice.publishers.limits import MAKER_BLOCKS_MAX


def generate(folder: Path, *words: str) -> Result:
    return CliRunner().invoke(command, ["--out", str(folder), *words])


def test_blocks_and_key_are_written(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "chain"
    result = generate(folder, "--blocks", "3", "--seed", "9", "--transactions-per-block", "4")
    assert result.exit_code == 0, result.output
    key = key_of_seed(9)
    expected = BlockMaker(9, key, MakerOptions(transactions_per_block=4)).blocks(3)
    assert list(read_chain(folder)) == list(expected)
    assert [place.name for place in blocks_in(folder)] == ["0.blk.gz", "1.blk.gz", "2.blk.gz"]
    key_file = folder / KEY_FILE_NAME
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    assert load_pem_private_key(key_file.read_bytes(), None).public_key() == key.public_key()
    lines = result.output.splitlines()
    assert lines[0].startswith(f"Blocks 0 to 2 written to {folder}: ")
    assert lines[1] == f"Signed with {key_file}. Give your nodes its public half:"
    assert lines[2] == f"  --ledger-key ed25519:{public_key_hex(key)}"
    TrustedKeys.parse([lines[2].split()[1]])


def test_a_key_of_ones_own(tmp_path: Path) -> None:
    key = create_private_key(tmp_path / "own.key")
    words = ("--blocks", "1", "--key", str(tmp_path / "own.key"), "--format", "blk.zst", "--json")
    result = generate(tmp_path / "chain", *words)
    assert result.exit_code == 0, result.output
    summary = json.loads(result.output)
    assert summary["ledger_key"] == f"ed25519:{public_key_hex(key)}"
    assert (summary["first_block"], summary["last_block"], summary["blocks"]) == (0, 0, 1)
    assert [path.name for path in (tmp_path / "chain").iterdir()] == ["0.blk.zst"]


@pytest.mark.parametrize("layout", get_args(BlockLayout))
def test_layouts_of_other_software(tmp_path: Path, layout: str) -> None:
    result = generate(tmp_path, "--blocks", "3", "--layout", layout)
    assert result.exit_code == 0, result.output
    assert len(list(read_chain(tmp_path))) == 3
    staged = f"3 blocks are in {tmp_path}/staging: a zip is written when its 10,000 are there."
    assert (staged in result.output) == (layout == "historic")
    result = generate(tmp_path, "--blocks", "3")
    assert "has block files already (" in str(result.exception)


def test_a_later_part_of_a_chain_fits_to_the_first(tmp_path: Path) -> None:
    generate(tmp_path / "all", "--blocks", "5")
    generate(tmp_path / "end", "--blocks", "2", "--first-block", "3")
    assert list(read_chain(tmp_path / "end")) == list(read_chain(tmp_path / "all"))[3:]


def test_a_folder_with_blocks_is_refused_and_unchanged(tmp_path: Path) -> None:
    generate(tmp_path, "--blocks", "2")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    result = generate(tmp_path, "--blocks", "3", "--seed", "2")
    assert isinstance(result.exception, BlockListError)
    assert str(result.exception) == (
        f"{tmp_path}: has block files already (0.blk.gz to 1.blk.gz); give an empty folder"
    )
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_key_file_of_another_seed_is_not_replaced(tmp_path: Path) -> None:
    generate(tmp_path, "--blocks", "1")
    (tmp_path / "0.blk.gz").unlink()
    assert generate(tmp_path, "--blocks", "1").exit_code == 0
    (tmp_path / "0.blk.gz").unlink()
    result = generate(tmp_path, "--blocks", "1", "--seed", "2")
    assert isinstance(result.exception, BlockFileError)
    assert str(result.exception).endswith(f"{KEY_FILE_NAME}: holds another key than that of the seed")
    assert blocks_in(tmp_path) == []


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = generate(tmp_path / "file" / "chain", "--blocks", "1")
    assert isinstance(result.exception, BlockListError)
    assert result.exception.reason == "Not a directory"


@pytest.mark.parametrize(
    "words", [("--blocks", "0"), ("--blocks", "1", "--format", "zip"), ("--blocks", "x"), ()]
)
def test_wrong_use_is_exit_2(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert generate(tmp_path / "chain", *words).exit_code == 2
    assert not (tmp_path / "chain").exists()


def test_an_option_out_of_range_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    result = generate(tmp_path / "chain", "--blocks", "1", "--item-bytes", "3")
    assert isinstance(result.exception, MakerOptionError)
    assert result.exception.exit_status == 2
    assert not (tmp_path / "chain").exists()


def test_help_names_every_option() -> None:
    text = CliRunner().invoke(command, ["--help"]).output
    for option in ("--blocks", "--out", "--key", "--seed", "--first-block", "--format", "--json"):
        assert option in text


@pytest.mark.parametrize("option", ["--blocks", "--first-block"])
def test_more_blocks_than_anybody_means_are_refused(tmp_path: Path, option: str) -> None:
    """As many as the limit would take hours; the option takes the number."""
    (parameter,) = (one for one in command.params if option in one.opts)
    assert parameter.type.convert(str(MAKER_BLOCKS_MAX), parameter, None) == MAKER_BLOCKS_MAX
    words = {"--blocks": "1"} | {option: str(MAKER_BLOCKS_MAX + 1)}
    refused = generate(tmp_path / "chain", *(word for pair in words.items() for word in pair))
    assert refused.exit_code == 2
    assert f"Invalid value for '{option}': 10000001 is not in the range" in refused.stderr
    assert not (tmp_path / "chain").exists()


def test_a_disk_that_takes_no_key_is_left_without_half_a_key(tmp_path: Path) -> None:
    """Half a key was in the way of every further attempt."""
    command = [
        sys.executable,
        "-m",
        "sluice.gateway.commands.cli",
        "generate",
        "--blocks",
        "1",
        "--out",
        str(tmp_path),
    ]
    full = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh"]
    done = subprocess.run([*full, *command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, f"sluice: {tmp_path / KEY_FILE_NAME}: File too large\n")
    assert list(tmp_path.iterdir()) == []
    assert generate(tmp_path, "--blocks", "1").exit_code == 0
