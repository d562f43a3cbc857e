"""What the header page and the size of a stream file tell: whether it may be opened, and what is committed.

Every refusal of docs/spec/stream-file.md section 1.5 but the last, that the entries do not lead to the
header's totals (`streamfile.py` looks at those). The first thing that is wrong names the error; nothing is
changed.

Source: docs/spec/stream-file.md section 1.5.
"""

from __future__ import annotations

from pathlib import Path

from datastream.errors import (
    NotWholePages,
    ShorterThanHeaderPage,
    StreamFileRefused,
    TotalLengthOutOfFile,
    WrongHeaderSize,
    WrongMagic,
    WrongPacketType,
    WrongStreamType,
)
from datastream.file.disk import Disk
from datastream.file.recovery import FileState
from datastream.layout import (
    HEADER_OFFSET,
    HEADER_PAGE_SIZE,
    HEADER_SIZE,
    MAGIC,
    PACKET_HEADER,
    PAGE_SIZE,
    HeaderFields,
    StreamHeader,
    decode_header,
)

__all__ = ["inspect_header"]

_REFUSALS: dict[FileState, type[StreamFileRefused]] = {
    FileState.SHORTER_THAN_HEADER_PAGE: ShorterThanHeaderPage,
    FileState.NOT_WHOLE_PAGES: NotWholePages,
    FileState.WRONG_MAGIC: WrongMagic,
    FileState.WRONG_PACKET_TYPE: WrongPacketType,
    FileState.WRONG_HEADER_SIZE: WrongHeaderSize,
    FileState.WRONG_STREAM_TYPE: WrongStreamType,
    FileState.TOTAL_LENGTH_OUT_OF_FILE: TotalLengthOutOfFile,
}


def inspect_header(path: Path, disk: Disk, stream_type: int) -> StreamHeader:
    """Read the header page and check it with the file's size.

    Args:
        path: the file's name, for errors.
        disk: the open file.
        stream_type: what the header must say.

    Raises:
        StreamFileRefused: the class says what is wrong.
    """
    page = disk.pread(HEADER_OFFSET + HEADER_SIZE, 0)
    state, found, expected, fields = _judge(disk.size(), page, stream_type)
    if fields is None:
        raise _REFUSALS[state](path, found, expected)
    return fields.header


def _judge(size: int, page: bytes, stream_type: int) -> tuple[FileState, str, str, HeaderFields | None]:
    """Return the first thing that is wrong, as (state, found, expected, the header where nothing is)."""
    if size < HEADER_PAGE_SIZE:
        found, expected = f"{size} bytes", f"at least {HEADER_PAGE_SIZE}, the header page"
        return FileState.SHORTER_THAN_HEADER_PAGE, found, expected, None
    if page[:HEADER_OFFSET] != MAGIC:
        return FileState.WRONG_MAGIC, repr(page[:HEADER_OFFSET]), repr(MAGIC), None
    fields = decode_header(page[HEADER_OFFSET:])
    header = fields.header
    rest = (size - HEADER_PAGE_SIZE) % PAGE_SIZE
    checks = (
        (
            rest == 0,
            FileState.NOT_WHOLE_PAGES,
            f"{size} bytes, {rest} after the last whole page",
            f"{HEADER_PAGE_SIZE} plus a multiple of {PAGE_SIZE}",
        ),
        (
            fields.packet_type == PACKET_HEADER,
            FileState.WRONG_PACKET_TYPE,
            str(fields.packet_type),
            str(PACKET_HEADER),
        ),
        (
            fields.header_size == HEADER_SIZE,
            FileState.WRONG_HEADER_SIZE,
            str(fields.header_size),
            str(HEADER_SIZE),
        ),
        (
            header.stream_type == stream_type,
            FileState.WRONG_STREAM_TYPE,
            str(header.stream_type),
            str(stream_type),
        ),
        (
            HEADER_PAGE_SIZE <= header.total_length <= size,
            FileState.TOTAL_LENGTH_OUT_OF_FILE,
            str(header.total_length),
            f"{HEADER_PAGE_SIZE} to {size}, the file's size",
        ),
    )
    for sound, state, found, expected in checks:
        if not sound:
            return state, found, expected, None
    return FileState.CONSISTENT, "", "", fields
