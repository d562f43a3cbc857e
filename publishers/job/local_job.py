"""`sluice publish` without Spark: this process reads the chain once, and its publishers race.

    source ──► thread: read, check, sign ──► race ──┬──► publisher-1 ──► gateways
                                                    └──► publisher-2 ──► gateways

The publishers run in a thread of their own. The calling thread shows the progress and hears signals.
Source: docs/spark.md, "sluice publish"; docs/protocol.md.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from sluice.datastream.errors import DatastreamError
from sluice.gateway.blocks.block import Block
from sluice.gateway.errors import GatewayError
from sluice.gateway.transport.channels import ClientTls
from sluice.publishers import limits
from sluice.publishers.blocks.signing_key import KeyPlace
from sluice.publishers.client.client import PublishClient
from sluice.publishers.client.feeding import PreparedBlocks, run_with_thread
from sluice.publishers.client.racing import race
from sluice.publishers.errors import PublisherError, PublishFailed
from sluice.publishers.job.checkpoint import FollowCheckpoint
from sluice.publishers.job.job import GatewayStatus
from sluice.publishers.job.local_chain import LocalChain, follow_chain, open_chain, prepared
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
from sluice.publishers.spark.gateway_options import gateways_of, rotated, tls_gateway_options
from sluice.publishers.spark.options import current_names
from sluice.publishers.spark.sink_options import FORMER_NAMES, SinkOptions
from sluice.publishers.spark.source_names import SourceName

__all__ = ["publish_locally"]

_SOURCE_ERRORS: Final = (PublisherError, GatewayError, DatastreamError, OSError)
CHECKPOINT_SECONDS: Final = 1.0
"""Time between two notes of the progress of --follow; what a crash repeats is passed over."""
_ACKNOWLEDGED_POLL_SECONDS: Final = 0.02
_STOP_WAIT_SECONDS: Final = limits.STOP_TIMEOUT_SECONDS + 2 * limits.CLOSE_TIMEOUT_SECONDS


def publish_locally(
    source: SourceName,
    gateways: Sequence[str],
    publishers: int = 1,
    *,
    numbers: NumberRange | None = None,
    chain: LocalChain | None = None,
    key: KeyPlace | None = None,
    checkpoint: FollowCheckpoint | None = None,
    publisher_prefix: str = "publisher",
    tls: ClientTls | None = None,
    sink_options: dict[str, str] | None = None,
    on_progress: Callable[[JobProgress], None] | None = None,
    stop: threading.Event | None = None,
) -> JobReport:
    """Publish a chain by racing publishers in this process; the arguments are those of `job.publish`.

    Args:
        chain: what `open_chain` found for this source and these numbers, if it was asked already.

    Raises:
        PublisherError: the source cannot be read or is no chain, or an option is wrong; nothing was sent.
        CheckpointError: the checkpoint cannot be written; the publishers were ended.
    """
    numbers = numbers or NumberRange()
    if checkpoint is not None:
        chain = follow_chain(source, numbers, checkpoint)
    chain = chain or open_chain(source, numbers)
    prioritized = gateways_of({"gateways": ",".join(gateways)})
    texts = {**current_names(sink_options or {}, FORMER_NAMES), **tls_gateway_options(tls)}
    if source.is_network:
        texts = {"check": "false", **texts}
    options = [
        SinkOptions.parse(
            texts
            | {"gateways": ",".join(rotated(prioritized, at)), "publisher_id": f"{publisher_prefix}-{at + 1}"}
        )
        for at in range(publishers)
    ]
    with GatewayStatus(rotated(prioritized, 0), tls) as status:
        following = checkpoint.next_block() if checkpoint is not None else None
        running = _Race(chain, options, key, following)
        running.start()
        try:
            _watch(running, status, on_progress, stop, checkpoint)
        except BaseException:
            running.abandon()
            raise
    return running.report()


def _watch(
    running: _Race,
    status: GatewayStatus,
    on_progress: Callable[[JobProgress], None] | None,
    stop: threading.Event | None,
    checkpoint: FollowCheckpoint | None,
) -> None:
    noted_at = time.monotonic()
    while running.is_alive():
        if stop is not None and stop.is_set():
            running.stop()
        if on_progress is not None:
            on_progress(running.progress(*status.ask()))
        if checkpoint is not None and time.monotonic() >= noted_at + CHECKPOINT_SECONDS:
            running.note(checkpoint)
            noted_at = time.monotonic()
        running.join(limits.STATUS_POLL_SECONDS)
    if checkpoint is not None:
        running.note(checkpoint)
    if on_progress is not None:
        on_progress(running.progress(*status.ask()))


class _Race(threading.Thread):
    """The publishers, in a thread with an event loop."""

    def __init__(
        self,
        chain: LocalChain,
        options: Sequence[SinkOptions],
        key: KeyPlace | None,
        following: int | None = None,
    ) -> None:
        """Prepare to publish; earlier runs have published all before `following`."""
        super().__init__(name="publishers", daemon=True)
        self._chain = chain
        self._options = options
        self._key = key
        self._clients: list[PublishClient] = []
        self._earlier: list[PublishReport] = []
        if following:
            names = [racer.publisher_id for one in options for racer in one.racers(one.publisher_id)]
            self._earlier = [PublishReport(name, safe_through=following - 1) for name in names]
        self._reports: list[PublishReport] = list(self._earlier)
        """Made in the event loop, where they change."""
        self._rate = AcknowledgementRate()
        self._started_at = time.monotonic()
        self._ended_at: float | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._give_up_at: float | None = None
        self._read_count = 0
        self._is_read = False
        """True if the source was read to its end, and not only the part before a stop."""
        self._error: BaseException | None = None

    def run(self) -> None:
        """Publish the chain; what goes wrong is in the report."""
        try:
            run_with_thread(self._publish)
        except BaseException as error:
            self._error = error
        finally:
            self._ended_at = time.monotonic()

    async def _publish(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        first = self._options[0]
        is_checked = first.is_checked or self._chain.is_checked
        follower = self._chain.follower
        blocks = prepared(
            self._chain.blocks(),
            self._key,
            is_checked=is_checked,
            where=lambda: follower.where if follower is not None else None,
        )
        ahead = PreparedBlocks(blocks, first.prepared_bytes)
        ahead.start()

        async def read() -> AsyncIterator[Block]:
            try:
                async for block in ahead:
                    self._read_count += 1
                    yield block
            except _SOURCE_ERRORS:
                await self._await_acknowledgements()
                raise
            self._is_read = True

        noting = asyncio.create_task(self._note())
        racers = [racer for one in self._options for racer in one.racers(one.publisher_id)]
        try:
            await race(
                read(),
                racers,
                first.client_options(),
                first.prepared_bytes,
                self._clients.append,
                first.pace(is_beginning=True, opened_at=time.time()),
            )
        finally:
            noting.cancel()
            self._take_reports()
            ahead.stop()
            if follower is not None:
                follower.stop()

    async def _note(self) -> None:
        while True:
            self._take_reports()
            await asyncio.sleep(limits.STATUS_POLL_SECONDS)

    def _take_reports(self) -> None:
        self._reports = [*self._earlier, *(client.report() for client in self._clients)]

    async def _await_acknowledgements(self) -> None:
        """Let the publishers finish the blocks before a fault of the source, as long as they make progress.

        Otherwise a bad block would keep those before it from being stored, at every start again.
        """
        stored, give_up_at = -1, 0.0
        while True:
            reports = [client.report() for client in self._clients]
            reports = [report for report in reports if report.failure is None]
            if all(one.blocks == self._read_count and not one.unacknowledged for one in reports):
                return
            count = sum(report.acknowledged + report.duplicate for report in reports)
            if count > stored:
                stored, give_up_at = count, time.monotonic() + limits.STOP_TIMEOUT_SECONDS
            if time.monotonic() > give_up_at:
                return
            await asyncio.sleep(_ACKNOWLEDGED_POLL_SECONDS)

    def note(self, checkpoint: FollowCheckpoint) -> None:
        """Note the block before which every publisher knows all blocks to be stored, but for those that gave
        up. Raises CheckpointError.
        """
        known = [safe_through_of([row]) for row in self._rows() if row.failure is None]
        through = min((-1 if safe is None else safe for safe in known), default=-1)
        if through >= 0:
            checkpoint.note(through + 1)

    def stop(self) -> None:
        """Let each publisher finish the block in flight; call it again and again."""
        if self._loop is None:
            return
        if self._give_up_at is None:
            self._give_up_at = time.monotonic() + _STOP_WAIT_SECONDS
            for client in self._clients:
                self._loop.call_soon_threadsafe(client.stop)
        elif time.monotonic() > self._give_up_at:
            self.abandon()

    def abandon(self) -> None:
        """End the publishers at once."""
        deadline = time.monotonic() + limits.CLOSE_TIMEOUT_SECONDS
        # The first cancellation lets a publisher finish its block, the second does not.
        while self.is_alive() and time.monotonic() < deadline:
            if self._loop is not None and self._task is not None:
                self._loop.call_soon_threadsafe(self._task.cancel)
            self.join(0.05)

    def progress(self, last_stored: int | None, is_reachable: bool) -> JobProgress:
        """Return the progress, with what a gateway says of itself."""
        rows = self._rows()
        return JobProgress(
            last_stored=last_stored,
            is_reachable=is_reachable,
            ready=len(self._clients),
            running=len(self._options) if self.is_alive() else 0,
            elapsed_seconds=time.monotonic() - self._started_at,
            first_block=self._chain.first_block,
            last_block=self._chain.last_block,
            safe_through=safe_through_of(rows),
            blocks_per_second=self._blocks_per_second(rows),
            publishers=rows,
            is_stopping=self._give_up_at is not None,
            awaited=self._awaited(),
        )

    def _awaited(self) -> str | None:
        follower = self._chain.follower
        return None if follower is None or follower.awaited is None else str(follower.awaited)

    def report(self) -> JobReport:
        """Return the report of a race that is over; raise an error that is no publisher's."""
        rows = self._rows(with_latency=True)
        is_stopped = self._give_up_at is not None
        if isinstance(self._error, _SOURCE_ERRORS) and not isinstance(self._error, PublishFailed):
            reasons = {row.publisher_id: str(self._error) for row in rows}  # of the source, which all share
        elif self._error is None or isinstance(self._error, PublishFailed) or is_stopped:
            reasons = {row.publisher_id: row.failure for row in rows if row.failure is not None}
        else:
            raise self._error
        # A publisher may be stopped while blocks that were read still wait for it.
        is_whole = self._is_read and all(
            row.blocks == self._read_count and not row.unacknowledged for row in rows
        )
        first, last = ends_of(rows, self._chain.first_block, self._chain.last_block)
        assert self._ended_at is not None
        return JobReport(
            first_block=first,
            last_block=last,
            publishers=rows,
            failures=tuple(JobFailure(*pair) for pair in reasons.items()),
            elapsed_seconds=self._ended_at - self._started_at,
            blocks_per_second=self._blocks_per_second(rows),
            is_interrupted=is_stopped and not is_whole,
        )

    def _rows(self, *, with_latency: bool = False) -> tuple[PublishReport, ...]:
        return tuple(
            row
            for one in self._options
            for row in by_publisher(
                one.publisher_id,
                [report for report in self._reports if _is_of(report, one.publisher_id)],
                with_latency=with_latency,
            )
        )

    def _blocks_per_second(self, rows: Sequence[PublishReport]) -> float:
        return self._rate.of(rows, self._started_at, self._ended_at or time.monotonic())


def _is_of(report: PublishReport, publisher_id: str) -> bool:
    return report.publisher_id == publisher_id or report.publisher_id.startswith(f"{publisher_id}.")
