"""What `sluice publish` runs: racing Spark jobs, each publishing the whole chain.

Each publisher is one job with one task that reads the block files in order and publishes them; the jobs run
at once, from threads of the driver, in one session. The gateway takes each block from whoever is first and
tells the others to skip it.
Source: design.md, "Spark"; publish-block-stream.md, "Multiple Publisher Extension".
"""

from __future__ import annotations

import re
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import grpc

from gateway.api import node_pb2, node_pb2_grpc
from gateway.channels import ClientTls, open_blocking_channel
from publishers.block_files import check_no_gaps, list_block_files
from publishers.limits import STATUS_POLL_SECONDS
from publishers.report import PublishReport
from publishers.signals import NO_BLOCK
from publishers.spark.gateway_options import tls_gateway_options
from publishers.spark.start_gate import StartGate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Failure", "Head", "JobProgress", "JobReport", "publish", "reason_in"]

_STATUS_TIMEOUT_SECONDS: Final = 1.0
_ABORT_WAIT_SECONDS: Final = 10.0
_OUR_ERROR: Final = re.compile(r"^(?:publishers|gateway)\.errors\.\w+: (?P<reason>.*)$", re.MULTILINE)
_STATUS_MARK: Final = re.compile(r"\s*SQLSTATE: \w+\s*$")


@dataclass(frozen=True, slots=True)
class Failure:
    """A publisher that gave up."""

    publisher_id: str
    reason: str
    """One line."""


@dataclass(frozen=True, slots=True)
class JobProgress:
    """What is known while the jobs run."""

    head: int | None
    """Last block stored by the first gateway that answers; None: it has none, or none answers."""
    is_reachable: bool
    """Whether a gateway answered."""
    ready: int
    """Publishers that are ready to send."""
    running: int
    """Publishers that are not done."""
    elapsed_seconds: float


@dataclass(frozen=True, slots=True)
class JobReport:
    """What the publishers did."""

    first_block: int
    last_block: int
    publishers: tuple[PublishReport, ...]
    """Of the publishers that ended well, in order of their names."""
    failures: tuple[Failure, ...]
    elapsed_seconds: float
    """From the start of the jobs to the end of the last."""

    @property
    def is_complete(self) -> bool:
        """Whether every publisher knows that every block is stored."""
        return not self.failures and all(report.unacknowledged == 0 for report in self.publishers)


@dataclass(slots=True)
class _Job:
    """One publisher's job and what came of it."""

    publisher_id: str
    thread: threading.Thread | None = None
    report: PublishReport | None = None
    failure: Failure | None = None


@dataclass(slots=True)
class _Race:
    """What the threads of one call of `publish` share; they read it only."""

    spark: SparkSession
    source: Path
    options: dict[str, str]
    folder: Path
    tag: str = field(default_factory=lambda: f"sluice-publish-{uuid.uuid4().hex}")


def publish(
    spark: SparkSession,
    source: Path,
    gateways: Sequence[str],
    publishers: int = 1,
    *,
    publisher_prefix: str = "publisher",
    deadline_seconds: float | None = None,
    reset_interval_seconds: float | None = None,
    blocks_per_second: float | None = None,
    tls: ClientTls | None = None,
    sink_options: dict[str, str] | None = None,
    on_progress: Callable[[JobProgress], None] | None = None,
) -> JobReport:
    """Publish a folder of block files by racing Spark jobs.

    Args:
        spark: a session with at least as many task slots as publishers (`build_session`).
        source: the folder; under the same path on every worker.
        gateways: `host:port` each, the preferred one first.
        publishers: how many race.
        publisher_prefix: they are called prefix-1, prefix-2, …
        deadline_seconds: a publisher gives up after so long without a block becoming safe; None: never.
        reset_interval_seconds: time after which a publisher goes on at the next gateway; None: never.
        blocks_per_second: each publisher offers at most so many; None: no limit.
        tls: how gateways are connected to, with absolute paths; None: without TLS.
        sink_options: further options of `blockstream`.
        on_progress: called several times a second from this thread.

    Returns:
        The reports; a publisher that failed is in `failures`.

    Raises:
        BlockListError: the folder has no blocks, a gap, or a number twice; nothing was started.
    """
    files = list_block_files(source)
    check_no_gaps(source, files)
    options = {
        **_texts("deadline_seconds", deadline_seconds),
        **_texts("reset_interval_seconds", reset_interval_seconds),
        **_texts("blocks_per_second", blocks_per_second),
    }
    options |= (sink_options or {}) | tls_gateway_options(tls) | {"gateways": ",".join(gateways)}
    with tempfile.TemporaryDirectory(prefix="sluice-publish-") as folder, Head(gateways, tls) as head:
        options |= {"report_path": folder, "start_gate": folder}
        race = _Race(spark, source.absolute(), options, Path(folder))
        jobs = [_Job(f"{publisher_prefix}-{number}") for number in range(1, publishers + 1)]
        started_at = time.monotonic()
        try:
            for job in jobs:
                job.thread = threading.Thread(
                    target=_run_job, args=(race, job), name=job.publisher_id, daemon=True
                )
                job.thread.start()
            _watch(race, jobs, head, started_at, on_progress)
        except BaseException:
            # Ctrl-C above all: the tasks end, and what is stored is stored.
            spark.sparkContext.cancelJobsWithTag(race.tag)
            for job in jobs:
                if job.thread is not None:
                    job.thread.join(_ABORT_WAIT_SECONDS)
            raise
        elapsed_seconds = time.monotonic() - started_at
    return JobReport(
        first_block=files[0][0],
        last_block=files[-1][0],
        publishers=tuple(job.report for job in jobs if job.report is not None),
        failures=tuple(job.failure for job in jobs if job.failure is not None),
        elapsed_seconds=elapsed_seconds,
    )


def _texts(name: str, value: float | None) -> dict[str, str]:
    """Write an option as Spark wants it; nothing where it is not given."""
    return {} if value is None else {name: str(value)}


def _watch(
    race: _Race,
    jobs: list[_Job],
    head: Head,
    started_at: float,
    on_progress: Callable[[JobProgress], None] | None,
) -> None:
    """Open the gate when everybody is ready, show progress, and return when all jobs are done."""
    gate = StartGate(race.folder)
    is_open = False
    while True:
        running = [job for job in jobs if job.thread is not None and job.thread.is_alive()]
        ready_count = gate.ready_count
        if not is_open and ready_count + len(jobs) - len(running) >= len(jobs):
            gate.open()
            is_open = True
        if on_progress is not None:
            last, is_reachable = head.ask()
            elapsed_seconds = time.monotonic() - started_at
            on_progress(JobProgress(last, is_reachable, ready_count, len(running), elapsed_seconds))
        if not running:
            return
        assert running[0].thread is not None
        running[0].thread.join(STATUS_POLL_SECONDS if is_open else STATUS_POLL_SECONDS / 10)


def _run_job(race: _Race, job: _Job) -> None:
    """Run one publisher's Spark job to its end; in its own thread."""
    from publishers.spark.block_sink import read_reports

    context = race.spark.sparkContext
    try:
        _activate(race.spark)
        context.addJobTag(race.tag)
        context.setJobDescription(f"publish as {job.publisher_id}")
        blocks = race.spark.read.format("blockfiles").option("partitions", 1).load(str(race.source))
        blocks.write.format("blockstream").mode("append").options(
            **race.options, publisher_id=job.publisher_id
        ).save()
        (job.report,) = read_reports(race.folder, job.publisher_id)
    except Exception as error:
        reason = reason_in(str(error)).removeprefix(f"publisher {job.publisher_id}: ")
        job.failure = Failure(job.publisher_id, reason)


def _activate(spark: SparkSession) -> None:
    """Make a session the active one of this thread.

    Spark finds data sources that were registered from Python through the thread's active session, and a
    thread of ours has none in the JVM. There is no public call for it.
    """
    session_class = spark._get_j_spark_session_class(spark._jvm)
    session_class.setActiveSession(spark._jsparkSession)


def reason_in(text: str) -> str:
    """Find the line that matters in what Spark reports of a failed job: our own error, if there is one.

    Args:
        text: an exception's text, with tracebacks of several processes in it.
    """
    ours = [match["reason"] for match in _OUR_ERROR.finditer(text)]
    if ours:
        return _STATUS_MARK.sub("", ours[-1])
    lines = [line.strip(" :") for line in text.splitlines() if line.strip()]
    # py4j's own first line only names the Java call that failed.
    useful = [line for line in lines if not line.startswith("An error occurred while calling")]
    return (useful or lines or ["no reason given"])[0]


class Head:
    """Asks gateways how far they are."""

    def __init__(self, gateways: Sequence[str], tls: ClientTls | None = None) -> None:
        """Name the gateways; `with` closes the connections."""
        self._channels = [open_blocking_channel(address, tls) for address in gateways]

    def __enter__(self) -> Head:
        return self

    def __exit__(self, *error: object) -> None:
        for channel in self._channels:
            channel.close()

    def ask(self) -> tuple[int | None, bool]:
        """Ask the gateways in turn until one answers.

        Returns:
            Its last block, None if it has none; and whether one answered.
        """
        for channel in self._channels:
            stub = node_pb2_grpc.BlockNodeServiceStub(channel)
            try:
                status = stub.serverStatus(node_pb2.ServerStatusRequest(), timeout=_STATUS_TIMEOUT_SECONDS)
            except grpc.RpcError:
                continue
            last = status.last_available_block
            return (None if last == NO_BLOCK else last), True
        return None, False
