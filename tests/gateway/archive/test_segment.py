"""The objects of an archive: what is read back, and what is refused."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable

import pytest
import zstandard

from sluice.datastream.file.page_sums import sum_of
from sluice.datastream.layout import PAGE_SIZE, StreamHeader
from sluice.gateway.api.archive_pb2 import SegmentIndex
from sluice.gateway.archive.errors import ArchiveDamaged
from sluice.gateway.archive.segment import (
    TRAILER_SIZE,
    SegmentBuilder,
    SegmentName,
    StreamDescription,
    decode_page,
    header_name,
    index_size,
    read_index,
    segment_name,
    segment_of,
    segment_prefix,
)
from tests.vectors.maker import ARCHIVE

OBJECT = next((ARCHIVE / "segments").iterdir())
DATA = OBJECT.read_bytes()
SIZE = index_size(DATA, "")
FRAMES, INDEX = DATA[:-SIZE], DATA[-SIZE + 8 : -TRAILER_SIZE]
WHERE = "s3://b/segments/x.seg"


def name_of_object() -> SegmentName:
    found = segment_of(f"segments/{OBJECT.name}")
    assert found is not None
    return found


NAME = name_of_object()


def with_index(index: bytes, frames: bytes = FRAMES) -> bytes:
    """Return an object with this index."""
    frame = struct.pack("<II", 0x184D2A50, len(index)) + index
    return frames + frame + struct.pack("<IIQ8s", 0x184D2A50, 16, len(frame), b"sluice-1")


def changed(change: Callable[[SegmentIndex], object]) -> bytes:
    """Return the object with a changed index."""
    index = SegmentIndex.FromString(INDEX)
    change(index)
    return with_index(index.SerializeToString())


def read(data: bytes, name: SegmentName = NAME, size: int | None = None) -> None:
    read_index(name, data, len(data) if size is None else size, WHERE)


# --- names --------------------------------------------------------------------------------------------------


def test_names() -> None:
    name = SegmentName(128, bytes(range(32)))
    assert segment_name(*name) == f"segments/000000000128-{bytes(range(32)).hex()}.seg"
    assert segment_of(segment_name(*name)) == name
    assert segment_name(*name).startswith(segment_prefix(128))
    assert header_name(64) == "headers/000000000064.zst"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "segments/",
        "stream.json",
        f"segments/000000000128-{'ab' * 32}",
        f"000000000128-{'ab' * 32}.seg",
        f"segments/000000000127-{'ab' * 32}.seg",  # not the first page of a segment
        f"segments/128-{'ab' * 32}.seg",
        f"segments/0000000000128-{'ab' * 32}.seg",
        f"segments/000000000128-{'AB' * 32}.seg",
        f"segments/000000000128-{'ab' * 31}.seg",
        f"segments/000000000128-{'zz' * 32}.seg",
        f"segments/000000000128_{'ab' * 32}.seg",
        f"segments/٠٠٠٠٠٠٠٠٠١٢٨-{'ab' * 32}.seg",  # digits of another script
        f"segments/000000000128-{'ab' * 32}.seg.seg",
        f"segments/segments/000000000128-{'ab' * 32}.seg",
    ],
)
def test_other_names_are_none_of_segments(text: str) -> None:
    assert segment_of(text) is None


# --- stream.json --------------------------------------------------------------------------------------------

STREAM = StreamDescription.of(StreamHeader(1, 137, 1, 4096, 0), 0, 2)


def test_a_description_is_read_back() -> None:
    assert StreamDescription.decode(STREAM.encode(), WHERE) == STREAM
    assert STREAM.encode() == (ARCHIVE / "stream.json").read_bytes()
    assert STREAM.header == StreamHeader(1, 137, 1, 4096, 0)
    later = json.dumps(json.loads(STREAM.encode()) | {"compression": "zstd"}).encode()
    assert StreamDescription.decode(later, WHERE) == STREAM


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "0 bytes"),
        (b"\xff\xfe", "2 bytes"),
        (b"[]", "a JSON object with format, system_id"),
        (b"3", "a JSON object"),
        (b"[" * 200_000, "a JSON object"),
        (b"{}", "format: got None, expected 1"),
        ({"format": 2}, "format: got 2, expected 1"),
        ({"page_bytes": 4096}, "page_bytes: got 4096"),
        ({"segment_pages": 32}, "segment_pages: got 32"),
        ({"system_id": -1}, "system_id: got -1"),
        ({"system_id": 1 << 64}, "system_id"),
        ({"system_id": True}, "system_id: got True"),
        ({"system_id": "137"}, "system_id: got '137'"),
        ({"stream_type": None}, "stream_type: got None"),
        ({"version": 256}, "version: got 256, expected 0 to 255"),
        ({"first_block": -1}, "first_block: got -1, expected null, or 0 to"),
        ({"stream_layout": 2.0}, "stream_layout: got 2.0"),
    ],
)
def test_another_description_is_refused(data: bytes | dict[str, object], text: str) -> None:
    if isinstance(data, dict):
        data = json.dumps(json.loads(STREAM.encode()) | data).encode()
    with pytest.raises(ArchiveDamaged) as caught:
        StreamDescription.decode(data, WHERE)
    assert text in str(caught.value)
    assert str(caught.value).startswith(WHERE)


# --- the index ----------------------------------------------------------------------------------------------


def test_an_index_is_read_back() -> None:
    segment = read_index(NAME, DATA[-SIZE:], len(DATA), WHERE)
    assert (segment.first_page, segment.entries_begin, segment.entries_end) == (0, 0, 95)
    assert segment.frame_places[-1] == len(FRAMES)
    assert [block.number for block in segment.blocks] == [0, 1, 2, 3, 4, 5]
    pages = list(segment.pages_of(DATA, 0, 64, WHERE))
    offset, end = segment.frames(7, 3)
    assert list(segment.pages_of(DATA[offset:end], 7, 3, WHERE)) == pages[7:10]
    builder = SegmentBuilder(0, 0)
    for page, stored in zip(pages, segment.index.pages, strict=True):
        builder.add(page, stored.first_entry)
    made, _ = builder.finish()
    assert made.name == NAME
    assert list(made.blocks) == list(segment.blocks)


def test_unknown_fields_are_kept_and_harm_nothing() -> None:
    unknown = b"\xa2\x06\x03abc"  # field 100
    data = with_index(INDEX + unknown)
    segment = read_index(NAME, data, len(data), WHERE)
    assert segment.index.SerializeToString().endswith(unknown)


@pytest.mark.parametrize("size", [*range(40), 1_000, SIZE - 1])
def test_the_end_of_an_object_that_is_too_short(size: int) -> None:
    with pytest.raises(ArchiveDamaged):
        read(DATA[len(DATA) - size :], size=len(DATA))


@pytest.mark.parametrize("cut", [1, 8, 23, 24, 25, 1_000, SIZE, len(DATA) - 1])
def test_a_truncated_object(cut: int) -> None:
    with pytest.raises(ArchiveDamaged):
        read(DATA[:-cut])


@pytest.mark.parametrize("place", range(1, TRAILER_SIZE + 1))
def test_a_changed_trailer(place: int) -> None:
    data = bytearray(DATA)
    data[-place] ^= 1
    with pytest.raises(ArchiveDamaged):
        read(bytes(data))


@pytest.mark.parametrize(
    ("size", "text"),
    [
        ((64 << 20) - 24, "a skippable frame"),
        ((64 << 20) - 23, "67108841 bytes"),
        ((1 << 64) - 1, "at most 67108864"),
    ],
)
def test_a_trailer_that_claims_a_huge_index(size: int, text: str) -> None:
    trailer = struct.pack("<IIQ8s", 0x184D2A50, 16, size, b"sluice-1")
    with pytest.raises(ArchiveDamaged, match=text):
        read(DATA[:-TRAILER_SIZE] + trailer)


def test_an_index_frame_of_another_size() -> None:
    data = bytearray(DATA)
    data[-SIZE + 4] ^= 1
    with pytest.raises(ArchiveDamaged, match="a skippable frame"):
        read(bytes(data))


def swap(items: object, first: int, second: int) -> None:
    """Swap two messages of a repeated field."""
    a, b = items[first], items[second]  # type: ignore[index]
    copy = type(a)()
    copy.CopyFrom(a)
    a.CopyFrom(b)
    b.CopyFrom(copy)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda index: setattr(index, "format", 2), "got format 2, first page 0, expected 1, 0"),
        (lambda index: setattr(index, "first_page", 64), "first page 64, expected 1, 0"),
        (lambda index: index.pages.pop(), "got 63 pages, expected 64"),
        (lambda index: index.ClearField("pages"), "got 0 pages, expected 64"),
        (lambda index: index.pages.add(frame_size=1, entry_count=1), "got 65 pages"),
        (lambda index: setattr(index.pages[5], "first_entry", 7), "page 5 with"),
        (lambda index: setattr(index.pages[5], "entry_count", 0), "page 5 with 0 entries"),
        (lambda index: setattr(index.pages[63], "entry_count", 61_681), "page 63 with 61681 entries"),
        (lambda index: setattr(index.pages[5], "data_end", PAGE_SIZE + 1), "page 5 with data up to 1048577"),
        (lambda index: setattr(index.pages[5], "data_end", 16), "page 5 with data up to 16"),
        (lambda index: setattr(index.pages[5], "frame_size", 1), f"expected {len(DATA)}"),
        (lambda index: setattr(index.pages[5], "frame_size", 2 << 20), "the size of the object"),
        (
            lambda index: setattr(index.pages[5], "frame_size", (2 << 20) + 1),
            "page 5 with a frame of 2097153",
        ),
        (lambda index: setattr(index.pages[5], "frame_size", (1 << 32) - 1), "expected at most 2097152"),
        (lambda index: swap(index.bookmarks, 0, 1), "a bookmark at entry"),
        (lambda index: setattr(index.bookmarks[-1], "entry", 95), "a bookmark at entry 95"),
        (lambda index: setattr(index.bookmarks[2], "bookmark", b""), "a bookmark of 0 bytes"),
        (lambda index: setattr(index.bookmarks[2], "bookmark", bytes(17)), "a bookmark of 17 bytes"),
        (lambda index: swap(index.blocks, 0, 1), "expected block"),
        (lambda index: setattr(index.blocks[2], "number", 9), "got block 9"),
        (lambda index: setattr(index.blocks[2], "root_hash", bytes(47)), "a root hash of 47 bytes"),
        (lambda index: setattr(index.blocks[2], "entry", 15), "a block at entry 15"),
        (lambda index: setattr(index.blocks[5], "entry", 95), "a block at entry 95"),
    ],
)
def test_an_index_that_contradicts_itself(change: Callable[[SegmentIndex], object], text: str) -> None:
    with pytest.raises(ArchiveDamaged) as caught:
        read(changed(change))
    assert text in str(caught.value)
    assert str(caught.value).startswith(f"{WHERE}: index: got ")


def test_bytes_that_are_no_message() -> None:
    with pytest.raises(ArchiveDamaged, match="a SegmentIndex"):
        read(with_index(b"\x0a\xff"))


def test_the_index_of_another_segment() -> None:
    with pytest.raises(ArchiveDamaged, match="got format 1, first page 0, expected 1, 64"):
        read(DATA, NAME._replace(first_page=64))


def test_an_object_of_another_size() -> None:
    for size in (len(DATA) - 1, len(DATA) + 1):
        with pytest.raises(ArchiveDamaged, match="the size of the object"):
            read(DATA, size=size)


# --- pages --------------------------------------------------------------------------------------------------

PAGE = bytes(PAGE_SIZE)
CRC = sum_of(PAGE)


def frame_of(data: bytes, *, with_size: bool = True) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=with_size).compress(data)


def streamed(data: bytes) -> bytes:
    """Return a frame whose writer did not know the size of its contents."""
    compressor = zstandard.ZstdCompressor().compressobj()
    return compressor.compress(data) + compressor.flush()


def lying(size: int) -> bytes:
    """Return a frame of another content size, in eight bytes, than it has."""
    head = b"\x28\xb5\x2f\xfd" + bytes([0b11000000 | 0b100000]) + size.to_bytes(8, "little")
    block = struct.pack("<I", 1 | 1 << 1 | PAGE_SIZE // 16 << 3)[:3] + b"\0"  # the last one, repeated
    return head + block


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (b"", "zstd frame"),
        (b"\0" * 100, "zstd frame"),
        (frame_of(PAGE)[:-1], "zstd frame"),
        (frame_of(PAGE)[:6], "zstd frame"),
        (frame_of(PAGE[:-1]), "got 1048575 bytes of contents, expected 1048576"),
        (frame_of(PAGE + b"\0"), "got 1048577 bytes of contents"),
        (frame_of(bytes(64 * PAGE_SIZE)), "got 67108864 bytes of contents"),
        (frame_of(PAGE) + frame_of(b"more"), "zstd frame"),
        (streamed(PAGE), "zstd frame"),
        (lying(1 << 62), "got 4611686018427387904 bytes of contents"),
        (lying(PAGE_SIZE), "zstd frame"),
        (struct.pack("<II", 0x184D2A50, 8) + bytes(8), "zstd frame"),
        (frame_of(PAGE[:-1] + b"\1"), "CRC32C: got "),
    ],
)
def test_a_frame_that_is_no_page(frame: bytes, text: str) -> None:
    with pytest.raises(ArchiveDamaged) as caught:
        decode_page(frame, CRC, WHERE)
    assert text in str(caught.value)


def test_a_page() -> None:
    assert decode_page(frame_of(PAGE), CRC, WHERE) == PAGE
