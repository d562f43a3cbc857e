"""Tests of `gateway.metrics`: the names that dashboards use, and the bound on labels."""

from __future__ import annotations

import platform
import re

from sluice.gateway import __version__
from sluice.gateway.metrics import METRIC_PUBLISHERS_MAX, OTHER_PUBLISHERS, Metrics

OF_THE_PROCESS = {
    *("process_virtual_memory_bytes", "process_resident_memory_bytes", "process_start_time_seconds"),
    *("process_cpu_seconds_total", "process_open_fds", "process_max_fds"),
}


NAMES = """
acknowledgement_latency_seconds archive_behind_pages archive_cached_pages archive_disagrees
archive_failing archive_local_pages archive_read_bytes archived_pages asyncio_tasks
awaiting_standbys_seconds backing_off backoffs_total
bad_pages blocks_acknowledged_total blocks_awaiting_standbys blocks_received_total
blocks_refused_total blocks_resent_total blocks_skipped_total blocks_verified_total blocks_won_total
build_info
catch_up_attempts_total catch_up_distance_blocks catch_up_stalled catch_up_targets_given_up_total
cluster_fault connections connections_ended_total connections_refused_total disk_free_bytes disk_size_bytes
coordinator_away election_epoch event_loop_lag_seconds flush_seconds
flushes_total inflight_bytes last_block messages_refused_total min_standbys pages_healed_total
processor_wait_seconds_total publishers ready role scrub_pass_end_seconds scrubbed_bytes_total
standby_wait_seconds standbys stray_messages_total subscriber_blocks_sent_total
stream_bytes subscriber_lag_blocks subscriber_sent_bytes_total subscribers tcp_clients tcp_lag_bytes
tcp_sent_bytes_total tls_certificate_end_seconds tls_renewal_failed verification_mode_info
"""
"""The names without `sluice_`."""


def test_a_node_exposes_these_metrics_and_no_other() -> None:
    metrics = Metrics(verification_mode="hash")
    exposed = set(re.findall(r"^# TYPE (\w+)", metrics.exposition().decode(), re.MULTILINE))
    # Prometheus' library adds the creation time of each counter and histogram.
    ours = {name for name in exposed if not name.endswith("_created")} - OF_THE_PROCESS
    assert ours == {f"sluice_{name}" for name in NAMES.split()}
    assert exposed >= OF_THE_PROCESS


def test_what_operators_were_promised_is_there_with_its_unit() -> None:
    """Each promised value, and its metric."""
    promised = {
        "blocks received": "sluice_blocks_received_total",
        "blocks verified": "sluice_blocks_verified_total",
        "blocks acknowledged": "sluice_blocks_acknowledged_total",
        "blocks skipped": "sluice_blocks_skipped_total",
        "blocks resent by reason": "sluice_blocks_resent_total{reason=",
        "acknowledgement latency histogram": "sluice_acknowledgement_latency_seconds_bucket",
        "winners by publisher": "sluice_blocks_won_total{publisher=",
        "in-flight bytes": "sluice_inflight_bytes",
        "flush time": "sluice_flush_seconds_bucket",
        "TCP clients": "sluice_tcp_clients",
        "bytes sent to them": "sluice_tcp_sent_bytes_total",
        "lag of the slowest": "sluice_tcp_lag_bytes",
        "lag of the slowest subscriber": "sluice_subscriber_lag_blocks",
        "catch-up distance": "sluice_catch_up_distance_blocks",
        "role": "sluice_role{role=",
    }
    metrics = Metrics(verification_mode="full")
    metrics.blocks_resent.labels(reason="left").inc()
    metrics.count_won("alice")
    metrics.show_role("active")
    lines = metrics.exposition().decode().splitlines()
    missing = [what for what, name in promised.items() if not any(line.startswith(name) for line in lines)]
    assert missing == []


def test_a_new_node_has_no_block_and_shows_its_mode() -> None:
    lines = Metrics(verification_mode="hash").exposition().decode().splitlines()
    assert "sluice_last_block -1.0" in lines
    assert "sluice_ready 0.0" in lines
    assert "sluice_blocks_acknowledged_total 0.0" in lines
    assert 'sluice_verification_mode_info{mode="hash"} 1.0' in lines
    (build,) = (line for line in lines if line.startswith("sluice_build_info{"))
    assert f'version="{__version__}"' in build
    assert f'python="{platform.python_version()}"' in build


def test_two_nodes_count_for_themselves() -> None:
    one, other = Metrics(verification_mode="full"), Metrics(verification_mode="full")
    one.blocks_received.inc()
    assert one.registry.get_sample_value("sluice_blocks_received_total") == 1
    assert other.registry.get_sample_value("sluice_blocks_received_total") == 0


def won(metrics: Metrics, publisher: str) -> float | None:
    return metrics.registry.get_sample_value("sluice_blocks_won_total", {"publisher": publisher})


def test_publishers_beyond_the_limit_share_a_label() -> None:
    metrics = Metrics(verification_mode="full")
    for number in range(METRIC_PUBLISHERS_MAX):
        metrics.count_won(f"publisher-{number}")
    assert won(metrics, OTHER_PUBLISHERS) is None
    metrics.count_won("one too many")
    metrics.count_won("another")
    metrics.count_won("publisher-0")
    assert won(metrics, "one too many") is None
    assert won(metrics, OTHER_PUBLISHERS) == 2
    assert won(metrics, "publisher-0") == 2


def test_names_that_anybody_can_have_take_half_of_the_labels() -> None:
    metrics = Metrics(verification_mode="full")
    for number in range(METRIC_PUBLISHERS_MAX):
        metrics.count_won(f"claimed:{number}")
    for number in range(METRIC_PUBLISHERS_MAX // 2 + 1):
        metrics.count_won(f"CN={number}")
    half = METRIC_PUBLISHERS_MAX // 2
    assert [won(metrics, f"claimed:{number}") for number in (half - 1, half)] == [1, None]
    assert [won(metrics, f"CN={number}") for number in (half - 1, half)] == [1, None]
    assert won(metrics, OTHER_PUBLISHERS) == half + 1


def test_a_commit_of_a_millisecond_has_its_bucket() -> None:
    metrics = Metrics(verification_mode="full")
    metrics.flush_seconds.observe(0.0009)
    metrics.acknowledgement_latency_seconds.observe(0.02)
    value = metrics.registry.get_sample_value
    assert value("sluice_flush_seconds_bucket", {"le": "0.0005"}) == 0
    assert value("sluice_flush_seconds_bucket", {"le": "0.001"}) == 1
    assert value("sluice_acknowledgement_latency_seconds_bucket", {"le": "0.025"}) == 1
