"""Writing the stream file: the numbered steps of a commit, growth, and repair after a failure.

`COMMIT_STEPS` says what a crash just after each step leaves behind. A commit is begun (steps 0 to 2) and
finished. If the next one begins first, step 4 of the first and step 2 of the second are one flush.

Invariants
  - Nothing of an uncommitted operation is below the `total_length` on disk.
  - Between commits, bytes past `total_length` and past a begun commit are zero, or `_damage` says otherwise.
  - A failed flush is never trusted again: before any other flush, `Disk.rewrite` writes past the page cache:
    the header, the entries from the block of the last byte surely on disk, and zeros behind them. No page
    behind the end stays in the cache.

Source: datastream/README.md, "The steps of a commit"; docs/spec/stream-file.md section 1.
"""

from __future__ import annotations

import errno
import logging
import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NoReturn

from sluice.datastream.errors import CommitFailed
from sluice.datastream.file.disk import Disk
from sluice.datastream.file.operation import OperationGroup, WrittenGroup
from sluice.datastream.file.page_index import PageTable
from sluice.datastream.file.page_sums import RunningSum
from sluice.datastream.file.streamfile import StreamFile
from sluice.datastream.layout import (
    HEADER_OFFSET,
    HEADER_PAGE_SIZE,
    HEADER_SIZE,
    PAGE_SIZE,
    Committed,
    file_size_of,
    page_end,
    page_number_of,
    page_start,
    pages_used,
)
from sluice.datastream.limits import COMPARED_AT_OPEN_BYTES, ROOM_BYTES, ROOM_OPERATION_BYTES_MAX

__all__ = ["COMMIT_STEPS", "Appender", "CommitStep", "rewrite_lost"]

_logger = logging.getLogger(__name__)
_TOTALS = struct.Struct(">QQ")
_pack_header = struct.Struct(f">{HEADER_SIZE - _TOTALS.size}s{_TOTALS.format[1:]}").pack
_pack_totals = _TOTALS.pack
_BLOCK_SIZE = 4096
_COPY_SIZE = PAGE_SIZE


class CommitStep(Enum):
    """The steps of a commit, in order."""

    REPAIR = "0a repair"
    GROW = "0b grow"
    ENTRIES = "1 entries"
    FLUSH_ENTRIES = "2 flush"
    HEADER = "3 header"
    FLUSH_HEADER = "4 flush"
    PUBLISH = "5 publish"
    BOOKMARKS = "6 bookmarks"


# Every commit uses these, and members of a class are slower to find.
_REPAIR, _ENTRIES, _HEADER = CommitStep.REPAIR, CommitStep.ENTRIES, CommitStep.HEADER

COMMIT_STEPS: dict[CommitStep, tuple[str, str]] = {
    CommitStep.REPAIR: (
        "Put right what an earlier failed commit left; write pending bookmarks if the DB failed",
        "the old stream",
    ),
    CommitStep.GROW: ("`ftruncate`, when the file is full", "the old stream in a longer file"),
    CommitStep.ENTRIES: (
        "`pwrite` all entries, padding included, with zeros for room; unflushed, copy them to a mapped page",
        "the old stream; bytes past `total_length`, which opening zeroes",
    ),
    CommitStep.FLUSH_ENTRIES: ("`fdatasync`", "the same; the entries are on disk"),
    CommitStep.HEADER: (
        "One `pwrite` of the 38-byte header",
        "the old stream or the new one, never a mixture: the commit point",
    ),
    CommitStep.FLUSH_HEADER: (
        "`fdatasync`",
        "the new stream, index behind: opening adds its bookmarks",
    ),
    CommitStep.PUBLISH: (
        "Swap the committed view, its bookmarks with it; from here on it stands, whatever happens",
        "the same",
    ),
    CommitStep.BOOKMARKS: (
        "One LevelDB batch: the bookmarks and how many entries are covered; wake readers, return",
        "the new stream",
    ),
}
"""step -> (what is done, what opening finds when the machine stops just after it)."""


@dataclass(slots=True)
class _Damage:
    """The leftovers of a failed commit on disk."""

    dirty_end: int
    """Bytes from `total_length` to this offset may not be zero."""
    header: bool
    """The header on disk may be the failed commit's."""
    in_doubt: bool
    """A flush failed: writes since the last good one may not be on disk."""


class Appender:
    """Commits operation groups to a stream file; used by one thread at a time."""

    def __init__(self, file: StreamFile, growth_pages: int) -> None:
        self._file = file
        self._disk = file.disk
        self._growth_pages = growth_pages
        self._size = file.disk.size()
        self._flushed = file.totals
        self._damage: _Damage | None = None
        self.begun: tuple[int, int] | None = None
        self._room_end = 0
        """Blocks up to this offset were written before."""
        self._header_prefix = file.header_bytes(file.committed)[: -_TOTALS.size]
        self.running_sum = RunningSum()
        """The sum of the page being filled."""
        if file.totals[0] > HEADER_PAGE_SIZE:
            start = page_start(file.full_count)
            self.running_sum.begin(self._disk.pread(file.totals[0] - start, start), file.totals[0])
        self.on_failed_flush: Callable[[], None] = lambda: None
        """Called after each failed flush: other files on that disk are in doubt."""

    def begin(self, group: OperationGroup, *, flush: bool = True) -> tuple[int, int]:
        """Do steps 0 to 2 of a commit; the same flush does steps 3 and 4 of the commit begun before.

        Args:
            flush: False omits the flush, here and in `finish`; a later flush makes the commit durable.

        Returns:
            The new totals, `begun` until finished. The caller publishes the commit begun before.

        Raises:
            CommitFailed: the commit begun before can still be finished, unless the flush failed: then both
                are dropped.
        """
        buffer, before = group.buffer, self.begun
        offset, _ = group.base
        total_length, _ = new = offset + len(buffer), group.number_next
        step = _REPAIR
        try:
            if self._damage is not None:
                self._repair(self._damage)
            if total_length > self._size:
                step = CommitStep.GROW  # then: the old stream in a longer file
                self._grow(total_length)
            if buffer:
                step = _ENTRIES  # then: garbage past the end, which opening zeroes
                if flush:
                    self._put_entries(buffer, offset)
                else:
                    self._disk.append(buffer, offset)  # `append_window.py`
                    self.running_sum.stop()  # a page's sum is then made once it is full: less for each commit
            if before is not None and before != self._file.totals:
                step = _HEADER  # whose entries are on disk: the stream before it or with it
                self._disk.pwrite(_pack_header(self._header_prefix, *before), HEADER_OFFSET)
            if flush and self._flushed != new:
                step = CommitStep.FLUSH_ENTRIES if before is None else CommitStep.FLUSH_HEADER
                self._disk.fdatasync()  # then: the same, on disk
        except BaseException as error:  # also Ctrl-C: what is on disk must be known
            if step not in (_REPAIR, CommitStep.GROW, _ENTRIES):
                self.begun = None
            self._fail(step, new, error)
        if before is not None:
            self._flushed = before
        self.begun = new
        return new

    def finish(self, *, flush: bool = True) -> None:
        """Do steps 3 and 4 of the `begun` commit; the caller then publishes it.

        Raises:
            CommitFailed: the commit is dropped.
        """
        assert self.begun is not None
        new, step = self.begun, _HEADER
        try:
            if new != self._file.totals:
                # Then: the old stream or the new one.
                self._disk.pwrite(_pack_header(self._header_prefix, *new), HEADER_OFFSET)
            if flush and self._flushed != new:
                step = CommitStep.FLUSH_HEADER  # then: the new stream, its bookmarks not yet indexed
                self._disk.fdatasync()
        except BaseException as error:
            self.begun = None
            self._fail(step, new, error)
        if flush:
            self._flushed = new
        self.begun = None

    def drop_begun(self) -> None:
        """Drop the `begun` commit: zero its entries on disk, or remember to."""
        if self.begun is not None:
            new, self.begun = self.begun, None
            self._restore(_ENTRIES, new)

    def _put_entries(self, buffer: bytearray, offset: int) -> None:
        self._disk.pwrite(buffer, offset)
        self.running_sum.extend(buffer, offset)
        end = offset + len(buffer)
        if end > self._room_end and len(buffer) <= ROOM_OPERATION_BYTES_MAX:
            self._make_room(end)

    def _make_room(self, end: int) -> None:
        """Make flushes of the bytes from `end` on faster; see `Disk.make_room`.

        Pages beyond the one in use stay unwritten. A refusal does no harm; the next page tries again.
        """
        page_in_use_end = page_end(page_number_of(end - 1))
        room_end = min((end + ROOM_BYTES) // _BLOCK_SIZE * _BLOCK_SIZE, page_in_use_end)
        if room_end <= end:
            return
        self._room_end = page_in_use_end
        try:
            self._disk.make_room(room_end - end, end)
        except OSError as error:
            _logger.debug("%s: no room made at offset %d: %s", self._file.path, end, error)
        else:
            self._room_end = room_end

    def roll_back(self, new: tuple[int, int]) -> None:
        """Restore the committed stream on disk, after the header of `new` was written and not published.

        This also drops a commit begun behind it. The next commit repairs what the disk refuses.
        """
        end = max(new, self.begun or new)
        self.begun = None
        self._restore(CommitStep.FLUSH_HEADER, end)

    def shorten(self, new: Committed) -> None:
        """Make `new`, an earlier end of the stream, the committed end on disk; the caller then publishes it.

        Raises:
            CommitFailed: the disk refused a step; the stream is unchanged.
        """
        step = CommitStep.REPAIR
        try:
            self.flush()
            step = CommitStep.HEADER
            self._disk.pwrite(self._header_prefix + _pack_totals(*new), HEADER_OFFSET)
            step = CommitStep.FLUSH_HEADER
            self._disk.fdatasync()
        except BaseException as error:
            self._fail(step, self._file.committed, error)
        self._flushed = new

    @property
    def flushed(self) -> tuple[int, int]:
        """The totals on disk; after `shorten`, its argument."""
        return self._flushed

    def note_dropped(self, dropped_end: int) -> None:
        """Remember that a truncation dropped the bytes from `total_length` to `dropped_end`."""
        self._damage = _Damage(dirty_end=dropped_end, header=False, in_doubt=False)

    def clear_dropped(self) -> None:
        """Zero what a truncation dropped; if the disk refuses, the next commit does it."""
        if self._damage is not None:
            self._try_to_repair(self._damage)

    def flush_found(self, has_sum: Callable[[int], bool] = lambda page_number: False) -> list[int]:
        """Put on disk what opening has found committed, before anybody hears of it.

        The last process may have died between a commit's header and its flush, or one of its flushes may have
        failed: the cache then holds bytes that may never reach the disk. So this drops the pages behind the
        end, rewrites header and last block past the cache, and compares the last COMPARED_AT_OPEN_BYTES
        before it with the disk.

        Args:
            has_sum: returns whether a full page has a checksum, which then decides.

        Returns:
            The pages with a checksum whose bytes differ in memory and on the disk, or cannot be read there:
                for `PageSums.scrub`.

        Raises:
            OSError: the disk refused, or holds other bytes.
        """
        disk, total_length = self._disk, self._file.committed.total_length
        if disk.read_past_cache(_BLOCK_SIZE, 0) is None:
            disk.pwrite(self._header_prefix + _pack_totals(*self._file.committed), HEADER_OFFSET)
            disk.fdatasync()
            return []
        last_block = total_length - total_length % _BLOCK_SIZE
        offset = max(HEADER_PAGE_SIZE, last_block - COMPARED_AT_OPEN_BYTES)
        differing = []
        while offset < last_block:
            page_number = page_number_of(offset)
            end = min(page_end(page_number), last_block)
            try:
                rewrite_lost(disk, end - offset, offset)
            except OSError:
                if page_number >= self._file.full_count or not has_sum(page_number):
                    raise
                differing.append(page_number)
            offset = end
        self._rewrite(last_block, total_length)
        self._rewrite_header()
        return differing

    def flush(self) -> None:
        """Repair what a failed commit left, and flush everything committed.

        Raises:
            OSError: unflushed bytes are in doubt until this succeeds.
        """
        self.put_right()
        if self._flushed != self._file.totals:
            try:
                self._disk.fdatasync()
            except OSError:
                self.doubt()
                raise
            self._flushed = self._file.totals

    def put_right(self) -> None:
        """Repair what a failed commit left.

        Raises:
            OSError: the next commit tries again.
        """
        if self._damage is not None:
            self._repair(self._damage)

    def doubt(self) -> None:
        """Note that a flush of the file failed."""
        self._damage = _Damage(self._file.committed.total_length, header=False, in_doubt=True)
        self.on_failed_flush()

    def adopt(self, group: OperationGroup | WrittenGroup) -> None:
        """Add a group's pages and checkpoints to the page index, once its header is written."""
        index = self._file.index
        if not group.page_starts:
            for checkpoint in group.checkpoints:
                index.add_checkpoint(checkpoint)
            return
        checkpoints = iter(group.checkpoints)
        offset = next(checkpoints, None)
        for page_number, first_number in group.page_starts:
            while offset is not None and offset < page_start(page_number):
                index.add_checkpoint(offset)
                offset = next(checkpoints, None)
            index.add_page(page_number, first_number)
            index.fill_page(page_number)
        while offset is not None:
            index.add_checkpoint(offset)
            offset = next(checkpoints, None)
        for page_number, data_end in group.page_ends:
            index.set_data_end(page_number, data_end)
            self._store_table(page_number, data_end)
        for page_number, _ in group.page_starts:
            if page_number:
                self._file.sums.note_full(page_number - 1, self.running_sum.take(page_number - 1))

    def _store_table(self, page_number: int, data_end: int) -> None:
        index = self._file.index
        table = index.table(page_number)
        if table is not None:
            first_number, entries_end = index.first_numbers[page_number : page_number + 2]
            position = data_end - page_start(page_number)
            self._file.tables.put_table(page_number, PageTable(first_number, entries_end, position, table))

    def trim_tail(self) -> None:
        """Zero everything past `total_length`."""
        self._zero(self._file.committed.total_length, self._size)

    def _grow(self, total_length: int) -> None:
        grown = self._size + self._growth_pages * PAGE_SIZE
        size = max(file_size_of(pages_used(total_length)), grown)
        self._disk.truncate(size)
        self._size = size

    def _fail(self, step: CommitStep, new: tuple[int, int], error: BaseException) -> NoReturn:
        self._restore(step, new)
        if isinstance(error, OSError):
            raise CommitFailed(self._file.path, step.value, error) from error
        raise error

    def _restore(self, step: CommitStep, new: tuple[int, int]) -> None:
        before, is_flush = self._damage, step in (CommitStep.FLUSH_ENTRIES, CommitStep.FLUSH_HEADER)
        # Otherwise the next commit of that length would skip its flush.
        self._flushed = min(self._flushed, self._file.totals)
        self._damage = _Damage(
            dirty_end=max(new[0], before.dirty_end if before else 0),
            header=step in (CommitStep.HEADER, CommitStep.FLUSH_HEADER)
            or (before is not None and before.header),
            in_doubt=is_flush or (before is not None and before.in_doubt),
        )
        if is_flush:
            self.on_failed_flush()
        self._try_to_repair(self._damage)

    def _try_to_repair(self, damage: _Damage) -> None:
        try:
            self._repair(damage)
        except OSError as error:
            _logger.warning(
                "%s: cannot put the file right yet: %s; the next commit tries again", self._file.path, error
            )

    def _repair(self, damage: _Damage) -> None:
        committed = self._file.committed
        kept_end = committed.total_length if self.begun is None else self.begun[0]
        if damage.header and not damage.in_doubt:
            # First, and flushed: nobody could open a new header over zeroed entries.
            self._disk.pwrite(self._header_prefix + _pack_totals(*committed), HEADER_OFFSET)
            try:
                self._disk.fdatasync()
            except OSError:
                damage.in_doubt = True
                self.on_failed_flush()
                raise
        if damage.in_doubt:
            self._prove(kept_end)
        else:
            self._zero(kept_end, min(damage.dirty_end, self._size))
        self._damage = None

    def _prove(self, kept_end: int) -> None:
        """Write past the page cache what the file should hold, from the last byte surely on disk.

        The lock keeps healing out, since `Disk.rewrite` restores the cached bytes of neighbouring pages.
        """
        with self._file.sums.lock:
            self._rewrite_header()
            flushed_end = min(self._flushed[0], kept_end)
            self._rewrite(flushed_end - flushed_end % _BLOCK_SIZE, kept_end)
        self._disk.fdatasync()
        self._flushed = self._file.totals

    def _rewrite_header(self) -> None:
        page = bytearray(self._disk.pread(_BLOCK_SIZE, 0))
        page[HEADER_OFFSET : HEADER_OFFSET + HEADER_SIZE] = self._header_prefix + _pack_totals(
            *self._file.committed
        )
        self._disk.rewrite(bytes(page), 0)

    def _rewrite(self, start: int, end: int) -> None:
        """Write the cached bytes from `start` to `end` past the page cache, then zeros; the caller flushes.

        Args:
            start: a multiple of a block's size.
            end: of the kept bytes.
        """
        for offset in range(start, end, _COPY_SIZE):
            data = self._disk.pread(min(_COPY_SIZE, end - offset), offset)
            self._disk.rewrite(data + bytes(-len(data) % _BLOCK_SIZE), offset)
        self._disk.discard(end + -end % _BLOCK_SIZE)
        self._room_end = min(self._room_end, end)

    def _zero(self, start: int, end: int) -> None:
        """Zero the bytes from `start` to `end`, which are past `total_length`.

        Only non-zero blocks are written: zeros in a hole need room on a full disk. Whole pages are cut off
        and added again; each step leaves a whole number of pages.
        """
        rest_end = page_end(page_number_of(start))
        data = self._disk.pread(min(end, rest_end) - start, start)
        position = 0
        while position < len(data):
            block_end = min(len(data), position + _BLOCK_SIZE - (start + position) % _BLOCK_SIZE)
            if data.count(0, position, block_end) != block_end - position:
                self._disk.pwrite(bytes(block_end - position), start + position)
            position = block_end
        if end > rest_end:
            self._disk.truncate(rest_end)
            self._disk.truncate(self._size)
            self._room_end = min(self._room_end, rest_end)


def rewrite_lost(disk: Disk, size: int, offset: int) -> int | None:
    """Write past the page cache those cached bytes that the disk has lost.

    A lost write leaves zeros. Other differences raise, as nothing tells which side is right.

    Args:
        disk: open for writing.
        size, offset: multiples of 4,096.

    Returns:
        The offset of the first lost block, or None.

    Raises:
        OSError: the disk refused, or holds other bytes that are not zeros.
    """
    first = None
    cached, on_disk = disk.pread(size, offset), disk.read_past_cache(size, offset)
    if on_disk is None or cached == on_disk:
        return None
    for at in range(0, size, _BLOCK_SIZE):
        block, found = cached[at : at + _BLOCK_SIZE], on_disk[at : at + _BLOCK_SIZE]
        if block == found:
            continue
        if any(old not in (0, new) for old, new in zip(found, block, strict=True)):
            what = f"the page cache and the disk hold different bytes at offset {offset + at}"
            raise OSError(errno.EIO, what)
        disk.rewrite(block, offset + at)
        first = offset + at if first is None else first
    return first
