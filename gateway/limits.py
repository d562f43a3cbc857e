"""Every limit of the gateway: its name, unit, reason and precedent.

Pure. A limit that an operator may want to move has its default here and its name in the table of settings.
"""

from typing import Final

__all__ = [
    "FIELD_CHARACTERS_MAX",
    "LEDGER_KEYS_MAX",
    "METRIC_PUBLISHERS_MAX",
    "PROOFS_PER_BLOCK_MAX",
    "STORED_BLOCK_BYTES_MAX",
]

# --- blocks and their verification --------------------------------------------------------------------------

HEADER_SIZE_MAX: Final = 65_536
"""Bytes of a block header item. Real ones have about 50; each of its fields is walked through in Python."""

PROOFS_PER_BLOCK_MAX: Final = 16
"""Proofs in one block. Real blocks carry one. Each costs a signature check, and a copy of a good proof is a
good proof, so without a limit one block could cost minutes."""

LEDGER_KEYS_MAX: Final = 64
"""Ledger keys that may be configured. A proof is tried against each key of its kind, some 0.1 ms each."""

STORED_BLOCK_BYTES_MAX: Final = 1 << 30
"""Bytes of items that a reader of stored entries gathers before it gives a block up. Far above any block that
a publisher may send; it bounds what a hostile stream server can make a client hold."""

# --- running a node -----------------------------------------------------------------------------------------

FIELD_CHARACTERS_MAX: Final = 2_000
"""Characters of one field of a log line; what is longer is cut, so that no peer's text fills the disk."""

METRIC_PUBLISHERS_MAX: Final = 64
"""Publishers that have a label of their own in the metrics; blocks won by further ones count as `other`. Each
label is a series that every scrape carries and Prometheus keeps; who publishes is not ours to choose."""
