"""A counter of event-loop iterations: work within one keeps timers and sockets waiting."""

from __future__ import annotations

import asyncio

__all__ = ["Iterations"]


class Iterations:
    """Counts the iterations of the running loop, and the notes in each."""

    def __init__(self) -> None:
        self.number = 0
        """The current iteration."""
        self.noted: dict[int, list[object]] = {}
        """Notes by number of iteration."""
        self._loop = asyncio.get_running_loop()
        self._next = self._loop.call_soon(self._tick)

    def note(self, what: object) -> None:
        """Note that something is done in this iteration."""
        self.noted.setdefault(self.number, []).append(what)

    @property
    def most(self) -> int:
        """The most notes of a single iteration."""
        return max(map(len, self.noted.values()), default=0)

    @property
    def all(self) -> list[object]:
        """All notes, in order."""
        return [what for noted in self.noted.values() for what in noted]

    def stop(self) -> None:
        """Stop counting."""
        self._next.cancel()

    def _tick(self) -> None:
        self.number += 1
        self._next = self._loop.call_soon(self._tick)
