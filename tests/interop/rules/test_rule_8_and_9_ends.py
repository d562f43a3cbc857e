"""Rules 8 and 9: streams that end, from either side. A refusing disk: tests/gateway/node/test_node.py."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import grpc
import pytest

from sluice.gateway.api import publish_pb2
from sluice.gateway.blocks.block_numbers import U64_MAX, from_wire
from sluice.gateway.race.actions import Action, PublisherId
from sluice.gateway.race.arbiter import Arbiter
from sluice.gateway.services.publish_service import DrainLimits
from sluice.gateway.store.block_store import BlockStore
from sluice.gateway.transport.admission import Admission
from tests.gateway.conducting import gate, logged
from tests.interop.rules.scenes import BLOCKS, begin, offer, playing

CODES = publish_pb2.PublishStreamRequest.EndStream.Code


@pytest.mark.parametrize("code", CODES.values())
async def test_end_stream_in_mid_block_discards_it_and_closes_in_order(tmp_path: Path, code: int) -> None:
    async with playing(tmp_path) as stage:
        alice, bob = await stage.publishers("alice", "bob")
        await begin(stage, alice, 9)
        await offer(bob, 9)
        await bob.expect("skip 9")
        await alice.end_stream(code, 9, 9)
        await alice.expect("closed")
        assert await alice.call.code() is grpc.StatusCode.OK
        await bob.expect("resend 9")
        await bob.block(BLOCKS[9])
        await bob.expect("ack 9")


@pytest.mark.parametrize("earliest", [9, 10])  # 10 breaks the protocol, and is an error all the same
async def test_subscribers_are_told_of_an_error_when_nobody_else_streams(
    tmp_path: Path, earliest: int
) -> None:
    async with playing(tmp_path) as stage:
        told = asyncio.Event()
        stage.node.conductor.on_source_error(told.set)
        alice, bob = await stage.publishers("alice", "bob")
        await begin(stage, alice, 9)
        await alice.end_stream(CODES.Value("ERROR"), 9, 9)
        await alice.expect("closed")
        assert not told.is_set()
        await bob.end_stream(CODES.Value("RESET"), 9, 9)
        await bob.expect("closed")
        assert not told.is_set()
        carol = await stage.publisher("carol")
        await carol.end_stream(CODES.Value("ERROR"), earliest, 9)
        await carol.expect("closed")
        assert told.is_set()


@pytest.mark.parametrize(
    ("code", "earliest", "latest", "target", "is_wrong"),
    [
        ("TOO_FAR_BEHIND", 20, 33, 33, False),
        ("TOO_FAR_BEHIND", 33, 33, 33, False),
        ("TOO_FAR_BEHIND", 0, 8, None, False),
        # Nothing of what it holds is acknowledged.
        ("TOO_FAR_BEHIND", 34, 33, 33, False),
        ("TOO_FAR_BEHIND", 9, 8, None, False),
        ("TOO_FAR_BEHIND", 34, 20, 33, False),
        ("RESET", 34, 33, None, False),
        # As Java says that there is none.
        ("TOO_FAR_BEHIND", 34, U64_MAX, 33, False),
        ("TOO_FAR_BEHIND", 34, 1 << 63, 33, False),
        ("TOO_FAR_BEHIND", 0, U64_MAX, None, False),
        ("TOO_FAR_BEHIND", U64_MAX, 33, 33, False),
        ("TOO_FAR_BEHIND", U64_MAX, U64_MAX, None, False),
        ("TOO_FAR_BEHIND", 1 << 63, 1 << 63, None, False),
        # What no block can have.
        ("TOO_FAR_BEHIND", 34, (1 << 63) + 1, None, True),
        ("TOO_FAR_BEHIND", U64_MAX - 1, 33, None, True),
        ("RESET", 20, 33, None, False),
        ("UNKNOWN", 0, 0, None, True),
        (77, 0, 0, None, True),
    ],
)
async def test_what_end_stream_says_is_noted(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    code: str | int,
    earliest: int,
    latest: int,
    target: int | None,
    is_wrong: bool,
) -> None:
    caplog.set_level(logging.INFO)
    async with playing(tmp_path) as stage:
        (alice,) = await stage.publishers("alice")
        number = CODES.Value(code) if isinstance(code, str) else code
        await alice.end_stream(number, earliest, latest)
        await alice.expect("closed")
        assert await alice.call.code() is grpc.StatusCode.OK
        assert stage.node.conductor.catch_up_target == target
    told = {"earliest": from_wire(earliest), "latest": from_wire(latest)}
    said = {"publisher": "claimed:alice", "code": str(code), **told}
    expected = {True: [said], False: []}
    assert logged(caplog, "EndStream breaks the protocol") == expected[is_wrong]
    assert logged(caplog, "publisher ends its stream") == expected[not is_wrong]


async def test_a_stream_that_was_ended_is_read_while_messages_come(tmp_path: Path) -> None:
    """A slow writer that reads its answers only at the end gets an orderly status."""
    async with playing(tmp_path, drain=DrainLimits(silence_seconds=1.0)) as stage:
        (alice,) = await stage.publishers("alice")
        alice.polite = False
        await alice.items()
        for _ in range(15):
            await asyncio.sleep(0.1)
            await alice.items(BLOCKS[9].items[1])
        await alice.expect("end INVALID_REQUEST last 8 about 0")
        await alice.items(BLOCKS[9].items[1])  # still open
        await alice.expect("closed")  # silent for long enough
        assert await alice.call.code() is grpc.StatusCode.OK


async def test_a_stream_that_was_ended_is_not_read_for_ever(tmp_path: Path) -> None:
    async with playing(tmp_path, drain=DrainLimits(silence_seconds=0.5, seconds_max=2.0)) as stage:
        (alice,) = await stage.publishers("alice")
        alice.polite = False
        await alice.items()

        async def write_for_ever() -> None:
            while True:
                await alice.items(BLOCKS[9].items[1])
                await asyncio.sleep(0.01)

        writing = asyncio.ensure_future(write_for_ever())
        await alice.expect("end INVALID_REQUEST last 8 about 0")
        await asyncio.wait({writing})
        assert writing.exception() is not None  # it learns that the stream is over


async def test_an_error_with_one_message_ends_one_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block_end = Arbiter.block_end

    def failing(arbiter: Arbiter, publisher_id: PublisherId, number: int, now_ns: int) -> list[Action]:
        if arbiter.stream(publisher_id).name == "claimed:alice":
            raise ValueError("a bug of ours")
        return block_end(arbiter, publisher_id, number, now_ns)

    monkeypatch.setattr(Arbiter, "block_end", failing)
    async with playing(tmp_path) as stage:
        alice, bob = await stage.publishers("alice", "bob")
        await begin(stage, alice, 9)
        await offer(bob, 9)
        await bob.expect("skip 9")
        await alice.end(9)
        await alice.expect("end ERROR last 8 about 0", "closed")
        await bob.expect("resend 9")
        await bob.block(BLOCKS[9])
        await bob.expect("ack 9")


async def test_an_error_before_a_message_is_handled_ends_one_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the reading task is gone, and its publisher gets no answer."""
    wait_ns = Admission.wait_ns

    def failing(admission: Admission, name: str, address: str, now_ns: int) -> int:
        if name == "claimed:alice":
            raise ValueError("a bug of ours")
        return wait_ns(admission, name, address, now_ns)

    monkeypatch.setattr(Admission, "wait_ns", failing)
    async with playing(tmp_path, publish_max_messages_per_second=1_000) as stage:
        alice, bob = await stage.publishers("alice", "bob")
        await offer(alice, 9)
        await alice.expect("end ERROR last 8 about 0", "closed")
        await bob.block(BLOCKS[9])
        await bob.expect("ack 9")


async def test_a_shutdown_finishes_what_is_complete_and_tells_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with playing(tmp_path) as stage:
        alice, bob, idle = await stage.publishers("alice", "bob", "idle")
        with gate(monkeypatch, BlockStore, "begin") as disk:
            await alice.block(BLOCKS[9])
            await stage.held(9)
            await begin(stage, bob, 10)
            stopping: asyncio.Future[Any] = asyncio.ensure_future(stage.node.conductor.stop(10))
            await asyncio.sleep(0)
            late = await stage.publisher("late")
            disk.open()
            await stopping
        for publisher in (alice, bob, idle):
            await publisher.expect("ack 9", "end SUCCESS last 9 about 0", "closed")
        await late.expect("end SUCCESS last 8 about 0", "closed")
