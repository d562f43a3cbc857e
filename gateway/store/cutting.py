"""Cutting the end off a stream that no server has open, for `sluice truncate`, in numbered steps.

    1  write    the cut entries become a stream file of their own, in a folder beside its place
    2  keep     that file is flushed and gets its name, and the name is flushed
    3  chain    in a node's data folder: chain.json is replaced by that of the last remaining block, flushed
    4  drop     the header with the lower totals, flushed: the commit point
                (`datastream.file.updating`, "A truncation is a commit of fewer entries"); of a native chain
                both headers (`store.stream_pair`)

A crash before 4 leaves the stream uncut, one after it leaves it cut. After any crash the same command
finishes: it accepts a file from step 2 with the same bytes.

The cut entries are a stream file, numbered from 0. If it begins with a block, it is a chain that begins
there. The blocks of a native chain become blocks of layout 2.

Source: docs/spec/stream-file.md sections 1 and 2.
"""

from __future__ import annotations

import contextlib
import filecmp
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sluice.datastream import DataStreamer
from sluice.datastream.errors import EntriesDisagree, StreamFileRefused
from sluice.datastream.file.disk import RealDisk
from sluice.datastream.file.file_system import flush_folder
from sluice.datastream.file.pages import PageFault, find_position
from sluice.datastream.file.streamfile import inspect_header
from sluice.datastream.layout import (
    BOOKMARK_TYPE,
    ENTRY_HEAD,
    ENTRY_HEAD_SIZE,
    HEADER_OFFSET,
    HEADER_SIZE,
    Entry,
    StreamHeader,
    decode_header,
    page_number_of,
    page_start,
)
from sluice.gateway.blocks.errors import ItemError
from sluice.gateway.blocks.items import header_of
from sluice.gateway.blocks.stream_layout import BOOKMARKS_MAX, StoredBlock, block_end_of, encode
from sluice.gateway.errors import Fatal

__all__ = [
    "CutCheck",
    "block_time",
    "check_place",
    "entries_of",
    "look_at",
    "stream_type_of",
    "taken",
    "write_cut",
    "write_entries",
]

COMMIT_BYTES: Final = 8 << 20
"""Data in one commit of the cut file."""


@dataclass(frozen=True, slots=True)
class CutCheck:
    """The contents of a stream file, read without a lock."""

    header: StreamHeader
    holds_blocks: bool


def look_at(path: Path) -> CutCheck:
    """Return the contents of a stream file, without a lock.

    Raises:
        OSError: it cannot be read.
        datastream.DatastreamError: it is no stream file, or damaged.
    """
    with contextlib.closing(RealDisk(path, writable=False)) as disk:
        header = _header_of(path, disk)
        if not header.total_entries:
            return CutCheck(header, holds_blocks=False)
        last = _last_entry(path, disk, header)
        return CutCheck(header, block_end_of(last.type, last.data) is not None)


def _last_entry(path: Path, disk: RealDisk, header: StreamHeader) -> Entry:
    """Read the last page, as others may be given up. Raises EntriesDisagree."""
    start = page_start(page_number_of(header.total_length - 1))
    page = disk.pread(header.total_length - start, start)
    number = header.total_entries - 1
    try:
        first = ENTRY_HEAD.unpack_from(page)[3] if len(page) >= ENTRY_HEAD_SIZE else header.total_entries
        position = find_position(page, first, number, header.total_entries)
    except PageFault as fault:
        raise EntriesDisagree(
            path, fault.number, start + fault.position, fault.found, fault.expected
        ) from None
    _, size, entry_type, _ = ENTRY_HEAD.unpack_from(page, position)
    return Entry(entry_type, number, page[position + ENTRY_HEAD_SIZE : position + size])


def stream_type_of(path: Path) -> int:
    """Return the stream type in a file's header; errors as `look_at`."""
    with contextlib.closing(RealDisk(path, writable=False)) as disk:
        return _header_of(path, disk).stream_type


def _header_of(path: Path, disk: RealDisk) -> StreamHeader:
    fields = decode_header(disk.pread(HEADER_SIZE, HEADER_OFFSET).ljust(HEADER_SIZE, b"\0"))
    return inspect_header(path, disk, fields.header.stream_type)


def block_time(streamer: DataStreamer, entry_number: int) -> int | None:
    """Return the time of the block at an entry, seconds since 1970; None: unreadable."""
    for entry in streamer.read_entries(entry_number):
        if entry.type != BOOKMARK_TYPE:
            try:
                return header_of(entry.data).block_timestamp.seconds
            except ItemError:
                return None
        if entry.number >= entry_number + BOOKMARKS_MAX:
            break
    return None


def check_place(place: Path, entry_count: int | None) -> None:
    """Refuse a place that is taken, except by a file of `entry_count` entries: a run was interrupted.

    None: it is not known how many there will be, and `write_entries` compares.

    Raises:
        Fatal: something else is there.
    """
    if not place.parent.is_dir():
        raise Fatal(
            str(place.parent), got="no such folder", expected="an existing folder for the cut entries"
        )
    if os.path.lexists(place):
        try:
            found = look_at(place).header.total_entries
            if entry_count in (None, found):
                return
        except (OSError, StreamFileRefused):
            pass
        raise taken(place)


def write_cut(
    streamer: DataStreamer,
    from_number: int,
    place: Path,
    go_on: Callable[[], None] = lambda: None,
    *,
    commit_bytes: int = COMMIT_BYTES,
) -> None:
    """Write the entries from `from_number` on to a stream file of their own: steps 1 and 2.

    Args:
        place: of the file; the same file may be there already.
        go_on: called after each commit; what it raises ends this, and nothing is left.
        commit_bytes: data in one commit.

    Raises:
        Fatal: another file is there, or the place cannot be written; nothing is left.
        datastream.DatastreamError: the disk refuses, or the stream is damaged; nothing is left.
    """
    write_entries(
        streamer.header, streamer.read_entries(from_number), place, go_on, commit_bytes=commit_bytes
    )


def entries_of(blocks: Iterable[StoredBlock]) -> Iterator[Entry]:
    """Yield the entries of blocks in layout 2, for `write_entries`."""
    for block in blocks:
        for entry_type, data in encode(block.number, block.items, block.root_hash):
            yield Entry(entry_type, 0, data)


def write_entries(
    header: StreamHeader,
    entries: Iterable[Entry],
    place: Path,
    go_on: Callable[[], None] = lambda: None,
    *,
    commit_bytes: int = COMMIT_BYTES,
) -> None:
    """Do as `write_cut` with these entries, of any numbers, and the type, system and version of `header`."""
    folder = place.with_name(f".{place.name}.part")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir()
        written = folder / "cut.bin"
        _copy(header, entries, written, go_on, commit_bytes)
        if os.path.lexists(place):
            if not filecmp.cmp(written, place, shallow=False):
                raise taken(place)
        else:
            written.rename(place)
        _flush(place)
        flush_folder(place.parent)
    except OSError as error:
        got = error.strerror or str(error)
        raise Fatal(str(place), got=got, expected="a file that can be written (--cut-to)") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _copy(
    header: StreamHeader,
    entries: Iterable[Entry],
    written: Path,
    go_on: Callable[[], None],
    commit_bytes: int,
) -> None:
    with DataStreamer.open(
        written,
        stream_type=header.stream_type,
        system_id=header.system_id,
        version=header.version,
        initial_pages=0,
        growth_pages=1,
    ) as copy:
        copy.start_atomic_op()
        size_bytes = 0
        for entry in entries:
            copy.add_copy(entry)
            size_bytes += len(entry.data)
            if size_bytes >= commit_bytes:
                copy.commit_atomic_op(flush=False)
                go_on()
                copy.start_atomic_op()
                size_bytes = 0
        copy.commit_atomic_op()  # this flushes those before, too


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def taken(place: Path) -> Fatal:
    """Return the error for a place that is taken."""
    return Fatal(
        str(place),
        got="a file or folder of that name",
        expected="a new file: --cut-to overwrites nothing",
    )
