"""Checksums of full data pages: a CRC32C of each, the checks against it, and healing.

    REMOTE ──fetch──► UNKNOWN                the file has given it up (`remote_pages.py`)
    UNKNOWN ──check──► GOOD                  its sum fits; or it had none, was proven, and has one now
                   ├─► UNSUMMED              it has no sum, and nobody proves it: it is served as it is
                   └─► BAD ──heal──► GOOD    its sum does not fit: it is not served

The page being filled has no sum. If only the copy in memory is wrong, the page is read from the disk again;
if only that on the disk is wrong, it is rewritten from memory.

Source: datastream/README.md, "Rot"; RFC 3720, appendix B.4 (CRC32C).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Protocol

import google_crc32c

from sluice.datastream.errors import BookmarksUnavailable, PageDamaged, PageNotLocal, PageUnchecked
from sluice.datastream.file.bookmarks import SUM_KEY, BookmarkIndex, Notes
from sluice.datastream.file.concurrent_changes import Changes, Patch
from sluice.datastream.file.disk import Disk, drop_cached, read_past_cache, write_past_cache
from sluice.datastream.file.file_system import takes_direct_writes
from sluice.datastream.file.page_index import PageIndex
from sluice.datastream.file.pages import PageFault, walk_page
from sluice.datastream.file.remote_pages import RemotePages
from sluice.datastream.layout import PAGE_SIZE, page_end, page_number_of, page_start

__all__ = [
    "BadPage",
    "PageState",
    "PageSums",
    "RunningSum",
    "ScrubResult",
    "fits",
    "kept_sums",
    "page_fits",
    "stored_sums",
    "sum_in",
    "sum_of",
    "this_thread",
    "without_fetching",
]

_logger = logging.getLogger(__name__)
_U64 = struct.Struct(">Q")
_U32 = struct.Struct(">I")
_NO_PLACE = -1
_FETCHES_MAX = 8
"""Fetches of a page that the cache drops before it can be read."""


def sum_of(data: bytes) -> int:
    """Return the CRC32C of bytes."""
    crc: int = google_crc32c.value(data)
    return crc


_ZERO_PAGE = bytes(PAGE_SIZE)
_ZERO_PAGE_SUM = sum_of(_ZERO_PAGE)


class PageState(IntEnum):
    """The state of a full page since the opening."""

    UNKNOWN = 0
    """Not read yet."""
    GOOD = 1
    UNSUMMED = 2
    BAD = 4
    REMOTE = 8
    """The file has given it up, and it is not in the cache."""


_GOOD = int(PageState.GOOD)


class ScrubResult(IntEnum):
    """The result of scrubbing a page."""

    GOOD = 0
    UNSUMMED = 1
    HEALED = 2
    """The disk was wrong, and the page was rewritten from memory."""
    BAD = 3


@dataclass(frozen=True, slots=True)
class BadPage:
    """A page that is not served."""

    page_number: int
    first_number: int
    entries_end: int
    """The number after its last entry."""
    found: str
    expected: str

    def error(self, path: Path) -> PageDamaged:
        """Return the error for its readers."""
        return PageDamaged(
            *(path, self.page_number, self.first_number, self.entries_end, self.found, self.expected)
        )


class _ThisThread(threading.local):
    waits = True
    """It may wait for the disk; otherwise `require` raises PageUnchecked."""
    not_local: PageNotLocal | None = None
    """A page that could not be fetched for it just now."""
    fetches = True
    """It may wait for an archive; otherwise `require` raises PageUnchecked."""
    proves = False
    """It is proving a page, and so reads other pages unchecked."""


this_thread = _ThisThread()


@contextlib.contextmanager
def without_fetching() -> Iterator[None]:
    """Have this thread raise PageUnchecked where it would wait for an archive."""
    before, this_thread.fetches = this_thread.fetches, False
    try:
        yield
    finally:
        this_thread.fetches = before


def stored_sums(bookmarks: BookmarkIndex) -> dict[bytes, bytes]:
    """Return the stored keys and sums; none if they are invalid or unreadable."""
    try:
        return bookmarks.stored_notes(SUM_KEY) if bookmarks.sums_hold else {}
    except BookmarksUnavailable:
        return {}


def sum_in(notes: Notes, page_number: int) -> int | None:
    """Return the sum of a page; None without one."""
    value = notes.get(SUM_KEY + _U64.pack(page_number))
    return _U32.unpack(value)[0] if value is not None and len(value) == _U32.size else None


def page_fits(sums: Mapping[bytes, bytes], page_number: int, page: bytes) -> bool | None:
    """Return whether the bytes of a full page fit its sum; None without a sum."""
    crc = sums.get(SUM_KEY + _U64.pack(page_number))
    return None if crc is None else _U32.pack(sum_of(page)) == crc


def fits(sums: Mapping[bytes, bytes], page_number: int, disk: Disk) -> bool | None:
    """Return the same for the file's page."""
    return page_fits(sums, page_number, disk.pread(PAGE_SIZE, page_start(page_number)))


def kept_sums(
    bookmarks: BookmarkIndex, disk: Disk, full_count: int, patch: Patch | None = None
) -> dict[bytes, bytes]:
    """Return the sums to keep when an index is made anew.

    The index may belong to another stream, or to this one, if the bytes rotted that identify it. If the last
    full page with a sum fits it, so do all sums before it.

    Args:
        patch: an update that was just finished; its page's sum is outdated.
    """
    sums = stored_sums(bookmarks)
    if patch is not None:
        sums.pop(SUM_KEY + _U64.pack(page_number_of(patch.offset)), None)
    kept = {key: crc for key, crc in sums.items() if key < SUM_KEY + _U64.pack(full_count)}
    last = _U64.unpack(max(kept)[len(SUM_KEY) :])[0] if kept else 0
    return kept if fits(kept, last, disk) else {}


class RunningSum:
    """The sum of the page being filled, made from the bytes as they are written. One thread."""

    def __init__(self) -> None:
        self._end = _NO_PLACE
        """The offset up to which the sum goes; _NO_PLACE: it begins with the next page."""
        self._sum: int | None = None
        self._full: dict[int, int | None] = {}

    def begin(self, data: bytes, end: int) -> None:
        """Begin with the bytes that the page already holds, up to offset `end`."""
        self._end, self._sum = end, sum_of(data)

    def stop(self) -> None:
        """Stop: later writes are not reported."""
        if self._end != _NO_PLACE:
            self._end = _NO_PLACE
            self._full.clear()

    def extend(self, buffer: bytearray, offset: int) -> None:
        """Add bytes written at an offset, behind those before."""
        if offset != self._end:
            self._sum = None
        position, size = 0, len(buffer)
        with memoryview(buffer) as view:
            while position < size:
                page_number = page_number_of(offset + position)
                if offset + position == page_start(page_number):
                    self._sum = 0
                stop = min(size, page_end(page_number) - offset)
                if self._sum is not None:  # the library accepts only bytes
                    self._sum = google_crc32c.extend(self._sum, bytes(view[position:stop]))
                if offset + stop == page_end(page_number):
                    self._full[page_number] = self._sum
                position = stop
        self._end = offset + size

    def take(self, page_number: int) -> int | None:
        """Return the sum of a full page; None if some of it was not reported."""
        return self._full.pop(page_number, None)


class SummedFile(Protocol):
    """The part of `StreamFile` that sums need."""

    path: Path
    disk: Disk
    changes: Changes
    index: PageIndex
    remote: RemotePages


class PageSums:
    """The sums of one stream file, and the state of its full pages.

    Any thread may call `require`. State changes hold `lock`.
    """

    def __init__(self, file: SummedFile) -> None:
        self.bad: dict[int, BadPage] = {}
        self.prover: Callable[[int], object] | None = None
        """Proves a page without a sum, then calls `adopt` or `found_fault`; see `prove_with`."""
        self.adopts = True
        """True if sound entries earn a page its sum, without a prover."""
        self.on_change: Callable[[], None] = lambda: None
        """Called, in any thread, when `bad` has changed."""
        self.lock = threading.RLock()
        """Taken before `Changes.lock` where both are needed."""
        self._file = file
        self._notes: Notes | None = None
        self._not_proved: dict[int, str] = {}
        """The faults of pages of the archive that were just read, by page."""
        self._states = bytearray()
        self._readable = PageState.GOOD | PageState.UNSUMMED

    def prove_with(self, prover: Callable[[int], object]) -> None:
        """From now on, have pages without a sum proven before they are read."""
        self.prover = prover
        self._readable = PageState.GOOD

    def open(self, notes: Notes, full_count: int) -> None:
        """Begin to check pages of the open stream."""
        self._states = bytearray(full_count)
        self._notes = notes
        self.release(min(1, full_count), min(self._file.remote.end, full_count))
        self._file.remote.on_drop = self._dropped

    # --- for readers --------------------------------------------------------------------------------------

    @property
    def full_count(self) -> int:
        """The number of full pages."""
        return len(self._states)

    def state(self, page_number: int) -> PageState:
        """Return the state of a page; the one being filled is good."""
        try:
            return PageState(self._states[page_number])
        except IndexError:
            return PageState.GOOD

    def require(self, page_number: int) -> None:
        """Return when a page may be read; check it at the first call.

        Raises:
            PageDamaged: it does not fit its sum.
            PageNotLocal: the archive does not give it.
            PageUnchecked: this thread does not wait for a disk, or an archive.
            OSError: the disk cannot be read.
        """
        try:
            if self._states[page_number] & self._readable:
                return
        except IndexError:  # the page being filled, or an opening
            if not self._file.remote.holds(page_number):
                return
        if self._file.remote.holds(page_number):
            not_local = this_thread.not_local
            if not_local is not None and not_local.page_number == page_number:
                raise not_local
            if not this_thread.waits or not (this_thread.fetches or self._file.remote.is_cached(page_number)):
                raise PageUnchecked(page_number)
            self._check_remote(page_number)
            return
        bad = self.bad.get(page_number)
        if bad is not None:
            raise bad.error(self._file.path)
        if this_thread.proves:
            return
        if not this_thread.waits:
            raise PageUnchecked(page_number)
        self.check(page_number)

    def check(self, page_number: int) -> None:
        """Read a full page and compare its sum; errors as `require`."""
        if self._file.remote.holds(page_number):
            self._check_remote(page_number)
            return
        if self._notes is None or page_number >= len(self._states):
            return
        seen = self._file.changes.count
        data, expected = self._read_or_note(page_number), self._stored(page_number)
        if data is None:
            pass
        elif expected is None:
            self._meet_unsummed(page_number, data, seen)
        elif sum_of(data) == expected:
            self._set(page_number, PageState.GOOD)
        else:
            self._look_again(page_number)
        bad = self.bad.get(page_number)
        if bad is not None:
            raise bad.error(self._file.path)

    def _check_remote(self, page_number: int) -> None:
        """Fetch a page, and compare its digest; without one, have its blocks proved.

        Raises:
            PageNotLocal: nobody has it.
        """
        remote = self._file.remote
        for _ in range(_FETCHES_MAX):
            remote.fetch(page_number)
            if this_thread.proves:
                return
            expected = remote.digest(page_number)
            if expected is None:
                if self.prover is None:  # an opening
                    return
                self._prove_remote(page_number)
                expected = remote.digest(page_number)
            with remote.lock:
                found = remote.cached_digest(page_number)
                if expected is not None and found == expected:
                    if page_number < len(self._states):
                        self._states[page_number] = _GOOD
                    return
                if expected is not None:
                    remote.drop(page_number)
        raise remote.error(page_number, "other bytes than it has, or more than the cache keeps")

    def _prove_remote(self, page_number: int) -> None:
        """Have the blocks on a page proved.

        Raises:
            PageNotLocal: they are not those that were proved.
        """
        assert self.prover is not None
        self._not_proved.pop(page_number, None)
        self.prover(page_number)
        words = self._not_proved.pop(page_number, None)
        if words is not None:
            self._file.remote.drop(page_number)
            raise self._file.remote.error(page_number, words)

    def release(self, begin: int, end: int) -> None:
        """Note that pages are given up, with `lock` held: readers fetch them from now on."""
        self._states[begin:end] = bytes([PageState.REMOTE]) * (end - begin)
        for page_number in [page for page in self.bad if begin <= page < end]:
            del self.bad[page_number]

    def _dropped(self, page_number: int) -> None:
        """Note that a page has left the cache. States of given up pages change under the cache's lock."""
        if page_number < len(self._states):
            self._states[page_number] = PageState.REMOTE

    def _read_or_note(self, page_number: int) -> bytes | None:
        """Read a page; a lost disk sector makes it bad, and the result None."""
        try:
            return self._read(page_number)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            with self.lock:
                if page_number < len(self._states):
                    self._note_bad(page_number, os.strerror(errno.EIO), "a page that the disk can read")
            return None

    def _read_disk(self, page_number: int) -> bytes:
        try:
            return read_past_cache(self._file.disk.fileno(), PAGE_SIZE, page_start(page_number))
        except OSError as error:
            _logger.debug("%s: data page %d: %s", self._file.path, page_number, error)
            return b""

    def _read(self, page_number: int) -> bytes:
        """Read a page as readers see it during an update."""
        return self._file.changes.read(self._file.disk, PAGE_SIZE, page_start(page_number))

    def _stored(self, page_number: int) -> int | None:
        return None if self._notes is None else sum_in(self._notes, page_number)

    def has_sum(self, page_number: int) -> bool:
        """Return whether a page has a sum; a given up one: a digest."""
        remote = self._file.remote
        if remote.holds(page_number):
            return remote.digest(page_number) is not None
        return self._stored(page_number) is not None

    def _look_again(self, page_number: int) -> None:
        """Check once more a page that did not fit, under the lock and against the disk."""
        with self.lock:
            expected = self._stored(page_number)
            if expected is None or page_number >= len(self._states):
                return  # it was truncated
            found = sum_of(self._read(page_number))
            if found != expected and sum_of(self._read_disk(page_number)) == expected:
                drop_cached(self._file.disk.fileno(), PAGE_SIZE, page_start(page_number))
                found = sum_of(self._read(page_number))
                text = "%s: data page %d was wrong in memory and right on the disk: is the memory sound?"
                _logger.error(text, self._file.path, page_number)
            if found == expected:
                self._set(page_number, PageState.GOOD)
            else:
                self._note_bad(page_number, f"CRC32C {found:08x}", f"{expected:08x}, as when it was written")

    def _meet_unsummed(self, page_number: int, data: bytes, seen: int) -> None:
        """Check a page without a sum: it gets one if proven or, without a prover, if its entries are sound.

        Args:
            seen: how many changes the file had when `data` was read; after further changes the check waits.
        """
        if self.prover is not None:
            self.prover(page_number)
            with self.lock:
                if page_number not in self.bad:  # proven, or unprovable, as a page beside it is bad
                    self._set(page_number, PageState.GOOD)
            return
        if not self.adopts:
            self._set(page_number, PageState.UNSUMMED)
            return
        with self.lock:
            if page_number >= len(self._states) or self._file.changes.count != seen:
                return
            fault = self.structure_fault(page_number, data)
            if fault is None:
                self._put(page_number, sum_of(data))
                self._set(page_number, PageState.GOOD)
            else:
                self._note_bad(page_number, fault.found, fault.expected)

    def structure_fault(self, page_number: int, data: bytes) -> PageFault | None:
        """Return why these bytes cannot be that full page, or None."""
        first_number, entries_end = self.entry_range(page_number)
        try:
            walk = walk_page(data, first_number)
        except PageFault as fault:
            return fault
        if walk.entries_end != entries_end:
            found, expected = f"entries up to {walk.entries_end - 1}", f"up to {entries_end - 1}"
            return PageFault(walk.entries_end, walk.data_end, found, expected)
        return None

    def first_number(self, page_number: int) -> int:
        """Return the number of a used page's first entry."""
        return self._file.index.first_numbers[page_number]

    def entry_range(self, page_number: int) -> tuple[int, int]:
        """Return a full page's first entry number, and the number after its last."""
        first_numbers = self._file.index.first_numbers
        return first_numbers[page_number], first_numbers[page_number + 1]

    def found_fault(self, page_number: int, fault: PageFault) -> None:
        """Mark a page as bad."""
        with self.lock:
            if self._notes is not None and page_number < len(self._states):
                self._note_bad(page_number, fault.found, fault.expected)

    def _note_bad(self, page_number: int, found: str, expected: str) -> None:
        if page_number in self.bad:
            return
        if self._file.remote.holds(page_number):  # not a page of this disk, which a peer could heal
            self._not_proved[page_number] = f"{found}, not {expected}"
            return
        bad = self.bad[page_number] = BadPage(
            page_number, *self.entry_range(page_number), found=found, expected=expected
        )
        self._set(page_number, PageState.BAD)
        _logger.error("%s; it is not served", bad.error(self._file.path))
        self.on_change()

    def _set(self, page_number: int, state: PageState) -> None:
        with self.lock:
            if page_number < len(self._states):
                self._states[page_number] = state

    def _put(self, page_number: int, crc: int | None) -> None:
        if self._notes is not None:
            self._notes.put(SUM_KEY + _U64.pack(page_number), None if crc is None else _U32.pack(crc))

    def adopt(self, page_number: int, data: bytes) -> None:
        """Give a page without a sum the sum of these proven bytes."""
        with self.lock:
            if self._file.remote.holds(page_number) and self._notes is not None:
                self._notes.put_all(self._file.remote.digest_note(page_number, data))
            elif page_number < len(self._states) and not self.has_sum(page_number):
                self._put(page_number, sum_of(data))
                self._set(page_number, PageState.GOOD)

    # --- for the writer -----------------------------------------------------------------------------------

    def note_full(self, page_number: int, crc: int | None) -> None:
        """Store the sum of a page that is now full; `crc` None computes it from the file."""
        if self._notes is None:
            return
        if crc is None:
            crc = sum_of(self._file.disk.pread(PAGE_SIZE, page_start(page_number)))
        with self.lock:
            self._put(page_number, crc)
            self._states += bytes(max(0, page_number + 1 - len(self._states)))
            self._states[page_number] = _GOOD

    def cut(self, full_count: int) -> None:
        """Forget all but the first full pages."""
        with self.lock:
            for page_number in range(full_count, len(self._states)):
                self._put(page_number, None)
                self.bad.pop(page_number, None)
            del self._states[full_count:]
        self.on_change()

    def sum_after(self, patch: Patch, before: bytes) -> int | None:
        """Return the sum of a page after a patch on it; None for a page without a sum.

        The rest of the page is not read, so rot there stays detectable. `before` is what the patch replaces.
        """
        page_number = page_number_of(patch.offset)
        crc = self._stored(page_number) if page_number < len(self._states) else None
        if crc is None:
            return None
        position = patch.offset - page_start(page_number)
        size = len(before)
        difference = (int.from_bytes(before, "big") ^ int.from_bytes(patch.data, "big")).to_bytes(size, "big")
        changed = _ZERO_PAGE[:position] + difference + _ZERO_PAGE[position + size :]
        # CRC32C is linear: for a, b and c of one length, the sum of a ^ b ^ c is the three sums, ^.
        return crc ^ sum_of(changed) ^ _ZERO_PAGE_SUM

    def put_sum(self, page_number: int, crc: int | None) -> None:
        """Replace the sum of a page, or delete it (None); hold `lock` until readers see the new bytes."""
        self._put(page_number, crc)

    # --- scrubbing and healing ----------------------------------------------------------------------------

    def scrub(self, page_number: int) -> ScrubResult:
        """Check a full page on the disk, past the page cache.

        Raises:
            OSError: also if the disk refuses the write that would heal it.
        """
        if self._file.remote.holds(page_number):
            return ScrubResult.GOOD  # the archive's bytes are checked when they are fetched
        expected = self._stored(page_number)
        if page_number in self.bad:
            return ScrubResult.BAD
        if expected is None:
            return ScrubResult.UNSUMMED
        # Without direct reads, this would drop the cached copy, which may be the only one.
        is_lost = not takes_direct_writes(self._file.disk.fileno())
        kept = self._read_or_note(page_number) if is_lost else None
        found = sum_of(self._read_disk(page_number))
        if found == expected:
            return ScrubResult.GOOD
        with self.lock:
            if page_number >= len(self._states) or self._file.changes.patch is not None:
                return ScrubResult.GOOD  # truncated, or being updated: check it next time
            expected = self._stored(page_number)
            if expected is None or sum_of(self._read_disk(page_number)) == expected:
                return ScrubResult.GOOD
            data = self._read_or_note(page_number)
            if data is None:
                return ScrubResult.BAD
            if kept is not None and sum_of(kept) == expected:
                data = kept
            if sum_of(data) == expected:
                text = "%s: data page %d was wrong on the disk and right in memory: it is written again"
                _logger.error(text, self._file.path, page_number)
                self._write(page_number, data)
                return ScrubResult.HEALED
            self._note_bad(page_number, f"CRC32C {found:08x}", f"{expected:08x}, as when it was written")
            return ScrubResult.BAD

    def confirm(self, page_number: int, crc: int) -> None:
        """Compare the CRC32C of bytes that were read from a page with its sum; look again if they differ.

        Raises:
            PageDamaged: the page does not fit.
        """
        expected = self._stored(page_number)
        if expected not in (None, crc):
            self._look_again(page_number)
            bad = self.bad.get(page_number)
            found = f"CRC32C {crc:08x}"
            raise (
                bad or BadPage(page_number, *self.entry_range(page_number), found, f"{expected:08x}")
            ).error(self._file.path)

    def recheck(self, page_number: int) -> bool:
        """Check a bad page again; return whether it is good now."""
        with self.lock:
            expected = self._stored(page_number)
            if page_number not in self.bad or expected is None:
                return page_number not in self.bad
            try:
                drop_cached(self._file.disk.fileno(), PAGE_SIZE, page_start(page_number))
                if sum_of(self._read(page_number)) != expected:
                    return False
            except OSError:
                return False
            self._now_good(page_number)
        self.on_change()
        return True

    def _now_good(self, page_number: int) -> None:
        del self.bad[page_number]
        self._states[page_number] = _GOOD

    def heal(self, page_number: int, data: bytes) -> None:
        """Rewrite a bad page past the page cache.

        Args:
            data: the whole page. It must fit the page's sum; without a sum, it must hold as many entries, and
                the caller has proven them.

        Raises:
            PageDamaged: these bytes are not the page; nothing was written.
            OSError: the page stays bad.
        """
        with self.lock:
            bad = self.bad.get(page_number)
            if bad is None:
                return
            expected = self._stored(page_number)
            found = sum_of(data)
            fault = self.structure_fault(page_number, data) if len(data) == PAGE_SIZE else None
            if len(data) != PAGE_SIZE or fault is not None or expected not in (None, found):
                what = f"{len(data)} bytes" if fault is None else fault.found
                raise BadPage(
                    *(page_number, bad.first_number, bad.entries_end),
                    found=f"{what}, CRC32C {found:08x}",
                    expected=bad.expected if fault is None else fault.expected,
                ).error(self._file.path)
            self._write(page_number, data)
            if expected is None:
                self._put(page_number, found)
            self._now_good(page_number)
        self.on_change()

    def _write(self, page_number: int, data: bytes) -> None:
        """Write a page and read it back; OSError if the disk refuses or holds other bytes."""
        offset, fd = page_start(page_number), self._file.disk.fileno()
        write_past_cache(fd, data, offset)
        if read_past_cache(fd, PAGE_SIZE, offset) != data:
            raise OSError(errno.EIO, f"data page {page_number} reads back otherwise than it was written")
