"""The sampler of a node's history: a sample every 5 s, and a file that keeps them over a restart.

A shell around `status.history`. It measures nothing but the room on the disk: it reads the node's metrics and
its report.

    data_dir/history.bin    replaced once a minute and at the stop, without a flush: a power failure may
                            take it

Without that file, and where it cannot be written, the node does all the same.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from prometheus_client import Counter, Histogram

from sluice.gateway.errors import InvalidInput
from sluice.gateway.logs import fields
from sluice.gateway.metrics import Metrics
from sluice.gateway.pipeline.acknowledging import Won
from sluice.gateway.regular_files import open_regular, replace_file
from sluice.gateway.status.history import SAMPLE_SECONDS, History
from sluice.gateway.status.node_report import NodeReport

__all__ = ["HISTORY_NAME", "Sampler", "quantile", "read_history", "seconds_to_sample"]

log = logging.getLogger(__name__)

HISTORY_NAME: Final = "history.bin"
WRITE_SECONDS: Final = 60.0
FILE_BYTES_MAX: Final = 1 << 20
"""Some 100 kB are usual."""


def read_history(data_dir: Path) -> History:
    """Read the history that an earlier process kept; a file that cannot be used is forgotten."""
    path = data_dir / HISTORY_NAME
    try:
        with open_regular(path) as file:
            return History.unpack(file.read(FILE_BYTES_MAX))
    except FileNotFoundError:
        pass
    except (OSError, InvalidInput) as error:
        log.warning(
            "the history of figures begins anew: its file cannot be used",
            extra=fields(path=str(path), got=str(error)),
        )
    return History()


class Sampler:
    """The sampler of one node.

    Args:
        report: gathers the node's report.
        won: returns the last acknowledged blocks.
        stream_bytes: returns the length of the stream.
        write_seconds: time between two writes of the file.
    """

    def __init__(
        self,
        history: History,
        data_dir: Path,
        metrics: Metrics,
        *,
        report: Callable[[], NodeReport],
        won: Callable[[], Sequence[Won]],
        stream_bytes: Callable[[], int],
        write_seconds: float = WRITE_SECONDS,
    ) -> None:
        self.history = history
        self._data_dir = data_dir
        self._metrics = metrics
        self._report = report
        self._won = won
        self._stream_bytes = stream_bytes
        self._write_seconds = write_seconds
        self._is_failing = False
        self._writing = threading.Lock()
        self._before = self._look()
        self._latency_before = _buckets(metrics.acknowledgement_latency_seconds)
        self._loop_lag_before = _buckets(metrics.event_loop_lag_seconds)
        self._looked_at = time.monotonic()

    async def run(self) -> None:
        """Sample in the middle of each slot, until cancelled."""
        written_at = time.monotonic()
        while True:
            await asyncio.sleep(seconds_to_sample(time.time()))
            self.take(time.time(), await self.look_at_disk())
            if time.monotonic() - written_at >= self._write_seconds:
                written_at = time.monotonic()
                await asyncio.to_thread(self._write, self.history.copy())

    async def close(self) -> None:
        """Write the file; after `run` has ended."""
        await asyncio.to_thread(self._write, self.history.copy())

    async def look_at_disk(self) -> float | None:
        """Show the room on the disk, and return the free bytes; None: the folder does not say.

        In a thread: a file system of another machine may hang.
        """
        free_bytes, size_bytes = await asyncio.to_thread(_room, self._data_dir)
        self._metrics.disk_free_bytes.set(free_bytes)
        self._metrics.disk_size_bytes.set(size_bytes)
        return None if math.isnan(free_bytes) else free_bytes

    def take(self, now_unix_seconds: float, free_bytes: float | None) -> None:
        """Take one sample."""
        now_seconds = time.monotonic()
        seconds, self._looked_at = max(1e-3, now_seconds - self._looked_at), now_seconds
        before, counts = self._before, self._look()
        self._before = counts
        sample = {name: max(0.0, count - before.get(name, 0.0)) / seconds for name, count in counts.items()}
        sample |= self._latency(int(counts["blocks"] - before["blocks"]))
        buckets = _buckets(self._metrics.event_loop_lag_seconds)
        lag, self._loop_lag_before = quantile(self._loop_lag_before, buckets, 0.99), buckets
        report = self._report()
        behind = [] if report.quorum is None else report.quorum.behind_blocks
        gauges: dict[str, float | None] = {
            "loop_lag_p99_seconds": lag,
            "inflight_bytes": report.inflight_bytes,
            "tcp_lag_bytes": report.tcp_slowest_bytes if report.tcp_clients else None,
            "subscriber_lag_blocks": report.subscriber_lag_blocks if report.subscribers else None,
            "standby_lag_blocks": max(behind, default=None),
            "catch_up_blocks": (report.distance_blocks or 0) if report.peers else None,
            "disk_free_bytes": free_bytes,
        }
        sample |= {name: float(number) for name, number in gauges.items() if number is not None}
        self.history.note(now_unix_seconds, sample)

    def _look(self) -> dict[str, float]:
        """Return what only rises."""
        metrics = self._metrics
        counts = {
            "blocks": _count(metrics.blocks_acknowledged),
            "bytes": float(self._stream_bytes()),
            "skipped": _count(metrics.blocks_skipped),
        }
        for kind, counter in (("resent", metrics.blocks_resent), ("refused", metrics.blocks_refused)):
            for reason, count in _by_reason(counter).items():
                counts[f"{kind} {reason}"] = count
        return counts

    def _latency(self, block_count: int) -> dict[str, float]:
        """Return the latency of the blocks since the last sample.

        The last hundred are known exactly; of more than that, the metric's buckets tell.
        """
        before = self._latency_before
        buckets = self._latency_before = _buckets(self._metrics.acknowledgement_latency_seconds)
        times = sorted(block.seconds for block in self._won()[-block_count:]) if block_count > 0 else []
        sample = {}
        for name, q in (("latency_p50_seconds", 0.5), ("latency_p99_seconds", 0.99)):
            if 0 < block_count <= len(times):
                sample[name] = times[math.ceil(q * len(times)) - 1]
            elif (found := quantile(before, buckets, q)) is not None:
                sample[name] = found
        return sample

    def _write(self, history: History) -> None:
        try:
            with self._writing:  # the last one begins while an earlier one may be under way
                replace_file(self._data_dir / HISTORY_NAME, history.pack(), flush=False)
            self._is_failing = False
        except OSError as error:
            if not self._is_failing:
                log.warning("the history of figures is not kept", extra=fields(got=str(error)))
            self._is_failing = True


def seconds_to_sample(now_unix_seconds: float) -> float:
    """Return the time to the middle of a slot; of the next one, if a timer was early for this one."""
    seconds = SAMPLE_SECONDS - (now_unix_seconds + SAMPLE_SECONDS / 2) % SAMPLE_SECONDS
    return seconds if seconds >= 1 else seconds + SAMPLE_SECONDS


def quantile(before: Mapping[float, float], now: Mapping[float, float], q: float) -> float | None:
    """Return a quantile of what a histogram observed between two looks.

    Args:
        before, now: the count of observations up to each bound.

    Returns:
        A number between the bounds of its bucket; None: nothing was observed.
    """
    counts = {bound: now[bound] - before.get(bound, 0.0) for bound in sorted(now)}
    total = max(counts.values(), default=0.0)
    if total <= 0:
        return None
    low_bound, low_count = 0.0, 0.0
    for bound, count in counts.items():
        if count >= q * total:
            if math.isinf(bound):
                return low_bound
            return low_bound + (bound - low_bound) * (q * total - low_count) / max(1.0, count - low_count)
        low_bound, low_count = bound, count
    return low_bound


def _count(counter: Counter) -> float:
    return sum(_by_reason(counter).values())


def _by_reason(counter: Counter) -> dict[str, float]:
    return {
        one.labels.get("reason", ""): one.value
        for metric in counter.collect()
        for one in metric.samples
        if one.name.endswith("_total")
    }


def _buckets(histogram: Histogram) -> dict[float, float]:
    """Return the count of observations up to each bound."""
    return {
        float(one.labels["le"]): one.value
        for metric in histogram.collect()
        for one in metric.samples
        if one.name.endswith("_bucket")
    }


def _room(folder: Path) -> tuple[float, float]:
    """Return the bytes for processes without privileges, and the size; not numbers if nobody can tell."""
    try:
        room = os.statvfs(folder)
    except OSError:
        return math.nan, math.nan
    return float(room.f_bavail * room.f_frsize), float(room.f_blocks * room.f_frsize)
