"""A node with a rolling history: old blocks are gone, and whoever asks for one hears it."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from sluice.datastream.check.check import check_stream
from sluice.datastream.client.client import StreamClient
from sluice.datastream.errors import CommandRefused
from sluice.gateway.api import node_pb2
from sluice.gateway.errors import SettingError
from tests.gateway.archive.chains import BLOCKS, blocks_of_a_page
from tests.gateway.cluster.test_peer_follower import FAST, peers, until_block
from tests.nodes import ANSWER_SECONDS, running_node, until, wire_to

MIB = 1 << 20
KEPT = 100
SECONDS = 60


async def test_a_rolling_node_answers_for_what_it_has_and_says_what_is_gone(
    folder: Path, tmp_path: Path
) -> None:
    blocks = list(blocks_of_a_page())
    rolling = {"history_keep_blocks": KEPT}
    async with running_node(folder, **rolling) as node, wire_to(node) as wire:
        store = node.store
        async with asyncio.timeout(SECONDS):
            await until(lambda: store.first_available == BLOCKS - KEPT)
        first = store.first_available
        assert first is not None
        status = await wire.status()
        assert (status.first_available_block, status.last_available_block) == (first, BLOCKS - 1)
        codes = node_pb2.BlockResponse.Code
        assert (await wire.get_block(first - 1)).status == codes.NOT_AVAILABLE
        assert list((await wire.get_block(first)).block.items) == list(blocks[first].items)
        assert await (await wire.subscribe(first - 1, first)).rest() == ["INVALID_START_BLOCK_NUMBER"]
        assert await (await wire.subscribe(first, first + 2)).rest() == [
            *blocks[first : first + 3],
            "SUCCESS",
        ]
        address = node.tcp_address
        async with StreamClient.connect(address.host, address.port) as client, asyncio.timeout(SECONDS):
            with pytest.raises(CommandRefused, match="from entry"):
                await client.start(40)
            await client.start(store.entry_of(first))
            entry = await anext(aiter(client.entries()))
            assert entry.number == store.entry_of(first)
    async with running_node(folder, **rolling) as node, wire_to(node) as wire:
        assert node.store.first_available == first
        settings = FAST | {"peers": peers(node.grpc_address), "role": "standby", "first_block": "any"}
        async with running_node(tmp_path / "empty", **settings) as second:
            async with asyncio.timeout(ANSWER_SECONDS):
                await until(lambda: second.following.problem is not None)
            assert "gone for good" in str(second.following.problem)
        assert (await wire.get_block(first)).block.items
    shutil.copytree(folder, tmp_path / "copy")
    async with running_node(folder, **rolling) as node:
        settings = FAST | {"peers": peers(node.grpc_address), "role": "standby"}
        async with running_node(tmp_path / "copy", **settings) as second:
            await until_block(second, BLOCKS - 1)
            assert second.store.first_available == first
    assert check_stream(folder / "datastream.bin").is_sound


async def test_an_archive_and_a_rolling_history_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"archive\.local_bytes"):
        async with running_node(tmp_path, history_keep_bytes=MIB, archive_url=f"file://{tmp_path}/archive"):
            pass
