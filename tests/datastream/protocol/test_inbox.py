"""What a client receives and may take: whole, byte by byte, and out of order."""

from __future__ import annotations

import pytest

from sluice.datastream.errors import (
    BookmarkNotFound,
    CommandRefused,
    ConnectionEnded,
    EntryNotFound,
    ServerSpokeWrongly,
)
from sluice.datastream.layout import Entry, StreamHeader, encode_entry, encode_header
from sluice.datastream.protocol.commands import Command
from sluice.datastream.protocol.inbox import Inbox, answered_entry, answered_header
from sluice.datastream.protocol.packets import Answer, Result, encode_result

OK = encode_result(0, "OK")
HEADER = StreamHeader(1, 137, 1, 4096, 0)
ENTRIES = [Entry(1, 0, b"a"), Entry(2, 1, b"")]
STREAMED = b"".join(encode_entry(entry) for entry in ENTRIES)


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_a_stop_after_entries(size: int) -> None:
    inbox = Inbox(1)
    inbox.is_streaming = True
    data = STREAMED + OK
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    for piece in pieces:
        assert not inbox.take_result(Command.STOP)
        inbox.feed(piece, "streaming")
    assert inbox.take_result(Command.STOP)
    assert not inbox.take_result(Command.STOP)
    assert inbox.take_entries() == ENTRIES
    assert inbox.take_entries() == []


def test_an_answer_comes_after_its_result() -> None:
    inbox = Inbox(1)
    inbox.feed(OK, "x")
    assert inbox.take_result(Command.HEADER)
    assert inbox.take_answer() is None
    inbox.feed(encode_header(HEADER), "x")
    packet = inbox.take_answer()
    assert packet is not None
    assert answered_header(packet) == HEADER


def test_refusals() -> None:
    inbox = Inbox(1)
    with pytest.raises(ConnectionEnded, match="server: closed the connection while answering Header"):
        inbox.feed(b"", "answering Header")
    inbox.feed(encode_result(3, "Bad from entry"), "x")
    with pytest.raises(CommandRefused, match="server: Start: error 3 Bad from entry"):
        inbox.take_result(Command.START)
    inbox.feed(encode_header(HEADER), "x")
    with pytest.raises(ServerSpokeWrongly, match="server: answer: got StreamHeader, expected a Result"):
        inbox.take_result(Command.START)
    with pytest.raises(
        ServerSpokeWrongly, match="server: packet in the stream: got StreamHeader, expected an"
    ):
        inbox.take_entries()


def test_answers() -> None:
    assert answered_entry(Answer(ENTRIES[0]), 0) == ENTRIES[0]
    with pytest.raises(EntryNotFound, match="entry 7: not found"):
        answered_entry(Answer(None), 7)
    with pytest.raises(BookmarkNotFound, match="bookmark 6e6f: not found"):
        answered_entry(Answer(None), b"no")
    with pytest.raises(ServerSpokeWrongly, match="server: answer to Entry: got Result, expected an entry"):
        answered_entry(Result(0, "OK"), 7)
    with pytest.raises(ServerSpokeWrongly, match="server: answer to Bookmark: got Result, expected an entry"):
        answered_entry(Result(0, "OK"), b"x")
    with pytest.raises(ServerSpokeWrongly, match="server: answer to Header: got Result, expected a header"):
        answered_header(Result(0, "OK"))


def test_entries_that_nobody_asked_for() -> None:
    """They could fill the memory in place of a Result."""
    inbox = Inbox(1)
    inbox.feed(STREAMED, "x")
    with pytest.raises(ServerSpokeWrongly, match="server: answer: got Entry, expected a Result"):
        inbox.take_result(Command.HEADER)
