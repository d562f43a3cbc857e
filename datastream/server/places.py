"""The places of a server's clients. When all are taken, the address with most clients gives one up. Pure.

Otherwise one host could take all places.

    all places are taken, and the newcomer's address      gives way to the newcomer
    has fewer than another, counting the newcomer         a client of the address with most clients
    else, `spares` "old"                                  nobody: the newcomer is refused
    else, `spares` "new"                                  the oldest client of its own address

Spare old clients if clients stay, like readers of a stream; spare new ones if clients ask and go: an old one
then holds its place without asking.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Hashable
from typing import Generic, Literal, TypeVar

__all__ = ["Places", "party_of"]

Client = TypeVar("Client", bound=Hashable)


class Places(Generic[Client]):
    """The clients of a server, counted by address."""

    def __init__(self, count_max: int, spares: Literal["old", "new"]) -> None:
        self._count_max = count_max
        self._spares = spares
        self._address_of: dict[Client, str] = {}
        self._by_address: dict[str, dict[Client, None]] = {}
        """The oldest client first."""
        self._by_count: dict[int, dict[str, None]] = {}
        """Addresses by their number of clients."""
        self._most = 0
        """The most clients of one address."""

    def __len__(self) -> int:
        return len(self._address_of)

    def clients(self) -> list[Client]:
        """Return all clients."""
        return list(self._address_of)

    @property
    def are_taken(self) -> bool:
        """True if all places are taken."""
        return len(self) >= self._count_max

    def who_gives_way(self, address: str) -> Client | None:
        """Return the client that gives way to a newcomer from this address; None: the newcomer is refused."""
        own = self._by_address.get(address, {})
        if len(own) + 1 < self._most:
            largest = self._by_address[next(iter(self._by_count[self._most]))]
            return next(iter(largest if self._spares == "new" else reversed(largest)))
        if self._spares == "old":
            return None
        crowd = own or self._by_address[next(iter(self._by_count[self._most]))]
        return next(iter(crowd))

    def add(self, client: Client, address: str) -> None:
        """Add a client."""
        self._address_of[client] = address
        crowd = self._by_address.setdefault(address, {})
        crowd[client] = None
        self._count(address, len(crowd) - 1, len(crowd))

    def remove(self, client: Client) -> None:
        """Remove a client; idempotent."""
        address = self._address_of.pop(client, None)
        if address is None:
            return
        crowd = self._by_address[address]
        del crowd[client]
        self._count(address, len(crowd) + 1, len(crowd))
        if not crowd:
            del self._by_address[address]

    def _count(self, address: str, before: int, now: int) -> None:
        if before:
            del self._by_count[before][address]
            if not self._by_count[before]:
                del self._by_count[before]
        if now:
            self._by_count.setdefault(now, {})[address] = None
        if now > self._most or self._most not in self._by_count:  # a count changes by one
            self._most = now


def party_of(host: str) -> str:
    """Return the party behind an address: an IPv4 address, or the /64 of an IPv6 address.

    An IPv4-mapped IPv6 address counts as IPv4. Loopback and link-local addresses are returned as they are.
    """
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    if address.is_loopback or address.is_link_local:
        return host
    return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))
