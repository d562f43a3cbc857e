"""Strangers that repeat one wrong call: its cost to a node, and the lines in its log.

    python -m tests.floods             each kind for 5 s, 1,000 a second: log lines and processor time
    python -m tests.floods NAME ...    some of them

They write HTTP/2 bytes, as `tests.attacks` does, from several addresses: one alone may not make so many
calls.
"""

from __future__ import annotations

import json
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import click

from sluice.gateway.addresses import parse_address
from sluice.gateway.api import block_items_pb2, node_pb2, publish_pb2, subscribe_pb2
from sluice.gateway.blocks.block_numbers import U64_MAX
from sluice.gateway.transport.frames import Flag, FrameKind, frame
from sluice.gateway.transport.header_blocks import header_frames
from sluice.publishers.demo.node_process import NodeProcess
from tests.attacks import HELLO, PUBLISH, request
from tests.nodes import ledger_key, make_blocks

__all__ = ["FLOODS", "flood", "lines_of"]

ADDRESSES: Final = tuple(f"127.0.0.{number}" for number in range(2, 18))
API: Final = "/org.hiero.block.api"
SUBSCRIBE: Final = f"{API}.BlockStreamSubscribeService/subscribeBlockStream"
RESET: Final = b"\0\0\0\x08"
_Request = publish_pb2.PublishStreamRequest


def _message(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


def _call(path: str, message: bytes, *, is_reset: bool = False) -> Callable[[int], bytes]:
    """Return a call with one message, which leaves a publisher's stream open."""
    head, body = request(path), _message(message)

    def frames(stream_id: int) -> bytes:
        flags = 0 if path == PUBLISH else Flag.END_STREAM
        sent = header_frames(stream_id, head, ends_stream=False) + frame(
            FrameKind.DATA, flags, stream_id, body
        )
        return sent + frame(FrameKind.RST_STREAM, 0, stream_id, RESET) if is_reset else sent

    return frames


def _publish(message: publish_pb2.PublishStreamRequest) -> Callable[[int], bytes]:
    return _call(PUBLISH, message.SerializeToString())


def _bad_block() -> publish_pb2.PublishStreamRequest:
    """Return the first block of another chain, whose proof is wrong."""
    items = make_blocks(1)[0].items
    wrong = [*items[:-1], items[-1][:-1] + bytes((items[-1][-1] ^ 1,))]
    return _Request(block_items=block_items_pb2.BlockItemSet(block_items=wrong))


LIVE: Final = subscribe_pb2.SubscribeStreamRequest(start_block_number=U64_MAX, end_block_number=U64_MAX)
EARLY: Final = subscribe_pb2.SubscribeStreamRequest(start_block_number=5, end_block_number=2)
AHEAD: Final = _Request.EndStream(
    end_code=_Request.EndStream.TOO_FAR_BEHIND, earliest_block_number=5_000, latest_block_number=4_999
)
FLOODS: Final[dict[str, Callable[[int], bytes]]] = {
    "publishers that come and go": _call(PUBLISH, b"", is_reset=True),
    "requests that break the form": _call(PUBLISH, b"\xff\xff\xff"),
    "EndStream that breaks the protocol": _publish(_Request(end_stream=_Request.EndStream(end_code=99))),  # type: ignore[arg-type]
    "publishers that end with ERROR": _publish(_Request(end_stream=_Request.EndStream(end_code=3))),  # type: ignore[arg-type]
    "publishers far ahead": _publish(_Request(end_stream=AHEAD)),
    "blocks with a bad proof": _publish(_bad_block()),
    "subscribers that come and go": _call(SUBSCRIBE, LIVE.SerializeToString(), is_reset=True),
    "subscribers that ask nonsense": _call(SUBSCRIBE, EARLY.SerializeToString()),
    "watchers of levels": _call("/sluice.standby.NodeLevel/watch", b""),
    "messages that are too long": lambda stream_id: (
        header_frames(stream_id, request(PUBLISH), ends_stream=False)
        + frame(FrameKind.DATA, 0, stream_id, b"\0\xff\xff\xff\xff")
    ),
    "blocks that are not there": _call(
        f"{API}.BlockAccessService/getBlock", node_pb2.BlockRequest(block_number=9).SerializeToString()
    ),
    "another protocol": lambda _: b"",
}
"""The frames of each call, by stream number."""


class _Stranger:
    """One connection at a time, from one address."""

    def __init__(self, address: tuple[str, int], source: str) -> None:
        self._address, self._source = address, source
        self._socket: socket.socket | None = None
        self._stream_id = 1

    def call(self, frames: Callable[[int], bytes]) -> None:
        """Make one call; connect first if necessary."""
        try:
            if self._socket is None or self._stream_id > 20_000:
                self.close()
                self._socket = socket.create_connection(self._address, 5, (self._source, 0))
                self._socket.sendall(HELLO)
                self._stream_id = 1
            data = frames(self._stream_id)
            self._socket.settimeout(1)
            self._socket.sendall(data or b"GET / HTTP/1.1\r\n\r\n")
            self._stream_id += 2
            self._socket.settimeout(0)
            if not data:
                self.close()
            with suppress(BlockingIOError):
                while self._socket is not None:
                    if not self._socket.recv(1 << 16):
                        self.close()
        except OSError:
            self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def flood(address: str, name: str, count: int, per_second: float = 1_000) -> None:
    """Repeat a wrong call `count` times, from several addresses in turn."""
    where = parse_address(address)
    strangers = [_Stranger((where.host, where.port), source) for source in ADDRESSES]
    began = time.monotonic()
    for number in range(count):
        strangers[number % len(strangers)].call(FLOODS[name])
        time.sleep(max(0.0, began + (number + 1) / per_second - time.monotonic()))
    for stranger in strangers:
        stranger.close()


def lines_of(log: Path) -> Counter[str]:
    """Return the lines of a node's log, by message; lines of others count as themselves."""
    found: Counter[str] = Counter()
    for line in log.read_text("utf-8").splitlines():
        try:
            found[str(json.loads(line)["message"])] += 1
        except ValueError:
            found[line] += 1
    return found


def _measure(seconds: float = 5.0) -> None:
    for name in sys.argv[1:] or FLOODS:
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder, "log")
            with NodeProcess(Path(folder, "data"), log, ["--ledger-key", ledger_key()]) as node:
                before, lines = node.metrics()["process_cpu_seconds_total"], lines_of(log).total()
                began = time.monotonic()
                flood(node.grpc, name, int(1_000 * seconds))
                took = time.monotonic() - began
                time.sleep(0.5)
                cpu = node.metrics()["process_cpu_seconds_total"] - before
                written = lines_of(log).total() - lines
                size = log.stat().st_size
            click.echo(
                f"{name:36} {1_000 * seconds / took:6.0f} calls/s  {written / took:7.1f} lines/s  "
                f"{size / took / 1e3:7.1f} kB/s  {cpu / took:5.2f} cores"
            )


if __name__ == "__main__":
    _measure()
