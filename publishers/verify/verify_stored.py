"""The blocks in a node's data folder, for `sluice verify`: read from its stream file, which is not touched.

    DIR/datastream.bin    read as it was committed when the run began; a node may be appending to it
    whatever else         not looked at: bookmarks, chain.json and the kept ledger data are the node's own

Nothing is locked and nothing is written. Where a block begins is found by halves over the data pages, so that
the last blocks of a long chain are as near as the first ones.
Source: docs/spec/stream-file.md section 1; docs/spec/block-layout.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from datastream import DatastreamError
from datastream.layout import MAGIC, Entry
from gateway.blocks.errors import LayoutError
from gateway.blocks.stream_layout import BLOCK_END_TYPE, StoredBlock
from gateway.regular_files import open_regular
from publishers.errors import SourceRefused
from publishers.number_range import NumberRange
from publishers.sources.entry_blocks import blocks_that_begin_in
from publishers.sources.stream_runs import PagesReader, stream_file_in
from publishers.verify.verify_sources import Job

__all__ = ["StoredSource", "holds_stream"]


def holds_stream(path: Path) -> bool:
    """Tell whether a path is a stream file, or a folder that has one under the name that nodes give it."""
    if path.is_dir():
        return stream_file_in(path).is_file()
    try:
        with open_regular(path) as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


class StoredSource:
    """The blocks of a stream file; what is committed later is left out.

    Args:
        path: of the file, or of the data folder that it is in.
        numbers: the blocks that are wanted.

    Raises:
        SourceRefused: the file cannot be read, is damaged, or holds none of these blocks.
    """

    def __init__(self, path: Path, numbers: NumberRange) -> None:
        self._path = stream_file_in(path)
        try:
            self._pages = PagesReader(self._path)
            if self._pages.page_count == 0:
                raise SourceRefused("blocks", f"{self._path} has none")
            self._first_held = self._block_ending_from(0)
            last = self._last_number()
        except (OSError, DatastreamError, LayoutError) as error:
            raise self._refusal(error) from error
        self._first = max(self._first_held, numbers.first)
        self._end = last + 1 if numbers.end is None else min(last + 1, numbers.end)
        if self._first >= self._end:
            raise SourceRefused("these blocks", f"{self._path} has blocks {self._first_held} to {last}")

    @property
    def count(self) -> int:
        """How many there are."""
        return self._end - self._first

    def jobs(self) -> Iterator[Job]:
        """Read each block.

        Raises:
            SourceRefused: the file is damaged, or changes below what was committed.
        """
        for stored in self._blocks_from(self._page_before(self._first)):
            if stored.number >= self._end:
                return
            if stored.number >= self._first:
                yield _job(stored)

    def block_0(self) -> Job | None:
        """Read block 0, wanted or not."""
        return _job(next(self._blocks_from(0))) if self._first_held == 0 else None

    def _blocks_from(self, page_number: int) -> Iterator[StoredBlock]:
        """Read the blocks that begin on a page or after it."""
        run = self._pages.run_from(page_number)
        try:
            entries = chain.from_iterable(self._pages.pages_from(run))
            yield from blocks_that_begin_in(entries, run.first_number, run.end_number)
        except (OSError, DatastreamError, LayoutError) as error:
            raise self._refusal(error) from error

    def _page_before(self, number: int) -> int:
        """Find, by halves, the last page on or after which another block ends before this one begins."""
        low, high = 0, self._pages.page_count
        try:
            while high - low > 1:
                middle = (low + high) // 2
                if self._block_ending_from(middle) < number:
                    low = middle
                else:
                    high = middle
        except (OSError, DatastreamError, LayoutError) as error:
            raise self._refusal(error) from error
        return low

    def _block_ending_from(self, page_number: int) -> int:
        """Return the number of the first block that ends on a page or after it."""
        for entries in self._pages.pages_from(self._pages.run_from(page_number)):
            for entry in entries:
                if entry.type == BLOCK_END_TYPE:
                    return _number_at_end(entry)
        raise LayoutError(f"stream from data page {page_number} on", "no end of a block", "one")

    def _last_number(self) -> int:
        """Return the number of the last block, whose end is the last entry."""
        [entries] = self._pages.pages_from(self._pages.run_from(self._pages.page_count - 1))
        if entries[-1].type != BLOCK_END_TYPE:
            got = f"entry type {entries[-1].type:#x}"
            raise LayoutError(f"entry {entries[-1].number}, the last", got, "the end of a block (0xb1)")
        return _number_at_end(entries[-1])

    def _refusal(self, error: Exception) -> SourceRefused:
        return SourceRefused("blocks", f"{self._path}: {error}")


def _job(stored: StoredBlock) -> Job:
    return Job(stored.number, items=stored.items, stored_root_hash=stored.root_hash)


def _number_at_end(entry: Entry) -> int:
    """Return the number in the entry that ends a block; `BlockDecoder` checks it when the block is read."""
    return int.from_bytes(entry.data[:8], "big")
