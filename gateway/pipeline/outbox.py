"""The responses that wait for one publisher to read them, on their way from the race to its gRPC stream."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from gateway.pipeline.dispute import Source, source_of
from gateway.race.actions import PublisherId, Response

__all__ = ["Outbox"]


class Outbox:
    """The responses that wait for one publisher to read them.

    Args:
        publisher_id: whose they are.
        name: who that is, for people.
        responses_max: how many may wait; one more and `overflow` is set.
        source: by what its claims about stored blocks are counted; None: by its name.
    """

    def __init__(
        self, publisher_id: PublisherId, name: str, responses_max: int, source: Source | None = None
    ) -> None:
        self.publisher_id = publisher_id
        self.name = name
        self.source = source or source_of(name, name)
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

    def put(self, response: Response) -> None:
        """Queue a response.

        None is queued after one for which there was no room, so that none is missing between.
        """
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

    async def _wait(self) -> None:
        """Wait for responses, or the end."""
        while not self._responses and not self.closed:
            self._changed.clear()
            await self._changed.wait()

    async def get(self) -> list[Response]:
        """Wait for responses and take all that are there; none means that the stream is over."""
        await self._wait()
        taken = list(self._responses)
        self._responses.clear()
        return taken

    async def send_all(self, send: Callable[[Response], Awaitable[None]]) -> None:
        """Send all responses, one after the other, until the stream is over.

        Raises:
            What `send` raises: nothing is sent after it.
        """
        while not self.closed or self._responses:
            await self._wait()
            while self._responses:
                await send(self._responses.popleft())
