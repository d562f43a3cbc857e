"""Registering the data sources."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from publishers.spark import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_registering_again_does_no_harm(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    frame = spark.read.format("blockfiles").load(str(tmp_path))
    assert [field.name for field in frame.schema.fields] == ["block_number", "items"]
