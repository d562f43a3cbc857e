"""The responses that wait for one publisher to read them, on their way from the race to its gRPC stream."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

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
        # While `send_all` runs: how to send, what sends a response, and the end.
        self._send: Callable[[Response], Coroutine[Any, Any, None]] | None = None
        self._sending: Coroutine[Any, Any, None] | None = None
        self._all_sent: asyncio.Future[None]

    def put(self, response: Response) -> None:
        """Queue a response, which `send_on` sends.

        None is queued after one for which there was no room, so that none is missing between.
        """
        if self.overflow.is_set() or len(self._responses) >= self._responses_max:
            self.overflow.set()
            self.over.set()
        else:
            self._responses.append(response)
        if self._send is None:
            self._changed.set()

    def send_on(self) -> None:
        """Send what was put in: at once, or behind the response that is on its way."""
        if self._sending is None:
            self._step()

    def close(self) -> None:
        """Say that nothing more comes."""
        self.closed = True
        self.over.set()
        self._changed.set()
        self.send_on()

    async def get(self) -> list[Response]:
        """Wait for responses and take all that are there; none means that the stream is over."""
        while not self._responses and not self.closed:
            self._changed.clear()
            await self._changed.wait()
        taken = list(self._responses)
        self._responses.clear()
        return taken

    async def send_all(self, send: Callable[[Response], Coroutine[Any, Any, None]]) -> None:
        """Send all responses, one after the other, until the stream is over; each when `send_on` is called.

        Args:
            send: sends a response; awaits futures only.

        Raises:
            What `send` raises: nothing is sent after it.
        """
        self._send, self._all_sent = send, asyncio.get_running_loop().create_future()
        self.send_on()
        try:
            await self._all_sent
        finally:
            self._send = None
            if self._sending is not None:
                self._sending.close()
                self._sending = None

    def _step(self, waited_for: asyncio.Future[Any] | None = None) -> None:
        """Go on with the response that is being sent, when what it waited for is there; then with the next.

        Without a task: to wake one would take longer than all that is done here.
        """
        send = self._send
        if send is None or self._all_sent.done():  # given up, which `send_all` may have yet to notice
            if waited_for is not None and not waited_for.cancelled():
                waited_for.exception()  # nobody's any more; one that nobody has looked at is logged
            return
        sending = self._sending
        try:
            while sending is not None or self._responses:
                if sending is None:
                    self._sending = sending = send(self._responses.popleft())
                try:
                    sending.send(None).add_done_callback(self._step)
                    return
                except StopIteration:
                    self._sending = sending = None
        except BaseException as error:  # of `send`, on its way to `send_all`
            self._all_sent.set_exception(error)
            return
        if self.closed:
            self._all_sent.set_result(None)
