"""Tests of `gateway.transport.grpc_server`: addresses, services and limits."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from sluice.gateway.addresses import Address
from sluice.gateway.errors import Fatal
from sluice.gateway.limits import STREAM_WINDOW_BYTES, STREAMS_PER_CONNECTION_MAX
from sluice.gateway.transport import grpc_server
from sluice.gateway.transport.frames import CLIENT_PREFACE, FrameKind, frame
from sluice.gateway.transport.grpc_server import ConnectionLimits, ServerPlan, start_server
from sluice.gateway.transport.known_nodes import KnownNodes
from tests.deaf_client import DeafClient

ANSWER_SECONDS = 20.0
LOOPBACK = Address("127.0.0.1", 0)


def plan(
    address: Address = LOOPBACK, keepalive_seconds: float = 0, connections_max: int = 100, **further: Any
) -> ServerPlan:
    return ServerPlan("grpc.address", address, 1 << 20, keepalive_seconds, connections_max, **further)


def no_services(server: aio.Server) -> None:
    """Add nothing."""


async def test_a_free_port_is_told() -> None:
    server = await start_server(plan(), no_services)
    address = server.address
    assert address.host == "127.0.0.1"
    assert address.port > 0
    await server.stop(0)


async def test_an_address_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(Fatal) as caught:
            await start_server(plan(address), no_services)
    assert str(caught.value) == (
        f"grpc.address {address}: got Address already in use, expected an address that is free here"
    )


def first_bytes(connection: socket.socket) -> bytes:
    """The server's answer to a new connection: HTTP/2 settings, or nothing when it closes it."""
    connection.settimeout(ANSWER_SECONDS)
    connection.sendall(CLIENT_PREFACE + frame(FrameKind.SETTINGS, 0, 0))
    return connection.recv(9)


async def test_one_connection_too_many_is_closed_and_has_a_place_when_another_is_gone() -> None:
    server = await start_server(plan(connections_max=2), no_services)
    address = server.address
    where = (address.host, address.port)
    first, second, third = (socket.create_connection(where) for _ in range(3))
    with second:
        assert [len(await asyncio.to_thread(first_bytes, one)) for one in (first, second)] == [9, 9]
        assert await asyncio.to_thread(first_bytes, third) == b""
        third.close()
        first.close()
        async with asyncio.timeout(ANSWER_SECONDS):
            while True:
                with socket.create_connection(where) as fourth:
                    if await asyncio.to_thread(first_bytes, fourth):
                        break
                await asyncio.sleep(0.01)
    await server.stop(0)


@pytest.mark.parametrize(
    ("descriptors", "asked", "most"), [(None, 4096, 4096), (1024, 4096, 128), (1024, 9, 9), (3, 9, 1)]
)
def test_connections_leave_descriptors_for_files(
    monkeypatch: pytest.MonkeyPatch, descriptors: int | None, asked: int, most: int
) -> None:
    monkeypatch.setattr(grpc_server, "descriptors_max", lambda: descriptors)
    limits = grpc_server._door_limits(plan(connections_max=asked, connections_per_address_max=asked // 4))
    assert limits.connections_max == most
    assert limits.connections_per_address_max == max(1, most // 4)  # the same proportion of fewer places
    # Without known clients no place is kept.
    assert (limits.node_places, limits.listed_places, limits.unknown_places) == (0, 0, 0)


def test_every_node_has_some_places_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_server, "descriptors_max", lambda: 1_024)
    nodes = KnownNodes()
    kept = []
    for count in (0, 1, 2, 5, 100):
        nodes.peers = [f"{number}.net:40840" for number in range(count)]
        kept.append(grpc_server._door_limits(plan(connections_max=4_096, nodes=nodes)).node_places)
    assert kept == [0, 8, 8, 20, 32]  # a sixteenth of 128, four for each, a quarter at most


async def test_a_client_without_calls_is_let_go_and_calls_again() -> None:
    server = await start_server(plan(limits=ConnectionLimits(idle_seconds_max=1)), _echo)
    address = server.address
    async with aio.insecure_channel(str(address)) as channel:
        echo: aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/test/echo")
        assert await echo(b"1") == b"1"
        async with asyncio.timeout(ANSWER_SECONDS):
            while (state := channel.get_state()) is grpc.ChannelConnectivity.READY:
                await channel.wait_for_state_change(state)
        assert await echo(b"2") == b"2"
    await server.stop(0)


async def test_one_call_too_many_on_a_connection_waits_for_another_to_end() -> None:
    assert ConnectionLimits().streams_max == STREAMS_PER_CONNECTION_MAX
    server = await start_server(plan(limits=ConnectionLimits(streams_max=2)), _health)
    address = server.address
    async with aio.insecure_channel(str(address)) as channel:
        watch: aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(
            "/grpc.health.v1.Health/Watch"
        )
        first, second = watch(b""), watch(b"")
        assert [await call.read() for call in (first, second)] == [b"\x08\x01", b"\x08\x01"]
        third = asyncio.ensure_future(watch(b"").read())
        check: aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/grpc.health.v1.Health/Check")
        with pytest.raises(aio.AioRpcError) as caught:
            await check(b"", timeout=0.2)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert not third.done()
        first.cancel()
        assert await asyncio.wait_for(third, ANSWER_SECONDS) == b"\x08\x01"
    await server.stop(0)


async def test_a_stream_that_is_not_read_takes_no_more_than_its_window() -> None:
    message, read_count = b"x" * (256 << 10), 64

    async def main() -> int:
        was_read, done = asyncio.Event(), asyncio.Event()

        async def read_some(_: object, context: aio.ServicerContext[bytes, bytes]) -> None:
            for _ in range(read_count):  # gRPC would enlarge the window meanwhile
                await context.read()
            was_read.set()
            await done.wait()

        def add(server: aio.Server) -> None:
            handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(read_some)
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a.B", {"c": handler}),))

        server = await start_server(plan(), add)
        address = server.address
        async with aio.insecure_channel(str(address)) as channel:
            call: aio.StreamStreamCall[bytes, bytes] = channel.stream_stream("/a.B/c")()
            for _ in range(read_count):
                await call.write(message)
            await asyncio.wait_for(was_read.wait(), ANSWER_SECONDS)
            taken_bytes = 0
            try:
                while taken_bytes < 32 << 20:
                    await asyncio.wait_for(asyncio.shield(call.write(message)), 0.5)
                    taken_bytes += len(message)
            except TimeoutError:
                pass  # no room until the server reads
            call.cancel()
            done.set()
        await server.stop(0)
        return taken_bytes

    # The window, and messages under way at both ends.
    assert await main() <= 2 * STREAM_WINDOW_BYTES + 2 * len(message)


def test_a_client_may_ping_as_often_as_the_limit_says() -> None:
    def pings_answered(address: Address) -> int:
        with DeafClient(address, ANSWER_SECONDS) as client:
            return next((count for count in range(20) if not client.ping()), 20)

    async def main(ping_seconds_min: float) -> int:
        limits = ConnectionLimits(ping_seconds_min=ping_seconds_min)
        server = await start_server(plan(limits=limits), no_services)
        address = server.address
        try:
            return await asyncio.to_thread(pings_answered, address)
        finally:
            await server.stop(0)

    assert asyncio.run(main(0.0)) == 20
    assert asyncio.run(main(300.0)) < 20


async def test_a_client_that_does_not_answer_is_closed() -> None:
    """gRPC has two options for it; with the other one it was 60 s."""
    limits = ConnectionLimits(keepalive_answer_seconds=1)
    server = await start_server(plan(keepalive_seconds=1, limits=limits), no_services)
    address = server.address
    try:
        with DeafClient(address, ANSWER_SECONDS) as client:
            await asyncio.to_thread(client.expect_close)
    finally:
        await server.stop(0)


@pytest.mark.parametrize("takes_compressed", [False, True])
def test_a_compressed_message_is_taken_where_the_setting_says_so(takes_compressed: bool) -> None:
    async def main() -> bytes:
        plan = ServerPlan("grpc.address", LOOPBACK, 1 << 20, 0, 100, takes_compressed=takes_compressed)
        server = await start_server(plan, _echo)
        address = server.address
        async with aio.insecure_channel(str(address), compression=grpc.Compression.Gzip) as channel:
            echo: aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/test/echo")
            try:
                return await echo(bytes(10_000))
            finally:
                await server.stop(0)

    if takes_compressed:
        assert asyncio.run(main()) == bytes(10_000)
    else:
        with pytest.raises(aio.AioRpcError) as caught:
            asyncio.run(main())
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert "gzip" in (caught.value.details() or "")


async def test_metadata_that_is_not_utf_8_is_no_error_of_the_node(caplog: pytest.LogCaptureFixture) -> None:
    server = await start_server(plan(), _health)
    address = server.address
    with DeafClient(address, ANSWER_SECONDS) as client:
        client.ask("/grpc.health.v1.Health/Check", b"", {"publisher-id": "\xff\xfe"})
        await asyncio.to_thread(client.wait_for_headers)
    await server.stop(0)
    assert caplog.records == []


async def test_services_are_those_that_were_added() -> None:
    server = await start_server(plan(keepalive_seconds=1), _echo)
    address = server.address
    async with aio.insecure_channel(str(address)) as channel:
        echo: aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/test/echo")
        assert await echo(b"1") == b"1"
        other: aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/test/other")
        with pytest.raises(aio.AioRpcError) as caught:
            await other(b"1")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    await server.stop(0)


async def test_a_request_that_does_not_parse_is_refused_and_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = await start_server(plan(), _health)
    address = server.address
    async with aio.insecure_channel(str(address)) as channel:
        check: aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert await check(b"") == b"\x08\x01"  # SERVING
        with pytest.raises(aio.AioRpcError) as caught:
            await check(b"\xff")
        assert await check(b"") == b"\x08\x01"
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert str(caught.value.details()).startswith("request: got Error parsing message")
    await server.stop(0)
    assert caplog.records == []


async def test_a_question_about_services_that_does_not_parse_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each once left a traceback."""

    server = await start_server(plan(), lambda server: reflection.enable_server_reflection((), server))
    async with aio.insecure_channel(str(server.address)) as channel:
        ask: aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
            f"/{reflection.SERVICE_NAME}/ServerReflectionInfo"
        )
        call = ask()
        with suppress(aio.AioRpcError):  # the answer may come before gRPC's confirmation of the write
            await call.write(b"\xff")
        assert await call.code() is not grpc.StatusCode.OK
    await server.stop(0)
    assert caplog.records == []


def _health(server: aio.Server) -> None:
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)


def _echo(server: aio.Server) -> None:
    async def echo(request: bytes, _: object) -> bytes:
        return request

    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", {"echo": handler}),))
