"""The sources of `sluice publish` as DataFrames that the sink can write: consecutive parts, each in order.

The driver lists block files, asks a node what it holds, and reads the block numbers of stream files and
tables. So a broken chain (no blocks, a gap, a number twice, a missing end) is an error before a job starts.
The stream of a server is a query that ends where the stream ended when it began. Blocks of a network's own
stream (`server`, `file`) are made here.
Source: docs/spark.md.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from sluice.datastream.client.blocking_client import BlockingStreamClient
from sluice.datastream.errors import DatastreamError
from sluice.gateway.addresses import parse_addresses
from sluice.publishers.blocks.block_places import BlockPlace, check_no_gaps
from sluice.publishers.errors import BlockListError, OptionError, SourceUnreachable
from sluice.publishers.limits import STATUS_SECONDS
from sluice.publishers.number_range import NumberRange
from sluice.publishers.sources.block_gateways import BlockGateways
from sluice.publishers.sources.entry_server import block_entry, connect_to_stream
from sluice.publishers.spark.failures import reason_in
from sluice.publishers.spark.source_names import SourceName
from sluice.publishers.spark.source_options import (
    FileOptions,
    NetworkOptions,
    StreamOptions,
    SubscriptionOptions,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "ChainFrame",
    "batch_frame",
    "check_before_spark",
    "check_ends",
    "check_followed",
    "check_options",
    "checked_where_read",
    "entry_of_block",
    "file_options",
    "listed_places",
    "served_entries",
    "server_options",
    "stream_frame",
    "subscribed",
]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ChainFrame:
    """A chain, ready for the sink."""

    frame: DataFrame
    """Partitions are consecutive ranges in order."""
    first_block: int | None = None
    """None: unknown before the rows are read."""
    last_block: int | None = None
    """None: unknown, or there is no end."""
    is_streaming: bool = False


def check_before_spark(source: SourceName, numbers: NumberRange) -> None:
    """Check block files before Spark starts; raise BlockListError or OptionError."""
    if source.kind == "blockfiles":
        listed_places(source, numbers)


def check_options(source: SourceName) -> None:
    """Raise OptionError for a wrong option of one of Sluice's formats; Spark's own formats take any."""

    given = {name.lower(): value for name, value in source.options.items()}  # as Spark takes them
    if source.kind == "blockfiles":
        FileOptions.parse({**_paths(source), **given})
    elif source.kind == "blockstream":
        SubscriptionOptions.parse({"gateways": source.location, **given})
    elif source.kind == "datastream":
        StreamOptions.parse(given)
    elif source.is_network:
        NetworkOptions.parse(given, is_server=source.is_server)


def check_followed(source: SourceName) -> None:
    """Raise OptionError if a source cannot be followed."""
    if source.kind in ("blockfiles", "blockstream") or source.is_server:
        return
    if source.kind in ("datastream", "file"):
        server = "datastream" if source.kind == "datastream" else "server"
        raise OptionError("source", str(source), f"to be followed over TCP: {server}:HOST:PORT")
    reason = "its rows come in no order; publish it again without --follow when it has grown"
    raise OptionError("source", f"{source}, which cannot be followed", f"another source, because {reason}")


def checked_where_read(
    source: SourceName, sink: Mapping[str, str], *, is_signed_next: bool = False
) -> tuple[SourceName, dict[str, str]]:
    """Let the process that reads block files check them, instead of the busy one that publishes. Blocks that
    are made here are not checked.

    Args:
        sink: its options. If either side has `check`, both stay as they are.
        is_signed_next: whether blocks get their proofs only after they are read.
    """
    if source.is_network:
        return source, {"check": "false", **sink}
    if is_signed_next or source.kind != "blockfiles" or "check" in sink or "check" in source.options:
        return source, dict(sink)
    return replace(source, options={**source.options, "check": "true"}), {**sink, "check": "false"}


def batch_frame(spark: SparkSession, source: SourceName, numbers: NumberRange, shards: int) -> ChainFrame:
    """Return the DataFrame of the blocks that are there now, in `shards` partitions; both ends of `numbers`
    must be there.

    Of a data streamer's server it is a stream, to be read with `availableNow`.

    Raises:
        BlockListError, FrameError: the blocks are no chain, or not the wanted ones.
        OptionError, SchemaError, SparkJobFailed, SourceUnreachable: the source cannot be read.
    """
    if source.is_server:
        served_entries(source, numbers)
        return stream_frame(spark, source, numbers, shards)
    make = {"blockfiles": _block_files, "blockstream": _block_stream, "file": _network_file}.get(
        source.kind, _planned
    )
    with _readable(source):
        return make(spark, source, numbers, shards)


def stream_frame(spark: SparkSession, source: SourceName, numbers: NumberRange, shards: int) -> ChainFrame:
    """Return the streaming DataFrame of the blocks that are there and those that will come.

    `numbers` without an end makes it endless.

    Raises:
        BlockListError: Spark cannot read it.
        OptionError: the source cannot be followed.
        SourceUnreachable: a data streamer does not say where the first block is.
    """
    check_followed(source)
    with _readable(source):
        return _followed(spark, source, numbers, shards)


@contextmanager
def _readable(source: SourceName) -> Iterator[None]:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise BlockListError(str(source), reason_in(str(error))) from error


def _followed(spark: SparkSession, source: SourceName, numbers: NumberRange, shards: int) -> ChainFrame:
    last = None if numbers.end is None else numbers.end - 1
    options = {"partitions": str(shards), **source.options}
    if source.kind == "blockfiles":
        options = {**_paths(source), **_bounds(numbers), **options}
        frame = spark.readStream.format("blockfiles").options(**options).load()
        return ChainFrame(frame, numbers.first or None, last, True)
    if source.kind == "blockstream":
        options = {"gateways": source.location, **_bounds(numbers), **options}
        frame = spark.readStream.format("blockstream").options(**options).load()
        return ChainFrame(frame, numbers.first or None, last, True)
    if source.kind == "server":
        frame = _network_server(spark, source, shards)
        return ChainFrame(_within(frame, numbers), numbers.first, last, True)
    options = {"server": source.location, "decode": "blocks", **options}
    if numbers.first and "from" not in source.options:
        options["from"] = str(entry_of_block(source, numbers.first) or 0)
    frame = spark.readStream.format("datastream").options(**options).load()
    return ChainFrame(_within(frame, numbers), numbers.first or None, last, True)


# --- block files and nodes ----------------------------------------------------------------------------------


def _block_files(spark: SparkSession, source: SourceName, numbers: NumberRange, shards: int) -> ChainFrame:
    _, places = listed_places(source, numbers)
    first, last = places[0].number, places[-1].number
    options = {"partitions": str(shards), "from": str(first), "to": str(last), **source.options}
    frame = spark.read.format("blockfiles").options(**_paths(source), **options).load()
    return ChainFrame(frame, first, last)


def _paths(source: SourceName) -> dict[str, str]:
    if len(source.locations) == 1:
        return {"path": source.location}
    return {"paths": json.dumps(source.locations)}


def file_options(source: SourceName) -> FileOptions:
    """Return the options of block files; raise OptionError."""
    return FileOptions.parse({**_paths(source), **source.options})


def listed_places(source: SourceName, numbers: NumberRange) -> tuple[FileOptions, list[BlockPlace]]:
    """Return the options, and the places of the wanted blocks; both ends of `numbers` must be there.

    Raises BlockListError or OptionError.
    """
    options = file_options(source)
    folders = options.folders
    places = folders.blocks()
    if not places:
        check_no_gaps(folders.path, places)
    there = places[0].number, places[-1].number
    wanted = [place for place in places if place.number in numbers]
    check_ends(source, numbers, there, {place.number for place in wanted})
    check_no_gaps(folders.path, wanted)
    return options, wanted


def _block_stream(spark: SparkSession, source: SourceName, numbers: NumberRange, shards: int) -> ChainFrame:
    _, first, last = subscribed(source, numbers)
    options = {"gateways": source.location, **source.options}
    options |= {"partitions": str(shards), "from": str(first), "to": str(last)}
    return ChainFrame(spark.read.format("blockstream").options(**options).load(), first, last)


def subscribed(source: SourceName, numbers: NumberRange) -> tuple[BlockGateways, int, int]:
    """Return the gateways of a source, and the first and last wanted block that they hold.

    Raises BlockListError, OptionError or SourceUnreachable.
    """
    gateways = SubscriptionOptions.parse({"gateways": source.location, **source.options}).connect()
    held = gateways.held_surely(f"what {source} holds")
    if held.first is None or held.last is None:
        raise BlockListError(str(source), "the node has no blocks")
    first = max(numbers.first, held.first)
    last = held.last if numbers.end is None else min(held.last, numbers.end - 1)
    check_ends(source, numbers, (held.first, held.last), range(first, last + 1))
    return gateways, first, last


def check_ends(
    source: SourceName, numbers: NumberRange, there: tuple[int, int], wanted: range | set[int]
) -> None:
    """Raise BlockListError unless both ends of `numbers` are wanted blocks that are there."""
    for number in _ends(numbers):
        if number not in wanted:
            reason = f"block {number} is not there; the first is {there[0]} and the last {there[1]}"
            raise BlockListError(str(source), reason)


def _ends(numbers: NumberRange) -> list[int]:
    ends = [numbers.first] if numbers.first else []
    return ends if numbers.end is None else [*ends, numbers.end - 1]


# --- tables and stream files --------------------------------------------------------------------------------


def _planned(spark: SparkSession, source: SourceName, numbers: NumberRange, shards: int) -> ChainFrame:
    """Read the numbers, and sort the rows if they are not in order."""
    from sluice.publishers.spark.publishing import is_shuffled, plan_frame
    from sluice.publishers.spark.schema import BLOCK_NUMBER, ITEMS, check_schema

    # All processors read the numbers.
    found = _within(_read(spark, source, os.cpu_count() or 1), numbers)
    check_schema(found.schema)
    plan = plan_frame(found)
    if plan is None:
        chosen = " of these numbers" if numbers != NumberRange() else ""
        raise BlockListError(str(source), f"no blocks{chosen}")
    there = plan.first_block, plan.last_block
    check_ends(source, numbers, there, range(there[0], there[1] + 1))
    rows = _within(_read(spark, source, shards), numbers).select(BLOCK_NUMBER, ITEMS)
    is_as_wanted = plan.is_ordered and plan.partition_count == shards
    if source.kind != "datastream" and (not is_as_wanted or is_shuffled(rows)):
        rows = rows.repartitionByRange(min(shards, plan.block_count), BLOCK_NUMBER)
        rows = rows.sortWithinPartitions(BLOCK_NUMBER)
    return ChainFrame(rows, *there)


def _read(spark: SparkSession, source: SourceName, partitions: int) -> DataFrame:
    if source.kind == "datastream":
        options = {"decode": "blocks", "partitions": str(partitions), **source.options}
        return spark.read.format("datastream").options(**options).load(source.location)
    if source.kind == "parquet":
        return spark.read.options(**source.options).parquet(source.location)
    return spark.read.options(**source.options).table(source.location)


def _within(frame: DataFrame, numbers: NumberRange) -> DataFrame:
    from sluice.publishers.spark.schema import BLOCK_NUMBER

    if numbers.first:
        frame = frame.where(frame[BLOCK_NUMBER] >= numbers.first)
    if numbers.end is not None:
        frame = frame.where(frame[BLOCK_NUMBER] < numbers.end)
    return frame


def _bounds(numbers: NumberRange) -> dict[str, str]:
    bounds = {"from": str(numbers.first)} if numbers.first else {}
    return bounds if numbers.end is None else bounds | {"to": str(numbers.end - 1)}


# --- a network's own stream ---------------------------------------------------------------------------------


def _network_file(spark: SparkSession, source: SourceName, numbers: NumberRange, shards: int) -> ChainFrame:
    from sluice.publishers.spark.network_stream import plan_entries, planned_blocks
    from sluice.publishers.spark.schema import BLOCK_NUMBER

    options = NetworkOptions.parse(source.options, is_server=False)
    entries = spark.read.format("datastream").options(**options.source).load(source.location)
    plan = plan_entries(entries, options)
    count = len(plan.starts)
    if not count:
        reason = f"its {plan.entries} entries make no complete block"
        raise BlockListError(str(source), reason)
    check_ends(source, numbers, (0, count - 1), range(count))
    first = numbers.first
    last = count - 1 if numbers.end is None else numbers.end - 1
    rows = _within(planned_blocks(entries, plan), numbers)
    rows = rows.repartitionByRange(min(shards, last - first + 1), BLOCK_NUMBER)
    return ChainFrame(rows.sortWithinPartitions(BLOCK_NUMBER), first, last)


def _network_server(spark: SparkSession, source: SourceName, shards: int) -> DataFrame:
    from sluice.publishers.spark.network_stream import streamed_blocks

    options = NetworkOptions.parse(source.options, is_server=True)
    texts = {"partitions": str(shards), **options.source, "server": source.location}
    return streamed_blocks(spark.readStream.format("datastream").options(**texts).load(), options)


# --- data streamers -----------------------------------------------------------------------------------------


def served_entries(source: SourceName, numbers: NumberRange) -> range:
    """Return the entries that a data streamer has now, from the first wanted block on.

    Raises BlockListError, OptionError or SourceUnreachable.
    """

    def ask(client: BlockingStreamClient) -> tuple[str | None, range]:
        total = client.header().total_entries
        if not total:
            return "the stream has no entries", range(0)
        if source.is_network:  # its bookmarks name other things than our blocks
            return None, range(total)
        first = 0
        for number in _ends(numbers):
            entry = block_entry(client, number)
            if entry is None:
                return f"block {number} is not there", range(0)
            if number == numbers.first:
                first = entry
        return None, range(first, total)

    reason, entries = _asked(source, f"what {source} holds", ask)
    if reason is not None:
        raise BlockListError(str(source), reason)
    return entries


def entry_of_block(source: SourceName, number: int) -> int | None:
    """Ask a data streamer for the entry that a block begins with; None: it does not have the block.

    Raises OptionError or SourceUnreachable.
    """
    return _asked(source, f"block {number} of {source}", lambda client: block_entry(client, number))


def server_options(source: SourceName) -> StreamOptions:
    """Return how to connect to a data streamer; raise OptionError."""
    options = source.options
    if source.is_network:
        options = NetworkOptions.parse(options, is_server=True).source
    return StreamOptions.parse(options)


def _asked(source: SourceName, what: str, ask: Callable[[BlockingStreamClient], T]) -> T:
    parsed = server_options(source)
    trouble = ""
    for address in parse_addresses(source.location, port_min=1):
        try:
            with connect_to_stream(address, parsed.stream_type, parsed.tls, STATUS_SECONDS) as client:
                return ask(client)
        except (OSError, DatastreamError) as error:
            trouble = f"{address}: {error}"
    raise SourceUnreachable(what, None, trouble)
