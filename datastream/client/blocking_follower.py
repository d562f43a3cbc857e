"""`BlockingStreamFollower`: a follower without asyncio.

    with BlockingStreamFollower([("10.0.0.1", 6900), ("10.0.0.2", 6900)], from_entry=0) as follower:
        for entry in follower:
            ...

`stop`, from another thread, ends the loop.

Source: docs/spec/stream-file.md section 2; datastream/README.md, "Following, and the relay".
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence

from sluice.datastream.client.blocking_client import BlockingStreamClient, TlsContext
from sluice.datastream.errors import EntryNotFound, RemoteError
from sluice.datastream.layout import Entry
from sluice.datastream.limits import FollowLimits
from sluice.datastream.protocol.follow_core import Address, FollowerBase, StartAt, Wait

__all__ = ["BlockingStreamFollower"]

_logger = logging.getLogger(__name__)


class BlockingStreamFollower(FollowerBase):
    """An iterator over the entries of a stream, live ones too; only `stop` or `close` ends it.

    Args:
        servers: (host, port) of the stream's servers, in the order of preference.
        from_entry: the first entry; None: the first live one.
        from_bookmark: begin with this bookmark's entry instead.
        tls, tls_server_name: as in `BlockingStreamClient`, for every server.
        sleep: pauses for so many seconds; None waits for `stop` at the same time.
        now, rng: a clock in seconds, a number from 0 to 1 (tests).

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
        tls: TlsContext | None = None,
        tls_server_name: str | None = None,
        sleep: Callable[[float], object] | None = None,
        now: Callable[[], float] = time.monotonic,
        rng: Callable[[], float] = random.random,
    ) -> None:
        super().__init__(servers, from_entry, from_bookmark, stream_type, limits, now, rng)
        self._tls, self._tls_server_name = tls, tls_server_name
        self._stopped = threading.Event()
        self._sleep = self._stopped.wait if sleep is None else sleep
        self._client: BlockingStreamClient | None = None

    def __enter__(self) -> BlockingStreamFollower:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __iter__(self) -> BlockingStreamFollower:
        return self

    def __next__(self) -> Entry:
        while not self._pending:
            if self._stopped.is_set():
                raise StopIteration
            self._pending.extend(self._receive())
        return self._pending.popleft()

    def run(self, on_entry: Callable[[Entry], object]) -> None:
        """Call `on_entry` with every entry, until `stop`.

        If `on_entry` raises, the run ends, and `number_next` is the entry after its argument.
        """
        for entry in self:
            on_entry(entry)

    def stop(self) -> None:
        """End the iteration behind the received entries; any thread."""
        self._stopped.set()
        client = self._client
        if client is not None:
            client.shut_down()

    def close(self) -> None:
        """Stop, drop what was not handed over, and close the connection."""
        self._stopped.set()
        self._pending.clear()
        self._disconnect()

    def _receive(self) -> Sequence[Entry]:
        try:
            if self._client is None:
                self._reach()
                return []
            entries, wrong = self._core.accept(self._client.receive())
            if wrong is not None:
                self._failed(wrong)
        except (OSError, RemoteError) as error:
            self._failed(error)
            return []
        return entries

    def _failed(self, error: Exception) -> None:
        self._disconnect()
        if self._stopped.is_set():
            return
        _logger.warning(self._failure_text(error))

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _reach(self) -> None:
        step = self._core.next_step()
        if isinstance(step, Wait):
            _logger.info("next attempt in %.1f s", step.seconds)
            self._sleep(step.seconds)
            return
        timeout = self._limits.answer_timeout_seconds
        deadline = time.monotonic() + timeout  # not by `now`, which may be a test's
        client = BlockingStreamClient(
            *step.address,
            self._stream_type,
            timeout_seconds=timeout,
            tls=self._tls,
            tls_server_name=self._tls_server_name,
        )
        try:
            client.set_deadline(deadline)
            self._start(client)
            client.set_timeout(None)
        except BaseException:
            client.close()
            raise
        self._client = client
        if self._stopped.is_set():  # `stop` came before it saw the client
            client.shut_down()

    def _start(self, client: BlockingStreamClient) -> None:
        core = self._core
        header = client.header()
        for known in core.on_header(header):
            try:
                core.on_compared(known, client.entry(known.number))
            except EntryNotFound:
                core.on_compared(known, None)
        step = core.start_step(header)
        if isinstance(step, StartAt):
            client.start(step.number)
        else:
            client.start_bookmark(step.bookmark)
        core.on_started(self._now())
        self.header = header
        _logger.info("%s:%d: streams from %s", *core.address, step)
