"""Blocks in Spark: data sources, sinks, and functions over DataFrames of blocks.

    from sluice.publishers.spark import publish, register
    register(spark)
    publish(spark.read.format("blockfiles").load("chain/"), "127.0.0.1:40840")

Source: docs/spark.md.
"""

from __future__ import annotations

from contextlib import contextmanager
from importlib import import_module
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from sluice.publishers.blocks.linking import ChainStart
    from sluice.publishers.report import by_publisher
    from sluice.publishers.rows.values import descriptor_set
    from sluice.publishers.spark.block_sink import read_totals
    from sluice.publishers.spark.network_stream import entries_to_blocks
    from sluice.publishers.spark.option_types import (
        BlockFilesOptions,
        BlockFilesSinkOptions,
        BlockSinkOptions,
        BlockStreamOptions,
        DataStreamOptions,
    )
    from sluice.publishers.spark.prepare import (
        chain_start,
        link_and_sign_blocks,
        link_blocks,
        root_hashes,
        sign_blocks,
    )
    from sluice.publishers.spark.publishing import observed, publish, reports_frame
    from sluice.publishers.spark.records import records_to_blocks, records_to_signed_blocks
    from sluice.publishers.spark.verify import verify_blocks

__all__ = [
    "BlockFilesOptions",
    "BlockFilesSinkOptions",
    "BlockSinkOptions",
    "BlockStreamOptions",
    "ChainStart",
    "DataStreamOptions",
    "by_publisher",
    "chain_start",
    "descriptor_set",
    "entries_to_blocks",
    "link_and_sign_blocks",
    "link_blocks",
    "observed",
    "publish",
    "read_totals",
    "records_to_blocks",
    "records_to_signed_blocks",
    "register",
    "reports_frame",
    "root_hashes",
    "sign_blocks",
    "verify_blocks",
]

_HOMES: Final = {
    **dict.fromkeys(
        (
            "BlockFilesOptions",
            "BlockFilesSinkOptions",
            "BlockSinkOptions",
            "BlockStreamOptions",
            "DataStreamOptions",
        ),
        "sluice.publishers.spark.option_types",
    ),
    "ChainStart": "sluice.publishers.blocks.linking",
    "by_publisher": "sluice.publishers.report",
    "chain_start": "sluice.publishers.spark.prepare",
    "descriptor_set": "sluice.publishers.rows.values",
    "entries_to_blocks": "sluice.publishers.spark.network_stream",
    "link_and_sign_blocks": "sluice.publishers.spark.prepare",
    "link_blocks": "sluice.publishers.spark.prepare",
    "observed": "sluice.publishers.spark.publishing",
    "publish": "sluice.publishers.spark.publishing",
    "read_totals": "sluice.publishers.spark.block_sink",
    "reports_frame": "sluice.publishers.spark.publishing",
    "root_hashes": "sluice.publishers.spark.prepare",
    "sign_blocks": "sluice.publishers.spark.prepare",
    "records_to_blocks": "sluice.publishers.spark.records",
    "records_to_signed_blocks": "sluice.publishers.spark.records",
    "verify_blocks": "sluice.publishers.spark.verify",
}


_registering: Final = Lock()


def __getattr__(name: str) -> Any:
    """Import a function on first use: this package can be imported without PySpark."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def register(spark: SparkSession) -> None:
    """Make the data sources `blockfiles`, `datastream` and `blockstream` known to a session.

    Raises SparkUnavailable if the workers of a local session have another interpreter, which cannot run them.
    """
    from sluice.publishers.spark.session import check_workers_of

    check_workers_of(spark)
    register_sources(spark)


def register_sources(spark: SparkSession) -> None:
    """Do what `register` does, in a session whose workers are checked already."""
    from sluice.publishers.spark.block_files import BlockFilesDataSource
    from sluice.publishers.spark.block_stream import BlockStreamDataSource
    from sluice.publishers.spark.data_stream import DataStreamDataSource
    from sluice.publishers.spark.session import active_session

    with active_session(spark), _environment_for_many_queries(spark):
        for source in (BlockFilesDataSource, BlockStreamDataSource, DataStreamDataSource):
            spark.dataSource.register(source)


@contextmanager
def _environment_for_many_queries(spark: SparkSession) -> Iterator[None]:
    """Give the data sources that are registered meanwhile a concurrent map for their workers' environment.

    PySpark (4.3) makes a Java HashMap of it for each data source, and each streaming query puts names into
    that map from its own thread (PythonStreamingSourceRunner.init). Two queries that begin at once can
    corrupt it; then no task of the session can be read (OptionalDataException), even after a restart. PySpark
    keeps a Java map that it is given.
    """
    # Over Spark Connect the server makes these maps.
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        yield
        return
    context = spark.sparkContext
    with _registering:
        environment = context.environment
        context.environment = jvm.java.util.concurrent.ConcurrentHashMap(environment)
        try:
            yield
        finally:
            context.environment = environment
