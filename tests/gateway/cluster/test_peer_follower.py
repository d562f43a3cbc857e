"""Following peers over real gRPC: real nodes, and peers that lie, stall and vanish."""

from __future__ import annotations

import asyncio
import logging
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from sluice.gateway.addresses import Address, parse_address
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.items import field_item
from sluice.gateway.cluster.catch_up import CatchUp
from sluice.gateway.cluster.limits import ClusterLimits
from sluice.gateway.cluster.peer_follower import PeerFollower
from sluice.gateway.node.node import Node
from sluice.gateway.node.rules import NodeLimits
from sluice.gateway.pipeline.conductor import Conductor
from sluice.publishers.blocks.maker import key_of_seed
from tests.certificates import Authority
from tests.gateway.fake_peer import (
    Code,
    FakePeer,
    Response,
    end_of,
    fake_peer,
    give_up_soon,
    items_of,
    says,
    silent,
    whole,
)
from tests.gateway.store.test_block_store import logged
from tests.nodes import ANSWER_SECONDS, Request, make_blocks, running_node, stream_bytes, wire_to
from tests.publishers.node_thread import store
from tests.serving import free_port

BLOCKS = make_blocks(30)
STRANGE = make_blocks(30, seed=8)
"""Another chain, signed with the same key."""
FORGED = make_blocks(30, key=key_of_seed(8))
"""The same chain, signed with an unknown key."""
FAST: dict[str, Any] = {
    "catchup_backoff_seconds": 0.02,
    "catchup_max_backoff_seconds": 0.2,
    "catchup_stall_seconds": 0.2,
}
# On a busy machine, too, no peer is given up for its silence.
CALM = FAST | {"catchup_stall_seconds": 60.0}
# A peer that was left is not tried again.
LEFT = CALM | {"catchup_backoff_seconds": 30.0, "catchup_max_backoff_seconds": 60.0}
NOWHERE = Address("127.0.0.1", 1)


async def until(condition: Callable[[], bool]) -> None:
    """Poll until the condition holds."""
    async with asyncio.timeout(ANSWER_SECONDS):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def until_block(node: Node, number: int) -> None:
    """Wait until the node has committed the block."""
    await until(lambda: node.store.last_number is not None and node.store.last_number >= number)


def peers(*addresses: str | Address) -> tuple[Address, ...]:
    """Return the setting `peers`."""
    return tuple(parse_address(str(address)) for address in addresses)


async def test_an_empty_node_fills_itself_from_a_peer_and_has_the_same_bytes(tmp_path: Path) -> None:
    async with running_node(tmp_path / "a") as first, wire_to(first) as wire:
        publisher = await wire.publisher()
        await publisher.block(*BLOCKS[:20])
        await publisher.answers(20)
        settings = FAST | {"peers": peers(NOWHERE, first.grpc_address)}
        async with running_node(tmp_path / "b", **settings) as second:
            await until_block(second, 19)
            assert second.following.problem is None
            assert second.following.distance == 0
    assert stream_bytes(tmp_path / "a") == stream_bytes(tmp_path / "b")


async def test_a_node_that_fills_itself_from_a_stream_of_layout_1_goes_on_in_that_layout(
    tmp_path: Path,
) -> None:
    store(tmp_path / "a", BLOCKS[:10], layout=1)
    async with running_node(tmp_path / "a") as first:
        settings = FAST | {"peers": peers(first.grpc_address)}
        async with (
            running_node(tmp_path / "b", **settings) as second,
            wire_to(first) as to_first,
            wire_to(second) as to_second,
        ):
            await until_block(second, 9)
            for wire in (to_first, to_second):
                publisher = await wire.publisher()
                await publisher.block(*BLOCKS[10:12])
                await publisher.answers(2)
            assert first.store.layout == second.store.layout == 1
    assert stream_bytes(tmp_path / "a") == stream_bytes(tmp_path / "b")


async def test_a_peer_whose_stream_has_another_layout_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store(tmp_path / "a", BLOCKS[:10], layout=1)
    store(tmp_path / "b", BLOCKS[:2])
    async with running_node(tmp_path / "a") as first:
        settings = FAST | {"peers": peers(first.grpc_address)}
        async with running_node(tmp_path / "b", **settings) as second:
            async with wire_to(second) as wire:
                publisher = await wire.publisher()
                await publisher.block(BLOCKS[12])
                await publisher.expect("behind 1")
                await until_block(second, 9)
            assert second.store.layout == 2
    text = "a peer's stream has another layout: there, entries have other numbers"
    assert logged(caplog, text)[0]["got"] == 1


async def test_an_empty_node_does_not_follow_a_stream_of_a_layout_that_it_does_not_know(
    tmp_path: Path,
) -> None:
    store(tmp_path / "a", BLOCKS[:10])
    async with running_node(tmp_path / "a") as first:
        first.store.layout = 9
        settings = FAST | {"peers": peers(first.grpc_address), "role": "standby"}
        async with running_node(tmp_path / "b", **settings) as second:
            await until(lambda: second.following.problem is not None)
            assert "its stream has layout 9, and this version knows 1, 2, 3" in str(second.following.problem)
            assert second.store.last_number is None


async def test_a_node_that_is_told_of_later_blocks_gets_those_between_and_goes_on_with_publishers(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as stack:
        peer = await stack.enter_async_context(fake_peer(BLOCKS[:18]))
        node = await stack.enter_async_context(running_node(tmp_path, **CALM, peers=peers(peer.address)))
        wire = await stack.enter_async_context(wire_to(node))
        await until_block(node, 17)  # it was empty
        peer.blocks, peer.last = BLOCKS[:25], 24
        publisher = await wire.publisher()
        await publisher.block(BLOCKS[25])
        await publisher.expect("behind 17")
        await until_block(node, 24)
        assert peer.asked == [(0, 17), (18, 24)]
        await publisher.block(*BLOCKS[25:])
        await publisher.expect(*[f"ack {number}" for number in range(18, 30)])
        assert (await wire.status()).last_available_block == 29


async def test_the_range_of_a_publisher_that_leaves_is_a_target_too(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        peer = await stack.enter_async_context(fake_peer([]))
        node = await stack.enter_async_context(running_node(tmp_path, **CALM, peers=peers(peer.address)))
        wire = await stack.enter_async_context(wire_to(node))
        publisher = await wire.publisher()
        await publisher.block(BLOCKS[0])
        await publisher.expect("ack 0")
        peer.blocks, peer.last = BLOCKS[:20], 19
        await publisher.end_stream(Request.EndStream.Code.TOO_FAR_BEHIND, 12, 15)
        await until_block(node, 15)
        assert peer.asked == [(1, 15)]
        assert node.store.last_number == 15, "no further than it was told"


def spoiled(block: Block) -> Block:
    """Return the block with one altered item."""
    items = list(block.items)
    items[3] = field_item(4, b"not what was signed")
    return Block(block.number, tuple(items))


LIES = {
    "bad hash": (whole(*BLOCKS[:2], spoiled(BLOCKS[2]), *BLOCKS[3:]), "bad proof"),
    "wrong link": (
        whole(*BLOCKS[:2], STRANGE[2], *BLOCKS[3:]),
        "block footer field 1 (previous_block_root_hash)",
    ),
    "bad proof": (whole(*BLOCKS[:2], FORGED[2], *BLOCKS[3:]), "bad proof"),
    "a block is missing": (
        whole(*BLOCKS[:2], *BLOCKS[3:]),
        "subscription, before block 2: got the header of block 3, expected that of block 2",
    ),
    "a set spans blocks": (
        [*whole(*BLOCKS[:2]), items_of(*BLOCKS[2].items, *BLOCKS[3].items), end_of(3)],
        "subscription, before block 2: item set: got a second header as item 16",
    ),
    "no header": (
        [*whole(*BLOCKS[:2]), items_of(*BLOCKS[2].items[1:])],
        "subscription, before block 2: got items without a header before them",
    ),
    "another end": (
        [*whole(*BLOCKS[:2]), items_of(*BLOCKS[2].items), end_of(3)],
        "subscription, in block 2: got end_of_block(3), expected end_of_block(2)",
    ),
    "no message": (
        [*whole(*BLOCKS[:2]), Response()],
        "subscription, before block 2: got a message of no known",
    ),
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_peer_that_lies_is_left_for_another_and_nothing_of_it_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, lie: str
) -> None:
    responses, reason = LIES[lie]

    caplog.set_level(logging.WARNING)
    async with AsyncExitStack() as stack:
        liar = await stack.enter_async_context(fake_peer(BLOCKS, says(*responses)))
        honest = await stack.enter_async_context(fake_peer(BLOCKS))
        both = peers(liar.address, honest.address)
        node = await stack.enter_async_context(running_node(tmp_path, **LEFT, peers=both))
        await until_block(node, 29)
        assert liar.asked == [(0, 29)]
        assert honest.asked == [(2, 29)]
    [dropped] = logged(caplog, "peer dropped")
    assert dropped["outcome"] == "the peer sent what cannot be"
    assert reason in dropped["reason"]


async def cut_off(peer: FakePeer, start: int, end: int) -> AsyncIterator[Response]:
    for response in whole(*peer.blocks[start : start + 2]):
        yield response
    yield items_of(*peer.blocks[start + 2].items[:4])


async def stalls(peer: FakePeer, start: int, end: int) -> AsyncIterator[Response]:
    """Send the same, then stay silent."""
    async for response in cut_off(peer, start, end):
        yield response
    await asyncio.Event().wait()


def fails_with(code: Code.ValueType) -> Any:
    return says(Response(status=code))


@pytest.mark.parametrize(
    ("script", "outcome", "reason"),
    [
        (cut_off, "the peer ended the stream too early", "the stream ended without a status"),
        (stalls, "the peer sends nothing, or too little, though it has more", "no message in 0.2 s"),
        (silent, "the peer sends nothing, or too little, though it has more", "no message in 0.2 s"),
        (fails_with(Code.ERROR), "the peer ended the stream too early", "it ended the stream with ERROR"),
        (fails_with(Code.SUCCESS), "the peer ended the stream too early", "it ended the stream with SUCCESS"),
        (says(Response(status=77)), "the peer ended the stream too early", "it ended the stream with 77"),  # type: ignore[arg-type]
    ],
    ids=["cut off", "stalls in a block", "silent", "error", "too early", "unknown status"],
)
async def test_a_peer_that_fails_is_left_for_another(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    script: Any,
    outcome: str,
    reason: str,
) -> None:
    caplog.set_level(logging.WARNING)
    async with AsyncExitStack() as stack:
        bad = await stack.enter_async_context(fake_peer(BLOCKS, script))
        if script in (stalls, silent):
            give_up_soon(monkeypatch, bad)
        good = await stack.enter_async_context(fake_peer(BLOCKS))
        both = peers(bad.address, good.address)
        node = await stack.enter_async_context(running_node(tmp_path, **LEFT, peers=both))
        await until_block(node, 29)
        assert len(bad.asked) == len(good.asked) == 1
    [dropped] = logged(caplog, "peer dropped")
    assert (dropped["outcome"], dropped["reason"]) == (outcome, reason)


async def test_several_peers_in_turn_each_with_a_part(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        low = await stack.enter_async_context(fake_peer(BLOCKS[:10]))
        high = await stack.enter_async_context(fake_peer(BLOCKS[8:25]))
        both = peers(high.address, low.address)
        node = await stack.enter_async_context(running_node(tmp_path, **CALM, peers=both))
        await until_block(node, 9)
        wire = await stack.enter_async_context(wire_to(node))
        publisher = await wire.publisher()
        await publisher.block(BLOCKS[26])
        await until_block(node, 24)
        assert low.asked == [(0, 9)]
        assert high.asked == [(10, 24)]


def readiness_of(node: Node) -> tuple[int, str]:
    return answer_of(node, "/readyz")


def answer_of(node: Node, path: str) -> tuple[int, str]:
    """Return status and text of an HTTP path."""
    try:
        with urllib.request.urlopen(f"http://{node.http_address}{path}") as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


async def test_a_target_that_nobody_can_show_the_way_to_is_said_and_forgotten_when_the_chain_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    async with AsyncExitStack() as stack:
        peer = await stack.enter_async_context(fake_peer(BLOCKS[:3]))
        settings = CALM | {"catchup_max_stalled_attempts": 3}
        node = await stack.enter_async_context(
            running_node(tmp_path, **settings, peers=peers(peer.address, NOWHERE))
        )
        wire = await stack.enter_async_context(wire_to(node))
        await until_block(node, 2)
        publisher = await wire.publisher()
        await publisher.block(BLOCKS[20])
        await publisher.expect("behind 2")
        await until(lambda: node.following.problem is not None)
        status, text = await asyncio.to_thread(readiness_of, node)
        assert status == 503
        assert "does not come closer to block 20: " in text
        assert "sluice_catch_up_stalled 1.0" in node.metrics.exposition().decode()
        assert "sluice_catch_up_distance_blocks 18.0" in node.metrics.exposition().decode()
        await publisher.block(BLOCKS[3])
        await publisher.expect("ack 3")
        await until(lambda: node.following.problem is None or node.following.distance == 17)
    assert "block 20" in logged(caplog, "catch-up stands still")[-1]["reason"]


async def test_publishers_jump_in_while_a_slow_peer_is_followed(tmp_path: Path) -> None:
    jumped = asyncio.Event()

    async def slow(peer: FakePeer, start: int, end: int) -> AsyncIterator[Response]:
        for block in peer.blocks[start : end + 1]:
            if block.number == 10:
                await jumped.wait()
            for response in whole(block):
                yield response
            await asyncio.sleep(0.02)
        yield Response(status=Code.SUCCESS)

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            peer = await stack.enter_async_context(fake_peer(BLOCKS, slow))
            node = await stack.enter_async_context(running_node(tmp_path, **CALM, peers=peers(peer.address)))
            wire = await stack.enter_async_context(wire_to(node))
            await until_block(node, 9)
            publisher = await wire.publisher()
            await publisher.block(BLOCKS[29])
            await publisher.expect("behind 9")
            await publisher.block(*BLOCKS[10:12])
            jumped.set()
            await publisher.block(*BLOCKS[12:])
            await until_block(node, 29)
            reader = await wire.subscribe(0, 29)
            assert await reader.rest() == [*BLOCKS, "SUCCESS"]

    await scenario()


async def test_an_empty_node_whose_peers_are_away_begins_with_its_publishers(tmp_path: Path) -> None:
    settings = FAST | {"catchup_max_stalled_attempts": 2}
    async with running_node(tmp_path, **settings, peers=peers(NOWHERE)) as node, wire_to(node) as wire:
        await until(lambda: node.following._machine is not None and not node.following._machine.curious)
        assert node.reporter.readiness() == []
        publisher = await wire.publisher()
        await publisher.block(BLOCKS[0])
        await publisher.expect("ack 0")


async def test_a_node_that_begins_anywhere_begins_where_its_peer_does(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        peer = await stack.enter_async_context(fake_peer(BLOCKS[7:12]))
        settings = CALM | {"first_block": "any"}
        node = await stack.enter_async_context(running_node(tmp_path, **settings, peers=peers(peer.address)))
        await until_block(node, 11)
        assert node.store.first_number == 7
        assert peer.asked == [(7, 11)]


@pytest.mark.parametrize("mutual", [False, True])
async def test_peers_may_be_connected_to_with_tls(tmp_path: Path, mutual: bool) -> None:
    authority = Authority(tmp_path)
    server, client = authority.issue("node"), authority.issue("other")
    serving = {"grpc_tls_certificate": server.certificate, "grpc_tls_key": server.key}
    connecting: dict[str, Any] = {"catchup_tls_ca": authority.path}
    if mutual:
        serving["grpc_tls_client_ca"] = authority.path
        connecting |= {"catchup_tls_certificate": client.certificate, "catchup_tls_key": client.key}
    store(tmp_path / "a", BLOCKS)

    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(running_node(tmp_path / "a", **serving))
        settings = CALM | {"peers": peers(first.grpc_address)}
        second = await stack.enter_async_context(running_node(tmp_path / "b", **settings, **connecting))
        await until_block(second, 29)
    assert stream_bytes(tmp_path / "a") == stream_bytes(tmp_path / "b")


# --- following live -----------------------------------------------------------------------------------------


async def test_a_follower_keeps_level_goes_to_another_peer_and_stops(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        second = await stack.enter_async_context(running_node(tmp_path / "b"))
        follower = await stack.enter_async_context(running_node(tmp_path / "c", **CALM))
        async with running_node(tmp_path / "a") as first, wire_to(first) as wire:
            follower.following.follow([str(first.grpc_address), str(second.grpc_address)])
            publisher = await wire.publisher()
            for block in BLOCKS[:5]:
                await publisher.block(block)
                await until_block(follower, block.number)
            assert follower.following.followed == str(first.grpc_address)
            assert follower.following.distance == 0
            assert follower.following.problem is None
        wire = await stack.enter_async_context(wire_to(second))
        publisher = await wire.publisher()
        await publisher.block(*BLOCKS[:10])
        await until_block(follower, 9)
        assert follower.following.followed == str(second.grpc_address)
        await follower.following.stop()
        assert follower.following.followed is None
        assert follower.following.distance is None
        await publisher.block(BLOCKS[10])
        await until_block(second, 10)
        assert follower.store.last_number == 9
        follower.following.follow([str(second.grpc_address)])
        await until_block(follower, 10)
    pages = [stream_bytes(tmp_path / name) for name in ("b", "c")]
    assert pages[0] == pages[1]


async def test_a_follower_whose_peers_are_all_away_says_so(tmp_path: Path) -> None:
    settings = FAST | {"catchup_max_stalled_attempts": 2}
    async with running_node(tmp_path, **settings) as node:
        node.following.follow([str(NOWHERE)])
        await until(lambda: node.following.problem is not None)
        problem = node.following.problem
        assert problem is not None
        assert problem.startswith("the node does not come closer to its peers: 2 attempts")
        assert f"{NOWHERE}: UNAVAILABLE" in problem


async def test_a_peer_that_is_silent_because_it_has_nothing_is_not_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        peer = await stack.enter_async_context(fake_peer(BLOCKS[:3], silent))
        give_up_soon(monkeypatch, peer)
        node = await stack.enter_async_context(running_node(tmp_path, **CALM))
        peer.last = None
        node.following.follow([peer.address])
        await until(lambda: peer.status_count >= 2)
        assert len(peer.asked) == 1
        peer.last = 2  # it now has something, and sends nothing
        await until(lambda: len(peer.asked) >= 2)


async def test_an_error_in_our_own_code_is_a_problem_until_it_is_told_to_follow_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    async with AsyncExitStack() as stack:
        peer = await stack.enter_async_context(fake_peer(BLOCKS))
        node = await stack.enter_async_context(running_node(tmp_path, **CALM))
        with monkeypatch.context() as patch:
            patch.setattr(CatchUp, "step", lambda *_: 1 // 0)
            node.following.follow([peer.address])
            await until(lambda: node.following.problem is not None)
        reason = "following peers stopped on an internal error, see the log"
        assert node.reporter.readiness() == [reason]
        await node.following.stop()
        node.following.follow([peer.address])
        await until_block(node, 29)
        assert node.reporter.readiness() == []
    assert [record.message for record in caplog.records] == ["following peers stopped on an internal error"]


async def test_an_attempt_that_fails_on_our_side_is_not_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        peer = await stack.enter_async_context(fake_peer(BLOCKS))
        node = await stack.enter_async_context(running_node(tmp_path, **CALM))
        with monkeypatch.context() as patch:
            patch.setattr(Conductor, "offer", lambda *_: 1 // 0)
            node.following.follow([peer.address])
            await until(lambda: len(peer.asked) == 2)
        await until_block(node, 29)
        assert peer.asked[0] == peer.asked[1] == peer.asked[-1]
        assert node.following.problem is None


async def test_a_follower_leaves_a_peer_that_has_nothing_more_when_another_one_has(tmp_path: Path) -> None:
    """Two standbys that follow each other must not wait for ever."""

    async with AsyncExitStack() as stack:
        idle = await stack.enter_async_context(fake_peer(BLOCKS[:3], silent))
        idle.last = None
        ahead = await stack.enter_async_context(fake_peer(BLOCKS[:8]))
        node = await stack.enter_async_context(running_node(tmp_path, **FAST))
        node.following.follow([idle.address, ahead.address])
        await until_block(node, 7)
        assert [idle.asked[0][0], ahead.asked[0][0]] == [0, 0]


async def test_a_follower_is_ready_again_while_its_stream_still_goes_well(tmp_path: Path) -> None:
    """It must not report a problem until the stream ends, which may be never."""

    settings = CALM | {"catchup_max_stalled_attempts": 2}
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(running_node(tmp_path / "b", **settings))
        address = f"127.0.0.1:{free_port()}"
        node.following.follow([address])
        await until(lambda: node.following.problem is not None)
        settings = {"grpc_address": parse_address(address)}
        active = await stack.enter_async_context(running_node(tmp_path / "a", **settings))
        wire = await stack.enter_async_context(wire_to(active))
        publisher = await wire.publisher()
        await publisher.block(*BLOCKS[:2])
        await until_block(node, 1)
        await until(lambda: node.following.problem is None)
        assert node.following.followed == address


async def test_a_node_whose_peers_include_itself_follows_the_others(tmp_path: Path) -> None:
    """All nodes may share one configuration."""

    async with AsyncExitStack() as stack:
        peer = await stack.enter_async_context(fake_peer(BLOCKS[:3]))
        itself = parse_address(f"127.0.0.1:{free_port()}")
        settings = FAST | {"grpc_address": itself, "peers": (itself, *peers(peer.address))}
        settings |= {"role": "standby", "catchup_stall_seconds": 30.0}
        node = await stack.enter_async_context(running_node(tmp_path, **settings))
        await until_block(node, 2)
        assert peer.asked[0][0] == 0


async def test_a_node_that_publishers_have_left_asks_its_peers_whether_they_have_more(tmp_path: Path) -> None:
    """Publishers may go elsewhere while its disk is full, and never return."""

    async with AsyncExitStack() as stack:
        peer = await stack.enter_async_context(fake_peer(BLOCKS[:3]))
        node = await stack.enter_async_context(running_node(tmp_path, **FAST, peers=peers(peer.address)))
        await until_block(node, 2)
        peer.blocks, peer.last = BLOCKS[:8], 7
        await until_block(node, 7)
        await until(lambda: node.following.distance == 0)
        assert node.following.problem is None


async def test_who_stops_it_a_second_time_waits_for_the_same_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node may stop while its role changes, and then closes the block store."""
    settled = asyncio.Event()
    monkeypatch.setattr(PeerFollower, "_settle", lambda _: settled.wait())

    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(running_node(tmp_path, **FAST))
        node.following.follow(["127.0.0.1:1"])
        first, second = (asyncio.ensure_future(node.following.stop()) for _ in range(2))
        await asyncio.wait({second}, timeout=0.05)
        assert not second.done()
        first.cancel()
        settled.set()
        await second


async def test_stopping_waits_for_the_blocks_that_have_come(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        peer = await stack.enter_async_context(fake_peer(BLOCKS))
        node = await stack.enter_async_context(running_node(tmp_path, **CALM))
        node.following.follow([peer.address])
        await until_block(node, 0)
        await node.following.stop()
        await node.following.stop()
        assert not node.conductor.arbiter.is_finishing()
        last = node.store.last_number
        await asyncio.sleep(0)
        assert node.store.last_number == last


async def test_a_block_of_a_peer_that_is_too_long_says_what_to_change_here(tmp_path: Path) -> None:
    """From peers at least the default is received, so the test lowers the default."""
    limits = ClusterLimits(message_bytes_min=64 * 1024)
    large = Block(0, (*BLOCKS[0].items[:1], field_item(4, bytes(5_000_000)), *BLOCKS[0].items[1:]))

    async with fake_peer([large]) as peer:
        settings = CALM | {"catchup_max_stalled_attempts": 2, "grpc_max_message_bytes": 1_000_000}
        async with running_node(
            tmp_path, NodeLimits(cluster=limits), **settings, peers=peers(peer.address)
        ) as node:
            await until(lambda: node.following.problem is not None)
            assert node.following.problem is not None
            assert "expected at most 1000000; raise grpc.max_message_bytes of this node" in (
                node.following.problem
            )
