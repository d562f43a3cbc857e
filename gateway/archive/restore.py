"""Restores the stream files of a data folder from an archive: all pages, each compared with its segment.

    DIR/restoring/      the files at work. What a kill left there is compared with the segments' hashes, and
                        kept where it has them
    DIR/datastream.bin  moved there last: the folder has a stream now

A stream of blocks ends with its last whole block. In the native layout both files end with the same block:
the last one whose entries are in both archives.

Source: docs/spec/archive.md; docs/archive.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from sluice.datastream import DataStreamer
from sluice.datastream.errors import BookmarkNotFound
from sluice.datastream.file.bookmarks import bookmarks_folder
from sluice.datastream.file.file_system import flush_folder
from sluice.datastream.file.remote_pages import SEGMENT_PAGES
from sluice.datastream.layout import HEADER_PAGE_SIZE, PAGE_SIZE, encode_header_page, page_start
from sluice.gateway.archive.errors import ArchiveUnavailable
from sluice.gateway.archive.objects import ArchiveStore, StoreOptions, open_store
from sluice.gateway.archive.segment import STREAM_NAME, SegmentName, StreamDescription, segment_name
from sluice.gateway.archive.segment_check import (
    SegmentCheck,
    SegmentEnds,
    SegmentOrder,
    fetch_pages,
    in_order,
    read_segment_index,
    segment_names,
)
from sluice.gateway.blocks.native_layout import entries_so_far
from sluice.gateway.blocks.stream_layout import NATIVE_LAYOUT, bookmark_of
from sluice.gateway.errors import Fatal
from sluice.gateway.regular_files import lock_folder, make_folder
from sluice.gateway.store.chain_file import SNAPSHOT_NAME
from sluice.gateway.store.evidence import BLOCK_FILE_NAME, STREAM_FILE_NAME

__all__ = ["RestoreProgress", "RestoredStream", "Restoring", "StoredStream", "open_streams"]

THREADS: Final = 4
"""Segments that are fetched at once. Each needs some MiB of memory."""
WORK_FOLDER: Final = "restoring"

RestoreProgress = Callable[[str, int, int], None]
"""Called with what is done, and the number of pages done and of all."""


@dataclass(frozen=True, slots=True)
class StoredStream:
    """One stream in an archive."""

    store: ArchiveStore
    description: StreamDescription
    file_name: str
    """The name that its file has in a data folder."""

    @property
    def has_blocks(self) -> bool:
        """Whether it holds blocks."""
        return self.description.first_block is not None


def open_streams(url: str, options: StoreOptions | None = None) -> list[StoredStream]:
    """Return the streams of an archive; in the native layout two, the network's first.

    Raises:
        Fatal: the URL is wrong, or there is no archive.
        ArchiveDamaged, ArchiveUnavailable: `stream.json` is none, or the store does not give it.
    """
    store = open_store(url, options, read_only=True)
    description = read_description(store)
    if description is None:
        raise Fatal(f"archive {url}", got=f"no {STREAM_NAME}", expected="the URL of an archive")
    if description.stream_layout != NATIVE_LAYOUT:
        return [StoredStream(store, description, STREAM_FILE_NAME)]
    if description.first_block is not None:
        expected = "the URL without /blocks"
        raise Fatal(f"archive {url}", got="one of the two streams of a native chain", expected=expected)
    blocks = open_store(store.url + "/blocks", options, read_only=True)
    of_blocks = read_description(blocks)
    if of_blocks is None or of_blocks.first_block is None:
        got = f"no {STREAM_NAME}" if of_blocks is None else "a stream without blocks"
        raise Fatal(f"archive {blocks.url}", got=got, expected="the blocks of the native chain")
    return [
        StoredStream(store, description, STREAM_FILE_NAME),
        StoredStream(blocks, of_blocks, BLOCK_FILE_NAME),
    ]


def read_description(store: ArchiveStore) -> StreamDescription | None:
    """Read `stream.json`; None without one."""
    found = store.get(STREAM_NAME)
    return None if found is None else StreamDescription.decode(found, store.address(STREAM_NAME))


@dataclass(frozen=True, slots=True)
class RestoredStream:
    """One restored stream."""

    path: Path
    """Its file, in the work folder."""
    segment_count: int
    kept_count: int
    """Segments that an earlier run had fetched."""
    total_entries: int
    first_block: int | None
    last_block: int | None


class Restoring:
    """The restoring of one data folder. A context manager: it locks the work folder.

    Raises:
        Fatal: the folder has a stream, or another program restores it.
    """

    def __init__(self, folder: Path, threads: int = THREADS) -> None:
        self.folder = folder
        self.work = folder / WORK_FOLDER
        self._progress: RestoreProgress = lambda what, done, total: None
        self._threads = threads
        self._stop = threading.Event()
        self._lock = contextlib.ExitStack()

    def __enter__(self) -> Restoring:
        make_folder(self.folder)
        is_resumed = self.work.is_dir()
        for name in [STREAM_FILE_NAME] if is_resumed else [*_names_of_files(), SNAPSHOT_NAME]:
            if (self.folder / name).exists() and not (is_resumed and self.is_done):
                expected = "a folder without a stream"
                raise Fatal(str(self.folder), got=f"{name} in it", expected=expected)
        make_folder(self.work)
        self._lock.enter_context(lock_folder(self.work, "only one sluice restore at work in this folder"))
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._lock.close()

    @property
    def is_done(self) -> bool:
        """Whether an earlier run was ended just before it removed its work folder."""
        return (self.folder / STREAM_FILE_NAME).exists() and not (self.work / STREAM_FILE_NAME).exists()

    # --- fetching -------------------------------------------------------------------------------------------

    def fetch(
        self,
        streams: Sequence[StoredStream],
        progress: RestoreProgress = lambda what, done, total: None,
        to_block: int | None = None,
    ) -> list[RestoredStream]:
        """Fetch streams into the work folder, cut them to the same whole block, and index their bookmarks.

        Args:
            streams: as `open_streams` returns them.
            progress: called again and again.
            to_block: the last block; None: as many as there are.

        Raises:
            ArchiveDamaged: the archive contradicts itself.
            ArchiveUnavailable: the store does not give an object; a further run goes on.
            Fatal: the archive has no such block; the disk has too little room.
            OSError: the disk refuses.
        """
        self._progress = progress
        for name in _names_of_files():  # a run was ended while it moved them
            if (self.folder / name).exists():
                (self.folder / name).rename(self.work / name)
        blocks = streams[-1]
        last = None
        if blocks.has_blocks:
            last = self._last_block(blocks, to_block)
        elif to_block is not None:
            raise Fatal("--to-block", got=str(to_block), expected=f"a stream of blocks in {blocks.store.url}")
        if last is None:
            whole = self._fetch_stream(blocks, lambda ends: False)
            return [self._cut(whole, blocks, None, None)]
        of_blocks = self._fetch_stream(blocks, lambda ends: _has_block(ends, last))
        if len(streams) == 1:
            return [self._cut(of_blocks, blocks, last, None)]
        network = streams[0]
        available = self._last_ends(network, segment_names(network.store))[1].entries_end
        with self._opened(of_blocks.path, blocks) as streamer:
            both = _last_within(streamer, blocks, last, available)
            if both is None or (to_block is not None and both < to_block):
                got = f"entries up to {available - 1}, all of those of block {both}"
                expected = (
                    f"those of block {last if to_block is not None else blocks.description.first_block}"
                )
                raise Fatal(f"archive {network.store.url}", got=got, expected=expected)
            entries = _entries_behind(streamer, both)
        of_network = self._fetch_stream(network, lambda ends: ends.entries_end >= entries)
        return [
            self._cut(of_network, network, None, entries),
            self._cut(of_blocks, blocks, both, None),
        ]

    def _last_block(self, stream: StoredStream, to_block: int | None) -> int:
        """Return the last block to restore, before anything is fetched."""
        url, first = stream.store.url, stream.description.first_block
        last = self._last_ends(stream, segment_names(stream.store))[0]
        if last is None:
            raise Fatal(f"archive {url}", got="no whole block", expected="at least one")
        if to_block is None:
            return last
        if first is None or not first <= to_block <= last:
            raise Fatal("--to-block", got=str(to_block), expected=f"{first} to {last}, as in {url}")
        return to_block

    def _last_ends(
        self, stream: StoredStream, names: Sequence[SegmentName]
    ) -> tuple[int | None, SegmentEnds]:
        """Return the last block that ends in these segments, and the ends of the last of them."""
        if not names:
            raise Fatal(f"archive {stream.store.url}", got="no segment", expected="at least one")
        ends = None
        for name in reversed(names):
            found = SegmentEnds.of(read_segment_index(stream.store, name), "")
            ends = ends or found
            if found.last_block is not None or not stream.has_blocks:
                return found.last_block, ends
        assert ends is not None
        return None, ends

    def _fetch_stream(self, stream: StoredStream, is_enough: Callable[[SegmentEnds], bool]) -> RestoredStream:
        """Fetch the segments of a stream up to the first one that is enough, and make the file a stream."""
        path, store = self.work / stream.file_name, stream.store
        names = segment_names(store)

        def enough(place: int) -> bool:
            last, ends = self._last_ends(stream, names[: place + 1])
            return is_enough(ends._replace(last_block=last))

        count = min(bisect_left(range(len(names)), True, key=enough) + 1, len(names))
        names = names[:count]
        shutil.rmtree(bookmarks_folder(path), ignore_errors=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.pwrite(fd, bytes(HEADER_PAGE_SIZE), 0)  # no stream yet
            os.ftruncate(fd, page_start(count * SEGMENT_PAGES))
            self._refuse_small_disk(fd, path)
            last, kept_count = self._fetch_all(fd, stream, names)
            os.fsync(fd)
            header = replace(
                stream.description.header, total_length=last.total_length, total_entries=last.entries_end
            )
            os.pwrite(fd, encode_header_page(header), 0)
            os.fsync(fd)
        finally:
            os.close(fd)
        flush_folder(self.work)
        first = stream.description.first_block
        return RestoredStream(path, count, kept_count, last.entries_end, first, None)

    def _refuse_small_disk(self, fd: int, path: Path) -> None:
        status = os.fstat(fd)
        needed = status.st_size - status.st_blocks * 512
        free = shutil.disk_usage(path).free
        if needed > free:
            raise Fatal(str(path), got=f"{free} bytes free", expected=f"{needed}, for the rest of the stream")

    def _fetch_all(
        self, fd: int, stream: StoredStream, names: Sequence[SegmentName]
    ) -> tuple[SegmentEnds, int]:
        """Fetch segments, several at once; return the ends of the last one, and how many were there."""
        order = SegmentOrder(stream.description.first_block)
        done_count = kept_count = 0
        ends: SegmentEnds | None = None
        self._stop.clear()
        with ThreadPoolExecutor(self._threads, "restore") as threads:
            calls = (partial(self._fetch_segment, fd, stream, name) for name in names)
            try:
                for ends, was_there in in_order(threads, calls, 2 * self._threads):
                    for fault in order.add(ends):
                        raise fault
                    kept_count += was_there
                    done_count += 1
                    pages_done, pages = done_count * SEGMENT_PAGES, len(names) * SEGMENT_PAGES
                    self._progress(f"fetching {stream.file_name}", pages_done, pages)
            except BaseException:
                self._stop.set()
                raise
        assert ends is not None
        return ends, kept_count

    def _fetch_segment(self, fd: int, stream: StoredStream, name: SegmentName) -> tuple[SegmentEnds, bool]:
        """Put the pages of a segment into the file, flushed; return its ends, and whether they were there."""
        store, start = stream.store, page_start(name.first_page)
        segment = read_segment_index(store, name)
        was_there = self._has_pages(fd, start, name.digest)
        pages = self._read_pages(fd, start) if was_there else fetch_pages(store, segment)
        where = store.address(segment_name(*name))
        check = SegmentCheck(segment, where, has_blocks=stream.has_blocks)
        for place, page in enumerate(pages):
            if self._stop.is_set():
                raise ArchiveUnavailable(where, "interrupted")
            check.add(page)
            if not was_there and os.pwrite(fd, page, start + place * PAGE_SIZE) != PAGE_SIZE:
                raise Fatal(str(self.work), got="a write that was cut", expected="room on the disk")
        ends = check.finish()
        if not was_there:
            os.fdatasync(fd)
        return ends, was_there

    def _has_pages(self, fd: int, start: int, digest: bytes) -> bool:
        """Return whether the file has the pages of a segment: an earlier run put them there."""
        end = start + SEGMENT_PAGES * PAGE_SIZE
        try:
            if os.lseek(fd, start, os.SEEK_DATA) >= end:
                return False
        except OSError:  # nothing but a hole up to the file's end
            return False
        found = hashlib.sha256()
        for page in self._read_pages(fd, start):
            found.update(page)
        return found.digest() == digest

    def _read_pages(self, fd: int, start: int) -> Iterator[bytes]:
        for offset in range(start, start + SEGMENT_PAGES * PAGE_SIZE, PAGE_SIZE):
            if self._stop.is_set():
                return
            yield os.pread(fd, PAGE_SIZE, offset)

    # --- cutting --------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _opened(self, path: Path, stream: StoredStream) -> Iterator[DataStreamer]:
        """Open a stream file; the first time makes the index of its bookmarks."""
        total = max((path.stat().st_size - HEADER_PAGE_SIZE) // PAGE_SIZE, 1)
        done = 0

        def go_on() -> None:
            nonlocal done
            done = min(done + 1, total)
            self._progress(f"indexing {stream.file_name}", done, total)

        kind = stream.description.stream_type
        with DataStreamer.open(path, stream_type=kind, go_on=go_on) as streamer:
            yield streamer

    def _cut(
        self, restored: RestoredStream, stream: StoredStream, last_block: int | None, entries: int | None
    ) -> RestoredStream:
        """Index a stream's bookmarks; cut it behind a block, or to a number of entries."""
        with self._opened(restored.path, stream) as streamer:
            if last_block is not None:
                entries = _end_of_block(streamer, last_block)
            if entries is not None and entries < streamer.committed.total_entries:
                streamer.truncate_file(entries)
            total = streamer.committed.total_entries
        return replace(restored, total_entries=total, last_block=last_block)

    # --- the end --------------------------------------------------------------------------------------------

    def finish(self, restored: Sequence[RestoredStream]) -> None:
        """Move the files into the data folder, durably; the stream that TCP clients read last.

        Raises:
            Fatal: the folder has got a stream meanwhile.
            OSError: the disk refuses.
        """
        for stream in reversed(restored):
            for source in (bookmarks_folder(stream.path), stream.path):
                target = self.folder / source.name
                if target.exists():
                    expected = f"none: a program has used the folder. The restored one is {source}"
                    raise Fatal(str(target), got="a stream", expected=expected)
                source.rename(target)
                flush_folder(self.folder)
        self.remove_work()

    def remove_work(self) -> None:
        """Remove the work folder."""
        shutil.rmtree(self.work)
        flush_folder(self.folder)


def _names_of_files() -> list[str]:
    files = (STREAM_FILE_NAME, BLOCK_FILE_NAME)
    return [*files, *(bookmarks_folder(Path(name)).name for name in files)]


def _has_block(ends: SegmentEnds, number: int) -> bool:
    return ends.last_block is not None and ends.last_block >= number


def _end_of_block(streamer: DataStreamer, number: int) -> int:
    """Return the number of the first entry behind a block."""
    try:
        return streamer.get_bookmark(bookmark_of(number + 1))
    except BookmarkNotFound:
        return streamer.committed.total_entries


def _entries_behind(streamer: DataStreamer, number: int) -> int:
    """Return the entries of the network's stream up to a block of the native layout."""
    return entries_so_far(streamer.get_entry(_end_of_block(streamer, number) - 1).data)


def _last_within(streamer: DataStreamer, stream: StoredStream, last: int, available: int) -> int | None:
    """Return the last block, up to `last`, whose entries are among those available; None: there is none."""
    first = stream.description.first_block
    assert first is not None
    place = bisect_left(
        range(first, last + 1), True, key=lambda number: _entries_behind(streamer, number) > available
    )
    return first + place - 1 if place else None
