"""TLS at the stream's port: handshakes that fail or never end, misdirected clients, renewals, key updates.

Everything else that clients do is tested with and without TLS: the fixture `loop` of the other modules.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import hmac
import socket
import ssl
import struct
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.limits import RECEIVE_BYTES
from sluice.datastream.protocol.commands import OnCommandError
from sluice.datastream.server.connection import ServerContext
from sluice.datastream.server.secure_socket import SecureSocket
from sluice.datastream.server.server import StreamServer
from tests.certificates import Authority
from tests.datastream.serving import PATIENT, ServerThread, contexts, read_exactly, read_to_end
from tests.datastream.streams import commit

OK = bytes.fromhex("ff 0000000b 00000000 4f4b")
HEADER = bytes.fromhex("0000000000000003 0000000000000001")
START_0 = bytes.fromhex("0000000000000001 0000000000000001 0000000000000000")
TLS = "uvloop, TLS"


@pytest.fixture
def streamer(tmp_path: Path) -> Iterator[DataStreamer]:
    with DataStreamer.open(tmp_path / "s.bin") as streamer:
        commit(streamer, (7, b"hello"))
        yield streamer


@pytest.fixture(params=["asyncio, TLS", TLS])
def loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def plain(serving: ServerThread) -> socket.socket:
    """Return a connected socket on which nothing was said."""
    return socket.create_connection((serving.host, serving.port), 20)


def hello() -> bytes:
    """Return the first bytes of a TLS client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = contexts()[1].wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def assert_serves(serving: ServerThread) -> None:
    with serving.connect() as client:
        client.sendall(HEADER)
        assert read_exactly(client, len(OK) + 38).startswith(OK)


def assert_no_trouble(caplog: pytest.LogCaptureFixture) -> None:
    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (HEADER, "closed, it speaks no TLS, which this port expects"),
        (b"GET / HTTP/1.1\r\n\r\n", "closed, it speaks no TLS, which this port expects"),
        (b"\x16" + bytes(200), "closed, the TLS handshake failed: "),
        (b"\x16\x03\x01\x00\x05hello", "closed, the TLS handshake failed: "),
    ],
    ids=["a command", "HTTP", "zeros", "another handshake"],
)
def test_whoever_speaks_no_tls_is_told_so_in_the_log(
    streamer: DataStreamer, loop: str, caplog: pytest.LogCaptureFixture, sent: bytes, words: str
) -> None:
    caplog.set_level("INFO")
    with ServerThread(streamer, loop=loop) as serving:
        with plain(serving) as client:
            client.sendall(sent)
            answer = read_to_end(client)
            assert b"hello" not in answer
            assert not answer or answer[0] == 0x15  # an alert
        assert_serves(serving)
    assert [words in record.getMessage() for record in caplog.records].count(True) == 1
    assert_no_trouble(caplog)


def test_a_tls_client_at_a_port_without_tls_is_told_so_in_the_log(
    streamer: DataStreamer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with ServerThread(streamer) as serving:
        with plain(serving) as client:
            client.sendall(hello())
            assert client.recv(1) == b""
        assert_serves(serving)
    lines = [record.getMessage() for record in caplog.records]
    assert (
        len([line for line in lines if line.endswith("closed, it speaks TLS, and this port does not")]) == 1
    )
    assert_no_trouble(caplog)


@pytest.mark.parametrize("said", ["nothing", "half a hello", "a hello", "drops"])
def test_half_a_handshake_gives_its_place_back(
    streamer: DataStreamer, loop: str, caplog: pytest.LogCaptureFixture, said: str
) -> None:
    caplog.set_level("INFO")
    limits = replace(PATIENT, connections_max=1, handshake_timeout_seconds=0.4, inactivity_timeout_seconds=0)
    with ServerThread(streamer, loop=loop, limits=limits) as serving, plain(serving) as client:
        first = hello()
        client.sendall({"nothing": b"", "a hello": first}.get(said, first[:40]))
        ends = time.monotonic() + 10
        closed = False
        while not closed and time.monotonic() < ends:
            client.settimeout(0.05)
            try:
                closed = client.recv(1 << 16) == b""
            except TimeoutError:
                if said == "drops":  # its age counts, not its silence
                    client.sendall(first[40:41])
            except ConnectionError:
                closed = True
        assert closed
        assert_serves(serving)
    assert "no TLS handshake within 0.4 s, closed" in caplog.text


def test_a_client_that_leaves_in_its_handshake_is_nothing_to_log(
    streamer: DataStreamer, loop: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with ServerThread(streamer, loop=loop) as serving:
        for sent in (b"", hello()[:40], hello()):
            with plain(serving) as client:
                client.sendall(sent)
                client.shutdown(socket.SHUT_WR)
                client.settimeout(20)
                while client.recv(1 << 16):
                    pass
        serving.in_loop()
        assert serving.server.client_count == 0
    assert not [record for record in caplog.records if "client" in record.getMessage()]


def test_commands_that_come_with_the_end_of_the_handshake_are_answered(
    streamer: DataStreamer, loop: str
) -> None:
    with ServerThread(streamer, loop=loop) as serving, plain(serving) as client:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = contexts()[1].wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                client.sendall(outgoing.read())
                incoming.write(client.recv(1 << 16))
        tls.write(HEADER)
        client.sendall(outgoing.read())
        answer = b""
        while len(answer) < len(OK) + 38:
            incoming.write(client.recv(1 << 16))
            try:
                answer += tls.read()
            except ssl.SSLWantReadError:
                continue
        assert answer.startswith(OK)


def test_the_answer_to_start_comes_with_the_first_entries(streamer: DataStreamer, loop: str) -> None:
    """In one record, so that the client wakes once."""
    with ServerThread(streamer, loop=loop) as serving, serving.connect() as client:
        client.sendall(START_0)
        assert client.recv(1 << 16) == OK + bytes.fromhex("02 00000016 00000007") + bytes(8) + b"hello"


def test_bytes_that_are_no_records_end_a_connection(
    streamer: DataStreamer, loop: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with ServerThread(streamer, loop=loop) as serving:
        with serving.connect() as client:
            client.sendall(START_0)
            assert read_exactly(client, len(OK)) == OK
            socket.socket.send(client, b"\x17\x03\x03\x00\x20" + bytes(32))
            client.recv(1 << 16)  # the entry
            with pytest.raises(ssl.SSLError, match="ALERT"):
                client.recv(1 << 16)
        assert_serves(serving)
    assert "closed: TLS: DECRYPTION_FAILED_OR_BAD_RECORD_MAC" in caplog.text
    assert_no_trouble(caplog)


def test_an_end_without_an_alert_is_an_end(streamer: DataStreamer, loop: str) -> None:
    """As with plain TCP, the client gets the rest of what is committed."""
    with ServerThread(streamer, loop=loop) as serving, serving.connect() as client:
        client.sendall(START_0)
        socket.socket.shutdown(client, socket.SHUT_WR)
        assert read_to_end(client)[len(OK) :].endswith(b"hello")


async def serve(streamer: DataStreamer, tls: ssl.SSLContext) -> StreamServer:
    server = StreamServer(streamer, port=0, limits=PATIENT, tls=lambda: tls)
    await server.start()
    return server


async def test_who_shows_no_certificate_is_refused_where_one_is_needed(
    streamer: DataStreamer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    authority = Authority(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*authority.issue("server"))
    tls.load_verify_locations(authority.path)
    tls.verify_mode = ssl.CERT_REQUIRED
    server = await serve(streamer, tls)
    for pair, is_taken in ((None, False), (authority.issue("client"), True), (None, False)):
        context = ssl.create_default_context(cafile=str(authority.path))
        if pair is not None:
            context.load_cert_chain(*pair)
        reader, writer = await asyncio.open_connection(*server.address, ssl=context)
        writer.write(HEADER)
        if is_taken:
            assert await reader.readexactly(len(OK)) == OK
        else:
            with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
                await reader.read()
        writer.transport.abort()
    await server.close()
    assert caplog.text.count("the TLS handshake failed: PEER_DID_NOT_RETURN_A_CERTIFICATE") == 2


async def test_the_next_handshake_takes_a_renewed_certificate(streamer: DataStreamer, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    found = []
    current: list[ssl.SSLContext] = []
    server = StreamServer(streamer, port=0, limits=PATIENT, tls=lambda: current[-1])
    await server.start()
    client = ssl.create_default_context(cafile=str(authority.path))
    for name in ("first", "second"):
        current.append(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        current[-1].load_cert_chain(*authority.issue(name))
        _, writer = await asyncio.open_connection(*server.address, ssl=client)
        found.append(writer.get_extra_info("peercert")["subject"][0][0][1])
        writer.transport.abort()
    await server.close()
    assert found == ["first", "second"]


async def test_one_handshake_in_an_iteration_of_the_loop(streamer: DataStreamer) -> None:
    on_error: OnCommandError = "keep"
    context = ServerContext(streamer, asyncio.get_running_loop(), PATIENT, on_error, lambda connection: None)
    for _ in range(3):
        assert [context.may_shake_hands() for _ in range(3)] == [True, False, False]
        await asyncio.sleep(0)


# --- key updates --------------------------------------------------------------------------------------------


def label(secret: bytes, name: str, size: int) -> bytes:
    """HKDF-Expand-Label without a context, of up to one hash (RFC 8446 section 7.1)."""
    text = b"tls13 " + name.encode()
    info = struct.pack(">HB", size, len(text)) + text + b"\0"
    return hmac.digest(secret, info + b"\1", hashlib.sha384)[:size]


def key_updates(secret: bytes, count: int, *, asks: bool = False, sent: int = 0) -> bytes:
    """Return so many records that change the sender's keys, for TLS_AES_256_GCM_SHA384.

    Args:
        asks: whether each asks for a key update in return.
        sent: records sent with the first key.
    """
    head = bytes.fromhex("17 0303 0016")
    records = []
    for number in range(count):
        key, nonce = label(secret, "key", 32), bytearray(label(secret, "iv", 12))
        nonce[-1] ^= 0 if number else sent
        text = bytes((24, 0, 0, 1, asks, 22))
        records.append(head + AESGCM(key).encrypt(bytes(nonce), text, head))
        secret = label(secret, "traffic upd", 48)
    return b"".join(records)


@contextmanager
def flooded(
    directory: Path, kind: str, receive_bytes: int
) -> Iterator[tuple[SecureSocket, socket.socket, int]]:
    """Yield a server's end with so many bytes of records that give no data, or hardly any."""
    log = directory / "keys"
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.keylog_filename = str(log)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        far = socket.create_connection(listener.getsockname())
        near, _ = listener.accept()
    with far, near:
        near.setblocking(False)
        secure = SecureSocket(near, contexts()[0], receive_bytes=receive_bytes)
        for _ in range(2):
            with suppress(ssl.SSLWantReadError):
                client.do_handshake()
            far.sendall(outgoing.read())
            is_done = secure.shake_hands()
            if not is_done:
                incoming.write(far.recv(1 << 16))
        assert is_done
        assert client.cipher() == ("TLS_AES_256_GCM_SHA384", "TLSv1.3", 256)
        (line,) = (
            line for line in log.read_text().splitlines() if line.startswith("CLIENT_TRAFFIC_SECRET_0")
        )
        if kind == "key updates":
            flood = key_updates(bytes.fromhex(line.split()[2]), 2_000)
        else:
            for _ in range(2_000):
                client.write(b"x")
            flood = outgoing.read()
        far.sendall(flood)
        yield secure, near, len(flood)


def waiting_bytes(sock: socket.socket) -> int:
    (count,) = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4)))
    return int(count)


def test_key_updates_without_end_do_not_keep_the_loop(tmp_path: Path) -> None:
    """A call takes a slice of what has come."""
    with flooded(tmp_path, "key updates", RECEIVE_BYTES) as (secure, near, left):
        while left:
            assert secure.receive() == (b"", False)
            now = waiting_bytes(near)
            assert left - now <= RECEIVE_BYTES
            left = now


@pytest.mark.parametrize("kind", ["key updates", "tiny records"])
def test_records_that_give_no_data_end_a_read_into_a_buffer(tmp_path: Path, kind: str) -> None:
    """Such a call takes a slice, and the part of another that gave data."""
    buffer, data = memoryview(bytearray(1 << 18)), b""
    with flooded(tmp_path, kind, RECEIVE_BYTES) as (secure, near, left):
        while left:
            data += buffer[: secure.read_into(buffer) or 0]
            now = waiting_bytes(near)
            assert left - now <= 2 * RECEIVE_BYTES
            left = now
    assert data == (b"" if kind == "key updates" else b"x" * 2_000)
