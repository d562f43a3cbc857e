"""Tests of `gateway.transport.message_size`, also with gRPC's own texts."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from grpc import aio

from sluice.gateway.transport.message_size import TooLong, too_long, why_too_long

CORE = "SERVER: Received message larger than max (1500 vs. 1000)"


@pytest.mark.parametrize(
    "details",
    [
        CORE,
        "Stream removed (CLIENT: Received message larger than max (1500 vs. 1000))",
        "Received message larger than max (1500 vs 1000)",
        "grpc: received message larger than max (1500 vs. 1000)",
        "gRPC message exceeds maximum size 1000: 1500",
        "RESOURCE_EXHAUSTED: gRPC message exceeds maximum size 1000: 1500",
        "Error, decoded message length too large: found 1500 bytes, the limit is: 1000 bytes",
    ],
)
def test_both_numbers_are_read(details: str) -> None:
    assert too_long(details) == TooLong(size_bytes=1500, limit_bytes=1000)


@pytest.mark.parametrize(
    "details",
    [
        None,
        "",
        "streams of this publisher: got 65, expected at most 64 at once",
        "Received message larger than max",
        f"Received message larger than max ({'1' * 21} vs. 5)",
    ],
)
def test_what_says_nothing_of_a_length(details: str | None) -> None:
    assert too_long(details) is None
    assert why_too_long(details, "a setting") is None


def test_what_to_change_is_said() -> None:
    assert why_too_long(CORE, "grpc.max_message_bytes of the gateway") == (
        "message: got 1500 bytes, expected at most 1000; raise grpc.max_message_bytes of the gateway"
    )


async def test_grpc_says_so_on_either_side() -> None:
    async def echo(request: bytes, context: Any) -> bytes:
        return request

    server = aio.server(options=(("grpc.max_receive_message_length", 1_000),))
    handler: grpc.RpcMethodHandler[Any, Any] = grpc.unary_unary_rpc_method_handler(echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a.B", {"echo": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        for client_bytes_max, size_bytes, limit_bytes in ((2_000, 1_500, 1_000), (500, 700, 500)):
            options = (("grpc.max_receive_message_length", client_bytes_max),)
            async with aio.insecure_channel(f"127.0.0.1:{port}", options) as channel:
                call: Any = channel.unary_unary("/a.B/echo")
                with pytest.raises(aio.AioRpcError) as caught:
                    await call(bytes(size_bytes))
                assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                assert too_long(caught.value.details()) == TooLong(size_bytes, limit_bytes)
    finally:
        await server.stop(0)
