"""The sink of `blockstream`: its tasks publish partitions, and the driver gathers their reports.

    rows of a partition ─► decode ─► check ─► (wait for the part order) ─► publishers ─► acknowledged
                          └── in a thread, up to a quarter of the cache ahead ──┘

A task succeeds when every block of its partition is known to be stored. It passes over blocks that are stored
already, so a task that runs again, or twice, does no harm.

In a batch, a gap or a repetition in a partition is an error that names the numbers. A streaming task passes
over a block that came before, and waits at a gap until a gateway has the missing blocks from another
publisher.
Source: docs/spark.md, "How blocks get out".
"""

from __future__ import annotations

import asyncio
import json
import logging
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from sluice.gateway.blocks.block import Block
from sluice.publishers.blocks.block_check import OfferCheck
from sluice.publishers.client.feeding import PreparedBlocks, run_with_thread
from sluice.publishers.client.racing import Racer, race
from sluice.publishers.coordination.coordinator import NO_BATCH
from sluice.publishers.coordination.coordinator_client import CoordinatorClient
from sluice.publishers.coordination.part_order import await_part_order
from sluice.publishers.errors import BlockOrderError, FrameError, OptionError
from sluice.publishers.limits import PART_ORDER_SECONDS_DEFAULT
from sluice.publishers.report import PublishReport, QueryTotals, safe_through_of
from sluice.publishers.spark.batches import blocks_in
from sluice.publishers.spark.folders import folder_of
from sluice.publishers.spark.sink_options import SinkOptions

__all__ = [
    "REPORT_SCHEMA",
    "BlockStreamStreamWriter",
    "BlockStreamWriter",
    "PartitionPublished",
    "make_report_folder",
    "patience_seconds",
    "publish_partition",
    "published_rows",
    "read_reports",
    "read_totals",
    "say_what_is_safe",
    "write_reports",
]

log = logging.getLogger(__name__)

LAST_WORD_SECONDS: Final = 1.0
"""Longest wait for each gateway to say what it holds after a failed job."""
BATCH_REPORTS_KEPT: Final = 100
"""Batches of a streaming query whose reports stay in `report_path`."""
_BATCH_PROPERTY = "streaming.sql.batchId"
_QUERY_PROPERTY = "sql.streaming.queryId"
_REMEDY = (
    "publish the DataFrame with sluice.publishers.spark.publish, which sorts it, or sort it by block_number"
)
_STREAM_REMEDY = (
    "a shuffle (repartition, join, aggregation, dropDuplicates) is between the source and the sink: take it "
    "out, or write each batch with foreachBatch and sluice.publishers.spark.publish, which sorts it"
)
REPORT_SCHEMA: Final = "report STRING"
_REPORT_COLUMNS: Final = pa.schema([("report", pa.string())])


@dataclass
class PartitionPublished(WriterCommitMessage):
    """The message of a task to the driver: its reports, as JSON."""

    reports: tuple[str, ...]
    query_id: str | None = None


class _Runs:
    """The blocks of a partition as runs of consecutive numbers."""

    def __init__(self, blocks: AsyncIterator[Block]) -> None:
        self._blocks = blocks
        self._pending: Block | None = None
        self._next_number: int | None = None
        self._taken: list[range] = []
        """The runs so far, the last one perhaps unfinished."""

    async def begin(self) -> int | None:
        """Return the first block of the next run."""
        if self._pending is None:
            self._pending = await anext(self._blocks, None)
        return None if self._pending is None else self._pending.number

    async def strict(self) -> AsyncIterator[Block]:
        """Yield all blocks; the client refuses what is out of order."""
        while self._pending is not None:
            yield self._pending
            self._pending = await anext(self._blocks, None)

    async def run(self) -> AsyncIterator[Block]:
        """Yield the blocks up to the next gap, without repetitions; raise BlockOrderError for one that comes
        after a later one.
        """
        while self._pending is not None:
            number = self._pending.number
            if self._next_number is not None and number > self._next_number:
                self._next_number = None
                return
            if self._next_number is None and (not self._taken or number >= self._taken[-1].stop):
                self._taken.append(range(number, number))
                self._next_number = number
            if number == self._next_number:
                self._next_number = number + 1
                self._taken[-1] = range(self._taken[-1].start, number + 1)
                yield self._pending
            elif not any(number in run for run in self._taken):
                raise BlockOrderError(self._taken[-1].stop, number)
            self._pending = await anext(self._blocks, None)


def publish_partition(
    batches: Iterator[pa.RecordBatch], options: SinkOptions, *, is_streaming: bool
) -> list[PublishReport]:
    """Publish the rows of one task.

    Returns:
        A report of each publisher and run; none for a partition without rows.

    Raises:
        BadBlock: a block that no gateway would take.
        FrameError: rows out of order, or without a number.
        PublishFailed, PartOrderTimeout, ItemTooLarge: the partition cannot be published to its end.
        PublishStopped: the coordinator told the task to stop.
    """
    return run_with_thread(lambda: _publish(batches, options, is_streaming))


def published_rows(options: Mapping[str, str], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Publish the rows of one task; yield its reports as rows of `REPORT_SCHEMA`, for `mapInArrow`.

    Rows reach whoever runs the job, over Spark Connect too, where its driver has another disk.
    """
    reports = publish_partition(batches, SinkOptions.parse(options), is_streaming=False)
    yield pa.record_batch([[report.to_json() for report in reports]], schema=_REPORT_COLUMNS)


async def _publish(
    batches: Iterator[pa.RecordBatch], options: SinkOptions, is_streaming: bool
) -> list[PublishReport]:
    context = TaskContext.get()
    partition = 0 if context is None else context.partitionId()
    attempt = 0 if context is None else context.attemptNumber()
    name = _task_name(options.publisher_id, partition, attempt)
    batch = _batch_of(context) if is_streaming else NO_BATCH
    prepared = PreparedBlocks(_checked(blocks_in(batches), options.is_checked), options.prepared_bytes)
    prepared.start()
    try:
        async with CoordinatorClient(options.coordinator, options.publisher_id, name, batch) as link:
            await link.go()
            runs = _Runs(aiter(prepared))
            reports: list[PublishReport] = []
            while (first := await link.unless_stopped(runs.begin())) is not None:
                is_first = partition == 0 if options.first_block is None else first <= options.first_block
                racers = options.racers(name)
                must_wait = bool(reports) or not is_first
                if must_wait:
                    racers = await link.unless_stopped(_await_part_order(racers, first, options, attempt))
                source = runs.run() if is_streaming else runs.strict()
                reports += await race(
                    source,
                    racers,
                    options.client_options(),
                    options.prepared_bytes,
                    link.watch,
                    options.pace(
                        is_beginning=not must_wait and batch in (NO_BATCH, 0), opened_at=link.opened_at
                    ),
                )
                link.check()
            return reports
    except BlockOrderError as error:
        remedy = _STREAM_REMEDY if is_streaming else _REMEDY
        raise FrameError(f"partition {partition}: {error}", remedy) from error
    finally:
        prepared.stop()


def _task_name(publisher_id: str, partition: int, attempt: int) -> str:
    """Return the name of a task's publisher; each attempt has its own, as two may run at once."""
    name = publisher_id if partition == 0 else f"{publisher_id}-{partition}"
    return name if attempt == 0 else f"{name}-attempt-{attempt}"


def _batch_of(context: TaskContext | None) -> int:
    text = None if context is None else context.getLocalProperty(_BATCH_PROPERTY)
    return NO_BATCH if text is None else int(text)


def _checked(blocks: Iterator[Block], is_checked: bool) -> Iterator[Block]:
    check = OfferCheck()
    for block in blocks:
        if is_checked:
            check.check(block)
        yield block


async def _await_part_order(
    racers: list[Racer], first_block: int, options: SinkOptions, attempt: int
) -> list[Racer]:
    ask = options.asker().held_by
    timeouts = (patience_seconds(options.part_order_seconds, attempt), options.deadline_seconds)
    waits = [await_part_order(racer.gateways, first_block, ask, *timeouts) for racer in racers]
    ordered = await asyncio.gather(*waits)
    return [Racer(racer.publisher_id, gateways) for racer, gateways in zip(racers, ordered, strict=True)]


def patience_seconds(part_order_seconds: float, attempt: int) -> float:
    """Return how long an attempt of a task waits for the parts before: twice as long as the attempt before.

    The first one gives up its slot soon, as a failed task may need it; the last one waits long, as its
    failure is that of the job, and the gateways may be on their way back.
    """
    longest = max(part_order_seconds, PART_ORDER_SECONDS_DEFAULT)
    return min(part_order_seconds * 2.0 ** min(attempt, 30), longest)


class BlockStreamWriter(DataSourceArrowWriter):
    """The writer of a batch. It publishes on the workers, and gathers reports on the driver."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """See `publish_partition`."""
        return _message(publish_partition(iterator, self._options, is_streaming=False))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Write the reports of all partitions to `report_path`, and log them."""
        reports = _reports_in(messages)
        for report in reports:
            log.info("published: %s", report.to_json())
        write_reports(self._options, reports)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log which blocks are stored although the job failed."""
        say_what_is_safe(self._options, _reports_in(messages))


class BlockStreamStreamWriter(DataSourceStreamArrowWriter):
    """The writer of a streaming query's batches; a batch that runs again does no harm."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """See `publish_partition`."""
        context = TaskContext.get()
        query_id = None if context is None else context.getLocalProperty(_QUERY_PROPERTY)
        return _message(publish_partition(iterator, self._options, is_streaming=True), query_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Write the reports of a batch and the totals of the query to `report_path`, and log the reports."""
        reports = _reports_in(messages)
        for report in reports:
            log.info("batch %d published: %s", batchId, report.to_json())
        if self._options.report_path is None:
            return
        folder, name = _report_folder(self._options.report_path), self._options.publisher_id
        if reports:
            _write_named(folder, f"{name}-batch-{batchId}", reports)
        _report_file(folder, f"{name}-batch-{batchId - BATCH_REPORTS_KEPT}").unlink(missing_ok=True)
        totals = _totals_before(folder, name, batchId).through(batchId, reports, _query_in(messages))
        _write(_report_file(folder, f"{name}-totals"), totals.to_json())

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Log which blocks are stored although the batch failed."""
        say_what_is_safe(self._options, _reports_in(messages))


def make_report_folder(report_path: str) -> None:
    """Make the folder for reports before a block is sent; raise OptionError."""
    folder = _report_folder(report_path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        got = f"{report_path!r} ({error.strerror or error})"
        raise OptionError("report_path", got, "a folder that can be written to") from error


def read_reports(folder: Path, publisher_id: str) -> list[PublishReport]:
    """Return the reports that `commit` wrote to `report_path`."""
    path = _report_file(folder, publisher_id)
    if not path.exists():
        return []
    return [PublishReport.from_json(json.dumps(fields)) for fields in json.loads(path.read_text())]


def read_totals(report_path: str | Path, publisher_id: str = "spark") -> QueryTotals:
    """Return what a streaming query has published so far, from the folder `report_path`; empty if nothing.

    Queries that share `report_path` and `publisher_id` are added up.
    """
    path = _report_file(_report_folder(str(report_path)), f"{publisher_id}-totals")
    return QueryTotals.from_json(path.read_text()) if path.exists() else QueryTotals(publisher_id)


def _totals_before(folder: Path, name: str, batch: int) -> QueryTotals:
    """Return the totals before a batch; start anew if a power failure damaged them."""
    try:
        return read_totals(folder, name)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        path = _report_file(folder, f"{name}-totals")
        log.warning("%s cannot be read (%s); the totals begin anew with batch %d", path, error, batch)
        return QueryTotals(name)


def _message(reports: list[PublishReport], query_id: str | None = None) -> PartitionPublished:
    return PartitionPublished(tuple(report.to_json() for report in reports), query_id)


def _query_in(messages: list[WriterCommitMessage | None]) -> str | None:
    """Return the query of the tasks; Spark does not tell it to the process that commits."""
    names = [message.query_id for message in messages if isinstance(message, PartitionPublished)]
    return names[0] if names else None


def _reports_in(messages: list[WriterCommitMessage | None]) -> list[PublishReport]:
    return [
        PublishReport.from_json(text)
        for message in messages
        if isinstance(message, PartitionPublished)
        for text in message.reports
    ]


def say_what_is_safe(options: SinkOptions, reports: Sequence[PublishReport]) -> None:
    """Log which blocks are stored although a job failed."""
    known = safe_through_of(reports)
    try:
        held = options.asker(LAST_WORD_SECONDS).held()
    except Exception as error:  # Spark would show this error, not the job's
        log.warning("the gateways cannot be asked what they have: %s", error)
        held = None
    if held is not None and held.last is not None:
        words = "the job failed; the gateways hold blocks %d to %d, run it again to go on"
        log.warning(words, held.first, held.last)
    elif known is not None:
        log.warning("the job failed; blocks up to %d are stored, run it again to go on", known)
    else:
        log.warning("the job failed; as far as is known no block is stored")


def _report_folder(report_path: str) -> Path:
    return folder_of(report_path, "report_path")


def _report_file(folder: Path, publisher_id: str) -> Path:
    return folder / f"{publisher_id.replace('/', '_')}.json"


def write_reports(options: SinkOptions, reports: Sequence[PublishReport]) -> None:
    """Write the reports of a batch to `report_path`, if one is given."""
    if options.report_path is not None:
        _write_named(_report_folder(options.report_path), options.publisher_id, reports)


def _write_named(folder: Path, publisher_id: str, reports: Sequence[PublishReport]) -> None:
    texts = ",\n".join(report.to_json() for report in reports)
    _write(_report_file(folder, publisher_id), f"[{texts}]")


def _write(path: Path, text: str) -> None:
    temporary = path.with_suffix(".part")
    temporary.write_text(text + "\n")
    temporary.replace(path)
