"""`sluice restore`: a data folder from an archive, whatever interrupts it; none from an archive that lies."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sluice.datastream import DataStreamer
from sluice.datastream.layout import HEADER_PAGE_SIZE
from sluice.gateway.archive.archive import ArchivedStream, ArchiveOptions, StoredBlocks
from sluice.gateway.archive.errors import ArchiveUnavailable
from sluice.gateway.archive.objects import StoreOptions
from sluice.gateway.archive.restore import Restoring, StoredStream, open_streams
from sluice.gateway.commands.restore import command
from sluice.gateway.errors import Fatal
from sluice.gateway.store.block_store import BlockStore
from tests.gateway.archive.chains import ARCHIVED_PAGES, blocks_of_a_page
from tests.gateway.archive.test_beginning import change, page_of, segments
from tests.gateway.store.test_block_store import verified

ARCHIVED_BLOCKS = ARCHIVED_PAGES


def restore(place: Path, folder: Path, *options: str) -> Result:
    return CliRunner().invoke(command, [f"file://{place}", str(folder), *options])


def same_entries(folder: Path, whole: Path, name: str = "datastream.bin") -> int:
    """Compare a stream file with the beginning of another one; return its last entry's number."""
    with DataStreamer.open(folder / name, read_only=True) as streamer:
        end = streamer.committed
        assert len(streamer.sums.bad) == 0
    size = end.total_length - HEADER_PAGE_SIZE
    with (folder / name).open("rb") as made, (whole / name).open("rb") as original:
        for file in (made, original):
            file.seek(HEADER_PAGE_SIZE)
        while size:
            block = min(size, 1 << 20)
            assert made.read(block) == original.read(block)
            size -= block
    return end.total_entries - 1


def test_the_folder_is_that_of_a_node(filled: Path, archived: Path, tmp_path: Path) -> None:
    result = restore(archived, tmp_path / "new")
    assert result.exit_code == 0, result.output
    assert result.output == (
        f"{tmp_path}/new/datastream.bin: {ARCHIVED_BLOCKS * 6} entries of 3 segments; "
        f"blocks 0 to {ARCHIVED_BLOCKS - 1}\n"
    )
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["datastream.bin", "datastream.db"]
    assert same_entries(tmp_path / "new", filled) == ARCHIVED_BLOCKS * 6 - 1
    store = BlockStore.open(tmp_path / "new")
    assert (store.first_number, store.last_number) == (0, ARCHIVED_BLOCKS - 1)
    assert all(store.streamer.sums.has_sum(page) for page in range(ARCHIVED_PAGES - 1))
    for block in list(map(verified, blocks_of_a_page()))[ARCHIVED_BLOCKS:]:
        store.append([block])  # it goes on
        store.advance(block)
    store.close()
    same_entries(tmp_path / "new", filled)


@pytest.mark.parametrize(
    "last",
    [
        pytest.param(0, marks=pytest.mark.slow),
        pytest.param(63, marks=pytest.mark.slow),
        64,
        pytest.param(100, marks=pytest.mark.slow),
    ],
)
def test_up_to_a_block(filled: Path, archived: Path, tmp_path: Path, last: int) -> None:
    result = restore(archived, tmp_path / "new", "--to-block", str(last), "--json")
    assert result.exit_code == 0, result.output
    (stream,) = json.loads(result.output)["streams"]
    assert (stream["last_block"], stream["entries"]) == (last, 6 * (last + 1))
    assert stream["segments"] == last // 64 + 1
    store = BlockStore.open(tmp_path / "new")
    assert store.last_number == last
    store.close()
    same_entries(tmp_path / "new", filled)


def test_a_block_that_is_not_archived(archived: Path, tmp_path: Path) -> None:
    result = restore(archived, tmp_path / "new", "--to-block", "192")
    assert isinstance(result.exception, Fatal)
    assert "--to-block: got 192, expected 0 to 191" in str(result.exception)


@pytest.mark.parametrize("name", ["datastream.bin", "datastream.db", "blocks.bin", "chain.json"])
def test_a_folder_with_a_stream_is_refused(archived: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"precious")
    result = restore(archived, tmp_path)
    assert str(result.exception) == f"{tmp_path}: got {name} in it, expected a folder without a stream"
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_no_archive(tmp_path: Path) -> None:
    for url, text in (
        (f"file://{tmp_path}/none", "got no such folder"),
        (f"file://{tmp_path}", "got no stream.json"),
        ("file://host/folder", "expected file:///FOLDER"),
        ("ftp://host/folder", "expected file:///FOLDER, s3://BUCKET/PREFIX"),
    ):
        with pytest.raises(Fatal, match=text):
            open_streams(url)
    assert not any(tmp_path.iterdir())


# --- interruptions ------------------------------------------------------------------------------------------

RUN = "import sys; from sluice.gateway.commands.restore import command; command(sys.argv[1:])"


def restore_and_kill(filled: Path, archived: Path, folder: Path, kills: int, seed: int) -> int:
    """Kill the restoring of a chain again and again; return how often it ended by itself.

    One that ends by itself says by when the next ones are killed, on a machine of any speed.
    """
    chance, killed, ended, seconds = random.Random(seed), 0, 0, 2.5
    line = [sys.executable, "-c", RUN, f"file://{archived}", str(folder)]
    while killed < kills or not ended:
        begun = time.monotonic()
        process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
        try:
            limit = seconds * chance.uniform(0.25, 1.0) if killed < kills else 120
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            killed += 1
            if (folder / "restoring").exists() or not (folder / "datastream.bin").exists():
                continue  # else it was over, and only its process was not
        else:
            assert process.returncode == 0, output
            seconds = min(seconds, time.monotonic() - begun)
        assert not (folder / "restoring").exists()
        assert same_entries(folder, filled) == ARCHIVED_BLOCKS * 6 - 1
        shutil.rmtree(folder)
        ended += 1
    return ended


def test_killed_at_any_moment_the_same_command_goes_on(
    filled: Path, archived: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    kills = 100 if os.environ.get("SLUICE_LONG") else 5 if request.config.getoption("slow") else 1
    assert restore_and_kill(filled, archived, tmp_path / "new", kills, 37)


def test_a_segment_that_is_there_is_not_fetched_again(place: Path, tmp_path: Path) -> None:
    (stream,) = open_streams(f"file://{place}")
    last = segments(place)[2]
    content = last.read_bytes()
    last.write_bytes(bytes(len(content) - 20_000) + content[-20_000:])  # its pages are gone, its index is not
    assert "zstd frame" in str(restore(place, tmp_path / "new").exception)
    last.write_bytes(content)
    with Restoring(tmp_path / "new") as restoring:
        (restored,) = restoring.fetch([stream])
    assert (restored.kept_count, restored.segment_count) == (2, 3)


def leave_at(folder: Path, stream: StoredStream, moved: list[str]) -> None:
    """Leave a folder as a kill does that comes when these were moved."""
    with Restoring(folder) as restoring:
        restoring.fetch([stream])
    for name in moved:
        (folder / "restoring" / name).rename(folder / name)


@pytest.mark.parametrize(
    "moved",
    [
        pytest.param([], marks=pytest.mark.slow),
        pytest.param(["datastream.db"], marks=pytest.mark.slow),
        ["datastream.db", "datastream.bin"],
    ],
)
def test_killed_while_the_files_are_moved(
    filled: Path, archived: Path, tmp_path: Path, moved: list[str]
) -> None:
    (stream,) = open_streams(f"file://{archived}")
    leave_at(tmp_path / "new", stream, moved)
    result = restore(archived, tmp_path / "new")
    assert result.exit_code == 0, result.output
    assert not (tmp_path / "new" / "restoring").exists()
    assert same_entries(tmp_path / "new", filled) == ARCHIVED_BLOCKS * 6 - 1


def test_a_stream_that_another_program_began_meanwhile_stays(archived: Path, tmp_path: Path) -> None:
    (stream,) = open_streams(f"file://{archived}")
    leave_at(tmp_path / "new", stream, [])
    BlockStore.open(tmp_path / "new").close()
    assert "got datastream.bin in it" in str(restore(archived, tmp_path / "new").exception)
    with DataStreamer.open(tmp_path / "new" / "datastream.bin", read_only=True) as streamer:
        assert streamer.committed.total_entries == 0


def test_two_at_once(tmp_path: Path) -> None:
    with Restoring(tmp_path / "new"), pytest.raises(Fatal, match="only one sluice restore"):
        Restoring(tmp_path / "new").__enter__()


# --- archives that lie --------------------------------------------------------------------------------------


def swap_segments(place: Path) -> None:
    first, second, _ = segments(place)
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


def drop_segment(place: Path) -> None:
    segments(place)[1].unlink()


def second_name(place: Path) -> None:
    path = segments(place)[1]
    shutil.copy(path, path.with_name(path.name[:13] + "ab" * 32 + ".seg"))


def other_hash(place: Path) -> None:
    path = segments(place)[1]
    path.rename(path.with_name(path.name[:13] + "ab" * 32 + ".seg"))


def flip_byte(place: Path) -> None:
    path = segments(place)[1]
    content = bytearray(path.read_bytes())
    content[1_000] ^= 1
    path.write_bytes(content)


def cut_short(place: Path) -> None:
    path = segments(place)[1]
    path.write_bytes(path.read_bytes()[:-100])


def other_root_in_index(place: Path) -> None:
    change(segments(place)[1], lambda segment: setattr(segment.index.blocks[3], "root_hash", bytes(48)))


def other_bookmark_in_index(place: Path) -> None:
    change(segments(place)[1], lambda segment: setattr(segment.index.bookmarks[3], "bookmark", b"x"))


def no_blocks_in_index(place: Path) -> None:
    change(segments(place)[1], lambda segment: segment.index.ClearField("blocks"))


def other_first_entry_of_block(place: Path) -> None:
    change(segments(place)[1], lambda segment: setattr(segment.index.blocks[0], "entry", 380))


def other_block(place: Path) -> None:
    """Change a block's item; segment and index are consistent with it."""
    path = segments(place)[1]
    page = bytearray(page_of(path, 5))
    page[500_000] ^= 1
    change(path, lambda segment: None, {5: bytes(page)})


@pytest.mark.parametrize(
    ("harm", "text"),
    [
        pytest.param(
            swap_segments, "index: got format 1, first page 0, expected 1, 64", marks=pytest.mark.slow
        ),
        (drop_segment, "expected the one of page 64"),
        pytest.param(second_name, "two nodes disagree about these entries", marks=pytest.mark.slow),
        pytest.param(other_hash, "SHA-256 of the pages", marks=pytest.mark.slow),
        (flip_byte, "CRC32C"),
        pytest.param(cut_short, "expected its trailer", marks=pytest.mark.slow),
        pytest.param(other_root_in_index, "block 3 on the pages", marks=pytest.mark.slow),
        pytest.param(other_bookmark_in_index, "bookmark 3 on the pages", marks=pytest.mark.slow),
        pytest.param(no_blocks_in_index, "block 0 on the pages", marks=pytest.mark.slow),
        pytest.param(
            other_first_entry_of_block,
            "first entry of block 64: got 380, expected 384",
            marks=pytest.mark.slow,
        ),
        (other_block, "block 69: root hash"),
    ],
)
def test_an_archive_that_lies(place: Path, tmp_path: Path, harm: Callable[[Path], None], text: str) -> None:
    harm(place)
    result = restore(place, tmp_path / "new")
    assert text in str(result.exception)
    assert "Traceback" not in result.output
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["restoring"]


def test_a_store_that_is_away_is_named(place: Path, tmp_path: Path) -> None:
    (stream,) = open_streams(f"file://{place}")
    shutil.rmtree(place / "segments")
    with Restoring(tmp_path / "new") as restoring, pytest.raises(Fatal, match="got no segment"):
        restoring.fetch([stream])
    (place / "segments").mkdir()
    name = "segments/000000000000-" + "ab" * 32 + ".seg"
    with pytest.raises(ArchiveUnavailable, match="no such object"):
        stream.store.get_range(name, 0, 10)


# --- other streams ------------------------------------------------------------------------------------------


def test_both_files_of_the_native_layout_end_with_the_same_block(native: Path, tmp_path: Path) -> None:
    result = restore(native / "archive", tmp_path / "new")
    assert result.exit_code == 0, result.output
    store = BlockStore.open(tmp_path / "new")
    assert store.last_number == 63
    store.close()
    same_entries(tmp_path / "new", native / "node")
    same_entries(tmp_path / "new", native / "node", "blocks.bin")


def test_the_network_s_archive_may_be_behind_that_of_the_blocks(native: Path, tmp_path: Path) -> None:
    shutil.copytree(native / "archive", tmp_path / "archive")
    segments(tmp_path / "archive")[1].unlink()
    result = restore(tmp_path / "archive", tmp_path / "new", "--to-block", "40")
    assert "expected those of block 40" in str(result.exception)
    result = restore(tmp_path / "archive", tmp_path / "new")
    assert result.exit_code == 0, result.output
    store = BlockStore.open(tmp_path / "new")
    assert store.last_number == 31
    store.close()


def test_half_of_a_native_archive_is_refused(native: Path, tmp_path: Path) -> None:
    with pytest.raises(Fatal, match="expected the URL without /blocks"):
        open_streams(f"file://{native}/archive/blocks")
    shutil.copytree(native / "archive", tmp_path / "archive")
    shutil.rmtree(tmp_path / "archive" / "blocks")
    with pytest.raises(Fatal, match="got no such folder"):
        open_streams(f"file://{tmp_path}/archive")


def test_a_stream_without_blocks(tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    with DataStreamer.open(tmp_path / "node" / "datastream.bin", stream_type=2, system_id=5) as streamer:
        for number in range(70):
            streamer.start_atomic_op()
            streamer.add_stream_entry(7, bytes([number]) * 700_000)
            streamer.commit_atomic_op()
        options = ArchiveOptions(f"file://{tmp_path}/archive", StoreOptions(), 0, 0, 1 << 30)
        blocks = StoredBlocks(None, None, None)
        stream = ArchivedStream(
            options, options.url, streamer, lambda: blocks, lambda: True, has_blocks=False
        )
        while stream.uploader.step():
            pass
        stream.reader.close()
    refused = restore(tmp_path / "archive", tmp_path / "no", "--to-block", "3")
    assert "expected a stream of blocks" in str(refused.exception)
    result = restore(tmp_path / "archive", tmp_path / "new")
    assert result.exit_code == 0, result.output
    with DataStreamer.open(tmp_path / "new" / "datastream.bin", stream_type=2) as streamer:
        assert (streamer.committed.total_entries, streamer.header.system_id) == (64, 5)
    with DataStreamer.open(tmp_path / "node" / "datastream.bin", stream_type=2, read_only=True) as streamer:
        expected = streamer.read_bytes(64 << 20, HEADER_PAGE_SIZE)
    assert (tmp_path / "new" / "datastream.bin").read_bytes()[HEADER_PAGE_SIZE:] == expected
