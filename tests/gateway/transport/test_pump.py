"""Tests of `gateway.transport.pump`, over real sockets."""

from __future__ import annotations

import asyncio
import gc
import socket
import weakref
from contextlib import suppress

import hpack

from gateway.transport.frames import (
    CLIENT_PREFACE,
    Flag,
    Kind,
    frame,
)
from gateway.transport.header_blocks import header_frames
from gateway.transport.pump import Pump
from gateway.transport.server_relay import ServerRelay


def test_who_does_not_read_what_is_given_back_is_not_read() -> None:
    async def main() -> int:
        ours, client = socket.socketpair()
        grpc, server = socket.socketpair()
        with client, server:
            pump = Pump(asyncio.get_running_loop(), memoryview(bytearray(1 << 18)), ServerRelay(), ours)
            pump.enter(grpc)
            pump.outside.read_on()
            client.setblocking(False)
            request = hpack.Encoder().encode([(b":method", b"POST")])
            client.send(CLIENT_PREFACE + header_frames(1, request, ends_stream=False))
            padded = frame(Kind.DATA, Flag.PADDED, 1, b"\0") * 1_000
            at = 0
            for _ in range(5_000):
                with suppress(BlockingIOError):
                    at = (at + client.send(padded[at:])) % len(padded)
                await asyncio.sleep(0)
            unsent = len(pump.outside._unsent)
            pump.close()
            return unsent

    assert 64 < asyncio.run(main()) < 70


def test_a_connection_that_is_closed_in_a_pause_is_forgotten() -> None:
    async def main() -> bool:
        ours, client = socket.socketpair()
        with client:
            pump = Pump(asyncio.get_running_loop(), memoryview(bytearray(1)), ServerRelay(), ours)
            pump.pause(1_000)
            pump.close()
            known = weakref.ref(pump)
            del pump
            gc.collect()
            return known() is None

    assert asyncio.run(main())
