"""Opening a stream: check it, lock it, check it again, and recover as `RECOVERY` says.

    1  lock the file itself
    2  check header, page heads, last page        nothing is changed or made before these are sound
    3  adopt a Go program's bookmark folder       if there is none of ours
       lock the bookmark folders
       check the header again                     a Go program may have written until now
    4  does anything know more than the header    `evidence.py`; if so, nothing is changed
    5  finish the update, trim the tail           `recovery.py`; pages are walked before they are indexed
    6  flush, and compare with the disk
    7  complete or rebuild the index              it never covers more than the header on disk counts

A new stream takes the locks first; then its file appears whole.

Source: datastream/README.md, "Opening"; docs/spec/stream-file.md sections 1 and 3.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from sluice.datastream.errors import (
    BookmarksUnavailable,
    EntriesDisagree,
    HeaderBehind,
    StreamFileRefused,
    StreamFileUnavailable,
    StreamInUse,
    UpdateUnfinished,
)
from sluice.datastream.file.appending import Appender
from sluice.datastream.file.bookmarks import BookmarkIndex, OpenDatabase, bookmarks_folder, open_leveldb
from sluice.datastream.file.disk import Disk, RealDisk, create_file
from sluice.datastream.file.evidence import Evidence, evidence_of, holds_bookmarks_of
from sluice.datastream.file.file_lock import lock_stream_file, refuse_other_writers
from sluice.datastream.file.file_system import flush_folder
from sluice.datastream.file.fingerprint import is_of_stream
from sluice.datastream.file.folder_lock import has_database, link_folder, other_folders, relative_folders
from sluice.datastream.file.page_sums import ScrubResult, fits, kept_sums, stored_sums, sum_in
from sluice.datastream.file.recovery import (
    Access,
    Action,
    FileState,
    IndexState,
    TailState,
    UpdateState,
    decide,
    index_state_of,
)
from sluice.datastream.file.remote_pages import RemotePages, punch_pages
from sluice.datastream.file.streamfile import StreamFile, inspect_header
from sluice.datastream.file.updating import is_kept_for_another, record_for, write_recorded
from sluice.datastream.layout import (
    HEADER_OFFSET,
    HEADER_PAGE_SIZE,
    Committed,
    StreamHeader,
    encode_header_page,
    file_size_of,
)
from sluice.datastream.limits import STREAM_LIMITS, StreamLimits

__all__ = ["Judge", "OpeningOptions", "open_parts"]

_logger = logging.getLogger(__name__)

_FOREIGN = "%s: the bookmark folder %s is of another stream, or of other entries; the index is made anew"
_TWO_FOLDERS = (
    "%s: its bookmarks are in %s; a Go program that uses %s does not find those added since. For both to use "
    "that one, close the stream, delete %s, and open it again"
)
_INDEX_LOST = (
    "it does not fit the stream, and cannot be made anew from the file, which has given up pages 1 to {}: "
    "begin with an empty folder from the archive, or from another node"
)
_PageBookmarks = tuple[list[tuple[bytes, int]], int]
"""A page's bookmarks, and the number of entries covered with them."""
Judge = Callable[[Evidence], Committed | None]
"""Judges the evidence before any change. It raises to refuse the stream, returns new totals for the header,
or None to leave the decision to header and table.
"""


@dataclass(frozen=True, slots=True)
class OpeningOptions:
    """See `DataStreamer.open`."""

    new_header: StreamHeader
    """The header of a new file; an existing file must have its stream type."""
    initial_pages: int
    growth_pages: int
    access: Access = Access.WRITE
    disk: Disk | None = None
    open_database: OpenDatabase | None = None
    go_on: Callable[[], None] | None = None
    judge: Judge | None = None
    past_damage: bool = False
    limits: StreamLimits = STREAM_LIMITS

    def __post_init__(self) -> None:
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
            # An empty file is no new stream: new files appear whole, so something has emptied this one.
            if disk is not None and (read_only or options.disk is None or disk.size()):
                file = _load_or_doubt(path, disk, options)
            if not read_only and file is not None:
                _adopt_folder(file, options)
            bookmarks = _open_bookmarks(path, options)
            undo.callback(bookmarks.close)
            # Before the locks, another opener may have made the file or added to it.
            if disk is None and _is_there(path):
                disk = _open_disk(path, options, undo)
                file = _load_or_doubt(path, disk, options)
            if file is None:
                file = _create(path, disk, options, undo)
            elif inspect_header(path, file.disk, file.stream_type) != file.header(file.committed):
                file = _load_or_doubt(path, file.disk, options)
            appender = _recover(file, bookmarks, options)
            if options.disk is None and not read_only:
                # Names of file and index that another program made may not be on disk.
                flush_folder(path.parent)
        except OSError as error:
            raise StreamFileUnavailable(path, error) from error
        undo.pop_all()
    return file, bookmarks, appender


def _is_there(path: Path) -> bool:
    """Return whether there is a file.

    Raises:
        StreamFileUnavailable: a broken link, whose disk may not be mounted.
    """
    if path.exists():
        return True
    if path.is_symlink():
        what = f"it is a link to {path.readlink()}, and there is no file"
        raise StreamFileUnavailable(path, FileNotFoundError(errno.ENOENT, what))
    return False


def _open_disk(path: Path, options: OpeningOptions, undo: contextlib.ExitStack) -> Disk:
    is_writable = options.access is Access.WRITE
    try:
        if is_writable:
            refuse_other_writers(path)
        disk = RealDisk(path, writable=is_writable)
    except BlockingIOError as error:  # another opener is asking whether anybody has it open
        raise StreamInUse(path, None) from error
    undo.callback(disk.close)
    lock_stream_file(path, disk.fileno(), shared=not is_writable)
    return disk


def _load_or_doubt(path: Path, disk: Disk, options: OpeningOptions) -> StreamFile:
    """Check a file; EntriesDisagree without a folder.

    With one, an unfinished update or a damaged page may be the reason: `_recover` decides.
    """
    if options.access is Access.WRITE:
        # A header that is not on disk is one whose flush failed: nobody was told of its commit.
        disk.refresh(HEADER_PAGE_SIZE, 0)
    file = StreamFile(path, disk, inspect_header(path, disk, options.new_header.stream_type))
    has_folder = bookmarks_folder(path).is_dir() or bool(_folders_of_go(path))
    try:
        # Without a folder all pages make the index, and a refused file gets no folder.
        file.load(whole=not has_folder and options.access is Access.WRITE, go_on=options.go_on)
    except EntriesDisagree as refusal:
        if not has_folder and (options.judge is None or options.access is Access.WRITE):
            raise
        file.refusal = refusal
    return file


def _folders_of_go(path: Path) -> list[Path]:
    own = os.path.realpath(bookmarks_folder(path))
    folders = (*other_folders(path), *relative_folders(path))
    return [folder for folder in folders if has_database(folder) and os.path.realpath(folder) != own]


def _adopt_folder(file: StreamFile, options: OpeningOptions) -> None:
    """Make our folder a link to that of a Go program, if we have none and it holds this file's bookmarks.

    Our own folder is linked under the name that the fork gives it.

    Raises:
        StreamInUse: a Go program has one of them.
        BookmarksUnavailable: our folder is a broken link.
    """
    own, found = bookmarks_folder(file.path), _folders_of_go(file.path)
    if own.is_symlink() and not own.exists():
        what = f"it is a link to {own.readlink()}, and there is no folder"
        raise BookmarksUnavailable(own, f"{what}; delete the link, and the bookmarks are taken from the file")
    if own.exists():
        for folder in found if has_database(own) else ():
            _logger.warning(_TWO_FOLDERS, file.path, own, folder, own.name)
    else:
        for folder in found:
            with contextlib.suppress(*([StreamInUse] if folder.name == ".db" else [])):
                if _is_folder_of(file, folder, options) and link_folder(own, folder):
                    _logger.info("%s: the bookmarks are in %s, as a Go program left them", file.path, folder)
                    break


def _is_folder_of(file: StreamFile, folder: Path, options: OpeningOptions) -> bool:
    """Return whether a Go program's folder is only for this file.

    Beside the file, its name says so, unless all it holds is another file's. Elsewhere it may be for many
    files.
    """
    open_database = options.open_database or open_leveldb
    index = BookmarkIndex(file.path, open_database, read_only=True, folder=folder)
    with contextlib.closing(index), contextlib.suppress(BookmarksUnavailable):
        fingerprint = index.fingerprint
        if fingerprint is not None:
            return is_of_stream(fingerprint, file.header(file.committed), file.disk.pread)
        is_beside = os.path.realpath(folder.parent) == os.path.realpath(file.path.parent)
        if is_beside and folder.name != ".db":
            return index.highest_number(1) is None or holds_bookmarks_of(file, index, 1)
        return holds_bookmarks_of(file, index, options.limits.bookmarks_checked_at_open_max)
    return False


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
    bookmarks.fingerprint_at = file.fingerprint_at
    _load_remote(file, bookmarks, options)
    if not bookmarks.sums_hold:
        bookmarks.forget_sums()
    _put_back_identity(file, bookmarks, options.new_header)
    evidence = evidence_of(file, bookmarks)
    taken = None if options.judge is None else options.judge(evidence)
    if taken is not None:
        _take(file, taken, options)
    record = _update_record(bookmarks)
    patch = record_for(record, file.header(file.committed), file.disk)
    update_state = UpdateState.NONE if patch is None else UpdateState.UNFINISHED
    index_state = IndexState.AHEAD
    if taken is None:
        index_state = _index_state(bookmarks, file, evidence, options.limits)
    is_odd = file.refusal is not None or (options.past_damage and index_state is IndexState.FOREIGN)
    if is_odd and patch is None and taken is None:
        _load_around_damage(file, bookmarks, index_state, options)
        evidence = evidence_of(file, bookmarks)
        if options.judge is not None:  # the file could not be read before
            options.judge(evidence)
        if options.past_damage and file.damaged:
            index_state = _index_state(bookmarks, file, evidence, options.limits)
    file_state = FileState.CONSISTENT if file.refusal is None else FileState.ENTRIES_DISAGREE
    tail_state = TailState.NOT_ZERO if file.refusal is not None else file.tail_state()
    appender = Appender(file, options.growth_pages)
    covered: int | None = None
    if index_state in (IndexState.LEVEL, IndexState.BEHIND):
        covered = bookmarks.covered
        if bookmarks.lacks_bookmarks:
            covered = _covered_by_bookmarks(file, bookmarks, covered or 0)
            index_state = IndexState.BEHIND if covered else IndexState.MISSING
    actions = decide(file_state, tail_state, index_state, update_state, options.access)
    covered = covered or 0 if Action.INDEX_MISSING in actions else 0
    to_index = _bookmarks_from(file, covered, options.go_on)
    if Action.REBUILD_BOOKMARKS in actions and file.remote.end:
        raise BookmarksUnavailable(bookmarks_folder(file.path), _INDEX_LOST.format(file.remote.end - 1))
    differing: set[int] = set()
    for action in actions:
        # Rebuilding the index of a new stream is no news.
        is_news = action is not Action.CHECK_PAGES and (
            action is not Action.REBUILD_BOOKMARKS or file.committed.total_entries > 0
        )
        _logger.log(logging.INFO if is_news else logging.DEBUG, "%s: opening: %s", file.path, action.name)
        if action is Action.REFUSE:
            raise _refusal(file, evidence, index_state, has_patch=patch is not None)
        if action is Action.FINISH_UPDATE:
            assert patch is not None  # otherwise it would not be unfinished
            write_recorded(file.disk, patch)
            appender.running_sum.stop()
            file.load()
        elif action is Action.CHECK_PAGES:
            if not file.is_walked:
                file.tables = bookmarks
                to_index = _check_pages(file, covered, options)
        elif action is Action.TRIM_TAIL:
            appender.trim_tail()
        else:
            # Before the index, which must not be on disk ahead of the header.
            differing |= _flush_found(appender, bookmarks, options)
            file.tables = bookmarks
            if action is Action.REBUILD_BOOKMARKS:
                if index_state is IndexState.FOREIGN and patch is None:
                    _logger.warning(_FOREIGN, file.path, bookmarks_folder(file.path).name)
                sums = kept_sums(bookmarks, file.disk, file.full_count, patch)
                bookmarks.wipe()
                bookmarks.notes.put_all(sums)
                if patch is None and is_kept_for_another(record):
                    bookmarks.put_update_record(record)
            bookmarks.rebuild(to_index, options.limits.rebuild_batch_bookmarks)
    if not actions or actions[-1] is Action.TRIM_TAIL:
        differing |= _flush_found(appender, bookmarks, options)
    _open_sums(file, bookmarks, differing)
    if options.access is Access.WRITE:
        bookmarks.move_keys()
    return appender


def _load_remote(file: StreamFile, bookmarks: BookmarkIndex, options: OpeningOptions) -> None:
    """Learn which pages the file has given up; a crash may have come before their holes."""
    remote = RemotePages(file.path, bookmarks.notes.get)
    file.remote = remote
    if not remote.end:
        return
    file.changes.remote = remote
    try:
        file.load(go_on=options.go_on)
    except EntriesDisagree as refusal:
        file.refusal = refusal
    if options.access is Access.WRITE and file.refusal is None:
        punch_pages(file.disk.fileno(), 1, remote.end)


def _covered_by_bookmarks(file: StreamFile, bookmarks: BookmarkIndex, covered: int) -> int:
    """Return how many entries an index covers that has lost the bookmarks of its last batches."""
    with contextlib.suppress(EntriesDisagree):
        for page_number in range(file.index.page_of_entry(covered), -1, -1):
            for bookmark, number in reversed(file.walk(page_number).bookmarks):
                found = bookmarks.get(bookmark)
                if number < covered and found is not None and found >= number:
                    return number + 1
    return 0


def _open_sums(file: StreamFile, bookmarks: BookmarkIndex, differing: set[int]) -> None:
    """Begin to check pages, first those whose bytes differ in memory and on the disk.

    Raises:
        OSError: no sum tells which bytes are right, or they cannot be written.
    """
    file.tables = bookmarks
    file.sums.open(bookmarks.notes, file.full_count)
    for page_number in sorted(differing):
        if file.sums.scrub(page_number) is ScrubResult.UNSUMMED:  # its sum belonged to another stream
            what = f"the page cache and the disk hold different bytes of data page {page_number}"
            raise OSError(errno.EIO, what)
    for page_number in sorted(file.damaged):
        with contextlib.suppress(EntriesDisagree):  # logged, and raised again for its readers
            file.sums.check(page_number)


def _flush_found(appender: Appender, bookmarks: BookmarkIndex, options: OpeningOptions) -> set[int]:
    differing: list[int] = []
    if options.access is Access.WRITE:
        differing = appender.flush_found(lambda number: sum_in(bookmarks.notes, number) is not None)
    return set(differing)


def _put_back_identity(file: StreamFile, bookmarks: BookmarkIndex, wanted: StreamHeader) -> None:
    """Restore version and system id of the header if the index knows its entries under the wanted ones.

    The header has no checksum: nothing else would notice a change of these two.
    """
    try:
        fingerprint = bookmarks.fingerprint
    except BookmarksUnavailable:
        return
    header = file.header(file.committed)
    before = replace(header, version=wanted.version, system_id=wanted.system_id)
    read = file.disk.pread
    if fingerprint is None or header == before or is_of_stream(fingerprint, header, read):
        return
    if is_of_stream(fingerprint, before, read):
        text = "%s: the header says version %d and system id %d, the index of its entries %d and %d: put back"
        ids = (header.version, header.system_id, before.version, before.system_id)
        _logger.warning(text, file.path, *ids)
        file.version, file.system_id = before.version, before.system_id


def _take(file: StreamFile, totals: Committed, options: OpeningOptions) -> None:
    """Write the judge's totals to the header, if the entries lead to them; else raise EntriesDisagree."""
    file.totals = totals
    file.load(whole=True, go_on=options.go_on)
    if options.access is Access.WRITE:
        file.disk.pwrite(file.header_bytes(totals), HEADER_OFFSET)
        file.disk.fdatasync()


def _refusal(
    file: StreamFile, evidence: Evidence, index_state: IndexState, *, has_patch: bool
) -> StreamFileRefused:
    if not has_patch and file.refusal is not None:
        return file.refusal
    if index_state is IndexState.KNOWS_MORE:
        expected = "a header that counts all that was committed; nothing was changed (see: sluice repair)"
        return HeaderBehind(file.path, evidence.words(), expected)
    return UpdateUnfinished(file.path, "one that a crash interrupted", "none, as this opening may not write")


def _load_around_damage(
    file: StreamFile, bookmarks: BookmarkIndex, index_state: IndexState, options: OpeningOptions
) -> None:
    """Load a file around its damaged full pages, if entries disagree or its first page may have changed.

    Raises:
        EntriesDisagree: something else is wrong, or nothing tells what a damaged page held.
    """
    is_ours = index_state in (IndexState.LEVEL, IndexState.BEHIND)
    sums = stored_sums(bookmarks) if is_ours else kept_sums(bookmarks, file.disk, file.full_count)
    if file.refusal is not None and not sums and not options.past_damage:
        raise file.refusal
    file.tables = bookmarks
    damaged_pages_max = options.limits.damaged_pages_passed_max if options.past_damage else 0
    file.load(go_on=options.go_on, sums=sums, damaged_pages_max=damaged_pages_max)


def _update_record(bookmarks: BookmarkIndex) -> bytes | None:
    try:
        return bookmarks.update_record
    except BookmarksUnavailable:  # it is found unreadable again, and made anew
        return None


def _index_state(
    bookmarks: BookmarkIndex, file: StreamFile, evidence: Evidence, limits: StreamLimits
) -> IndexState:
    header = file.header(file.committed)
    try:
        highest_number = bookmarks.highest_number(limits.bookmarks_checked_at_open_max)
        covered, fingerprint = bookmarks.covered, bookmarks.fingerprint
    except BookmarksUnavailable as error:
        _logger.warning("%s; the index is made anew", error)
        return IndexState.MISSING
    # The fingerprint may be of bytes on damaged pages; their tables fit.
    is_foreign = (
        fingerprint is not None
        and not file.damaged
        and not is_of_stream(fingerprint, header, file.disk.pread)
    )
    if is_foreign:  # unless the first page is damaged, which identifies the stream
        is_foreign = fits(kept_sums(bookmarks, file.disk, file.full_count), 0, file.disk) is not False
    knows_more = evidence.index_is_ahead and evidence.index_is_of_file
    return index_state_of(
        covered,
        highest_number,
        header.total_entries,
        is_foreign=is_foreign,
        knows_more=knows_more,
        is_only_ours=not bookmarks.was_changed_by_another,
    )


def _check_pages(file: StreamFile, covered: int, options: OpeningOptions) -> Iterator[_PageBookmarks]:
    """Walk the pages as `_bookmarks_from` does, before any change; return what that yields.

    Pages whose bookmarks exceed the limit of memory are walked again later.
    """
    kept: list[_PageBookmarks] = []
    kept_count, kept_end = 0, covered
    for bookmarks, entries_end in _bookmarks_from(file, covered, options.go_on):
        if kept_count < options.limits.bookmarks_kept_at_open_max:
            kept.append((bookmarks, entries_end))
            kept_count, kept_end = kept_count + len(bookmarks), entries_end
    return chain(kept, _bookmarks_from(file, kept_end, options.go_on))


def _bookmarks_from(
    file: StreamFile, covered: int, go_on: Callable[[], None] | None
) -> Iterator[_PageBookmarks]:
    """Yield the bookmarks of each page from entry `covered` on."""
    if covered == file.committed.total_entries:
        yield [], covered
        return
    for page_number in range(file.index.page_of_entry(covered), file.index.page_count):
        if go_on is not None:
            go_on()
        walk = file.walk(page_number)
        yield [pair for pair in walk.bookmarks if pair[1] >= covered], walk.entries_end
