"""A legacy client that compares the stream of a node with its source, over TCP, for the demo and tests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from sluice.datastream import BlockingStreamClient, DatastreamError, Entry
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.stream_layout import BlockDecoder, StoredBlock
from sluice.gateway.errors import GatewayError

__all__ = ["ReadTotals", "StreamReader"]


@dataclass(slots=True)
class ReadTotals:
    """The counts of a reader so far."""

    entries: int = 0
    blocks: int = 0
    items: int = 0
    bytes: int = 0
    """Bytes of items."""
    differing: int = 0
    """Blocks whose items differ from the source."""
    last_number: int | None = None


class StreamReader(threading.Thread):
    """A thread that reads the stream of a TCP address up to a block, and compares it with `source`."""

    def __init__(self, host: str, port: int, source: Callable[[int], Block], last_number: int) -> None:
        super().__init__(name="stream-reader", daemon=True)
        self.totals = ReadTotals()
        self.failure: Exception | None = None
        """The error that ended it early."""
        self._client = BlockingStreamClient(host, port)
        self._source = source
        self._last_number = last_number
        self._stopped = False

    def run(self) -> None:
        """Read to the end of the last block."""
        decoder = BlockDecoder()
        try:
            self._client.start(0)
            for entry in self._client.entries():
                if self._take(decoder, entry) == self._last_number:
                    return
        except (DatastreamError, GatewayError, OSError) as error:
            if not self._stopped:
                self.failure = error
        finally:
            self._client.close()

    def stop(self) -> None:
        """End the thread."""
        self._stopped = True
        self._client.shut_down()
        self.join()

    def _take(self, decoder: BlockDecoder, entry: Entry) -> int | None:
        self.totals.entries += 1
        stored = decoder.feed(entry.type, entry.data)
        if stored is None:
            return None
        self._count(stored)
        return stored.number

    def _count(self, stored: StoredBlock) -> None:
        totals, items = self.totals, tuple(stored.items)
        totals.blocks += 1
        totals.items += len(items)
        totals.bytes += sum(map(len, items))
        totals.last_number = stored.number
        if items != self._source(stored.number).items:
            totals.differing += 1
