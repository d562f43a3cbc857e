"""Tests of `gateway.grpc_server`: where a server listens, and what it serves."""

from __future__ import annotations

import asyncio
import socket

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health, health_pb2_grpc

from gateway.addresses import Address
from gateway.errors import Fatal
from gateway.grpc_server import ServerPlan, start_server

LOOPBACK = Address("127.0.0.1", 0)


def plan(address: Address = LOOPBACK, keepalive_seconds: float = 0) -> ServerPlan:
    return ServerPlan("grpc.address", address, 1 << 20, keepalive_seconds)


def no_services(server: aio.Server) -> None:
    """Add nothing."""


def test_a_free_port_is_told() -> None:
    async def main() -> None:
        server, address = await start_server(plan(), no_services)
        assert address.host == "127.0.0.1"
        assert address.port > 0
        await server.stop(0)

    asyncio.run(main())


def test_an_address_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(Fatal) as caught:
            asyncio.run(start_server(plan(address), no_services))
    assert str(caught.value) == (
        f"grpc.address {address}: got Address already in use, expected an address that is free here"
    )


def test_services_are_those_that_were_added() -> None:
    async def main() -> None:
        server, address = await start_server(plan(keepalive_seconds=1), _echo)
        async with aio.insecure_channel(str(address)) as channel:
            echo: aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/test/echo")
            assert await echo(b"1") == b"1"
            other: aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/test/other")
            with pytest.raises(aio.AioRpcError) as caught:
                await other(b"1")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        await server.stop(0)

    asyncio.run(main())


def test_a_request_that_does_not_parse_is_refused_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        server, address = await start_server(plan(), _health)
        async with aio.insecure_channel(str(address)) as channel:
            check: aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
                "/grpc.health.v1.Health/Check"
            )
            assert await check(b"") == b"\x08\x01"  # SERVING
            with pytest.raises(aio.AioRpcError) as caught:
                await check(b"\xff")
            assert await check(b"") == b"\x08\x01"
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert str(caught.value.details()).startswith("request: got Error parsing message")
        await server.stop(0)

    asyncio.run(main())
    assert caplog.records == []


def _health(server: aio.Server) -> None:
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)


def _echo(server: aio.Server) -> None:
    async def echo(request: bytes, _: object) -> bytes:
        return request

    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", {"echo": handler}),))
