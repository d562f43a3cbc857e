"""Readers that follow the chain over several nodes and compare it with its source, for the demo and tests.

    TcpReader      a legacy client: the data streamer's TCP commands
    GrpcReader     a subscriber of `subscribeBlockStream`

When a node fails, both go on at the next one with what they have not had.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sluice.datastream import DatastreamError
from sluice.gateway.addresses import parse_address
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.stream_layout import BlockDecoder
from sluice.gateway.errors import GatewayError
from sluice.publishers.errors import PublisherError
from sluice.publishers.sources.block_follower import BlockFollower
from sluice.publishers.sources.entry_server import EntryServers

__all__ = ["GrpcReader", "ReadTotals", "Reader", "TcpReader"]

PATIENCE_SECONDS = 120.0
"""Longest time without anything new."""


@dataclass(slots=True)
class ReadTotals:
    """The counts of a reader so far."""

    entries: int = 0
    """Of a TCP reader."""
    blocks: int = 0
    items: int = 0
    bytes: int = 0
    """Bytes of items."""
    differing: int = 0
    """Blocks whose items differ from the source."""
    repeated: int = 0
    """Blocks that came before."""
    missing: int = 0
    """Blocks that were passed over."""
    last_number: int | None = None


class Reader(threading.Thread, ABC):
    """A thread that reads up to a block."""

    def __init__(
        self,
        name: str,
        nodes: Sequence[str],
        source: Callable[[int], Block],
        first: int,
        last: int,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._patience_seconds = patience_seconds
        self.totals = ReadTotals()
        self.failure: Exception | None = None
        """The error that ended it early."""
        self._is_abandoned = False
        self._nodes = tuple(nodes)
        self._source = source
        self._first = first
        self._last = last

    def run(self) -> None:
        """Read to the end of the last block."""
        try:
            self._read()
        except (DatastreamError, GatewayError, PublisherError, OSError) as error:
            self.failure = error
        except Exception:
            if not self._is_abandoned:
                raise

    def abandon(self) -> None:
        """Say nothing of what goes wrong from now on: the process ends, and what the reader needs with it."""
        self._is_abandoned = True

    @abstractmethod
    def _read(self) -> None: ...

    def take(self, number: int, given: Iterable[bytes]) -> bool:
        """Count a block; return whether it is the last one."""
        totals, items = self.totals, tuple(given)
        expected = self._first if totals.last_number is None else totals.last_number + 1
        totals.blocks += 1
        totals.items += len(items)
        totals.bytes += sum(map(len, items))
        totals.repeated += number < expected
        totals.missing += max(0, number - expected)
        totals.differing += items != self._source(number).items
        totals.last_number = number
        return number == self._last


class TcpReader(Reader):
    """A legacy client of the TCP addresses `nodes`, from entry 0 on."""

    def _read(self) -> None:
        servers = EntryServers(
            tuple(map(parse_address, self._nodes)), deadline_seconds=self._patience_seconds
        )
        decoder = BlockDecoder()
        for entry in servers.entries(0):
            self.totals.entries += 1
            stored = decoder.feed(entry.type, entry.data)
            if stored is not None and self.take(stored.number, stored.items):
                return


class GrpcReader(Reader):
    """A subscriber of the gRPC addresses `nodes`."""

    def _read(self) -> None:
        asyncio.run(self._follow())

    async def _follow(self) -> None:
        patience_seconds = self._patience_seconds
        follower = BlockFollower(self._nodes, self._first, self._last, patience_seconds=patience_seconds)
        async for received in follower.blocks():
            self.take(received.block.number, received.block.items)
