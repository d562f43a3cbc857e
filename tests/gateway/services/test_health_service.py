"""Tests of `gateway.services.health_service` over real gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from sluice.gateway.addresses import Address
from sluice.gateway.limits import REQUEST_BYTES_MAX
from sluice.gateway.services.health_service import SERVICE_NAME, HealthService
from sluice.gateway.transport.grpc_server import ServerPlan, start_server
from tests.deaf_client import DeafClient
from tests.nodes import ANSWER_SECONDS, running_node

UNKNOWN, SERVING, NOT_SERVING, SERVICE_UNKNOWN = range(4)


@asynccontextmanager
async def served() -> AsyncIterator[tuple[HealthService, aio.Channel, Address]]:
    """A server with only a health service for one name."""
    service = HealthService(("one",))
    server = await start_server(
        ServerPlan("grpc.address", Address("127.0.0.1", 0), REQUEST_BYTES_MAX, 0, 100), service.add_to
    )
    try:
        async with aio.insecure_channel(str(server.address)) as channel:
            yield service, channel, server.address
    finally:
        await server.stop(0)


def watch(channel: aio.Channel, name: str) -> Any:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    return stub.Watch(health_pb2.HealthCheckRequest(service=name))


async def told(call: Any) -> int:
    response = await asyncio.wait_for(call.read(), ANSWER_SECONDS)
    assert isinstance(response, health_pb2.HealthCheckResponse), response
    return response.status


async def test_watchers_are_told_at_once_and_whenever_it_has_changed() -> None:
    async with served() as (service, channel, _):
        first, other = watch(channel, "one"), watch(channel, "two")
        assert [await told(first), await told(other)] == [NOT_SERVING, SERVICE_UNKNOWN]
        service.show(ready=True)
        assert await told(first) == SERVING
        second = watch(channel, "")
        assert await told(second) == SERVING
        service.show(ready=True)  # no news
        service.show(ready=False)
        assert [await told(first), await told(second)] == [NOT_SERVING, NOT_SERVING]
        first.cancel()  # the others still hear
        service.show(ready=True)
        assert await told(second) == SERVING
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(other.read(), 0.05)


async def test_a_name_that_is_none_of_the_nodes_is_not_found() -> None:
    async with served() as (service, channel, _):
        service.show(ready=True)
        stub: Any = health_pb2_grpc.HealthStub(channel)
        assert (await stub.Check(health_pb2.HealthCheckRequest(service="one"))).status == SERVING
        with pytest.raises(aio.AioRpcError) as caught:
            await stub.Check(health_pb2.HealthCheckRequest(service="two"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_nonsense_is_answered_and_logged_by_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async with served() as (_, channel, _):
        either: Any = channel
        for call in (
            either.unary_unary(f"/{SERVICE_NAME}/Check")(b"\xff\xff"),
            either.unary_stream(f"/{SERVICE_NAME}/Watch")(b"\xff\xff"),
        ):
            assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert [record for record in caplog.records if record.name != "asyncio"] == []  # grpcio wakes it in vain


async def test_a_watcher_that_takes_nothing_holds_up_no_other() -> None:
    async with served() as (service, channel, address):
        with await asyncio.to_thread(DeafClient, address, ANSWER_SECONDS) as deaf:
            await asyncio.to_thread(deaf.ask, f"/{SERVICE_NAME}/Watch", b"")
            await asyncio.to_thread(deaf.wait_for_headers)
            call = watch(channel, "")
            assert await told(call) == NOT_SERVING
            service.show(ready=True)
            assert await told(call) == SERVING


async def test_a_watcher_that_takes_nothing_does_not_keep_a_node_from_stopping(tmp_path: Path) -> None:
    """ "Not serving" once waited for ever until the watcher had taken "serving"."""

    async with running_node(tmp_path, shutdown_grace_seconds=0.1) as node:
        with await asyncio.to_thread(DeafClient, node.grpc_address, ANSWER_SECONDS) as deaf:
            await asyncio.to_thread(deaf.ask, f"/{SERVICE_NAME}/Watch", b"")
            await asyncio.to_thread(deaf.wait_for_headers)
            await asyncio.wait_for(node.stop(), ANSWER_SECONDS)
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(node.grpc_address.host, node.grpc_address.port)


async def test_a_node_that_stops_tells_its_watchers_and_does_not_wait_for_them(tmp_path: Path) -> None:
    async with (
        running_node(tmp_path, shutdown_grace_seconds=10 * ANSWER_SECONDS) as node,
        aio.insecure_channel(str(node.grpc_address)) as channel,
    ):
        ours, other = watch(channel, ""), watch(channel, "two")
        assert [await told(ours), await told(other)] == [SERVING, SERVICE_UNKNOWN]
        await asyncio.wait_for(node.stop(), ANSWER_SECONDS)
        assert await told(ours) == NOT_SERVING
        for call in (ours, other):
            assert await call.read() is aio.EOF
