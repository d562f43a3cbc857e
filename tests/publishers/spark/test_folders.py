"""Folders on disk and behind pyarrow.fs."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

from pyarrow import fs

from sluice.publishers.blocks.block_files import write_block_file
from sluice.publishers.blocks.block_places import BlockPlace
from sluice.publishers.blocks.maker import BlockMaker, MakerOptions, key_of_seed
from sluice.publishers.errors import BlockFileError, BlockListError, OptionError
from sluice.publishers.spark import remote_store
from sluice.publishers.spark.folders import BlockFolders, folder_of, target_of
from tests.publishers import field_files

SMALL = MakerOptions(rounds_per_block=1, events_per_round=1, transactions_per_block=1, item_bytes=300)
BLOCKS = list(BlockMaker(3, key_of_seed(3), SMALL).blocks(3))
ENDINGS = ("blk", "blk.gz", "blk.zst")


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    folder = tmp_path / "bucket" / "chain"
    folder.mkdir(parents=True)
    for block, ending in zip(BLOCKS, ENDINGS, strict=True):
        write_block_file(folder / f"{block.number}.{ending}", block)
    (folder / "inner").mkdir()
    (folder / "README").write_text("not a block")
    return folder


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An object store that is a folder: everything of ours runs, only the network does not.

    It takes no options, as the first versions of pyarrow that Sluice works with.
    """

    def from_uri(uri: str) -> tuple[fs.FileSystem, str]:
        scheme, _, rest = uri.partition("://")
        if scheme != "s3":
            raise ValueError(f"Unrecognized filesystem type in URI: {uri}")
        if "?" in rest:
            raise ValueError("Unexpected query parameter in S3 URI: 'allow_delayed_open'")
        return fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), rest

    remote_store._connect.cache_clear()
    monkeypatch.setattr(fs, "FileSystem", type("FileSystem", (), {"from_uri": from_uri}))
    return "s3a://bucket/chain/"


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("chain", "chain"),
        ("/data/chain", "/data/chain"),
        ("file:/data/my%20chain", "/data/my chain"),
        ("file:///data/chain", "/data/chain"),
    ],
)
def test_paths_and_file_urls(path: str, folder: str) -> None:
    assert folder_of(path) == Path(folder)
    assert not BlockFolders([path]).is_remote


def test_a_folder_is_on_a_disk() -> None:
    with pytest.raises(OptionError) as caught:
        folder_of("s3a://lake/reports", "report_path")
    assert str(caught.value) == (
        "option 'report_path': got 's3a://lake/reports', expected a path, or a file: URL"
    )


def test_a_local_folder(chain: Path) -> None:
    folders = BlockFolders([f"file://{chain}"])
    assert [place.path for place in folders.blocks()] == [f"{chain}/{n}.{e}" for n, e in enumerate(ENDINGS)]
    with folders.reader() as reader:
        assert [reader.read(place) for place in folders.blocks()] == BLOCKS


def test_an_object_store(chain: Path, store: str) -> None:
    folders = pickle.loads(pickle.dumps(BlockFolders([store])))
    assert folders.is_remote
    assert [place.path for place in folders.blocks()] == [
        f"bucket/chain/{n}.{e}" for n, e in enumerate(ENDINGS)
    ]
    with folders.reader() as reader:
        assert [reader.read(place) for place in folders.blocks()] == BLOCKS


def test_archives_globs_and_a_bucket_s_layout_in_an_object_store(chain: Path, store: str) -> None:
    for path in chain.glob("*.blk*"):
        path.unlink()
    field_files.in_bucket(chain / "inner", BLOCKS[:1])
    field_files.in_zip(chain / "inner" / "0.zip", BLOCKS[1:2])
    field_files.in_tar(chain / "0000" / "0.tar", BLOCKS[2:])
    folders = BlockFolders([store])
    with folders.reader() as reader:
        assert [reader.read(place) for place in folders.blocks()] == BLOCKS
    some = BlockFolders(["s3://bucket/chain/*/*.zip", "s3://bucket/chain/0000/0.tar"])
    assert [str(place) for place in some.blocks()] == [
        "bucket/chain/inner/0.zip!0000000000000000001.blk.zstd",
        "bucket/chain/0000/0.tar!0000000000000000002.blk.zstd",
    ]
    with pytest.raises(BlockListError, match=r"bucket/chain/none\.zip: No such file or directory"):
        BlockFolders(["s3://bucket/chain/none.zip"]).blocks()


def test_paths_are_in_one_store(store: str) -> None:
    with pytest.raises(OptionError) as caught:
        BlockFolders([store, "chain"])
    assert str(caught.value) == (
        "option 'paths': got s3a://bucket/chain/, chain, expected paths on disks, or in one object store"
    )


def test_what_is_wrong_in_an_object_store_is_named(chain: Path, store: str) -> None:
    folders = BlockFolders([store])
    (chain / "1.blk.gz").write_bytes(b"\x1f\x8b")
    with folders.reader() as reader:
        with pytest.raises(BlockFileError) as damaged:
            reader.read(folders.blocks()[1])
        assert damaged.value.path == "bucket/chain/1.blk.gz"
        assert damaged.value.reason.startswith("truncated")
        with pytest.raises(BlockFileError, match=r"bucket/chain/9\.blk: "):
            reader.read(BlockPlace(9, "bucket/chain/9.blk"))
    with pytest.raises(BlockListError, match="bucket/other: No such file or directory"):
        BlockFolders(["s3a://bucket/other"]).blocks()
    (chain / "001.blk").write_bytes(b"")
    with pytest.raises(
        BlockListError, match=r"block 1 is there twice: .*/1\.blk\.gz, and .*/001\.blk: empty"
    ):
        folders.blocks()


def test_a_store_that_pyarrow_does_not_know(store: str) -> None:
    with pytest.raises(BlockListError) as caught:
        BlockFolders(["ftp://host/chain"]).blocks()
    assert caught.value.reason == "Unrecognized filesystem type in URI: ftp://host/chain"


def test_a_folder_needs_a_name() -> None:
    with pytest.raises(OptionError) as caught:
        BlockFolders([" "])
    assert str(caught.value) == "option 'path': got nothing, expected the folder of block files"


def test_a_store_that_is_no_object_store_gets_whole_files_by_a_rename(tmp_path: Path, store: str) -> None:
    written, root = pickle.loads(pickle.dumps(target_of("s3://bucket/out")))
    folder = tmp_path / root
    for data in (b"one", b"two"):
        written.put(f"{root}/a/1.blk.gz", data, f"{root}/.parts/1")
        assert [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()] == [
            "a/1.blk.gz"
        ]
        assert (folder / "a/1.blk.gz").read_bytes() == data
    (folder / "b").touch()
    with pytest.raises(OSError, match=r"(?i)not a directory|exists"):
        written.put(f"{root}/b/2.blk", b"", f"{root}/.parts/2")
    for _ in range(2):  # the second time it is gone already
        written.remove_folder(f"{root}/.parts")
        written.remove(f"{root}/a/1.blk.gz")
    assert [path.name for path in folder.rglob("*") if path.is_file()] == ["b"]
    assert not (folder / ".parts").exists()
