"""The client over real sockets, against a node that follows a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from tenacity import wait_fixed, wait_none

from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.items import field_item
from sluice.publishers import limits
from sluice.publishers.blocks.maker import MAKER_ITEM_BYTES_MAX, BlockMaker, MakerOptions, key_of_seed
from sluice.publishers.client.client import (
    RETRY_JITTER_SECONDS,
    RETRY_SECONDS_MAX,
    ClientOptions,
    PublishClient,
    publish_blocks,
    retry_wait,
)
from sluice.publishers.errors import (
    BlockOrderError,
    ItemTooLarge,
    OptionError,
    PublishFailed,
    SourceCancelled,
)
from sluice.publishers.protocol.machine import SECOND_NS, MachineLimits
from sluice.publishers.protocol.messages import Action, Disconnected, Event
from sluice.publishers.report import PublishReport
from tests.publishers.fake_node import NO_BLOCK, FakeNode, FakeStream, polite

SMALL = MakerOptions(rounds_per_block=1, events_per_round=2, transactions_per_block=3, item_bytes=300)
BLOCKS = list(BlockMaker(1, key_of_seed(1), SMALL).blocks(20))
QUICK = ClientOptions(
    machine=MachineLimits(deadline_ns=20 * SECOND_NS, close_timeout_ns=SECOND_NS // 2), wait=wait_none()
)
TINY_SETS = replace(QUICK, set_bytes_max=100)


async def source_of(blocks: Iterable[Block]) -> AsyncIterator[Block]:
    for block in blocks:
        yield block


def publish(
    node: FakeNode, blocks: Iterable[Block] = BLOCKS, options: ClientOptions = QUICK
) -> PublishReport:
    async def run() -> PublishReport:
        async with node:
            return await publish_blocks(source_of(blocks), [node.address], "alice", options)

    return asyncio.run(run())


# --- it works -----------------------------------------------------------------------------------------------


def test_a_chain_arrives_whole_and_in_order() -> None:
    node = FakeNode()
    report = publish(node)
    assert node.received == BLOCKS
    assert node.publisher_ids == ["alice"]
    assert (report.blocks, report.won, report.acknowledged, report.unacknowledged) == (20, 20, 20, 0)
    assert (report.reconnects, report.safe_through, len(report.latency_ns)) == (0, 19, 20)
    assert report.bytes_sent == sum(block.size_bytes for block in BLOCKS)


def test_blocks_are_cut_into_sets_and_large_items_go_alone() -> None:
    node = FakeNode()
    large = field_item(4, bytes(MAKER_ITEM_BYTES_MAX))
    block = Block(20, (*BLOCKS[0].items[:2], large, *BLOCKS[0].items[2:]))
    header = BlockMaker(1, key_of_seed(1), SMALL).blocks(1, first_number=20)
    block = replace(block, items=(next(header).items[0], *block.items[1:]))
    node.last = 19
    publish(node, [block])
    assert node.received == [block]
    assert max(node.message_sizes) <= limits.MESSAGE_BYTES_MAX
    assert sum(size > limits.ITEM_SET_BYTES_DEFAULT + 64 for size in node.message_sizes) == 1


def test_an_empty_source_opens_nothing() -> None:
    node = FakeNode()
    assert publish(node, []).blocks == 0
    assert node.stream_count == 0


def test_publishing_again_takes_one_stream_and_stores_nothing() -> None:
    node = FakeNode(last=19)
    report = publish(node)
    assert node.received == []
    assert node.stream_count == 1
    assert (report.duplicate, report.acknowledged) == (20, 0)


def test_a_chain_that_is_half_stored_is_completed() -> None:
    node = FakeNode(last=9)
    report = publish(node)
    assert node.received == BLOCKS[10:]
    assert node.stream_count == 2
    assert (report.duplicate, report.won) == (10, 10)


async def test_the_cache_bounds_what_is_read_ahead() -> None:
    taken: list[int] = []
    held: list[int] = []

    async def source() -> AsyncIterator[Block]:
        for block in BLOCKS:
            taken.append(block.number)
            yield block

    async def slow(stream: FakeStream) -> None:
        while True:
            block = await stream.block()
            held.append(len(taken) - block.number)
            await stream.acknowledge(block.number)

    cache_bytes = 3 * max(block.size_bytes for block in BLOCKS)
    options = replace(QUICK, machine=MachineLimits(cache_bytes_max=cache_bytes))

    async with FakeNode([slow]) as node:
        await publish_blocks(source(), [node.address], "alice", options)
    assert len(held) == 20
    assert max(held) <= 6


# --- answers ------------------------------------------------------------------------------------------------


def test_a_skipped_block_is_broken_off_and_a_resend_brings_it_back() -> None:
    async def script(stream: FakeStream) -> None:
        number, _ = await stream.header()
        assert number == 0
        await stream.skip(0)
        while True:  # what is left of block 0, then the header of 1
            request = await stream.receive()
            items = list(request.block_items.block_items)
            if items and items[0] == BLOCKS[1].items[0]:
                break
        await stream.resend(0)
        while True:
            request = await stream.receive()
            if request.HasField("end_of_block"):
                continue
            if request.block_items.block_items[0] == BLOCKS[0].items[0]:
                break
        block = await stream.rest(0, list(request.block_items.block_items))
        stream.node.last = block.number
        await stream.acknowledge(0)
        await polite(stream)

    node = FakeNode([script])
    report = publish(node, options=TINY_SETS)
    assert node.received == BLOCKS
    assert (report.skipped, report.resent, report.won, report.reconnects) == (1, 1, 20, 0)


def test_a_laggard_passes_over_what_others_brought() -> None:
    async def script(stream: FakeStream) -> None:
        await stream.header()
        await stream.acknowledge(14)
        stream.node.last = 14
        while True:
            request = await stream.receive()
            items = list(request.block_items.block_items)
            if items and items[0] == BLOCKS[15].items[0]:
                break
        await stream.rest(15, items)
        stream.node.last = 15
        await stream.acknowledge(15)
        await polite(stream)

    node = FakeNode([script])
    report = publish(node, options=replace(TINY_SETS, machine=MachineLimits(window_blocks_max=1)))
    assert node.received == BLOCKS[15:]
    assert report.acknowledged == 20
    assert report.won in (5, 6)  # block 0 may be out whole before the answer is here


def test_a_node_that_has_nothing_is_filled_from_the_first_block() -> None:
    async def script(stream: FakeStream) -> None:
        await stream.header()
        await stream.behind(NO_BLOCK)
        await stream.drain()

    node = FakeNode([script], last=4)
    report = publish(node, BLOCKS[5:])
    assert node.words == ["TOO_FAR_BEHIND(5, 19)"]
    assert node.received == BLOCKS[5:]
    assert (report.too_far_behind, report.reconnects) == (1, 1)


@pytest.mark.parametrize("code", ["SUCCESS", "ERROR", "TIMEOUT", "PERSISTENCE_FAILED", "UNKNOWN"])
def test_after_the_end_of_a_stream_everything_unacknowledged_is_offered_again(code: str) -> None:
    async def script(stream: FakeStream) -> None:
        await stream.block()
        await stream.block()
        await stream.acknowledge(0)
        stream.node.last = 0
        await stream.end(code, 0)

    node = FakeNode([script])
    report = publish(node)
    assert [block.number for block in node.received] == [0, 1, *range(1, 20)]
    assert (report.acknowledged, report.reconnects) == (20, 1)


def test_a_broken_stream_is_opened_again() -> None:
    async def script(stream: FakeStream) -> None:
        await stream.header()
        await stream.abort("boom")

    node = FakeNode([script, script])
    report = publish(node)
    assert node.received == BLOCKS
    assert report.reconnects == 2


def test_a_refused_block_fails_with_its_number_and_the_count() -> None:
    async def script(stream: FakeStream) -> None:
        block = await stream.block()
        while block.number < 2:
            await stream.acknowledge(block.number)
            block = await stream.block()
        await stream.end("BAD_BLOCK_PROOF", 1, proximate=2)
        await stream.drain()

    with pytest.raises(PublishFailed) as caught:
        publish(FakeNode([script] * 3))
    assert str(caught.value) == (
        "publisher alice: block 2 was refused 3 times with BAD_BLOCK_PROOF: its proof is not of the "
        "gateway's ledger keys, or it does not continue the gateway's chain; the gateway's log says which"
    )
    report = caught.value.report
    assert (report.acknowledged, report.safe_through, report.failure) == (2, 1, caught.value.reason)


async def test_the_next_gateway_takes_over() -> None:
    async def leave(stream: FakeStream) -> None:
        for number in range(3):
            await stream.block()
            await stream.acknowledge(number)
        await stream.end("SUCCESS", 2)

    async def run() -> tuple[FakeNode, FakeNode, PublishReport]:
        async with FakeNode([leave]) as one, FakeNode(last=2) as two:
            gateways = [one.address, two.address]
            return one, two, await publish_blocks(source_of(BLOCKS), gateways, "alice", QUICK)

    one, two, report = await run()
    assert (one.stream_count, two.stream_count) == (1, 1)
    assert two.received == BLOCKS[3:]
    assert report.acknowledged == 20


async def test_gateways_that_go_away_together_are_asked_again_soon() -> None:
    """After a wait that is short, but is one: they do not come back at once."""
    went_at: list[float] = []

    async def go(stream: FakeStream) -> None:
        await stream.header()
        went_at.append(asyncio.get_running_loop().time())
        await stream.end("SUCCESS", 0)
        await stream.drain()

    async def run() -> PublishReport:
        options = replace(QUICK, wait=wait_fixed(60), soon_seconds=0.5)
        async with FakeNode([go, go]) as one, FakeNode([go]) as two:
            return await publish_blocks(source_of(BLOCKS), [one.address, two.address], "alice", options)

    assert (await run()).acknowledged == 20
    _, second, third = went_at
    assert third - second >= 0.5


async def test_an_unreachable_gateway_fails_at_the_deadline() -> None:
    """Which comes once there was an answer to why, in the 0.2 s that it may take."""
    options = replace(QUICK, machine=MachineLimits(deadline_ns=5 * SECOND_NS), connect_timeout_seconds=0.8)
    time_ns = 0

    class Refused(PublishClient):
        def _hear(self, event: Event) -> list[Action]:
            nonlocal time_ns
            if isinstance(event, Disconnected) and "nobody listens" in event.reason:
                time_ns = 5 * SECOND_NS
            return super()._hear(event)

    async with FakeNode() as gone:
        address = gone.address
    with pytest.raises(PublishFailed) as caught:
        await Refused([address], "alice", options, lambda: time_ns).publish(source_of(BLOCKS))
    assert caught.value.reason == (
        f"block 0 was not acknowledged within 5 s (cannot connect to {address}: "
        "UNAVAILABLE: nobody listens there)"
    )


async def test_a_node_that_comes_up_later_is_found() -> None:
    async def run() -> PublishReport:
        async with FakeNode() as first:
            address = first.address
        client = PublishClient([address], "alice", replace(QUICK, connect_timeout_seconds=0.1))
        publishing = asyncio.create_task(client.publish(source_of(BLOCKS)))
        await asyncio.sleep(0)
        async with FakeNode().at(int(address.rpartition(":")[2])):
            return await publishing

    assert (await run()).acknowledged == 20


async def test_the_only_gateway_is_waited_for_and_not_left() -> None:
    """There is no other to go to, and gRPC tries again sooner than we should."""

    async def run() -> PublishReport:
        async with FakeNode() as first:
            address = first.address
        options = replace(QUICK, wait=wait_fixed(60), connect_timeout_seconds=20)
        publishing = asyncio.create_task(publish_blocks(source_of(BLOCKS), [address], "alice", options))
        await asyncio.sleep(0.5)  # while it is refused
        async with FakeNode().at(int(address.rpartition(":")[2])):
            return await publishing

    assert (await run()).acknowledged == 20


# --- the source ---------------------------------------------------------------------------------------------


async def test_a_source_that_breaks_is_told_and_raised() -> None:
    class DiskError(Exception):
        pass

    async def run() -> FakeNode:
        heard = asyncio.Event()

        async def source() -> AsyncIterator[Block]:
            yield BLOCKS[0]
            await heard.wait()
            raise DiskError("5.blk: gone")

        async def script(stream: FakeStream) -> None:
            await stream.block()
            heard.set()
            await stream.drain()

        async with FakeNode([script]) as node:
            with pytest.raises(DiskError, match=r"^5\.blk: gone$"):
                await publish_blocks(source(), [node.address], "alice", QUICK)
            return node

    assert (await run()).words == ["ERROR(0, 0)"]


async def test_a_source_that_is_cancelled_fails_and_does_not_hang() -> None:
    async def broken_off() -> AsyncIterator[Block]:
        yield BLOCKS[0]
        raise asyncio.CancelledError

    async def run() -> FakeNode:
        async with FakeNode() as node:
            with pytest.raises(SourceCancelled, match=r"was cancelled after block 0$"):
                await publish_blocks(broken_off(), [node.address], "alice", QUICK)
            return node

    assert (await asyncio.wait_for(run(), 10)).words in ([], ["ERROR(0, 0)"])


@pytest.mark.parametrize("name", ["Zoë", "a\nb", "tab\t"])
def test_a_name_that_metadata_cannot_have_is_refused(name: str) -> None:
    """gRPC would refuse it on every stream, and the publisher try for ever."""
    with pytest.raises(OptionError) as caught:
        PublishClient(["127.0.0.1:1"], name)
    assert str(caught.value) == (f"option 'publisher_id': got {name!a}, expected printable ASCII characters")


def test_a_gap_in_the_source_is_raised() -> None:
    with pytest.raises(BlockOrderError, match="block 1 is missing: block 2 came after block 0"):
        publish(FakeNode([FakeStream.drain]), [BLOCKS[0], BLOCKS[2]])


def test_an_item_too_large_for_any_message_is_raised_before_it_is_sent() -> None:
    block = Block(0, (BLOCKS[0].items[0], field_item(4, bytes(limits.ITEM_BYTES_MAX))))
    node = FakeNode()
    with pytest.raises(ItemTooLarge):
        publish(node, [block])
    assert node.stream_count == 0


@pytest.mark.parametrize("gateway_count", [1, 3])
async def test_a_message_too_long_for_every_gateway_is_final_and_says_what_to_change(
    gateway_count: int,
) -> None:
    """The node is real gRPC: it refuses by the length in front of the message."""
    large = field_item(4, bytes(2_000_000))
    block = replace(BLOCKS[1], items=(*BLOCKS[1].items[:2], large, *BLOCKS[1].items[2:]))

    async with AsyncExitStack() as stack:
        nodes = [FakeNode(last=0) for _ in range(gateway_count)]
        for node in nodes:
            node.message_bytes_max = 1_000_000
            await stack.enter_async_context(node)
        client = PublishClient([node.address for node in nodes], "alice", QUICK)
        with pytest.raises(PublishFailed) as caught:
            await client.publish(source_of([block]))
        failed = str(caught.value)
        assert "message: got 2000" in failed
        assert "expected at most 1000000; raise grpc.max_message_bytes of the gateway" in failed
        assert sum(node.stream_count for node in nodes) == max(2, gateway_count)


def test_a_longer_message_is_sent_where_the_option_says_so() -> None:
    node = FakeNode()
    node.message_bytes_max = 2 * limits.MESSAGE_BYTES_MAX
    block = Block(0, (BLOCKS[0].items[0], field_item(4, bytes(limits.ITEM_BYTES_MAX))))
    publish(node, [block], replace(QUICK, message_bytes_max=2 * limits.MESSAGE_BYTES_MAX))
    assert node.received == [block]


# --- stopping -----------------------------------------------------------------------------------------------


async def test_cancellation_finishes_the_block_and_says_goodbye() -> None:
    async def run() -> FakeNode:
        in_block = asyncio.Event()

        async def script(stream: FakeStream) -> None:
            number, items = await stream.header()
            in_block.set()
            await stream.rest(number, items)
            await stream.drain()

        options = replace(TINY_SETS, machine=replace(QUICK.machine, window_blocks_max=1))
        async with FakeNode([script]) as node:
            client = PublishClient([node.address], "alice", options)
            publishing = asyncio.create_task(client.publish(source_of(BLOCKS)))
            await in_block.wait()
            publishing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await publishing
            return node

    node = await run()
    assert [block.number for block in node.received] == [0]
    assert len(node.words) == 1
    assert node.words[0].startswith("RESET(0, ")


async def test_a_second_cancellation_ends_at_once_and_leaves_nothing_behind() -> None:
    """The stream is blocked: one cancellation would wait for the block in flight."""

    async def run() -> None:
        in_block, over = asyncio.Event(), asyncio.Event()

        async def script(stream: FakeStream) -> None:
            await stream.header()
            in_block.set()
            try:
                await asyncio.Event().wait()
            finally:
                over.set()

        options = ClientOptions(machine=replace(QUICK.machine, window_blocks_max=1))
        block = Block(0, (BLOCKS[0].items[0], *(bytes([0xFA, 1]) + bytes(1 << 20) for _ in range(40))))
        async with FakeNode([script]) as node:
            client = PublishClient([node.address], "alice", options)
            publishing = asyncio.create_task(client.publish(source_of([block])))
            await in_block.wait()
            before = asyncio.all_tasks()
            publishing.cancel()
            for _ in range(3):
                await asyncio.sleep(0)
            assert not publishing.done()
            publishing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await publishing
            await over.wait()
            ours = [task for task in before & asyncio.all_tasks() if "PublishClient" in repr(task.get_coro())]
            assert ours == []

    await asyncio.wait_for(run(), limits.STOP_TIMEOUT_SECONDS)


async def test_cancellation_while_connecting_ends_at_once() -> None:
    async def run() -> None:
        client = PublishClient(["127.0.0.1:1"], "alice", QUICK)
        publishing = asyncio.create_task(client.publish(source_of(BLOCKS)))
        await asyncio.sleep(0)
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing

    await asyncio.wait_for(run(), 2)


async def test_a_node_that_never_answers_is_given_up() -> None:
    """Time passes while the node holds the stream, and not while the client connects."""
    machine = replace(QUICK.machine, deadline_ns=SECOND_NS // 5, close_timeout_ns=SECOND_NS // 10)
    options = replace(QUICK, machine=machine)
    time_ns = 0

    async def mute(stream: FakeStream) -> None:
        nonlocal time_ns
        await stream.block()
        time_ns += SECOND_NS // 5
        await stream.drain()
        time_ns += SECOND_NS // 10
        await asyncio.Event().wait()

    async def run() -> None:
        async with node:
            client = PublishClient([node.address], "alice", options, lambda: time_ns)
            await client.publish(source_of(BLOCKS))

    node = FakeNode([mute])
    with pytest.raises(PublishFailed, match=r"block 0 was not acknowledged within 0\.2 s"):
        await run()
    assert node.words == ["TIMEOUT(0, 19)"]


@pytest.mark.parametrize("answer", ["resend", "acknowledge"])
async def test_a_gateway_that_answers_and_reads_no_more_is_left(answer: str) -> None:
    """Its answer sends the publisher to a header that cannot even be sent: the message before it is stuck."""
    machine = replace(QUICK.machine, answer_timeout_ns=SECOND_NS // 2, deadline_ns=None)
    large = Block(0, (BLOCKS[0].items[0], *(field_item(4, bytes(1 << 20)) for _ in range(40))))

    is_left = asyncio.Event()

    async def deaf(stream: FakeStream) -> None:
        await stream.header()
        sent = -1
        while sent != client.report().bytes_sent:
            sent = client.report().bytes_sent
            await asyncio.sleep(0.05)
        await getattr(stream, answer)(0)
        try:
            await asyncio.Event().wait()
        finally:
            is_left.set()

    async with FakeNode([deaf], default=FakeStream.drain) as node:
        client = PublishClient([node.address], "alice", replace(QUICK, machine=machine))
        publishing = asyncio.create_task(client.publish(source_of([large, *BLOCKS[1:3]])))
        await asyncio.wait_for(is_left.wait(), 10)
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing


def test_the_retry_policy_doubles_up_to_its_limit() -> None:
    client = PublishClient(["127.0.0.1:1"], "alice", ClientOptions(wait=retry_wait()))
    for attempt, least in ((1, 1), (2, 2), (3, 4), (4, 8), (5, 16), (6, 30), (60, 30)):
        seconds = client._wait_seconds(attempt)
        assert least <= seconds <= min(least + RETRY_JITTER_SECONDS, RETRY_SECONDS_MAX)
    # Publishers that lost their node together do not all come back in the same moment.
    assert len({client._wait_seconds(1) for _ in range(20)}) > 1
