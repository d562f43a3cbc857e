"""Tests of `gateway.transport.relay`, between two ends that keep to the rules and complain: those of `h2`."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable

import h2.events
import h2.settings
import hpack
import pytest

from gateway.transport.frames import (
    CLIENT_PREFACE,
    ConnectionBreach,
    FrameKind,
    frame,
    window_update,
)
from gateway.transport.header_blocks import header_frames
from gateway.transport.server_relay import ServerRelay
from tests.gateway.transport.lines import (
    ANSWER,
    REQUEST,
    TE,
    WINDOW,
    WIRE_WINDOW,
    Line,
    Wire,
    frames_in,
)


class SmallServerRelay(ServerRelay):
    """A relay whose large windows are used up soon."""

    large_window = 1 << 20


@pytest.mark.parametrize("counts_twice", [False, True])
@pytest.mark.parametrize("chunk", [1 << 20, 1_000, 7])
def test_a_mended_stream_carries_far_more_than_its_window(counts_twice: bool, chunk: int) -> None:
    """The windows of h2's server are obeyed, else it ends the connection; the client never waits for ever."""
    line = Line(SmallServerRelay(), counts_twice=counts_twice)
    line.chunk = chunk
    stream_id = line.begin()
    data = bytes(range(256)) * (100 if chunk == 7 else 20_000)
    sent = 0
    while sent < len(data):
        took = line.send(stream_id, data[sent:], ends=True)
        sent += took
        line.relay.tick()
        line.relay.tick()
        line.hand_on()
        line.move()
    assert bytes(line.received[stream_id]) == data
    assert line.seen(h2.events.StreamEnded)


def test_what_grpc_does_not_read_waits_and_is_bounded_by_the_connection() -> None:
    line = Line(ServerRelay(), counts_twice=True)
    line.reads = False
    stream_id = line.begin()
    sent = line.send(stream_id, b"x" * 50 * WINDOW)
    assert sent == 65_535 + 10 * WINDOW  # the window of the connection
    assert len(line.received[stream_id]) == WINDOW  # that of the stream
    line.reads = True
    line.read(line.server, stream_id)
    line.move()
    assert len(line.received[stream_id]) == sent


def test_who_overruns_the_window_of_the_connection_is_ended() -> None:
    relay = ServerRelay()
    relay.from_outside(
        memoryview(CLIENT_PREFACE + header_frames(1, hpack.Encoder().encode(REQUEST), ends_stream=False))
    )
    for size in (*(16_384,) * 3, 16_383):
        relay.from_outside(memoryview(frame(FrameKind.DATA, 0, 1, b"x" * size)))
    with pytest.raises(ConnectionBreach, match="got 1 bytes beyond the window of the connection"):
        relay.from_outside(memoryview(frame(FrameKind.DATA, 0, 1, b"x")))


@pytest.mark.parametrize("by_client", [True, False])
def test_what_waits_on_a_stream_that_is_reset_goes_back_to_the_connections_window(by_client: bool) -> None:
    line = Line(ServerRelay(), counts_twice=True)
    line.reads = False
    stream_id = line.begin()
    sent = line.send(stream_id, b"x" * 2 * WINDOW)
    left = line.client.outbound_flow_control_window
    (line.client if by_client else line.server).reset_stream(stream_id)
    line.move()
    line.hand_on()
    assert line.client.outbound_flow_control_window == left + sent - WINDOW
    assert line.relay.open_streams == 0


def test_padding_of_a_mended_stream_is_not_handed_on_and_not_lost() -> None:
    line = Line(ServerRelay())
    stream_id = line.begin()
    left = line.client.outbound_flow_control_window
    line.client.send_data(stream_id, b"abc", pad_length=200)
    line.move()
    assert bytes(line.received[stream_id]) == b"abc"
    assert line.client.outbound_flow_control_window in (left - 3, left)


def test_a_window_that_changes_in_mid_connection_is_obeyed_from_its_acknowledgement_on() -> None:
    line = Line(ServerRelay(), counts_twice=True)
    line.reads = False
    stream_id = line.begin()
    line.send(stream_id, b"x" * 2 * WINDOW)
    line.server.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: WINDOW + 50_000})
    line.move()
    assert len(line.received[stream_id]) == WINDOW + 50_000
    line.server.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1_000})
    line.move()
    line.reads = True
    for _ in range(20):
        line.read(line.server, stream_id)
        line.move()
    line.send(stream_id, b"y" * 1_000)
    assert line.received[stream_id].endswith(b"y")


def test_a_call_is_over_when_both_sides_have_ended_it() -> None:
    line = Line(ServerRelay())
    for first in (line.client, line.server):
        stream_id = line.begin(TE)
        line.server.send_headers(stream_id, ANSWER)
        for end in (first, line.server if first is line.client else line.client):
            assert line.relay.open_streams == 1
            end.end_stream(stream_id)
            line.move()
        assert line.relay.open_streams == 0
    assert line.relay.streams_begun == 2


def test_frames_without_data_cost_and_a_reset_costs_more() -> None:
    line = Line(ServerRelay())
    line.relay.cost = line.relay.data_bytes = 0
    line.client.ping(b"12345678")
    line.move()
    assert line.relay.cost == 17 + 64
    stream_id = line.begin(TE)
    before = line.relay.cost
    line.client.reset_stream(stream_id)
    line.move()
    assert line.relay.cost == before + 13 + 1_000
    before = line.relay.cost
    line.relay.from_outside(memoryview(frame(FrameKind.DATA, 0, stream_id) * 10))
    assert line.relay.cost == before + 90


def test_a_goodbye_is_said_in_http_2_even_to_who_does_not_speak_it() -> None:
    relay = ServerRelay()
    with pytest.raises(ConnectionBreach) as caught:
        relay.from_outside(memoryview(b"GET / HTTP/1.1\r\n\r\n"))
    relay.end(caught.value)
    said = b"".join(relay.to_outside)
    assert said.startswith(frame(FrameKind.SETTINGS, 0, 0))
    assert b"expected the preface of an HTTP/2 client" in said


def feed(relay: ServerRelay, *frames: bytes) -> None:
    """Feed frames behind the preface."""
    relay.from_outside(memoryview(CLIENT_PREFACE + b"".join(frames)))


def breaches() -> Iterable[tuple[str, bytes]]:
    """What breaks the rules, and what is said of it."""
    yield "CONTINUATION without HEADERS", frame(FrameKind.CONTINUATION, 0, 1, b"")
    yield (
        "a frame of type 6 on stream 0",
        frame(FrameKind.HEADERS, 0, 1, b"") + frame(FrameKind.PING, 0, 0, b"12345678"),
    )
    yield (
        "a frame of type 0 on stream 1",
        frame(FrameKind.HEADERS, 0, 1, b"") + frame(FrameKind.DATA, 0, 1, b"x"),
    )
    yield "got 3 bytes, expected a multiple of 6", frame(FrameKind.SETTINGS, 0, 0, b"abc")


@pytest.mark.parametrize(("words", "frames"), list(breaches()))
def test_what_breaks_the_rules_ends_the_connection(words: str, frames: bytes) -> None:
    with pytest.raises(ConnectionBreach, match=words):
        feed(ServerRelay(), frames)


def test_what_a_reset_stream_gives_back_is_not_put_into_the_data_of_another() -> None:
    wire = Wire(ServerRelay())
    wire.outside(wire.request(1) + wire.request(3))
    wire.outside(frame(FrameKind.DATA, 0, 1, b"x" * WIRE_WINDOW))
    wire.outside(frame(FrameKind.DATA, 0, 1, b"y"))  # it waits
    wire.sent_outside.clear()
    answer = frame(FrameKind.DATA, 0, 3, b"A" * 20)
    wire.grpc(answer[:-5])
    wire.grpc(answer[-5:] + frame(FrameKind.RST_STREAM, 0, 1, b"\0\0\0\0"))
    assert [(kind, stream_id) for kind, stream_id, _ in frames_in(wire.sent_outside)] == [
        (FrameKind.DATA, 3),
        (FrameKind.WINDOW_UPDATE, 0),
        (FrameKind.RST_STREAM, 1),
    ]


def test_data_that_waits_takes_no_more_memory_in_small_pieces() -> None:
    wire = Wire(ServerRelay())
    wire.outside(wire.request(1) + frame(FrameKind.DATA, 0, 1, b"x" * WIRE_WINDOW))
    small = frame(FrameKind.DATA, 0, 1, b"y") * 20_000
    tracemalloc.start()
    wire.outside(small)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 100_000
    wire.grpc(window_update(1, 1 << 20))
    sent = frames_in(wire.sent_to_grpc[len(CLIENT_PREFACE) :])
    assert (
        b"".join(payload for kind, _, payload in sent if kind == FrameKind.DATA)[WIRE_WINDOW:]
        == b"y" * 20_000
    )
