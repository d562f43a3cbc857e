"""The TCP command protocol without sockets: every state and command, in pieces and pipelined."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import pytest

from sluice.datastream.errors import BookmarkNotFound, EntryNotFound
from sluice.datastream.layout import Entry
from sluice.datastream.protocol.commands import (
    ANSWER_COPY_BYTES_MAX,
    COMMANDS,
    ERRORS,
    REPLIES,
    ClientState,
    Close,
    Command,
    CommandCore,
    CommandError,
    Effect,
    EndAfterCatchUp,
    OnCommandError,
    Send,
    SendEntries,
    SendRange,
    StartStream,
    StopStream,
    encode_command,
)
from tests.datastream import fuzz_commands

OK = bytes.fromhex("ff 0000000b 00000000 4f4b")
ALREADY_STARTED = bytes.fromhex("ff 00000018 00000001") + b"Already started"
ALREADY_STOPPED = bytes.fromhex("ff 00000018 00000002") + b"Already stopped"
BAD_FROM_ENTRY = bytes.fromhex("ff 00000017 00000003") + b"Bad from entry"
BAD_FROM_BOOKMARK = bytes.fromhex("ff 0000001a 00000004") + b"Bad from bookmark"
INVALID_COMMAND = bytes.fromhex("ff 00000018 00000009") + b"Invalid command"
NOT_FOUND = bytes.fromhex("fe 00000011 ffffffff 0000000000000000")
HEADER = b"the header's 38 bytes"
ENTRY_1 = bytes.fromhex("fe 00000013 00000005 0000000000000001 6869")

START_0 = bytes.fromhex("0000000000000001 0000000000000001 0000000000000000")
STOP = bytes.fromhex("0000000000000002 0000000000000001")
GET_HEADER = bytes.fromhex("0000000000000003 0000000000000001")
START_MARK = bytes.fromhex("0000000000000004 0000000000000001 00000001 62")
GET_ENTRY_1 = bytes.fromhex("0000000000000005 0000000000000001 0000000000000001")
GET_MARK = bytes.fromhex("0000000000000006 0000000000000001 00000001 62")


@dataclass
class SmallStream:
    """A stream of one bookmark `b` and one entry."""

    def header_bytes(self) -> bytes:
        return HEADER

    def offset_of(self, number: int) -> int:
        if number > 2:
            raise EntryNotFound(number, 2)
        return 4096 + 18 * number

    def get_entry(self, number: int) -> Entry:
        if number >= 2:
            raise EntryNotFound(number, 2)
        return [Entry(0xB0, 0, b"b"), Entry(5, 1, b"hi")][number]

    def get_bookmark(self, bookmark: bytes) -> int:
        if bookmark != b"b":
            raise BookmarkNotFound(bookmark)
        return 0

    def get_first_event_after_bookmark(self, bookmark: bytes) -> Entry:
        return self.get_entry(self.get_bookmark(bookmark) + 1)


def core_in(state: ClientState, on_command_error: OnCommandError = "close") -> CommandCore:
    core = CommandCore(SmallStream(), 1, on_command_error)
    if state is ClientState.STREAMING:
        core.receive(START_0)
        assert core.next_effects() == [Send(OK), StartStream(4096)]
    return core


def all_effects(core: CommandCore) -> list[Effect]:
    found: list[Effect] = []
    while (effects := core.next_effects()) is not None:
        found.extend(effects)
    return found


ANSWERS: list[tuple[str, bytes, list[Effect]]] = [
    ("Start", START_0, [Send(OK), StartStream(4096)]),
    (
        "Start at the end",
        encode_command(Command.START, 1, 2),
        [Send(OK), StartStream(4132)],
    ),
    ("Start past the end", encode_command(Command.START, 1, 3), [Send(BAD_FROM_ENTRY)]),
    ("Start at the greatest", encode_command(Command.START, 1, (1 << 64) - 1), [Send(BAD_FROM_ENTRY)]),
    ("Header", GET_HEADER, [Send(OK + HEADER)]),
    ("StartBookmark", START_MARK, [Send(OK), StartStream(4096)]),
    ("StartBookmark unknown", encode_command(Command.START_BOOKMARK, 1, b"no"), [Send(BAD_FROM_BOOKMARK)]),
    ("Entry", GET_ENTRY_1, [Send(OK + ENTRY_1)]),
    ("Entry unknown", encode_command(Command.ENTRY, 1, 2), [Send(OK + NOT_FOUND)]),
    ("Bookmark", GET_MARK, [Send(OK + ENTRY_1)]),
    ("Bookmark unknown", encode_command(Command.BOOKMARK, 1, b"x" * 16), [Send(OK + NOT_FOUND)]),
    ("Stop", STOP, [Send(ALREADY_STOPPED), Close("Stop while stopped: Already stopped")]),
    ("unknown command", bytes(8) + STOP[8:], [Send(INVALID_COMMAND), Close("unknown command 0")]),
    ("command 8", b"\0\0\0\0\0\0\0\x08" + STOP[8:], [Send(INVALID_COMMAND), Close("unknown command 8")]),
    ("stream type", STOP[:15] + b"\2", [Close("stream type 2, expected 1")]),
    ("unknown command of another type", bytes(16), [Close("stream type 0, expected 1")]),
    ("empty bookmark", START_MARK[:16] + bytes(4), [Close("bookmark of 0 bytes, expected 1 to 16")]),
    ("long bookmark", GET_MARK[:16] + b"\0\0\0\x11", [Close("bookmark of 17 bytes, expected 1 to 16")]),
    ("huge bookmark", GET_MARK[:16] + b"\xff" * 4, [Close("bookmark of 4294967295 bytes, expected 1 to 16")]),
]


class NetworkStream(SmallStream):
    """A stream with the network's bookmarks of block 7, at entry 0, and of batch 3, at entry 1."""

    def get_bookmark(self, bookmark: bytes) -> int:
        found = {bytes.fromhex("08021007"): 0, bytes.fromhex("08011003"): 1}.get(bookmark)
        if found is None:
            raise BookmarkNotFound(bookmark)
        return found

    def get_first_event_after_bookmark(self, bookmark: bytes) -> Entry:
        return Entry(5, 1, b"hi") if self.get_bookmark(bookmark) == 0 else Entry(0xB0, 0, b"b")


def test_a_bookmark_in_the_original_form_stands_for_the_networks() -> None:
    block_7, batch_3 = b"\0" + (7).to_bytes(8, "big"), b"\1" + (3).to_bytes(8, "big")
    block_3, unknown_kind = b"\0" + (3).to_bytes(8, "big"), b"\2" + (7).to_bytes(8, "big")
    core = CommandCore(NetworkStream(), 1, "keep")
    for command, effects in (
        (encode_command(Command.BOOKMARK, 1, block_7), [Send(OK + ENTRY_1)]),
        (encode_command(Command.BOOKMARK, 1, block_3), [Send(OK + NOT_FOUND)]),
        (encode_command(Command.BOOKMARK, 1, unknown_kind), [Send(OK + NOT_FOUND)]),
        (
            encode_command(Command.RANGE_BOOKMARK, 1, block_7, batch_3),
            [Send(OK + (1).to_bytes(8, "big")), SendEntries(4096, 4132)],
        ),
        (encode_command(Command.START_BOOKMARK, 1, block_3), [Send(BAD_FROM_BOOKMARK)]),
        (encode_command(Command.START_BOOKMARK, 1, batch_3), [Send(OK), StartStream(4114)]),
    ):
        core.receive(command)
        assert all_effects(core) == effects


@pytest.mark.parametrize(("name", "request_bytes", "effects"), ANSWERS, ids=[case[0] for case in ANSWERS])
def test_answers(name: str, request_bytes: bytes, effects: list[Effect]) -> None:
    core = core_in(ClientState.STOPPED)
    core.receive(request_bytes)
    assert core.next_effects() == effects

    core = core_in(ClientState.STOPPED)  # the same, byte by byte
    for byte in request_bytes[:-1]:
        core.receive(bytes([byte]))
        assert core.next_effects() is None
    core.receive(request_bytes[-1:])
    assert core.next_effects() == effects

    core = core_in(ClientState.STOPPED)  # with another command behind it
    core.receive(request_bytes + GET_HEADER)
    assert core.next_effects() == effects
    following = core.next_effects()
    if isinstance(effects[-1], Close):
        assert following is None
    elif core.state is ClientState.STREAMING:
        assert following == [
            StopStream(),
            Send(ALREADY_STARTED),
            Close("Header while streaming: Already started"),
        ]
    else:
        assert following == [Send(OK + HEADER)]


REQUESTS = {
    Command.START: START_0,
    Command.STOP: STOP,
    Command.HEADER: GET_HEADER,
    Command.START_BOOKMARK: START_MARK,
    Command.ENTRY: GET_ENTRY_1,
    Command.BOOKMARK: GET_MARK,
    Command.RANGE_BOOKMARK: encode_command(Command.RANGE_BOOKMARK, 1, b"mark", b"mark"),
}


@pytest.mark.parametrize(("command", "on_command_error"), list(product(Command, ("close", "keep"))))
def test_commands_while_streaming(command: Command, on_command_error: OnCommandError) -> None:
    core = core_in(ClientState.STREAMING, on_command_error)
    core.receive(REQUESTS[command])
    effects = core.next_effects()
    if command is Command.STOP:
        assert effects == [StopStream(), Send(OK)]
        assert core.state is ClientState.STOPPED
    elif on_command_error == "keep":
        assert effects == [Send(ALREADY_STARTED)]
        assert core.state is ClientState.STREAMING
    else:
        name = COMMANDS[command][0]
        assert effects == [
            StopStream(),
            Send(ALREADY_STARTED),
            Close(f"{name} while streaming: Already started"),
        ]


def test_stop_while_stopped_is_kept() -> None:
    core = core_in(ClientState.STOPPED, "keep")
    core.receive(STOP + GET_HEADER)
    assert all_effects(core) == [Send(ALREADY_STOPPED), Send(OK + HEADER)]


@pytest.mark.parametrize("on_command_error", ["close", "keep"])
def test_a_bad_start_keeps_the_connection(on_command_error: OnCommandError) -> None:
    core = core_in(ClientState.STOPPED, on_command_error)
    core.receive(
        encode_command(Command.START, 1, 99) + encode_command(Command.START_BOOKMARK, 1, b"no") + START_0
    )
    assert all_effects(core) == [Send(BAD_FROM_ENTRY), Send(BAD_FROM_BOOKMARK), Send(OK), StartStream(4096)]


def test_a_long_answer_is_sent_from_the_file() -> None:
    """The first entry is as long as an answer in memory may be, the second one byte longer."""
    data = [b"a" * ANSWER_COPY_BYTES_MAX, b"b" * (ANSWER_COPY_BYTES_MAX + 1)]
    offsets = [4096, 4096 + 17 + len(data[0])]

    class LongEntries(SmallStream):
        def offset_of(self, number: int) -> int:
            return offsets[number]

        def get_entry(self, number: int) -> Entry:
            return Entry(5, number, data[number])

    core = CommandCore(LongEntries(), 1)
    core.receive(encode_command(Command.ENTRY, 1, 0) + GET_ENTRY_1 + GET_MARK)
    head = bytes.fromhex("fe 00001011 00000005 0000000000000000")
    assert core.next_effects() == [Send(OK + head + data[0])]
    from_file = [Send(OK + b"\xfe"), SendRange(offsets[1] + 1, 16 + len(data[1]))]
    assert core.next_effects() == from_file
    assert core.next_effects() == from_file


def test_start_stop_start() -> None:
    core = core_in(ClientState.STOPPED)
    core.receive(START_0 + STOP + START_MARK)
    assert all_effects(core) == [
        Send(OK),
        StartStream(4096),
        StopStream(),
        Send(OK),
        Send(OK),
        StartStream(4096),
    ]


@pytest.mark.parametrize(
    ("name", "sent", "effects"),
    [
        ("silent", b"", [Close("the client closed its side")]),
        ("inside a command", START_0[:20], [Close("the client closed its side")]),
        (
            "after commands",
            GET_HEADER + GET_ENTRY_1,
            [Send(OK + HEADER), Send(OK + ENTRY_1), Close("the client closed its side")],
        ),
        ("after Start", START_0, [Send(OK), StartStream(4096), EndAfterCatchUp()]),
        (
            "after Stop",
            START_0 + STOP,
            [Send(OK), StartStream(4096), StopStream(), Send(OK), Close("the client closed its side")],
        ),
    ],
)
def test_the_client_closes_its_side(name: str, sent: bytes, effects: list[Effect]) -> None:
    core = core_in(ClientState.STOPPED)
    core.receive(sent)
    core.receive_end()
    assert all_effects(core) == effects
    assert core.next_effects() is None


def test_encode() -> None:
    assert encode_command(Command.START, 1, 0) == START_0
    assert encode_command(Command.STOP, 1) == STOP
    assert encode_command(Command.BOOKMARK, 1, b"b") == GET_MARK


def test_tables_are_complete() -> None:
    assert set(COMMANDS) == set(Command) == set(range(1, 8))
    assert set(ERRORS) == set(CommandError)
    assert {(state, command) for state in REPLIES for command in REPLIES[state]} == set(
        product(ClientState, Command)
    )


def test_fuzz_a_little() -> None:
    """Random and mutated requests in random pieces; `make fuzz` runs many more."""
    fuzz_commands.check_cases(400)
