"""The other nodes of a cluster: which callers they are, and which configured peer is this node itself.

A shell: it resolves names and asks the kernel for this machine's addresses. An address is no proof, but gains
only places: a node reads reports over connections that it opens itself.

A peer may be this node under any name:

    listens at          peer                    this node
    127.0.0.1:40840     localhost:40840         yes
    0.0.0.0:40840       10.0.0.5:40840          if 10.0.0.5 is this machine's
    10.0.0.5:40840      127.0.0.1:40840         no: nobody listens there, or another node

`gateway.cluster.peer_follower` finds a load balancer that leads back here.

Source: docs/operations.md, "Who is another node".
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Final

from sluice.gateway.addresses import Address, parse_address

__all__ = ["LOOK_SECONDS", "LOOK_SECONDS_MIN", "KnownNodes"]

RESOLVE_SECONDS_MAX: Final = 2.0
"""Time to resolve a peer's name; a start waits for it."""

LOOK_SECONDS: Final = 60.0
"""Time between two resolutions of the names of peers."""
LOOK_SECONDS_MIN: Final = 1.0
"""The same when a stranger's call causes it."""


async def addresses_of(peers: Iterable[str]) -> frozenset[str]:
    """Return the IP addresses of peers, `host:port` each."""
    found = [await _resolve(parse_address(peer)) for peer in peers]
    return frozenset().union(*found)


class KnownNodes:
    """The other nodes of one node's cluster.

    Args:
        networks: their networks, beside the addresses of peers, `10.1.0.0/16` each.
        subjects: names in their certificates; with any, no address counts.
        resolve: returns the IP addresses of peers, `host:port` each.
        look_seconds_min: between two resolutions that strangers cause.
    """

    def __init__(
        self,
        networks: Iterable[str] = (),
        subjects: Iterable[str] = (),
        resolve: Callable[[Iterable[str]], Awaitable[frozenset[str]]] = addresses_of,
        look_seconds_min: float = LOOK_SECONDS_MIN,
    ) -> None:
        self.peers: Sequence[str] = ()
        self.subjects = frozenset(subjects)
        self._networks = tuple(map(ipaddress.ip_network, networks))
        self._resolve = resolve
        self._look_seconds_min = look_seconds_min
        self._addresses: dict[str, frozenset[str]] = {}
        self._looked_at = float("-inf")

    @property
    def are_expected(self) -> bool:
        """True if any caller can be a node."""
        return bool(self.peers or self._networks or self.subjects)

    @property
    def rule(self) -> str:
        """The rule by which a caller is a node, as text."""
        if self.subjects:
            return "a certificate that proves a name in peer_subjects"
        return "an address of peers, or one in peer_networks"

    def has(self, host: str, subjects: Collection[str]) -> bool:
        """Return whether a caller is a node, by its IP address and the names that its certificate proves."""
        if self.subjects:
            return not self.subjects.isdisjoint(subjects)
        return any(host in found for found in self._addresses.values()) or self._is_in_networks(host)

    async def recognize(self, host: str, subjects: Collection[str]) -> bool:
        """Return whether a caller is a node; resolve the peers' names before saying no, as one may have
        moved."""
        if self.has(host, subjects):
            return True
        if self.subjects or time.monotonic() - self._looked_at < self._look_seconds_min:
            return False
        await self.look()
        return self.has(host, subjects)

    async def look(self) -> None:
        """Resolve the names of peers; a name that fails to resolve keeps its addresses."""
        self._looked_at = time.monotonic()
        found = await asyncio.gather(*(self._resolve((peer,)) for peer in self.peers))
        self._addresses.update((peer, ips) for peer, ips in zip(self.peers, found, strict=True) if ips)

    async def watch(self) -> None:
        """Resolve them every `LOOK_SECONDS`, until cancelled."""
        while self.peers:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    def _is_in_networks(self, host: str) -> bool:
        if not self._networks:
            return False
        try:
            address = ipaddress.ip_address(host)
        except ValueError:  # a Unix socket
            return False
        return any(address in network for network in self._networks)


async def leads_here(
    peer: Address, listens_at: Iterable[Address], *, resolve_seconds_max: float = RESOLVE_SECONDS_MAX
) -> bool:
    """Return whether connecting to `peer` reaches a server of this process.

    Args:
        listens_at: the addresses of this process, with their real ports.
    """
    candidates = [address for address in listens_at if address.port == peer.port]
    if not candidates:
        return False
    if peer in candidates:
        return True
    hosts = await _resolve(peer, resolve_seconds_max)
    for address in candidates:
        found = await _resolve(address, resolve_seconds_max)
        if hosts & found:
            return True
        if any(ipaddress.ip_address(host).is_unspecified for host in found) and any(map(_is_ours, hosts)):
            return True
    return False


async def other_nodes(peers: Iterable[Address], listens_at: Iterable[Address]) -> list[str]:
    """Return the peers that do not lead here, `host:port` each."""
    own = tuple(listens_at)
    return [str(peer) for peer in peers if not await leads_here(peer, own)]


async def _resolve(address: Address, seconds_max: float = RESOLVE_SECONDS_MAX) -> frozenset[str]:
    """Return the IP addresses of a host; none if its name does not resolve in time."""
    try:
        async with asyncio.timeout(seconds_max):
            found = await asyncio.get_running_loop().getaddrinfo(
                address.host, address.port, type=socket.SOCK_STREAM
            )
    except (OSError, TimeoutError):
        return frozenset()
    return frozenset(str(entry[4][0]).partition("%")[0] for entry in found)


def _is_ours(host: str) -> bool:
    """Return whether an IP address is this machine's: only then a socket can be bound to it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True
