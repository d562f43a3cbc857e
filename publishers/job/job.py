"""The Spark jobs of `sluice publish`: they race, and each publishes the whole chain.

    publisher-1   job, or query with --follow ──┐
    publisher-2   the same rows, read again   ──┼──► the sink's tasks ──► gateways
    publisher-3                               ──┘        │
    watch: ask the gateways, say go and stop ◄── coordinator (reports of each task)

Source: docs/spark.md; docs/protocol.md.
"""

from __future__ import annotations

import glob
import logging
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc

from sluice.gateway.api import node_pb2, node_pb2_grpc
from sluice.gateway.services.node_service import held_of
from sluice.gateway.transport.channels import ClientTls, open_blocking_channel, refused_headers
from sluice.publishers import limits
from sluice.publishers.blocks.signing_key import KeyPlace
from sluice.publishers.coordination.coordinator import Coordinator
from sluice.publishers.job.checkpoint import FollowCheckpoint
from sluice.publishers.number_range import NumberRange
from sluice.publishers.report import (
    AcknowledgementRate,
    JobFailure,
    JobProgress,
    JobReport,
    PublishReport,
    by_publisher,
    ends_of,
    safe_through_of,
)
from sluice.publishers.spark.chain_sources import (
    ChainFrame,
    batch_frame,
    check_before_spark,
    checked_where_read,
    stream_frame,
)
from sluice.publishers.spark.failures import is_passing, reason_in
from sluice.publishers.spark.gateway_options import Gateways, gateways_of, rotated, tls_gateway_options
from sluice.publishers.spark.options import current_names
from sluice.publishers.spark.session import active_session, part_order_seconds_for, task_slots
from sluice.publishers.spark.sink_options import FORMER_NAMES
from sluice.publishers.spark.source_names import SourceName, parse_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["GatewayStatus", "JobFailure", "JobProgress", "JobReport", "publish"]

_logger = logging.getLogger(__name__)

QUERY_STARTS_MAX: Final = 5
"""The query is started again after failures of Spark itself."""
SLOTS_SETTLE_SECONDS: Final = 5.0
"""Time for further executors of a cluster to come, when tasks have all slots of those that are there."""
STATUS_TIMEOUT_SECONDS: Final = 1.0
"""Longest wait for a gateway's last block."""
_ABORT_WAIT_SECONDS: Final = 10.0
_STOP_WAIT_SECONDS: Final = limits.STOP_TIMEOUT_SECONDS + 2 * limits.CLOSE_TIMEOUT_SECONDS
_LOCAL_HOST: Final = "127.0.0.1"


@dataclass(slots=True)
class _Job:
    publisher_id: str
    gateways: str
    thread: threading.Thread | None = None
    query: Any = None
    ending: threading.Thread | None = None
    reports: list[PublishReport] = field(default_factory=list)
    error: Exception | None = None
    is_over: bool = False
    """Everything was stored before the query was stopped: it has not failed."""

    @property
    def has_failed(self) -> bool:
        return self.error is not None and not self.is_over

    @property
    def is_running(self) -> bool:
        return self.thread is not None and self.thread.is_alive()


@dataclass(slots=True)
class _Race:
    spark: SparkSession
    chain: ChainFrame
    options: dict[str, str]
    folder: Path
    checkpoint: FollowCheckpoint | None
    """None: a batch, or a stream that ends where it ended when the query began."""
    coordinator: Coordinator
    started_at: float = field(default_factory=time.monotonic)
    opened_at: float | None = None
    """The time when the first publisher could send."""
    full_since: float | None = None
    """The time since which waiting tasks have all slots."""
    acknowledgements: AcknowledgementRate = field(default_factory=AcknowledgementRate)
    is_stopping: bool = False

    @property
    def tag(self) -> str:
        return f"sluice-publish-{self.coordinator.address.token}"

    def rows(self, job: _Job) -> list[PublishReport]:
        is_told = bool(job.reports) and not self.chain.is_streaming
        live = [] if is_told else self.coordinator.reports(job.publisher_id)
        return by_publisher(job.publisher_id, [*job.reports, *live], with_latency=True)

    def rate(self, rows: Sequence[PublishReport]) -> float:
        return self.acknowledgements.of(rows, self.opened_at or self.started_at, time.monotonic())


def publish(
    spark: SparkSession,
    source: Path | SourceName,
    gateways: Sequence[str],
    publishers: int = 1,
    *,
    numbers: NumberRange | None = None,
    shards: int = 1,
    key: KeyPlace | None = None,
    checkpoint: FollowCheckpoint | None = None,
    publisher_prefix: str = "publisher",
    deadline_seconds: float | None = None,
    reset_interval_seconds: float | None = None,
    blocks_per_second: float | None = None,
    tls: ClientTls | None = None,
    sink_options: dict[str, str] | None = None,
    on_progress: Callable[[JobProgress], None] | None = None,
    stop: threading.Event | None = None,
) -> JobReport:
    """Publish a chain by racing Spark jobs.

    Args:
        spark: a session with at least publishers times shards task slots (`build_session`).
        source: a folder of block files, or another source; under the same path on every worker.
        gateways: `host:port` or `host:port/priority` each, the preferred one first.
        shards: consecutive parts of the chain that each publisher prepares at once, and sends in order.
        key: where a worker finds the key that signs blocks; None: they are signed already.
        checkpoint: follow the source without end, from there on; None: publish what is there.
        publisher_prefix: publishers are called prefix-1, prefix-2, …
        tls: with absolute paths.
        on_progress: called several times a second from this thread.
        stop: once set, publishers finish the block in flight, and the report says that it was interrupted.

    Returns:
        The reports; `failures` has the publishers that failed.

    Raises:
        PublisherError: the source cannot be read or is no chain, or an option is wrong; nothing was sent.
    """
    if isinstance(source, Path):
        source = parse_source(f"blockfiles:{source}")
    numbers = numbers or NumberRange()
    if checkpoint is None:
        check_before_spark(source, numbers)
    texts = _texts(
        deadline_seconds=deadline_seconds,
        reset_interval_seconds=reset_interval_seconds,
        blocks_per_second=blocks_per_second,
        part_order_seconds=part_order_seconds_for(spark, publishers * shards),
    ) | {**current_names(sink_options or {}, FORMER_NAMES), **tls_gateway_options(tls)}
    source, texts = checked_where_read(source, texts, is_signed_next=key is not None)
    chain = _chain_of(spark, source, numbers, shards, is_followed=checkpoint is not None)
    prioritized = gateways_of({"gateways": ",".join(gateways)})
    jobs = _jobs(publisher_prefix, publishers, prioritized)
    with (
        tempfile.TemporaryDirectory(prefix="sluice-publish-") as folder,
        GatewayStatus(rotated(prioritized, 0), tls) as status,
        _coordinator_for(spark) as coordinator,
    ):
        texts |= {"report_path": folder, "coordinator": str(coordinator.address)}
        race = _Race(spark, _signed(chain, key), texts, Path(folder), checkpoint, coordinator)
        _take_earlier(race, jobs, source, status)
        _run(race, jobs, status, on_progress, stop)
        return _report(race, jobs)


def _chain_of(
    spark: SparkSession, source: SourceName, numbers: NumberRange, shards: int, *, is_followed: bool
) -> ChainFrame:
    with active_session(spark):
        return (stream_frame if is_followed else batch_frame)(spark, source, numbers, shards)


def _jobs(prefix: str, count: int, prioritized: Gateways) -> list[_Job]:
    return [_Job(f"{prefix}-{place + 1}", ",".join(rotated(prioritized, place))) for place in range(count)]


def _take_earlier(race: _Race, jobs: list[_Job], source: SourceName, status: GatewayStatus) -> None:
    """Add what earlier runs have published; if nothing is left to do, no batch reports it."""
    if race.checkpoint is None:
        return
    # The offsets of a server are numbers of entries: there the gateway knows which blocks are stored.
    stored = status.ask()[0] if source.is_server else None
    for job in jobs:
        if source.is_server:
            has_begun = race.checkpoint.committed_batch(job.publisher_id) >= 0
            following = stored + 1 if has_begun and stored is not None else None
        else:
            following = race.checkpoint.committed_next(job.publisher_id)
        if following:
            job.reports = [PublishReport(job.publisher_id, safe_through=following - 1)]


def _signed(chain: ChainFrame, key: KeyPlace | None) -> ChainFrame:
    from sluice.publishers.spark.prepare import sign_blocks

    if key is None:
        return chain
    signed = sign_blocks(chain.frame, key.file, key.variable)
    return ChainFrame(signed, chain.first_block, chain.last_block, chain.is_streaming)


def _coordinator_for(spark: SparkSession) -> Coordinator:
    """Start the coordinator where workers reach it: on a cluster under Spark's name of this machine."""
    settings = spark.sparkContext.getConf()
    if (settings.get("spark.master") or "").startswith("local"):
        return Coordinator(_LOCAL_HOST)
    host = settings.get("spark.driver.host") or _LOCAL_HOST
    return Coordinator(settings.get("spark.driver.bindAddress") or host, host)


def _texts(**values: float | None) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value is not None}


def _run(
    race: _Race,
    jobs: list[_Job],
    status: GatewayStatus,
    on_progress: Callable[[JobProgress], None] | None,
    stop: threading.Event | None,
) -> None:
    try:
        for job in jobs:
            job.thread = threading.Thread(
                target=_run_job, args=(race, job), name=job.publisher_id, daemon=True
            )
            job.thread.start()
        _watch(race, jobs, status, on_progress, stop)
    except BaseException:
        _abort(race, jobs)
        raise


def _abort(race: _Race, jobs: list[_Job]) -> None:
    """Try again and again: one that is just starting cannot be ended yet."""
    give_up_at = time.monotonic() + _ABORT_WAIT_SECONDS
    while (running := [job for job in jobs if job.is_running]) and time.monotonic() < give_up_at:
        _end(race, running)
        assert running[0].thread is not None
        running[0].thread.join(limits.STATUS_POLL_SECONDS)


def _watch(
    race: _Race,
    jobs: list[_Job],
    status: GatewayStatus,
    on_progress: Callable[[JobProgress], None] | None,
    stop: threading.Event | None,
) -> None:
    stop_by = None
    while True:
        running = [job for job in jobs if job.is_running]
        ready_count = race.coordinator.ready_count
        if race.opened_at is None and (ready_count >= len(running) or _has_no_slot_left(race)):
            race.coordinator.open_gate()
            race.opened_at = time.monotonic()
        for job in jobs:
            _take_batches(race, job)
        if on_progress is not None:
            on_progress(_progress(race, jobs, status, ready_count, len(running)))
        if not running:
            return
        if stop is not None and stop.is_set() and not race.is_stopping:
            race.is_stopping = True
            race.coordinator.stop()
            stop_by = time.monotonic() + _STOP_WAIT_SECONDS
        is_stopped = stop_by is not None and (race.coordinator.await_idle(0) or time.monotonic() > stop_by)
        is_all_safe = race.checkpoint is not None and _is_all_safe(race, jobs)
        for job in running:
            job.is_over |= is_all_safe and job.error is None
        if stop_by is not None and time.monotonic() > stop_by + _ABORT_WAIT_SECONDS:
            return  # some job does not end
        if is_stopped or is_all_safe:
            # Repeatedly: a query that is just starting cannot be ended yet.
            _end(race, running)
        assert running[0].thread is not None
        running[0].thread.join(limits.STATUS_POLL_SECONDS / (1 if race.opened_at and not stop_by else 10))


def _has_no_slot_left(race: _Race) -> bool:
    """Return whether waiting tasks have all slots: no other publisher can begin before they do."""
    now = time.monotonic()
    if race.coordinator.task_count < task_slots(race.spark):
        race.full_since = None
    elif race.full_since is None:
        race.full_since = now
    return race.full_since is not None and now - race.full_since >= SLOTS_SETTLE_SECONDS


def _end(race: _Race, jobs: list[_Job]) -> None:
    race.spark.sparkContext.cancelJobsWithTag(race.tag)
    for job in jobs:
        if job.query is not None and (job.ending is None or not job.ending.is_alive()):
            job.ending = threading.Thread(target=_stop_query, args=(job,), daemon=True)
            job.ending.start()


def _stop_query(job: _Job) -> None:
    """Run in its own thread: Spark waits for ever for a batch whose worker hangs."""
    try:
        job.query.stop()
    except Exception as error:  # `_end` retries; the query's own thread reports how it ends
        _logger.debug("query %s: %s", job.publisher_id, reason_in(str(error)))


def _is_all_safe(race: _Race, jobs: list[_Job]) -> bool:
    last = race.chain.last_block
    if last is None:
        return False
    known = [safe_through_of(job.reports) for job in jobs if job.is_running]
    return all(through is not None and through >= last for through in known)


def _progress(race: _Race, jobs: list[_Job], status: GatewayStatus, ready: int, running: int) -> JobProgress:
    last, is_reachable = status.ask()
    rows = tuple(row for job in jobs for row in race.rows(job))
    return JobProgress(
        last_stored=last,
        is_reachable=is_reachable,
        ready=ready,
        running=running,
        elapsed_seconds=time.monotonic() - race.started_at,
        first_block=race.chain.first_block,
        last_block=race.chain.last_block,
        safe_through=safe_through_of(rows),
        blocks_per_second=race.rate(rows),
        publishers=rows,
        is_stopping=race.is_stopping,
    )


def _report(race: _Race, jobs: list[_Job]) -> JobReport:
    elapsed_seconds = time.monotonic() - race.started_at
    rows, failures, is_interrupted = [], [], False
    for job in jobs:
        is_ended = race.is_stopping and (job.query is not None or job.is_running)
        is_whole = not job.has_failed and not is_ended
        if job.has_failed and not race.is_stopping:
            failures.append(JobFailure(job.publisher_id, _reason_of(race, job)))
        is_interrupted |= race.is_stopping and not is_whole
        # If a job failed or was stopped, the tasks' own reports count, too.
        if is_whole:
            race.coordinator.forget(job.publisher_id, 1 << 62)
        # A job that ended before its tasks reported gets an empty row.
        rows += race.rows(job) or [PublishReport(job.publisher_id)]
    first, last = ends_of(rows, race.chain.first_block, race.chain.last_block)
    return JobReport(
        first_block=first,
        last_block=last,
        publishers=tuple(rows),
        failures=tuple(failures),
        elapsed_seconds=elapsed_seconds,
        blocks_per_second=race.rate(rows),
        is_interrupted=is_interrupted,
    )


def _reason_of(race: _Race, job: _Job) -> str:
    """For a damaged checkpoint, name the remedy that Spark does not."""
    damage = race.checkpoint.damage(job.publisher_id) if race.checkpoint else None
    if damage is not None:
        return str(damage)
    return reason_in(str(job.error)).removeprefix(f"publisher {job.publisher_id}: ")


# --- one publisher ------------------------------------------------------------------------------------------


def _run_job(race: _Race, job: _Job) -> None:
    context = race.spark.sparkContext
    options = race.options | {"gateways": job.gateways, "publisher_id": job.publisher_id}
    try:
        with active_session(race.spark):
            context.addJobTag(race.tag)
            context.setJobDescription(f"publish as {job.publisher_id}")
            if race.chain.is_streaming:
                _keep_query_running(race, job, options)
                return
            if race.chain.first_block is not None:
                options["first_block"] = str(race.chain.first_block)
            race.chain.frame.write.format("blockstream").mode("append").options(**options).save()
        job.reports = _read_reports(race.folder, job.publisher_id)
    except Exception as error:
        job.error = error


def _keep_query_running(race: _Race, job: _Job, options: dict[str, str]) -> None:
    """Restart the query after a passing failure of Spark."""
    starts = 0
    while True:
        starts, committed = starts + 1, job.reports
        try:
            _run_query(race, job, options)
            return
        except Exception as error:
            if job.reports is not committed:
                starts = 1  # it has done batches; in months a query may fail often
            if starts == QUERY_STARTS_MAX or race.is_stopping or not is_passing(str(error)):
                raise
            _logger.warning("query %s is begun again: %s", job.publisher_id, reason_in(str(error)))


def _run_query(race: _Race, job: _Job, options: dict[str, str]) -> None:
    folder = race.checkpoint.of(job.publisher_id) if race.checkpoint else str(race.folder / job.publisher_id)
    writer = race.chain.frame.writeStream.format("blockstream").options(**options)
    writer = writer.option("checkpointLocation", folder)
    job.query = (writer if race.checkpoint else writer.trigger(availableNow=True)).start()
    job.query.awaitTermination()


def _take_batches(race: _Race, job: _Job) -> None:
    """Add the reports of newly committed batches of a query, and remove them.

    The sink writes a report before Spark notes in the checkpoint that the batch is done: a query that is
    stopped in between would do the batch again.
    """
    for path in race.folder.glob(f"{glob.escape(job.publisher_id.replace('/', '_'))}-batch-*.json"):
        name = path.name.removesuffix(".json")
        batch = int(name.rpartition("-")[2])
        if race.checkpoint is not None and batch > race.checkpoint.committed_batch(job.publisher_id):
            continue
        reports = _read_reports(race.folder, name)
        race.coordinator.forget(job.publisher_id, batch)
        job.reports = by_publisher(job.publisher_id, [*job.reports, *reports], with_latency=True)
        path.unlink()


def _read_reports(folder: Path, name: str) -> list[PublishReport]:
    from sluice.publishers.spark.block_sink import read_reports

    return read_reports(folder, name)


# --- the gateways' status -----------------------------------------------------------------------------------


class GatewayStatus:
    """The last block of the first gateway that answers, asked over connections that stay open."""

    def __init__(
        self,
        gateways: Sequence[str],
        tls: ClientTls | None = None,
        *,
        timeout_seconds: float = STATUS_TIMEOUT_SECONDS,
    ) -> None:
        self._timeout_seconds = timeout_seconds
        self._gateways = tuple(gateways)
        self._tls = tls
        self._channels = [open_blocking_channel(address, tls) for address in gateways]

    def __enter__(self) -> GatewayStatus:
        return self

    def __exit__(self, *error: object) -> None:
        for channel in self._channels:
            channel.close()

    def ask(self) -> tuple[int | None, bool]:
        """Ask all gateways at once; the first in their order that answers counts.

        Returns:
            Its last block, None if it has none; and whether any gateway answered.
        """
        calls = [
            node_pb2_grpc.BlockNodeServiceStub(channel).serverStatus.future(
                node_pb2.ServerStatusRequest(), timeout=self._timeout_seconds
            )
            for channel in self._channels
        ]
        try:
            for at, call in enumerate(calls):
                try:
                    _, last = held_of(call.result())
                except grpc.RpcError as error:
                    if refused_headers(self._gateways[at], error):  # it answers the next time
                        self._channels[at].close()
                        self._channels[at] = open_blocking_channel(self._gateways[at], self._tls)
                    continue
                return last, True
            return None, False
        finally:
            for call in calls:
                call.cancel()
