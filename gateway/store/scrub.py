"""The scrubber: reads everything stored in turn, from the disk, at a bounded pace, and reports what rots.

    for each full page, in order: read it past the page cache, compare its CRC32C
        it fits                 nothing
        it has none             its blocks are hashed, their links followed (`page_blocks`); then it gets one
        it does not fit         it is written again from memory, if that has it right; else it is not served,
                                and healed (`healing`)
    behind the last one         the pass is done; the next begins SCRUB_PASS_SECONDS_MIN after it, or later

A page whose sum fits is as it was committed, and so are its entries, blocks and links: they were checked
then, and are not checked again. So a pass costs 0.8 ms of a processor for 1 MiB, and the first one over
pages without sums 5 to 55.

Where it is is kept in the bookmark folder, and a node that is started again goes on there.
Source: datastream/README.md, "Invariants".
"""

from __future__ import annotations

import asyncio
import logging
import struct
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from datastream.errors import DatastreamError
from datastream.file.page_sums import PageState, ScrubResult
from datastream.layout import PAGE_SIZE
from gateway.errors import GatewayError
from gateway.logs import fields
from gateway.metrics import Metrics
from gateway.store.block_store import BlockStore
from gateway.store.page_blocks import PageBlocks

__all__ = ["Scrubber"]

log = logging.getLogger(__name__)

SCRUB_PASS_SECONDS_MIN: Final = 3600.0
"""A pass over a short stream is over in seconds, and need not be followed by the next at once."""
PROCESSOR_SHARE_MAX: Final = 0.05
"""Of one processor: pages without a sum cost so much that they are read more slowly than the pace says."""
UNPROVEN_PAUSE_SECONDS: Final = 60.0
"""The same where pages could not be proven, because others beside them were bad."""
PLACE_KEPT_PAGES: Final = 64
"""After so many pages the place is kept: at most so many are read twice after a kill."""
PLACE_KEY: Final = b"sluice/scrubbed-up-to"
"""Too long to be a bookmark."""
_PLACE: Final = struct.Struct(">Qd")
"""The page to look at next; when the last full pass ended, Unix time, 0 for never."""


class Scrubber:
    """Scrubs the pages of one ledger.

    Args:
        ledger: whose pages they are.
        blocks: proves pages without a sum.
        metrics: is told how far it is.
        bytes_per_second: the pace.
        pass_seconds_min: see SCRUB_PASS_SECONDS_MIN (tests).
        sleep: pauses in seconds (tests).
    """

    def __init__(
        self,
        store: BlockStore,
        blocks: PageBlocks,
        metrics: Metrics,
        bytes_per_second: int,
        *,
        pass_seconds_min: float = SCRUB_PASS_SECONDS_MIN,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._streamer = store.streamer
        self._blocks = blocks
        self._metrics = metrics
        self._page_seconds = PAGE_SIZE / bytes_per_second
        self._pass_seconds_min = pass_seconds_min
        self._sleep = sleep
        self._thread = ThreadPoolExecutor(1, "scrub")
        self._unproven_count = 0
        """Pages of this pass that could not be proven: beside a bad one, which may be healed by now."""
        self.next_page, self._passed_at = self._kept_place()
        metrics.scrub_pass_end.set(self._passed_at)

    def _kept_place(self) -> tuple[int, float]:
        kept = self._streamer.notes.get(PLACE_KEY)
        return _PLACE.unpack(kept) if kept is not None and len(kept) == _PLACE.size else (0, 0.0)

    def _keep_place(self) -> None:
        """Have the place written with the next commit, or when the stream is closed.

        A bad page goes before it: the next start is to find it at once.
        """
        place = min(self._streamer.sums.bad, default=self.next_page)
        self._streamer.notes.put(PLACE_KEY, _PLACE.pack(place, self._passed_at))

    async def run(self) -> None:
        """Scrub until cancelled."""
        loop = asyncio.get_running_loop()
        begun_at = loop.time()
        while True:
            if self.next_page >= self._streamer.sums.full_count:
                if self.next_page:
                    self._end_pass()
                seconds = UNPROVEN_PAUSE_SECONDS if self._unproven_count else self._pass_seconds_min
                await self._sleep(max(self._page_seconds, begun_at + seconds - loop.time()))
                begun_at, self._unproven_count = loop.time(), 0
                continue
            looked_at = loop.time()
            worked_seconds = await self._look_at(self.next_page)
            self.next_page += 1
            if self.next_page % PLACE_KEPT_PAGES == 0:
                self._keep_place()
            rest_seconds = self._page_seconds - (loop.time() - looked_at)
            await self._sleep(max(0.0, rest_seconds, worked_seconds * (1 / PROCESSOR_SHARE_MAX - 1)))

    def _end_pass(self) -> None:
        self._passed_at = time.time()
        self._metrics.scrub_pass_end.set(self._passed_at)
        extra = fields(pages=self.next_page, bad=len(self._streamer.sums.bad))
        log.info("all pages were scrubbed", extra=extra)
        self.next_page = 0
        self._keep_place()

    async def _look_at(self, page_number: int) -> float:
        """Look at one page; what is wrong with it is known to the sums, and logged there.

        Returns:
            The processor's time that it took, in seconds.
        """
        loop = asyncio.get_running_loop()
        try:
            result, worked_seconds = await loop.run_in_executor(self._thread, self._scrub, page_number)
        except (DatastreamError, GatewayError, OSError) as error:
            log.error("page cannot be scrubbed", extra=fields(page=page_number, got=str(error)))
            return 0.0
        self._metrics.scrubbed_bytes.inc(PAGE_SIZE)
        if result is ScrubResult.HEALED:
            self._metrics.pages_healed.inc()
        return worked_seconds

    def _scrub(self, page_number: int) -> tuple[ScrubResult, float]:
        """Look at one page, in the scrubber's thread; return the seconds of processor, too."""
        sums, begun_at = self._streamer.sums, time.thread_time()
        result = sums.scrub(page_number)
        if result is ScrubResult.UNSUMMED and sums.state(page_number) is not PageState.BAD:
            self._blocks.forget_cached(page_number)
            self._unproven_count += not self._blocks.prove(page_number)
        return result, time.thread_time() - begun_at

    def close(self) -> None:
        """Keep the place; return when no page is being read."""
        self._thread.shutdown()
        self._keep_place()
