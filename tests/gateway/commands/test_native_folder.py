"""`sluice truncate`, `sluice repair` and `sluice check` of the two files of a native chain."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from sluice.datastream import DataStreamer
from sluice.datastream.check.check import check_stream
from sluice.datastream.errors import DatastreamError
from sluice.datastream.layout import BOOKMARK_TYPE, DATA_SIZE_MAX, HEADER_PAGE_SIZE, PAGE_SIZE
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.items import field_item, stream_entry_item
from sluice.gateway.blocks.merkle import EMPTY_HASH, StreamingTree
from sluice.gateway.blocks.stream_layout import BlockDecoder
from sluice.gateway.commands import check, repair, truncate
from sluice.gateway.errors import Fatal
from sluice.gateway.store.block_store import BlockStore
from sluice.publishers.blocks.linking import sign_block
from tests.datastream.streams import sample_file
from tests.gateway.block_makers import footer_item, header_item, proof_item, summary_of
from tests.gateway.commands.test_truncate import KILLER
from tests.gateway.node.test_native import sample_blocks
from tests.gateway.store.test_block_store import verified
from tests.nodes import KEY
from tests.reference_data import needs_stream

LONG = pytest.mark.skipif(
    "SLUICE_LONG" not in os.environ, reason="half a minute or more; SLUICE_LONG=1 runs it"
)
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


def shorten(folder: Path) -> None:
    """Take the empty pages off both files: commands read them."""
    for name in FILES:
        with (folder / name).open("r+b") as file:
            file.truncate(HEADER_PAGE_SIZE + PAGE_SIZE)


def killed_folders(base: Path, *words: object) -> list[Path]:
    """Run a command on copies of a folder, and kill each before another change of the disk."""
    shorten(base)
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


# --- evidence -----------------------------------------------------------------------------------------------


@pytest.fixture
def older(folder: Path, tmp_path: Path) -> Path:
    """The same chain when it had five blocks."""
    fill(tmp_path / "older", CHAIN[:5])
    return tmp_path / "older"


def put_back(folder: Path, older: Path, *names: str) -> None:
    """Put the headers of an earlier time into these files."""
    for name in names:
        header = (older / name).read_bytes()[:HEADER_PAGE_SIZE]
        with (folder / name).open("r+b") as file:
            file.write(header)


def forget(folder: Path, *, chain: bool = False, indexes: bool = False) -> None:
    """Remove witnesses."""
    if chain:
        (folder / "chain.json").unlink()
    for name in ("datastream.db", "blocks.db") if indexes else ():
        shutil.rmtree(folder / name)


def refused(folder: Path) -> str:
    """Fail to open the chain, which stays as it is; return why."""
    before = held_files(folder)
    with pytest.raises((Fatal, DatastreamError)) as caught:
        BlockStore.open(folder)
    assert held_files(folder) == before
    return str(caught.value)


def held_files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}


WITNESSES = [
    pytest.param({}, id="all"),
    pytest.param({"chain": True}, id="indexes", marks=pytest.mark.slow),
    pytest.param({"indexes": True}, id="chain.json"),
]


@pytest.mark.parametrize("names", [("blocks.bin",), ("datastream.bin",), FILES])
@pytest.mark.parametrize("gone", WITNESSES)
def test_a_header_that_went_back_is_seen(
    folder: Path, older: Path, names: tuple[str, ...], gone: dict[str, bool]
) -> None:
    put_back(folder, older, *names)
    forget(folder, **gone)
    refused(folder)
    before = held_files(folder)
    result = run(check.command, folder)
    assert result.exit_code == 1, result.output
    assert "went back" in result.output or "a start refuses the stream (sluice repair)" in result.output
    assert result.output.count("not sound") >= 1
    assert run(repair.command, folder).exit_code == 1
    assert held_files(folder) == before


def test_a_sound_chain_is_sound(folder: Path) -> None:
    for command in (check.command, repair.command):
        result = run(command, folder)
        assert result.exit_code == 0, result.output
    assert result.output == f"{folder}/blocks.bin: data folder of a node: nothing to repair\n"


def test_a_crash_is_no_header_that_went_back(folder: Path, older: Path) -> None:
    """As one between the two flushes of a commit leaves it."""
    shutil.copy(older / "chain.json", folder / "chain.json")
    put_back(folder, older, "datastream.bin")
    forget(folder, indexes=True)
    assert run(repair.command, folder).exit_code == 0
    shutil.copytree(older / "datastream.db", folder / "datastream.db")
    result = run(check.command, folder)
    assert "unfinished  entry 40: blocks that were not committed in datastream.bin, too" in result.output
    assert "damage" not in result.output
    assert_holds(folder, CHAIN[:5])


def test_an_entry_of_the_bookmarks_type_that_is_none(tmp_path: Path) -> None:
    odd = [stream_entry_item(BOOKMARK_TYPE, data) for data in (b"", bytes(17), b"bookmark")]
    fill(tmp_path, chain_of(odd))
    result = run(check.command, tmp_path)
    assert (result.exit_code, "3 entries, 1 bookmarks" in result.output) == (0, True), result.output
    assert "cannot be found" not in result.output


# --- repair -------------------------------------------------------------------------------------------------


def entries_in(cut: Path) -> list[tuple[int, bytes]]:
    with DataStreamer.open(cut) as streamer:
        return [(entry.type, entry.data) for entry in streamer.read_entries(0)]


def network_entries(chain: list[Block]) -> list[tuple[int, bytes]]:
    """Return the entries of the network of some blocks of CHAIN."""
    numbers = [block.number for block in chain if block.number != 6]
    return [
        entry
        for number in numbers
        for entry in ((BOOKMARK_TYPE, b"m%d" % number), (9, bytes([number]) * 90), (9, b"end"))
    ]


@pytest.mark.parametrize("name", ["", *FILES])
def test_what_each_believes_and_what_each_choice_gives(folder: Path, older: Path, name: str) -> None:
    put_back(folder, older, "datastream.bin")
    before = held_files(folder)
    result = run(repair.command, folder / name)
    lines = dict(re.split("  +", line, maxsplit=1) for line in result.stdout.splitlines()[1:])
    assert result.exit_code == 1
    assert result.stdout.startswith(f"{folder}/blocks.bin: data folder of a node; a start refuses it\n")
    assert lines["header"].startswith("counts 61 entries in ")
    assert lines["header"].endswith(", ends with block 7")
    assert lines["index"] == "covers 61 entries"
    assert lines["datastream.bin: header"].startswith("counts 15 entries in ")
    assert lines["datastream.bin: index"] == "covers 21 entries"
    assert lines["datastream.bin: behind the header"].startswith("6 whole entries, to offset ")
    assert lines["chain.json"] == "knows of block 7"
    assert f"{folder}/datastream.bin" in lines["refused"]
    assert lines["--take entries"] == (
        "ends with block 7, 61 entries, 21 in datastream.bin; nothing goes; of datastream.bin nothing goes"
    )
    assert re.fullmatch(
        r"ends with block 4, 40 entries, 15 in datastream.bin; 21 entries, \d+ bytes go; "
        r"of datastream.bin 6 entries, \d+ bytes go",
        lines["--take header"],
    )
    said = json.loads(run(repair.command, folder, "--json").stdout)
    assert said["network"]["header"]["entries"] == 15
    assert said["network"]["index_entries"] == 21
    assert [choice["network"]["entries"] for choice in said["choices"]] == [21, 15]
    assert [choice["last_block"] for choice in said["choices"]] == [7, 4]
    for answer in ("n\n", ""):
        assert run(repair.command, folder, "--take", "header", answer=answer).exit_code
    result = run(repair.command, folder, "--take", "header", "--cut-to", folder / "x", "--yes")
    assert result.exit_code == 2
    assert "the two files of a native chain: expected none" in result.output
    assert held_files(folder) == before


@pytest.mark.parametrize("names", [("blocks.bin",), ("datastream.bin",), FILES])
@pytest.mark.parametrize("gone", WITNESSES)
@pytest.mark.parametrize("choice", ["entries", "header"])
def test_headers_that_went_back(
    folder: Path, older: Path, tmp_path: Path, names: tuple[str, ...], gone: dict[str, bool], choice: str
) -> None:
    put_back(folder, older, *names)
    forget(folder, **gone)
    result = run(repair.command, folder, "--take", choice, "--yes", "--json")
    assert result.exit_code == 0, (result.output, result.exception)
    said = json.loads(result.stdout)
    if choice == "entries":
        assert (said["cut_to"], said["network"]["cut_to"]) == (None, None)
        assert_holds(folder, CHAIN)
        return
    cut, network_cut = (
        folder / "cut-blocks-entries-40-to-60.bin",
        folder / "cut-datastream-entries-15-to-20.bin",
    )
    assert (said["cut_to"], said["network"]["cut_to"]) == (str(cut), str(network_cut))
    assert entries_in(network_cut) == network_entries(CHAIN[5:])
    assert len(entries_in(cut)) == 21
    assert_holds(folder, CHAIN[:5])
    for name in FILES:
        assert (folder / name).read_bytes() == (older / name).read_bytes()
    assert (folder / "chain-of-block-7.json").exists() == ("chain" not in gone)
    fill(folder, CHAIN[5:])
    assert_holds(folder, CHAIN)


@pytest.mark.parametrize("place", ["entry", "item", "missing"])
def test_a_block_that_is_not_sound_is_not_counted(folder: Path, older: Path, place: str) -> None:
    """Nor one whose entries of the network are not whole, wherever its own file counts it."""
    put_back(folder, older, "datastream.bin")
    path, what = (
        (folder / "blocks.bin", field_item(4, bytes([5]) * 50))
        if place == "item"
        else (folder / "datastream.bin", bytes([5]) * 90)
    )
    content = path.read_bytes()
    assert content.count(what) == 1
    at = content.index(what)
    changed = bytearray(content)
    if place == "missing":
        changed[at - 17 :] = bytes(len(changed) - at + 17)
    else:
        changed[at + 20] ^= 1
    path.write_bytes(changed)
    assert run(repair.command, folder).stdout.count("--take") == 1
    result = run(repair.command, folder, "--take", "header", "--yes")
    assert result.exit_code == 0, (result.output, result.exception)
    assert_holds(folder, CHAIN[:5])


def test_the_blocks_before_one_that_is_not_sound_are_counted(folder: Path, older: Path) -> None:
    put_back(folder, older, *FILES)
    path = folder / "datastream.bin"
    path.write_bytes(path.read_bytes().replace(bytes([7]) * 90, bytes([8]) * 90))
    result = run(repair.command, folder, "--take", "entries", "--yes", "--json")
    assert result.exit_code == 0, (result.output, result.exception)
    said = json.loads(result.stdout)
    assert said["last_block"] == 6
    assert said["why_no_more"].startswith("block 7: root hash ")
    assert entries_in(Path(said["network"]["cut_to"]))[1] == (9, bytes([8]) * 90)
    assert_holds(folder, CHAIN[:7])


def test_entries_that_no_block_counts(folder: Path) -> None:
    with DataStreamer.open(folder / "datastream.bin") as network:
        network.start_atomic_op()
        network.add_stream_entry(5, b"of nobody")
        network.commit_atomic_op()
    assert "got 22 entries, expected 21" in refused(folder)
    result = run(check.command, folder)
    assert result.exit_code == 1
    assert "got 22 entries, expected 21" in result.output
    result = run(repair.command, folder, "--take", "header", "--yes")
    assert result.exit_code == 0, (result.output, result.exception)
    assert entries_in(folder / "cut-datastream-entries-21-to-21.bin") == [(5, b"of nobody")]
    assert_holds(folder, CHAIN)


def test_an_older_network_stream_beside_newer_blocks(tmp_path: Path) -> None:
    chain = chain_of(*([stream_entry_item(9, b"%d" % number)] for number in range(140)))
    fill(tmp_path / "node", chain, 20)
    fill(tmp_path / "older", chain[:3])
    for name in ("datastream.bin", "chain.json"):
        shutil.copy(tmp_path / "older" / name, tmp_path / "node" / name)
    forget(tmp_path / "node", indexes=True)
    assert "got 3 entries, expected 140, as blocks.bin beside it says" in refused(tmp_path / "node")
    result = run(repair.command, tmp_path / "node", "--take", "header", "--yes")
    assert result.exit_code == 0, (result.output, result.exception)
    assert_holds(tmp_path / "node", chain[:3])


def damage(path: Path, entry: int) -> int:
    """Zero the head of an entry; return its offset."""
    with DataStreamer.open(path, read_only=True) as streamer:
        at = streamer.offset_of(entry)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes(17))
    return at


@pytest.mark.parametrize(
    "damages", [{"blocks.bin": 42}, {"datastream.bin": 16}, {"datastream.bin": 19, "blocks.bin": 42}]
)
@pytest.mark.parametrize("has_index", [True, False])
def test_what_lies_behind_damage_of_either_goes_as_it_is(
    folder: Path, older: Path, damages: dict[str, int], has_index: bool
) -> None:
    shorten(folder)
    shorten(older)
    ends = {name: len((older / name).read_bytes().rstrip(b"\0")) for name in FILES}
    for name, entry in damages.items():
        damage(folder / name, entry)
    forget(folder, indexes=not has_index)
    before = held_files(folder)
    result = run(repair.command, folder)
    assert result.exit_code == 1
    assert result.stdout.count("--take sound") == 1, (result.output, result.exception)
    assert "damage  " in result.stdout
    assert run(check.command, folder).exit_code == 1
    assert held_files(folder) == before
    result = run(repair.command, folder, "--take", "sound", "--yes")
    assert result.exit_code == 0, (result.output, result.exception)
    assert_holds(folder, CHAIN[:5])
    for name in FILES:
        content, stem = before[folder / name], name.removesuffix(".bin")
        (cut,) = folder.glob(f"cut-{stem}-bytes-from-*.raw")
        start = int(cut.stem.rsplit("-", 1)[1])
        assert start >= ends[name]
        assert cut.read_bytes() == content[start:].rstrip(b"\0")
    fill(folder, CHAIN[5:])
    assert_holds(folder, CHAIN)


@pytest.mark.parametrize("gone", FILES)
def test_a_file_that_is_missing_is_named(folder: Path, gone: str) -> None:
    (folder / gone).unlink()
    for command in (check.command, repair.command):
        assert f"{folder / gone}: got no such file, expected the other file of the native chain" in str(
            run(command, folder).exception
        )


def test_a_chain_that_is_open_is_left_alone(folder: Path) -> None:
    store = BlockStore.open(folder)
    for words in ((), ("--take", "header", "--yes")):
        assert "in use by another program or opener" in str(run(repair.command, folder, *words).exception)
    store.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("case", "choice"),
    [
        pytest.param("network", "entries", marks=LONG),
        pytest.param("both", "header", marks=LONG),
        pytest.param("blocks", "header", marks=LONG),
        ("blocks damaged", "sound"),
        pytest.param("network damaged", "sound", marks=LONG),
    ],
)
def test_killed_before_each_step_the_same_choice_again_ends_it(
    folder: Path, older: Path, case: str, choice: str
) -> None:
    if case == "blocks damaged":
        damage(folder / "blocks.bin", 42)
    elif case == "network damaged":
        damage(folder / "datastream.bin", 16)
    else:
        put_back(
            folder, older, *{"network": ["datastream.bin"], "blocks": ["blocks.bin"], "both": FILES}[case]
        )
    shutil.rmtree(older)
    chain = CHAIN if choice == "entries" else CHAIN[:5]
    folders = killed_folders(folder, "repair", "--take", choice, "--yes")
    assert len(folders) > 15
    for killed in folders:
        again = killed.with_name(f"again-{killed.name}")
        subprocess.run(["cp", "-r", "--sparse=always", killed, again], check=True)
        try:
            BlockStore.open(killed).close()  # refused, or done
        except (Fatal, DatastreamError):
            result = run(repair.command, again, "--take", choice, "--yes")
            assert result.exit_code == 0, (again, result.output, result.exception)
        assert_holds(again, chain)
        if choice != "entries":
            assert list(again.glob("cut-blocks-*"))
            assert list(again.glob("cut-datastream-*"))
