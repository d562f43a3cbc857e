"""The check of a whole stream: pages and their sums, entries, padding, the tail, and the bookmarks both ways.

It reports every fault: where the chain of entries breaks, it resumes at the next data page, which begins with
an entry.

    severity   meaning
    DAMAGE     committed bytes are wrong, and nothing here can restore them
    FIXABLE    the index is wrong, or only the page cache still has some bytes: `repair` loses nothing
    committed UNFINISHED left by an interrupted program, as by a kill in a commit: the next opening recovers
    NOTE       allowed, and worth knowing

Memory does not hold the bookmarks: the index must have every bookmark entry of the stream, with its number or
a higher one, and each of its bookmarks must be an entry met with this number.

The check writes nothing: it opens the file read-only, shares the locks and copies the index.

Source: docs/spec/stream-file.md sections 1 and 3.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Protocol

from sluice.datastream.errors import BookmarksUnavailable, StreamFileUnavailable
from sluice.datastream.file.appending import rewrite_lost
from sluice.datastream.file.bookmarks import BookmarkIndex, bookmarks_folder
from sluice.datastream.file.disk import Disk, RealDisk
from sluice.datastream.file.file_lock import lock_stream_file
from sluice.datastream.file.file_system import has_no_disk
from sluice.datastream.file.fingerprint import is_of_stream
from sluice.datastream.file.page_sums import kept_sums, page_fits, stored_sums, sum_of
from sluice.datastream.file.remote_pages import RemotePages
from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.file.updating import record_for
from sluice.datastream.layout import (
    BOOKMARK_TYPE,
    ENTRY_HEAD,
    ENTRY_HEAD_SIZE,
    HEADER_OFFSET,
    HEADER_PAGE_SIZE,
    HEADER_SIZE,
    MAGIC,
    PACKET_DATA,
    PACKET_HEADER,
    PACKET_PADDING,
    PAGE_SIZE,
    U64_MAX,
    Entry,
    StreamHeader,
    decode_header,
    page_number_of,
    page_start,
    pages_used,
)
from sluice.datastream.limits import BOOKMARK_SIZE_MAX, BOOKMARK_SIZE_MIN

__all__ = ["CheckFinding", "CheckResult", "EntryVisitor", "Severity", "check_stream", "repair_stream"]

CHECK_FINDINGS_MAX = 1_000
"""Findings of each severity that a check keeps; it counts the others."""

_BLOCK_SIZE = 4096
_ONLY_IN_MEMORY = "only in memory"


class Severity(Enum):
    """The severity of a finding."""

    DAMAGE = "damage"
    FIXABLE = "fixable"
    UNFINISHED = "unfinished"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """One thing that is wrong or worth knowing."""

    severity: Severity
    what: str
    """Found and expected."""
    offset: int | None = None
    """In bytes from the beginning of the file."""
    number: int | None = None
    """The entry."""

    def __str__(self) -> str:
        places = []
        if self.number is not None:
            places.append(f"entry {self.number}")
        if self.offset is not None:
            places.append(f"offset {self.offset}")
        return f"{', '.join(places)}: {self.what}" if places else self.what


class EntryVisitor(Protocol):
    """Checks the meaning of entries."""

    def entry(self, entry: Entry, offset: int) -> None:
        """Take the next entry."""
        ...

    def gap(self) -> None:
        """Note that entries are missing here."""
        ...


@dataclass(slots=True)
class CheckResult:
    """The result of a check."""

    path: Path
    header: StreamHeader | None = None
    entry_count: int = 0
    """Entries found."""
    bookmark_count: int = 0
    """Entries that are bookmarks."""
    page_count: int = 0
    bad_pages: list[int] = field(default_factory=list)
    """Full pages that do not fit their sums."""
    unsummed_pages: list[int] = field(default_factory=list)
    """Full pages without a sum."""
    findings: list[CheckFinding] = field(default_factory=list)
    """The first CHECK_FINDINGS_MAX of each severity."""
    counts: dict[Severity, int] = field(default_factory=lambda: dict.fromkeys(Severity, 0))
    """All findings by severity."""

    @property
    def is_sound(self) -> bool:
        """True if there are only notes, and traces that the next opening removes."""
        return not (self.counts[Severity.DAMAGE] or self.counts[Severity.FIXABLE])

    def add(
        self, severity: Severity, what: str, *, offset: int | None = None, number: int | None = None
    ) -> None:
        """Add a finding."""
        self.counts[severity] += 1
        if self.counts[severity] <= CHECK_FINDINGS_MAX:
            self.findings.append(CheckFinding(severity, what, offset, number))


Progress = Callable[[int, int], None]
"""Called with the number of checked pages and of all pages."""


def check_stream(
    path: Path, *, visitor: EntryVisitor | None = None, progress: Progress = lambda done, total: None
) -> CheckResult:
    """Check a stream file and its bookmark folder; write nothing.

    Args:
        visitor: gets every readable entry.
        progress: called after each page.

    Raises:
        StreamFileUnavailable: the operating system refuses the file.
        StreamInUse: a writer has the stream open.
    """
    result = CheckResult(path)
    with contextlib.ExitStack() as stack:
        try:
            disk = RealDisk(path, writable=False)
            stack.callback(disk.close)
            lock_stream_file(path, disk.fileno(), shared=True)
            index = _open_index(path, result)
            if index is not None:
                stack.callback(index.close)
            _compare_with_disk(disk, HEADER_PAGE_SIZE, 0, result)
            header = _check_header(disk, result)
            if header is not None:
                result.header = header
                _Walk(disk, header, index, visitor, result).run(progress)
                _check_tail(disk, header, result)
        except OSError as error:
            raise StreamFileUnavailable(path, error) from error
    return result


def _open_index(path: Path, result: CheckResult) -> BookmarkIndex | None:
    if not bookmarks_folder(path).is_dir():
        result.add(Severity.FIXABLE, f"there is no bookmark folder {bookmarks_folder(path).name}")
        return None
    try:
        index = BookmarkIndex(path, read_only=True)
    except BookmarksUnavailable as error:
        result.add(Severity.FIXABLE, str(error))
        return None
    if index.damage is not None:
        index.close()
        result.add(Severity.FIXABLE, f"the index is damaged: {index.damage}")
        return None
    return index


# --- memory and disk -------------------------------------------------------------------------------------


def _compare_with_disk(disk: Disk, size: int, offset: int, result: CheckResult) -> bool:
    """Report bytes that only the page cache holds; the check reads through the cache.

    A failed flush leaves such bytes; the next start of the machine loses them.

    Returns:
        Whether the disk holds other bytes than zeros.
    """
    cached = disk.pread(size, offset)
    on_disk = disk.read_past_cache(size + -size % _BLOCK_SIZE, offset)
    if on_disk is None:
        if offset == 0 and not has_no_disk(disk.fileno()):
            what = "this file system lets nobody read past the page cache: what the disk holds is not known"
            result.add(Severity.NOTE, what)
        return False
    if cached == on_disk[:size]:
        return False
    pairs = zip(cached, on_disk, strict=False)
    places = [(at, found) for at, (expected, found) in enumerate(pairs) if found != expected]
    first, last = offset + places[0][0], offset + places[-1][0]
    if offset == 0:
        what = "the header in memory is not that of the disk, which opening takes: its flush failed"
        result.add(Severity.FIXABLE, what, offset=first)
    elif not any(found for _, found in places):
        what = f"the bytes up to offset {last} are {_ONLY_IN_MEMORY}: the disk has zeros in their place"
        result.add(Severity.FIXABLE, what, offset=first)
    else:
        what = f"memory and the disk hold different bytes up to offset {last}"
        result.add(Severity.DAMAGE, what, offset=first)
        return True
    return False


# --- the header ------------------------------------------------------------------------------------------


def _check_header(disk: Disk, result: CheckResult) -> StreamHeader | None:
    """Report everything wrong with the header page; return a usable header, or None."""
    size = disk.size()
    if size < HEADER_PAGE_SIZE:
        result.add(
            Severity.DAMAGE,
            f"the file has {size} bytes, expected at least {HEADER_PAGE_SIZE}, the header page",
            offset=size,
        )
        return None
    page = disk.pread(HEADER_PAGE_SIZE, 0)
    fields = decode_header(page[HEADER_OFFSET:])
    header = fields.header
    rest = (size - HEADER_PAGE_SIZE) % PAGE_SIZE
    if rest:
        what = f"the file ends {rest} bytes after the last whole data page"
        result.add(Severity.DAMAGE, what, offset=size)
    for got, expected, offset, name in (
        (page[:HEADER_OFFSET], MAGIC, 0, "magic bytes"),
        (fields.packet_type, PACKET_HEADER, HEADER_OFFSET, "packet type of the header entry"),
        (fields.header_size, HEADER_SIZE, HEADER_OFFSET + 1, "length of the header entry"),
    ):
        if got != expected:
            result.add(Severity.DAMAGE, f"{name}: found {got!r}, expected {expected!r}", offset=offset)
    if page.count(0, HEADER_OFFSET + HEADER_SIZE) != HEADER_PAGE_SIZE - HEADER_OFFSET - HEADER_SIZE:
        result.add(
            Severity.NOTE, "the rest of the header page is not zero", offset=HEADER_OFFSET + HEADER_SIZE
        )
    if not HEADER_PAGE_SIZE <= header.total_length <= size:
        what = f"TotalLength {header.total_length} lies outside the file, which has {size} bytes"
        result.add(Severity.DAMAGE, what, offset=HEADER_OFFSET + 22)
        if header.total_length < HEADER_PAGE_SIZE:
            return None
    return header


# --- the entries -----------------------------------------------------------------------------------------


class _Walk:
    """A walk over all entries that compares their bookmarks with the index."""

    def __init__(
        self,
        disk: Disk,
        header: StreamHeader,
        index: BookmarkIndex | None,
        visitor: EntryVisitor | None,
        result: CheckResult,
    ) -> None:
        self._disk = disk
        self._header = header
        self._end = min(header.total_length, disk.size())
        self._index = index
        self._remote = RemotePages(result.path, (lambda key: None) if index is None else index.notes.get)
        self._passed_over = range(0)
        """Entries that the file has given up."""
        self._visitor = visitor
        self._result = result
        self._next_number = 0
        self._shift = 0
        """The last offset of entry numbers, so that a gap is reported once."""
        covered = 0
        with contextlib.suppress(BookmarksUnavailable):
            covered = (index.covered or 0) if index is not None else 0
        self._covered = covered
        self._sums = {} if index is None else self._sums_of(index)
        self._met = bytearray(min(header.total_entries, self._end // ENTRY_HEAD_SIZE) // 8 + 1)
        """A bit for each entry whose bookmark the index has with its number."""

    def run(self, progress: Progress) -> None:
        """Walk every page, then check the index."""
        page_count = pages_used(self._end)
        self._result.page_count = page_count
        for page_number in range(page_count):
            if self._remote.holds(page_number):
                if page_number == 1:
                    self._pass_over(self._remote.end)
                continue
            self._walk_page(page_number, is_last=page_number + 1 == page_count)
            progress(page_number + 1, page_count)
        expected = self._header.total_entries
        if self._next_number != expected:
            what = f"the entries end with number {self._next_number}, the header counts {expected}"
            self._result.add(Severity.DAMAGE, what, offset=self._end, number=self._next_number)
        if self._index is not None and (unsummed := self._result.unsummed_pages):
            what = f"{len(unsummed)} of {max(page_count - 1, 0)} full pages have no checksum yet"
            self._result.add(Severity.NOTE, what, offset=page_start(unsummed[0]))
        if self._index is not None:
            self._check_index(self._index)

    def _pass_over(self, end: int) -> None:
        """Pass over the pages that the file has given up to an archive."""
        begin = self._next_number
        what = f"data pages 1 to {end - 1} are in an archive, and were not checked (sluice check URL)"
        self._result.add(Severity.NOTE, what, offset=page_start(1), number=begin)
        if self._visitor is not None:
            self._visitor.gap()
        self._take_up_again(end - 1)
        self._passed_over = range(begin, self._next_number)

    def _walk_page(self, page_number: int, *, is_last: bool) -> None:
        start = page_start(page_number)
        end = min(self._end - start, PAGE_SIZE)
        is_other = _compare_with_disk(self._disk, end, start, self._result)
        page = self._disk.pread(end, start)
        if not is_last:
            self._check_sum(page_number, page, is_other=is_other)
        position = 0
        while position < end:
            fault, size, entry_type = self._judge(page, position, end)
            if fault is not None:
                is_padding = page[position] == PACKET_PADDING and position > 0 and end == PAGE_SIZE
                if not is_padding:
                    self._report(fault, start + position)
                    self._take_up_again(page_number)
                elif page.count(0, position, end) != end - position:
                    what = "the padding of the page is not all zeros, as other programs leave it"
                    self._result.add(Severity.NOTE, what, offset=start + position)
                return
            self._take(page, position, size, entry_type, start)
            position += size

    def _sums_of(self, index: BookmarkIndex) -> dict[bytes, bytes]:
        with contextlib.suppress(BookmarksUnavailable):
            fingerprint = index.fingerprint
            if fingerprint is not None and not is_of_stream(fingerprint, self._header, self._disk.pread):
                return kept_sums(index, self._disk, max(pages_used(self._end) - 1, 0))
        return stored_sums(index)

    def _check_sum(self, page_number: int, page: bytes, *, is_other: bool) -> None:
        """Compare a full page with its sum; one note at the end counts pages without a sum.

        The disk counts (`is_other`: it has other bytes), except for bytes that `repair` can write there.
        """
        fits = page_fits(self._sums, page_number, page)
        if fits is None:
            self._result.unsummed_pages.append(page_number)
        elif is_other or not fits:
            self._result.bad_pages.append(page_number)
            what = f"data page {page_number} is not as it was written: its CRC32C is {sum_of(page):08x}"
            self._result.add(Severity.DAMAGE, what, offset=page_start(page_number), number=self._next_number)

    def _judge(self, page: bytes, position: int, end: int) -> tuple[str | None, int, int]:
        """Return (fault of the head or None, size, entry type)."""
        if end - position < ENTRY_HEAD_SIZE:
            return f"{end - position} bytes, too few for an entry", 0, 0
        packet_type, size, entry_type, _ = ENTRY_HEAD.unpack_from(page, position)
        if packet_type != PACKET_DATA:
            return f"packet type {packet_type}, expected {PACKET_DATA}", 0, 0
        if not ENTRY_HEAD_SIZE <= size <= end - position:
            return f"length {size}, expected {ENTRY_HEAD_SIZE} to {end - position}", 0, 0
        return None, size, entry_type

    def _take(self, page: bytes, position: int, size: int, entry_type: int, start: int) -> None:
        number: int = ENTRY_HEAD.unpack_from(page, position)[3]
        shift = number - self._next_number
        if shift and shift != self._shift:
            self._report(f"entry number {number}, expected {self._next_number}", start + position)
        elif shift:
            self._next_number = number  # the second one equally off: entries are missing before it
            shift = 0
        self._shift = shift
        number = self._next_number
        self._next_number = number + 1
        self._result.entry_count += 1
        # Others of that type are plain entries.
        if entry_type == BOOKMARK_TYPE and BOOKMARK_SIZE_MIN <= size - ENTRY_HEAD_SIZE <= BOOKMARK_SIZE_MAX:
            bookmark = page[position + ENTRY_HEAD_SIZE : position + size]
            self._check_bookmark(bookmark, number, start + position)
        if self._visitor is not None:
            entry = Entry(entry_type, number, page[position + ENTRY_HEAD_SIZE : position + size])
            self._visitor.entry(entry, start + position)

    def _report(self, what: str, offset: int) -> None:
        self._result.add(Severity.DAMAGE, what, offset=offset, number=self._next_number)
        if self._visitor is not None:
            self._visitor.gap()

    def _take_up_again(self, page_number: int) -> None:
        start = page_start(page_number + 1)
        if start + ENTRY_HEAD_SIZE > self._end:
            return
        packet_type, _, _, number = ENTRY_HEAD.unpack(self._disk.pread(ENTRY_HEAD_SIZE, start))
        if packet_type == PACKET_DATA and self._next_number < number < self._header.total_entries:
            self._next_number = number

    # --- bookmarks ---------------------------------------------------------------------------------------

    def _check_bookmark(self, bookmark: bytes, number: int, offset: int) -> None:
        result = self._result
        result.bookmark_count += 1
        if self._index is None:
            return
        try:
            pointed = self._index.get(bookmark)
        except BookmarksUnavailable as error:
            result.add(Severity.FIXABLE, str(error))
            self._index = None
            return
        if number < self._covered and (pointed is None or pointed < number):
            found = "is not in the index" if pointed is None else f"points at entry {pointed} in the index"
            what = f"bookmark {bookmark.hex()} {found}"
            result.add(Severity.FIXABLE, what, offset=offset, number=number)
        elif pointed == number and number >> 3 < len(self._met):
            self._met[number >> 3] |= 1 << (number & 7)

    def _check_index(self, index: BookmarkIndex) -> None:
        result, total_entries = self._result, self._header.total_entries
        try:
            covered, fingerprint = index.covered, index.fingerprint
            is_foreign = fingerprint is not None and not is_of_stream(
                fingerprint, self._header, self._disk.pread
            )
            if covered is None:
                result.add(Severity.NOTE, "the index does not say what it covers, as another program's does")
            elif covered > total_entries and self._knows_more(index, fingerprint):
                what = (
                    f"the index covers {covered} entries of this stream, the header counts {total_entries}: "
                    "the header went back, or the file is older than its index (sluice repair)"
                )
                result.add(Severity.DAMAGE, what, offset=HEADER_OFFSET)
            elif is_foreign and not result.counts[Severity.DAMAGE]:  # damage explains it
                what = "the index is of another stream, or of other entries"
                result.add(Severity.FIXABLE, what)
            elif covered != total_entries:
                what = f"the index covers {covered} entries, the stream has {total_entries}"
                is_behind = covered < total_entries
                result.add(Severity.UNFINISHED if is_behind else Severity.FIXABLE, what)
            for bookmark, number in index.items():
                place, bit = number >> 3, 1 << (number & 7)
                if place < len(self._met) and self._met[place] & bit:
                    self._met[place] ^= bit  # a second bookmark for the same entry cannot be right
                elif number in self._passed_over:
                    pass
                elif covered is not None:
                    what = f"the index has bookmark {bookmark.hex()} here, which is not or not alone right"
                    result.add(Severity.FIXABLE, what, number=number)
            if record_for(index.update_record, self._header, self._disk) is not None:
                result.add(Severity.UNFINISHED, "an update of an entry was interrupted; opening finishes it")
        except BookmarksUnavailable as error:
            result.add(Severity.FIXABLE, str(error))

    def _knows_more(self, index: BookmarkIndex, fingerprint: bytes | None) -> bool:
        if index.was_opened_by_another:
            return False
        size = self._disk.size()
        whole = replace(self._header, total_length=size, total_entries=U64_MAX)
        holds_it = fingerprint is not None and is_of_stream(fingerprint, whole, self._disk.pread)
        return holds_it or any(self._met)


def _check_tail(disk: Disk, header: StreamHeader, result: CheckResult) -> None:
    offset, size = header.total_length, disk.size()
    while offset < size and disk.has_data(offset):
        data = disk.pread(min(PAGE_SIZE, size - offset), offset)
        if data.count(0) != len(data):
            first = offset + len(data) - len(data.lstrip(b"\0"))
            what = "what lies past the end of the stream is not zero, as of a commit that was not finished"
            result.add(Severity.UNFINISHED, what, offset=first)
            return
        offset += len(data)


# --- repairing -------------------------------------------------------------------------------------------


def repair_stream(path: Path, result: CheckResult) -> list[str]:
    """Repair what loses nothing committed; return a line for each action.

    Args:
        result: of `check_stream`; with damage this repairs nothing, as an index of damaged entries would be
            incomplete.

    Raises:
        StreamInUse: another opener has the stream.
        DatastreamError: it cannot be opened or written.
    """
    to_do = result.counts[Severity.FIXABLE] + result.counts[Severity.UNFINISHED] + len(result.unsummed_pages)
    if result.header is None or result.counts[Severity.DAMAGE] or not to_do:
        return []
    wipe = any(
        finding.severity is Severity.FIXABLE and "index" in finding.what for finding in result.findings
    )
    if wipe:
        index = BookmarkIndex(path)
        try:
            record, sums = index.update_record, stored_sums(index)
            index.wipe()
            index.notes.put_all(sums)  # opening keeps those that fit
            index.write_pending()
            if record is not None:
                index.put_update_record(record)
        finally:
            index.close()
    done = []
    with DataStreamer.open(path, stream_type=result.header.stream_type) as streamer:
        entry_count = streamer.committed.total_entries
        # The check found every entry sound, so these bytes make the sums.
        for page_number in result.unsummed_pages:
            streamer.sums.adopt(page_number, streamer.read_bytes(PAGE_SIZE, page_start(page_number)))
        for finding in result.findings:
            if _ONLY_IN_MEMORY in finding.what and finding.offset is not None:
                done.append(_write_only_copy(path, finding.offset))
    for finding in result.findings:
        if "past the end" in finding.what:
            done.append(f"wrote zeros from offset {finding.offset} on, past the end of the stream")
        elif "interrupted" in finding.what:
            done.append("finished the update of an entry")
        elif "index covers" in finding.what and not wipe:
            done.append(f"added to the index what it lacked of {entry_count} entries")
    if wipe or any("bookmark" in finding.what for finding in result.findings):
        done.append(f"made the index of bookmarks anew from {entry_count} entries")
    if result.unsummed_pages:
        done.append(f"made the checksums of {len(result.unsummed_pages)} pages")
    return done


def _write_only_copy(path: Path, offset: int) -> str:
    """Write a page from memory to a disk that has lost bytes of it; return a line that says so.

    Raises:
        StreamFileUnavailable: the disk refuses, or holds other bytes.
    """
    with contextlib.closing(RealDisk(path)) as disk:
        try:
            rewrite_lost(disk, PAGE_SIZE, page_start(page_number_of(offset)))
        except OSError as error:
            raise StreamFileUnavailable(path, error) from error
    return f"wrote the bytes from offset {offset} on, which were {_ONLY_IN_MEMORY}, to the disk"
