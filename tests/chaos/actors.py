"""The actors of a run: a network that makes blocks, publishers, and readers that remember."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence

from tenacity import wait_fixed

from sluice.datastream.client.follower import StreamFollower
from sluice.datastream.layout import Entry
from sluice.datastream.limits import FollowLimits
from sluice.gateway.addresses import Address
from sluice.gateway.blocks.block import Block
from sluice.publishers.client.client import ClientOptions
from sluice.publishers.protocol.machine import SECOND_NS, MachineLimits
from sluice.publishers.sources.block_follower import BlockFollower
from tests.serving import Listener

__all__ = ["EntryReader", "Network", "Subscriber", "digest_entries", "make_publisher", "rotated"]

_FOLLOW_LIMITS = FollowLimits(backoff_first_seconds=0.1, backoff_max_seconds=0.5, answer_timeout_seconds=2.0)
DEADLINE_SECONDS = 120


class Network:
    """Makes blocks at a pace, up to `limit`, so that some remain for every fault.

    Args:
        blocks: the chain.
        blocks_per_second: the pace.
    """

    def __init__(self, blocks: Sequence[Block], blocks_per_second: float) -> None:
        self.blocks = blocks
        self.limit = 0
        """The first block not to be made yet."""
        self._pause_seconds = 1 / blocks_per_second
        self._made = 0
        self._grown = asyncio.Condition()

    async def run(self) -> None:
        while self._made < len(self.blocks):
            await asyncio.sleep(self._pause_seconds)
            if self._made < self.limit:
                async with self._grown:
                    self._made += 1
                    self._grown.notify_all()

    async def source(self) -> AsyncIterator[Block]:
        """Yield the blocks as they are made."""
        for block in self.blocks:
            async with self._grown:
                await self._grown.wait_for(lambda number=block.number: number < self._made)  # type: ignore[misc]
            yield block


def make_publisher(addresses: Sequence[Address], name: str) -> Listener:
    """Return a publisher that knows all nodes, the preferred one first."""
    options = ClientOptions(
        machine=MachineLimits(deadline_ns=DEADLINE_SECONDS * SECOND_NS, answer_timeout_ns=10 * SECOND_NS),
        wait=wait_fixed(0.1),
        connect_timeout_seconds=2.0,
    )
    return Listener([str(address) for address in addresses], name, options)


class EntryReader:
    """A data-streamer client that keeps its entry number when it changes nodes."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self.servers = [(address.host, address.port) for address in addresses]
        self.count = 0
        """Entries so far."""
        self.wrong: str | None = None
        """The first entry out of order."""
        self._digest = hashlib.sha256()
        self._changed = asyncio.Event()

    @property
    def digest(self) -> str:
        """The digest of all entries so far, in order."""
        return self._digest.hexdigest()

    async def run(self) -> None:
        """Read until cancelled."""
        async with StreamFollower(self.servers, from_entry=0, limits=_FOLLOW_LIMITS) as follower:
            async for entry in follower:
                if entry.number != self.count and self.wrong is None:
                    self.wrong = f"got entry {entry.number}, expected entry {self.count}"
                _add(self._digest, entry)
                self.count += 1
                self._changed.set()

    async def reach(self, count: int) -> None:
        """Wait for this many entries."""
        while self.count < count:
            self._changed.clear()
            await self._changed.wait()


class Subscriber:
    """A gRPC subscriber of the whole chain that changes nodes."""

    def __init__(self, addresses: Sequence[Address], last: int) -> None:
        self.blocks: list[Block] = []
        """What it received, in order."""
        self._follower = BlockFollower(
            [str(address) for address in addresses], 0, last, patience_seconds=DEADLINE_SECONDS
        )

    async def run(self) -> None:
        """Read up to the last block."""
        async for received in self._follower.blocks():
            self.blocks.append(received.block)


def digest_entries(entries: Sequence[Entry]) -> str:
    """Return `EntryReader.digest` after these entries."""
    digest = hashlib.sha256()
    for entry in entries:
        _add(digest, entry)
    return digest.hexdigest()


def _add(digest: hashlib._Hash, entry: Entry) -> None:
    digest.update(entry.number.to_bytes(8, "big") + entry.type.to_bytes(4, "big"))
    digest.update(len(entry.data).to_bytes(4, "big") + entry.data)


def rotated(addresses: Sequence[Address], by: int) -> list[Address]:
    """Return the addresses with another one first."""
    start = by % len(addresses)
    return [*addresses[start:], *addresses[:start]]
