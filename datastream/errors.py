"""The errors of the data streamer: the type says whose fault it is, the fields what and where.

DatastreamError
├── MisuseError               the program called us wrongly
│   ├── OperationAlreadyOpen, NoOperationOpen, OperationsNotCommitted
│   ├── CommitInProgress, CommitBegun, StreamClosed, StreamReadOnly
│   ├── EntryTooLong, EntryTypeReserved, BookmarkSizeWrong, OperationTooLarge
│   ├── EntrySealed, UpdateTypeDiffers, UpdateSizeDiffers, EntriesArchived
│   ├── BadEntryRange, BookmarksReversed, RangeTooLarge
│   └── EventValueWrong
├── NotFoundError             EntryNotFound, BookmarkNotFound
├── EventMalformed            data that is not the event its type says
├── StreamFileRefused         the file may not be used
│   ├── ShorterThanHeaderPage, NotWholePages, WrongMagic, WrongPacketType, WrongHeaderSize
│   ├── WrongStreamType, TotalLengthOutOfFile, UpdateUnfinished
│   ├── HeaderBehind          something knows of more entries than the header
│   └── EntriesDisagree       also raised when a damaged page is met later
│       └── PageNotServed
│           ├── PageDamaged   a page does not fit its checksum
│           └── PageNotLocal  the file has given it up, and the archive does not give it
├── PageUnchecked             for a thread that does not wait for a disk
├── EnvironmentFault          disk, locks, addresses
│   ├── StreamFileUnavailable, StreamInUse, BookmarksUnavailable
│   ├── CommitFailed, StreamChanged
│   └── AddressUnavailable
└── RemoteError               the other end of a connection
    ├── ServerSpokeWrongly, ConnectionEnded
    ├── CommandRefused
    ├── ServerBehind, EntryOutOfOrder, StreamContradicts    from a server that is followed
    └── EntryNotRelayed
"""

from __future__ import annotations

from pathlib import Path

from sluice.datastream.layout import HEADER_PAGE_SIZE, PAGE_SIZE

__all__ = [
    "AddressUnavailable",
    "BadEntryRange",
    "BookmarkNotFound",
    "BookmarkSizeWrong",
    "BookmarksReversed",
    "BookmarksUnavailable",
    "CommandRefused",
    "CommitBegun",
    "CommitFailed",
    "CommitInProgress",
    "ConnectionEnded",
    "DatastreamError",
    "EntriesArchived",
    "EntriesDisagree",
    "EntryNotFound",
    "EntryNotRelayed",
    "EntryOutOfOrder",
    "EntrySealed",
    "EntryTooLong",
    "EntryTypeReserved",
    "EnvironmentFault",
    "EventMalformed",
    "EventValueWrong",
    "HeaderBehind",
    "MisuseError",
    "NoOperationOpen",
    "NotFoundError",
    "NotWholePages",
    "OperationAlreadyOpen",
    "OperationTooLarge",
    "OperationsNotCommitted",
    "PageDamaged",
    "PageNotLocal",
    "PageNotServed",
    "PageUnchecked",
    "RangeTooLarge",
    "RemoteError",
    "ServerBehind",
    "ServerSpokeWrongly",
    "ShorterThanHeaderPage",
    "StreamChanged",
    "StreamClosed",
    "StreamContradicts",
    "StreamFileRefused",
    "StreamFileUnavailable",
    "StreamInUse",
    "StreamReadOnly",
    "TotalLengthOutOfFile",
    "UpdateSizeDiffers",
    "UpdateTypeDiffers",
    "UpdateUnfinished",
    "WrongHeaderSize",
    "WrongMagic",
    "WrongPacketType",
    "WrongStreamType",
]


class DatastreamError(Exception):
    """Base of this package's errors."""


# --- misuse ----------------------------------------------------------------------------------------------


class MisuseError(DatastreamError):
    """A wrong call by the program; nothing was changed."""


class _WrongState(MisuseError):
    state_text: str = ""

    def __init__(self, call: str) -> None:
        super().__init__(f"{call}: {self.state_text}")
        self.call = call


class OperationAlreadyOpen(_WrongState):
    """`start_atomic_op` while an operation is open."""

    state_text = "an atomic operation is open already; commit, seal or roll it back first"


class NoOperationOpen(_WrongState):
    """A call that needs an open operation, or one to commit."""

    state_text = "no atomic operation is open; start one first"


class OperationsNotCommitted(_WrongState):
    """A change of committed entries while sealed operations wait for a commit."""

    state_text = "sealed operations wait for a commit; commit them or roll the group back first"


class CommitInProgress(_WrongState):
    """A call while another thread commits, updates or truncates."""

    state_text = "a commit is in progress in another thread; wait for it"


class CommitBegun(_WrongState):
    """A change of committed entries during a begun commit."""

    state_text = "a commit was begun; finish it first"


class StreamClosed(_WrongState):
    """A call on a closed stream."""

    state_text = "the stream is closed"


class StreamReadOnly(_WrongState):
    """A change of a read-only stream."""

    state_text = "the stream is open for reading only"


class EntryTooLong(MisuseError):
    """An entry that does not fit on a data page."""

    def __init__(self, size: int, size_max: int) -> None:
        super().__init__(f"entry data: got {size} bytes, at most {size_max} fit on a data page")
        self.size = size
        self.size_max = size_max


class EntryTypeReserved(MisuseError):
    """An entry type that `add_stream_entry` refuses."""

    def __init__(self, entry_type: int, reason: str) -> None:
        super().__init__(f"entry type {entry_type:#x}: {reason}")
        self.entry_type = entry_type


class BookmarkSizeWrong(MisuseError):
    """A bookmark that is empty or too long."""

    def __init__(self, size: int, size_max: int) -> None:
        super().__init__(f"bookmark: got {size} bytes, expected 1 to {size_max}")
        self.size = size
        self.size_max = size_max


class OperationTooLarge(MisuseError):
    """Uncommitted operations would exceed their memory."""

    def __init__(self, size: int, size_max: int) -> None:
        super().__init__(
            f"uncommitted operations: {size} bytes with this entry, at most {size_max} are allowed"
        )
        self.size = size
        self.size_max = size_max


class EntrySealed(MisuseError):
    """An update of an entry whose operation is sealed: complete, but not committed."""

    def __init__(self, number: int) -> None:
        super().__init__(
            f"entry {number}: its operation is sealed; update it after the commit, or before sealing"
        )
        self.number = number


class EntriesArchived(MisuseError):
    """An update or a truncation of entries that are in an archive, which never changes."""

    def __init__(self, call: str, number: int, archived_end: int) -> None:
        super().__init__(
            f"{call}: got entry {number}, expected {archived_end} or later, as those before are archived"
        )
        self.number = number
        self.archived_end = archived_end


class UpdateTypeDiffers(MisuseError):
    """An update that would change a committed entry's type."""

    def __init__(self, number: int, entry_type: int, entry_type_committed: int) -> None:
        super().__init__(
            f"entry {number}: got type {entry_type:#x}, expected {entry_type_committed:#x}, "
            "as it is committed with this type"
        )
        self.number = number
        self.entry_type = entry_type
        self.entry_type_committed = entry_type_committed


class UpdateSizeDiffers(MisuseError):
    """An update that would change a committed entry's length."""

    def __init__(self, number: int, size: int, size_committed: int) -> None:
        super().__init__(
            f"entry {number}: got {size} bytes of data, expected {size_committed}, "
            "as it is committed with this length"
        )
        self.number = number
        self.size = size
        self.size_committed = size_committed


class BadEntryRange(MisuseError):
    """A range of entry numbers outside the stream."""

    def __init__(self, from_number: int, to_number: int, total_entries: int) -> None:
        super().__init__(
            f"entries {from_number} to {to_number}: expected 0 <= from <= to <= {total_entries}, "
            "the number of committed entries"
        )
        self.from_number = from_number
        self.to_number = to_number
        self.total_entries = total_entries


class BookmarksReversed(MisuseError):
    """A range between bookmarks in reverse order."""

    def __init__(self, from_bookmark: bytes, from_number: int, to_bookmark: bytes, to_number: int) -> None:
        super().__init__(
            f"bookmark {from_bookmark.hex()} is entry {from_number}, after bookmark {to_bookmark.hex()}, "
            f"entry {to_number}"
        )
        self.from_bookmark = from_bookmark
        self.from_number = from_number
        self.to_bookmark = to_bookmark
        self.to_number = to_number


class RangeTooLarge(MisuseError):
    """A range whose joined data would exceed its memory."""

    def __init__(self, from_number: int, to_number: int, size_max: int) -> None:
        super().__init__(f"data of entries {from_number} to {to_number}: more than {size_max} bytes")
        self.from_number = from_number
        self.to_number = to_number
        self.size_max = size_max


class EventValueWrong(MisuseError):
    """A value that its event cannot hold."""

    def __init__(self, event: str, field: str, got: str, expected: str) -> None:
        super().__init__(f"event {event}: {field}: got {got}, expected {expected}")
        self.event = event
        self.field = field
        self.got = got
        self.expected = expected


# --- not found -------------------------------------------------------------------------------------------


class NotFoundError(DatastreamError):
    """Something that is not in the stream."""


class EntryNotFound(NotFoundError):
    """An entry number at or past the end of the stream."""

    def __init__(self, number: int, total_entries: int | None = None) -> None:
        known = "" if total_entries is None else f"; the stream has {total_entries} entries"
        super().__init__(f"entry {number}: not found{known}")
        self.number = number
        self.total_entries = total_entries


class BookmarkNotFound(NotFoundError):
    """A bookmark that no committed entry has."""

    def __init__(self, bookmark: bytes) -> None:
        super().__init__(f"bookmark {bookmark.hex()}: not found")
        self.bookmark = bookmark


# --- the stream file -------------------------------------------------------------------------------------


class StreamFileRefused(DatastreamError):
    """A file that cannot be opened as a stream; it was not changed."""

    what: str = "file"

    def __init__(self, path: Path | str, found: str, expected: str) -> None:
        super().__init__(f"{path}: {self.what}: found {found}, expected {expected}")
        self.path = path
        self.found = found
        self.expected = expected


class ShorterThanHeaderPage(StreamFileRefused):
    """The file ends before its header page does."""

    what = "file size"


class NotWholePages(StreamFileRefused):
    """The file does not end with a whole data page."""

    what = "file size"


class WrongMagic(StreamFileRefused):
    """The first 16 bytes are wrong."""

    what = "magic bytes"


class WrongPacketType(StreamFileRefused):
    """The packet type of the header entry is not 1."""

    what = "packet type of the header entry"


class WrongHeaderSize(StreamFileRefused):
    """The length field of the header entry is not 38."""

    what = "length of the header entry"


class WrongStreamType(StreamFileRefused):
    """The file holds another type of stream."""

    what = "stream type"


class TotalLengthOutOfFile(StreamFileRefused):
    """`TotalLength` points outside the file."""

    what = "TotalLength"


class EntriesDisagree(StreamFileRefused):
    """The entries do not lead exactly to `TotalLength` and `TotalEntries`."""

    what = "entries"

    def __init__(self, path: Path | str, number: int, offset: int, found: str, expected: str) -> None:
        super().__init__(path, f"{found} at entry {number}, offset {offset}", expected)
        self.number = number
        self.offset = offset


class PageNotServed(EntriesDisagree):
    """A full page that cannot be read now: none of it is served."""


class PageDamaged(PageNotServed):
    """A damaged full page: none of it is served."""

    def __init__(
        self,
        path: Path | str,
        page_number: int,
        first_number: int,
        entries_end: int,
        found: str,
        expected: str,
    ) -> None:
        offset = HEADER_PAGE_SIZE + page_number * PAGE_SIZE
        self.what = f"data page {page_number}, entries {first_number} to {entries_end - 1}"
        super().__init__(path, first_number, offset, found, expected)
        self.page_number = page_number
        self.entries_end = entries_end


class PageNotLocal(PageNotServed):
    """A page that the file has given up, and that its archive does not give now."""

    def __init__(self, path: Path | str, page_number: int, first_number: int, reason: str) -> None:
        self.what = f"data page {page_number}"
        offset = HEADER_PAGE_SIZE + page_number * PAGE_SIZE
        super().__init__(path, first_number, offset, "a page that is not on this disk", reason)
        self.page_number = page_number
        self.reason = reason


class PageUnchecked(DatastreamError):
    """An unchecked page whose reader does not wait for a disk."""

    def __init__(self, page_number: int) -> None:
        super().__init__(f"data page {page_number}: not checked yet")
        self.page_number = page_number


class UpdateUnfinished(StreamFileRefused):
    """An interrupted update in place that a read-only opening cannot finish."""

    what = "update of an entry"


class HeaderBehind(StreamFileRefused):
    """A header that counts fewer entries than other evidence; those behind it may be committed."""

    what = "header"


# --- typed events ----------------------------------------------------------------------------------------


class EventMalformed(DatastreamError):
    """Data that is not the event of its entry's type."""

    def __init__(self, event: str, position: int, got: str, expected: str) -> None:
        super().__init__(f"event {event} at byte {position}: got {got}, expected {expected}")
        self.event = event
        self.position = position
        self.got = got
        self.expected = expected


# --- the environment -------------------------------------------------------------------------------------


class EnvironmentFault(DatastreamError):
    """A fault of disk, locks or addresses."""


class StreamFileUnavailable(EnvironmentFault):
    """The operating system refuses the stream file."""

    def __init__(self, path: Path | str, os_error: OSError) -> None:
        super().__init__(f"{path}: cannot open the stream file: {os_error.strerror or os_error}")
        self.path = path
        self.os_error = os_error


class StreamInUse(EnvironmentFault):
    """Another opener has the stream."""

    def __init__(self, path: Path | str, lock_path: Path | str | None, holder: str = "") -> None:
        """Make the error.

        Args:
            lock_path: the locked file; None: the other opener has the stream file open for writing.
            holder: the process, if known.
        """
        how = "which has it open for writing" if lock_path is None else f"lock {lock_path}"
        held = f", {holder}" if holder else ""
        super().__init__(f"{path}: the stream is in use by another program or opener ({how}{held})")
        self.path = path
        self.lock_path = lock_path
        self.holder = holder


class BookmarksUnavailable(EnvironmentFault):
    """The bookmark DB cannot be opened, read or written."""

    def __init__(self, folder: Path | str, reason: str | Exception) -> None:
        words = reason.args[0] if isinstance(reason, Exception) and reason.args else reason
        # LevelDB's messages are bytes.
        self.reason = words.decode("utf-8", "replace") if isinstance(words, bytes) else str(reason)
        super().__init__(f"{folder}: bookmark DB: {self.reason}")
        self.folder = folder


class CommitFailed(EnvironmentFault):
    """A commit that failed before its commit point; the group was dropped."""

    def __init__(self, path: Path | str, step: str, os_error: OSError) -> None:
        super().__init__(f"{path}: commit failed at step {step}: {os_error.strerror or os_error}")
        self.path = path
        self.step = step
        self.os_error = os_error


class StreamChanged(EnvironmentFault):
    """A truncation or update at a reader's place: it must begin anew."""

    def __init__(self, path: Path | str, offset: int) -> None:
        super().__init__(f"{path}: offset {offset}: the stream was truncated or updated there")
        self.path = path
        self.offset = offset


class AddressUnavailable(EnvironmentFault):
    """The server cannot listen on its address."""

    def __init__(self, host: str, port: int, os_error: OSError) -> None:
        super().__init__(f"{host}:{port}: cannot listen: {os_error.strerror or os_error}")
        self.host = host
        self.port = port
        self.os_error = os_error


# --- the other end ---------------------------------------------------------------------------------------


class RemoteError(DatastreamError):
    """A fault of the other end of a connection."""


class ServerSpokeWrongly(RemoteError):
    """Bytes from a server that violate the protocol."""

    def __init__(self, what: str, got: str, expected: str) -> None:
        super().__init__(f"server: {what}: got {got}, expected {expected}")
        self.what = what
        self.got = got
        self.expected = expected


class ConnectionEnded(RemoteError):
    """The server closed the connection."""

    def __init__(self, while_doing: str) -> None:
        super().__init__(f"server: closed the connection while {while_doing}")
        self.while_doing = while_doing


class CommandRefused(RemoteError):
    """The server answered a command with an error Result."""

    def __init__(self, command: str, error_number: int, text: str) -> None:
        super().__init__(f"server: {command}: error {error_number} {text}")
        self.command = command
        self.error_number = error_number
        self.text = text


class ServerBehind(RemoteError):
    """A server that lacks entries handed over before."""

    def __init__(self, total_entries: int, number_next: int) -> None:
        super().__init__(f"server: has {total_entries} entries, but entry {number_next} is the next wanted")
        self.total_entries = total_entries
        self.number_next = number_next


class EntryOutOfOrder(RemoteError):
    """A streamed entry that is not the next one."""

    def __init__(self, got: str, expected: str) -> None:
        super().__init__(f"server: streamed {got}, expected {expected}")
        self.got = got
        self.expected = expected


class EntryNotRelayed(RemoteError):
    """An entry of the master that a relay cannot store."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(f"server: entry {number} cannot be relayed: {reason}")
        self.number = number
        self.reason = reason


class StreamContradicts(RemoteError):
    """A server with another stream than the followed one."""

    def __init__(self, what: str, got: str, expected: str) -> None:
        super().__init__(f"server: another stream: {what}: got {got}, expected {expected}")
        self.what = what
        self.got = got
        self.expected = expected
