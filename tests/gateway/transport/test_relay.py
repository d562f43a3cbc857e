"""Tests of `gateway.transport.relay` between two ends of `h2`, which complain about breaches."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable

import h2.events
import h2.settings
import hpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.gateway.transport.frames import (
    CLIENT_PREFACE,
    ConnectionBreach,
    Flag,
    FrameKind,
    frame,
    go_away,
    window_update,
)
from sluice.gateway.transport.header_blocks import header_frames
from sluice.gateway.transport.message_size import TooLong
from sluice.gateway.transport.relay import STREAMS_MAX, ClientRelay, ServerRelay
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
"""More than a connection's window."""


class SmallServerRelay(ServerRelay):
    """A relay with small large windows."""

    large_window = 1 << 20


@pytest.mark.parametrize("counts_twice", [False, True])
@pytest.mark.parametrize("chunk", [1 << 20, 1_000, 7])
def test_a_mended_stream_carries_far_more_than_its_window(counts_twice: bool, chunk: int) -> None:
    """The server's windows are obeyed, else h2 ends the connection; the client never waits for ever."""
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
    relay.from_outside(memoryview(CLIENT_PREFACE + b"".join(frames)))


def breaches() -> Iterable[tuple[str, bytes]]:
    """Breaches of the rules, and their names."""
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


# --- in front of a server ----


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
            [TooLong(9_000_001, 8_388_608)],
        ),
        ("something else", []),
    ],
)
def test_a_message_that_grpc_refuses_for_its_size_is_seen(message: str, refused: list[TooLong]) -> None:
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


# --- in front of a client ----


def test_a_client_relay_writes_headers_by_index_and_data_waits_with_its_trailers() -> None:
    line = Line(ClientRelay())
    stream_id = line.begin(TE)
    assert [list(event.headers) for event in line.seen(h2.events.RequestReceived)] == [
        [(n.encode(), v.encode()) for n, v in (*REQUEST, TE)]
    ]
    line.reads = False
    line.server.send_headers(stream_id, ANSWER)
    data = b"d" * 60_000 + b"e" * 60_000
    sent = 0
    while sent < len(data):  # the server has one large window, whatever the client's is
        size = min(16_384, len(data) - sent, line.server.local_flow_control_window(stream_id))
        if size <= 0:
            break
        line.server.send_data(stream_id, data[sent : sent + size])
        sent += size
        line.move()
    assert sent == 65_535  # the connection's
    assert len(line.received[stream_id]) == 65_535
    line.server.send_headers(stream_id, [("grpc-status", "0")], end_stream=True)
    line.move()
    assert isinstance(line.answers[-1], h2.events.StreamEnded)
    line.client.end_stream(stream_id)
    line.move()
    assert line.relay.open_streams == 0


def test_a_client_relay_holds_trailers_back_behind_data_that_waits() -> None:
    line = Line(ClientRelay())
    line.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1_000})
    line.move()
    line.reads = False
    stream_id = line.begin(TE)
    line.server.send_headers(stream_id, ANSWER)
    line.server.send_data(stream_id, b"d" * 5_000)
    line.server.send_headers(stream_id, [("grpc-status", "0")], end_stream=True)
    line.move()
    assert len(line.received[stream_id]) == 1_000
    other = line.begin(TE)  # its answer is not kept by what waits
    line.server.send_headers(other, ANSWER, end_stream=True)
    line.move()
    ended = [event.stream_id for event in line.answers if isinstance(event, h2.events.StreamEnded)]
    assert ended == [other]
    for _ in range(5):
        line.read(line.client, stream_id)
        line.move()
    assert len(line.received[stream_id]) == 5_000
    assert line.answers[-1].stream_id == stream_id
    assert isinstance(line.answers[-1], h2.events.StreamEnded)
