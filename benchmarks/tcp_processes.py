"""The processes of the TCP benchmarks: our server, a bare loop in its place, and the clients.

    python -m benchmarks.tcp_processes serve PATH [name=value …] [ARCHIVE]
                                                                   our server; ServerLimits by name
    python -m benchmarks.tcp_processes bare PATH CHUNK             `sendfile` only, at most CHUNK bytes a call
    python -m benchmarks.tcp_processes receive PORT COUNT SIZE REQUEST
    python -m benchmarks.tcp_processes serve_tls PATH CERTIFICATE KEY
    python -m benchmarks.tcp_processes bare_tls PATH CERTIFICATE KEY CHUNK   `SSLSocket.sendall` only
    python -m benchmarks.tcp_processes receive_tls PORT COUNT REQUEST

Servers print their port and end with their standard input; clients print their figures. Each side is a
process of its own, and the bare loop has the same sockets, options and clients as our server.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import socket
import ssl
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread

import uvloop

from benchmarks.measuring import running
from sluice.datastream import DataStreamer, ServerLimits, StreamServer
from sluice.datastream.client.blocking_client import TlsContext
from sluice.datastream.layout import HEADER_PAGE_SIZE
from sluice.gateway.archive.archive import ArchiveOptions
from sluice.gateway.archive.objects import StoreOptions
from sluice.gateway.commands.ds_options import archived

__all__ = ["bare", "ended", "receive", "receive_tls", "serve", "serve_tls"]

REQUEST_SIZE = 24
"""Bytes of a Start command."""
_BUFFER = bytearray(1 << 20)


def receive(port: int, count: int, size: int, request: bytes) -> float:
    """Receive `size` bytes with each of `count` clients in a process of their own; return the seconds."""
    words = ["benchmarks.tcp_processes", "receive", str(port), str(count), str(size), request.hex()]
    with running(*words) as (_, line):
        return float(json.loads(line))


def receive_tls(port: int, count: int, request: bytes) -> float:
    """As `receive`, up to the end of the stream, without decrypting it."""
    words = ["benchmarks.tcp_processes", "receive_tls", str(port), str(count), request.hex()]
    with running(*words) as (_, line):
        return float(json.loads(line))


async def ended() -> None:
    """Return when standard input is closed."""
    loop = asyncio.get_running_loop()
    over = loop.create_future()
    loop.add_reader(sys.stdin.fileno(), over.cancel)
    with suppress(asyncio.CancelledError):
        await over


def serve(path: str, *words: str) -> None:
    """Serve a stream with our server."""
    values = dict(word.split("=") for word in words if "=" in word)
    urls = [word for word in words if "=" not in word]
    limits = ServerLimits(**{name: json.loads(value) for name, value in values.items()})
    uvloop.run(_serve(path, limits, archive=urls[0] if urls else None))


def serve_tls(path: str, certificate: str, key: str) -> None:
    """Serve a stream with our server and TLS."""
    context = _server_context(certificate, key)
    uvloop.run(_serve(path, ServerLimits(), lambda: context))


async def _serve(
    path: str, limits: ServerLimits, tls: TlsContext | None = None, archive: str | None = None
) -> None:
    options = None if archive is None else ArchiveOptions(archive, StoreOptions(), 0, 0, 256 << 20)
    with DataStreamer.open(path) as streamer, archived(options, streamer, uploads=False):
        async with StreamServer(streamer, "127.0.0.1", 0, limits, tls=tls) as server:
            print(server.address[1], flush=True)
            await ended()


def _server_context(certificate: str, key: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


def bare(path: str, chunk: str) -> None:
    """Serve the bytes of a stream with `sendfile` alone, after any request.

    Blocking sockets would be slower: the kernel wakes the sender for little room.
    """
    poller = select.epoll()
    with socket.create_server(("127.0.0.1", 0)) as listener, Path(path).open("rb") as file:
        print(listener.getsockname()[1], flush=True)
        end = int.from_bytes(os.pread(file.fileno(), 8, 38), "big")  # total_length
        poller.register(listener, select.EPOLLIN)
        poller.register(sys.stdin, select.EPOLLIN)
        offsets: dict[int, int] = {}
        clients: dict[int, socket.socket] = {}
        while True:
            for fd, _ in poller.poll():
                if fd == sys.stdin.fileno():
                    return
                if fd == listener.fileno():
                    client, _ = listener.accept()
                    client.recv(REQUEST_SIZE)
                    client.setblocking(False)
                    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    poller.register(client, select.EPOLLOUT)
                    clients[client.fileno()] = client
                    offsets[client.fileno()] = HEADER_PAGE_SIZE
                else:
                    offsets[fd] = _bare_turn(fd, file.fileno(), offsets[fd], end, int(chunk))
                    if offsets[fd] == end:
                        poller.unregister(fd)
                        clients.pop(fd).close()


def _bare_turn(client_fd: int, file_fd: int, offset: int, end: int, chunk: int) -> int:
    try:
        return offset + os.sendfile(client_fd, file_fd, offset, min(chunk, end - offset))
    except BlockingIOError:
        return offset


def _receive(port: str, count: str, size: str, request: str) -> None:
    clients = [socket.create_connection(("127.0.0.1", int(port))) for _ in range(int(count))]
    missing = {client.fileno(): int(size) for client in clients}
    poller = select.epoll()
    begin = time.perf_counter()
    for client in clients:
        client.sendall(bytes.fromhex(request))
        client.setblocking(False)
        poller.register(client, select.EPOLLIN)
    by_fd = {client.fileno(): client for client in clients}
    while missing:
        for fd, _ in poller.poll():
            received = by_fd[fd].recv_into(_BUFFER)
            missing[fd] -= received
            if missing[fd] <= 0:
                del missing[fd]
                poller.unregister(fd)
            elif not received:
                raise SystemExit("the server closed too early")
    print(json.dumps(time.perf_counter() - begin), flush=True)


def _bare_tls(path: str, certificate: str, key: str, chunk: str) -> None:
    """Serve the bytes of a stream with `SSLSocket.sendall` alone, a client in each thread."""
    context = _server_context(certificate, key)
    file = os.open(path, os.O_RDONLY)
    end = int.from_bytes(os.pread(file, 8, 38), "big")  # total_length

    def send(client: socket.socket) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with context.wrap_socket(client, server_side=True) as secure:
            secure.recv(REQUEST_SIZE)
            offset = HEADER_PAGE_SIZE
            while offset < end:
                data = os.pread(file, min(int(chunk), end - offset), offset)
                secure.sendall(data)
                offset += len(data)
            secure.recv(1)  # the client's alert: unread, it would reset the connection

    def accept() -> None:
        while True:
            Thread(target=send, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        Thread(target=accept, daemon=True).start()
        sys.stdin.read()


def _receive_tls(port: str, count: str, request: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    clients = []
    for _ in range(int(count)):
        client = socket.create_connection(("127.0.0.1", int(port)))
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        secure = context.wrap_bio(incoming, outgoing)
        while secure.version() is None or outgoing.pending:
            with suppress(ssl.SSLWantReadError):
                secure.do_handshake()
            client.sendall(outgoing.read())
            if secure.version() is None:
                incoming.write(client.recv(1 << 16))
        secure.write(bytes.fromhex(request))
        with suppress(ssl.SSLWantReadError):  # the server ends behind its last committed byte
            secure.unwrap()
        clients.append((client, outgoing.read()))
    poller = select.epoll()
    begin = time.perf_counter()
    for client, sent in clients:
        client.sendall(sent)
        client.setblocking(False)
        poller.register(client, select.EPOLLIN)
    by_fd = {client.fileno(): client for client, _ in clients}
    while by_fd:
        for fd, _ in poller.poll():
            if not by_fd[fd].recv_into(_BUFFER):
                poller.unregister(fd)
                del by_fd[fd]
    print(json.dumps(time.perf_counter() - begin), flush=True)


if __name__ == "__main__":
    _ROLES: dict[str, Callable[..., None]] = {
        "serve": serve,
        "bare": bare,
        "receive": _receive,
        "serve_tls": serve_tls,
        "bare_tls": _bare_tls,
        "receive_tls": _receive_tls,
    }
    _ROLES[sys.argv[1]](*sys.argv[2:])
