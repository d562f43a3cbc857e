"""What a fingerprint covers of a stream, and what it leaves out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from sluice.datastream.file.fingerprint import (
    FINGERPRINT_SIZE,
    SAMPLE_SIZE,
    ReadBytes,
    fingerprint_of,
    is_of_stream,
)
from sluice.datastream.layout import HEADER_PAGE_SIZE, StreamHeader, page_start

END = page_start(1) + 5000
HEADER = StreamHeader(1, 137, 1, END, 9)
IMAGE = (bytes(number * 31 % 251 for number in range(251)) * (END // 251 + 20))[: END + 4000]


def reader(image: bytes, *flips: int) -> ReadBytes:
    changed = bytearray(image)
    for offset in flips:
        changed[offset] ^= 1
    return lambda size, offset: bytes(changed[offset : offset + size])


@pytest.mark.parametrize(
    "change",
    [
        lambda header: replace(header, version=2),
        lambda header: replace(header, system_id=138),
        lambda header: replace(header, stream_type=2),
        lambda header: replace(header, total_length=END - 1),
        lambda header: replace(header, total_entries=8),
    ],
)
def test_it_sees_each_field_of_the_header(change: Callable[[StreamHeader], StreamHeader]) -> None:
    read = reader(IMAGE)
    assert fingerprint_of(change(HEADER), read) != fingerprint_of(HEADER, read)


@pytest.mark.parametrize(
    ("offset", "is_seen"),
    [
        (HEADER_PAGE_SIZE, True),
        (HEADER_PAGE_SIZE + SAMPLE_SIZE - 1, True),
        (HEADER_PAGE_SIZE + SAMPLE_SIZE, False),
        (END - SAMPLE_SIZE - 1, False),
        (END - SAMPLE_SIZE, True),
        (END - 1, True),
        (END, False),
    ],
)
def test_it_sees_the_first_bytes_and_the_last(offset: int, is_seen: bool) -> None:
    fingerprint = fingerprint_of(HEADER, reader(IMAGE))
    assert len(fingerprint) == FINGERPRINT_SIZE
    assert (fingerprint_of(HEADER, reader(IMAGE, offset)) != fingerprint) is is_seen
    assert is_of_stream(fingerprint, HEADER, reader(IMAGE, offset)) is not is_seen


@pytest.mark.parametrize("length", [1, 50, SAMPLE_SIZE, SAMPLE_SIZE + 1])
def test_no_byte_before_the_page_or_behind_the_end_counts(length: int) -> None:
    """Another program's padding may change, and bytes past the end are not in the stream."""
    header = replace(HEADER, total_length=page_start(1) + length)
    beside = (page_start(1) - 1, page_start(1) + length)
    assert fingerprint_of(header, reader(IMAGE)) == fingerprint_of(header, reader(IMAGE, *beside))
    alone = replace(HEADER, total_length=HEADER_PAGE_SIZE + length)
    assert fingerprint_of(alone, reader(IMAGE)) == fingerprint_of(
        alone, reader(IMAGE, 4095, alone.total_length)
    )


def test_it_is_that_of_the_first_entries_whatever_follows() -> None:
    fingerprint = fingerprint_of(HEADER, reader(IMAGE))
    longer = replace(HEADER, total_length=END + 3000, total_entries=12)
    assert is_of_stream(fingerprint, longer, reader(IMAGE))
    for shorter in (replace(HEADER, total_entries=8), replace(HEADER, total_length=END - 1)):
        assert not is_of_stream(fingerprint, shorter, reader(IMAGE))
    for wrong in (b"", fingerprint[:-1], fingerprint + b"\0", bytes(FINGERPRINT_SIZE)):
        assert not is_of_stream(wrong, HEADER, reader(IMAGE))


@pytest.mark.parametrize("start", [HEADER_PAGE_SIZE, HEADER_PAGE_SIZE + 500, END - 1000, END - 10])
def test_bytes_in_a_hole_do_not_count(start: int) -> None:
    hole = (start, start + 300)
    fingerprint = fingerprint_of(HEADER, reader(IMAGE), hole)
    assert fingerprint_of(HEADER, reader(IMAGE, start, min(start + 299, END - 1)), hole) == fingerprint
    for beside in {start - 1, start + 300} & {*range(HEADER_PAGE_SIZE, END)}:
        assert fingerprint_of(HEADER, reader(IMAGE, beside), hole) != fingerprint or start == HEADER_PAGE_SIZE
