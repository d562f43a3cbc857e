"""Tests of `gateway.transport.callers`: the client behind a call, with and without a front door."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from sluice.gateway.addresses import Address
from sluice.gateway.transport import callers
from sluice.gateway.transport.callers import STREAM_KEY, Caller, caller_of
from sluice.gateway.transport.grpc_server import ServerPlan, start_server
from sluice.gateway.transport.message_shares import StreamKey

PUBLISH = "/org.hiero.block.api.BlockStreamPublishService/publishBlockStream"
Seen = list[tuple[str, Caller, StreamKey | None]]


def noting(seen: Seen) -> Callable[[aio.Server], None]:
    """A service that notes its callers."""

    async def note(
        messages: AsyncIterator[bytes], context: aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[bytes]:
        caller = caller_of(context)
        seen.append((context.peer(), caller, caller.key_of(context)))
        yield b""

    def add(server: aio.Server) -> None:
        service, method = PUBLISH[1:].split("/")
        handlers: dict[str, Any] = {method: grpc.stream_stream_rpc_method_handler(note)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))

    return add


async def call(channel: aio.Channel, *metadata: tuple[str, str]) -> None:
    method: Any = channel.stream_stream(PUBLISH)
    assert [answer async for answer in method(iter([b""]), metadata=metadata)] == [b""]


def seen_behind_a_door(use: Callable[[str], Awaitable[None]], host: str = "127.0.0.1") -> Seen:
    """Return who called a server with a front door at this host."""
    seen: Seen = []

    async def main() -> None:
        plan = ServerPlan("grpc.listen", Address(host, 0), 1 << 20, 0, 100)
        server = await start_server(plan, noting(seen))
        try:
            await use(f"[{host}]:{server.address.port}" if ":" in host else str(server.address))
        finally:
            await server.stop(0)

    asyncio.run(main())
    assert callers._callers == {}  # callers that left are forgotten
    return seen


def test_a_client_behind_the_door_is_told_as_if_there_were_no_door() -> None:
    async def use(target: str) -> None:
        async with aio.insecure_channel(target) as channel:
            await call(channel)

    for host, peer in (("127.0.0.1", "ipv4:127.0.0.1:"), ("::1", "ipv6:%5B::1%5D:")):
        ((of_grpc, caller, _),) = seen_behind_a_door(use, host)
        assert of_grpc.startswith("unix-abstract:sluice-")
        assert caller.peer.startswith(peer)
        assert caller.peer.removeprefix(peer).isdecimal()
        assert (caller.address, caller.subjects) == (host, ())


def test_streams_are_told_apart_by_the_door_and_not_by_what_clients_say() -> None:
    async def use(target: str) -> None:
        for options in ([("grpc.use_local_subchannel_pool", 1)],) * 2:  # each has its own connection
            async with aio.insecure_channel(target, options) as channel:
                await call(channel)
                await call(channel, ("sluice-stream", "1"), ("sluice-stream", "no number"))

    seen = seen_behind_a_door(use)
    keys = [key for _, _, key in seen]
    first, second = seen[0][1].connection, seen[2][1].connection
    assert 0 < first < second
    assert keys == [
        StreamKey("127.0.0.1", connection, stream) for connection in (first, second) for stream in (1, 3)
    ]


async def test_without_a_door_there_is_what_grpc_says_and_no_key(tmp_path: Path) -> None:
    seen: Seen = []

    server = aio.server()
    noting(seen)(server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.add_insecure_port(f"unix:{tmp_path}/grpc")
    await server.start()
    try:
        for target in (f"127.0.0.1:{port}", f"unix:{tmp_path}/grpc"):
            async with aio.insecure_channel(target) as channel:
                await call(channel, (STREAM_KEY, "1"))  # which no client knows
    finally:
        await server.stop(0)
    for peer, caller, key in seen:
        assert caller == Caller(
            peer,
            caller.address,
            cut_off=caller.cut_off,
            taken=caller.taken,
            host=caller.host,
            is_node=caller.is_node,
        )
        assert key is None
        assert not caller.cut_off()
        assert (caller.host, caller.address) == (peer, peer)
        assert not caller.is_node()


def test_the_name_of_the_doors_metadata_is_another_one_in_every_process() -> None:
    """A client that knew it could claim another stream."""
    code = "from sluice.gateway.transport.callers import STREAM_KEY; print(STREAM_KEY)"
    told = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True) for _ in range(2)]
    keys = {STREAM_KEY, *(one.stdout.strip() for one in told)}
    assert len(keys) == 3
    assert all(len(key) > 40 and key == key.lower() for key in keys)
