"""Tests of `gateway.transport.pump` with real sockets."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import random
import socket
import ssl
import time
import weakref
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import hpack
import pytest

from sluice.datastream.server.secure_socket import SecureSocket
from sluice.gateway.transport.frames import (
    CLIENT_PREFACE,
    HEAD_BYTES,
    ConnectionBreach,
    Flag,
    FrameKind,
    frame,
    window_update,
)
from sluice.gateway.transport.header_blocks import HeaderWriter, header_frames
from sluice.gateway.transport.pump import (
    LINGER_SECONDS,
    TLS_UNSENT_BYTES_MAX,
    UNSENT_PIECES_MAX,
    Pump,
)
from sluice.gateway.transport.relay import ServerRelay
from sluice.gateway.transport.tls import ServerTls
from tests.certificates import Authority
from tests.datastream.server.test_secure_socket import key_updates, waiting_bytes

ANSWER_SECONDS = 20.0
BUFFER_BYTES = 256 * 1024
SOCKET_BYTES = 4 << 20
"""More than the sockets and one read hold."""
DATA_BYTES = 8 << 20
FRAME = 16_384
REQUEST = header_frames(
    1,
    HeaderWriter().write([(b":method", b"POST"), (b":path", b"/a"), (b"te", b"trailers")]),
    ends_stream=False,
)
WIDE = window_update(0, 1 << 30)
"""A wide window for the client."""


class WatchedPump(Pump[ServerRelay]):
    """A pump that notes its calls."""

    def __init__(self, outside: socket.socket, grpc: socket.socket, buffer_bytes: int) -> None:
        buffer = memoryview(bytearray(buffer_bytes))
        super().__init__(asyncio.get_running_loop(), buffer, ServerRelay(), outside)
        self.happened: list[str] = []
        self._grpc_socket = grpc

    def begin(self) -> None:
        self.enter(self._grpc_socket)
        self.outside.read_on()

    def on_secured(self, certificate: bytes | None) -> None:
        self.begin()

    def on_tls_failed(self, reason: str) -> None:
        self.happened.append("tls failed")

    def on_breach(self, breach: ConnectionBreach) -> None:
        self.happened.append(breach.what)

    def on_left_grpc(self) -> None:
        self.happened.append("left gRPC")

    def on_closed(self) -> None:
        self.happened.append("closed")


class Line:
    """A pump between a client and gRPC; the test has both sockets."""

    def __init__(
        self,
        outside: socket.socket,
        client: socket.socket,
        buffer_bytes: int,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.client = client
        self._ours, self.grpc = socket.socketpair()
        self.client.setblocking(False)
        self.grpc.setblocking(False)
        self.pump = WatchedPump(outside, self._ours, buffer_bytes)
        if tls is None:
            self.pump.begin()
        else:
            self.pump.start_tls(tls, is_server=True)
        self._loop = asyncio.get_running_loop()

    async def greet(self) -> None:
        """Greet from both sides, and begin a call."""
        hello = CLIENT_PREFACE + frame(FrameKind.SETTINGS, 0, 0)
        answer = frame(FrameKind.SETTINGS, 0, 0) + WIDE
        await self.send(self.client, hello)
        assert await self.receive(self.grpc, len(hello)) == hello
        await self.send(self.grpc, answer)
        assert await self.receive(self.client, len(answer)) == answer
        await self.send(self.client, REQUEST)
        assert await self.receive(self.grpc, len(REQUEST)) == REQUEST

    async def send(self, sock: socket.socket, data: bytes) -> None:
        async with asyncio.timeout(ANSWER_SECONDS):
            await self._loop.sock_sendall(sock, memoryview(data))

    async def receive(self, sock: socket.socket, size: int) -> bytes:
        """Receive so many bytes, or all until the end."""
        data = bytearray()
        async with asyncio.timeout(ANSWER_SECONDS):
            while len(data) < size and (got := await self._loop.sock_recv(sock, size - len(data))):
                data += got
        return bytes(data)

    async def rest(self, sock: socket.socket) -> bytes:
        """Receive until the end, which may be a reset."""
        data = b""
        async with asyncio.timeout(ANSWER_SECONDS):
            with suppress(ConnectionError):
                while got := await self._loop.sock_recv(sock, 1 << 16):
                    data += got
        return data

    async def stuff(self, sock: socket.socket, data: bytes) -> int:
        """Send until nothing is taken for a while; return the number of bytes."""
        sent, refused = 0, 0
        while refused < 20 and sent < len(data):
            try:
                sent += sock.send(data[sent:])
                refused = 0
            except BlockingIOError:
                refused += 1
            await asyncio.sleep(0.005)
        return sent

    async def expect_closed(self) -> None:
        """Tick until the pump has ended; it says so once, and last."""
        async with asyncio.timeout(ANSWER_SECONDS):
            while not self.pump.is_closed:
                self.pump.is_over(time.monotonic_ns())
                await asyncio.sleep(0.01)
        assert self.pump.happened[-1] == "closed"
        assert self.pump.happened.count("closed") == 1

    def close(self) -> None:
        self.pump.close()
        self._ours.close()
        self.client.close()
        self.grpc.close()


def on_a_line(test: Callable[[Line], Coroutine[Any, Any, None]], buffer_bytes: int = BUFFER_BYTES) -> None:
    """Run a test on a TCP line whose client has greeted."""

    async def main() -> None:
        with tcp_pair() as (ours, client):
            line = Line(ours, client, buffer_bytes)
            try:
                await line.greet()
                await test(line)
            finally:
                line.close()

    asyncio.run(main())


@contextmanager
def tcp_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a TCP connection with small buffers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.socket()
        for sock in (listener, client):
            for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                sock.setsockopt(socket.SOL_SOCKET, option, 64 * 1024)
        client.connect(listener.getsockname())
        ours, _ = listener.accept()
    with ours, client:
        yield ours, client


def data_frames(size: int, seed: int = 1) -> bytes:
    """DATA frames of random bytes."""
    rng = random.Random(seed)
    return b"".join(frame(FrameKind.DATA, 0, 1, rng.randbytes(FRAME)) for _ in range(size // FRAME))


def unsent_bytes(line: Line) -> int:
    """The bytes that the pump keeps for either end."""
    pump = line.pump
    assert pump.grpc is not None
    return sum(len(piece) for end in (pump.outside, pump.grpc) for piece in end._unsent)


# --- slow ends ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("up", [True, False])
def test_who_takes_nothing_is_not_read_for(up: bool) -> None:
    async def test(line: Line) -> None:
        sender, reader = (line.client, line.grpc) if up else (line.grpc, line.client)
        data = data_frames(2 * SOCKET_BYTES)
        sent = await line.stuff(sender, data)
        assert sent < len(data), "the sender was read, and its data kept"
        assert unsent_bytes(line) <= 2 * BUFFER_BYTES
        kept = unsent_bytes(line)
        assert await line.stuff(sender, data[sent:]) == 0
        assert unsent_bytes(line) == kept
        rest = asyncio.ensure_future(line.send(sender, data[sent:]))
        got = await line.receive(reader, len(data))
        await rest
        assert hashlib.sha256(got).digest() == hashlib.sha256(data).digest()
        assert not unsent_bytes(line)

    on_a_line(test)


@pytest.mark.parametrize("buffer_bytes", [BUFFER_BYTES, 1_000])
@pytest.mark.parametrize("up", [True, False])
def test_a_very_slow_reader_gets_every_byte_in_order(up: bool, buffer_bytes: int) -> None:
    async def test(line: Line) -> None:
        sender, reader = (line.client, line.grpc) if up else (line.grpc, line.client)
        data = data_frames(DATA_BYTES if buffer_bytes == BUFFER_BYTES else DATA_BYTES // 8)
        sending = asyncio.ensure_future(line.send(sender, data))
        rng, got, size = random.Random(2), hashlib.sha256(), 0
        while size < len(data):
            piece = await line.receive(reader, min(rng.choice((1, 700, 70_000)), len(data) - size))
            got.update(piece)
            size += len(piece)
            if rng.random() < 0.05:
                await asyncio.sleep(0.005)
        await sending
        assert got.digest() == hashlib.sha256(data).digest()

    on_a_line(test, buffer_bytes)


def test_one_direction_goes_on_while_the_other_stands_still() -> None:
    async def test(line: Line) -> None:
        await line.stuff(line.grpc, data_frames(2 * SOCKET_BYTES))  # the client reads nothing
        data = data_frames(1 << 20, seed=3)
        sending = asyncio.ensure_future(line.send(line.client, data))
        assert await line.receive(line.grpc, len(data)) == data
        await sending

    on_a_line(test)


def test_who_reads_nothing_and_makes_answers_is_read_no_more() -> None:
    async def test(line: Line) -> None:
        await line.stuff(line.grpc, data_frames(2 * SOCKET_BYTES))
        for _ in range(3 * UNSENT_PIECES_MAX):  # the relay's own frames
            line.pump.relay.to_outside.append(window_update(0, 1))
            line.pump.flush()
        assert line.pump.outside.is_full
        assert not line.pump.outside._is_reading
        reading = asyncio.ensure_future(line.rest(line.client))
        async with asyncio.timeout(ANSWER_SECONDS):
            while not line.pump.outside._is_reading:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        reading.cancel()

    on_a_line(test)


# --- ends ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_clogged", [False, True])
def test_what_a_client_said_before_it_half_closed_reaches_grpc_and_it_hears_the_answer(
    is_clogged: bool,
) -> None:
    async def test(line: Line) -> None:
        data = data_frames(SOCKET_BYTES if is_clogged else FRAME)
        sent = await line.stuff(line.client, data)
        line.client.shutdown(socket.SHUT_WR)
        assert await line.rest(line.grpc) == data[:sent]
        answer = data_frames(1 << 20, seed=4)
        sending = asyncio.ensure_future(line.send(line.grpc, answer))
        assert await line.receive(line.client, len(answer)) == answer
        await sending
        line.grpc.close()
        assert await line.rest(line.client) == b""
        line.client.close()
        await line.expect_closed()

    on_a_line(test)


def test_what_grpc_said_before_it_closed_reaches_a_slow_client() -> None:
    async def test(line: Line) -> None:
        data = data_frames(SOCKET_BYTES)
        sent = await line.stuff(line.grpc, data)
        line.grpc.close()
        await asyncio.sleep(0.05)
        got = b""
        while len(got) < sent:  # in the middle of a flush, and the tick looks
            got += await line.receive(line.client, 100_000)
            assert not line.pump.is_closed or len(got) == sent
            line.pump.is_over(time.monotonic_ns())
        assert got == data[:sent]
        assert await line.rest(line.client) == b""
        line.client.close()
        await line.expect_closed()

    on_a_line(test)


def test_who_does_not_close_after_grpc_has_is_closed_after_a_while() -> None:
    async def test(line: Line) -> None:
        line.grpc.close()
        assert await line.rest(line.client) == b""
        began = time.monotonic()
        while time.monotonic() < began + LINGER_SECONDS / 4:  # later bytes are dropped
            with suppress(BlockingIOError, ConnectionError):
                line.client.send(frame(FrameKind.PING, 0, 0, bytes(8)))
            await asyncio.sleep(0.01)
        assert not line.pump.is_closed
        await line.expect_closed()
        assert line.pump.happened == ["left gRPC", "left gRPC", "closed"]

    on_a_line(test)


def test_a_breach_is_told_to_the_client_though_it_goes_on_sending() -> None:
    async def test(line: Line) -> None:
        await line.send(line.client, frame(FrameKind.CONTINUATION, 0, 1))
        with suppress(ConnectionError, BlockingIOError):
            for _ in range(100):
                line.client.send(frame(FrameKind.PING, 0, 0, bytes(8)))
        words = await line.rest(line.client)
        assert words[3] == FrameKind.GOAWAY
        assert b"CONTINUATION without HEADERS" in words[HEAD_BYTES:]
        assert await line.rest(line.grpc) == b""
        line.client.close()
        await line.expect_closed()
        assert line.pump.happened[0] == "header block"

    on_a_line(test)


@pytest.mark.parametrize("is_clogged", [False, True])
@pytest.mark.parametrize("by_client", [True, False])
def test_a_reset_ends_both_sides(by_client: bool, is_clogged: bool) -> None:
    async def test(line: Line) -> None:
        if is_clogged:
            await line.stuff(line.grpc, data_frames(2 * SOCKET_BYTES))
            await line.stuff(line.client, data_frames(2 * SOCKET_BYTES))
        gone, other = (line.client, line.grpc) if by_client else (line.grpc, line.client)
        reset(gone)
        if by_client:
            await line.rest(other)
        else:
            reading = asyncio.ensure_future(line.rest(other))
            await reading
            other.close()
        await line.expect_closed()

    on_a_line(test)


def reset(sock: socket.socket) -> None:
    """Close with a reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    sock.close()


def test_a_connection_that_is_cut_off_is_reset_at_once() -> None:
    async def test(line: Line) -> None:
        await line.stuff(line.grpc, data_frames(2 * SOCKET_BYTES))  # the bytes under way are lost
        assert line.pump.cut_off()
        assert not line.pump.cut_off()
        assert await line.rest(line.grpc) == b""
        with pytest.raises(ConnectionResetError):
            await line.receive(line.client, 2 * SOCKET_BYTES)
        assert line.pump.happened == ["left gRPC", "closed"]

    on_a_line(test)


def test_both_ends_may_go_at_once() -> None:
    async def test(line: Line) -> None:
        await line.stuff(line.grpc, data_frames(2 * SOCKET_BYTES))
        await line.stuff(line.client, data_frames(2 * SOCKET_BYTES))
        reset(line.client)
        reset(line.grpc)
        await line.expect_closed()
        line.pump.flush()  # a late grant or tick
        line.pump.pause(0.01)
        await asyncio.sleep(0.05)

    on_a_line(test)


def test_a_pump_may_be_closed_in_the_middle_of_a_flush() -> None:
    async def test(line: Line) -> None:
        reset(line.client)
        relay = line.pump.relay
        for _ in range(20):  # the send finds that the client has left, and closes while `flush` runs
            relay.to_grpc.append(data_frames(FRAME))
            relay.to_outside.append(data_frames(1 << 20))
            line.pump.flush()
        await line.expect_closed()

    on_a_line(test)


# --- TLS ----------------------------------------------------------------------------------------------------

SMALL_BUFFER_BYTES = 1_000
"""Less than a TLS record of up to 16 KiB."""


def over_tls(
    tmp_path: Path,
    test: Callable[[Line, ssl.SSLSocket], Coroutine[Any, Any, None]],
    *,
    is_trusted: bool = True,
) -> None:
    """Run a test on a TLS line with a blocking client."""
    authority = Authority(tmp_path)
    files = authority.server_files(authority.issue("localhost"), mutual=False)
    trusted = authority if is_trusted else Authority(tmp_path, "another")
    context = ssl.create_default_context(cafile=str(trusted.path))

    async def main() -> None:
        with tcp_pair() as (ours, client):
            line = Line(ours, client, SMALL_BUFFER_BYTES, ServerTls(files, "grpc.tls").context())
            client.settimeout(ANSWER_SECONDS)
            with context.wrap_socket(
                client,
                server_hostname="localhost",
                do_handshake_on_connect=False,
                suppress_ragged_eofs=False,
            ) as secured:
                try:
                    await test(line, secured)
                finally:
                    line.close()

    asyncio.run(main())


async def greet_over_tls(line: Line, client: ssl.SSLSocket) -> None:
    await asyncio.to_thread(client.do_handshake)
    hello = CLIENT_PREFACE + frame(FrameKind.SETTINGS, 0, 0)
    await asyncio.to_thread(client.sendall, hello)
    assert await line.receive(line.grpc, len(hello)) == hello
    answer = frame(FrameKind.SETTINGS, 0, 0) + WIDE
    await line.send(line.grpc, answer)
    assert await asyncio.to_thread(receive_slowly, client, len(answer)) == answer
    await asyncio.to_thread(client.sendall, REQUEST)
    assert await line.receive(line.grpc, len(REQUEST)) == REQUEST


def receive_slowly(client: ssl.SSLSocket, size: int) -> bytes:
    data, rng = b"", random.Random(5)
    while len(data) < size and (got := client.recv(min(rng.choice((1, 3_000, 1 << 20)), size - len(data)))):
        data += got
        if rng.random() < 0.01:
            time.sleep(0.01)
    return data


@pytest.mark.parametrize("up", [True, False])
def test_records_that_are_longer_than_the_buffer_pass_in_order(tmp_path: Path, up: bool) -> None:
    async def test(line: Line, client: ssl.SSLSocket) -> None:
        await greet_over_tls(line, client)
        data = data_frames(2 << 20)
        if up:
            sending = asyncio.ensure_future(asyncio.to_thread(client.sendall, data))
            await asyncio.sleep(0.2)  # the pump stops, and goes on with decrypted bytes
            got = await line.receive(line.grpc, len(data))
        else:
            sending = asyncio.ensure_future(line.send(line.grpc, data))
            got = await asyncio.to_thread(receive_slowly, client, len(data))
        await sending
        assert got == data

    over_tls(tmp_path, test)


def test_over_tls_the_end_is_said_too(tmp_path: Path) -> None:
    """Else a client could not tell it from an attack."""

    async def test(line: Line, client: ssl.SSLSocket) -> None:
        await greet_over_tls(line, client)
        data = data_frames(1 << 20)
        sending = asyncio.ensure_future(line.send(line.grpc, data))
        assert await asyncio.to_thread(receive_slowly, client, len(data)) == data
        await sending
        line.grpc.close()
        assert await asyncio.to_thread(client.recv, 1) == b""  # SSLEOFError without TLS's end
        client.close()
        await line.expect_closed()

    over_tls(tmp_path, test)


def test_over_tls_what_a_client_said_before_it_went_reaches_grpc(tmp_path: Path) -> None:
    async def test(line: Line, client: ssl.SSLSocket) -> None:
        await greet_over_tls(line, client)
        data = data_frames(1 << 20)

        def speak() -> None:
            client.sendall(data)
            client.settimeout(0)
            with suppress(ssl.SSLWantReadError):
                client.unwrap()  # sends TLS's end

        # What the buffers of the sockets hold is up to the machine: gRPC reads while the client speaks.
        speaking = asyncio.ensure_future(asyncio.to_thread(speak))
        assert await line.rest(line.grpc) == data
        await speaking
        line.grpc.close()
        client.close()
        await line.expect_closed()

    over_tls(tmp_path, test)


def test_who_does_not_come_through_tls_is_noted_once(tmp_path: Path) -> None:
    async def test(line: Line, client: ssl.SSLSocket) -> None:
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.to_thread(client.do_handshake)
        await line.expect_closed()
        assert line.pump.happened == ["tls failed", "left gRPC", "closed"]

    over_tls(tmp_path, test, is_trusted=False)


class CountedReads:
    """A secure socket; counts the reads of each turn of the loop."""

    def __init__(self, secure: SecureSocket | None) -> None:
        self._secure: Any = secure
        self._count = 0
        self.most = 0
        """Reads of the turn with most of them."""
        self._begin_turn()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._secure, name)

    def read_into(self, buffer: memoryview) -> int | None:
        self._count += 1
        return cast("int | None", self._secure.read_into(buffer))

    def _begin_turn(self) -> None:
        self.most, self._count = max(self.most, self._count), 0
        asyncio.get_running_loop().call_soon(self._begin_turn)


@pytest.mark.parametrize("asks", [False, True])
def test_key_updates_without_end_take_bounded_turns(tmp_path: Path, asks: bool) -> None:
    """Each turn takes a slice; a client that reads no answers is read no more."""
    authority = Authority(tmp_path)
    files = authority.server_files(authority.issue("localhost"), mutual=False)
    log = tmp_path / "keys"
    context = ssl.create_default_context(cafile=str(authority.path))
    context.keylog_filename = str(log)

    async def main() -> None:
        with tcp_pair() as (ours, client):
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 12)
            line = Line(ours, client, BUFFER_BYTES, ServerTls(files, "grpc.tls").context())
            client.settimeout(ANSWER_SECONDS)
            wrapped = context.wrap_socket(client, server_hostname="localhost", do_handshake_on_connect=False)
            with wrapped as secured:
                await greet_over_tls(line, secured)
                secret = bytes.fromhex(log.read_text().split("CLIENT_TRAFFIC_SECRET_0")[1].split()[1])
                flood = memoryview(key_updates(secret, 30_000 if asks else 10_000, asks=asks, sent=2))
                secured.settimeout(0)
                at, idle, left = 0, 0, 0
                reads: Any = CountedReads(line.pump.outside.secure)
                line.pump.outside.secure = reads
                while idle < 50 and (left or at < len(flood)):
                    with suppress(BlockingIOError):
                        at += socket.socket.send(secured, flood[at : at + (1 << 16)])
                    before = waiting_bytes(ours)
                    await asyncio.sleep(0)
                    left = waiting_bytes(ours)
                    idle = idle + 1 if before == left else 0
                    if idle:
                        await asyncio.sleep(0.001)
                # The socket's own event, and what the read before it left.
                assert 1 <= reads.most <= 2
                assert not line.pump.is_closed
                outside = line.pump.outside
                assert outside.secure is not None
                assert (at < len(flood)) == asks
                assert outside.is_full == asks
                assert outside.secure.unsent_bytes < 2 * TLS_UNSENT_BYTES_MAX
                line.close()

    asyncio.run(main())


async def test_who_does_not_read_what_is_given_back_is_not_read() -> None:
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
            padded = frame(FrameKind.DATA, Flag.PADDED, 1, b"\0") * 1_000
            at = 0
            for _ in range(2_000):
                with suppress(BlockingIOError):
                    at = (at + client.send(padded[at:])) % len(padded)
                await asyncio.sleep(0)
            unsent = len(pump.outside._unsent)
            pump.close()
            return unsent

    assert 64 < await main() < 70


async def test_a_connection_that_is_closed_in_a_pause_is_forgotten() -> None:
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

    assert await main()


async def test_what_grpc_said_last_is_handed_on_though_the_client_sends_in_that_moment() -> None:
    """Sending to gRPC fails then; the connection was once closed with the last words unread."""

    async def main() -> bytes:
        ours, client = socket.socketpair()
        grpc, server = socket.socketpair()
        with client:
            pump = Pump(asyncio.get_running_loop(), memoryview(bytearray(1 << 16)), ServerRelay(), ours)
            pump.enter(grpc)
            client.sendall(CLIENT_PREFACE + frame(FrameKind.PING, 0, 0, b"12345678"))
            server.sendall(frame(FrameKind.GOAWAY, 0, 0, b"last words"))
            server.close()
            pump._read_outside()  # before the relay reads gRPC's last bytes
            client.setblocking(False)
            async with asyncio.timeout(ANSWER_SECONDS):
                return await asyncio.get_running_loop().sock_recv(client, 100)

    assert await main() == frame(FrameKind.GOAWAY, 0, 0, b"last words")
