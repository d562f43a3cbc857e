"""Every limit of the gateway: its name, unit, reason and precedent.

Pure. A limit that an operator may want to move has its default here and its name in the table of settings.
"""

from typing import Final

__all__ = [
    "ACCESS_ADDRESS_BYTES_MAX",
    "ACCESS_BYTES_MAX",
    "ACCESS_READS_MAX",
    "ACCESS_SECONDS_MAX",
    "ADDRESS_BOOK_NODES_MAX",
    "ADDRESS_BOOK_SIZE_MAX",
    "BLAMED_PUBLISHERS_KEPT",
    "BLOCK_ANSWER_BYTES_MAX",
    "BLOCK_ITEMS_MAX",
    "CERTIFICATE_LOOK_SECONDS",
    "CERTIFICATE_WARNING_DAYS",
    "COMMIT_GROUP_BYTES_MAX",
    "CONFIG_FILE_BYTES_MAX",
    "CONNECTION_IDLE_SECONDS_MAX",
    "CONTROL_CALL_SECONDS",
    "CONTROL_SECONDS_MAX",
    "DISK_PROBE_SECONDS",
    "DRAIN_SECONDS",
    "DRAIN_SECONDS_MAX",
    "FAILOVER_HOLD_SECONDS",
    "FAILOVER_LEVEL_SECONDS",
    "FAILOVER_LOOK_SECONDS",
    "FAILOVER_READY_POLL_SECONDS",
    "FAILOVER_READY_SECONDS",
    "FIELD_CHARACTERS_MAX",
    "FOLLOW_SETTLE_SECONDS",
    "GC_OBJECTS_MIN",
    "HALF_CLOSE_SECONDS",
    "HASH_PROCESSES",
    "HEADER_SIZE_MAX",
    "HEALTH_CHECK_SECONDS",
    "HTTP_CONNECTIONS_KEPT",
    "HTTP_CONNECTIONS_MAX",
    "HTTP_SILENT_SECONDS_MAX",
    "HTTP_STOP_SECONDS",
    "HTTP_UNREAD_SECONDS_MAX",
    "INLINE_HASH_ITEMS_MAX",
    "ITEM_OVERHEAD_BYTES",
    "KEEPALIVE_ANSWER_SECONDS",
    "KEEPALIVE_PEER_SECONDS",
    "KEY_FILE_BYTES_MAX",
    "LEDGER_KEYS_MAX",
    "LEVEL_LOOK_SECONDS",
    "LOOP_WATCH_SECONDS",
    "MESSAGE_BYTES_DEFAULT",
    "MESSAGE_PACES_KEPT",
    "METRIC_PUBLISHERS_MAX",
    "PEER_BLOCK_DOUBLINGS_MAX",
    "PEER_BLOCK_STALLS",
    "PEER_POLL_FAILURES_MAX",
    "PEER_POLL_SECONDS",
    "PEER_STATUS_SECONDS_MAX",
    "PING_SECONDS_MIN",
    "PROOFS_BYTES_MAX",
    "PROOFS_PER_BLOCK_MAX",
    "PUBLICATION_FILE_BYTES_MAX",
    "QUICK_PROOFS_BYTES_MAX",
    "QUICK_SIGNATURES_MAX",
    "QUIET_BLOCK_TIMES",
    "QUIET_SECONDS_MIN",
    "RACE_HISTORY_BLOCKS",
    "RECORD_FILE_FIELDS_MAX",
    "RECORD_FILE_SIGNATURES_MAX",
    "REQUEST_BYTES_MAX",
    "RESOLVE_SECONDS_MAX",
    "RUN_ITEMS_MAX",
    "STANDBY_ASK_SECONDS",
    "STANDBY_RETRY_SECONDS",
    "STANDBY_RETRY_SECONDS_MAX",
    "STANDBY_STREAMS_MAX",
    "STANDBY_STREAMS_PER_ADDRESS_MAX",
    "STANDBY_WAIT_SECONDS",
    "STANDBY_WRITE_SECONDS_MAX",
    "STATE_PROOF_PATHS_MAX",
    "STATE_PROOF_SIBLINGS_MAX",
    "STORED_BLOCK_BYTES_MAX",
    "STREAMS_PER_CONNECTION_MAX",
    "STREAM_WINDOW_BYTES",
    "SUBSCRIBE_READ_THREADS",
    "SUBSCRIBE_REQUEST_BYTES_MAX",
    "SUBSCRIBE_SHARED_BYTES_MAX",
    "THREAD_SWITCH_SECONDS",
    "TLS_FILE_BYTES_MAX",
    "TOLD_AHEAD_BLOCKS_MAX",
    "TURN_ITEMS_MIN",
]

# --- blocks and their verification --------------------------------------------------------------------------

HEADER_SIZE_MAX: Final = 4096
"""Bytes of a block header item. Real ones have about 50; each of its fields is walked through in Python,
which takes some 3 ms for the worst header of this size."""

PROOFS_PER_BLOCK_MAX: Final = 4
"""Proofs in one block. Real blocks carry one. Each costs a signature check, some 40 ms at most, and there can
be any number of good ones, so without a limit one block could cost minutes. With eight, and a publication of
128 nodes, which takes 0.4 s, a block 0 came close to a second."""

PROOFS_BYTES_MAX: Final = 1_250_000
"""Bytes of all proof items of one block. Real ones have 4,000 at most. The longest that can hold is a state
proof of `STATE_PROOF_SIBLINGS_MAX`, some 1,080,000. Each is parsed in the event loop, 1 ms for a MB, and more
where it is many fields of later versions."""

QUICK_SIGNATURES_MAX: Final = 8
"""Proofs of a block, times Ed25519 keys that may have signed it, up to which they are checked in the event
loop: each takes 0.05 ms, and that twice where the root of the other layout is tried too."""

QUICK_PROOFS_BYTES_MAX: Final = 16 * 1024
"""Bytes of a block's proofs up to which they are looked at there, 0.03 ms. An Ed25519 proof has 75."""

LEDGER_KEYS_MAX: Final = 64
"""Ledger keys that may be configured. A proof is tried against each key of its kind, 0.1 ms each at most."""

KEY_FILE_BYTES_MAX: Final = 65_536
"""Bytes of a file with a private key. One has some 120; more is a wrong path."""

ADDRESS_BOOK_NODES_MAX: Final = 500
"""Nodes of an address book. Public networks have some thirty; to decode a key takes some 0.01 ms, and to
verify a signature with it 0.07 ms at most."""

ADDRESS_BOOK_SIZE_MAX: Final = 8 << 20
"""Bytes of an address book in JSON; each node needs some thousand."""

RECORD_FILE_SIGNATURES_MAX: Final = 500
"""Signatures in one record-file proof, one for each node; to verify one takes 0.07 ms at most, and is done
once for all proofs of a block."""

RECORD_FILE_FIELDS_MAX: Final = 100_000
"""Fields of a record file and of its item together, most of them its records: 20,000 of a network that makes
10,000 transactions a second, in a file of two seconds. To pass over so many as this takes some 0.1 s."""

STATE_PROOF_PATHS_MAX: Final = 64
"""Paths of one state proof. Those of blocks have three; a proof of several leaves has two more for each."""

STATE_PROOF_SIBLINGS_MAX: Final = 20_000
"""Siblings of all state proofs of a block, in all their paths. A proof has five for each block up to the
signed one, so this is enough for a network that signs one block of 4,000. To read and hash them takes some
0.06 s, and that twice where the root of the other layout is tried too."""

PUBLICATION_FILE_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of a file that `tss:FILE` names, decompressed: a block 0 with some margin."""

STORED_BLOCK_BYTES_MAX: Final = 1 << 30
"""Bytes of items that a reader of stored entries gathers before it gives a block up. Far above any block that
a publisher may send; it bounds what a hostile stream server can make a client hold."""

# --- running a node -----------------------------------------------------------------------------------------

FIELD_CHARACTERS_MAX: Final = 2_000
"""Characters of one field of a log line; what is longer is cut, so that no peer's text fills the disk."""

HEALTH_CHECK_SECONDS: Final = 0.25
"""Time between two looks at the node's readiness for the gRPC health service."""

QUIET_BLOCK_TIMES: Final = 10
"""So many times `block_time_seconds` without a block are worth a note on the status page..."""

QUIET_SECONDS_MIN: Final = 30.0
"""...but no shorter time than this."""

RACE_HISTORY_BLOCKS: Final = 100
"""Blocks whose winners the status page shows."""

METRIC_PUBLISHERS_MAX: Final = 64
"""Publishers that have a label of their own in the metrics; blocks won by further ones count as `other`. Each
label is a series that every scrape carries and Prometheus keeps; who publishes is not ours to choose."""

LEVEL_LOOK_SECONDS: Final = 0.01
"""Time between two looks whether a standby has become level during a failover, when publishers wait."""

FAILOVER_LEVEL_SECONDS: Final = 10.0
"""How long a standby may take to become level while publishers wait; then the failover is undone."""

FAILOVER_LOOK_SECONDS: Final = 2.0
"""How long a failover that was interrupted waits for each node to say what it is, before it says that."""

FAILOVER_READY_SECONDS: Final = 20.0
"""How long a failover between two active nodes waits for the second to be ready: with `commit.min_standbys`
it is so only while the first has its blocks, which that takes every `catchup.stall_seconds` (10) or so."""

FAILOVER_READY_POLL_SECONDS: Final = 0.5
"""How often it asks meanwhile; a node whose blocks wait for others stays ready for 3 s."""

FAILOVER_HOLD_SECONDS: Final = 30.0
"""How long a drained node waits for the end of the failover before it takes publishers again by itself:
longer than all steps of a failover together may take."""

CONTROL_CALL_SECONDS: Final = 15.0
"""How long a control call waits for its answer, beyond the time that it asks the node to wait: a little more
than a node needs to finish the blocks in flight."""

CONTROL_SECONDS_MAX: Final = 3_600
"""The longest time that a control call may ask a node to wait or hold, in seconds."""

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

TURN_ITEMS_MIN: Final = 128
"""Items of one message, or batch to be hashed, from which on it takes a turn of the event loop."""

HASH_PROCESSES: Final = 2
"""Processes for hashing. One keeps up with the event loop where items have 400 bytes or more."""

THREAD_SWITCH_SECONDS: Final = 0.000_2
"""How long one thread may keep the interpreter while another waits. Python's default, 5 ms, is what the event
loop would wait each time that it wakes while a thread hashes short items, and what the thread that commits
would wait behind the event loop, five times in each commit."""

GC_OBJECTS_MIN: Final = 10_000
"""New objects from which on Python looks for garbage among them. It walks the lists of all items that have
come since, so with its default, 700, that held the event loop for 2 to 5 ms several times a second while
blocks of thousands of items came fast. Blocks leave no such garbage, good or bad; a closed stream leaves six
small objects and its metadata, 16 kB at most."""

LOOP_WATCH_SECONDS: Final = 0.02
"""How often the event loop's lateness is sampled; a sample costs some 20 microseconds."""

DRAIN_SECONDS: Final = 1.0
"""How long the other side of a stream that the node has ended may be silent before the stream is closed.
While messages come they are read and dropped: a publisher that writes before it reads gets to the answer."""

DRAIN_SECONDS_MAX: Final = 30.0
"""How long such a stream is read at most, some time for the rest of the largest block; then it is cut off.
Also how long a publisher may leave the node's last word unread, and the status that then follows it."""

HALF_CLOSE_SECONDS: Final = 0.02
"""How long after the end of a publisher's messages the stream has to live to count as closed in order. gRPC
reports the end of a broken stream in the same way, and says that it is broken some 0.1 ms later."""

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

PING_SECONDS_MIN: Final = 0.5
"""Clients may ask the node as often. Without this, gRPC closes the connection of one that asks oftener than
every 5 minutes, with `too_many_pings`. Some libraries can ask each second; a ping costs nothing."""

CONNECTION_IDLE_SECONDS_MAX: Final = 600
"""How long a gRPC client may be connected without a call. It is told so and connects again by itself."""

STREAM_WINDOW_BYTES: Final = 1024 * 1024
"""What a client may send on one stream before the node has read it, beside the message that is being read. It
is not counted in flight, so it is what a publisher costs that has to wait; gRPC's own choice grows to 16 MB.
Over a line with a round trip of 50 ms it allows 20 MB a second for each stream."""

STREAMS_PER_CONNECTION_MAX: Final = 1_024
"""Calls at once on one gRPC connection, some 20 kB each, beside what has come of a request; HTTP/2 has the
client wait with further ones. A proxy may bring all publishers and subscribers of a node over one
connection."""

HTTP_CONNECTIONS_MAX: Final = 256
"""Connections at once to the HTTP address, of probes, a scraper, a few browsers; one more is closed."""

HTTP_CONNECTIONS_KEPT: Final = 8
"""Of these, those that may take the last file descriptors: without one, probes would have a node killed."""

HTTP_SILENT_SECONDS_MAX: Final = 75.0
"""How long an HTTP client may be connected without a whole request. Scrapers ask again within a minute."""

HTTP_STOP_SECONDS: Final = 1.0
"""How long a stopping node waits for HTTP clients to take their answers, and as long again for requests that
have begun. Answers take milliseconds; who does not read them is not waited for."""

HTTP_UNREAD_SECONDS_MAX: Final = 60.0
"""How long an HTTP client may take nothing of an answer; then it is closed."""

BLAMED_PUBLISHERS_KEPT: Final = 1_000
"""Publishers that failed a block and are remembered while nobody brings it; of more, those that are gone are
forgotten. A name costs its publisher nothing, and a block may not come for long."""

MESSAGE_PACES_KEPT: Final = 10_000
"""Publishers and addresses whose pace of messages is remembered, some 200 bytes each. The one that was idle
longest is forgotten first, and has a full second's worth again when it comes back."""

CERTIFICATE_LOOK_SECONDS: Final = 5.0
"""Time between two looks at the files of certificates, beside those at each handshake."""

CERTIFICATE_WARNING_DAYS: Final = 14
"""A certificate that ends within so many days is logged as a warning when it is loaded."""

TLS_FILE_BYTES_MAX: Final = 1 << 20
"""Bytes of a certificate or key file. A bundle of all public authorities has a quarter of it."""

CONFIG_FILE_BYTES_MAX: Final = 1 << 20
"""Bytes of the TOML file of settings. One of all settings has a few thousand; more is a wrong path."""

# --- single blocks ------------------------------------------------------------------------------------------

ACCESS_BYTES_MAX: Final = 512 * 1024 * 1024
"""Bytes of blocks on their way to those who asked `getBlock`: each is in memory, here and in gRPC, until its
client has it. With so many, no further one is read; one block is always possible, however large."""

ACCESS_ADDRESS_BYTES_MAX: Final = 128 * 1024 * 1024
"""The same to one network address."""

ACCESS_READS_MAX: Final = 2
"""Blocks that are read for `getBlock` at once; more would only hold more memory."""

ACCESS_SECONDS_MAX: Final = 300.0
"""How long a client may take to take a block, or hold a part of the above; then its connection is ended."""

# --- subscribing --------------------------------------------------------------------------------------------

SUBSCRIBE_REQUEST_BYTES_MAX: Final = 4096
"""Bytes of a request to subscribe; two numbers take 22, the rest is room for fields of later versions."""

SUBSCRIBE_READ_THREADS: Final = 2
"""Threads that read the stream for subscribers. A reading of a batch takes some milliseconds; more threads
would only take the interpreter from the event loop."""

SUBSCRIBE_SHARED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of messages that are kept for subscribers who come to the same place a moment later. Those who are
level all want the same block, which is read and serialized once."""

# --- peers --------------------------------------------------------------------------------------------------

PEER_STATUS_SECONDS_MAX: Final = 5.0
"""How long a peer may take to answer `serverStatus`."""

RESOLVE_SECONDS_MAX: Final = 2.0
"""How long a start waits for the addresses of a peer's name, to see whether the peer is the node itself."""

PEER_BLOCK_STALLS: Final = 3.0
"""How many times `catchup.stall_seconds` one block of a peer is waited for before the node looks whether
another peer has it; twice that with each attempt in vain."""

PEER_BLOCK_DOUBLINGS_MAX: Final = 8
"""So often at most: two hours then, at 10 s."""

PEER_POLL_SECONDS: Final = 1.0
"""Time between two questions to a peer that is followed live for its last block."""

PEER_POLL_FAILURES_MAX: Final = 3
"""Questions in a row that a peer leaves unanswered before it counts as gone. Its stream may be silent for
long, and a process that hangs keeps its connections."""

FOLLOW_SETTLE_SECONDS: Final = 0.005
"""Time between two looks whether the last blocks of a peer are committed, when the node stops following."""

TOLD_AHEAD_BLOCKS_MAX: Final = 10_000_000
"""So far above all that a node and its peers have, a publisher is believed: over half a year of blocks."""

# --- standbys that acknowledgements wait for ---------------------------------------------------------------

STANDBY_WAIT_SECONDS: Final = 3.0
"""How long a block may wait for standbys before the node says so and is not ready: many times what a standby
takes that works, and one or two block times."""

STANDBY_ASK_SECONDS: Final = 0.1
"""Time between two questions to standbys that are ahead whether they have this node's last block."""

STANDBY_RETRY_SECONDS: Final = 0.1
"""Rest before a standby that was lost is connected to again, doubled with each failure up to..."""

STANDBY_RETRY_SECONDS_MAX: Final = 2.0
"""...this: publishers wait for it. An attempt costs a connection."""

STANDBY_STREAMS_MAX: Final = 256
"""Nodes that may watch this one's level at once; a cluster has a few."""

STANDBY_STREAMS_PER_ADDRESS_MAX: Final = 64
"""The same from one network address: many may share one behind a proxy."""

STANDBY_WRITE_SECONDS_MAX: Final = 30.0
"""How long a watcher may take to take a level, some 80 bytes; then its connection is ended."""

# --- the ledger ---------------------------------------------------------------------------------------------

COMMIT_GROUP_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of items and of the heads of their entries beyond which no further block joins a commit: two flushes
are nothing beside writing so much. A group is built in memory, and with the largest block behind so much, and
with as much padding, it is within what the data streamer takes."""

RUN_ITEMS_MAX: Final = 1_024
"""Items of a block that are serialized for the stream in one go, in a thread: 0.3 ms, in which the event loop
may have to wait for Python's lock."""

DISK_PROBE_SECONDS: Final = 0.5
"""Time between two attempts to write after the disk refused a commit."""
