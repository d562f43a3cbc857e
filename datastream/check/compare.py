"""The comparison of two streams: their data pages, byte by byte, up to the end of the shorter one.

Streams with the same entries in the same order have the same data pages, so a client can take its entry
number to another server. Of the header page only version, system id and stream type count.

Only bytes below the lengths first read from the headers are compared, so both streams may be in use. A header
with a length outside its file is refused.

Source: docs/spec/stream-file.md section 1; docs/spec/block-layout.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sluice.datastream.errors import (
    ShorterThanHeaderPage,
    StreamFileUnavailable,
    TotalLengthOutOfFile,
    WrongMagic,
)
from sluice.datastream.file.disk import Disk, RealDisk
from sluice.datastream.layout import (
    ENTRY_HEAD,
    ENTRY_HEAD_SIZE,
    HEADER_OFFSET,
    HEADER_PAGE_SIZE,
    HEADER_SIZE,
    MAGIC,
    PACKET_DATA,
    PAGE_SIZE,
    StreamHeader,
    decode_header,
    page_start,
    pages_used,
)

__all__ = ["Comparison", "Difference", "compare_streams"]

_COUNTED = ("version", "system_id", "stream_type")


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where two streams differ."""

    offset: int
    """Of the first different byte, in both files."""
    entry_number: int | None
    """The entry of that byte in the first stream; None if its page is unwalkable."""
    what: str
    """The contents of each."""

    def __str__(self) -> str:
        entry = "" if self.entry_number is None else f", entry {self.entry_number}"
        return f"offset {self.offset}{entry}: {self.what}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a comparison."""

    headers: tuple[StreamHeader, StreamHeader]
    """The headers as first read."""
    compared_length: int
    """The shorter committed length, up to which both were compared."""
    difference: Difference | None
    """The first difference; None without one."""

    @property
    def is_equal(self) -> bool:
        """True if the shorter stream is a beginning of the longer one."""
        return self.difference is None


def compare_streams(
    path: Path, other_path: Path, *, progress: Callable[[int, int], None] = lambda done, total: None
) -> Comparison:
    """Compare two stream files page by page, up to the first difference.

    Args:
        progress: called with the number of compared pages and of all pages.

    Raises:
        StreamFileUnavailable: the operating system refuses a file.
        ShorterThanHeaderPage, WrongMagic: a file is no stream.
        TotalLengthOutOfFile: a file ends before its stream does.
    """
    with contextlib.ExitStack() as stack:
        disks = [_open(each, stack) for each in (path, other_path)]
        headers = (_header(disks[0], path), _header(disks[1], other_path))
        length = min(header.total_length for header in headers)
        difference = _header_difference(*headers)
        page_count = pages_used(length) if difference is None else 0
        for page_number in range(page_count):
            start = page_start(page_number)
            size = min(PAGE_SIZE, length - start)
            pages = [
                _read(disk, size, start, each) for disk, each in zip(disks, (path, other_path), strict=True)
            ]
            # Files cut meanwhile are not equal at the end of both.
            if pages[0] != pages[1] or len(pages[0]) < size:
                difference = _page_difference(pages[0], pages[1], start)
                break
            progress(page_number + 1, page_count)
        return Comparison(headers, length, difference)


def _open(path: Path, stack: contextlib.ExitStack) -> Disk:
    try:
        disk = RealDisk(path, writable=False)
    except OSError as error:
        raise StreamFileUnavailable(path, error) from error
    stack.callback(disk.close)
    return disk


def _read(disk: Disk, size: int, offset: int, path: Path) -> bytes:
    try:
        return disk.pread(size, offset)
    except OSError as error:
        raise StreamFileUnavailable(path, error) from error


def _size(disk: Disk, path: Path) -> int:
    try:
        return disk.size()
    except OSError as error:
        raise StreamFileUnavailable(path, error) from error


def _header(disk: Disk, path: Path) -> StreamHeader:
    size = HEADER_OFFSET + HEADER_SIZE
    raw = _read(disk, size, 0, path)
    if len(raw) < size:
        raise ShorterThanHeaderPage(path, f"{len(raw)} bytes", f"at least {size}, the header")
    if not raw.startswith(MAGIC):
        raise WrongMagic(path, repr(raw[:HEADER_OFFSET]), repr(MAGIC))
    header = decode_header(raw[HEADER_OFFSET:]).header
    # After the header: an appending server lengthens the file before it writes the length.
    file_size = _size(disk, path)
    if not HEADER_PAGE_SIZE <= header.total_length <= file_size:
        expected = f"{HEADER_PAGE_SIZE} to {file_size}, the file's size"
        raise TotalLengthOutOfFile(path, str(header.total_length), expected)
    return header


def _header_difference(header: StreamHeader, other: StreamHeader) -> Difference | None:
    for name in _COUNTED:
        one, two = getattr(header, name), getattr(other, name)
        if one != two:
            return Difference(HEADER_OFFSET, None, f"{name.replace('_', ' ')} {one} and {two} in the headers")
    return None


def _page_difference(page: bytes, other: bytes, start: int) -> Difference:
    # A file that ends before the other differs there.
    short = min(len(page), len(other))
    at = next((position for position in range(short) if page[position] != other[position]), short)
    shown = [f"{each[at]:#04x}" if at < len(each) else "the end of the file" for each in (page, other)]
    return Difference(start + at, _entry_at(page, at), f"{shown[0]} and {shown[1]}")


def _entry_at(page: bytes, at: int) -> int | None:
    position = 0
    while position + ENTRY_HEAD_SIZE <= len(page):
        packet_type, size, _, number = ENTRY_HEAD.unpack_from(page, position)
        if packet_type != PACKET_DATA or size < ENTRY_HEAD_SIZE:
            return None
        if at < position + size:
            return int(number)
        position += size
    return None
