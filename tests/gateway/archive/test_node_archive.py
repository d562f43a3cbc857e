"""A node with an archive: old pages leave the disk, and every reader still gets every byte."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner

from sluice.datastream.client.client import StreamClient
from sluice.datastream.errors import CommandRefused, EntriesArchived
from sluice.datastream.layout import Entry
from sluice.gateway.api import node_pb2
from sluice.gateway.commands import truncate
from sluice.gateway.node.node import Node
from tests.gateway.archive.chains import ARCHIVED_PAGES, BLOCKS, archive, blocks_of_a_page
from tests.gateway.cluster.test_peer_follower import FAST, peers, until_block
from tests.gateway.store.test_block_store import verified
from tests.nodes import running_node, until, wire_to

MIB = 1 << 20
SECONDS = 60


async def until_given_up(node: Node) -> None:
    remote = node.store.streamer.remote
    async with asyncio.timeout(SECONDS):
        await until(lambda: remote.archived_pages == ARCHIVED_PAGES and remote.end >= 120)


async def entries_over_tcp(node: Node, count: int) -> list[Entry]:
    address = node.tcp_address
    async with StreamClient.connect(address.host, address.port) as client, asyncio.timeout(SECONDS):
        await client.start(0)
        got = []
        async for entry in client.entries():
            got.append(entry)
            if len(got) == count:
                return got
    return got


async def test_readers_get_what_is_only_in_the_archive(folder: Path, tmp_path: Path) -> None:
    archive = {
        "archive_url": f"file://{tmp_path}/archive",
        "archive_local_bytes": 64 * MIB,
        "archive_cache_bytes": 64 * MIB,
    }
    blocks = list(blocks_of_a_page())
    size_bytes = (folder / "datastream.bin").stat().st_blocks * 512
    async with running_node(folder, **archive) as node, wire_to(node) as wire:
        streamer = node.store.streamer
        expected = list(streamer.read_entries(0))
        await until_given_up(node)
        await until(lambda: streamer.allocated_bytes < size_bytes - 110 * MIB)
        assert await entries_over_tcp(node, len(expected)) == expected
        reader = await wire.subscribe(0, BLOCKS - 1)
        assert await reader.rest() == [*blocks, "SUCCESS"]
        for number in (0, 77, BLOCKS - 1):
            assert list((await wire.get_block(number)).block.items) == list(blocks[number].items)
        assert 0 < streamer.remote.cached_count <= 64
        assert node.store.root_hash_at(3) == verified(blocks[3]).root_hash
        assert not [finding for finding in node.reporter.report().findings if "archive" in finding.text]
    async with running_node(folder, **archive) as node:
        assert node.store.streamer.remote.end >= 120
        assert await entries_over_tcp(node, len(expected)) == expected


def test_what_is_archived_is_not_truncated(folder: Path, tmp_path: Path) -> None:
    archive(folder, tmp_path / "archive")
    before = sorted(path.name for path in folder.iterdir())
    result = CliRunner().invoke(truncate.command, [str(folder), "--to-block", "150", "--yes"])
    assert isinstance(result.exception, EntriesArchived)
    assert sorted(path.name for path in folder.iterdir()) == before
    result = CliRunner().invoke(truncate.command, [str(folder), "--to-block", "193", "--yes"])
    assert (result.exit_code, "ends with block 193" in result.output) == (0, True), result.output


async def test_a_store_that_is_away_is_an_answer_and_local_pages_are_served(
    folder: Path, tmp_path: Path
) -> None:
    archive = {"archive_url": f"file://{tmp_path}/archive", "archive_local_bytes": 64 * MIB}
    async with running_node(folder, **archive) as node:
        await until_given_up(node)
        expected = list(node.store.streamer.read_entries(0, 40))
    (tmp_path / "archive" / "segments").rename(tmp_path / "away")
    async with running_node(folder, **archive) as node, wire_to(node) as wire:
        last = node.store.streamer.committed.total_entries - 1
        address = node.tcp_address
        async with StreamClient.connect(address.host, address.port) as client, asyncio.timeout(SECONDS):
            assert (await client.entry(last)).number == last
            with pytest.raises(CommandRefused):
                await client.entry(20)
        answer = await wire.get_block(20)
        assert answer.status == node_pb2.BlockResponse.Code.NOT_AVAILABLE
        assert await (await wire.subscribe(20, 21)).rest() == ["NOT_AVAILABLE"]
        assert (await wire.get_block(BLOCKS - 1)).block.items
        assert "no such object" in "".join(one.text for one in node.reporter.report().findings)
        (tmp_path / "away").rename(tmp_path / "archive" / "segments")
        async with StreamClient.connect(address.host, address.port) as client, asyncio.timeout(SECONDS):
            assert await client.entry(20) == expected[20]


async def test_a_new_node_begins_with_the_archive_and_proves_what_it_serves(
    folder: Path, tmp_path: Path
) -> None:
    archive = {"archive_url": f"file://{tmp_path}/archive", "archive_cache_bytes": 64 * MIB}
    async with running_node(folder, **archive) as node:
        await until(lambda: node.store.streamer.remote.archived_pages == ARCHIVED_PAGES)
        expected = list(node.store.streamer.read_entries(0))
        address = node.grpc_address
        new = tmp_path / "new"
        settings = FAST | archive | {"peers": peers(address), "role": "standby"}
        async with running_node(new, **settings) as second, wire_to(second) as wire:
            streamer = second.store.streamer
            assert streamer.remote.end == 128
            assert streamer.allocated_bytes < 80 * MIB
            blocks = list(blocks_of_a_page())
            assert list((await wire.get_block(77)).block.items) == list(blocks[77].items)
            await until_block(second, BLOCKS - 1)
            assert await entries_over_tcp(second, len(expected)) == expected
            assert second.following.problem is None
    async with running_node(new, **archive) as second:
        assert await entries_over_tcp(second, len(expected)) == expected
