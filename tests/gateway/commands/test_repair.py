"""Tests of `gateway.commands.repair`: its report on a stream, each choice, and kills."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sluice.datastream import DataStreamer
from sluice.datastream.check.check import check_stream
from sluice.datastream.layout import HEADER_OFFSET, page_start
from sluice.gateway.commands import check
from sluice.gateway.commands.repair import command
from sluice.gateway.errors import Fatal
from sluice.gateway.store.block_store import BlockStore
from sluice.gateway.store.chain_file import pack, read_snapshot
from tests.datastream.file.test_evidence import ITEMS, put_header
from tests.datastream.file.test_evidence import filled as filled_stream
from tests.datastream.streams import bookmark, entries
from tests.gateway.commands.test_truncate import KILLER, assert_cut_holds, blocks_in
from tests.gateway.store.test_block_store import BLOCKS, filled
from tests.gateway.store.test_evidence import filled_in_groups
from tests.gateway.store.test_evidence import put_header as put_node_header
from tests.nodes import stream_bytes


def run(*arguments: object, answer: str = "") -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments], input=answer)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A folder of eight blocks whose header counts only five."""
    folder = tmp_path / "node"
    headers = filled_in_groups(folder, BLOCKS[:5], BLOCKS[5:])
    put_node_header(folder, headers[0])
    return folder


# --- a node's data folder -----------------------------------------------------------------------------------


def test_what_each_believes_and_what_each_choice_gives(data_dir: Path) -> None:
    before = {path: path.read_bytes() for path in data_dir.rglob("*") if path.is_file()}
    result = run(data_dir)
    assert result.exit_code == 1
    content = stream_bytes(data_dir)
    start = int.from_bytes(content[HEADER_OFFSET + 22 : HEADER_OFFSET + 30], "big")
    end = len(content.rstrip(b"\0"))
    assert result.stdout.splitlines() == [
        f"{data_dir}/datastream.bin: data folder of a node; a start refuses it",
        f"header             counts 91 entries in {start} bytes, ends with block 4",
        "index              covers 145 entries",
        f"behind the header  54 whole entries, to offset {end}, with blocks 5 to 7",
        "chain.json         knows of block 7",
        "--take entries  ends with block 7, 145 entries; nothing goes",
        f"--take header   ends with block 4, 91 entries; 54 entries, {end - start} bytes go",
    ]
    assert {path: path.read_bytes() for path in data_dir.rglob("*") if path.is_file()} == before
    said = json.loads(run(data_dir, "--json").stdout)
    assert said["header"] == {"entries": 91, "bytes": start, "last_block": 4}
    assert said["behind"] == {"entries": 54, "first_block": 5, "last_block": 7}
    assert (said["index_entries"], said["chain_last_block"], said["kind"]) == (145, 7, "node")
    assert [choice["take"] for choice in said["choices"]] == ["entries", "header"]
    checked = CliRunner().invoke(check.command, [str(data_dir)])
    assert checked.exit_code == 1
    assert "damage      offset 16: the index covers 145 entries of this stream" in checked.output


def test_the_header_goes_on_over_the_sound_blocks(data_dir: Path, tmp_path: Path) -> None:
    result = run(data_dir, "--take", "entries", answer="y\n")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-2:] == [
        "--take entries  ends with block 7, 145 entries; nothing goes",
        f"{data_dir}/datastream.bin ends with block 7, 145 entries now",
    ]
    assert result.stderr == "Do it? [y/N] "
    assert blocks_in(data_dir) == list(range(8))
    assert stream_bytes(data_dir) == filled(tmp_path / "good")
    assert check_stream(data_dir / "datastream.bin").findings == []
    again = run(data_dir)
    assert (again.exit_code, again.stdout) == (
        0,
        f"{data_dir}/datastream.bin: data folder of a node: nothing to repair\n",
    )


def test_the_header_is_right_and_what_is_behind_it_is_kept_elsewhere(data_dir: Path, tmp_path: Path) -> None:
    result = run(data_dir, "--take", "header", "--yes", "--json")
    assert result.exit_code == 0, result.output
    cut = data_dir / "cut-datastream-entries-91-to-144.bin"
    assert json.loads(result.stdout)["cut_to"] == str(cut)
    assert_cut_holds(cut, 5)
    assert (data_dir / "chain-of-block-7.json").exists()
    assert blocks_in(data_dir) == [0, 1, 2, 3, 4]
    assert stream_bytes(data_dir) == filled(tmp_path / "good", BLOCKS[:5])


@pytest.mark.parametrize("place", ["number", "root", "item", "link", "chain"])
def test_a_block_that_is_not_sound_is_not_counted(data_dir: Path, place: str) -> None:
    """The header advances only over sound blocks."""
    with DataStreamer.open(data_dir / "datastream.bin", read_only=True) as streamer:
        start = streamer.committed.total_length
    content = bytearray(stream_bytes(data_dir))
    blocks = BLOCKS[5:]
    if place == "chain":
        snapshot = read_snapshot(data_dir)
        assert snapshot is not None
        snapshot.chain.last_root_hash = bytes(48)
        (data_dir / "chain.json").write_text(pack(snapshot))
        expected, why = 6, "block 7 has another root hash than chain.json knows of it"
    elif place == "link":
        at = content.index(BLOCKS[4].root_hash)  # in the end of block 4; the next one names it
        content[at] ^= 1
        expected, why = 4, "block 5 names another block before it"
    elif place == "number":
        at = content.index(blocks[1].items[0], start) - 17 - 1
        content[at] ^= 1  # in the bookmark of block 6
        expected, why = 5, "got block number 6, expected 7, as in its bookmark"
    else:
        what = blocks[1].root_hash if place == "root" else blocks[1].items[2]
        at = content.index(what, start) + len(what) - 1
        content[at] ^= 1
        expected, why = 5, "block 6: "
    (data_dir / "datastream.bin").write_bytes(content)
    result = run(data_dir, "--take", "entries", "--yes", "--json")
    assert result.exit_code == 0 or place == "link", result.output
    if place == "link":
        assert "--take of" in str(result.exception)
        assert isinstance(result.exception, Fatal)
        assert bytes(content) == stream_bytes(data_dir)
        return
    said = json.loads(result.stdout)
    assert said["last_block"] == expected
    assert why in said["why_no_more"]
    assert blocks_in(data_dir) == list(range(expected + 1))


def test_a_chain_of_later_blocks_beside_a_stream_that_lacks_them(tmp_path: Path) -> None:
    """An older file came back: nothing to count, nothing to cut."""
    old, new = tmp_path / "old", tmp_path / "new"
    filled(old, BLOCKS[:3])
    filled(new)
    shutil.copy(old / "datastream.bin", new / "datastream.bin")
    result = run(new, "--take", "entries", "--yes")
    assert str(result.exception) == (f"--take of {new}/datastream.bin: got entries, expected header")
    result = run(new, "--take", "header", "--yes")
    assert result.stdout.splitlines() == [f"{new}/datastream.bin ends with block 2, 54 entries now"]
    assert blocks_in(new) == [0, 1, 2]
    assert (new / "chain-of-block-7.json").exists()


def test_no_is_no_and_nobody_is_no_leave(data_dir: Path) -> None:
    before = stream_bytes(data_dir)
    for answer in ("n\n", "\n", ""):
        result = run(data_dir, "--take", "header", answer=answer)
        assert result.exit_code
    assert run(data_dir, "--take", "header", "--json").exit_code == 2
    assert stream_bytes(data_dir) == before
    assert not list(data_dir.glob("*cut*"))


def test_what_is_sound_or_open_is_left_alone(tmp_path: Path) -> None:
    filled(tmp_path)
    assert str(run(tmp_path, "--take", "header", "--yes").exception).endswith(
        "got header, expected nothing, as nothing is wrong"
    )
    store = BlockStore.open(tmp_path)
    for words in ((), ("--take", "header", "--yes")):
        assert "the stream is in use by another program or opener" in str(run(tmp_path, *words).exception)
    store.close()


def test_what_a_commit_left_is_told(tmp_path: Path) -> None:
    store = BlockStore.open(tmp_path)
    store.append(BLOCKS[:2])
    store.begin(BLOCKS[2:3])
    store.streamer._bookmarks.close()
    store.streamer._file.disk.close()
    result = run(tmp_path)
    assert result.exit_code == 0
    assert "nothing to repair; 18 whole entries, to offset" in result.stdout
    assert "with block 2 behind the header, which opening zeroes" in result.stdout
    checked = CliRunner().invoke(check.command, [str(tmp_path)])
    assert checked.exit_code == 0, checked.output
    assert "unfinished  offset" in checked.output
    assert checked.output.endswith(
        "The next start of the node completes the unfinished work. Nothing is lost.\n"
    )


@pytest.mark.parametrize("taken", ["entries", pytest.param("header", marks=pytest.mark.slow)])
@pytest.mark.timeout(600)
def test_killed_before_each_step_the_same_again_ends_it(data_dir: Path, tmp_path: Path, taken: str) -> None:
    data_dir.rename(tmp_path / "base")
    with (tmp_path / "base" / "datastream.bin").open("r+b") as file:
        file.truncate(page_start(1))
    words = [sys.executable, "-c", KILLER, str(tmp_path), "repair", "--take", taken, "--yes"]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=500, check=True)
    count = int(done.stdout.split()[-1])
    assert count > 8
    last = 7 if taken == "entries" else 4
    for number in range(1, count + 1):
        killed = tmp_path / f"killed-{number}"
        try:
            BlockStore.open(killed).close()  # refused, or done
        except Fatal:
            result = run(killed, "--take", taken, "--yes")
            assert result.exit_code == 0, (number, result.output, result.exception)
        assert blocks_in(killed) == list(range(last + 1)), number
        if taken == "header":
            assert_cut_holds(killed / "cut-datastream-entries-91-to-144.bin", 5)


# --- a stream without blocks, and damage --------------------------------------------------------------------


def test_a_stream_goes_on_to_where_the_index_ends(tmp_path: Path) -> None:
    path = tmp_path / "s.bin"
    headers = filled_stream(path)
    put_header(path, headers[3])
    assert "stream file; a start refuses it" in run(path).stdout
    result = run(path, "--take", "entries", "--yes")
    assert result.stdout == f"{path} ends with 60 entries now\n"
    with DataStreamer.open(path) as streamer:
        assert list(streamer.read_entries(0)) == entries(*ITEMS)
        assert streamer.get_bookmark(bookmark(11)[1]) == 55


def test_of_a_stream_the_header_is_right(tmp_path: Path) -> None:
    path = tmp_path / "s.bin"
    headers = filled_stream(path)
    put_header(path, headers[3])
    result = run(path, "--take", "header", "--yes", "--cut-to", tmp_path / "kept.bin")
    assert result.exit_code == 0, result.output
    with DataStreamer.open(path) as streamer:
        assert list(streamer.read_entries(0)) == entries(*ITEMS[:20])
    with DataStreamer.open(tmp_path / "kept.bin") as streamer:
        assert list(streamer.read_entries(0)) == entries(*ITEMS[20:])


@pytest.mark.parametrize("has_index", [True, False])
def test_what_lies_behind_damage_goes_as_it_is(tmp_path: Path, has_index: bool) -> None:
    filled(tmp_path)
    path = tmp_path / "datastream.bin"
    with path.open("r+b") as file:
        file.truncate(page_start(1))  # commands read the empty pages
    with DataStreamer.open(path, read_only=True) as streamer:
        at, last = streamer.offset_of(100), streamer.offset_of(91)
    content = bytearray(path.read_bytes())
    content[at : at + 40] = bytes(40)
    path.write_bytes(content)
    if not has_index:
        shutil.rmtree(tmp_path / "datastream.db")
    before = path.read_bytes()
    result = run(tmp_path)
    assert result.exit_code == 1
    assert f"at entry 100, offset {at}" in result.stdout
    assert "--take sound  ends with block 4, 91 entries; 54 entries" in result.stdout
    assert (tmp_path / "datastream.db").exists() == has_index
    result = run(tmp_path, "--take", "sound", "--yes")
    assert result.exit_code == 0, (result.output, result.exception)
    assert blocks_in(tmp_path) == [0, 1, 2, 3, 4]
    cut = tmp_path / f"cut-datastream-bytes-from-{last}.raw"
    kept = cut.read_bytes()
    path.write_bytes(before)  # the state after a kill before the header was written: repeat
    assert run(tmp_path, "--take", "sound", "--yes").exit_code == 0
    cut.write_bytes(kept + b"x")
    path.write_bytes(before)
    assert "got a file or folder of that name" in str(run(tmp_path, "--take", "sound", "--yes").exception)
    assert path.read_bytes() == before
    cut.write_bytes(kept)
    assert cut.read_bytes() == before[last : len(before.rstrip(b"\0"))]
