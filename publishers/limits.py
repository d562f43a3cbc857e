"""Limits that several modules of the publisher side share: name, unit, reason, and what happens beyond."""

from __future__ import annotations

from typing import Final

from gateway.limits import MESSAGE_BYTES_DEFAULT

MIB: Final = 1024 * 1024

# --- block files -----------------------------------------------------------------------------------------

BLOCK_FILE_BYTES_MAX: Final = 256 * MIB
"""Largest block read from a file, after decompression: the node's default `publish.max_block_bytes`.
A few bytes of gzip can stand for gigabytes, so reading stops here and the file is refused."""

FILE_WRITE_SECONDS_MAX: Final = 300.0
"""How long a stream waits for a block file that is being written."""

FILE_LOOK_SECONDS: Final = 0.2
"""Between two looks at such a file."""

# --- messages --------------------------------------------------------------------------------------------

MESSAGE_BYTES_MAX: Final = MESSAGE_BYTES_DEFAULT
"""Largest gRPC message that is sent, or taken from a gateway, where the option `max_message_bytes` says
nothing else: what nodes take by default."""

MESSAGE_OPTION_MIN: Final = 64 * 1024
"""The least that this option takes, as a node's setting: the longest header and proofs fit in."""

MESSAGE_OPTION_MAX: Final = 1 << 30
"""The most, as a node's setting: gRPC holds a whole message several times."""

MESSAGE_MARGIN_BYTES: Final = 1024
"""Left free in a message for the framing around the items: PublishStreamRequest and BlockItemSet add two
tags and lengths (at most 12 bytes), each item a tag and a length, which are counted with the item."""

ITEM_BYTES_MAX: Final = MESSAGE_BYTES_MAX - MESSAGE_MARGIN_BYTES
"""Largest item, with its tag and length in the set, that fits in a message of that size. A block with a
larger one is refused before any of it is sent."""

ITEM_SET_BYTES_DEFAULT: Final = 64 * 1024
"""Items are sent in sets of about this size: large enough to make the cost of a message small, small enough
for a skip to stop a block early."""

ITEM_SET_ITEMS_MAX: Final = 4_096
"""Items in one set, however short they are. A node takes 500,000 in a message at most, and needs a
microsecond and more for each: this is 6 ms, and what ours hands on at once to the process that hashes. With
the default size of sets only items below 14 bytes come to so many."""

OPTION_MAX: Final = 1e9
"""The longest time, and the highest rate, that an option takes: 31 years. Clocks count in nanoseconds, and
what is far longer is too large a number for them."""

STATUS_SECONDS: Final = 5.0
"""How long a gateway may take to say what it holds."""

LAST_WORD_SECONDS: Final = 1.0
"""The same of each gateway when a job has failed, or was stopped: often because they say nothing."""

BLOCK_SECONDS: Final = 60.0
"""How long a gateway may take to send one whole block, which may have hundreds of megabytes."""

# --- one publisher ---------------------------------------------------------------------------------------

CACHE_BYTES_DEFAULT: Final = 256 * MIB
"""Blocks held because they are not acknowledged. At the limit nothing more is read from the source; it is
looked at before a block is taken, so at most one block more is held."""

WINDOW_BLOCKS_DEFAULT: Final = 128
"""Blocks that may be offered and not acknowledged. At the limit nothing is sent until an acknowledgement.
Above the node's `publish.stall_blocks` (3), so that a stalled winner can be overtaken."""

READ_AHEAD_BLOCKS: Final = 32
"""Blocks taken from the source before their turn to be sent; more would only cost memory."""

OFFERS_MAX: Final = 4 * WINDOW_BLOCKS_DEFAULT
"""Headers remembered to tell a late answer from a fresh one; the oldest is forgotten beyond."""

BAD_PROOF_RETRIES_MAX: Final = 2
"""How often a block is offered again after BAD_BLOCK_PROOF. A transmission cannot have damaged it (HTTP/2 and
TCP check), but another node, or this one after a restart with the right key, may take it. Each gateway of the
list is tried once in any case."""

BEHIND_ANSWERS_MAX: Final = 16
"""How often one stream goes back for BehindPublisher without a block becoming safe. Once is enough with a
gateway that takes the block that it asks for; one that does not is left for a while."""

RESEND_ANSWERS_MAX: Final = 128
"""The same for ResendBlock. Each is about another publisher that failed the block, so there can be as many as
publishers race, and more; one that asks again and again for what it is sent is left for a while."""

INVALID_REQUEST_RETRIES_MAX: Final = 2
"""Streams ended by INVALID_REQUEST, one after the other without a block becoming safe, before giving up; each
gateway of the list is tried once in any case."""

LATENCY_SAMPLES_MAX: Final = 65_536
"""Times to acknowledgement kept for the report; the newest stay."""

# --- time ------------------------------------------------------------------------------------------------

RETRY_SECONDS_FIRST: Final = 1.0
"""Wait before the first retry; doubled for each further one (issue: 1 s, doubled, jitter, at most 30 s)."""

RETRY_SECONDS_MAX: Final = 30.0
"""Longest wait between two tries to connect."""

RETRY_JITTER_SECONDS: Final = 1.0
"""Up to this much is added to a wait, so that publishers that were thrown out together do not come back
so."""

SOON_SECONDS: Final = 0.1
"""Wait before the next gateway is tried when one ended the stream in order: while the load moves from one
node to another, both do so for a moment."""

SOON_TRIES_MAX: Final = 50
"""So many of these waits in a row, without a block becoming safe, before the growing ones: 5 seconds, well
over a failover, and so few that gateways which are all standbys are not bothered for long."""

CONNECT_TIMEOUT_SECONDS: Final = 5.0
"""A gateway that has not accepted the connection by then counts as unreachable for this try."""

ANSWER_TIMEOUT_SECONDS_DEFAULT: Final = 60.0
"""A gateway that neither takes bytes nor says anything new for so long, with blocks unacknowledged, is left
(TIMEOUT)."""

CLOSE_TIMEOUT_SECONDS: Final = 2.0
"""How long the other side may take to end a stream that was ended here; then it is cancelled."""

STOP_TIMEOUT_SECONDS: Final = 5.0
"""How long a cancelled publisher may take to finish the block in flight and say goodbye."""

# --- Spark -----------------------------------------------------------------------------------------------

JAVA_VERSION_MIN: Final = 17
"""PySpark 4 needs Java 17 or later."""

SPARK_LOCAL_BYTES_MIN: Final = 64 * MIB
"""Space in Spark's folder for temporary files below which it is not started: broadcasts and shuffles of a
small chain need some megabytes."""

ARROW_BATCH_ROWS: Final = 64
"""Blocks in one Arrow batch between Spark and Python; with blocks of some MB, Spark's 10,000 would not
fit."""

ARROW_BATCH_BYTES: Final = 16 * MIB
"""A batch read from block files is closed at this size even when it has fewer rows."""

ARROW_BATCH_ENTRIES: Final = 8_192
"""Entries of a stream in one Arrow batch; most of them are small."""

ARROW_BATCH_HASHES: Final = 8_192
"""Rows of hashes in one Arrow batch; each has some hundred bytes."""

RECORDS_PER_BLOCK_DEFAULT: Final = 1_000
"""Records that are wrapped into one block, where nothing else is said."""

RECORDS_PER_BLOCK_MAX: Final = 1_000_000
"""Half the items that a gateway takes in a block; a block's records are in the memory of one task."""

RECORD_PARTS_MAX: Final = 256
"""Parts that records are sorted in. Finding a record's part takes a comparison for each doubling, and the
expression for it has as many cases as there are parts."""

BLOCKS_PER_BATCH_DEFAULT: Final = 1_000
"""Blocks in one batch of a streaming query: each batch costs Spark some 100 ms beside its rows, and what is
done twice after a crash is one batch."""

BATCH_REPORTS_KEPT: Final = 100
"""Batches of a streaming query whose reports stay in `report_path`; the totals of all stay in one file."""

ENTRIES_PER_BATCH_DEFAULT: Final = 100_000
"""Entries in one batch of a streaming query."""

PARTITIONS_MAX: Final = 1_000_000
"""Parts that a source of files may be read in: Spark has a task for each."""

SUBSCRIPTIONS_MAX: Final = 10_000
"""Parts that blocks of a gateway may be read in; each is a subscription, of which a gateway has 1,000 at once
and Spark a few."""

SOURCE_DEADLINE_SECONDS_DEFAULT: Final = 60.0
"""How long a source over the network may give nothing of what is there, where nothing else is said."""

CACHE_BYTES_MAX: Final = 1 << 40
"""The largest cache that an option may ask for, far above any machine: a slip of the hand is said."""

JVM_STARTS_MAX: Final = 3
"""Starts of a JVM that ends before it has said anything. PySpark forks this process to start it; where gRPC
runs already, its handler in the forked child can abort before Java begins (about one fork in fifty with
grpcio 1.85), and the next fork is another try."""

QUERY_STARTS_MAX: Final = 5
"""Starts of a streaming query that falls over something of Spark's own; its checkpoint knows where it was."""

PUBLISHERS_MAX: Final = 64
"""Racing publishers of one `sluice publish`: each is a task slot and two Python processes."""

SHARDS_MAX: Final = 256
"""Parts of the chain that each publisher of `sluice publish` prepares at once; each is a task slot."""

START_GATE_SECONDS: Final = 30.0
"""How long a racing publisher waits for the others to be ready; then it starts alone."""

COORDINATOR_CONNECT_SECONDS: Final = 5.0
"""How long a task tries to reach the coordinator of its race, or to say its last word; then it does
without."""

COORDINATOR_HELLO_BYTES_MAX: Final = 64 * 1024
"""Longest first line of a task: names, and the token. Until it has come, anybody may be at the other end."""

COORDINATOR_LINE_BYTES_MAX: Final = 16 * MIB
"""Longest line between a task and the coordinator: the reports of RACE_MAX publishers, each with all its
latency samples, its end among them. A longer one ends the connection."""

PACE_LEAD_SECONDS: Final = 1.0
"""With `blocks_per_second`, the time between the start and the first block, in which publishers connect: else
the one that connects first would be far ahead of the others."""

THREAD_SWITCH_SECONDS: Final = 0.001
"""How long the thread of a task that checks blocks may keep the interpreter while the one that publishes
waits. With Python's default, 5 ms, the gateway is idle while a task reads ahead."""

TURN_POLL_SECONDS: Final = 0.1
"""How often a part of a chain that is not next asks the gateways how far they are."""

TURN_PATIENCE_SECONDS: Final = 5.0
"""How long a preferred gateway that is behind and does not move is waited for, when another has the
blocks."""

TURN_SECONDS_DEFAULT: Final = 600.0
"""How long a part of a chain waits for its turn without any progress of the gateways."""

TURN_SECONDS_CROWDED: Final = 60.0
"""The same where there are more parts than task slots, and tasks are tried again: a task that has failed may
find all slots taken by tasks that wait for it. One of them giving up lets it go on, and is itself tried
again."""

PUBLISHER_ID_CHARS_MAX: Final = 128
"""Longest `publisher_id`. Partitions, attempts and racers add to it, and reports are in files of that name,
which may have 255."""

RACE_MAX: Final = 16
"""Racing publishers in one task of the sink: they share the blocks and one Python process."""

STATUS_POLL_SECONDS: Final = 0.25
"""How often `sluice publish` asks a gateway for its head, and each task says how far it is."""

# --- verification of blocks that are here already --------------------------------------------------------

VERIFY_WORKERS_MAX: Final = 256
"""Processes of one `sluice verify`."""

VERIFY_TABLE_ROWS_MAX: Final = 100
"""Rows in its table without --all: more blocks than that, and only those with something to say are shown."""

# --- block maker -----------------------------------------------------------------------------------------

MAKER_BLOCKS_MAX: Final = 10_000_000
"""Blocks that one `sluice generate` makes at most: a slip of the hand should not fill a disk."""
