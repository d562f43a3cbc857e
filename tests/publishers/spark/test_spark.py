"""Registering the data sources."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import publishers.spark as spark_package
from publishers.spark import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_registering_again_does_no_harm(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    frame = spark.read.format("blockfiles").load(str(tmp_path))
    assert [field.name for field in frame.schema.fields] == ["block_number", "items"]


def test_functions_are_imported_when_they_are_asked_for() -> None:
    for name in spark_package.__all__:
        assert getattr(spark_package, name).__name__ == name
    with pytest.raises(AttributeError, match=r"module 'publishers\.spark' has no attribute 'nothing'"):
        _ = spark_package.nothing
