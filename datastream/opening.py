"""Opening a stream: check, lock, check again, put right what `RECOVERY` says.

    1  locks on the file itself                   no other program has it open for writing, by whatever name
    2  header facts, page heads, last page        nothing is changed, nothing is made, before these are sound,
                                                  and every page where there is no folder
    3  locks on the bookmark folders              a Go program would lock one of them
       the header again                           one may have been at work until now
    4  update, tail and index, by the table       `recovery.py`; pages are walked before they are indexed
    5  what was found, past the page cache        a process killed in a commit leaves the new stream unflushed;
                                                  where a flush had failed, in doubt

A new stream: the locks first, then the file, which appears whole. For reading only: the file is opened so
that it cannot be written, the locks are shared, and the index is a copy in a temporary folder.

Source: wire.md 1 and 2.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from datastream.appending import Appender
from datastream.bookmarks import BookmarkIndex, OpenDatabase, bookmarks_folder
from datastream.disk import Disk, RealDisk, create_file
from datastream.errors import (
    BookmarksUnavailable,
    EntriesDisagree,
    StreamFileUnavailable,
    StreamInUse,
    UpdateUnfinished,
)
from datastream.file_lock import lock_stream_file, refuse_other_writers
from datastream.file_system import flush_folder
from datastream.fingerprint import is_of_stream
from datastream.header_check import inspect_header
from datastream.layout import HEADER_PAGE_SIZE, StreamHeader, encode_header_page, file_size_of
from datastream.limits import BOOKMARKS_CHECKED_AT_OPEN_MAX, BOOKMARKS_KEPT_AT_OPEN_MAX
from datastream.page_sums import fits, kept_sums, stored_sums
from datastream.recovery import (
    Access,
    Action,
    FileState,
    IndexState,
    TailState,
    UpdateState,
    decide,
    index_state_of,
)
from datastream.streamfile import StreamFile
from datastream.updating import is_kept_for_another, record_for, write_recorded

__all__ = ["OpeningOptions", "open_parts"]

_logger = logging.getLogger(__name__)
_FOREIGN = "%s: the bookmark folder %s is of another stream, or of other entries; the index is made anew"
_PageBookmarks = tuple[list[tuple[bytes, int]], int]
"""The bookmarks of a page, and how many entries are covered with them."""


@dataclass(frozen=True, slots=True)
class OpeningOptions:
    """How to open; see `DataStreamer.open`."""

    new_header: StreamHeader
    """Of a new file; its stream type is what an existing one must have."""
    initial_pages: int
    growth_pages: int
    access: Access = Access.WRITE
    disk: Disk | None = None
    open_database: OpenDatabase | None = None
    go_on: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        """Refuse sizes that cannot be."""
        if self.growth_pages < 1 or self.initial_pages < 0:
            raise ValueError(
                f"pages: got {self.initial_pages} initial, {self.growth_pages} growth, "
                "expected 0 and 1 or more"
            )


def open_parts(path: Path, options: OpeningOptions) -> tuple[StreamFile, BookmarkIndex, Appender]:
    """Open or create a stream; errors as `DataStreamer.open`."""
    read_only = options.access is Access.READ
    with contextlib.ExitStack() as undo:
        try:
            file = None
            disk = options.disk
            if disk is not None:
                undo.callback(disk.close)
            elif read_only or _is_there(path):
                disk = _open_disk(path, options, undo)
            # An empty file is no new stream: ours appear whole, so something has emptied it.
            if disk is not None and (read_only or options.disk is None or disk.size()):
                file = _load_or_doubt(path, disk, options)
            bookmarks = _open_bookmarks(path, options)
            undo.callback(bookmarks.close)
            # The locks are ours. Until now, another opener may have made the file or added to it.
            if disk is None and _is_there(path):
                disk = _open_disk(path, options, undo)
                file = _load_or_doubt(path, disk, options)
            if file is None:
                file = _create(path, disk, options, undo)
            elif inspect_header(path, file.disk, file.stream_type) != file.header(file.committed):
                file = _load_or_doubt(path, file.disk, options)
            appender = _recover(file, bookmarks, options)
            if options.disk is None and not read_only:
                flush_folder(path.parent)  # the names of file and index: whoever made them may not have
        except OSError as error:
            raise StreamFileUnavailable(path, error) from error
        undo.pop_all()
    return file, bookmarks, appender


def _is_there(path: Path) -> bool:
    """Return whether there is a file.

    Raises:
        StreamFileUnavailable: there is a link that leads nowhere or in a circle. The disk that it leads to
            may be away: that is no leave to make a new stream.
    """
    if path.exists():
        return True
    if path.is_symlink():
        what = f"it is a link to {path.readlink()}, and there is no file"
        raise StreamFileUnavailable(path, FileNotFoundError(errno.ENOENT, what))
    return False


def _open_disk(path: Path, options: OpeningOptions, undo: contextlib.ExitStack) -> Disk:
    """Open an existing file, and lock it.

    Raises:
        StreamInUse: another opener has it.
    """
    is_writable = options.access is Access.WRITE
    try:
        if is_writable:
            refuse_other_writers(path)
        disk = RealDisk(path, writable=is_writable)
    except BlockingIOError as error:  # in this moment, another opener asks whether anybody has it open
        raise StreamInUse(path, None) from error
    undo.callback(disk.close)
    lock_stream_file(path, disk.fileno(), shared=not is_writable)
    return disk


def _load_or_doubt(path: Path, disk: Disk, options: OpeningOptions) -> StreamFile:
    """Check a file; a refusal raises, but not yet where an unfinished update may be the reason.

    That the entries disagree is then found again by `_recover`.
    """
    if options.access is Access.WRITE:
        # A header that the disk does not have is one whose flush failed: nobody was told of what it counts.
        disk.refresh(HEADER_PAGE_SIZE, 0)
    file = StreamFile(path, disk, inspect_header(path, disk, options.new_header.stream_type))
    has_folder = bookmarks_folder(path).is_dir()
    try:
        # Without a folder the index will be made from all pages, and a file that is refused gets none.
        file.load(whole=not has_folder and options.access is Access.WRITE, go_on=options.go_on)
    except EntriesDisagree as refusal:
        if not has_folder:
            raise
        file.refusal = refusal
    return file


def _open_bookmarks(path: Path, options: OpeningOptions) -> BookmarkIndex:
    if bookmarks_folder(path) == path:
        raise BookmarksUnavailable(path, "the stream file has the name that its bookmark folder needs")
    if not path.parent.is_dir():
        raise StreamFileUnavailable(path, FileNotFoundError(errno.ENOENT, f"no folder {path.parent}"))
    read_only = options.access is Access.READ
    if options.open_database is None:
        return BookmarkIndex(path, read_only=read_only)
    return BookmarkIndex(path, options.open_database, read_only=read_only)


def _create(path: Path, disk: Disk | None, options: OpeningOptions, undo: contextlib.ExitStack) -> StreamFile:
    """Make a new stream; the locks are held, so nobody else does."""
    page, size = encode_header_page(options.new_header), file_size_of(options.initial_pages)
    if disk is None:
        create_file(path, page, size)
        disk = _open_disk(path, options, undo)
    else:
        disk.truncate(size)
        disk.pwrite(page, 0)
        disk.fdatasync()
    file = StreamFile(path, disk, options.new_header)
    file.load()
    return file


def _recover(file: StreamFile, bookmarks: BookmarkIndex, options: OpeningOptions) -> Appender:
    """Do what `RECOVERY` says about the facts.

    Raises:
        EntriesDisagree: they do, and no unfinished update is the reason.
        UpdateUnfinished: one is, and this opener may not finish it.
    """
    bookmarks.fingerprint_at = file.fingerprint_at
    record = _update_record(bookmarks)
    patch = record_for(record, file.header(file.committed), file.disk)
    update_state = UpdateState.NONE if patch is None else UpdateState.UNFINISHED
    file_state = FileState.CONSISTENT if file.refusal is None else FileState.ENTRIES_DISAGREE
    tail_state = TailState.NOT_ZERO if file.refusal is not None else file.tail_state()
    index_state = _index_state(bookmarks, file)
    if file.refusal is not None and patch is None:
        _load_around_damage(file, bookmarks, index_state, options)
        file_state = FileState.CONSISTENT
        tail_state = file.tail_state()
    appender = Appender(file, options.growth_pages)
    actions = decide(file_state, tail_state, index_state, update_state, options.access)
    covered = bookmarks.covered or 0 if Action.INDEX_MISSING in actions else 0
    to_index = _bookmarks_from(file, covered, options.go_on)
    for action in actions:
        # The index of a new stream is rebuilt from nothing, which is no news.
        is_news = action is not Action.CHECK_PAGES and (
            action is not Action.REBUILD_BOOKMARKS or file.committed.total_entries > 0
        )
        _logger.log(logging.INFO if is_news else logging.DEBUG, "%s: opening: %s", file.path, action.name)
        if action is Action.REFUSE:
            raise (
                file.refusal
                if patch is None and file.refusal is not None
                else UpdateUnfinished(
                    file.path, "one that a crash interrupted", "none, as this opening may not write"
                )
            )
        if action is Action.FINISH_UPDATE:
            assert patch is not None  # else it would not be unfinished
            write_recorded(file.disk, patch)
            appender.running_sum.stop()
            file.load()
        elif action is Action.CHECK_PAGES:
            if not file.is_walked:
                file.tables = bookmarks
                to_index = _check_pages(file, covered, options.go_on)
        elif action is Action.TRIM_TAIL:
            appender.trim_tail()
        else:
            file.tables = bookmarks
            if action is Action.REBUILD_BOOKMARKS:
                if index_state is IndexState.FOREIGN and patch is None:
                    _logger.warning(_FOREIGN, file.path, bookmarks_folder(file.path).name)
                sums = kept_sums(bookmarks, file.disk, file.full_count, patch)
                bookmarks.wipe()
                bookmarks.notes.put_all(sums)
                if patch is None and is_kept_for_another(record):
                    bookmarks.put_update_record(record)
            bookmarks.rebuild(to_index)
    file.tables = bookmarks
    file.sums.open(bookmarks.notes, file.full_count)
    for page_number in file.damaged:
        with contextlib.suppress(EntriesDisagree):  # which is logged, and what its readers are told
            file.sums.check(page_number)
    if options.access is Access.WRITE:
        appender.flush_found()
    return appender


def _load_around_damage(
    file: StreamFile, bookmarks: BookmarkIndex, index_state: IndexState, options: OpeningOptions
) -> None:
    """Learn the pages of a file whose entries disagree because full pages are damaged, if that is all.

    Raises:
        EntriesDisagree: it is not, or no sum tells.
    """
    assert file.refusal is not None
    refusal = file.refusal
    is_ours = index_state in (IndexState.LEVEL, IndexState.BEHIND)
    sums = stored_sums(bookmarks) if is_ours else kept_sums(bookmarks, file.disk, file.full_count)
    if not sums:
        raise refusal
    file.tables = bookmarks
    file.load(go_on=options.go_on, sums=sums)


def _update_record(bookmarks: BookmarkIndex) -> bytes | None:
    try:
        return bookmarks.update_record
    except BookmarksUnavailable:  # the index is found unreadable again, and made anew
        return None


def _index_state(bookmarks: BookmarkIndex, file: StreamFile) -> IndexState:
    header = file.header(file.committed)
    try:
        highest_number = bookmarks.highest_number(BOOKMARKS_CHECKED_AT_OPEN_MAX)
        covered, fingerprint = bookmarks.covered, bookmarks.fingerprint
    except BookmarksUnavailable as error:
        _logger.warning("%s; the index is made anew", error)
        return IndexState.MISSING
    is_foreign = fingerprint is not None and not is_of_stream(fingerprint, header, file.disk.pread)
    if is_foreign:  # unless it is the first page, by which a stream is known, that is damaged
        is_foreign = fits(kept_sums(bookmarks, file.disk, file.full_count), 0, file.disk) is not False
    return index_state_of(covered, highest_number, header.total_entries, is_foreign=is_foreign)


def _check_pages(
    file: StreamFile, covered: int, go_on: Callable[[], None] | None
) -> Iterator[_PageBookmarks]:
    """Walk the pages from entry `covered` on; return what `_bookmarks_from` would yield.

    Pages with more bookmarks than may be kept in memory are then walked once more.

    Raises:
        EntriesDisagree: a page is damaged.
    """
    kept: list[_PageBookmarks] = []
    kept_count, kept_end = 0, covered
    for bookmarks, entries_end in _bookmarks_from(file, covered, go_on):
        if kept_count < BOOKMARKS_KEPT_AT_OPEN_MAX:
            kept.append((bookmarks, entries_end))
            kept_count, kept_end = kept_count + len(bookmarks), entries_end
    return chain(kept, _bookmarks_from(file, kept_end, go_on))


def _bookmarks_from(
    file: StreamFile, covered: int, go_on: Callable[[], None] | None
) -> Iterator[_PageBookmarks]:
    """Walk the pages from entry `covered` on; yield each one's bookmarks and how many entries are covered."""
    if covered == file.committed.total_entries:
        yield [], covered
        return
    for page_number in range(file.index.page_of_entry(covered), file.index.page_count):
        if go_on is not None:
            go_on()
        walk = file.walk(page_number)
        yield [pair for pair in walk.bookmarks if pair[1] >= covered], walk.entries_end
