"""The Spark sink `blockstream`: publish blocks to gateways, and succeed when they are acknowledged.

    blocks.write.format("blockstream").option("gateways", "a:40840,b:40840").mode("append").save()

    option             meaning                                                          default
    gateways           `host:port`, comma list; the preferred one first                 needed
    tls, tls_ca, tls_certificate, tls_key, tls_server_name   see gateway_options.py    no TLS
    publisher_id       the name by which nodes know this publisher                      spark
    deadline_seconds   give up after so long without a block becoming safe              never
    reset_interval_seconds  leave the stream in good order after so long, between blocks,
                       and go on at the next gateway at once                            never
    set_bytes          size of an item set in a message                                 65536
    cache_bytes        bytes of unacknowledged blocks held by a task                    268435456
    window_blocks      blocks offered and not acknowledged                              128
    blocks_per_second  offer blocks no faster than this, with some jitter             no limit
    report_path        folder for `<publisher_id>.json`, the reports of the partitions  none
    start_gate         folder of a start gate (start_gate.py), for races                none

Each partition is published in order by one task, as one publisher, so its blocks must be consecutive and
ascending; a gap or a repetition is an error that names the numbers. A later partition waits, by the protocol,
until the blocks before it are stored. Blocks that are stored already are passed over, so a task that Spark
runs again, or twice, does no harm.
Source: design.md, "Spark".
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from gateway.addresses import parse_addresses
from gateway.block import Block
from gateway.channels import ClientTls
from gateway.errors import AddressError
from publishers import limits
from publishers.client import ClientOptions, publish_blocks
from publishers.errors import OptionError
from publishers.machine import SECOND_NS, MachineLimits
from publishers.report import PublishReport
from publishers.spark.block_files import folder_of
from publishers.spark.block_subscription import (
    BlockStreamReader,
    SubscriptionOptions,
    SubscriptionReader,
)
from publishers.spark.gateway_options import GATEWAY_OPTIONS, gateway_tls
from publishers.spark.options import check_known, positive, required, whole_number
from publishers.spark.schema import (
    BLOCK_COLUMNS,
    BLOCK_NUMBER,
    ITEMS,
    check_schema,
    columns_of,
    spark_schema,
)
from publishers.spark.start_gate import StartGate

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "BlockStreamDataSource",
    "BlockStreamWriter",
    "PartitionPublished",
    "SinkOptions",
    "read_reports",
]

log = logging.getLogger(__name__)

_KNOWN: Final = GATEWAY_OPTIONS | frozenset(
    (
        "publisher_id",
        "deadline_seconds",
        "reset_interval_seconds",
        "set_bytes",
        "cache_bytes",
        "window_blocks",
        "blocks_per_second",
        "report_path",
        "start_gate",
        "path",
    )
)
_CACHE_BYTES_MAX: Final = 1 << 40
_WINDOW_BLOCKS_MAX: Final = limits.OFFERS_MAX


@dataclass(frozen=True)
class SinkOptions:
    """The sink's options, read and checked; they travel to the workers."""

    gateways: tuple[str, ...]
    publisher_id: str
    deadline_seconds: float | None
    reset_interval_seconds: float | None
    set_bytes: int
    cache_bytes: int
    window_blocks: int
    blocks_per_second: float | None
    report_path: str | None
    start_gate: str | None
    tls: ClientTls | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Read what Spark was given.

        Raises:
            OptionError: naming the option, what it was, and what it may be.
        """
        check_known(options, _KNOWN)
        text = required(options, "gateways", "host:port, or several with commas between")
        try:
            gateways = tuple(str(address) for address in parse_addresses(text, port_min=1))
        except AddressError as error:
            raise OptionError("gateways", repr(error.text), error.expected) from error
        return cls(
            gateways=gateways,
            publisher_id=options.get("publisher_id", "").strip() or "spark",
            deadline_seconds=positive(options, "deadline_seconds", "seconds"),
            reset_interval_seconds=positive(options, "reset_interval_seconds", "seconds"),
            set_bytes=whole_number(
                options, "set_bytes", limits.ITEM_SET_BYTES_DEFAULT, 1, limits.ITEM_BYTES_MAX
            ),
            cache_bytes=whole_number(options, "cache_bytes", limits.CACHE_BYTES_DEFAULT, 1, _CACHE_BYTES_MAX),
            window_blocks=whole_number(
                options, "window_blocks", limits.WINDOW_BLOCKS_DEFAULT, 1, _WINDOW_BLOCKS_MAX
            ),
            blocks_per_second=positive(options, "blocks_per_second", "blocks a second"),
            report_path=options.get("report_path"),
            start_gate=options.get("start_gate"),
            tls=gateway_tls(options),
        )

    def client_options(self) -> ClientOptions:
        """Make the options of the client of one partition."""
        machine = MachineLimits(
            cache_bytes_max=self.cache_bytes,
            window_blocks_max=self.window_blocks,
            deadline_ns=_nanoseconds(self.deadline_seconds),
            reset_interval_ns=_nanoseconds(self.reset_interval_seconds),
        )
        return ClientOptions(machine=machine, set_bytes_max=self.set_bytes, tls=self.tls)


def _nanoseconds(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * SECOND_NS)


@dataclass
class PartitionPublished(WriterCommitMessage):
    """What a task tells the driver: its report, as JSON."""

    report: str


class BlockStreamDataSource(DataSource):
    """Spark's handle of the sink; the module's docstring has the options."""

    @classmethod
    def name(cls) -> str:
        """Give the format's name."""
        return "blockstream"

    def schema(self) -> StructType:
        """Give the columns of reading."""
        return spark_schema(BLOCK_COLUMNS)

    def reader(self, schema: StructType) -> BlockStreamReader:
        """Make the reader of a batch; block_subscription.py has the options."""
        return BlockStreamReader(SubscriptionOptions.parse(self.options), columns_of(schema, BLOCK_COLUMNS))

    def streamReader(self, schema: StructType) -> SubscriptionReader:
        """Make the reader of a stream; block_subscription.py has the options."""
        return SubscriptionReader(SubscriptionOptions.parse(self.options), columns_of(schema, BLOCK_COLUMNS))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Check options and columns on the driver, before any task.

        Raises:
            OptionError: an option is wrong, or the mode is `overwrite`: a chain only grows.
            SchemaError: the DataFrame has other columns.
        """
        if overwrite:
            raise OptionError("mode", "overwrite", "append")
        check_schema(schema)
        return BlockStreamWriter(SinkOptions.parse(self.options))


class BlockStreamWriter(DataSourceArrowWriter):
    """Publishes partitions on the workers, and gathers their reports on the driver."""

    def __init__(self, options: SinkOptions) -> None:
        """Take the options."""
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Publish one partition.

        Args:
            iterator: Arrow batches with at least the columns of blocks.

        Returns:
            `PartitionPublished`: every block of the partition is stored.

        Raises:
            PublishFailed, BlockOrderError, ItemTooLarge: the partition cannot be published to its end.
        """
        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        # Nodes know a publisher by its name and take it for one; partitions are several.
        name = self._options.publisher_id
        publisher_id = name if partition == 0 else f"{name}-{partition}"
        report = asyncio.run(self._publish(iterator, publisher_id))
        return PartitionPublished(report.to_json())

    async def _publish(self, batches: Iterator[pa.RecordBatch], publisher_id: str) -> PublishReport:
        blocks = _blocks_of(batches)
        if self._options.start_gate is not None:
            gate = StartGate(folder_of(self._options.start_gate))
            if not await gate.wait(publisher_id):
                log.warning("%s: the other publishers are not ready, starting alone", publisher_id)
        if self._options.blocks_per_second is not None:
            blocks = _paced(blocks, self._options.blocks_per_second)
        return await publish_blocks(
            blocks, self._options.gateways, publisher_id, self._options.client_options()
        )

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Write the reports of all partitions to `report_path`, or log them."""
        reports = _reports_in(messages)
        for report in reports:
            log.info("published: %s", report.to_json())
        if self._options.report_path is not None:
            _write_reports(folder_of(self._options.report_path), self._options.publisher_id, reports)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Say which blocks are stored although the job failed."""
        for report in _reports_in(messages):
            log.warning(
                "the job failed; blocks up to %s are stored (publisher %s)",
                report.safe_through,
                report.publisher_id,
            )


def read_reports(folder: Path, publisher_id: str) -> list[PublishReport]:
    """Read what `commit` wrote to `report_path`; nothing when the job did not commit.

    Returns:
        One report per partition that had blocks or not, in no order.
    """
    path = _report_file(folder, publisher_id)
    if not path.exists():
        return []
    return [PublishReport.from_json(json.dumps(fields)) for fields in json.loads(path.read_text())]


async def _blocks_of(batches: Iterator[pa.RecordBatch]) -> AsyncIterator[Block]:
    """Give the blocks of Arrow batches; the batches are awaited in a thread, because Spark's reading
    blocks."""
    while (batch := await asyncio.to_thread(next, batches, None)) is not None:
        numbers, items = batch.column(BLOCK_NUMBER), batch.column(ITEMS)
        for row in range(batch.num_rows):
            yield Block(numbers[row].as_py(), tuple(items[row].as_py()))


async def _paced(blocks: AsyncIterator[Block], per_second: float) -> AsyncIterator[Block]:
    """Give each block no sooner than its turn, and up to half a turn later by chance.

    As consensus nodes have a block at almost the same time, and none is always the first. The first turn
    comes when all have had time to connect.
    """
    loop = asyncio.get_running_loop()
    started, count = loop.time() + limits.PACE_LEAD_SECONDS, 0
    async for block in blocks:
        turn = (count + random.uniform(0, 0.5)) / per_second
        await asyncio.sleep(max(0.0, started + turn - loop.time()))
        count += 1
        yield block


def _reports_in(messages: list[WriterCommitMessage | None]) -> list[PublishReport]:
    return [
        PublishReport.from_json(message.report)
        for message in messages
        if isinstance(message, PartitionPublished)
    ]


def _report_file(folder: Path, publisher_id: str) -> Path:
    return folder / f"{publisher_id.replace('/', '_')}.json"


def _write_reports(folder: Path, publisher_id: str, reports: list[PublishReport]) -> None:
    path = _report_file(folder, publisher_id)
    temporary = path.with_suffix(".part")
    temporary.write_text("[" + ",\n".join(report.to_json() for report in reports) + "]\n")
    temporary.replace(path)
