"""Peers whose blocks have items that are longer than this node takes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.blocks.block import Block
from gateway.blocks.items import field_item
from tests.gateway.cluster.test_peer_follower import BLOCKS, FAST, peers, until
from tests.gateway.fake_peer import fake_peer
from tests.nodes import running_node


def test_a_block_of_a_peer_that_is_too_long_says_what_to_change_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From peers at least the default is taken, so that is made small here."""
    monkeypatch.setattr("gateway.node.node.MESSAGE_BYTES_DEFAULT", 64 * 1024)
    large = Block(0, (*BLOCKS[0].items[:1], field_item(4, bytes(5_000_000)), *BLOCKS[0].items[1:]))

    async def scenario() -> None:
        async with fake_peer([large]) as peer:
            settings = FAST | {"catchup_max_stalled_attempts": 2, "grpc_max_message_bytes": 1_000_000}
            async with running_node(tmp_path, **settings, peers=peers(peer.address)) as node:
                await until(lambda: node.following.problem is not None)
                assert node.following.problem is not None
                assert "expected at most 1000000; raise grpc.max_message_bytes of this node" in (
                    node.following.problem
                )

    asyncio.run(scenario())
