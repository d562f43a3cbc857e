"""A real S3 server in this process, and a proxy before it that does harm, or knows less of S3.

node ── FaultProxy ── ThreadedMotoServer (moto)
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import ssl
import threading
import urllib.request
from collections.abc import Iterator
from typing import Final

from moto.server import ThreadedMotoServer

from sluice.gateway.archive.objects import ArchiveStore, StoreOptions, open_store

__all__ = ["BUCKET", "FaultProxy", "as_s3_user", "s3_server", "s3_store"]

BUCKET: Final = "chain"
_CREDENTIALS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "eu-west-1"}
_PIECE = 1 << 16
_WITHOUT = {"overwrites": rb"(?i)\r\nif-none-match: [^\r]*", "from_start": rb"&start-after=[^& ]*"}


@contextlib.contextmanager
def as_s3_user() -> Iterator[None]:
    """Have credentials in the environment, as an operator gives them."""
    before = {name: os.environ.get(name) for name in _CREDENTIALS}
    os.environ.update(_CREDENTIALS)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def s3_server() -> Iterator[int]:
    """Serve an empty bucket on loopback; give its port."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        request = urllib.request.Request(f"http://127.0.0.1:{port}/moto-api/reset", method="POST")
        urllib.request.urlopen(request).close()
        request = urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")
        urllib.request.urlopen(request).close()
        yield port
    finally:
        server.stop()


def s3_store(port: int, prefix: str = "prefix", retry_seconds: float = 0.3) -> ArchiveStore:
    """Return a store in the bucket, by way of a port."""
    options = StoreOptions(f"http://127.0.0.1:{port}", "eu-west-1", 5.0, retry_seconds)
    return open_store(f"s3://{BUCKET}/{prefix}", options)


class FaultProxy:
    """Passes requests of one connection at a time on to a server, and does what `fault` says to each.

    A context manager; `port` is where it listens.
    """

    def __init__(self, target_port: int, tls: ssl.SSLContext | None = None) -> None:
        self._target_port = target_port
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.fault: str | None = None
        """`503`, `403`: that is the answer. `cut`: the answer ends in its midst. `wrong`: it has other bytes.
        `more`: it goes on for two MiB behind what its range says. `slow`: it takes two seconds. `refused`:
        the connection ends at once. `lost`: it ends after the server has done it. As stores that know less of
        S3: `overwrites`: it does not know conditions; `from_start`: it lists all names; `no_suffix`: it knows
        no range from the end. None: nothing."""
        self.only = b""
        """Only requests whose head has this have the fault."""
        self.faults_count = 0
        self.requests: list[str] = []
        """First lines."""
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """Serve one request: an answer says that the connection ends with it."""
        with client, contextlib.suppress(OSError, ValueError):
            if self._tls is not None:
                client = self._tls.wrap_socket(client, server_side=True)
            head, body = _message(client)
            self.requests.append(head.partition(b"\r\n")[0].decode())
            fault = self.fault if self.only in head else None
            self.faults_count += fault is not None
            if fault == "refused":
                return
            if fault in ("503", "403"):
                code = {"503": "SlowDown", "403": "ExpiredToken"}[fault]
                text = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
                client.sendall(_answer_head(fault, len(text)) + text)
                return
            if fault == "no_suffix" and b"bytes=-" in head:
                client.sendall(_answer_head("416", 0))
                return
            if fault == "slow":
                threading.Event().wait(2)
            if fault in _WITHOUT:
                head = re.sub(_WITHOUT[fault], b"", head)
            with socket.create_connection(("127.0.0.1", self._target_port)) as server:
                server.sendall(_closing(head) + body)
                head, body = _message(server, is_answer=True, has_body=not head.startswith(b"HEAD"))
            if fault == "lost":
                return
            if fault == "more":
                body += bytes(2 << 20)
                head = re.sub(rb"(?i)(content-length: )\d+", rb"\g<1>%d" % len(body), head)
            if fault == "wrong" and body:
                body = bytes(body[:-1]) + bytes([body[-1] ^ 1])
            client.sendall(_closing(head) + (body[: len(body) // 2] if fault == "cut" else body))


def _answer_head(status: str, size: int) -> bytes:
    return f"HTTP/1.1 {status} No\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n".encode()


def _closing(head: bytes) -> bytes:
    """Return a head that ends the connection with this message."""
    first, *lines = head.rstrip(b"\r\n").split(b"\r\n")
    kept = [line for line in lines if not line.lower().startswith(b"connection:")]
    return b"\r\n".join([first, *kept, b"Connection: close", b"", b""])


def _message(peer: socket.socket, *, is_answer: bool = False, has_body: bool = True) -> tuple[bytes, bytes]:
    """Read an HTTP message: head and body."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = peer.recv(_PIECE)
        if not piece:
            raise ValueError(f"{len(data)} bytes and no head")
        data += piece
    head, _, rest = data.partition(b"\r\n\r\n")
    body = bytearray(rest)
    size = None
    for line in head.lower().split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name == b"content-length":
            size = int(value)
        if name == b"expect":
            peer.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    if not has_body:
        return head + b"\r\n\r\n", b""
    if size is None and not is_answer:
        size = 0
    while size is None or len(body) < size:
        piece = peer.recv(_PIECE)
        if not piece:
            break
        body += piece
    return head + b"\r\n\r\n", bytes(body)
