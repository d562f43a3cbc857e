"""The responses that wait for one publisher to read them, on their way from the race to its gRPC stream."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from gateway.begun import Begun
from gateway.race_actions import PublisherId, Response

__all__ = ["Outbox"]


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
        # While `send_all` runs: how to send, the response that is being sent, and the end.
        self._send: Callable[[Response], Coroutine[Any, Any, None]] | None = None
        self._sending: Begun[None] | None = None
        self._all_sent: asyncio.Future[None]

    def put(self, response: Response) -> None:
        """Queue a response; none after one for which there was no room, so that none is missing between."""
        if self.overflow.is_set() or len(self._responses) >= self._responses_max:
            self.overflow.set()
            self.over.set()
        else:
            self._responses.append(response)
        if self._send is None:
            self._changed.set()
        elif self._sending is None:
            self._send_on()

    def close(self) -> None:
        """Say that nothing more comes."""
        self.closed = True
        self.over.set()
        self._changed.set()
        if self._send is not None and self._sending is None:
            self._send_on()

    async def get(self) -> list[Response]:
        """Wait for responses and take all that are there; none means that the stream is over."""
        while not self._responses and not self.closed:
            self._changed.clear()
            await self._changed.wait()
        taken = list(self._responses)
        self._responses.clear()
        return taken

    async def send_all(self, send: Callable[[Response], Coroutine[Any, Any, None]]) -> None:
        """Send all responses, one after the other, until the stream is over.

        When none is on its way, one is begun with as it is put in, not when the event loop comes round.

        Args:
            send: sends a response; awaits futures only.

        Raises:
            What `send` raises: nothing is sent after it.
        """
        self._send, self._all_sent = send, asyncio.get_running_loop().create_future()
        self._send_on()
        try:
            await self._all_sent
        finally:
            self._send = None
            if self._sending is not None:
                self._sending.close()
                self._sending = None

    def _send_on(self) -> None:
        """Begin with the next response, if there is one, or end."""
        send = self._send
        if send is None or self._all_sent.done():
            return  # given up, which `send_all` has yet to notice
        try:
            while self._responses:
                sending = Begun(send(self._responses.popleft()))
                if sending.go_on(self._sent):
                    self._sending = sending
                    return
        except Exception as error:  # of `send`, on its way to `send_all`
            self._all_sent.set_exception(error)
            return
        if self.closed:
            self._all_sent.set_result(None)

    def _sent(self, error: BaseException | None) -> None:
        self._sending = None
        if error is None:
            self._send_on()
        elif not self._all_sent.done():
            self._all_sent.set_exception(error)
