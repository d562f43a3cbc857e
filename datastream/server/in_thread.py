"""Work in a thread that an event loop waits for, also when the task is cancelled; and opening a stream so.

Nothing is closed under a thread that is still at work. The end of a program need not wait for minutes of it:
opening a large file, whose index is made anew, is given up at the next page.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from datastream.errors import DatastreamError
from datastream.file.streamer import DataStreamer

__all__ = ["finish", "open_in_thread"]

T = TypeVar("T")


class _OpeningAbandoned(DatastreamError):
    """Ends an opening that nobody waits for; seen by nobody."""


async def finish(work: Callable[[], T], abandon: Callable[[], object] = lambda: None) -> T:
    """Do work in a thread, and wait for its end also when we are cancelled, however often.

    Args:
        work: to be done.
        abandon: called when we are cancelled; tells the work to end soon.
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
            task.exception()  # looked at: it is nobody's any more
        raise


async def open_in_thread(
    path: Path | str,
    *,
    stream_type: int = 1,
    system_id: int = 137,
    version: int = 1,
    read_only: bool = False,
) -> DataStreamer:
    """Open a stream as `DataStreamer.open` does; when we are cancelled, that is given up, without harm."""
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
