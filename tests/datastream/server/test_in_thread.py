"""Cancellations at any time leave nothing open and end soon."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.file.streamfile import StreamFile
from sluice.datastream.layout import PAGE_SIZE
from sluice.datastream.server.in_thread import finish, open_in_thread
from tests.datastream.streams import commit

PAGES = 12


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A stream without an index: opening walks all its pages."""
    path = tmp_path / "s.bin"
    with DataStreamer.open(path, initial_pages=PAGES) as streamer:
        commit(streamer, *[(1, bytes(PAGE_SIZE - 17))] * PAGES)
    path.with_suffix(".db").rename(tmp_path / "gone")
    return path


async def cancelled(task: asyncio.Task[object]) -> None:
    """Cancel a task more than once, and wait for its end."""
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.01)
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("read_only", [False, True])
async def test_an_opening_is_given_up_at_the_next_page(
    path: Path, read_only: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    walking, go_on, walked = threading.Event(), threading.Event(), []
    walk = StreamFile.walk

    def slow(file: StreamFile, page_number: int) -> object:
        walked.append(page_number)
        walking.set()
        assert go_on.wait(30)
        return walk(file, page_number)

    with monkeypatch.context() as patch:
        patch.setattr(StreamFile, "walk", slow)
        task = asyncio.ensure_future(open_in_thread(path, read_only=read_only))
        assert await asyncio.to_thread(walking.wait, 30)
        asyncio.get_running_loop().call_later(0.05, go_on.set)
        await cancelled(task)
    assert len(walked) == 1
    assert caplog.text == ""
    with DataStreamer.open(path) as streamer:  # unused and unchanged
        assert streamer.committed.total_entries == PAGES


async def test_a_stream_that_was_open_already_is_closed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opening, go_on = threading.Event(), threading.Event()
    really_open = DataStreamer.open

    def slow(*words: object, **options: object) -> DataStreamer:
        streamer = really_open(*words, **options)  # type: ignore[arg-type]
        opening.set()
        assert go_on.wait(30)
        return streamer

    with monkeypatch.context() as patch:
        patch.setattr(DataStreamer, "open", slow)
        task = asyncio.ensure_future(open_in_thread(path))
        assert await asyncio.to_thread(opening.wait, 30)
        asyncio.get_running_loop().call_later(0.05, go_on.set)
        await cancelled(task)
    DataStreamer.open(path).close()


async def test_work_and_its_errors() -> None:
    assert await finish(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await finish(lambda: 1 // 0)


async def test_what_is_not_told_to_end_is_finished() -> None:
    begun, go_on, done = threading.Event(), threading.Event(), []

    def work() -> None:
        begun.set()
        assert go_on.wait(30)
        done.append(True)

    task = asyncio.ensure_future(finish(work))
    assert await asyncio.to_thread(begun.wait, 30)
    asyncio.get_running_loop().call_later(0.05, go_on.set)
    await cancelled(task)
    assert done
