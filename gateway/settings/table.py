"""The settings of a node: one table, from which options, files, variables and docs/settings.md are made.

Each row of `Settings` gives the dotted name, the kind, the default, the unit and the help. The other forms
follow from the name; a few flags have a shorter one:

    dotted name     publish.max_block_bytes           verification.mode         grpc.address
    attribute       publish_max_block_bytes           verification_mode         grpc_address
    flag            --publish-max-block-bytes         --verify                  --grpc
    environment     SLUICE_PUBLISH_MAX_BLOCK_BYTES    SLUICE_VERIFICATION_MODE  SLUICE_GRPC_ADDRESS
    TOML            [publish] max_block_bytes         [verification] mode       [grpc] address

`python -m sluice.gateway.settings.table` prints docs/settings.md; a test compares it with the page.

Invariants
  - A setting's unit ends its name, and every time limit of 0 means "no limit".
  - A default stands here and nowhere else.
  - A setting that was renamed is read under its former name for one version, with a warning.
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
from sluice.gateway.limits import ADDRESS_BOOK_NODES_MAX, MESSAGE_BYTES_DEFAULT
from sluice.gateway.settings.kinds import (
    GIB,
    KIB,
    MIB,
    Choice,
    File,
    FirstBlock,
    Folder,
    HostPort,
    Listed,
    Network,
    Seconds,
    SettingKind,
    Size,
    Subject,
    Switch,
    Text,
    WholeNumber,
)

__all__ = ["NODE_SECTION", "SETTINGS", "Derived", "Setting", "Settings", "markdown", "row"]

NODE_SECTION = "node"
"""The heading of the settings at the top of the file, in no section."""

_SECONDS: Final = "_seconds"
_U64_MAX = 2**64 - 1
_DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class Derived:
    """A default that follows from other settings."""

    words: str
    """How it follows, for the help: `3 x block_time_seconds`."""
    compute: Callable[[Settings], object]
    """Computes it from the settings with plain defaults."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table."""

    name: str
    """Dotted name, `section.key`, or `key` for those in no section."""
    kind: SettingKind
    """How the value is read and written."""
    default: object
    """A value of the kind, a `Derived`, or None for "unset"."""
    unit: str
    """What the number counts, or "" where it is no number."""
    help: str
    """One or two sentences for people."""
    flag: str
    """The command line's long option, `--publish-max-block-bytes`."""
    former_name: str | None = None
    """The dotted name up to the last version; None where it is the same."""

    @property
    def attribute(self) -> str:
        """The name of the field in `Settings`."""
        return self.name.replace(".", "_")

    @property
    def environment(self) -> str:
        """The name of the environment variable."""
        return _variable(self.name)

    @property
    def names(self) -> tuple[str, ...]:
        """Every dotted name that is read: this one and the former one, each with and without its unit."""
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
        """The long option of the former name, with and without its unit; empty where there is none."""
        return () if self.former_name is None else _with_and_without_unit(_flag(self.former_name))

    def is_former(self, spelling: str) -> bool:
        """Return whether a dotted name or a variable is one of the former name."""
        if self.former_name is None:
            return False
        former = (self.former_name, self.former_name.removesuffix(_SECONDS))
        return spelling in former or spelling in map(_variable, former)

    @property
    def section(self) -> str:
        """The table in the TOML file, or `NODE_SECTION` for the file's top."""
        return self.name.rpartition(".")[0] or NODE_SECTION

    @property
    def is_list(self) -> bool:
        """Whether the flag may be repeated."""
        return isinstance(self.kind, Listed)

    @property
    def default_text(self) -> str:
        """The default for people: as it would stand in the file, in words, or `unset`."""
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
    """Make the dataclass field of one row; typed `Any`, so that the annotation of the field is its type."""
    setting = Setting(name, kind, default, unit, help, flag or _flag(name), former_name)
    return field(default=default, metadata={"setting": setting})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything an operator can set, typed; made by `gateway.settings.sources.resolve`."""

    # --- node: the file's top -------------------------------------------------------------------------------
    data_dir: Path = row(
        "data_dir",
        Folder(),
        Path("sluice-data"),
        "Folder of the stream file and its bookmarks; one node each.",
    )
    role: Literal["active", "standby"] = row(
        "role", Choice(("active", "standby")), "active", "Whether publishers are accepted or sent elsewhere."
    )
    peers: tuple[Address, ...] = row(
        "peers",
        Listed(HostPort(port_min=1)),
        (),
        "Address where another node serves subscribers; missing blocks are taken from there. Repeatable.",
        flag="--peer",
    )
    peer_subjects: tuple[str, ...] = row(
        "peer_subjects",
        Listed(Subject(), separator=";"),
        (),
        "Name in a client certificate of another node, as in publish.allowed_subjects. If set, only who "
        "proves one is a node; else who comes from an address of peers or of peer_networks. Needs "
        "tls_client_ca where nodes connect. Repeatable; in the environment with semicolons between.",
        flag="--peer-subject",
    )
    peer_networks: tuple[str, ...] = row(
        "peer_networks",
        Listed(Network()),
        (),
        "Where other nodes connect from, if not from the addresses of peers: behind NAT. Repeatable.",
        flag="--peer-network",
    )
    ledger_keys: tuple[str, ...] = row(
        "ledger_keys",
        Listed(Text("KIND:KEY")),
        (),
        "What block proofs are checked with: ed25519:HEX, tss:FILE, tss:id=HEX, tss:block0 or "
        "rsa:ADDRESS_BOOK.json. Repeatable; none at all means tss:block0.",
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
        "Where an empty node begins: a block number, or any for the first that is offered; unset begins at 0 "
        "with both links checked from the start.",
        unit="block number",
    )

    # --- verification ---------------------------------------------------------------------------------------
    verification_mode: Literal["full", "hash"] = row(
        "verification.mode",
        Choice(("full", "hash")),
        "full",
        "What is checked of a block: full is root hash, links and proof; hash leaves the signature out.",
        flag="--verify",
    )
    verification_root_layout: Literal["auto", 8, 16] = row(
        "verification.root_layout",
        Choice(("auto", 8, 16)),
        "auto",
        "Leaves of a block's top hash tree; auto goes by the block's HAPI version.",
        unit="leaves",
    )
    verification_rsa_threshold: int = row(
        "verification.rsa_threshold",
        WholeNumber(0, ADDRESS_BOOK_NODES_MAX),
        0,
        "Nodes of the address book that must have signed a record file; 0 means more than a third.",
        unit="nodes",
    )

    # --- stream ---------------------------------------------------------------------------------------------
    stream_type: int = row(
        "stream.type", WholeNumber(0, _U64_MAX), 1, "Stream type in the file's header; clients name it."
    )
    stream_system_id: int = row(
        "stream.system_id", WholeNumber(0, _U64_MAX), 137, "System id in the stream file's header."
    )
    stream_version: int = row(
        "stream.version", WholeNumber(0, 255), 1, "Stream version in the stream file's header."
    )
    stream_serve_damaged: bool = row(
        "stream.serve_damaged", Switch(), False, "Start past damaged full pages; all other pages are served."
    )

    # --- publish --------------------------------------------------------------------------------------------
    publish_max_block_bytes: int = row(
        "publish.max_block_bytes",
        Size(1, 512 * MIB),  # with its entries' heads it must fit in one group of the data streamer
        256 * MIB,
        "Most bytes of items in one block; a longer block is refused with INVALID_REQUEST.",
        unit="bytes",
    )
    publish_max_inflight_bytes: int = row(
        "publish.max_inflight_bytes",
        Size(1, 1024 * GIB),
        GIB,
        "Most bytes of blocks not yet committed, over all publishers; beyond it publishers are slowed down, "
        "but for the block that all wait for.",
        unit="bytes",
    )
    publish_max_publisher_inflight_bytes: int = row(
        "publish.max_publisher_inflight_bytes",
        Size(1, 1024 * GIB),
        Derived(
            "half of publish.max_inflight_bytes",
            lambda settings: max(1, settings.publish_max_inflight_bytes // 2),
        ),
        "Most bytes of one publisher's blocks not yet committed, over all its streams; beyond it that "
        "publisher is slowed down, but for the block that all wait for.",
        unit="bytes",
    )
    publish_max_address_inflight_bytes: int = row(
        "publish.max_address_inflight_bytes",
        Size(1, 1024 * GIB),
        Derived("publish.max_inflight_bytes", lambda settings: settings.publish_max_inflight_bytes),
        "The same for all publishers of one network address; they may share one behind a proxy.",
        unit="bytes",
    )
    publish_proof_idle_ms: int = row(
        "publish.proof_idle_ms",
        WholeNumber(1, 60_000),
        2000,
        "A block without end_of_block is complete when nothing follows its proof for this long, or for half "
        "of publish.block_timeout_seconds if that is shorter.",
        unit="milliseconds",
    )
    publish_block_timeout_seconds: float = row(
        "publish.block_timeout_seconds",
        Seconds(_DAY_SECONDS),
        Derived("3 x block_time_seconds", lambda settings: 3 * settings.block_time_seconds),
        "Time in which the winner of a block must complete it while others are connected; below "
        "2 x block_time_seconds is refused, because gathering a block's signatures may take that long.",
        unit="seconds",
    )
    publish_stall_blocks: int = row(
        "publish.stall_blocks",
        WholeNumber(1, 10_000),
        3,
        "The winner of a block is timed out when another publisher has completed a block this far ahead.",
        unit="blocks",
    )
    publish_idle_timeout_seconds: float = row(
        "publish.idle_timeout_seconds",
        Seconds(_DAY_SECONDS),
        300.0,
        "A publisher that never sends a block header is closed after this long; so is one that is alone and "
        "falls silent in mid-block.",
        unit="seconds",
    )
    publish_duplicate_skip_window: int = row(
        "publish.duplicate_skip_window",
        WholeNumber(0, 1_000_000),
        5,
        "A block at most this far behind the last is answered with SkipBlock in place of DUPLICATE_BLOCK.",
        unit="blocks",
    )
    publish_stray_messages_max: int = row(
        "publish.stray_messages_max",
        WholeNumber(0, 1_000_000),
        1000,
        "Messages in a row that belong to no block and are dropped; beyond it the stream ends with "
        "INVALID_REQUEST.",
        unit="messages",
    )
    publish_send_queue_max: int = row(
        "publish.send_queue_max",
        WholeNumber(1024, 1_000_000),
        4096,
        "Responses waiting for one publisher that does not read; beyond it the publisher is closed.",
        unit="responses",
    )
    publish_allowed_subjects: tuple[str, ...] = row(
        "publish.allowed_subjects",
        Listed(Subject(), separator=";"),
        (),
        "Name in a client certificate that may publish: its subject, whole as `openssl x509 -nameopt "
        "RFC2253` prints it (CN=alice,O=Net), CN=alice, or an alternative name (URI:spiffe://net/alice, "
        "DNS:alice.net); unset admits every client. Needs grpc.tls_client_ca. Repeatable; in the "
        "environment with semicolons between.",
    )
    publish_max_streams_per_publisher: int = row(
        "publish.max_streams_per_publisher",
        WholeNumber(1, 100_000),
        64,  # publishers that share a connection and have no name count as one
        "Streams that one publisher may have open; one more is refused with RESOURCE_EXHAUSTED.",
        unit="streams",
    )
    publish_max_streams_per_address: int = row(
        "publish.max_streams_per_address",
        WholeNumber(1, 1_000_000),
        256,
        "Streams that one network address may have open; one more is refused with RESOURCE_EXHAUSTED.",
        unit="streams",
    )
    publish_max_messages_per_second: int = row(
        "publish.max_messages_per_second",
        WholeNumber(0, 10_000_000),
        0,
        "Messages taken from one publisher in a second, over all its streams; beyond it the publisher is "
        "slowed down. 0: no limit.",
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
        "Where other nodes find grpc.address, when that is 0.0.0.0 or behind something.",
    )
    grpc_max_message_bytes: int = row(
        "grpc.max_message_bytes",
        Size(64 * KIB, GIB),
        MESSAGE_BYTES_DEFAULT,
        "Longest message that is received; a call with a longer one ends with RESOURCE_EXHAUSTED. From peers "
        "at least the default is received. What is sent has no limit.",
        unit="bytes",
    )
    grpc_max_receiving_bytes: int = row(
        "grpc.max_receiving_bytes",
        Size(MIB, 1024 * GIB),
        512 * MIB,
        "Most bytes of messages above 1 MiB that are received at once, over all connections; further ones "
        "wait, in fair shares by address and connection. One of grpc.max_message_bytes is always possible.",
        unit="bytes",
    )
    grpc_reflection: bool = row(
        "grpc.reflection",
        Switch(),
        Derived(
            "on when grpc.address is a loopback address", lambda settings: settings.grpc_address.is_loopback
        ),
        "Whether gRPC tools may ask the node for its services.",
    )
    grpc_compression: bool = row(
        "grpc.compression",
        Switch(),
        False,
        "Whether messages compressed with gzip or deflate are taken; otherwise a call with one is ended with "
        "UNIMPLEMENTED. What is little on the line may be megabytes here: for clients that you know.",
    )
    grpc_keepalive_seconds: float = row(
        "grpc.keepalive_seconds",
        Seconds(_DAY_SECONDS),
        30.0,
        "Quiet time after which a client is asked whether it is still there; without an answer it is closed.",
        unit="seconds",
    )
    grpc_max_connections: int = row(
        "grpc.max_connections",
        WholeNumber(1, 1_000_000),
        4096,
        "Connections at once to each gRPC address, at most an eighth of the process's file descriptors; one "
        "more is closed at once. A sixteenth is kept for other nodes, one for publish.allowed_subjects.",
        unit="connections",
    )
    grpc_max_connections_per_address: int = row(
        "grpc.max_connections_per_address",
        WholeNumber(1, 1_000_000),
        1_024,
        "The same from one network address. Not for other nodes that are known by their address.",
        unit="connections",
    )
    grpc_max_connection_age_seconds: float = row(
        "grpc.max_connection_age_seconds",
        Seconds(365 * _DAY_SECONDS),
        0.0,
        "Age at which a client is asked to connect anew, a tenth more or less, so that clients spread over "
        "nodes behind one address. 0: never.",
        unit="seconds",
    )
    grpc_max_connection_age_grace_seconds: float = row(
        "grpc.max_connection_age_grace_seconds",
        Seconds(_DAY_SECONDS),
        60.0,
        "Time that the calls of such a client have to end; then they are ended. 0: as long as they take.",
        unit="seconds",
    )
    grpc_tls_certificate: Path | None = row(
        "grpc.tls_certificate",
        File(),
        None,
        "PEM file of the certificate for grpc.address; unset means no TLS. Read anew when it changes.",
    )
    grpc_tls_key: Path | None = row(
        "grpc.tls_key", File(), None, "PEM file of the private key of grpc.tls_certificate."
    )
    grpc_tls_client_ca: Path | None = row(
        "grpc.tls_client_ca",
        File(),
        None,
        "PEM file of the authorities whose clients may connect to grpc.address; unset asks for none.",
    )

    # --- subscriber -----------------------------------------------------------------------------------------
    subscriber_address: Address | None = row(
        "subscriber.address",
        HostPort(),
        None,
        "Where subscribers and block requests connect; unset is grpc.address. If set, grpc.address is for "
        "publishers and status requests alone.",
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
        "Subscribers at once; one more is refused with gRPC status RESOURCE_EXHAUSTED.",
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
        "A subscriber that takes nothing of what is sent to it for this long has its connection closed.",
        unit="seconds",
    )
    subscriber_max_future_blocks: int = row(
        "subscriber.max_future_blocks",
        WholeNumber(0, 1_000_000_000),
        4_000,
        "A subscriber whose first block is more than this many above the last is answered NOT_AVAILABLE; "
        "others wait for it.",
        unit="blocks",
    )
    subscriber_item_set_bytes: int = row(
        "subscriber.item_set_bytes",
        Size(KIB, 64 * MIB),
        MIB,
        "Bytes of items after which an item set to a subscriber is full. Each subscriber holds one set; a "
        "longer item is a set of its own.",
        unit="bytes",
    )

    # --- catchup --------------------------------------------------------------------------------------------
    catchup_max_stalled_attempts: int = row(
        "catchup.max_stalled_attempts",
        WholeNumber(1, 1_000_000),
        5,
        "Attempts to take blocks from peers without a further block after which the node says so in its log, "
        "its metrics and /readyz. It keeps trying.",
        unit="attempts",
    )
    catchup_stall_seconds: float = row(
        "catchup.stall_seconds",
        Seconds(3600, none_allowed=False),
        10.0,
        "A peer that has more blocks and sends nothing for this long is left for another; "
        "one that has no more, while another has, after half as long; one whose block was waited for three "
        "times as long, while another has it, too, twice that with each attempt in vain.",
        unit="seconds",
    )
    catchup_backoff_seconds: float = row(
        "catchup.backoff_seconds",
        Seconds(3600, none_allowed=False),
        1.0,
        "Backoff from a peer after a first failure; doubled with each further one.",
        unit="seconds",
        former_name="catchup.rest_seconds",
    )
    catchup_unconfirmed_seconds: float = row(
        "catchup.unconfirmed_seconds",
        Seconds(_DAY_SECONDS),
        60.0,
        "How long /readyz says that the node stands still for a block that only publishers have told of, "
        "while no peer has even the next one; then it is given up, in the log and the metrics. 0: never.",
        unit="seconds",
    )
    catchup_tls_ca: Path | None = row(
        "catchup.tls_ca",
        File(),
        None,
        "PEM file of the authorities of peers' certificates; unset connects to peers without TLS.",
    )
    catchup_tls_certificate: Path | None = row(
        "catchup.tls_certificate", File(), None, "PEM file of the certificate that peers are shown."
    )
    catchup_tls_key: Path | None = row(
        "catchup.tls_key", File(), None, "PEM file of the private key of catchup.tls_certificate."
    )
    catchup_max_backoff_seconds: float = row(
        "catchup.max_backoff_seconds",
        Seconds(_DAY_SECONDS, none_allowed=False),
        60.0,
        "The longest backoff from a peer that fails, and the backoff from one that sends what cannot be.",
        unit="seconds",
        former_name="catchup.max_rest_seconds",
    )

    # --- control --------------------------------------------------------------------------------------------
    control_address: Address = row(
        "control.address",
        HostPort(),
        Address("127.0.0.1", 40841),
        "Where `sluice failover` connects; whoever can connect there can take the node out of service. "
        "Port 0 takes a free one.",
        flag="--control",
    )
    control_allowed_subjects: tuple[str, ...] = row(
        "control.allowed_subjects",
        Listed(Subject(), separator=";"),
        (),
        "Name in a client certificate that may call there, as in publish.allowed_subjects; unset admits all "
        "of control.tls_client_ca, which it needs. Repeatable; in the environment with semicolons between.",
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
        "Clients connected at once; one more is closed at once.",
        unit="connections",
    )
    tcp_write_timeout_seconds: float = row(
        "tcp.write_timeout_seconds",
        Seconds(_DAY_SECONDS),
        3.0,
        "A client that takes no byte of what is sent to it is closed after this long.",
        unit="seconds",
    )
    tcp_inactivity_timeout_seconds: float = row(
        "tcp.inactivity_timeout_seconds",
        Seconds(_DAY_SECONDS),
        120.0,
        "A client that neither sends nor takes anything is closed after this long.",
        unit="seconds",
    )
    tcp_on_command_error: Literal["keep", "close"] = row(
        "tcp.on_command_error",
        Choice(("keep", "close")),
        "keep",
        "The connection of a client whose command comes in the wrong state. `close` breaks clients that send "
        "Stop on each new connection, such as cdk-erigon's.",
    )

    # --- http -----------------------------------------------------------------------------------------------
    http_address: Address = row(
        "http.address",
        HostPort(),
        Address("127.0.0.1", 16007),
        "Where /healthz, /readyz and /metrics are; port 0 takes a free one.",
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
        "How many other nodes, of `peers`, must have a block on disk before it is acknowledged. 0: none; a "
        "block that only this node has when it dies for good is lost to the chain.",
        unit="nodes",
    )

    # --- scrub ----------------------------------------------------------------------------------------------
    scrub_bytes_per_second: int = row(
        "scrub.bytes_per_second",
        Size(0, GIB),
        4 * MIB,
        "Pace at which everything stored is read from the disk and checked, in turn; 0: not at all. 1 TB "
        "takes three days.",
        unit="bytes",
    )

    # --- log ------------------------------------------------------------------------------------------------
    log_level: Literal["debug", "info", "warning", "error"] = row(
        "log.level",
        Choice(("debug", "info", "warning", "error")),
        "info",
        "Least severe line that is logged.",
    )
    log_format: Literal["text", "json"] = row(
        "log.format", Choice(("text", "json")), "text", "Lines for people, or one JSON object per line."
    )

    # --- shutdown -------------------------------------------------------------------------------------------
    shutdown_grace_seconds: float = row(
        "shutdown.grace_seconds",
        Seconds(3600, none_allowed=False),
        10.0,
        "Time for complete blocks to be finished and clients to be told when the node is stopped.",
        unit="seconds",
    )

    def __post_init__(self) -> None:
        """Put values in the place of defaults that follow from other settings."""
        for setting in SETTINGS:
            value = getattr(self, setting.attribute)
            if isinstance(value, Derived):
                object.__setattr__(self, setting.attribute, value.compute(self))


SETTINGS: tuple[Setting, ...] = tuple(one.metadata["setting"] for one in fields(Settings))
"""The rows, in the order of the help."""


def markdown() -> str:
    """Return docs/settings.md: a heading and a table for each section."""
    lines = [
        "# Settings of `sluice serve`",
        "",
        "Made by `python -m sluice.gateway.settings.table > docs/settings.md`; a test compares them.",
        "",
        "In rising order of precedence: the default, the TOML file (`--config FILE` or `SLUICE_CONFIG`), the",
        "environment, the flag. In the environment several values have commas between them. Sizes may be",
        "written `8MiB`, `1GiB`; a time limit of 0 means no limit. A name that ends in `_seconds` may be",
        "written without that: `publish.block_timeout`. `sluice serve --print-config` shows what applies,",
        "and from where.",
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
