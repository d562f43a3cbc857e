"""What settings mean for the rooms of a node: that each rule comes from its setting, in its unit."""

from __future__ import annotations

from gateway.admission import AdmissionLimits
from gateway.catch_up import CatchUpRules
from gateway.node_rules import admission_limits, catch_up_rules, race_rules
from gateway.race_facts import RaceRules
from gateway.settings import Settings


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
        catchup_rest_seconds=2.5,
        catchup_max_rest_seconds=3.5,
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
