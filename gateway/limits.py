"""The limits that several rooms share, each with its unit, reason and precedent.

Pure. A limit of one module stands in that module; one that an operator may move is a setting.
"""

from typing import Final

__all__ = [
    "ADDRESS_BOOK_NODES_MAX",
    "BLOCK_ANSWER_BYTES_MAX",
    "BLOCK_ITEMS_MAX",
    "COMMIT_GROUP_BYTES_MAX",
    "CONTROL_CALL_SECONDS",
    "DISK_PROBE_SECONDS",
    "HASH_PROCESSES",
    "HEADER_SIZE_MAX",
    "HEALTH_CHECK_SECONDS",
    "INLINE_HASH_ITEMS_MAX",
    "ITEM_OVERHEAD_BYTES",
    "KEEPALIVE_ANSWER_SECONDS",
    "KEEPALIVE_PEER_SECONDS",
    "LOOP_WATCH_SECONDS",
    "MESSAGE_BYTES_DEFAULT",
    "PEER_POLL_SECONDS",
    "PEER_STATUS_SECONDS_MAX",
    "REQUEST_BYTES_MAX",
    "RUN_ITEMS_MAX",
    "SLOT_ITEMS_MIN",
    "STORED_BLOCK_BYTES_MAX",
    "STREAMS_PER_CONNECTION_MAX",
    "STREAM_WINDOW_BYTES",
    "THREAD_SWITCH_SECONDS",
    "TLS_FILE_BYTES_MAX",
]

# --- blocks and their verification --------------------------------------------------------------------------

HEADER_SIZE_MAX: Final = 4096
"""Bytes of a block header item. Real ones have about 50; each of its fields is walked through in Python,
which takes some 3 ms for the worst header of this size."""

ADDRESS_BOOK_NODES_MAX: Final = 500
"""Nodes of an address book. Public networks have some thirty; to decode a key takes some 0.01 ms, and to
verify a signature with it 0.07 ms at most."""

STORED_BLOCK_BYTES_MAX: Final = 1 << 30
"""Bytes of items that a reader of stored entries gathers before it gives a block up. Far above any block that
a publisher may send; it bounds what a hostile stream server can make a client hold."""

# --- running a node -----------------------------------------------------------------------------------------

HEALTH_CHECK_SECONDS: Final = 0.25
"""Time between two looks at the node's readiness for the gRPC health service."""

CONTROL_CALL_SECONDS: Final = 15.0
"""How long a control call waits for its answer, beyond the time that it asks the node to wait: a little more
than a node needs to finish the blocks in flight."""

# --- publishing ---------------------------------------------------------------------------------------------

BLOCK_ITEMS_MAX: Final = 2_000_000
"""Items in one block. Python needs some 70 bytes for an item beside its own, and its entry 17, so a block of
empty items would cost far more than `publish.max_block_bytes` says. Real blocks have some thousands."""

ITEM_OVERHEAD_BYTES: Final = 64
"""Counted for each item in flight beside its own bytes: the 33 of a `bytes` object, rounded up to 16, and its
place in a list that grows by an eighth. Else a block of tiny items would cost many times what is counted."""

BLOCK_ANSWER_BYTES_MAX: Final = STORED_BLOCK_BYTES_MAX + 8 * BLOCK_ITEMS_MAX
"""Bytes of the longest answer that a command takes from a node that it asks for a whole block: the items that
a reader gathers at most, each with a tag and a length in front. A node of any kind may be asked."""

INLINE_HASH_ITEMS_MAX: Final = 1_024
"""Items of one set that are looked at and hashed in the event loop, 1.5 microseconds each, however short."""

SLOT_ITEMS_MIN: Final = 128
"""Items of one message, or batch to be hashed, from which on it takes a turn of the event loop."""

HASH_PROCESSES: Final = 2
"""Processes for hashing. One keeps up with the event loop where items have 400 bytes or more."""

THREAD_SWITCH_SECONDS: Final = 0.000_2
"""How long one thread may keep the interpreter while another waits. Python's default, 5 ms, is what the event
loop would wait each time that it wakes while a thread hashes short items, and what the thread that commits
would wait behind the event loop, five times in each commit."""

LOOP_WATCH_SECONDS: Final = 0.02
"""How often the event loop's lateness is sampled; a sample costs some 20 microseconds."""

MESSAGE_BYTES_DEFAULT: Final = 131_072_000
"""Bytes of the longest message that any of us receives, unless it is told otherwise: nodes, publishers,
subscribers. It is the default of block nodes; consensus nodes send 37,748,736 at most."""

# --- connections and certificates ---------------------------------------------------------------------------

REQUEST_BYTES_MAX: Final = 64 * 1024
"""Bytes of a request at an address where no publisher connects; numbers, a hash, an address take less. gRPC
refuses a longer one by the length that stands before it. Up to this length it holds, for each call, what has
come of a request that its client does not end."""

KEEPALIVE_ANSWER_SECONDS: Final = 10
"""How long a client that was asked whether it is still there has to answer; then its connection is closed."""

KEEPALIVE_PEER_SECONDS: Final = 10
"""How long another node may be silent before it is asked whether it is still there."""

STREAM_WINDOW_BYTES: Final = 1024 * 1024
"""What a client may send on one stream before the node has read it, beside the message that is being read. It
is not counted in flight, so it is what a publisher costs that has to wait; gRPC's own choice grows to 16 MB.
Over a line with a round trip of 50 ms it allows 20 MB a second for each stream."""

STREAMS_PER_CONNECTION_MAX: Final = 1_024
"""Calls at once on one gRPC connection, some 20 kB each, beside what has come of a request; HTTP/2 has the
client wait with further ones. A proxy may bring all publishers and subscribers of a node over one
connection."""

TLS_FILE_BYTES_MAX: Final = 1 << 20
"""Bytes of a certificate or key file. A bundle of all public authorities has a quarter of it."""

# --- single blocks ------------------------------------------------------------------------------------------

# --- subscribing --------------------------------------------------------------------------------------------

# --- peers --------------------------------------------------------------------------------------------------

PEER_STATUS_SECONDS_MAX: Final = 5.0
"""How long a peer may take to answer `serverStatus`."""

PEER_POLL_SECONDS: Final = 1.0
"""Time between two questions to a peer that is followed live for its last block."""

# --- commits ----------------------------------------------------------------------------------------------

COMMIT_GROUP_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of items and of the heads of their entries beyond which no further block joins a commit: two flushes
are nothing beside writing so much. A group is built in memory, and with the largest block behind so much, and
with as much padding, it is within what the data streamer takes."""

RUN_ITEMS_MAX: Final = 1_024
"""Items of a block that are serialized for the stream in one go, in a thread: 0.3 ms, in which the event loop
may have to wait for Python's lock."""

DISK_PROBE_SECONDS: Final = 0.5
"""Time between two attempts to write after the disk refused a commit."""
