"""The metrics of a node, which Prometheus reads at `/metrics`.

Names contain units; Prometheus appends `_total` to a counter's name. Each node has its own registry, so that
several nodes can live in one process (tests).
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from typing import Final, Generic, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    generate_latest,
)

from sluice.gateway import __version__
from sluice.gateway.identity import is_vouched_for

__all__ = ["OTHER_PUBLISHERS", "Metrics"]

METRIC_PUBLISHERS_MAX: Final = 64
"""Publishers with their own label; blocks won by further ones count as `other`. Each label is a series that
every scrape carries and Prometheus keeps, and we do not choose who publishes."""

OTHER_PUBLISHERS = "other"
"""The label of publishers beyond `METRIC_PUBLISHERS_MAX`."""

_LATENCY_BUCKETS_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
_FLUSH_BUCKETS_SECONDS = (
    *(0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
_LAG_BUCKETS_SECONDS = (
    *(0.000_5, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5),
)

_Kind = TypeVar("_Kind", Counter, Gauge, Histogram)


class _Row(Generic[_Kind]):
    """One row of the table in `Metrics`; each `Metrics` has a metric of its own in its place."""

    def __init__(self, create: Callable[..., _Kind]) -> None:
        self._create: Callable[..., _Kind] = create

    def __set_name__(self, owner: type, attribute: str) -> None:
        self._attribute = attribute

    def create(self, metrics: Metrics) -> None:
        """Create the metric at zero."""
        vars(metrics)[self._attribute] = self._create(registry=metrics.registry)

    def __get__(self, metrics: Metrics, owner: type) -> _Kind:
        """Tell type checkers the kind. The created metric hides this method."""
        raise AttributeError(self._attribute)


def _counter(name: str, text: str, *labels: str) -> _Row[Counter]:
    return _Row(partial(Counter, name, text, labels))


def _gauge(name: str, text: str, *labels: str) -> _Row[Gauge]:
    return _Row(partial(Gauge, name, text, labels))


def _histogram(name: str, text: str, buckets: Sequence[float]) -> _Row[Histogram]:
    return _Row(partial(Histogram, name, text, buckets=buckets))


class Metrics:
    """The metrics of one node, as a table: attribute, kind, name, text, labels or buckets."""

    registry: CollectorRegistry

    # Blocks and publishers.
    blocks_received = _counter("sluice_blocks_received", "Blocks whose header was accepted.")
    blocks_verified = _counter("sluice_blocks_verified", "Blocks whose hash, links and proof were right.")
    blocks_acknowledged = _counter("sluice_blocks_acknowledged", "Blocks committed and acknowledged.")
    stray_messages = _counter("sluice_stray_messages", "Messages without a block.")
    blocks_skipped = _counter("sluice_blocks_skipped", "Answers SkipBlock.")
    # The reason is how the block was lost: refused (bad proof, hash or link), disputed (a link that may
    # be right), bad_request, too_large, timed_out, stalled, left (disconnected), abandoned (its publisher
    # began another block), sent_back, restarted, stream_ended, node, or beginning (the first block of the
    # chain failed).
    blocks_resent = _counter("sluice_blocks_resent", "Answers ResendBlock, by reason.", "reason")
    blocks_refused = _counter("sluice_blocks_refused", "Blocks refused, by reason.", "reason")
    blocks_won = _counter("sluice_blocks_won", "Blocks acknowledged, by publisher.", "publisher")
    acknowledgement_latency_seconds = _histogram(
        "sluice_acknowledgement_latency_seconds",
        "From a block's header to its acknowledgement.",
        _LATENCY_BUCKETS_SECONDS,
    )
    flush_seconds = _histogram("sluice_flush_seconds", "One commit: both flushes.", _FLUSH_BUCKETS_SECONDS)
    flushes = _counter(
        "sluice_flushes", "Flushes of the stream file by commits; one that two of them share is one."
    )
    inflight_bytes = _gauge("sluice_inflight_bytes", "Bytes of items held and not yet committed.")
    last_block = _gauge("sluice_last_block", "Number of the last acknowledged block, -1 for none.")
    publishers = _gauge("sluice_publishers", "Publishers connected.")
    backoffs = _counter("sluice_backoffs", "Backoffs of publishers that failed.")
    backing_off = _gauge("sluice_backing_off", "Publishers, addresses, and all newcomers, that back off now.")

    # The event loop and the processor.
    asyncio_tasks = _gauge("sluice_asyncio_tasks", "Tasks of the event loop.")
    event_loop_lag_seconds = _histogram(
        "sluice_event_loop_lag_seconds", "How late the event loop comes round.", _LAG_BUCKETS_SECONDS
    )
    processor_wait_seconds = _counter(
        "sluice_processor_wait_seconds",
        "How long the tasks of the node were ready and had no processor.",
        "task",
    )

    # Standbys.
    min_standbys = _gauge(
        "sluice_min_standbys", "How many other nodes must have a block before it is acknowledged."
    )
    standbys = _gauge("sluice_standbys", "Other nodes that report, and have this node's chain.")
    blocks_awaiting_standbys = _gauge(
        "sluice_blocks_awaiting_standbys", "Blocks on disk here that wait for others."
    )
    awaiting_standbys_seconds = _gauge(
        "sluice_awaiting_standbys_seconds", "How long the first of them has waited."
    )
    standby_wait_seconds = _histogram(
        "sluice_standby_wait_seconds",
        "From a block's flushes to its acknowledgement, if it may wait for standbys.",
        _LATENCY_BUCKETS_SECONDS,
    )

    # Readers.
    tcp_clients = _gauge("sluice_tcp_clients", "Data-streamer clients connected.")
    tcp_sent_bytes = _counter("sluice_tcp_sent_bytes", "Bytes sent to data-streamer clients.")
    tcp_lag_bytes = _gauge(
        "sluice_tcp_lag_bytes",
        "How far the slowest streaming data-streamer client is behind, in bytes of the stream file.",
    )
    subscribers = _gauge("sluice_subscribers", "Streams of subscribers.")
    subscriber_blocks_sent = _counter("sluice_subscriber_blocks_sent", "Blocks sent to subscribers.")
    subscriber_sent_bytes = _counter("sluice_subscriber_sent_bytes", "Bytes of messages sent to subscribers.")
    subscriber_lag_blocks = _gauge(
        "sluice_subscriber_lag_blocks", "Blocks that the slowest subscriber was not sent yet."
    )

    # Peers and the role.
    catch_up_distance_blocks = _gauge(
        "sluice_catch_up_distance_blocks", "Blocks that the node knows of and does not have."
    )
    catch_up_attempts = _counter(
        "sluice_catch_up_attempts", "Attempts to take blocks from a peer, by outcome.", "outcome"
    )
    catch_up_stalled = _gauge("sluice_catch_up_stalled", "1 when the node does not come closer.")
    catch_up_targets_given_up = _counter(
        "sluice_catch_up_targets_given_up", "Blocks that publishers told of and no peer confirmed."
    )
    role = _gauge("sluice_role", "1 for the role that the node has.", "role")
    # no_active, two_active or no_successor; only of a node that has peers.
    election_epoch = _gauge(
        "sluice_election_epoch", "The epoch of the term that the node has in the election; 0: none."
    )
    coordinator_away = _gauge(
        "sluice_coordinator_away", "1 while the coordinator of the election does not answer the node."
    )
    cluster_fault = _gauge(
        "sluice_cluster_fault", "1 while the node sees this fault of its cluster.", "fault"
    )

    # Certificates, connections and messages, by address or rule.
    tls_certificate_end_seconds = _gauge(
        "sluice_tls_certificate_end_seconds", "When the certificate of a server ends, Unix time.", "setting"
    )
    tls_renewal_failed = _gauge(
        "sluice_tls_renewal_failed",
        "1 when the files of a server's certificate have changed and cannot be used.",
        "setting",
    )
    connections = _gauge("sluice_connections", "gRPC connections.", "setting")
    connections_refused = _counter(
        "sluice_connections_refused", "gRPC connections that were not taken, by reason.", "reason"
    )
    connections_ended = _counter(
        "sluice_connections_ended", "gRPC connections that the node ended, by reason.", "reason"
    )
    messages_refused = _counter("sluice_messages_refused", "Messages that gRPC refused, by reason.", "reason")

    # The stream file's data pages.
    bad_pages = _gauge("sluice_bad_pages", "Damaged data pages.")
    pages_healed = _counter("sluice_pages_healed", "Pages made good again.")
    scrubbed_bytes = _counter("sluice_scrubbed_bytes", "Bytes of pages that the scrubber has read.")
    scrub_pass_end = _gauge(
        "sluice_scrub_pass_end_seconds",
        "When the scrubber last ended a pass over all pages, Unix time; 0: never.",
    )

    stream_bytes = _gauge("sluice_stream_bytes", "Length of the stream files.")

    # Free is what an ordinary user may take.
    disk_free_bytes = _gauge("sluice_disk_free_bytes", "Free bytes of the file system of data_dir.")
    disk_size_bytes = _gauge("sluice_disk_size_bytes", "Size of the file system of data_dir.")

    # The archive, by its address.
    archived_pages = _gauge("sluice_archived_pages", "Data pages in the archive.", "archive")
    archive_behind_pages = _gauge(
        "sluice_archive_behind_pages", "Full data pages that are not in the archive yet.", "archive"
    )
    archive_local_pages = _gauge(
        "sluice_archive_local_pages", "Full data pages on the local disk.", "archive"
    )
    archive_cached_pages = _gauge("sluice_archive_cached_pages", "Data pages in the cache.", "archive")
    archive_read_bytes = _gauge(
        "sluice_archive_read_bytes", "Bytes that were read from the archive since the start.", "archive"
    )
    archive_failing = _gauge(
        "sluice_archive_failing", "1 while the archive cannot be written or read.", "archive"
    )
    archive_disagrees = _gauge(
        "sluice_archive_disagrees", "1 while the archive has other entries than this node.", "archive"
    )

    ready = _gauge("sluice_ready", "1 when the node is ready.")

    def __init__(self, *, verification_mode: str) -> None:
        """Create all metrics at zero."""
        self.registry = CollectorRegistry(auto_describe=True)
        ProcessCollector(registry=self.registry)
        self._won_by: dict[str, Counter] = {}  # labels() takes longer than inc()
        self._roles_shown: set[str] = set()
        for row in vars(Metrics).values():
            if isinstance(row, _Row):
                row.create(self)
        self.last_block.set(-1)
        mode = Info("sluice_verification_mode", "What is checked of a block.", registry=self.registry)
        mode.info({"mode": verification_mode})
        build = Info("sluice_build", "The program that runs.", registry=self.registry)
        build.info({"version": __version__, "python": platform.python_version(), "grpcio": version("grpcio")})

    def show_role(self, role: str) -> None:
        """Set the gauge of this role to 1 and of earlier roles to 0."""
        self._roles_shown.add(role)
        for shown in self._roles_shown:
            self.role.labels(role=shown).set(1 if shown == role else 0)

    def count_won(self, publisher: str) -> None:
        """Count a block for its publisher; publishers beyond the limit share one label.

        Names that nobody vouches for have at most half of the labels: inventing them takes none from others.
        """
        won = self._won_by.get(publisher)
        if won is None:
            at_will_count = sum(not is_vouched_for(name) for name in self._won_by)
            is_full = not is_vouched_for(publisher) and at_will_count >= METRIC_PUBLISHERS_MAX // 2
            if is_full or len(self._won_by) >= METRIC_PUBLISHERS_MAX:
                self.blocks_won.labels(publisher=OTHER_PUBLISHERS).inc()
                return
            won = self._won_by[publisher] = self.blocks_won.labels(publisher=publisher)
        won.inc()

    def exposition(self) -> bytes:
        """Return all metrics in the Prometheus text format, UTF-8."""
        return generate_latest(self.registry)
