"""The healer: rebuilds a damaged page of the stream file from the blocks of a peer.

    bad page ──► read it again: perhaps the disk returns it after all
             ──► each peer in turn: subscribeBlockStream of the blocks on the page ──► PageBuilder
                 ──► PageSums.heal: if it matches the page's CRC32C, write it past the page cache, read it
                     back, and serve it again

The checksum decides, not the peer. If the page has no checksum (it was never proven, and its entries are
broken), each block must have the root hash that the next block or this node's chain names, and the first
block must name the root hash of the block before it. The proofs are then the peer's.

Source: docs/operations.md, "A page is bad".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Final

from grpc import aio

from sluice.datastream.errors import DatastreamError, PageDamaged
from sluice.gateway.backoff import backoff
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.errors import LayoutError
from sluice.gateway.cluster.limits import CLUSTER_LIMITS, ClusterLimits
from sluice.gateway.errors import GatewayError, InvalidInput
from sluice.gateway.logs import fields
from sluice.gateway.metrics import Metrics
from sluice.gateway.services.subscription_client import BlockAssembler, status_name, subscribe_to
from sluice.gateway.store.block_store import BlockStore
from sluice.gateway.store.page_blocks import BlocksOfPage, PageBlocks, PageBuilder, root_of
from sluice.gateway.transport.channels import ClientTls, open_channel, relayed_if_refused
from sluice.gateway.transport.failures import why_failed

__all__ = ["Healer"]

log = logging.getLogger(__name__)

SHOWN_PAGES_MAX: Final = 3
"""The finding only counts further ones."""


class Healer:
    """The healer of one block store."""

    def __init__(
        self,
        store: BlockStore,
        blocks: PageBlocks,
        peers: Sequence[str],
        metrics: Metrics,
        *,
        message_bytes_max: int,
        stall_seconds: float,
        tls: ClientTls | None = None,
        limits: ClusterLimits = CLUSTER_LIMITS,
    ) -> None:
        self._store = store
        self._sums = blocks.streamer.sums
        self._blocks = blocks
        self._peers = peers
        self._metrics = metrics
        self._options = (
            ("grpc.max_receive_message_length", message_bytes_max),
            ("grpc.use_local_subchannel_pool", 1),
        )
        self._stall_seconds = stall_seconds
        self._tls = tls
        self._limits = limits
        self._changed = asyncio.Event()
        self._on_page: dict[int, BlocksOfPage | None] = {}
        self._reasons: dict[int, str] = {}
        """The reasons why pages are not healed yet, by page."""
        loop = asyncio.get_running_loop()

        def changed() -> None:
            with contextlib.suppress(RuntimeError):  # the event loop has ended
                loop.call_soon_threadsafe(self._changed.set)

        self._sums.on_change = changed

    @property
    def bad_count(self) -> int:
        """Present bad pages."""
        return len(self._sums.bad)

    def close(self) -> None:
        """Stop listening to the stream."""
        self._sums.on_change = lambda: None

    def words(self, pages_max: int = SHOWN_PAGES_MAX) -> tuple[str, ...]:
        """Return a line for each of the first bad pages: file, page, entries, blocks, why not healed."""
        bad = sorted(self._sums.bad.items())
        words = [
            f"{one.error(self._blocks.streamer.path)}{self._blocks_in_words(page)}; it is not served, "
            + self._reasons.get(page, "and will be healed from a peer")
            for page, one in bad[:pages_max]
        ]
        return (*words, f"and {len(bad) - len(words)} more") if len(bad) > len(words) else (*words,)

    def _blocks_in_words(self, page_number: int) -> str:
        blocks = self._on_page.get(page_number)
        return "" if blocks is None else f" (blocks {blocks.first} to {blocks.last})"

    async def run(self) -> None:
        """Heal present and future bad pages, until cancelled."""
        failures_count = 0
        while True:
            self._changed.clear()
            for page_number in sorted(self._sums.bad):
                await self._heal(page_number)
            if not self._sums.bad:
                failures_count = 0
                await self._changed.wait()
                continue
            least, most = self._limits.heal_pause_seconds, self._limits.heal_pause_seconds_max
            try:
                async with asyncio.timeout(backoff(least, most, failures_count)):
                    await self._changed.wait()
            except TimeoutError:
                failures_count += 1

    async def _heal(self, page_number: int) -> None:
        if await asyncio.to_thread(self._sums.recheck, page_number):
            log.warning("page can be read again", extra=fields(page=page_number))
            return
        try:
            blocks = self._on_page[page_number] = await asyncio.to_thread(self._blocks.of_page, page_number)
            if blocks is None:
                return
        except (DatastreamError, OSError) as error:
            self._note(page_number, f"and cannot be healed: the pages around it cannot be read: {error}")
            return
        reasons = []
        for peer in self._peers:
            try:
                async with asyncio.timeout(self._limits.heal_attempt_seconds_max):
                    await relayed_if_refused(peer, partial(self._heal_from, peer, page_number, blocks))
            except aio.AioRpcError as error:
                reasons.append(f"{peer}: {why_failed(error)}")
            except TimeoutError:
                reasons.append(f"{peer} takes too long")
            except PageDamaged as error:
                reasons.append(f"the page made from the blocks of {peer} does not fit ({error.found})")
            except (GatewayError, DatastreamError, OSError) as error:
                reasons.append(f"{peer}: {error}")
            else:
                self._reasons.pop(page_number, None)
                self._metrics.pages_healed.inc()
                extra = fields(page=page_number, first_block=blocks.first, last_block=blocks.last, peer=peer)
                log.warning("page healed", extra=extra)
                return
        why = "; ".join(reasons) or "no peer is configured"
        self._note(page_number, f"and is not healed: {why}")

    def _note(self, page_number: int, reason: str) -> None:
        if self._reasons.get(page_number) != reason:
            log.error("page is not healed", extra=fields(page=page_number, reason=reason))
        self._reasons[page_number] = reason

    async def _heal_from(self, peer: str, page_number: int, blocks: BlocksOfPage) -> None:
        """Raises PageDamaged if the blocks make another page."""
        builder = self._blocks.builder(page_number, blocks)
        has_sum = self._sums.has_sum(page_number)
        # The block after the page names the root hash of the last one.
        end = min(blocks.last + 1, self._store.last_number or 0)
        previous = await self._root_at(blocks.first - 1) if blocks.first else None
        held: Block | None = None
        async for block in self._fetch(peer, blocks.first, end):
            if held is not None:
                previous = await asyncio.to_thread(_add, builder, held, block, previous, has_sum)
            held = block
        if held is not None and held.number == blocks.last:
            known = await self._root_at(held.number)
            await asyncio.to_thread(_add_last, builder, held, known, previous, has_sum)
        await asyncio.to_thread(self._sums.heal, page_number, builder.page())

    async def _root_at(self, number: int) -> bytes | None:
        if number == self._store.last_number:
            return self._store.chain.last_root_hash
        try:
            return await asyncio.to_thread(self._store.root_hash_at, number)
        except (DatastreamError, GatewayError):
            return None

    async def _fetch(self, peer: str, first: int, last: int) -> AsyncIterator[Block]:
        channel = open_channel(peer, self._tls, self._options)
        try:
            assembler, count = BlockAssembler(first, last), 0
            call = subscribe_to(channel, first, last)
            while not assembler.complete:
                async with asyncio.timeout(self._stall_seconds):
                    response = await call.read()
                if response is aio.EOF or response is None:
                    raise InvalidInput(f"blocks {first} to {last}", f"{count} of them", "all", where=peer)
                block = await asyncio.to_thread(assembler.feed, response)
                if block is not None:
                    count += 1
                    yield block
                elif assembler.status is not None:
                    got = f"{count} of them, and the status {status_name(assembler.status)}"
                    raise InvalidInput(f"blocks {first} to {last}", got, "all", where=peer)
        finally:
            await channel.close()


def _add(
    builder: PageBuilder, block: Block, following: Block, previous: bytes | None, has_sum: bool
) -> bytes:
    """Serialize a block whose root hash the next block names; return that hash."""
    _, summary = root_of(following.number, following.items, None)
    return _add_last(builder, block, summary.previous_root_hash, previous, has_sum)


def _add_last(
    builder: PageBuilder, block: Block, known: bytes | None, previous: bytes | None, has_sum: bool
) -> bytes:
    """Raises LayoutError for a block of another chain."""
    root_hash, summary = root_of(block.number, block.items, known)
    if not has_sum and known is None:
        raise LayoutError(f"block {block.number}", "nobody who knows its root hash", "a block behind it")
    if previous is not None and summary.previous_root_hash != previous:
        got = f"previous root hash {summary.previous_root_hash.hex()[:16]}…"
        raise LayoutError(f"block {block.number}", got, f"{previous.hex()[:16]}…, that of the block before")
    builder.add(block.number, block.items, root_hash)
    return root_hash
