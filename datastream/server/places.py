"""The places of a server's clients: when all are taken, the address that has most of them gives one up.

Pure. Without it, one host that opens as many connections as there are places shuts out everybody else.

    all places are taken, and the newcomer's address      gives way to the newcomer
    has fewer than another one, also with the newcomer    a client of the address that has most
    else, `spares` "old"                                  nobody: the newcomer has no place
    else, `spares` "new"                                  the oldest client of its own address

Old clients are spared where they stay for long: readers of a stream. New ones are spared where a client asks
and goes: who holds a place and asks nothing is the oldest.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Hashable
from typing import Generic, Literal, TypeVar

__all__ = ["Places", "party_of"]

Client = TypeVar("Client", bound=Hashable)


class Places(Generic[Client]):
    """Counts clients by address.

    Args:
        count_max: how many places there are.
        spares: which clients of one address are spared.
    """

    def __init__(self, count_max: int, spares: Literal["old", "new"]) -> None:
        self._count_max = count_max
        self._spares = spares
        self._address_of: dict[Client, str] = {}
        self._by_address: dict[str, dict[Client, None]] = {}
        """The oldest client first."""
        self._by_count: dict[int, dict[str, None]] = {}
        """The addresses that have so many clients."""
        self._most = 0
        """What the address that has most of them has."""

    def __len__(self) -> int:
        """How many clients there are."""
        return len(self._address_of)

    def clients(self) -> list[Client]:
        """Give all clients."""
        return list(self._address_of)

    @property
    def are_taken(self) -> bool:
        """Whether all places are taken."""
        return len(self) >= self._count_max

    def who_gives_way(self, address: str) -> Client | None:
        """Give who has to go for a newcomer from this address; None: nobody, it has no place."""
        own = self._by_address.get(address, {})
        if len(own) + 1 < self._most:
            largest = self._by_address[next(iter(self._by_count[self._most]))]
            return next(iter(largest if self._spares == "new" else reversed(largest)))
        if self._spares == "old":
            return None
        crowd = own or self._by_address[next(iter(self._by_count[self._most]))]
        return next(iter(crowd))

    def add(self, client: Client, address: str) -> None:
        """A client is there."""
        self._address_of[client] = address
        crowd = self._by_address.setdefault(address, {})
        crowd[client] = None
        self._count(address, len(crowd) - 1, len(crowd))

    def remove(self, client: Client) -> None:
        """A client is gone; a second time does nothing."""
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
    """Give what limits by network address go by: an IPv4 address, or the /64 that an IPv6 address is in.

    An IPv4 address in the form of IPv6 is one of IPv4. Addresses of this machine and of the line, `::1` and
    `fe80::…`, are given back as they are.
    """
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    if address.is_loopback or address.is_link_local:
        return host
    return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))
