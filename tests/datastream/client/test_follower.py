"""`StreamFollower` against real servers that restart, lag and lie."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from sluice.datastream.client.follower import StreamFollower
from sluice.datastream.errors import CommandRefused, StreamContradicts
from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.layout import Entry
from sluice.datastream.limits import FollowLimits
from tests.datastream.masters import Master, Pauses, ScriptedServer
from tests.datastream.streams import commit, entries, operation

ITEMS = [item for number in range(8) for item in operation(number)]
ENTRIES = entries(*ITEMS)


@pytest.fixture
def streamer(tmp_path: Path) -> Iterator[DataStreamer]:
    with DataStreamer.open(tmp_path / "s.bin", initial_pages=1) as streamer:
        commit(streamer, *ITEMS)
        yield streamer


@pytest.fixture
def other(tmp_path: Path) -> Iterator[DataStreamer]:
    with DataStreamer.open(tmp_path / "o.bin", initial_pages=1) as streamer:
        yield streamer


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(scenario(), 30)

    asyncio.run(limited())


async def take(follower: StreamFollower, count: int) -> list[Entry]:
    return [await anext(follower) for _ in range(count)]


def test_it_goes_on_after_a_restart_of_the_server(streamer: DataStreamer) -> None:
    async def scenario() -> None:
        master = Master(streamer)
        await master.start()
        pauses = Pauses()
        async with StreamFollower([master.address], sleep=pauses.sleep, rng=lambda: 0) as follower:
            assert await take(follower, 10) == ENTRIES[:10]
            assert follower.number_next == 10
            await master.stop()
            assert await take(follower, 30) == ENTRIES[10:], "what has been received is handed over"
            pauses.then = [lambda: None, lambda: tasks.append(asyncio.ensure_future(master.start()))]
            tasks: list[asyncio.Future[None]] = []
            commit(streamer, (1, b"live"))
            assert await take(follower, 1) == [Entry(1, 40, b"live")]
            assert pauses.seconds[:2] == [1, 2]
            assert follower.is_connected
        await master.stop()

    run(scenario)


def test_it_goes_on_with_another_server(streamer: DataStreamer, other: DataStreamer) -> None:
    async def scenario() -> None:
        commit(other, *ITEMS, (1, b"only there"))
        pauses = Pauses()
        async with Master(other) as there:
            first = Master(streamer)
            await first.start()
            servers = [first.address, there.address]
            async with StreamFollower(servers, from_entry=38, sleep=pauses.sleep) as follower:
                assert await take(follower, 2) == ENTRIES[38:]
                await first.stop()
                assert await take(follower, 1) == [Entry(1, 40, b"only there")]
                assert follower.address == there.address
        assert pauses.seconds == []

    run(scenario)


def test_it_refuses_another_stream_and_stays_where_it_was(
    streamer: DataStreamer, other: DataStreamer
) -> None:
    async def scenario() -> None:
        commit(other, *ITEMS[:-1], (3, b"END 7"), (1, b"more"))
        master = Master(streamer)
        await master.start()
        async with StreamFollower([master.address], sleep=Pauses().sleep) as follower:
            assert await take(follower, 40) == ENTRIES
            await master.stop()
            master.streamer = other
            await master.start()
            with pytest.raises(StreamContradicts) as caught:
                await anext(follower)
            assert str(caught.value) == (
                "server: another stream: entry 39: got number 39, type 0x3, 5 bytes 454e442037, "
                "expected number 39, type 0x3, 5 bytes 656e642037"
            )
            assert follower.number_next == 40
        await master.stop()

    run(scenario)


def test_a_shorter_server_is_waited_for(streamer: DataStreamer, other: DataStreamer) -> None:
    async def scenario() -> None:
        commit(other, *ITEMS[:20])
        pauses = Pauses(lambda: None, lambda: commit(other, *ITEMS[20:], (1, b"live")))
        async with Master(other) as master, Master(streamer) as longer:
            follower = StreamFollower([longer.address, master.address], sleep=pauses.sleep, rng=lambda: 0)
            assert await take(follower, 40) == ENTRIES
            await longer.stop()
            assert await take(follower, 1) == [Entry(1, 40, b"live")]
            await follower.close()
            await longer.start()
        assert pauses.seconds == [1, 2]

    run(scenario)


def test_gaps_and_repetitions_are_never_handed_over() -> None:
    """The reference server sends both when a client joins under load, and the right entries when asked
    again."""

    async def scenario(server: ScriptedServer) -> None:
        async with StreamFollower([server.address], sleep=Pauses().sleep) as follower:
            assert await take(follower, 40) == ENTRIES
        assert server.starts[:4] == [0, 5, 9, 9]

    script = (
        [*ENTRIES[:5], *ENTRIES[6:9]],
        [*ENTRIES[5:9], *ENTRIES[7:30]],
        b"",
        ENTRIES[9:20],
    )
    with ScriptedServer(ENTRIES, *script).running() as server:
        run(lambda: scenario(server))


def test_a_server_that_says_nothing_is_left() -> None:
    async def scenario() -> None:
        silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        address: tuple[str, int] = silent.sockets[0].getsockname()
        limits = FollowLimits(answer_timeout_seconds=0.05)
        with ScriptedServer(ENTRIES).running() as server:
            follower = StreamFollower([address, server.address], limits=limits)
            assert await take(follower, 40) == ENTRIES
            assert follower.address == server.address
            await follower.close()
        silent.close()

    run(scenario)


def test_bookmark_latest_and_close(streamer: DataStreamer) -> None:
    async def scenario() -> None:
        async with Master(streamer) as master:
            async with StreamFollower([master.address], from_bookmark=ITEMS[5][1]) as follower:
                assert await take(follower, 3) == ENTRIES[5:8]
            assert [entry async for entry in follower] == []
            async with StreamFollower([master.address], from_bookmark=b"no") as follower:
                with pytest.raises(CommandRefused, match="server: StartBookmark: error 4 Bad from bookmark"):
                    await anext(follower)
            async with StreamFollower([master.address], from_entry=None) as follower:
                waiting = asyncio.ensure_future(anext(follower))
                while not follower.is_connected:  # noqa: ASYNC110
                    await asyncio.sleep(0)
                assert follower.header == streamer.header
                commit(streamer, (1, b"live"))
                assert await waiting == Entry(1, 40, b"live")

    run(scenario)


def test_callbacks(streamer: DataStreamer) -> None:
    seen: list[Entry] = []

    async def scenario() -> None:
        async with Master(streamer) as master, StreamFollower([master.address]) as follower:

            async def on_entry(entry: Entry) -> None:
                seen.append(entry)
                if entry.number == 20:
                    await follower.close()

            await follower.run(on_entry)
        assert seen == ENTRIES[:21]

        def fail(entry: Entry) -> None:
            if entry.number == 3:
                raise KeyError(entry.number)

        async with Master(streamer) as master, StreamFollower([master.address]) as follower:
            with pytest.raises(KeyError):
                await follower.run(fail)
            assert follower.number_next == 4
            assert await take(follower, 2) == ENTRIES[4:6]

    run(scenario)


def test_give_back(streamer: DataStreamer) -> None:
    async def scenario() -> None:
        pauses = Pauses()
        async with (
            Master(streamer) as master,
            StreamFollower([master.address], sleep=pauses.sleep, rng=lambda: 1) as follower,
        ):
            assert await follower.receive() == ENTRIES
            await follower.give_back(11, OSError("disk full"))
            assert pauses.seconds == []
            assert await take(follower, 3) == ENTRIES[11:14]
            assert pauses.seconds == [0.5]

    run(scenario)


def test_a_cancelled_receive_keeps_the_entries_before_a_gap() -> None:
    async def scenario(server: ScriptedServer) -> None:
        async with StreamFollower([server.address], sleep=Pauses().sleep) as follower:
            receiving = asyncio.ensure_future(follower.receive())
            while follower._core.number_next != 5:  # noqa: ASYNC110
                await asyncio.sleep(0)
            receiving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await receiving
            assert follower.number_next == 0
            assert await follower.receive() == ENTRIES[:5]
            assert await take(follower, 35) == ENTRIES[5:]

    with ScriptedServer(ENTRIES, [*ENTRIES[:5], *ENTRIES[6:9]]).running() as server:
        run(lambda: scenario(server))


def test_closing_while_it_connects_leaves_no_connection(streamer: DataStreamer) -> None:
    async def scenario() -> None:
        async with Master(streamer) as master:
            follower = StreamFollower([master.address])
            receiving = asyncio.ensure_future(follower.receive())
            await asyncio.sleep(0)
            assert not follower.is_connected
            await follower.close()
            assert await receiving == []
            assert not follower.is_connected

    run(scenario)


def test_closing_ends_a_pause() -> None:
    async def scenario() -> None:
        pausing = asyncio.Event()

        async def sleep(_: float) -> None:
            pausing.set()
            await asyncio.Event().wait()

        follower = StreamFollower([("127.0.0.1", 1)], sleep=sleep)
        receiving = asyncio.ensure_future(follower.receive())
        await pausing.wait()
        await follower.close()
        assert await asyncio.wait_for(receiving, 10) == []

    run(scenario)
