"""Tests of `gateway.status.reporter` on a real node."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp

from sluice.datastream import StreamClient
from sluice.gateway.addresses import Address
from sluice.gateway.node.node import Node
from sluice.gateway.node.rules import NodeLimits
from tests.nodes import ANSWER_SECONDS, make_blocks, running_node, wire_to
from tests.serving import free_port

BLOCKS = make_blocks(4)


async def test_what_the_status_commands_are_told(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, wire_to(node) as wire:
        await wire.publisher("alice")
        await wire.subscribe(0)
        async with StreamClient.connect(node.tcp_address.host, node.tcp_address.port) as client:
            await client.header()
            report = node.reporter.status_report()
        assert report.pop("instance")
        assert report == {
            "role": "active",
            "verification_mode": "full",
            "stream_layout": None,
            "rolling": False,
            "ready": True,
            "publishers": 1,
            "subscribers": 1,
            "tcp_clients": 1,
            "missing_blocks": 0,
            "awaiting_standbys": 0,
            "http_address": str(node.http_address),
            "cluster": {"one_active": False, "hears": None, "active_seconds_ago": 0.0, "faults": []},
        }
        # With the real port.
        addresses = node.reporter.report()
        assert (addresses.grpc_address, addresses.subscriber_address) == (str(node.grpc_address), "")


def where(node: Node) -> tuple[str, str]:
    """Return the node's advertised addresses for publishers and subscribers."""
    report = node.reporter.report()
    return report.grpc_address, report.subscriber_address


async def test_operators_are_told_the_address_that_others_use(tmp_path: Path) -> None:
    advertised = Address("node-a.example", 40840)
    async with running_node(tmp_path, grpc_advertised_address=advertised) as node:
        assert where(node) == ("node-a.example:40840", "")
    everywhere = {"subscriber_address": Address("0.0.0.0", 0), "grpc_advertised_address": advertised}
    async with running_node(tmp_path, **everywhere) as node:
        port = node.subscriber_address.port
        assert port
        assert where(node) == ("node-a.example:40840", f"node-a.example:{port}")
    async with running_node(tmp_path, subscriber_address=Address("127.0.0.1", 0)) as node:
        assert where(node) == (str(node.grpc_address), str(node.subscriber_address))


async def test_a_node_is_no_peer_of_itself(tmp_path: Path) -> None:
    """All nodes of a cluster may have one configuration."""
    own, other = Address("127.0.0.1", free_port()), Address("127.0.0.1", 1)
    async with running_node(tmp_path, grpc_address=own, peers=(own, other)) as node:
        assert node.reporter.report().peers == (str(other),)
    async with running_node(tmp_path, grpc_address=own, peers=(own,)) as node:
        assert node.reporter.report().peers == ()


async def test_bytes_sent_over_tcp_are_counted(tmp_path: Path) -> None:
    limits = NodeLimits(health_check_seconds=0.01)
    async with running_node(tmp_path, limits) as node, wire_to(node) as wire:
        alice = await wire.publisher("alice")
        await alice.block(*BLOCKS[:2])
        await alice.expect(*(f"ack {number}" for number in range(2)))
        await read_over_tcp(node, 2)
        total_bytes = sum(block.size_bytes for block in BLOCKS[:2])
        async with asyncio.timeout(ANSWER_SECONDS):
            while _value(node, "sluice_tcp_sent_bytes_total") < total_bytes:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert _value(node, "sluice_last_block") == 1


async def read_over_tcp(node: Node, block_count: int) -> None:
    """Read the entries of so many blocks as a data-streamer client."""
    left = sum(len(block.items) + 2 for block in BLOCKS[:block_count])
    async with (
        StreamClient.connect(node.tcp_address.host, node.tcp_address.port) as client,
        asyncio.timeout(ANSWER_SECONDS),
    ):
        await client.start(0)
        async for _ in client.entries():
            left -= 1
            if not left:
                return


def _value(node: Node, name: str) -> float:
    return node.metrics.registry.get_sample_value(name) or 0


async def page_report(node: Node) -> dict[str, object]:
    url = f"http://{node.http_address}/status.json"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        assert answer.status == 200
        found: dict[str, object] = await answer.json()
        return found


async def test_of_very_many_streams_the_page_shows_some_and_those_first_that_somebody_vouches_for(
    tmp_path: Path,
) -> None:
    limits = NodeLimits(publishers_shown=3)
    async with running_node(tmp_path, limits) as node, wire_to(node) as wire:
        for name in "abcd":
            await wire.publisher(name)
        node.conductor.connect("CN=alice", address="192.0.2.1", has_certificate=True)
        shown: Any = (await page_report(node))["publishers"]
        assert [one["name"] for one in shown] == [
            "CN=alice",
            "claimed:a",
            "claimed:b",
            "and 2 more streams",
        ]


async def test_the_status_follows_what_happens(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, wire_to(node) as wire:
        empty = await page_report(node)
        assert (empty["last_block"], empty["last_block_age_seconds"], empty["race"]) == (None, None, [])
        alice, bob = await wire.publisher("alice"), await wire.publisher("bob")
        await alice.block(BLOCKS[0])
        await alice.expect("ack 0")
        await bob.expect("ack 0")
        await alice.items(BLOCKS[1].items[0])
        await wire.begun(1)
        await bob.block(BLOCKS[1])
        await bob.expect("skip 1")
        busy = await page_report(node)
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
        doing = (await page_report(node))["publishers"]
        assert doing == [
            {"name": "claimed:bob", "doing": "was asked for block 1"},
            {"name": "claimed:carol", "doing": "has sent nothing yet"},
        ]
        await carol.items(BLOCKS[3].items[0])
        await carol.expect("behind 0")
        doing = (await page_report(node))["publishers"]
        assert doing == [
            {"name": "claimed:bob", "doing": "was asked for block 1"},
            {"name": "claimed:carol", "doing": "is ahead: block 1 is next"},
        ]


async def test_the_page_is_served(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, aiohttp.ClientSession() as session:
        async with session.get(f"http://{node.http_address}/") as answer:
            page = await answer.text()
        assert "The node holds no block yet." in page
        assert str(node.grpc_address) in page
