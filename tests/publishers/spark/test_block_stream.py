"""The handle of source and sink `blockstream`."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import ArrayType, BinaryType, LongType, StructField, StructType

from publishers.errors import OptionError, SchemaError
from publishers.spark.block_stream import BlockStreamDataSource
from publishers.spark.schema import BLOCK_COLUMNS, spark_schema

SCHEMA = StructType([StructField("block_number", LongType()), StructField("items", ArrayType(BinaryType()))])


def test_its_name_and_columns() -> None:
    source = BlockStreamDataSource({"gateways": "a:1"})
    assert (source.name(), source.schema()) == ("blockstream", spark_schema(BLOCK_COLUMNS))


def test_a_chain_cannot_be_overwritten_nor_made_of_other_columns() -> None:
    source = BlockStreamDataSource({"gateways": "a:1"})
    for make in (source.writer, source.streamWriter):
        with pytest.raises(OptionError, match="option 'mode': got overwrite, expected append"):
            make(SCHEMA, overwrite=True)
        with pytest.raises(SchemaError):
            make(StructType([]), overwrite=False)
        with pytest.raises(OptionError, match="option 'gateway': got an unknown option"):
            BlockStreamDataSource({"gateway": "a:1"}).writer(SCHEMA, overwrite=False)


def test_a_folder_for_reports_is_there_before_a_block_is_sent(tmp_path: Path) -> None:
    """Found out when all is published, it would make a failure of that."""
    options = {"gateways": "a:1", "report_path": str(tmp_path / "all" / "reports")}
    source = BlockStreamDataSource(options)
    for make in (source.writer, source.streamWriter):
        make(SCHEMA, overwrite=False)
        assert list((tmp_path / "all").iterdir()) == [tmp_path / "all" / "reports"]
    (tmp_path / "file").touch()
    options["report_path"] = "s3a://lake/reports"
    with pytest.raises(OptionError, match=r"option 'report_path': got 's3a://lake/reports', expected a path"):
        BlockStreamDataSource(options).writer(SCHEMA, overwrite=False)
    options["report_path"] = str(tmp_path / "file" / "x")
    with pytest.raises(OptionError, match=r"option 'report_path': got '.*/file/x' \(Not a directory\)"):
        BlockStreamDataSource(options).writer(SCHEMA, overwrite=False)
