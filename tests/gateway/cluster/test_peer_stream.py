"""One attempt with one peer: the race's answers. `test_peer_follower` tests the attempts themselves."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import pytest
from grpc import aio

from sluice.gateway.blocks import item_set
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.items import ItemKind, field_item
from sluice.gateway.cluster.catch_up import AttemptOutcome, Range
from sluice.gateway.cluster.peer_stream import ENDINGS, PEER_POLL_FAILURES_MAX, PeerStream
from sluice.gateway.limits import BLOCK_ITEMS_MAX, INLINE_HASH_ITEMS_MAX, SLOT_ITEMS_MIN
from sluice.gateway.race.tables import EndStatus
from sluice.gateway.services import subscription_client as subscription
from sluice.gateway.transport.channels import open_channel
from sluice.gateway.workers import looking
from sluice.gateway.workers.hashing import Hashing
from sluice.gateway.workers.loop_slots import LoopSlots
from sluice.publishers.blocks.maker import BlockMaker, MakerOptions
from tests.gateway.block_makers import proof_item
from tests.gateway.cluster.test_peer_follower import CALM, FAST, peers, until_block
from tests.gateway.fake_peer import (
    Code,
    FakePeer,
    Response,
    end_of,
    fake_peer,
    honest,
    items_of,
    nonsense_peer,
    says,
    silent,
    whole,
)
from tests.gateway.store.test_block_store import logged
from tests.nodes import ANSWER_SECONDS, KEY, make_blocks, running_node, wire_to

BLOCKS = make_blocks(8)


def test_every_end_of_a_stream_has_a_meaning() -> None:
    assert set(ENDINGS) == set(EndStatus)


async def attempt(
    tmp_path: Path, begun: int, plan: Range, *sent: int
) -> tuple[AttemptOutcome, str, int | None]:
    """Offer the blocks `sent` to a node that has `begun` blocks; return the ending and the node's last
    block."""
    async with AsyncExitStack() as stack:
        peer = await stack.enter_async_context(
            fake_peer(BLOCKS, says(*whole(*[BLOCKS[number] for number in sent])))
        )
        node = await stack.enter_async_context(running_node(tmp_path, publish_duplicate_skip_window=0))
        wire = await stack.enter_async_context(wire_to(node))
        if begun:
            publisher = await wire.publisher()
            await publisher.block(*BLOCKS[:begun])
            await publisher.answers(begun)
        channel = open_channel(peer.address)
        stream = PeerStream(node.conductor, peer.address, plan, ANSWER_SECONDS)
        ending = await stream.run(channel, None)
        await channel.close()
        assert node.conductor.arbiter.source_count == (1 if begun else 0), "it has left the race"
        return *ending, node.store.last_number


async def test_a_block_that_the_node_has_by_now_begins_the_attempt_anew(tmp_path: Path) -> None:
    outcome, reason, last = await attempt(tmp_path, 4, Range(2, None), 2, 3)
    assert (outcome, reason) == (AttemptOutcome.RACED, "got the header of block 2, expected 4 or later")
    assert last == 3


async def test_a_peer_that_has_no_more_is_left_for_one_that_has_long_before_it_would_count_as_stalled(
    tmp_path: Path,
) -> None:
    """After all connections broke, two standbys must not wait for each other."""
    stall_seconds = 400.0

    async with AsyncExitStack() as stack:
        level = await stack.enter_async_context(fake_peer([], silent))
        node = await stack.enter_async_context(running_node(tmp_path))
        channel = await stack.enter_async_context(open_channel(level.address))
        stream = PeerStream(node.conductor, level.address, Range(0, None), stall_seconds, poll_seconds=0.01)
        stream.known_elsewhere = 7
        running = asyncio.ensure_future(stream.run(channel, None))
        async with asyncio.timeout(ANSWER_SECONDS):
            while stream._heard_at is None:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            stream._heard_at -= stall_seconds / 4  # pretend that time has passed
            ending = await running
        assert ending == (AttemptOutcome.OUTRUN, "another peer has block 7")


async def test_a_message_that_does_not_parse_is_the_peers_fault(tmp_path: Path) -> None:
    async def babble(_: object, context: aio.ServicerContext[bytes, bytes]) -> None:
        await context.write(b"\xff")

    async def main() -> tuple[AttemptOutcome, str]:
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_stream_rpc_method_handler(babble)
        methods = {"subscribeBlockStream": handler}
        service = "org.hiero.block.api.BlockStreamSubscribeService"
        server = aio.server()
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        try:
            async with running_node(tmp_path) as node, open_channel(address) as channel:
                return await PeerStream(node.conductor, address, Range(0, None), ANSWER_SECONDS).run(
                    channel, None
                )
        finally:
            await server.stop(0)

    assert await main() == (AttemptOutcome.LIED, "it sent a message that does not parse")


async def test_a_block_that_is_too_far_ahead_begins_the_attempt_anew(tmp_path: Path) -> None:
    outcome, reason, last = await attempt(tmp_path, 4, Range(6, None), 6)
    assert (outcome, reason) == (AttemptOutcome.RACED, "a block before it is needed again")
    assert last == 3


async def test_a_proof_that_is_long_in_coming_belongs_to_its_block(tmp_path: Path) -> None:
    """Otherwise a standby stores the block without it, with other bytes than its active node."""
    proof_idle_ms = 20
    proof = field_item(ItemKind.BLOCK_PROOF, b"\x3a\x05later")  # a future kind, field 7

    async def script(peer: FakePeer, start: int, end: int) -> AsyncIterator[Response]:
        yield items_of(*BLOCKS[0].items)
        await asyncio.sleep(10 * proof_idle_ms / 1000)
        yield items_of(proof)
        for response in (end_of(0), *whole(BLOCKS[1]), Response(status=Code.SUCCESS)):
            yield response

    async with (
        fake_peer(BLOCKS[:2], script) as peer,
        running_node(tmp_path, publish_proof_idle_ms=proof_idle_ms) as node,
        open_channel(peer.address) as channel,
    ):
        stream = PeerStream(node.conductor, peer.address, Range(0, 1), ANSWER_SECONDS)
        assert (await stream.run(channel, None))[0] is AttemptOutcome.COMPLETE
        stored = node.store.read_block(0)
        assert stored is not None
        assert list(stored.items) == [*BLOCKS[0].items, proof]


@pytest.mark.parametrize(("transaction_count", "waits"), [(10, False), (100, True)])
async def test_a_message_of_many_items_waits_for_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transaction_count: int, waits: bool
) -> None:
    options = MakerOptions(
        rounds_per_block=1, events_per_round=1, transactions_per_block=transaction_count, item_bytes=256
    )
    block = next(BlockMaker(7, KEY, options).blocks(1))
    take, turns = LoopSlots.take, []

    async def counted(self: LoopSlots) -> None:
        turns.append(self)
        await take(self)

    monkeypatch.setattr(LoopSlots, "take", counted)
    monkeypatch.setattr(Hashing, "is_quick", lambda self, count, size_bytes: True)  # which needs no slot
    assert (len(block.items) >= SLOT_ITEMS_MIN) == waits

    async with AsyncExitStack() as stack:
        peer = await stack.enter_async_context(fake_peer([block]))
        node = await stack.enter_async_context(running_node(tmp_path))
        channel = open_channel(peer.address)
        await PeerStream(node.conductor, peer.address, Range(0, 0), ANSWER_SECONDS).run(channel, None)
        await channel.close()
        assert node.store.last_number == 0
        assert turns == [node.conductor.slots] * waits


@pytest.mark.parametrize(
    ("is_whole", "words"),
    [(True, ""), (False, "item set: got a header as item 1, expected a header only as item 0")],
)
async def test_a_message_of_very_many_items_is_looked_at_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_whole: bool, words: str
) -> None:
    item_count = INLINE_HASH_ITEMS_MAX + 1
    options = MakerOptions(
        rounds_per_block=1, events_per_round=1, transactions_per_block=item_count, item_bytes=256
    )
    items = next(BlockMaker(7, KEY, options).blocks(1)).items
    sent = items[:item_count] if is_whole else [items[1], *items[: item_count - 1]]
    inspect, looked = item_set.inspect, []

    def noted(items: Sequence[bytes]) -> item_set.ItemSet:
        looked.append((len(items), threading.current_thread() is threading.main_thread()))
        return inspect(items)

    monkeypatch.setattr(looking, "inspect", noted)
    monkeypatch.setattr(subscription, "inspect", noted)

    async def scenario() -> tuple[AttemptOutcome, str]:
        async with AsyncExitStack() as stack:
            peer = await stack.enter_async_context(fake_peer(BLOCKS, says(items_of(*sent))))
            node = await stack.enter_async_context(running_node(tmp_path))
            channel = open_channel(peer.address)
            ending = await PeerStream(node.conductor, peer.address, Range(0, 0), ANSWER_SECONDS).run(
                channel, None
            )
            await channel.close()
            return ending

    outcome, reason = await scenario()
    assert looked == [(item_count, False)]
    if words:
        assert (outcome, reason) == (AttemptOutcome.LIED, f"subscription, before block 0: {words}")
    else:
        assert outcome is AttemptOutcome.BROKE_OFF


async def test_a_message_of_more_items_than_a_block_may_have_is_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looking, "inspect", lambda _: 1 // 0)
    too_many = says(items_of(*[b"\x0a\x00"] * (BLOCK_ITEMS_MAX + 1)))

    async def scenario() -> tuple[AttemptOutcome, str]:
        async with AsyncExitStack() as stack:
            peer = await stack.enter_async_context(fake_peer(BLOCKS, too_many))
            node = await stack.enter_async_context(running_node(tmp_path))
            channel = open_channel(peer.address, None, (("grpc.max_receive_message_length", 32 << 20),))
            ending = await PeerStream(node.conductor, peer.address, Range(0, 0), ANSWER_SECONDS).run(
                channel, None
            )
            await channel.close()
            return ending

    expected = "subscription, before block 0: got 2000001 items, expected at most 2000000"
    assert await scenario() == (AttemptOutcome.LIED, expected)


@pytest.mark.parametrize("retired", [False, True])
async def test_a_node_that_sends_publishers_away_takes_blocks_from_peers(
    tmp_path: Path, retired: bool
) -> None:
    async with AsyncExitStack() as stack:
        peer = await stack.enter_async_context(fake_peer(BLOCKS))
        node = await stack.enter_async_context(running_node(tmp_path))
        if retired:
            conductor = node.conductor
            conductor.perform(conductor.arbiter.retire("a standby", conductor.now_ns()))
        channel = open_channel(peer.address)
        stream = PeerStream(node.conductor, peer.address, Range(0, 7), ANSWER_SECONDS)
        outcome, reason = await stream.run(channel, None)
        await channel.close()
        assert (outcome, reason) == (AttemptOutcome.COMPLETE, "it has sent everything up to block 7")
        assert stream.offered_next == 8
        assert node.store.last_number == 7


@pytest.mark.parametrize("failures_count", [PEER_POLL_FAILURES_MAX - 1, PEER_POLL_FAILURES_MAX])
def test_a_peer_that_does_not_say_how_far_it_is_counts_as_gone_after_so_many_questions(
    tmp_path: Path, failures_count: int
) -> None:
    asked = 0

    async def poll() -> None:
        nonlocal asked
        asked += 1
        if asked % (failures_count + 1):
            raise aio.AioRpcError(
                grpc.StatusCode.DEADLINE_EXCEEDED, aio.Metadata(), aio.Metadata(), details="too late"
            )
        if asked > 3 * PEER_POLL_FAILURES_MAX:
            raise EOFError  # the questions go on

    async def scenario() -> tuple[AttemptOutcome, str]:
        async with running_node(tmp_path) as node:
            stream = PeerStream(node.conductor, "peer:1", Range(0, None), ANSWER_SECONDS, poll_seconds=0)
            return await stream._poll(poll)

    if failures_count < PEER_POLL_FAILURES_MAX:
        with pytest.raises(EOFError):
            asyncio.run(scenario())
    else:
        assert asyncio.run(scenario()) == (AttemptOutcome.UNREACHABLE, "DEADLINE_EXCEEDED: too late")
        assert asked == PEER_POLL_FAILURES_MAX


async def test_a_peer_whose_status_does_not_parse_is_left_for_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It must not end all following of peers."""

    caplog.set_level(logging.WARNING)
    async with AsyncExitStack() as stack:
        nonsense = await stack.enter_async_context(nonsense_peer())
        peer = await stack.enter_async_context(fake_peer(BLOCKS[:3]))
        both = peers(nonsense, peer.address)
        node = await stack.enter_async_context(running_node(tmp_path, **FAST, peers=both))
        await until_block(node, 2)
        peer.blocks, peer.last = BLOCKS[:8], 7
        await until_block(node, 7)
        assert not await node.following.is_itself(nonsense)
    dropped = logged(caplog, "peer dropped")[0]
    assert dropped["outcome"] == "the peer sent what cannot be"
    assert (
        dropped["reason"] == "its status: got a message that does not parse, expected a ServerStatusResponse"
    )


@pytest.mark.parametrize(
    ("sent", "status", "known_last", "expected"),
    [
        ([0, 1], Code.ERROR, 1, AttemptOutcome.CLOSED),
        ([0, 1], Code.SUCCESS, 1, AttemptOutcome.CLOSED),
        ([], Code.ERROR, None, AttemptOutcome.CLOSED),
        ([0, 1], Code.ERROR, 2, AttemptOutcome.BROKE_OFF),
        ([0, 1], Code.NOT_AVAILABLE, 1, AttemptOutcome.BROKE_OFF),
        ([0, 1], None, 1, AttemptOutcome.BROKE_OFF),
    ],
)
async def test_a_peer_that_ends_a_stream_in_order_with_nothing_missing_has_not_broken_off(
    tmp_path: Path, sent: list[int], status: int | None, known_last: int | None, expected: AttemptOutcome
) -> None:
    """Live subscribers get ERROR when a peer's last publisher leaves with an error."""
    responses = whole(*[BLOCKS[number] for number in sent])
    if status is not None:
        responses.append(Response(status=status))  # type: ignore[arg-type]
    assert await ending_of(tmp_path, responses, known_last) is expected


async def test_a_peer_that_ends_a_stream_within_a_block_has_broken_off(tmp_path: Path) -> None:
    responses = [items_of(*BLOCKS[0].items[:3]), Response(status=Code.ERROR)]
    assert await ending_of(tmp_path, responses, None) is AttemptOutcome.BROKE_OFF


async def ending_of(tmp_path: Path, responses: Sequence[Response], known_last: int | None) -> AttemptOutcome:
    """Return the ending when a peer with this last block sends these to its follower."""
    async with AsyncExitStack() as stack:
        peer = await stack.enter_async_context(fake_peer(BLOCKS, says(*responses)))
        node = await stack.enter_async_context(running_node(tmp_path))
        channel = await stack.enter_async_context(open_channel(peer.address))
        stream = PeerStream(node.conductor, peer.address, Range(0, None), ANSWER_SECONDS)
        stream.known_last = known_last
        outcome, _ = await stream.run(channel, None)
        return outcome


async def test_a_peer_is_no_liar_where_the_node_cannot_check_its_block(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is tried again soon, not after a liar's backoff."""
    unchecked = Block(2, (*BLOCKS[2].items[:-1], proof_item(2, bytes(2920))))

    async def once(peer: FakePeer, start: int, end: int) -> AsyncIterator[Response]:
        script = honest if len(peer.asked) > 1 else says(*whole(*BLOCKS[:2], unchecked))
        async for response in script(peer, start, end):
            yield response
        if script is not honest:
            await asyncio.sleep(ANSWER_SECONDS)  # until the node has checked the proof

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            peer = await stack.enter_async_context(fake_peer(BLOCKS, once))
            rests = CALM | {
                "catchup_backoff_seconds": 0.02,
                "catchup_max_backoff_seconds": 10 * ANSWER_SECONDS,
            }
            node = await stack.enter_async_context(running_node(tmp_path, **rests, peers=peers(peer.address)))
            await until_block(node, 7)
            assert peer.asked == [(0, 7), (2, 7)]
            assert node.reporter.readiness() == []

    caplog.set_level(logging.WARNING)
    await scenario()
    [dropped] = logged(caplog, "peer dropped")
    assert dropped["outcome"] == "this node cannot take blocks now"
    assert "no ledger data" in dropped["reason"]
    assert len(logged(caplog, "block cannot be checked")) == 1
