"""The demo app's sample operations: what a small sequencer of the original network would write. Pure.

    bookmark 1 | N      the batch          Operation N is batch N with the one block N: two bookmarks and
    bookmark 0 | N      the block          three events. The demo app also writes StartL2Block, L2Tx and
    StartL2Block        of block N         EndL2Block, with fixed numbers; here they count.
    L2Tx                5 bytes
    EndL2Block          of block N

Source: zkevm-data-streamer README, "DATASTREAM CLI DEMO APP"; docs/spec/stream-file.md section 5.
"""

from __future__ import annotations

from collections.abc import Sequence

from sluice.datastream.events.original_events import (
    EndL2Block,
    L2Tx,
    OriginalBookmark,
    OriginalBookmarkType,
    StartL2Block,
)
from sluice.datastream.layout import BOOKMARK_TYPE

__all__ = ["ENTRIES_PER_OPERATION", "sample_operation"]

ENTRIES_PER_OPERATION = 5

_ROOT = bytes(16) + bytes(range(1, 17))
_EXIT_ROOT = bytes(range(10, 18)) * 4
_COINBASE = bytes(range(20, 25)) * 4
_FORK_ID = 5
_TX = L2Tx(128, 1, _ROOT, bytes(range(1, 6))).encode()


def sample_operation(number: int, timestamp: int) -> Sequence[tuple[int, bytes]]:
    """Return the (entry type, data) of one operation; type 0xb0 is a bookmark.

    Args:
        number: of the batch and the block.
        timestamp: seconds since 1970.
    """
    start = StartL2Block(
        batch_number=number,
        block_number=number,
        timestamp=timestamp,
        global_exit_root=_EXIT_ROOT,
        coinbase=_COINBASE,
        fork_id=_FORK_ID,
    )
    return (
        (BOOKMARK_TYPE, OriginalBookmark(OriginalBookmarkType.BATCH, number).encode()),
        (BOOKMARK_TYPE, OriginalBookmark(OriginalBookmarkType.L2_BLOCK, number).encode()),
        (StartL2Block.ENTRY_TYPE, start.encode()),
        (L2Tx.ENTRY_TYPE, _TX),
        (EndL2Block.ENTRY_TYPE, EndL2Block(number, _ROOT, _ROOT).encode()),
    )
