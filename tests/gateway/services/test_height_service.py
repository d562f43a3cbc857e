"""Tests of `gateway.services.height_service` over real gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from sluice.gateway.addresses import parse_address
from sluice.gateway.api import standby_pb2
from sluice.gateway.blocks.block_numbers import U64_MAX
from sluice.gateway.errors import RoleRefused
from sluice.gateway.services import height_service as height_service_module
from sluice.gateway.services.height_service import SERVICE_NAME, STANDBY_STREAMS_PER_ADDRESS_MAX, HeightLimits
from sluice.gateway.transport.known_nodes import KnownNodes
from tests.deaf_client import DeafClient
from tests.gateway.heights import ROOTS, told
from tests.nodes import ANSWER_SECONDS


async def height(call: Any) -> tuple[int, bytes, str]:
    message = await asyncio.wait_for(call.read(), ANSWER_SECONDS)
    assert isinstance(message, standby_pb2.Level), message
    return message.block_number, message.root_hash, message.instance


async def test_a_watcher_is_told_at_once_and_whenever_the_height_rises(tmp_path: Path) -> None:
    async with told(tmp_path) as stage:
        first = stage.watch()
        assert await height(first) == (U64_MAX, b"", "this-process")
        stage.store(0)
        assert await height(first) == (0, ROOTS[0], "this-process")
        second = stage.watch()
        assert await height(second) == (0, ROOTS[0], "this-process")
        stage.store(1, 2, 3)
        for call in (first, second):  # told in one message
            assert await height(call) == (3, ROOTS[3], "this-process")


class Word:
    """The promises of a node, on a disk that may refuse."""

    def __init__(self) -> None:
        self.promised, self.refuses = 3, False
        self.why_no_member: str | None = None
        self._listeners: list[Callable[[], None]] = []

    def on_promise(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    async def promise_to(self, epoch: int, candidate: str) -> int:
        if candidate == "liar":
            raise RoleRefused(
                f"promise epoch {epoch}", got="told another holder", expected="told of this one"
            )
        if epoch > self.promised:
            await asyncio.sleep(0.01)
            if self.refuses:
                raise OSError(28, "No space left on device")
            self.promised = max(self.promised, epoch)
            for listener in self._listeners:
                listener()
        return self.promised


async def epoch_and_number(call: Any) -> tuple[int, int]:
    message = await asyncio.wait_for(call.read(), ANSWER_SECONDS)
    assert isinstance(message, standby_pb2.Level), message
    return message.epoch, message.block_number


async def test_a_promise_ends_the_streams_of_lower_epochs_before_another_block_is_reported(
    tmp_path: Path,
) -> None:
    word = Word()
    async with told(tmp_path, promises=word) as stage:
        old = stage.watch(4)
        assert await epoch_and_number(old) == (4, U64_MAX)
        late = stage.watch(2)
        assert await epoch_and_number(late) == (4, U64_MAX)  # of a lower epoch than was promised before
        assert await late.read() is aio.EOF
        stage.store(0)
        assert await epoch_and_number(old) == (4, 0)
        new = stage.watch(7)
        assert await epoch_and_number(new) == (7, 0)
        assert word.promised == 7
        stage.store(1)
        assert await epoch_and_number(old) == (7, U64_MAX)
        assert await old.read() is aio.EOF
        assert await epoch_and_number(new) == (7, 1)
        for epoch, number in ((7, 0), (4, U64_MAX)):
            answer = await stage.stub().levelAt(standby_pb2.LevelAtRequest(block_number=0, epoch=epoch))
            assert (answer.epoch, answer.block_number) == (7, number)
        answer = await stage.stub().levelAt(standby_pb2.LevelAtRequest(block_number=0, epoch=9))
        assert (answer.epoch, answer.block_number, word.promised) == (9, 0, 9)


async def test_who_is_told_nothing_where_there_is_an_election(tmp_path: Path) -> None:
    word = Word()

    async def refusal(epoch: int) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(aio.AioRpcError) as caught:
            await stage.watch(epoch).read()
        with pytest.raises(aio.AioRpcError) as caught_too:
            await stage.stub().levelAt(standby_pb2.LevelAtRequest(block_number=0, epoch=epoch))
        assert caught.value.code() is caught_too.value.code()
        return caught.value.code(), str(caught.value.details())

    async with told(tmp_path, promises=word) as stage:
        code, said = await refusal(0)
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert said.startswith("epoch: got none, expected one: failover.automatic is on here")
        word.refuses = True
        code, said = await refusal(8)
        assert (code, word.promised) == (grpc.StatusCode.UNAVAILABLE, 3)
        assert said == "epoch 8 cannot be promised: [Errno 28] No space left on device"
        call = stage.stub().watch(standby_pb2.WatchRequest(epoch=8, candidate="liar"))
        assert await call.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert str(await call.details()).startswith("promise epoch 8: got a node that is told another holder")
        word.refuses, word.why_no_member = False, "not joined yet"
        assert await refusal(8) == (grpc.StatusCode.FAILED_PRECONDITION, "not joined yet")
        assert word.promised == 3


async def test_streams_end_in_order_when_the_node_stops(tmp_path: Path) -> None:
    async with told(tmp_path) as stage:
        call = stage.watch()
        await height(call)
        stage.service.close()
        assert await asyncio.wait_for(call.read(), ANSWER_SECONDS) is aio.EOF
        assert await call.code() is grpc.StatusCode.OK
        late = stage.watch()
        assert await asyncio.wait_for(late.read(), ANSWER_SECONDS) is aio.EOF


async def test_a_watcher_that_takes_nothing_loses_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four addresses of such watchers once kept out standbys."""
    cut_off_deaf, refused = height_service_module._cut_off_deaf, asyncio.Event()

    def cut_off_once_refused(*who: Any) -> None:
        """First another watcher must be refused, however long that takes."""
        if refused.is_set():
            cut_off_deaf(*who)
        else:
            asyncio.get_running_loop().call_later(0.01, cut_off_once_refused, *who)

    monkeypatch.setattr(height_service_module, "_cut_off_deaf", cut_off_once_refused)

    async with told(tmp_path, limits=HeightLimits(write_seconds_max=0.3, streams_max=1)) as stage:
        with await asyncio.to_thread(DeafClient, parse_address(stage.address), ANSWER_SECONDS) as deaf:
            await asyncio.to_thread(deaf.ask, f"/{SERVICE_NAME}/watch", b"")
            await asyncio.to_thread(deaf.wait_for_headers)
            assert await stage.watch().code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            refused.set()
            await asyncio.to_thread(deaf.expect_close)
        async with asyncio.timeout(ANSWER_SECONDS):
            while stage.service._streams:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
        watcher = stage.watch()
        assert (await height(watcher))[0] == U64_MAX
        await asyncio.sleep(0.5)  # a watcher that reads may be silent for long
        stage.store(0)
        assert (await height(watcher))[0] == 0


async def test_one_block_can_be_asked_for(tmp_path: Path) -> None:
    async with told(tmp_path) as stage:
        stub = stage.stub()

        async def at(number: int) -> tuple[int, bytes]:
            message = await stub.levelAt(standby_pb2.LevelAtRequest(block_number=number))
            assert message.instance == "this-process"
            return message.block_number, message.root_hash

        assert await at(0) == (U64_MAX, b"")
        stage.store(0, 1, 2)
        assert [await at(number) for number in range(3)] == list(enumerate(ROOTS[:3]))
        assert await at(3) == (2, ROOTS[2])
        assert await at(U64_MAX) == (2, ROOTS[2])


@pytest.mark.parametrize("limits", [HeightLimits(streams_max=1), HeightLimits(streams_per_address_max=1)])
async def test_one_watcher_too_many_is_refused_until_another_leaves(
    tmp_path: Path, limits: HeightLimits
) -> None:
    async with told(tmp_path, limits=limits) as stage:
        first, second = stage.watch(), None
        await height(first)
        with pytest.raises(aio.AioRpcError) as caught:
            await stage.watch().read()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        first.cancel()
        async with asyncio.timeout(ANSWER_SECONDS):
            while second is None:
                try:
                    second = stage.watch()
                    await height(second)
                except aio.AioRpcError:
                    second = None


async def test_nonsense_is_answered_and_logged_by_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with told(tmp_path) as stage:
        stage.stub()
        channel: Any = stage.channels[0]
        with pytest.raises(aio.AioRpcError) as caught:
            await channel.unary_unary(f"/{SERVICE_NAME}/levelAt")(b"\xff\xff")
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert str(caught.value.details()).startswith("request: got Error parsing message")
        call = channel.unary_stream(f"/{SERVICE_NAME}/watch")(b"\xff\xff")
        assert standby_pb2.Level.FromString(await call.read()).block_number == U64_MAX
    assert caplog.records == []


async def refused(call: Any) -> str:
    """Return why a call is refused."""
    with pytest.raises(aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    return caught.value.details() or ""


async def test_other_nodes_are_served_and_nobody_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """256 strangers' calls once took all places of standbys."""

    nodes = KnownNodes(networks=("192.0.2.0/24",))
    async with told(tmp_path, nodes=nodes) as stage:
        reason = (
            "sluice.standby.NodeLevel is for other nodes: got 127.0.0.1, expected an address of peers, "
            "or one in peer_networks"
        )
        stub = stage.stub()
        for _ in range(2 * STANDBY_STREAMS_PER_ADDRESS_MAX):
            assert await refused(stub.watch(standby_pb2.WatchRequest()).read()) == reason
        assert await refused(stub.levelAt(standby_pb2.LevelAtRequest(block_number=0))) == reason
        assert not stage.service._streams
        nodes.peers = ("localhost:40840",)  # a name of 127.0.0.1
        await nodes.look()
        assert (await height(stage.watch()))[0] == U64_MAX
        await stub.levelAt(standby_pb2.LevelAtRequest(block_number=0))
    ours = [record for record in caplog.records if record.name == height_service_module.__name__]
    assert {record.message for record in ours} == {"watcher refused"}
    assert {record.caused_by for record in ours} == {"127.0.0.1"}  # type: ignore[attr-defined]


async def test_a_node_that_came_to_another_address_is_looked_up_when_it_calls(tmp_path: Path) -> None:
    nodes = KnownNodes()
    nodes.peers = ("localhost:40840",)
    async with told(tmp_path, nodes=nodes) as stage:  # nothing was resolved before
        assert (await height(stage.watch()))[0] == U64_MAX


async def test_where_subjects_are_listed_an_address_is_not_enough(tmp_path: Path) -> None:
    nodes = KnownNodes(subjects=("CN=node",))
    nodes.peers = ("localhost:40840",)
    await nodes.look()
    async with told(tmp_path, nodes=nodes) as stage:
        reason = await refused(stage.watch().read())
        assert "expected a certificate that proves a name in peer_subjects" in reason
