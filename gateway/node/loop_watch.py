"""How late the event loop comes round: what every timer, message and answer waits beside its own work.

A shell. A task sleeps for a fixed time, again and again, and tells by how much each sleep was too long. So a
sample is what something that is due at that moment has to wait; a pause that is longer than the period is in
a sample with all of its length but that much.

A sample includes what the machine gave to other processes meanwhile, as everything that the loop does has to
wait for that too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.limits import LOOP_WATCH_SECONDS

__all__ = ["LoopWatch"]


class LoopWatch:
    """Watches the running event loop; made and closed in it.

    Args:
        late: called in the loop with each sample, seconds by which a sleep was too long, 0 or more.
        period_seconds: how long it sleeps.
    """

    def __init__(self, late: Callable[[float], None], period_seconds: float = LOOP_WATCH_SECONDS) -> None:
        self._late = late
        self._period_seconds = period_seconds
        self._task = asyncio.get_running_loop().create_task(self._watch())

    def close(self) -> None:
        """End it; a second time does nothing."""
        self._task.cancel()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + self._period_seconds
            await asyncio.sleep(self._period_seconds)
            self._late(max(0.0, loop.time() - due))
