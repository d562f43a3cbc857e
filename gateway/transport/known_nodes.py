"""Which callers are other nodes of the cluster: they have places of their own, and `NodeLevel` to themselves.

A shell around one rule; it resolves names.

    `peer_subjects` set    whose certificate proves one of these names, wherever it comes from
    else                   who comes from an address that a name in `peers` leads to, or from `peer_networks`

A subject is a proof; an address is not one, and whoever shares it counts as a node as well. A caller that
counts as a node gains nothing but its places: a node reads what others report over connections that it has
made itself, to the addresses in `peers` (`gateway.cluster.standby_watch`).
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Final

from gateway.transport.own_address import addresses_of

__all__ = ["LOOK_SECONDS", "LOOK_SECONDS_MIN", "KnownNodes"]

LOOK_SECONDS: Final = 60.0
"""Time between two looks where the names of peers lead."""
LOOK_SECONDS_MIN: Final = 1.0
"""The same when a caller is not known: strangers call as often as they like."""


class KnownNodes:
    """The other nodes of one node's cluster.

    Args:
        networks: where nodes come from beside the addresses of peers, `10.1.0.0/16` each.
        subjects: names in certificates of nodes; with any, no address counts.
        resolve: gives the IP addresses of peers, `host:port` each.
    """

    def __init__(
        self,
        networks: Iterable[str] = (),
        subjects: Iterable[str] = (),
        resolve: Callable[[Iterable[str]], Awaitable[frozenset[str]]] = addresses_of,
    ) -> None:
        self.peers: Sequence[str] = ()
        """`host:port` each, of the nodes that are not this one."""
        self.subjects = frozenset(subjects)
        """Names in certificates; empty: addresses count."""
        self._networks = tuple(map(ipaddress.ip_network, networks))
        self._resolve = resolve
        self._addresses: dict[str, frozenset[str]] = {}
        self._looked_at = float("-inf")

    @property
    def are_expected(self) -> bool:
        """Whether any caller can be another node."""
        return bool(self.peers or self._networks or self.subjects)

    @property
    def rule(self) -> str:
        """Who counts as a node, for people."""
        if self.subjects:
            return "a certificate that proves a name in peer_subjects"
        return "an address of peers, or one in peer_networks"

    def has(self, host: str, subjects: Collection[str]) -> bool:
        """Tell whether a caller is a node.

        Args:
            host: its IP address; whatever else is no node's.
            subjects: the names that its certificate proves.
        """
        if self.subjects:
            return not self.subjects.isdisjoint(subjects)
        return any(host in found for found in self._addresses.values()) or self._is_in_networks(host)

    async def recognize(self, host: str, subjects: Collection[str]) -> bool:
        """Tell whether a caller is a node, and resolve the names of peers anew before it is refused.

        A node that is started again elsewhere calls before the next look.
        """
        if self.has(host, subjects):
            return True
        if self.subjects or time.monotonic() - self._looked_at < LOOK_SECONDS_MIN:
            return False
        await self.look()
        return self.has(host, subjects)

    async def look(self) -> None:
        """Resolve the names of peers. A name that is not known now leads where it led before."""
        self._looked_at = time.monotonic()
        found = await asyncio.gather(*(self._resolve((peer,)) for peer in self.peers))
        self._addresses.update((peer, ips) for peer, ips in zip(self.peers, found, strict=True) if ips)

    async def watch(self) -> None:
        """Resolve them now and then, until cancelled."""
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
