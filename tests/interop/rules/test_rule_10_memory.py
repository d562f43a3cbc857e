"""Rule 10: pushing back bounds the blocks in flight, and the lowest block always gets through.

Unread responses are bounded, too; beyond the bound the node closes the publisher.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from grpc import aio

from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.item_set import ItemSet
from sluice.gateway.blocks.items import ItemKind, field_item
from sluice.gateway.limits import INLINE_HASH_ITEMS_MAX, ITEM_OVERHEAD_BYTES
from sluice.gateway.services import publish_service
from sluice.gateway.services.publish_service import DrainLimits
from sluice.gateway.transport.admission import Admission
from sluice.gateway.workers import looking
from sluice.publishers.blocks.maker import BlockMaker, MakerOptions
from sluice.publishers.client.client import ClientOptions, publish_blocks
from tests.interop.rules.scenes import BLOCKS, Stage, played, playing
from tests.nodes import ANSWER_SECONDS, KEY, Publisher, split

KIB = 1024
OPTIONS = MakerOptions(rounds_per_block=1, transactions_per_block=120, item_bytes=2 * KIB)
LARGE: Sequence[Block] = tuple(BlockMaker(7, KEY, OPTIONS).blocks(12))
LIMIT_BYTES = 256 * KIB
SET_ITEMS = 16
EMPTY_ITEM = b"\x0a\x02" + field_item(ItemKind.EVENT_HEADER, b"")  # as it is in a message
SET_BYTES_MAX = max(sum(map(len, run)) for block in LARGE for run in split(block.items, SET_ITEMS))


async def send(publisher: Publisher, block: Block, start: int = 0, stop: int | None = None) -> None:
    """Send the item sets of a block from `start` to `stop`; by default all of them and the end."""
    runs = list(split(block.items, SET_ITEMS))
    for run in runs[start:stop]:
        await publisher.items(*run)
    if stop is None:
        await publisher.end(block.number)


class Watch:
    """The node's memory, checked after every event."""

    def __init__(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        self.conductor = stage.node.conductor
        self.peak_bytes = 0
        perform = self.conductor.perform

        def spy(actions: Sequence[object]) -> None:
            perform(actions)  # type: ignore[arg-type]
            self.peak_bytes = max(self.peak_bytes, self.held_bytes)

        monkeypatch.setattr(self.conductor, "perform", spy)

    @property
    def held_bytes(self) -> int:
        """Return the bytes of the items in memory, whatever the arbiter counts."""
        attempts = self.conductor.in_flight.attempts.values()
        return sum(sum(map(len, attempt.items)) for attempt in attempts)

    def is_full(self) -> bool:
        """Return whether the node accepts only what it must."""
        return self.conductor.arbiter.is_full()


async def test_publishers_far_ahead_are_slowed_until_the_lowest_block_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alice is slow with block 0, while seven others send megabytes of later blocks."""
    async with playing(
        tmp_path, committed=0, publish_max_inflight_bytes=LIMIT_BYTES, publish_stall_blocks=100
    ) as stage:
        watch = Watch(stage, monkeypatch)
        alice = await stage.publisher("alice")
        await send(alice, LARGE[0], 0, 1)
        await stage.begun(0)
        others = await stage.publishers(*(f"publisher-{number}" for number in range(1, 8)))
        for number, publisher in enumerate(others, start=1):
            await send(publisher, LARGE[number], 0, 1)
            await stage.begun(number)
        sending = [
            asyncio.ensure_future(send(publisher, LARGE[number], 1))
            for number, publisher in enumerate(others, start=1)
        ]
        await stage.until(watch.is_full)
        await send(alice, LARGE[0], 1, -1)  # the node still reads hers
        bound = LIMIT_BYTES + LARGE[0].size_bytes + len(others) * SET_BYTES_MAX
        assert watch.peak_bytes <= bound < sum(block.size_bytes for block in LARGE[:8])
        runs = list(split(LARGE[0].items, SET_ITEMS))
        await alice.items(*runs[-1])
        await alice.end(0)
        for publisher in (alice, *others):
            await publisher.expect(*(f"ack {number}" for number in range(8)))
        await asyncio.gather(*sending)
        assert watch.held_bytes == 0
        assert watch.peak_bytes <= bound


async def test_the_lowest_block_gets_through_from_one_who_has_to_come_back_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node is full and the winner of block 0 leaves. Bob finishes block 1 before he brings it."""
    async with playing(
        tmp_path,
        committed=0,
        publish_max_inflight_bytes=LIMIT_BYTES,
        publish_stall_blocks=100,
        publish_duplicate_skip_window=10,
    ) as stage:
        watch = Watch(stage, monkeypatch)
        alice = await stage.publisher("alice")
        await send(alice, LARGE[0], 0, 1)
        await stage.begun(0)
        others = await stage.publishers("bob", "carol", "dave")
        for number, publisher in enumerate(others, start=1):
            await send(publisher, LARGE[number], 0, 1)
            await stage.begun(number)
        sending = [
            asyncio.ensure_future(send(publisher, LARGE[number], 1))
            for number, publisher in enumerate(others, start=1)
        ]
        await stage.until(watch.is_full)
        alice.call.cancel()
        for publisher in others:
            await publisher.expect("resend 0")
        await asyncio.gather(*sending)
        bob = others[0]
        for number in range(4):
            await send(bob, LARGE[number])
        for publisher in others[1:]:
            publisher.call.cancel()
        heard: list[str] = []
        while not heard or heard[-1] != "ack 3":
            heard.append(await bob.answer())
            if heard[-1].startswith("resend"):
                number = int(heard[-1].split()[1])
                for again in range(number, 4):
                    await send(bob, LARGE[again])
        assert [text for text in heard if text.startswith("ack")] == ["ack 0", "ack 1", "ack 2", "ack 3"]
        assert watch.peak_bytes <= LIMIT_BYTES + LARGE[0].size_bytes + 4 * SET_BYTES_MAX


async def test_tiny_items_count_for_what_they_cost(tmp_path: Path) -> None:
    """40,000 items of 2 bytes: 80 kB on the wire, but megabytes in memory."""
    tiny = field_item(ItemKind.EVENT_HEADER, b"")
    async with playing(tmp_path, committed=0, publish_max_inflight_bytes=LIMIT_BYTES) as stage:
        alice, bob = await stage.publishers("alice", "bob")
        await alice.items(LARGE[0].items[0])
        await stage.begun(0)
        await bob.items(LARGE[1].items[0])
        await stage.begun(1)
        arbiter = stage.node.conductor.arbiter
        await bob.items(*[tiny] * 20_000)
        await stage.until(arbiter.is_full)
        await bob.items(*[tiny] * 20_000)
        await alice.items(*LARGE[0].items[1:])
        await alice.end(0)
        await alice.expect("ack 0")
        await stage.until(lambda: arbiter.inflight_bytes > 40_000 * ITEM_OVERHEAD_BYTES)
        await bob.end(1)
        await bob.expect("ack 0", "end BAD_BLOCK_PROOF last 0 about 1", "closed")
        assert arbiter.inflight_bytes == 0


@pytest.mark.parametrize("limit", ["inflight", "publisher_inflight", "address_inflight"])
async def test_many_real_publishers_bring_a_chain_through_a_narrow_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """Eight clients of different speeds, with room for two blocks in all, or for each, or for their
    address."""
    options = ClientOptions(set_bytes_max=32 * KIB)

    async def source(seed: int) -> AsyncIterator[Block]:
        chance = random.Random(seed)
        for block in LARGE:
            await asyncio.sleep(chance.random() / 50)
            yield block

    async def scene(stage: Stage) -> None:
        watch = Watch(stage, monkeypatch)
        gateways = [str(stage.node.grpc_address)]
        runs = [publish_blocks(source(seed), gateways, f"publisher-{seed}", options) for seed in range(8)]
        reports = await asyncio.gather(*runs)
        assert {report.unacknowledged for report in reports} == {0}
        assert stage.node.store.last_number == len(LARGE) - 1
        share = 8 if limit == "publisher_inflight" else 1
        assert watch.peak_bytes <= share * LIMIT_BYTES + LARGE[0].size_bytes + 8 * 2 * 40 * KIB
        assert stage.node.conductor.arbiter.publisher_bytes == {}

    await played(
        tmp_path,
        scene,
        committed=0,
        publish_duplicate_skip_window=len(LARGE),
        **{f"publish_max_{limit}_bytes": LIMIT_BYTES},
    )


async def test_one_publisher_far_ahead_is_slowed_and_the_others_are_not(tmp_path: Path) -> None:
    """Bob's share is in flight while Alice is slow with block 0; Carol is read, and Bob gets through."""
    async with playing(
        tmp_path, committed=0, publish_max_publisher_inflight_bytes=64 * KIB, publish_stall_blocks=100
    ) as stage:
        arbiter = stage.node.conductor.arbiter
        alice, bob, carol = await stage.publishers("alice", "bob", "carol")
        await send(alice, LARGE[0], 0, 1)
        await stage.begun(0)
        await send(bob, LARGE[1], 0, 1)
        await stage.begun(1)
        sending = asyncio.ensure_future(send(bob, LARGE[1], 1))
        await stage.until(lambda: any(stream.is_paused for stream in arbiter.streams.values()))
        assert arbiter.publisher_bytes["claimed:bob"] < LARGE[1].size_bytes
        await send(carol, LARGE[2], 0, 4)
        await stage.begun(2)
        await send(carol, LARGE[2], 4)
        await send(alice, LARGE[0], 1)
        for publisher in (alice, bob, carol):
            await publisher.expect("ack 0", "ack 1", "ack 2")
        await sending
        assert arbiter.publisher_bytes == arbiter.address_bytes == {}


# --- responses that are not read ----------------------------------------------------------------------------


async def test_messages_of_very_many_items_are_taken_up_one_at_a_time_and_hold_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bob, Carol and Dave send very many tiny items at once, which cost many times their bytes."""
    crowd = 8 * INLINE_HASH_ITEMS_MAX
    look, parse = looking._look, publish_service._parsed
    looked_at: list[int] = []
    parsed: list[bytes] = []
    may_go_on = threading.Event()

    def look_slowly(items: Sequence[bytes]) -> ItemSet:
        looked_at.append(len(items))
        may_go_on.wait(10)
        return look(items)

    def note(message: bytes) -> object:
        parsed.append(message)
        return parse(message)

    async def scene(stage: Stage) -> None:
        monkeypatch.setattr(looking, "_look", look_slowly)
        monkeypatch.setattr(publish_service, "_parsed", note)
        alice, *others = await stage.publishers("alice", "bob", "carol", "dave")
        for other in others:
            await other.items(*[field_item(ItemKind.EVENT_HEADER, b"")] * crowd)
        await stage.until(lambda: bool(looked_at))
        await alice.block(*BLOCKS[9:11])
        await alice.expect("ack 9", "ack 10")
        assert looked_at == [crowd]
        assert sum(EMPTY_ITEM * crowd in message for message in parsed) == 1
        may_go_on.set()
        for other in others:
            await other.expect("ack 9", "ack 10", "end INVALID_REQUEST last 10 about 0", "closed")
        assert looked_at == [crowd] * 3

    await played(tmp_path, scene, publish_stray_messages_max=0)


async def ask_for_ever(deaf: Publisher) -> None:
    """Offer a block that gets Behind, again and again, and read nothing."""
    while True:
        await deaf.items(BLOCKS[13].items[0])


@pytest.mark.parametrize("is_ended", [False, True])
async def test_a_publisher_that_reads_nothing_at_all_has_its_connection_cut(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, is_ended: bool
) -> None:
    """It has too many answers, or the node has ended its stream; neither can be told to it."""
    released: list[str] = []
    release = Admission.release

    def spy(admission: Admission, publisher: str, address: str) -> None:
        release(admission, publisher, address)
        released.append(publisher)

    queue_max = 1_000_000 if is_ended else 100
    async with playing(
        tmp_path,
        drain=DrainLimits(silence_seconds=ANSWER_SECONDS, seconds_max=0.2),
        publish_send_queue_max=queue_max,
        publish_max_streams_per_publisher=1,
    ) as stage:
        monkeypatch.setattr(Admission, "release", spy)
        (deaf,) = await stage.publishers("deaf")
        sending = asyncio.ensure_future(ask_for_ever(deaf))
        if is_ended:
            (outbox,) = stage.node.conductor._outboxes.values()
            await stage.until(lambda: len(outbox.responses) > 20)
            arbiter = stage.node.conductor.arbiter
            stage.node.conductor.perform(arbiter.bad_request(outbox.publisher_id, "nonsense", 0))
        await asyncio.wait({sending})
        assert sending.exception() is not None
        await stage.left(0)
        await stage.until(lambda: released == ["claimed:deaf"])
        (again,) = await stage.publishers("deaf")  # its place is free
        await again.block(BLOCKS[9])
        await again.expect("ack 9")
        with pytest.raises(aio.AioRpcError):
            await deaf.answers(1_000_000)
    cut = [record for record in caplog.records if record.message == "publisher reads nothing, and is cut off"]
    assert [record.sluice_fields["publisher"] for record in cut] == ["claimed:deaf"]  # type: ignore[attr-defined]
