"""Every error says object, got and expected, and holds them as fields."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.datastream import errors
from sluice.datastream.errors import DatastreamError

PATH = Path("s.bin")
FULL = OSError(28, "No space left on device")
CASES: list[tuple[DatastreamError, str]] = [
    (
        errors.OperationAlreadyOpen("start_atomic_op"),
        "start_atomic_op: an atomic operation is open already; commit, seal or roll it back first",
    ),
    (errors.NoOperationOpen("x"), "x: no atomic operation is open; start one first"),
    (errors.CommitInProgress("x"), "x: a commit is in progress in another thread; wait for it"),
    (errors.CommitBegun("x"), "x: a commit was begun; finish it first"),
    (errors.StreamClosed("x"), "x: the stream is closed"),
    (
        errors.OperationsNotCommitted("x"),
        "x: sealed operations wait for a commit; commit them or roll the group back first",
    ),
    (errors.StreamReadOnly("x"), "x: the stream is open for reading only"),
    (
        errors.EntrySealed(7),
        "entry 7: its operation is sealed; update it after the commit, or before sealing",
    ),
    (
        errors.UpdateTypeDiffers(7, 0xB0, 1),
        "entry 7: got type 0xb0, expected 0x1, as it is committed with this type",
    ),
    (
        errors.UpdateSizeDiffers(7, 2, 3),
        "entry 7: got 2 bytes of data, expected 3, as it is committed with this length",
    ),
    (errors.BookmarksReversed(b"\1", 9, b"\2", 4), "bookmark 01 is entry 9, after bookmark 02, entry 4"),
    (errors.RangeTooLarge(1, 9, 100), "data of entries 1 to 9: more than 100 bytes"),
    (errors.HeaderBehind(PATH, "5 entries", "6"), "s.bin: header: found 5 entries, expected 6"),
    (
        errors.UpdateUnfinished(PATH, "one", "none"),
        "s.bin: update of an entry: found one, expected none",
    ),
    (
        errors.StreamChanged(PATH, 5000),
        "s.bin: offset 5000: the stream was truncated or updated there",
    ),
    (errors.EntryTooLong(9, 8), "entry data: got 9 bytes, at most 8 fit on a data page"),
    (errors.EntryTypeReserved(0xB0, "is a bookmark"), "entry type 0xb0: is a bookmark"),
    (errors.BookmarkSizeWrong(17, 16), "bookmark: got 17 bytes, expected 1 to 16"),
    (
        errors.OperationTooLarge(11, 10),
        "uncommitted operations: 11 bytes with this entry, at most 10 are allowed",
    ),
    (
        errors.BadEntryRange(2, 1, 5),
        "entries 2 to 1: expected 0 <= from <= to <= 5, the number of committed entries",
    ),
    (errors.EntryNotFound(5, 5), "entry 5: not found; the stream has 5 entries"),
    (errors.EntryNotFound(5), "entry 5: not found"),
    (errors.BookmarkNotFound(b"\1\2"), "bookmark 0102: not found"),
    (errors.WrongMagic(PATH, "a", "b"), "s.bin: magic bytes: found a, expected b"),
    (
        errors.EntriesDisagree(PATH, 3, 4096, "packet type 9", "packet type 2"),
        "s.bin: entries: found packet type 9 at entry 3, offset 4096, expected packet type 2",
    ),
    (
        errors.PageDamaged(PATH, 2, 30, 41, "CRC32C 01", "02"),
        "s.bin: data page 2, entries 30 to 40: found CRC32C 01 at entry 30, offset 2101248, expected 02",
    ),
    (
        errors.PageNotLocal(PATH, 2, 30, "it"),
        "s.bin: data page 2: found a page that is not on this disk at entry 30, offset 2101248, expected it",
    ),
    (
        errors.EntriesArchived("truncate", 7, 30),
        "truncate: got entry 7, expected 30 or later, as those before are archived",
    ),
    (errors.PageUnchecked(2), "data page 2: not checked yet"),
    (
        errors.StreamFileUnavailable(PATH, OSError(13, "Permission denied")),
        "s.bin: cannot open the stream file: Permission denied",
    ),
    (
        errors.StreamInUse(PATH, "s.db/LOCK"),
        "s.bin: the stream is in use by another program or opener (lock s.db/LOCK)",
    ),
    (errors.BookmarksUnavailable("s.db", "broken"), "s.db: bookmark DB: broken"),
    (errors.BookmarksUnavailable("s.db", OSError(b"IO error: \xff")), "s.db: bookmark DB: IO error: \ufffd"),
    (errors.BookmarksUnavailable("s.db", OSError(28, "full")), "s.db: bookmark DB: [Errno 28] full"),
    (
        errors.CommitFailed(PATH, "1 entries", FULL),
        "s.bin: commit failed at step 1 entries: No space left on device",
    ),
    (errors.AddressUnavailable("h", 1, OSError(98, "in use")), "h:1: cannot listen: in use"),
    (errors.ServerSpokeWrongly("length", "1", "2"), "server: length: got 1, expected 2"),
    (errors.ConnectionEnded("streaming"), "server: closed the connection while streaming"),
    (
        errors.EventMalformed("L2Block", 4, "wire type 5", "0"),
        "event L2Block at byte 4: got wire type 5, expected 0",
    ),
    (
        errors.EventValueWrong("L2Tx", "is_valid", "256", "u8"),
        "event L2Tx: is_valid: got 256, expected u8",
    ),
    (errors.CommandRefused("Start", 3, "Bad from entry"), "server: Start: error 3 Bad from entry"),
    (errors.ServerBehind(5, 7), "server: has 5 entries, but entry 7 is the next wanted"),
    (errors.EntryOutOfOrder("entry 5", "entry 4"), "server: streamed entry 5, expected entry 4"),
    (
        errors.EntryNotRelayed(3, "bookmark: got 17 bytes, expected 1 to 16"),
        "server: entry 3 cannot be relayed: bookmark: got 17 bytes, expected 1 to 16",
    ),
    (
        errors.StreamContradicts("system id", "1", "2"),
        "server: another stream: system id: got 1, expected 2",
    ),
]


@pytest.mark.parametrize(("error", "message"), CASES)
def test_messages(error: DatastreamError, message: str) -> None:
    assert str(error) == message


def test_every_error_is_here() -> None:
    raised = {type(error).__name__ for error, _ in CASES}
    bases = {
        "DatastreamError",
        "MisuseError",
        "NotFoundError",
        "StreamFileRefused",
        "EnvironmentFault",
        "RemoteError",
        "PageNotServed",
    }
    same_form = {
        "ShorterThanHeaderPage",
        "NotWholePages",
        "WrongPacketType",
        "WrongHeaderSize",
        "WrongStreamType",
        "TotalLengthOutOfFile",
    }
    assert raised | bases | same_form == set(errors.__all__)
