"""The bytes of a stream file: one header page, then data pages. Pure.

    offset 0             4096               1_052_672
           | header page | data page 0, 1 MiB | data page 1, 1 MiB | ...
    header  magic 16 B | packet_type u8=1 | header_size u32=38 | version u8 | system_id u64 | stream_type u64
            | total_length u64 (bytes) | total_entries u64 (count)          all integers big-endian
    entry   packet_type u8=2 | entry_size u32 (17 + data) | entry_type u32 | entry_number u64 (0-based) | data

Invariants
  - A byte at or past `total_length` is not in the stream, whatever it holds.
  - No entry crosses a page end; the gap is padding, which begins with packet_type 0. Hence
    data_size <= PAGE_SIZE - 17.
  - Entry numbers run from 0 without gaps.

An *offset* counts bytes from the beginning of the file, a *position* bytes from the beginning of a data page.

Source: docs/spec/stream-file.md section 1; zkevm-data-streamer README, "STREAM FILE".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

__all__ = [
    "BOOKMARK_TYPE",
    "DATA_SIZE_MAX",
    "ENTRY_HEAD",
    "ENTRY_HEAD_SIZE",
    "HEADER_OFFSET",
    "HEADER_PAGE_SIZE",
    "HEADER_SIZE",
    "MAGIC",
    "NOT_FOUND_TYPE",
    "PACKET_ANSWER",
    "PACKET_DATA",
    "PACKET_HEADER",
    "PACKET_PADDING",
    "PACKET_RESULT",
    "PAGE_SIZE",
    "U64_MAX",
    "Committed",
    "Entry",
    "HeaderFields",
    "StreamHeader",
    "decode_entry",
    "decode_header",
    "encode_entry",
    "encode_header",
    "encode_header_page",
    "file_size_of",
    "page_end",
    "page_number_of",
    "page_start",
    "pages_used",
]

MAGIC = b"polygonDATSTREAM"
HEADER_PAGE_SIZE = 4096
PAGE_SIZE = 1 << 20
HEADER_OFFSET = len(MAGIC)
HEADER_SIZE = 38
ENTRY_HEAD_SIZE = 17
DATA_SIZE_MAX = PAGE_SIZE - ENTRY_HEAD_SIZE
BOOKMARK_TYPE = 0xB0
NOT_FOUND_TYPE = 0xFFFF_FFFF
"""Entry type of the answer to a command that found nothing (docs/spec/stream-file.md)."""
U64_MAX = (1 << 64) - 1

PACKET_PADDING = 0
PACKET_HEADER = 1
PACKET_DATA = 2
PACKET_ANSWER = 0xFE
PACKET_RESULT = 0xFF

_HEADER = struct.Struct(">BIBQQQQ")
ENTRY_HEAD = struct.Struct(">BIIQ")
"""packet_type, entry_size (bytes, with this head), entry_type, entry_number."""

assert _HEADER.size == HEADER_SIZE == 1 + 4 + 1 + 8 + 8 + 8 + 8  # streamfile.go headerSize
assert ENTRY_HEAD.size == ENTRY_HEAD_SIZE == 1 + 4 + 4 + 8
assert ENTRY_HEAD_SIZE + DATA_SIZE_MAX == PAGE_SIZE
assert HEADER_OFFSET == 16


class Committed(NamedTuple):
    """The committed totals. Both values change together, in one assignment."""

    total_length: int
    """Used bytes of the file: header page, entries and padding."""
    total_entries: int
    """Number of entries; also the number of the next one."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the stream."""

    type: int
    """u32: 0xb0 is a bookmark, other values are the application's."""
    number: int
    """u64, from 0 without gaps."""
    data: bytes
    """0 to DATA_SIZE_MAX bytes."""

    @property
    def is_bookmark(self) -> bool:
        """True if this entry is a bookmark."""
        return self.type == BOOKMARK_TYPE


@dataclass(frozen=True, slots=True)
class StreamHeader:
    """The header entry of a stream file."""

    version: int
    """u8: 1 or 2."""
    system_id: int
    """u64: which network, for instance its chain id."""
    stream_type: int
    """u64: 1 is the sequencer's stream."""
    total_length: int
    """Used bytes of the file, the header page included."""
    total_entries: int
    """Number of committed entries."""


class HeaderFields(NamedTuple):
    """A header entry as read, with its two constant fields."""

    packet_type: int
    header_size: int
    header: StreamHeader


def encode_header(header: StreamHeader) -> bytes:
    """Return the 38 bytes of a header entry."""
    return _HEADER.pack(
        PACKET_HEADER,
        HEADER_SIZE,
        header.version,
        header.system_id,
        header.stream_type,
        header.total_length,
        header.total_entries,
    )


def decode_header(data: bytes) -> HeaderFields:
    """Read a header entry from 38 bytes; the caller judges packet type and size."""
    packet_type, header_size, *fields = _HEADER.unpack_from(data)
    return HeaderFields(packet_type, header_size, StreamHeader(*fields))


def encode_header_page(header: StreamHeader) -> bytes:
    """Return the 4,096 bytes of the header page."""
    return (MAGIC + encode_header(header)).ljust(HEADER_PAGE_SIZE, b"\0")


def encode_entry(entry: Entry, packet_type: int = PACKET_DATA) -> bytes:
    """Return an entry's bytes as in the file, or with another first byte."""
    head = ENTRY_HEAD.pack(packet_type, ENTRY_HEAD_SIZE + len(entry.data), entry.type, entry.number)
    return head + entry.data


def decode_entry(data: bytes, position: int = 0) -> Entry:
    """Read the entry at `position` of `data`; the caller has checked its head."""
    _, size, entry_type, number = ENTRY_HEAD.unpack_from(data, position)
    return Entry(entry_type, number, bytes(data[position + ENTRY_HEAD_SIZE : position + size]))


def page_start(page_number: int) -> int:
    """Return the offset of a data page."""
    return HEADER_PAGE_SIZE + page_number * PAGE_SIZE


def page_end(page_number: int) -> int:
    """Return the offset just past a data page."""
    return HEADER_PAGE_SIZE + (page_number + 1) * PAGE_SIZE


def page_number_of(offset: int) -> int:
    """Return the data page of the byte at `offset`; a page's end is on the next page."""
    return (offset - HEADER_PAGE_SIZE) // PAGE_SIZE


def pages_used(total_length: int) -> int:
    """Return how many data pages hold a byte below `total_length`."""
    return -((HEADER_PAGE_SIZE - total_length) // PAGE_SIZE)


def file_size_of(page_count: int) -> int:
    """Return the size in bytes of a file with that many data pages."""
    return HEADER_PAGE_SIZE + page_count * PAGE_SIZE
