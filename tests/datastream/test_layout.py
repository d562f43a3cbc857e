"""One list of cases drives encoder and decoder; page arithmetic at its borders."""

from __future__ import annotations

import pytest

from sluice.datastream import layout
from sluice.datastream.layout import Entry, StreamHeader

ENTRY_CASES = [
    ("empty", Entry(1, 0, b""), bytes.fromhex("02 00000011 00000001 0000000000000000")),
    ("one byte", Entry(2, 7, b"a"), bytes.fromhex("02 00000012 00000002 0000000000000007 61")),
    ("bookmark", Entry(0xB0, 258, b"\0\1"), bytes.fromhex("02 00000013 000000b0 0000000000000102 0001")),
    (
        "greatest numbers",
        Entry(0xFFFF_FFFE, layout.U64_MAX, b"zz"),
        bytes.fromhex("02 00000013 fffffffe ffffffffffffffff 7a7a"),
    ),
]
HEADER_CASES = [
    (
        "new",
        StreamHeader(1, 137, 1, 4096, 0),
        bytes.fromhex("01 00000026 01 0000000000000089 0000000000000001 0000000000001000 0000000000000000"),
    ),
    (
        "version 2",
        StreamHeader(2, 1, 1, 1228216, 13952),
        bytes.fromhex("01 00000026 02 0000000000000001 0000000000000001 000000000012bdb8 0000000000003680"),
    ),
]


@pytest.mark.parametrize(("name", "entry", "data"), ENTRY_CASES)
def test_entries(name: str, entry: Entry, data: bytes) -> None:
    assert layout.encode_entry(entry) == data
    assert layout.decode_entry(data) == entry
    assert layout.decode_entry(b"before" + data + b"after", 6) == entry
    assert layout.encode_entry(entry, layout.PACKET_ANSWER) == b"\xfe" + data[1:]
    assert entry.is_bookmark == (name == "bookmark")


@pytest.mark.parametrize(("name", "header", "data"), HEADER_CASES)
def test_headers(name: str, header: StreamHeader, data: bytes) -> None:
    assert layout.encode_header(header) == data
    fields = layout.decode_header(data + b"after")
    assert (fields.packet_type, fields.header_size, fields.header) == (1, 38, header)


def test_header_page() -> None:
    page = layout.encode_header_page(HEADER_CASES[0][1])
    assert len(page) == 4096
    assert page[:16] == b"polygonDATSTREAM"
    assert page[16:54] == HEADER_CASES[0][2]
    assert not any(page[54:])


@pytest.mark.parametrize(
    ("offset", "page_number", "used"),
    [
        (4096, 0, 0),
        (4097, 0, 1),
        (4096 + (1 << 20) - 1, 0, 1),
        (4096 + (1 << 20), 1, 1),
        (4096 + (1 << 20) + 1, 1, 2),
        (4096 + 5 * (1 << 20), 5, 5),
    ],
)
def test_pages(offset: int, page_number: int, used: int) -> None:
    assert layout.page_number_of(offset) == page_number
    assert layout.pages_used(offset) == used
    assert layout.page_start(page_number) <= offset < layout.page_end(page_number)
    assert layout.page_end(page_number) == layout.page_start(page_number + 1)


def test_sizes() -> None:
    assert layout.DATA_SIZE_MAX == 1_048_559
    assert layout.file_size_of(0) == 4096
    assert layout.file_size_of(100) == 104_861_696
