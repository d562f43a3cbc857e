"""The limits that several rooms share, each with its unit, reason and precedent.

Pure. A limit of one module stands in that module; one that an operator may move is a setting.
"""

from typing import Final

__all__ = [
    "ADDRESS_BOOK_NODES_MAX",
    "BLOCK_ANSWER_BYTES_MAX",
    "BLOCK_ITEMS_MAX",
    "CHAIN_SNAPSHOT_BLOCKS",
    "COMMIT_GROUP_BYTES_MAX",
    "CONTROL_CALL_SECONDS",
    "CROWD_BYTES_MIN",
    "CROWD_ITEMS_MIN",
    "CROWD_ITEM_BYTES",
    "DISK_PROBE_BYTES",
    "DISK_PROBE_SECONDS",
    "FREE_MEMORY_KEPT_BYTES",
    "HASH_BACKLOG_ITEMS",
    "HASH_BATCH_BYTES",
    "HASH_BATCH_ITEMS",
    "HASH_PROCESSES",
    "HASH_PROCESS_BYTES_MAX",
    "HASH_PROCESS_BYTES_MIN",
    "HASH_PROCESS_ITEMS_MAX",
    "HASH_PROCESS_ITEMS_MIN",
    "HASH_PROCESS_REST_SECONDS",
    "HASH_PROCESS_SECONDS_MAX",
    "HASH_THREADS",
    "HASH_WAITING_BYTES_MAX",
    "HEADER_SIZE_MAX",
    "HEALTH_CHECK_SECONDS",
    "HELPER_LOOK_LATE_SECONDS_MAX",
    "INLINE_HASH_BYTES_MAX",
    "INLINE_HASH_ITEMS_MAX",
    "ITEM_OVERHEAD_BYTES",
    "KEEPALIVE_ANSWER_SECONDS",
    "KEEPALIVE_PEER_SECONDS",
    "LISTENING_SECONDS",
    "LOOP_WATCH_SECONDS",
    "MESSAGE_BYTES_DEFAULT",
    "OWN_MAPPING_BYTES_MIN",
    "OWN_ROOTS_KEPT",
    "PEER_POLL_SECONDS",
    "PEER_STATUS_SECONDS_MAX",
    "PROOFS_GATHER_SECONDS",
    "PROOFS_TOGETHER_MAX",
    "PROOF_CHECK_SECONDS_MAX",
    "PROOF_PROCESS_REST_SECONDS",
    "PUBLICATION_FILE_BYTES_MAX",
    "RELEASED_BLOCKS_MAX",
    "RELEASE_REST_SECONDS",
    "REQUEST_BYTES_MAX",
    "ROLL_FORWARD_LOG_BLOCKS",
    "RUN_ITEMS_MAX",
    "SET_ITEMS_MAX",
    "SHARED_FLUSH_BYTES_MAX",
    "STAGE_BLOCK_ITEMS_MIN",
    "STAGE_BYTES_MAX",
    "STAGE_ITEMS_MAX",
    "STAGE_ITEM_BYTES_MAX",
    "STOOD_STILL_SECONDS_MIN",
    "STORED_BLOCK_BYTES_MAX",
    "STREAMS_PER_CONNECTION_MAX",
    "STREAM_WINDOW_BYTES",
    "THREAD_SWITCH_SECONDS",
    "TIMER_LATE_SECONDS_MAX",
    "TLS_FILE_BYTES_MAX",
    "TURN_ITEMS_MIN",
    "WARM_UP_SECONDS_MAX",
]

# --- blocks and their verification --------------------------------------------------------------------------

HEADER_SIZE_MAX: Final = 4096
"""Bytes of a block header item. Real ones have about 50; each of its fields is walked through in Python,
which takes some 3 ms for the worst header of this size."""

ADDRESS_BOOK_NODES_MAX: Final = 500
"""Nodes of an address book. Public networks have some thirty; to decode a key takes some 0.01 ms, and to
verify a signature with it 0.07 ms at most."""

PUBLICATION_FILE_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of a file that `tss:FILE` names, decompressed: a block 0 with some margin."""

PROOF_CHECK_SECONDS_MAX: Final = 30.0
"""How long the proofs of one block may be checked: real ones take 50 ms. Then the process is replaced."""

HELPER_LOOK_LATE_SECONDS_MAX: Final = 1.0
"""How late the node may look whether a process has answered in time. Its event loop is late by milliseconds;
by more than this, it was stopped itself, maybe with the process, and gives it its time again."""

PROOF_PROCESS_REST_SECONDS: Final = 5.0
"""Time between two attempts to start the process that checks proofs, where one did not get ready: each costs
a fork, or some 0.3 s of a core. Meanwhile the node checks in a thread of its own."""

PROOFS_TOGETHER_MAX: Final = 8
"""Blocks whose proofs are checked in one go, where so many wait. Eight TSS signatures by different nodes take
3.7 ms each together and 7.4 ms each alone; more would save little, and keep the first of them waiting."""

PROOFS_GATHER_SECONDS: Final = 0.05
"""How long the process that checks proofs waits for a further block that is on its way, where the last time
several waited. While a chain is caught up with, a block comes each 10 to 20 ms, and proofs cost a third less
together. Blocks that come one by one never wait."""

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

SET_ITEMS_MAX: Final = 500_000
"""Items in one message of a publisher. To look at one and to hash it takes a microsecond, however short it
is, so this is half a second, and some 15 ms of the event loop. Of a message of 125 MB they have 260 bytes."""

ITEM_OVERHEAD_BYTES: Final = 64
"""Counted for each item in flight beside its own bytes: the 33 of a `bytes` object, rounded up to 16, and its
place in a list that grows by an eighth. Else a block of tiny items would cost many times what is counted."""

BLOCK_ANSWER_BYTES_MAX: Final = STORED_BLOCK_BYTES_MAX + 8 * BLOCK_ITEMS_MAX
"""Bytes of the longest answer that a command takes from a node that it asks for a whole block: the items that
a reader gathers at most, each with a tag and a length in front. A node of any kind may be asked."""

INLINE_HASH_BYTES_MAX: Final = 256 * 1024
"""Bytes of one item set that are hashed in the event loop, 0.5 ms; others do not wait for a larger one."""

INLINE_HASH_ITEMS_MAX: Final = 1_024
"""Items of one set that are looked at and hashed in the event loop, 1.5 microseconds each, however short."""

CROWD_ITEMS_MIN: Final = 256 * 1024
"""Items of one message from which on it is parsed, and looked at, only while no other such message is: they
take some 90 bytes each, however short they are, and some tens of streams would fill the memory with them."""

CROWD_ITEM_BYTES: Final = 24
"""The same where items have fewer bytes on average: real ones have hundreds, these take five times theirs."""

CROWD_BYTES_MIN: Final = 16 * 1024
"""A shorter message is none: parsed, it takes 0.8 MB at most."""

TURN_ITEMS_MIN: Final = 128
"""Items of one message, or batch to be hashed, from which on it takes a turn of the event loop."""

HASH_PROCESS_ITEMS_MIN: Final = 128
"""Items of one set from which on a process hashes them, in 0.15 ms; the way there and back takes 0.05."""

HASH_PROCESS_BYTES_MIN: Final = 32 * 1024
"""Bytes of one set from which on they are hashed there, for the same reason."""

HASH_BATCH_BYTES: Final = 128 * 1024
"""Bytes of waiting sets of one block beyond which no further set joins them on their way: that takes 0.1 ms,
and to hash so many bytes 0.3. With half or twice as many, blocks of 1.5 MB take 5 % longer."""

HASH_BATCH_ITEMS: Final = 4_096
"""Items of them beyond which none joins them: to pack so many for the process takes the event loop 1 ms."""

HASH_PROCESS_ITEMS_MAX: Final = 8_192
"""Items of one batch beyond which it is hashed in a thread: the event loop takes 0.1 ms for each thousand."""

HASH_PROCESS_BYTES_MAX: Final = 8 << 20
"""Bytes of one batch beyond which it is hashed in a thread; on the way to a process they are there thrice."""

HASH_PROCESSES: Final = 2
"""Processes for hashing. One keeps up with the event loop where items have 400 bytes or more."""

HASH_THREADS: Final = 2
"""Threads that hash what is too long for a process, or while there is none; who comes third waits."""

HASH_WAITING_BYTES_MAX: Final = 8 << 20
"""Bytes that wait for one process from which on no more are sent there: nothing there can be taken back."""

HASH_BACKLOG_ITEMS: Final = 3_000
"""Items that wait for one process from which on others go to the next: two or three blocks. Shared evenly,
blocks of 1 kB items take 6 % longer on two cores: a process at work takes time from the event loop."""

HASH_PROCESS_SECONDS_MAX: Final = 10.0
"""How long a process for hashing may take to start, or for one request; then it is replaced."""

HASH_PROCESS_REST_SECONDS: Final = 5.0
"""Time between two attempts to start the process for hashing."""

WARM_UP_SECONDS_MAX: Final = 3.0
"""How long a starting node waits for the processes for hashing, which take a core from the first blocks."""

THREAD_SWITCH_SECONDS: Final = 0.000_2
"""How long one thread may keep the interpreter while another waits. Python's default, 5 ms, is what the event
loop would wait each time that it wakes while a thread hashes short items, and what the thread that commits
would wait behind the event loop, five times in each commit."""

FREE_MEMORY_KEPT_BYTES: Final = 64 * 1024 * 1024
"""Free memory at the end of a heap that stays in the process, for the next block: what several take that are
received, hashed and laid out at once. What is more, as after a very large block, is given back."""

OWN_MAPPING_BYTES_MIN: Final = 32 * 1024 * 1024
"""From here on a piece of memory has a mapping of its own, and is given back as soon as it is freed. This is
the most that glibc takes."""

LOOP_WATCH_SECONDS: Final = 0.02
"""How often the event loop's lateness is sampled; a sample costs some 20 microseconds."""

STOOD_STILL_SECONDS_MIN: Final = 0.02
"""A sample that is so late is taken off from the time of publishers: the node could not hear them."""

TIMER_LATE_SECONDS_MAX: Final = 0.005
"""A timer of the race that is later than this finds the node behind a pause, which may not be sampled yet."""

LISTENING_SECONDS: Final = LOOP_WATCH_SECONDS + TIMER_LATE_SECONDS_MAX
"""How long such a timer waits before it ends anybody's time; by then the pause is sampled."""

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

# --- standbys that acknowledgements wait for ---------------------------------------------------------------

OWN_ROOTS_KEPT: Final = 4_096
"""Root hashes of this node's last blocks that are kept to compare reports of standbys with, 100 bytes each. A
standby that is further behind costs a reading of the stream for each of its reports."""

RELEASED_BLOCKS_MAX: Final = 64
"""Blocks that are acknowledged in one go when a standby has come back after a long time..."""

RELEASE_REST_SECONDS: Final = 0.01
"""...and the rest before the next ones, in which publishers are sent them: nobody is to be cut off for not
reading thousands of answers that come at once."""

# --- the ledger ---------------------------------------------------------------------------------------------

CHAIN_SNAPSHOT_BLOCKS: Final = 1_000
"""Blocks between two snapshots of the chain's state: a start reads at most so many root hashes again."""

ROLL_FORWARD_LOG_BLOCKS: Final = 100_000
"""Blocks between two log lines while a start reads root hashes, some seconds of reading."""

COMMIT_GROUP_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of items and of the heads of their entries beyond which no further block joins a commit: two flushes
are nothing beside writing so much. A group is built in memory, and with the largest block behind so much, and
with as much padding, it is within what the data streamer takes."""

SHARED_FLUSH_BYTES_MAX: Final = 64 * 1024
"""Bytes of items of a group that is begun with the flush that finishes the one before it, at most. To lay a
larger one out and to write it takes longer than the flush that the one before is spared."""

RUN_ITEMS_MAX: Final = 8_192
"""Items of a block that are laid out for the stream in one go, in a thread."""

STAGE_BLOCK_ITEMS_MIN: Final = 1_024
"""Items that a block has, on average of those that are committed together, from which on they are laid out in
turns of the event loop: that takes 0.25 ms for so many..."""

STAGE_ITEM_BYTES_MAX: Final = 512
"""...if its items have no more bytes on average. To copy longer ones takes longer than all the rest, and a
loop that takes in many bytes has few turns."""

STAGE_ITEMS_MAX: Final = 1_024
"""Items that are laid out in one turn."""

STAGE_BYTES_MAX: Final = 256 * 1024
"""Bytes of items that are laid out in one turn, unless a single entry has more: 0.2 ms."""

DISK_PROBE_SECONDS: Final = 0.5
"""Time between two attempts to write after the disk refused a commit."""

DISK_PROBE_BYTES: Final = 1 << 20
"""Bytes that an attempt writes and flushes: room for a data page."""
