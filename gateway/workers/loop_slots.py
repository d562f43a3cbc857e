"""Slots of the event loop: at most one long piece of work in each iteration.

A shell. An iteration runs everything that is ready before it comes to timers and sockets, so a large piece of
work takes a slot first.

    iteration  1         2         3         4         5
    runs       A         -         B         C         D        A did not wait, since no slot was taken
    waiting    B C       C         C D       D

Slots are given in the order of the calls. A slot ends at its holder's next await.
"""

from __future__ import annotations

import asyncio
from collections import deque

__all__ = ["LoopSlots"]


class LoopSlots:
    """The slots of one event loop."""

    def __init__(self) -> None:
        self._taken = False  # in this iteration, or for the next one
        self._granted = False  # for this iteration, by the one before
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Wait for a slot; return at once if this iteration's is free and nobody waits."""
        loop = asyncio.get_running_loop()
        if not self._taken:
            self._taken = True
            loop.call_soon(self._next_iteration)
            return
        slot = loop.create_future()
        self._waiting.append(slot)
        await slot

    def _next_iteration(self) -> None:
        waiting = self._waiting
        while waiting and waiting[0].cancelled():
            waiting.popleft()
        if not waiting and not self._granted:
            self._taken = False
            return
        self._granted = bool(waiting)
        if self._granted:
            waiting.popleft().set_result(None)
        asyncio.get_running_loop().call_soon(self._next_iteration)
