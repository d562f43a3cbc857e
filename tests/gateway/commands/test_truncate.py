"""Tests of `gateway.commands.truncate`: cuts, refusals, and the state after a kill."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sluice.datastream import DataStreamer
from sluice.datastream.check.check import check_stream
from sluice.datastream.layout import BOOKMARK_TYPE, HEADER_PAGE_SIZE, PAGE_SIZE
from sluice.gateway.blocks.stream_layout import BLOCK_END_TYPE, encode
from sluice.gateway.commands.cli import main
from sluice.gateway.commands.truncate import command
from sluice.gateway.store.block_store import BlockStore
from tests.datastream.streams import commit as commit_items
from tests.datastream.streams import entries, operation, sample_file
from tests.gateway.store.test_block_store import BLOCKS, commit, filled
from tests.nodes import stream_bytes
from tests.reference_data import needs_stream

OPERATIONS = [item for number in range(5) for item in operation(number)]
KILLER = """
import os, sys
from pathlib import Path
folder, count, left = Path(sys.argv[1]), 0, 0
def counted(function):
    def step(*args, **kwargs):
        global left
        left -= 1
        if not left:
            os._exit(9)
        return function(*args, **kwargs)
    return step
for name in ("pwrite", "write", "rename", "replace", "mkdir", "rmdir", "unlink", "ftruncate"):
    setattr(os, name, counted(getattr(os, name)))
from sluice.gateway.commands.cli import main, sluice
sluice.get_command(None, sys.argv[2])  # imported once, before the forks
while True:
    count += 1
    killed = folder / f"killed-{count}"
    os.system(f"cp -r --sparse=always {folder / 'base'} {killed}")
    child = os.fork()
    if not child:
        left = count
        os._exit(main([sys.argv[2], str(killed), *sys.argv[3:]]))
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 9:
        break
print(count)
"""
"""Truncates copies of a folder, and kills each before another change of the disk.

A kill before a flush leaves what one before the next change leaves."""


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A data folder with eight blocks."""
    filled(tmp_path)
    return tmp_path


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    """A stream file without blocks, of another type."""
    path = tmp_path / "s.bin"
    with DataStreamer.open(path, stream_type=3, initial_pages=1) as streamer:
        commit_items(streamer, *OPERATIONS)
    return path


def run(*arguments: object, answer: str = "") -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments], input=answer)


def blocks_in(data_dir: Path) -> list[int]:
    store = BlockStore.open(data_dir)
    try:
        assert store.first_number is not None
        assert store.last_number is not None
        numbers = list(range(store.first_number, store.last_number + 1))
        for number in numbers:
            stored = store.read_block(number)
            assert stored is not None
            assert stored.items == tuple(BLOCKS[number].items)
        assert store.chain.last_root_hash == BLOCKS[numbers[-1]].root_hash
        return numbers
    finally:
        store.close()


def assert_cut_holds(cut: Path, first: int) -> None:
    """The cut file has all blocks from `first` on, and is sound but for its index."""
    expected = [
        entry for block in BLOCKS[first:] for entry in encode(block.number, block.items, block.root_hash)
    ]
    with DataStreamer.open(cut) as streamer:
        assert list(streamer.read_entries(0)) == entries(*expected)
    assert check_stream(cut).findings == []


# --- a node's data folder -----------------------------------------------------------------------------------


def test_the_last_blocks_of_a_node_are_cut_when_somebody_says_yes(data_dir: Path, tmp_path: Path) -> None:
    result = run(data_dir, "--to-block", 4, answer="y\n")
    assert result.exit_code == 0, result.output
    cut = data_dir / "cut-blocks-5-to-7.bin"
    assert result.stdout.splitlines() == [
        f"{data_dir}/datastream.bin: data folder of a node, 145 entries",
        "stays  blocks 0 to 4, entries 0 to 90",
        "goes   blocks 5 to 7 of 2026-01-01T00:00:10Z to 2026-01-01T00:00:14Z, entries 91 to 144, 6462 bytes",
        f"       to {cut} first",
        f"{data_dir}/datastream.bin ends with block 4, 91 entries now",
        f"What was cut is in {cut}",
    ]
    assert result.stderr == "Cut it? [y/N] "
    assert json.loads((data_dir / "chain.json").read_text())["chain"]["last_number"] == 4
    assert blocks_in(data_dir) == [0, 1, 2, 3, 4]
    assert stream_bytes(data_dir) == filled(tmp_path / "never cut", BLOCKS[:5])
    assert check_stream(data_dir / "datastream.bin").findings == []
    assert_cut_holds(cut, 5)
    store = BlockStore.open(data_dir)
    commit(store, BLOCKS[5:])
    store.close()
    assert blocks_in(data_dir) == list(range(8))
    assert stream_bytes(data_dir) == filled(tmp_path / "never cut either")


def test_no_is_no_and_nobody_is_no_leave(data_dir: Path) -> None:
    for answer, status in (("n\n", 1), ("\n", 1), ("", 2)):
        assert run(data_dir, "--to-block", 4, answer=answer).exit_code == status
    assert blocks_in(data_dir) == list(range(8))
    assert not list(data_dir.glob("*cut*"))


def test_json_and_the_same_again(data_dir: Path) -> None:
    place = data_dir.parent / f"{data_dir.name}.cut"
    result = run(data_dir, "--to-block", 6, "--yes", "--json", "--cut-to", place)
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert said == {
        "file": f"{data_dir}/datastream.bin",
        "kind": "node",
        "truncated": True,
        "kept_entries": 127,
        "cut_entries": 18,
        "cut_bytes": 2153,
        "network": None,
        "cut_to": str(place),
        "last_block": 6,
        "cut_first_block": 7,
        "cut_last_block": 7,
    }
    assert_cut_holds(place, 7)
    again = run(data_dir, "--to-block", 6, "--yes", "--json", "--cut-to", place)
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["truncated"] is False
    assert run(data_dir, "--to-block", 6).stdout == (
        f"{data_dir}/datastream.bin already ends with block 6, 127 entries: nothing was changed\n"
    )


@pytest.mark.parametrize(
    ("words", "status", "line"),
    [
        ("--to-block 8", 1, "--to-block: got 8, expected 0 to 7, the blocks of {}"),
        ("--to-entry 5", 2, "{} is the stream of a node, which holds whole blocks: expected --to-block"),
        (
            "--to-bookmark 0802",
            2,
            "{} is the stream of a node, which holds whole blocks: expected --to-block",
        ),
        ("", 2, "expected one of --to-block, --to-entry and --to-bookmark"),
        ("--to-block 1 --to-entry 1", 2, "expected one of --to-block, --to-entry and --to-bookmark"),
        ("--to-block 1 --json", 2, "--json cannot ask: expected --yes with it"),
        ("--to-block -1", 2, "Invalid value for '--to-block'"),
        ("--to-block 1 --yes --cut-to {}", 1, "{}: got a file or folder of that name, expected a new file"),
    ],
)
def test_what_is_refused_of_a_node(
    data_dir: Path, words: str, status: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(data_dir / "datastream.bin")
    assert main(["truncate", str(data_dir), *words.format(file).split()]) == status
    assert line.format(file) in capsys.readouterr().err
    assert blocks_in(data_dir) == list(range(8))


def test_a_chain_keeps_a_block(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = BlockStore.open(tmp_path)
    commit(store, BLOCKS[3:5])
    store.close()
    assert main(["truncate", str(tmp_path), "--to-block", "2", "--yes"]) == 1
    assert "got 2, expected 3 to 4" in (said := capsys.readouterr().err)
    assert "to drop them all, take an empty folder" in said
    assert main(["truncate", str(tmp_path), "--to-block", "3", "--yes"]) == 0


def test_a_stream_that_is_open_is_refused(
    data_dir: Path, stream: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = BlockStore.open(data_dir)
    assert main(["truncate", str(data_dir), "--to-block", "4", "--yes"]) == 1
    assert "the stream is in use by another program or opener" in capsys.readouterr().err
    store.close()
    with DataStreamer.open(stream, stream_type=3, read_only=True):
        assert main(["truncate", str(stream), "--to-entry", "4", "--yes"]) == 1
    assert "the stream is in use by another program or opener" in capsys.readouterr().err
    assert not list(data_dir.glob("*cut*"))


def test_what_is_no_stream(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.bin").write_text("not a stream")
    assert main(["truncate", str(tmp_path / "text.bin"), "--to-entry", "4", "--yes"]) == 1
    assert "text.bin" in capsys.readouterr().err
    assert main(["truncate", str(tmp_path), "--to-block", "4", "--yes"]) == 1
    assert "got a folder without datastream.bin" in capsys.readouterr().err
    with DataStreamer.open(tmp_path / "empty.bin", initial_pages=0):
        pass
    assert main(["truncate", str(tmp_path / "empty.bin"), "--to-entry", "0", "--yes"]) == 1
    assert "--to-entry: got 0, expected an entry to cut" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_before_each_step_the_folder_is_whole_and_the_same_again_ends_it(tmp_path: Path) -> None:
    base = tmp_path / "base"
    filled(base)
    with (base / "datastream.bin").open("r+b") as file:
        file.truncate(HEADER_PAGE_SIZE + PAGE_SIZE)
    (base / "role.json").write_text('{"role": "standby"}\n')
    words = [sys.executable, "-c", KILLER, str(tmp_path), "truncate", "--to-block", "4", "--yes"]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=500, check=True)
    count = int(done.stdout.split()[-1])
    assert count > 15
    seen = set()
    for number in range(1, count + 1):
        killed = tmp_path / f"killed-{number}"
        cut = killed / "cut-blocks-5-to-7.bin"
        last_in_snapshot = json.loads((killed / "chain.json").read_text())["chain"]["last_number"]
        with DataStreamer.open(killed / "datastream.bin", read_only=True) as streamer:
            end = streamer.get_entry(streamer.committed.total_entries - 1)
        assert end.type == BLOCK_END_TYPE
        last = int.from_bytes(end.data[:8], "big")
        assert last_in_snapshot <= last, number
        subprocess.run(["cp", "-r", "--sparse=always", killed, tmp_path / f"again-{number}"], check=True)
        assert blocks_in(killed) == list(range(last + 1)), number
        if last == 4:
            assert_cut_holds(cut, 5)
        seen.add((last, last_in_snapshot, cut.exists()))
        again = tmp_path / f"again-{number}"
        result = run(again, "--to-block", 4, "--yes")
        assert result.exit_code == 0, (number, result.output)
        assert blocks_in(again) == [0, 1, 2, 3, 4]
        assert_cut_holds(again / "cut-blocks-5-to-7.bin", 5)
        left = {path.name for path in again.iterdir()} - {".cut-blocks-5-to-7.bin.part"}
        assert left == {
            *("chain.json", "cut-blocks-5-to-7.bin", "cut-blocks-5-to-7.db", "role.json"),
            *("datastream.bin", "datastream.db"),
        }
        assert check_stream(again / "datastream.bin").findings == []
    assert seen == {(7, 7, False), (7, 7, True), (7, 4, True), (4, 4, True)}


# --- a stream without blocks --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ("--to-entry 11", 12),
        ("--to-entry 0", 1),
        ("--to-bookmark l2block:2", 10),
        ("--to-bookmark 0:2", 10),
        ("--to-bookmark 000000000000000002", 10),
        ("--to-bookmark batch:2", 11),
        ("--to-bookmark 1:2", 11),
        ("--to-bookmark 000000000000000000", 0),
    ],
)
def test_a_stream_is_cut_behind_an_entry_or_before_a_bookmark(stream: Path, words: str, kept: int) -> None:
    result = run(stream, *words.split(), "--yes")
    assert result.exit_code == 0, result.output
    cut = stream.parent / f"cut-s-entries-{kept}-to-24.bin"
    assert result.stdout.splitlines() == [
        f"{stream} ends with {kept} entries now",
        f"What was cut is in {cut}",
    ]
    with DataStreamer.open(stream, stream_type=3) as streamer:
        assert list(streamer.read_entries(0)) == entries(*OPERATIONS[:kept])
        commit_items(streamer, *OPERATIONS[kept:])
        assert list(streamer.read_entries(0)) == entries(*OPERATIONS)
        assert streamer.get_bookmark(OPERATIONS[10][1]) == 10
    assert check_stream(stream).findings == []
    with DataStreamer.open(cut, stream_type=3) as streamer:
        assert list(streamer.read_entries(0)) == entries(*OPERATIONS[kept:])


def test_what_is_asked_about_a_stream(stream: Path) -> None:
    result = run(stream, "--to-bookmark", "l2block:2", answer="no\n")
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        f"{stream}: stream file, 25 entries",
        "stays  entries 0 to 9",
        "goes   entries 10 to 24, 354 bytes",
        f"       to {stream.parent}/cut-s-entries-10-to-24.bin first",
    ]


@pytest.mark.parametrize(
    ("words", "status", "line"),
    [
        ("--to-block 1", 2, "--to-block: {} does not end with a block: expected --to-entry or --to-bookmark"),
        ("--to-entry 25", 1, "--to-entry: got 25, expected at most 24, the last of {}"),
        (
            "--to-bookmark l2block:9",
            1,
            "--to-bookmark: got 08021009 and 000000000000000009, expected a bookmark that is in {}",
        ),
        (
            "--to-bookmark 256:1",
            2,
            "got '256:1', expected 1 to 16 bytes in hex, l2block:N, batch:N or 0..255:N",
        ),
        ("--to-bookmark abc", 2, "got 'abc', expected 1 to 16 bytes in hex"),
        (f"--to-bookmark {'00' * 17}", 2, "expected 1 to 16 bytes in hex"),
        ("--to-bookmark l2block:18446744073709551616", 2, "expected 1 to 16 bytes in hex"),
    ],
)
def test_what_is_refused_of_a_stream(
    stream: Path, words: str, status: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = stream.read_bytes()
    assert main(["truncate", str(stream), *words.split(), "--yes"]) == status
    assert line.format(stream) in capsys.readouterr().err
    assert stream.read_bytes() == before


def test_a_copy_of_a_nodes_stream_is_cut_by_blocks_or_entries(data_dir: Path) -> None:
    """Like a relay's: without chain.json."""
    copy = data_dir / "relay.bin"
    (data_dir / "datastream.bin").rename(copy)
    (data_dir / "datastream.db").rename(data_dir / "relay.db")
    (data_dir / "chain.json").unlink()
    result = run(copy, "--to-block", 4, "--yes", "--json")
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert (said["kind"], said["kept_entries"], said["last_block"]) == ("stream", 91, 4)
    assert run(copy, "--to-block", 9, "--yes").exit_code == 1
    assert run(copy, "--to-entry", 60, "--yes").exit_code == 0
    assert not (data_dir / "chain.json").exists()
    with DataStreamer.open(copy) as streamer:
        assert streamer.committed.total_entries == 61


@needs_stream
def test_a_stream_of_the_go_server_is_cut_before_a_block(tmp_path: Path) -> None:
    path = sample_file(tmp_path)
    with DataStreamer.open(path, read_only=True) as streamer:
        before = list(streamer.read_entries(0))
    marks = [entry for entry in before if entry.type == BOOKMARK_TYPE]
    mark = marks[len(marks) // 2]
    number = max(entry.number for entry in marks if entry.data == mark.data)
    result = run(path, "--to-bookmark", mark.data.hex(), "--yes", "--json", "--cut-to", tmp_path / "cut.bin")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["kept_entries"] == number
    with DataStreamer.open(path, read_only=True) as streamer, DataStreamer.open(tmp_path / "cut.bin") as cut:
        assert list(streamer.read_entries(0)) == before[:number]
        assert [one.data for one in cut.read_entries(0)] == [one.data for one in before[number:]]
    assert check_stream(path).findings == []
