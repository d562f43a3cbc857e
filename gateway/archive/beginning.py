"""Beginning a node's data folder from an archive: all indexes, and the pages of the last segment.

    data_dir/datastream.bin    holes, but page 0 and the pages of the last segment; ends with its last block
    data_dir/datastream.db     all bookmarks, and the records of the segments
    data_dir/chain.json        the tree of the root hashes of all blocks, by the indexes

Nothing is believed. The footer of the last block has the root of that tree, and its proof signs the footer:
the node checks both before it serves anybody (`store.last_block`). That proves the root hashes in the
indexes. The folder keeps a digest of each segment's, and a page that is read for the first time has its
blocks compared with them (`store.page_blocks`).

A file marks the folder until the last block is proved. While it is there the folder is begun again: what an
interrupted beginning, or an archive that was refused, left there is no node's.

Source: docs/archive.md.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final

from sluice.datastream.file.bookmarks import BookmarkIndex, bookmarks_folder
from sluice.datastream.file.disk import RealDisk, create_file
from sluice.datastream.file.file_system import flush_folder
from sluice.datastream.file.remote_pages import ROOTS_KEY, SEGMENT_PAGES, RemotePages
from sluice.datastream.file.streamfile import StreamFile
from sluice.datastream.layout import (
    ENTRY_HEAD,
    ENTRY_HEAD_SIZE,
    HEADER_PAGE_SIZE,
    PAGE_SIZE,
    Committed,
    encode_header_page,
    file_size_of,
    page_number_of,
    page_start,
)
from sluice.gateway.archive.errors import ArchiveDamaged
from sluice.gateway.archive.objects import ArchiveStore
from sluice.gateway.archive.segment import (
    STREAM_NAME,
    SegmentName,
    SegmentObject,
    StreamDescription,
    index_size,
    read_index,
    segment_name,
    segment_of,
)
from sluice.gateway.blocks.chain import Chain
from sluice.gateway.blocks.stream_layout import BLOCK_END_TYPE, NATIVE_LAYOUT, block_end_of, layout_of
from sluice.gateway.errors import Fatal
from sluice.gateway.logs import fields
from sluice.gateway.regular_files import make_folder, replace_file
from sluice.gateway.store.chain_file import SNAPSHOT_NAME, Snapshot, pack
from sluice.gateway.store.evidence import STREAM_FILE_NAME

__all__ = ["begin_from_archive", "keep_beginning", "read_segment_index", "roots_digest", "segment_names"]

log = logging.getLogger(__name__)

INDEX_BYTES: Final = 1 << 17
"""Bytes at the end of a segment that are read at once; a longer index takes a second read."""
THREADS: Final = 16
LOG_SEGMENTS: Final = 1_024
"""Segments between two log lines."""
_MARK_NAME: Final = ".archive-start"
"""A file that is there until the last block of a begun folder is proved."""


def begin_from_archive(
    data_dir: Path, store: ArchiveStore, stream_type: int, go_on: Callable[[], None] = lambda: None
) -> bool:
    """Begin a node's data folder from an archive, if the folder is new and the archive has blocks.

    Args:
        data_dir: empty, or left by a beginning that was interrupted or refused; else nothing is done.
        stream_type: of the node's settings.
        go_on: called again and again; what it raises ends the beginning.

    Returns:
        Whether the folder was begun. It counts once `keep_beginning` was called.

    Raises:
        ArchiveDamaged: the archive contradicts itself.
        ArchiveUnavailable: the store does not give an object.
        Fatal: a node cannot begin with this archive.
    """
    make_folder(data_dir)
    mark, path = data_dir / _MARK_NAME, data_dir / STREAM_FILE_NAME
    if mark.exists():
        path.unlink(missing_ok=True)
        shutil.rmtree(bookmarks_folder(path), ignore_errors=True)
        (data_dir / SNAPSHOT_NAME).unlink(missing_ok=True)
        flush_folder(data_dir)
        keep_beginning(data_dir)
    elif path.exists():
        return False
    elif bookmarks_folder(path).exists() or any(data_dir.glob("*.json")):
        return False  # the node's files are lost, or elsewhere: the opening says so
    description = store.get(STREAM_NAME)
    if description is None:
        log.info("the archive is empty: this node begins it", extra=fields(archive=store.url))
        return False
    stream = StreamDescription.decode(description, store.address(STREAM_NAME))
    _refuse_other(stream, store, stream_type)
    segments = _all_indexes(store, go_on)
    while segments and not segments[-1].index.blocks:
        segments.pop()  # the middle of a long block, which begins before
    if not segments:
        log.info("the archive has no whole block yet", extra=fields(archive=store.url))
        return False
    mark.touch()
    flush_folder(data_dir)
    _write(path, store, stream, segments)
    last = segments[-1].index.blocks[-1].number
    extra = fields(archive=store.url, segments=len(segments), last_block=last)
    log.info("data folder begun from the archive", extra=extra)
    return True


def keep_beginning(data_dir: Path) -> None:
    """Have a folder count as a node's, durably: its last block is proved."""
    mark = data_dir / _MARK_NAME
    if mark.exists():
        mark.unlink()
        flush_folder(data_dir)


def _refuse_other(stream: StreamDescription, store: ArchiveStore, stream_type: int) -> None:
    where = store.address(STREAM_NAME)
    if stream.stream_type != stream_type:
        raise Fatal(f"{where}: stream_type", got=str(stream.stream_type), expected=str(stream_type))
    if stream.first_block != 0 or stream.stream_layout == NATIVE_LAYOUT:
        got = f"first block {stream.first_block}, layout {stream.stream_layout}"
        expected = (
            "blocks from 0 on in layout 1 or 2: only their footers have the root of all block hashes, by "
            "which one signature proves the archive. Fetch and verify it first: sluice restore"
        )
        raise Fatal(where, got=got, expected=expected)


# --- reading the indexes ------------------------------------------------------------------------------------


def segment_names(store: ArchiveStore) -> list[SegmentName]:
    """Return the names of an archive's segments, in order.

    Raises:
        ArchiveDamaged: one is missing, or there are two for the same pages.
    """
    names = [name for text in store.names("segments/") if (name := segment_of(text)) is not None]
    for place, name in enumerate(names):
        expected = place * SEGMENT_PAGES
        if name.first_page != expected:
            found = store.address(segment_name(*name))
            before = names[place - 1] if place else None
            if before is not None and before.first_page == name.first_page:
                words = f"only one of it and {segment_name(*before)}: two nodes disagree about these entries"
                raise ArchiveDamaged("segment", found, words, store.url)
            raise ArchiveDamaged("segment", f"{found} next", f"the one of page {expected}", store.url)
    return names


def read_segment_index(store: ArchiveStore, name: SegmentName) -> SegmentObject:
    """Read the index of a segment.

    Raises:
        ArchiveDamaged: it is not that of this segment.
        ArchiveUnavailable: the store does not give it.
    """
    text = segment_name(*name)
    where = store.address(text)
    tail = store.get_tail(text, INDEX_BYTES)
    data, size = tail.data, index_size(tail.data, where)
    if len(data) < size <= tail.object_size:
        data = bytes(store.get_range(text, tail.object_size - size, tail.object_size))
    return read_index(name, data, tail.object_size, where)


def _all_indexes(store: ArchiveStore, go_on: Callable[[], None]) -> list[SegmentObject]:
    names = segment_names(store)
    segments: list[SegmentObject] = []
    with ThreadPoolExecutor(THREADS, "archive-index") as threads:
        try:
            for segment in threads.map(lambda name: read_segment_index(store, name), names):
                go_on()
                _check_order(store, segments, segment)
                segments.append(segment)
                if len(segments) % LOG_SEGMENTS == 0:
                    extra = fields(archive=store.url, segments=len(segments), of=len(names))
                    log.info("reading the indexes of the archive", extra=extra)
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    return segments


def _check_order(store: ArchiveStore, before: Sequence[SegmentObject], segment: SegmentObject) -> None:
    """Raises ArchiveDamaged if a segment does not continue the ones before."""
    where = store.address(segment_name(*segment.name))
    expected = before[-1].entries_end if before else 0
    if segment.entries_begin != expected:
        raise ArchiveDamaged("first entry", str(segment.entries_begin), str(expected), where)
    following = next((one.index.blocks[-1].number + 1 for one in reversed(before) if one.index.blocks), 0)
    if segment.index.blocks and segment.index.blocks[0].number != following:
        got = str(segment.index.blocks[0].number)
        raise ArchiveDamaged("first block that ends here", got, str(following), where)


def roots_digest(segment: SegmentObject) -> bytes:
    """Return the digest by which a folder knows the proved root hashes of a segment's blocks."""
    digest = hashlib.sha256()
    for block in segment.index.blocks:
        digest.update(block.number.to_bytes(8, "big") + block.root_hash)
    return digest.digest()


# --- writing the folder -------------------------------------------------------------------------------------


def _write(
    path: Path, store: ArchiveStore, stream: StreamDescription, segments: Sequence[SegmentObject]
) -> None:
    last = segments[-1]
    pages = dict(_fetched(store, last))
    totals = _end_of_last_block(store, last, pages)
    if last.first_page:
        pages[0] = next(_fetched(store, segments[0], 1))[1]
    header = replace(stream.header, total_length=totals.total_length, total_entries=totals.total_entries)
    last_page = page_number_of(totals.total_length - 1)
    new = path.with_name(path.name + ".begun")
    new.unlink(missing_ok=True)
    create_file(new, encode_header_page(header), file_size_of(last_page + 1))
    disk = RealDisk(new)
    try:
        for page_number, page in pages.items():
            if page_number <= last_page:
                size = min(PAGE_SIZE, totals.total_length - page_start(page_number))
                disk.pwrite(page[:size], page_start(page_number))
        disk.fdatasync()
        file = StreamFile(path, disk, header)
        chain = _chain_of(segments)
        _write_index(path, file, segments)
        layout = layout_of(ENTRY_HEAD.unpack_from(pages[0], _second_entry(pages[0]))[2])
        replace_file(path.with_name(SNAPSHOT_NAME), pack(Snapshot(chain, layout)).encode(), flush=True)
    finally:
        disk.close()
    new.rename(path)
    flush_folder(path.parent)


def _second_entry(page: bytes) -> int:
    """Return the position of a page's second entry."""
    return int(ENTRY_HEAD.unpack_from(page, 0)[1])


def _fetched(
    store: ArchiveStore, segment: SegmentObject, count: int = SEGMENT_PAGES
) -> Iterator[tuple[int, bytes]]:
    """Yield (number, page) of a segment's first pages."""
    name = segment_name(*segment.name)
    offset, end = segment.frames(segment.first_page, count)
    frames = store.get_range(name, offset, end)
    pages = segment.pages_of(frames, segment.first_page, count, store.address(name))
    yield from enumerate(pages, segment.first_page)


def _end_of_last_block(store: ArchiveStore, segment: SegmentObject, pages: Mapping[int, bytes]) -> Committed:
    """Return the totals of the stream that ends with the last block of a segment; compare its blocks."""
    found: list[tuple[int, bytes]] = []
    totals = Committed(HEADER_PAGE_SIZE, 0)
    for place, record in enumerate(segment.index.pages):
        page_number = segment.first_page + place
        page, position, number = pages[page_number], 0, record.first_entry
        while position + ENTRY_HEAD_SIZE <= record.data_end:
            _, size, entry_type, got = ENTRY_HEAD.unpack_from(page, position)
            end = position + max(size, ENTRY_HEAD_SIZE)
            if got != number:
                where = f"{store.address(segment_name(*segment.name))}: page {page_number}"
                raise ArchiveDamaged("entry number", str(got), str(number), where)
            block = block_end_of(entry_type, page[position + ENTRY_HEAD_SIZE : end])
            if entry_type == BLOCK_END_TYPE and block is not None:
                found.append(block)
                totals = Committed(page_start(page_number) + end, number + 1)
            position, number = end, number + 1
    expected = [(block.number, block.root_hash) for block in segment.index.blocks]
    if found != expected:
        where = store.address(segment_name(*segment.name))
        raise ArchiveDamaged("blocks", f"{len(found)} others", f"the {len(expected)} of its index", where)
    return totals


def _chain_of(segments: Sequence[SegmentObject]) -> Chain:
    chain = Chain(0)
    for segment in segments:
        for block in segment.index.blocks:
            chain.advance(block.number, block.root_hash)
    return chain


def _write_index(path: Path, file: StreamFile, segments: Sequence[SegmentObject]) -> None:
    total_entries = file.committed.total_entries
    archived_pages = segments[-1].first_page
    index = BookmarkIndex(path)
    try:
        notes = RemotePages(path).marks(archived_pages, archived_pages if archived_pages > 1 else 0)
        for segment in segments:
            notes |= RemotePages.note_of(segment.record)
            notes[ROOTS_KEY + segment.first_page.to_bytes(8, "big")] = roots_digest(segment)
        index.put_flushed(notes)
        for segment in segments:
            marks = {
                mark.bookmark: mark.entry for mark in segment.index.bookmarks if mark.entry < total_entries
            }
            index.record(marks, min(segment.entries_end, total_entries))
            index.write_pending()
        index.fingerprint_at = file.fingerprint_at
        index.record({}, total_entries)
        index.write_pending()
        index.put_flushed({})
    finally:
        index.close()
