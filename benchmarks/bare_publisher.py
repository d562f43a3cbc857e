"""A cheap publisher for an event loop (`benchmarks.bare_call`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

from benchmarks.bare_call import BareCall
from sluice.gateway.addresses import parse_address
from sluice.gateway.api import publish_pb2

__all__ = ["BarePublisher", "Hear", "open_bare"]

_Response = publish_pb2.PublishStreamResponse
Hear = Callable[[_Response | str], None]


class BarePublisher(asyncio.Protocol):
    """One connection with one publish stream.

    Args:
        method: the path of the call.
        name: the publisher's `publisher-id`.
        hear: called with each answer, and with a text when the node has ended the call or the connection.
    """

    def __init__(self, method: str, name: str, hear: Hear) -> None:
        self.taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the node has taken the call."""
        self._hear_next = hear
        self._closed = False
        self._call = BareCall(method, name, self._write, self._hear)
        self._transport: asyncio.WriteTransport
        self._all_sent: asyncio.Future[None] | None = None

    def send(self, messages: Sequence[bytes]) -> None:
        """Send serialized messages, behind those that wait for the node's flow control."""
        self._call.send(messages)

    async def all_sent(self) -> None:
        """Wait until flow control has let everything through; for one task at a time."""
        if not self._call.is_all_sent:
            self._all_sent = asyncio.get_running_loop().create_future()
            await self._all_sent

    def close(self) -> None:
        """Close the connection."""
        self._closed = True
        self._transport.close()

    # --- called by the event loop --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Open the call."""
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop has classes of its own
        self._call.open()

    def data_received(self, data: bytes) -> None:
        """Process received bytes."""
        self._call.receive(data)
        if self._call.is_taken and not self.taken.done():
            self.taken.set_result(None)
        if self._all_sent is not None and self._call.is_all_sent:
            self._all_sent.set_result(None)
            self._all_sent = None

    def connection_lost(self, error: Exception | None) -> None:
        """Report the end of the connection."""
        self._hear(f"the end of the connection ({error})")

    # --- called by the call --------------------------------------------------------------------------------

    def _write(self, parts: Sequence[bytes | memoryview]) -> None:
        self._transport.writelines(parts)

    def _hear(self, answer: bytes | str) -> None:
        if self._closed:
            return
        self._closed = isinstance(answer, str)
        self._hear_next(answer if isinstance(answer, str) else _Response.FromString(answer))


async def open_bare(address: str, method: str, name: str, hear: Hear) -> BarePublisher:
    """Connect to a node and open the call; return once the node has taken it."""
    place = parse_address(address)
    _, publisher = await asyncio.get_running_loop().create_connection(
        lambda: BarePublisher(method, name, hear), place.host, place.port
    )
    await publisher.taken
    return publisher
