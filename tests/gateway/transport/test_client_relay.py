"""Tests of `gateway.transport.client_relay`: what a server that wants indexed headers gets."""

from __future__ import annotations

import h2.events
import h2.settings

from gateway.transport.client_relay import ClientRelay
from tests.gateway.transport.lines import (
    ANSWER,
    REQUEST,
    TE,
    Line,
)


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
