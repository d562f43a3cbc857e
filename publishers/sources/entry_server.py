"""Entries of a stream over TCP, from whichever of several servers answers.

Nodes that hold the same blocks have the same entries under the same numbers, so a reader that loses one goes
on with another where it was.
Source: docs/spec/stream-file.md sections 2 and 4.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence

from datastream.client.blocking_client import BlockingStreamClient
from datastream.errors import DatastreamError
from datastream.layout import Entry, StreamHeader
from gateway.addresses import Address
from publishers import limits
from publishers.errors import SourceUnreachable

__all__ = ["EntryServers"]

log = logging.getLogger(__name__)


class EntryServers:
    """The servers of one stream; it travels to the workers, and connects where it is used.

    Args:
        servers: in the order in which they are tried; at least one.
        stream_type: that every command names.
        answer_seconds: for connecting and for each answer.
        deadline_seconds: give up after so long without an entry.
    """

    def __init__(
        self,
        servers: Sequence[Address],
        stream_type: int = 1,
        *,
        answer_seconds: float = 10.0,
        deadline_seconds: float = 60.0,
    ) -> None:
        self._servers = tuple(servers)
        self._stream_type = stream_type
        self._answer_seconds = answer_seconds
        self._deadline_seconds = deadline_seconds

    def header(self) -> StreamHeader | None:
        """Give the stream's header as the first server that answers says it; None when none does."""
        try:
            return self.header_surely()
        except SourceUnreachable:
            return None

    def header_surely(self) -> StreamHeader:
        """Give the stream's header as the first server that answers says it; each is asked once.

        Raises:
            SourceUnreachable: none answers.
        """
        trouble = ""
        for address in self._servers:
            try:
                with self._connect(address) as client:
                    return client.header()
            except (OSError, DatastreamError) as error:
                trouble = f"{address}: {error}"
                log.warning("%s", trouble)
        raise SourceUnreachable("how many entries there are", None, trouble)

    def entries(self, first_number: int, wait: Callable[[float], None] = time.sleep) -> Iterator[Entry]:
        """Give the entries from a number on, live ones, too; the caller stops when it has enough.

        Args:
            first_number: of the first entry.
            wait: called with seconds between two rounds of trouble.

        Raises:
            SourceUnreachable: no server gave an entry within the deadline.
        """
        following = first_number
        give_up_at = time.monotonic() + self._deadline_seconds
        while True:
            trouble = ""
            for address in self._servers:
                try:
                    for entry in self._stream(address, following):
                        following = entry.number + 1
                        yield entry
                        give_up_at = time.monotonic() + self._deadline_seconds
                except (OSError, DatastreamError) as error:
                    trouble = f"{address}: {error}"
                    log.warning("entry %s: %s", following, trouble)
            if time.monotonic() >= give_up_at:
                raise SourceUnreachable(f"entry {following}", self._deadline_seconds, trouble)
            wait(limits.SOURCE_RETRY_SECONDS)

    def _connect(self, address: Address) -> BlockingStreamClient:
        return BlockingStreamClient(
            address.host, address.port, self._stream_type, timeout_seconds=self._answer_seconds
        )

    def _stream(self, address: Address, first_number: int) -> Iterator[Entry]:
        following = first_number
        with self._connect(address) as client:
            client.start(first_number)
            for entry in client.entries():
                if entry.number != following:
                    # Never seen of a sound server; another one may be.
                    raise ConnectionError(f"got entry {entry.number}, expected {following}")
                following += 1
                yield entry
