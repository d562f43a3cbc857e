"""The blocks that begin in a part of a stream, each whole.

Pure. A part, entries F to E - 1, mostly begins and ends inside a block. Its reader skips to the first block
that begins in it, and continues to the end of the last one, beyond E. So readers of neighbouring parts yield
every block once.
Source: docs/spec/block-layout.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from sluice.datastream.layout import BOOKMARK_TYPE, Entry
from sluice.gateway.blocks.errors import LayoutError
from sluice.gateway.blocks.stream_layout import BlockDecoder, StoredBlock

__all__ = ["begins_block", "blocks_that_begin_in"]

# A block's first bookmark is in protobuf form; its second begins with 0x00.
_BLOCK_BOOKMARK: Final = b"\x08\x02"


def blocks_that_begin_in(
    entries: Iterable[Entry], first_number: int, end_number: int
) -> Iterator[StoredBlock]:
    """Yield the blocks whose first entry is in a part of a stream.

    Args:
        entries: from `first_number` on; it reads no more than it needs.
        first_number: of the part. Entry 0 of a stream must begin a block.
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
        # The next entry may not be there yet.
        if decoder.block_number is None and entry.number + 1 >= end_number:
            return
    if decoder.block_number is not None:
        what = f"block {decoder.block_number}"
        raise LayoutError(what, "the end of the stream", "the block end (0xb1)")


def begins_block(entry_type: int, data: bytes) -> bool:
    """Return whether an entry that is not data of a block is the first of one."""
    return entry_type == BOOKMARK_TYPE and data.startswith(_BLOCK_BOOKMARK)
