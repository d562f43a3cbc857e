"""The source `blockfiles`: its reader without Spark, then one read with it."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa

from gateway.block import Block
from publishers import limits
from publishers.block_files import write_block_file
from publishers.errors import BlockFileError, BlockListError, OptionError
from publishers.job import reason_in
from publishers.maker import BlockMaker, MakerOptions, key_of_seed
from publishers.spark.block_files import BlockFilesDataSource, BlockFilesReader, FileRange, folder_of
from publishers.spark.schema import ARROW_SCHEMA, BLOCK_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL = MakerOptions(rounds_per_block=1, events_per_round=1, transactions_per_block=1, item_bytes=300)
BLOCKS = list(BlockMaker(3, key_of_seed(3), SMALL).blocks(10))


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    for block in BLOCKS:
        write_block_file(tmp_path / f"{block.number:03}.blk", block)
    return tmp_path


def blocks_in(batches: list[pa.RecordBatch]) -> list[Block]:
    rows = [row for batch in batches for row in batch.to_pylist()]
    return [Block(row["block_number"], tuple(row["items"])) for row in rows]


def read(reader: BlockFilesReader, partition: object) -> list[pa.RecordBatch]:
    assert isinstance(partition, FileRange)
    return list(reader.read(pickle.loads(pickle.dumps(partition))))


@pytest.mark.parametrize(("asked", "sizes"), [(1, [10]), (3, [3, 3, 4]), (10, [1] * 10), (99, [1] * 10)])
def test_partitions_are_consecutive_ranges_of_about_the_same_size(
    chain: Path, asked: int, sizes: list[int]
) -> None:
    reader = BlockFilesReader(chain, asked)
    partitions = reader.partitions()
    read_back = [blocks_in(read(reader, partition)) for partition in partitions]
    assert [len(blocks) for blocks in read_back] == sizes
    assert [block for blocks in read_back for block in blocks] == BLOCKS


def test_batches_have_the_schema_and_are_bounded_in_rows_and_bytes(
    chain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = BlockFilesReader(chain, 1)
    (partition,) = reader.partitions()
    monkeypatch.setattr(limits, "ARROW_BATCH_ROWS", 4)
    batches = read(reader, partition)
    assert [batch.num_rows for batch in batches] == [4, 4, 2]
    assert batches[0].schema == ARROW_SCHEMA
    monkeypatch.setattr(limits, "ARROW_BATCH_BYTES", 1)
    assert [batch.num_rows for batch in read(reader, partition)] == [1] * 10


def test_a_missing_number_is_named_before_anything_is_read(chain: Path) -> None:
    (chain / "004.blk").unlink()
    with pytest.raises(BlockListError) as caught:
        BlockFilesReader(chain, 3).partitions()
    assert caught.value.reason == "block 4 is missing (before 005.blk)"


def test_a_damaged_file_is_named(chain: Path) -> None:
    (chain / "004.blk").write_bytes(gzip.compress(b"x"))
    reader = BlockFilesReader(chain, 1)
    with pytest.raises(BlockFileError, match=r"004\.blk: not a block: "):
        read(reader, reader.partitions()[0])


def test_options_are_checked() -> None:
    source = BlockFilesDataSource({"path": "chain", "partitions": "0"})
    assert (source.name(), source.schema()) == ("blockfiles", BLOCK_SCHEMA)
    with pytest.raises(OptionError) as caught:
        source.reader(None)  # type: ignore[arg-type]
    assert str(caught.value) == "option 'partitions': got 0, expected 1 to 1000000"


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
    (chain / "007.blk").unlink()
    with pytest.raises(Exception, match="is missing") as missing:
        spark.read.format("blockfiles").load(str(chain)).collect()
    assert reason_in(str(missing.value)) == f"{chain}: block 7 is missing (before 008.blk)"
