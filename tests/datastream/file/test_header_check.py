"""The header page: each refusal with its error, on a file that is opened before it is changed."""

from __future__ import annotations

import pytest

from datastream import errors
from datastream.errors import StreamFileRefused
from datastream.file.streamfile import inspect_header
from datastream.layout import HEADER_PAGE_SIZE, PAGE_SIZE, StreamHeader
from tests.datastream.fake_disk import MemoryDisk
from tests.datastream.file.test_streamfile import PATH, U64, Change, image, put


def cut(size: int) -> Change:
    """Return a change that cuts the file."""

    def change(content: bytearray) -> None:
        del content[size:]

    return change


def extend(data: bytes) -> Change:
    """Return a change that appends."""

    def change(content: bytearray) -> None:
        content.extend(data)

    return change


REFUSALS: list[tuple[str, Change, type[StreamFileRefused], str]] = [
    ("empty", cut(0), errors.ShorterThanHeaderPage, "file size: found 0 bytes, expected at least 4096"),
    ("short", cut(4095), errors.ShorterThanHeaderPage, "file size: found 4095 bytes, expected at least 4096"),
    (
        "cut",
        cut(HEADER_PAGE_SIZE + 3 * PAGE_SIZE - 1),
        errors.NotWholePages,
        "file size: found 3149823 bytes, 1048575 after the last whole page, expected 4096 plus a multiple",
    ),
    (
        "one more byte",
        extend(b"\0"),
        errors.NotWholePages,
        "file size: found 3149825 bytes, 1 after the last whole",
    ),
    (
        "magic",
        put(0, b"P"),
        errors.WrongMagic,
        "magic bytes: found b'PolygonDATSTREAM', expected b'polygonDATSTREAM'",
    ),
    (
        "packet type",
        put(16, b"\2"),
        errors.WrongPacketType,
        "packet type of the header entry: found 2, expected 1",
    ),
    (
        "header length",
        put(20, b"\x27"),
        errors.WrongHeaderSize,
        "length of the header entry: found 39, expected 38",
    ),
    ("stream type", put(37, b"\5"), errors.WrongStreamType, "stream type: found 5, expected 1"),
    (
        "beyond the file",
        put(38, (HEADER_PAGE_SIZE + 3 * PAGE_SIZE + 1).to_bytes(U64, "big")),
        errors.TotalLengthOutOfFile,
        "TotalLength: found 3149825, expected 4096 to 3149824, the file's size",
    ),
    (
        "inside the header",
        put(38, (4095).to_bytes(U64, "big")),
        errors.TotalLengthOutOfFile,
        "TotalLength: found 4095, expected 4096 to 3149824, the file's size",
    ),
]


@pytest.mark.parametrize(("name", "change", "error", "message"), REFUSALS, ids=[case[0] for case in REFUSALS])
def test_refusals(name: str, change: Change, error: type[StreamFileRefused], message: str) -> None:
    content = image([20, 20, 20], [17, 40])
    before = MemoryDisk.of(bytes(content))
    total_length = HEADER_PAGE_SIZE + PAGE_SIZE + 34 + 57
    assert inspect_header(PATH, before, 1) == StreamHeader(1, 137, 1, total_length, 5)
    change(content)
    disk = MemoryDisk.of(bytes(content))
    with pytest.raises(error) as caught:
        inspect_header(PATH, disk, 1)
    assert str(caught.value).startswith("s.bin: ")
    assert message in str(caught.value)
    assert disk.steps == []


def test_of_two_things_that_are_wrong_the_first_is_told() -> None:
    content = image([20])
    content[37] = 5  # the stream type
    content[0:1] = b"P"
    with pytest.raises(errors.WrongMagic):
        inspect_header(PATH, MemoryDisk.of(bytes(content)), 1)
    content += b"\0"
    content[0:1] = b"p"
    with pytest.raises(errors.NotWholePages):
        inspect_header(PATH, MemoryDisk.of(bytes(content)), 1)
