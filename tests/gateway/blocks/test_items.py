"""Tests of `gateway.blocks.items`."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.gateway.api import block_pb2
from sluice.gateway.blocks import items
from sluice.gateway.blocks.errors import ItemError
from sluice.gateway.blocks.items import (
    ItemField,
    ItemKind,
    WireType,
    block_number_of,
    field_item,
    fields_of,
    footer_of,
    header_of,
    kind_of,
    kinds_and_size_of,
    kinds_of,
    kinds_one_by_one,
    payload_of,
    proof_of,
    stream_entry_item,
    stream_entry_of,
    varint,
)
from sluice.gateway.limits import HEADER_SIZE_MAX
from tests.gateway.block_makers import footer_item, header_item, proof_item

# name, field number, payload, bytes of tag and length
CASES = [
    ("empty payload", 1, b"", "0a00"),
    ("header", 1, b"x", "0a01"),
    ("last field with a tag of one byte", 15, b"xy", "7a02"),
    ("first field with a tag of two bytes", 16, b"xy", "820102"),
    ("redacted item", 19, b"", "9a0100"),
    ("field of a later version", 23, b"abc", "ba0103"),
    ("longest length of one byte", 4, bytes(127), "227f"),
    ("shortest length of two bytes", 4, bytes(128), "228001"),
    ("longest length of two bytes", 5, bytes(16_383), "2aff7f"),
    ("shortest length of three bytes", 5, bytes(16_384), "2a808001"),
    ("length of three bytes", 10, bytes(289_000), "52e8d111"),
    ("longest length of three bytes", 6, bytes(2_097_151), "32ffff7f"),
    ("shortest length of four bytes", 6, bytes(2_097_152), "3280808001"),
    ("stream entry without payload", 1008, b"", "823f00"),
    ("stream entry, longest length of one byte", 1008, bytes(127), "823f7f"),
    ("stream entry, shortest length of two bytes", 1008, bytes(128), "823f8001"),
    ("stream entry, longest length of two bytes", 1008, bytes(16_383), "823fff7f"),
    ("stream entry, shortest length of three bytes", 1008, bytes(16_384), "823f808001"),
    ("greatest field number", 536_870_911, b"z", "faffffff0f01"),
]
IDS = [case[0] for case in CASES]


@pytest.mark.parametrize(("name", "kind", "payload", "head"), CASES, ids=IDS)
def test_encode(name: str, kind: int, payload: bytes, head: str) -> None:
    assert field_item(kind, payload) == bytes.fromhex(head) + payload


@pytest.mark.parametrize(("name", "kind", "payload", "head"), CASES, ids=IDS)
def test_decode(name: str, kind: int, payload: bytes, head: str) -> None:
    item = bytes.fromhex(head) + payload
    assert kind_of(item) == kind
    assert list(kinds_of([item, item])) == [kind, kind]
    assert payload_of(item) == payload


@pytest.mark.parametrize(("name", "kind", "payload", "head"), CASES, ids=IDS)
def test_one_byte_more_or_less_is_refused(name: str, kind: int, payload: bytes, head: str) -> None:
    item = bytes.fromhex(head) + payload
    for changed in (item + b"\x00", item[:-1], item[:1], b"\x00" + item):
        with pytest.raises(ItemError):
            kind_of(changed)
        with pytest.raises(ItemError):
            kinds_of([changed])


REFUSALS = [
    ("", "item: got no bytes, expected one length-delimited field"),
    ("0a", "length of item field 1: got a varint cut off after 0 bytes, expected a whole varint"),
    ("08", "wire type of item field 1: got 0, expected 2 (length-delimited)"),
    ("0801", "wire type of item field 1: got 0, expected 2 (length-delimited)"),
    ("0d00000000", "wire type of item field 1: got 5, expected 2 (length-delimited)"),
    ("0b0c", "wire type of item field 1: got 3, expected 2 (length-delimited)"),
    ("0200", "item tag: got field number 0, expected 1 to 536870911"),
    ("0a0161ff", "item field 1: got 1 bytes after its end, expected nothing after the only field"),
    ("0a0161120162", "item field 1: got 3 bytes after its end, expected nothing after the only field"),
    ("0a0461", "length of item field 1: got 4 bytes, expected 1, all that follow"),
    ("8a000161", "item tag: got 8a00, expected 0a, the shortest form"),
    ("0a810061", "length of item field 1: got 8100, expected 01, the shortest form"),
    ("823f", "length of item field 1008: got a varint cut off after 0 bytes, expected a whole varint"),
    ("823f0161ff", "item field 1008: got 1 bytes after its end, expected nothing after the only field"),
    ("80", "item tag: got a varint cut off after 1 bytes, expected a whole varint"),
    ("8080808010", "item tag: got field number 536870912, expected 1 to 536870911"),
    ("80808080808080808080", "item tag: got a varint of more than 10 bytes, expected at most 10"),
    ("ffffffffffffffffff02", f"item tag: got {(1 << 64) + (1 << 63) - 1}, expected less than 2^64"),
]


@pytest.mark.parametrize(("hex_bytes", "text"), REFUSALS, ids=[case[0][:20] or "none" for case in REFUSALS])
def test_what_is_not_one_field_is_refused(hex_bytes: str, text: str) -> None:
    item = bytes.fromhex(hex_bytes)
    with pytest.raises(ItemError) as caught:
        kind_of(item)
    assert str(caught.value) == text
    with pytest.raises(ItemError) as caught:
        kinds_of([b"\x0a\x00", item], first_index=7)
    assert str(caught.value) == f"item 8: {text}"
    assert caught.value.where == "item 8"


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127])
def test_a_length_of_two_bytes_that_could_have_been_one_is_refused(size: int) -> None:
    item = b"\x22" + bytes([size | 0x80, 0]) + bytes(size)
    text = f"length of item field 4: got {size | 0x80:02x}00, expected {size:02x}, the shortest form"
    with pytest.raises(ItemError) as caught:
        kind_of(item)
    assert str(caught.value) == text
    with pytest.raises(ItemError) as caught:
        kinds_of([item])
    assert str(caught.value) == f"item 0: {text}"


def test_a_length_of_three_bytes_that_could_have_been_two_is_refused() -> None:
    for size in (16_382, 16_383):
        with pytest.raises(ItemError, match="the shortest form"):
            kinds_of([b"\x22" + bytes([size & 0x7F | 0x80, size >> 7 | 0x80, 0]) + bytes(size)])


@given(st.binary(max_size=300))
def test_both_ways_to_read_kinds_agree_with_a_protobuf_parser(data: bytes) -> None:
    try:
        kind = kind_of(data)
    except ItemError:
        with pytest.raises(ItemError):
            kinds_of([data])
        return
    assert kinds_of([data]) == [kind]
    assert field_item(kind, payload_of(data)) == data


@given(st.integers(1, 536_870_911), st.binary(max_size=40_000))
def test_every_item_reads_back(kind: int, payload: bytes) -> None:
    item = field_item(kind, payload)
    assert kind_of(item) == kind
    assert payload_of(item) == payload
    assert list(fields_of(item)) == [ItemField(kind, WireType.LEN, payload)]


@given(st.integers(0, (1 << 64) - 1))
def test_varints_are_what_protobuf_writes(value: int) -> None:
    assert block_pb2.BlockProof(block=value).SerializeToString() == (
        b"\x08" + varint(value) if value else b""
    )


# --- the items that are looked into -------------------------------------------------------------------------


def test_header_footer_and_proof_parse() -> None:
    assert header_of(header_item(7)).block_timestamp.seconds == 1_700_000_000
    assert block_number_of(header_item(7)) == 7
    assert footer_of(footer_item(b"p" * 48)).previous_block_root_hash == b"p" * 48
    assert proof_of(proof_item(7, b"s" * 64)).signed_block_proof.block_signature == b"s" * 64


def test_another_item_is_refused() -> None:
    with pytest.raises(ItemError) as caught:
        block_number_of(footer_item())
    assert str(caught.value) == "item: got field 12, expected field 1 (block header)"


@pytest.mark.parametrize("payload", [b"\x1a\x01\x07", b"\x19" + b"\x07" * 8, b"\x1d" + b"\x07" * 4])
def test_a_number_that_is_no_varint_is_refused_and_not_taken_for_block_0(payload: bytes) -> None:
    header = field_item(ItemKind.BLOCK_HEADER, payload)
    assert header_of(header).number == 0
    with pytest.raises(ItemError) as caught:
        block_number_of(header)
    assert str(caught.value) == (
        "block header field 3 (number): got a value that is no varint, expected a block number"
    )
    assert block_number_of(field_item(ItemKind.BLOCK_HEADER, b"\x22\x00\x32\x00")) == 0


def test_a_header_that_is_too_long_is_not_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searching 8 MB of a later version's fields took the event loop 3 s. The header is refused later, for
    its size.
    """
    looked_into: list[object] = []

    def unknown_fields(message: object) -> tuple[()]:
        looked_into.append(message)
        return ()

    monkeypatch.setattr(items, "UnknownFieldSet", unknown_fields)
    for field_count, looked_count in (((HEADER_SIZE_MAX - 3) // 2, 1), (HEADER_SIZE_MAX // 2, 0)):
        looked_into.clear()
        assert block_number_of(field_item(ItemKind.BLOCK_HEADER, b"\x78\x01" * field_count)) == 0
        assert len(looked_into) == looked_count


def test_a_message_that_does_not_parse_is_refused() -> None:
    with pytest.raises(ItemError) as caught:
        header_of(field_item(ItemKind.BLOCK_HEADER, b"\xff"))
    assert str(caught.value) == "block header: got 3 bytes that do not parse, expected a BlockHeader message"


def test_fields_of_gives_the_very_bytes() -> None:
    message = bytes.fromhex("0a0161 1805 0a0162 2500000001 290000000000000002".replace(" ", ""))
    assert list(fields_of(message)) == [
        ItemField(1, WireType.LEN, b"a"),
        ItemField(3, WireType.VARINT, 5),
        ItemField(1, WireType.LEN, b"b"),
        ItemField(4, WireType.FIXED32, b"\x00\x00\x00\x01"),
        ItemField(5, WireType.FIXED64, b"\x00\x00\x00\x00\x00\x00\x00\x02"),
    ]
    assert list(fields_of(b"")) == []


@pytest.mark.parametrize(
    ("hex_bytes", "text"),
    [
        ("0b", "wire type of field at byte 0: got 3, expected 0, 1, 2 or 5"),
        ("08010a05", "length of field at byte 2: got 5 bytes, expected at most 0, all that follow"),
        ("0880", "value of field at byte 0: got a varint cut off after 1 bytes, expected a whole varint"),
        ("088000", "value of field at byte 0: got 8000, expected 00, the shortest form"),
        ("0d0000", "length of field at byte 0: got 4 bytes, expected at most 2, all that follow"),
    ],
)
def test_bytes_that_are_no_field_are_refused(hex_bytes: str, text: str) -> None:
    with pytest.raises(ItemError) as caught:
        list(fields_of(bytes.fromhex(hex_bytes)))
    assert str(caught.value) == text


# --- stream entries ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry_type", "data", "item"),
    [
        (0xB0, b"\x08\x02\x10\x07", "823f 09 08b001 12040802 1007"),  # the bookmark of L2 block 7
        (2, b"", "823f 02 0802"),
        (0, b"x", "823f 03 1201 78"),
        (0, b"", "823f 00"),
        (0xFFFFFFFE, b"x", "823f 09 08feffffff0f 1201 78"),
    ],
)
def test_a_stream_entry_has_one_encoding(entry_type: int, data: bytes, item: str) -> None:
    assert stream_entry_item(entry_type, data) == bytes.fromhex(item)
    assert stream_entry_of(bytes.fromhex(item)) == (entry_type, data)


@given(st.integers(0, 0xFFFFFFFE), st.binary(max_size=300))
def test_a_stream_entry_comes_back(entry_type: int, data: bytes) -> None:
    item = stream_entry_item(entry_type, data)
    message = block_pb2.BlockItem.FromString(item)
    assert (message.stream_entry.entry_type, message.stream_entry.data) == (entry_type, data)
    assert message.SerializeToString() == item
    assert stream_entry_of(item) == (entry_type, data)
    assert kind_of(item) == ItemKind.STREAM_ENTRY


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ("2200", "item: got field 4, expected field 1008 (stream entry)"),
        (
            "823f 02 0801 00",
            "item field 1008: got 1 bytes after its end, expected nothing after the only field",
        ),
        ("823f 04 0802 1201", "stream entry: got 7 bytes that do not parse, expected a StreamEntry message"),
        ("823f 02 0800", "stream entry: got 5 bytes that are not its canonical form, expected 3 bytes"),
        ("823f 03 088200", "stream entry: got 6 bytes that are not its canonical form, expected 5 bytes"),
        (
            "823f 05 120178 0802",
            "stream entry: got 8 bytes that are not its canonical form, expected 8 bytes",
        ),
        ("823f 04 0801 0802", "stream entry: got 7 bytes that are not its canonical form, expected 5 bytes"),
        ("823f 04 0802 1801", "stream entry: got 7 bytes that are not its canonical form, expected 5 bytes"),
        (
            "823f 06 088080808010",
            "stream entry: got 9 bytes that are not its canonical form, expected 3 bytes",
        ),
    ],
)
def test_another_encoding_of_a_stream_entry_is_refused(item: str, text: str) -> None:
    with pytest.raises(ItemError) as caught:
        stream_entry_of(bytes.fromhex(item))
    assert str(caught.value).startswith(text)


def _item_of_size(size: int) -> bytes:
    return field_item(1 + size % 3_000, bytes(size))


@given(st.lists(st.one_of(st.binary(max_size=12), st.integers(0, 20_000).map(_item_of_size)), max_size=6))
def test_many_items_at_once_have_the_kinds_that_they_have_one_by_one(given_items: list[bytes]) -> None:
    try:
        expected = [kind_of(item) for item in given_items]
    except ItemError:
        with pytest.raises(ItemError) as refused:
            kinds_one_by_one(given_items, 3)
        with pytest.raises(ItemError, match=re.escape(str(refused.value))):
            kinds_of(given_items, 3)
    else:
        assert list(kinds_of(given_items)) == kinds_one_by_one(given_items) == expected
        assert kinds_and_size_of(given_items)[1] == sum(map(len, given_items))


def test_every_kind_and_length_is_read_at_once() -> None:
    for kind in (1, 15, 16, 255, 256, 1008, 2047, 2048, items.FIELD_NUMBER_MAX):
        for size in (0, 1, 127, 128, 129, 16_383, 16_384, 70_000):
            item = field_item(kind, bytes(size))
            assert list(kinds_of([item, item])) == kinds_one_by_one([item, item]) == [kind, kind]
            for bad in (item[:-1], item + b"\0", b"\x80" + item):
                with pytest.raises(ItemError):
                    kinds_of([item, bad])
