"""The data streamer: a stream file and its bookmarks behind the API of docs/spec/stream-file.md section 2.

For consecutive commits, `begin_commit` for each and `finish_commit` behind the last take one flush each, not
two.

Threads: one thread at a time appends and commits; any thread queries, also during a commit.

Source: docs/spec/stream-file.md sections 1, 2 and 3; datastream/README.md, "Invariants".
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sluice.datastream.errors import (
    BookmarkNotFound,
    BookmarkSizeWrong,
    BookmarksReversed,
    BookmarksUnavailable,
    CommitFailed,
    EntriesArchived,
    EntryNotFound,
    RangeTooLarge,
    StreamClosed,
    StreamReadOnly,
)
from sluice.datastream.file.appending import Appender, CommitStep
from sluice.datastream.file.bookmarks import BookmarkIndex, Notes, OpenDatabase
from sluice.datastream.file.committing import Committer
from sluice.datastream.file.concurrent_changes import RangeSender
from sluice.datastream.file.disk import Disk
from sluice.datastream.file.opening import Judge, OpeningOptions, open_parts
from sluice.datastream.file.operation import Call, OperationGroup, OperationState
from sluice.datastream.file.page_sums import PageSums
from sluice.datastream.file.recovery import Access
from sluice.datastream.file.remote_pages import UNKNOWN_DIGEST, RemotePages, SegmentRecord, punch_pages
from sluice.datastream.file.streamfile import StreamFile
from sluice.datastream.file.updating import Changer, NewestGivenUp
from sluice.datastream.layout import HEADER_PAGE_SIZE, Committed, Entry, StreamHeader, pages_used
from sluice.datastream.limits import (
    BOOKMARK_SIZE_MAX,
    BOOKMARK_SIZE_MIN,
    GROWTH_PAGES,
    INITIAL_PAGES,
    STREAM_LIMITS,
    StreamLimits,
)

__all__ = ["DataStreamer"]

_logger = logging.getLogger(__name__)
_COMMIT_DONE = Call.COMMIT_DONE


class DataStreamer:
    """An open stream. Make one with `DataStreamer.open`.

    A call in the wrong state raises a `MisuseError` and changes nothing.
    """

    def __init__(
        self,
        file: StreamFile,
        bookmarks: BookmarkIndex,
        appender: Appender,
        access: Access = Access.WRITE,
        limits: StreamLimits = STREAM_LIMITS,
    ) -> None:
        self._file = file
        self._bookmarks = bookmarks
        self._appender = appender
        self._changer = Changer(file, bookmarks, appender)
        self._group = OperationGroup(
            file.committed, state=OperationState.READ_ONLY if access is Access.READ else OperationState.IDLE
        )
        self._committer = Committer(file, bookmarks, appender, self._changer, self._group, limits)
        self._limits = limits
        # These run for each operation or entry, so they bypass the methods below, which document them.
        self.start_atomic_op = self._group.begin  # type: ignore[method-assign]
        self.add_stream_entry = self._group.add_entry  # type: ignore[method-assign]
        self.add_stream_entries = self._group.add_entries  # type: ignore[method-assign]
        self.add_stream_bookmark = self._group.add_bookmark  # type: ignore[method-assign]
        self.seal_atomic_op = self._group.seal  # type: ignore[method-assign]
        self.commit_atomic_op = self._committer.commit  # type: ignore[method-assign]
        self.begin_commit = self._committer.begin  # type: ignore[method-assign]
        self.finish_commit = self._committer.finish  # type: ignore[method-assign]

    # --- opening and closing -----------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        stream_type: int = 1,
        system_id: int = 137,
        version: int = 1,
        initial_pages: int = INITIAL_PAGES,
        growth_pages: int = GROWTH_PAGES,
        read_only: bool = False,
        disk: Disk | None = None,
        open_database: OpenDatabase | None = None,
        go_on: Callable[[], None] | None = None,
        judge: Judge | None = None,
        past_damage: bool = False,
        limits: StreamLimits = STREAM_LIMITS,
    ) -> DataStreamer:
        """Open a stream, or create it if there is no file; `RECOVERY` says what is repaired.

        Args:
            path: the stream file; its bookmarks are in the folder beside it.
            stream_type: an existing file must have it.
            system_id, version: of a new file; an existing one keeps its own.
            initial_pages: data pages of 1 MiB of a new file.
            growth_pages: data pages added when the file is full.
            read_only: serve an existing file without writing it or its folder; the index is a temporary copy.
            disk: the open file at `path`, if not an ordinary one (tests); made a stream when empty.
            open_database: opens the LevelDB folder, if not plyvel (tests).
            go_on: called before each page while the index is made. Its exception ends the opening like a
                crash: the next one continues behind the last batch.
            judge: hears what header, index and file say, before anything is changed; see `opening.Judge`.
            past_damage: open a stream also with damaged full pages, if the index tells which entries they
                held. Queries for these raise `EntriesDisagree`.

        Raises:
            StreamFileRefused: not a stream file, damaged, of another type, or with a header behind what was
                committed.
            StreamFileUnavailable: the operating system refuses the file.
            StreamInUse: another opener has it.
            BookmarksUnavailable: the bookmark DB cannot be opened or written.
        """
        new_header = StreamHeader(version, system_id, stream_type, HEADER_PAGE_SIZE, 0)
        access = Access.READ if read_only else Access.WRITE
        options = OpeningOptions(
            new_header,
            initial_pages,
            growth_pages,
            access,
            disk,
            open_database,
            go_on,
            judge,
            past_damage,
            limits,
        )
        file, bookmarks, appender = open_parts(Path(path), options)
        return cls(file, bookmarks, appender, access, limits)

    def close(self) -> None:
        """Drop uncommitted operations, write pending bookmarks, close file and index; idempotent."""
        if self._group.state is OperationState.CLOSED:
            return
        self._group.move(Call.CLOSE)
        try:
            self._committer.drop_begun()
            self._bookmarks.write_pending()
        except BookmarksUnavailable as error:
            _logger.warning("%s; the next opening adds what is missing", error)
        finally:  # also after Ctrl-C: the stream is free for the next opening
            try:
                self._bookmarks.close()
            finally:
                self._file.remote.close()
                self._file.disk.close()

    def __enter__(self) -> DataStreamer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # --- sending data ------------------------------------------------------------------------------------

    def start_atomic_op(self) -> None:
        """Begin an atomic operation."""
        self._group.begin()

    def add_stream_entry(self, entry_type: int, data: bytes) -> int:
        """Append an entry and return the number it will have.

        Args:
            entry_type: u32, not 0xffffffff. 0xb0 is not indexed, unless the index is made or completed from
                the file.
            data: up to 1,048,559 bytes.

        Raises:
            EntryTypeReserved, EntryTooLong, OperationTooLarge: the operation stays as it was.
        """
        return self._group.add_entry(entry_type, data)

    def add_stream_entries(self, entry_types: Sequence[int], data: Sequence[bytes]) -> None:
        """Append an entry for each type and its data, as `add_stream_entry`, but faster.

        If one is refused, none is added.
        """
        self._group.add_entries(entry_types, data)

    def add_copy(self, entry: Entry) -> int:
        """Append an entry of another stream: as a bookmark, if its type and size are those of one."""
        if entry.is_bookmark and BOOKMARK_SIZE_MIN <= len(entry.data) <= BOOKMARK_SIZE_MAX:
            return self._group.add_bookmark(entry.data)
        return self._group.add_entry(entry.type, entry.data)

    def add_stream_bookmark(self, bookmark: bytes) -> int:
        """Append a bookmark of 1 to 16 bytes to the open operation and return its entry number."""
        return self._group.add_bookmark(bookmark)

    def seal_atomic_op(self) -> None:
        """End the open operation; it joins the next commit, and another may start (group commit)."""
        self._group.seal()

    def rollback_atomic_op(self) -> None:
        """Drop the open operation; sealed ones stay."""
        self._group.rollback()

    @property
    def next_number(self) -> int:
        """The number that the next added entry gets."""
        return self._group.number_next

    @property
    def group_bytes(self) -> int:
        """Bytes of the open and sealed operations, with padding."""
        return len(self._group.buffer)

    @property
    def first_on_last_page(self) -> int:
        """Number of the first entry on the last data page; 0 of an empty stream."""
        return self._file.index.first_numbers[-1] if self._file.index.page_count else 0

    @property
    def allocated_bytes(self) -> int:
        """Bytes that the file takes on the disk now, by the file system."""
        return os.fstat(self._file.disk.fileno()).st_blocks * 512

    def rollback_group(self) -> None:
        """Drop the open operation and all sealed ones. A begun commit stays."""
        self._group.move(Call.ROLLBACK_GROUP)
        self._group.restart(self._committer.end)

    def commit_atomic_op(self, *, flush: bool = True) -> None:
        """Commit the open operation and all sealed ones, with one pair of flushes.

        Args:
            flush: False makes them visible without waiting for the disk. They survive the end of this
                process. A power failure may lose them or leave a file that opening refuses: use it for
                streams that can be made again.

        Raises:
            CommitFailed: the committed view is unchanged, the open and all sealed operations were dropped,
                and another operation may start.
        """
        self._committer.commit(flush=flush)

    # --- a commit in two halves --------------------------------------------------------------------------

    @property
    def has_begun(self) -> bool:
        """True if a begun commit waits to be finished."""
        return self._committer.has_begun

    def begin_commit(self) -> None:
        """Put the open operation and all sealed ones on disk, still invisible.

        The same flush finishes the commit begun before. Another operation may then start; `finish_commit` or
        the next `begin_commit` makes this commit visible. A crash before that, or `close`, drops it.

        Raises:
            CommitFailed: the open and all sealed operations were dropped. So was the commit begun before,
                unless it is still `has_begun`.
        """
        self._committer.begin()

    def finish_commit(self) -> None:
        """Finish the begun commit: on disk and visible. Without one, do nothing.

        Raises:
            CommitFailed: the commit and operations started since were dropped.
        """
        self._committer.finish()

    def rollback_commit(self) -> None:
        """Drop the begun commit and operations started since.

        The next commit repairs what the disk refuses.
        """
        self._group.move(Call.ROLLBACK_GROUP)
        self._committer.drop_begun()
        self._group.restart(self._committer.end)

    def recover(self) -> None:
        """Repair what an earlier failure left in file or bookmark DB, as the next commit would do first.

        So a caller learns whether the disk takes writes again. Call it in the thread that commits.

        Raises:
            StreamReadOnly: it takes no commit before it is reopened.
            CommitFailed: the next call or commit tries again.
        """
        self._check_open("recover")
        if self._group.state is OperationState.READ_ONLY:
            raise StreamReadOnly("recover")
        self._committer.finish_what_is_overdue()
        try:
            self._appender.flush()
        except OSError as error:
            raise CommitFailed(self._file.path, CommitStep.REPAIR.value, error) from error

    # --- changing what is committed ----------------------------------------------------------------------

    def update_entry_data(self, number: int, entry_type: int, data: bytes) -> None:
        """Replace an entry.

        An entry of the open operation may become any other entry or bookmark. A committed one keeps its type
        and length, is written in place, and is on disk on return; no reader sees half of it. For it, no
        operation may be open or sealed.

        Raises:
            EntryNotFound, EntrySealed: no such entry, or one of a sealed operation.
            EntriesArchived: the entry is in an archive.
            CommitFailed: the committed entry is unchanged.
        """
        group = self._group
        if number >= self._file.committed.total_entries and group.state in (
            OperationState.OPEN,
            OperationState.OPEN_SEALED,
        ):
            group.update(number, entry_type, data)
            return
        self.check_not_archived("update_entry_data", number)
        self._committer.check_not_begun(Call.UPDATE_COMMITTED)
        group.move(Call.UPDATE_COMMITTED)
        try:
            self._committer.finish_what_is_overdue()
            self._changer.update(number, entry_type, bytes(data))
        finally:
            group.move(_COMMIT_DONE)

    def truncate_file(self, number: int, newest_given_up: NewestGivenUp | None = None) -> None:
        """Drop the entries from `number` on; on disk on return. The next entry gets that number again.

        Queries no longer find a dropped entry; a TCP client that has received one is disconnected. The number
        of entries itself drops nothing.

        Args:
            newest_given_up: returns, of dropped bookmarks, those that are on given up pages, too, with the
                numbers of their newest entries there. None: these pages are read.

        Raises:
            EntryNotFound: `number` is above the number of entries.
            EntriesArchived: entries from there on are in an archive.
            EntriesDisagree: a page on the way is damaged; nothing was changed.
            CommitFailed: the disk refused before the commit point; nothing was changed.
        """
        group, before = self._group, self._file.committed
        self.check_not_archived("truncate_file", number)
        self._committer.check_not_begun(Call.TRUNCATE)
        group.move(Call.TRUNCATE)
        try:
            self._committer.finish_what_is_overdue()
            self._changer.truncate(number, newest_given_up)
        finally:
            committed = self._file.committed
            group.move(_COMMIT_DONE)
            group.restart(committed)
            if committed != before:  # also where it was interrupted behind its commit point
                self._committer.tell(committed)
                self._appender.clear_dropped()

    # --- what is archived: one thread --------------------------------------------------------------------

    @property
    def remote(self) -> RemotePages:
        """The pages that are archived, and those that the file has given up."""
        return self._file.remote

    def note_archived(self, segment: SegmentRecord) -> None:
        """Note that an archive has the next segment; on disk on return. It never changes from now on.

        Raises:
            ValueError: it is not the next one, or has pages that are not full and flushed.
            BookmarksUnavailable: the bookmark DB refused.
        """
        remote, pages = self._file.remote, segment.end_page
        if segment.first_page != remote.archived_pages or pages > self.flushed_pages:
            raise ValueError(
                f"archived segment: got pages {segment.first_page} to {pages - 1}, "
                f"expected {remote.archived_pages} to less than {self.flushed_pages}"
            )
        self._bookmarks.put_flushed({**remote.note_of(segment), **remote.marks(pages, remote.end)})
        remote.archived_pages = pages
        remote.segment.cache_clear()

    @property
    def flushed_pages(self) -> int:
        """Number of full pages that are committed and on disk."""
        return min(max(pages_used(self._appender.flushed[0]) - 1, 0), self._file.sums.full_count)

    def release_pages(self, end: int) -> int:
        """Give archived pages back to the file system; return before which page they are given up.

        Page 0 stays, as do pages whose bookmarks are not in the DB yet. Readers get them from `remote`.

        Args:
            end: give up the pages before this one.

        Raises:
            ValueError: they are not all archived.
            BookmarksUnavailable: the bookmark DB refused.
            OSError: the file system makes no holes.
        """
        file, remote = self._file, self._file.remote
        if end > remote.archived_pages or end >= file.sums.full_count:
            raise ValueError(f"pages to give up: got {end}, expected at most {remote.archived_pages}")
        covered = self._bookmarks.written_covered
        end = min(end, max(file.index.page_of_entry(covered) if covered else 0, 0))
        begin = max(remote.end, 1)
        if end <= begin:
            return remote.end
        self._bookmarks.put_flushed(remote.marks(remote.archived_pages, end))
        with file.sums.lock, file.changes.lock:
            file.changes.note_release(remote, end)
            file.sums.release(begin, end)
        punch_pages(file.disk.fileno(), max(begin - 2, 1), end)
        return end

    def check_not_archived(self, call: str, number: int) -> None:
        """Raise EntriesArchived if an archive has entries from `number` on."""
        pages = self._file.remote.archived_pages
        if pages and number < (end := self._file.index.first_numbers[pages]):
            raise EntriesArchived(call, number, end)

    # --- queries: any thread -----------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        """The stream file."""
        return self._file.path

    @property
    def committed(self) -> Committed:
        """The committed length in bytes and number of entries, always of the same moment."""
        return self._file.committed

    @property
    def header(self) -> StreamHeader:
        """The header as of the last commit."""
        return self._file.header(self._file.committed)

    def get_entry(self, number: int) -> Entry:
        """Return a committed entry.

        Raises:
            EntryNotFound, EntriesDisagree: it is not there, or its page is damaged.
        """
        self._check_open("get_entry")
        return self._file.read_entry(number)

    def get_bookmark(self, bookmark: bytes) -> int:
        """Return the number of the newest entry that is this bookmark; raise BookmarkNotFound."""
        self._check_open("get_bookmark")
        number = self.indexed_number(bookmark)
        try:
            entry = self._file.read_entry(number)
        except EntryNotFound:
            raise BookmarkNotFound(bookmark) from None
        self._confirm(bookmark, entry)
        return number

    def get_first_event_after_bookmark(self, bookmark: bytes) -> Entry:
        """Return the first entry after a bookmark that is none, else the last entry of the stream."""
        self._check_open("get_first_event_after_bookmark")
        try:
            entry, event = self._file.read_with_event(self.indexed_number(bookmark))
        except EntryNotFound:
            raise BookmarkNotFound(bookmark) from None
        self._confirm(bookmark, entry)
        return event

    def indexed_number(self, bookmark: bytes) -> int:
        """Return a bookmark's entry number by the index alone; `get_bookmark` compares the entry, too."""
        if not BOOKMARK_SIZE_MIN <= len(bookmark) <= BOOKMARK_SIZE_MAX:
            raise BookmarkSizeWrong(len(bookmark), BOOKMARK_SIZE_MAX)
        # Otherwise a visible entry might lack its bookmark.
        with self._committer.publishing:
            number = self._bookmarks.get_recorded(bookmark)
        if number is None:
            number = self._bookmarks.get(bookmark)
        if number is None:
            raise BookmarkNotFound(bookmark)
        return number

    def _confirm(self, bookmark: bytes, entry: Entry) -> None:
        """Refuse an entry that is not the bookmark.

        The Go server writes a bookmark before its commit: its crash leaves bookmarks of entries that never
        came.

        Raises:
            BookmarkNotFound: as said.
            PageNotLocal: the bookmark is from an archive that lied about its place.
        """
        if not entry.is_bookmark or entry.data != bookmark:
            remote, page_number = self._file.remote, self.page_of_entry(entry.number)
            if page_number < remote.archived_pages and remote.page(page_number).digest == UNKNOWN_DIGEST:
                what = f"bookmark {bookmark.hex()} as entry {entry.number}, where the archive's index has it"
                raise remote.error(page_number, what)
            _logger.warning(
                "%s: bookmark %s points at entry %d, which is not it",
                self.path,
                bookmark.hex(),
                entry.number,
            )
            raise BookmarkNotFound(bookmark)

    def get_data_between_bookmarks(self, from_bookmark: bytes, to_bookmark: bytes) -> bytes:
        """Return the joined data of the events in [from, to), without bookmarks.

        Raises:
            BookmarksReversed: `from_bookmark` lies after `to_bookmark`.
            RangeTooLarge: more data than `data_between_bookmarks_bytes_max`.
        """
        from_number, to_number = self.get_bookmark(from_bookmark), self.get_bookmark(to_bookmark)
        if from_number > to_number:
            raise BookmarksReversed(from_bookmark, from_number, to_bookmark, to_number)
        joined = bytearray()
        for entry in self._file.entries(from_number, to_number):
            if not entry.is_bookmark:
                joined += entry.data
                if len(joined) > self._limits.data_between_bookmarks_bytes_max:
                    size_max = self._limits.data_between_bookmarks_bytes_max
                    raise RangeTooLarge(from_number, to_number, size_max)
        return bytes(joined)

    def read_entries(self, from_number: int, to_number: int | None = None) -> Iterator[Entry]:
        """Return an iterator over committed entries, from `from_number` up to, not including, `to_number` or
        the end of now.

        Raises:
            BadEntryRange: not 0 <= from <= to <= number of committed entries.
            EntriesDisagree: while iterating, a page is damaged.
        """
        self._check_open("read_entries")
        return self._file.entries(from_number, to_number)

    def read_columns(self, from_number: int, size_wanted: int) -> tuple[list[int], list[bytes]]:
        """Return types and data of committed entries of one page, from `from_number` on.

        A fast `read_entries` for many entries: at least one, and no further ones once their data has
        `size_wanted` bytes. There may be fewer.
        """
        self._check_open("read_columns")
        return self._file.columns(from_number, size_wanted)

    def on_commit(self, callback: Callable[[Committed], None]) -> Callable[[], None]:
        """Call `callback` after every commit and truncation, in their thread; return a function that ends
        this.

        After a truncation, its argument is shorter than the last one.
        """
        committer = self._committer
        committer.callbacks = (*committer.callbacks, callback)

        def unsubscribe() -> None:
            """End the calls; idempotent."""
            committer.callbacks = tuple(other for other in committer.callbacks if other is not callback)

        return unsubscribe

    # --- for the server ----------------------------------------------------------------------------------

    def fileno(self) -> int:
        """Return the stream file's descriptor, for sendfile of committed ranges."""
        return self._file.disk.fileno()

    def read_bytes(self, size: int, offset: int) -> bytes:
        """Read committed bytes of one page; an update never cuts an entry in half."""
        return self._file.read_checked(size, offset)

    @property
    def sums(self) -> PageSums:
        """The checksums and states of full pages."""
        return self._file.sums

    @property
    def notes(self) -> Notes:
        """The notes beside the bookmarks; written with the next commit, or at close."""
        return self._bookmarks.notes

    def page_bookmarks(self, page_number: int) -> list[tuple[bytes, int]]:
        """Return (bookmark, entry number) of a page's bookmarks, in order."""
        return self._file.walk(page_number).bookmarks

    def page_of_entry(self, number: int) -> int:
        """Return the data page that entry `number` is on."""
        return self._file.index.page_of_entry(number)

    def range_sender(self) -> RangeSender:
        """Return a sender of file ranges to one client, also beside updates."""
        return RangeSender(self._file.path, self._file.disk, self._file.changes)

    def header_bytes(self) -> bytes:
        """Return the header entry's 38 bytes as of the last commit."""
        return self._file.header_bytes(self._file.committed)

    def offset_of(self, number: int) -> int:
        """Return the offset of a committed entry, or of the stream's end for the number after the last."""
        return self._file.offset_of(number)

    def data_end(self, page_number: int, limit: int) -> int:
        """Return the offset just past the last entry of a page, as far as `limit`, an entry's end."""
        return self._file.data_end(page_number, limit)

    def boundary_from(self, offset: int) -> int:
        """Return the first entry boundary at or after `offset`."""
        return self._file.boundary_from(offset)

    def _check_open(self, call: str) -> None:
        if self._group.state is OperationState.CLOSED:
            raise StreamClosed(call)
