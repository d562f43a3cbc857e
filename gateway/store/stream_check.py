"""The check of the blocks in a stream: each can be read back, has the right root hash, and links to the last.

Pure: `BlockCheck` gets the entries in order (`check.check.EntryVisitor`) and reports faults. It ignores a
stream that does not begin with a block (`stream_layout.py`), and checks no signatures.

After a gap or a broken block it resumes with the next readable block and trusts its links, as a node does
that begins in mid-chain.

Source: docs/spec/block-hash.md sections 3.3 and 4; docs/spec/block-layout.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sluice.datastream.errors import DatastreamError
from sluice.datastream.layout import BOOKMARK_TYPE, Entry
from sluice.gateway.blocks.chain import Chain
from sluice.gateway.blocks.errors import BlockRefused, ItemError, LayoutError
from sluice.gateway.blocks.native_layout import NetworkEntry, whole_blocks
from sluice.gateway.blocks.root_hash import BlockHasher, BlockSummary
from sluice.gateway.blocks.stream_layout import BlockDecoder, StoredBlock

__all__ = ["BlockCheck", "Report", "summary_of"]

Report = Callable[[str, int, int], None]
"""Called with (what is wrong, offset, entry number)."""
_PROBE_ENTRIES = 2


class BlockCheck:
    """Checks the blocks of a stream, entry by entry; calls `report` for each fault."""

    def __init__(
        self, report: Report, network: Callable[[int, int], Iterable[NetworkEntry]] | None = None
    ) -> None:
        self._report = report
        self._network = network
        """Reads the network's entries of a native chain, whose block stream this is."""
        self._decoder = BlockDecoder()
        self._chain: Chain | None = None
        self._seeking = False
        """After a fault: skip to the beginning of a block."""
        self._first = (0, 0)
        """(offset, entry number) of the start of the current block."""
        self._seen = 0
        self.is_block_stream = True
        """False once the stream begins with something else."""
        self.block_count = 0
        self.last_number: int | None = None

    def entry(self, entry: Entry, offset: int) -> None:
        """Take the next entry."""
        if not self.is_block_stream:
            return
        self._seen += 1
        if self._seeking and entry.type != BOOKMARK_TYPE and self._decoder.block_number is None:
            return
        if self._decoder.block_number is None:
            self._first = (offset, entry.number)
        block = None
        try:
            for part in [entry] if self._network is None else whole_blocks([entry], self._network):
                block = self._decoder.feed(part.type, part.data)
        except (LayoutError, DatastreamError) as error:
            self._refuse(str(error), offset, entry.number)
            return
        if block is not None:
            self._seeking = False
            self._check(block)

    def gap(self) -> None:
        """Note that entries are missing: the current block is lost."""
        self._decoder.reset()
        self._seeking = True
        self._chain = None

    def end(self) -> None:
        """Note the end of the stream."""
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
        """Compare a block's root hash with the stored one, and its links with the chain."""
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
    """Return a block's summary in the layout of its stored root hash, or None and the fault."""
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
