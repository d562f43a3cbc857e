"""The settings of a node: the one table behind options, files, variables and docs/settings.md.

The other forms of a name (flag, variable, TOML key, attribute) follow from the dotted one; a few flags are
shorter.

`python -m sluice.gateway.settings.table` prints docs/settings.md; a test compares it with the page.

Invariants
  - A name ends with its unit, and a time limit of 0 means "no limit".
  - Defaults stand only here.
  - A renamed setting keeps its former name for one version, with a warning.
  - Nothing here is secret: ledger keys are public keys.
"""

# ruff: noqa: RUF009 - the rows of the table are dataclass fields, made once
from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal

from sluice.gateway.addresses import Address
from sluice.gateway.blocks.block_numbers import U64_MAX
from sluice.gateway.limits import ADDRESS_BOOK_NODES_MAX, MESSAGE_BYTES_DEFAULT
from sluice.gateway.settings.kinds import (
    GIB,
    KIB,
    MIB,
    Choice,
    Endpoint,
    File,
    FirstBlock,
    Folder,
    HostPort,
    Listed,
    Network,
    Seconds,
    SettingKind,
    Share,
    Size,
    Subject,
    Switch,
    Text,
    WholeNumber,
)

__all__ = ["NODE_SECTION", "SETTINGS", "Derived", "Setting", "Settings", "markdown", "row"]

NODE_SECTION = "node"
"""The heading of the settings at the file's top, outside sections."""

_SECONDS: Final = "_seconds"
_DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class Derived:
    """A default that depends on other settings."""

    words: str
    """The formula, for the help: `3 x block_time_seconds`."""
    compute: Callable[[Settings], object]
    """Computes it from settings with plain defaults."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table."""

    name: str
    """The dotted name, `section.key`, or `key` outside sections."""
    kind: SettingKind
    default: object
    """A value of the kind, a `Derived`, or None for "unset"."""
    unit: str
    """The unit of the number; "" if it is no number."""
    help: str
    flag: str
    """The long option, `--publish-max-block-bytes`."""
    former_name: str | None = None
    """The dotted name of the last version."""

    @property
    def attribute(self) -> str:
        """The field's name in `Settings`."""
        return self.name.replace(".", "_")

    @property
    def environment(self) -> str:
        """The environment variable."""
        return _variable(self.name)

    @property
    def names(self) -> tuple[str, ...]:
        """Every accepted dotted name: present and former, each with and without its unit."""
        full = (self.name,) if self.former_name is None else (self.name, self.former_name)
        return tuple(dict.fromkeys(name for one in full for name in (one, one.removesuffix(_SECONDS))))

    @property
    def environments(self) -> tuple[str, ...]:
        """The environment variable of each of `names`."""
        return tuple(_variable(name) for name in self.names)

    @property
    def flags(self) -> tuple[str, ...]:
        """The long option, with and without its unit."""
        return _with_and_without_unit(self.flag)

    @property
    def former_flags(self) -> tuple[str, ...]:
        """The long option of the former name, with and without its unit."""
        return () if self.former_name is None else _with_and_without_unit(_flag(self.former_name))

    def is_former(self, spelling: str) -> bool:
        """Return whether a dotted name or a variable spells the former name."""
        if self.former_name is None:
            return False
        former = (self.former_name, self.former_name.removesuffix(_SECONDS))
        return spelling in former or spelling in map(_variable, former)

    @property
    def section(self) -> str:
        """The TOML table, or `NODE_SECTION` for the file's top."""
        return self.name.rpartition(".")[0] or NODE_SECTION

    @property
    def is_list(self) -> bool:
        """True if the flag may be repeated."""
        return isinstance(self.kind, Listed)

    @property
    def default_text(self) -> str:
        """The default for people: as in the file, in words, or `unset`."""
        if isinstance(self.default, Derived):
            return self.default.words
        if self.default is None or self.default == ():
            return "unset"
        return self.kind.to_toml(self.default).strip('"')


def _variable(name: str) -> str:
    return "SLUICE_" + name.replace(".", "_").upper()


def _flag(name: str) -> str:
    return "--" + name.replace(".", "-").replace("_", "-")


def _with_and_without_unit(flag: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((flag, flag.removesuffix(_SECONDS.replace("_", "-")))))


def row(
    name: str,
    kind: SettingKind,
    default: object,
    help: str,
    *,
    unit: str = "",
    flag: str = "",
    former_name: str | None = None,
) -> Any:
    """Return the dataclass field of one row; typed `Any`, so that the field's annotation is its type."""
    setting = Setting(name, kind, default, unit, help, flag or _flag(name), former_name)
    return field(default=default, metadata={"setting": setting})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings, typed; `gateway.settings.sources.resolve` makes them."""

    # --- node: the file's top -------------------------------------------------------------------------------
    data_dir: Path = row(
        "data_dir",
        Folder(),
        Path("sluice-data"),
        "Folder of the stream file and its bookmarks; each node needs its own.",
    )
    role: Literal["active", "standby"] = row(
        "role",
        Choice(("active", "standby")),
        "active",
        "Accept publishers (active), or send them elsewhere and follow a peer (standby).",
    )
    peers: tuple[Address, ...] = row(
        "peers",
        Listed(HostPort(port_min=1)),
        (),
        "Address where another node serves subscribers, and from which this node takes missing blocks. "
        "Repeatable.",
        flag="--peer",
    )
    peer_subjects: tuple[str, ...] = row(
        "peer_subjects",
        Listed(Subject(), separator=";"),
        (),
        "Name in the client certificate of another node, as in publish.allowed_subjects. If set, only a "
        "client that proves such a name counts as a node; otherwise the addresses of peers and "
        "peer_networks decide. Needs tls_client_ca where nodes connect. Repeatable; separated by semicolons "
        "in the environment.",
        flag="--peer-subject",
    )
    peer_networks: tuple[str, ...] = row(
        "peer_networks",
        Listed(Network()),
        (),
        "Network from which other nodes connect if not from the addresses of peers, as behind NAT. "
        "Repeatable.",
        flag="--peer-network",
    )
    ledger_keys: tuple[str, ...] = row(
        "ledger_keys",
        Listed(Text("KIND:KEY")),
        (),
        "Key for block proofs: ed25519:HEX, tss:FILE, tss:id=HEX, tss:block0 or rsa:ADDRESS_BOOK.json. "
        "Repeatable; without any, tss:block0.",
        flag="--ledger-key",
    )
    block_time_seconds: float = row(
        "block_time_seconds",
        Seconds(3600, none_allowed=False),
        2.0,
        "The network's time between blocks.",
        unit="seconds",
        flag="--block-time",
    )
    first_block: int | Literal["any"] | None = row(
        "first_block",
        FirstBlock(),
        None,
        "First block of an empty node: a number, or any for the first one offered; unset begins at 0 and "
        "checks both links from the start.",
        unit="block number",
    )

    # --- verification ---------------------------------------------------------------------------------------
    verification_mode: Literal["full", "hash"] = row(
        "verification.mode",
        Choice(("full", "hash")),
        "full",
        "Checks of a block: full checks root hash, links and proof; hash omits the signature.",
        flag="--verify",
    )
    verification_root_layout: Literal["auto", 8, 16] = row(
        "verification.root_layout",
        Choice(("auto", 8, 16)),
        "auto",
        "Leaves of a block's top hash tree; auto follows the block's HAPI version.",
        unit="leaves",
    )
    verification_rsa_threshold: int = row(
        "verification.rsa_threshold",
        WholeNumber(0, ADDRESS_BOOK_NODES_MAX),
        0,
        "Nodes of the address book that must sign a record file; 0 means more than a third.",
        unit="nodes",
    )
    verification_processes: int = row(
        "verification.processes",
        WholeNumber(0, 64),
        0,
        "The most processes that check proofs; there are several only while blocks wait, as when a node "
        "catches up. 0 means one for each processor but one, up to four. Each takes 40 MB.",
        unit="processes",
    )

    # --- stream ---------------------------------------------------------------------------------------------
    stream_type: int = row(
        "stream.type",
        WholeNumber(0, U64_MAX),
        1,
        "Stream type in the header of the stream file; clients name it.",
    )
    stream_system_id: int = row(
        "stream.system_id", WholeNumber(0, U64_MAX), 137, "System id in the header of the stream file."
    )
    stream_version: int = row(
        "stream.version", WholeNumber(0, 255), 1, "Stream version in the header of the stream file."
    )
    stream_layout: Literal["auto", "block", "native"] = row(
        "stream.layout",
        Choice(("auto", "block", "native")),
        "auto",
        "What the stream of a new data folder holds: the blocks, or the entries of a network's stream, which "
        "are the blocks' stream entry items. `auto` is `block`. A folder keeps its layout: the node does not "
        "start if another is set. All nodes of a chain need the same.",
    )
    stream_serve_damaged: bool = row(
        "stream.serve_damaged",
        Switch(),
        False,
        "Start despite damaged full pages, and serve all other pages.",
    )

    # --- publish --------------------------------------------------------------------------------------------
    publish_max_block_bytes: int = row(
        "publish.max_block_bytes",
        Size(1, 512 * MIB),  # with its entries' heads it must fit into one group of the data streamer
        256 * MIB,
        "Most bytes of items in one block; the node refuses a longer block with INVALID_REQUEST.",
        unit="bytes",
    )
    publish_max_inflight_bytes: int = row(
        "publish.max_inflight_bytes",
        Size(1, 1024 * GIB),
        GIB,
        "Most bytes of uncommitted blocks, over all publishers. Above it the node slows publishers down, "
        "except for the block that all wait for.",
        unit="bytes",
    )
    publish_max_publisher_inflight_bytes: int = row(
        "publish.max_publisher_inflight_bytes",
        Size(1, 1024 * GIB),
        Derived(
            "half of publish.max_inflight_bytes",
            lambda settings: max(1, settings.publish_max_inflight_bytes // 2),
        ),
        "Most bytes of one publisher's uncommitted blocks, over all its streams. Above it the node slows "
        "that publisher down, except for the block that all wait for.",
        unit="bytes",
    )
    publish_max_address_inflight_bytes: int = row(
        "publish.max_address_inflight_bytes",
        Size(1, 1024 * GIB),
        Derived("publish.max_inflight_bytes", lambda settings: settings.publish_max_inflight_bytes),
        "The same for all publishers of one network address, which they may share behind a proxy.",
        unit="bytes",
    )
    publish_proof_idle_ms: int = row(
        "publish.proof_idle_ms",
        WholeNumber(1, 60_000),
        2000,
        "A block without end_of_block is complete if nothing follows its proof for this long, or for half "
        "of publish.block_timeout_seconds if that is shorter.",
        unit="milliseconds",
    )
    publish_block_timeout_seconds: float = row(
        "publish.block_timeout_seconds",
        Seconds(_DAY_SECONDS),
        Derived("3 x block_time_seconds", lambda settings: 3 * settings.block_time_seconds),
        "Time in which the winner of a block must complete it while others are connected. At least 2 x "
        "block_time_seconds: gathering a block's signatures may take that long.",
        unit="seconds",
    )
    publish_stall_blocks: int = row(
        "publish.stall_blocks",
        WholeNumber(1, 10_000),
        3,
        "The winner of a block times out when another publisher has completed a block this far ahead.",
        unit="blocks",
    )
    publish_idle_timeout_seconds: float = row(
        "publish.idle_timeout_seconds",
        Seconds(_DAY_SECONDS),
        300.0,
        "The node closes a publisher that sends no block header for this long, and one that is alone and "
        "silent in mid-block.",
        unit="seconds",
    )
    publish_duplicate_skip_window: int = row(
        "publish.duplicate_skip_window",
        WholeNumber(0, 1_000_000),
        5,
        "The node answers a block at most this far behind the last with SkipBlock instead of "
        "DUPLICATE_BLOCK.",
        unit="blocks",
    )
    publish_stray_messages_max: int = row(
        "publish.stray_messages_max",
        WholeNumber(0, 1_000_000),
        1000,
        "Messages in a row that belong to no block and that the node drops; after that it ends the stream "
        "with INVALID_REQUEST.",
        unit="messages",
    )
    publish_send_queue_max: int = row(
        "publish.send_queue_max",
        WholeNumber(1024, 1_000_000),
        4096,
        "Responses queued for one publisher; the node closes a publisher that lets more wait.",
        unit="responses",
    )
    publish_allowed_subjects: tuple[str, ...] = row(
        "publish.allowed_subjects",
        Listed(Subject(), separator=";"),
        (),
        "Name in a client certificate that may publish: its whole subject as `openssl x509 -nameopt "
        "RFC2253` prints it (CN=alice,O=Net), CN=alice, or an alternative name (URI:spiffe://net/alice, "
        "DNS:alice.net). Unset admits every client. Needs grpc.tls_client_ca. Repeatable; separated by "
        "semicolons in the environment.",
    )
    publish_max_streams_per_publisher: int = row(
        "publish.max_streams_per_publisher",
        WholeNumber(1, 100_000),
        64,  # publishers without a name on one connection count as one
        "Open streams of one publisher; the node refuses further ones with RESOURCE_EXHAUSTED.",
        unit="streams",
    )
    publish_max_streams_per_address: int = row(
        "publish.max_streams_per_address",
        WholeNumber(1, 1_000_000),
        256,
        "Open streams of one network address; the node refuses further ones with RESOURCE_EXHAUSTED.",
        unit="streams",
    )
    publish_max_messages_per_second: int = row(
        "publish.max_messages_per_second",
        WholeNumber(0, 10_000_000),
        0,
        "Messages per second from one publisher, over all its streams; above it the node slows the "
        "publisher down. 0: no limit.",
        unit="messages",
    )
    publish_max_messages_per_second_per_address: int = row(
        "publish.max_messages_per_second_per_address",
        WholeNumber(0, 10_000_000),
        0,
        "The same for all publishers of one network address. 0: no limit.",
        unit="messages",
    )

    # --- grpc -----------------------------------------------------------------------------------------------
    grpc_address: Address = row(
        "grpc.address",
        HostPort(),
        Address("127.0.0.1", 40840),
        "Where publishers, subscribers and status requests connect; port 0 takes a free one.",
        flag="--grpc",
    )
    grpc_advertised_address: Address = row(
        "grpc.advertised_address",
        HostPort(),
        Derived("grpc.address", lambda settings: settings.grpc_address),
        "Address at which other nodes reach grpc.address, if that is 0.0.0.0 or behind a proxy.",
    )
    grpc_max_message_bytes: int = row(
        "grpc.max_message_bytes",
        Size(64 * KIB, GIB),
        MESSAGE_BYTES_DEFAULT,
        "Longest message that the node receives; a longer one ends its call with RESOURCE_EXHAUSTED. From "
        "peers the node receives at least the default. Messages that it sends have no limit.",
        unit="bytes",
    )
    grpc_max_receiving_bytes: int = row(
        "grpc.max_receiving_bytes",
        Size(MIB, 1024 * GIB),
        512 * MIB,
        "Most bytes of messages above 1 MiB that the node receives at once, over all connections. Further "
        "ones wait, in fair shares by address and connection. One of grpc.max_message_bytes always fits.",
        unit="bytes",
    )
    grpc_reflection: bool = row(
        "grpc.reflection",
        Switch(),
        Derived(
            "on when grpc.address is a loopback address", lambda settings: settings.grpc_address.is_loopback
        ),
        "Let gRPC tools list the node's services.",
    )
    grpc_compression: bool = row(
        "grpc.compression",
        Switch(),
        False,
        "Accept messages compressed with gzip or deflate; otherwise the node ends their call with "
        "UNIMPLEMENTED. A few bytes on the line may become megabytes: only for clients that you know.",
    )
    grpc_keepalive_seconds: float = row(
        "grpc.keepalive_seconds",
        Seconds(_DAY_SECONDS),
        30.0,
        "Silence after which the node pings a client; it closes a client that does not answer.",
        unit="seconds",
    )
    grpc_max_connections: int = row(
        "grpc.max_connections",
        WholeNumber(1, 1_000_000),
        4096,
        "Open connections to each gRPC address, at most an eighth of the process's file descriptors; the "
        "node closes further ones. It reserves a sixteenth for other nodes and another one for "
        "publish.allowed_subjects.",
        unit="connections",
    )
    grpc_max_connections_per_address: int = row(
        "grpc.max_connections_per_address",
        WholeNumber(1, 1_000_000),
        1_024,
        "The same from one network address, except for other nodes that are known by their address.",
        unit="connections",
    )
    grpc_max_connection_age_seconds: float = row(
        "grpc.max_connection_age_seconds",
        Seconds(365 * _DAY_SECONDS),
        0.0,
        "Age, give or take a tenth, at which the node asks a client to reconnect, so that clients spread "
        "over the nodes behind one address. 0: never.",
        unit="seconds",
    )
    grpc_max_connection_age_grace_seconds: float = row(
        "grpc.max_connection_age_grace_seconds",
        Seconds(_DAY_SECONDS),
        60.0,
        "Time that the calls of such a client have to end before the node ends them. 0: no limit.",
        unit="seconds",
    )
    grpc_tls_certificate: Path | None = row(
        "grpc.tls_certificate",
        File(),
        None,
        "PEM file of the certificate for grpc.address; unset means no TLS. The node reloads a changed file.",
    )
    grpc_tls_key: Path | None = row(
        "grpc.tls_key", File(), None, "PEM file of the private key of grpc.tls_certificate."
    )
    grpc_tls_client_ca: Path | None = row(
        "grpc.tls_client_ca",
        File(),
        None,
        "PEM file of the authorities whose clients may connect to grpc.address; unset requests no client "
        "certificate.",
    )

    # --- subscriber -----------------------------------------------------------------------------------------
    subscriber_address: Address | None = row(
        "subscriber.address",
        HostPort(),
        None,
        "Where subscribers and block requests connect; unset means grpc.address. If set, grpc.address "
        "serves only publishers and status requests.",
    )
    subscriber_tls_certificate: Path | None = row(
        "subscriber.tls_certificate", File(), None, "As grpc.tls_certificate, for subscriber.address."
    )
    subscriber_tls_key: Path | None = row(
        "subscriber.tls_key", File(), None, "As grpc.tls_key, for subscriber.address."
    )
    subscriber_tls_client_ca: Path | None = row(
        "subscriber.tls_client_ca", File(), None, "As grpc.tls_client_ca, for subscriber.address."
    )
    subscriber_max_streams: int = row(
        "subscriber.max_streams",
        WholeNumber(1, 100_000),
        1_000,
        "Open subscriptions; the node refuses further ones with RESOURCE_EXHAUSTED.",
        unit="streams",
    )
    subscriber_max_streams_per_address: int = row(
        "subscriber.max_streams_per_address",
        WholeNumber(1, 100_000),
        256,
        "The same from one network address. Other nodes have places of their own.",
        unit="streams",
    )
    subscriber_write_timeout_seconds: float = row(
        "subscriber.write_timeout_seconds",
        Seconds(_DAY_SECONDS),
        300.0,
        "The node closes the connection of a subscriber that reads nothing for this long.",
        unit="seconds",
    )
    subscriber_max_future_blocks: int = row(
        "subscriber.max_future_blocks",
        WholeNumber(0, 1_000_000_000),
        4_000,
        "The node answers NOT_AVAILABLE to a subscriber whose first block is more than this many above the "
        "last; others wait.",
        unit="blocks",
    )
    subscriber_item_set_bytes: int = row(
        "subscriber.item_set_bytes",
        Size(KIB, 64 * MIB),
        MIB,
        "Bytes of items at which an item set for a subscriber is full. Each subscriber holds one set; a "
        "longer item forms its own set.",
        unit="bytes",
    )

    # --- catchup --------------------------------------------------------------------------------------------
    catchup_max_stalled_attempts: int = row(
        "catchup.max_stalled_attempts",
        WholeNumber(1, 1_000_000),
        5,
        "Attempts to take blocks from peers without a new block after which the node reports a problem in "
        "log, metrics and /readyz. It keeps trying.",
        unit="attempts",
    )
    catchup_stall_seconds: float = row(
        "catchup.stall_seconds",
        Seconds(3600, none_allowed=False),
        10.0,
        "The node leaves a peer that has more blocks and is silent for this long. If another peer has the "
        "blocks, the node leaves a peer that has no more after half as long, and one that takes three times "
        "as long for one block; that time doubles with each failed attempt.",
        unit="seconds",
    )
    catchup_backoff_seconds: float = row(
        "catchup.backoff_seconds",
        Seconds(3600, none_allowed=False),
        1.0,
        "First backoff from a peer that fails; it doubles with each failure.",
        unit="seconds",
        former_name="catchup.rest_seconds",
    )
    catchup_unconfirmed_seconds: float = row(
        "catchup.unconfirmed_seconds",
        Seconds(_DAY_SECONDS),
        60.0,
        "How long /readyz reports a missing block that only publishers have told of, while no peer has even "
        "the next one; then the node gives the block up, and logs and counts that. 0: never.",
        unit="seconds",
    )
    catchup_tls_ca: Path | None = row(
        "catchup.tls_ca",
        File(),
        None,
        "PEM file of the authorities that sign peers' certificates; unset connects to peers without TLS.",
    )
    catchup_tls_certificate: Path | None = row(
        "catchup.tls_certificate", File(), None, "PEM file of the certificate that the node shows to peers."
    )
    catchup_tls_key: Path | None = row(
        "catchup.tls_key", File(), None, "PEM file of the private key of catchup.tls_certificate."
    )
    catchup_max_backoff_seconds: float = row(
        "catchup.max_backoff_seconds",
        Seconds(_DAY_SECONDS, none_allowed=False),
        60.0,
        "Longest backoff from a peer that fails, and the backoff from one that sends invalid data.",
        unit="seconds",
        former_name="catchup.max_rest_seconds",
    )

    # --- control --------------------------------------------------------------------------------------------
    control_address: Address = row(
        "control.address",
        HostPort(),
        Address("127.0.0.1", 40841),
        "Where `sluice failover` connects; every caller there can take the node out of service. Port 0 "
        "takes a free one.",
        flag="--control",
    )
    control_allowed_subjects: tuple[str, ...] = row(
        "control.allowed_subjects",
        Listed(Subject(), separator=";"),
        (),
        "Name in a client certificate that may call control.address, as in publish.allowed_subjects; unset "
        "admits every client of control.tls_client_ca, which it needs. Repeatable; separated by semicolons "
        "in the environment.",
    )
    control_tls_certificate: Path | None = row(
        "control.tls_certificate", File(), None, "As grpc.tls_certificate, for control.address."
    )
    control_tls_key: Path | None = row(
        "control.tls_key", File(), None, "As grpc.tls_key, for control.address."
    )
    control_tls_client_ca: Path | None = row(
        "control.tls_client_ca", File(), None, "As grpc.tls_client_ca, for control.address."
    )

    # --- failover -------------------------------------------------------------------------------------------
    failover_automatic: bool = row(
        "failover.automatic",
        Switch(),
        False,
        "Let an election decide which node is active: a standby takes over by itself. Needs failover.etcd, "
        "commit.min_standbys of at least 1, both the same on all nodes, and grpc.advertised_address; `role` "
        "is then the election's.",
    )
    failover_etcd: tuple[Address, ...] = row(
        "failover.etcd",
        Listed(HostPort(port_min=1)),
        (),
        "Member of the etcd cluster that keeps the lease of the active node. Repeatable.",
    )
    failover_cluster: str = row(
        "failover.cluster",
        Text("NAME"),
        "sluice",
        "Name of this cluster of nodes at the coordinator: its keys in etcd begin with it.",
    )
    failover_lease_seconds: int = row(
        "failover.lease_seconds",
        WholeNumber(3, 300),
        10,
        "Length of the lease: an active node that cannot renew it stops acknowledging, and then another one "
        "may take over.",
        unit="seconds",
    )
    failover_tls_ca: Path | None = row(
        "failover.tls_ca",
        File(),
        None,
        "PEM file of the authorities that sign etcd's certificates; unset connects to etcd without TLS.",
    )
    failover_tls_certificate: Path | None = row(
        "failover.tls_certificate", File(), None, "PEM file of the certificate that the node shows to etcd."
    )
    failover_tls_key: Path | None = row(
        "failover.tls_key", File(), None, "PEM file of the private key of failover.tls_certificate."
    )
    failover_username: str | None = row(
        "failover.username",
        Text("NAME"),
        None,
        "User of etcd that may read and write the keys that begin with failover.cluster. Unset: none, or the "
        "one that etcd reads from failover.tls_certificate.",
    )
    failover_password_file: Path | None = row(
        "failover.password_file",
        File(),
        None,
        "File with the password of failover.username. The node reads a changed file.",
    )

    # --- tcp ------------------------------------------------------------------------------------------------
    tcp_address: Address = row(
        "tcp.address",
        HostPort(),
        Address("127.0.0.1", 6900),
        "Where data-streamer clients connect; port 0 takes a free one.",
        flag="--tcp",
    )
    tcp_max_connections: int = row(
        "tcp.max_connections",
        WholeNumber(1, 1_000_000),
        10_000,
        "Connected clients; the node closes further ones at once.",
        unit="connections",
    )
    tcp_write_timeout_seconds: float = row(
        "tcp.write_timeout_seconds",
        Seconds(_DAY_SECONDS),
        3.0,
        "The node closes a client that reads nothing for this long.",
        unit="seconds",
    )
    tcp_inactivity_timeout_seconds: float = row(
        "tcp.inactivity_timeout_seconds",
        Seconds(_DAY_SECONDS),
        120.0,
        "The node closes a client that neither sends nor reads for this long.",
        unit="seconds",
    )
    tcp_on_command_error: Literal["keep", "close"] = row(
        "tcp.on_command_error",
        Choice(("keep", "close")),
        "keep",
        "The connection of a client whose command comes in the wrong state. `close` breaks clients that send "
        "Stop on each new connection, such as cdk-erigon's.",
    )
    tcp_tls_certificate: Path | None = row(
        "tcp.tls_certificate",
        File(),
        None,
        "As grpc.tls_certificate, for tcp.address: it then takes no client without TLS.",
    )
    tcp_tls_key: Path | None = row("tcp.tls_key", File(), None, "As grpc.tls_key, for tcp.address.")
    tcp_tls_client_ca: Path | None = row(
        "tcp.tls_client_ca",
        File(),
        None,
        "As grpc.tls_client_ca, for tcp.address. Legacy clients show no certificate.",
    )

    # --- http -----------------------------------------------------------------------------------------------
    http_address: Address = row(
        "http.address",
        HostPort(),
        Address("127.0.0.1", 16007),
        "Where the node serves /healthz, /readyz and /metrics; port 0 takes a free one.",
        flag="--http",
    )

    # --- commit ---------------------------------------------------------------------------------------------
    commit_max_blocks_per_group: int = row(
        "commit.max_blocks_per_group",
        WholeNumber(1, 10_000),
        64,
        "Most blocks that share one pair of flushes.",
        unit="blocks",
    )
    commit_min_standbys: int = row(
        "commit.min_standbys",
        WholeNumber(0, 100),
        0,
        "Other nodes, of `peers`, that must have a block on disk before the node acknowledges it. With 0, a "
        "block that only this node has is lost if the node is lost.",
        unit="nodes",
    )

    # --- scrub ----------------------------------------------------------------------------------------------
    scrub_bytes_per_second: int = row(
        "scrub.bytes_per_second",
        Size(0, GIB),
        4 * MIB,
        "Pace at which the scrubber reads and checks all stored data, in turn; 0 switches it off. 1 TB "
        "takes three days at the default.",
        unit="bytes",
    )

    # --- history --------------------------------------------------------------------------------------------
    history_keep_bytes: int = row(
        "history.keep_bytes",
        Size(0, U64_MAX),
        0,
        "Newest part of each stream file that a node without an archive keeps; older pages go for good. "
        "64 MiB stay always. With history.keep_blocks, what is more stays. 0: everything stays.",
        unit="bytes",
    )
    history_keep_blocks: int = row(
        "history.keep_blocks",
        WholeNumber(0, U64_MAX),
        0,
        "Newest blocks that a node without an archive keeps; older ones go for good, by pages of 1 MiB. "
        "0: everything stays, or history.keep_bytes decides.",
        unit="blocks",
    )

    # --- archive --------------------------------------------------------------------------------------------
    archive_url: str | None = row(
        "archive.url",
        Text("URL"),
        None,
        "Where history is kept beside the disk: s3://BUCKET/PREFIX, gs://…, az://… or file:///FOLDER. "
        "Credentials are those of the store's own tools. Unset: nowhere else.",
        flag="--archive",
    )
    archive_upload: Literal["auto", "always", "never"] = row(
        "archive.upload",
        Choice(("auto", "always", "never")),
        "auto",
        "Whether this node uploads. `auto`: while it is the active node. A node that does not upload waits "
        "for what others upload, and reads it.",
    )
    archive_trust: Literal["proof", "full"] = row(
        "archive.trust",
        Choice(("proof", "full")),
        "proof",
        "What proves an archive to a node that begins with it, on an empty folder. `proof`: the signature of "
        "the last block, whose footer has the root of all block hashes; where there is none such, as `full`. "
        "`full`: everything is read, and every block is verified.",
    )
    archive_local_bytes: int = row(
        "archive.local_bytes",
        Size(0, U64_MAX),
        0,
        "Newest part of each stream file that stays on the disk; archived pages before it are given back. "
        "64 MiB stay always. 0: everything stays.",
        unit="bytes",
    )
    archive_local_blocks: int = row(
        "archive.local_blocks",
        WholeNumber(0, U64_MAX),
        0,
        "Newest blocks that stay on the disk, even if they have more than archive.local_bytes.",
        unit="blocks",
    )
    archive_cache_bytes: int = row(
        "archive.cache_bytes",
        Size(64 * MIB, U64_MAX),
        GIB,
        "Room on the disk, for each stream file, for archived pages that readers ask for.",
        unit="bytes",
    )
    archive_endpoint: str | None = row(
        "archive.endpoint",
        Text("URL"),
        None,
        "Address of a store that is not the cloud's own, such as https://minio.example:9000. Unset: that of "
        "Amazon, Google or Azure.",
    )
    archive_region: str | None = row(
        "archive.region", Text("REGION"), None, "Region of an S3 bucket. Unset: AWS_REGION, if there is one."
    )
    archive_timeout_seconds: float = row(
        "archive.timeout_seconds",
        Seconds(3600, none_allowed=False),
        30.0,
        "Longest time of one request to the store, for each 8 MiB of it.",
        unit="seconds",
    )
    archive_tls_ca: Path | None = row(
        "archive.tls_ca",
        File(),
        None,
        "PEM file of authorities that sign the store's certificate, besides those of the system.",
    )

    # --- log ------------------------------------------------------------------------------------------------
    log_level: Literal["debug", "info", "warning", "error"] = row(
        "log.level",
        Choice(("debug", "info", "warning", "error")),
        "info",
        "Least severe line to log.",
    )
    log_format: Literal["text", "json"] = row(
        "log.format", Choice(("text", "json")), "text", "Lines for people, or one JSON object a line."
    )

    # --- otel -----------------------------------------------------------------------------------------------
    otel_endpoint: str | None = row(
        "otel.endpoint",
        Endpoint(),
        None,
        "OpenTelemetry collector that gets a trace of each block, over OTLP/gRPC: http://HOST:4317, or https "
        "with TLS. Needs the extra `otel`; the OTEL_* variables hold. Unset: no traces.",
    )
    otel_sample: float = row(
        "otel.sample",
        Share(),
        1.0,
        "Share of blocks to trace, from 0 to 1; with the same share, all nodes trace the same blocks.",
    )
    otel_chain: str = row(
        "otel.chain",
        Text("NAME"),
        Derived(
            "stream.system_id/stream.type",
            lambda settings: f"{settings.stream_system_id}/{settings.stream_type}",
        ),
        "Name of the chain, from which trace ids are made, with the block number. All nodes of a chain need "
        "the same, and two chains that share a collector different ones.",
    )

    # --- shutdown -------------------------------------------------------------------------------------------
    shutdown_grace_seconds: float = row(
        "shutdown.grace_seconds",
        Seconds(3600, none_allowed=False),
        10.0,
        "Time to finish complete blocks and tell clients when the node stops.",
        unit="seconds",
    )

    def __post_init__(self) -> None:
        """Compute the derived defaults."""
        for setting in SETTINGS:
            value = getattr(self, setting.attribute)
            if isinstance(value, Derived):
                object.__setattr__(self, setting.attribute, value.compute(self))


SETTINGS: tuple[Setting, ...] = tuple(one.metadata["setting"] for one in fields(Settings))
"""The rows, in the order of the help."""


def markdown() -> str:
    """Return docs/settings.md."""
    lines = [
        "# Settings of `sluice serve`",
        "",
        "Made by `python -m sluice.gateway.settings.table > docs/settings.md`; a test compares them.",
        "",
        "In rising order of precedence: the default, the TOML file that `SLUICE_CONFIG` names, that of",
        "`--config FILE`, the environment, the flag. In the environment, commas separate several values. A",
        "size may have a unit (`8MiB`, `1GiB`); a time limit of 0 means no limit. The ending `_seconds` of a",
        "name may be left out: `publish.block_timeout`. `sluice serve --print-config` shows the effective",
        "settings and their origins.",
    ]
    for section in dict.fromkeys(setting.section for setting in SETTINGS):
        place = "the top of the file" if section == NODE_SECTION else f"`[{section}]`"
        lines += ["", f"## {section}", "", f"In the TOML file: {place}.", ""]
        lines += ["| setting | flag | environment | default | unit | |", "|---|---|---|---|---|---|"]
        for one in SETTINGS:
            if one.section == section:
                flag = f"`{one.flag} {one.kind.metavar}`".replace("|", "\\|")
                cells = (f"`{one.name}`", flag, f"`{one.environment}`", one.default_text, one.unit, one.help)
                lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
