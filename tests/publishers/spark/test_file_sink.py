"""The sink `blockfiles`: its writers without Spark, on a disk and in S3, then with it."""

from __future__ import annotations

import pickle
import shutil
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import LongType, StructField, StructType

from sluice.gateway.blocks.block import Block
from sluice.publishers.blocks.block_files import write_block_file
from sluice.publishers.blocks.block_layouts import zip_of
from sluice.publishers.blocks.block_places import read_chain
from sluice.publishers.blocks.maker import BlockMaker, MakerOptions, key_of_seed
from sluice.publishers.errors import BlockFileError, BlockListError, FrameError, OptionError, SchemaError
from sluice.publishers.spark import remote_store
from sluice.publishers.spark.batches import row_batches
from sluice.publishers.spark.block_files import BlockFilesDataSource
from sluice.publishers.spark.failures import reason_in
from sluice.publishers.spark.file_sink import BlockFilesWriter
from sluice.publishers.spark.folders import BlockFolders
from sluice.publishers.spark.schema import BLOCK_COLUMNS, arrow_schema, spark_schema
from tests.gateway.archive.stores import BUCKET, as_s3_user, s3_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL = MakerOptions(rounds_per_block=1, events_per_round=1, transactions_per_block=1, item_bytes=300)
BLOCKS = list(BlockMaker(3, key_of_seed(3), SMALL).blocks(25))
OTHER = list(BlockMaker(4, key_of_seed(4), SMALL).blocks(25))
ZIPS = {"layout": "historic", "blocks_per_archive": "10"}
TAIL = [f"staging/000/000/000/000/000/0/{number:019}.blk.zstd" for number in range(20, 25)]
FILES = [zip_of(0, 1)[0], zip_of(10, 1)[0], *TAIL]
SCHEMA = spark_schema(BLOCK_COLUMNS)


def writer_of(
    path: Path | str, options: Mapping[str, str] | None = None, *, overwrite: bool = False
) -> BlockFilesWriter:
    return BlockFilesDataSource({"path": str(path), **(options or {})}).writer(SCHEMA, overwrite)


def batches_of(blocks: Sequence[Block]) -> Iterator[pa.RecordBatch]:
    rows = ({"block_number": block.number, "items": list(block.items)} for block in blocks)
    return row_batches(rows, BLOCK_COLUMNS, rows_max=4)


def write(writer: BlockFilesWriter, *tasks: Sequence[Block]) -> None:
    """Write as Spark does: each task has a writer of its own."""
    messages = []
    for blocks in tasks:
        writer_there = pickle.loads(pickle.dumps(writer))
        messages.append(pickle.loads(pickle.dumps(writer_there.write(batches_of(blocks)))))
    writer.commit(messages)


def names_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in names_in(folder)}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"path": " "}, "option 'path': got nothing, expected the folder to write to, or its URL"),
        ({"path": "s3://b/*"}, "option 'path': got 's3://b/*', expected a folder, not a glob"),
        (
            {"layout": "zip"},
            "option 'layout': got 'zip', expected one of plain, consensus, recent, historic, bucket",
        ),
        ({"compression": "lz4"}, "option 'compression': got 'lz4', expected one of none, gzip, zstd"),
        (
            {"layout": "recent", "compression": "gzip"},
            "option 'compression': got gzip (blk.gz), expected blk.zstd or blk with layout recent",
        ),
        (
            {"layout": "historic", "blocks_per_archive": "1"},
            "option 'blocks_per_archive': got '1', expected one of 10, 100, 1000, 10000, 100000, 1000000",
        ),
        (
            {"blocks_per_archive": "10"},
            "option 'blocks_per_archive': got 10 with layout plain, expected it with layout historic",
        ),
        ({"zip": "1"}, "option 'zip': got an unknown option, expected one of blocks_per_archive, check"),
    ],
)
def test_wrong_options_are_named(tmp_path: Path, options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError) as caught:
        BlockFilesDataSource({"path": str(tmp_path)} | options).writer(SCHEMA, overwrite=False)
    assert str(caught.value).startswith(text)


def test_a_store_that_pyarrow_does_not_know() -> None:
    with pytest.raises(BlockListError, match="ftp://host/chain: Unrecognized filesystem type in URI"):
        writer_of("ftp://host/chain")


def test_a_frame_has_the_columns_of_blocks(tmp_path: Path) -> None:
    schema = StructType([StructField("block_number", LongType())])
    source = BlockFilesDataSource({"path": str(tmp_path)})
    for writer in (source.writer, source.streamWriter):
        with pytest.raises(SchemaError, match="column 'items': got no such column"):
            writer(schema, overwrite=False)


@pytest.mark.parametrize(
    ("compression", "name"), [("none", "3.blk"), ("gzip", "3.blk.gz"), ("zstd", "3.blk.zstd")]
)
def test_one_file_a_block(tmp_path: Path, compression: str, name: str) -> None:
    write(writer_of(tmp_path, {"compression": compression}), BLOCKS[3:4], [])
    assert names_in(tmp_path) == [name]
    assert BlockFolders([str(tmp_path)]).reader().read(BlockFolders([str(tmp_path)]).blocks()[0]) == BLOCKS[3]


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"block_number": None, "items": []}, "a row has no block_number (null)"),
        ({"block_number": -1, "items": []}, "block -1: numbers begin with 0"),
        ({"block_number": 3, "items": None}, "block 3: the row has no items (null)"),
        ({"block_number": 3, "items": [b"", None]}, "block 3: item 1 is null"),
        ({"block_number": 3, "items": []}, "block 3: missing item: block: got no items"),
        (
            {"block_number": 3, "items": list(BLOCKS[2].items)},
            "block 3: the row has the items of block 2; every row is a block, with its number and all its",
        ),
    ],
)
def test_a_row_that_is_no_block_is_named(tmp_path: Path, row: dict[str, Any], text: str) -> None:
    with pytest.raises(FrameError) as caught:
        writer_of(tmp_path).write(iter([pa.RecordBatch.from_pylist([row], arrow_schema(BLOCK_COLUMNS))]))
    assert str(caught.value).startswith(text)
    assert names_in(tmp_path) == []


def test_zips_of_several_tasks_and_the_blocks_that_wait(tmp_path: Path) -> None:
    write(writer_of(tmp_path, ZIPS), BLOCKS[:6], BLOCKS[6:23], BLOCKS[23:])
    assert names_in(tmp_path) == sorted(FILES)
    assert list(read_chain(tmp_path)) == BLOCKS


def test_missing_blocks_of_a_zip_are_named_and_can_be_brought_later(tmp_path: Path) -> None:
    with pytest.raises(FrameError) as caught:
        write(writer_of(tmp_path, ZIPS), BLOCKS[:3], BLOCKS[4:6], BLOCKS[8:])
    assert str(caught.value) == (
        f"blocks 3, 6 to 7 are missing: {tmp_path}/{FILES[0]} needs blocks 0 to 9; "
        f"its other blocks are in {tmp_path}/staging; write the missing ones, too"
    )
    write(writer_of(tmp_path, ZIPS), [BLOCKS[3], *BLOCKS[6:8]])
    assert names_in(tmp_path) == sorted(FILES)


def test_an_aborted_job_leaves_only_whole_files_and_another_goes_on(tmp_path: Path) -> None:
    writer = writer_of(tmp_path, ZIPS)
    with pytest.raises(FrameError):
        write(writer, BLOCKS[:12], [BLOCKS[12], Block(13, ())])
    (parts,) = tmp_path.glob(".sluice-*")
    (parts / "killed").write_bytes(b"half")
    writer.abort([None])
    assert names_in(tmp_path) == sorted([FILES[0], *(TAIL[0].replace("020", f"0{n}") for n in (10, 11))])
    write(writer_of(tmp_path, ZIPS), BLOCKS)
    assert names_in(tmp_path) == sorted(FILES)


def test_a_stream_cleans_up_under_the_name_of_its_checkpoint(tmp_path: Path) -> None:
    options = CaseInsensitiveDict({"path": str(tmp_path), "checkpointLocation": "state"})
    writer, elsewhere = (
        BlockFilesDataSource(options).streamWriter(SCHEMA, overwrite=False) for _ in range(2)
    )
    message = writer.write(batches_of(BLOCKS[:2]))
    (parts,) = tmp_path.glob(".sluice-*")
    (parts / "killed").write_bytes(b"half")
    elsewhere.commit([message, None], 0)
    assert names_in(tmp_path) == ["0.blk.gz", "1.blk.gz"]


# --- an object store ----------------------------------------------------------------------------------------


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    remote_store._connect.cache_clear()
    with as_s3_user(), s3_server() as port:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        yield
    remote_store._connect.cache_clear()


def blocks_in_store(url: str) -> list[Block]:
    where = BlockFolders([url])
    with where.reader() as reader:
        return [reader.read(place) for place in where.blocks()]


@pytest.mark.parametrize(
    "options",
    [ZIPS, *(pytest.param({"layout": layout}, marks=pytest.mark.slow) for layout in ("bucket", "consensus"))],
)
def test_s3(s3: None, tmp_path: Path, options: dict[str, str]) -> None:
    url = f"s3a://{BUCKET}/chain/"
    write(writer_of(tmp_path, options), BLOCKS)
    for _ in range(2):  # again is no difference
        write(writer_of(url, options), BLOCKS[:6], BLOCKS[6:])
        store = BlockFolders([url]).store()
        paths = [f"{folder}/{name}" for folder, names in store.walk(f"{BUCKET}/chain") for name in names]
        found = {path.removeprefix(f"{BUCKET}/chain/"): store.open(path).read() for path in paths}
        assert found == contents(tmp_path)
    assert blocks_in_store(url) == BLOCKS
    with pytest.raises(BlockFileError, match=rf"^{BUCKET}/chain/.*: another block 0 is .*; mode overwrite"):
        write(writer_of(url, options), OTHER)
    assert blocks_in_store(url) == BLOCKS
    write(writer_of(url, options, overwrite=True), OTHER[:6], OTHER[6:])
    assert blocks_in_store(url) == OTHER


def test_s3_that_refuses_is_named(s3: None) -> None:
    with pytest.raises(BlockFileError, match=r"^other/chain/0\.blk\.gz: .*bucket does not exist") as caught:
        write(writer_of("s3://other/chain"), BLOCKS)
    assert "\n" not in str(caught.value)


# --- with Spark ---------------------------------------------------------------------------------------------


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    folder = tmp_path / "chain"
    folder.mkdir()
    for block in BLOCKS:
        write_block_file(folder / f"{block.number}.blk", block)
    return folder


@pytest.mark.spark
def test_a_batch_in_any_order(spark: SparkSession, chain: Path, tmp_path: Path) -> None:
    blocks = spark.read.format("blockfiles").load(str(chain))
    out = tmp_path / "out"
    blocks.repartition(3).write.format("blockfiles").options(**ZIPS).mode("append").save(str(out))
    assert names_in(out) == sorted(FILES)
    assert list(read_chain(out)) == BLOCKS
    java_zip = spark.sparkContext._jvm.java.util.zip.ZipFile(str(out / FILES[0]))  # type: ignore[union-attr]
    assert java_zip.size() == 10
    assert java_zip.getEntry(f"{3:019}.blk.zstd").getMethod() == zipfile.ZIP_STORED
    java_zip.close()
    write_block_file(chain / "24.blk", OTHER[24])
    with pytest.raises(Exception, match="another block 24 is there") as caught:
        blocks.write.format("blockfiles").options(**ZIPS).mode("append").save(str(out))
    assert reason_in(str(caught.value)) == (
        f"{out}/{TAIL[-1]}: another block 24 is there; mode overwrite replaces it"
    )
    blocks.write.format("blockfiles").options(**ZIPS).mode("overwrite").save(f"file://{out}")
    assert list(read_chain(out)) == [*BLOCKS[:24], OTHER[24]]


@pytest.mark.spark
def test_a_stream_that_starts_again_writes_the_same_files(
    spark: SparkSession, chain: Path, tmp_path: Path
) -> None:
    """It is started again after its last batch was written and not yet noted."""
    out, state = tmp_path / "out", tmp_path / "state"

    def run() -> None:
        rows = spark.readStream.format("blockfiles").option("max_blocks_per_trigger", 12).load(str(chain))
        query = (
            rows.writeStream.format("blockfiles")
            .options(**ZIPS)
            .option("checkpointLocation", str(state))
            .trigger(availableNow=True)
            .start(str(out))
        )
        query.awaitTermination()

    last = chain / "24.blk"
    last.rename(tmp_path / "24.blk")
    run()
    assert names_in(out) == sorted(FILES[:-1])
    before = contents(out)
    newest = max((state / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink()
    shutil.move(tmp_path / "24.blk", last)
    run()
    assert names_in(out) == sorted(FILES)
    assert {name: data for name, data in contents(out).items() if name != TAIL[-1]} == before
    assert list(read_chain(out)) == BLOCKS
