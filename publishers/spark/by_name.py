"""The data sources that Spark finds by the names of the modules `pyspark_blockfiles` and so on.

Spark imports every module `pyspark_…` when a session first looks for a data source that is not its own. An
error there would fail the query of anybody, whatever it reads: it is kept until somebody uses our source.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, cast

from pyspark.sql.datasource import DataSource

from sluice.publishers.errors import SparkUnavailable
from sluice.publishers.spark.preflight import check_libraries

__all__ = ["source_named"]


def source_named(name: str, module: str, kind: str) -> type[DataSource]:
    """Return a data source; if it cannot be imported, one of that name that says why."""
    try:
        check_libraries()
        return cast("type[DataSource]", getattr(import_module(module), kind))
    except SparkUnavailable as error:
        return _unusable(name, error)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        remedy = "pip install 'sluice-gateway[spark]' in an environment of its own"
        return _unusable(name, SparkUnavailable(f"the workers cannot run Sluice: {reason}", remedy))


def _unusable(source_name: str, error: SparkUnavailable) -> type[DataSource]:
    words = (error.reason, error.remedy)

    class Unusable(DataSource):
        """Says why the source cannot be used."""

        def __init__(self, options: dict[str, str]) -> None:
            raise SparkUnavailable(*words)

        @classmethod
        def name(cls) -> str:
            return source_name

    return cast("type[Any]", Unusable)
