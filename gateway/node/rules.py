"""The rules of each room, made from a node's settings.

Pure. Seconds become nanoseconds here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from sluice.datastream import ServerLimits
from sluice.gateway.addresses import Address
from sluice.gateway.archive.archive import ArchiveOptions
from sluice.gateway.archive.objects import StoreOptions
from sluice.gateway.blocks.trusted_keys import TrustedKeys
from sluice.gateway.cluster.catch_up import CatchUpRules
from sluice.gateway.cluster.coordinator import EtcdCoordinator, EtcdUser, LeaseCoordinator
from sluice.gateway.cluster.limits import CLUSTER_LIMITS, ClusterLimits
from sluice.gateway.errors import SettingError
from sluice.gateway.limits import HEALTH_CHECK_SECONDS
from sluice.gateway.pipeline.limits import PipelineLimits
from sluice.gateway.race.records import RaceRules
from sluice.gateway.services.block_answers import AccessLimits
from sluice.gateway.services.publish_service import DrainLimits
from sluice.gateway.services.status_detail import Abilities
from sluice.gateway.services.subscribe_service import SubscribeLimits
from sluice.gateway.settings.table import Settings
from sluice.gateway.status.processor_watch import LOOK_SECONDS
from sluice.gateway.status.reporter import PUBLISHERS_SHOWN
from sluice.gateway.status.sampler import WRITE_SECONDS
from sluice.gateway.store.block_store import Layout
from sluice.gateway.store.scrub import UNPROVEN_PAUSE_SECONDS
from sluice.gateway.transport.admission import AdmissionLimits
from sluice.gateway.transport.channels import ClientTls

__all__ = [
    "NodeLimits",
    "abilities",
    "admission_limits",
    "archive_options",
    "catch_up_rules",
    "coordinator",
    "first_number",
    "own_addresses",
    "peer_tls",
    "race_rules",
    "subscribe_limits",
    "tcp_limits",
]


@dataclass(frozen=True, slots=True)
class NodeLimits:
    """The limits of a node that no setting changes."""

    access: AccessLimits = field(default_factory=AccessLimits)
    cluster: ClusterLimits = CLUSTER_LIMITS
    pipeline: PipelineLimits = field(default_factory=PipelineLimits)
    """Two of its limits are settings."""
    drain: DrainLimits = field(default_factory=DrainLimits)
    health_check_seconds: float = HEALTH_CHECK_SECONDS
    processor_look_seconds: float = LOOK_SECONDS
    publishers_shown: int = PUBLISHERS_SHOWN
    history_write_seconds: float = WRITE_SECONDS
    unproven_pause_seconds: float = UNPROVEN_PAUSE_SECONDS
    traces_quiet_seconds: float = 60.0
    """An export after this long without a loss ends a time of lost traces."""


def first_number(settings: Settings) -> int | None:
    """Return the first block of an empty node; None: any."""
    return None if settings.first_block == "any" else settings.first_block or 0


def stream_layout(settings: Settings) -> Layout | None:
    """Return the layout that an existing folder must have; None: either."""
    return None if settings.stream_layout == "auto" else settings.stream_layout


def abilities(settings: Settings, keys: TrustedKeys) -> Abilities:
    """Return what the node can do."""
    return Abilities(
        verification_mode=settings.verification_mode,
        root_layout=settings.verification_root_layout,
        has_ed25519_key=bool(keys.ed25519),
        has_peers=bool(settings.peers),
        min_standbys=settings.commit_min_standbys,
    )


def own_addresses(settings: Settings) -> set[Address]:
    """Return the addresses at which others reach this node over gRPC."""
    own = {settings.grpc_address, settings.grpc_advertised_address}
    return own if settings.subscriber_address is None else own | {settings.subscriber_address}


def peer_tls(settings: Settings) -> ClientTls | None:
    """Return the certificates for connections to peers; None: no TLS."""
    return _client_tls(settings.catchup_tls_ca, settings.catchup_tls_certificate, settings.catchup_tls_key)


def _client_tls(ca: Path | None, *pair: Path | None) -> ClientTls | None:
    if ca is None:
        return None
    return ClientTls(str(ca), *(None if file is None else str(file) for file in pair))


def coordinator(settings: Settings) -> LeaseCoordinator | None:
    """Return the coordinator of the election; None: there is no election.

    Raises:
        SettingError: settings that the election needs are missing.
    """
    if not settings.failover_automatic:
        return None
    where = "failover.automatic"
    if not settings.failover_etcd:
        raise SettingError(
            "failover.etcd", got="nothing", expected="the members of an etcd cluster", where=where
        )
    if settings.commit_min_standbys < 1:
        raise SettingError(
            "commit.min_standbys",
            got="0",
            expected="at least 1: without it, a block that was acknowledged may be on the lost disk alone",
            where=where,
        )
    advertised = settings.grpc_advertised_address
    if advertised.host in ("0.0.0.0", "::") or advertised.port == 0:
        raise SettingError(
            "grpc.advertised_address",
            got=str(advertised),
            expected="the address at which others reach this node: it is its name in the election",
            where=where,
        )
    return EtcdCoordinator(
        [str(one) for one in settings.failover_etcd],
        settings.failover_cluster,
        settings.failover_lease_seconds,
        failover_tls(settings),
        _etcd_user(settings),
    )


def failover_tls(settings: Settings) -> ClientTls | None:
    """Return the certificates for connections to the coordinator; None: no TLS."""
    return _client_tls(settings.failover_tls_ca, settings.failover_tls_certificate, settings.failover_tls_key)


def _etcd_user(settings: Settings) -> EtcdUser | None:
    if settings.failover_username is None or settings.failover_password_file is None:
        return None
    return EtcdUser(settings.failover_username, settings.failover_password_file)


def race_rules(settings: Settings) -> RaceRules:
    """Return the rules of the publish race."""
    block_timeout_ns = int(settings.publish_block_timeout_seconds * 1e9)
    proof_idle_ns = settings.publish_proof_idle_ms * 1_000_000
    if block_timeout_ns:  # else a whole block would be given up before it counts as complete
        proof_idle_ns = min(proof_idle_ns, block_timeout_ns // 2)
    return RaceRules(
        block_bytes_max=settings.publish_max_block_bytes,
        inflight_bytes_max=settings.publish_max_inflight_bytes,
        publisher_bytes_max=settings.publish_max_publisher_inflight_bytes,
        address_bytes_max=settings.publish_max_address_inflight_bytes,
        proof_idle_ns=proof_idle_ns,
        block_timeout_ns=block_timeout_ns,
        stall_blocks=settings.publish_stall_blocks,
        idle_timeout_ns=int(settings.publish_idle_timeout_seconds * 1e9),
        duplicate_skip_window=settings.publish_duplicate_skip_window,
        stray_messages_max=settings.publish_stray_messages_max,
    )


def catch_up_rules(settings: Settings) -> CatchUpRules:
    """Return the rules of taking blocks from peers."""
    return CatchUpRules(
        stalled_attempts_max=settings.catchup_max_stalled_attempts,
        backoff_ns=int(settings.catchup_backoff_seconds * 1e9),
        backoff_max_ns=int(settings.catchup_max_backoff_seconds * 1e9),
        unconfirmed_ns=int(settings.catchup_unconfirmed_seconds * 1e9),
    )


def admission_limits(settings: Settings) -> AdmissionLimits:
    """Return the limits of publishers."""
    return AdmissionLimits(
        frozenset(settings.publish_allowed_subjects),
        settings.publish_max_streams_per_publisher,
        settings.publish_max_streams_per_address,
        settings.publish_max_messages_per_second,
        settings.publish_max_messages_per_second_per_address,
    )


def subscribe_limits(settings: Settings) -> SubscribeLimits:
    """Return the limits of subscribers."""
    return SubscribeLimits(
        future_blocks_max=settings.subscriber_max_future_blocks,
        streams_max=settings.subscriber_max_streams,
        streams_per_address_max=settings.subscriber_max_streams_per_address,
        write_timeout_seconds=settings.subscriber_write_timeout_seconds,
        item_set_bytes=settings.subscriber_item_set_bytes,
    )


def tcp_limits(settings: Settings, descriptors: int | None) -> ServerLimits:
    """Return the limits of data-streamer clients: five in sixteen descriptors, as publishers need others."""
    most = settings.tcp_max_connections
    return ServerLimits(
        connections_max=most if descriptors is None else max(1, min(most, descriptors * 5 // 16)),
        write_timeout_seconds=settings.tcp_write_timeout_seconds,
        inactivity_timeout_seconds=settings.tcp_inactivity_timeout_seconds,
    )


def archive_options(settings: Settings) -> ArchiveOptions | None:
    """Return the options of the archive; None without one.

    Raises:
        SettingError: old pages are to be given up, too.
    """
    if settings.archive_url is None:
        return None
    if settings.history_keep_bytes or settings.history_keep_blocks:
        raise SettingError(
            "history.keep_bytes, history.keep_blocks",
            got="an archive (archive.url)",
            expected="none; archive.local_bytes and archive.local_blocks say what stays on the disk",
            where="settings",
        )
    return ArchiveOptions(
        settings.archive_url,
        StoreOptions(
            settings.archive_endpoint,
            settings.archive_region,
            settings.archive_timeout_seconds,
            tls_ca=settings.archive_tls_ca,
        ),
        settings.archive_local_bytes,
        settings.archive_local_blocks,
        settings.archive_cache_bytes,
    )
