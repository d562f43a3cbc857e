"""Every limit of the data streamer, with its unit, its reason and where it comes from.

`go:` marks the value of the Go reference server (wire.md 3, "Limits of the reference").
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "ACCEPT_BATCH_COUNT",
    "ACCEPT_PAUSE_SECONDS",
    "ANSWER_COPY_BYTES_MAX",
    "APPEND_WINDOW_BYTES",
    "BOOKMARKS_CHECKED_AT_OPEN_MAX",
    "BOOKMARKS_COMPARED_AT_OPEN_MAX",
    "BOOKMARKS_KEPT_AT_OPEN_MAX",
    "BOOKMARK_SIZE_MAX",
    "BOOKMARK_SIZE_MIN",
    "CHANGES_KEPT_MAX",
    "CHECKPOINT_INTERVAL",
    "CHECK_FINDINGS_MAX",
    "CLIENT_KEEPALIVE_IDLE_SECONDS",
    "CLIENT_KEEPALIVE_INTERVAL_SECONDS",
    "CLIENT_KEEPALIVE_PROBES_COUNT",
    "CLIENT_READ_BYTES",
    "COMMANDS_PER_TURN",
    "COMPARED_AT_OPEN_BYTES",
    "COMPARED_ENTRIES_COUNT",
    "DAMAGED_PAGES_PASSED_MAX",
    "DATA_BETWEEN_BOOKMARKS_BYTES_MAX",
    "FULL_CHECK_PAGES_MAX",
    "GROWTH_PAGES",
    "INITIAL_PAGES",
    "KEEPALIVE_PROBES",
    "KEEPALIVE_SECONDS",
    "LINGER_BYTES_MAX",
    "LINGER_FIRST_SECONDS",
    "LINGER_SECONDS",
    "LINGER_STALL_SECONDS",
    "LISTEN_BACKLOG_COUNT",
    "OFFSET_TABLES_MAX",
    "OPERATION_GROUP_BYTES_MAX",
    "PENDING_BOOKMARKS_MAX",
    "READ_AHEAD_BYTES",
    "REBUILD_BATCH_BOOKMARKS",
    "RECEIVE_BYTES",
    "REOPEN_ROOM_BYTES",
    "RESULT_TEXT_BYTES_MAX",
    "ROOM_BYTES",
    "ROOM_OPERATION_BYTES_MAX",
    "SEND_BYTES_PER_ROUND",
    "SEND_BYTES_PER_TURN",
    "SEND_BYTES_PER_TURN_MIN",
    "SPARE_DESCRIPTORS",
    "SWEPT_PER_TURN",
    "TAIL_BYTES_MAX",
    "TAIL_LOOKED_AT_BYTES_MAX",
    "WAKES_PER_TURN",
    "FollowLimits",
    "ServerLimits",
]

# --- the stream file -------------------------------------------------------------------------------------

INITIAL_PAGES = 100
"""Data pages of a new file. go: 100. Ours are sparse, so they cost no disk space before they are used."""

GROWTH_PAGES = 10
"""Data pages added when the file is full. go: 10."""

FULL_CHECK_PAGES_MAX = 8
"""Up to this many used data pages, opening walks every entry; above, page heads and the last page only.

Walking a page takes about 3 ms with small entries, so 8 pages stay far below the 0.2 s opening may take."""

OPERATION_GROUP_BYTES_MAX = 5 << 28
"""Bytes that the open operation and the sealed ones may hold in memory before they are committed (1.25 GiB).
Padding counts: where no two entries fit on one page, it is as much as the entries."""

APPEND_WINDOW_BYTES = 1 << 18
"""Bytes of the file past its end that are mapped into memory for small commits without a flush.

They are locked there, and 8 MiB is the usual limit on locked memory (RLIMIT_MEMLOCK). Making a window of this
size takes about 0.3 ms; what a larger one would save an operation cannot be measured."""

COMPARED_AT_OPEN_BYTES = 1 << 24
"""Bytes before the last block that opening compares with the disk, past the page cache. What a flush of ours
left in doubt is above the total length that is on the disk, so this is for bytes that another program, or an
earlier version, took for written: some groups of blocks. It takes 40 ms where the disk reads 400 MB/s. For
the whole file there is `sluice check`."""

ROOM_BYTES = 1 << 15
"""Zeros that a small commit writes past its end, when it has to find places on the disk anyway. With them its
first flush takes 0.30 ms in place of 0.27, and those of the next five blocks of 6 kB take 0.17. Twice as many
zeros would take 0.36 ms, eight times as many 0.84."""

ROOM_OPERATION_BYTES_MAX = 1 << 15
"""Larger commits write no zeros: their own bytes take longer than what that would save."""

CHECKPOINT_INTERVAL = 64
"""The offset of every 64th entry is remembered, so finding an entry walks at most 63 others. A power of 2."""

OFFSET_TABLES_MAX = 16_384
"""Pages whose table of checkpoints is kept in memory; about 1 kB each with 68-byte entries, 16 MB in all."""

DATA_BETWEEN_BOOKMARKS_BYTES_MAX = 1 << 30
"""Bytes that `get_data_between_bookmarks` joins in memory (1 GiB)."""

CHECK_FINDINGS_MAX = 1_000
"""Findings of each severity that a check keeps to be shown; those after them are only counted."""

CHANGES_KEPT_MAX = 1_024
"""Updates and truncations that are remembered for readers under way; one that missed more begins anew."""

READ_AHEAD_BYTES = 4_096
"""First read of an iteration over entries; doubled with each further one, up to the rest of the page."""

# --- bookmarks -------------------------------------------------------------------------------------------

BOOKMARK_SIZE_MIN = 1
"""Bytes; an empty bookmark is refused (wire.md 2)."""

BOOKMARK_SIZE_MAX = 16
"""Bytes. go: maxBookmarkLength = 16. Longer keys of the bookmark DB are ours (wire.md 2)."""

BOOKMARKS_CHECKED_AT_OPEN_MAX = 16_384
"""Bookmarks of the DB, the first in order of their bytes, that opening compares with the number of entries
(about 15 ms). Every lookup checks that the entry it found is that bookmark, which finds the others out."""

BOOKMARKS_COMPARED_AT_OPEN_MAX = 16
"""Bookmarks of an index that is ahead of its stream which opening compares with the stream's entries: one
that differs shows it to be of another stream. Each may need the walk of a page."""

TAIL_LOOKED_AT_BYTES_MAX = 256 << 20
"""Bytes behind the header that opening walks to say what is there: some twenty pages a second of a cold disk.
What one crash leaves is less (`gateway`: COMMIT_GROUP_BYTES_MAX)."""

DAMAGED_PAGES_PASSED_MAX = 64
"""Damaged pages that an opening passes over where it is told to; for each the heads of all pages are read
again. A disk that has more of them is not to be served from."""

BOOKMARKS_KEPT_AT_OPEN_MAX = 262_144
"""Bookmarks that opening keeps from the walk which comes before anything is changed (about 40 MB), so that
their pages are not walked again when the index is made."""

PENDING_BOOKMARKS_MAX = 16_384
"""Bookmarks of unflushed commits that wait in memory for one write batch to the DB.

The batch is written by a thread of its own while the next one gathers; at most twice as many in memory."""

REBUILD_BATCH_BOOKMARKS = 16_384
"""Bookmarks per write batch while the index is rebuilt; each batch records how far it came."""

REOPEN_ROOM_BYTES = 1 << 20
"""Bytes that must be free on the disk before a bookmark DB that failed is closed and opened again: LevelDB
writes new files then, and a table of what is in its log. Until then it can be read."""

# --- the TCP server --------------------------------------------------------------------------------------

RECEIVE_BYTES = 4_096
"""Bytes read from a client at once; the longest command has 36. No more is read while an answer waits."""

SEND_BYTES_PER_TURN = 1 << 20
"""Bytes sent to one client at most before the event loop turns to the others: one data page."""

SEND_BYTES_PER_ROUND = 24 << 20
"""Bytes sent to all clients that take history, in turns; more clients get shorter turns. About 10 ms.

With whole pages for each, a hundred clients that begin with history delayed live ones by 100 ms."""

SEND_BYTES_PER_TURN_MIN = 1 << 16
"""The shortest turn; below it, taking turns would cost more than sending."""

LISTEN_BACKLOG_COUNT = 1_024
"""Connections that the kernel holds until they are accepted."""

ACCEPT_BATCH_COUNT = 128
"""Connections accepted before the event loop turns to the clients that are there."""

ACCEPT_PAUSE_SECONDS = 0.5
"""Pause when the process has no file descriptor left (EMFILE), instead of spinning."""

LINGER_FIRST_SECONDS = 0.02
"""How soon a closing connection looks whether its client has everything; then twice as long, and so on."""

LINGER_SECONDS = 1.0
"""How long a closing connection waits for its client's end, so that no reset destroys the last answer.

Longer while bytes are under way, until the client takes none for the write timeout."""

LINGER_STALL_SECONDS = 60.0
"""The write timeout of a closing connection when there is none otherwise."""

LINGER_BYTES_MAX = 1 << 16
"""Bytes that a closing connection reads and drops in that time."""

COMMANDS_PER_TURN = 32
"""Commands of one client that are answered before the event loop turns to the others."""

ANSWER_COPY_BYTES_MAX = 4_096
"""A longer answer to Entry or Bookmark is sent from the file, so that not reading it holds no memory here."""

TAIL_BYTES_MAX = 1 << 16
"""Live bytes up to this are read once for all clients that wait for them; more are sent from the file."""

WAKES_PER_TURN = 512
"""Clients woken by a commit before the event loop turns to commands and other sockets; about 5 ms."""

SWEPT_PER_TURN = 2_048
"""Clients whose timeouts are looked at before the event loop turns to other events; about 3 ms when all were
sent something."""

KEEPALIVE_SECONDS = 15
"""A silent client's host is asked for a sign of life after, and then every, 15 s. go: 15 s, by default."""

KEEPALIVE_PROBES = 9
"""Signs of life that may be missing before the connection counts as dead. go: 9."""

SPARE_DESCRIPTORS = 64
"""File descriptors that clients cannot have: for files, LevelDB, logs, and whoever else comes."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits of a `StreamServer` that its operator may set."""

    connections_max: int = 10_000
    """Clients at once; one more is accepted and closed at once. go: maxConnections = 100."""

    write_timeout_seconds: float = 3.0
    """A client that takes no byte for this long while some wait for it is closed; 0: never. go: 3 s, in which
    the kernel takes no byte."""

    inactivity_timeout_seconds: float = 120.0
    """A client that neither sent nor took a byte for this long is closed; 0: never. go: 120 s."""

    sweep_interval_seconds: float = 5.0
    """How often both timeouts are looked at; a quarter of the shorter timeout when that is less. go: 5 s."""

    def __post_init__(self) -> None:
        """Refuse values that mean nothing."""
        for name in ("write_timeout_seconds", "inactivity_timeout_seconds"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected 0 (never) or more")
        if self.connections_max < 1:
            raise ValueError(f"connections_max: got {self.connections_max}, expected 1 or more")
        if self.sweep_interval_seconds <= 0:
            raise ValueError(
                f"sweep_interval_seconds: got {self.sweep_interval_seconds}, expected more than 0"
            )


# --- the client ------------------------------------------------------------------------------------------

CLIENT_READ_BYTES = 1 << 18
"""Bytes that a client reads from its socket at once."""

RESULT_TEXT_BYTES_MAX = 1_024
"""Longest text of a Result that a client takes; the longest known has 18 bytes."""

CLIENT_KEEPALIVE_IDLE_SECONDS = 30
"""After so much silence the client's kernel asks whether the server's machine is still there..."""

CLIENT_KEEPALIVE_INTERVAL_SECONDS = 10
"""...again and again at this interval..."""

CLIENT_KEEPALIVE_PROBES_COUNT = 3
"""...and after so many questions without an answer, about a minute in all, the connection is broken."""

COMPARED_ENTRIES_COUNT = 8
"""Entries before the next one that are compared with the server's when one that follows connects."""


@dataclass(frozen=True, slots=True)
class FollowLimits:
    """Limits of following a server: `StreamFollower`, `BlockingStreamFollower` and `Relay`."""

    backoff_first_seconds: float = 1.0
    """Pause after every server of the list has failed once, and doubled each further time."""

    backoff_max_seconds: float = 30.0
    """Longest pause. Each is shortened by up to a half, at random, so that not all clients come at once."""

    answer_timeout_seconds: float = 10.0
    """For connecting and for everything until the stream has started; then the server is left."""

    steady_seconds: float = 30.0
    """A stream that ran for this long begins the pauses anew when it ends, also when no entry came."""

    def __post_init__(self) -> None:
        """Refuse values that mean nothing."""
        for name in ("backoff_first_seconds", "answer_timeout_seconds", "steady_seconds"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected more than 0")
        if self.backoff_max_seconds < self.backoff_first_seconds:
            raise ValueError(
                f"backoff_max_seconds: got {self.backoff_max_seconds}, "
                f"expected backoff_first_seconds or more, {self.backoff_first_seconds}"
            )
