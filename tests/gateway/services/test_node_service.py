"""Tests of `gateway.services.node_service` over real gRPC."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from sluice import gateway
from sluice.gateway.api import node_pb2, node_pb2_grpc
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.errors import LayoutError
from sluice.gateway.blocks.stream_layout import StoredBlock
from sluice.gateway.node.rules import NodeLimits
from sluice.gateway.services.block_answers import (
    ACCESS_ADDRESS_BYTES_MAX,
    ACCESS_BYTES_MAX,
    ACCESS_READS_MAX,
    AccessLimits,
    AnswerShares,
)
from sluice.gateway.services.node_service import ACCESS_SERVICE_NAME, STATUS_KEY, read_report
from sluice.gateway.store.block_store import BlockStore
from sluice.publishers.blocks.maker import BlockMaker, MakerOptions
from tests.deaf_client import DeafClient
from tests.nodes import ANSWER_SECONDS, KEY, Wire, make_blocks, running_node, wire_to

U64_MAX = (1 << 64) - 1
BLOCKS = make_blocks(6)
Code = node_pb2.BlockResponse.Code
Request = node_pb2.BlockRequest
LATEST = Request(retrieve_latest=True)
GET_BLOCK = f"/{ACCESS_SERVICE_NAME}/getBlock"


def with_blocks(
    tmp_path: Path,
    blocks: list[Block],
    scenario: Callable[[Wire], Awaitable[None]],
    limits: NodeLimits | None = None,
    /,
    **settings: Any,
) -> None:
    """Run a scenario against a node with these blocks."""

    async def main() -> None:
        async with running_node(tmp_path, limits, **settings) as node, wire_to(node) as wire:
            if blocks:
                publisher = await wire.publisher()
                await publisher.block(*blocks)
                await publisher.expect(*(f"ack {block.number}" for block in blocks))
            await scenario(wire)

    asyncio.run(main())


async def ask(wire: Wire, request: node_pb2.BlockRequest) -> node_pb2.BlockResponse:
    stub = node_pb2_grpc.BlockAccessServiceStub(wire.channel())
    return await stub.getBlock(request, timeout=ANSWER_SECONDS)


async def detail(wire: Wire) -> node_pb2.ServerStatusDetailResponse:
    stub = node_pb2_grpc.BlockNodeServiceStub(wire.channel())
    return await stub.serverStatusDetail(node_pb2.ServerStatusRequest(), timeout=ANSWER_SECONDS)


# --- getBlock -----------------------------------------------------------------------------------------------


def test_a_block_comes_back_as_it_was_sent(tmp_path: Path) -> None:
    async def scenario(wire: Wire) -> None:
        for block in BLOCKS[2:5]:
            response = await ask(wire, Request(block_number=block.number))
            assert (response.status, tuple(response.block.items)) == (Code.SUCCESS, block.items)

    with_blocks(tmp_path, BLOCKS[2:5], scenario, first_block=2)


REQUESTS: list[tuple[str, node_pb2.BlockRequest, int, int | None]] = [
    ("latest by number", Request(block_number=U64_MAX), Code.SUCCESS, 4),
    ("latest by flag", Request(retrieve_latest=True), Code.SUCCESS, 4),
    ("above the last", Request(block_number=5), Code.NOT_AVAILABLE, None),
    ("far above the last", Request(block_number=U64_MAX - 1), Code.NOT_AVAILABLE, None),
    ("below the first", Request(block_number=1), Code.NOT_AVAILABLE, None),
    ("block 0", Request(block_number=0), Code.NOT_AVAILABLE, None),
    ("nothing asked", Request(), Code.INVALID_REQUEST, None),
    ("not the latest", Request(retrieve_latest=False), Code.INVALID_REQUEST, None),
]


@pytest.mark.parametrize(
    ("request_", "status", "number"), [case[1:] for case in REQUESTS], ids=[case[0] for case in REQUESTS]
)
def test_each_request_has_its_answer(
    tmp_path: Path, request_: node_pb2.BlockRequest, status: int, number: int | None
) -> None:
    async def scenario(wire: Wire) -> None:
        response = await ask(wire, request_)
        assert response.status == status
        assert tuple(response.block.items) == (() if number is None else BLOCKS[number].items)
        assert response.HasField("block") == (number is not None)

    with_blocks(tmp_path, BLOCKS[2:5], scenario, first_block=2)


def test_a_request_that_does_not_parse(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """getBlock has a status for it, the status calls have gRPC's."""
    service = "/org.hiero.block.api.BlockNodeService"

    async def scenario(wire: Wire) -> None:
        channel: Any = wire.channel()
        get_block = channel.unary_unary("/org.hiero.block.api.BlockAccessService/getBlock")
        assert await get_block(b"\xff\xff", timeout=ANSWER_SECONDS) == b"\x08\x02"  # INVALID_REQUEST
        assert await get_block(b"\x08\x01", timeout=ANSWER_SECONDS) == b"\x08\x05"  # NOT_AVAILABLE
        for method in ("serverStatus", "serverStatusDetail"):
            with pytest.raises(aio.AioRpcError) as caught:
                await channel.unary_unary(f"{service}/{method}")(b"\xff\xff", timeout=ANSWER_SECONDS)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    with_blocks(tmp_path, [], scenario)
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


@pytest.mark.parametrize("request_", [Request(block_number=0), Request(block_number=U64_MAX), REQUESTS[1][1]])
def test_an_empty_node_finds_nothing(tmp_path: Path, request_: node_pb2.BlockRequest) -> None:
    async def scenario(wire: Wire) -> None:
        assert (await ask(wire, request_)).status == Code.NOT_AVAILABLE

    with_blocks(tmp_path, [], scenario)


def test_a_block_longer_than_any_message_comes_back_whole(tmp_path: Path) -> None:
    """18 MB, for a client that allows it; gRPC refuses it for a client with its default of 4 MiB."""
    options = MakerOptions(
        rounds_per_block=1, events_per_round=1, transactions_per_block=4, item_bytes=6_000_000
    )
    (block,) = BlockMaker(3, KEY, options).blocks(1)
    assert block.size_bytes > 2 * (8 << 20)

    async def scenario(wire: Wire) -> None:
        publisher = await wire.publisher()
        for item in block.items:
            await publisher.items(item)
        await publisher.end(0)
        await publisher.expect("ack 0")
        response = await ask(wire, Request(block_number=0))
        assert tuple(response.block.items) == block.items
        async with aio.insecure_channel(str(wire.node.grpc_address)) as channel:
            stub = node_pb2_grpc.BlockAccessServiceStub(channel)
            with pytest.raises(aio.AioRpcError) as caught:
                await stub.getBlock(Request(block_number=0), timeout=ANSWER_SECONDS)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

    with_blocks(tmp_path, [], scenario)


def test_few_blocks_are_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, begun = threading.Event(), list[int]()
    read_block = BlockStore.read_block

    def held(store: BlockStore, number: int) -> StoredBlock | None:
        begun.append(number)
        assert go_on.wait(ANSWER_SECONDS)
        return read_block(store, number)

    async def scenario(wire: Wire) -> None:
        monkeypatch.setattr(BlockStore, "read_block", held)
        asked = [asyncio.ensure_future(ask(wire, LATEST)) for _ in range(ACCESS_READS_MAX + 1)]
        waiting = wire.node.block_access.answers.of_strangers.reading
        async with asyncio.timeout(ANSWER_SECONDS):
            while len(begun) < ACCESS_READS_MAX or not waiting._waiters:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        assert len(begun) == ACCESS_READS_MAX
        go_on.set()
        assert {(await answer).status for answer in asked} == {Code.SUCCESS}

    with_blocks(tmp_path, BLOCKS[:1], scenario)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (LayoutError("block 1 at entry 7", "nonsense", "the end of the block"), Code.NOT_FOUND),
        (OSError("I/O error"), Code.NOT_FOUND),
        (ZeroDivisionError("our bug"), Code.ERROR),
    ],
)
def test_a_block_that_cannot_be_read_is_told_from_one_that_is_not_held(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    status: int,
) -> None:
    def damaged(store: BlockStore, number: int) -> None:
        raise error

    async def scenario(wire: Wire) -> None:
        monkeypatch.setattr(BlockStore, "read_block", damaged)
        assert (await ask(wire, Request(block_number=1))).status == status
        monkeypatch.undo()
        assert (await ask(wire, Request(block_number=1))).status == Code.SUCCESS

    with_blocks(tmp_path, BLOCKS[:2], scenario)
    (line,) = [
        record.sluice_fields  # type: ignore[attr-defined]
        for record in caplog.records
        if record.message == "block cannot be read"
    ]
    assert line == {"block": 1, "got": str(error)}


def test_a_status_request_reads_one_root_hash_however_often_it_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[int]()
    root_hash_at = BlockStore.root_hash_at

    def counted(store: BlockStore, number: int) -> bytes | None:
        asked.append(number)
        return root_hash_at(store, number)

    async def scenario(wire: Wire) -> None:
        monkeypatch.setattr(BlockStore, "root_hash_at", counted)
        stub = node_pb2_grpc.BlockNodeServiceStub(wire.channel())
        metadata = [(STATUS_KEY, str(number % 2)) for number in range(100)]
        await stub.serverStatus(node_pb2.ServerStatusRequest(), metadata=metadata, timeout=ANSWER_SECONDS)
        assert asked == [0]

    with_blocks(tmp_path, BLOCKS[:2], scenario)


async def test_whatever_strangers_do_not_take_another_node_gets_its_blocks(tmp_path: Path) -> None:
    for networks, code in (((), grpc.StatusCode.RESOURCE_EXHAUSTED), (("127.0.0.1/32",), None)):
        folder = tmp_path / str(code)
        async with running_node(folder, peer_networks=networks) as node, wire_to(node) as wire:
            publisher = await wire.publisher()
            await publisher.block(BLOCKS[0])
            await publisher.expect("ack 0")
            node.block_access.answers.of_strangers.shares.take("192.0.2.1", ACCESS_BYTES_MAX)
            if code is None:
                assert (await ask(wire, LATEST)).status == Code.SUCCESS
                continue
            with pytest.raises(aio.AioRpcError) as caught:
                await ask(wire, LATEST)
            assert caught.value.code() is code


async def until_held(wire: Wire, *, some: bool) -> None:
    """Wait until answers are on their way, or none."""
    async with asyncio.timeout(ANSWER_SECONDS):
        while (wire.node.block_access.answers.of_strangers.shares.bytes_held > 0) != some:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def test_a_client_that_does_not_take_its_blocks_gets_no_more_of_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limits = NodeLimits(access=AccessLimits(address_bytes_max=1))

    async def scenario(wire: Wire) -> None:
        assert (await ask(wire, LATEST)).status == Code.SUCCESS
        await until_held(wire, some=False)
        with DeafClient(wire.node.grpc_address, ANSWER_SECONDS) as deaf:
            for _ in range(3):
                deaf.ask(GET_BLOCK, LATEST.SerializeToString())
            await until_held(wire, some=True)
            with pytest.raises(aio.AioRpcError) as caught:
                await ask(wire, LATEST)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert str(caught.value.details()).endswith("that were not taken yet, expected less than 1")
            assert (await ask(wire, Request(block_number=5))).status == Code.NOT_AVAILABLE
        await until_held(wire, some=False)
        assert (await ask(wire, LATEST)).status == Code.SUCCESS

    with_blocks(tmp_path, BLOCKS[:5], scenario, limits)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_client_that_takes_too_long_over_a_block_is_cut_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limits = NodeLimits(access=AccessLimits(seconds_max=0.3))

    async def scenario(wire: Wire) -> None:
        with DeafClient(wire.node.grpc_address, ANSWER_SECONDS) as deaf:
            deaf.ask(GET_BLOCK, LATEST.SerializeToString())
            await until_held(wire, some=True)
            await asyncio.to_thread(deaf.expect_close)
            await until_held(wire, some=False)

    with_blocks(tmp_path, BLOCKS[:5], scenario, limits)
    words = "client does not take its block, and is cut off"
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == [words]


# --- serverStatus -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("first_block", "next_expected"), [(None, 0), (5, 5), ("any", U64_MAX)])
def test_the_status_of_an_empty_node(
    tmp_path: Path, first_block: int | str | None, next_expected: int
) -> None:
    async def scenario(wire: Wire) -> None:
        status = await wire.status()
        assert (status.first_available_block, status.last_available_block) == (U64_MAX, U64_MAX)
        assert (status.next_expected_block, status.only_latest_state) == (next_expected, False)
        ranges = await detail(wire)
        assert (list(ranges.available_ranges), list(ranges.stored_ranges)) == ([], [])

    with_blocks(tmp_path, [], scenario, first_block=first_block)


def test_the_status_of_a_node_with_blocks(tmp_path: Path) -> None:
    async def scenario(wire: Wire) -> None:
        status = await wire.status()
        assert (status.first_available_block, status.last_available_block) == (2, 4)
        assert (status.next_expected_block, status.only_latest_state) == (5, False)
        ranges = await detail(wire)
        expected = [node_pb2.BlockRange(range_start=2, range_end=4)]
        assert (list(ranges.available_ranges), list(ranges.stored_ranges)) == (expected, expected)

    with_blocks(tmp_path, BLOCKS[2:5], scenario, first_block=2)


def test_the_detail_tells_versions(tmp_path: Path) -> None:
    async def scenario(wire: Wire) -> None:
        versions = (await detail(wire)).version_information
        node, proto = versions.block_node_version, versions.stream_proto_version
        assert f"{node.major}.{node.minor}.{node.patch}" == gateway.__version__
        assert (proto.major, proto.minor, proto.patch) == (0, 78, 0)

    with_blocks(tmp_path, [], scenario)


# --- what sluice status asks for ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "root_number"),
    [("", None), ("2", 2), ("9", None), ("-1", None), ("9" * 30, None)],
)
def test_facts_are_told_to_who_asks_for_them(tmp_path: Path, asked: str, root_number: int | None) -> None:
    async def scenario(wire: Wire) -> None:
        stub = node_pb2_grpc.BlockNodeServiceStub(wire.channel())
        metadata = ((STATUS_KEY, asked.encode("ascii", "ignore").decode()),)
        call: Any = stub.serverStatus(node_pb2.ServerStatusRequest(), metadata=metadata)
        assert (await call).last_available_block == 5
        [text] = [value for key, value in await call.trailing_metadata() if key == STATUS_KEY]
        report = json.loads(text)
        assert (report["role"], report["publishers"]) == ("active", 1)
        expected = None
        if root_number is not None:
            root_hash = wire.node.store.root_hash_at(root_number)
            assert root_hash is not None
            expected = root_hash.hex()
        assert report.get("root_hash") == expected
        plain: Any = stub.serverStatus(node_pb2.ServerStatusRequest())
        await plain
        assert STATUS_KEY not in dict(await plain.trailing_metadata() or ())

    with_blocks(tmp_path, BLOCKS, scenario)


@pytest.mark.parametrize("text", ["", "{", "[]", "7", b"\xff", "[" * 7_000, '{"instance":' * 2_000])
def test_facts_that_are_no_object_are_none(text: str | bytes) -> None:
    """A peer sends what it likes; metadata has room for so many brackets."""
    assert read_report(text) == {}


# --- bytes of answers on their way ----

ALICE, BOB, CAROL = "192.0.2.1", "192.0.2.2", "192.0.2.3"


def test_an_address_at_its_share_waits_and_the_others_do_not() -> None:
    shares = AnswerShares(bytes_max=250, address_bytes_max=100)
    shares.take(ALICE, 99)
    assert shares.refusal(ALICE) is None
    shares.take(ALICE, 1)
    assert shares.refusal(ALICE) == (
        "blocks on their way to this address: got 100 bytes that were not taken yet, expected less than 100"
    )
    assert shares.refusal(BOB) is None
    shares.give_back(ALICE, 1)
    assert shares.refusal(ALICE) is None


def test_all_together_have_a_share() -> None:
    shares = AnswerShares(bytes_max=250, address_bytes_max=200)
    shares.take(ALICE, 150)
    shares.take(BOB, 99)
    assert shares.refusal(CAROL) is None
    shares.take(CAROL, 1)
    assert shares.refusal(CAROL) == (
        "blocks on their way to all clients: got 250 bytes that were not taken yet, expected less than 250"
    )
    shares.give_back(BOB, 99)
    assert shares.refusal(CAROL) is None


def test_an_answer_above_every_share_goes_out() -> None:
    shares = AnswerShares(bytes_max=10, address_bytes_max=5)
    assert shares.refusal(ALICE) is None
    shares.take(ALICE, 1_000)
    assert shares.refusal(ALICE) is not None
    assert shares.refusal(BOB) is not None


def test_who_has_no_answers_is_forgotten() -> None:
    shares = AnswerShares(bytes_max=10, address_bytes_max=5)
    for size_bytes in (3, 0):
        shares.take(ALICE, size_bytes)
    for size_bytes in (0, 3):
        shares.give_back(ALICE, size_bytes)
    assert (shares._held, shares.bytes_held) == ({}, 0)


def test_nothing_is_given_back_twice() -> None:
    shares = AnswerShares(bytes_max=10, address_bytes_max=5)
    shares.take(ALICE, 3)
    with pytest.raises(AssertionError, match=r"192\.0\.2\.1 has no answer of 4 bytes to give back"):
        shares.give_back(ALICE, 4)
    assert shares.bytes_held == 3


def test_one_block_is_always_possible_and_a_further_one_only_below_the_share() -> None:
    shares = AnswerShares(ACCESS_BYTES_MAX, ACCESS_ADDRESS_BYTES_MAX)
    shares.take(ALICE, ACCESS_ADDRESS_BYTES_MAX - 1)
    assert shares.refusal(ALICE) is None
    shares.take(ALICE, 2 * ACCESS_BYTES_MAX)
    assert shares.refusal(ALICE) is not None
    assert shares.refusal(BOB) is not None
    shares.give_back(ALICE, 2 * ACCESS_BYTES_MAX)
    shares.take(BOB, ACCESS_BYTES_MAX - ACCESS_ADDRESS_BYTES_MAX)
    assert shares.refusal(CAROL) is None
    shares.take(BOB, 1)
    assert shares.refusal(CAROL) is not None
