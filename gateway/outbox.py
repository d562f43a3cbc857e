"""The responses that wait for one publisher to read them, on their way from the race to its gRPC stream."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from gateway.begun import Begun
from gateway.race_actions import PublisherId, Response

__all__ = ["Outbox"]

_Begin = Callable[[Response], Begun[None]]


class Outbox:
    """The responses that wait for one publisher to read them.

    Args:
        publisher_id: whose they are.
        name: who that is, for people.
        responses_max: how many may wait; one more and `overflow` is set.
    """

    def __init__(self, publisher_id: PublisherId, name: str, responses_max: int) -> None:
        self.publisher_id = publisher_id
        self.name = name
        self.closed = False
        """Nothing more will be put in."""
        self.said_goodbye = False
        """The publisher has sent EndStream: nothing more is to come from it."""
        self.dropped_count = 0
        """Messages that came after the node had ended the stream."""
        self.overflow = asyncio.Event()
        """Set when the publisher does not read: its stream is to be broken off."""
        self.over = asyncio.Event()
        """Set when nothing more will be put in, or there was no room."""
        self._responses: deque[Response] = deque()
        self._responses_max = responses_max
        self._changed = asyncio.Event()
        self._sender: tuple[_Begin, asyncio.Future[Begun[None] | None]] | None = None  # waits in `send_next`

    def put(self, response: Response) -> None:
        """Queue a response; none after one for which there was no room, so that none is missing between."""
        if self._sender is not None and not self.overflow.is_set():
            begin, begun = self._sender
            if not begun.done():
                self._sender = None
                begun.set_result(begin(response))
                return
        if self.overflow.is_set() or len(self._responses) >= self._responses_max:
            self.overflow.set()
            self.over.set()
        else:
            self._responses.append(response)
        self._changed.set()

    def close(self) -> None:
        """Say that nothing more comes."""
        self.closed = True
        self.over.set()
        self._changed.set()
        if self._sender is not None and not self._sender[1].done():
            self._sender[1].set_result(None)

    async def get(self) -> list[Response]:
        """Wait for responses and take all that are there; none means that the stream is over."""
        while not self._responses and not self.closed:
            self._changed.clear()
            await self._changed.wait()
        taken = list(self._responses)
        self._responses.clear()
        return taken

    async def send_next(self, begin: _Begin) -> bool:
        """Wait for one response and send it; False: the stream is over.

        One that comes while this waits is begun with as it is put in, not when the event loop comes round.

        Args:
            begin: begins to send a response; what goes wrong is raised when the rest of it is awaited.
        """
        if self._responses:
            await begin(self._responses.popleft())
            return True
        if self.closed:
            return False
        waits: asyncio.Future[Begun[None] | None] = asyncio.get_running_loop().create_future()
        self._sender = begin, waits
        try:
            begun = await waits
        except asyncio.CancelledError:
            if not waits.cancelled() and (lost := waits.result()) is not None:
                lost.close()
            raise
        finally:
            self._sender = None
        if begun is not None:
            await begun
        return begun is not None
