"""Limits that several modules of the publisher side share."""

from __future__ import annotations

from typing import Final

from sluice.gateway.limits import MESSAGE_BYTES_DEFAULT

MIB: Final = 1024 * 1024

# --- block files -----------------------------------------------------------------------------------------

BLOCK_FILE_BYTES_MAX: Final = 256 * MIB
"""After decompression: the node's default `publish.max_block_bytes`."""

# --- messages --------------------------------------------------------------------------------------------

SIZE_OPTION: Final = "max_message_bytes"
"""The option for the longest message, in Spark and, with dashes, in commands."""

MESSAGE_BYTES_MAX: Final = MESSAGE_BYTES_DEFAULT
"""Largest gRPC message without the option `max_message_bytes`: the nodes' default."""

MESSAGE_OPTION_MIN: Final = 64 * 1024
"""As of a node's setting: the longest header and proofs fit in."""

MESSAGE_OPTION_MAX: Final = 1 << 30
"""As of a node's setting: gRPC holds a whole message several times."""

MESSAGE_MARGIN_BYTES: Final = 1024
"""PublishStreamRequest and BlockItemSet add two tags and lengths (at most 12 bytes)."""

ITEM_BYTES_MAX: Final = MESSAGE_BYTES_MAX - MESSAGE_MARGIN_BYTES
"""Largest item that fits in such a message, with its tag and length."""

ITEM_SET_BYTES_DEFAULT: Final = 64 * 1024
"""Large enough that a message costs little, small enough that a skip stops a block early."""

ITEM_SET_ITEMS_MAX: Final = 4_096
"""A node needs about 6 ms for them. Only items below 14 bytes reach this."""

STATUS_SECONDS: Final = 5.0
"""Longest wait for a gateway's status."""

BLOCK_SECONDS: Final = 60.0
"""Longest wait for one whole block."""

# --- one publisher ---------------------------------------------------------------------------------------

CACHE_BYTES_DEFAULT: Final = 256 * MIB
"""Unacknowledged blocks held; the publisher may exceed this by one block."""

WINDOW_BLOCKS_DEFAULT: Final = 128
"""Blocks offered and not acknowledged. Above the node's `publish.stall_blocks` (3), to overtake a stalled
winner."""

OFFERS_MAX: Final = 4 * WINDOW_BLOCKS_DEFAULT
"""Headers remembered to tell a late answer from a fresh one."""

BAD_PROOF_RETRIES_MAX: Final = 2
"""Another node, or this one with another key after a restart, may take the block. Each gateway is tried once
in any case."""

INVALID_REQUEST_RETRIES_MAX: Final = 2
"""Streams in a row, without a newly stored block. Each gateway is tried once in any case."""

LATENCY_SAMPLES_MAX: Final = 65_536
"""Times to acknowledgement kept for the report; the newest stay."""

# --- time ------------------------------------------------------------------------------------------------

ANSWER_TIMEOUT_SECONDS_DEFAULT: Final = 60.0
"""Longest silence of a gateway with blocks unacknowledged: it neither takes bytes nor says anything new."""

CLOSE_TIMEOUT_SECONDS: Final = 2.0
"""Longest wait for the gateway to end a stream that we ended; then we cancel it."""

STOP_TIMEOUT_SECONDS: Final = 5.0
"""Longest time in which a cancelled publisher finishes the block in flight and ends its stream."""

# --- Spark -----------------------------------------------------------------------------------------------

ARROW_BATCH_ROWS: Final = 64
"""Blocks in one Arrow batch between Spark and Python; Spark's 10,000 blocks of some MB would not fit."""

ARROW_BATCH_BYTES: Final = 16 * MIB
"""A batch of fewer rows ends at this size."""

ARROW_BATCH_HASHES: Final = 8_192
"""Rows of hashes in one Arrow batch."""

BLOCKS_PER_BATCH_DEFAULT: Final = 1_000
"""Each batch costs Spark some 100 ms, and a crash repeats one."""

PARTITIONS_MAX: Final = 1_000_000
"""Parts of a source of files, each a Spark task."""

SOURCE_DEADLINE_SECONDS_DEFAULT: Final = 60.0
"""Longest wait for the next block or entry that a network source has."""

PART_ORDER_SECONDS_DEFAULT: Final = 600.0
"""Longest wait of a part until it is next, without progress of the gateways."""

RACE_MAX: Final = 16
"""Racing publishers in one task of the sink, which share its blocks and Python process."""

STATUS_POLL_SECONDS: Final = 0.25
"""Time between two questions of `sluice publish` to a gateway, and between two reports of a task."""


# --- block maker -----------------------------------------------------------------------------------------

MAKER_BLOCKS_MAX: Final = 10_000_000
"""A typing error should not fill a disk."""
