"""The client behind a call: its address, and the names that its certificate proves.

Every call reaches gRPC over the front door's connection, whose end is bound to a unique abstract Unix
address. gRPC names that address as the call's peer; the door registers the client here under it. Without a
door (in tests), the peer is the client.
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
"""Metadata with the stream's id, which the door adds to publishers' calls. The name is random in each
process, so no client can add it."""
_BEHIND_THE_DOOR: Final = "unix-abstract:"


@dataclass(frozen=True, slots=True)
class Caller:
    """A client."""

    peer: str
    """Its connection, `ipv4:192.0.2.1:5000` or `ipv6:%5B2001:db8::1%5D:5000`."""
    address: str
    """Its network address without the port; for IPv6 the /64, which one party owns."""
    subjects: tuple[str, ...] = ()
    """The names that its certificate proves, best first: the whole subject, `CN=` and the common name, the
    alternative names with their kind (`URI:spiffe://…`, `DNS:…`)."""
    cut_off: Callable[[], bool] = lambda: False
    """Ends its connection at once; returns False if it has ended."""
    connection: int = 0
    """Its connection's number in this process; 0: no door."""
    taken: Callable[[int], None] = lambda _: None
    """Tells the door that a stream's large message is counted elsewhere, or dropped."""
    host: str = ""
    is_node: Callable[[], bool] = lambda: False
    """Returns whether it is another node (`transport.known_nodes`)."""

    def key_of(self, context: aio.ServicerContext[Any, Any]) -> StreamKey | None:
        """Return a publish stream's key in `MessageShares`; None without a door."""
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
