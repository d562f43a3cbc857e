"""The TCP commands of one client connection: bytes in, effects out, as two tables. Pure.

    core.receive(data)              bytes in any pieces
    core.next_effects()             the effects of the next complete command, None without one
    core.receive_end()              the client will send nothing more

The caller performs effects in order and asks for the next command only when the last answer is on its way, so
a client has at most one answer waiting. The core decides everything about the protocol, and sees the stream
as a `StreamView`.

Source: docs/spec/stream-file.md section 4. Cells that the public text leaves open follow the Go server: [go].
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum, auto
from typing import Final, Literal, Protocol, TypeVar

from sluice.datastream.errors import NotFoundError, PageNotServed
from sluice.datastream.events.network_events import Bookmark, BookmarkType
from sluice.datastream.events.original_events import OriginalBookmarkType
from sluice.datastream.layout import ENTRY_HEAD_SIZE, PACKET_ANSWER, Entry, encode_entry
from sluice.datastream.limits import BOOKMARK_SIZE_MAX, BOOKMARK_SIZE_MIN
from sluice.datastream.protocol.packets import NOT_FOUND_ANSWER, encode_result

__all__ = [
    "COMMANDS",
    "ERRORS",
    "REPLIES",
    "SPEAKS_TLS",
    "ClientState",
    "Close",
    "Command",
    "CommandCore",
    "CommandError",
    "Effect",
    "EndAfterCatchUp",
    "OnCommandError",
    "Reply",
    "Send",
    "SendEntries",
    "SendRange",
    "StartStream",
    "StopStream",
    "StreamView",
    "encode_command",
]

ANSWER_COPY_BYTES_MAX = 4_096
"""Longest answer to Entry or Bookmark that memory holds; longer ones are sent from the file."""

SPEAKS_TLS = "it speaks TLS, and this port does not"
"""The reason to close a client whose first bytes are a TLS handshake."""

OnCommandError = Literal["keep", "close"]
_HEAD = struct.Struct(">QQ")
_U64 = struct.Struct(">Q")
_U32 = struct.Struct(">I")
_TLS_HANDSHAKE = b"\x16\x03"
T = TypeVar("T")

_ORIGINAL_BOOKMARK_SIZE: Final = 9
_NETWORK_TYPES: Final[dict[int, int]] = {
    OriginalBookmarkType.L2_BLOCK: BookmarkType.L2_BLOCK,
    OriginalBookmarkType.BATCH: BookmarkType.BATCH,
}


class Command(IntEnum):
    """Command numbers."""

    START = 1
    STOP = 2
    HEADER = 3
    START_BOOKMARK = 4
    ENTRY = 5
    BOOKMARK = 6
    RANGE_BOOKMARK = 7


class Parameter(Enum):
    """The parameter of a request, behind its stream type."""

    NONE = auto()
    ENTRY_NUMBER = auto()
    BOOKMARK = auto()
    TWO_BOOKMARKS = auto()


class CommandError(IntEnum):
    """Error numbers of a Result."""

    OK = 0
    ALREADY_STARTED = 1
    ALREADY_STOPPED = 2
    BAD_FROM_ENTRY = 3
    BAD_FROM_BOOKMARK = 4
    BAD_TO_BOOKMARK = 5
    INVALID_COMMAND = 9


class ClientState(Enum):
    """The state of a client."""

    STOPPED = auto()
    STREAMING = auto()


class Reply(Enum):
    """The kind of reply to a command."""

    ANSWER = auto()
    ALREADY_STARTED = auto()
    ALREADY_STOPPED = auto()


COMMANDS: dict[Command, tuple[str, Parameter, str]] = {
    Command.START: ("Start", Parameter.ENTRY_NUMBER, "entries from there on, then live"),
    Command.STOP: ("Stop", Parameter.NONE, "nothing more is streamed"),
    Command.HEADER: ("Header", Parameter.NONE, "header entry, of what is committed"),
    Command.START_BOOKMARK: (
        "StartBookmark",
        Parameter.BOOKMARK,
        "entries from the bookmark's on, then live",
    ),
    Command.ENTRY: ("Entry", Parameter.ENTRY_NUMBER, "one entry, first byte `0xfe`"),
    Command.BOOKMARK: ("Bookmark", Parameter.BOOKMARK, "the first entry after it that is not a bookmark"),
    Command.RANGE_BOOKMARK: (
        "RangeBookmark",
        Parameter.TWO_BOOKMARKS,
        "u64 number of the last entry, then the entries from the first bookmark's to the second's",
    ),
}
"""command -> (name, parameter, what follows Result OK)."""

ERRORS: dict[CommandError, tuple[str, str]] = {
    CommandError.OK: ("OK", "stays open"),
    CommandError.ALREADY_STARTED: ("Already started", "stays open, or closed with `close`"),
    CommandError.ALREADY_STOPPED: ("Already stopped", "stays open, or closed with `close`"),
    CommandError.BAD_FROM_ENTRY: ("Bad from entry", "stays open"),
    CommandError.BAD_FROM_BOOKMARK: ("Bad from bookmark", "stays open"),
    CommandError.BAD_TO_BOOKMARK: ("Bad to bookmark", "stays open"),
    CommandError.INVALID_COMMAND: ("Invalid command", "closed: what follows cannot be framed"),
}
"""error -> (text of the Result, what becomes of the connection)."""

_BOOKMARK_COUNTS = {Parameter.BOOKMARK: 1, Parameter.TWO_BOOKMARKS: 2}

REPLIES: dict[ClientState, dict[Command, Reply]] = {
    ClientState.STOPPED: {
        Command.START: Reply.ANSWER,
        Command.STOP: Reply.ALREADY_STOPPED,
        Command.HEADER: Reply.ANSWER,
        Command.START_BOOKMARK: Reply.ANSWER,
        Command.ENTRY: Reply.ANSWER,
        Command.BOOKMARK: Reply.ANSWER,
        Command.RANGE_BOOKMARK: Reply.ANSWER,
    },
    ClientState.STREAMING: {
        Command.START: Reply.ALREADY_STARTED,
        Command.STOP: Reply.ANSWER,
        Command.HEADER: Reply.ALREADY_STARTED,  # [go] the error number of all three
        Command.START_BOOKMARK: Reply.ALREADY_STARTED,
        Command.ENTRY: Reply.ALREADY_STARTED,
        Command.BOOKMARK: Reply.ALREADY_STARTED,
        Command.RANGE_BOOKMARK: Reply.ALREADY_STARTED,
    },
}


@dataclass(frozen=True, slots=True)
class Send:
    """Send these bytes; while streaming, behind the current entry."""

    data: bytes


@dataclass(frozen=True, slots=True)
class SendRange:
    """Send these committed bytes of the file, the rest of a long answer, which memory does not hold."""

    offset: int
    size: int
    """All of them are on one page."""


@dataclass(frozen=True, slots=True)
class SendEntries:
    """Send the entries between two offsets of the file; the next command is answered behind them."""

    offset: int
    end: int
    """Behind the last entry."""


@dataclass(frozen=True, slots=True)
class StartStream:
    """Stream entries from this offset on, live ones too."""

    offset: int


@dataclass(frozen=True, slots=True)
class StopStream:
    """Stop streaming behind the current entry."""


@dataclass(frozen=True, slots=True)
class EndAfterCatchUp:
    """Stream everything committed now, then close: the client has closed its sending side."""


@dataclass(frozen=True, slots=True)
class Close:
    """Close behind everything before."""

    reason: str
    """For the log."""


Effect = Send | SendRange | SendEntries | StartStream | StopStream | EndAfterCatchUp | Close


class StreamView(Protocol):
    """The part of `DataStreamer` that commands need: committed entries."""

    def header_bytes(self) -> bytes:
        """Return the header entry (38 bytes)."""
        ...

    def offset_of(self, number: int) -> int:
        """Return where an entry begins; for the number after the last, where the stream ends."""
        ...

    def get_entry(self, number: int) -> Entry:
        """Return an entry, or raise NotFoundError."""
        ...

    def get_bookmark(self, bookmark: bytes) -> int:
        """Return the entry number of a bookmark, or raise NotFoundError."""
        ...

    def get_first_event_after_bookmark(self, bookmark: bytes) -> Entry:
        """Return the answer to a Bookmark command, or raise NotFoundError."""
        ...


def _alias_of(bookmark: bytes) -> bytes | None:
    """Return the bookmark that one in the original 9-byte form stands for; None: it has another form."""
    if len(bookmark) != _ORIGINAL_BOOKMARK_SIZE or bookmark[0] not in _NETWORK_TYPES:
        return None
    return Bookmark(_NETWORK_TYPES[bookmark[0]], int.from_bytes(bookmark[1:], "big")).encode()


def encode_command(command: Command, stream_type: int, *parameters: int | bytes) -> bytes:
    """Return the bytes of a request; each parameter is an entry number or a bookmark."""
    request = _HEAD.pack(command, stream_type)
    for parameter in parameters:
        if isinstance(parameter, bytes):
            request += _U32.pack(len(parameter)) + parameter
        else:
            request += _U64.pack(parameter)
    return request


class CommandCore:
    """The protocol of one client connection.

    Args:
        on_command_error: whether a command in the wrong state only returns an error ("keep"), or also closes
            the connection ("close", as Go servers did before their #133).
    """

    __slots__ = ("_buffer", "_closed", "_ended", "_on_command_error", "_stream_type", "_view", "state")

    def __init__(self, view: StreamView, stream_type: int, on_command_error: OnCommandError = "keep") -> None:
        self._view = view
        self._stream_type = stream_type
        self._on_command_error = on_command_error
        self._buffer = b""
        self._ended = False
        self._closed = False
        self.state = ClientState.STOPPED

    def receive(self, data: bytes) -> None:
        """Add bytes from the client."""
        self._buffer += data

    @property
    def has_bytes(self) -> bool:
        """True if bytes of a further command have come."""
        return bool(self._buffer)

    def receive_end(self) -> None:
        """Note that the client closed its sending side; earlier commands are still answered."""
        self._ended = True

    def next_effects(self) -> list[Effect] | None:
        """Return the effects of the next complete command, or of the end; None: wait for more bytes.

        If the view raises anything but NotFoundError and PageNotServed, the next call repeats the command.
        Nothing follows a `Close` or an `EndAfterCatchUp`.
        """
        if self._closed:
            return None
        effects = self._next_command()
        if effects is None and self._ended:
            self._closed = True
            if self.state is ClientState.STREAMING:
                return [EndAfterCatchUp()]
            return [Close("the client closed its side")]
        if effects and isinstance(effects[-1], Close):
            self._closed = True
            self._buffer = b""
        return effects

    def _next_command(self) -> list[Effect] | None:
        buffer = self._buffer
        if len(buffer) < _HEAD.size:
            return None
        number, stream_type = _HEAD.unpack_from(buffer)
        if buffer.startswith(_TLS_HANDSHAKE):
            return [Close(SPEAKS_TLS)]
        if stream_type != self._stream_type:  # before the command is looked at, and without a Result
            return [Close(f"stream type {stream_type}, expected {self._stream_type}")]
        try:
            command = Command(number)
        except ValueError:
            return [*self._error(CommandError.INVALID_COMMAND), Close(f"unknown command {number}")]
        parameters: list[int | bytes] = []
        end = _HEAD.size
        kind = COMMANDS[command][1]
        if kind is Parameter.ENTRY_NUMBER:
            end += _U64.size
            if len(buffer) < end:
                return None
            parameters.extend(_U64.unpack_from(buffer, _HEAD.size))
        for _ in range(_BOOKMARK_COUNTS.get(kind, 0)):
            begin = end + _U32.size
            if len(buffer) < begin:
                return None
            (size,) = _U32.unpack_from(buffer, end)
            if not BOOKMARK_SIZE_MIN <= size <= BOOKMARK_SIZE_MAX:
                return [Close(f"bookmark of {size} bytes, expected 1 to {BOOKMARK_SIZE_MAX}")]
            end = begin + size
            if len(buffer) < end:
                return None
            parameters.append(buffer[begin:end])
        effects = self._reply(command, parameters)
        self._buffer = buffer[end:]  # behind it: the next call repeats a query that failed
        return effects

    def _reply(self, command: Command, parameters: list[int | bytes]) -> list[Effect]:
        match REPLIES[self.state][command]:
            case Reply.ANSWER:
                return self._answer(command, parameters)
            case Reply.ALREADY_STARTED:
                error = CommandError.ALREADY_STARTED
            case Reply.ALREADY_STOPPED:
                error = CommandError.ALREADY_STOPPED
        if self._on_command_error == "keep":
            return self._error(error)
        # The connection ends with this Result: no stream follows.
        stop: list[Effect] = [StopStream()] if self.state is ClientState.STREAMING else []
        name, text = COMMANDS[command][0], ERRORS[error][0]
        return [*stop, *self._error(error), Close(f"{name} while {self.state.name.lower()}: {text}")]

    def _answer(self, command: Command, parameters: list[int | bytes]) -> list[Effect]:
        ok = encode_result(CommandError.OK, ERRORS[CommandError.OK][0])
        match command, *parameters:
            case Command.START, int(number):
                return self._start(number, CommandError.BAD_FROM_ENTRY)
            case Command.START_BOOKMARK, bytes(bookmark):
                return self._start(bookmark, CommandError.BAD_FROM_BOOKMARK)
            case (Command.STOP,):
                self.state = ClientState.STOPPED
                return [StopStream(), Send(ok)]
            case (Command.HEADER,):
                return [Send(ok + self._view.header_bytes())]
            case Command.ENTRY, int(number):
                return self._find(ok, number)
            case Command.BOOKMARK, bytes(bookmark):
                return self._find(ok, bookmark)
            case Command.RANGE_BOOKMARK, bytes(first), bytes(last):
                return self._range(ok, first, last)
        raise AssertionError((command, parameters))

    @staticmethod
    def _by_bookmark(look: Callable[[bytes], T], bookmark: bytes) -> T:
        """Look for a bookmark; where it is not there, for what its original form stands for."""
        try:
            return look(bookmark)
        except NotFoundError:
            alias = _alias_of(bookmark)
            if alias is None:
                raise
            return look(alias)

    def _start(self, where: int | bytes, error: CommandError) -> list[Effect]:
        try:
            view = self._view
            number = self._by_bookmark(view.get_bookmark, where) if isinstance(where, bytes) else where
            offset = view.offset_of(number)
        except (NotFoundError, PageNotServed):
            return self._error(error)
        self.state = ClientState.STREAMING
        return [Send(encode_result(CommandError.OK, ERRORS[CommandError.OK][0])), StartStream(offset)]

    def _range(self, ok: bytes, first: bytes, last: bytes) -> list[Effect]:
        view = self._view
        error = CommandError.BAD_FROM_BOOKMARK
        try:
            first_number = self._by_bookmark(view.get_bookmark, first)
            offset = view.offset_of(first_number)
            error = CommandError.BAD_TO_BOOKMARK
            last_number = self._by_bookmark(view.get_bookmark, last)
            end = view.offset_of(last_number + 1)
        except (NotFoundError, PageNotServed):
            return self._error(error)
        if last_number < first_number:
            return self._error(error)
        return [Send(ok + _U64.pack(last_number)), SendEntries(offset, end)]

    def _find(self, ok: bytes, what: int | bytes) -> list[Effect]:
        view = self._view
        try:
            if isinstance(what, bytes):
                entry = self._by_bookmark(view.get_first_event_after_bookmark, what)
            else:
                entry = view.get_entry(what)
            if len(entry.data) <= ANSWER_COPY_BYTES_MAX:
                return [Send(ok + encode_entry(entry, PACKET_ANSWER))]
            offset = view.offset_of(entry.number)
        except NotFoundError:
            return [Send(ok + NOT_FOUND_ANSWER)]
        except PageNotServed:  # "not found" would be wrong
            is_bookmark = isinstance(what, bytes)
            return self._error(CommandError.BAD_FROM_BOOKMARK if is_bookmark else CommandError.BAD_FROM_ENTRY)
        # In the file, only its first byte differs.
        rest = SendRange(offset + 1, ENTRY_HEAD_SIZE - 1 + len(entry.data))
        return [Send(ok + bytes((PACKET_ANSWER,))), rest]

    @staticmethod
    def _error(error: CommandError) -> list[Effect]:
        return [Send(encode_result(error, ERRORS[error][0]))]
