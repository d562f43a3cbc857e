"""docs/analytics.md: its questions, its sources, its notebook, and its sources by name, with Spark."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from pyspark.sql.datasource import DataSource

from sluice.publishers.blocks.block_files import write_block_file
from sluice.publishers.blocks.block_places import read_chain
from sluice.publishers.errors import SparkUnavailable
from sluice.publishers.rows.decodes import DECODES
from sluice.publishers.spark import descriptor_set, register
from sluice.publishers.spark.by_name import source_named
from sluice.publishers.spark.schema import spark_schema
from tests.nodes import make_blocks
from tests.publishers.node_thread import node_thread, store
from tests.publishers.rows.test_rows import PROGRAM
from tests.reference_data import BLOCKS, needs_blocks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REPOSITORY = Path(__file__).resolve().parents[3]
GUIDE = REPOSITORY / "docs" / "analytics.md"
NOTEBOOK = REPOSITORY / "docs" / "analytics.ipynb"
TYPED = [name for name in DECODES if name != "hashes"]
QUESTIONS = re.findall(r"^(\d+)\. \*\*(.+?)\*\*\n\n\s+```sql\n(.+?)```", GUIDE.read_text(), re.M | re.S)
CHAINS = ("signed-chain", "record-file-chain", "layout-8-chain")


def read(spark: SparkSession, decode: str, chain: Path | str, **options: str) -> DataFrame:
    return spark.read.format("blockfiles").options(decode=decode, **options).load(str(chain))


# --- questions ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def answers() -> Any:
    """The answers of another library."""
    words = [sys.executable, str(PROGRAM), "read", *(str(BLOCKS / name) for name in CHAINS)]
    chains = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)["chains"]
    return {name: chains[str(BLOCKS / name)]["answers"] for name in CHAINS}


@needs_blocks
@pytest.mark.spark
@pytest.mark.parametrize(
    "chain", [CHAINS[0], *(pytest.param(name, marks=pytest.mark.slow) for name in CHAINS[1:])]
)
def test_ten_questions_have_the_answers_of_another_library(
    spark: SparkSession, chain: str, answers: Any
) -> None:
    assert [int(number) for number, _, _ in QUESTIONS] == list(range(1, 11))
    for decode in TYPED:
        read(spark, decode, BLOCKS / chain, partitions="1").createOrReplaceTempView(decode)
    for (number, question, query), expected in zip(QUESTIONS, answers[chain], strict=True):
        found = [list(row) for row in spark.sql(query).collect()]
        assert sorted(found, key=str) == expected, f"{number} {question}"


# --- sources ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of a node that holds twelve blocks."""
    folder = tmp_path_factory.mktemp("node")
    store(folder, make_blocks(12))
    return folder


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same blocks as files."""
    folder = tmp_path_factory.mktemp("files")
    for block in make_blocks(12):
        write_block_file(folder / f"{block.number}.blk.gz", block)
    return folder


@pytest.mark.spark
@pytest.mark.parametrize("decode", list(DECODES))
def test_every_source_gives_the_same_rows(
    spark: SparkSession, folder: Path, files: Path, decode: str
) -> None:
    expected = sorted(map(str, read(spark, decode, files, **{"from": "2", "to": "9"}).collect()))
    assert expected or decode == "records"
    stream = spark.read.format("datastream").options(decode=decode, **{"from": "2", "to": "9"})
    assert sorted(map(str, stream.load(str(folder)).collect())) == expected
    with node_thread(folder) as node:
        gateway = spark.read.format("blockstream").options(
            decode=decode, gateways=str(node.grpc_address), **{"from": "2", "to": "9"}
        )
        assert sorted(map(str, gateway.load().collect())) == expected


@pytest.mark.spark
def test_windows_and_watermarks_work_in_a_stream(spark: SparkSession, files: Path, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    rows = (
        spark.readStream.format("blockfiles")
        .options(decode="items", max_blocks_per_trigger="6")
        .load(str(files))
        .withWatermark("consensus_time", "1 second")
        .groupBy(F.window("consensus_time", "1 minute"), "kind")
        .count()
    )
    query = (
        rows.writeStream.format("memory")
        .queryName("kinds")
        .outputMode("update")
        .option("checkpointLocation", str(tmp_path / "state"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = {
        row[0]: row[1] for row in spark.sql("SELECT kind, max(count) FROM kinds GROUP BY kind").collect()
    }
    assert found["block_header"] == found["block_footer"] == found["block_proof"] == 12
    progress = query.lastProgress
    assert progress is not None
    assert progress["eventTime"]["watermark"] > "1970-01-01T00:00:01"
    assert '"next": 12' in str(progress["sources"][0]["latestOffset"])


@pytest.mark.spark
def test_some_columns_in_another_order(spark: SparkSession, folder: Path, files: Path) -> None:
    wanted = "item_count BIGINT, item_bytes MAP<STRING, BIGINT>, block_number BIGINT"
    for source, path in (("blockfiles", files), ("datastream", folder)):
        rows = spark.read.format(source).option("decode", "headers").schema(wanted).load(str(path)).collect()
        assert [row.block_number for row in rows] == list(range(12))
        assert all(row.item_bytes["block_proof"] > 0 for row in rows)
    other = (
        spark.read.format("blockfiles").option("decode", "headers").schema("item_count MAP<STRING, BIGINT>")
    )
    with pytest.raises(Exception, match=r"column 'item_count'.*string"):
        other.load(str(files)).collect()


@pytest.mark.spark
@pytest.mark.parametrize("decode", TYPED)
def test_a_damaged_file_is_an_error_or_one_row(spark: SparkSession, tmp_path: Path, decode: str) -> None:
    for block in make_blocks(3):
        write_block_file(tmp_path / f"{block.number}.blk", block)
    whole = (tmp_path / "1.blk").read_bytes()
    (tmp_path / "1.blk").write_bytes(whole[:-3])
    with pytest.raises(Exception, match=r"1\.blk"):
        read(spark, decode, tmp_path).collect()
    rows = read(spark, decode, tmp_path, mode="permissive").collect()
    (bad,) = [row for row in rows if row["_corrupt"] is not None]
    assert bad["block_number"] == 1
    assert "1.blk" in bad["_corrupt"]


def test_schemas_have_the_types_of_the_guide() -> None:
    columns = {name: spark_schema(way.columns) for name, way in DECODES.items()}
    amounts = "array<struct<account:string,amount:bigint,is_approval:boolean>>"
    assert columns["transactions"]["transfers"].dataType.simpleString() == amounts
    assert columns["headers"]["item_counts"].dataType.simpleString() == "map<string,bigint>"
    text = GUIDE.read_text()
    for name, schema in columns.items():
        assert f"`{name}`" in text
        for field in schema.fields:
            assert f"`{field.name}`" in text or field.name in text, f"{name}.{field.name}"


def test_the_descriptor_set_reads_a_body() -> None:
    files = descriptor_pb2.FileDescriptorSet.FromString(descriptor_set())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("sluice.hapi.TransactionBody"))
    body: Any = kind.FromString(b"\x32\x01m\x72\x03abc")
    assert (body.memo, body.WhichOneof("data"), body.cryptoTransfer) == ("m", "cryptoTransfer", b"abc")


# --- the notebook -------------------------------------------------------------------------------------------


@needs_blocks
@pytest.mark.spark
def test_the_notebook_runs(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert all(not cell.get("outputs") for cell in cells)
    monkeypatch.setenv("CHAIN", str(BLOCKS / "signed-chain"))
    monkeypatch.setattr("sluice.publishers.spark.session.build_session", lambda *_: spark)
    names: dict[str, Any] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert names["per_second"].count() > 0
    assert names["broken_links"].count() == 0


# --- found by name ------------------------------------------------------------------------------------------

PLAIN = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sql(f"CREATE TEMPORARY VIEW rows USING blockfiles OPTIONS (path '{sys.argv[1]}', decode 'headers')")
rows = spark.read.format("blockfiles").load(sys.argv[1])
print("found", spark.sql("SELECT count(*) FROM rows").first()[0], rows.count())
"""


@pytest.mark.parametrize("name", ["blockfiles", "blockstream", "datastream"])
def test_spark_finds_a_source_by_the_name_of_its_module(name: str) -> None:
    source = importlib.import_module(f"pyspark_{name}").DefaultSource
    assert issubclass(source, DataSource)
    assert source.name() == name


@pytest.mark.slow
@pytest.mark.spark
def test_a_plain_session_finds_the_sources_by_name(files: Path, tmp_path: Path, java: None) -> None:
    for name in ("blockfiles", "blockstream", "datastream"):
        (tmp_path / f"pyspark_{name}.py").symlink_to(REPOSITORY / f"pyspark_{name}.py")
    where = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, str(files)],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PATH": where, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )
    assert "found 12 12" in done.stdout, done.stdout + done.stderr


def test_a_source_that_cannot_be_imported_says_so_when_it_is_used() -> None:
    found = source_named("blockfiles", "sluice.no_such_module", "X")
    assert found.name() == "blockfiles"
    with pytest.raises(
        SparkUnavailable, match=r"the workers cannot run Sluice: ModuleNotFoundError: No module"
    ):
        found({})


@pytest.mark.spark
def test_a_session_whose_workers_lack_sluice_is_told_at_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.base_prefix}/bin/python3 -I "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
    with pytest.raises(SparkUnavailable, match=r"workers' interpreter .* cannot run Sluice: ModuleNotFound"):
        register(spark)


def test_the_chain_of_the_fixture_is_whole(files: Path) -> None:
    assert len(list(read_chain(files))) == 12
