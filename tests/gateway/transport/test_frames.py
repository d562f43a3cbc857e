"""Tests of `gateway.transport.frames`: frames in pieces of any size, and what passes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.gateway.transport.frames import (
    CLIENT_PREFACE,
    FRAME_BYTES_DEFAULT,
    Buffer,
    ConnectionBreach,
    ErrorCode,
    Flag,
    FrameKind,
    FrameScanner,
    frame,
    go_away,
    settings_in,
    window_update,
)

FRAMES = [
    (FrameKind.SETTINGS, 0, 0, b"\0\4\0\0\1\0"),
    (FrameKind.DATA, 0, 1, b"x" * 40),
    (FrameKind.DATA, Flag.END_STREAM, 1, b""),
    (FrameKind.PING, 0, 0, b"12345678"),
    (FrameKind.DATA, Flag.PADDED, 3, b"\2ab\0\0"),
    (FrameKind.RST_STREAM, 0, 3, b"\0\0\0\x08"),
]
WIRE = b"".join(frame(*one) for one in FRAMES)


class Seen:
    """A scanner and its calls."""

    def __init__(self, *, preface: bytes = b"", padded_whole: bool = True) -> None:
        self.out: list[Buffer] = []
        self.data: list[tuple[int, int, int]] = []
        self.frames: list[tuple[int, int, int, bytes]] = []
        self.payload = bytearray()
        self.instead: dict[int, bytes] = {}
        self.padded_whole = padded_whole
        self.scanner = FrameScanner(
            self.out,
            on_data=self._on_data,
            on_payload=lambda piece: self.payload.extend(piece),
            on_frame=self._on_frame,
            preface=preface,
        )

    def _on_data(self, flags: int, stream_id: int, length: int) -> bool:
        self.data.append((flags, stream_id, length))
        return not (flags & Flag.PADDED and self.padded_whole)

    def _on_frame(self, kind: int, flags: int, stream_id: int, payload: memoryview) -> bytes | None:
        self.frames.append((kind, flags, stream_id, bytes(payload)))
        return self.instead.get(kind)

    def feed(self, *chunks: bytes) -> bytes:
        """Feed chunks in one reused buffer; return all output."""
        sent = bytearray()
        for chunk in chunks:
            buffer = bytearray(chunk)
            self.scanner.feed(memoryview(buffer))
            for piece in self.out:
                sent += piece
            self.out.clear()
            buffer[:] = b"\xff" * len(buffer)
        return bytes(sent)


@st.composite
def cuts(draw: st.DrawFn, wire: bytes) -> list[bytes]:
    """Bytes cut anywhere."""
    places = sorted(draw(st.sets(st.integers(1, len(wire) - 1), max_size=20)))
    return [wire[a:b] for a, b in zip([0, *places], [*places, len(wire)], strict=True)]


@given(cuts(CLIENT_PREFACE + WIRE))
def test_whatever_the_pieces_all_passes_and_each_frame_is_seen_once(chunks: list[bytes]) -> None:
    seen = Seen(preface=CLIENT_PREFACE)
    assert seen.feed(*chunks) == CLIENT_PREFACE + WIRE
    assert seen.data == [
        (flags, stream, len(data)) for kind, flags, stream, data in FRAMES if kind == FrameKind.DATA
    ]
    assert seen.frames == [one for one in FRAMES if one[0] != FrameKind.DATA or one[1] & Flag.PADDED]
    assert seen.payload == b"x" * 40
    assert not seen.scanner.awaits_preface


@given(cuts(WIRE))
def test_bytes_stand_in_the_place_of_a_frame(chunks: list[bytes]) -> None:
    seen = Seen()
    seen.instead = {
        FrameKind.PING: window_update(0, 7),
        FrameKind.RST_STREAM: b"",
        FrameKind.DATA: frame(FrameKind.DATA, 0, 3, b"ab"),
    }
    expected = [
        *FRAMES[:3],
        (FrameKind.WINDOW_UPDATE, 0, 0, b"\0\0\0\7"),
        (FrameKind.DATA, 0, 3, b"ab"),
    ]
    assert seen.feed(*chunks) == b"".join(frame(*one) for one in expected)


def test_a_frame_of_ours_waits_for_the_end_of_the_data_that_passes() -> None:
    """In the middle of a payload it would be taken for a part of it."""
    seen = Seen()
    data, ping = frame(FrameKind.DATA, 0, 1, b"abcdef"), frame(FrameKind.PING, 0, 0, b"12345678")
    sent = seen.feed(data[:12])
    seen.scanner.insert(window_update(0, 5))
    assert seen.out == []
    sent += seen.feed(data[12:] + ping)
    assert sent == data + window_update(0, 5) + ping
    seen.scanner.insert(window_update(0, 6))
    assert seen.out == [window_update(0, 6)]


@pytest.mark.parametrize("cut", [1, 3, 9, 12])
def test_a_frame_that_is_too_long_is_refused_by_its_head(cut: int) -> None:
    wire = (FRAME_BYTES_DEFAULT + 1).to_bytes(3, "big") + b"\0\0\0\0\0\1" + b"x" * 50
    with pytest.raises(ConnectionBreach) as caught:
        Seen().feed(wire[:cut], wire[cut:])
    assert caught.value.code == ErrorCode.FRAME_SIZE_ERROR
    assert str(caught.value) == "frame size: got 16385 bytes, expected at most 16384"


def test_the_longest_frame_passes() -> None:
    wire = frame(FrameKind.DATA, 0, 1, b"x" * FRAME_BYTES_DEFAULT)
    assert Seen().feed(wire) == wire


@pytest.mark.parametrize("hello", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\x02\x00\x01", b"PRI * HTTP/1"])
def test_who_speaks_something_else_is_told_apart_at_once(hello: bytes) -> None:
    with pytest.raises(ConnectionBreach, match="preface: got b'"):
        Seen(preface=CLIENT_PREFACE).feed(hello)


def test_settings_are_pairs() -> None:
    assert settings_in(b"\0\4\0\0\1\0\0\5\0\0\x40\0") == [(4, 256), (5, 16384)]
    with pytest.raises(ConnectionBreach, match="settings: got 7 bytes, expected a multiple of 6"):
        settings_in(b"1234567")


def test_a_goodbye_has_its_reason() -> None:
    written = go_away(ErrorCode.ENHANCE_YOUR_CALM, "too much", 5)
    assert written == frame(FrameKind.GOAWAY, 0, 0, b"\0\0\0\5\0\0\0\x0btoo much")
