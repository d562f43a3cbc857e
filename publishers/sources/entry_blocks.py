"""Blocks out of a part of a stream: those that begin in it, whole.

Pure. A reader of entries F to E - 1 has most often been cut out of the middle of a block at both ends. It
passes over the rest of a block that began before F, and goes on beyond E to the end of the block that began
before E. So readers of neighbouring parts give every block once.
Source: docs/spec/block-layout.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from datastream.layout import BOOKMARK_TYPE, Entry
from gateway.blocks.errors import LayoutError
from gateway.blocks.stream_layout import BlockDecoder, StoredBlock

__all__ = ["begins_block", "blocks_that_begin_in"]

# The first bookmark of a block is in protobuf form; its second begins with 0x00.
_BLOCK_BOOKMARK: Final = b"\x08\x02"


def blocks_that_begin_in(
    entries: Iterable[Entry], first_number: int, end_number: int
) -> Iterator[StoredBlock]:
    """Give the blocks whose first entry is in a part of a stream.

    Args:
        entries: of the stream from `first_number` on, as far as they are asked for.
        first_number: of the part. A stream's entry 0 has to be the first of a block.
        end_number: the entry after the part's last.

    Raises:
        LayoutError: the entries are no blocks, or the last block is cut off.
    """
    decoder = BlockDecoder()
    is_begun = first_number == 0
    for entry in entries:
        is_begun = is_begun or begins_block(entry.type, entry.data)
        stored = decoder.feed(entry.type, entry.data) if is_begun else None
        if stored is not None:
            yield stored
        # Before the next entry is asked for: it may not be there yet.
        if decoder.block_number is None and entry.number + 1 >= end_number:
            return
    if decoder.block_number is not None:
        what = f"block {decoder.block_number}"
        raise LayoutError(what, "the end of the stream", "the block end (0xb1)")


def begins_block(entry_type: int, data: bytes) -> bool:
    """Whether an entry is the first of a block, if it is not data of one."""
    return entry_type == BOOKMARK_TYPE and data.startswith(_BLOCK_BOOKMARK)
