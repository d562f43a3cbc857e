"""Blocks are written in every layout, whole and once, whatever comes between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from sluice.gateway.blocks.block import Block
from sluice.publishers.blocks.block_files import read_block_file
from sluice.publishers.blocks.block_layouts import BlockLayout
from sluice.publishers.blocks.block_places import blocks_in, read_chain
from sluice.publishers.blocks.block_writer import BlockWriter
from sluice.publishers.blocks.maker import BlockMaker, MakerOptions, key_of_seed
from sluice.publishers.errors import BlockFileError, OptionError

SMALL = MakerOptions(rounds_per_block=1, events_per_round=1, transactions_per_block=1, item_bytes=300)
BLOCKS = list(BlockMaker(7, key_of_seed(7), SMALL).blocks(25))
OTHER = list(BlockMaker(8, key_of_seed(8), SMALL).blocks(25))


def writer_of_tens(folder: Path) -> BlockWriter:
    """A writer of zips of 10 blocks."""
    return BlockWriter(folder, "historic", zip_digits=1)


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("layout", get_args(BlockLayout))
@pytest.mark.parametrize("is_flushed", [True, False])
def test_what_is_written_is_one_chain(tmp_path: Path, layout: BlockLayout, is_flushed: bool) -> None:
    writer = BlockWriter(tmp_path / "new/out", layout, is_flushed=is_flushed)
    for block in BLOCKS:
        writer.write(block)
    assert list(read_chain(tmp_path / "new/out")) == BLOCKS


@pytest.mark.parametrize(
    ("layout", "names"),
    [
        ("plain", ["24.blk.gz"]),
        ("consensus", [f"{24:036}.blk.gz", f"{24:036}.mf"]),
        ("recent", [f"000/000/000/000/000/0/{24:019}.blk.zstd"]),
        ("historic", [f"staging/000/000/000/000/000/0/{24:019}.blk.zstd"]),
        ("bucket", ["0000/0000/0000/0000/024.blk.zstd"]),
    ],
)
def test_each_layout_has_its_names(tmp_path: Path, layout: BlockLayout, names: list[str]) -> None:
    writer = BlockWriter(tmp_path, layout)
    for _ in range(2):  # again is no difference
        writer.write(BLOCKS[24])
        assert files_in(tmp_path) == names


def test_a_compression_of_ones_own(tmp_path: Path) -> None:
    BlockWriter(tmp_path, "bucket", "blk").write(BLOCKS[3])
    assert (tmp_path / "0000/0000/0000/0000/003.blk").read_bytes() == BLOCKS[3].to_bytes()
    with pytest.raises(OptionError, match=r"got blk\.gz, expected blk\.zstd or blk with layout bucket"):
        BlockWriter(tmp_path, "bucket", "blk.gz")


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BlockFileError) as caught:
        BlockWriter(tmp_path / "file")
    assert str(caught.value) == f"{tmp_path}/file: File exists"
    with pytest.raises(BlockFileError) as caught:
        BlockWriter(tmp_path / "file" / "out")
    assert str(caught.value) == f"{tmp_path}/file/out: Not a directory"
    (tmp_path / "000").touch()
    with pytest.raises(BlockFileError) as caught:
        BlockWriter(tmp_path, "recent").write(BLOCKS[0])
    assert str(caught.value) == f"{tmp_path}/000: File exists"


def test_a_zip_appears_when_it_is_complete(tmp_path: Path) -> None:
    writer = writer_of_tens(tmp_path)
    for block in BLOCKS[3:9]:
        writer.write(block)
    assert not list(tmp_path.rglob("*.zip"))
    assert writer.staged_text == f"6 blocks are in {tmp_path}/staging: a zip is written when its 10 are there"
    for block in BLOCKS[9:21] + BLOCKS[:2]:
        writer.write(block)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.zip")] == [
        "000/000/000/000/000/00/10.zip"
    ]
    writer.write(BLOCKS[2])  # whatever the order
    zips = sorted(tmp_path.rglob("*.zip"))
    assert [path.name for path in zips] == ["00.zip", "10.zip"]
    assert writer.staged_text == f"1 block is in {tmp_path}/staging: a zip is written when its 10 are there"
    assert list(read_chain(zips[0])) + list(read_chain(zips[1])) == BLOCKS[:20]
    with zipfile.ZipFile(zips[0]) as archive:
        assert [info.filename for info in archive.infolist()] == [f"{n:019}.blk.zstd" for n in range(10)]
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}
    assert files_in(tmp_path / "staging") == [f"000/000/000/000/000/0/{20:019}.blk.zstd"]
    assert list(read_chain(tmp_path)) == BLOCKS[:21]


def test_the_same_blocks_give_the_same_zip(tmp_path: Path) -> None:
    for name in ("one", "two"):
        writer = writer_of_tens(tmp_path / name)
        for block in BLOCKS[:10]:
            writer.write(block)
    one, two = (next((tmp_path / name).rglob("*.zip")).read_bytes() for name in ("one", "two"))
    assert one == two


def test_members_are_named_as_a_block_node_names_them_however_they_were_staged(tmp_path: Path) -> None:
    (tmp_path / "staging").mkdir()
    for block in BLOCKS[:9]:
        (tmp_path / "staging" / f"{block.number}.blk").write_bytes(block.to_bytes())
    writer_of_tens(tmp_path).write(BLOCKS[9])
    (path,) = tmp_path.rglob("*.zip")
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == [f"{n:019}.blk" for n in range(9)] + [f"{9:019}.blk.zstd"]
    assert list(read_chain(tmp_path)) == BLOCKS[:10]


def test_a_run_goes_on_with_what_another_has_staged(tmp_path: Path) -> None:
    for blocks in (BLOCKS[:7], BLOCKS[5:12]):
        writer = writer_of_tens(tmp_path)
        for block in blocks:
            writer.write(block)
    assert [path.name for path in tmp_path.rglob("*.zip")] == ["00.zip"]
    assert list(read_chain(tmp_path)) == BLOCKS[:12]


@pytest.mark.parametrize("point", ["replace", "unlink"])
def test_a_run_that_ended_while_it_made_a_zip_is_made_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """The run ends before the zip has its name, or later, with staged blocks left."""
    writer = writer_of_tens(tmp_path)
    for block in BLOCKS[:9]:
        writer.write(block)
    whole: Callable[..., object] = getattr(Path, point)

    def ends(self: Path, *arguments: object, **options: object) -> object:
        if self.name.endswith(".zip.part") if point == "replace" else self.suffix == ".zstd":
            raise OSError(28, os.strerror(28))
        return whole(self, *arguments, **options)

    monkeypatch.setattr(Path, point, ends)
    with pytest.raises(BlockFileError, match="No space left on device"):
        writer.write(BLOCKS[9])
    monkeypatch.setattr(Path, point, whole)
    assert list(read_chain(tmp_path)) == BLOCKS[:10]
    writer_of_tens(tmp_path)
    assert files_in(tmp_path) == ["000/000/000/000/000/00/00.zip"]
    assert list(read_chain(tmp_path)) == BLOCKS[:10]


def test_a_zip_that_is_there_is_compared_with_and_not_changed(tmp_path: Path) -> None:
    writer = writer_of_tens(tmp_path)
    for block in BLOCKS[:10]:
        writer.write(block)
    path = next(tmp_path.rglob("*.zip"))
    before = path.read_bytes()
    again = writer_of_tens(tmp_path)
    for block in BLOCKS[:12]:
        again.write(block)
    with pytest.raises(BlockFileError) as caught:
        again.write(OTHER[3])
    assert str(caught.value) == (
        f"{path}!{3:019}.blk.zstd: another block 3 than the one that is to be written"
    )
    assert path.read_bytes() == before
    with zipfile.ZipFile(path.with_name("20.zip"), "w"):
        pass
    with pytest.raises(BlockFileError, match="has no block 20, and a zip that is there is not changed"):
        again.write(BLOCKS[20])


def test_a_zip_of_as_many_blocks_as_a_block_node_has(tmp_path: Path) -> None:
    """All blocks but the last are files already; the last one completes the zip."""
    header = BLOCKS[1].items[0].replace(b"\x18\x01", b"\x18\x8f\x4e")  # number: 9,999
    header = header[:1] + bytes([header[1] + 1]) + header[2:]
    last = Block.from_items([header])
    assert last.number == 9_999
    staging = tmp_path / "staging/000/000/000/000"
    for number in range(9_999):
        digits = f"{number:019}"
        folder = staging / digits[12:15] / digits[15]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{digits}.blk").write_bytes(b"\x0a\x00")
    writer = BlockWriter(tmp_path, "historic", is_flushed=False)
    assert writer.staged_text is not None
    writer.write(last)
    places = blocks_in(tmp_path)
    assert [place.number for place in places] == list(range(10_000))
    assert {place.path for place in places} == {f"{tmp_path}/000/000/000/000/00/00000.zip"}
    assert files_in(tmp_path) == ["000/000/000/000/00/00000.zip"]


def test_after_a_kill_at_any_time_there_is_no_half_of_anything(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path;"
        "from tests.publishers.blocks.test_block_writer import BLOCKS, writer_of_tens;"
        "print('ready', flush=True); writer = writer_of_tens(Path(sys.argv[1]));"
        "[writer.write(block) for block in BLOCKS]"
    )
    for seconds in (0.0, 0.02, 0.05, 0.1, 0.2):
        process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        found = [read_block_file(Path(place.path)) for place in blocks_in(tmp_path) if place.entry < 0]
        assert found == [BLOCKS[block.number] for block in found]
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, stdout=subprocess.DEVNULL)
    assert list(read_chain(tmp_path)) == BLOCKS
    assert sorted(path.name for path in tmp_path.rglob("*.zip")) == ["00.zip", "10.zip"]


def test_blocks_that_java_cannot_name_are_refused(tmp_path: Path) -> None:
    block = Block(2**63, BLOCKS[0].items)
    with pytest.raises(OptionError, match="expected block numbers up to 9223372036854775807"):
        BlockWriter(tmp_path, "historic").write(block)


def test_bytes_are_flushed_before_a_file_has_its_name_and_names_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    replace, fsync = Path.replace, os.fsync

    def replaced(self: Path, target: Path) -> Path:
        done.append(f"name {target.name}")
        return replace(self, target)

    def flushed(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        done.append(f"flush {path.relative_to(tmp_path)}".replace(f".{os.getpid()}", ""))
        fsync(descriptor)

    monkeypatch.setattr(Path, "replace", replaced)
    monkeypatch.setattr(os, "fsync", flushed)
    with BlockWriter(tmp_path, "consensus") as writer:
        writer.write(BLOCKS[0])
    name = f"{0:036}"
    assert done == [f"flush .{name}.blk.gz.part", f"name {name}.blk.gz", f"name {name}.mf", "flush ."]
    done.clear()
    with BlockWriter(tmp_path, "bucket") as writer:
        for block in BLOCKS[:2]:
            writer.write(block)
    folders = ["flush .", "flush 0000", "flush 0000/0000", "flush 0000/0000/0000"]
    assert done[:4] == folders  # the names of new folders
    assert [line for line in done[4:] if line.startswith("flush 0000/0000/0000/0000")] == [
        "flush 0000/0000/0000/0000/.000.blk.zstd.part",
        "flush 0000/0000/0000/0000/.001.blk.zstd.part",
        "flush 0000/0000/0000/0000",
    ]
    done.clear()
    with BlockWriter(tmp_path / "made", is_flushed=False) as writer:
        writer.write(BLOCKS[0])
    assert done == ["name 0.blk.gz"]
