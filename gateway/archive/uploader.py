"""The uploader: puts each full segment of a stream into its archive, and gives old pages back to the disk.

    local pages ──► segment ──► store ──► read back, compared ──► noted, flushed ──► pages given up

A thread does it, with backoff for ever. Another gives pages up while a segment is under way.
Objects are named by their contents and written once, so several nodes of a chain upload side by side. Another
name for the same pages means that another node has other entries: then nothing is uploaded, and no page given
up, until somebody has looked.

Source: docs/archive.md; docs/spec/archive.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import IO, Final

from sluice.datastream import DataStreamer
from sluice.datastream.errors import DatastreamError
from sluice.datastream.file.remote_pages import SEGMENT_PAGES, SegmentRecord
from sluice.datastream.layout import PAGE_SIZE
from sluice.gateway.api.archive_pb2 import SegmentIndex
from sluice.gateway.archive.build_process import Abandoned, BuildProcess
from sluice.gateway.archive.errors import ArchiveDamaged, ArchiveUnavailable
from sluice.gateway.archive.objects import ArchiveStore
from sluice.gateway.archive.segment import (
    STREAM_NAME,
    SegmentObject,
    StreamDescription,
    compressed_header,
    header_name,
    segment_name,
    segment_of,
    segment_prefix,
)
from sluice.gateway.archive.segment_check import fetch_pages, read_segment_index
from sluice.gateway.backoff import backoff
from sluice.gateway.errors import GatewayError
from sluice.gateway.logs import fields

__all__ = ["Uploader", "UploaderPlan", "verify_segment"]

log = logging.getLogger(__name__)

BACKOFF_SECONDS: Final = 1.0
BACKOFF_SECONDS_MAX: Final = 60.0
LOOK_SECONDS: Final = 1.0
"""Time between two looks for a full segment."""
WAIT_SECONDS: Final = 30.0
"""Time between two looks for a segment that another node uploads."""
ROOM_SECONDS: Final = 0.2
"""Time between two looks for pages to give up."""
ROOM_PAGES: Final = 16
"""Each giving up flushes the marks, so it is of so many pages while a segment is under way."""
NICENESS: Final = 19
"""Of the process that builds a segment. A thread of ours is not nice: where it waits for a processor with
Python's lock held, the event loop waits, too."""
RESERVE_BYTES: Final = 8 << 20
"""Room for the bookmark DB on a full disk: to be opened again, and to note a segment, which makes room."""
NOTE_SECONDS: Final = 0.05
"""Time between two attempts to note a segment."""
_READ_BACK_BYTES: Final = 8 << 20
_COMPARED_BYTES: Final = 1 << 19
"""Python compares with its lock held, for which the node's event loop would wait."""


@dataclass(frozen=True, slots=True)
class UploaderPlan:
    """The part of a stream that is archived, and the part that stays."""

    description: Callable[[], StreamDescription]
    uploads: Callable[[], bool] = lambda: True
    """False: only wait for what other nodes upload."""
    entries_end: Callable[[], int] | None = None
    """Entries from this number on may still change; None: none may."""
    block_begin: Callable[[int], int] | None = None
    """Returns the first entry of the block that an entry is in; None: the stream holds no blocks."""
    local_bytes: int = 0
    """Of the stream file, that stay on the disk; 0: all."""
    keeps_from: Callable[[], int] | None = None
    """Entries from this number on stay on the disk."""


class Uploader:
    """Uploads one stream. `start` starts its threads, `close` ends them."""

    def __init__(
        self,
        streamer: DataStreamer,
        store: ArchiveStore,
        plan: UploaderPlan,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._streamer = streamer
        self._store = store
        self._plan = plan
        self._look_seconds = look_seconds
        self._build_process = BuildProcess()
        self._is_described = False
        self._unnoted: SegmentRecord | None = None
        """The segment that the archive has, and the disk has no room to say so."""
        self._reserve = streamer.path.with_suffix(".reserve")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="archive", daemon=True)
        self._room_thread = threading.Thread(target=self._make_room, name="archive-room", daemon=True)
        self._marks = threading.Lock()
        """Held to move a mark: each thread moves one, and both are written together."""
        self.last_error: str | None = None
        """The failure of the last attempt; None: it did not fail."""
        self.failures_count = 0
        """Failed attempts in a row."""
        self.disagreement: str | None = None
        """The names that disagree."""
        self.uploaded_count = 0
        """Segments that this process uploaded."""

    def start(self) -> None:
        """Start the threads."""
        self._thread.start()
        self._room_thread.start()

    def stop(self) -> None:
        """Tell the threads to end after the present request."""
        self._stop.set()

    def close(self, grace_seconds: float = 0.0) -> None:
        """End the threads, and close the store; nothing is half done.

        Args:
            grace_seconds: longest wait for the present request, which is abandoned then.
        """
        self.stop()
        if self._thread.ident is not None:
            self._thread.join(grace_seconds)
        self._store.close()
        for thread in (self._thread, self._room_thread):
            if thread.ident is not None:
                thread.join()
        self._build_process.close()

    @property
    def behind_pages(self) -> int:
        """Full pages that are not archived yet."""
        return max(0, self._streamer.sums.full_count - self._streamer.remote.archived_pages)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._keep_reserve()
                is_done = self.step()
                self.failures_count, self.last_error = 0, None
                # Who waits for others asks the store.
                pause = self._look_seconds if self._plan.uploads() else WAIT_SECONDS
                pause = 0.0 if is_done else pause
            except Abandoned:
                return
            except (GatewayError, DatastreamError, OSError) as error:
                if self._stop.is_set():
                    return
                pause = backoff(BACKOFF_SECONDS, BACKOFF_SECONDS_MAX, self.failures_count)
                if self._unnoted is not None:  # blocks may take the room; the store is not asked
                    pause = NOTE_SECONDS
                    with contextlib.suppress(OSError):
                        self._reserve.unlink()
                self.failures_count += 1
                if self.last_error != str(error):
                    log.error("archive: %s", error, extra=fields(retry_seconds=pause))
                self.last_error = str(error)
            except Exception:  # a bug of ours: blocks go on
                log.exception("archive")
                self.last_error, pause = "a bug; see the log", BACKOFF_SECONDS_MAX
            self._stop.wait(pause)

    def step(self) -> bool:
        """Archive the next segment if it is full, and give up old pages; return whether something was done.

        Raises:
            ArchiveUnavailable, ArchiveDamaged: the store does not answer, or holds something else.
            DatastreamError, OSError: the stream cannot be read, or the disk refuses.
        """
        is_done = self._archive_next()
        return self._give_up() or is_done

    # --- uploading ------------------------------------------------------------------------------------------

    def _archive_next(self) -> bool:
        if self._unnoted is not None:
            self._note()
            return True
        streamer, first_page = self._streamer, self._streamer.remote.archived_pages
        end_page = first_page + SEGMENT_PAGES
        if streamer.flushed_pages < end_page:
            return False
        limit = self._plan.entries_end
        if limit is not None and streamer.sums.first_number(end_page) > limit():
            return False
        if not self._is_described:
            self._describe()
        if not self._plan.uploads() and not any(self._names(first_page)):
            return False  # another node will
        # In memory: on the disk its pages would be flushed together with those of blocks.
        with os.fdopen(os.memfd_create("segment"), "w+b") as file:
            segment = self._build(first_page, file)
            self._look_for_others(segment)
            uploads = self._plan.uploads()
            is_new = uploads and self._store.put_new(segment_name(*segment.name), file)
            stored = verify_segment(self._store, segment, file if is_new else None)
            size = file.seek(0, os.SEEK_END)
        self._look_for_others(segment)
        if uploads:
            header = replace(
                streamer.header, total_length=segment.total_length, total_entries=segment.entries_end
            )
            self._store.put_new(header_name(end_page), compressed_header(header))
        self.uploaded_count += is_new
        self._unnoted = stored.record
        self._note()
        extra = fields(pages=f"{first_page}-{end_page - 1}", bytes=size, uploaded=is_new)
        log.info("segment archived", extra=extra)
        return True

    def _keep_reserve(self) -> None:
        """Take the reserve again, where it was used, or a kill left a part of it, and there is room."""
        with contextlib.suppress(OSError):
            is_whole = self._reserve.exists() and self._reserve.stat().st_size == RESERVE_BYTES
            if not self._plan.local_bytes or is_whole:
                return
            if shutil.disk_usage(self._reserve.parent).free > 2 * RESERVE_BYTES:
                with self._reserve.open("wb") as file:
                    os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)

    def _note(self) -> None:
        """Move the mark behind the segment that the archive has."""
        assert self._unnoted is not None
        with self._marks:
            self._streamer.note_archived(self._unnoted)
        self._unnoted = None

    def _describe(self) -> None:
        """Write `stream.json`, or compare the one that is there.

        Raises:
            ArchiveDamaged: the archive is of another stream.
        """
        where, ours = self._store.address(STREAM_NAME), self._plan.description()
        found = self._store.get(STREAM_NAME)
        if found is None and self._plan.uploads():
            self._store.put_new(STREAM_NAME, ours.encode())
            found = self._store.get(STREAM_NAME)
        if found is None:
            raise ArchiveUnavailable(where, "no such object yet; the node that uploads makes it")
        theirs = StreamDescription.decode(found, where)
        if theirs != ours:
            raise ArchiveDamaged("stream", str(theirs), f"{ours}, this node's stream", where)
        # The same bytes again, so this changes nothing, even where it may not be done.
        if self._plan.uploads() and self._store.put_new(STREAM_NAME, found):
            expected = "conditional writes (If-None-Match: *), which no store may do without here"
            raise ArchiveDamaged("store", "a write over an object that is there", expected, where)
        self._look_for_ours()
        self._is_described = True

    def _look_for_ours(self) -> None:
        """Raises ArchiveDamaged if the archive lacks what this node has archived: it would get a gap."""
        remote = self._streamer.remote
        if remote.archived_pages:
            last = remote.segment(remote.archived_pages - 1)
            name = segment_name(last.first_page, last.digest)
            if name not in self._names(last.first_page):
                got = f"no {name}"
                expected = "all that this node has archived: is archive.url that of another archive?"
                raise ArchiveDamaged("archive", got, expected, self._store.url)

    def _build(self, first_page: int, file: IO[bytes]) -> SegmentObject:
        """Build a segment from the pages of the file, which must fit their sums."""
        streamer, begin = self._streamer, self._plan.block_begin
        sums = streamer.sums
        for page_number in range(first_page, first_page + SEGMENT_PAGES):
            sums.require(page_number)
        first_number = sums.first_number(first_page)
        segment = self._build_process.build(
            streamer.fileno(),
            first_page,
            first_number,
            None if begin is None else begin(first_number),
            file,
            self._stop.is_set,
            0 if self._falls_behind else NICENESS,
        )
        for page_number, page in enumerate(segment.index.pages, first_page):
            sums.confirm(page_number, page.crc32c)
        return segment

    @property
    def _falls_behind(self) -> bool:
        """True if the disk would soon have more than the local window, at low priority."""
        window = self._plan.local_bytes // PAGE_SIZE
        return bool(window) and self.behind_pages > max(2 * SEGMENT_PAGES, window // 2)

    def _names(self, first_page: int) -> list[str]:
        return [name for name in self._store.names(segment_prefix(first_page)) if segment_of(name)]

    def _look_for_others(self, segment: SegmentObject) -> None:
        """Raises ArchiveDamaged if the archive has other pages in place of these."""
        ours = segment_name(*segment.name)
        others = [name for name in self._names(segment.first_page) if name != ours]
        self.disagreement = f"{self._store.address(others[0])}, here {ours}" if others else None
        if others:
            raise ArchiveDamaged(
                f"pages {segment.first_page} to {segment.first_page + SEGMENT_PAGES - 1}",
                ", ".join(others),
                f"only {ours}: two nodes disagree about these entries",
                self._store.url,
            )

    # --- giving up ------------------------------------------------------------------------------------------

    def _make_room(self) -> None:
        while not self._stop.wait(ROOM_SECONDS):
            with contextlib.suppress(DatastreamError, OSError):  # the other thread meets it, too, and tells
                self._give_up(ROOM_PAGES)

    def _give_up(self, least: int = 1) -> bool:
        """Give pages up that are archived and outside of the local window; return whether there were any.

        Args:
            least: fewer pages stay.
        """
        plan, streamer, remote = self._plan, self._streamer, self._streamer.remote
        if not plan.local_bytes or self.disagreement is not None:
            return False
        full_count = streamer.sums.full_count
        end = min(remote.archived_pages, full_count - max(SEGMENT_PAGES, plan.local_bytes // PAGE_SIZE))
        if plan.keeps_from is not None:
            end = min(end, streamer.page_of_entry(plan.keeps_from()))
        with self._marks:
            before = remote.end
            if end < max(before, 1) + least:
                return False
            return streamer.release_pages(end) > before


def verify_segment(
    store: ArchiveStore, segment: SegmentObject, written: IO[bytes] | None = None
) -> SegmentObject:
    """Read a segment back, and compare it; return it as it is in the store, perhaps with other frames.

    Args:
        segment: what it has to be.
        written: the object, if this program wrote it; another one may have compressed otherwise.

    Raises:
        ArchiveDamaged: it is something else, or its index is.
        ArchiveUnavailable: the store does not give it.
    """
    name = segment_name(*segment.name)
    where = store.address(name)
    if written is not None:
        size = written.seek(0, os.SEEK_END)
        for offset in range(0, size, _READ_BACK_BYTES):
            end = min(offset + _READ_BACK_BYTES, size)
            got = store.get_range(name, offset, end)
            for place in range(0, end - offset, _COMPARED_BYTES):
                piece = bytes(got[place : place + _COMPARED_BYTES])
                if (
                    os.pread(written.fileno(), min(_COMPARED_BYTES, end - offset - place), offset + place)
                    != piece
                ):
                    raise ArchiveDamaged("object", "other bytes", "those that were written", where)
        if store.get_tail(name, 1).object_size != size:
            raise ArchiveDamaged("object", "another size", f"{size} bytes", where)
        return segment
    found = read_segment_index(store, segment.name)
    if _without_frames(found.index) != _without_frames(segment.index):
        raise ArchiveDamaged("index", "another one", "that of these pages", where)
    found.digests = segment.digests
    digest = hashlib.sha256()
    for page in fetch_pages(store, found):
        digest.update(page)
    if digest.digest() != segment.name.digest:
        raise ArchiveDamaged("pages", digest.hexdigest(), segment.name.digest.hex(), where)
    return found


def _without_frames(index: SegmentIndex) -> SegmentIndex:
    """Return a copy of an index without what depends on who compressed the pages, and on later versions."""
    copy = SegmentIndex()
    copy.CopyFrom(index)
    copy.DiscardUnknownFields()  # type: ignore[no-untyped-call, unused-ignore]
    for page in copy.pages:
        page.frame_size = 0
    return copy
