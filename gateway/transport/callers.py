"""The client behind a call: its address, and the names that its certificate proves.

Every call reaches gRPC over a connection that the front door made. The door's end of it has a unique name, an
abstract Unix address, which gRPC gives to a service as the call's peer. The door registers the client here
under that name. Without a door (a test) the peer that gRPC names is the client.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from grpc import aio

from sluice.gateway.transport.message_shares import StreamKey

__all__ = ["STREAM_KEY", "Caller", "caller_of", "enter", "leave"]

STREAM_KEY: Final = f"sluice-stream-{secrets.token_hex(16)}"
"""Metadata that the door adds to the calls of publishers: the id of the call's stream. No client can add it:
the name is random in each process."""
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
    """A number of its connection, unique in this process; 0: it came through no door."""
    taken: Callable[[int], None] = lambda _: None
    """Tells the door that the large message of a stream, by its id, is counted elsewhere now, or dropped."""
    host: str = ""
    """Its IP address, whole."""
    is_node: Callable[[], bool] = lambda: False
    """Returns whether it is another node of the cluster, by what is known now (`transport.known_nodes`)."""

    def key_of(self, context: aio.ServicerContext[Any, Any]) -> StreamKey | None:
        """Return the key of a publish stream in `MessageShares`; None: it came through no door."""
        for name, value in context.invocation_metadata() or ():
            if name == STREAM_KEY and self.connection:
                return StreamKey(self.address, self.connection, int(value))
        return None


_callers: dict[str, Caller] = {}


def enter(name: str, caller: Caller) -> None:
    """Register the client of a connection."""
    _callers[_BEHIND_THE_DOOR + name] = caller


def leave(name: str) -> None:
    """Forget a connection that has ended."""
    _callers.pop(_BEHIND_THE_DOOR + name, None)


def caller_of(context: aio.ServicerContext[Any, Any]) -> Caller:
    """Return the client that makes a call."""
    peer = context.peer()
    return _callers.get(peer) or Caller(peer, peer, host=peer)
