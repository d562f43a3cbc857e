"""The scrubber: reads all full pages from the disk in turn, at a bounded pace, and finds rot.

A page without a checksum is proven (`page_blocks.py`), and then gets one. A page that memory cannot heal is
not served until a peer heals it (`gateway/cluster/healing.py`). Entries, blocks and links were checked before
a page's commit, so the checksum is enough. A pass costs 0.8 ms of a processor for 1 MiB, over pages without
checksums 5 to 55 ms. The bookmark folder keeps the place for a restart.

Source: datastream/README.md, "Rot".
"""

from __future__ import annotations

import asyncio
import logging
import struct
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from sluice.datastream.errors import DatastreamError
from sluice.datastream.file.page_sums import PageState, ScrubResult
from sluice.datastream.layout import PAGE_SIZE
from sluice.gateway.errors import GatewayError
from sluice.gateway.logs import fields
from sluice.gateway.metrics import Metrics
from sluice.gateway.store.page_blocks import PageBlocks

__all__ = ["Scrubber"]

log = logging.getLogger(__name__)

SCRUB_PASS_SECONDS_MIN: Final = 3600.0
"""The shortest time between the starts of two passes: a short stream takes seconds."""
PROCESSOR_SHARE_MAX: Final = 0.05
"""The share of one processor: proofs of pages without a sum are slower than the pace."""
UNPROVEN_PAUSE_SECONDS: Final = 60.0
"""The same after a pass that could not prove pages beside bad ones."""
PLACE_KEPT_PAGES: Final = 64
"""Pages between two writes of the place: a killed node reads at most so many twice."""
PLACE_KEY: Final = b"sluice/scrubbed-up-to"
"""Too long to be a bookmark."""
_PLACE: Final = struct.Struct(">Qd")
"""The next page; the end of the last full pass, Unix time, 0 for never."""


class Scrubber:
    """The scrubber of one stream, at `bytes_per_second`."""

    def __init__(
        self,
        blocks: PageBlocks,
        metrics: Metrics,
        bytes_per_second: int,
        *,
        pass_seconds_min: float = SCRUB_PASS_SECONDS_MIN,
        unproven_pause_seconds: float = UNPROVEN_PAUSE_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._streamer = blocks.streamer
        self._blocks = blocks
        self._metrics = metrics
        self._page_seconds = PAGE_SIZE / bytes_per_second
        self._pass_seconds_min = pass_seconds_min
        self._unproven_pause_seconds = unproven_pause_seconds
        self._sleep = sleep
        self._thread = ThreadPoolExecutor(1, "scrub")
        self._unproven_count = 0
        """Pages of this pass that could not be proven beside bad ones."""
        self.next_page, self._passed_at = self._kept_place()
        metrics.scrub_pass_end.set(self._passed_at)

    def _kept_place(self) -> tuple[int, float]:
        kept = self._streamer.notes.get(PLACE_KEY)
        return _PLACE.unpack(kept) if kept is not None and len(kept) == _PLACE.size else (0, 0.0)

    def _keep_place(self) -> None:
        """Store the place with the next commit or the closing of the stream.

        A bad page goes first, so the next start finds it at once.
        """
        place = min(self._streamer.sums.bad, default=self.next_page)
        self._streamer.notes.put(PLACE_KEY, _PLACE.pack(place, self._passed_at))

    async def run(self) -> None:
        """Scrub until cancelled."""
        loop = asyncio.get_running_loop()
        begun_at = loop.time()
        while True:
            if self._streamer.remote.holds(self.next_page):
                self.next_page = self._streamer.remote.end
            if self.next_page >= self._streamer.sums.full_count:
                if self.next_page:
                    self._end_pass()
                seconds = self._unproven_pause_seconds if self._unproven_count else self._pass_seconds_min
                await self._sleep(max(self._page_seconds, begun_at + seconds - loop.time()))
                begun_at, self._unproven_count = loop.time(), 0
                continue
            looked_at = loop.time()
            worked_seconds = await self._look_at(self.next_page)
            self.next_page += 1
            if self.next_page % PLACE_KEPT_PAGES == 0:
                self._keep_place()
            pause_seconds = self._page_seconds - (loop.time() - looked_at)
            await self._sleep(max(0.0, pause_seconds, worked_seconds * (1 / PROCESSOR_SHARE_MAX - 1)))

    def _end_pass(self) -> None:
        self._passed_at = time.time()
        self._metrics.scrub_pass_end.set(self._passed_at)
        extra = fields(pages=self.next_page, bad=len(self._streamer.sums.bad))
        log.info("all pages were scrubbed", extra=extra)
        self.next_page = 0
        self._keep_place()

    async def _look_at(self, page_number: int) -> float:
        """Scrub one page; return the processor seconds. `PageSums` notes and logs a fault."""
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
        sums, begun_at = self._streamer.sums, time.thread_time()
        result = sums.scrub(page_number)
        if result is ScrubResult.UNSUMMED and sums.state(page_number) is not PageState.BAD:
            self._blocks.forget_cached(page_number)
            self._unproven_count += not self._blocks.prove(page_number)
        return result, time.thread_time() - begun_at

    def close(self) -> None:
        """Store the place; return when no page is being read."""
        self._thread.shutdown()
        self._keep_place()
