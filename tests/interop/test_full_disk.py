"""A node on a small file system that fills up: what others hear and see, and how it resumes."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from sluice.datastream import DataStreamer, StreamClient
from sluice.datastream.check.check import check_stream
from sluice.datastream.errors import CommitFailed
from sluice.datastream.file.bookmarks import REOPEN_ROOM_BYTES
from sluice.datastream.layout import file_size_of
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.stream_layout import BlockDecoder
from sluice.gateway.node.node import Node
from sluice.gateway.pipeline import group_commit
from sluice.gateway.store.block_store import BlockStore
from sluice.publishers.blocks.maker import BlockMaker, MakerOptions
from tests.datastream.file.test_bookmarks import FailingDatabase
from tests.datastream.streams import Item, bookmark, commit, entries
from tests.disks import small_file_system
from tests.nodes import ANSWER_SECONDS, AT_ITS_END, KEY, Publisher, running_node, stream_bytes, until, wire_to
from tests.publishers.node_thread import store

SIZE_BYTES = 6 << 20
BALLAST_BYTES = 4 << 20
OPTIONS = MakerOptions(rounds_per_block=1, events_per_round=2, transactions_per_block=6, item_bytes=60_000)
BLOCKS = list(BlockMaker(7, KEY, OPTIONS).blocks(24))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 6 MiB, with 4 of them in a file `ballast`."""
    folder = tmp_path / "small"
    with small_file_system(folder, SIZE_BYTES):
        (folder / "ballast").write_bytes(bytes(BALLAST_BYTES))
        yield folder


async def readiness(node: Node) -> tuple[int, str]:
    """Ask /readyz."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{node.http_address}/readyz") as response,
    ):
        return response.status, await response.text()


async def is_ready(node: Node) -> bool:
    """Whether /readyz says so."""
    return (await readiness(node))[0] == 200


async def send_until_full(alice: Publisher) -> int:
    """Send blocks, each after the last acknowledgement; return the one that did not fit."""
    for block in BLOCKS:
        await alice.block(block)
        answer = await alice.answer()
        if answer != f"ack {block.number}":
            assert answer == f"end PERSISTENCE_FAILED last {block.number - 1} about {block.number}"
            return block.number
    pytest.fail("the disk did not get full")


async def read_all(node: Node, count: int) -> list[Block]:
    """Read exactly the first blocks over TCP."""
    decoder, blocks = BlockDecoder(), []
    async with StreamClient.connect(node.tcp_address.host, node.tcp_address.port) as client:
        header = await client.header()
        await client.start(0)
        async with asyncio.timeout(ANSWER_SECONDS):
            async for entry in client.entries():
                stored = decoder.feed(entry.type, entry.data)
                if stored is not None:
                    blocks.append(Block(stored.number, stored.items))
                    if len(blocks) == count:
                        assert header.total_entries == entry.number + 1
                        break
        assert await client.stop() == []
    return blocks


def test_a_disk_that_gets_full(small_disk: Path, tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(small_disk, **AT_ITS_END) as node, wire_to(node) as wire:
            alice, bob = await wire.publisher("alice"), await wire.publisher("bob")
            number = await send_until_full(alice)
            assert 0 < number < len(BLOCKS) - 1
            await alice.expect("closed")
            heard = await bob.answers(number + 2)
            last_words = f"end PERSISTENCE_FAILED last {number - 1} about {number}"
            assert heard == [*(f"ack {one}" for one in range(number)), last_words, "closed"]

            status, text = await readiness(node)
            assert status == 503
            assert text.startswith("blocks cannot be written: ")
            assert text.endswith("No space left on device\n")
            assert (await wire.status()).last_available_block == number - 1
            assert not (await wire.get_block(number)).HasField("block")
            assert await read_all(node, number) == BLOCKS[:number]
            late = await wire.publisher("late")
            await late.expect(last_words, "closed")

            (small_disk / "ballast").unlink()
            await until(lambda: is_ready(node), 0.02)
            carol = await wire.publisher("carol")
            await carol.block(*BLOCKS[number:])
            await carol.expect(*(f"ack {one}" for one in range(number, len(BLOCKS))))
            assert await read_all(node, len(BLOCKS)) == BLOCKS

    asyncio.run(main())
    store = BlockStore.open(small_disk)
    assert store.last_number == BLOCKS[-1].number
    store.close()
    assert stream_bytes(small_disk) == never_full(tmp_path / "good")


async def test_room_for_less_than_the_block_is_no_room(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """2 MB are free; the refused block has 1.6 and takes 2.2, since each item needs a page.

    The node must not report ready, accept the block and refuse it again.
    """
    caplog.set_level(logging.DEBUG, group_commit.__name__)
    options = MakerOptions(
        rounds_per_block=1, events_per_round=2, transactions_per_block=6, item_bytes=800_000
    )
    blocks = list(BlockMaker(7, KEY, options).blocks(2))

    def refusals() -> int:
        return sum(record.message == "the disk still cannot be written" for record in caplog.records)

    async with running_node(small_disk, **AT_ITS_END) as node, wire_to(node) as wire:
        (small_disk / "ballast").unlink()
        alice = await wire.publisher("alice")
        await alice.block(blocks[0])
        await alice.expect("ack 0")
        status = os.statvfs(small_disk)
        free_bytes = status.f_bfree * status.f_frsize
        (small_disk / "ballast").write_bytes(bytes(free_bytes - 2_000_000))
        await alice.block(blocks[1])
        await alice.expect("end PERSISTENCE_FAILED last 0 about 1", "closed")
        await until(lambda: refusals() >= 3)
        late = await wire.publisher("late")
        await late.expect("end PERSISTENCE_FAILED last 0 about 1", "closed")
        (small_disk / "ballast").unlink()
        await until(lambda: is_ready(node), 0.02)
        carol = await wire.publisher("carol")
        await carol.block(blocks[1])
        await carol.expect("ack 1")
    assert [record.message for record in caplog.records].count("commit failed") == 1


def fill_up(path: Path) -> None:
    """Write until there is no room."""
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


async def test_a_standby_whose_disk_is_full_says_it_once_and_goes_on_when_there_is_room(
    small_disk: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It must not subscribe to every peer each second, with warnings each time."""
    caplog.set_level(logging.INFO)
    store(tmp_path / "active", BLOCKS)

    def count(message: str) -> int:
        return sum(record.message == message for record in caplog.records)

    async with AsyncExitStack() as stack:
        active = await stack.enter_async_context(running_node(tmp_path / "active"))
        settings = {"catchup_backoff_seconds": 0.1, "role": "standby", "peers": (active.grpc_address,)}
        node = await stack.enter_async_context(running_node(small_disk, **settings))
        await until(lambda: count("peer dropped"))
        before = count("subscribing to a peer")
        await asyncio.sleep(1.4)
        assert count("subscribing to a peer") - before <= 5, "0.1, 0.2, 0.4, 0.8 s"
        await until(lambda: count("subscribing to a peer") - before >= 3)
        assert count("peer dropped") == 1
        (small_disk / "ballast").unlink()
        await until(lambda: node.store.last_number == BLOCKS[-1].number)
    warnings = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    for message in ("commit failed", "peer dropped", "the disk still cannot be written"):
        assert warnings.count(message) == 1, message


def test_a_node_that_stops_on_a_full_disk_starts_again(small_disk: Path, tmp_path: Path) -> None:
    """It could write neither the snapshot nor the bookmarks at its end."""

    async def fill() -> int:
        async with running_node(small_disk, **AT_ITS_END) as node, wire_to(node) as wire:
            number = await send_until_full(await wire.publisher("alice"))
            with pytest.raises(OSError, match="No space left"):
                fill_up(small_disk / "filler")
            return number

    async def go_on(number: int) -> None:
        async with running_node(small_disk, **AT_ITS_END) as node, wire_to(node) as wire:
            assert (await wire.status()).last_available_block == number - 1
            alice = await wire.publisher("alice")
            await alice.block(*BLOCKS[number:])
            await alice.expect(*(f"ack {one}" for one in range(number, len(BLOCKS))))

    number = asyncio.run(fill())
    (small_disk / "ballast").unlink()
    (small_disk / "filler").unlink()
    asyncio.run(go_on(number))
    assert stream_bytes(small_disk) == never_full(tmp_path / "good")


def test_a_streamer_whose_commits_are_not_flushed(small_disk: Path) -> None:
    """Its pages are mapped, yet a full disk is only an error of the commit."""
    path, event = small_disk / "s.bin", (1, b"x" * 5000)
    items: list[Item] = []
    with DataStreamer.open(path, initial_pages=16) as streamer:

        def commit_one() -> None:
            added = bookmark(len(items)), event
            commit(streamer, *added, flush=False)
            items.extend(added)

        def commit_until_full() -> None:
            while True:
                commit_one()

        with pytest.raises(CommitFailed, match="at step 1 entries: No space left on device"):
            commit_until_full()
        assert len(items) > 100
        assert list(streamer.read_entries(0)) == entries(*items)
        assert os.fstat(streamer.fileno()).st_size == file_size_of(16)

        (small_disk / "ballast").unlink()
        for _ in range(300):
            commit_one()
    assert check_stream(path).findings == []
    with DataStreamer.open(path) as streamer:
        assert list(streamer.read_entries(0)) == entries(*items)


def test_bookmarks_are_found_while_there_is_no_room_for_their_database(small_disk: Path) -> None:
    """After a failed write LevelDB must reopen, which a full disk refuses.

    Bookmarks must be found until there is room.
    """
    path, state = small_disk / "s.bin", {"open_fails": False, "write_fails": False}
    with DataStreamer.open(path, open_database=lambda folder: FailingDatabase(folder, state)) as streamer:
        commit(streamer, bookmark(0), (1, b"first"), flush=True)
        state.update(write_fails=True)
        commit(streamer, bookmark(1), (1, b"second"), flush=True)
        state.update(write_fails=False)
        filler = small_disk / "filler"
        with pytest.raises(OSError, match="No space left"):
            fill_up(filler)
        size_bytes = filler.stat().st_size
        for free_bytes in (0, REOPEN_ROOM_BYTES - 4096):
            os.truncate(filler, size_bytes - free_bytes)
            with pytest.raises(CommitFailed, match=r"at step 0a repair: .*No space left on device"):
                commit(streamer, bookmark(2), flush=True)
            assert [streamer.get_bookmark(bookmark(number)[1]) for number in (0, 1)] == [0, 2]
        os.truncate(filler, size_bytes - REOPEN_ROOM_BYTES - (64 << 10))
        commit(streamer, bookmark(2), flush=True)
        assert [streamer.get_bookmark(bookmark(number)[1]) for number in (0, 1, 2)] == [0, 2, 4]
    with DataStreamer.open(path) as streamer:
        assert [streamer.get_bookmark(bookmark(number)[1]) for number in (0, 1, 2)] == [0, 2, 4]


def never_full(data_dir: Path) -> bytes:
    """The stream file of a node that never failed."""

    async def main() -> None:
        async with running_node(data_dir) as node, wire_to(node) as wire:
            alice = await wire.publisher("alice")
            await alice.block(*BLOCKS)
            await alice.expect(*(f"ack {block.number}" for block in BLOCKS))

    asyncio.run(main())
    return stream_bytes(data_dir)
