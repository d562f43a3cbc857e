"""Turns: of what takes the event loop long, one piece in each of its rounds.

A shell around no more than the loop itself. In one round the loop runs everything that is ready, and only
then comes to its timers and sockets again. When it has been kept waiting, messages, answers of processes and
ends of commits are ready all at once, and each of them alone is short, but together they are a pause. So
whoever is about to do a large piece of work takes a turn first.

    round    1         2         3         4         5
    runs     A         -         B         C         D        A took a turn while nobody else had one:
    waiting  B C       C         C D       D                  it did not have to wait

Turns come in the order in which they were asked for. A turn lasts until the next wait of who has it.
"""

from __future__ import annotations

import asyncio
from collections import deque

__all__ = ["LoopSlots"]


class LoopSlots:
    """The turns of one event loop."""

    def __init__(self) -> None:
        self._taken = False  # in this round, or for the next one
        self._granted = False  # for this round, by the one before
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Wait for a turn; at once if none was taken in this round, and nobody waits."""
        loop = asyncio.get_running_loop()
        if not self._taken:
            self._taken = True
            loop.call_soon(self._next_round)
            return
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _next_round(self) -> None:
        """Give the next turn, for the round that follows."""
        waiting = self._waiting
        while waiting and waiting[0].cancelled():
            waiting.popleft()
        if not waiting and not self._granted:
            self._taken = False
            return
        self._granted = bool(waiting)
        if self._granted:
            waiting.popleft().set_result(None)
        asyncio.get_running_loop().call_soon(self._next_round)
