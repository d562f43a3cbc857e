"""Shared by the relays' tests: two ends with a relay between them, or a relay alone."""

from __future__ import annotations

from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
import hpack

from sluice.gateway.transport.frames import CLIENT_PREFACE, HEAD_BYTES, Flag, FrameKind, frame, window_update
from sluice.gateway.transport.header_blocks import header_frames
from sluice.gateway.transport.relay import ClientRelay, FrameRelay, ServerRelay

REQUEST = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/org.hiero.block.api.BlockNodeService/serverStatus"),
    (":authority", "127.0.0.1:40840"),
    ("content-type", "application/grpc"),
]
TE = ("te", "trailers")
ANSWER = [(":status", "200"), ("content-type", "application/grpc")]
WINDOW = 200_000
"""The server's window for each stream of a `Line`."""
WIRE_WINDOW = 1_000
"""gRPC's window for each stream of a `Wire`."""


class Line:
    """Two ends and the relay between them: a client outside and gRPC's server, or the other way round."""

    def __init__(self, relay: ServerRelay | ClientRelay, *, counts_twice: bool = False) -> None:
        self.relay = relay
        self.counts_twice = counts_twice
        self.client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self.server = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        self.client.initiate_connection()
        self.server.initiate_connection()
        self.server.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: WINDOW})
        self.server.increment_flow_control_window(10 * WINDOW)
        self.received: dict[int, bytearray] = {}
        self.unread: dict[int, int] = {}
        self.reads = True
        self.events: list[Any] = []
        self.answers: list[Any] = []
        self.chunk = 1 << 20
        self.move()

    def move(self) -> None:
        """Carry bytes to and fro until neither end has any."""
        is_server_side = isinstance(self.relay, ServerRelay)
        while True:
            up, down = self.client.data_to_send(), self.server.data_to_send()
            if not (up or down):
                return
            from_client, from_server = (
                (self.relay.from_outside, self.relay.from_grpc)
                if is_server_side
                else (self.relay.from_grpc, self.relay.from_outside)
            )
            for data, feed in ((up, from_client), (down, from_server)):
                for at in range(0, len(data), self.chunk):
                    buffer = bytearray(data[at : at + self.chunk])
                    feed(memoryview(buffer))
                    self.hand_on()

    def hand_on(self) -> None:
        """Carry the relay's bytes to both ends."""
        to_client, to_server = self.relay.to_outside, self.relay.to_grpc
        if isinstance(self.relay, ClientRelay):
            to_client, to_server = to_server, to_client
        self._hear(self.server, self._flushed(to_server))
        self._hear(self.client, self._flushed(to_client))

    @staticmethod
    def _flushed(pieces: list[Any]) -> bytes:
        data = b"".join(pieces)
        pieces.clear()
        return data

    def _hear(self, end: h2.connection.H2Connection, data: bytes) -> None:
        for event in end.receive_data(data) if data else ():
            (self.events if end is self.server else self.answers).append(event)
            if isinstance(event, h2.events.DataReceived):
                self.received.setdefault(event.stream_id, bytearray()).extend(event.data)
                self.unread[event.stream_id] = (
                    self.unread.get(event.stream_id, 0) + event.flow_controlled_length
                )
                if self.reads:
                    self.read(end, event.stream_id)
            elif (
                isinstance(event, h2.events.WindowUpdated)
                and end is self.client
                and event.stream_id
                and self.counts_twice
                and event.stream_id in end.streams
            ):
                end.streams[event.stream_id].outbound_flow_control_window += event.delta

    def read(self, end: h2.connection.H2Connection, stream_id: int) -> None:
        """Read a stream, which opens its windows again."""
        size, self.unread[stream_id] = self.unread[stream_id], 0
        if size:
            try:
                end.acknowledge_received_data(size, stream_id)
            except h2.exceptions.StreamClosedError:
                return

    def begin(self, *further: tuple[str, str]) -> int:
        stream_id = self.client.get_next_available_stream_id()
        self.client.send_headers(stream_id, [*REQUEST, *further])
        self.move()
        return stream_id

    def send(self, stream_id: int, data: bytes, *, ends: bool = False) -> int:
        """Send data within the client's windows; return the number of bytes."""
        sent = 0
        while sent < len(data):
            size = min(self.client.local_flow_control_window(stream_id), 16_384, len(data) - sent)
            if size <= 0:
                break
            self.client.send_data(stream_id, data[sent : sent + size])
            sent += size
            self.move()
        if ends and sent == len(data):
            self.client.end_stream(stream_id)
            self.move()
        return sent

    def seen(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


class Wire:
    """A relay, and all that it has sent to either side."""

    def __init__(self, relay: ServerRelay) -> None:
        self.relay = relay
        self.sent_to_grpc = bytearray()
        self.sent_outside = bytearray()
        self._encoder = hpack.Encoder()
        self.outside(CLIENT_PREFACE + frame(FrameKind.SETTINGS, 0, 0))
        first_window = b"\0\4" + WIRE_WINDOW.to_bytes(4, "big")
        self.grpc(frame(FrameKind.SETTINGS, 0, 0, first_window) + window_update(0, 1 << 24))
        self.outside(frame(FrameKind.SETTINGS, Flag.ACK, 0))

    def outside(self, data: bytes) -> None:
        self.relay.from_outside(memoryview(bytearray(data)))
        self._collect(self.relay)

    def grpc(self, data: bytes) -> None:
        self.relay.from_grpc(memoryview(bytearray(data)))
        self._collect(self.relay)

    def _collect(self, relay: FrameRelay) -> None:
        self.sent_to_grpc += b"".join(relay.to_grpc)
        self.sent_outside += b"".join(relay.to_outside)
        relay.to_grpc.clear()
        relay.to_outside.clear()

    def request(self, stream_id: int, *further: tuple[str, str]) -> bytes:
        fields = [(":method", "POST"), (":path", "/a"), *further]
        return header_frames(stream_id, self._encoder.encode(fields), ends_stream=False)


def frames_in(data: bytes | bytearray) -> list[tuple[int, int, bytes]]:
    """Return the frames of one direction: type, stream, payload."""
    found, at = [], 0
    while at < len(data):
        after = at + HEAD_BYTES + int.from_bytes(data[at : at + 3], "big")
        assert after <= len(data)
        stream_id = int.from_bytes(data[at + 5 : at + HEAD_BYTES], "big")
        found.append((data[at + 3], stream_id, bytes(data[at + HEAD_BYTES : after])))
        at = after
    return found


class Gate:
    """Lets messages in when told to."""

    small_bytes = 1_000

    def __init__(self) -> None:
        self.is_open = False
        self.asked: list[tuple[int, int]] = []
        self.done_with: list[int] = []
        self.whole: list[int] = []
        self.publishers: list[int] = []
        self.bytes_came = 0

    def ask(self, stream_id: int, size: int) -> bool:
        self.asked.append((stream_id, size))
        return self.is_open

    def progressed(self, stream_id: int, size: int) -> None:
        self.bytes_came += size

    def publishes(self, stream_id: int) -> None:
        self.publishers.append(stream_id)

    def came(self, stream_id: int) -> None:
        self.whole.append(stream_id)

    def done(self, stream_id: int) -> None:
        self.done_with.append(stream_id)


def message_of(size: int) -> bytes:
    """A gRPC message."""
    return b"\0" + size.to_bytes(4, "big") + b"m" * size
