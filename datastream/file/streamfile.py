"""The stream file for readers: its header, its committed entries and their places.

To find an entry: binary search by first numbers finds the page, the nearest checkpoint (every 64th entry) the
place to start, and the chain of lengths leads on. A page without a table in `PageTables` is walked once.

Source: docs/spec/stream-file.md section 1.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

from sluice.datastream.errors import (
    BadEntryRange,
    EntriesDisagree,
    EntryNotFound,
    NotWholePages,
    PageUnchecked,
    ShorterThanHeaderPage,
    StreamChanged,
    TotalLengthOutOfFile,
    WrongHeaderSize,
    WrongMagic,
    WrongPacketType,
    WrongStreamType,
)
from sluice.datastream.file.concurrent_changes import Changes
from sluice.datastream.file.disk import Disk
from sluice.datastream.file.fingerprint import fingerprint_of
from sluice.datastream.file.page_index import NoPageTables, PageIndex, PageTable, PageTables
from sluice.datastream.file.page_sums import PageSums, fits, this_thread
from sluice.datastream.file.pages import (
    PageFault,
    PageWalk,
    columns_of,
    entries_of,
    find_entry,
    find_position,
    walk_page,
)
from sluice.datastream.file.recovery import TailState
from sluice.datastream.file.remote_pages import RemotePages
from sluice.datastream.layout import (
    ENTRY_HEAD,
    ENTRY_HEAD_SIZE,
    HEADER_OFFSET,
    HEADER_PAGE_SIZE,
    HEADER_SIZE,
    MAGIC,
    PACKET_DATA,
    PACKET_HEADER,
    PAGE_SIZE,
    Committed,
    Entry,
    StreamHeader,
    decode_entry,
    decode_header,
    encode_header,
    page_end,
    page_number_of,
    page_start,
    pages_used,
)

__all__ = ["StreamFile", "inspect_header"]

_logger = logging.getLogger(__name__)

FULL_CHECK_PAGES_MAX = 8
"""Opening walks every entry of up to this many used pages; of more pages, only their heads and the last page.

A walk takes about 3 ms a page with small entries, so 8 pages stay far below the 0.2 s that opening may take.
"""
READ_AHEAD_BYTES = 4_096
"""First read of an iteration; each further one doubles."""

_Answer = TypeVar("_Answer")
_ENTRIES_PER_PAGE_MAX = PAGE_SIZE // ENTRY_HEAD_SIZE
_COLUMNS_SLACK = 64 * 1024


def _entries_end(index: PageIndex, page_number: int, committed: Committed) -> int:
    if page_number + 1 >= pages_used(committed.total_length):
        return committed.total_entries
    return index.first_numbers[page_number + 1]


def inspect_header(path: Path | str, disk: Disk, stream_type: int) -> StreamHeader:
    """Read the header page and check it against the file's size.

    Raises:
        StreamFileRefused: the class names the first fault.

    Source: docs/spec/stream-file.md section 1.5.
    """
    page, size = disk.pread(HEADER_OFFSET + HEADER_SIZE, 0), disk.size()
    if size < HEADER_PAGE_SIZE:
        raise ShorterThanHeaderPage(path, f"{size} bytes", f"at least {HEADER_PAGE_SIZE}, the header page")
    if page[:HEADER_OFFSET] != MAGIC:
        raise WrongMagic(path, repr(page[:HEADER_OFFSET]), repr(MAGIC))
    fields = decode_header(page[HEADER_OFFSET:])
    header = fields.header
    rest = (size - HEADER_PAGE_SIZE) % PAGE_SIZE
    if rest:
        found = f"{size} bytes, {rest} after the last whole page"
        raise NotWholePages(path, found, f"{HEADER_PAGE_SIZE} plus a multiple of {PAGE_SIZE}")
    if fields.packet_type != PACKET_HEADER:
        raise WrongPacketType(path, str(fields.packet_type), str(PACKET_HEADER))
    if fields.header_size != HEADER_SIZE:
        raise WrongHeaderSize(path, str(fields.header_size), str(HEADER_SIZE))
    if header.stream_type != stream_type:
        raise WrongStreamType(path, str(header.stream_type), str(stream_type))
    if not HEADER_PAGE_SIZE <= header.total_length <= size:
        expected = f"{HEADER_PAGE_SIZE} to {size}, the file's size"
        raise TotalLengthOutOfFile(path, str(header.total_length), expected)
    return header


class StreamFile:
    """A stream file with a sound header; `load` it before reading."""

    def __init__(self, path: Path, disk: Disk, header: StreamHeader) -> None:
        self.path = path
        self.disk = disk
        self.version = header.version
        self.system_id = header.system_id
        self.stream_type = header.stream_type
        self.totals: tuple[int, int] = (header.total_length, header.total_entries)
        self.index = PageIndex()
        self.changes = Changes()
        self.refusal: EntriesDisagree | None = None
        """The reason to refuse the file, unless an unfinished update or a damaged page explains it."""
        self.tables: PageTables = NoPageTables()
        """Tables of pages from earlier openings, once the bookmark folder is open."""
        self.sums = PageSums(self)
        """Checksums of full pages, in use once the stream is open."""
        self.is_walked = False
        self.remote = RemotePages(path)
        """The pages that the file has given up."""
        self.damaged: dict[int, PageTable | None] = {}
        """Damaged full pages that `load` passed over, with the table that stands in."""

    @property
    def committed(self) -> Committed:
        """The committed totals."""
        return Committed(*self.totals)

    # --- opening -----------------------------------------------------------------------------------------

    def load(
        self,
        *,
        whole: bool = False,
        go_on: Callable[[], None] | None = None,
        sums: Mapping[bytes, bytes] | None = None,
        damaged_pages_max: int = 0,
    ) -> None:
        """Learn the pages: check each page's head, walk the last page, and all pages of a small file.

        An unwalkable full page is `damaged` if it does not fit its checksum, or if its stored table fits the
        pages around it, up to `damaged_pages_max` of them. Any other page refuses the file.

        Args:
            whole: also walk all pages of a large file.
            go_on: called before each walk; its exception ends the loading.
            sums: checksums of full pages; those in `tables` belong to the same stream.
            damaged_pages_max: unless 0, also walk page 0: by it an index knows its stream.

        Raises:
            EntriesDisagree: the entries do not lead exactly to the header's totals.
        """
        self.index = PageIndex()
        self.refusal = None
        self.is_walked = False
        total_length, total_entries = self.committed
        page_count = pages_used(total_length)
        if page_count == 0:
            if total_entries:
                found = f"TotalEntries {total_entries}"
                raise EntriesDisagree(
                    self.path, 0, total_length, found, f"0, as TotalLength is {total_length}"
                )
            return
        faults: dict[int, EntriesDisagree] = {}
        self._load_remote(page_count)
        for page_number in range(self.index.page_count, page_count):
            table = self.damaged.get(page_number)
            try:
                number = self._check_page_head(page_number) if table is None else table.first_number
            except EntriesDisagree as fault:
                table = self.tables.get_table(page_number)
                if table is None:
                    raise
                faults[page_number], number = fault, table.first_number
            self.index.add_page(page_number, number)
        is_whole = whole or page_count <= FULL_CHECK_PAGES_MAX
        begin = max(0 if is_whole else page_count - 1, self.remote.end)
        to_walk = {*range(begin, page_count), *([0] if damaged_pages_max else [])}
        for page_number in (*faults, *sorted(to_walk - faults.keys() - self.damaged.keys())):
            if go_on is not None:
                go_on()
            try:
                if page_number in faults:
                    raise faults[page_number]
                walk = self.walk(page_number)
            except EntriesDisagree as fault:
                if not self._is_damaged(page_number, sums, damaged_pages_max):
                    raise
                if damaged_pages_max:  # otherwise `PageSums.check` reports its sum
                    text = "%s: data page %d is damaged and not served: %s"
                    _logger.error(text, self.path, page_number, fault)
        self.index.fill_page(page_count - 1, walk.checkpoints)
        self.is_walked = is_whole and not self.damaged and not self.remote.end

    def last_entry(self) -> Entry | None:
        """Read the last entry of a file that is not loaded; None: it has none. Other pages may be given up.

        Raises:
            EntriesDisagree: the entries of the last page do not lead exactly to the header's totals.
        """
        total_length, total_entries = self.committed
        page_count = pages_used(total_length)
        if not page_count and not total_entries:
            return None
        start = page_start(max(page_count - 1, 0))
        page = self.disk.pread(max(total_length - start, 0), start)
        first_number = ENTRY_HEAD.unpack_from(page)[3] if len(page) >= ENTRY_HEAD_SIZE else 0
        try:
            data = page[: walk_page(page, first_number, len(page)).data_end]
            position = find_position(data, first_number, total_entries - 1, total_entries)
            return decode_entry(data, position)
        except PageFault as fault:
            raise self._disagree(fault, start) from fault

    def _load_remote(self, page_count: int) -> None:
        """Learn page 0 and the given up pages, if there are any.

        Raises:
            EntriesDisagree: the stream ends before them, or their records contradict each other.
        """
        end, index = self.remote.end, self.index
        if end <= 1:
            return
        if end >= page_count:
            found, expected = f"{page_count} pages", f"more than {end}, as so many are given up"
            raise EntriesDisagree(self.path, 0, HEADER_PAGE_SIZE, found, expected)
        index.add_page(0, self._check_page_head(0))
        for page_number, page in enumerate(self.remote.pages(), 1):
            before = index.first_numbers[-1]
            if not before < page.first_number <= before + _ENTRIES_PER_PAGE_MAX:
                offset, found = page_start(page_number), f"a record of entry {page.first_number}"
                expected = f"one of an entry after {before}"
                raise EntriesDisagree(self.path, before + 1, offset, found, expected)
            index.add_page(page_number, page.first_number)
            index.set_data_end(page_number, page_start(page_number) + page.data_end)

    def _is_damaged(
        self, page_number: int, sums: Mapping[bytes, bytes] | None, damaged_pages_max: int
    ) -> bool:
        if page_number >= self.full_count:
            return False
        table = self.tables.get_table(page_number)
        is_damaged = bool(sums) and fits(sums or {}, page_number, self.disk) is False
        if not is_damaged and len(self.damaged) < damaged_pages_max and table is not None:
            is_damaged = table.fits(*self.index.first_numbers[page_number : page_number + 2])
        if is_damaged:
            self.damaged[page_number] = table
        return is_damaged

    def load_index(self) -> None:
        """Load the pages anew; readers continue with the old index meanwhile."""
        fresh = StreamFile(self.path, self.disk, self.header(self.committed))
        fresh.damaged, fresh.remote = self.damaged, self.remote
        fresh.load()
        self.index = fresh.index
        self.sums.cut(self.full_count)

    @property
    def full_count(self) -> int:
        """The number of full pages: all but the last."""
        return max(pages_used(self.totals[0]) - 1, 0)

    def _check_page_head(self, page_number: int) -> int:
        offset = page_start(page_number)
        head = self.disk.pread(ENTRY_HEAD_SIZE, offset)
        number: int
        packet_type, _, _, number = ENTRY_HEAD.unpack(head)
        firsts = self.index.first_numbers
        lowest = firsts[page_number - 1] + 1 if page_number else 0
        highest = lowest - 1 + _ENTRIES_PER_PAGE_MAX if page_number else 0
        highest = min(highest, self.committed.total_entries - 1)
        if packet_type != PACKET_DATA:
            found = f"packet type {packet_type}"
            raise EntriesDisagree(
                self.path, lowest, offset, found, f"packet type {PACKET_DATA}, as a page begins with an entry"
            )
        if not lowest <= number <= highest:
            total = self.committed.total_entries
            expected = f"{lowest} to {highest} of {total}"
            if highest < lowest:
                expected = f"none there, as the header counts {total} entries"
            raise EntriesDisagree(self.path, lowest, offset, f"entry number {number}", expected)
        return number

    def walk(self, page_number: int, *, is_checked: bool = True) -> PageWalk:
        """Walk a used page, keep its table, and return the walk. If not `is_checked`, its sum may be wrong.

        Raises:
            EntriesDisagree: the page's entries do not lead to the next page, or to the end of the stream.
        """
        index, committed = self.index, self.committed
        start = page_start(page_number)
        end = min(committed.total_length - start, PAGE_SIZE)
        try:
            first_number = index.first_numbers[page_number]
            walk = walk_page(
                self._read_whole(end, start, first_number, is_checked=is_checked), first_number, end
            )
        except PageFault as fault:
            self._note_fault(page_number, index, fault)
            raise self._disagree(fault, start) from fault
        is_last = page_number + 1 >= pages_used(committed.total_length)
        following = _entries_end(index, page_number, committed)
        if walk.entries_end != following:
            what = "TotalEntries" if is_last else "the next page begins with"
            found = f"the page's end after {walk.entries_end} entries"
            offset = start + walk.data_end
            raise EntriesDisagree(self.path, walk.entries_end, offset, found, f"{what} {following}")
        if end == PAGE_SIZE:
            index.set_data_end(page_number, start + walk.data_end)
            if not is_last:
                index.set_table(page_number, walk.checkpoints)
                table = PageTable(first_number, walk.entries_end, walk.data_end, walk.checkpoints)
                self.tables.put_table(page_number, table)
        return walk

    def _note_fault(self, page_number: int, index: PageIndex, fault: PageFault) -> None:
        """Stop serving an unwalkable full page, unless the stream was truncated."""
        with self.sums.lock, self.changes.lock:
            if self.index is index:
                self.sums.found_fault(page_number, fault)

    def read(self, size: int, offset: int) -> bytes:
        """Read bytes of committed entries, each of them whole."""
        return self.changes.read(self.disk, size, offset)

    def read_checked(self, size: int, offset: int) -> bytes:
        """Read the same from one page after its check."""
        while True:
            self.sums.require(page_number_of(offset))
            try:
                return self.changes.read(self.disk, size, offset)
            except PageUnchecked:  # it was given up, or has left the cache
                if not this_thread.waits or not this_thread.fetches:
                    raise

    def _read_whole(self, size: int, offset: int, number: int, *, is_checked: bool = True) -> bytes:
        """Read as `read`, and refuse a file that another program has cut.

        Raises:
            EntryNotFound: the stream was truncated before that entry meanwhile.
            EntriesDisagree: the file is shorter than its header says.
        """
        data = self.read_checked(size, offset) if is_checked else self.read(size, offset)
        if len(data) == size:
            return data
        total_entries = self.committed.total_entries
        if number >= total_entries:
            raise EntryNotFound(number, total_entries)
        end, expected = offset + len(data), f"{size - len(data)} committed bytes more"
        raise EntriesDisagree(self.path, number, end, "the end of the file", expected)

    def _checkpoints(self, page_number: int, index: PageIndex) -> array[int]:
        """Return a page's checkpoints: from memory, stored, or from a walk."""
        table = index.table(page_number)
        if table is not None:
            return table
        stored = self._stored_table(page_number, index)
        return self.walk(page_number).checkpoints if stored is None else stored.checkpoints

    def _stored_table(self, page_number: int, index: PageIndex) -> PageTable | None:
        """Return the stored table of a full page, if it agrees with the page.

        Entries between checkpoints are confirmed when used.
        """
        committed = self.committed
        if page_number + 1 >= pages_used(committed.total_length) or page_number in self.damaged:
            return None
        table = self.tables.get_table(page_number)
        first_number = index.first_numbers[page_number]
        entries_end = _entries_end(index, page_number, committed)
        if table is None or not table.fits(first_number, entries_end):
            return None
        near, position, _ = index.nearest(page_number, table.checkpoints, entries_end - 1)
        start = page_start(page_number)
        tail = self.read_checked(min(table.data_end + 1, PAGE_SIZE) - position, start + position)
        size = table.data_end - position
        try:
            find_position(tail[:size], near, entries_end, entries_end)
        except PageFault:
            return None
        if tail[size:] not in (b"", b"\0"):
            return None
        index.set_data_end(page_number, start + table.data_end)
        index.set_table(page_number, table.checkpoints)
        return table

    def tail_state(self) -> TailState:
        """Return whether anything but zeros lies past `total_length`."""
        total_length = self.committed.total_length
        rest_end = page_end(page_number_of(total_length))
        rest = self.disk.pread(rest_end - total_length, total_length)
        if rest.count(0) != len(rest):
            return TailState.NOT_ZERO
        if rest_end < self.disk.size() and self.disk.has_data(rest_end):
            return TailState.NOT_ZERO
        return TailState.ZERO

    def _disagree(self, fault: PageFault, start: int) -> EntriesDisagree:
        return EntriesDisagree(self.path, fault.number, start + fault.position, fault.found, fault.expected)

    # --- reading: any thread -----------------------------------------------------------------------------

    def header_bytes(self, committed: Committed) -> bytes:
        """Return the header entry (38 bytes) with these totals."""
        return encode_header(self.header(committed))

    def header(self, committed: Committed) -> StreamHeader:
        """Return the header with these totals."""
        return StreamHeader(self.version, self.system_id, self.stream_type, *committed)

    def length_without(self, number: int) -> int:
        """Return the `total_length` before entry `number`: the end of the entry before it."""
        offset = self.offset_of(number)
        if offset == HEADER_PAGE_SIZE:
            return offset
        page_number = page_number_of(offset)
        if offset > page_start(page_number):
            return offset
        return self.data_end(page_number - 1, page_end(page_number - 1))

    def fingerprint_at(self, count: int) -> bytes:
        """Return the fingerprint of the first `count` entries."""
        total_length, total_entries = self.totals
        if count != total_entries:
            total_length = self.length_without(count)
        return fingerprint_of(
            self.header(Committed(total_length, count)), partial(self.changes.read, self.disk)
        )

    def data_end(self, page_number: int, limit: int) -> int:
        """Return the offset just past the last entry of a page, as far as `limit`, an entry's end."""
        if limit < page_end(page_number):
            return limit
        index = self.index
        try:
            known = index.data_end(page_number)
        except IndexError:  # truncated while the caller looked
            raise StreamChanged(self.path, page_start(page_number)) from None
        if known:
            return known
        stored = self._stored_table(page_number, index)
        walked = self.walk(page_number) if stored is None else stored
        return page_start(page_number) + walked.data_end

    def offset_of(self, number: int) -> int:
        """Return where entry `number` begins; for `total_entries`, where the stream ends."""
        return self._settled(self._offset_of, number)

    def _offset_of(self, number: int) -> int:
        committed = self.committed
        if number == committed.total_entries:
            return committed.total_length
        offset, _, _ = self._find(number, committed)
        return offset

    def read_entry(self, number: int) -> Entry:
        """Return entry `number`."""
        return self._settled(self._read_entry, number)

    def _read_entry(self, number: int) -> Entry:
        _, data, position = self._find(number, self.committed)
        return decode_entry(data, position)

    def read_with_event(self, number: int) -> tuple[Entry, Entry]:
        """Return entry `number`, and the first one after it that is no bookmark, else the last entry."""
        return self._settled(self._read_with_event, number)

    def _read_with_event(self, number: int) -> tuple[Entry, Entry]:
        committed = self.committed
        _, data, position = self._find(number, committed)
        entry = first = decode_entry(data, position)
        position += ENTRY_HEAD_SIZE + len(entry.data)
        # The chain of lengths in `data` was followed to its end.
        while entry.is_bookmark and position < len(data):
            entry = decode_entry(data, position)
            position += ENTRY_HEAD_SIZE + len(entry.data)
        if entry.is_bookmark:
            following = self._entries(entry.number + 1, committed.total_entries)
            for entry in following:
                if not entry.is_bookmark:
                    break
        return first, entry

    def _settled(self, query: Callable[..., _Answer], *args: object) -> _Answer:
        """Return the answer to a query during which the stream was not truncated.

        Queries behind its end may meet zeros or other entries, so a sound file may look damaged.
        """
        while True:
            index = self.index
            try:
                answer = query(*args)
            except (EntriesDisagree, EntryNotFound, StreamChanged, IndexError, OSError):
                with self.changes.lock:  # held while totals and index are replaced
                    is_settled = self.index is index
                if is_settled:
                    raise
                continue
            if self.index is index:
                return answer

    def _find(self, number: int, committed: Committed) -> tuple[int, bytes, int]:
        """Return (offset of the entry, bytes around it, its position in them); for `_settled`."""
        if not 0 <= number < committed.total_entries:
            raise EntryNotFound(number, committed.total_entries)
        index = self.index
        page_number = index.page_of_entry(number)
        try:
            return self._find_on(page_number, number, committed, index)
        except EntriesDisagree:
            # Perhaps only the stored table is wrong; a walk replaces it.
            self.walk(page_number)
            return self._find_on(page_number, number, committed, index)

    def _find_on(
        self, page_number: int, number: int, committed: Committed, index: PageIndex
    ) -> tuple[int, bytes, int]:
        start = page_start(page_number)
        table = self._checkpoints(page_number, index)
        near, position, following = index.nearest(page_number, table, number)
        if following is None:
            following = self.data_end(page_number, committed.total_length) - start
        data = self._read_whole(following - position, start + position, near)
        try:
            found = find_position(data, near, number)
        except PageFault as fault:
            raise self._disagree(fault, start + position) from fault
        return start + position + found, data, found

    def entries(self, from_number: int, to_number: int | None = None) -> Iterator[Entry]:
        """Yield the entries from `from_number` up to, not including, `to_number` (None: all)."""
        committed = self.committed
        end_number = committed.total_entries if to_number is None else to_number
        if not 0 <= from_number <= end_number <= committed.total_entries:
            raise BadEntryRange(from_number, end_number, committed.total_entries)
        return self._entries(from_number, end_number)

    def _entries(self, number: int, end_number: int) -> Iterator[Entry]:
        size_wanted = READ_AHEAD_BYTES
        place: tuple[PageIndex | None, int, int] = (None, 0, 0)
        while number < end_number:
            place, data = self._settled(self._read_on, number, place, size_wanted)
            index, offset, end = place
            first_number, first_offset = number, offset
            try:
                for entry in entries_of(data, number, end_number):
                    yield entry
                    number += 1
                    offset += ENTRY_HEAD_SIZE + len(entry.data)
            except PageFault as fault:
                raise self._disagree(fault, first_offset) from fault
            if number == first_number and len(data) == end - offset:
                raise EntriesDisagree(
                    self.path, number, offset, "an entry past the end", "an entry that ends before"
                )
            place = index, offset, end
            size_wanted = min(2 * size_wanted, PAGE_SIZE)

    def _read_on(
        self, number: int, place: tuple[PageIndex | None, int, int], size_wanted: int
    ) -> tuple[tuple[PageIndex | None, int, int], bytes]:
        """Read from entry `number` on; for `_settled`.

        Args:
            place: the index that found it, its offset, and the end of its page's data.
        """
        index, offset, end = place
        if index is not self.index or offset >= end:
            index, committed = self.index, self.committed
            offset, _, _ = self._find(number, committed)
            end = self.data_end(page_number_of(offset), committed.total_length)
        return (index, offset, end), self._read_whole(min(end - offset, size_wanted), offset, number)

    def columns(self, number: int, size_wanted: int) -> tuple[list[int], list[bytes]]:
        """Return types and data of committed entries of one page, from entry `number` on.

        At least one entry, and no further ones once their data has `size_wanted` bytes, or there are
        COLUMN_ENTRIES_MAX.
        """
        return self._settled(self._read_columns, number, size_wanted)

    def _read_columns(self, number: int, size_wanted: int) -> tuple[list[int], list[bytes]]:
        committed = self.committed
        offset, _, _ = self._find(number, committed)
        end = self.data_end(page_number_of(offset), committed.total_length)
        data = self._read_whole(min(end - offset, size_wanted + _COLUMNS_SLACK), offset, number)
        try:
            types, column = columns_of(data, number, size_wanted)
            if not types:  # a long entry
                types, column = columns_of(
                    self._read_whole(end - offset, offset, number), number, size_wanted
                )
        except PageFault as fault:
            raise self._disagree(fault, offset) from fault
        if not types:
            raise EntriesDisagree(
                self.path, number, offset, "an entry past the end", "an entry that ends before"
            )
        return types, column

    def boundary_from(self, offset: int) -> int:
        """Return the first place from `offset` on where an entry begins or its page's data ends.

        Args:
            offset: of a committed byte, or the end of a page's or the stream's data.
        """
        total_length = self.committed.total_length
        page_number = page_number_of(offset)
        start = page_start(page_number)
        if offset == start or offset >= total_length:
            return offset
        end = self.data_end(page_number, total_length)
        if offset >= end:
            return offset
        index = self.index
        table = self._checkpoints(page_number, index)
        near, position = index.nearest_position(page_number, table, offset - start)
        data = self.read_checked(end - start - position, start + position)
        try:
            _, found = find_entry(data, near, offset - start - position)
        except PageFault as fault:
            raise self._disagree(fault, start + position) from fault
        return start + position + found
