"""A real active node, and standbys that have only a durable height: what waits, and until when."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from sluice.gateway.addresses import parse_address
from sluice.gateway.api import publish_pb2_grpc, standby_pb2
from sluice.gateway.blocks.block import Block
from sluice.gateway.cluster.limits import CLUSTER_LIMITS, ClusterLimits
from sluice.gateway.cluster.node_status import INSTANCE_CHARACTERS_MAX
from sluice.gateway.node.node import Node
from sluice.gateway.node.rules import NodeLimits
from sluice.gateway.services import height_service as height_service_module
from tests.certificates import Authority
from tests.gateway.conducting import logged
from tests.gateway.heights import BLOCKS, OTHER_BLOCKS, told
from tests.nodes import ANSWER_SECONDS, Publisher, Wire, running_node, wire_to
from tests.serving import free_port


@asynccontextmanager
async def active(
    tmp_path: Path, *peers: str, least: int = 1, limits: ClusterLimits = CLUSTER_LIMITS, **changes: Any
) -> AsyncIterator[Node]:
    """An active node whose acknowledgements wait for these peers."""
    addresses = tuple(parse_address(peer) for peer in peers)
    settings = {"peers": addresses, "commit_min_standbys": least, "shutdown_grace_seconds": 0.2}
    async with running_node(tmp_path / "a", NodeLimits(cluster=limits), **(settings | changes)) as node:
        yield node


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(ANSWER_SECONDS):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


async def expect_state(node: Node, address: str, expected: str) -> None:
    """Wait until a standby has this state at the node."""
    await until(lambda: state_of(node, address) == expected)
    assert state_of(node, address) == expected


def state_of(node: Node, address: str) -> str:
    """Return a standby's state at the node, in words."""
    quorum = node.conductor.acknowledging.quorum
    assert quorum is not None
    return dict(quorum.states())[address]


async def publisher_that_stored(node: Node, wire: Wire, *blocks: Block) -> Publisher:
    """Connect Alice, who sends blocks, and wait until they are on the node's disk."""
    alice = await wire.publisher("alice")
    await alice.block(*blocks)
    await until(lambda: node.store.last_number == blocks[-1].number)
    return alice


async def test_what_the_standby_has_is_acknowledged_and_no_more(tmp_path: Path) -> None:
    async with told(tmp_path / "b") as b, active(tmp_path, b.address) as a, wire_to(a) as wire:
        alice = await publisher_that_stored(a, wire, *BLOCKS[:6])
        b.store(0)
        await alice.expect("ack 0")
        b.store(1, 2, 3)
        await alice.expect("ack 1", "ack 2", "ack 3")
        assert a.conductor.acknowledging.awaiting == (4, 5)
        reader = await wire.subscribe(0, 5)  # readers do not wait
        assert await reader.numbers() == [0, 1, 2, 3, 4, 5, "SUCCESS"]
        b.store(4, 5)
        await alice.expect("ack 4", "ack 5")


async def test_two_standbys_are_two_nodes_and_not_two_addresses(tmp_path: Path) -> None:
    async with (
        told(tmp_path / "b", instance="b") as b,
        told(tmp_path / "b2", instance="b") as also_b,
        told(tmp_path / "c", instance="c") as c,
        active(tmp_path, b.address, also_b.address, c.address, least=2) as a,
        wire_to(a) as wire,
    ):
        alice = await wire.publisher("alice")
        await alice.block(BLOCKS[0])
        b.store(0)
        also_b.store(0)
        await until(lambda: state_of(a, also_b.address) == "has block 0")
        await until(lambda: state_of(a, b.address) == "has block 0")
        await until(lambda: a.store.last_number == 0)
        assert a.conductor.arbiter.last_number is None
        c.store(0)
        await alice.expect("ack 0")


async def test_a_standby_that_another_address_has_left_still_counts(tmp_path: Path) -> None:
    """An address moves from one standby to the other, and the first one's stream stays open."""
    port = free_port()
    vip = f"127.0.0.1:{port}"

    async with (
        told(tmp_path / "b", instance="b") as b,
        told(tmp_path / "c", instance="c") as c,
        active(tmp_path, vip, b.address, c.address, least=2) as a,
        wire_to(a) as wire,
    ):
        alice = await wire.publisher("alice")
        await alice.block(BLOCKS[0])
        b.store(0)
        async with told(tmp_path / "vip", port=port, instance="b") as also_b:
            also_b.store(0)
            await until(lambda: state_of(a, vip) == state_of(a, b.address) == "has block 0")
        async with told(tmp_path / "vip2", port=port, instance="c"):
            await until(lambda: state_of(a, vip) == "has no block")
            await until(lambda: state_of(a, b.address) == "has block 0")
            assert a.conductor.arbiter.last_number is None
            c.store(0)
            await alice.expect("ack 0")


async def test_a_standby_that_goes_away_is_awaited_and_found_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    port = free_port()
    address = f"127.0.0.1:{port}"

    async with active(tmp_path, address) as a, wire_to(a) as wire:
        alice = await wire.publisher("alice")
        await alice.block(BLOCKS[0])
        await until(lambda: state_of(a, address).startswith("does not report: UNAVAILABLE"))
        async with told(tmp_path / "b", port=port, instance="first") as b:
            b.store(0)
            await alice.expect("ack 0")
        await until(lambda: "does not report" in state_of(a, address))
        await alice.block(BLOCKS[1])
        await until(lambda: a.conductor.acknowledging.awaiting == (1, 1))
        # A new disk replaces the first: the standby counts when it has block 1, and the node says so.
        async with told(tmp_path / "b2", port=port, instance="second") as b:
            await until(lambda: state_of(a, address) == "has no block")
            assert a.conductor.acknowledging.awaiting == (1, 1)
            b.store(0)
            b.store(1)
            await alice.expect("ack 1")
    said = [line["what"] for line in logged(caplog, "standby")]
    assert "has no block, and had block 0: was its disk replaced?" in said


async def test_a_standby_with_another_chain_does_not_count_and_is_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with told(tmp_path / "b") as b, active(tmp_path, b.address) as a, wire_to(a) as wire:
        b.store(0, 1, chain=OTHER_BLOCKS)
        alice = await wire.publisher("alice")
        await alice.block(*BLOCKS[:2])
        await until(lambda: state_of(a, b.address).startswith("has another chain"))
        await until(lambda: a.store.last_number == 1)
        assert a.conductor.acknowledging.awaiting == (0, 1)
        status = a.reporter.report()
        assert status is not None
        findings = [finding.text for finding in status.findings]
        other = (
            rf"{b.address} has another chain: its block [01] has another root hash"  # the first one asked for
        )
        assert any(re.fullmatch(other, one) for one in findings), findings
    (line,) = [line for line in logged(caplog, "standby") if "another chain" in line["what"]]
    assert re.match("has another chain: block [01] has root hash ", line["what"])


@pytest.mark.parametrize("kept", [pytest.param(4096, marks=pytest.mark.slow), 1])
async def test_a_node_that_starts_again_refuses_publishers_until_its_last_block_is_confirmed(
    tmp_path: Path, kept: int
) -> None:
    """With one root hash in memory, the node reads the others from the stream."""
    limits = ClusterLimits(own_roots_kept=kept)
    async with told(tmp_path / "b") as b:
        async with active(tmp_path, b.address, limits=limits) as a, wire_to(a) as wire:
            alice = await publisher_that_stored(a, wire, *BLOCKS[:4])
            b.store(0, 1)
            await alice.expect("ack 0", "ack 1")
        async with active(tmp_path, b.address, limits=limits) as a, wire_to(a) as wire:
            await until(lambda: state_of(a, b.address) == "has block 1")
            refused = await refusal(wire)
            assert refused == (
                "publishers are refused until block 3, the last one here, is known to be on disk at 1 "
                f"other node (commit.min_standbys): {b.address} has block 1"
            )
            assert a.reporter.readiness() == [refused]
            b.store(2)
            b.store(3)
            await until(lambda: not a.reporter.readiness())
            alice = await wire.publisher("alice")
            await alice.items(*BLOCKS[3].items)
            await alice.expect("skip 3", "ack 3")


async def refusal(wire: Wire) -> str:
    """Open a publish stream, expect UNAVAILABLE, and return the reason."""
    stub = publish_pb2_grpc.BlockStreamPublishServiceStub(wire.channel())
    publisher = Publisher(stub.publishBlockStream())
    with pytest.raises(aio.AioRpcError) as caught:
        await publisher.call.read()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    return str(caught.value.details())


async def test_a_standby_that_is_ahead_is_asked_for_the_block_that_is_waited_for(tmp_path: Path) -> None:
    """Its last block alone says nothing about this node's blocks."""

    async with told(tmp_path / "b") as b:
        async with active(tmp_path, b.address) as a, wire_to(a) as wire:
            alice = await publisher_that_stored(a, wire, *BLOCKS[:3])
        b.store(*range(10))
        async with active(tmp_path, b.address) as a, wire_to(a) as wire:
            await until(lambda: not a.reporter.readiness())
            alice = await wire.publisher("alice")
            await alice.block(*BLOCKS[3:6])
            await alice.expect("ack 3", "ack 4", "ack 5")
            for block in BLOCKS[6:9]:  # one at a time: nothing but itself tells that it waits
                await alice.block(block)
                await alice.expect(f"ack {block.number}")


async def test_a_question_that_is_lost_with_its_connection_is_asked_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream ends while the question is open, and gRPC cancels the call with its connection."""
    level_at, asked = height_service_module.HeightService._level_at, []

    async def hang_at_first(
        service: height_service_module.HeightService, request: standby_pb2.LevelAtRequest, context: Any
    ) -> standby_pb2.Level:
        asked.append(request.block_number)
        if len(asked) == 1:
            service._closing = True
            service._wake()
            try:
                await asyncio.Event().wait()
            finally:
                service._closing = False
        return await level_at(service, request, context)

    monkeypatch.setattr(height_service_module.HeightService, "_level_at", hang_at_first)
    limits = ClusterLimits(standby_retry_seconds=0.05)

    async with told(tmp_path / "b") as b:
        async with active(tmp_path, b.address) as a, wire_to(a) as wire:
            await publisher_that_stored(a, wire, *BLOCKS[:3])
        b.store(*range(10))
        async with active(tmp_path, b.address, limits=limits) as a:
            await until(lambda: not a.reporter.readiness())
            assert asked[:2] == [2, 2]


async def test_a_standby_that_is_ahead_on_another_chain_does_not_open_the_doors(tmp_path: Path) -> None:
    async with told(tmp_path / "b") as b:
        async with active(tmp_path, b.address) as a, wire_to(a) as wire:
            await publisher_that_stored(a, wire, *BLOCKS[:3])
        b.store(*range(10), chain=OTHER_BLOCKS)
        async with active(tmp_path, b.address) as a:
            await until(lambda: state_of(a, b.address).startswith("has another chain: its block 2"))
            assert a.reporter.readiness() != []


async def test_an_address_that_leads_to_the_node_itself_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy may hide it; only the answering process shows it."""
    monkeypatch.setattr("secrets.token_hex", lambda _: "myself")

    async with (
        told(tmp_path / "b", instance="myself") as b,
        active(tmp_path, b.address) as a,
        wire_to(a) as wire,
    ):
        b.store(0)
        alice = await wire.publisher("alice")
        await alice.block(BLOCKS[0])
        await until(lambda: state_of(a, b.address) == "leads to this node itself")
        await until(lambda: a.store.last_number == 0)
        assert a.conductor.acknowledging.awaiting == (0, 0)


async def test_a_node_of_an_older_version_is_told_from_one_that_is_away(tmp_path: Path) -> None:
    server = aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    address = f"127.0.0.1:{port}"
    async with active(tmp_path, address) as a:
        expected = "does not report: it does not serve sluice.standby.NodeLevel, which other nodes wait for"
        await expect_state(a, address, expected)
    await server.stop(None)


@pytest.mark.parametrize(
    ("number", "root_hash", "instance", "got"),
    [
        (
            7,
            b"abc",
            "x",
            "a root hash of 3 bytes and instance 'x', expected 48 bytes and a name of at most 64 characters",
        ),
        (
            7,
            bytes(48),
            "x" * (INSTANCE_CHARACTERS_MAX + 1),
            (
                f"a root hash of 48 bytes and instance {'x' * 65!r}, expected 48 bytes and a name "
                "of at most 64 characters"
            ),
        ),
        (1 << 63, bytes(48), "x", "block 9223372036854775808, expected at most 9223372036854775807"),
    ],
)
async def test_a_report_that_cannot_be_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, root_hash: bytes, instance: str, got: str
) -> None:
    def short(service: height_service_module.HeightService, epoch: int) -> standby_pb2.Level:
        del service, epoch
        return standby_pb2.Level(block_number=number, root_hash=root_hash, instance=instance)

    monkeypatch.setattr(height_service_module.HeightService, "_last", short)

    async with told(tmp_path / "b") as b, active(tmp_path, b.address) as a:
        expected = f"does not report: durable height: got {got}"
        await expect_state(a, b.address, expected)


async def test_a_report_that_does_not_parse_is_no_error_of_ours(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def nonsense(request: bytes, context: Any) -> None:
        await context.write(b"\xff\xff")

    server = aio.server()
    watch: grpc.RpcMethodHandler[Any, Any] = grpc.unary_stream_rpc_method_handler(nonsense)
    name = height_service_module.SERVICE_NAME
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {"watch": watch}),))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    async with active(tmp_path, address) as a:
        expected = "does not report: durable height: got a message that does not parse, expected a Level"
        await expect_state(a, address, expected)
    await server.stop(None)
    assert logged(caplog, "watching a standby failed") == []


async def test_a_stream_that_is_given_up_leaves_no_socket_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unread stream must not live until the next garbage collection."""
    attempts = [0]

    async def nonsense(service: height_service_module.HeightService, request: bytes, context: Any) -> None:
        attempts[0] += 1
        for _ in range(20):  # the first ends the attempt
            await context.write(standby_pb2.Level(block_number=3, root_hash=b"short", instance="b"))
        await asyncio.Event().wait()

    monkeypatch.setattr(height_service_module.HeightService, "_watch", nonsense)
    limits = ClusterLimits(standby_retry_seconds=0.01, standby_retry_seconds_max=0.01)

    gc.disable()
    try:
        async with told(tmp_path / "b") as b, active(tmp_path, b.address, limits=limits):
            await until(lambda: attempts[0] >= 5)
            before = socket_count()
            await until(lambda: attempts[0] >= 35)
            await until(lambda: socket_count() < before + 10)
            assert socket_count() < before + 10  # leaked ones would add up
    finally:
        gc.enable()


def socket_count() -> int:
    """Count this process's open sockets."""
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the folder itself, as it was read
            count += str(entry.readlink()).startswith("socket:")
    return count


@pytest.mark.parametrize("trusted", [False, True])
async def test_standbys_are_connected_to_with_tls(tmp_path: Path, trusted: bool) -> None:
    """With catchup.tls_*, as peers are. A server of another authority is no standby."""
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    server, client = authority.issue("node"), authority.issue("active")
    serving = {
        "grpc_tls_certificate": server.certificate,
        "grpc_tls_key": server.key,
        "grpc_tls_client_ca": authority.path,
    }
    connecting: dict[str, Any] = {
        "catchup_tls_ca": authority.path if trusted else other.path,
        "catchup_tls_certificate": client.certificate,
        "catchup_tls_key": client.key,
    }

    address = f"127.0.0.1:{free_port()}"
    async with (
        active(tmp_path, address, **connecting) as a,
        running_node(
            tmp_path / "b",
            grpc_address=parse_address(address),
            role="standby",
            peers=(a.grpc_address,),
            **serving,
        ),
        wire_to(a) as wire,
    ):
        alice = await wire.publisher("alice")
        await alice.block(BLOCKS[0])
        if trusted:
            await alice.expect("ack 0")
            return
        await until(lambda: "CERTIFICATE_VERIFY_FAILED" in state_of(a, address))
        assert a.conductor.arbiter.last_number is None


async def test_what_waits_longer_is_a_problem_with_the_nodes_that_it_waits_for(tmp_path: Path) -> None:
    async with told(tmp_path / "b") as b, active(tmp_path, b.address) as a, wire_to(a) as wire:
        await until(lambda: state_of(a, b.address) == "has no block")
        alice = await publisher_that_stored(a, wire, *BLOCKS[:2])
        await until(a.reporter.readiness)
        (reason,) = a.reporter.readiness()
        assert reason == (
            "blocks 0 to 1 are not acknowledged before 1 other node (commit.min_standbys) have them on "
            f"disk: {b.address} has no block"
        )
        b.store(0, 1)
        await alice.expect("ack 0", "ack 1")
        assert a.reporter.readiness() == []


async def test_a_level_that_is_not_read_costs_one_message(tmp_path: Path) -> None:
    async with told(tmp_path / "b") as b:
        call = b.watch()
        await asyncio.wait_for(call.read(), ANSWER_SECONDS)
        for number in range(12):
            b.store(number)
        levels: list[int] = []
        while not levels or levels[-1] < 11:
            levels.append((await asyncio.wait_for(call.read(), ANSWER_SECONDS)).block_number)
        assert levels == sorted(set(levels))


async def test_the_backoffs_before_a_lost_standby_is_tried_again_grow_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = ClusterLimits(standby_retry_seconds=0.001, standby_retry_seconds_max=0.005)
    backoffs: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float, *_: object) -> None:
        backoffs.append(seconds)
        await sleep(seconds)

    async with active(tmp_path, f"127.0.0.1:{free_port()}", limits=limits):
        monkeypatch.setattr(asyncio, "sleep", noted)
        await until(lambda: backoffs.count(0.005) >= 2)
        monkeypatch.setattr(asyncio, "sleep", sleep)
    grown = [seconds for seconds in backoffs if seconds in (0.001, 0.004, 0.005)]
    assert grown[-2:] == [0.005, 0.005]
    assert max(seconds for seconds in backoffs if seconds < 0.01) == 0.005
