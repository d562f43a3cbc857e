"""What the settings of a node mean for its rooms: the rules that each of them goes by.

Pure. Seconds become nanoseconds here, and nothing is decided.
"""

from __future__ import annotations

from gateway.admission import AdmissionLimits
from gateway.catch_up import CatchUpRules
from gateway.race_facts import RaceRules
from gateway.settings import Settings

__all__ = ["admission_limits", "catch_up_rules", "race_rules"]


def race_rules(settings: Settings) -> RaceRules:
    """Give the rules of the publish race."""
    return RaceRules(
        block_bytes_max=settings.publish_max_block_bytes,
        inflight_bytes_max=settings.publish_max_inflight_bytes,
        publisher_bytes_max=settings.publish_max_publisher_inflight_bytes,
        address_bytes_max=settings.publish_max_address_inflight_bytes,
        proof_idle_ns=settings.publish_proof_idle_ms * 1_000_000,
        block_timeout_ns=int(settings.publish_block_timeout_seconds * 1e9),
        stall_blocks=settings.publish_stall_blocks,
        idle_timeout_ns=int(settings.publish_idle_timeout_seconds * 1e9),
        duplicate_skip_window=settings.publish_duplicate_skip_window,
    )


def catch_up_rules(settings: Settings) -> CatchUpRules:
    """Give the rules of taking blocks from peers."""
    return CatchUpRules(
        stalled_attempts_max=settings.catchup_max_stalled_attempts,
        rest_ns=int(settings.catchup_rest_seconds * 1e9),
        rest_max_ns=int(settings.catchup_max_rest_seconds * 1e9),
        unconfirmed_ns=int(settings.catchup_unconfirmed_seconds * 1e9),
    )


def admission_limits(settings: Settings) -> AdmissionLimits:
    """Give the limits of publishers."""
    return AdmissionLimits(
        frozenset(settings.publish_allowed_subjects),
        settings.publish_max_streams_per_publisher,
        settings.publish_max_streams_per_address,
        settings.publish_max_messages_per_second,
        settings.publish_max_messages_per_second_per_address,
    )
