"""A node whose store is away until its disk is full: the usual rules hold, and it goes on afterwards.

SLUICE_LONG=1 keeps the store away for five minutes before the disk is full.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest

from sluice.datastream.file.bookmarks import bookmarks_folder
from sluice.datastream.file.index_database import own_folder
from sluice.gateway.archive.uploader import RESERVE_BYTES
from sluice.gateway.blocks.block import Block
from sluice.gateway.node.node import Node
from tests.disks import small_file_system
from tests.gateway.archive.chains import varied_blocks
from tests.gateway.archive.stores import BUCKET, FaultProxy, as_s3_user, s3_server
from tests.gateway.archive.test_node_faults import words_of
from tests.nodes import AT_ITS_END, Publisher, Wire, running_node, until, wire_to

MIB = 1 << 20
DISK_BYTES = 320 * MIB
CHAIN_BYTES = 560 * MIB
"""More than the disk has, though not more than disk and archive."""
WINDOW_BYTES = 64 * MIB
AWAY_SECONDS = 300.0 if os.environ.get("SLUICE_LONG") == "1" else 1.0


@pytest.fixture(scope="module")
def blocks() -> list[Block]:
    return list(varied_blocks(CHAIN_BYTES, 4))


async def send_until(
    alice: Publisher,
    blocks: list[Block],
    has_enough: Callable[[], bool] = lambda: False,
    pause_seconds: float = 0.0,
) -> int:
    """Send blocks, each after the last acknowledgement; return the next one, or the one that was refused."""
    for block in blocks:
        if has_enough():
            return block.number
        await alice.block(block)
        answer = await alice.answer()
        if answer != f"ack {block.number}":
            assert answer == f"end PERSISTENCE_FAILED last {block.number - 1} about {block.number}"
            await alice.expect("closed")
            return block.number
        await asyncio.sleep(pause_seconds)
    return blocks[-1].number + 1


async def read_local(wire: Wire, block: Block) -> None:
    """Read a block in each way."""
    assert list((await wire.get_block(block.number)).block.items) == list(block.items)
    assert await (await wire.subscribe(block.number, block.number)).rest() == [block, "SUCCESS"]


def fill_up(path: Path, reserve: Path) -> None:
    """Write until there is no room but the reserve, which is not taken when the node uses it."""
    with contextlib.suppress(OSError), path.open("ab", buffering=0) as file:
        while reserve.exists():
            file.write(bytes(4096))


def fill_index(node: Node) -> None:
    """Leave less room in the log of our keys than the note of a segment takes, some 2.4 kB."""
    path = node.store.streamer.path
    log = max(own_folder(bookmarks_folder(path)).glob("*.log"))
    rest = -log.stat().st_size % 4096
    if rest > 200:  # the DB adds some bytes to a note
        node.store.streamer._bookmarks.put_flushed({b"sluice/of-a-test": bytes(rest - 100)})


async def page(node: Node, path: str) -> tuple[int, str]:
    """Ask for a page."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{node.http_address}{path}") as response,
    ):
        return response.status, await response.text()


async def is_ready(node: Node) -> bool:
    """Whether /readyz says so."""
    return (await page(node, "/readyz"))[0] == 200


async def says(node: Node, words: str) -> bool:
    """Whether /readyz says that it is not ready, with these words."""
    status, text = await page(node, "/readyz")
    return status == 503 and words in text


def local_bytes(node: Node) -> int:
    """Return what the stream file takes on the disk."""
    return node.store.streamer.allocated_bytes


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("no_room", [False, True], ids=["some room", "no room for the bookmarks"])
async def test_a_store_that_is_away_until_the_disk_is_full(
    tmp_path: Path, blocks: list[Block], no_room: bool
) -> None:
    with (
        as_s3_user(),
        s3_server() as port,
        FaultProxy(port) as proxy,
        small_file_system(tmp_path / "small", DISK_BYTES),
    ):
        settings = AT_ITS_END | {
            "archive_url": f"s3://{BUCKET}/chain",
            "archive_endpoint": f"http://127.0.0.1:{proxy.port}",
            "archive_local_bytes": WINDOW_BYTES,
            "archive_cache_bytes": MIB,
        }
        async with running_node(tmp_path / "small" / "node", **settings) as node, wire_to(node) as wire:
            remote, sums = node.store.streamer.remote, node.store.streamer.sums
            alice = await wire.publisher("alice")
            number = await send_until(alice, blocks, lambda: sums.full_count >= 80)
            await until(lambda: remote.archived_pages == 64)

            proxy.fault = "503"
            number = await send_until(
                alice, blocks[number:], lambda: sums.full_count >= 150, AWAY_SECONDS / 150
            )
            assert sums.full_count >= 150  # blocks go on
            await until(lambda: "503" in words_of(node))
            for path in ("/", "/status.json"):
                assert "503 Service Unavailable" in (await page(node, path))[1]
            assert await is_ready(node), await page(node, "/readyz")
            proxy.fault = "refused"
            number = await send_until(alice, blocks[number:], lambda: sums.full_count >= 220)
            await until(lambda: says(node, "and the disk is full in"), 0.1)
            number = await send_until(alice, blocks[number:])
            assert number < len(blocks), "the disk did not get full"
            await until(lambda: says(node, "blocks cannot be written: "), 0.1)
            assert remote.archived_pages == 64
            for one in (number - 1, number - 40):
                await read_local(wire, blocks[one])
            late = await wire.publisher("late")
            await late.expect(f"end PERSISTENCE_FAILED last {number - 1} about {number}", "closed")

            reserve = tmp_path / "small" / "node" / "datastream.reserve"
            assert reserve.stat().st_size == RESERVE_BYTES

            def is_reserve_used() -> bool:  # also what a commit that is tried again gives back
                fill_up(tmp_path / "small" / "filler", reserve)
                return not reserve.exists()

            if no_room:
                fill_index(node)
                assert not is_reserve_used()
            proxy.fault = None
            if no_room:
                await until(is_reserve_used, 0.01)
            await until(lambda: is_ready(node), 0.1)
            while number < len(blocks):  # the disk may get full again, where publishing outruns the archive
                await until(lambda: is_ready(node), 0.1)
                bob = await wire.publisher("bob")
                begin, number = number, await send_until(bob, blocks[number:])
                assert number > begin or not await is_ready(node)
            await until(lambda: node.reporter.report().archives[0].behind_pages < 128, 0.1)
            await until(lambda: local_bytes(node) <= WINDOW_BYTES + 128 * MIB, 0.1)
            await until(lambda: "archive" not in words_of(node))
            assert await is_ready(node), await page(node, "/readyz")
            reader = await wire.subscribe(0, len(blocks) - 1)
            for block in blocks:
                assert await reader.next() == block
            assert await reader.rest() == ["SUCCESS"]
