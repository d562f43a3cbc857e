"""Spark data sources and sinks for blocks: `register(spark)` makes them known to a session.

    blockfiles    read: a folder of block files                        (block_files.py)
    blockstream   read and write: subscribe to gateways, and publish   (block_stream.py)
    publish       check the numbers, sort, and write                   (publishing.py)
    prepare       hash, link, sign                                     (prepare.py)
    records       wrap foreign records into blocks                     (records.py)
    verify        check root hashes, proofs and links                  (verify.py)

Between them: `block_number BIGINT, items ARRAY<BINARY>`, each item a serialized `BlockItem`.

    from publishers.spark import publish, register
    register(spark)
    publish(spark.read.format("blockfiles").load("chain/"), "127.0.0.1:40840")
"""

from __future__ import annotations

from contextlib import contextmanager
from importlib import import_module
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from publishers.blocks.linking import ChainStart
    from publishers.report import by_publisher
    from publishers.spark.block_sink import read_totals
    from publishers.spark.prepare import (
        chain_start,
        link_and_sign_blocks,
        link_blocks,
        root_hashes,
        sign_blocks,
    )
    from publishers.spark.publishing import publish
    from publishers.spark.records import records_to_blocks, records_to_signed_blocks
    from publishers.spark.verify import verify_blocks

__all__ = [
    "ChainStart",
    "by_publisher",
    "chain_start",
    "link_and_sign_blocks",
    "link_blocks",
    "publish",
    "read_totals",
    "records_to_blocks",
    "records_to_signed_blocks",
    "register",
    "root_hashes",
    "sign_blocks",
    "verify_blocks",
]

_HOMES: Final = {
    "ChainStart": "publishers.blocks.linking",
    "by_publisher": "publishers.report",
    "chain_start": "publishers.spark.prepare",
    "link_and_sign_blocks": "publishers.spark.prepare",
    "link_blocks": "publishers.spark.prepare",
    "publish": "publishers.spark.publishing",
    "read_totals": "publishers.spark.block_sink",
    "root_hashes": "publishers.spark.prepare",
    "sign_blocks": "publishers.spark.prepare",
    "records_to_blocks": "publishers.spark.records",
    "records_to_signed_blocks": "publishers.spark.records",
    "verify_blocks": "publishers.spark.verify",
}


_registering: Final = Lock()


def __getattr__(name: str) -> Any:
    """Import a function when it is asked for: this package can be imported where there is no PySpark."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def register(spark: SparkSession) -> None:
    """Make the data sources known to a session; again is harmless."""
    from publishers.spark.active_session import active_session
    from publishers.spark.block_files import BlockFilesDataSource
    from publishers.spark.block_stream import BlockStreamDataSource
    from publishers.spark.data_stream import DataStreamDataSource

    with active_session(spark), _environment_for_many_queries(spark):
        for source in (BlockFilesDataSource, BlockStreamDataSource, DataStreamDataSource):
            spark.dataSource.register(source)


@contextmanager
def _environment_for_many_queries(spark: SparkSession) -> Iterator[None]:
    """Have what is registered meanwhile keep the environment of its workers in a map that queries may share.

    PySpark (4.3) gives each data source a Java HashMap for it, and a streaming query that reads one puts
    names into that map from a thread of its own (PythonStreamingSourceRunner.init). Two that begin at once
    can leave it with a size that is not the number of its entries. From then on no task of any query of the
    session can be read (OptionalDataException), however often it is begun again. A map of Java's is taken
    as it is.
    """
    # Spark Connect's session has no JVM here; its server makes these maps.
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
