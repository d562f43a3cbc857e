"""The report of a node: everything it says of itself at one moment, for people, probes and other programs.

Pure. `gateway.status.reporter` gathers it; whoever is told something of the node reads it here:

    problems          /readyz, /metrics, the gRPC health service, `sluice status`, `sluice failover`
    findings          the status page, /status.json
    as_json           /status.json
    status_facts      the metadata of serverStatus, for `sluice status`
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

from sluice.gateway.pipeline.acknowledging import Won
from sluice.gateway.pipeline.dispute import Disputed
from sluice.gateway.pipeline.replication_quorum import QuorumState
from sluice.gateway.race.reputation import BackedOff
from sluice.gateway.services.node_service import INSTANCE_KEY

__all__ = ["Finding", "NodeReport", "PublisherStatus"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong, for a while."""

    text: str
    """What is wrong."""
    since_unix_seconds: float
    """When it was seen first, as the time of day is now."""
    advice: str
    """What to do."""
    section: str
    """The heading in docs/operations.md."""
    is_problem: bool
    """It keeps the node from being ready."""


@dataclass(frozen=True, slots=True)
class PublisherStatus:
    """One publisher's stream."""

    name: str
    doing: str
    """What it does now, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """The report of a node."""

    version: str
    """Of Sluice."""
    instance: str
    """The name of the process; each has another."""
    phase: str
    """active, draining, drained or standby."""
    verification_mode: str
    """full or hash."""
    addresses: tuple[tuple[str, str], ...] = ()
    """Name and address of each server; empty until the node takes connections."""
    grpc_address: str
    """Where publishers find the node."""
    subscriber_address: str = ""
    """Where subscribers find it; empty: at `grpc_address`."""
    now_unix_seconds: float
    """When the report was gathered."""
    block_time_seconds: float
    """The network's time between blocks."""

    first_block: int | None = None
    """The first block stored; None for an empty node."""
    last_block: int | None = None
    """The last committed block."""
    last_root_hash: str = ""
    """Its root hash, hexadecimal; empty for an empty node."""
    last_block_age_seconds: float | None = None
    """Since this process acknowledged a block; None: it has not yet."""
    quiet_seconds: float = 0.0
    """Since this process acknowledged a block, or since it started."""

    publisher_count: int = 0
    """Publishers connected."""
    inflight_bytes: int = 0
    """Bytes of items that are held and not yet committed."""
    tcp_clients: int = 0
    """Data-streamer clients connected."""
    tcp_slowest_bytes: int = 0
    """How far the slowest streaming one is behind, in bytes of the stream file."""
    subscribers: int = 0
    """Subscribers connected."""
    subscriber_lag_blocks: int = 0
    """How far the slowest subscriber is behind."""
    peers: tuple[str, ...] = ()
    """Nodes that this one may take blocks from."""
    followed: str | None = None
    """The one that it takes blocks from now."""
    distance_blocks: int | None = None
    """How many blocks it knows of and does not have; None: it follows nobody."""
    quorum: QuorumState | None = None
    """The nodes that acknowledgements wait for; None: they wait for none."""
    awaiting_standbys: int = 0
    """Blocks on disk here that wait for them."""

    race: tuple[Won, ...] = ()
    """The last blocks and who won them, the newest last. This and the next three are for the page alone."""
    winners: tuple[tuple[str, int], ...] = ()
    """Publishers, and how many of those blocks each won."""
    median_seconds: float | None = None
    """Median time from header to acknowledgement over those blocks."""
    publishers: tuple[PublisherStatus, ...] = ()
    """Publishers connected; of very many, some."""

    is_starting: bool = False
    """The node does not listen for gRPC yet."""
    is_stopping: bool = False
    disk_failure: str | None = None
    """Why blocks cannot be written."""
    is_broken: bool = False
    """The publish race has ended on a bug."""
    catch_up_problem: str | None = None
    """Why the node does not come closer to its peers."""
    given_up_target: int | None = None
    """The block that publishers told of and no peer confirmed, while the node still needs the same block."""
    sent_elsewhere: str | None = None
    """Why publishers are sent elsewhere; None: they are taken."""
    certificates: tuple[str, ...] = ()
    """What is wrong with certificates, or soon will be."""
    door: tuple[str, ...] = ()
    """Connections that were refused or ended lately, in words."""
    disputed: Disputed | None = None
    """The dispute over the last block."""
    lack: str | None = None
    """Why the next block could not be checked here."""
    refused_message: str | None = None
    """The message that was refused lately for its length."""
    bad_pages: tuple[str, ...] = ()
    """Damaged pages of the stream file, in words."""
    backing_off: tuple[BackedOff, ...] = ()
    """Publishers that failed blocks again and again, and back off."""
    processor: str | None = None
    """Which tasks of the node get too little processor, in words."""

    findings: tuple[Finding, ...] = ()
    """What is wrong or worth a look, by `gateway.status.findings`."""

    @property
    def problems(self) -> tuple[str, ...]:
        """Why the node is not ready; empty if it is."""
        return tuple(finding.text for finding in self.findings if finding.is_problem)

    @property
    def min_standbys(self) -> int:
        """How many other nodes must have a block before it is acknowledged."""
        return 0 if self.quorum is None else self.quorum.min_standbys

    @property
    def standbys(self) -> tuple[tuple[str, str], ...]:
        """The nodes that acknowledgements wait for, and what is known of each, in words."""
        return () if self.quorum is None else self.quorum.states

    def as_json(self) -> dict[str, object]:
        """Return what /status.json tells, as JSON values."""
        values = asdict(self)
        return {name: values.get(name, getattr(self, name)) for name in _STATUS_JSON}

    def status_facts(self) -> dict[str, object]:
        """Return what serverStatus tells beside the blocks, as JSON values."""
        return {
            INSTANCE_KEY: self.instance,
            "role": self.phase,
            "verification_mode": self.verification_mode,
            "ready": not self.problems,
            "publishers": self.publisher_count,
            "subscribers": self.subscribers,
            "tcp_clients": self.tcp_clients,
            "missing_blocks": self.distance_blocks or 0,
            "awaiting_standbys": self.awaiting_standbys,
        }


_STATUS_JSON: Final = (
    *("version", "phase", "verification_mode", "addresses", "problems", "findings", "now_unix_seconds"),
    *("first_block", "last_block", "last_root_hash", "last_block_age_seconds"),
    *("race", "winners", "median_seconds", "publishers", "inflight_bytes"),
    *("tcp_clients", "tcp_slowest_bytes", "subscribers", "subscriber_lag_blocks"),
    *("peers", "followed", "distance_blocks", "min_standbys", "standbys", "awaiting_standbys"),
)
"""The keys of /status.json: programs read them."""
