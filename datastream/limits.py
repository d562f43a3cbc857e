"""The limits that several modules share or an operator sets; other limits stand beside their use.

`go:` marks the value of the Go reference server (docs/spec/stream-file.md section 4.5).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "BOOKMARKS_CHECKED_AT_OPEN_MAX",
    "BOOKMARKS_KEPT_AT_OPEN_MAX",
    "BOOKMARK_SIZE_MAX",
    "BOOKMARK_SIZE_MIN",
    "CHECKPOINT_INTERVAL",
    "COMPARED_AT_OPEN_BYTES",
    "DAMAGED_PAGES_PASSED_MAX",
    "DATA_BETWEEN_BOOKMARKS_BYTES_MAX",
    "GROWTH_PAGES",
    "INITIAL_PAGES",
    "PENDING_BOOKMARKS_MAX",
    "REBUILD_BATCH_BOOKMARKS",
    "RECEIVE_BYTES",
    "ROOM_BYTES",
    "ROOM_OPERATION_BYTES_MAX",
    "STREAM_LIMITS",
    "TAIL_LOOKED_AT_BYTES_MAX",
    "FollowLimits",
    "ServerLimits",
    "StreamLimits",
]

# --- the stream file -------------------------------------------------------------------------------------

INITIAL_PAGES = 100
"""Data pages of a new file, which is sparse. go: 100."""

GROWTH_PAGES = 10
"""Data pages added when the file is full. go: 10."""

COMPARED_AT_OPEN_BYTES = 1 << 24
"""Bytes before the last block that opening compares with the disk, past the page cache. Our own doubtful
flushes lie above the total length on the disk, so this is for groups of blocks that another program or an
earlier version took for written. 40 ms at 400 MB/s. `sluice check` compares the whole file."""

ROOM_BYTES = 1 << 15
"""Zeros that a small commit writes past its end when it must allocate blocks anyway. Its first flush then
takes 0.30 ms instead of 0.27, those of the next five blocks of 6 kB 0.17. Twice as many zeros take 0.36
ms, eight times as many 0.84."""

ROOM_OPERATION_BYTES_MAX = 1 << 15
"""Larger commits write no zeros: their own bytes take longer than that would save."""

CHECKPOINT_INTERVAL = 64
"""Every 64th entry is a checkpoint, so finding an entry walks at most 63 others. A power of 2."""

DATA_BETWEEN_BOOKMARKS_BYTES_MAX = 1 << 30
"""Bytes that `get_data_between_bookmarks` joins in memory (1 GiB)."""

# --- bookmarks -------------------------------------------------------------------------------------------

BOOKMARK_SIZE_MIN = 1
"""Bytes; an empty bookmark is refused (docs/spec/stream-file.md section 3)."""

BOOKMARK_SIZE_MAX = 16
"""Bytes. go: maxBookmarkLength = 16. Longer keys of the bookmark DB are ours (docs/spec/stream-file.md)."""

TAIL_LOOKED_AT_BYTES_MAX = 256 << 20
"""Bytes behind the header that opening walks, some twenty pages a second of a cold disk. One crash leaves
less (`gateway`: COMMIT_GROUP_BYTES_MAX)."""

PENDING_BOOKMARKS_MAX = 16_384
"""Bookmarks of unflushed commits that gather for one batch to the DB.

A thread writes the batch while the next one gathers, so memory holds at most twice as many.
"""

REBUILD_BATCH_BOOKMARKS = 16_384
"""Bookmarks per write batch of a rebuild; each batch records the progress."""

BOOKMARKS_CHECKED_AT_OPEN_MAX = 16_384
"""The DB's first bookmarks, by their bytes, that opening compares with the number of entries (about 15 ms).
Every lookup checks its entry, which finds wrong later ones."""

BOOKMARKS_KEPT_AT_OPEN_MAX = 262_144
"""Bookmarks that opening keeps from its checking walk (about 40 MB), so that indexing does not walk their
pages again."""

DAMAGED_PAGES_PASSED_MAX = 64
"""Most damaged pages that an opening passes over by their tables; a disk with more is unfit."""


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Limits of a `DataStreamer`; the constants of the same names give the reasons."""

    pending_bookmarks_max: int = PENDING_BOOKMARKS_MAX
    rebuild_batch_bookmarks: int = REBUILD_BATCH_BOOKMARKS
    bookmarks_checked_at_open_max: int = BOOKMARKS_CHECKED_AT_OPEN_MAX
    bookmarks_kept_at_open_max: int = BOOKMARKS_KEPT_AT_OPEN_MAX
    data_between_bookmarks_bytes_max: int = DATA_BETWEEN_BOOKMARKS_BYTES_MAX
    damaged_pages_passed_max: int = DAMAGED_PAGES_PASSED_MAX


STREAM_LIMITS = StreamLimits()
"""The defaults."""


# --- the TCP server --------------------------------------------------------------------------------------

RECEIVE_BYTES = 4_096
"""Bytes read from a client at once; the longest command has 36. No more is read while an answer waits."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits of a `StreamServer` that its operator may set."""

    connections_max: int = 10_000
    """Clients at once; one more is closed on arrival. go: maxConnections = 100."""

    write_timeout_seconds: float = 3.0
    """A client that takes none of its waiting bytes for this long is closed; 0: never. go: 3 s without a byte
    taken by the kernel."""

    inactivity_timeout_seconds: float = 120.0
    """A client that neither sends nor takes a byte for this long is closed; 0: never. go: 120 s."""

    handshake_timeout_seconds: float = 10.0
    """With TLS, a client that has not done its handshake within this time is closed."""

    sweep_interval_seconds: float = 5.0
    """Interval of timeout checks; at most a quarter of the shorter timeout. go: 5 s."""

    linger_seconds: float = 1.0
    """The time that a closing connection waits for its client's end, lest a reset destroys the last answer;
    longer while the client takes bytes within the write timeout."""

    accept_pause_seconds: float = 0.5
    """Pause of accepting when the process has no file descriptor left (EMFILE)."""

    accept_batch_count: int = 128
    """Connections accepted in one slot."""

    wakes_per_slot: int = 512
    """Clients woken by a commit in one slot; about 5 ms."""

    swept_per_slot: int = 2_048
    """Clients whose timeouts are checked in one slot; about 3 ms when all were sent something."""

    def __post_init__(self) -> None:
        """Refuse values that mean nothing."""
        for name in ("write_timeout_seconds", "inactivity_timeout_seconds"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected 0 (never) or more")
        if self.connections_max < 1:
            raise ValueError(f"connections_max: got {self.connections_max}, expected 1 or more")
        for name in ("handshake_timeout_seconds", "sweep_interval_seconds"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected more than 0")


# --- the client ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FollowLimits:
    """Limits of following a server: `StreamFollower`, `BlockingStreamFollower` and `Relay`."""

    backoff_first_seconds: float = 1.0
    """Pause after every server of the list has failed once; each further one doubles."""

    backoff_max_seconds: float = 30.0
    """Longest pause. Each is shortened at random by up to a half, so that clients spread."""

    answer_timeout_seconds: float = 10.0
    """Time from connecting to the start of the stream; then the next server is tried."""

    steady_seconds: float = 30.0
    """A stream that ran for this long resets the pauses, even without an entry."""

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
