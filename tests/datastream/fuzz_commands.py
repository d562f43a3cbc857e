"""Fuzzing the TCP commands: random and mutated requests in random pieces, against the pure core.

    python -m tests.datastream.fuzz_commands --cases 100000

A driver performs the effects on a file held as bytes. For every input:

  - there is no exception and no endless loop: each call takes a whole command or asks for more;
  - every sent range is below the committed length, and a stream begins at an entry;
  - the output does not depend on how the input is cut;
  - after `Close` the core answers nothing and holds nothing of the client.
"""

from __future__ import annotations

import argparse
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sluice.datastream.errors import BookmarkNotFound, EntryNotFound
from sluice.datastream.layout import (
    BOOKMARK_TYPE,
    HEADER_PAGE_SIZE,
    Entry,
    StreamHeader,
    encode_entry,
    encode_header,
)
from sluice.datastream.protocol.commands import (
    ANSWER_COPY_BYTES_MAX,
    Close,
    Command,
    CommandCore,
    EndAfterCatchUp,
    OnCommandError,
    Send,
    SendRange,
    StartStream,
    StopStream,
    encode_command,
)

STREAM_TYPE = 1
ENTRIES = (
    Entry(BOOKMARK_TYPE, 0, b"\0\0\0\0\0\0\0\0\1"),
    Entry(1, 1, b"short"),
    Entry(BOOKMARK_TYPE, 2, b"b"),
    Entry(2, 3, b"L" * (ANSWER_COPY_BYTES_MAX + 1)),
    Entry(BOOKMARK_TYPE, 4, b"sixteen bytes !!"),
    Entry(3, 5, b""),
    Entry(BOOKMARK_TYPE, 6, b"b"),
)
COMMAND_SIZE_MAX = 36
U64_MAX = (1 << 64) - 1


@dataclass
class BytesStream:
    """A stream held as bytes, with uncommitted bytes behind it."""

    offsets: list[int] = field(default_factory=list)
    data: bytes = bytes(HEADER_PAGE_SIZE)

    def __post_init__(self) -> None:
        for entry in ENTRIES:
            self.offsets.append(len(self.data))
            self.data += encode_entry(entry)
        self.total_length = len(self.data)
        self.offsets.append(self.total_length)
        self.data += b"\2 not committed" * 100

    def header_bytes(self) -> bytes:
        return encode_header(StreamHeader(1, 137, STREAM_TYPE, self.total_length, len(ENTRIES)))

    def offset_of(self, number: int) -> int:
        if not 0 <= number <= len(ENTRIES):
            raise EntryNotFound(number, len(ENTRIES))
        return self.offsets[number]

    def get_entry(self, number: int) -> Entry:
        if not 0 <= number < len(ENTRIES):
            raise EntryNotFound(number, len(ENTRIES))
        return ENTRIES[number]

    def get_bookmark(self, bookmark: bytes) -> int:
        for entry in reversed(ENTRIES):
            if entry.is_bookmark and entry.data == bookmark:
                return entry.number
        raise BookmarkNotFound(bookmark)

    def get_first_event_after_bookmark(self, bookmark: bytes) -> Entry:
        following = ENTRIES[self.get_bookmark(bookmark) :]
        return next((entry for entry in following if not entry.is_bookmark), following[-1])


STREAM = BytesStream()


class Driver:
    """Performs effects as a connection that can always send; while streaming it is up to date."""

    def __init__(self, on_command_error: OnCommandError) -> None:
        self.core = CommandCore(STREAM, STREAM_TYPE, on_command_error)
        self.output = bytearray()
        self.is_streaming = False
        self.is_closed = False

    def receive(self, piece: bytes) -> None:
        self.core.receive(piece)
        self._run()

    def receive_end(self) -> None:
        self.core.receive_end()
        self._run()
        assert self.is_closed

    def _run(self) -> None:
        steps = 0
        while (effects := self.core.next_effects()) is not None:
            assert not self.is_closed, "answered after it was closed"
            before = len(self.output)
            for effect in effects:
                self._perform(effect)
            assert len(self.output) - before <= STREAM.total_length + 100
            steps += 1
            assert steps < 100_000
        assert len(self.core._buffer) < COMMAND_SIZE_MAX or self.is_closed

    def _perform(self, effect: object) -> None:
        assert not self.is_closed, "an effect after Close"
        match effect:
            case Send(data):
                self.output += data
            case SendRange(offset, size):
                assert not self.is_streaming
                self._send(offset, size)
            case StartStream(offset):
                assert offset in STREAM.offsets
                self.is_streaming = True
                self._send(offset, STREAM.total_length - offset)
            case StopStream():
                assert self.is_streaming
                self.is_streaming = False
            case EndAfterCatchUp():
                assert self.is_streaming
                self.is_closed = True
            case Close():
                self.is_closed = True
            case _:
                raise AssertionError(effect)

    def _send(self, offset: int, size: int) -> None:
        assert HEADER_PAGE_SIZE <= offset <= offset + size <= STREAM.total_length
        self.output += STREAM.data[offset : offset + size]


def check_request(request: bytes, cuts: Sequence[int], on_command_error: OnCommandError) -> None:
    """Run one input whole and in pieces, and check the properties.

    Args:
        request: any bytes.
        cuts: where to cut it, modulo its length.
        on_command_error: see `CommandCore`.
    """
    whole = Driver(on_command_error)
    whole.receive(request)
    closed_by_server = whole.is_closed
    if not closed_by_server:
        whole.receive_end()
    else:
        assert not whole.core._buffer

    places = sorted({0, len(request), *(cut % (len(request) + 1) for cut in cuts)})
    pieces = Driver(on_command_error)
    for begin, end in pairwise(places):
        if not pieces.is_closed:
            pieces.receive(request[begin:end])
    assert pieces.is_closed == closed_by_server
    if not pieces.is_closed:
        pieces.receive_end()
    assert pieces.output == whole.output
    assert pieces.core.state == whole.core.state


# --- inputs ----------------------------------------------------------------------------------------------

numbers = st.one_of(
    st.integers(0, len(ENTRIES) + 1),
    st.sampled_from([U64_MAX, U64_MAX - 1, 1 << 63, 1 << 32, (1 << 31) - 1]),
    st.integers(0, U64_MAX),
)
bookmarks = st.one_of(
    st.sampled_from([entry.data for entry in ENTRIES if entry.is_bookmark]),
    st.binary(min_size=1, max_size=16),
)
sound = st.one_of(
    st.builds(encode_command, st.sampled_from([Command.START, Command.ENTRY]), st.just(STREAM_TYPE), numbers),
    st.builds(encode_command, st.sampled_from([Command.STOP, Command.HEADER]), st.just(STREAM_TYPE)),
    st.builds(
        encode_command,
        st.sampled_from([Command.START_BOOKMARK, Command.BOOKMARK]),
        st.just(STREAM_TYPE),
        bookmarks,
    ),
)
odd = st.one_of(
    st.builds(lambda number, kind: struct.pack(">QQ", number, kind), numbers, numbers),
    st.builds(
        lambda command, size, data: struct.pack(">QQI", command, STREAM_TYPE, size) + data,
        st.sampled_from([Command.START_BOOKMARK, Command.BOOKMARK]),
        st.sampled_from([0, 1, 16, 17, 255, 1 << 31, (1 << 32) - 1]),
        st.binary(max_size=20),
    ),
    st.binary(max_size=50),
)


def mutate(request: bytes, changes: Sequence[tuple[int, int, int]]) -> bytes:
    """Return a request with bytes changed, dropped or repeated."""
    data = bytearray(request)
    for place, how, value in changes:
        if not data:
            break
        at = place % len(data)
        match how:
            case 0:
                data[at] = value
            case 1:
                data[at] ^= 1 << value % 8
            case 2:
                del data[at : at + 1 + value % 9]
            case _:
                data[at:at] = data[at : at + 1 + value % 9]
    return bytes(data)


requests = st.one_of(
    st.lists(sound, max_size=12).map(b"".join),
    st.lists(st.one_of(sound, sound, sound, odd), max_size=8).map(b"".join),
    st.builds(
        mutate,
        st.lists(sound, min_size=1, max_size=8).map(b"".join),
        st.lists(st.tuples(st.integers(0, 400), st.integers(0, 3), st.integers(0, 255)), max_size=4),
    ),
    st.binary(max_size=120),
)
cuts = st.lists(st.integers(0, 500), max_size=30)
modes: st.SearchStrategy[OnCommandError] = st.sampled_from(["close", "keep"])


def check_cases(case_count: int) -> None:
    """Check so many random requests; a failing one is made small and raised."""

    @settings(
        max_examples=case_count,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(requests, cuts, modes)
    def cases(request: bytes, cuts: list[int], mode: OnCommandError) -> None:
        check_request(request, cuts, mode)

    cases()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as many cases as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.datastream.fuzz_commands")
    parser.add_argument("--cases", type=int, default=1000)
    count = parser.parse_args(arguments).cases
    check_cases(count)
    sys.stdout.write(f"TCP commands: {count:,} cases, nothing found\n")


if __name__ == "__main__":
    main()
