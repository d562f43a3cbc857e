"""Tests of `gateway.transport.server_relay`: what calls get, and when large messages come."""

from __future__ import annotations

import h2.events
import h2.settings
import hpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.transport.frames import (
    CLIENT_PREFACE,
    ConnectionBreach,
    Flag,
    FrameKind,
    frame,
    go_away,
    window_update,
)
from gateway.transport.header_blocks import header_frames
from gateway.transport.server_relay import STREAMS_MAX, RefusedMessage, ServerRelay
from tests.gateway.transport.lines import (
    ANSWER,
    REQUEST,
    TE,
    WINDOW,
    WIRE_WINDOW,
    Gate,
    Line,
    Wire,
    frames_in,
    message_of,
)

LARGE = 15 * WINDOW
"""More than the window of a connection."""


@pytest.mark.parametrize("further", [(), (TE,)])
def test_a_request_without_te_gets_it(further: tuple[tuple[str, str], ...]) -> None:
    line = Line(ServerRelay())
    for _ in range(3):  # the second block refers to the table of the first
        line.begin(*further)
    for event in line.seen(h2.events.RequestReceived):
        assert list(event.headers) == [(n.encode(), v.encode()) for n, v in (*REQUEST, TE)]


def test_a_client_that_needs_no_mending_is_handed_on_byte_for_byte() -> None:
    relay = ServerRelay()
    encoder = hpack.Encoder()
    block = encoder.encode([*REQUEST, TE])
    wire = (
        CLIENT_PREFACE
        + frame(FrameKind.SETTINGS, 0, 0)
        + header_frames(1, block, ends_stream=False)
        + frame(FrameKind.DATA, 0, 1, b"\0\0\0\0\3abc")
        + window_update(1, 5)
        + window_update(0, 5)
        + frame(FrameKind.PRIORITY, 0, 1, b"\0\0\0\0\1")
        + frame(99, 7, 1, b"unknown")
        + frame(FrameKind.DATA, Flag.END_STREAM, 1)
    )
    relay.from_outside(memoryview(wire))
    assert b"".join(relay.to_grpc) == wire
    assert relay.to_outside == []
    answer = frame(FrameKind.SETTINGS, 0, 0) + window_update(1, 9) + frame(FrameKind.PING, 0, 0, b"12345678")
    relay.from_grpc(memoryview(answer))
    assert b"".join(relay.to_outside) == answer


def test_trailers_of_a_client_pass_and_behind_data_that_waits_they_end_the_connection() -> None:
    line = Line(ServerRelay())
    stream_id = line.begin()
    line.client.send_headers(stream_id, [("x", "y")], end_stream=True)
    line.move()
    assert line.seen(h2.events.TrailersReceived)
    line.reads = False
    stream_id = line.begin()
    line.send(stream_id, b"x" * 2 * WINDOW)
    line.client.send_headers(stream_id, [("x", "y")], end_stream=True)
    with pytest.raises(ConnectionBreach, match="trailers behind data that waits"):
        line.move()


@pytest.mark.parametrize(
    ("message", "refused"),
    [
        (
            "SERVER: Received message larger than max (9000001 vs. 8388608)",
            [RefusedMessage(9_000_001, 8_388_608)],
        ),
        ("something else", []),
    ],
)
def test_a_message_that_grpc_refuses_for_its_size_is_seen(
    message: str, refused: list[RefusedMessage]
) -> None:
    relay = ServerRelay()
    line = Line(relay)
    stream_id = line.begin(TE)
    line.server.send_headers(stream_id, ANSWER)
    line.server.send_headers(stream_id, [("grpc-status", "8"), ("grpc-message", message)], end_stream=True)
    line.move()
    assert relay.refused == refused


@pytest.mark.parametrize("further", [(), (TE,)])
def test_a_large_message_waits_until_the_gate_grants_it(further: tuple[tuple[str, str], ...]) -> None:
    gate = Gate()
    relay = ServerRelay(gate)
    line = Line(relay, counts_twice=not further)
    line.reads = False
    stream_id = line.begin(*further)
    small, large = message_of(1_000), message_of(LARGE)
    rest = (small + large)[line.send(stream_id, small + large) :]
    assert gate.asked == []  # gRPC has not asked for more yet
    line.read(line.server, stream_id)  # now it does
    line.move()
    assert gate.asked == [(stream_id, LARGE)]
    assert len(line.received[stream_id]) == WINDOW
    rest = rest[line.send(stream_id, rest) :]
    assert len(line.received[stream_id]) == WINDOW  # held
    relay.grant(stream_id)
    line.hand_on()
    line.reads = True
    line.read(line.server, stream_id)
    line.move()
    line.send(stream_id, rest, ends=True)
    assert bytes(line.received[stream_id]) == small + large
    assert gate.whole == [stream_id]
    assert gate.asked == [(stream_id, LARGE)]


@pytest.mark.parametrize("by_client", [True, False])
def test_a_message_that_does_not_come_whole_is_given_up(by_client: bool) -> None:
    gate = Gate()
    line = Line(ServerRelay(gate))
    stream_id = line.begin(TE)
    line.send(stream_id, message_of(3 * WINDOW)[: WINDOW // 2])
    assert gate.asked
    (line.client if by_client else line.server).reset_stream(stream_id)
    line.move()
    assert gate.done_with == [stream_id]
    stream_id = line.begin(TE)
    line.send(stream_id, message_of(3 * WINDOW)[: WINDOW // 2])
    line.relay.close()
    assert gate.done_with[1:] == [stream_id]
    assert gate.whole == []


@given(
    sizes=st.lists(st.sampled_from([0, 1, 5, 999, 1_000, 1_001, 5_000, 40_000]), max_size=12),
    cut=st.integers(1, 40_000),
)
@settings(deadline=None, max_examples=25)
def test_messages_are_followed_however_they_are_cut(sizes: list[int], cut: int) -> None:
    gate = Gate()
    gate.is_open = True
    line = Line(ServerRelay(gate))
    stream_id = line.begin(TE)
    data = b"".join(map(message_of, sizes))
    for at in range(0, len(data), cut):
        line.send(stream_id, data[at : at + cut])
    assert bytes(line.received.get(stream_id, b"")) == data
    large = [size for size in sizes if size > gate.small_bytes]
    assert {size for _, size in gate.asked} <= set(large)
    assert len(gate.whole) == len(gate.asked)


def test_data_of_a_held_message_is_not_put_into_the_data_of_another_stream() -> None:
    wire = Wire(ServerRelay(Gate()))
    wire.outside(wire.request(1) + wire.request(3, TE))
    message = b"\0" + (WIRE_WINDOW + 100).to_bytes(4, "big") + b"m" * (WIRE_WINDOW + 100)
    wire.outside(frame(FrameKind.DATA, 0, 1, message[:WIRE_WINDOW]))
    wire.outside(frame(FrameKind.DATA, 0, 1, message[WIRE_WINDOW:-1]))
    wire.grpc(window_update(1, WIRE_WINDOW))  # gRPC reads, and the gate says no
    wire.sent_to_grpc.clear()
    other = frame(FrameKind.DATA, 0, 3, b"A" * 20)
    wire.outside(other[:-5])
    wire.outside(other[-5:] + frame(FrameKind.DATA, 0, 1, message[-1:]))  # the message is over
    assert frames_in(wire.sent_to_grpc) == [
        (FrameKind.DATA, 3, b"A" * 20),
        (FrameKind.DATA, 1, message[WIRE_WINDOW:-1]),
        (FrameKind.DATA, 1, message[-1:]),
    ]


def test_streams_that_grpc_ignores_are_not_remembered_without_end() -> None:
    wire = Wire(ServerRelay())
    with pytest.raises(ConnectionBreach):
        wire.outside(wire.request(2, TE))  # a client's streams have odd numbers
    wire = Wire(ServerRelay())
    wire.outside(b"".join(wire.request(2 * at + 1, TE) for at in range(STREAMS_MAX)))
    with pytest.raises(ConnectionBreach, match=f"{STREAMS_MAX} are open"):
        wire.outside(wire.request(2 * STREAMS_MAX + 1, TE))


def test_no_frame_of_ours_comes_between_the_frames_of_an_answers_headers() -> None:
    wire = Wire(ServerRelay())
    wire.outside(wire.request(1, TE))
    answer = hpack.Encoder().encode([(b":status", b"200"), (b"x", b"y" * 100)])
    block = header_frames(1, answer, ends_stream=False, frame_bytes_max=len(answer) - 1)
    wire.grpc(block[:-10])
    wire.sent_outside.clear()
    wire.outside(wire.request(3))  # its window is granted at once
    wire.grpc(block[-10:])
    kinds = [kind for kind, _, _ in frames_in(wire.sent_outside)]
    assert kinds == [FrameKind.WINDOW_UPDATE, FrameKind.HEADERS]


def test_the_words_of_a_client_that_goes_away_do_not_reach_grpcs_log() -> None:
    wire = Wire(ServerRelay())
    wire.sent_to_grpc.clear()
    wire.outside(go_away(7, "\n{a line of the log, forged}\n"))
    assert frames_in(wire.sent_to_grpc) == [(FrameKind.GOAWAY, 0, bytes(8))]
