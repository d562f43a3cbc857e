"""Tests of `status.page_facts` on a real node: the page shows what publishers and readers are doing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.node.node import Node
from tests.nodes import make_blocks, running_node, wire_to

BLOCKS = make_blocks(4)


async def facts(node: Node) -> dict[str, object]:
    """Ask for /status.json."""
    url = f"http://{node.http_address}/status.json"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        assert answer.status == 200
        found: dict[str, object] = await answer.json()
        return found


def test_of_very_many_streams_the_page_shows_some_and_those_first_that_somebody_vouches_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.status.page_facts.PUBLISHERS_SHOWN", 3)

    async def main() -> None:
        async with running_node(tmp_path) as node, wire_to(node) as wire:
            for name in "abcd":
                await wire.publisher(name)
            node.conductor.connect("CN=alice", address="192.0.2.1", has_certificate=True)
            shown: Any = (await facts(node))["publishers"]
            assert [one["name"] for one in shown] == [
                "CN=alice",
                "claimed:a",
                "claimed:b",
                "and 2 more streams",
            ]

    asyncio.run(main())


def test_the_status_follows_what_happens(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, wire_to(node) as wire:
            empty = await facts(node)
            assert (empty["last_block"], empty["last_block_age_seconds"], empty["race"]) == (None, None, [])
            alice, bob = await wire.publisher("alice"), await wire.publisher("bob")
            await alice.block(BLOCKS[0])
            await alice.expect("ack 0")
            await bob.expect("ack 0")
            await alice.items(BLOCKS[1].items[0])
            await wire.begun(1)
            await bob.block(BLOCKS[1])
            await bob.expect("skip 1")
            busy = await facts(node)
            assert busy["phase"] == "active"
            assert busy["last_block"] == 0
            assert busy["last_root_hash"] == (node.store.root_hash_at(0) or b"").hex()
            assert busy["winners"] == [["claimed:alice", 1]]
            assert busy["publishers"] == [
                {"name": "claimed:alice", "doing": "sends block 1"},
                {"name": "claimed:bob", "doing": "comes to block 2 next"},
            ]
            assert busy["inflight_bytes"]
            carol = await wire.publisher("carol")
            await alice.call.done_writing()
            await bob.expect("resend 1")
            doing = (await facts(node))["publishers"]
            assert doing == [
                {"name": "claimed:bob", "doing": "was asked for block 1"},
                {"name": "claimed:carol", "doing": "has sent nothing yet"},
            ]
            await carol.items(BLOCKS[3].items[0])
            await carol.expect("behind 0")
            doing = (await facts(node))["publishers"]
            assert doing == [
                {"name": "claimed:bob", "doing": "was asked for block 1"},
                {"name": "claimed:carol", "doing": "is ahead: block 1 is next"},
            ]

    asyncio.run(main())


def test_the_page_is_served(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, aiohttp.ClientSession() as session:
            async with session.get(f"http://{node.http_address}/") as answer:
                page = await answer.text()
            assert "The node holds no block yet." in page
            assert str(node.grpc_address) in page

    asyncio.run(main())
