"""What a node counts, in the form that Prometheus reads at `/metrics`.

    sluice_blocks_received_total             blocks whose header was accepted
    sluice_blocks_verified_total             blocks whose hash, links and proof were right
    sluice_blocks_acknowledged_total         blocks committed and acknowledged
    sluice_blocks_skipped_total              answers SkipBlock
    sluice_blocks_resent_total{reason}       answers ResendBlock, by how the block was lost: refused (bad
                                             proof, hash or link), disputed (a link that may be right),
                                             bad_request, too_large, timed_out, stalled, left
                                             (disconnected), abandoned (it began another block),
                                             sent_back, restarted, stream_ended, node, or beginning (it was
                                             passed for a first block of the chain that failed)
    sluice_blocks_refused_total{reason}      blocks refused
    sluice_stray_messages_total              messages of publishers that belong to no block, and were dropped
    sluice_blocks_won_total{publisher}       blocks acknowledged, by who sent them
    sluice_acknowledgement_latency_seconds   from a block's header to its acknowledgement
    sluice_flush_seconds                     one commit: both flushes
    sluice_flushes_total                     flushes of the stream file; one that two commits share is one
    sluice_min_standbys                      how many other nodes must have a block before it is acknowledged
    sluice_standbys                          other nodes that report, and have this node's chain
    sluice_blocks_awaiting_standbys          blocks on disk here that wait for others
    sluice_awaiting_standbys_seconds         how long the first of them has waited
    sluice_standby_wait_seconds              from a block's flushes to its acknowledgement, if it may wait
    sluice_inflight_bytes                    items held and not yet committed
    sluice_last_block                        number of the last acknowledged block, -1 when there is none
    sluice_publishers, sluice_tcp_clients    connected now
    sluice_backoffs_total                    backoffs of publishers that failed blocks again
    sluice_backing_off                       publishers, addresses, and all newcomers, that back off now
    sluice_tcp_sent_bytes_total              sent to data-streamer clients
    sluice_tcp_lag_bytes                     how far the slowest streaming data-streamer client is behind
    sluice_connections{setting}              gRPC connections now, by the address that is listened at
    sluice_connections_refused_total{reason}  gRPC connections that were not taken
    sluice_connections_ended_total{reason}   gRPC connections that the node ended, by the rule they broke
    sluice_messages_refused_total{reason}    messages that gRPC refused, by reason: size
    sluice_role{role}                        1 for the role that the node has
    sluice_subscribers                       streams of subscribers
    sluice_subscriber_blocks_sent_total      blocks sent to subscribers
    sluice_subscriber_sent_bytes_total       bytes of messages sent to subscribers
    sluice_subscriber_lag_blocks             blocks that the slowest subscriber was not sent yet
    sluice_asyncio_tasks                     tasks of the event loop
    sluice_event_loop_lag_seconds            how late the event loop comes round, sampled
    sluice_processor_wait_seconds_total{task}  how long a task was ready and had no processor: event loop,
                                             commits, proofs, hashing
    sluice_catch_up_distance_blocks          blocks that the node knows of and does not have
    sluice_catch_up_attempts_total{outcome}  attempts to take blocks from a peer
    sluice_catch_up_stalled                  1 when the node does not come closer
    sluice_catch_up_targets_given_up_total   blocks that publishers told of and no peer confirmed
    sluice_tls_certificate_end_seconds{setting}  when the certificate of a server ends, Unix time
    sluice_tls_renewal_failed{setting}       1 when its files have changed and cannot be used
    sluice_ready                             1 when /readyz says ready
    sluice_verification_mode_info{mode}      always 1; the label tells the mode

Beside them stands what Prometheus' libraries say of every process: process_resident_memory_bytes,
process_open_fds, process_cpu_seconds_total and others.

Units are in the names. Every node has a registry of its own, so that several live in one process (tests).
"""

from __future__ import annotations

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    generate_latest,
)

from gateway.identity import is_vouched_for
from gateway.limits import METRIC_PUBLISHERS_MAX

__all__ = ["OTHER_PUBLISHERS", "Metrics"]

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
    """The metrics of one node; each attribute is the Prometheus object of the name in the module's table."""

    registry: CollectorRegistry
    """Holds all of them, and nothing else."""

    def __init__(self, *, verification_mode: str) -> None:
        """Make all metrics at zero.

        Args:
            verification_mode: `full` or `hash`, shown as a label.
        """
        self.registry = registry = CollectorRegistry(auto_describe=True)
        ProcessCollector(registry=registry)
        self._won_by: dict[str, Counter] = {}  # to find a label's counter takes longer than to count
        self._roles_shown: set[str] = set()

        self.blocks_received = Counter(
            "sluice_blocks_received", "Blocks whose header was accepted.", registry=registry
        )
        self.blocks_verified = Counter(
            "sluice_blocks_verified", "Blocks whose hash, links and proof were right.", registry=registry
        )
        self.blocks_acknowledged = Counter(
            "sluice_blocks_acknowledged", "Blocks committed and acknowledged.", registry=registry
        )
        self.stray_messages = Counter("sluice_stray_messages", "Messages without a block.", registry=registry)
        self.blocks_skipped = Counter("sluice_blocks_skipped", "Answers SkipBlock.", registry=registry)
        self.blocks_resent = Counter(
            "sluice_blocks_resent", "Answers ResendBlock, by reason.", ["reason"], registry=registry
        )
        self.blocks_refused = Counter(
            "sluice_blocks_refused", "Blocks refused, by reason.", ["reason"], registry=registry
        )
        self.blocks_won = Counter(
            "sluice_blocks_won", "Blocks acknowledged, by publisher.", ["publisher"], registry=registry
        )
        self.acknowledgement_latency_seconds = Histogram(
            "sluice_acknowledgement_latency_seconds",
            "From a block's header to its acknowledgement.",
            buckets=_LATENCY_BUCKETS_SECONDS,
            registry=registry,
        )
        self.flush_seconds = Histogram(
            "sluice_flush_seconds",
            "One commit: both flushes.",
            buckets=_FLUSH_BUCKETS_SECONDS,
            registry=registry,
        )
        text = "Flushes of the stream file by commits; one that two of them share is one."
        self.flushes = Counter("sluice_flushes", text, registry=registry)
        self.inflight_bytes = Gauge(
            "sluice_inflight_bytes", "Bytes of items held and not yet committed.", registry=registry
        )
        self.last_block = Gauge(
            "sluice_last_block", "Number of the last acknowledged block, -1 for none.", registry=registry
        )
        self.last_block.set(-1)
        self.publishers = Gauge("sluice_publishers", "Publishers connected.", registry=registry)
        self.backoffs = Counter("sluice_backoffs", "Backoffs of publishers that failed.", registry=registry)
        self.backing_off = Gauge("sluice_backing_off", "Who backs off just now.", registry=registry)
        self._make_processor_metrics()
        self._make_standby_metrics()
        self._make_reading_metrics()
        self._make_door_metrics()
        self.ready = Gauge("sluice_ready", "1 when the node is ready.", registry=registry)
        Info("sluice_verification_mode", "What is checked of a block.", registry=registry).info(
            {"mode": verification_mode}
        )

    def _make_processor_metrics(self) -> None:
        """Make those of the event loop, and of the time that the node waits for a processor."""
        registry = self.registry
        self.asyncio_tasks = Gauge("sluice_asyncio_tasks", "Tasks of the event loop.", registry=registry)
        self.event_loop_lag_seconds = Histogram(
            "sluice_event_loop_lag_seconds",
            "How late the event loop comes round.",
            buckets=_LAG_BUCKETS_SECONDS,
            registry=registry,
        )
        self.processor_wait_seconds = Counter(
            "sluice_processor_wait_seconds",
            "How long the tasks of the node were ready and had no processor.",
            ["task"],
            registry=registry,
        )

    def _make_standby_metrics(self) -> None:
        """Make those of the nodes that acknowledgements wait for."""
        registry = self.registry
        self.min_standbys = Gauge(
            "sluice_min_standbys",
            "How many other nodes must have a block before it is acknowledged.",
            registry=registry,
        )
        self.standbys = Gauge(
            "sluice_standbys", "Other nodes that report, and have this node's chain.", registry=registry
        )
        self.blocks_awaiting_standbys = Gauge(
            "sluice_blocks_awaiting_standbys", "Blocks on disk here that wait for others.", registry=registry
        )
        self.awaiting_standbys_seconds = Gauge(
            "sluice_awaiting_standbys_seconds", "How long the first of them has waited.", registry=registry
        )
        self.standby_wait_seconds = Histogram(
            "sluice_standby_wait_seconds",
            "From a block's flushes to its acknowledgement, if it may wait for standbys.",
            buckets=_LATENCY_BUCKETS_SECONDS,
            registry=registry,
        )

    def _make_reading_metrics(self) -> None:
        """Make those of readers, and of the peers that this node subscribes to."""
        registry = self.registry
        self.tcp_clients = Gauge("sluice_tcp_clients", "Data-streamer clients connected.", registry=registry)
        self.tcp_sent_bytes = Counter(
            "sluice_tcp_sent_bytes", "Bytes sent to data-streamer clients.", registry=registry
        )
        self.subscribers = Gauge("sluice_subscribers", "Streams of subscribers.", registry=registry)
        self.subscriber_blocks_sent = Counter(
            "sluice_subscriber_blocks_sent", "Blocks sent to subscribers.", registry=registry
        )
        self.subscriber_sent_bytes = Counter(
            "sluice_subscriber_sent_bytes", "Bytes of messages sent to subscribers.", registry=registry
        )
        self.subscriber_lag_blocks = Gauge(
            "sluice_subscriber_lag_blocks",
            "Blocks that the slowest subscriber was not sent yet.",
            registry=registry,
        )
        self.catch_up_distance_blocks = Gauge(
            "sluice_catch_up_distance_blocks",
            "Blocks that the node knows of and does not have.",
            registry=registry,
        )
        self.catch_up_attempts = Counter(
            "sluice_catch_up_attempts",
            "Attempts to take blocks from a peer, by outcome.",
            ["outcome"],
            registry=registry,
        )
        self.catch_up_stalled = Gauge(
            "sluice_catch_up_stalled", "1 when the node does not come closer.", registry=registry
        )
        self.catch_up_targets_given_up = Counter(
            "sluice_catch_up_targets_given_up",
            "Blocks that publishers told of and no peer confirmed.",
            registry=registry,
        )
        self.tls_certificate_end_seconds = Gauge(
            "sluice_tls_certificate_end_seconds",
            "When the certificate of a server ends, Unix time.",
            ["setting"],
            registry=registry,
        )
        self.tls_renewal_failed = Gauge(
            "sluice_tls_renewal_failed",
            "1 when the files of a server's certificate have changed and cannot be used.",
            ["setting"],
            registry=registry,
        )
        self.tcp_lag_bytes = Gauge(
            "sluice_tcp_lag_bytes",
            "How far the slowest streaming data-streamer client is behind, in bytes of the stream file.",
            registry=registry,
        )
        self.role = Gauge("sluice_role", "1 for the role that the node has.", ["role"], registry=registry)

    def _make_door_metrics(self) -> None:
        """Make those of the front doors."""
        registry = self.registry
        self.connections = Gauge("sluice_connections", "gRPC connections.", ["setting"], registry=registry)
        self.connections_refused = Counter(
            "sluice_connections_refused",
            "gRPC connections that were not taken, by reason.",
            ["reason"],
            registry=registry,
        )
        self.connections_ended = Counter(
            "sluice_connections_ended",
            "gRPC connections that the node ended, by reason.",
            ["reason"],
            registry=registry,
        )
        self.messages_refused = Counter(
            "sluice_messages_refused",
            "Messages that gRPC refused, by reason.",
            ["reason"],
            registry=registry,
        )

    def show_role(self, role: str) -> None:
        """Set the gauge of one role to 1 and those of the others that there were to 0."""
        self._roles_shown.add(role)
        for shown in self._roles_shown:
            self.role.labels(role=shown).set(1 if shown == role else 0)

    def count_won(self, publisher: str) -> None:
        """Count a block for the publisher that sent it; publishers beyond the limit share one label.

        Names that nobody vouches for have half of the labels: who invents them takes no label of others.
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
        """Write all metrics in the Prometheus text format, UTF-8."""
        return generate_latest(self.registry)
