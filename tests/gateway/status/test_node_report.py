"""Tests of `gateway.status.node_report` on a real node: what it says of itself, to whom."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from datastream import StreamClient
from gateway.addresses import Address
from gateway.node.node import Node
from gateway.status import node_report as node_account
from tests.nodes import ANSWER_SECONDS, make_blocks, running_node, wire_to

BLOCKS = make_blocks(2)


def test_what_the_status_commands_are_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, wire_to(node) as wire:
            await wire.publisher("alice")
            await wire.subscribe(0)
            async with StreamClient.connect(node.tcp_address.host, node.tcp_address.port) as client:
                await client.header()
                facts = node.report.facts()
            assert facts.pop("instance")
            assert facts == {
                "role": "active",
                "verification_mode": "full",
                "ready": True,
                "publishers": 1,
                "subscribers": 1,
                "tcp_clients": 1,
                "missing_blocks": 0,
                "awaiting_standbys": 0,
            }
            # With the port that it has got: 0 would lead nobody to it.
            assert node.report.control_facts() == (str(node.grpc_address), "", 1, "full", [])

    asyncio.run(main())


def test_operators_are_told_the_address_that_others_use(tmp_path: Path) -> None:
    async def main() -> None:
        advertised = Address("node-a.example", 40840)
        async with running_node(tmp_path, grpc_advertised_address=advertised) as node:
            assert node.report.control_facts()[:2] == ("node-a.example:40840", "")
        everywhere = {"subscriber_address": Address("0.0.0.0", 0), "grpc_advertised_address": advertised}
        async with running_node(tmp_path, **everywhere) as node:
            port = node.subscriber_address.port
            assert port
            assert node.report.control_facts()[:2] == ("node-a.example:40840", f"node-a.example:{port}")
        async with running_node(tmp_path, subscriber_address=Address("127.0.0.1", 0)) as node:
            assert node.report.control_facts()[:2] == (str(node.grpc_address), str(node.subscriber_address))

    asyncio.run(main())


def test_bytes_sent_over_tcp_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_account, "HEALTH_CHECK_SECONDS", 0.01)

    async def main() -> None:
        async with running_node(tmp_path) as node, wire_to(node) as wire:
            alice = await wire.publisher("alice")
            await alice.block(*BLOCKS)
            await alice.expect(*(f"ack {number}" for number in range(2)))
            await read_over_tcp(node, len(BLOCKS))
            total_bytes = sum(block.size_bytes for block in BLOCKS)
            async with asyncio.timeout(ANSWER_SECONDS):
                while _value(node, "sluice_tcp_sent_bytes_total") < total_bytes:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert _value(node, "sluice_last_block") == 1

    asyncio.run(main())


async def read_over_tcp(node: Node, block_count: int) -> None:
    """Read that many blocks, two bookmarks and one end each, as a data-streamer client."""
    left = sum(len(block.items) + 3 for block in BLOCKS[:block_count])
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
    """A metric; 0 for one that was never counted."""
    return node.metrics.registry.get_sample_value(name) or 0
