"""The source `datastream` over an archive."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

from sluice.datastream import DataStreamer
from sluice.gateway.errors import TlsError
from sluice.publishers.spark.data_stream import DataStreamDataSource, DataStreamReader
from sluice.publishers.spark.verify import verify_blocks
from tests.gateway.archive.chains import ARCHIVED_PAGES, archive, blocks_of_a_page, fill
from tests.gateway.archive.native_chains import archive_native, blocks_of_both
from tests.nodes import ledger_key
from tests.publishers.stored import times_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `node`, the data folder of the chain, and `archive`."""
    folder = tmp_path_factory.mktemp("chain")
    fill(folder / "node")
    archive(folder / "node", folder / "archive")
    return folder


def rows(chain: Path, **options: str) -> Iterator[dict[str, Any]]:
    source = DataStreamDataSource({"path": f"file://{chain}/archive", "partitions": "5", **options})
    reader = source.reader(source.schema())
    assert isinstance(reader, DataStreamReader)
    for partition in reader.partitions():
        for batch in reader.read(partition):
            yield from batch.to_pylist()


def test_the_entries_of_an_archive_are_those_of_the_file(chain: Path) -> None:
    with DataStreamer.open(chain / "node" / "datastream.bin", read_only=True) as streamer:
        expected = [(entry.number, entry.type, entry.data) for entry in streamer.read_entries(0)]
    got = [(row["entry_number"], row["entry_type"], row["data"]) for row in rows(chain)]
    assert len(got) > ARCHIVED_PAGES
    assert got == expected[: len(got)]
    part = [row["entry_number"] for row in rows(chain, **{"from": "100", "to": "333"})]
    assert part == list(range(100, 334))
    assert not list(rows(chain, **{"from": "1000000"}))


def test_the_authority_of_a_store_is_an_option(tmp_path: Path) -> None:
    options = {"path": "s3://chain/x", "endpoint": "https://localhost:1", "tls_ca": str(tmp_path / "none")}
    source = DataStreamDataSource(options)
    reader = source.reader(source.schema())
    assert isinstance(reader, DataStreamReader)
    with pytest.raises(TlsError, match=r"authorities of the archive's store: got .*none, No such file"):
        reader.partitions()


def test_blocks_are_pruned_by_the_indexes(chain: Path) -> None:
    blocks = list(blocks_of_a_page())
    got = {row["block_number"]: row["items"] for row in rows(chain, decode="blocks")}
    assert list(got) == list(range(len(got)))
    assert len(got) >= ARCHIVED_PAGES - 2
    assert all(tuple(items) == tuple(blocks[number].items) for number, items in got.items())
    wanted = {"decode": "blocks", "from": "70", "to": "75"}
    assert [row["block_number"] for row in rows(chain, **wanted)] == [70, 71, 72, 73, 74, 75]
    source = DataStreamDataSource({"path": f"file://{chain}/archive", "partitions": "5", **wanted})
    reader = source.reader(source.schema())
    pages = sum(partition.run.end_page - partition.run.first_page for partition in reader.partitions())  # type: ignore[attr-defined]
    assert pages <= 64


def test_blocks_of_an_archive_are_found_by_their_time(chain: Path) -> None:
    blocks = list(blocks_of_a_page())
    times = times_of(blocks)
    wanted = {"decode": "headers", "starting_timestamp": times[70], "ending_timestamp": times[76]}
    assert [row["block_number"] for row in rows(chain, **wanted)] == [70, 71, 72, 73, 74, 75]
    source = DataStreamDataSource({"path": f"file://{chain}/archive", "partitions": "5", **wanted})
    reader = source.reader(source.schema())
    pages = sum(partition.run.end_page - partition.run.first_page for partition in reader.partitions())  # type: ignore[attr-defined]
    assert pages <= 9
    held = [row["block_number"] for row in rows(chain, decode="headers")]
    late = {"decode": "headers", "starting_timestamp": times[held[-1]]}
    assert [row["block_number"] for row in rows(chain, **late)] == held[-1:]


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `archive`, the pair of archives of a native chain."""
    folder = tmp_path_factory.mktemp("native")
    archive_native(folder / "node", folder / "archive")
    return folder


def test_the_blocks_of_a_native_archive(native: Path) -> None:
    blocks = list(blocks_of_both())
    got = {row["block_number"]: row["items"] for row in rows(native, decode="blocks")}
    assert list(got) == list(range(64))
    assert all(tuple(items) == tuple(blocks[number].items) for number, items in got.items())
    wanted = {"decode": "blocks", "from": "50", "to": "53"}
    assert [row["block_number"] for row in rows(native, **wanted)] == [50, 51, 52, 53]
    times = times_of(blocks)
    between = {"decode": "blocks", "starting_timestamp": times[50], "ending_timestamp": times[54]}
    assert [row["block_number"] for row in rows(native, **between)] == [50, 51, 52, 53]
    entries = list(rows(native))
    assert (len(entries), entries[0]["data"]) == (193, b"b0")


@pytest.mark.slow
@pytest.mark.spark
def test_spark_verifies_a_native_archive(spark: SparkSession, native: Path) -> None:
    frame = spark.read.format("datastream").option("decode", "blocks").load(f"file://{native}/archive")
    verdicts = verify_blocks(frame, [ledger_key()]).groupBy("verdict").count().collect()
    assert [(row["verdict"], row["count"]) for row in verdicts] == [("accepted", 64)]


@pytest.mark.spark
def test_spark_verifies_an_archive(spark: SparkSession, chain: Path) -> None:
    frame = spark.read.format("datastream").option("decode", "blocks").load(f"file://{chain}/archive")
    verdicts = verify_blocks(frame, [ledger_key()]).groupBy("verdict").count().collect()
    assert [row["verdict"] for row in verdicts] == ["accepted"]
    assert verdicts[0]["count"] >= ARCHIVED_PAGES - 2
