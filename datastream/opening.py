"""Opening a stream: check, lock, check again, put right what `RECOVERY` says.

    1  header facts, page heads, last page        nothing is changed, nothing is made, before these are sound
    2  both locks on the bookmark folder          from here on nobody else writes
    3  the header again                           another writer may have been at work until step 2
    4  tail and index, by the table               `recovery.py`

A new stream: the locks first, then the file, which appears whole.

Source: wire.md 1 and 2.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Iterator
from pathlib import Path

from datastream.appending import Appender
from datastream.bookmarks import BookmarkIndex, OpenDatabase, bookmarks_folder
from datastream.disk import Disk, RealDisk, create_file
from datastream.errors import BookmarksUnavailable, StreamFileUnavailable
from datastream.layout import StreamHeader, encode_header_page, file_size_of
from datastream.limits import BOOKMARKS_CHECKED_AT_OPEN_MAX
from datastream.recovery import Action, FileState, IndexState, decide, index_state_of
from datastream.streamfile import StreamFile

__all__ = ["open_parts"]

_logger = logging.getLogger(__name__)


def open_parts(
    path: Path,
    new_header: StreamHeader,
    initial_pages: int,
    growth_pages: int,
    *,
    disk: Disk | None,
    open_database: OpenDatabase | None,
) -> tuple[StreamFile, BookmarkIndex, Appender]:
    """Open or create a stream; arguments and errors as `DataStreamer.open`.

    Args:
        new_header: of a new file; its stream type is what an existing one must have.
    """
    if growth_pages < 1 or initial_pages < 0:
        raise ValueError(
            f"pages: got {initial_pages} initial, {growth_pages} growth, expected 0 and 1 or more"
        )
    with contextlib.ExitStack() as undo:
        try:
            file = None
            if disk is not None:
                undo.callback(disk.close)
                if disk.size():
                    file = _load(path, disk, new_header.stream_type)
            elif path.exists():
                file = _open_file(path, new_header.stream_type, undo)
            bookmarks = _open_bookmarks(path, open_database)
            undo.callback(bookmarks.close)
            # The locks are ours. Until now, another opener may have made the file or added to it.
            if file is None and disk is None and path.exists():
                file = _open_file(path, new_header.stream_type, undo)
            elif file is None:
                file = _create(path, disk, new_header, initial_pages)
                undo.callback(file.disk.close)
            elif StreamFile.inspect(path, file.disk, file.stream_type) != file.header(file.committed):
                file = _load(path, file.disk, file.stream_type)
            appender = _recover(file, bookmarks, growth_pages)
        except OSError as error:
            raise StreamFileUnavailable(path, error) from error
        undo.pop_all()
    return file, bookmarks, appender


def _open_bookmarks(path: Path, open_database: OpenDatabase | None) -> BookmarkIndex:
    if bookmarks_folder(path) == path:
        raise BookmarksUnavailable(path, "the stream file has the name that its bookmark folder needs")
    if not path.parent.is_dir():
        raise StreamFileUnavailable(path, FileNotFoundError(errno.ENOENT, f"no folder {path.parent}"))
    return BookmarkIndex(path) if open_database is None else BookmarkIndex(path, open_database)


def _open_file(path: Path, stream_type: int, undo: contextlib.ExitStack) -> StreamFile:
    """Open and check an existing file."""
    disk = RealDisk(path)
    undo.callback(disk.close)
    return _load(path, disk, stream_type)


def _load(path: Path, disk: Disk, stream_type: int) -> StreamFile:
    """Check a file; a refusal raises."""
    file = StreamFile(path, disk, StreamFile.inspect(path, disk, stream_type))
    file.load()
    return file


def _create(path: Path, disk: Disk | None, header: StreamHeader, initial_pages: int) -> StreamFile:
    """Make a new stream; the locks are held, so nobody else does."""
    page, size = encode_header_page(header), file_size_of(initial_pages)
    if disk is None:
        create_file(path, page, size)
        disk = RealDisk(path)
    else:
        disk.truncate(size)
        disk.pwrite(page, 0)
        disk.fdatasync()
    file = StreamFile(path, disk, header)
    file.load()
    return file


def _recover(file: StreamFile, bookmarks: BookmarkIndex, growth_pages: int) -> Appender:
    """Do what `RECOVERY` says about the facts; the file itself was found consistent."""
    appender = Appender(file, growth_pages)
    total_entries = file.committed.total_entries
    try:
        highest_number = bookmarks.highest_number(BOOKMARKS_CHECKED_AT_OPEN_MAX)
        index_state = index_state_of(bookmarks.covered, highest_number, total_entries)
    except BookmarksUnavailable as error:
        _logger.warning("%s; the index is made anew", error)
        index_state = IndexState.MISSING
    for action in decide(FileState.CONSISTENT, file.tail_state(), index_state):
        _logger.info("%s: opening: %s", file.path, action.name)
        if action is Action.TRIM_TAIL:
            appender.trim_tail()
        else:
            if action is Action.REBUILD_BOOKMARKS:
                bookmarks.wipe()
            covered = bookmarks.covered or 0 if index_state is IndexState.BEHIND else 0
            bookmarks.rebuild(_bookmarks_from(file, covered))
    return appender


def _bookmarks_from(file: StreamFile, covered: int) -> Iterator[tuple[list[tuple[bytes, int]], int]]:
    """Walk the pages from entry `covered` on; yield each one's bookmarks and how many entries are covered."""
    if covered == file.committed.total_entries:
        yield [], covered
        return
    for page_number in range(file.index.page_of_entry(covered), file.index.page_count):
        walk = file.walk(page_number)
        yield [pair for pair in walk.bookmarks if pair[1] >= covered], walk.entries_end
