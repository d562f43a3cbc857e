"""Reading all of an archive once, in order, and verifying it: for a node that believes no single signature.

    pages     each fits its index, all of a segment fit the hash in its name
    blocks    root hash, links, and the proofs that the node has keys for
    native    the blocks take the entries of the network's stream one after the other

A proof that cannot be checked counts if a later block's proof signs its root hash: the links lead from there
to all blocks before. The last block is among them, or the archive is refused.

`chain.json` in the work folder is the place where the next attempt goes on: the chain up to a block whose
pages are all recorded, and the entries behind it (`store.chain_file.CutMark`).

Source: docs/archive.md; docs/spec/archive.md section 3.4.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from sluice.datastream.file.pages import PageFault, entries_of
from sluice.datastream.file.remote_pages import SEGMENT_PAGES
from sluice.datastream.layout import U64_MAX, Entry
from sluice.gateway.archive.errors import ArchiveDamaged
from sluice.gateway.archive.new_stream import NewStream, read_page
from sluice.gateway.archive.segment import SegmentName, SegmentObject, segment_name
from sluice.gateway.archive.segment_check import (
    RUN_PAGES,
    SegmentCheck,
    SegmentEnds,
    SegmentOrder,
    fetch_run,
    in_order,
    read_segment_index,
)
from sluice.gateway.blocks.chain import Chain
from sluice.gateway.blocks.errors import BlockRefused, ItemError, LayoutError, LedgerKeyError
from sluice.gateway.blocks.items import proof_of
from sluice.gateway.blocks.native_layout import NetworkEntry, entries_so_far, whole_blocks
from sluice.gateway.blocks.proofs import ProofKind, kind_of_proof
from sluice.gateway.blocks.proofs.ledger_data import LedgerData
from sluice.gateway.blocks.refusal import Fault, Refusal
from sluice.gateway.blocks.root_hash import BlockSummary
from sluice.gateway.blocks.stream_layout import BLOCK_END_TYPE, NEWEST_LAYOUT, BlockDecoder, StoredBlock
from sluice.gateway.blocks.verification import BlockVerifier
from sluice.gateway.logs import fields
from sluice.gateway.regular_files import replace_file
from sluice.gateway.store.chain_file import SNAPSHOT_NAME, CutMark, Snapshot, pack
from sluice.gateway.store.stream_check import summary_of

__all__ = ["FullReading", "Progress", "last_with_blocks"]

log = logging.getLogger(__name__)

THREADS: Final = 4
RUNS_AHEAD: Final = 6
"""Runs of pages that are fetched and not taken yet."""
PROOFS_TOGETHER: Final = 8
"""Blocks whose proofs are checked together, which is cheaper."""
PROGRESS_SECONDS: Final = 10.0


class Progress:
    """The progress of long work, as log lines.

    Args:
        page_count: pages in all.
        page_done: those that were done before.
    """

    def __init__(self, what: str, url: str, page_count: int, page_done: int = 0) -> None:
        self._what, self._url, self._page_count = what, url, page_count
        self._began = self._told = time.monotonic()
        self._first = self._done = page_done
        log.info("%s", what, extra=fields(archive=url, pages=page_count, done=page_done))

    def page(self) -> None:
        """Count a page."""
        self._done += 1
        now = time.monotonic()
        if now - self._told < PROGRESS_SECONDS:
            return
        self._told = now
        rate = (self._done - self._first) / (now - self._began)
        extra = fields(
            archive=self._url,
            done=self._done,
            pages=self._page_count,
            mib_per_second=round(rate, 1),
            minutes_left=round(max(self._page_count - self._done, 0) / rate / 60, 1),
        )
        log.info("%s", self._what, extra=extra)


class _Entries:
    """The entries of one stream in order, from one on; segments that are not recorded are checked meanwhile.

    Args:
        names: of the segments to read.
        begin: the first entry.
    """

    def __init__(
        self,
        stream: NewStream,
        names: Sequence[SegmentName],
        begin: int,
        progress: Progress,
        go_on: Callable[[], None],
    ) -> None:
        self.page_number = 0
        """The page of the last entry."""
        self.next_number = begin
        self._stream, self._names = stream, names
        self._progress, self._go_on = progress, go_on
        self._is_ending = False
        self._entries = self._all(begin)

    def __iter__(self) -> Iterator[Entry]:
        return self._entries

    def complete(self) -> None:
        """Check the rest of the segment of the last entry."""
        self._is_ending = True
        deque(self._entries, maxlen=0)

    def close(self) -> None:
        """Fetch no more."""
        self._entries.close()

    def _all(self, begin: int) -> Generator[Entry, None, None]:
        stream, store = self._stream, self._stream.stored.store
        pages = range(stream.page_of_entry(begin), stream.recorded.archived_pages) if begin else range(0)
        for page_number in pages:
            self._go_on()
            record = stream.recorded.segment(page_number)
            page = read_page(store, record, page_number)
            place = page_number - record.first_page
            first, end = record.pages[place].first_number, record.pages[place].data_end
            yield from self._entries_on(page[:end], page_number, first, U64_MAX)
        order = SegmentOrder(stream.stored.description.first_block)
        if stream.recorded_count:
            before = read_segment_index(store, self._names[stream.recorded_count - 1])
            # The recorded pages were read up to their end; the index may be another one than before.
            stream.recorded_entries = self.next_number
            ends = SegmentEnds.of(before, "")._replace(entries_end=self.next_number)
            order.add(ends)  # where the next one begins; the gap before it is no fault
        threads = ThreadPoolExecutor(THREADS, "archive-read")
        try:
            names = self._names[stream.recorded_count :]
            indexes = (partial(read_segment_index, store, name) for name in names)
            for segment in in_order(threads, indexes, 2, self._go_on):
                yield from self._segment(threads, segment, order)
                if self._is_ending:
                    return
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    def _segment(
        self, threads: ThreadPoolExecutor, segment: SegmentObject, order: SegmentOrder
    ) -> Iterator[Entry]:
        stored = self._stream.stored
        where = stored.store.address(segment_name(*segment.name))
        check = SegmentCheck(segment, where, has_blocks=stored.has_blocks)
        firsts = range(segment.first_page, segment.first_page + SEGMENT_PAGES, RUN_PAGES)
        calls = (partial(self._run, segment, first) for first in firsts)
        number = segment.first_page
        for run in in_order(threads, calls, RUNS_AHEAD, self._go_on):
            for page in run:
                self._go_on()
                check.add(page)
                record = segment.index.pages[number - segment.first_page]
                first = record.first_entry
                yield from self._entries_on(
                    page[: record.data_end], number, first, first + record.entry_count
                )
                number += 1
                self._progress.page()
        for fault in order.add(check.finish()):
            raise fault
        self._stream.add(segment)

    def _run(self, segment: SegmentObject, first_page: int) -> list[bytes]:
        return list(fetch_run(self._stream.stored.store, segment, first_page))

    def _entries_on(self, data: bytes, page_number: int, first: int, end: int) -> Iterator[Entry]:
        self.page_number = page_number
        try:
            for entry in entries_of(data, first, end):
                if entry.number >= self.next_number:
                    self.next_number = entry.number + 1
                    yield entry
        except PageFault as fault:
            where = self._stream.stored.store.url
            raise ArchiveDamaged(f"page {page_number}", fault.found, fault.expected, where) from None


class _NotArchived(Exception):
    """The network's entries of a block are not archived yet."""


class FullReading:
    """One attempt to read and verify an archive.

    Args:
        streams: the streams at work; in the native layout two, the network's first.
        names: their segments.
        verifier: of the node's keys.
        work: the folder of the streams.
        keep: keeps what block 0 publishes.
        begun: the place where an earlier attempt came to.
        go_on: called again and again; what it raises ends the reading, and a later attempt goes on.
    """

    def __init__(
        self,
        streams: Sequence[NewStream],
        names: Sequence[Sequence[SegmentName]],
        verifier: BlockVerifier,
        work: Path,
        *,
        keep: Callable[[LedgerData], None],
        begun: Snapshot | None,
        go_on: Callable[[], None],
    ) -> None:
        self._blocks, self._network = streams[-1], streams[0] if len(streams) > 1 else None
        self._url = streams[0].stored.store.url
        self._verifier, self._keep, self._work = verifier, keep, work
        description = self._blocks.stored.description
        assert description.first_block is not None
        self.layout = description.stream_layout or NEWEST_LAYOUT
        self.chain = Chain(description.first_block)
        self.totals = CutMark(0, 0)
        """The entries of both streams up to the last verified block."""
        if begun is not None and begun.cut is not None:
            self.chain, self.totals = begun.chain, begun.cut
        done = sum(stream.recorded.archived_pages for stream in streams)
        progress = Progress("verifying the archive", self._url, sum(map(len, names)) * SEGMENT_PAGES, done)
        self._entries = _Entries(self._blocks, names[-1], self.totals.blocks, progress, go_on)
        self._network_entries: _Entries | None = None
        self._network_end = 0
        if self._network is not None:
            self._network_entries = _Entries(self._network, names[0], self.totals.network, progress, go_on)
            if names[0]:
                self._network_end = read_segment_index(self._network.stored.store, names[0][-1]).entries_end
        self._candidates: deque[tuple[Chain, CutMark]] = deque()
        """Places where the next attempt may go on, once their pages are recorded."""
        self._pages = (0, 0)
        self._unproved: list[BlockSummary] = []
        self._uncovered: tuple[int, Refusal] | None = None
        """The first block without a checked proof since the last signed root hash."""
        self.unchecked_count = 0

    def run(self) -> None:
        """Read and verify.

        Raises:
            ArchiveDamaged: the archive contradicts itself.
            ArchiveUnavailable: the store does not give an object.
            LedgerKeyError: the last blocks cannot be verified with the node's keys.
            BookmarksUnavailable, OSError: the disk refuses.
        """
        try:
            self._read()
            self._entries.complete()
            if self._network_entries is not None and self.totals.network:
                self._network_entries.complete()
        finally:
            self._entries.close()
            if self._network_entries is not None:
                self._network_entries.close()
        self._check_proofs()
        if self._uncovered is not None:
            number, refusal = self._uncovered
            what = f"ledger keys: {refusal.what} of block {number} in {self._url}"
            raise LedgerKeyError(what, got=refusal.got, expected=refusal.expected)
        if self.unchecked_count:
            text = "proofs that these keys cannot check; a later signature covers their blocks"
            log.warning(text, extra=fields(archive=self._url, blocks=self.unchecked_count))

    def _read(self) -> None:
        decoder = BlockDecoder()
        for entry in self._entries:
            stored = None
            try:
                parts = [entry] if self._network is None else whole_blocks([entry], self._of_network)
                for part in parts:
                    stored = decoder.feed(part.type, part.data)
            except _NotArchived:
                extra = fields(archive=self._url, first_block=self.chain.next_number)
                log.info("blocks whose entries of the network are not archived yet are left out", extra=extra)
                return
            except LayoutError as error:
                what = f"entry {entry.number}: {error.what}"
                raise ArchiveDamaged(what, error.got, error.expected, self._blocks.stored.store.url) from None
            if stored is not None:
                self._take(stored, entry)

    def _of_network(self, first: int, end: int) -> Iterator[NetworkEntry]:
        entries = self._network_entries
        assert entries is not None
        if first != entries.next_number or end <= first:
            got = f"entries {first} to {end - 1}"
            raise LayoutError("mark", got, f"those of the network from {entries.next_number} on")
        if end > self._network_end:
            raise _NotArchived
        for entry in islice(entries, end - first):
            yield entry.type, entry.data
        if entries.next_number != end:
            raise LayoutError("mark", f"no entry {entries.next_number} of the network", f"up to {end - 1}")

    def _take(self, stored: StoredBlock, end: Entry) -> None:
        """Verify the next block, and record the segments before its end."""
        where = self._url
        summary, problem = summary_of(stored)
        if summary is None:
            raise ArchiveDamaged(f"block {stored.number}", problem, "the root hash of its items", where)
        refusal = self.chain.check_links(summary)
        if refusal is not None:
            what = f"block {stored.number}: {refusal.what}"
            raise ArchiveDamaged(what, refusal.got, refusal.expected, where)
        so_far = 0
        if self._network_entries is not None:
            assert end.type == BLOCK_END_TYPE
            so_far = entries_so_far(end.data)
            if so_far != self._network_entries.next_number:
                what, expected = f"end of block {stored.number}", str(self._network_entries.next_number)
                raise ArchiveDamaged(what, f"{so_far} entries of the network", expected, where)
        if summary.number == 0:
            self._check_proof(summary, stored)
        else:
            self._unproved.append(summary)
            if len(self._unproved) >= PROOFS_TOGETHER:
                self._check_proofs()
        self.chain.advance(stored.number, stored.root_hash)
        self.totals = CutMark(end.number + 1, so_far)
        self._record()

    # --- proofs ---------------------------------------------------------------------------------------------

    def _check_proofs(self) -> None:
        summaries, self._unproved = self._unproved, []
        self._verifier.proofs.check_ahead(summaries)
        for summary in summaries:
            self._check_proof(summary)

    def _check_proof(self, summary: BlockSummary, stored: StoredBlock | None = None) -> None:
        """Check the proofs of a block; `stored` is block 0."""
        where = f"block {summary.number}"
        try:
            verdict = self._verifier.check(summary, () if stored is None else stored.items)
        except BlockRefused as refused:
            refusal = refused.refusal
            # The signers of record files change, and an address book has those of one time.
            if refusal.kind.fault is Fault.SENDER and not _is_of_record_file(summary):
                expected = f"{refusal.expected}, by the keys of this node"
                raise ArchiveDamaged(f"{where}: {refusal.what}", refusal.got, expected, self._url) from None
            self.unchecked_count += 1
            self._uncovered = self._uncovered or (summary.number, refusal)
            return
        if verdict.summary.root_hash != summary.root_hash:
            got, expected = summary.root_hash.hex(), f"{verdict.summary.root_hash.hex()}, which is signed"
            raise ArchiveDamaged(f"{where}: root hash in its end", got, expected, self._url)
        if verdict.is_root_signed:
            self._uncovered = None
        if verdict.published is not None and self._verifier.proofs.ledger is None:
            self._verifier.believe(verdict.published)
            self._keep(verdict.published)

    # --- where the next attempt goes on ---------------------------------------------------------------------

    def _record(self) -> None:
        network = self._network_entries
        pages = self._entries.page_number, 0 if network is None else network.page_number
        if pages != self._pages:
            self._pages = pages
            self._candidates.append((self.chain.copy(), self.totals))
        is_recorded = self._blocks.settle(self.totals.blocks)
        if self._network is not None:
            is_recorded = self._network.settle(self.totals.network) or is_recorded
        if is_recorded:
            self._keep_place()

    def _keep_place(self) -> None:
        blocks, network = self._blocks.recorded_entries, 0
        if self._network is not None:
            network = self._network.recorded_entries
        found = None
        while self._candidates:
            _, totals = self._candidates[0]
            if totals.blocks > blocks or (self._network is not None and totals.network > network):
                break
            found = self._candidates.popleft()
        if found is None:
            return
        self._check_proofs()
        if self._uncovered is None:
            text = pack(Snapshot(found[0], self.layout, found[1]))
            replace_file(self._work / SNAPSHOT_NAME, text.encode())


def _is_of_record_file(summary: BlockSummary) -> bool:
    try:
        return any(kind_of_proof(proof_of(item)) is ProofKind.RECORD_FILE for item in summary.proofs)
    except ItemError:
        return False


def last_with_blocks(stream: NewStream, names: Sequence[SegmentName]) -> int:
    """Return how many segments there are up to the last one in which a block ends."""
    for count in range(len(names), 0, -1):
        if read_segment_index(stream.stored.store, names[count - 1]).index.blocks:
            return count
    return 0
