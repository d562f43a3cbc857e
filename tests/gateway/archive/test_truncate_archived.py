"""`sluice truncate` of a node that has given pages up: what is archived stays, and the chain is right."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sluice.datastream.errors import EntriesArchived
from sluice.gateway.archive.retention import Retention, Window
from sluice.gateway.commands.truncate import command
from sluice.gateway.store.block_store import BlockStore
from tests.gateway.archive import test_beginning
from tests.gateway.archive.chains import ARCHIVED_PAGES, BLOCKS, archive, blocks_of_a_page, fill
from tests.gateway.archive.native_chains import archive_native, blocks_of_both
from tests.gateway.archive.test_beginning import segments
from tests.gateway.store.test_block_store import verified

MIB = 1 << 20
TO = ARCHIVED_PAGES
"""The first block that begins behind the archived pages; three follow."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`node`, which has given up all but 64 pages, and `archive`; the same of a chain from block 7."""
    folder = tmp_path_factory.mktemp("made")
    fill(folder / "node")
    archive(folder / "node", folder / "archive", 64 * MIB)
    fill(folder / "node-7", 7)
    archive(folder / "node-7", folder / "archive-7", 64 * MIB)
    return folder


@pytest.fixture
def node(made: Path, tmp_path: Path) -> Path:
    """A copy of both."""
    shutil.copytree(made / "archive", tmp_path / "archive")
    return Path(shutil.copytree(made / "node", tmp_path / "node"))


def cut(folder: Path, number: int, place: Path | None) -> Result:
    url = [] if place is None else ["--archive", f"file://{place}"]
    return CliRunner().invoke(command, [str(folder), "--to-block", str(number), "--yes", *url])


def goes_on(folder: Path, first: int = 0) -> None:
    """Add the blocks again that were cut: their footers have the root of the tree of all blocks before."""
    store = BlockStore.open(folder)
    assert store.last_number is not None
    for block in list(blocks_of_a_page(first))[store.last_number + 1 - first :]:
        checked = verified(block)
        store.append([checked])
        store.advance(checked)
    state = store.chain.state()
    store.close()
    assert state["last_number"] == first + BLOCKS - 1


def test_blocks_behind_the_archived_part_are_cut(node: Path, made: Path) -> None:
    before = BlockStore.open(node)
    expected = before.chain.state()
    assert before.streamer.remote.end >= 120
    before.close()
    result = cut(node, TO, node.parent / "archive")
    assert (result.exit_code, f"ends with block {TO}" in result.output) == (0, True), result.output
    goes_on(node)
    store = BlockStore.open(node)
    assert store.chain.state() == expected
    store.close()


def test_nothing_archived_is_cut(node: Path) -> None:
    names = sorted(path.name for path in node.iterdir())
    for place in (None, node.parent / "archive"):
        result = cut(node, TO - 2, place)
        assert isinstance(result.exception, EntriesArchived)
    assert sorted(path.name for path in node.iterdir()) == names


def test_without_the_archive_it_is_asked_for(node: Path) -> None:
    result = cut(node, TO, None)
    assert f"root hashes of blocks 0 to {TO}: got those of the local window" in str(result.exception)
    assert "--archive URL" in str(result.exception)
    assert not list(node.glob("cut-*"))


def drop_second(place: Path) -> None:
    segments(place)[1].unlink()


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (test_beginning.another_root, "root_hash_of_all_block_hashes_tree"),
        (drop_second, "no such object"),
        (test_beginning.cut_short, "its trailer"),
    ],
)
def test_an_archive_that_lies(node: Path, lie: Callable[[Path], None], words: str) -> None:
    lie(node.parent / "archive")
    result = cut(node, TO, node.parent / "archive")
    assert words in str(result.exception)
    assert not list(node.glob("cut-*"))
    store = BlockStore.open(node)
    assert store.last_number == BLOCKS - 1
    store.close()


def test_a_chain_that_begins_later_needs_no_archive(made: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made / "node-7", tmp_path / "node"))
    result = cut(folder, 7 + TO, None)
    assert result.exit_code == 0, result.exception
    goes_on(folder, 7)


def test_a_rolling_history_that_began_with_block_0_is_refused_by_name(tmp_path: Path) -> None:
    fill(tmp_path)
    store = BlockStore.open(tmp_path)
    retention = Retention(store.streamer, Window(64 * MIB, None, lambda: store.begin_of_last(1)))
    while retention.step():
        pass
    assert store.streamer.remote.end >= 120
    store.close()
    result = cut(tmp_path, BLOCKS - 2, None)
    assert "gone for good" in str(result.exception)
    assert not list(tmp_path.glob("cut-*"))


@pytest.mark.slow
def test_a_native_chain(tmp_path: Path) -> None:
    folder, place = tmp_path / "node", tmp_path / "archive"
    archive_native(folder, place, local_bytes=64 * MIB)
    store = BlockStore.open(folder)
    assert [streamer.remote.end >= 64 for streamer in store.streamers] == [True, False]
    expected = store.chain.state()
    store.close()
    result = cut(folder, 66, place)
    assert result.exit_code == 0, result.exception
    store = BlockStore.open(folder)
    for block in list(blocks_of_both())[67:]:
        store.append([block])
        store.advance(block)
    assert store.chain.state() == expected
    store.close()


RUN = "import sys; from sluice.gateway.commands.truncate import command; command(sys.argv[1:])"


def test_killed_at_any_moment_the_chain_is_whole(
    node: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    chance, ends = random.Random(5), set()
    url = f"file://{tmp_path}/archive"
    line = [sys.executable, "-c", RUN, str(node), "--to-block", str(TO), "--yes", "--archive", url]
    for _ in range(4 if request.config.getoption("slow") else 1):
        with subprocess.Popen(line, stdout=subprocess.DEVNULL) as process:
            time.sleep(chance.uniform(0.7, 2.0))
            process.kill()
        store = BlockStore.open(node)
        ends.add(store.last_number)
        store.close()
    assert ends <= {TO, BLOCKS - 1}
    assert cut(node, TO, tmp_path / "archive").exit_code == 0
    goes_on(node)
