"""The check of a page at its first touch, for the TCP server: in threads, so that the others go on.

A client that comes to a page which was not checked since the stream was opened waits for the check; all
others go on. The next pages are checked meanwhile, because a client that takes history comes to them next.

Runs in the event loop's thread. `page_sums.py` has the checks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from datastream.errors import PageDamaged
from datastream.file.page_sums import PageState, PageSums
from datastream.limits import CHECK_AHEAD_PAGES, CHECK_THREADS

__all__ = ["FirstTouch"]

_logger = logging.getLogger(__name__)
WhenDone = Callable[[Exception | None], None]


class FirstTouch:
    """Has pages checked.

    Args:
        sums: of the stream.
        loop: the event loop.
    """

    def __init__(self, sums: PageSums, loop: asyncio.AbstractEventLoop) -> None:
        self._sums = sums
        self._loop = loop
        self._threads = ThreadPoolExecutor(CHECK_THREADS, "page-check")
        self._waiting: dict[int, list[WhenDone]] = {}

    def check(self, page_number: int, when_done: WhenDone) -> None:
        """Check a page, and call back when that is done; the next pages follow.

        Args:
            page_number: of a page that is full.
            when_done: is given why the page cannot be checked, None where it was.
        """
        self._begin(page_number).append(when_done)
        for following in range(page_number + 1, page_number + 1 + CHECK_AHEAD_PAGES):
            if self._sums.state(following) is PageState.UNKNOWN:
                self._begin(following)

    def _begin(self, page_number: int) -> list[WhenDone]:
        waiting = self._waiting.get(page_number)
        if waiting is None:
            waiting = self._waiting[page_number] = []
            self._threads.submit(self._check, page_number)
        return waiting

    def _check(self, page_number: int) -> None:
        """Check a page, in a thread."""
        failure: Exception | None = None
        try:
            self._sums.check(page_number)
        except PageDamaged:
            pass  # the sums know, and have logged it
        except Exception as error:  # also a bug of ours: who waits is to hear of it
            failure = error
        try:
            self._loop.call_soon_threadsafe(self._done, page_number, failure)
        except RuntimeError:
            _logger.debug("a check after the event loop has ended")

    def _done(self, page_number: int, failure: Exception | None) -> None:
        for when_done in self._waiting.pop(page_number, ()):
            when_done(failure)

    async def close(self) -> None:
        """Forget who waits; return when no thread reads the stream any more."""
        self._waiting.clear()
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)
