"""The evidence that an opening weighs: what header, index and file each say is committed.

The index is written behind the header of a commit, and before that of a truncation. So it is never ahead,
unless the header went back or the file is an older one. It is no evidence if another program opened it since.

Source: datastream/README.md, "Opening"; docs/spec/stream-file.md 1 and 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from sluice.datastream.errors import BookmarksUnavailable, EntriesDisagree
from sluice.datastream.file.bookmarks import BookmarkIndex
from sluice.datastream.file.disk import Disk
from sluice.datastream.file.fingerprint import is_of_stream, totals_of
from sluice.datastream.file.streamfile import StreamFile
from sluice.datastream.layout import (
    BOOKMARK_TYPE,
    ENTRY_HEAD,
    ENTRY_HEAD_SIZE,
    HEADER_PAGE_SIZE,
    PACKET_DATA,
    PACKET_PADDING,
    U64_MAX,
    Committed,
    Entry,
    StreamHeader,
    page_end,
    page_number_of,
    page_start,
)
from sluice.datastream.limits import TAIL_LOOKED_AT_BYTES_MAX

__all__ = ["Evidence", "Tail", "entries_behind", "evidence_of", "holds_bookmarks_of"]

BOOKMARKS_COMPARED_AT_OPEN_MAX = 16
"""Bookmarks that opening compares with the entries if the index is ahead. Each may need the walk of a
page."""


class Tail(NamedTuple):
    """The whole entries behind the header."""

    entry_count: int
    end: int
    """The offset just past the last of them."""
    is_all: bool
    """True if these are all; otherwise the walk ended at TAIL_LOOKED_AT_BYTES_MAX."""

    def __str__(self) -> str:
        if not self.entry_count:
            return "no whole entry"
        return f"{'' if self.is_all else 'at least '}{self.entry_count} whole entries, to offset {self.end}"


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence before an opening changes anything."""

    file: StreamFile
    """`refusal` is set if its entries do not lead to the header's totals."""
    index_count: int | None
    """The number of entries that the index covers; None if it does not say, or is not believed."""
    index_totals: Committed | None
    """This count and its length, if the file still holds the entries as the index knew them."""
    index_is_of_file: bool
    """True if an index that is ahead belongs to this stream."""
    has_index: bool = True
    """True if there was an index, even an empty or damaged one."""

    @property
    def header(self) -> StreamHeader:
        """The header."""
        return self.file.header(self.file.committed)

    @property
    def index_is_ahead(self) -> bool:
        """True if the index covers more than the header counts."""
        return self.index_count is not None and self.index_count > self.file.committed.total_entries

    def entries_behind(self) -> Iterator[tuple[Entry, int]]:
        """Yield the whole entries behind the header, each with its offset."""
        return entries_behind(self.file.disk, self.header)

    def tail(self, bytes_max: int = TAIL_LOOKED_AT_BYTES_MAX) -> Tail:
        """Count the entries that begin in the `bytes_max` bytes behind the header."""
        end, count = self.file.committed.total_length, 0
        limit = end + bytes_max
        for entry, offset in self.entries_behind():
            if offset >= limit:
                return Tail(count, end, is_all=False)
            count, end = count + 1, offset + ENTRY_HEAD_SIZE + len(entry.data)
        return Tail(count, end, is_all=True)

    def words(self) -> str:
        """Return the evidence in words, for an error."""
        length, count = self.file.committed
        index = "says nothing" if self.index_count is None else f"covers {self.index_count} entries"
        return (
            f"a header that counts {count} entries in {length} bytes, an index of bookmarks that {index}, "
            f"and {self.tail()} behind the header"
        )


def evidence_of(file: StreamFile, bookmarks: BookmarkIndex) -> Evidence:
    """Collect the evidence."""
    try:
        covered, fingerprint = bookmarks.covered, bookmarks.fingerprint
        if covered is None or bookmarks.was_opened_by_another:
            has_index = covered is not None or bookmarks.damage is not None
            return Evidence(file, None, None, index_is_of_file=False, has_index=has_index)
        if covered <= file.committed.total_entries:
            return Evidence(file, covered, None, index_is_of_file=False)
        totals = None if fingerprint is None else totals_of(fingerprint)
        if fingerprint is not None and totals is not None and totals[1] == covered:
            whole = replace(file.header(file.committed), total_length=file.disk.size(), total_entries=U64_MAX)
            if is_of_stream(fingerprint, whole, file.disk.pread):
                return Evidence(file, covered, Committed(*totals), index_is_of_file=True)
        return Evidence(file, covered, None, index_is_of_file=holds_bookmarks_of(file, bookmarks))
    except BookmarksUnavailable:  # it is found unreadable again, and made anew
        return Evidence(file, None, None, index_is_of_file=False)


def holds_bookmarks_of(
    file: StreamFile, bookmarks: BookmarkIndex, count_max: int = BOOKMARKS_COMPARED_AT_OPEN_MAX
) -> bool:
    """Return whether an index holds bookmarks of a file, and none of another among the first `count_max`."""
    total_entries = file.committed.total_entries
    found = 0
    for looked_at, (bookmark, number) in enumerate(bookmarks.items()):
        if found == count_max or looked_at == count_max << 10:
            break
        if number >= total_entries:
            continue
        try:
            entry = file.read_entry(number)
        except EntriesDisagree:
            continue
        if (entry.type, entry.data) != (BOOKMARK_TYPE, bookmark):
            return False
        found += 1
    return found > 0


def entries_behind(disk: Disk, header: StreamHeader) -> Iterator[tuple[Entry, int]]:
    """Yield the whole entries behind a header's totals, each with its offset, while numbers go on."""
    offset, number = max(header.total_length, HEADER_PAGE_SIZE), header.total_entries
    size = disk.size()
    while offset < size:
        end = page_end(page_number_of(offset))
        data = disk.pread(end - offset, offset)
        position = 0
        while position + ENTRY_HEAD_SIZE <= len(data):
            packet_type, entry_size, entry_type, got = ENTRY_HEAD.unpack_from(data, position)
            entry_end = position + entry_size
            if (packet_type, got) != (PACKET_DATA, number) or not (
                position + ENTRY_HEAD_SIZE <= entry_end <= len(data)
            ):
                break
            entry = Entry(entry_type, number, data[position + ENTRY_HEAD_SIZE : entry_end])
            yield entry, offset + position
            position, number = entry_end, number + 1
        at_start = offset + position == page_start(page_number_of(offset))
        if position < len(data) and (at_start or data[position] != PACKET_PADDING):
            return
        offset = end
