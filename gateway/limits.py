"""The limits that several rooms share, each with its unit, reason and precedent.

Pure. A limit of one module stands in that module; a limit that an operator may change is a setting.
"""

from typing import Final

__all__ = [
    "ADDRESS_BOOK_NODES_MAX",
    "BLOCK_ANSWER_BYTES_MAX",
    "BLOCK_ITEMS_MAX",
    "COMMIT_GROUP_BYTES_MAX",
    "CONTROL_CALL_SECONDS",
    "DISK_PROBE_SECONDS",
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
"""Bytes of a block header item. Real ones have about 50; Python takes 3 ms for the worst one of this size."""

ADDRESS_BOOK_NODES_MAX: Final = 500
"""Nodes of an address book. Public networks have about thirty. Decoding a key takes 0.01 ms, verifying a
signature with it at most 0.07 ms."""

STORED_BLOCK_BYTES_MAX: Final = 1 << 30
"""Bytes of items that a reader of stored entries gathers before it abandons a block: far more than a
publisher may send. It bounds what a hostile stream server can make a client hold."""

# --- running a node -----------------------------------------------------------------------------------------

HEALTH_CHECK_SECONDS: Final = 0.25
"""Time between two updates of the gRPC health service."""

CONTROL_CALL_SECONDS: Final = 15.0
"""The time that a control call waits for its answer, beyond the time that it asks the node to wait: a little
more than a node needs to finish the blocks in flight."""

# --- publishing ---------------------------------------------------------------------------------------------

BLOCK_ITEMS_MAX: Final = 2_000_000
"""Items in one block. Beside its bytes, Python needs 70 bytes for an item and 17 for its entry, so a block of
empty items would cost far more than `publish.max_block_bytes`. Real blocks have some thousands."""

ITEM_OVERHEAD_BYTES: Final = 64
"""Bytes counted for each item in flight beside its own: the 33 of a `bytes` object, rounded up to 16, and its
place in a list. Otherwise a block of tiny items would cost many times what is counted."""

BLOCK_ANSWER_BYTES_MAX: Final = STORED_BLOCK_BYTES_MAX + 8 * BLOCK_ITEMS_MAX
"""Bytes of the longest answer with a whole block that a command accepts from any kind of node: all items that
a reader gathers, each with a tag and a length."""

INLINE_HASH_ITEMS_MAX: Final = 1_024
"""Items of one set that the event loop inspects and hashes itself, 1.5 microseconds each, however short."""

SLOT_ITEMS_MIN: Final = 128
"""Items of one message, or of one batch to hash, from which on the work takes a slot of the event loop."""

THREAD_SWITCH_SECONDS: Final = 0.000_2
"""The time that one thread may keep the interpreter while another waits. With Python's default of 5 ms, the
event loop would wait that long at each wake-up while a thread hashes short items, and the committing thread
would wait for the event loop five times in each commit."""

LOOP_WATCH_SECONDS: Final = 0.02
"""Time between two samples of the event loop's lateness; a sample costs 20 microseconds."""

MESSAGE_BYTES_DEFAULT: Final = 131_072_000
"""Bytes of the longest message that nodes, publishers and subscribers receive by default. Block nodes have
the same default; consensus nodes send 37,748,736 at most."""

# --- connections and certificates ---------------------------------------------------------------------------

REQUEST_BYTES_MAX: Final = 64 * 1024
"""Bytes of a request at an address where no publisher connects; numbers, a hash or an address take less. gRPC
refuses a longer one by its length prefix."""

KEEPALIVE_ANSWER_SECONDS: Final = 10
"""The time that a client has to answer a ping before its connection is closed."""

KEEPALIVE_PEER_SECONDS: Final = 10
"""The time that another node may be silent before it is pinged."""

STREAM_WINDOW_BYTES: Final = 1024 * 1024
"""Bytes that a client may send on one stream before the node reads them. They do not count as in flight, so
they are the cost of a publisher that has to wait; gRPC's own choice grows to 16 MB. With a round trip of 50
ms they allow 20 MB a second for each stream."""

STREAMS_PER_CONNECTION_MAX: Final = 1_024
"""Open calls on one gRPC connection, at 20 kB each beside unfinished requests; HTTP/2 makes the client wait
with further ones. A proxy may use one connection for all publishers and subscribers of a node."""

TLS_FILE_BYTES_MAX: Final = 1 << 20
"""Bytes of a certificate or key file. A bundle of all public authorities has a quarter of it."""

# --- single blocks ------------------------------------------------------------------------------------------

# --- subscribing --------------------------------------------------------------------------------------------

# --- peers --------------------------------------------------------------------------------------------------

PEER_STATUS_SECONDS_MAX: Final = 5.0
"""The time that a peer has to answer `serverStatus`."""

PEER_POLL_SECONDS: Final = 1.0
"""Time between two status requests to a peer that is followed live."""

# --- commits ----------------------------------------------------------------------------------------------

COMMIT_GROUP_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of items and entry heads above which no further block joins a commit: two flushes cost nothing beside
writing so much. A commit is built in memory, and stays within the data streamer's limit with the largest
block behind it."""

RUN_ITEMS_MAX: Final = 1_024
"""Items of a block that a thread serializes in one go: 0.3 ms, during which the event loop may wait for
Python's lock."""

DISK_PROBE_SECONDS: Final = 0.5
"""Time between two attempts to write after the disk refused a commit."""
