"""Tests of `gateway.cluster.control_service`: real gRPC calls on a real block store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from grpc import aio

from sluice.gateway.api import control_pb2, control_pb2_grpc
from sluice.gateway.blocks.errors import LayoutError
from sluice.gateway.cluster import role_keeper
from sluice.gateway.cluster.control_client import ControlClient
from sluice.gateway.cluster.control_service import CONTROL_SECONDS_MAX, ControlService
from sluice.gateway.cluster.role_keeper import RoleKeeper, read_role
from sluice.gateway.cluster.roles import Phase, RoleRecord
from sluice.gateway.errors import NodeCallFailed
from sluice.gateway.store.block_store import BlockStore
from tests.certificates import Authority
from tests.gateway.cluster.test_peer_follower import until
from tests.gateway.cluster.test_role_keeper import BLOCKS, PEER, keep, play
from tests.gateway.conducting import Stage, gate
from tests.nodes import ANSWER_SECONDS, running_node

ITSELF = "itself:40840"


@dataclass(frozen=True)
class Report:
    grpc_address: str = "127.0.0.1:40840"
    subscriber_address: str = "127.0.0.1:40843"
    publisher_count: int = 2
    verification_mode: str = "full"
    problems: tuple[str, ...] = ("a problem",)


@asynccontextmanager
async def controlled(stage: Stage, keeper: RoleKeeper) -> AsyncIterator[ControlClient]:
    """The control service on a port, and its client."""
    server = aio.server()

    async def is_itself(address: str) -> bool:
        return address == ITSELF

    service = ControlService(keeper, stage.store, Report, is_itself, "feed")
    control_pb2_grpc.add_NodeControlServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with ControlClient(f"127.0.0.1:{port}") as client:
            yield client
    finally:
        await server.stop(0)


def test_the_state_of_a_node_is_told(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        keeper, _ = keep(stage)
        async with controlled(stage, keeper) as client:
            empty = await client.state()
            assert (empty.last_number, empty.last_root_hash, empty.phase) == (None, b"", Phase.ACTIVE)
            alice = stage.publisher("Alice")
            alice.block(*BLOCKS[:2])
            await alice.expect("ack 0", "ack 1")
            status = await client.state()
            assert status.last_number == 1
            assert status.last_root_hash == stage.store.root_hash_at(1)
            assert (status.grpc_address, status.publisher_count) == ("127.0.0.1:40840", 2)
            assert status.problems == ("a problem",)
            assert status.instance == "feed"

    play(tmp_path, scene)


def test_control_calls_change_the_role_and_refusals_say_why(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        keeper, _ = keep(stage)
        async with controlled(stage, keeper) as client:
            with pytest.raises(NodeCallFailed) as caught:
                await client.stand_by(PEER)
            assert caught.value.reason == (
                "FAILED_PRECONDITION: stand by: got a node that is active, expected one that is drained or "
                "standby"
            )
            assert (await client.drain(CONTROL_SECONDS_MAX, PEER, "1")).phase is Phase.DRAINED
            with pytest.raises(NodeCallFailed, match="INVALID_ARGUMENT: followed: address: got 'nowhere'"):
                await client.stand_by("nowhere")
            for hold_seconds, got in ((0, "0"), (CONTROL_SECONDS_MAX + 0.5, "3600.5")):
                request = control_pb2.DrainRequest(hold_seconds=hold_seconds, successor=PEER)
                with pytest.raises(NodeCallFailed) as caught:
                    await client._answer(client._stub.drain(request, timeout=ANSWER_SECONDS))
                assert caught.value.reason == (
                    f"INVALID_ARGUMENT: hold_seconds: got {got}, expected above 0 and at most 3600"
                )
            status = await client.stand_by(PEER)
            assert (status.phase, status.followed) == (Phase.STANDBY, PEER)
            assert (await client.activate(ANSWER_SECONDS)).phase is Phase.ACTIVE
            assert (await client.resume("1")).phase is Phase.ACTIVE

    play(tmp_path, scene)


def test_a_block_that_cannot_be_read_is_an_error_of_the_node_and_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(store: BlockStore, number: int) -> None:
        raise LayoutError(f"block {number}", "damage", "a block")

    async def scene(stage: Stage) -> None:
        keeper, _ = keep(stage)
        async with controlled(stage, keeper) as client:
            alice = stage.publisher("Alice")
            alice.block(BLOCKS[0])
            await alice.expect("ack 0")
            monkeypatch.setattr(BlockStore, "root_hash_at", refuse)
            with pytest.raises(NodeCallFailed) as caught:
                await client.await_block(0, bytes(48), 5)
            assert caught.value.reason == "INTERNAL: await block 0: block 0: got damage, expected a block"

    play(tmp_path, scene)
    assert [record.message for record in caplog.records if record.name.endswith("control_service")] == [
        "not changed"
    ]


def test_a_node_is_not_told_to_follow_itself(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        keeper, _ = keep(stage)
        reason = f"got {ITSELF}, which leads to this node itself, expected another node"
        async with controlled(stage, keeper) as client:
            with pytest.raises(NodeCallFailed) as caught:
                await client.drain(CONTROL_SECONDS_MAX, ITSELF, "1")
            assert caught.value.reason == f"INVALID_ARGUMENT: successor: {reason}"
            assert keeper.phase is Phase.ACTIVE
            await client.drain(CONTROL_SECONDS_MAX, PEER, "1")
            with pytest.raises(NodeCallFailed) as caught:
                await client.stand_by(ITSELF)
            assert caught.value.reason == f"INVALID_ARGUMENT: followed: {reason}"
            assert (keeper.phase, keeper.followed) == (Phase.DRAINED, PEER)

    play(tmp_path, scene)


def test_a_block_is_awaited_with_its_root_hash(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        keeper, _ = keep(stage)
        alice = stage.publisher("Alice")
        alice.block(BLOCKS[0])
        await alice.expect("ack 0")
        root_hash = stage.store.root_hash_at(0)
        assert root_hash is not None
        async with controlled(stage, keeper) as client:
            assert (await client.await_block(0, root_hash, 5)).last_number == 0
            with pytest.raises(NodeCallFailed) as caught:
                await client.await_block(0, bytes(48), 5)
            assert caught.value.reason == (
                f"FAILED_PRECONDITION: take over: got a node that is at root hash {root_hash.hex()[:16]}… of "
                "block 0, expected one that is at root hash 0000000000000000…"
            )
            with pytest.raises(NodeCallFailed, match="DEADLINE_EXCEEDED: await block 1: got block 0 in the"):
                await client.await_block(1, root_hash, 0.05)
            with pytest.raises(NodeCallFailed, match=r"root_hash: got 3 bytes, expected 48$"):
                await client.await_block(0, b"123", 1)
            waiting = asyncio.ensure_future(client.await_block(1, bytes(48), 20))
            alice.block(BLOCKS[1])
            with pytest.raises(NodeCallFailed, match="FAILED_PRECONDITION: take over"):
                await waiting

    play(tmp_path, scene)


def test_a_block_is_not_awaited_any_more_when_the_caller_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A left-over task would poll for up to an hour."""

    async def scene(stage: Stage) -> None:
        keeper, _ = keep(stage)
        looks, over = asyncio.Event(), asyncio.Event()

        async def await_block(number: int, root_hash: bytes, timeout_seconds: float) -> None:
            looks.set()
            try:
                await asyncio.sleep(timeout_seconds)
            finally:
                over.set()

        monkeypatch.setattr(keeper, "await_block", await_block)
        async with controlled(stage, keeper) as client:
            call = asyncio.ensure_future(client.await_block(1, bytes(48), CONTROL_SECONDS_MAX))
            await asyncio.wait_for(looks.wait(), ANSWER_SECONDS)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await asyncio.wait_for(over.wait(), ANSWER_SECONDS)
            assert over.is_set()

    play(tmp_path, scene)


def test_a_resume_ends_the_drain_that_it_names_or_any_where_it_names_none(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        keeper, _ = keep(stage)
        async with controlled(stage, keeper) as client:
            await client.drain(CONTROL_SECONDS_MAX, PEER, "first")
            with pytest.raises(NodeCallFailed) as caught:
                await client.resume("second")
            assert caught.value.is_refused
            assert caught.value.reason == (
                "FAILED_PRECONDITION: resume: got a node that is drained by another call, expected one that "
                "is drained by the one named"
            )
            assert (await client.state()).phase is Phase.DRAINED
            assert (await client.resume("first")).phase is Phase.ACTIVE
            await client.drain(CONTROL_SECONDS_MAX, PEER, "third")
            await client._stub.resume(control_pb2.ResumeRequest(), timeout=ANSWER_SECONDS)  # an older command
            assert (await client.state()).phase is Phase.ACTIVE

    play(tmp_path, scene)


@pytest.mark.parametrize("is_begun", [True, False])
def test_a_drain_whose_caller_is_gone_is_not_begun_or_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_begun: bool
) -> None:
    async def scene(stage: Stage) -> None:
        keeper, _ = keep(stage)
        alice = stage.publisher("Alice")
        async with controlled(stage, keeper) as client:
            with gate(monkeypatch, BlockStore, "append"):
                alice.block(BLOCKS[0])
                calls = [asyncio.ensure_future(client.drain(CONTROL_SECONDS_MAX, PEER, "first"))]
                await until(lambda: keeper.phase is Phase.DRAINING)
                if not is_begun:
                    calls.append(asyncio.ensure_future(client.drain(CONTROL_SECONDS_MAX, PEER, "second")))
                    await until(lambda: len(waiting_for(keeper)) == 1)
                calls[-1].cancel()
                resuming = asyncio.ensure_future(client.resume("second"))
                await until(lambda: len(waiting_for(keeper)) == len(calls))
            await alice.expect("ack 0")
            with pytest.raises(NodeCallFailed if not is_begun else asyncio.CancelledError):
                await (calls[0] if is_begun else resuming)
            if is_begun:
                await resuming  # it was active again before
            else:
                assert (await calls[0]).phase is Phase.DRAINED
            assert keeper.phase is (Phase.ACTIVE if is_begun else Phase.DRAINED)
            await keeper.close()

    play(tmp_path, scene)


def waiting_for(keeper: RoleKeeper) -> Sequence[object]:
    return keeper._change._waiters or ()


def test_an_activation_that_its_caller_awaits_no_longer_leaves_a_standby(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a slow disk the node must not become active once the failover is undone."""

    async def scene(stage: Stage) -> None:
        keeper, _ = keep(stage, "standby")
        await keeper.start()
        async with controlled(stage, keeper) as client:
            with gate(monkeypatch, role_keeper, "write_role") as shut:
                activating = asyncio.ensure_future(client.activate(0.5))
                await shut.reached()
                with pytest.raises(NodeCallFailed, match="DEADLINE_EXCEEDED"):
                    await activating
            with pytest.raises(NodeCallFailed, match="resume: got a node that is standby"):
                await client.resume("1")  # answered after the change before it
            assert (await client.state()).phase is Phase.STANDBY
            assert read_role(tmp_path) == RoleRecord("standby")
            request = control_pb2.ActivateRequest()
            await client._stub.activate(request)
            assert (await client.state()).phase is Phase.ACTIVE

    play(tmp_path, scene)


async def test_only_who_is_on_the_list_may_call_whatever_else_its_certificate_is_good_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Publishers may have certificates of the operators' authority."""
    authority = Authority(tmp_path)
    files = authority.server_files(authority.issue("localhost"), mutual=True)
    operator, publisher = authority.issue("operator"), authority.issue("publisher")

    async with running_node(
        tmp_path / "data",
        control_tls_certificate=files.certificate,
        control_tls_key=files.key,
        control_tls_client_ca=files.client_ca,
        control_allowed_subjects=("CN=operator",),
    ) as node:
        where = str(node.control_address)
        async with ControlClient(where, authority.client(publisher)) as client:
            reason = (
                "PERMISSION_DENIED: caller: got O=Net\\, Inc,CN=publisher, expected a certificate that "
                "proves a name in control.allowed_subjects"
            )
            calls: list[Callable[[], Awaitable[object]]] = [
                client.state,
                lambda: client.drain(5, PEER, "1"),
                lambda: client.resume("1"),
                lambda: client.await_block(0, bytes(48), 5),
                lambda: client.activate(5),
                lambda: client.stand_by(PEER),
            ]
            for call in calls:
                with pytest.raises(NodeCallFailed) as caught:
                    await call()
                assert caught.value.reason == reason
            assert node.keeper.phase is Phase.ACTIVE
        async with ControlClient(where, authority.client(operator)) as client:
            assert (await client.state()).phase is Phase.ACTIVE
            assert (await client.drain(5, PEER, "1")).phase is Phase.DRAINED
            assert (await client.resume("1")).phase is Phase.ACTIVE
    refused = [record for record in caplog.records if record.message == "control call refused"]
    assert len(refused) == 6


async def test_an_operator_is_warned_where_publishers_may_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    files = authority.server_files(authority.issue("localhost"), mutual=True)
    tls = {"certificate": files.certificate, "key": files.key, "client_ca": files.client_ca}
    settings = {
        f"{section}_tls_{name}": file for section in ("grpc", "control") for name, file in tls.items()
    }

    async with running_node(tmp_path / "open", **settings):
        pass
    async with running_node(tmp_path / "listed", **settings, control_allowed_subjects=("CN=operator",)):
        pass
    warned = [record for record in caplog.records if "every publisher's certificate" in record.message]
    assert len(warned) == 1
