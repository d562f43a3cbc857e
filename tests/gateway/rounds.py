"""Rounds of an event loop, counted: all that is done in one of them keeps timers and sockets waiting."""

from __future__ import annotations

import asyncio

__all__ = ["Rounds"]


class Rounds:
    """Counts the rounds of the running loop, and what is noted in each."""

    def __init__(self) -> None:
        self.number = 0
        """Of the round that is running."""
        self.noted: dict[int, list[object]] = {}
        """By the number of the round."""
        self._loop = asyncio.get_running_loop()
        self._next = self._loop.call_soon(self._tick)

    def note(self, what: object) -> None:
        """Something is done in this round."""
        self.noted.setdefault(self.number, []).append(what)

    @property
    def most(self) -> int:
        """How much was noted in a single round."""
        return max(map(len, self.noted.values()), default=0)

    @property
    def all(self) -> list[object]:
        """Everything that was noted, in order."""
        return [what for noted in self.noted.values() for what in noted]

    def stop(self) -> None:
        """Count no further ones."""
        self._next.cancel()

    def _tick(self) -> None:
        self.number += 1
        self._next = self._loop.call_soon(self._tick)
