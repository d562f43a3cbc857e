"""publishBlockStream over real gRPC: every answer of the protocol, and every bad request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from sluice.gateway.api import publish_pb2
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.items import ItemKind, field_item, kind_of
from sluice.gateway.limits import INLINE_HASH_ITEMS_MAX, SLOT_ITEMS_MIN
from sluice.gateway.node import rules as node_rules
from sluice.gateway.node.rules import NodeLimits
from sluice.gateway.race.records import RaceRules
from sluice.gateway.services import publish_service
from sluice.gateway.services.publish_service import METHOD_NAME, SERVICE_NAME, DrainLimits
from sluice.gateway.workers.hashing import Hashing
from sluice.gateway.workers.loop_slots import LoopSlots
from sluice.publishers.blocks.maker import BlockMaker, MakerOptions, key_of_seed
from tests.nodes import (
    ANSWER_SECONDS,
    AT_ITS_END,
    KEY,
    Publisher,
    Wire,
    make_blocks,
    running_node,
    split,
    stream_bytes,
    wire_to,
)

EVENT = field_item(ItemKind.EVENT_HEADER, b"")


LIMITS = NodeLimits(drain=DrainLimits(silence_seconds=ANSWER_SECONDS))
"""However long a publisher pauses in sending to a stream that was ended: it closes its side."""


def with_node(
    tmp_path: Path, scenario: Callable[[Wire], Awaitable[None]], *, committed: int = 0, **settings: Any
) -> bytes:
    """Run a scenario against a node that holds blocks 0 to committed - 1; return the stream file's bytes."""

    async def main() -> None:
        async with running_node(tmp_path, LIMITS, **settings) as node, wire_to(node) as wire:
            if committed:
                publisher = await wire.publisher("first")
                await publisher.block(*make_blocks(committed))
                await publisher.call.done_writing()
                await publisher.expect(*(f"ack {number}" for number in range(committed)), "closed")
            await scenario(wire)

    asyncio.run(main())
    return stream_bytes(tmp_path)


def test_blocks_are_acknowledged_however_they_are_cut(tmp_path: Path) -> None:
    blocks = make_blocks(4)

    async def scenario(wire: Wire) -> None:
        alice = await wire.publisher()
        for size, block in enumerate(blocks, start=1):
            for run in split(block.items, size):
                await alice.items(*run)
            await alice.end(block.number)
            await alice.expect(f"ack {block.number}")

    with_node(tmp_path, scenario)


@pytest.mark.parametrize(
    "size",
    [
        pytest.param(INLINE_HASH_ITEMS_MAX, marks=pytest.mark.slow),
        INLINE_HASH_ITEMS_MAX + 1,
        pytest.param(3_000, marks=pytest.mark.slow),
    ],
)
def test_sets_that_are_looked_at_in_a_thread_stay_in_their_places(tmp_path: Path, size: int) -> None:
    options = MakerOptions(
        rounds_per_block=1, events_per_round=2, transactions_per_block=1_500, item_bytes=256
    )
    blocks = list(BlockMaker(7, KEY, options).blocks(3))
    assert len(blocks[0].items) > 2 * INLINE_HASH_ITEMS_MAX

    async def scenario(wire: Wire) -> None:
        alice = await wire.publisher()
        for block in blocks:
            for run in split(block.items, size):
                await alice.items(*run)
            await alice.end(block.number)
        await alice.expect("ack 0", "ack 1", "ack 2")

    with_node(tmp_path, scenario)


@pytest.mark.parametrize("is_parsed", [False, True])
@pytest.mark.parametrize(("size", "slot_count"), [(SLOT_ITEMS_MIN - 1, 0), (SLOT_ITEMS_MIN, 3)])
def test_only_messages_of_many_items_wait_for_a_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, slot_count: int, is_parsed: bool
) -> None:
    if is_parsed:  # by the protobuf library, as where nothing was compiled
        monkeypatch.setattr(publish_service, "split", lambda message, items_max: None)
    options = MakerOptions(rounds_per_block=1, events_per_round=2, transactions_per_block=130, item_bytes=256)
    block = next(BlockMaker(7, KEY, options).blocks(1))
    take, slots = LoopSlots.take, []

    async def counted(self: LoopSlots) -> None:
        slots.append(self)
        await take(self)

    async def scenario(wire: Wire) -> None:
        monkeypatch.setattr(LoopSlots, "take", counted)
        monkeypatch.setattr(Hashing, "is_quick", lambda self, count, size_bytes: True)  # which needs no slot
        alice = await wire.publisher()
        for run in split(block.items, size):
            await alice.items(*run)
        await alice.end(0)
        await alice.expect("ack 0")

    assert len(block.items) // SLOT_ITEMS_MIN == 3
    with_node(tmp_path, scenario)
    assert len(slots) == slot_count


def test_same_blocks_same_bytes(tmp_path: Path) -> None:
    blocks = make_blocks(3)

    async def one_set(wire: Wire) -> None:
        alice = await wire.publisher()
        await alice.block(*blocks)
        await alice.answers(3)

    async def one_by_one_with_failures(wire: Wire) -> None:
        alice, bob = await wire.publisher("alice"), await wire.publisher("bob")
        await alice.items(*blocks[0].items[:2])
        await wire.begun(0)
        await bob.items(blocks[0].items[0])
        await bob.expect("skip 0")
        alice.call.cancel()
        await bob.expect("resend 0")
        for block in blocks:
            for item in block.items:
                await bob.items(item)
            await bob.end(block.number)
            await bob.expect(f"ack {block.number}")

    assert with_node(tmp_path / "a", one_set) == with_node(tmp_path / "b", one_by_one_with_failures)


def test_duplicate_behind_and_next(tmp_path: Path) -> None:
    blocks = make_blocks(5)

    async def scenario(wire: Wire) -> None:
        for number in (0, 1, 2):
            publisher = await wire.publisher()
            await publisher.items(blocks[number].items[0])
            await publisher.expect("end DUPLICATE_BLOCK last 2 about 0", "closed")
        alice = await wire.publisher()
        await alice.block(blocks[4])
        await alice.expect("behind 2")
        await alice.block(blocks[3], blocks[4])
        await alice.expect("ack 3", "ack 4")

    with_node(tmp_path, scenario, committed=3, publish_duplicate_skip_window=0)


def test_an_empty_node_is_behind_with_no_block(tmp_path: Path) -> None:
    async def scenario(wire: Wire) -> None:
        alice = await wire.publisher()
        await alice.block(make_blocks(2)[1])
        await alice.expect("behind none")

    with_node(tmp_path, scenario)


def test_several_publishers_race_in_the_simple_form(tmp_path: Path) -> None:
    blocks = make_blocks(2)

    async def scenario(wire: Wire) -> None:
        alice, bob, carol = [await wire.publisher(name) for name in ("alice", "bob", "carol")]
        await alice.items(*blocks[0].items[:3])
        await wire.begun(0)
        await bob.block(blocks[0])
        await bob.expect("skip 0")
        await carol.items(blocks[0].items[0])
        await carol.expect("skip 0")
        await bob.items(*blocks[1].items)
        await wire.begun(1)
        await alice.items(*blocks[0].items[3:])
        await alice.end(0)
        await bob.end(1)
        for publisher in (alice, bob, carol):
            await publisher.expect("ack 0", "ack 1")

    with_node(tmp_path, scenario)


def test_a_block_without_its_end_is_complete_after_a_moment(tmp_path: Path) -> None:
    blocks = make_blocks(3)

    async def scenario(wire: Wire) -> None:
        alice = await wire.publisher()
        await alice.items(*blocks[0].items)
        await alice.expect("ack 0")
        await alice.items(*blocks[1].items)
        await alice.items(blocks[2].items[0])  # at the next header
        await alice.expect("ack 1")

    with_node(tmp_path, scenario)


@pytest.mark.parametrize("code", publish_pb2.PublishStreamRequest.EndStream.Code.values())
def test_end_stream_ends_the_stream_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    blocks = make_blocks(2)
    patient = partial(RaceRules, goodbye_ns=int(ANSWER_SECONDS * 1e9))  # however slow the disk is
    monkeypatch.setattr(node_rules, "RaceRules", patient)

    async def scenario(wire: Wire) -> None:
        alice = await wire.publisher("alice")
        await alice.block(blocks[0])
        await alice.items(*blocks[1].items[:-1])  # no proof: discarded
        await alice.end_stream(code, 0, 1)
        await alice.expect("ack 0", "closed")
        assert await alice.call.code() is grpc.StatusCode.OK
        bob = await wire.publisher("bob")
        await bob.block(blocks[1])
        await bob.expect("ack 1")

    with_node(tmp_path, scenario)


# --- bad requests: the answer, and nothing on disk ----------------------------------------------------------


async def _empty_set(publisher: Publisher, block: Block) -> None:
    await publisher.items()


async def _two_headers(publisher: Publisher, block: Block) -> None:
    await publisher.items(block.items[0], block.items[0])


async def _header_not_first(publisher: Publisher, block: Block) -> None:
    await publisher.items(EVENT, block.items[0])


async def _not_an_item(publisher: Publisher, block: Block) -> None:
    await publisher.items(block.items[0], b"\xff\xff")


async def _item_with_two_fields(publisher: Publisher, block: Block) -> None:
    await publisher.items(block.items[0], EVENT + EVENT)


async def _not_an_item_among_very_many(publisher: Publisher, block: Block) -> None:
    await publisher.items(block.items[0], *[EVENT] * (2 * INLINE_HASH_ITEMS_MAX), b"\xff\xff")


async def _very_many_items_before_any_header(publisher: Publisher, block: Block) -> None:
    await publisher.items(*[EVENT] * 3_000)


async def _header_that_does_not_parse(publisher: Publisher, block: Block) -> None:
    await publisher.items(field_item(ItemKind.BLOCK_HEADER, b"\x18"))


async def _items_before_any_header(publisher: Publisher, block: Block) -> None:
    await publisher.items(EVENT)


async def _end_before_any_header(publisher: Publisher, block: Block) -> None:
    await publisher.end(block.number)


async def _items_after_a_proof(publisher: Publisher, block: Block) -> None:
    await publisher.items(*block.items, EVENT)


async def _no_kind_of_message(publisher: Publisher, block: Block) -> None:
    await publisher.call.write(publish_pb2.PublishStreamRequest())


async def _end_of_another_block(publisher: Publisher, block: Block) -> None:
    await publisher.items(*block.items)
    await publisher.end(block.number + 1)


async def _items_after_the_end(publisher: Publisher, block: Block) -> None:
    await publisher.items(block.items[0])
    await publisher.items(*block.items[1:])
    await publisher.items(EVENT)


NO_BLOCK = "end INVALID_REQUEST last 1 about 0"
IN_BLOCK = "end INVALID_REQUEST last 1 about 2"
BAD_REQUESTS = [
    (_empty_set, NO_BLOCK, "item set: got no items, expected at least one"),
    (_two_headers, NO_BLOCK, "got a second header as item 1"),
    (_header_not_first, NO_BLOCK, "got a header as item 1"),
    (_not_an_item, NO_BLOCK, "item 1"),
    (_not_an_item_among_very_many, NO_BLOCK, "item 2049"),
    (_very_many_items_before_any_header, NO_BLOCK, "got 3000 items without a header before"),
    (_item_with_two_fields, NO_BLOCK, "item 1"),
    (_header_that_does_not_parse, NO_BLOCK, "block header: got 3 bytes that do not parse"),
    (_items_before_any_header, NO_BLOCK, "got 1 items without a header before, expected a block header"),
    (_end_before_any_header, NO_BLOCK, "got end_of_block(2), expected a block header"),
    (_items_after_a_proof, NO_BLOCK, "after a proof, expected only proofs after a proof"),
    (_no_kind_of_message, NO_BLOCK, "got none of its kinds"),
    (_end_of_another_block, IN_BLOCK, "got end_of_block(3), expected end_of_block(2)"),
    (_items_after_the_end, IN_BLOCK, "got 1 items after the block's proof, expected a block header"),
]


@pytest.mark.parametrize(
    ("send", "answer", "reason"), BAD_REQUESTS, ids=[case[0].__name__.strip("_") for case in BAD_REQUESTS]
)
def test_a_bad_request_is_answered_and_leaves_nothing(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    send: Callable[[Publisher, Block], Awaitable[None]],
    answer: str,
    reason: str,
) -> None:
    blocks = make_blocks(3)
    before = with_node(tmp_path / "good", _nothing, committed=2)
    caplog.set_level(logging.WARNING)

    async def scenario(wire: Wire) -> None:
        alice = await wire.publisher("alice")
        await send(alice, blocks[2])
        await alice.expect(answer, "closed")

    assert (
        with_node(tmp_path / "tried", scenario, committed=2, publish_stray_messages_max=0, **AT_ITS_END)
        == before
    )
    record = next(record for record in caplog.records if record.message == "stream ended")
    logged = record.sluice_fields  # type: ignore[attr-defined]
    assert logged["publisher"] == "claimed:alice"
    assert logged["status"] == "INVALID_REQUEST"
    assert logged["block"] == (2 if answer == IN_BLOCK else None)
    assert reason in logged["reason"]


async def _nothing(wire: Wire) -> None:
    pass


def test_a_message_that_does_not_parse(tmp_path: Path) -> None:
    async def scenario(wire: Wire) -> None:
        call: aio.StreamStreamCall[bytes, publish_pb2.PublishStreamResponse] = wire.channel().stream_stream(
            f"/{SERVICE_NAME}/{METHOD_NAME}",
            response_deserializer=publish_pb2.PublishStreamResponse.FromString,
        )()
        await call.write(b"\x0a\xff")
        await Publisher(call).expect("end INVALID_REQUEST last none about 0", "closed")

    with_node(tmp_path, scenario)


# --- bad blocks ---------------------------------------------------------------------------------------------


def _flip(item: bytes, byte: int = -1) -> bytes:
    changed = bytearray(item)
    changed[byte] ^= 1
    return bytes(changed)


def _replace(block: Block, kind: ItemKind, change: Callable[[bytes], bytes] | None) -> list[bytes]:
    """The block's items with those of a kind changed, or left out."""
    items = []
    for item in block.items:
        if kind_of(item) != kind:
            items.append(item)
        elif change is not None:
            items.append(change(item))
    return items


def _first_transaction_flipped(block: Block) -> list[bytes]:
    return _replace(block, ItemKind.SIGNED_TRANSACTION, _flip)


def _previous_link_flipped(block: Block) -> list[bytes]:
    return _replace(block, ItemKind.BLOCK_FOOTER, lambda item: _flip(item, 5))


def _all_blocks_link_flipped(block: Block) -> list[bytes]:
    return _replace(block, ItemKind.BLOCK_FOOTER, lambda item: _flip(item, 60))


def _proof_flipped(block: Block) -> list[bytes]:
    return _replace(block, ItemKind.BLOCK_PROOF, _flip)


def _without_footer(block: Block) -> list[bytes]:
    return _replace(block, ItemKind.BLOCK_FOOTER, None)


def _without_proof(block: Block) -> list[bytes]:
    return _replace(block, ItemKind.BLOCK_PROOF, None)


def _of_an_unknown_kind(block: Block) -> list[bytes]:
    return [block.items[0], field_item(14, b""), *block.items[1:]]


def _of_the_wrong_key(block: Block) -> list[bytes]:
    return list(make_blocks(3, key=key_of_seed(8))[2].items)


def _of_another_chain(block: Block) -> list[bytes]:
    return list(make_blocks(3, seed=8)[2].items)


BAD_BLOCKS = [
    (_first_transaction_flipped, "bad proof"),
    (_previous_link_flipped, "bad proof"),
    (_all_blocks_link_flipped, "bad proof"),
    (_proof_flipped, "bad proof"),
    (_without_footer, "missing item"),
    (_without_proof, "missing item"),
    (_of_an_unknown_kind, "unsupported"),
    (_of_the_wrong_key, "bad proof"),
    (_of_another_chain, "bad root hash"),
]


@pytest.mark.parametrize(
    ("change", "kind"), BAD_BLOCKS, ids=[case[0].__name__.strip("_") for case in BAD_BLOCKS]
)
def test_a_bad_block_is_refused_and_another_may_send_it(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    change: Callable[[Block], list[bytes]],
    kind: str,
) -> None:
    blocks = make_blocks(3)
    before = with_node(tmp_path / "good", _nothing, committed=3)
    caplog.set_level(logging.WARNING)

    async def scenario(wire: Wire) -> None:
        mallory, bob = await wire.publisher("mallory"), await wire.publisher("bob")
        await mallory.items(*change(blocks[2]))
        await mallory.end(2)
        status = "ERROR" if kind == "unsupported" else "BAD_BLOCK_PROOF"
        await mallory.expect(f"end {status} last 1 about 2", "closed")
        assert (await wire.status()).last_available_block == 1
        await bob.block(blocks[2])
        await bob.expect("ack 2")

    assert with_node(tmp_path / "tried", scenario, committed=2) == before
    message = "block cannot be checked" if kind == "unsupported" else "block refused"
    record = next(record for record in caplog.records if record.message == message)
    logged = record.sluice_fields  # type: ignore[attr-defined]
    assert (logged["block"], logged["publisher"], logged["kind"]) == (2, "claimed:mallory", kind)
    assert logged["got"]
    assert logged["expected"]


@pytest.mark.parametrize("change", [_previous_link_flipped, _all_blocks_link_flipped])
def test_mode_hash_checks_the_links(tmp_path: Path, change: Callable[[Block], list[bytes]]) -> None:
    async def scenario(wire: Wire) -> None:
        mallory = await wire.publisher()
        await mallory.items(*change(make_blocks(3)[2]))
        await mallory.end(2)
        await mallory.expect("end BAD_BLOCK_PROOF last 1 about 2", "closed")

    with_node(tmp_path, scenario, committed=2, verification_mode="hash", ledger_keys=())


# --- streams that do not behave -----------------------------------------------------------------------------


def test_a_stream_that_the_node_ended_is_drained(tmp_path: Path) -> None:
    """A publisher that is in the middle of sending reads the answer, not an error of the connection."""
    blocks = make_blocks(1)

    async def scenario(wire: Wire) -> None:
        alice = await wire.publisher()
        await alice.items(EVENT)
        for _ in range(200):
            await alice.items(field_item(ItemKind.SIGNED_TRANSACTION, bytes(50_000)))
        await alice.expect("end INVALID_REQUEST last none about 0", "closed")
        assert await alice.call.code() is grpc.StatusCode.OK
        bob = await wire.publisher()
        await bob.block(blocks[0])
        await bob.expect("ack 0")

    with_node(tmp_path, scenario, publish_stray_messages_max=0)


def test_a_publisher_that_reads_nothing_is_closed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    blocks = make_blocks(6)

    async def scenario(wire: Wire) -> None:
        deaf, alice = await wire.publisher("deaf"), await wire.publisher("alice")

        async def send_for_ever() -> None:
            while True:
                await deaf.items(blocks[5].items[0])  # each is answered with Behind

        sending = asyncio.ensure_future(send_for_ever())
        while wire.node.conductor.arbiter.publisher_count > 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        with pytest.raises(aio.AioRpcError):
            await deaf.answers(1_000_000)
        await asyncio.wait({sending})  # its write fails locally, before it gets to see the node's status
        assert sending.exception() is not None
        await alice.block(*blocks)
        await alice.expect(*(f"ack {number}" for number in range(6)))

    with_node(tmp_path, scenario, publish_send_queue_max=100)
    left = [record.sluice_fields for record in caplog.records if record.message == "publisher left"]  # type: ignore[attr-defined]
    reasons = {fields["publisher"]: fields["reason"] for fields in left}
    assert reasons["claimed:deaf"] == "the publisher does not read its responses"


def test_a_publisher_is_known_by_its_id_or_its_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def scenario(wire: Wire) -> None:
        for name in ("alice", None):
            publisher = await wire.publisher(name)
            await publisher.call.done_writing()
            await publisher.expect("closed")

    with_node(tmp_path, scenario)
    names = [
        record.sluice_fields["publisher"]  # type: ignore[attr-defined]
        for record in caplog.records
        if record.message == "publisher connected"
    ]
    assert names[0] == "claimed:alice"
    assert names[1].startswith("ipv4:127.0.0.1:")


async def test_stopping_the_node_ends_streams_with_success(tmp_path: Path) -> None:
    async with wire_to_stopped(tmp_path) as alice:
        await alice.expect("end SUCCESS last 0 about 0", "closed")


class wire_to_stopped:
    """A publisher whose node is stopped after one block."""

    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path

    async def __aenter__(self) -> Publisher:
        self.node = running_node(self.tmp_path, LIMITS)
        node = await self.node.__aenter__()
        self.wire = Wire(node)
        publisher = await self.wire.publisher()
        await publisher.block(*make_blocks(1))
        await publisher.expect("ack 0")
        self.stopping = asyncio.ensure_future(self.node.__aexit__(None, None, None))
        return publisher

    async def __aexit__(self, *_: object) -> None:
        await self.wire.close()
        await self.stopping
