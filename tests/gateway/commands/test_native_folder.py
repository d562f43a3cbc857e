"""`sluice truncate`, `sluice repair` and `sluice check` of the two files of a native chain."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from sluice.datastream import DataStreamer
from sluice.datastream.check.check import check_stream
from sluice.datastream.layout import BOOKMARK_TYPE, DATA_SIZE_MAX, HEADER_PAGE_SIZE, PAGE_SIZE
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.items import field_item, stream_entry_item
from sluice.gateway.blocks.merkle import EMPTY_HASH, StreamingTree
from sluice.gateway.blocks.stream_layout import BlockDecoder
from sluice.gateway.commands import truncate
from sluice.gateway.store.block_store import BlockStore
from sluice.publishers.blocks.linking import sign_block
from tests.datastream.streams import sample_file
from tests.gateway.block_makers import footer_item, header_item, proof_item, summary_of
from tests.gateway.commands.test_truncate import KILLER
from tests.gateway.node.test_native import sample_blocks
from tests.gateway.store.test_block_store import verified
from tests.nodes import KEY
from tests.reference_data import needs_stream

FILES = ("datastream.bin", "blocks.bin")


def chain_of(*bodies: list[bytes]) -> list[Block]:
    """Return linked, signed blocks with these items between header and footer."""
    made: list[Block] = []
    tree, previous = StreamingTree(), EMPTY_HASH
    for number, body in enumerate(bodies):
        items = [header_item(number), *body, footer_item(previous, tree.root()), proof_item(number)]
        made.append(Block(number, sign_block(number, items, KEY)))
        previous = summary_of(list(made[-1].items)).root_hash
        tree.push(previous)
    return made


def body(number: int) -> list[bytes]:
    """Return a bookmark, an entry, an item that is none, another entry."""
    mark, entry, last = ((BOOKMARK_TYPE, b"m%d" % number), (9, bytes([number]) * 90), (9, b"end"))
    items = [stream_entry_item(*one) for one in (mark, entry, last)]
    return [*items[:2], field_item(4, bytes([number]) * 50), items[2]]


CHAIN = chain_of(*(body(number) if number != 6 else [] for number in range(8)))
"""Block 6 has no entry of the network."""
ENTRIES = [3 * number - 3 * (number > 6) for number in range(9)]
"""Entries of the network before each block, and behind the last."""


def fill(folder: Path, blocks: list[Block], size: int = 3) -> None:
    store = BlockStore.open(folder, layout="native")
    for start in range(0, len(blocks), size):
        group = [verified(block) for block in blocks[start : start + size]]
        store.append(group)
        for block in group:
            store.advance(block)
    store.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A native chain of eight blocks."""
    fill(tmp_path / "node", CHAIN)
    return tmp_path / "node"


def run(command: click.Command, *arguments: object, answer: str = "") -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments], input=answer)


def held(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in (*FILES, "chain.json")]


def assert_holds(folder: Path, chain: list[Block]) -> None:
    """Assert that a start finds exactly these blocks, and both files are sound and as of a fresh node."""
    store = BlockStore.open(folder)
    try:
        assert store.last_number == chain[-1].number
        assert [store.read_block(block.number).items for block in chain] == [  # type: ignore[union-attr]
            tuple(block.items) for block in chain
        ]
        assert store.pair is not None
        expected = store.pair.entries_before(len(chain))
        assert store.pair.network.committed.total_entries == expected
    finally:
        store.close()
    for name in FILES:
        assert check_stream(folder / name).findings == []


def blocks_of(cut: Path) -> list[Block]:
    """Return the blocks of a stream file, which is sound and of layout 2."""
    decoder = BlockDecoder()
    with DataStreamer.open(cut) as streamer:
        found = [decoder.feed(entry.type, entry.data) for entry in streamer.read_entries(0)]
    assert check_stream(cut).findings == []
    return [Block(block.number, block.items) for block in found if block is not None]


# --- truncate -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", *FILES])
def test_the_last_blocks_are_cut_off_both_files(folder: Path, tmp_path: Path, name: str) -> None:
    with DataStreamer.open(folder / "blocks.bin", read_only=True) as blocks:
        kept, total = blocks.get_bookmark(b"\x08\x02\x10\x05"), blocks.committed
        cut_bytes = total.total_length - blocks.offset_of(kept)
    with DataStreamer.open(folder / "datastream.bin", read_only=True) as network:
        network_bytes = network.committed.total_length - network.offset_of(15)
    result = run(truncate.command, folder / name, "--to-block", 4, answer="y\n")
    assert result.exit_code == 0, (result.output, result.exception)
    cut = folder / "cut-blocks-5-to-7.bin"
    last = total.total_entries - 1
    goes = f"entries 15 to 20 of datastream.bin, {network_bytes} bytes"
    assert result.stdout.splitlines() == [
        f"{folder}/blocks.bin: data folder of a node, {last + 1} entries, 21 in datastream.bin",
        f"stays  blocks 0 to 4, entries 0 to {kept - 1}, entries 0 to 14 of datastream.bin",
        f"goes   blocks 5 to 7 of 2023-11-14T22:13:20Z, entries {kept} to {last}, {cut_bytes} bytes, {goes}",
        f"       to {cut} first",
        f"{folder}/blocks.bin ends with block 4, {kept} entries, 15 in datastream.bin now",
        f"What was cut is in {cut}",
    ]
    assert blocks_of(cut) == [Block(block.number, tuple(block.items)) for block in CHAIN[5:]]
    assert_holds(folder, CHAIN[:5])
    fill(tmp_path / "never cut", CHAIN[:5])
    assert held(folder) == held(tmp_path / "never cut")
    again = run(truncate.command, folder, "--to-block", 4, "--yes")
    assert again.stdout == (
        f"{folder}/blocks.bin already ends with block 4, {kept} entries, 15 in datastream.bin: nothing was "
        "changed\n"
    )
    fill(folder, CHAIN[5:])
    assert_holds(folder, CHAIN)


def test_what_a_program_is_told(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "elsewhere.bin"
    result = run(truncate.command, folder, "--to-block", 5, "--yes", "--json", "--cut-to", place)
    assert result.exit_code == 0, (result.output, result.exception)
    said = json.loads(result.stdout)
    assert said.pop("cut_bytes") > 0
    assert said["network"].pop("cut_bytes") > 0
    assert said == {
        "file": f"{folder}/blocks.bin",
        "kept_entries": 48,
        "cut_entries": 13,
        "network": {"file": f"{folder}/datastream.bin", "kept_entries": 18, "cut_entries": 3},
        "kind": "node",
        "truncated": True,
        "cut_to": str(place),
        "last_block": 5,
        "cut_first_block": 6,
        "cut_last_block": 7,
    }
    assert [block.number for block in blocks_of(place)] == [6, 7]


@pytest.mark.parametrize("name", ["", *FILES])
@pytest.mark.parametrize("options", [["--to-entry", "5"], ["--to-bookmark", "l2block:3"]])
def test_either_file_is_cut_by_blocks_only(folder: Path, name: str, options: list[str]) -> None:
    before = held(folder)
    result = run(truncate.command, *options, "--yes", folder / name)
    assert result.exit_code == 2
    assert f"{folder} has the two files of a native chain: expected --to-block" in result.output
    assert held(folder) == before


@pytest.mark.parametrize("gone", FILES)
@pytest.mark.parametrize("named", ["", *FILES])
def test_a_chain_that_lacks_a_file_is_left_alone(folder: Path, gone: str, named: str) -> None:
    (folder / gone).unlink()
    for options in (["--to-block", "3"], ["--to-entry", "5"]):
        result = run(truncate.command, *options, "--yes", folder / named)
        assert result.exit_code in (1, 2)
        if named != gone:
            assert f"{folder / gone}: got no such file, expected the other file of the native chain" in str(
                result.exception
            )
    assert not (folder / gone).exists()


def test_a_stream_that_is_only_named_so_is_cut_by_entries(tmp_path: Path) -> None:
    path = tmp_path / "blocks.bin"
    with DataStreamer.open(path) as streamer:
        streamer.start_atomic_op()
        for _ in range(5):
            streamer.add_stream_entry(1, b"x")
        streamer.commit_atomic_op()
    assert run(truncate.command, path, "--to-entry", 2, "--yes").exit_code == 0


def test_what_is_longer_than_an_entry_is_cut_in_pieces(tmp_path: Path) -> None:
    """A stream entry item is longer than the entry of the network that it is."""
    longest, long_item = stream_entry_item(9, bytes(DATA_SIZE_MAX)), field_item(4, bytes(2_500_000))
    chain = chain_of(body(0), [longest, long_item, longest], body(2))
    fill(tmp_path / "node", chain)
    result = run(truncate.command, tmp_path / "node", "--to-block", 0, "--yes")
    assert result.exit_code == 0, (result.output, result.exception)
    found = blocks_of(tmp_path / "node" / "cut-blocks-1-to-2.bin")
    assert [list(block.items) for block in found] == [list(block.items) for block in chain[1:]]
    assert_holds(tmp_path / "node", chain[:1])


@needs_stream
def test_a_networks_stream_is_cut_and_grown_again_byte_for_byte(tmp_path: Path) -> None:
    chain = sample_blocks(sample_file(tmp_path), "l2block", 300)
    fill(tmp_path / "node", chain, 50)
    before = held(tmp_path / "node")
    result = run(truncate.command, tmp_path / "node", "--to-block", 120, "--yes")
    assert result.exit_code == 0, (result.output, result.exception)
    assert_holds(tmp_path / "node", chain[:121])
    assert len(blocks_of(tmp_path / "node" / "cut-blocks-121-to-299.bin")) == 179
    fill(tmp_path / "node", chain[121:], 50)
    assert held(tmp_path / "node") == before


def killed_folders(base: Path, *words: object) -> list[Path]:
    """Run a command on copies of a folder, and kill each before another change of the disk."""
    for name in FILES:
        with (base / name).open("r+b") as file:
            file.truncate(HEADER_PAGE_SIZE + PAGE_SIZE)
    base.rename(base.parent / "base")
    arguments = [sys.executable, "-c", KILLER, str(base.parent), *map(str, words)]
    done = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, timeout=500, check=True)
    count = int(done.stdout.split()[-1])
    return [base.parent / f"killed-{number}" for number in range(1, count + 1)]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_before_each_step_the_same_cut_again_ends_it(folder: Path) -> None:
    seen = set()
    folders = killed_folders(folder, "truncate", "--to-block", 4, "--yes")
    assert len(folders) > 25
    for killed in folders:
        again = killed.with_name(f"again-{killed.name}")
        subprocess.run(["cp", "-r", "--sparse=always", killed, again], check=True)
        store = BlockStore.open(killed)
        last = store.last_number
        store.close()
        assert last in (4, 7)
        assert_holds(killed, CHAIN[: last + 1])
        result = run(truncate.command, again, "--to-block", 4, "--yes")
        assert result.exit_code == 0, (again, result.output, result.exception)
        assert_holds(again, CHAIN[:5])
        assert [block.number for block in blocks_of(again / "cut-blocks-5-to-7.bin")] == [5, 6, 7]
        seen.add(last)
    assert seen == {4, 7}
