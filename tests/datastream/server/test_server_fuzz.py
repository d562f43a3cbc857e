"""Random and mutated requests over real sockets: whole packets of committed bytes, and always an end."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

import pytest

from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.layout import Entry, StreamHeader
from sluice.datastream.protocol.commands import Command, OnCommandError, encode_command
from sluice.datastream.protocol.packets import Answer, PacketReader, Result
from tests.datastream.fuzz_commands import ENTRIES, STREAM, mutate
from tests.datastream.serving import ServerThread, read_exactly
from tests.datastream.streams import commit

TEXTS = {
    0: "OK",
    1: "Already started",
    2: "Already stopped",
    3: "Bad from entry",
    4: "Bad from bookmark",
    9: "Invalid command",
}


def random_request(rng: random.Random) -> bytes:
    """Return a few commands, half of them with bytes changed, dropped or repeated."""
    parts = []
    for _ in range(rng.randrange(1, 12)):
        command = rng.choice(list(Command))
        match command:
            case Command.START | Command.ENTRY:
                parts.append(encode_command(command, 1, rng.randrange(len(ENTRIES) + 2)))
            case Command.STOP | Command.HEADER:
                parts.append(encode_command(command, 1))
            case _:
                parts.append(encode_command(command, 1, rng.choice([b"b", ENTRIES[0].data, b"unknown"])))
    request = b"".join(parts)
    if rng.random() < 0.5:
        changes = [(rng.randrange(400), rng.randrange(4), rng.randrange(256)) for _ in range(3)]
        request = mutate(request, changes)
    return request


def exchange(client: socket.socket, request: bytes, rng: random.Random) -> bytes:
    """Send a request in pieces, close the sending side, and return all answers."""
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    received = bytearray()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the server closed first
        while request:
            size = rng.randrange(1, 40)
            client.sendall(request[:size])
            request = request[size:]
        client.shutdown(socket.SHUT_WR)
    with contextlib.suppress(ConnectionResetError):
        while more := client.recv(1 << 16):
            received += more
    return bytes(received)


@pytest.mark.parametrize("on_command_error", ["close", "keep"])
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_random_requests(tmp_path: Path, loop: str, on_command_error: OnCommandError) -> None:
    rng = random.Random(20)
    with DataStreamer.open(tmp_path / "s.bin") as streamer:
        commit(streamer, *[(entry.type, entry.data) for entry in ENTRIES])
        assert streamer.committed.total_length == STREAM.total_length
        with ServerThread(streamer, loop=loop, on_command_error=on_command_error) as serving:
            for case in range(300):
                request = random_request(rng)
                with serving.connect() as client:
                    received = exchange(client, request, rng)
                reader = PacketReader()
                for packet in reader.feed(received):
                    check(packet, case)
                assert not reader._rest, (case, request.hex())
            with serving.connect() as client:
                client.sendall(encode_command(Command.HEADER, 1))
                assert read_exactly(client, 49)[11:] == STREAM.header_bytes()


def check(packet: object, case: int) -> None:
    """Check that a packet says only what is committed."""
    match packet:
        case Result(error_number, text):
            assert TEXTS[error_number] == text, case
        case Answer(entry):
            assert entry is None or entry == ENTRIES[entry.number], case
        case Entry():
            assert packet == ENTRIES[packet.number], case
        case StreamHeader():
            assert packet.total_entries == len(ENTRIES), case
        case _:
            raise AssertionError((case, packet))
