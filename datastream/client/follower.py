"""`StreamFollower`: the entries of a stream across connections and servers (asyncio).

    async with StreamFollower([("10.0.0.1", 6900), ("10.0.0.2", 6900)], from_entry=0) as follower:
        async for entry in follower:
            ...

It reconnects with backoff, and continues after the last entry that it handed over. A thin shell:
`follow_core.py` decides.

Source: docs/spec/stream-file.md section 2; datastream/README.md, "Following, and the relay".
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence

from sluice.datastream.client.blocking_client import TlsContext
from sluice.datastream.client.client import StreamClient
from sluice.datastream.errors import EntryNotFound, RemoteError
from sluice.datastream.layout import Entry, StreamHeader
from sluice.datastream.limits import FollowLimits
from sluice.datastream.protocol.follow_core import Address, FollowerBase, KnownEntries, StartAt, Wait

__all__ = ["StreamFollower"]

_logger = logging.getLogger(__name__)


class StreamFollower(FollowerBase):
    """An asynchronous iterator over the entries of a stream, live ones too; only `close` ends it.

    Args:
        servers: (host, port) of the stream's servers, in the order of preference.
        from_entry: the first entry; None: the first live one.
        from_bookmark: begin with this bookmark's entry instead.
        known, identity: as in `FollowCore`.
        tls, tls_server_name: as in `BlockingStreamClient`, for every server.
        sleep, now, rng: pauses in seconds, a clock in seconds, a number from 0 to 1 (tests).

    Raises:
        StreamContradicts, CommandRefused, ServerSpokeWrongly: while iterating, if no server has the stream;
            see the table in `follow_core.py`. Everything else is retried.
    """

    def __init__(
        self,
        servers: Sequence[Address],
        *,
        from_entry: int | None = 0,
        from_bookmark: bytes | None = None,
        stream_type: int = 1,
        limits: FollowLimits | None = None,
        known: KnownEntries | None = None,
        identity: StreamHeader | None = None,
        tls: TlsContext | None = None,
        tls_server_name: str | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        now: Callable[[], float] = time.monotonic,
        rng: Callable[[], float] = random.random,
    ) -> None:
        super().__init__(servers, from_entry, from_bookmark, stream_type, limits, now, rng, known, identity)
        self._tls, self._tls_server_name = tls, tls_server_name
        self._sleep = sleep
        self._client: StreamClient | None = None
        self._closed = False
        self._pause: asyncio.Future[None] | None = None

    async def __aenter__(self) -> StreamFollower:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def __aiter__(self) -> StreamFollower:
        return self

    async def __anext__(self) -> Entry:
        """Return the next entry. Cancelling loses nothing."""
        while not self._pending:
            entries = await self.receive()
            if not entries:
                raise StopAsyncIteration
            self._pending.extend(entries)
        return self._pending.popleft()

    @property
    def is_connected(self) -> bool:
        """True if a server streams to this follower."""
        return self._client is not None

    async def run(self, on_entry: Callable[[Entry], object]) -> None:
        """Call `on_entry` with every entry, until `close`, and await what it returns if that is awaitable.

        If `on_entry` raises, the run ends, and `number_next` is the entry after its argument.
        """
        async for entry in self:
            result = on_entry(entry)
            if inspect.isawaitable(result):
                await result

    async def reach(self) -> StreamHeader:
        """Wait until a server streams, and return its header as of the connection. Not after `close`."""
        while self._client is None or self.header is None:
            try:
                await self._reach()
            except (OSError, RemoteError) as error:
                await self._failed(error)
        return self.header

    async def receive(self) -> Sequence[Entry]:
        """Return the next entries, at least one; empty after `close`.

        They count as handed over. Cancelling loses nothing.
        """
        while not self._closed:
            if self._pending:
                taken = list(self._pending)
                self._pending.clear()
                return taken
            try:
                if self._client is None:
                    await self._reach()
                    continue
                entries, wrong = self._core.accept(await self._client.receive())
                if wrong is not None:
                    self._pending.extend(entries)  # kept if the next line is cancelled
                    await self._failed(wrong)
                elif entries:
                    return entries
            except (OSError, RemoteError) as error:
                await self._failed(error)
        return []

    async def give_back(self, number: int, error: Exception) -> None:
        """Continue from entry `number` after a pause, as the caller could not keep it.

        Args:
            error: the caller's reason.
        """
        self._pending.clear()
        self._core.resume_at(number)
        await self._failed(error)

    async def close(self) -> None:
        """Close the connection, end the iteration, and drop entries not handed over."""
        self._closed = True
        self._pending.clear()
        if self._pause is not None:
            self._pause.cancel()
        await self._disconnect()

    async def _failed(self, error: Exception) -> None:
        await self._disconnect()
        if self._closed:
            return
        _logger.warning(self._failure_text(error))

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _reach(self) -> None:
        step = self._core.next_step()
        if isinstance(step, Wait):
            _logger.info("next attempt in %.1f s", step.seconds)
            await self._wait(step.seconds)
            return
        async with asyncio.timeout(self._limits.answer_timeout_seconds):
            client = await StreamClient.connect(
                *step.address, self._stream_type, tls=self._tls, tls_server_name=self._tls_server_name
            )
            try:
                await self._start(client)
            except BaseException:
                await client.close()
                raise
        self._client = client
        if self._closed:  # meanwhile
            await self._disconnect()

    async def _wait(self, seconds: float) -> None:
        pause = self._pause = asyncio.ensure_future(self._sleep(seconds))
        try:
            await asyncio.wait([pause])
        finally:
            self._pause = None
            pause.cancel()
        if not pause.cancelled():
            pause.result()

    async def _start(self, client: StreamClient) -> None:
        core = self._core
        header = await client.header()
        for known in core.on_header(header):
            try:
                core.on_compared(known, await client.entry(known.number))
            except EntryNotFound:
                core.on_compared(known, None)
        step = core.start_step(header)
        if isinstance(step, StartAt):
            await client.start(step.number)
        else:
            await client.start_bookmark(step.bookmark)
        core.on_started(self._now())
        self.header = header
        _logger.info("%s:%d: streams from %s", *core.address, step)
