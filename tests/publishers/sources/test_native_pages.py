"""The blocks of a native chain from its two files: by Spark's source, and by `sluice verify`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

pytest.importorskip("pyspark", reason="needs the extra spark")

from sluice.datastream import DataStreamer
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.errors import LayoutError
from sluice.gateway.blocks.proofs import ProofVerifier
from sluice.gateway.blocks.trusted_keys import TrustedKeys
from sluice.gateway.blocks.verification import BlockVerifier
from sluice.publishers.commands import verify
from sluice.publishers.errors import SourceRefused
from sluice.publishers.number_range import NumberRange
from sluice.publishers.verify.verify_sources import StoredSource, check_job, holds_stream
from tests.datastream.streams import sample_file
from tests.gateway.commands.test_native_folder import CHAIN, fill
from tests.gateway.node.test_native import long_blocks, sample_blocks
from tests.nodes import ledger_key
from tests.publishers.spark.test_data_stream import reader_of, rows_of
from tests.reference_data import needs_stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONG = long_blocks(30)
"""Their network's stream has 5 data pages, their block stream 3."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("native")
    fill(folder, LONG, 7)
    return folder


def as_rows(blocks: list[Block]) -> list[tuple[int, list[bytes]]]:
    return [(block.number, list(block.items)) for block in blocks]


def blocks_at(path: Path, partitions: int = 3) -> list[tuple[int, list[bytes]]]:
    reader = reader_of(path, decode="blocks", partitions=str(partitions))
    rows: list[dict[str, Any]] = rows_of(reader, reader.partitions())
    return [(row["block_number"], row["items"]) for row in rows]


@pytest.mark.parametrize("name", ["", "blocks.bin", "datastream.bin"])
@pytest.mark.parametrize("partitions", [1, 2, 100])
def test_blocks_come_from_both_files(folder: Path, name: str, partitions: int) -> None:
    assert blocks_at(folder / name, partitions) == as_rows(LONG)


@pytest.mark.parametrize("name", ["", "datastream.bin"])
def test_entries_are_those_of_the_network(folder: Path, name: str) -> None:
    reader = reader_of(folder / name, partitions="3")
    rows = rows_of(reader, reader.partitions())
    with DataStreamer.open(folder / "datastream.bin", read_only=True) as network:
        assert [(row["entry_number"], row["entry_type"], row["data"]) for row in rows] == [
            (entry.number, entry.type, entry.data) for entry in network.read_entries(0)
        ]


@pytest.mark.parametrize("name", ["", "blocks.bin", "datastream.bin"])
@pytest.mark.parametrize("numbers", [NumberRange(), NumberRange(13, 14), NumberRange(25)])
def test_blocks_are_verified_from_both_files(folder: Path, name: str, numbers: NumberRange) -> None:
    assert holds_stream(folder / name)
    verifier = BlockVerifier(ProofVerifier(TrustedKeys.parse([ledger_key()])))
    jobs = list(StoredSource(folder / name, numbers).jobs())
    assert [(job.number, list(job.items or ())) for job in jobs] == as_rows(
        [block for block in LONG if block.number in numbers]
    )
    assert all(check_job(verifier, job).refusal is None for job in jobs)


def test_blocks_that_are_not_committed_are_left_out(tmp_path: Path) -> None:
    """Between its two headers a node has committed the block in `blocks.bin` only."""
    fill(tmp_path / "five", CHAIN[:5])
    fill(tmp_path / "eight", CHAIN)
    shutil.copy(tmp_path / "five" / "datastream.bin", tmp_path / "eight" / "datastream.bin")
    assert blocks_at(tmp_path / "eight") == as_rows(CHAIN[:5])
    assert [job.number for job in StoredSource(tmp_path / "eight", NumberRange()).jobs()] == [0, 1, 2, 3, 4]


def test_what_a_node_appends_after_the_plan_is_left_out(tmp_path: Path) -> None:
    fill(tmp_path, CHAIN[:5])
    reader = reader_of(tmp_path, decode="blocks", partitions="2")
    parts = reader.partitions()
    fill(tmp_path, CHAIN[5:])
    assert [row["block_number"] for row in rows_of(reader, parts)] == [0, 1, 2, 3, 4]
    assert blocks_at(tmp_path) == as_rows(CHAIN)


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    """Another program's file of that name beside a network's stream; or a network's stream of few entries."""
    fill(tmp_path, CHAIN)
    shutil.copy(tmp_path / "datastream.bin", tmp_path / "blocks.bin")
    with pytest.raises(LayoutError):
        blocks_at(tmp_path)
    with pytest.raises(SourceRefused, match=r"blocks.bin"):
        list(StoredSource(tmp_path, NumberRange()).jobs())


def test_an_empty_chain(tmp_path: Path) -> None:
    fill(tmp_path, [])
    assert blocks_at(tmp_path) == []
    with pytest.raises(SourceRefused, match=r"blocks.bin has none"):
        StoredSource(tmp_path, NumberRange())


@needs_stream
def test_a_networks_stream(tmp_path: Path) -> None:
    chain = sample_blocks(sample_file(tmp_path), "l2block", 300)
    fill(tmp_path / "node", chain, 50)
    assert blocks_at(tmp_path / "node") == as_rows(chain)


def test_spark_reads_both(spark: SparkSession, folder: Path) -> None:
    source = spark.read.format("datastream").option("partitions", 3)
    rows = source.option("decode", "blocks").load(str(folder)).orderBy("block_number").collect()
    assert [(row["block_number"], list(map(bytes, row["items"]))) for row in rows] == as_rows(LONG)
    assert source.option("decode", "entries").load(str(folder)).count() == 3 * len(LONG)


def test_the_command_verifies_a_folder(folder: Path) -> None:
    result = CliRunner().invoke(verify.command, [str(folder), "--ledger-key", ledger_key(), "--json"])
    assert result.exit_code == 0, (result.output, result.exception)
    said = json.loads(result.stdout)
    assert (said["sound"], said["complete"], said["accepted"]) == (True, True, len(LONG))
