"""Registering the data sources."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import sluice.publishers.spark as spark_package
from sluice.publishers.spark import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_registering_again_does_no_harm(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    frame = spark.read.format("blockfiles").load(str(tmp_path))
    assert [field.name for field in frame.schema.fields] == ["block_number", "items"]


@pytest.mark.spark
def test_queries_may_share_the_environment_of_a_data_sources_workers(spark: SparkSession) -> None:
    """It was a HashMap, which two queries that began at once spoilt: no query of the session ran any more."""
    environment = spark.sparkContext.environment
    register(spark)
    assert spark.sparkContext.environment is environment
    jvm: Any = spark._jvm
    concurrent = jvm.java.lang.Class.forName("java.util.concurrent.ConcurrentMap")
    sources = spark._jsparkSession.sessionState().dataSourceManager()
    for name in ("blockfiles", "blockstream", "datastream"):
        shared = sources.lookupDataSource(name).dataSourceCls().envVars()
        assert concurrent.isInstance(shared)
        assert dict(shared).items() >= environment.items()


def test_a_session_without_a_jvm_registers_the_same() -> None:
    """As Spark Connect's, which refuses to be asked for one."""
    registered: list[Any] = []
    session: Any = SimpleNamespace(dataSource=SimpleNamespace(register=registered.append))
    register(session)
    assert [source.name() for source in registered] == ["blockfiles", "blockstream", "datastream"]


def test_functions_are_imported_when_they_are_asked_for() -> None:
    for name in spark_package.__all__:
        assert getattr(spark_package, name).__name__ == name
    with pytest.raises(AttributeError, match="spark' has no attribute 'nothing'"):
        _ = spark_package.nothing
