"""The options of the sources and sinks, with their types.

    from sluice.publishers.spark import BlockFilesOptions, register
    options: BlockFilesOptions = {"decode": "headers", "from": 1000}
    spark.read.format("blockfiles").options(**options).load("chain/")

A type checker finds a wrong name or value before Spark does; the sources refuse what is not here.
Source: docs/spark.md.
"""

from __future__ import annotations

from typing import Literal, TypedDict

__all__ = [
    "BlockFilesOptions",
    "BlockFilesSinkOptions",
    "BlockSinkOptions",
    "BlockStreamOptions",
    "DataStreamOptions",
    "GatewayOptions",
    "NetworkFileOptions",
    "NetworkServerOptions",
    "SparkSinkOptions",
    "TlsOptions",
    "names_of",
]

BlockDecode = Literal["blocks", "hashes", "headers", "items", "transactions", "state_changes", "records"]
StreamDecode = Literal["entries", "events"] | BlockDecode
Generation = Literal["auto", "network", "original"]


class TlsOptions(TypedDict, total=False):
    """TLS to nodes and servers; the files are on the workers."""

    tls: bool
    tls_ca: str
    tls_certificate: str
    tls_key: str
    tls_server_name: str


class GatewayOptions(TlsOptions, total=False):
    """Nodes, over gRPC."""

    gateways: str
    max_message_bytes: int


# `from` is a word of Python, so these are not classes.
_Range = TypedDict("_Range", {"from": int | str, "to": int, "partitions": int}, total=False)


class _Times(TypedDict, total=False):
    starting_timestamp: str
    ending_timestamp: str


class BlockFilesOptions(_Range, _Times, total=False):
    """The source `blockfiles`."""

    path: str
    paths: str
    decode: BlockDecode
    check: bool
    mode: Literal["failfast", "permissive"]
    max_blocks_per_trigger: int
    max_bytes_per_trigger: int
    fail_on_data_loss: bool


class BlockStreamOptions(_Range, _Times, GatewayOptions, total=False):
    """The source `blockstream`."""

    path: str
    decode: BlockDecode
    max_blocks_per_trigger: int
    deadline_seconds: float


class DataStreamOptions(_Range, _Times, TlsOptions, total=False):
    """The source `datastream`."""

    path: str
    server: str
    decode: StreamDecode
    generation: Generation
    max_entries_per_trigger: int
    stream_type: int
    deadline_seconds: float
    endpoint: str
    region: str


class _NetworkOptions(TypedDict, total=False):
    group_by: str
    generation: Generation
    max_block_bytes: int
    partitions: int


class NetworkFileOptions(_NetworkOptions, total=False):
    """The stream of a network, from a file: `sluice publish --source file:`."""

    keep_incomplete: bool


class NetworkServerOptions(_NetworkOptions, TlsOptions, total=False):
    """The stream of a network, from its server: `sluice publish --source server:`."""

    max_entries_per_trigger: int
    stream_type: int
    deadline_seconds: float


class SparkSinkOptions(TypedDict, total=False):
    """Options that Spark adds to those of a sink: of `save(path)`, and of a streaming query."""

    path: str
    checkpointlocation: str
    queryname: str


class BlockFilesSinkOptions(SparkSinkOptions, total=False):
    """The sink `blockfiles`."""

    layout: Literal["plain", "consensus", "recent", "historic", "bucket"]
    compression: Literal["none", "gzip", "zstd"]
    blocks_per_archive: int


class BlockSinkOptions(GatewayOptions, SparkSinkOptions, total=False):
    """The sink `blockstream`."""

    publisher_id: str
    race: int
    check: bool
    deadline_seconds: float
    reset_interval_seconds: float
    part_order_seconds: float
    answer_seconds: float
    set_bytes: int
    cache_bytes: int
    window_blocks: int
    blocks_per_second: float
    first_block: int
    report_path: str
    coordinator: str


def names_of(options: type) -> frozenset[str]:
    """Return the names of options, for `check_known`."""
    return frozenset(options.__annotations__)
