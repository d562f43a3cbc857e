"""The limits of this room that no setting changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sluice.gateway.cluster.ranges import RANGE_RULES, RangeRules
from sluice.gateway.limits import MESSAGE_BYTES_DEFAULT, PEER_POLL_SECONDS
from sluice.gateway.pipeline.replication_quorum import OWN_ROOTS_KEPT

__all__ = ["CLUSTER_LIMITS", "ClusterLimits"]


@dataclass(frozen=True, slots=True)
class ClusterLimits:
    """Tests make these small."""

    peer_poll_seconds: float = PEER_POLL_SECONDS
    """Time between two status requests to a peer that is followed live."""
    peer_mute_seconds: float = PEER_POLL_SECONDS
    """A peer that does not answer a status request in this time counts as mute."""
    peer_block_stalls: float = 3.0
    """The time that the node waits for one block of a peer before it asks whether another peer has the block,
    as a multiple of `catchup.stall_seconds`. It doubles with each failed attempt."""
    peer_pace_share_min: float = 0.5
    """The node leaves a peer that has further blocks but sends less than this share of the network's pace, if
    another peer has them: it would never reach the end of the chain. Half, because a live peer is as fast as
    the network."""
    peer_share_seconds: float = 1.0
    """The time over which the node watches how much of it goes by waiting for its peer."""
    ranges: RangeRules = RANGE_RULES
    standby_retry_seconds: float = 0.1
    """The first backoff before a lost standby is connected to again; it doubles with each failure."""
    standby_retry_seconds_max: float = 2.0
    """The longest such backoff. It is short because publishers wait for the standby."""
    own_roots_kept: int = OWN_ROOTS_KEPT
    """Root hashes in memory, to compare with those of standbys; older ones are read from the stream."""
    message_bytes_min: int = MESSAGE_BYTES_DEFAULT
    """A message of a peer may be so long even if `grpc.max_message_bytes` is lower: a low limit for
    publishers must not keep out blocks that peers have stored."""
    heal_pause_seconds: float = 5.0
    """The first backoff after no peer could heal a page; it doubles with each failure."""
    heal_pause_seconds_max: float = 600.0
    heal_attempt_seconds_max: float = 600.0
    """With one peer: a page has few blocks."""


CLUSTER_LIMITS: Final = ClusterLimits()
