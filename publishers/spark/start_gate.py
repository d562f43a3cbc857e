"""Lets racing publishers start together, through files in a folder that all of them see.

Spark starts its Python workers one after the other, and the first would publish a short chain alone. So each
publisher says that it is ready and waits for the driver's word; not for ever, because a publisher that does
not come must not hold up the others.

    folder/<publisher>.ready     written by each publisher
    folder/go                    written by the driver when all are ready
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Final

from publishers.limits import START_GATE_SECONDS

__all__ = ["StartGate"]

_LOOK_SECONDS: Final = 0.01


class StartGate:
    """One gate in one folder."""

    def __init__(self, folder: Path) -> None:
        """Name the folder, which must exist."""
        self._folder = folder

    def open(self) -> None:
        """Let everybody go; again is harmless."""
        (self._folder / "go").touch()

    @property
    def ready_count(self) -> int:
        """How many publishers are ready."""
        return sum(1 for _ in self._folder.glob("*.ready"))

    async def wait(self, publisher_id: str, timeout_seconds: float = START_GATE_SECONDS) -> bool:
        """Say that a publisher is ready, and wait until the gate is open.

        Returns:
            False: it is still closed after the timeout; go on all the same.
        """
        (self._folder / f"{publisher_id.replace('/', '_')}.ready").touch()
        give_up_at = time.monotonic() + timeout_seconds
        go = self._folder / "go"
        while not go.exists():
            if time.monotonic() >= give_up_at:
                return False
            await asyncio.sleep(_LOOK_SECONDS)
        return True
