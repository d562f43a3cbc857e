"""The relay, in one process: catching up, restarts, refusals, a failing disk. `tests/interop` kills it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from sluice.datastream.client.client import StreamClient
from sluice.datastream.errors import (
    AddressUnavailable,
    CommitFailed,
    ConnectionEnded,
    EntryNotRelayed,
    PageDamaged,
    StreamContradicts,
    StreamFileUnavailable,
    WrongStreamType,
)
from sluice.datastream.file.committing import Committer
from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.layout import HEADER_PAGE_SIZE, Entry, page_start
from sluice.datastream.limits import FollowLimits
from sluice.datastream.server.relay import Relay
from tests.datastream.masters import Master, Pauses, ScriptedServer
from tests.datastream.streams import bookmark, commit, entries, operation

ITEMS = [item for number in range(8) for item in operation(number)]
ENTRIES = entries(*ITEMS)
QUICK = FollowLimits(backoff_first_seconds=0.01, backoff_max_seconds=0.05)


@pytest.fixture
def streamer(tmp_path: Path) -> Iterator[DataStreamer]:
    with DataStreamer.open(tmp_path / "s.bin", initial_pages=1, system_id=1234, version=2) as streamer:
        commit(streamer, *ITEMS)
        yield streamer


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(scenario(), 60)

    asyncio.run(limited())


@asynccontextmanager
async def running(relay: Relay) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.ensure_future(relay.run())
    yield task
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def until_it_has(relay: Relay, count: int) -> None:
    """Wait, as a client of the relay, for so many entries."""
    await relay.started.wait()
    async with StreamClient.connect(*relay.address) as client:
        await client.start(0)
        seen = 0
        while seen < count:
            seen += len(await client.receive())


def pages(path: Path, total_length: int) -> bytes:
    return path.read_bytes()[HEADER_PAGE_SIZE:total_length]


def test_its_file_is_the_masters(streamer: DataStreamer, tmp_path: Path) -> None:
    """More than a page, so that padding is compared; a relay of a relay has the same bytes."""

    async def scenario() -> None:
        for number in range(8, 60):
            commit(streamer, *operation(number), (1, b"x" * 40_000))
        first_path, second_path = tmp_path / "r1.bin", tmp_path / "r2.bin"
        async with Master(streamer) as master:
            first = Relay([master.address], first_path, port=0)
            async with running(first):
                await first.started.wait()
                second = Relay([first.address], second_path, port=0)
                async with running(second):
                    await until_it_has(second, streamer.committed.total_entries)
                    commit(streamer, *operation(60), flush=True)
                    await until_it_has(second, streamer.committed.total_entries)
                    assert first.committed == second.committed == streamer.committed
                    async with StreamClient.connect(*second.address) as client:
                        assert await client.header() == streamer.header
                        assert (await client.bookmark(ITEMS[5][1])).number == 7
        expected = pages(streamer.path, streamer.committed.total_length)
        assert len(expected) > 3 << 19
        assert pages(first_path, streamer.committed.total_length) == expected
        assert pages(second_path, streamer.committed.total_length) == expected

    run(scenario)


def test_it_serves_what_it_has_while_the_master_is_away(streamer: DataStreamer, tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "r.bin"
        master = Master(streamer)
        await master.start()
        relay = Relay([master.address], path, port=0)
        async with running(relay):
            await until_it_has(relay, 40)
        await master.stop()
        relay = Relay([master.address], path, port=0, follow_limits=QUICK)
        async with running(relay):
            await until_it_has(relay, 40)
            async with StreamClient.connect(*relay.address) as client:
                await client.start(40)
                commit(streamer, (1, b"live"))
                await master.start()
                assert await client.receive() == [Entry(1, 40, b"live")]
        await master.stop()

    run(scenario)


def test_it_waits_for_the_first_master(streamer: DataStreamer, tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "r.bin"
        master = Master(streamer)
        await master.start()
        await master.stop()
        waited = asyncio.Event()

        async def sleep(seconds: float) -> None:
            waited.set()
            await asyncio.sleep(0)

        relay = Relay([master.address], path, port=0, sleep=sleep)
        async with running(relay):
            await waited.wait()
            assert not path.exists()
            assert relay.committed is None
            await master.start()
            await until_it_has(relay, 40)
        await master.stop()

    run(scenario)


def test_an_empty_master_is_relayed_too(tmp_path: Path) -> None:
    async def scenario(streamer: DataStreamer) -> None:
        async with Master(streamer) as master:
            relay = Relay([master.address], tmp_path / "r.bin", port=0)
            async with running(relay):
                await relay.started.wait()
                commit(streamer, *ITEMS)
                await until_it_has(relay, 40)
                assert relay.committed == streamer.committed

    with DataStreamer.open(tmp_path / "s.bin", initial_pages=1) as streamer:
        run(lambda: scenario(streamer))


@pytest.mark.parametrize(
    ("items", "changes", "message"),
    [
        (
            [*ITEMS[:-1], (3, b"END 7")],
            {"system_id": 1234, "version": 2},
            (
                "server: another stream: entry 39: got number 39, type 0x3, 5 bytes 454e442037, "
                "expected number 39, type 0x3, 5 bytes 656e642037"
            ),
        ),
        (
            [(1, b"other"), *ITEMS[1:20]],  # shorter than the relay's file, with the same last entries
            {"system_id": 1234, "version": 2},
            None,
        ),
        (
            [*ITEMS[:19], (1, b"other")],
            {"system_id": 1234, "version": 2},
            (
                "server: another stream: entry 19: got number 19, type 0x1, 5 bytes 6f74686572, "
                "expected number 19, type 0x3, 5 bytes 656e642033"
            ),
        ),
        (ITEMS, {"system_id": 5, "version": 2}, "server: another stream: system id: got 5, expected 1234"),
        (ITEMS, {"system_id": 1234, "version": 1}, "server: another stream: version: got 1, expected 2"),
    ],
)
def test_a_master_with_another_stream(
    streamer: DataStreamer,
    tmp_path: Path,
    items: list[tuple[int, bytes]],
    changes: dict[str, int],
    message: str | None,
) -> None:
    async def scenario(other: DataStreamer) -> None:
        path = tmp_path / "r.bin"
        async with Master(streamer) as master:
            relay = Relay([master.address], path, port=0)
            async with running(relay):
                await until_it_has(relay, 40)
        before = path.read_bytes()
        pauses = Pauses()
        async with Master(other) as master:
            relay = Relay([master.address], path, port=0, sleep=pauses.sleep)
            if message is None:  # its last entries are the same; it is behind, and the relay takes nothing
                with pytest.raises(AssertionError, match="it would go on for ever"):
                    await relay.run()
            else:
                with pytest.raises(StreamContradicts) as caught:
                    await relay.run()
                assert str(caught.value) == message
                assert pauses.seconds == []
        assert path.read_bytes() == before

    with DataStreamer.open(tmp_path / "o.bin", initial_pages=1, **changes) as other:  # type: ignore[arg-type]
        commit(other, *items)
        run(lambda: scenario(other))


def test_a_full_disk_is_waited_for(
    streamer: DataStreamer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        real = Committer.commit
        failures = [1, 1]
        path = tmp_path / "r.bin"

        def commit(self: Committer, *, flush: bool = True) -> None:
            if self._file.path == path and failures:
                failures.pop()
                self._end_failed(None)
                raise CommitFailed(path, "1 entries", OSError(28, "No space left on device"))
            real(self, flush=flush)

        monkeypatch.setattr(Committer, "commit", commit)
        pauses = Pauses()
        async with Master(streamer) as master:
            relay = Relay([master.address], path, port=0, sleep=pauses.sleep)
            async with running(relay):
                await until_it_has(relay, 40)
        assert len(pauses.seconds) == 2
        assert pages(path, 2000) == pages(streamer.path, 2000)

    run(scenario)


def test_an_entry_that_cannot_be_kept(tmp_path: Path) -> None:
    async def scenario(server: ScriptedServer) -> None:
        relay = Relay([server.address], tmp_path / "r.bin", port=0)
        with pytest.raises(EntryNotRelayed) as caught:
            await relay.run()
        assert str(caught.value) == (
            "server: entry 1 cannot be relayed: entry type 0xffffffff: means 'not found' to clients"
        )
        assert relay.committed is not None
        assert relay.committed.total_entries == 0

    with ScriptedServer([Entry(1, 0, b""), Entry(0xFFFFFFFF, 1, b"")]).running() as server:
        run(lambda: scenario(server))


def test_what_it_cannot_open(streamer: DataStreamer, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Master(streamer) as master:
            with pytest.raises(AddressUnavailable, match="cannot listen: Address already in use"):
                await Relay([master.address], tmp_path / "r.bin", *master.address).run()
            DataStreamer.open(tmp_path / "t.bin", initial_pages=1, stream_type=7).close()
            with pytest.raises(WrongStreamType):
                await Relay([master.address], tmp_path / "t.bin", port=0).run()

    run(scenario)


def test_a_link_that_leads_nowhere_waits_for_no_master(tmp_path: Path) -> None:
    path = tmp_path / "r.bin"
    path.symlink_to("away/r.bin")

    async def scenario() -> None:
        with pytest.raises(StreamFileUnavailable, match="there is no file"):
            await Relay([("127.0.0.1", 1)], path, port=0).run()

    run(scenario)


def test_cancelled_while_it_opens_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream is closed again: others may open it."""
    path = tmp_path / "r.bin"
    DataStreamer.open(path, initial_pages=1).close()
    begun, go_on = threading.Event(), threading.Event()
    really_open = DataStreamer.open

    def slowly(*args: Any, **options: Any) -> DataStreamer:
        begun.set()
        assert go_on.wait(30)
        return really_open(*args, **options)

    async def scenario() -> None:
        task = asyncio.ensure_future(Relay([("127.0.0.1", 1)], path, port=0).run())
        await asyncio.to_thread(begun.wait, 30)
        for _ in range(2):  # the second one during the wait for the thread
            task.cancel()
            for _ in range(5):
                await asyncio.sleep(0)
            assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    with monkeypatch.context() as patch:
        patch.setattr(DataStreamer, "open", slowly)
        run(scenario)
    DataStreamer.open(path).close()


# --- damaged pages ------------------------------------------------------------------------------------------


def damaged_relay(tmp_path: Path) -> tuple[Path, Path]:
    """Make the files of a master and of its relay, with page 1 of the relay's damaged."""
    master, relay = tmp_path / "m.bin", tmp_path / "r.bin"
    for path in (master, relay):
        with DataStreamer.open(path) as streamer:
            for number in range(35):
                commit(streamer, bookmark(number), (1, bytes((number,)) * 100_000), flush=True)
            assert streamer.sums.full_count == 3
    with relay.open("r+b") as file:
        file.seek(page_start(1) + 5000)
        file.write(b"rot")
    return master, relay


def test_a_damaged_page_of_a_relay_is_healed_by_its_master(tmp_path: Path) -> None:
    async def scenario() -> None:
        master_path, path = damaged_relay(tmp_path)
        with DataStreamer.open(master_path) as streamer:
            async with Master(streamer) as master:
                relay = Relay([master.address], path, port=0, follow_limits=QUICK)
                async with running(relay):
                    await relay.started.wait()
                    async with StreamClient.connect(*relay.address) as client:
                        await client.start(0)
                        with suppress(ConnectionEnded):
                            async for entry in client.entries():
                                assert entry == streamer.get_entry(entry.number)
                    while relay._streamer is None or relay._streamer.sums.bad:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                    async with StreamClient.connect(*relay.address) as client:
                        await client.start(0)
                        async for entry in client.entries():
                            assert entry == streamer.get_entry(entry.number)
                            if entry.number == streamer.committed.total_entries - 1:
                                break
        assert path.read_bytes() == master_path.read_bytes()

    run(scenario)


def test_a_master_with_other_entries_heals_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        master_path, path = damaged_relay(tmp_path)
        before = path.read_bytes()
        with DataStreamer.open(master_path) as streamer:
            number = streamer.get_bookmark(bookmark(15)[1]) + 1
            streamer.update_entry_data(number, 1, bytes(100_000))
            async with Master(streamer) as master:
                relay = Relay([("127.0.0.1", 1), master.address], path, port=0, follow_limits=QUICK)
                async with running(relay):
                    await relay.started.wait()
                    assert relay._streamer is not None
                    with suppress(PageDamaged):
                        await asyncio.to_thread(relay._streamer.sums.check, 1)
                    while caplog.text.count("is not healed by") < 2:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                    assert list(relay._streamer.sums.bad) == [1]
        assert path.read_bytes() == before

    run(scenario)
