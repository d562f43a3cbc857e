"""Who is behind a call: the client's address and what its certificate proved.

Every call reaches gRPC over a connection that the front door made. Its end has a name of its own, an abstract
Unix address that no other connection has while it lives, and gRPC tells a service this name as the call's
peer. The door enters the client here under that name. A server without a door (a test) has none: what gRPC
says of a call is then all there is.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from grpc import aio

from gateway.transport.message_shares import StreamKey

__all__ = ["STREAM_KEY", "Caller", "address_of", "caller_of", "enter", "leave"]

STREAM_KEY: Final = f"sluice-stream-{secrets.token_hex(16)}"
"""Metadata that the door adds to the calls of publishers: the id of the call's stream. No client can add it:
the name is another one in every process."""
_BEHIND_THE_DOOR: Final = "unix-abstract:"
"""What gRPC writes in front of the name of such a connection."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A client."""

    peer: str
    """Its connection, `ipv4:192.0.2.1:5000` or `ipv6:%5B2001:db8::1%5D:5000`."""
    address: str
    """Its network address, without the port; of IPv6 the /64, which is what one party has."""
    subjects: tuple[str, ...] = ()
    """The names that its certificate proved, the best one first: the whole subject, `CN=` and the common
    name, the alternative names with their kind (`URI:spiffe://…`, `DNS:…`). Empty without a certificate."""
    cut_off: Callable[[], bool] = lambda: False
    """Ends its connection at once; False: it has ended."""
    connection: int = 0
    """A number of its connection, which no other has in this process; 0: it came through no door."""
    taken: Callable[[int], None] = lambda _: None
    """Is told that the large message of a stream, by its id, is counted elsewhere now, or dropped."""
    host: str = ""
    """Its IP address, whole."""
    is_node: Callable[[], bool] = lambda: False
    """Tells whether it is another node of the cluster, by what is known now (`transport.known_nodes`)."""

    def key_of(self, context: aio.ServicerContext[Any, Any]) -> StreamKey | None:
        """Give the name of one of its publish streams in `MessageShares`; None: it came through no door."""
        for name, value in context.invocation_metadata() or ():
            if name == STREAM_KEY and self.connection:
                return StreamKey(self.address, self.connection, int(value))
        return None


_callers: dict[str, Caller] = {}


def enter(name: str, caller: Caller) -> None:
    """The connection of this name belongs to a client from now on."""
    _callers[_BEHIND_THE_DOOR + name] = caller


def leave(name: str) -> None:
    """The connection has ended."""
    _callers.pop(_BEHIND_THE_DOOR + name, None)


def caller_of(context: aio.ServicerContext[Any, Any]) -> Caller:
    """Tell who makes a call."""
    peer = context.peer()
    return _callers.get(peer) or Caller(peer, address_of(peer), host=address_of(peer))


def address_of(peer: str) -> str:
    """Give the network address in gRPC's name of a connection, without the port.

    `ipv4:192.0.2.1:5000` is `192.0.2.1`, `ipv6:%5B2001:db8::1%5D:5000` is `2001:db8::1`; anything else is
    given back as it is.
    """
    kind, _, rest = peer.replace("%5B", "[").replace("%5D", "]").partition(":")
    if kind not in ("ipv4", "ipv6"):
        return peer
    return rest.rpartition(":")[0].strip("[]")
