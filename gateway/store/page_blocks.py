"""The blocks on a data page: finding them, proving them, and rebuilding the page from them.

A page with a checksum has the bytes of its commit, whose blocks were verified. A page without one (from an
earlier version, or under a new index) is proven once, before its first read or by the scrubber:

    each block has the root hash in its end, in one of its layouts,
    its footer names the root hash of the block before it, and only zeros follow the page's last entry

Then the page gets its checksum. Proofs are outside the root hash, so this misses a flipped bit in one. The
blocks that a start finds on the last, partial page are proven once in the same way.

The same blocks serialize to the same bytes, so `PageBuilder` rebuilds a page from a peer's blocks.

Source: datastream/README.md, "Invariants"; docs/spec/block-hash.md.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from sluice.datastream import DataStreamer
from sluice.datastream.errors import EntriesDisagree, NotFoundError, PageNotServed
from sluice.datastream.file.disk import drop_cached
from sluice.datastream.file.operation import OperationGroup
from sluice.datastream.file.page_sums import PageState, this_thread
from sluice.datastream.file.pages import PageFault
from sluice.datastream.layout import HEADER_PAGE_SIZE, PAGE_SIZE, Committed, Entry, page_start
from sluice.gateway.blocks.errors import LayoutError
from sluice.gateway.blocks.native_layout import encode_native, is_bookmark
from sluice.gateway.blocks.root_hash import BlockHasher, BlockSummary
from sluice.gateway.blocks.stream_layout import (
    NATIVE_LAYOUT,
    NEWEST_LAYOUT,
    BlockDecoder,
    StoredBlock,
    block_number_of,
    bookmark_of,
    bookmarks_of,
    encode_runs,
)
from sluice.gateway.errors import Fatal
from sluice.gateway.limits import STORED_BLOCK_BYTES_MAX
from sluice.gateway.logs import fields
from sluice.gateway.store.stream_check import summary_of
from sluice.gateway.store.stream_pair import StreamPair

__all__ = ["BlocksOfPage", "NetworkPages", "PageBlocks", "PageBuilder", "root_of"]


log = logging.getLogger(__name__)

BLOCK_PAGES_MAX: Final = 2 * STORED_BLOCK_BYTES_MAX // PAGE_SIZE + 2
"""A page has room for one entry of more than half of it."""


class BlockPlaces(Protocol):
    """The part of `BlockStore` that pages need."""

    streamer: DataStreamer
    first_number: int | None
    layout: int | None

    @property
    def last_number(self) -> int | None:
        """The last committed block."""
        ...

    @property
    def pair(self) -> StreamPair | None:
        """Both streams of the native layout."""
        ...

    def root_hash_at(self, number: int) -> bytes | None:
        """Read the root hash of a block."""
        ...

    def entry_of(self, number: int) -> int:
        """Return the number of a block's first entry, by the index."""
        ...

    def read_entries(self, start: int, end: int | None = None) -> Iterator[Entry]:
        """Read the entries of blocks, as they are in layout 2."""
        ...


class BlocksOfPage(NamedTuple):
    """The blocks that have a part on a page."""

    first: int
    last: int
    origin: Committed
    """(offset, number) of the first entry of block `first`."""
    entries_end: int
    """The number after the last entry of block `last`."""


@dataclass(frozen=True, slots=True)
class _Fault:
    """A block that differs from what was committed."""

    first_entry: int
    entries_end: int
    what: str


class PageBlocks:
    """The blocks of a store's pages, and proofs for pages without a sum.

    Args:
        block_pages_max: a block takes no more pages.
    """

    def __init__(self, store: BlockPlaces, block_pages_max: int = BLOCK_PAGES_MAX) -> None:
        self._store = store
        self._block_pages_max = block_pages_max
        self.streamer = store.streamer
        """The stream whose pages these are."""
        self.known_root: Callable[[int, int], bytes | None] = lambda number, entry_number: None
        """Returns a block's proved root hash, by its number and that of its last entry; None: unknown, empty:
        there is no such block.
        """
        self._lock = threading.RLock()
        self.streamer.sums.prove_with(self.prove)
        self._tail_page = self.streamer.sums.full_count
        """The page that was being filled at the opening."""
        self._tail_end = self.streamer.committed.total_entries
        self._tail_faults: list[_Fault] | None = None
        """Its wrong blocks; None: not checked yet."""

    # --- which they are -------------------------------------------------------------------------------------

    def of_page(self, page_number: int) -> BlocksOfPage | None:
        """Return the blocks of a page, found on the pages around it; None: the store is empty.

        Raises:
            LayoutError: no block begins on so many pages of an archive that none can be right.
        """
        streamer, last = self.streamer, self._store.last_number
        first = self._store.first_number
        if first is None or last is None:
            return None
        origin, entries_end = Committed(HEADER_PAGE_SIZE, 0), streamer.committed.total_entries
        for before in range(page_number - 1, -1, -1):
            self._refuse_far(page_number, before)
            found = self._begun_on(before)
            if found:
                first, entry_number = found[-1]
                origin = Committed(streamer.offset_of(entry_number), entry_number)
                break
        for behind in range(page_number + 1, streamer.sums.full_count + 1):
            self._refuse_far(page_number, behind)
            found = self._begun_on(behind)
            if found:
                last, entries_end = found[0][0] - 1, found[0][1]
                break
        return BlocksOfPage(first, last, origin, entries_end)

    def _refuse_far(self, page_number: int, other: int) -> None:
        """Raises LayoutError before a page is fetched that is too far away."""
        if abs(other - page_number) > self._block_pages_max and self.streamer.remote.holds(other):
            got = f"no beginning of a block from there to page {other}"
            raise LayoutError(f"page {page_number}", got, f"one on {self._block_pages_max} pages")

    def _begun_on(self, page_number: int) -> list[tuple[int, int]]:
        """Return (block number, entry number) of the blocks that begin on a page; none on a damaged one."""
        try:
            bookmarks = self.streamer.page_bookmarks(page_number)
        except PageNotServed:
            return []
        numbers = [(block_number_of(bookmark), entry_number) for bookmark, entry_number in bookmarks]
        return [(number, entry_number) for number, entry_number in numbers if number is not None]

    def builder(self, page_number: int, blocks: BlocksOfPage) -> PageBuilder:
        """Return the builder of a page, for the blocks `of_page` returned."""
        layout, pair = self._store.layout, self._store.pair
        assert layout is not None
        # The first block may begin on the bad page, which cannot be asked then.
        is_first = not blocks.origin.total_entries
        network_entries = 0 if pair is None or is_first else pair.entries_before(blocks.first)
        return PageBuilder(page_number, blocks.origin, layout, network_entries)

    # --- whether they are what was committed ----------------------------------------------------------------

    def ensure(self, entry_number: int) -> None:
        """Prove once the blocks that the opening found on the partial page; in a thread.

        Full pages have sums, or `prove` runs before they are read.

        Raises:
            LayoutError: the entry belongs to a block that differs from what was committed.
        """
        page_number = self.streamer.page_of_entry(entry_number)
        if page_number == self._tail_page and entry_number < self._tail_end:
            self._ensure_tail(entry_number)

    def ensure_block(self, number: int) -> None:
        """Do as `ensure` for the end of a block."""
        streamer = self.streamer
        end = streamer.committed.total_entries
        if number != self._store.last_number:
            end = streamer.get_bookmark(bookmark_of(number + 1))
        self.ensure(end - 1)

    def _ensure_tail(self, entry_number: int) -> None:
        with self._lock:
            if self._tail_faults is None:
                self._tail_faults, _, _ = self._look(self._tail_page)
        for fault in self._tail_faults:
            if fault.first_entry <= entry_number < fault.entries_end:
                raise LayoutError(
                    fault.what, "another root hash, or other links", "those that were committed"
                )

    def prove(self, page_number: int) -> bool:
        """Prove the blocks of a page without a sum; return whether it has one now.

        Other pages that these blocks fill get sums too. A wrong block makes its pages without a sum bad. A
        page beside a bad one cannot be proven.
        """
        sums = self.streamer.sums
        with self._lock:
            before, this_thread.proves = this_thread.proves, True
            try:
                if not sums.has_sum(page_number) and sums.state(page_number) is not PageState.BAD:
                    self._prove(page_number)
            except PageNotServed as error:
                log.warning("page cannot be proven", extra=fields(page=page_number, got=str(error)))
            except (EntriesDisagree, NotFoundError, LayoutError, Fatal) as error:
                if not self.streamer.remote.holds(page_number):
                    raise
                # The places of its blocks, or of those around it, are not those in the archive's index.
                sums.found_fault(page_number, PageFault(0, 0, str(error), "what was proved"))
            finally:
                this_thread.proves = before
        return sums.has_sum(page_number)

    def _prove(self, page_number: int) -> None:
        sums, seen = self.streamer.sums, self.streamer.remote.evictions
        faults, begin, proven_end = self._look(page_number)
        faulty: set[int] = set()
        for fault in faults:
            faulty.update(self._pages(fault.first_entry, fault.entries_end))
            for page in self._pages(fault.first_entry, fault.entries_end):
                if not sums.has_sum(page):
                    sums.found_fault(page, PageFault(fault.first_entry, 0, fault.what, "what was committed"))
        for page in sorted(set(self._pages(begin, proven_end)) - faulty):
            first, end = sums.entry_range(page)
            if begin <= first and end <= proven_end and page not in sums.bad and not sums.has_sum(page):
                self._adopt(page, seen)

    def _pages(self, first_entry: int, entries_end: int) -> range:
        if first_entry >= entries_end:
            return range(0)
        streamer = self.streamer
        end = min(streamer.page_of_entry(entries_end - 1) + 1, streamer.sums.full_count)
        return range(streamer.page_of_entry(first_entry), end)

    def _adopt(self, page_number: int, seen: int) -> None:
        streamer = self.streamer
        data = streamer.read_bytes(PAGE_SIZE, page_start(page_number))
        if streamer.remote.holds(page_number) and streamer.remote.evictions != seen:
            return  # it may have been fetched again since its blocks were read
        end = streamer.data_end(page_number, streamer.committed.total_length)
        position = end - page_start(page_number)
        if streamer.remote.holds(page_number):
            recorded = streamer.remote.page(page_number).data_end
            if recorded != position:
                fault = PageFault(0, position, f"the end of its data at {position}", f"{recorded}")
                streamer.sums.found_fault(page_number, fault)
                return
        if data.count(0, position) != PAGE_SIZE - position:
            fault = PageFault(0, position, "padding that is not all zeros", "zeros")
            streamer.sums.found_fault(page_number, fault)
            return
        streamer.sums.adopt(page_number, data)

    def forget_cached(self, page_number: int) -> None:
        """Drop a page from the page cache."""
        drop_cached(self.streamer.fileno(), PAGE_SIZE, page_start(page_number))

    def _look(self, page_number: int) -> tuple[list[_Fault], int, int]:
        """Hash the blocks of a page; return (faults, first entry, number after the last entry).

        Entries after one that belongs to no block are not checked.
        """
        blocks = self.of_page(page_number)
        if blocks is None:
            return [], 0, 0
        faults: list[_Fault] = []
        decoder = BlockDecoder(layout=min(self._store.layout or NEWEST_LAYOUT, NEWEST_LAYOUT))
        begin = blocks.origin.total_entries
        begun = begin
        previous = self._store.root_hash_at(blocks.first - 1) if blocks.first else None
        for entry in self._store.read_entries(begin, blocks.entries_end):
            try:
                stored = decoder.feed(entry.type, entry.data)
            except LayoutError as error:
                faults.append(_Fault(begun, entry.number + 1, str(error)))
                break
            if stored is not None:
                known = self.known_root(stored.number, entry.number)
                what = _fault_of(stored, previous, known)
                if known and what is None and self._store.entry_of(stored.number) != begun:
                    what = f"block {stored.number}: another place than in the index"
                if what is not None:
                    faults.append(_Fault(begun, entry.number + 1, what))
                previous, begun = stored.root_hash, entry.number + 1
        return faults, begin, begun


class NetworkPages(PageBlocks):
    """The pages of a network's stream, and the blocks of their entries; the first read gives each its sum."""

    def __init__(self, store: BlockPlaces) -> None:
        assert store.pair is not None
        self._store, self._pair = store, store.pair
        self.streamer = self._pair.network

    def of_page(self, page_number: int) -> BlocksOfPage | None:
        """As `PageBlocks.of_page`."""
        first, last = self._store.first_number, self._store.last_number
        if first is None or last is None:
            return None
        begin, end = self.streamer.sums.entry_range(page_number)
        before = self._pair.entries_before
        blocks = range(first, last + 1)
        # The last block that begins at `begin` or before, and the last that begins before `end`.
        first = blocks[bisect_right(blocks, begin, key=before) - 1]
        last = blocks[bisect_left(blocks, end, key=before) - 1]
        entries = before(first)
        offset = page_start(page_number) if entries == begin else self.streamer.offset_of(entries)
        return BlocksOfPage(first, last, Committed(offset, entries), before(last + 1))

    def builder(self, page_number: int, blocks: BlocksOfPage) -> PageBuilder:
        """As `PageBlocks.builder`."""
        entries = blocks.origin.total_entries
        return PageBuilder(page_number, blocks.origin, NATIVE_LAYOUT, entries, of_network=True)

    def prove(self, page_number: int) -> bool:
        """Give a page its sum as it is."""
        return self.streamer.sums.has_sum(page_number)


def _fault_of(stored: StoredBlock, previous: bytes | None, known: bytes | None) -> str | None:
    """Return the fault in a block's number, root hash or link; None: it is right."""
    if known not in (None, stored.root_hash):
        return f"block {stored.number}: another root hash than was proved"
    summary, problem = summary_of(stored)
    if summary is None:
        return problem
    if summary.number != stored.number:
        return f"block {stored.number}: the header of block {summary.number}"
    if previous is not None and summary.previous_root_hash != previous:
        return f"block {stored.number}: it does not name the root hash of the block before it"
    return None


def root_of(number: int, items: tuple[bytes, ...], known: bytes | None) -> tuple[bytes, BlockSummary]:
    """Return a block's root hash in the known layout, and its summary.

    `known` is the root hash that the next block or its own end names; None: unknown.

    Raises:
        BlockRefused, ItemError, LayoutError: the items are not those of that block.
    """
    hasher = BlockHasher()
    hasher.add(items)
    summary = hasher.finish()
    if summary.number != number:
        raise LayoutError(f"block {number}", f"the header of block {summary.number}", "its own")
    if known is None:
        return summary.root_hash, summary
    if known not in (summary.root_hash, summary.root_hash_other_layout):
        got = f"items that come to root hash {summary.root_hash.hex()[:16]}…"
        raise LayoutError(f"block {number}", got, f"{known.hex()[:16]}…, as the chain here has it")
    return known, summary


class PageBuilder:
    """Builds a page from its blocks, in order.

    Args:
        origin: (offset, number) of the first entry of the first block, which may begin before the page.
        network_entries: in the native layout, the entries of the network's stream before the first block.
        of_network: the page is of the network's stream.
    """

    def __init__(
        self,
        page_number: int,
        origin: Committed,
        layout: int,
        network_entries: int = 0,
        *,
        of_network: bool = False,
    ) -> None:
        self._layout = layout
        self._network_entries = network_entries
        self._of_network = of_network
        self._start = page_start(page_number)
        self._page = bytearray(PAGE_SIZE)
        self._group = OperationGroup(origin)
        self._group.begin()

    def add(self, number: int, items: tuple[bytes, ...], root_hash: bytes) -> None:
        """Add the next block. Raises ItemError or LayoutError."""
        group = self._group
        runs = None
        if self._layout == NATIVE_LAYOUT:
            network, runs = encode_native(number, items, root_hash, self._network_entries)
            self._network_entries += len(network)
        if self._of_network:
            for entry_type, data in network:
                if is_bookmark(entry_type, data):
                    group.add_bookmark(data)
                else:
                    group.add_entry(entry_type, data)
        else:
            for bookmark in bookmarks_of(number, self._layout):
                group.add_bookmark(bookmark)
            for run in runs or encode_runs(number, items, root_hash):
                group.add_entries(run.entry_types, run.data)
        at = group.base[0] - self._start
        piece = group.buffer[max(0, -at) : max(0, PAGE_SIZE - at)]
        at = max(0, at)
        self._page[at : at + len(piece)] = piece
        group.restart(group.end)

    def page(self) -> bytes:
        """Return the page, with zeros where no block is."""
        return bytes(self._page)
