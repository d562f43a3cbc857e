"""Commits of a stream: each is begun and finished, and the next one may begin in between.

This module publishes what `appending.py` wrote: page index, bookmarks and the committed view change together,
or not at all. A begun commit stands if only the next one's entries are refused; where both share what failed,
both are dropped.

Source: docs/spec/stream-file.md section 2; datastream/README.md, "The steps of a commit".
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from sluice.datastream.errors import BookmarksUnavailable, CommitBegun, CommitFailed, MisuseError
from sluice.datastream.file.appending import Appender, CommitStep
from sluice.datastream.file.bookmarks import BookmarkIndex
from sluice.datastream.file.operation import CALL_NAMES, Call, OperationGroup, OperationState, WrittenGroup
from sluice.datastream.file.streamfile import StreamFile
from sluice.datastream.file.updating import Changer
from sluice.datastream.layout import Committed
from sluice.datastream.limits import StreamLimits

__all__ = ["Committer"]

_logger = logging.getLogger(__name__)
_COMMIT_DONE = Call.COMMIT_DONE


class Committer:
    """Commits the operations of a group; used by one thread at a time."""

    def __init__(
        self,
        file: StreamFile,
        bookmarks: BookmarkIndex,
        appender: Appender,
        changer: Changer,
        group: OperationGroup,
        limits: StreamLimits,
    ) -> None:
        self.publishing = threading.Lock()
        """Held while a commit and its bookmarks are published."""
        self.callbacks: tuple[Callable[[Committed], None], ...] = ()
        """Called after every commit."""
        self._file = file
        self._bookmarks = bookmarks
        self._appender = appender
        self._changer = changer
        self._group = group
        self._pending_bookmarks_max = limits.pending_bookmarks_max
        self._begun: WrittenGroup | None = None
        appender.on_failed_flush = bookmarks.doubt

    @property
    def has_begun(self) -> bool:
        """True if a commit was begun and is not finished."""
        return self._begun is not None

    @property
    def end(self) -> tuple[int, int]:
        """(total_length, total_entries) where the next group begins."""
        return self._file.committed if self._begun is None else self._begun.end

    def check_not_begun(self, call: Call) -> None:
        """Raise CommitBegun if a commit was begun: `call` changes what is committed."""
        if self._begun is not None:
            raise CommitBegun(CALL_NAMES[call])

    def commit(self, *, flush: bool = True) -> None:
        """Begin a commit and finish it; see `DataStreamer.commit_atomic_op`."""
        group = self._group
        if self._begun is not None:
            raise CommitBegun(CALL_NAMES[Call.COMMIT])
        try:
            end = self._write_entries(flush=flush)
            self._appender.finish(flush=flush)
            self._publish(group, end, flush=flush)
            group.end_commit(end)
        except MisuseError:
            raise  # nothing has begun; another thread's commit continues
        except BaseException:
            self._end_failed(None)
            raise
        if self.callbacks:
            self.tell(Committed(*end))

    def begin(self) -> None:
        """See `DataStreamer.begin_commit`."""
        before = self._begun
        try:
            self._begun = self._group.hand_over(self._write_entries(flush=True))
            if before is not None:
                self._publish(before, before.end, flush=True)
                self.tell(Committed(*before.end))
        except MisuseError:
            raise  # nothing has begun
        except BaseException:
            self._end_failed(before)
            raise

    def finish(self) -> None:
        """See `DataStreamer.finish_commit`."""
        begun = self._begun
        if begun is None:
            return
        try:
            self._appender.finish(flush=True)
            self._publish(begun, begun.end, flush=True)
            self.tell(Committed(*begun.end))
        except BaseException:
            self._begun = None
            self._drop_group()
            raise
        self._begun = None  # last, so that an interruption still drops it

    def _write_entries(self, *, flush: bool) -> tuple[int, int]:
        self._group.begin_commit()
        if self._bookmarks.failed or self._changer.overdue:
            self.finish_what_is_overdue()  # step 0a
        return self._appender.begin(self._group, flush=flush)

    def _publish(self, written: OperationGroup | WrittenGroup, end: tuple[int, int], *, flush: bool) -> None:
        """Do steps 5 and 6 of a commit whose header is written; on failure, undo it and any later one."""
        undo = None
        try:
            if written.checkpoints or written.page_starts:
                self._appender.adopt(written)
            bookmarks = written.all_bookmarks
            undo = self._bookmarks.before(bookmarks)
            # Together: an updated bookmark must not lead to an invisible entry.
            with self.publishing:
                pending_count = self._bookmarks.record(bookmarks, end[1])
                self._file.totals = end  # step 5: from here on, readers see it
        finally:
            if self._file.totals is not end:
                if undo is not None:
                    self._bookmarks.roll_back(undo)
                self._roll_back(end)
        # Only now: a rolled-back commit must leave no bookmarks in the DB.
        if flush or pending_count >= self._pending_bookmarks_max:
            self._write_bookmarks(flush=flush)  # step 6

    def _end_failed(self, before: WrittenGroup | None) -> None:
        """Drop the failed commit; keep the one begun before if its header was not written."""
        is_as_before = self._appender.begun == (before and before.end)
        self._begun = before if is_as_before else None
        try:
            if not is_as_before and self._appender.begun is not None:  # interrupted behind the flush
                if before is not None and self._file.totals is not before.end:
                    self._roll_back(before.end)
                else:
                    self._appender.drop_begun()
        finally:
            self._drop_group()

    def drop_begun(self) -> None:
        """Drop the begun commit, if any."""
        if self._begun is not None:
            self._begun = None
            self._appender.drop_begun()

    def _drop_group(self) -> None:
        group = self._group
        group.restart(self.end)
        if group.state is OperationState.COMMITTING:
            group.move(_COMMIT_DONE)
        elif group.state in (OperationState.OPEN, OperationState.SEALED, OperationState.OPEN_SEALED):
            group.move(Call.ROLLBACK_GROUP)

    def _roll_back(self, written: tuple[int, int]) -> None:
        """Undo a commit that is in the file and invisible, after Ctrl-C or for lack of memory.

        If that fails, the stream takes no commit before it is reopened.
        """
        _logger.warning(
            "%s: a commit is rolled back, as it was interrupted behind its header", self._file.path
        )
        try:
            self._appender.roll_back(written)
            self._file.load_index()
        except BaseException:
            self._group.state = OperationState.READ_ONLY
            raise

    # --- beside the disk ---------------------------------------------------------------------------------

    def finish_what_is_overdue(self) -> None:
        """Reopen a failed bookmark DB, and finish an interrupted update."""
        try:
            if self._bookmarks.failed:
                # First the file: while its disk fails, the DB stays open for readers.
                self._appender.put_right()
                self._bookmarks.recover()
            self._changer.finish()
        except (BookmarksUnavailable, OSError) as error:
            os_error = error if isinstance(error, OSError) else OSError(str(error))
            raise CommitFailed(self._file.path, CommitStep.REPAIR.value, os_error) from error

    def _write_bookmarks(self, *, flush: bool) -> None:
        """Write pending bookmarks. On failure the commit stands, and memory keeps its bookmarks."""
        try:
            if flush:
                self._bookmarks.write_pending()
            else:
                self._bookmarks.write_pending_behind()
        except (BookmarksUnavailable, MemoryError) as error:
            self._bookmarks.failed = True
            _logger.error(
                "%s; the operation is committed, its bookmarks are written before the next one",
                error if isinstance(error, BookmarksUnavailable) else f"{self._file.path}: no memory",
            )

    def tell(self, committed: Committed) -> None:
        """Call the callbacks, after a commit or a truncation."""
        for callback in self.callbacks:
            try:
                callback(committed)
            except Exception:  # the commit stands, whatever a listener does
                _logger.exception("%s: a listener failed after a commit", self._file.path)
