"""The objects of an archive: `stream.json`, segments with their indexes, and header pages. Pure.

    segment   frame of page 0 | frame of page 1 | … | skippable frame: SegmentIndex | skippable frame: trailer

A frame is a zstd frame with the page's 1,048,576 bytes. zstd passes over skippable frames, so `zstd -dc` of a
header page and the segments in order of name gives the stream file. A reader finds the index from the end
of the object, and a page from the index.

An archive is not believed: whatever contradicts itself, or what was asked for, raises ArchiveDamaged.

Source: docs/spec/archive.md; RFC 8878 (zstd), section 3.1.2, "Skippable Frames".
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from itertools import accumulate
from typing import Any, Final, NamedTuple

import zstandard
from google.protobuf.message import DecodeError

from sluice.datastream.file.page_sums import sum_of
from sluice.datastream.file.pages import walk_page
from sluice.datastream.file.remote_pages import (
    SEGMENT_PAGES,
    UNKNOWN_DIGEST,
    ArchivedPage,
    SegmentRecord,
    digest_of,
)
from sluice.datastream.layout import (
    ENTRY_HEAD,
    ENTRY_HEAD_SIZE,
    HEADER_PAGE_SIZE,
    PAGE_SIZE,
    U64_MAX,
    StreamHeader,
    encode_header_page,
    page_start,
)
from sluice.datastream.limits import BOOKMARK_SIZE_MAX, BOOKMARK_SIZE_MIN
from sluice.gateway.api.archive_pb2 import Bookmark, Page, SegmentIndex
from sluice.gateway.archive.errors import ArchiveDamaged
from sluice.gateway.blocks.stream_layout import BLOCK_END_SIZE, BLOCK_END_TYPE, block_end_of

__all__ = [
    "FORMAT",
    "INDEX_BYTES_MAX",
    "STREAM_NAME",
    "TRAILER_SIZE",
    "ArchivedBlock",
    "SegmentBuilder",
    "SegmentName",
    "SegmentObject",
    "StreamDescription",
    "compressed_header",
    "decode_page",
    "header_name",
    "index_size",
    "read_index",
    "segment_name",
    "segment_of",
    "segment_prefix",
]

FORMAT: Final = 1
STREAM_NAME: Final = "stream.json"
_COMPRESSION_LEVEL: Final = 1
"""Level 3 takes 2.4 times the processor time, for objects that are 1 to 6 % smaller."""
_SKIPPABLE_MAGIC: Final = 0x184D2A50
_SKIPPABLE: Final = struct.Struct("<II")
"""Magic, bytes that follow."""
_TRAILER_MARK: Final = b"sluice-1"
_TRAILER: Final = struct.Struct(f"<IIQ{len(_TRAILER_MARK)}s")
"""A skippable frame: magic, 16, bytes of the index's frame, _TRAILER_MARK."""
TRAILER_SIZE: Final = _TRAILER.size
_FIRST_PAGE_DIGITS: Final = 12
_HASH_DIGITS: Final = 64
FRAME_BYTES_MAX: Final = 2 * PAGE_SIZE
"""Bytes of a page's frame. zstd adds 4 kB at most to what it cannot compress."""
INDEX_BYTES_MAX: Final = SEGMENT_PAGES * PAGE_SIZE
"""Bytes of an index and its trailer: a bookmark or a block takes more room on its page than in the index."""


# --- names --------------------------------------------------------------------------------------------------


class SegmentName(NamedTuple):
    """The parts of a segment's name."""

    first_page: int
    digest: bytes
    """SHA-256 of the raw pages."""


def segment_prefix(first_page: int) -> str:
    """Return the beginning of the names of all segments that begin with a page."""
    return f"segments/{first_page:0{_FIRST_PAGE_DIGITS}d}-"


def segment_name(first_page: int, digest: bytes) -> str:
    """Return the name of a segment."""
    return f"{segment_prefix(first_page)}{digest.hex()}.seg"


def segment_of(name: str) -> SegmentName | None:
    """Return the parts of a segment's name; None: it is another object's."""
    number, _, digest = name.removeprefix("segments/").removesuffix(".seg").partition("-")
    if number.isdecimal() and len(digest) == _HASH_DIGITS:
        try:
            found = SegmentName(int(number), bytes.fromhex(digest))
        except ValueError:
            return None
        if segment_name(*found) == name and found.first_page % SEGMENT_PAGES == 0:
            return found
    return None


def header_name(page_count: int) -> str:
    """Return the name of the header page of the stream's first pages."""
    return f"headers/{page_count:0{_FIRST_PAGE_DIGITS}d}.zst"


# --- the stream ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StreamDescription:
    """The contents of `stream.json`: what the stream is."""

    format: int
    system_id: int
    stream_type: int
    version: int
    """Of the stream file's header."""
    page_bytes: int
    segment_pages: int
    first_block: int | None
    """None: the stream holds no blocks."""
    stream_layout: int | None
    """The layout of its blocks."""

    @classmethod
    def of(
        cls, header: StreamHeader, first_block: int | None = None, stream_layout: int | None = None
    ) -> StreamDescription:
        """Describe a stream."""
        return cls(
            FORMAT,
            header.system_id,
            header.stream_type,
            header.version,
            PAGE_SIZE,
            SEGMENT_PAGES,
            first_block,
            stream_layout,
        )

    @property
    def header(self) -> StreamHeader:
        """The header of the stream without entries."""
        return StreamHeader(self.version, self.system_id, self.stream_type, HEADER_PAGE_SIZE, 0)

    def encode(self) -> bytes:
        """Return the bytes of the object."""
        return (json.dumps(asdict(self), indent=1) + "\n").encode()

    @classmethod
    def decode(cls, data: bytes, where: str) -> StreamDescription:
        """Read the object.

        Args:
            data: of the object.
            where: its address, for errors.

        Raises:
            ArchiveDamaged: it is none, or of a format that this version does not know.
        """
        try:
            found = json.loads(data)
            # A later version may add fields.
            fields: list[Any] = [found.get(name) for name in cls.__slots__]
            read = cls(*fields)
        except (ValueError, AttributeError, RecursionError):  # no JSON, or no object
            expected = f"a JSON object with {', '.join(cls.__slots__)}"
            raise ArchiveDamaged("description", f"{len(data)} bytes", expected, where) from None
        for name, kept in (("format", FORMAT), ("page_bytes", PAGE_SIZE), ("segment_pages", SEGMENT_PAGES)):
            if getattr(read, name) != kept:
                raise ArchiveDamaged(name, repr(getattr(read, name)), str(kept), where)
        for name, most in (("system_id", U64_MAX), ("stream_type", U64_MAX), ("version", 255)):
            value = getattr(read, name)
            if type(value) is not int or not 0 <= value <= most:
                raise ArchiveDamaged(name, repr(value), f"0 to {most}", where)
        for name in ("first_block", "stream_layout"):
            value = getattr(read, name)
            if value is not None and (type(value) is not int or not 0 <= value <= U64_MAX):
                raise ArchiveDamaged(name, repr(value), f"null, or 0 to {U64_MAX}", where)
        return read


def compressed_header(header: StreamHeader) -> bytes:
    """Return the object of a header page: one zstd frame."""
    return _compressor().compress(encode_header_page(header))


# --- segments -----------------------------------------------------------------------------------------------


class ArchivedBlock(NamedTuple):
    """A block that ends in a segment."""

    number: int
    first_entry: int
    """The number of its first entry."""
    root_hash: bytes


class SegmentObject:
    """A segment, from its name and its index.

    Args:
        digests: of its pages, where they were read.
    """

    def __init__(self, name: SegmentName, index: SegmentIndex, digests: Sequence[bytes] = ()) -> None:
        self.name = name
        self.index = index
        self.digests = digests

    @property
    def first_page(self) -> int:
        """The number of its first page."""
        return self.name.first_page

    @property
    def entries_begin(self) -> int:
        """The number of its first entry."""
        return self.index.pages[0].first_entry

    @property
    def entries_end(self) -> int:
        """The number after its last entry."""
        last = self.index.pages[-1]
        return last.first_entry + last.entry_count

    @property
    def total_length(self) -> int:
        """The total length of a stream that ends with this segment."""
        last_page = self.first_page + len(self.index.pages) - 1
        return page_start(last_page) + self.index.pages[-1].data_end

    @cached_property
    def frame_places(self) -> list[int]:
        """The offset of each page's frame in the object, and that of the index."""
        return [0, *accumulate(page.frame_size for page in self.index.pages)]

    def frames(self, first_page: int, count: int) -> tuple[int, int]:
        """Return the range (offset, end) of the frames of consecutive pages of the segment."""
        position = first_page - self.first_page
        return self.frame_places[position], self.frame_places[position + count]

    def pages_of(
        self, frames: bytes | memoryview, first_page: int, count: int, where: str
    ) -> Iterator[bytes]:
        """Yield pages, from the bytes of their frames.

        Raises:
            ArchiveDamaged: a page is not what the index says.
        """
        begin = self.frame_places[first_page - self.first_page]
        for number in range(first_page, first_page + count):
            position = number - self.first_page
            offset, end = self.frame_places[position] - begin, self.frame_places[position + 1] - begin
            crc = self.index.pages[position].crc32c
            yield decode_page(frames[offset:end], crc, f"{where}: page {number}")

    @property
    def record(self) -> SegmentRecord:
        """The record that a stream keeps of it."""
        digests = self.digests or [UNKNOWN_DIGEST] * len(self.index.pages)
        pages = (
            ArchivedPage(page.first_entry, page.data_end, page.frame_size, page.crc32c, digest)
            for page, digest in zip(self.index.pages, digests, strict=True)
        )
        return SegmentRecord(self.first_page, self.name.digest, tuple(pages))

    @property
    def roots_digest(self) -> bytes:
        """The digest by which a folder knows the proved root hashes of its blocks."""
        digest = hashlib.sha256()
        for block in self.index.blocks:
            digest.update(block.number.to_bytes(8, "big") + block.root_hash)
        return digest.digest()

    @property
    def blocks(self) -> Iterator[ArchivedBlock]:
        """The blocks that end in it."""
        for block in self.index.blocks:
            yield ArchivedBlock(block.number, block.entry, block.root_hash)


class SegmentBuilder:
    """Makes a segment's object from its pages, in order.

    Args:
        first_page: a multiple of SEGMENT_PAGES.
        block_begin: the number of the first entry of the block that is under way where the segment begins;
            None: the stream holds no blocks.
    """

    def __init__(self, first_page: int, block_begin: int | None = None) -> None:
        assert first_page % SEGMENT_PAGES == 0
        self.first_page = first_page
        self._compressor = _compressor()
        self._frames: list[bytes] = []
        self._digest = hashlib.sha256()
        self._page_digests: list[bytes] = []
        self._index = SegmentIndex(format=FORMAT, first_page=first_page)
        self._block_begin = block_begin

    @property
    def block_begin(self) -> int | None:
        """The number of the first entry behind the last whole block so far."""
        return self._block_begin

    def add(self, page: bytes, first_number: int, frame: bytes | None = None) -> int:
        """Add the next page; return the number after its last entry.

        Args:
            page: 1 MiB, walkable.
            first_number: the number of its first entry.
            frame: its frame; None: one is made.

        Raises:
            datastream.file.pages.PageFault: its entries cannot be walked.
        """
        assert len(page) == PAGE_SIZE
        walk = walk_page(page, first_number)
        self._digest.update(page)
        self._page_digests.append(digest_of(page))
        frame = self._compressor.compress(page) if frame is None else frame
        self._frames.append(frame)
        self._index.pages.append(
            Page(
                frame_size=len(frame),
                first_entry=first_number,
                entry_count=walk.entries_end - first_number,
                data_end=walk.data_end,
                crc32c=sum_of(page),
            )
        )
        self._index.bookmarks.extend(Bookmark(bookmark=key, entry=entry) for key, entry in walk.bookmarks)
        if self._block_begin is not None:
            self._block_begin = self._add_blocks(page, first_number, walk.data_end, self._block_begin)
        return walk.entries_end

    def _add_blocks(self, page: bytes, number: int, data_end: int, begin: int) -> int:
        """Add the blocks that end on a page; return the first entry of the block after them."""
        position, unpack_head = 0, ENTRY_HEAD.unpack_from
        while position < data_end:
            _, size, entry_type, _ = unpack_head(page, position)
            if entry_type == BLOCK_END_TYPE and size >= ENTRY_HEAD_SIZE + BLOCK_END_SIZE:
                found = block_end_of(entry_type, page[position + ENTRY_HEAD_SIZE : position + size])
                if found is not None:
                    self._index.blocks.add(number=found[0], entry=begin, root_hash=found[1])
                    begin = number + 1
            position += size
            number += 1
        return begin

    @property
    def pages(self) -> Sequence[Page]:
        """The index's records of the pages so far."""
        return self._index.pages

    @property
    def segment(self) -> SegmentObject:
        """The segment of the pages so far."""
        name = SegmentName(self.first_page, self._digest.digest())
        return SegmentObject(name, self._index, self._page_digests)

    def finish(self) -> tuple[SegmentObject, bytes]:
        """Return the segment, and its object."""
        index = self._index.SerializeToString(deterministic=True)
        index_frame = _SKIPPABLE.pack(_SKIPPABLE_MAGIC, len(index)) + index
        trailer = _TRAILER.pack(_SKIPPABLE_MAGIC, _TRAILER.size - 8, len(index_frame), _TRAILER_MARK)
        return self.segment, b"".join((*self._frames, index_frame, trailer))


def _compressor() -> zstandard.ZstdCompressor:
    return zstandard.ZstdCompressor(level=_COMPRESSION_LEVEL, write_checksum=False, write_content_size=True)


def decode_page(frame: bytes | memoryview, crc: int | None, where: str) -> bytes:
    """Return the bytes of a page, from its frame.

    Args:
        crc: CRC32C of the page; None: the caller compares more.
        where: the page's address, for errors.

    Raises:
        ArchiveDamaged: the frame is not that of the page.
    """
    try:
        size = zstandard.get_frame_parameters(frame).content_size
        decompress = partial(zstandard.ZstdDecompressor().decompress, allow_extra_data=False)
        data = decompress(frame) if size == PAGE_SIZE else b""
    except zstandard.ZstdError as error:
        raise ArchiveDamaged("zstd frame", str(error), "a data page", where) from None
    if len(data) != PAGE_SIZE:
        raise ArchiveDamaged("zstd frame", f"{size} bytes of contents", str(PAGE_SIZE), where)
    if crc is not None and sum_of(data) != crc:
        raise ArchiveDamaged("CRC32C", f"{sum_of(data):08x}", f"{crc:08x}, as in the index", where)
    return data


def index_size(tail: bytes, where: str) -> int:
    """Return how many bytes at the end of a segment's object are index and trailer, from its last bytes.

    Args:
        tail: at least TRAILER_SIZE bytes, if the object has so many.
        where: the object's address, for errors.

    Raises:
        ArchiveDamaged: it does not end with a trailer, or states an index that is too large.
    """
    if len(tail) >= TRAILER_SIZE:
        magic, size, index_frame_size, mark = _TRAILER.unpack(tail[-TRAILER_SIZE:])
        if (magic, size, mark) == (_SKIPPABLE_MAGIC, TRAILER_SIZE - 8, _TRAILER_MARK):
            if index_frame_size + TRAILER_SIZE > INDEX_BYTES_MAX:
                raise ArchiveDamaged(
                    "index", f"{index_frame_size} bytes", f"at most {INDEX_BYTES_MAX}", where
                )
            return int(index_frame_size) + TRAILER_SIZE
    raise ArchiveDamaged("segment", f"{tail[-TRAILER_SIZE:].hex()} at its end", "its trailer", where)


def read_index(name: SegmentName, tail: bytes, object_size: int, where: str) -> SegmentObject:
    """Return a segment, from the end of its object.

    Args:
        name: of the segment.
        tail: at least its last `index_size` bytes.
        object_size: bytes of the object.
        where: its address, for errors.

    Raises:
        ArchiveDamaged: the index is not that of a segment with this name and size.
    """
    size = index_size(tail, where)
    frame = tail[len(tail) - size : len(tail) - TRAILER_SIZE] if size <= len(tail) else b""
    if len(frame) < _SKIPPABLE.size or _SKIPPABLE.unpack_from(frame) != (_SKIPPABLE_MAGIC, len(frame) - 8):
        raise ArchiveDamaged("index", f"{len(frame)} bytes", "a skippable frame", where)
    try:
        index = SegmentIndex.FromString(frame[_SKIPPABLE.size :])
    except DecodeError as error:
        raise ArchiveDamaged("index", str(error), "a SegmentIndex", where) from None
    fault = _fault_of(index, name.first_page)
    segment = SegmentObject(name, index)
    if fault is None and segment.frame_places[-1] + size != object_size:
        fault = f"{segment.frame_places[-1] + size} bytes", f"{object_size}, the size of the object"
    if fault is not None:
        raise ArchiveDamaged("index", *fault, where)
    return segment


def _fault_of(index: SegmentIndex, first_page: int) -> tuple[str, str] | None:
    """Return (got, expected) of what is wrong in an index, or None."""
    if (index.format, index.first_page) != (FORMAT, first_page):
        return f"format {index.format}, first page {index.first_page}", f"{FORMAT}, {first_page}"
    if len(index.pages) != SEGMENT_PAGES:
        return f"{len(index.pages)} pages", str(SEGMENT_PAGES)
    following = index.pages[0].first_entry
    for number, page in enumerate(index.pages, first_page):
        if page.first_entry != following or not 0 < page.entry_count <= PAGE_SIZE // ENTRY_HEAD_SIZE:
            got = f"page {number} with {page.entry_count} entries from {page.first_entry} on"
            return got, f"one or more, from {following} on"
        if not ENTRY_HEAD_SIZE * page.entry_count <= page.data_end <= PAGE_SIZE:
            return f"page {number} with data up to {page.data_end}", f"at most {PAGE_SIZE}"
        if page.frame_size > FRAME_BYTES_MAX:
            return f"page {number} with a frame of {page.frame_size} bytes", f"at most {FRAME_BYTES_MAX}"
        following += page.entry_count
    begin = index.pages[0].first_entry
    return _disorder("bookmark", [mark.entry for mark in index.bookmarks], begin, following) or _wrong_marks(
        index
    )


def _wrong_marks(index: SegmentIndex) -> tuple[str, str] | None:
    for mark in index.bookmarks:
        if not BOOKMARK_SIZE_MIN <= len(mark.bookmark) <= BOOKMARK_SIZE_MAX:
            return f"a bookmark of {len(mark.bookmark)} bytes", f"1 to {BOOKMARK_SIZE_MAX}"
    blocks = index.blocks
    for place, block in enumerate(blocks):
        number = blocks[0].number + place
        if block.number != number or len(block.root_hash) != BLOCK_END_SIZE - 8:
            got = f"block {block.number} with a root hash of {len(block.root_hash)} bytes"
            return got, f"block {number}, {BLOCK_END_SIZE - 8}"
    last = index.pages[-1]
    return _disorder("block", [block.entry for block in blocks], 0, last.first_entry + last.entry_count)


def _disorder(what: str, entries: Sequence[int], begin: int, end: int) -> tuple[str, str] | None:
    before = begin - 1
    for entry in entries:
        if not before < entry < end:
            return f"a {what} at entry {entry}", f"one from {before + 1} to {end - 1}"
        before = entry
    return None
