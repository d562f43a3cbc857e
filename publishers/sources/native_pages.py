"""The blocks of a native chain from its two files, for readers that lock nothing, while a node may append; or
from its two archives.

The header of the block stream is read first, then that of the network's stream, which may count fewer
blocks: the node has not committed the last ones, and they are left out.
Source: docs/spec/block-layout.md section 5.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from sluice.datastream.layout import U64_MAX, Entry
from sluice.gateway.blocks.errors import LayoutError
from sluice.gateway.blocks.native_layout import NetworkEntry, entries_so_far, whole_blocks
from sluice.gateway.blocks.stream_layout import BLOCK_END_TYPE
from sluice.publishers.sources.stream_runs import STREAM_FILE_NAME, PagesReader, stream_file_in

__all__ = ["NativePages", "block_file_in", "network_file_of"]

BLOCK_FILE_NAME = "blocks.bin"


def block_file_in(path: Path) -> Path:
    """Return the file that has the blocks of a path: a stream file, or a node's data folder."""
    file = stream_file_in(path)
    blocks = file.with_name(BLOCK_FILE_NAME)
    return blocks if file.name == STREAM_FILE_NAME and file.exists() and blocks.exists() else file


def network_file_of(path: Path) -> Path | None:
    """Return the network's stream if a file is the block stream of a native chain beside it."""
    network = path.with_name(STREAM_FILE_NAME)
    return network if path.name == BLOCK_FILE_NAME and network.exists() else None


class NativePages:
    """The network's stream of a native chain, beside its open block stream. Use with `with`.

    Args:
        network: its reader, which is closed with this.
    """

    def __init__(self, blocks: PagesReader, network: PagesReader) -> None:
        self._blocks = blocks
        self._pages = network
        self._next: Iterator[Entry] = iter(())
        self._next_number: int | None = None
        """The entry that `_next` yields next; None: it has not begun."""

    def __enter__(self) -> NativePages:
        return self

    def __exit__(self, *error: object) -> None:
        self._pages.__exit__(*error)

    def committed_entries(self) -> int:
        """Return how many entries the block stream has of blocks that are in both files.

        Raises:
            LayoutError: a block's end is not of the native layout.
            EntriesDisagree: a page is damaged.
        """
        total_entries = self._pages.header.total_entries
        pages = range(self._blocks.page_count)
        place = bisect_right(pages, total_entries, key=self._so_far_from)
        if not place:
            return 0
        end = 0
        for entry in self._ends_from(place - 1):
            if entries_so_far(entry.data) > total_entries:
                break
            end = entry.number + 1
        return end

    def _so_far_from(self, page_number: int) -> int:
        """Return the network's entries behind the first block that ends on a page, or behind it."""
        for entry in self._ends_from(page_number):
            return entries_so_far(entry.data)
        return U64_MAX

    def _ends_from(self, page_number: int) -> Iterator[Entry]:
        for entries in self._blocks.pages_from(self._blocks.run_from(page_number)):
            for entry in entries:
                if entry.type == BLOCK_END_TYPE:
                    yield entry
            is_last = entries and entries[-1].number + 1 == self._blocks.header.total_entries
            if is_last and entries[-1].type != BLOCK_END_TYPE and not self._blocks.may_be_cut:
                what = f"entry {entries[-1].number}, the last"
                raise LayoutError(what, f"entry type {entries[-1].type:#x}", "the end of a block (0xb1)")

    def whole(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Yield entries of the block stream as they are in layout 2, with their numbers.

        Raises:
            LayoutError: the network's stream lacks some of them.
            EntriesDisagree: it is damaged.
        """
        return whole_blocks(entries, self._read)

    def _read(self, first: int, end: int) -> Iterator[NetworkEntry]:
        total_entries = self._pages.header.total_entries
        if end > total_entries:
            raise LayoutError(f"mark in {BLOCK_FILE_NAME}", f"entries {first} to {end - 1}", self._held())
        if first >= end:
            return
        if first != self._next_number:
            self._next = self._from(first)
        for entry in self._next:
            self._next_number = entry.number + 1
            yield entry.type, entry.data
            if entry.number + 1 == end:
                return

    def _held(self) -> str:
        return f"entries below {self._pages.header.total_entries}, those of {self._pages.path}"

    def _from(self, number: int) -> Iterator[Entry]:
        """Yield the entries from one on."""
        page_number = self._pages.page_of_entry(number)
        entries = chain.from_iterable(self._pages.pages_from(self._pages.run_from(page_number)))
        return (entry for entry in entries if entry.number >= number)
