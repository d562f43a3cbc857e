"""The asyncio client against our server; `test_blocking_client.py` has protocol violations."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.datastream.client.client import StreamClient
from sluice.datastream.errors import BookmarkNotFound, CommandRefused, ConnectionEnded, EntryNotFound
from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.layout import Entry
from tests.datastream.serving import ServerThread
from tests.datastream.streams import commit, entries, operation

ITEMS = [item for number in range(200) for item in operation(number)]


@pytest.fixture
def streamer(tmp_path: Path) -> Iterator[DataStreamer]:
    with DataStreamer.open(tmp_path / "s.bin") as streamer:
        for number in range(200):
            commit(streamer, *operation(number))
        yield streamer


async def test_async_client(streamer: DataStreamer) -> None:
    expected = entries(*ITEMS)

    async def scenario(host: str, port: int) -> None:
        async with StreamClient.connect(host, port) as client:
            assert await client.header() == streamer.header
            assert await client.entry(7) == expected[7]
            assert await client.bookmark(ITEMS[5][1]) == expected[7]
            with pytest.raises(EntryNotFound):
                await client.entry(1000)
            with pytest.raises(BookmarkNotFound):
                await client.bookmark(b"no")
            with pytest.raises(CommandRefused, match="server: Start: error 3 Bad from entry"):
                await client.start(1001)
            await client.start_bookmark(ITEMS[995][1])
            found = []
            async for entry in client.entries():
                found.append(entry)
                if entry.number == 999:
                    commit(streamer, (1, b"live"))
                if entry.number == 1000:
                    break
            assert found == [*expected[995:], Entry(1, 1000, b"live")]
            assert await client.stop() == []
            assert [entry async for entry in client.entries()] == []
        client = await StreamClient.connect(host, port, stream_type=9)
        with pytest.raises(ConnectionEnded, match="server: closed the connection while answering Header"):
            await client.header()
        await client.close()

    with ServerThread(streamer) as serving:
        await scenario(serving.host, serving.port)


async def test_receiving_may_be_cancelled(streamer: DataStreamer) -> None:
    async def scenario(host: str, port: int) -> None:
        async with StreamClient.connect(host, port) as client:
            await client.start(1000)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.receive(), 0.01)
            commit(streamer, (1, b"live"))
            assert await client.receive() == [Entry(1, 1000, b"live")]
            assert await client.stop() == []
            assert await client.receive() == []

    with ServerThread(streamer) as serving:
        await scenario(serving.host, serving.port)
