"""The source `blockfiles`: its readers without Spark, then a batch and a stream with it."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import LongType, StringType, StructField, StructType

from sluice.gateway.blocks.block import Block
from sluice.publishers.blocks.block_archives import Archive
from sluice.publishers.blocks.block_files import write_block_file
from sluice.publishers.blocks.block_places import FILE_LOOK_SECONDS, FILE_WRITE_SECONDS_MAX
from sluice.publishers.blocks.linking import summary_of
from sluice.publishers.blocks.maker import BlockMaker, MakerOptions, key_of_seed
from sluice.publishers.errors import BlockFileError, BlockListError, OptionError, SchemaError
from sluice.publishers.limits import ARROW_BATCH_ROWS, PARTITIONS_MAX
from sluice.publishers.spark import block_files as block_files_module
from sluice.publishers.spark.batches import root_row
from sluice.publishers.spark.block_files import (
    BlockFilesDataSource,
    BlockFilesReader,
    BlockFilesStreamReader,
)
from sluice.publishers.spark.failures import reason_in
from sluice.publishers.spark.schema import BLOCK_COLUMNS, ROOT_COLUMNS, arrow_schema, spark_schema
from tests.publishers import field_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL = MakerOptions(rounds_per_block=1, events_per_round=1, transactions_per_block=1, item_bytes=300)
BLOCKS = list(BlockMaker(3, key_of_seed(3), SMALL).blocks(10))
NO_PROOF = "missing item: block: got no block proof, expected at least one after the footer"
NUMBERS_ONLY = StructType([StructField("block_number", LongType())])


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    for block in BLOCKS:
        write_block_file(tmp_path / f"{block.number:03}.blk", block)
    return tmp_path


def reader_of(folder: Path, schema: StructType | None = None, **options: object) -> BlockFilesReader:
    source = BlockFilesDataSource({"path": str(folder)} | {k.rstrip("_"): str(v) for k, v in options.items()})
    reader = source.reader(schema or source.schema())
    assert isinstance(reader, BlockFilesReader)
    return reader


def stream_of(folder: Path, **options: object) -> BlockFilesStreamReader:
    source = BlockFilesDataSource({"path": str(folder)} | {k.rstrip("_"): str(v) for k, v in options.items()})
    return source.streamReader(source.schema())


def blocks_in(batches: list[pa.RecordBatch]) -> list[Block]:
    rows = [row for batch in batches for row in batch.to_pylist()]
    return [Block(row["block_number"], tuple(row["items"])) for row in rows]


def read(
    reader: BlockFilesReader | BlockFilesStreamReader, partitions: Sequence[InputPartition]
) -> list[pa.RecordBatch]:
    reader, partitions = pickle.loads(pickle.dumps((reader, partitions)))  # as Spark sends them
    return [batch for partition in partitions for batch in reader.read(partition)]


def read_all(reader: BlockFilesReader) -> list[pa.RecordBatch]:
    return read(reader, reader.partitions())


@pytest.mark.parametrize(("asked", "sizes"), [(1, [10]), (3, [3, 4, 3]), (10, [1] * 10), (99, [1] * 10)])
def test_partitions_are_consecutive_ranges_of_about_the_same_size(
    chain: Path, asked: int, sizes: list[int]
) -> None:
    reader = reader_of(chain, partitions=asked)
    partitions = reader.partitions()
    read_back = [blocks_in(read(reader, [partition])) for partition in partitions]
    assert [len(blocks) for blocks in read_back] == sizes
    assert [block for blocks in read_back for block in blocks] == BLOCKS


def test_partitions_are_of_about_as_many_bytes(tmp_path: Path) -> None:
    large = Block.from_items([BLOCKS[0].items[0], b"\x22\x80\x80\x40" + os.urandom(1 << 20)])
    for block in (large, *BLOCKS[1:]):
        write_block_file(tmp_path / f"{block.number}.blk", block)
    partitions = reader_of(tmp_path, partitions=2).partitions()
    assert [len(blocks_in(read(reader_of(tmp_path), [part]))) for part in partitions] == [1, 9]


@pytest.mark.parametrize("make", [field_files.in_zip, field_files.in_tar])
def test_an_archive_is_read_in_parts_that_each_read_no_more_than_their_own(
    tmp_path: Path, make: Callable[[Path, Sequence[Block]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "x.archive", BLOCKS)
    reader = reader_of(tmp_path / "x.archive", partitions=5)
    partitions = reader.partitions()
    assert len(partitions) == 5
    read_bytes = []
    whole = Archive.read

    def counted(self: Archive, entry: int, size_bytes: int, size_bytes_max: int) -> bytes:
        read_bytes.append(size_bytes)
        return whole(self, entry, size_bytes, size_bytes_max)

    monkeypatch.setattr(Archive, "read", counted)
    for number, partition in enumerate(partitions):
        read_bytes.clear()
        assert blocks_in(read(reader, [partition])) == BLOCKS[2 * number : 2 * number + 2]
        assert len(read_bytes) == 2


def test_a_tar_is_passed_over_once_whatever_the_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    field_files.in_tar(tmp_path / "x.tar", BLOCKS)
    passes = []
    whole = Archive.members
    monkeypatch.setattr(Archive, "members", lambda self: passes.append(1) or whole(self))  # type: ignore[func-returns-value]
    reader = reader_of(tmp_path, partitions=5)
    assert blocks_in(read(reader, reader.partitions())) == BLOCKS
    assert len(passes) == 1


def test_a_stream_finds_new_files_in_nested_folders_and_whole_archives(tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    reader, limit = stream_of(root, partitions=2), ReadMaxRows(100)
    start = reader.initialOffset()
    field_files.in_recent_folder(root / "live", BLOCKS[:3])
    first = reader.latestOffset(start, limit)
    assert first == {"first": 0, "next": 3}
    archive = root / "historic/000/0.zip"
    field_files.in_zip(archive, BLOCKS[3:6])
    whole = archive.read_bytes()
    archive.write_bytes(whole[:-30])  # being written
    assert reader.latestOffset(first, limit) == first
    archive.write_bytes(whole)
    second = reader.latestOffset(first, limit)
    assert second == {"first": 3, "next": 6}
    field_files.in_recent_folder(root / "live", BLOCKS[6:])
    third = reader.latestOffset(second, limit)
    field_files.in_zip(archive, BLOCKS[:6])  # and the node lets go of what is in a zip
    shutil.rmtree(root / "live/000/000/000/000/000/0")
    field_files.in_recent_folder(root / "live", BLOCKS[6:])
    assert blocks_in(read(reader, reader.partitions(start, first))) == BLOCKS[:3]
    assert blocks_in(read(reader, reader.partitions(first, second))) == BLOCKS[3:6]
    assert blocks_in(read(reader, reader.partitions(second, third))) == BLOCKS[6:]


def test_an_empty_file_of_a_live_node_is_waited_for(chain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = chain / "009.blk"
    whole = path.read_bytes()
    path.write_bytes(b"")
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: path.write_bytes(whole))
    monkeypatch.setattr(block_files_module, "time", clock)
    stream = stream_of(chain, partitions=1)
    assert blocks_in(read(stream, stream.partitions({"next": 0}, {"next": 10}))) == BLOCKS
    path.write_bytes(b"")
    (batch,) = read_all(reader_of(chain, mode="permissive", partitions=1))
    assert batch.column("_corrupt").to_pylist()[9].startswith(f"{path}: empty (0 bytes)")


def test_several_paths_are_one_chain(tmp_path: Path) -> None:
    field_files.in_zip(tmp_path / "a/0.zip", BLOCKS[:5])
    field_files.in_consensus_folder(tmp_path / "block-0.0.3", BLOCKS[4:])
    paths = json.dumps([str(tmp_path / "a/*.zip"), str(tmp_path / "block-0.0.3")])
    source = BlockFilesDataSource({"paths": paths})
    reader = source.reader(source.schema())
    assert isinstance(reader, BlockFilesReader)
    assert blocks_in(read_all(reader)) == BLOCKS
    for text in ("chain/", "[1]", "{}"):
        with pytest.raises(OptionError, match="expected a JSON array of paths"):
            BlockFilesDataSource({"paths": text}).schema()


def test_batches_have_the_schema_and_are_bounded_in_rows(tmp_path: Path) -> None:
    for block in BlockMaker(3, key_of_seed(3), SMALL).blocks(ARROW_BATCH_ROWS + 1):
        write_block_file(tmp_path / f"{block.number:03}.blk", block)
    batches = read_all(reader_of(tmp_path, partitions=1))
    assert [batch.num_rows for batch in batches] == [ARROW_BATCH_ROWS, 1]
    assert batches[0].schema == arrow_schema(BLOCK_COLUMNS)


def test_hashes_are_those_of_root_hashes(chain: Path) -> None:
    for check in (False, True):
        (batch,) = read_all(reader_of(chain, partitions=1, decode="hashes", check=str(check).lower()))
        assert batch.schema == arrow_schema(ROOT_COLUMNS)
        assert batch.to_pylist() == [root_row(summary_of(block.number, block.items)) for block in BLOCKS]
    (batch, *_) = read_all(reader_of(chain, NUMBERS_ONLY, decode="hashes"))
    assert batch.schema.names == ["block_number"]


def test_a_block_without_proofs_can_be_hashed_and_does_not_pass_the_check(chain: Path) -> None:
    unsigned = Block(4, BLOCKS[4].items[:-1])
    write_block_file(chain / "004.blk", unsigned)
    rows = [row for batch in read_all(reader_of(chain, decode="hashes")) for row in batch.to_pylist()]
    assert rows[4] == root_row(summary_of(4, BLOCKS[4].items))
    assert len(blocks_in(read_all(reader_of(chain)))) == 10
    with pytest.raises(BlockFileError) as caught:
        read_all(reader_of(chain, check="true"))
    assert str(caught.value) == f"{chain}/004.blk: bad block: " + NO_PROOF


@pytest.mark.parametrize("decode", ["blocks", "hashes"])
def test_a_bad_block_is_like_a_damaged_file(chain: Path, decode: str) -> None:
    changed = Block(4, (*BLOCKS[4].items[:-3], *BLOCKS[4].items[-2:]))
    write_block_file(chain / "004.blk", changed)
    (chain / "006.blk").write_bytes(b"damaged")
    reader = reader_of(chain, partitions=1, decode=decode, check="true", mode="permissive")
    (batch,) = read_all(reader)
    why = batch.column("_corrupt").to_pylist()
    link = (
        f"it links to a block with root hash {summary_of(4, BLOCKS[4].items).root_hash.hex()}, but that of "
    )
    assert (
        why[5]
        == f"{chain}/005.blk: bad block: {link}block 4 is {summary_of(4, changed.items).root_hash.hex()}"
    )
    assert [number for number, reason in enumerate(why) if reason] == [5, 6]
    columns = batch.to_pydict()
    assert [columns[name][5] for name in columns if name not in ("block_number", "_corrupt")] == [None] * (
        batch.num_columns - 2
    )


def test_a_missing_number_is_named_before_anything_is_read(chain: Path) -> None:
    (chain / "004.blk").unlink()
    with pytest.raises(BlockListError) as caught:
        reader_of(chain).partitions()
    assert caught.value.reason == "block 4 is missing (before 005.blk)"


def test_from_and_to_bound_what_is_read_and_what_may_be_missing(chain: Path) -> None:
    (chain / "004.blk").unlink()
    assert blocks_in(read_all(reader_of(chain, from_=5, to=7))) == BLOCKS[5:8]
    cases: tuple[tuple[dict[str, Any], int], ...] = (
        ({"from_": 4}, 4),
        ({"from_": 5, "to": 10}, 10),
        ({"from_": 20}, 20),
    )
    for options, missing in cases:
        with pytest.raises(BlockListError) as caught:
            reader_of(chain, **options).partitions()
        assert caught.value.reason == f"block {missing} is missing"


def test_a_damaged_file_is_named(chain: Path) -> None:
    (chain / "004.blk").write_bytes(gzip.compress(b"x"))
    with pytest.raises(BlockFileError, match=r"004\.blk: not a block: "):
        read_all(reader_of(chain))


def test_permissive_makes_a_row_of_a_damaged_file(chain: Path) -> None:
    (chain / "004.blk").write_bytes(b"\xff")
    batches = read_all(reader_of(chain, mode="PERMISSIVE"))
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [row["block_number"] for row in rows] == list(range(10))
    assert (rows[4]["items"], rows[3]["_corrupt"]) == (None, None)
    assert rows[4]["_corrupt"].startswith(f"{chain}/004.blk: not a block: ")


def test_numbers_alone_need_no_file_to_be_opened(chain: Path) -> None:
    (chain / "004.blk").write_bytes(b"\xff")
    batches = read_all(reader_of(chain, NUMBERS_ONLY, partitions=1))
    assert [batch.to_pydict() for batch in batches] == [{"block_number": list(range(10))}]


def test_columns_that_are_not_there_are_refused(chain: Path) -> None:
    with pytest.raises(SchemaError) as caught:
        reader_of(chain, StructType([StructField("hash", StringType())]))
    assert str(caught.value) == "column 'hash': got a column to read, expected one of block_number, items"
    with pytest.raises(SchemaError) as caught:
        reader_of(chain, StructType([StructField("items", StringType())]))
    assert str(caught.value) == "column 'items': got string, expected array<binary>"


def test_options_are_checked() -> None:
    source = BlockFilesDataSource({"path": "chain"})
    assert (source.name(), source.schema()) == ("blockfiles", spark_schema(BLOCK_COLUMNS))
    BlockFilesDataSource({"path": "chain", "partitions": str(PARTITIONS_MAX)}).schema()
    for options, message in (
        ({"partitions": "0"}, "option 'partitions': got 0, expected 1 to 1000000"),
        (
            {"partitions": str(PARTITIONS_MAX + 1)},
            "option 'partitions': got 1000001, expected 1 to 1000000",
        ),
        (
            {"mode": "dropmalformed"},
            "option 'mode': got 'dropmalformed', expected one of failfast, permissive",
        ),
        (
            {"form": "5"},
            "option 'form': got an unknown option, expected one of check, decode, ",
        ),
    ):
        with pytest.raises(OptionError) as caught:
            BlockFilesDataSource({"path": "chain"} | options).schema()
        assert str(caught.value).startswith(message)


def test_a_stream_waits_for_a_missing_number_and_goes_on_in_order(tmp_path: Path) -> None:
    reader, limit = stream_of(tmp_path, partitions=2), ReadMaxRows(4)
    start = reader.initialOffset()
    assert reader.latestOffset(start, limit) == start == {"next": -1}
    for number in (3, 4, 6, 7, 8, 9):
        write_block_file(tmp_path / f"{number}.blk", BLOCKS[number])
    first = reader.latestOffset(start, limit)
    assert first == {"first": 3, "next": 5}
    assert reader.latestOffset(first, limit) == first
    write_block_file(tmp_path / "5.blk.gz", BLOCKS[5])
    second = reader.latestOffset(first, limit)
    assert second == {"first": 5, "next": 9}
    assert blocks_in(read(reader, reader.partitions(start, first))) == BLOCKS[3:5]
    assert blocks_in(read(reader, reader.partitions(first, second))) == BLOCKS[5:9]
    (tmp_path / "7.blk").unlink()  # a batch that is run again after a block went away
    with pytest.raises(BlockListError, match="block 7 is missing"):
        reader.partitions(first, second)


@pytest.mark.parametrize(("gone", "missing"), [((5,), 5), ((8,), 8), ((5, 6), 5), ((7, 8), 8)])
def test_a_batch_whose_first_or_last_files_have_gone_is_no_batch(
    tmp_path: Path, gone: tuple[int, ...], missing: int
) -> None:
    """Spark would commit it with the rows that are left, and never come back to the others."""
    reader = stream_of(tmp_path, partitions=2)
    for number in range(5, 9):
        write_block_file(tmp_path / f"{number}.blk", BLOCKS[number])
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert (start, end) == ({"next": 5}, {"first": 5, "next": 9})
    for number in gone:
        (tmp_path / f"{number}.blk").unlink()
    with pytest.raises(BlockListError) as caught:
        reader.partitions(start, end)
    assert str(caught.value) == f"{tmp_path}: block {missing} is missing"


def test_what_is_there_now_is_read_though_what_was_read_before_is_gone(chain: Path) -> None:
    """Spark ends a query without a word when there is nothing between its offset and what is there."""
    for number in range(5):
        (chain / f"{number:03}.blk").unlink()
    reader = stream_of(chain, **{"from": "0"})
    reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset({"next": 5}, reader.getDefaultReadLimit())
    assert blocks_in(read(reader, reader.partitions({"next": 5}, end))) == BLOCKS[5:]


def test_a_stream_waits_for_a_file_that_is_being_written(
    chain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = chain / "009.blk"
    whole = path.read_bytes()
    # In the middle of an item; without the last item, which can be read; all.
    sizes = [len(whole) // 2, len(Block(9, BLOCKS[9].items[:-1]).to_bytes()), len(whole)]

    def write_on(_: float) -> None:
        path.write_bytes(whole[: sizes.pop(0)])

    clock = SimpleNamespace(monotonic=time.monotonic, sleep=write_on)
    monkeypatch.setattr(block_files_module, "time", clock)
    write_on(0)
    stream = stream_of(chain, partitions=1)
    (partition,) = stream.partitions({"next": 0}, {"next": 10})
    assert blocks_in(read(stream, [partition])) == BLOCKS
    assert sizes == []
    path.write_bytes(whole[:-1])
    os.utime(path, (1, 1))  # nobody writes to it
    with pytest.raises(BlockFileError, match="not a block"):
        read(stream, [partition])


def test_a_stream_from_a_block_to_a_block(chain: Path) -> None:
    reader = stream_of(chain, from_=4, to=6)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert (start, end) == ({"next": 4}, {"first": 4, "next": 7})


@pytest.mark.spark
def test_spark_reads_a_chain_and_names_what_is_wrong(spark: SparkSession, chain: Path) -> None:
    frame = spark.read.format("blockfiles").option("partitions", 3).load(str(chain))
    rows = frame.orderBy("block_number").collect()
    assert [Block(row.block_number, tuple(map(bytes, row["items"]))) for row in rows] == BLOCKS
    assert frame.rdd.getNumPartitions() == 3
    (chain / "007.blk").write_bytes(b"\xff")
    with pytest.raises(Exception, match="not a block") as damaged:
        frame.collect()
    assert reason_in(str(damaged.value)).startswith(f"{chain}/007.blk: not a block: ")
    some = spark.read.format("blockfiles").options(**{"from": "3", "to": "6"}).load(str(chain))
    assert sorted(row.block_number for row in some.collect()) == [3, 4, 5, 6]
    permissive = spark.read.format("blockfiles").option("mode", "permissive").load(str(chain))
    assert [row.block_number for row in permissive.where("_corrupt IS NOT NULL").collect()] == [7]
    numbers = spark.read.format("blockfiles").schema("block_number BIGINT").load(str(chain))
    assert numbers.count() == 10
    (chain / "007.blk").unlink()
    with pytest.raises(Exception, match="is missing") as missing:
        spark.read.format("blockfiles").load(str(chain)).collect()
    assert reason_in(str(missing.value)) == f"{chain}: block 7 is missing (before 008.blk)"


@pytest.mark.spark
def test_spark_reads_archives_globs_and_several_paths(spark: SparkSession, tmp_path: Path) -> None:
    field_files.in_zip(tmp_path / "000/0.zip", BLOCKS[:4])
    field_files.in_tar(tmp_path / "x.tar", BLOCKS[4:])
    for path in (str(tmp_path), [f"{tmp_path}/**/*.zip", f"{tmp_path}/x.tar"]):
        frame = spark.read.format("blockfiles").option("partitions", 5).load(path)
        rows = frame.orderBy("block_number").collect()
        assert [Block(row.block_number, tuple(map(bytes, row["items"]))) for row in rows] == BLOCKS
        assert frame.rdd.getNumPartitions() == 5


@pytest.mark.spark
def test_spark_follows_a_folder(spark: SparkSession, tmp_path: Path) -> None:
    folder, checkpoint = tmp_path / "chain", tmp_path / "checkpoint"
    folder.mkdir()
    seen: list[int] = []

    def run() -> None:
        stream = spark.readStream.format("blockfiles").option("max_blocks_per_trigger", 3).load(str(folder))
        query = (
            stream.writeStream.foreachBatch(
                lambda batch, _: seen.extend(row.block_number for row in batch.collect())
            )
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    for number in (0, 1, 2, 4):
        write_block_file(folder / f"{number}.blk", BLOCKS[number])
    with pytest.raises(StreamingQueryException, match=r"block 3 is missing \(before 4\.blk\)"):
        run()
    assert seen == [0, 1, 2]
    write_block_file(folder / "3.blk.zst", BLOCKS[3])
    run()
    assert seen == [0, 1, 2, 3, 4]
    field_files.in_zip(folder / "000/00000.zip", BLOCKS[4:7])
    field_files.in_recent_folder(folder / "staging", BLOCKS[7:])
    run()
    assert seen == list(range(10))


@pytest.mark.spark
def test_two_queries_over_one_frame_have_their_own_rows(spark: SparkSession, chain: Path) -> None:
    """Spark keeps a filter that it has pushed into a Python source for the next query: ours take none."""
    frame = spark.read.format("blockfiles").load(str(chain))
    high, low = frame.filter("block_number >= 2"), frame.filter("block_number < 2")
    numbers = sorted(row.block_number for row in high.union(low).select("block_number").collect())
    assert numbers == [block.number for block in BLOCKS]


def test_a_stream_does_not_wait_for_ever_for_a_file_that_is_being_written(
    chain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = chain / "009.blk"
    whole = path.read_bytes()
    now = [1000.0]

    def write_on(seconds: float) -> None:
        now[0] += seconds * FILE_WRITE_SECONDS_MAX / FILE_LOOK_SECONDS / 3  # three looks
        path.write_bytes(whole[:-1])  # never the last byte

    write_on(0)
    # Its clock, not that of the process: threads of the Spark session that other tests began sleep as well.
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=write_on)
    monkeypatch.setattr(block_files_module, "time", clock)
    stream = stream_of(chain, partitions=1)
    (partition,) = stream.partitions({"next": 0}, {"next": 10})
    with pytest.raises(BlockFileError, match="not a block"):
        read(stream, [partition])
    assert now[0] - 1000 == pytest.approx(FILE_WRITE_SECONDS_MAX)
