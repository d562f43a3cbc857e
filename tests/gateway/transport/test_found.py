"""Tests of what strangers, and clients that mean well, could do to the front door before it was mended."""

from __future__ import annotations

import asyncio
import errno
import gc
import socket
import tracemalloc
import weakref
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import hpack
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from gateway.tls import subjects_of
from gateway.transport.door import Door, DoorPlan
from gateway.transport.door_notes import DoorNotes
from gateway.transport.doorkeeper import Doorkeeper, DoorLimits, Visit
from gateway.transport.frames import (
    CLIENT_PREFACE,
    HEAD_BYTES,
    ConnectionBreach,
    Flag,
    Kind,
    frame,
    go_away,
    window_update,
)
from gateway.transport.header_blocks import header_frames
from gateway.transport.pump import Pump
from gateway.transport.relay import Relay
from gateway.transport.server_relay import ServerRelay

TE = (b"te", b"trailers")
WINDOW = 1_000


class Wire:
    """A relay, and all that it has sent to either side."""

    def __init__(self, relay: ServerRelay) -> None:
        self.relay = relay
        self.sent_to_grpc = bytearray()
        self.sent_outside = bytearray()
        self._encoder = hpack.Encoder()
        self.outside(CLIENT_PREFACE + frame(Kind.SETTINGS, 0, 0))
        first_window = b"\0\4" + WINDOW.to_bytes(4, "big")
        self.grpc(frame(Kind.SETTINGS, 0, 0, first_window) + window_update(0, 1 << 24))
        self.outside(frame(Kind.SETTINGS, Flag.ACK, 0))

    def outside(self, data: bytes) -> None:
        """The client sends."""
        self.relay.from_outside(memoryview(bytearray(data)))
        self._collect(self.relay)

    def grpc(self, data: bytes) -> None:
        """GRPC sends."""
        self.relay.from_grpc(memoryview(bytearray(data)))
        self._collect(self.relay)

    def _collect(self, relay: Relay) -> None:
        self.sent_to_grpc += b"".join(relay.to_grpc)
        self.sent_outside += b"".join(relay.to_outside)
        relay.to_grpc.clear()
        relay.to_outside.clear()

    def request(self, stream_id: int, *further: tuple[bytes, bytes]) -> bytes:
        """A call that begins."""
        fields = [(b":method", b"POST"), (b":path", b"/a"), *further]
        return header_frames(stream_id, self._encoder.encode(fields), ends_stream=False)


def frames_in(data: bytes | bytearray) -> list[tuple[int, int, bytes]]:
    """The frames of one direction: type, stream, payload."""
    found, at = [], 0
    while at < len(data):
        after = at + HEAD_BYTES + int.from_bytes(data[at : at + 3], "big")
        assert after <= len(data)
        stream_id = int.from_bytes(data[at + 5 : at + HEAD_BYTES], "big")
        found.append((data[at + 3], stream_id, bytes(data[at + HEAD_BYTES : after])))
        at = after
    return found


class _Gate:
    """Lets no large message be received."""

    small_bytes = 10

    def ask(self, stream_id: int, size: int) -> bool:
        return False

    def publishes(self, stream_id: int) -> None: ...

    def progressed(self, stream_id: int, size: int) -> None: ...

    def came(self, stream_id: int) -> None: ...

    def done(self, stream_id: int) -> None: ...


def test_what_a_reset_stream_gives_back_is_not_put_into_the_data_of_another() -> None:
    wire = Wire(ServerRelay())
    wire.outside(wire.request(1) + wire.request(3))
    wire.outside(frame(Kind.DATA, 0, 1, b"x" * WINDOW) + frame(Kind.DATA, 0, 1, b"y"))  # the latter waits
    wire.sent_outside.clear()
    answer = frame(Kind.DATA, 0, 3, b"A" * 20)
    wire.grpc(answer[:-5])
    wire.grpc(answer[-5:] + frame(Kind.RST_STREAM, 0, 1, b"\0\0\0\0"))
    assert [(kind, stream_id) for kind, stream_id, _ in frames_in(wire.sent_outside)] == [
        (Kind.DATA, 3),
        (Kind.WINDOW_UPDATE, 0),
        (Kind.RST_STREAM, 1),
    ]


def test_data_of_a_held_message_is_not_put_into_the_data_of_another_stream() -> None:
    wire = Wire(ServerRelay(_Gate()))
    wire.outside(wire.request(1) + wire.request(3, TE))
    message = b"\0" + (WINDOW + 100).to_bytes(4, "big") + b"m" * (WINDOW + 100)
    wire.outside(frame(Kind.DATA, 0, 1, message[:WINDOW]) + frame(Kind.DATA, 0, 1, message[WINDOW:-1]))
    wire.grpc(window_update(1, WINDOW))  # gRPC reads, and the gate says no
    wire.sent_to_grpc.clear()
    other = frame(Kind.DATA, 0, 3, b"A" * 20)
    wire.outside(other[:-5])
    wire.outside(other[-5:] + frame(Kind.DATA, 0, 1, message[-1:]))  # the message is over
    assert frames_in(wire.sent_to_grpc) == [
        (Kind.DATA, 3, b"A" * 20),
        (Kind.DATA, 1, message[WINDOW:-1]),
        (Kind.DATA, 1, message[-1:]),
    ]


def test_a_client_for_whom_there_is_no_socket_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> int:
        door = Door(DoorPlan(DoorLimits()), DoorNotes("grpc.listen"))
        door.listen([listener])
        with socket.create_connection(listener.getsockname()[:2]) as client:
            while not door.connections:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            with monkeypatch.context() as patch:
                patch.setattr("gateway.transport.door.socket.socket", _no_socket)
                client.sendall(CLIENT_PREFACE + frame(Kind.PING, 0, 0, b"a secret"))
                await asyncio.sleep(0.2)
            count = len(door.connections)
        door.close()
        return count

    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert asyncio.run(main()) == 0


def _no_socket(*_: object) -> socket.socket:
    raise OSError(errno.EMFILE, "Too many open files")


def _admitted(keeper: Doorkeeper, address: str, *, is_kept: bool = False) -> Visit:
    visit = keeper.admit(address, 0, is_kept=is_kept, may_be_listed=True)
    assert isinstance(visit, Visit)
    return visit


def test_a_peer_keeps_its_place_though_its_certificate_is_not_on_the_list() -> None:
    keeper = Doorkeeper(DoorLimits(connections_max=3, kept_places=1))
    for _ in range(2):
        assert keeper.known(_admitted(keeper, "192.0.2.1"), is_listed=False) is None
    peer = _admitted(keeper, "192.0.2.9", is_kept=True)
    assert keeper.known(peer, is_listed=False) is None


def test_strangers_do_not_stay_in_the_places_that_are_kept() -> None:
    keeper = Doorkeeper(DoorLimits(connections_max=3, kept_places=1))
    first, _ = (_admitted(keeper, "192.0.2.1") for _ in range(2))
    guessed = _admitted(keeper, "192.0.2.1")
    keeper.leave(first)
    assert keeper.known(guessed, is_listed=False) is None  # there is room for strangers now
    assert keeper.known(_admitted(keeper, "192.0.2.1"), is_listed=False) == "connections"


def test_streams_that_grpc_ignores_are_not_remembered_without_end() -> None:
    wire = Wire(ServerRelay())
    with pytest.raises(ConnectionBreach):
        wire.outside(wire.request(2, TE))  # a client's streams have odd numbers
    wire = Wire(ServerRelay())
    calls = b"".join(wire.request(2 * at + 1, TE) for at in range(10_000))
    with pytest.raises(ConnectionBreach):
        wire.outside(calls)


def test_data_that_waits_takes_no_more_memory_in_small_pieces() -> None:
    wire = Wire(ServerRelay())
    wire.outside(wire.request(1) + frame(Kind.DATA, 0, 1, b"x" * WINDOW))
    small = frame(Kind.DATA, 0, 1, b"y") * 20_000
    tracemalloc.start()
    wire.outside(small)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 100_000
    wire.grpc(window_update(1, 1 << 20))
    sent = frames_in(wire.sent_to_grpc[len(CLIENT_PREFACE) :])
    assert b"".join(payload for kind, _, payload in sent if kind == Kind.DATA)[WINDOW:] == b"y" * 20_000


def _spend(what: bytes, *, further: int = 0) -> None:
    """Let a client send the same again and again, and take it off its budget."""
    wire, keeper = Wire(ServerRelay()), Doorkeeper(DoorLimits())
    visit = _admitted(keeper, "192.0.2.1")
    wire.outside(wire.request(1))
    wire.relay.data_bytes += further
    for _ in range(100):
        wire.outside(what)
        keeper.spend(visit, wire.relay.cost, wire.relay.data_bytes, 0)
        wire.relay.cost = wire.relay.data_bytes = 0


@pytest.mark.parametrize("further", [0, 1 << 30])
def test_tiny_and_padded_data_is_not_free(further: int) -> None:
    padded = frame(Kind.DATA, Flag.PADDED, 1, b"\0")
    with pytest.raises(ConnectionBreach, match="control frames"):
        _spend(padded * 1_000, further=further)
    with pytest.raises(ConnectionBreach, match="control frames"):
        _spend(frame(Kind.DATA, 0, 1, b"x") * 1_000, further=further)
    _spend(frame(Kind.DATA, 0, 1, b"x" * 100) * 1_000)


def test_who_does_not_read_what_is_given_back_is_not_read() -> None:
    async def main() -> int:
        ours, client = socket.socketpair()
        grpc, server = socket.socketpair()
        with client, server:
            pump = Pump(asyncio.get_running_loop(), memoryview(bytearray(1 << 18)), ServerRelay(), ours)
            pump.enter(grpc)
            pump.outside.read_on()
            client.setblocking(False)
            request = hpack.Encoder().encode([(b":method", b"POST")])
            client.send(CLIENT_PREFACE + header_frames(1, request, ends_stream=False))
            padded = frame(Kind.DATA, Flag.PADDED, 1, b"\0") * 1_000
            at = 0
            for _ in range(5_000):
                with suppress(BlockingIOError):
                    at = (at + client.send(padded[at:])) % len(padded)
                await asyncio.sleep(0)
            unsent = len(pump.outside._unsent)
            pump.close()
            return unsent

    assert 64 < asyncio.run(main()) < 70


def test_a_name_of_a_kind_that_cannot_be_read_is_left_out() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "alice")])
    now = datetime.now(UTC)
    x400 = x509.UnrecognizedExtension(x509.SubjectAlternativeName.oid, b"\x30\x02\xa3\x00")
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1))
        .add_extension(x400, critical=False)
        .sign(key, hashes.SHA256())
    )
    assert subjects_of(certificate.public_bytes(serialization.Encoding.DER)) == ("CN=alice",)


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
    assert kinds == [Kind.WINDOW_UPDATE, Kind.HEADERS]


def test_connections_that_come_and_go_do_not_silence_their_address_for_long() -> None:
    keeper = Doorkeeper(DoorLimits())
    stays = _admitted(keeper, "192.0.2.1")
    for _ in range(100_000):
        keeper.leave(_admitted(keeper, "192.0.2.1"))
    assert keeper.spend(stays, 2_048, 0, 0) < 1_000_000_000


def test_a_connection_that_is_closed_in_a_pause_is_forgotten() -> None:
    async def main() -> bool:
        ours, client = socket.socketpair()
        with client:
            pump = Pump(asyncio.get_running_loop(), memoryview(bytearray(1)), ServerRelay(), ours)
            pump.pause(1_000)
            pump.close()
            known = weakref.ref(pump)
            del pump
            gc.collect()
            return known() is None

    assert asyncio.run(main())


def test_a_common_name_with_a_comma_is_not_the_whole_subject_of_somebody_else() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "alice,O=Net")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1))
    certificate = builder.sign(key, hashes.SHA256())
    proved = subjects_of(certificate.public_bytes(serialization.Encoding.DER))
    assert proved == ("CN=alice\\,O=Net",)  # not CN=alice,O=Net, which an operator may have listed


def test_the_words_of_a_client_that_goes_away_do_not_reach_grpcs_log() -> None:
    wire = Wire(ServerRelay())
    wire.sent_to_grpc.clear()
    wire.outside(go_away(7, "\n{a line of the log, forged}\n"))
    assert frames_in(wire.sent_to_grpc) == [(Kind.GOAWAY, 0, bytes(8))]
