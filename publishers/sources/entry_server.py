"""Entries of a stream, from whichever of several servers answers, or from the file that a node writes.

Nodes that hold the same blocks have the same entries under the same numbers.
Source: docs/spec/stream-file.md sections 2 and 4.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

from sluice.datastream.client.blocking_client import BlockingStreamClient
from sluice.datastream.errors import BookmarkNotFound, DatastreamError
from sluice.datastream.layout import Entry, StreamHeader
from sluice.gateway.addresses import Address
from sluice.gateway.blocks.stream_layout import bookmark_of
from sluice.gateway.transport.channels import ClientTls, connecting_context
from sluice.publishers.errors import SourceUnreachable
from sluice.publishers.sources.failover import first_answer, read_on, warn
from sluice.publishers.sources.stream_runs import PagesReader

__all__ = ["EntryFile", "EntryServers", "GrowingEntries", "block_entry", "connect_to_stream"]

_FAULTS: Final = (OSError, DatastreamError)


def connect_to_stream(
    address: Address, stream_type: int, tls: ClientTls | None, answer_seconds: float
) -> BlockingStreamClient:
    """Connect to a stream server; raise as `BlockingStreamClient`."""
    return BlockingStreamClient(
        address.host,
        address.port,
        stream_type,
        timeout_seconds=answer_seconds,
        tls=connecting_context(tls),
        tls_server_name=None if tls is None else tls.server_name,
    )


def block_entry(client: BlockingStreamClient, block_number: int) -> int | None:
    """Return the entry that a block begins with; None: the server does not have it."""
    bookmark = bookmark_of(block_number)
    try:
        number = client.bookmark(bookmark).number - 1  # the answer is the first entry behind bookmarks
    except BookmarkNotFound:
        return None
    return number if client.entry(number).data == bookmark else number - 1


class GrowingEntries(Protocol):
    """A stream that grows. It travels to Spark workers."""

    def header(self) -> StreamHeader | None:
        """Return the stream's header; None if it cannot be had now."""

    def header_surely(self) -> StreamHeader:
        """Return the stream's header; raise SourceUnreachable."""

    def entries(self, first_number: int) -> Iterator[Entry]:
        """Yield the entries from a number on, at least those of the header."""


class EntryFile:
    """A stream file, which a node may be writing to; its path is the same on every worker."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def header(self) -> StreamHeader | None:
        """See `GrowingEntries`."""
        try:
            return self.header_surely()
        except SourceUnreachable:
            return None

    def header_surely(self) -> StreamHeader:
        """See `GrowingEntries`."""
        try:
            with PagesReader(self._path) as pages:
                return pages.header
        except _FAULTS as error:
            raise SourceUnreachable(f"the header of {self._path}", None, str(error)) from error

    def entries(self, first_number: int) -> Iterator[Entry]:
        """See `GrowingEntries`; raise as `PagesReader`."""
        with PagesReader(self._path) as pages:
            for page in pages.pages_from(pages.run_from(pages.page_of_entry(first_number))):
                yield from page[max(0, first_number - page[0].number) :]


class EntryServers:
    """The servers of one stream, in order of preference. It travels to Spark workers, and connects there.

    Args:
        tls: None: connect without.
        answer_seconds: for connecting and for each answer.
        deadline_seconds: the longest time without an entry.
    """

    def __init__(
        self,
        servers: Sequence[Address],
        stream_type: int = 1,
        tls: ClientTls | None = None,
        *,
        answer_seconds: float = 10.0,
        deadline_seconds: float = 60.0,
    ) -> None:
        self._servers = tuple(servers)
        self._stream_type = stream_type
        self._tls = tls
        self._answer_seconds = answer_seconds
        self._deadline_seconds = deadline_seconds

    def header(self) -> StreamHeader | None:
        """Return the stream's header from the first server that answers; None if none does."""
        try:
            return self.header_surely()
        except SourceUnreachable:
            return None

    def header_surely(self, on_trouble: Callable[[str], None] = warn) -> StreamHeader:
        """Ask each server once; return the first header, or raise SourceUnreachable."""
        return first_answer(self._servers, self._header_of, _FAULTS, "how many entries there are", on_trouble)

    def entries(self, first_number: int, wait: Callable[[float], None] = time.sleep) -> Iterator[Entry]:
        """Yield the entries from a number on, then live ones; raise SourceUnreachable at the deadline."""
        deadline = self._deadline_seconds
        return read_on(self._servers, self._stream, _FAULTS, "entry", first_number, None, deadline, wait)

    def entry_of_block(self, block_number: int) -> int | None:
        """Return the entry that a block begins with; None: a server that answers does not have it.

        Raises SourceUnreachable.
        """

        def ask(address: Address) -> int | None:
            with self._connect(address) as client:
                return block_entry(client, block_number)

        return first_answer(self._servers, ask, _FAULTS, f"where block {block_number} begins")

    def _connect(self, address: Address) -> BlockingStreamClient:
        return connect_to_stream(address, self._stream_type, self._tls, self._answer_seconds)

    def _header_of(self, address: Address) -> StreamHeader:
        with self._connect(address) as client:
            return client.header()

    def _stream(self, address: Address, first_number: int) -> Iterator[Entry]:
        next_number = first_number
        with self._connect(address) as client:
            client.start(first_number)
            for entry in client.entries():
                if entry.number != next_number:
                    raise ConnectionError(f"got entry {entry.number}, expected {next_number}")
                next_number += 1
                yield entry
