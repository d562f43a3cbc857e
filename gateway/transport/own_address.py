"""Whether an address that a setting names leads to the node that reads the setting, under whatever name.

A shell: it resolves names and asks the kernel which addresses are this machine's. What leads here through
something in between, a load balancer or a forwarded port, is not seen here; a node that follows such an
address finds out when it asks it (`gateway.cluster.peer_follower`).

    listens at          peer                    the node itself
    127.0.0.1:40840     localhost:40840         yes
    0.0.0.0:40840       10.0.0.5:40840          if 10.0.0.5 is this machine's
    10.0.0.5:40840      127.0.0.1:40840         no: nobody listens there, or another node
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterable

from gateway.addresses import Address, parse_address
from gateway.limits import RESOLVE_SECONDS_MAX

__all__ = ["addresses_of", "leads_here", "other_nodes"]


async def leads_here(peer: Address, listens_at: Iterable[Address]) -> bool:
    """Tell whether connecting to `peer` reaches a server of this process.

    Args:
        peer: an address to connect to.
        listens_at: where this process listens, or is found; their ports are the real ones, not 0.
    """
    candidates = [address for address in listens_at if address.port == peer.port]
    if not candidates:
        return False
    if peer in candidates:
        return True
    hosts = await _resolve(peer)
    for address in candidates:
        found = await _resolve(address)
        if hosts & found:
            return True
        if any(ipaddress.ip_address(host).is_unspecified for host in found) and any(map(_is_ours, hosts)):
            return True
    return False


async def other_nodes(peers: Iterable[Address], listens_at: Iterable[Address]) -> list[str]:
    """Give the peers that do not lead here, `host:port` each; arguments as for `leads_here`."""
    own = tuple(listens_at)
    return [str(peer) for peer in peers if not await leads_here(peer, own)]


async def addresses_of(peers: Iterable[str]) -> frozenset[str]:
    """Give the IP addresses of peers, `host:port` each; none for a name that is not known now."""
    found = [await _resolve(parse_address(peer)) for peer in peers]
    return frozenset().union(*found)


async def _resolve(address: Address) -> frozenset[str]:
    """Give the IP addresses of a host; none where its name is not known, or not in time."""
    try:
        async with asyncio.timeout(RESOLVE_SECONDS_MAX):
            found = await asyncio.get_running_loop().getaddrinfo(
                address.host, address.port, type=socket.SOCK_STREAM
            )
    except (OSError, TimeoutError):
        return frozenset()
    return frozenset(str(entry[4][0]).partition("%")[0] for entry in found)


def _is_ours(host: str) -> bool:
    """Whether an IP address is this machine's: only then may a socket have it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True
