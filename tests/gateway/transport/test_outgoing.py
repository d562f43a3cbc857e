"""Tests of `gateway.transport.outgoing`, with a server that refuses gRPC core's headers."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
import h2.config
import h2.connection
import h2.events
import pytest
from grpc import aio

from sluice.gateway.errors import TlsError
from sluice.gateway.transport import outgoing
from sluice.gateway.transport.channels import ClientTls, call_once, open_channel, relayed_if_refused
from sluice.gateway.transport.frames import ErrorCode, FrameKind, frame, go_away
from tests.certificates import Authority

ANSWER_SECONDS = 20.0
LITERAL_PATH = b"\x05:path"
"""The literal name, as gRPC core writes it; its index takes one byte."""


class Server:
    """An echo server that wants `:path` by its index, as Helidon does.

    Args:
        context: TLS, or None.
        is_strict: False: it takes all headers.
    """

    def __init__(
        self, context: ssl.SSLContext | None = None, *, is_strict: bool = True, port: int = 0
    ) -> None:
        self.refused = self.answered = 0
        self._context = context
        self._is_strict = is_strict
        self._connections: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                connection.settimeout(ANSWER_SECONDS)
                self._connections.append(connection)
                self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
                self._threads[-1].start()

    def _serve(self, raw: socket.socket) -> None:
        with suppress(OSError):
            sock = self._context.wrap_socket(raw, server_side=True) if self._context else raw
            self._connections.append(sock)
            with sock:
                self._speak(sock)

    def _speak(self, sock: socket.socket) -> None:
        http = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        http.initiate_connection()
        bodies: dict[int, bytes] = {}
        sock.sendall(http.data_to_send())
        while got := sock.recv(1 << 16):
            if self._is_strict and LITERAL_PATH in got:
                self.refused += 1
                sock.sendall(go_away(ErrorCode.PROTOCOL_ERROR, ""))
                return
            for event in http.receive_data(got):
                if isinstance(event, h2.events.DataReceived):
                    bodies[event.stream_id] = bodies.get(event.stream_id, b"") + event.data
                    http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                elif isinstance(event, h2.events.StreamEnded):
                    self.answered += 1
                    head = [(":status", "200"), ("content-type", "application/grpc")]
                    http.send_headers(event.stream_id, head)
                    http.send_data(event.stream_id, bodies.pop(event.stream_id, b""))
                    http.send_headers(event.stream_id, [("grpc-status", "0")], end_stream=True)
            sock.sendall(http.data_to_send())

    def drop(self) -> None:
        for connection in self._connections:
            with suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop()
        for thread in self._threads:
            thread.join(ANSWER_SECONDS)


@contextmanager
def server(
    context: ssl.SSLContext | None = None, *, is_strict: bool = True, port: int = 0
) -> Iterator[Server]:
    opened = Server(context, is_strict=is_strict, port=port)
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture(autouse=True)
def nothing_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "_learned", set())
    monkeypatch.delenv(outgoing.VIA_VARIABLE, raising=False)


def ask(channel: grpc.Channel) -> bytes:
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/test/echo", bytes, bytes)
    return call(b"hello", timeout=ANSWER_SECONDS)


def logged(caplog: pytest.LogCaptureFixture, words: str) -> str:
    """Wait for a warning of another thread."""
    until = time.monotonic() + ANSWER_SECONDS
    while True:
        found = [text for record in caplog.records if words in (text := record.getMessage())]
        if found:
            return found[0]
        assert time.monotonic() < until, f"no line with {words!r} in {caplog.messages}"
        time.sleep(0.01)


# --- which way ----------------------------------------------------------------------------------------------


def test_a_call_that_is_refused_for_its_headers_is_made_again_through_the_relay() -> None:
    with server() as strict:
        assert call_once(strict.address, None, ask) == b"hello"
        assert strict.refused == 1
        assert call_once(strict.address, None, ask) == b"hello"
        assert (strict.refused, strict.answered) == (1, 2)


async def test_asyncio_calls_are_made_again_too() -> None:
    async def main(address: str) -> list[bytes]:
        async def attempt() -> bytes:
            async with open_channel(address) as channel:
                call: aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/test/echo")
                return await call(b"hello", timeout=ANSWER_SECONDS)

        return [await relayed_if_refused(address, attempt) for _ in range(2)]

    with server() as strict:
        assert await main(strict.address) == [b"hello", b"hello"]
        assert (strict.refused, strict.answered) == (1, 2)


def test_a_server_that_takes_all_headers_is_called_directly() -> None:
    with server(is_strict=False) as plain:
        assert call_once(plain.address, None, ask) == b"hello"
        assert not outgoing.is_relayed(plain.address)


def test_direct_never_relays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(outgoing.VIA_VARIABLE, "direct")
    with server() as strict:
        with pytest.raises(grpc.RpcError, match="GOAWAY received; Error code: 1"):
            call_once(strict.address, None, ask)
        assert strict.refused == 1
        monkeypatch.setenv(outgoing.VIA_VARIABLE, "auto")
        assert not outgoing.is_relayed(strict.address)  # nothing was learned
        assert call_once(strict.address, None, ask) == b"hello"
        monkeypatch.setenv(outgoing.VIA_VARIABLE, "direct")
        with pytest.raises(grpc.RpcError):
            call_once(strict.address, None, ask)


@pytest.mark.parametrize("is_strict", [True, False])
def test_relay_does_so_from_the_first_call_on(monkeypatch: pytest.MonkeyPatch, is_strict: bool) -> None:
    monkeypatch.setenv(outgoing.VIA_VARIABLE, "relay")
    with server(is_strict=is_strict) as any_server:
        assert call_once(any_server.address, None, ask) == b"hello"
        assert (any_server.refused, any_server.answered) == (0, 1)


def test_addresses_do_not_share_a_socket_and_one_address_has_one() -> None:
    with server() as one, server() as other:
        assert outgoing.relayed(one.address, None) == outgoing.relayed(one.address, None)
        assert outgoing.relayed(one.address, None) != outgoing.relayed(other.address, None)
        assert outgoing.relayed(one.address, None) != outgoing.relayed(one.address, ClientTls())


def test_threads_may_ask_for_sockets_at_once() -> None:
    addresses = [f"127.0.0.1:{port}" for port in range(1, 31)]
    together = threading.Barrier(8)

    def ask_all(_: int) -> list[str]:
        together.wait(ANSWER_SECONDS)
        return [outgoing.relayed(address, None) for address in addresses]

    with ThreadPoolExecutor(8) as threads:
        told = list(threads.map(ask_all, range(8)))
    assert all(targets == told[0] for targets in told)
    assert len(set(told[0])) == 30


def test_another_error_is_handed_on_and_not_tried_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        accepted = []

        def refuse() -> None:
            connection, _ = listener.accept()
            accepted.append(connection)
            connection.sendall(frame(FrameKind.SETTINGS, 0, 0) + go_away(ErrorCode.ENHANCE_YOUR_CALM, "calm"))
            connection.close()

        thread = threading.Thread(target=refuse)
        thread.start()
        with pytest.raises(grpc.RpcError):
            call_once(address, None, lambda channel: ask_shortly(channel))
        thread.join(ANSWER_SECONDS)
        assert not outgoing.is_relayed(address)


def ask_shortly(channel: grpc.Channel) -> bytes:
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/test/echo", bytes, bytes)
    return call(b"hello", timeout=0.5)


# --- TLS ----------------------------------------------------------------------------------------------------


def server_context(authority: Authority) -> ssl.SSLContext:
    pair = authority.issue("localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    context.set_alpn_protocols(["h2"])
    return context


def test_the_relay_speaks_tls_to_the_server(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with server(server_context(authority)) as strict:
        assert call_once(strict.address, authority.client(), ask) == b"hello"
        assert (strict.refused, strict.answered) == (1, 1)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("authority", "TLS failed: unable to get local issuer certificate"),
        ("name", "TLS failed: Hostname mismatch, certificate is not valid for 'node.example'"),
    ],
)
def test_a_server_that_is_not_trusted_is_not_called_and_the_log_says_why(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    what: str,
    words: str,
) -> None:
    monkeypatch.setenv(outgoing.VIA_VARIABLE, "relay")
    authority = Authority(tmp_path)
    if what == "authority":
        tls = Authority(tmp_path, "another").client()
    else:
        tls = ClientTls(str(authority.path), server_name="node.example")
    with server(server_context(authority)) as strict:
        with pytest.raises(grpc.RpcError) as caught:
            call_once(strict.address, tls, ask)
        assert isinstance(caught.value, grpc.Call)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert logged(caplog, words).startswith(f"{strict.address}: ")
        assert strict.answered == 0


def test_a_file_that_cannot_be_read_is_named_to_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(outgoing.VIA_VARIABLE, "relay")
    with pytest.raises(TlsError, match="CA file"):
        call_once("127.0.0.1:1", ClientTls("missing.crt"), ask)


# --- clients and servers that leave ------------------------------------------------------------------------


def test_a_server_that_is_gone_is_named_and_called_again_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(outgoing.VIA_VARIABLE, "relay")
    with server() as strict:
        assert call_once(strict.address, None, ask) == b"hello"
    with pytest.raises(grpc.RpcError) as caught:
        call_once(strict.address, None, ask)
    assert isinstance(caught.value, grpc.Call)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert logged(caplog, "cannot connect: ").startswith(f"{strict.address}: ")
    with server(port=strict.port) as back:
        assert call_once(back.address, None, ask_until_answered) == b"hello"


def ask_until_answered(channel: grpc.Channel) -> bytes:
    """Ask again after each failure, for as long as an answer may take."""
    until = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < until:
        with suppress(grpc.RpcError):
            return ask(channel)
        time.sleep(0.05)
    return b"nothing"


def test_a_connection_that_the_server_drops_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(outgoing.VIA_VARIABLE, "relay")

    def twice(channel: grpc.Channel) -> bytes:
        assert ask(channel) == b"hello"
        strict.drop()
        return ask_until_answered(channel)

    with server() as strict:
        assert call_once(strict.address, None, twice) == b"hello"
        assert strict.answered == 2
    await_pumps(lambda count: count == 0)


def await_pumps(is_so: Callable[[int], bool]) -> None:
    assert outgoing._thread is not None
    until = time.monotonic() + ANSWER_SECONDS
    while not is_so(len(outgoing._thread.pumps)):
        assert time.monotonic() < until, f"{len(outgoing._thread.pumps)} connections are left"
        time.sleep(0.01)


def test_a_channel_that_is_closed_leaves_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(outgoing.VIA_VARIABLE, "relay")
    with server() as strict:
        for _ in range(3):
            assert call_once(strict.address, None, ask) == b"hello"
        await_pumps(lambda count: count == 0)


FORKS = """
    import os, socket, sys
    from pathlib import Path
    from sluice.gateway.transport import outgoing

    def greet(word: bytes) -> str:
        target = outgoing.relayed(sys.argv[1], None).removeprefix("unix:")
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(10)
            sock.connect(target)
            sock.sendall(word)
            assert sock.recv(4)[3:] == b"s", "the frame of the server"
        return target

    hello = b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n"
    before = greet(hello)
    child = os.fork()
    if not child:
        target = greet(hello)
        os._exit(0 if target != before else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert greet(hello) == before
    assert Path(before).exists()
"""


def test_a_fork_has_a_thread_and_sockets_of_its_own() -> None:
    """It leaves those of its parent alone."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = threading.Event()

        def serve() -> None:
            listener.settimeout(0.1)
            while not done.is_set():
                with suppress(OSError):
                    connection, _ = listener.accept()
                    connection.settimeout(ANSWER_SECONDS)
                    connection.recv(1)
                    connection.sendall(frame(0x73, 0, 0))
                    connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        ran = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(FORKS), address],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=os.environ,
        )
        done.set()
        thread.join(ANSWER_SECONDS)
    assert ran.returncode == 0, ran.stderr


WITHOUT_DESCRIPTORS = """
import os, resource, socket, time
from contextlib import suppress
from sluice.gateway.transport import outgoing

server = socket.create_server(("127.0.0.1", 0))
server.settimeout(10)
path = outgoing.relayed(f"127.0.0.1:{server.getsockname()[1]}", None).removeprefix("unix:")
client, held = socket.socket(socket.AF_UNIX), []
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
with suppress(OSError):
    while True:
        held.append(os.dup(0))
client.connect(path)
before = time.process_time()
time.sleep(1)
print(time.process_time() - before)
for number in held:
    os.close(number)
server.accept()
print("connected")
"""


def test_without_descriptors_the_relay_waits_in_place_of_spinning() -> None:
    """It once took a whole core meanwhile."""
    command = [sys.executable, "-c", WITHOUT_DESCRIPTORS]
    told = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=True)
    seconds, connected = told.stdout.split()
    assert float(seconds) < 0.5
    assert connected == "connected"
    assert told.stderr.count("cannot connect: Too many open files") <= 4
