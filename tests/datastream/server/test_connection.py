"""One client over a socket pair, step by step: which bytes, in which order, and never half an entry."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.layout import (
    HEADER_PAGE_SIZE,
    PACKET_ANSWER,
    PAGE_SIZE,
    Entry,
    encode_entry,
    page_start,
)
from sluice.datastream.limits import ServerLimits
from sluice.datastream.protocol.commands import Command, OnCommandError, encode_command
from sluice.datastream.protocol.packets import PacketReader, encode_result
from sluice.datastream.server.connection import (
    SEND_BYTES_PER_ITERATION,
    SEND_BYTES_PER_SLOT,
    SEND_BYTES_PER_SLOT_MIN,
    Connection,
    ServerContext,
)
from sluice.datastream.server.live_clients import TAIL_BYTES_MAX, LiveTail
from tests.datastream.serving import Clock
from tests.datastream.streams import commit

BAD_FROM_ENTRY = encode_result(3, "Bad from entry")
OK = encode_result(0, "OK")
ALREADY_STARTED = encode_result(1, "Already started")
BIG = tuple((1, bytes([number]) * 100_000) for number in range(40))


_opened: list[socket.socket] = []


@pytest.fixture(autouse=True)
def _close_sockets() -> Iterator[None]:
    yield
    while _opened:
        _opened.pop().close()


class Client:
    """The far end of a socket pair; the near end is a `Connection` with small buffers."""

    def __init__(self, streamer: DataStreamer, on_command_error: OnCommandError = "close") -> None:
        near, far = socket.socketpair()
        for end in (near, far):
            end.setblocking(False)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        self.loop = asyncio.get_running_loop()
        self.ended = asyncio.Event()
        self.context = ServerContext(
            streamer, self.loop, ServerLimits(), on_command_error, lambda connection: self.ended.set()
        )
        self.connection = Connection(self.context, near, "test")
        self.far = far
        _opened.append(far)

    async def send(self, data: bytes) -> None:
        await self.loop.sock_sendall(self.far, data)

    async def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = await asyncio.wait_for(self.loop.sock_recv(self.far, size - len(data)), 10)
            assert more, f"closed after {len(data)} of {size} bytes"
            data += more
        return data

    def held_bytes(self) -> int:
        return sum(len(piece) for piece in self.connection._queue if isinstance(piece, bytes))

    async def until_blocked(self) -> None:
        """Run the event loop until the server cannot send more."""
        while not self.connection._writing:  # noqa: ASYNC110
            await asyncio.sleep(0)  # iterations of the loop, not time

    async def read_all(self) -> bytes:
        data = b""
        while more := await asyncio.wait_for(self.loop.sock_recv(self.far, 1 << 16), 10):
            data += more
        return data

    async def read_result(self) -> None:
        head = await self.read(5)
        assert head[0] == 0xFF
        await self.read(int.from_bytes(head[1:], "big") - len(head))

    async def read_until_reset(self) -> bytes:
        """Receive until a reset, which a socket pair reports as an end, too."""
        data = b""
        with contextlib.suppress(ConnectionResetError):
            while more := await asyncio.wait_for(self.loop.sock_recv(self.far, 1 << 16), 10):
                data += more
        assert self.connection._linger is None  # not an end in order
        return data


async def test_stop_in_the_middle_of_an_entry(tmp_path: Path) -> None:
    with DataStreamer.open(tmp_path / "s.bin") as streamer:
        commit(streamer, *BIG)
        client = Client(streamer)
        await client.send(encode_command(Command.START, 1, 0))
        head = await client.read(len(OK) + 50_000)
        await client.send(encode_command(Command.STOP, 1) + encode_command(Command.HEADER, 1))
        client.far.shutdown(socket.SHUT_WR)
        data = head + await client.read_all()
        assert data.startswith(OK)
        packets = PacketReader().feed(data[len(OK) :])
        stop = next(place for place, packet in enumerate(packets) if not isinstance(packet, Entry))
        assert packets[:stop] == [Entry(1, number, BIG[number][1]) for number in range(stop)]
        assert 0 < stop < len(BIG)
        assert len(packets) == stop + 3  # Result of Stop, Result and header
        await asyncio.wait_for(client.ended.wait(), 10)


@pytest.mark.parametrize("command", ["Stop", "an error", "the end"])
@pytest.mark.parametrize("has_grown_again", [False, True])
async def test_no_answer_cuts_an_entry_that_a_truncation_took_away(
    tmp_path: Path, command: str, has_grown_again: bool
) -> None:
    """The server hears of the truncation later; until then the rest of the entry is unavailable."""

    with DataStreamer.open(tmp_path / "s.bin") as streamer:
        commit(streamer, *BIG)
        client = Client(streamer)
        await client.send(encode_command(Command.START, 1, 0))
        await client.until_blocked()
        assert (client.connection._position - HEADER_PAGE_SIZE) % 100_017 > 0
        streamer.truncate_file(0)
        if has_grown_again:
            commit(streamer, *[(1, b"other" * 11)] * 10_000)
        if command == "the end":
            client.far.shutdown(socket.SHUT_WR)
        else:
            await client.send(encode_command(Command[command.upper() if command == "Stop" else "HEADER"], 1))
        received = await client.read_until_reset()
        assert received.startswith(OK)
        assert not received.endswith((OK, ALREADY_STARTED))
        assert len(received) < 100_017
        assert client.ended.is_set()


@pytest.mark.parametrize(
    ("commands", "reached"),
    [
        ("start 0, stop", 10),
        ("start 0, stop, entry 1", 10),
        ("entry 4, entry 0, stop", 5),
        ("entry 2, start 7, stop, start 0, stop", 10),
    ],
)
async def test_a_client_that_was_sent_what_is_cut_off_is_reset_later_too(
    tmp_path: Path, commands: str, reached: int
) -> None:
    """Its socket holds pages of the file, which are rewritten."""

    with DataStreamer.open(tmp_path / "s.bin") as streamer:
        commit(streamer, *BIG[:10])
        client = Client(streamer, "keep")  # also an invalid Stop
        for command in commands.split(", "):
            name, _, number = command.partition(" ")
            sent_count = {"start": 10 - int(number or 0), "entry": 1, "stop": 0}[name]
            await client.send(encode_command(Command[name.upper()], 1, *([int(number)] if number else [])))
            await client.read_result()
            await client.read(sent_count * 100_017)
        client.connection.close_if_past(streamer.offset_of(reached))
        assert not client.ended.is_set()
        client.connection.close_if_past(streamer.offset_of(reached) - 1)
        assert client.ended.is_set()


@pytest.mark.parametrize("on_command_error", ["close", "keep"])
async def test_an_error_in_the_middle_of_an_entry(tmp_path: Path, on_command_error: OnCommandError) -> None:
    with DataStreamer.open(tmp_path / "s.bin") as streamer:
        commit(streamer, *BIG)
        client = Client(streamer, on_command_error)
        await client.send(encode_command(Command.START, 1, 0))
        head = await client.read(len(OK) + 50_000)
        await client.send(encode_command(Command.HEADER, 1))
        if on_command_error == "keep":
            size = len(b"".join(encode_entry(Entry(1, 0, data)) for _, data in BIG))
            rest = await client.read(size - 50_000 + len(ALREADY_STARTED))
        else:
            rest = await client.read_all()
        data = (head + rest)[len(OK) :]
        place = data.index(ALREADY_STARTED)
        packets = PacketReader().feed(data[:place] + data[place + len(ALREADY_STARTED) :])
        expected = [Entry(1, number, data) for number, (_, data) in enumerate(BIG)]
        assert packets == (expected if on_command_error == "keep" else expected[: len(packets)])
        assert len(packets) < len(BIG) or on_command_error == "keep"
        client.connection.close()


async def test_a_client_that_asks_and_does_not_read_costs_one_answer(tmp_path: Path) -> None:
    with DataStreamer.open(tmp_path / "s.bin") as streamer:
        commit(streamer, (1, b"x" * 500_000))
        client = Client(streamer)
        await client.send(encode_command(Command.ENTRY, 1, 0) * 100)
        await client.until_blocked()
        assert client.held_bytes() <= len(OK) + 1  # the rest of the answer is sent from the file
        answer = OK + encode_entry(Entry(1, 0, b"x" * 500_000), 0xFE)
        for _ in range(100):
            assert await client.read(len(answer)) == answer
        client.connection.close()


async def test_a_damaged_page_ends_this_client_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "s.bin"
    with DataStreamer.open(path) as streamer:
        commit(streamer, *[(1, b"x" * 600_000)] * 12)
    content = bytearray(path.read_bytes())
    content[page_start(2) + 600_017] = 9  # what follows the entry of page 2
    path.write_bytes(content)
    with DataStreamer.open(path) as streamer:
        client = Client(streamer)
        await client.send(encode_command(Command.START, 1, 0))
        received = await client.read_all()
        assert received == OK + b"".join(
            encode_entry(Entry(1, number, b"x" * 600_000)) for number in range(2)
        )
        await asyncio.wait_for(client.ended.wait(), 10)
        assert "data page 2, entries 2 to 2: found CRC32C" in caplog.text
        other = Client(streamer)
        for command in (Command.START, Command.ENTRY):
            await other.send(encode_command(command, 1, 2))
            assert await other.read(len(BAD_FROM_ENTRY)) == BAD_FROM_ENTRY
        await other.send(encode_command(Command.ENTRY, 1, 3))
        assert (await other.read(len(OK) + 600_017)).startswith(OK + bytes((PACKET_ANSWER,)))


async def test_timeouts(tmp_path: Path) -> None:
    """`sweep` gets the time as an argument."""

    with DataStreamer.open(tmp_path / "s.bin") as streamer:
        commit(streamer, *BIG)
        slow, idle = Client(streamer), Client(streamer)
        await slow.send(encode_command(Command.START, 1, 0))
        await slow.until_blocked()
        now = slow.connection._progress_at
        slow.connection.sweep(now + 2.5)
        idle.connection.sweep(now + 100)
        assert not slow.ended.is_set()
        assert not idle.ended.is_set()
        slow.connection.sweep(now + 3.5)
        idle.connection.sweep(now + 121)
        assert slow.ended.is_set()
        assert idle.ended.is_set()


@pytest.mark.parametrize(
    ("limits", "timeout_seconds"),
    [(ServerLimits(), 3), (ServerLimits(write_timeout_seconds=0), 120)],
    ids=["write timeout", "inactivity timeout"],
)
async def test_a_live_client_that_takes_nothing_is_closed_while_the_kernel_has_room(
    tmp_path: Path, limits: ServerLimits, timeout_seconds: int
) -> None:
    """As with a dead host: sent bytes stay unacknowledged, and more follow."""

    with DataStreamer.open(tmp_path / "s.bin") as streamer:
        client = Client(streamer)
        client.context.limits = limits
        connection = client.connection
        clock = client.context.loop = Clock(client.loop)  # type: ignore[assignment]
        await client.send(encode_command(Command.START, 1, 0))
        await client.read_result()
        connection.sweep(clock.time())
        for _ in range(3):
            assert not client.ended.is_set()
            commit(streamer, (1, b""))
            connection.wake(LiveTail(streamer))
            assert not connection._writing
            clock.ahead_seconds += timeout_seconds // 3
            connection.sweep(clock.time())
        assert client.ended.is_set()


async def test_a_live_client_that_takes_what_it_is_sent_stays(tmp_path: Path) -> None:
    """However rarely it is sent something, and however little it has taken at a sweep."""

    with DataStreamer.open(tmp_path / "s.bin") as streamer:
        client = Client(streamer)
        clock = client.context.loop = Clock(client.loop)  # type: ignore[assignment]
        await client.send(encode_command(Command.START, 1, 0))
        await client.read_result()
        for number in range(50):
            commit(streamer, (1, b"x"))
            client.connection.wake(LiveTail(streamer))
            client.connection.sweep(clock.time())
            clock.ahead_seconds += 2
            client.connection.sweep(clock.time())
            await client.read(18)
            clock.ahead_seconds += 2 if number % 2 else 100
            client.connection.sweep(clock.time())
            assert not client.ended.is_set()
        client.connection.close()


async def test_a_timeout_of_0_is_none(tmp_path: Path) -> None:
    with DataStreamer.open(tmp_path / "s.bin") as streamer:
        commit(streamer, *BIG)
        client = Client(streamer)
        client.context.limits = ServerLimits(write_timeout_seconds=0, inactivity_timeout_seconds=0)
        await client.send(encode_command(Command.START, 1, 0))
        await client.until_blocked()
        client.connection.sweep(asyncio.get_running_loop().time() + 1e9)
        assert not client.ended.is_set()
        client.connection.close()


async def test_a_bug_ends_this_client_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with DataStreamer.open(tmp_path / "s.bin") as streamer:
        client = Client(streamer)

        def broken() -> bytes:
            raise ZeroDivisionError

        streamer.header_bytes = broken  # type: ignore[method-assign]
        await client.send(encode_command(Command.HEADER, 1))
        assert await client.read_all() == b""
        assert client.ended.is_set()
        assert "ZeroDivisionError" in caplog.text


async def test_turns_get_shorter_with_more_clients_that_take_history(tmp_path: Path) -> None:
    with DataStreamer.open(tmp_path / "s.bin") as streamer:
        commit(streamer, *BIG)
        client = Client(streamer)
        context = client.context
        assert context.slot_bytes() == SEND_BYTES_PER_SLOT
        await client.send(encode_command(Command.START, 1, 0))
        await client.until_blocked()
        assert context.writing_count == 1
        context.writing_count = 99
        assert context.slot_bytes() == SEND_BYTES_PER_ITERATION // 100
        context.writing_count = 9_999
        assert context.slot_bytes() == SEND_BYTES_PER_SLOT_MIN
        context.writing_count = 1
        client.connection.close()
        assert context.writing_count == 0


# --- the live tail --------------------------------------------------------------------------------------


def test_what_a_client_lacks(tmp_path: Path) -> None:
    with DataStreamer.open(tmp_path / "s.bin") as streamer:
        start = streamer.committed.total_length
        assert LiveTail(streamer).after(start) is None
        commit(streamer, (1, b"one"))
        middle = streamer.committed.total_length
        commit(streamer, (1, b"two"))
        tail = LiveTail(streamer)
        first = bytes.fromhex("02 00000014 00000001 0000000000000000") + b"one"
        second = bytes.fromhex("02 00000014 00000001 0000000000000001") + b"two"
        assert tail.after(start) == (start, first + second)
        assert tail.after(middle) == (middle, second)
        assert tail.after(middle + 17) == (middle + 17, b"two")
        assert tail.after(start) is tail.after(start)  # read once
        commit(streamer, (1, b"three"))
        assert tail.limit == middle + 20  # as of when it was made
        assert tail.after(middle) == (middle, second)
        assert tail.after(streamer.committed.total_length) is None


def test_the_most_that_is_shared(tmp_path: Path) -> None:
    with DataStreamer.open(tmp_path / "s.bin") as streamer:
        start = streamer.committed.total_length
        commit(streamer, (1, bytes(TAIL_BYTES_MAX - 17)))
        found = LiveTail(streamer).after(start)
        assert found is not None
        assert len(found[1]) == TAIL_BYTES_MAX
        commit(streamer, (1, b""))
        assert LiveTail(streamer).after(start) is None


def test_page_ends(tmp_path: Path) -> None:
    with DataStreamer.open(tmp_path / "s.bin") as streamer:
        commit(streamer, (1, bytes(PAGE_SIZE - 17 - 100)))
        before = streamer.committed.total_length
        commit(streamer, (1, b"x" * 50))
        end_of_page = streamer.committed.total_length
        commit(streamer, (1, b"y" * 50))  # does not fit any more
        tail = LiveTail(streamer)
        assert tail.after(before) is None  # on two pages
        found = tail.after(end_of_page)  # padding between
        assert found is not None
        assert found[0] == page_start(1)
        assert found[1].endswith(b"y" * 50)
        assert len(found[1]) == 67


def test_a_file_that_is_exactly_full(tmp_path: Path) -> None:
    with DataStreamer.open(tmp_path / "s.bin", initial_pages=1) as streamer:
        commit(streamer, (1, bytes(PAGE_SIZE - 17)))
        full = streamer.committed.total_length
        assert full == page_start(1)
        assert LiveTail(streamer).after(full) is None
        commit(streamer, (1, b"z"))
        found = LiveTail(streamer).after(full)
        assert found is not None
        assert found == (full, bytes.fromhex("02 00000012 00000001 0000000000000001") + b"z")
