"""The metrics of a node, which Prometheus reads at `/metrics`.

Names contain units; Prometheus appends `_total` to a counter's name. Each node has its own registry, so that
several nodes can live in one process (tests).
"""

from __future__ import annotations

from functools import partial
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    generate_latest,
)

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


class Metrics:
    """The metrics of one node."""

    registry: CollectorRegistry

    def __init__(self, *, verification_mode: str) -> None:
        """Create all metrics at zero."""
        self.registry = registry = CollectorRegistry(auto_describe=True)
        ProcessCollector(registry=registry)
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry)
        self._won_by: dict[str, Counter] = {}  # labels() takes longer than inc()
        self._roles_shown: set[str] = set()

        # Blocks and publishers.
        self.blocks_received = counter("sluice_blocks_received", "Blocks whose header was accepted.")
        self.blocks_verified = counter(
            "sluice_blocks_verified", "Blocks whose hash, links and proof were right."
        )
        self.blocks_acknowledged = counter("sluice_blocks_acknowledged", "Blocks committed and acknowledged.")
        self.stray_messages = counter("sluice_stray_messages", "Messages without a block.")
        self.blocks_skipped = counter("sluice_blocks_skipped", "Answers SkipBlock.")
        # The reason is how the block was lost: refused (bad proof, hash or link), disputed (a link that may
        # be right), bad_request, too_large, timed_out, stalled, left (disconnected), abandoned (its publisher
        # began another block), sent_back, restarted, stream_ended, node, or beginning (the first block of the
        # chain failed).
        self.blocks_resent = counter("sluice_blocks_resent", "Answers ResendBlock, by reason.", ["reason"])
        self.blocks_refused = counter("sluice_blocks_refused", "Blocks refused, by reason.", ["reason"])
        self.blocks_won = counter("sluice_blocks_won", "Blocks acknowledged, by publisher.", ["publisher"])
        self.acknowledgement_latency_seconds = histogram(
            "sluice_acknowledgement_latency_seconds",
            "From a block's header to its acknowledgement.",
            buckets=_LATENCY_BUCKETS_SECONDS,
        )
        self.flush_seconds = histogram(
            "sluice_flush_seconds", "One commit: both flushes.", buckets=_FLUSH_BUCKETS_SECONDS
        )
        self.flushes = counter(
            "sluice_flushes", "Flushes of the stream file by commits; one that two of them share is one."
        )
        self.inflight_bytes = gauge("sluice_inflight_bytes", "Bytes of items held and not yet committed.")
        self.last_block = gauge("sluice_last_block", "Number of the last acknowledged block, -1 for none.")
        self.last_block.set(-1)
        self.publishers = gauge("sluice_publishers", "Publishers connected.")
        self.backoffs = counter("sluice_backoffs", "Backoffs of publishers that failed.")
        self.backing_off = gauge(
            "sluice_backing_off", "Publishers, addresses, and all newcomers, that back off now."
        )

        # The event loop and the processor.
        self.asyncio_tasks = gauge("sluice_asyncio_tasks", "Tasks of the event loop.")
        self.event_loop_lag_seconds = histogram(
            "sluice_event_loop_lag_seconds",
            "How late the event loop comes round.",
            buckets=_LAG_BUCKETS_SECONDS,
        )
        self.processor_wait_seconds = counter(
            "sluice_processor_wait_seconds",
            "How long the tasks of the node were ready and had no processor.",
            ["task"],
        )

        # Standbys.
        self.min_standbys = gauge(
            "sluice_min_standbys", "How many other nodes must have a block before it is acknowledged."
        )
        self.standbys = gauge("sluice_standbys", "Other nodes that report, and have this node's chain.")
        self.blocks_awaiting_standbys = gauge(
            "sluice_blocks_awaiting_standbys", "Blocks on disk here that wait for others."
        )
        self.awaiting_standbys_seconds = gauge(
            "sluice_awaiting_standbys_seconds", "How long the first of them has waited."
        )
        self.standby_wait_seconds = histogram(
            "sluice_standby_wait_seconds",
            "From a block's flushes to its acknowledgement, if it may wait for standbys.",
            buckets=_LATENCY_BUCKETS_SECONDS,
        )

        # Readers.
        self.tcp_clients = gauge("sluice_tcp_clients", "Data-streamer clients connected.")
        self.tcp_sent_bytes = counter("sluice_tcp_sent_bytes", "Bytes sent to data-streamer clients.")
        self.tcp_lag_bytes = gauge(
            "sluice_tcp_lag_bytes",
            "How far the slowest streaming data-streamer client is behind, in bytes of the stream file.",
        )
        self.subscribers = gauge("sluice_subscribers", "Streams of subscribers.")
        self.subscriber_blocks_sent = counter("sluice_subscriber_blocks_sent", "Blocks sent to subscribers.")
        self.subscriber_sent_bytes = counter(
            "sluice_subscriber_sent_bytes", "Bytes of messages sent to subscribers."
        )
        self.subscriber_lag_blocks = gauge(
            "sluice_subscriber_lag_blocks", "Blocks that the slowest subscriber was not sent yet."
        )

        # Peers and the role.
        self.catch_up_distance_blocks = gauge(
            "sluice_catch_up_distance_blocks", "Blocks that the node knows of and does not have."
        )
        self.catch_up_attempts = counter(
            "sluice_catch_up_attempts", "Attempts to take blocks from a peer, by outcome.", ["outcome"]
        )
        self.catch_up_stalled = gauge("sluice_catch_up_stalled", "1 when the node does not come closer.")
        self.catch_up_targets_given_up = counter(
            "sluice_catch_up_targets_given_up", "Blocks that publishers told of and no peer confirmed."
        )
        self.role = gauge("sluice_role", "1 for the role that the node has.", ["role"])

        # Certificates, connections and messages, by address or rule.
        self.tls_certificate_end_seconds = gauge(
            "sluice_tls_certificate_end_seconds",
            "When the certificate of a server ends, Unix time.",
            ["setting"],
        )
        self.tls_renewal_failed = gauge(
            "sluice_tls_renewal_failed",
            "1 when the files of a server's certificate have changed and cannot be used.",
            ["setting"],
        )
        self.connections = gauge("sluice_connections", "gRPC connections.", ["setting"])
        self.connections_refused = counter(
            "sluice_connections_refused", "gRPC connections that were not taken, by reason.", ["reason"]
        )
        self.connections_ended = counter(
            "sluice_connections_ended", "gRPC connections that the node ended, by reason.", ["reason"]
        )
        self.messages_refused = counter(
            "sluice_messages_refused", "Messages that gRPC refused, by reason.", ["reason"]
        )

        # The stream file's data pages.
        self.bad_pages = gauge("sluice_bad_pages", "Damaged data pages.")
        self.pages_healed = counter("sluice_pages_healed", "Pages made good again.")
        self.scrubbed_bytes = counter("sluice_scrubbed_bytes", "Bytes of pages that the scrubber has read.")
        self.scrub_pass_end = gauge(
            "sluice_scrub_pass_end_seconds",
            "When the scrubber last ended a pass over all pages, Unix time; 0: never.",
        )

        # The archive, by its address.
        self.archived_pages = gauge("sluice_archived_pages", "Data pages in the archive.", ["archive"])
        self.archive_behind_pages = gauge(
            "sluice_archive_behind_pages", "Full data pages that are not in the archive yet.", ["archive"]
        )
        self.archive_local_pages = gauge(
            "sluice_archive_local_pages", "Full data pages on the local disk.", ["archive"]
        )
        self.archive_cached_pages = gauge(
            "sluice_archive_cached_pages", "Data pages in the cache.", ["archive"]
        )
        self.archive_read_bytes = gauge(
            "sluice_archive_read_bytes", "Bytes that were read from the archive since the start.", ["archive"]
        )
        self.archive_failing = gauge(
            "sluice_archive_failing", "1 while the archive cannot be written or read.", ["archive"]
        )
        self.archive_disagrees = gauge(
            "sluice_archive_disagrees", "1 while the archive has other entries than this node.", ["archive"]
        )

        self.ready = gauge("sluice_ready", "1 when the node is ready.")
        mode = Info("sluice_verification_mode", "What is checked of a block.", registry=registry)
        mode.info({"mode": verification_mode})

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
