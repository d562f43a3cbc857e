"""The report of a node.

Pure. `gateway.status.reporter` gathers it; its readers:

    problems          /readyz, /metrics, the gRPC health service, `sluice status`, `sluice failover`
    findings          the status page, /status.json
    as_json           /status.json
    for_status        the metadata of serverStatus, for `sluice status`
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Final

from sluice.gateway.archive.state import ArchiveState
from sluice.gateway.cluster.cluster_view import ClusterFault, Statement
from sluice.gateway.cluster.election import ElectionState
from sluice.gateway.cluster.node_status import CLUSTER_KEY
from sluice.gateway.pipeline.acknowledging import Won
from sluice.gateway.pipeline.dispute import Disputed
from sluice.gateway.pipeline.replication_quorum import QuorumState
from sluice.gateway.race.reputation import BackedOff
from sluice.gateway.services.node_service import INSTANCE_KEY

__all__ = ["Finding", "NodeReport", "PublisherStatus"]

FAULT_BYTES_MAX: Final = 600
"""Bytes of a cluster fault, as JSON, in the metadata of serverStatus, which gRPC limits to 8 KiB."""
HEARS_BYTES_MAX: Final = 4_096
"""Bytes of the names of peers there: more than 200."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong, for a while."""

    text: str
    since_unix_seconds: float
    """By today's clock."""
    advice: str
    section: str
    """The heading in docs/operations.md."""
    is_problem: bool


@dataclass(frozen=True, slots=True)
class PublisherStatus:
    """One publisher's stream."""

    name: str
    doing: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """The report of a node."""

    version: str
    instance: str
    phase: str
    """active, draining, drained or standby."""
    verification_mode: str
    """full or hash."""
    addresses: tuple[tuple[str, str], ...] = ()
    """Name and address of each server; empty during the start."""
    grpc_address: str
    subscriber_address: str = ""
    """Empty: the same."""
    now_unix_seconds: float
    block_time_seconds: float

    first_block: int | None = None
    last_block: int | None = None
    last_root_hash: str = ""
    """Hexadecimal; empty without a block."""
    is_rolling: bool = False
    """Its oldest blocks are gone for good."""
    stream_layout: int | None = None
    """See docs/spec/block-layout.md."""
    last_block_age_seconds: float | None = None
    """Time since this process acknowledged a block, if it has."""
    quiet_seconds: float = 0.0
    """The same, or the time since the start."""

    publisher_count: int = 0
    inflight_bytes: int = 0
    tcp_clients: int = 0
    tcp_slowest_bytes: int = 0
    """Lag in bytes of the stream file."""
    subscribers: int = 0
    subscriber_lag_blocks: int = 0
    peers: tuple[str, ...] = ()
    followed: str | None = None
    """The peer that it takes blocks from."""
    distance_blocks: int | None = None
    """Known blocks that it lacks."""
    cluster_faults: tuple[tuple[ClusterFault, str], ...] = ()
    """The faults of its cluster that it sees, in words."""
    has_one_active: bool = False
    hears: tuple[str, ...] | None = None
    """The instances of the peers that answer it; None: it has none."""
    active_seconds_ago: float | None = None
    """Time since it knew of an active node. These two and `has_one_active` are for its peers only."""
    quorum: QuorumState | None = None
    election: ElectionState | None = None
    """None: there is no election."""
    awaiting_standbys: int = 0
    """Blocks on disk here that wait for standbys."""

    race: tuple[Won, ...] = ()
    """The last blocks and their winners, newest last. This and the next three are for the page only."""
    winners: tuple[tuple[str, int], ...] = ()
    """The number of those blocks that each publisher won."""
    median_seconds: float | None = None
    """Time from header to acknowledgement of those blocks."""
    publishers: tuple[PublisherStatus, ...] = ()
    """Connected publishers; of very many, some."""

    is_starting: bool = False
    """The node does not listen for gRPC yet."""
    is_stopping: bool = False
    disk_failure: str | None = None
    is_broken: bool = False
    """The publish race has ended on a bug."""
    catch_up_problem: str | None = None
    given_up_target: int | None = None
    """A block that publishers told of and no peer confirmed."""
    sent_elsewhere: str | None = None
    certificates: tuple[str, ...] = ()
    """Present and coming problems."""
    door: tuple[str, ...] = ()
    """Connections refused or ended lately."""
    disputed: Disputed | None = None
    lack: str | None = None
    refused_message: str | None = None
    """The message refused lately for its length."""
    bad_pages: tuple[str, ...] = ()
    archives: tuple[ArchiveState, ...] = ()
    backing_off: tuple[BackedOff, ...] = ()
    processor: str | None = None
    """Tasks that get too little processor."""

    findings: tuple[Finding, ...] = ()

    @property
    def problems(self) -> tuple[str, ...]:
        """The reasons why the node is not ready."""
        return tuple(finding.text for finding in self.findings if finding.is_problem)

    @property
    def min_standbys(self) -> int:
        """Other nodes that must have a block."""
        return 0 if self.quorum is None else self.quorum.min_standbys

    @property
    def standbys(self) -> tuple[tuple[str, str], ...]:
        """The standbys that acknowledgements wait for, and the state of each."""
        return () if self.quorum is None else self.quorum.states

    @property
    def statement(self) -> Statement:
        """The node as its own cluster view sees it."""
        return Statement(
            self.instance,
            self.phase,
            self.last_block,
            is_ready=not self.problems,
            is_telling=True,
            has_one_active=self.has_one_active,
            hears=None if self.hears is None else frozenset(self.hears),
            active_seconds_ago=self.active_seconds_ago,
        )

    def as_json(self) -> dict[str, object]:
        """Return /status.json as JSON values."""
        values = asdict(self)
        return {name: values.get(name, getattr(self, name)) for name in _STATUS_JSON}

    def for_status(self) -> dict[str, object]:
        """Return the report of serverStatus as JSON values."""
        return {
            INSTANCE_KEY: self.instance,
            "role": self.phase,
            "verification_mode": self.verification_mode,
            "stream_layout": self.stream_layout,
            "rolling": self.is_rolling,
            "ready": not self.problems,
            "publishers": self.publisher_count,
            "subscribers": self.subscribers,
            "tcp_clients": self.tcp_clients,
            "missing_blocks": self.distance_blocks or 0,
            "awaiting_standbys": self.awaiting_standbys,
            "http_address": dict(self.addresses).get("HTTP", ""),
            CLUSTER_KEY: {
                "one_active": self.has_one_active,
                "hears": None if self.hears is None else _within(self.hears, HEARS_BYTES_MAX),
                "active_seconds_ago": self.active_seconds_ago,
                "faults": [_cut(text, FAULT_BYTES_MAX) for _, text in self.cluster_faults],
            },
        }


def _cut(text: str, bytes_max: int) -> str:
    """Return the begin of a text that has so many bytes as JSON."""
    while (size := len(json.dumps(text))) > bytes_max:
        text = text[: len(text) * bytes_max // size]
    return text


def _within(names: Iterable[str], bytes_max: int) -> list[str]:
    """Return the names, shortest first, that have so many bytes together as JSON; a wrong one is long."""
    kept: list[str] = []
    for name in sorted(names, key=lambda name: (len(name), name)):
        bytes_max -= len(json.dumps(name)) + len(", ")
        if bytes_max < 0:
            break
        kept.append(name)
    return kept


_STATUS_JSON: Final = (
    *("version", "phase", "verification_mode", "addresses", "problems", "findings", "now_unix_seconds"),
    *("first_block", "last_block", "last_root_hash", "last_block_age_seconds"),
    *("race", "winners", "median_seconds", "publishers", "inflight_bytes"),
    *("tcp_clients", "tcp_slowest_bytes", "subscribers", "subscriber_lag_blocks"),
    *("peers", "followed", "distance_blocks", "min_standbys", "standbys", "awaiting_standbys"),
)
"""The keys of /status.json, which programs read."""
