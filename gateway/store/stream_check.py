"""Checking the blocks of a stream: can each be read back, is its root hash right, does it link to the last.

Pure: `BlockCheck` is given the entries in order (`check.check.EntryVisitor`) and reports what is wrong.
A stream that does not begin as a stream of blocks does (`block_layout`) is none; nothing is said about it.

After a gap or a broken block it goes on with the next block that can be read. The chain is taken up there:
that block's links are believed, as those of a node that begins in mid-chain.

Source: docs/spec/block-hash.md sections 3.3 and 4; docs/spec/block-layout.md. Signatures are not checked
here.
"""

from __future__ import annotations

from collections.abc import Callable

from datastream.layout import BOOKMARK_TYPE, Entry
from gateway.blocks.chain import Chain
from gateway.blocks.errors import BlockRefused, ItemError, LayoutError
from gateway.blocks.root_hash import BlockHasher, BlockSummary
from gateway.blocks.stream_layout import BlockDecoder, StoredBlock

__all__ = ["BlockCheck", "Report", "summary_of"]

Report = Callable[[str, int, int], None]
"""Called with (what is wrong, offset, entry number)."""
_PROBE_ENTRIES = 2


class BlockCheck:
    """Takes the entries of a stream and checks the blocks they make.

    Args:
        report: is told what is wrong.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self._decoder = BlockDecoder()
        self._chain: Chain | None = None
        self._seeking = False
        """Something was wrong: what is not the beginning of a block is passed over."""
        self._first = (0, 0)
        """(offset, entry number) where the block under way begins."""
        self._seen = 0
        self.is_block_stream = True
        """Whether the stream begins with a block; the others are not looked at."""
        self.block_count = 0
        """Blocks that could be read."""
        self.last_number: int | None = None
        """Number of the last of them."""

    def entry(self, entry: Entry, offset: int) -> None:
        """Take the next entry."""
        if not self.is_block_stream:
            return
        self._seen += 1
        if self._seeking and entry.type != BOOKMARK_TYPE and self._decoder.block_number is None:
            return
        if self._decoder.block_number is None:
            self._first = (offset, entry.number)
        try:
            block = self._decoder.feed(entry.type, entry.data)
        except LayoutError as error:
            self._refuse(str(error), offset, entry.number)
            return
        if block is not None:
            self._seeking = False
            self._check(block)

    def gap(self) -> None:
        """Entries are missing; the block under way cannot be read."""
        self._decoder.reset()
        self._seeking = True
        self._chain = None

    def end(self) -> None:
        """The stream has ended."""
        if self.is_block_stream and self._decoder.block_number is not None and not self._seeking:
            what = f"block {self._decoder.block_number} has no end"
            self._report(what, *self._first)

    def _refuse(self, what: str, offset: int, number: int) -> None:
        if self._seen <= _PROBE_ENTRIES and not self.block_count:
            self.is_block_stream = False
            return
        if not self._seeking:
            self._report(what, offset, number)
        self.gap()

    def _check(self, block: StoredBlock) -> None:
        """Compare a block's hash with what is stored, and its links with the chain."""
        self.block_count += 1
        self.last_number = block.number
        chain = Chain(block.number) if self._chain is None else self._chain
        summary, problem = summary_of(block)
        if summary is None:
            self._report(problem, *self._first)
            self._chain = None
            return
        refusal = chain.check_links(summary)
        if refusal is not None:
            what = f"block {block.number}: {refusal.what}: got {refusal.got}, expected {refusal.expected}"
            self._report(what, *self._first)
            chain = Chain(block.number)
        chain.advance(block.number, block.root_hash)
        self._chain = chain


def summary_of(block: StoredBlock) -> tuple[BlockSummary | None, str]:
    """Return a block's summary in the layout of the root hash that is stored, or None and what is wrong."""
    hasher = BlockHasher()
    try:
        hasher.add(block.items)
        summary = hasher.finish()
    except (BlockRefused, ItemError) as error:
        return None, f"block {block.number}: {error}"
    if summary.root_hash == block.root_hash:
        return summary, ""
    other = summary.in_other_layout()
    if other is not None and other.root_hash == block.root_hash:
        return other, ""
    return None, (
        f"block {block.number}: root hash {summary.root_hash.hex()} of its items, "
        f"{block.root_hash.hex()} is stored"
    )
