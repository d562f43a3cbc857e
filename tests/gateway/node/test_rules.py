"""Tests of `gateway.node.rules`: each rule comes from its setting, in its unit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sluice.datastream import ServerLimits
from sluice.gateway.addresses import Address
from sluice.gateway.cluster.catch_up import CatchUpRules
from sluice.gateway.node.rules import (
    admission_limits,
    catch_up_rules,
    first_number,
    own_addresses,
    peer_tls,
    race_rules,
    subscribe_limits,
    tcp_limits,
)
from sluice.gateway.race.records import RaceRules
from sluice.gateway.services.subscribe_service import SubscribeLimits
from sluice.gateway.settings.table import Settings
from sluice.gateway.transport.admission import AdmissionLimits
from sluice.gateway.transport.channels import ClientTls


def test_the_rules_of_the_race() -> None:
    settings = Settings(
        publish_max_block_bytes=1,
        publish_max_inflight_bytes=2,
        publish_max_publisher_inflight_bytes=3,
        publish_max_address_inflight_bytes=4,
        publish_proof_idle_ms=5,
        publish_block_timeout_seconds=6.5,
        publish_stall_blocks=7,
        publish_idle_timeout_seconds=8.25,
        publish_duplicate_skip_window=9,
    )
    assert race_rules(settings) == RaceRules(
        block_bytes_max=1,
        inflight_bytes_max=2,
        publisher_bytes_max=3,
        address_bytes_max=4,
        proof_idle_ns=5_000_000,
        block_timeout_ns=6_500_000_000,
        stall_blocks=7,
        idle_timeout_ns=8_250_000_000,
        duplicate_skip_window=9,
    )


def test_the_rules_of_catching_up() -> None:
    settings = Settings(
        catchup_max_stalled_attempts=1,
        catchup_backoff_seconds=2.5,
        catchup_max_backoff_seconds=3.5,
        catchup_unconfirmed_seconds=4.5,
    )
    assert catch_up_rules(settings) == CatchUpRules(1, 2_500_000_000, 3_500_000_000, 4_500_000_000)


def test_the_limits_of_publishers() -> None:
    settings = Settings(
        publish_allowed_subjects=("CN=a", "CN=b"),
        publish_max_streams_per_publisher=1,
        publish_max_streams_per_address=2,
        publish_max_messages_per_second=3,
        publish_max_messages_per_second_per_address=4,
    )
    assert admission_limits(settings) == AdmissionLimits(frozenset({"CN=a", "CN=b"}), 1, 2, 3, 4)


def test_the_limits_of_subscribers() -> None:
    settings = Settings(
        subscriber_max_future_blocks=1,
        subscriber_max_streams=2,
        subscriber_max_streams_per_address=3,
        subscriber_write_timeout_seconds=4.5,
        subscriber_item_set_bytes=5,
    )
    assert subscribe_limits(settings) == SubscribeLimits(1, 2, 3, 4.5, 5)


def test_the_limits_of_data_streamer_clients() -> None:
    settings = Settings(
        tcp_max_connections=1, tcp_write_timeout_seconds=2.5, tcp_inactivity_timeout_seconds=3.5
    )
    assert tcp_limits(settings, None) == tcp_limits(settings, 1_024) == ServerLimits(1, 2.5, 3.5)
    # Strangers at the TCP port take no descriptor that publishers and nodes need.
    assert tcp_limits(replace(settings, tcp_max_connections=10_000), 1_024).connections_max == 320


def test_where_an_empty_node_begins() -> None:
    assert [first_number(Settings(first_block=block)) for block in (None, 0, 7, "any")] == [0, 0, 7, None]


def test_the_addresses_of_a_node() -> None:
    grpc, advertised, subscriber = (Address(name, 1) for name in ("grpc", "advertised", "subscriber"))
    settings = Settings(grpc_address=grpc, grpc_advertised_address=advertised)
    assert own_addresses(settings) == {grpc, advertised}
    settings = Settings(grpc_address=grpc, grpc_advertised_address=advertised, subscriber_address=subscriber)
    assert own_addresses(settings) == {grpc, advertised, subscriber}


def test_the_certificates_for_peers() -> None:
    assert peer_tls(Settings()) is None
    assert peer_tls(Settings(catchup_tls_ca=Path("ca"))) == ClientTls("ca", None, None)
    settings = Settings(
        catchup_tls_ca=Path("ca"), catchup_tls_certificate=Path("cert"), catchup_tls_key=Path("key")
    )
    assert peer_tls(settings) == ClientTls("ca", "cert", "key")
