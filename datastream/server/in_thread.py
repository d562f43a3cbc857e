"""Work in a thread that an event loop waits for even when the task is cancelled; opening a stream that way.

Nothing is closed under a working thread. Yet a program ends soon: a cancelled opening that rebuilds the index
of a large file stops at the next page.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sluice.datastream.errors import DatastreamError
from sluice.datastream.file.streamer import DataStreamer

__all__ = ["finish", "open_in_thread"]

T = TypeVar("T")


class _OpeningAbandoned(DatastreamError):
    """Ends an opening that nobody waits for."""


async def finish(work: Callable[[], T], abandon: Callable[[], object] = lambda: None) -> T:
    """Do work in a thread, and wait for its end even when cancelled, however often.

    Args:
        abandon: called when cancelled; asks the work to end soon.
    """
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        abandon()
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it
        raise


async def open_in_thread(
    path: Path | str,
    *,
    stream_type: int = 1,
    system_id: int = 137,
    version: int = 1,
    read_only: bool = False,
) -> DataStreamer:
    """Open a stream as `DataStreamer.open` does; when cancelled, abandon that without harm."""
    abandoned = threading.Event()
    opened: list[DataStreamer] = []

    def go_on() -> None:
        if abandoned.is_set():
            raise _OpeningAbandoned

    def work() -> None:
        opened.append(
            DataStreamer.open(
                path,
                stream_type=stream_type,
                system_id=system_id,
                version=version,
                read_only=read_only,
                go_on=go_on,
            )
        )

    try:
        await finish(work, abandoned.set)
    except asyncio.CancelledError:
        for streamer in opened:  # it was open already
            streamer.close()
        raise
    return opened[0]
