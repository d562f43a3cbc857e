"""Limits that several modules of the publisher side share: name, unit, reason, and what happens beyond."""

from __future__ import annotations

from typing import Final

from sluice.gateway.limits import MESSAGE_BYTES_DEFAULT

MIB: Final = 1024 * 1024

# --- block files -----------------------------------------------------------------------------------------

BLOCK_FILE_BYTES_MAX: Final = 256 * MIB
"""Largest block read from a file, after decompression: the node's default `publish.max_block_bytes`.
A few bytes of gzip can stand for gigabytes, so reading stops here and the file is refused."""

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

STATUS_SECONDS: Final = 5.0
"""How long a gateway may take to say what it holds."""

BLOCK_SECONDS: Final = 60.0
"""How long a gateway may take to send one whole block, which may have hundreds of megabytes."""

# --- one publisher ---------------------------------------------------------------------------------------

CACHE_BYTES_DEFAULT: Final = 256 * MIB
"""Blocks held because they are not acknowledged. At the limit nothing more is read from the source; it is
looked at before a block is taken, so at most one block more is held."""

WINDOW_BLOCKS_DEFAULT: Final = 128
"""Blocks that may be offered and not acknowledged. At the limit nothing is sent until an acknowledgement.
Above the node's `publish.stall_blocks` (3), so that a stalled winner can be overtaken."""

OFFERS_MAX: Final = 4 * WINDOW_BLOCKS_DEFAULT
"""Headers remembered to tell a late answer from a fresh one; the oldest is forgotten beyond."""

BAD_PROOF_RETRIES_MAX: Final = 2
"""How often a block is offered again after BAD_BLOCK_PROOF. A transmission cannot have damaged it (HTTP/2 and
TCP check), but another node, or this one after a restart with the right key, may take it. Each gateway of the
list is tried once in any case."""

INVALID_REQUEST_RETRIES_MAX: Final = 2
"""Streams ended by INVALID_REQUEST, one after the other without a block becoming safe, before giving up; each
gateway of the list is tried once in any case."""

LATENCY_SAMPLES_MAX: Final = 65_536
"""Times to acknowledgement kept for the report; the newest stay."""

# --- time ------------------------------------------------------------------------------------------------

ANSWER_TIMEOUT_SECONDS_DEFAULT: Final = 60.0
"""A gateway that neither takes bytes nor says anything new for so long, with blocks unacknowledged, is left
(TIMEOUT)."""

CLOSE_TIMEOUT_SECONDS: Final = 2.0
"""How long the other side may take to end a stream that was ended here; then it is cancelled."""

STOP_TIMEOUT_SECONDS: Final = 5.0
"""How long a cancelled publisher may take to finish the block in flight and say goodbye."""

# --- Spark -----------------------------------------------------------------------------------------------

ARROW_BATCH_ROWS: Final = 64
"""Blocks in one Arrow batch between Spark and Python; with blocks of some MB, Spark's 10,000 would not
fit."""

ARROW_BATCH_BYTES: Final = 16 * MIB
"""A batch read from block files is closed at this size even when it has fewer rows."""

ARROW_BATCH_HASHES: Final = 8_192
"""Rows of hashes in one Arrow batch; each has some hundred bytes."""

BLOCKS_PER_BATCH_DEFAULT: Final = 1_000
"""Blocks in one batch of a streaming query: each batch costs Spark some 100 ms beside its rows, and what is
done twice after a crash is one batch."""

PARTITIONS_MAX: Final = 1_000_000
"""Parts that a source of files may be read in: Spark has a task for each."""

SOURCE_DEADLINE_SECONDS_DEFAULT: Final = 60.0
"""How long a source over the network may give nothing of what is there, where nothing else is said."""

PART_ORDER_SECONDS_DEFAULT: Final = 600.0
"""How long a part of a chain waits for its turn without any progress of the gateways."""

RACE_MAX: Final = 16
"""Racing publishers in one task of the sink: they share the blocks and one Python process."""

STATUS_POLL_SECONDS: Final = 0.25
"""How often `sluice publish` asks a gateway for its head, and each task says how far it is."""

# --- verification of blocks that are here already --------------------------------------------------------

# --- block maker -----------------------------------------------------------------------------------------

MAKER_BLOCKS_MAX: Final = 10_000_000
"""Blocks that one `sluice generate` makes at most: a slip of the hand should not fill a disk."""
