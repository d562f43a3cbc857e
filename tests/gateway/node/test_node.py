"""Tests of a whole node: real gRPC, TCP and HTTP, a real stream file, and a disk that fails when told to."""

from __future__ import annotations

import asyncio
import errno
import logging
import shutil
import socket
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from sluice.datastream import StreamClient
from sluice.datastream.file.disk import RealDisk
from sluice.gateway.addresses import Address
from sluice.gateway.api import publish_pb2
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.errors import LedgerKeyError
from sluice.gateway.blocks.stream_layout import BlockDecoder
from sluice.gateway.errors import Fatal
from sluice.gateway.limits import ITEM_OVERHEAD_BYTES
from sluice.gateway.node.node import Node
from sluice.gateway.node.rules import NodeLimits
from sluice.gateway.pipeline.limits import PipelineLimits
from sluice.gateway.race.actions import Response, Skip
from sluice.gateway.services import publish_service
from sluice.gateway.status.reporter import NodeReporter
from sluice.gateway.store.block_store import BlockStore, VerifiedBlock
from sluice.publishers.blocks.maker import BlockMaker, MakerOptions
from tests.datastream.fake_disk import FailingDisk
from tests.nodes import (
    ANSWER_SECONDS,
    AT_ITS_END,
    KEY,
    Wire,
    make_blocks,
    node_settings,
    running_node,
    stream_bytes,
    text_of,
    wire_to,
)
from tests.serving import Listener, free_port

BLOCKS = make_blocks(12)
NAMES = ("alice", "bob", "carol")
U64_MAX = (1 << 64) - 1


@asynccontextmanager
async def node_on(
    disk: FailingDisk, data_dir: Path, limits: NodeLimits | None = None, /, **changes: Any
) -> AsyncIterator[Node]:
    """A running node with its stream file on this disk."""
    node = Node(node_settings(data_dir, **changes), disk=disk, limits=limits)
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


def disk_at(data_dir: Path) -> FailingDisk:
    """Return a disk for the stream file of a data folder; make the folder if need be."""
    data_dir.mkdir(exist_ok=True)
    (data_dir / "datastream.bin").touch()
    return FailingDisk(RealDisk(data_dir / "datastream.bin"))


def fed_by_one(data_dir: Path, blocks: Sequence[Block], **changes: Any) -> bytes:
    """Return the stream file of a node with one publisher."""

    async def main() -> None:
        async with running_node(data_dir, **changes) as node, wire_to(node) as wire:
            alice = await wire.publisher("alice")
            sending = asyncio.ensure_future(alice.block(*blocks))
            await alice.expect(*(f"ack {block.number}" for block in blocks))
            await sending

    asyncio.run(main())
    return stream_bytes(data_dir)


async def get(node: Node, path: str) -> tuple[int, str]:
    """Ask over HTTP; return status and text."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{node.http_address}{path}") as response,
    ):
        return response.status, await response.text()


async def blocks_over_tcp(node: Node, count: int) -> list[tuple[bytes, ...]]:
    """Return the items of the first blocks, as a data-streamer client reads them."""
    host, port = node.tcp_address.host, node.tcp_address.port
    decoder, blocks = BlockDecoder(), []
    async with StreamClient.connect(host, port) as client, asyncio.timeout(ANSWER_SECONDS):
        await client.start(0)
        async for entry in client.entries():
            stored = decoder.feed(entry.type, entry.data)
            if stored is not None:
                blocks.append(stored.items)
                if len(blocks) == count:
                    break
    return blocks


# --- acknowledged means on disk -----------------------------------------------------------------------------


async def test_as_many_responses_wait_for_a_publisher_as_the_setting_says(tmp_path: Path) -> None:
    async with running_node(tmp_path, publish_send_queue_max=2000) as node:
        outbox = node.conductor.connect("deaf")
        for number in range(2000):
            outbox.put(Skip(number))
        assert not outbox.overflow.is_set()
        outbox.put(Skip(2000))
        assert outbox.overflow.is_set()


async def test_no_response_leaves_before_the_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Disk and gRPC service note their calls in one list."""
    disk = disk_at(tmp_path)
    to_wire = publish_service.to_wire

    def spy(response: Response) -> publish_pb2.PublishStreamResponse:
        message = to_wire(response)
        disk.calls.append(text_of(message))
        return message

    monkeypatch.setattr(publish_service, "to_wire", spy)

    async with node_on(disk, tmp_path) as node, wire_to(node) as wire:
        alice, bob = await wire.publisher("alice"), await wire.publisher("bob")
        disk.calls.clear()
        for block in BLOCKS[:3]:
            await alice.block(block)
            await alice.expect(f"ack {block.number}")
            await bob.expect(f"ack {block.number}")
        expected = []
        for number in range(3):
            expected += ["pwrite", "fdatasync", "pwrite", "fdatasync", f"ack {number}", f"ack {number}"]
        assert disk.calls == expected


# --- many blocks --------------------------------------------------------------------------------------------


def hold_commits(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Hold all commits until the event is set: every publisher connects before the first one."""
    go_on = threading.Event()
    append = BlockStore.append

    def held(store: BlockStore, blocks: Sequence[VerifiedBlock]) -> None:
        assert go_on.wait(ANSWER_SECONDS)
        append(store, blocks)

    monkeypatch.setattr(BlockStore, "append", held)
    return go_on


async def race(node: Node, blocks: Sequence[Block], go_on: threading.Event) -> None:
    """Publish the same blocks from three publishers; check that each gets every acknowledgement in order."""

    async def source() -> AsyncIterator[Block]:
        for block in blocks:
            yield block

    racers = [Listener([str(node.grpc_address)], name) for name in NAMES]
    publishing = [asyncio.ensure_future(racer.publish(source())) for racer in racers]
    async with asyncio.timeout(ANSWER_SECONDS):
        while node.conductor.arbiter.publisher_count < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    go_on.set()
    reports = await asyncio.gather(*publishing)
    numbers = [block.number for block in blocks]
    for racer in racers:
        assert racer.acknowledged == numbers
    assert [report.reconnects for report in reports] == [0, 0, 0]
    won = [_value(node, "sluice_blocks_won_total", publisher=f"claimed:{name}") for name in NAMES]
    assert sum(won) == len(blocks)


@pytest.mark.parametrize("count", [150, pytest.param(1000, marks=pytest.mark.slow)])
def test_three_publishers_race_for_many_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Each block is stored once, everybody gets acknowledgements in order, and the bytes are the same."""
    blocks = make_blocks(count)
    go_on = hold_commits(monkeypatch)

    async def main() -> None:
        # A publisher that falls behind is skipped, and its stream goes on.
        behind = {"publish_duplicate_skip_window": count, "publish_stall_blocks": count}
        async with running_node(tmp_path / "race", **behind) as node:
            await race(node, blocks, go_on)
            assert _value(node, "sluice_blocks_received_total") == count
            assert await blocks_over_tcp(node, count) == [block.items for block in blocks]

    asyncio.run(main())
    assert stream_bytes(tmp_path / "race") == fed_by_one(tmp_path / "one", blocks)


def test_publishers_are_slowed_and_never_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three publishers race with room for one block in flight; everything is committed."""
    options = MakerOptions(rounds_per_block=4, transactions_per_block=60)
    blocks = list(BlockMaker(7, KEY, options).blocks(20))
    limit = 64 * 1024  # the setting's minimum
    assert min(block.size_bytes for block in blocks) > limit // 2
    go_on = hold_commits(monkeypatch)
    peaks: list[int] = []

    async def main() -> None:
        async with running_node(
            tmp_path / "slow", publish_duplicate_skip_window=20, publish_max_inflight_bytes=limit
        ) as node:
            perform = node.conductor.perform

            def spy(actions: Sequence[Any]) -> None:
                perform(actions)
                peaks.append(node.conductor.arbiter.inflight_bytes)

            monkeypatch.setattr(node.conductor, "perform", spy)
            await race(node, blocks, go_on)

    asyncio.run(main())
    # Up to the limit, and one message more.
    held = [block.size_bytes + len(block.items) * ITEM_OVERHEAD_BYTES for block in blocks]
    assert limit // 2 < max(peaks) <= limit + max(held)
    assert stream_bytes(tmp_path / "slow") == fed_by_one(tmp_path / "one", blocks)


# --- a disk that refuses ------------------------------------------------------------------------------------

DISK_FAULTS: dict[str, dict[str, list[int | None]]] = {
    "no room": {"pwrite": [errno.ENOSPC] * 2},
    "no room for the header": {"pwrite": [None, errno.ENOSPC]},
    "a flush fails": {"fdatasync": [errno.EIO]},
    "the last flush fails": {"fdatasync": [None, errno.EIO]},
}


@pytest.mark.parametrize("fault", DISK_FAULTS)
def test_a_disk_that_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """Everybody hears it, readers see nothing of the block, /readyz says why, and the node recovers."""
    disk = disk_at(tmp_path / "failing")
    room = asyncio.Event()
    probe = BlockStore.probe

    def probe_when_there_is_room(store: BlockStore) -> None:
        if not room.is_set():
            raise OSError(errno.ENOSPC, "No space left on device")
        probe(store)

    monkeypatch.setattr(BlockStore, "probe", probe_when_there_is_room)

    async def main() -> None:
        pipeline = PipelineLimits(disk_probe_seconds=0.01)
        limits = NodeLimits(pipeline=pipeline, health_check_seconds=0.01)
        async with (
            node_on(disk, tmp_path / "failing", limits, **AT_ITS_END) as node,
            wire_to(node) as wire,
        ):
            alice, bob = await wire.publisher("alice"), await wire.publisher("bob")
            await alice.block(BLOCKS[0])
            await alice.expect("ack 0")
            await bob.expect("ack 0")
            assert await get(node, "/readyz") == (200, "ready\n")
            disk.plan = {name: list(outcomes) for name, outcomes in DISK_FAULTS[fault].items()}
            live = await wire.subscribe(1)
            await alice.block(BLOCKS[1])
            assert await live.next() == "ERROR"
            for publisher in (alice, bob):
                await publisher.expect("end PERSISTENCE_FAILED last 0 about 1", "closed")
            await _expect_not_ready(node, wire)
            late = await wire.publisher("late")
            await late.expect("end PERSISTENCE_FAILED last 0 about 1", "closed")
            room.set()
            async with asyncio.timeout(ANSWER_SECONDS):
                while await get(node, "/readyz") != (200, "ready\n"):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                while await wire.health() != "SERVING":  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            carol = await wire.publisher("carol")
            await carol.block(*BLOCKS[1:])
            await carol.expect(*(f"ack {number}" for number in range(1, 12)))
            assert await blocks_over_tcp(node, 12) == [block.items for block in BLOCKS]

    asyncio.run(main())
    assert stream_bytes(tmp_path / "failing") == fed_by_one(tmp_path / "good", BLOCKS)


async def _expect_not_ready(node: Node, wire: Wire) -> None:
    """Readers do not see block 1; HTTP and gRPC say why the node is not ready."""
    status, text = await get(node, "/readyz")
    assert status == 503
    assert text.startswith("blocks cannot be written: ")
    assert "commit failed at step" in text
    assert (await get(node, "/healthz"))[0] == 200
    assert (await wire.status()).last_available_block == 0
    assert not (await wire.get_block(1)).HasField("block")
    async with asyncio.timeout(ANSWER_SECONDS):
        while await wire.health() != "NOT_SERVING":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    async with StreamClient.connect(node.tcp_address.host, node.tcp_address.port) as client:
        header = await client.header()
        assert header.total_entries == len(BLOCKS[0].items) + 2
        await client.start(header.total_entries)
        assert await client.stop() == []


# --- where a chain begins -----------------------------------------------------------------------------------


def test_a_node_that_begins_in_mid_chain(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def first_run() -> None:
        async with running_node(tmp_path, first_block=4) as node, wire_to(node) as wire:
            alice = await wire.publisher("alice")
            await alice.block(BLOCKS[5])
            await alice.expect("behind none")
            early = await wire.publisher("early")
            await early.items(*BLOCKS[3].items)
            assert await early.answer() == "end ERROR last none about 3"
            await alice.block(*BLOCKS[4:6])
            await alice.expect("ack 4", "ack 5")
            status = await wire.status()
            assert (status.first_available_block, status.last_available_block) == (4, 5)

    async def second_run() -> None:
        # The setting is for an empty node; this one has blocks.
        async with running_node(tmp_path, first_block=9, **AT_ITS_END) as node, wire_to(node) as wire:
            mallory = await wire.publisher("mallory")
            await mallory.block(make_blocks(7, seed=8)[6])
            await mallory.expect("end BAD_BLOCK_PROOF last 5 about 6", "closed")
            alice = await wire.publisher("alice")
            await alice.block(*BLOCKS[6:8])
            await alice.expect("ack 6", "ack 7")

    asyncio.run(first_run())
    (note,) = [record for record in caplog.records if record.message == "the chain begins after block 0"]
    assert note.sluice_fields["note"].startswith("the chain begins here with block 4: its footer's links")  # type: ignore[attr-defined]
    caplog.clear()
    asyncio.run(second_run())
    assert not [record for record in caplog.records if record.message == "the chain begins after block 0"]
    assert stream_bytes(tmp_path) == fed_by_one(tmp_path / "good", BLOCKS[4:8], first_block=4)


def test_a_node_that_begins_with_whatever_comes(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path, first_block="any", **AT_ITS_END) as node, wire_to(node) as wire:
            mallory, alice = await wire.publisher("mallory"), await wire.publisher("alice")
            await mallory.items(*make_blocks(10, seed=8)[9].items[:-1], BLOCKS[9].items[-1])
            await mallory.end(9)
            await mallory.expect("end BAD_BLOCK_PROOF last none about 9", "closed")
            await alice.block(*BLOCKS[4:6])  # a bad block does not settle where the chain begins
            await alice.expect("ack 4", "ack 5")

    async def again() -> None:
        async with running_node(tmp_path, first_block="any") as node, wire_to(node) as wire:
            alice = await wire.publisher("alice")
            await alice.block(BLOCKS[7])
            await alice.expect("behind 5")
            await alice.block(*BLOCKS[6:8])
            await alice.expect("ack 6", "ack 7")

    asyncio.run(main())
    asyncio.run(again())


# --- streams that end ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", ["cancelled", "connection closed"])
async def test_a_line_that_breaks_behind_a_proof_drops_the_block(tmp_path: Path, broken: str) -> None:
    """gRPC ends a broken stream's messages as it ends those of a stream closed in order."""

    async with running_node(tmp_path, **AT_ITS_END) as node, wire_to(node) as wire:
        alice, bob = await wire.publisher("alice"), await wire.publisher("bob")
        await alice.items(*BLOCKS[0].items)
        await wire.begun(0)
        await bob.items(BLOCKS[0].items[0])
        await bob.expect("skip 0")
        if broken == "cancelled":
            alice.call.cancel()
        else:
            await wire._channels[0].close()
        await bob.expect("resend 0")
        await bob.block(BLOCKS[0])
        await bob.expect("ack 0")


async def test_a_side_that_is_closed_behind_a_proof_completes_the_block(tmp_path: Path) -> None:
    async with running_node(tmp_path, **AT_ITS_END) as node, wire_to(node) as wire:
        alice = await wire.publisher("alice")
        await alice.items(*BLOCKS[0].items)
        await alice.call.done_writing()
        await alice.expect("ack 0", "closed")
        assert await alice.call.code() is grpc.StatusCode.OK


async def test_stopping_tells_everybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with wire_and_stopper(tmp_path) as (node, wire, stop):
        alice, bob = await wire.publisher("alice"), await wire.publisher("bob")
        await alice.block(BLOCKS[0])
        await alice.expect("ack 0")
        await bob.expect("ack 0")
        stub: Any = health_pb2_grpc.HealthStub(wire.channel())
        watch = stub.Watch(health_pb2.HealthCheckRequest())
        serving = health_pb2.HealthCheckResponse
        assert (await watch.read()).status == serving.SERVING
        async with StreamClient.connect(node.tcp_address.host, node.tcp_address.port):
            stopping = asyncio.ensure_future(stop())
            for publisher in (alice, bob):
                await publisher.expect("end SUCCESS last 0 about 0", "closed")
            assert (await watch.read()).status == serving.NOT_SERVING
            watch.cancel()
            await asyncio.wait_for(stopping, ANSWER_SECONDS)
        assert node.reporter.readiness() == ["the node is stopping"]
        await stop()  # a second call does nothing


@asynccontextmanager
async def wire_and_stopper(data_dir: Path) -> AsyncIterator[tuple[Node, Wire, Any]]:
    """A node that the test stops."""
    node = Node(node_settings(data_dir))
    await node.start()
    async with wire_to(node) as wire:
        yield node, wire, node.stop


def _value(node: Node, name: str, **labels: str) -> float:
    return node.metrics.registry.get_sample_value(name, labels) or 0


# --- what is refused at start -------------------------------------------------------------------------------


def test_what_this_node_cannot_do_is_refused(tmp_path: Path) -> None:
    data_dir = tmp_path / "never"
    with pytest.raises(LedgerKeyError) as keys:
        Node(node_settings(data_dir, ledger_keys=(f"tss:{tmp_path / 'none'}",)))
    assert str(keys.value) == (
        f"ledger key tss:{tmp_path / 'none'}: got No such file or directory, expected a file that can be read"
    )
    assert not data_dir.exists()


@pytest.mark.parametrize("name", ["grpc", "tcp", "http"])
async def test_an_address_that_is_taken_is_refused_and_nothing_stays_open(tmp_path: Path, name: str) -> None:
    address = Address("127.0.0.1", free_port())  # a port that nobody else gets
    with socket.create_server((address.host, address.port)):
        node = Node(node_settings(tmp_path, **{f"{name}_address": address}))
        with pytest.raises(Fatal) as caught:
            await node.start()
        assert str(caught.value) == (
            f"{name}.address {address}: got Address already in use, expected an address that is free here"
        )
    async with running_node(tmp_path, **{f"{name}_address": address}) as node, wire_to(node) as wire:
        assert (await wire.status()).last_available_block == U64_MAX


async def test_a_standby_whose_address_is_taken_follows_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It once went on following with a closed store."""

    async with running_node(tmp_path / "active") as active:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = Address("127.0.0.1", taken.getsockname()[1])
            peers = (active.grpc_address,)
            settings = node_settings(tmp_path, role="standby", peers=peers, grpc_address=address)
            node = Node(settings)
            with pytest.raises(Fatal, match=r"^grpc\.address"):
                await node.start()
        assert node.following._task is None


@pytest.mark.parametrize("name", ["grpc", "tcp", "http"])
async def test_an_address_that_does_not_exist_is_refused(tmp_path: Path, name: str) -> None:
    node = Node(node_settings(tmp_path, **{f"{name}_address": Address("name.invalid", 0)}))
    with pytest.raises(Fatal, match=rf"^{name}\.address name\.invalid:0: got .*, expected an address"):
        await node.start()


async def test_mode_hash_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running_node(tmp_path, verification_mode="hash", ledger_keys=()) as node:
        text = (await get(node, "/metrics"))[1]
        assert 'sluice_verification_mode_info{mode="hash"} 1.0' in text
    assert "verification mode is hash: the signatures of block proofs are not checked" in [
        record.message for record in caplog.records if record.levelno == logging.WARNING
    ]


async def test_the_room_on_the_disk_is_told(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        free_bytes, size_bytes = (_value(node, f"sluice_disk_{name}_bytes") for name in ("free", "size"))
    assert size_bytes == shutil.disk_usage(tmp_path).total
    assert 0 < free_bytes < size_bytes


async def test_a_watch_that_ends_on_an_error_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise the health status would stay as it was, without a reason."""

    caplog.set_level(logging.CRITICAL)
    with monkeypatch.context() as patch:
        patch.setattr(NodeReporter, "report", lambda _: 1 // 0)
        async with running_node(tmp_path):
            async with asyncio.timeout(ANSWER_SECONDS):
                while not caplog.messages:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
    assert caplog.messages[0] == "the node does not watch itself any more"
