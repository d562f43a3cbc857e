"""A report of what a start with some settings would do, and of everything that would keep it from that.

A shell that only reads, for `sluice serve --check`: it listens nowhere, takes no lock, and writes and creates
nothing. What only a start finds out stays open: whether an address is free, and whether the stream is sound
(`sluice check` reads all of it).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from sluice.datastream import DatastreamError
from sluice.datastream.errors import EntriesDisagree
from sluice.gateway.addresses import Address
from sluice.gateway.archive.objects import SCHEMES
from sluice.gateway.blocks.trusted_keys import TrustedKeys
from sluice.gateway.cluster.role_keeper import read_role
from sluice.gateway.cluster.roles import RoleRecord
from sluice.gateway.errors import Fatal, GatewayError, SettingError
from sluice.gateway.node.rules import archive_options, coordinator, failover_tls, own_addresses, peer_tls
from sluice.gateway.settings.table import Settings
from sluice.gateway.store.block_store import stored_last
from sluice.gateway.store.trust_store import given_address_book, given_ledger, kept_ledger
from sluice.gateway.transport.known_nodes import addresses_of, other_nodes
from sluice.gateway.transport.tls import ServerTls, TlsFiles

__all__ = ["StartCheck", "check_start"]

T = TypeVar("T")


@dataclass(slots=True)
class StartCheck:
    """The plan of a start, and its faults."""

    plan: list[tuple[str, str]] = field(default_factory=list)
    """Lines of a name and a text, such as `gRPC` and the address."""
    faults: list[GatewayError] = field(default_factory=list)
    """Each would end the start."""
    warnings: list[str] = field(default_factory=list)
    """Settings that work, and may not be meant."""

    def says(self, what: str, how: str) -> None:
        """Add a line to the plan."""
        self.plan.append((what, how))

    def tried(self, read: Callable[..., T], *arguments: object, what: str = "") -> T | None:
        """Return what `read` returns; note its error, and return None.

        Args:
            what: the object of an error of the system.
        """
        try:
            return read(*arguments)
        except GatewayError as error:
            self.faults.append(error)
        except (DatastreamError, OSError) as error:
            self.faults.append(Fatal(what, got=str(error), expected="what a start can read"))
        return None


def check_start(settings: Settings) -> StartCheck:
    """Read what a start with these settings would read."""
    check = StartCheck()
    taken: dict[Address, str] = {}
    for name, section, address in (
        ("publishers", "grpc", settings.grpc_address),
        ("subscribers", "subscriber", settings.subscriber_address),
        ("data streamer", "tcp", settings.tcp_address),
        ("control", "control", settings.control_address),
        ("HTTP", "http", settings.http_address),
    ):
        if address is not None:
            check.says(name, f"{address}, {_look_at_tls(check, settings, section, address)}")
            other = taken.setdefault(address, section)
            if other != section and address.port:
                expected = f"another address than {other}.address"
                got = str(address)
                check.faults.append(
                    SettingError(f"{section}.address", got=got, expected=expected, where="settings")
                )
    role = _look_at_folder(check, settings)
    _look_at_keys(check, settings)
    _look_at_peers(check, settings, role)
    _look_at_election(check, settings)
    check.tried(archive_options, settings)
    if settings.archive_url is not None:
        if settings.archive_url.partition("://")[0] not in SCHEMES:
            expected = f"a URL that begins with {', '.join(f'{scheme}://' for scheme in SCHEMES)}"
            got = repr(settings.archive_url)
            check.faults.append(SettingError("archive.url", got=got, expected=expected, where="settings"))
        check.says("archive", f"{settings.archive_url} (not asked)")
    if settings.otel_endpoint is not None:
        check.tried(_import_span_export)
        check.says("traces", f"{settings.otel_sample:.0%} of blocks to {settings.otel_endpoint} (not asked)")
    return check


def _import_span_export() -> None:
    from sluice.gateway.node import span_export  # noqa: F401 - it needs an extra


def _look_at_tls(check: StartCheck, settings: Settings, section: str, address: Address) -> str:
    files = [getattr(settings, f"{section}_tls_{name}", None) for name in ("certificate", "key", "client_ca")]
    certificate, key, client_ca = files
    if certificate is None or key is None:
        if section in ("grpc", "subscriber", "control") and not address.is_loopback:
            check.warnings.append(f"{section}.address {address} is open to the network without TLS")
        return "without TLS"
    tls_files = TlsFiles(certificate, key, client_ca)
    tls = check.tried(ServerTls, tls_files, f"{section}.tls")
    clients = "" if client_ca is None else f", clients show a certificate of {client_ca}"
    ends = "" if tls is None else f" to {tls.not_after:%Y-%m-%d}"
    return f"TLS with {certificate}{ends}{clients}"


def _look_at_folder(check: StartCheck, settings: Settings) -> RoleRecord:
    folder = settings.data_dir
    what = f"data_dir {folder}"
    if not folder.exists():
        parent = next(one for one in (folder, *folder.absolute().parents) if one.exists())
        if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
            expected = "a folder in which this user may make it"
            check.faults.append(Fatal(what, got=f"{parent}, where it is missing", expected=expected))
        check.says("data", f"{folder}, which the start makes")
    elif not folder.is_dir():
        check.faults.append(Fatal(what, got="a file", expected="a folder"))
    else:
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            got = "a folder that this user may not write"
            check.faults.append(Fatal(what, got=got, expected="one that it may"))
        faults_before = len(check.faults)

        def last_block() -> int | None:
            try:
                return stored_last(folder, settings.stream_type)
            except (
                EntriesDisagree
            ) as error:  # a start that undoes an update, or serves around damage, may work
                check.warnings.append(f"{what}: {error}")
                return None

        warnings_before = len(check.warnings)
        last = check.tried(last_block, what=what)
        room_gib = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize / (1 << 30)
        holds = "no block" if last is None else f"blocks to {last}"
        is_sound = (len(check.faults), len(check.warnings)) == (faults_before, warnings_before)
        holds = holds if is_sound else "a stream that cannot be read"
        check.says("data", f"{folder}, with {holds}; {room_gib:.1f} GiB are free")
    own = RoleRecord(settings.role)
    remembered = check.tried(read_role, folder, what=what)
    role = remembered or own
    follows = "" if role.followed is None else f" of {role.followed}"
    where = "" if remembered is None else " (role.json, which goes before the setting)"
    check.says("role", f"{role.role}{follows}{where}")
    return role


def _look_at_keys(check: StartCheck, settings: Settings) -> None:
    mode, are_sound = settings.verification_mode, True
    for text in settings.ledger_keys:  # each alone, so that one wrong key hides no other
        key = check.tried(TrustedKeys.parse, [text])
        are_sound = are_sound and key is not None
        if key is not None and key.tss_file is not None:
            check.tried(given_ledger, key, mode)
        if key is not None and key.rsa_file is not None:
            check.tried(given_address_book, key, mode, settings.verification_rsa_threshold)
    if are_sound:  # together, too
        check.tried(TrustedKeys.parse, settings.ledger_keys)
    kept = check.tried(kept_ledger, settings.data_dir)
    keys = ", ".join(settings.ledger_keys) or "none given: what block 0 publishes is believed"
    and_kept = "" if kept is None else f"; kept here: the ledger id {kept.ledger_id.hex()}"
    check.says("ledger keys", f"{keys}{and_kept}")
    check.says("verification", settings.verification_mode)


def _look_at_peers(check: StartCheck, settings: Settings, role: RoleRecord) -> None:
    tls = check.tried(peer_tls, settings) if settings.peers else None
    if tls is not None:
        check.tried(tls.credentials)
    peers = asyncio.run(other_nodes(settings.peers, own_addresses(settings))) if settings.peers else []
    for peer in peers:
        if not asyncio.run(addresses_of([peer])):
            check.warnings.append(f"the name of the peer {peer} does not resolve now")
    if settings.commit_min_standbys > len(peers):
        expected = f"at most {len(peers)}, the number of peers that are other nodes"
        got = str(settings.commit_min_standbys)
        check.faults.append(SettingError("commit.min_standbys", got=got, expected=expected, where="settings"))
    waits = settings.commit_min_standbys
    if not settings.peers:
        return
    if not peers and role == RoleRecord("standby"):
        got, expected = "this node itself", "another node, which a standby can follow"
        check.faults.append(SettingError("peers", got=got, expected=expected, where="settings"))
    check.says("peers", f"{', '.join(peers) or 'only this node itself'}; {waits} must have a block")


def _look_at_election(check: StartCheck, settings: Settings) -> None:
    if not settings.failover_automatic:
        return
    check.tried(coordinator, settings)
    tls = check.tried(failover_tls, settings)
    if tls is not None:
        check.tried(tls.credentials)
    if settings.failover_password_file is not None:
        check.tried(settings.failover_password_file.read_text, "utf-8", what="failover.password_file")
    endpoints = ", ".join(map(str, settings.failover_etcd))
    check.says("election", f"{settings.grpc_advertised_address} at etcd {endpoints or 'nowhere'} (not asked)")
