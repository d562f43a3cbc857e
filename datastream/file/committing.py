"""Commits of a stream: in one go, or in two halves where they follow one another; and their failures.

The disk's part is in `appending.py`, which begins with a picture of both. Here, what was written is
published: the page index, the bookmarks and the committed view change together, or nothing of it does.

    what happens                               the commit that was begun before    this commit
    the disk refuses to take its entries       can still be finished               dropped
    the disk refuses what both share           dropped                             dropped
    interrupted before its publication         taken back                          dropped
    interrupted behind its publication         stands                              dropped, if only begun

Source: docs/spec/stream-file.md section 2; datastream/README.md, "The steps of a commit".
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from datastream.errors import BookmarksUnavailable, CommitBegun, CommitFailed, MisuseError
from datastream.file.appending import Appender, CommitStep
from datastream.file.bookmarks import BookmarkIndex, Undo
from datastream.file.operation import OperationGroup, WrittenGroup
from datastream.file.operation_table import CALL_NAMES, Call, OperationState
from datastream.file.streamfile import StreamFile
from datastream.file.updating import Changer
from datastream.layout import Committed
from datastream.limits import PENDING_BOOKMARKS_MAX

__all__ = ["Committer"]

_logger = logging.getLogger(__name__)
_COMMIT_DONE = Call.COMMIT_DONE


class Committer:
    """Commits the operations of a group; used by one thread at a time.

    Args:
        file: loaded.
        bookmarks: its index.
        appender: its writer.
        changer: what it could not finish is finished before a commit.
        group: the operations that are not committed.
    """

    def __init__(
        self,
        file: StreamFile,
        bookmarks: BookmarkIndex,
        appender: Appender,
        changer: Changer,
        group: OperationGroup,
    ) -> None:
        self.publishing = threading.Lock()
        """Held while a commit is published, together with its bookmarks."""
        self.callbacks: tuple[Callable[[Committed], None], ...] = ()
        """Told of every commit."""
        self._file = file
        self._bookmarks = bookmarks
        self._appender = appender
        self._changer = changer
        self._group = group
        self._begun: WrittenGroup | None = None
        appender.on_failed_flush = bookmarks.doubt

    @property
    def has_begun(self) -> bool:
        """Whether a commit was begun that is still to be finished."""
        return self._begun is not None

    @property
    def end(self) -> tuple[int, int]:
        """(total_length, total_entries) behind which the next group goes."""
        return self._file.committed if self._begun is None else self._begun.end

    def check_not_begun(self, call: Call) -> None:
        """Refuse a call that changes what is committed.

        Raises:
            CommitBegun: a commit was begun.
        """
        if self._begun is not None:
            raise CommitBegun(CALL_NAMES[call])

    def commit(self, *, flush: bool = True) -> None:
        """See `DataStreamer.commit_atomic_op`."""
        group, committed, undo = self._group, None, None
        self.check_not_begun(Call.COMMIT)
        try:
            group.begin_commit()
            if self._bookmarks.failed or self._changer.overdue:
                self.finish_what_is_overdue()  # step 0a
            committed = self._appender.write(group, flush=flush)  # steps 0 to 4; 3 is the commit point
            if group.checkpoints or group.page_starts:
                self._appender.adopt(group)
            bookmarks = group.all_bookmarks
            undo = self._bookmarks.before(bookmarks)
            # Together: a bookmark that is added again must not lead to an entry that is not to be seen yet.
            with self.publishing:
                pending_count = self._bookmarks.record(bookmarks, committed[1])
                self._file.totals = committed  # step 5: from here on, readers see it
            # Only now: one that is taken back must leave no bookmarks in the DB.
            if pending_count >= PENDING_BOOKMARKS_MAX or flush:
                self._write_bookmarks(flush=flush)  # step 6
            group.end_commit(committed)
        except MisuseError:
            raise  # nothing has begun; another thread's commit may go on
        except BaseException:
            if group.state is OperationState.COMMITTING:
                self._end_failed_commit(committed, undo)
            raise
        if self.callbacks:
            self.tell(Committed(*committed))

    def _end_failed_commit(self, written: tuple[int, int] | None, undo: Undo | None) -> None:
        """Leave nothing of a commit, or all of it, where it was interrupted behind its publication."""
        group = self._group
        try:
            if written is not None and self._file.totals is not written:
                if undo is not None:
                    self._bookmarks.take_back(undo)
                self._take_back(written)
        finally:
            group.restart(self._file.committed)
            if group.state is OperationState.COMMITTING:
                group.move(_COMMIT_DONE)

    # --- in two halves ------------------------------------------------------------------------------------

    def begin(self) -> None:
        """See `DataStreamer.begin_commit`."""
        group, before = self._group, self._begun
        try:
            group.begin_commit()
            if self._bookmarks.failed or self._changer.overdue:
                self.finish_what_is_overdue()
            self._begun = group.hand_over(self._appender.begin(group))
            if before is not None:
                self._publish(before)
        except MisuseError:
            raise  # nothing has begun
        except BaseException:
            self._end_failed_begin(before)
            raise

    def finish(self) -> None:
        """See `DataStreamer.finish_commit`."""
        begun = self._begun
        if begun is None:
            return
        try:
            self._appender.finish()
            self._publish(begun)
        except BaseException:
            self._begun = None
            self._drop_group()
            raise
        self._begun = None  # last: interrupted before, it is known what to drop

    def _publish(self, written: WrittenGroup) -> None:
        """Do steps 5 and 6 of a commit whose header is on disk; or take it back, and what was begun since."""
        undo = None
        try:
            if written.checkpoints or written.page_starts:
                self._appender.adopt(written)
            undo = self._bookmarks.before(written.bookmarks)
            with self.publishing:
                self._bookmarks.record(written.bookmarks, written.end[1])
                self._file.totals = written.end
        finally:
            if self._file.totals is not written.end:
                if undo is not None:
                    self._bookmarks.take_back(undo)
                self._take_back(written.end)
        self._write_bookmarks(flush=True)
        if self.callbacks:
            self.tell(Committed(*written.end))

    def _end_failed_begin(self, before: WrittenGroup | None) -> None:
        """Drop what was to be begun; what was begun before stays, where its header was not written."""
        is_as_before = self._appender.begun == (before and before.end)
        self._begun = before if is_as_before else None
        try:
            if not is_as_before and self._appender.begun is not None:  # interrupted behind the flush
                if before is not None and self._file.totals is not before.end:
                    self._take_back(before.end)
                else:
                    self._appender.drop_begun()
        finally:
            self._drop_group()

    def drop_begun(self) -> None:
        """Drop the commit that was begun, if there is one."""
        if self._begun is not None:
            self._begun = None
            self._appender.drop_begun()

    def _drop_group(self) -> None:
        """Drop operations that are open, sealed, or about to be committed."""
        group = self._group
        group.restart(self.end)
        if group.state is OperationState.COMMITTING:
            group.move(_COMMIT_DONE)
        elif group.state in (OperationState.OPEN, OperationState.SEALED, OperationState.OPEN_SEALED):
            group.move(Call.ROLLBACK_GROUP)

    def _take_back(self, written: tuple[int, int]) -> None:
        """Undo a commit that is in the file, and that no reader has seen: Ctrl-C, or no memory for its index.

        If that cannot be done either, the stream takes no further commit: it has to be opened again.
        """
        _logger.warning(
            "%s: a commit is taken back, as it was interrupted behind its header", self._file.path
        )
        try:
            self._appender.take_back(written)
            self._file.load_index()
        except BaseException:
            self._group.state = OperationState.READ_ONLY
            raise

    # --- beside the disk ---------------------------------------------------------------------------------

    def finish_what_is_overdue(self) -> None:
        """Open a bookmark DB that failed again, and finish an update that could not be written.

        Raises:
            CommitFailed: one of them still cannot be done.
        """
        try:
            if self._bookmarks.failed:
                # First the file: while its disk is ill, the DB is better left open, so that it can be read.
                self._appender.put_right()
                self._bookmarks.recover()
            self._changer.finish()
        except (BookmarksUnavailable, OSError) as error:
            os_error = error if isinstance(error, OSError) else OSError(str(error))
            raise CommitFailed(self._file.path, CommitStep.REPAIR.value, os_error) from error

    def _write_bookmarks(self, *, flush: bool) -> None:
        """Write what waits for the DB. If that fails, the commit stands, and its bookmarks stay in memory."""
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
        """Call those who asked for it, after a commit or a truncation."""
        for callback in self.callbacks:
            try:
                callback(committed)
            except Exception:  # the commit stands, whatever a listener does
                _logger.exception("%s: a listener failed after a commit", self._file.path)
