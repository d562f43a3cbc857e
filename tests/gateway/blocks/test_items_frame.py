"""Tests of header, footer and proofs in `gateway.blocks.items`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sluice.gateway.api import block_pb2
from sluice.gateway.blocks.errors import BlockRefused
from sluice.gateway.blocks.items import (
    Header,
    ItemKind,
    check_proof,
    field_item,
    item_name,
    payload_of,
    read_footer,
    read_header,
)
from sluice.gateway.limits import HEADER_SIZE_MAX
from tests.gateway.block_makers import footer_item, header_item, proof_item

VERSION = bytes.fromhex("0a02104e")  # field 1 {minor: 78}
TIME = bytes.fromhex("22020805")  # field 4 {seconds: 5}
HASH_48 = "42" * 48


def header(payload: bytes) -> Header:
    return read_header(field_item(ItemKind.BLOCK_HEADER, payload), ItemKind.BLOCK_HEADER)


def refusal_of(call: Callable[[], object]) -> str:
    with pytest.raises(BlockRefused) as caught:
        call()
    return str(caught.value)


def test_a_header_gives_what_the_block_needs() -> None:
    item = header_item(9, minor=77, seconds=5, nanos=6)
    assert read_header(item, ItemKind.BLOCK_HEADER) == Header(item, 9, bytes.fromhex("08051006"), 5, 0, 77)


def test_a_header_may_have_fields_of_later_versions_repeated_too() -> None:
    assert header(VERSION + TIME + bytes.fromhex("3001 3002 3a00".replace(" ", ""))).number == 0


def test_times_before_1970_are_read() -> None:
    assert read_header(header_item(seconds=-2), ItemKind.BLOCK_HEADER).timestamp_seconds == -2


def test_an_empty_timestamp_is_canonical() -> None:
    assert header(VERSION + b"\x22\x00").timestamp == b""


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (TIME, "missing field: block header field 1 (hapi_proto_version): got nothing, expected it"),
        (VERSION, "missing field: block header field 4 (block_timestamp): got nothing, expected it"),
        (b"", "missing field: block header field 1 (hapi_proto_version): got nothing, expected it"),
        (
            VERSION + TIME + TIME,
            "cannot parse: block header field 4 (block_timestamp): got it twice, expected at most once",
        ),
        (
            VERSION + bytes.fromhex("18011802") + TIME,
            "cannot parse: block header field 3 (number): got it twice, expected at most once",
        ),
        (
            VERSION + TIME + b"\x1a\x00",
            "cannot parse: block header field 3 (number): got wire type 2, expected wire type 0",
        ),
        (
            VERSION + bytes.fromhex("2204080510 00".replace(" ", "")),
            (
                "cannot parse: block header field 4 (block_timestamp): "
                "got an encoding that is not canonical, expected 0805"
            ),
        ),
        (
            VERSION + bytes.fromhex("2204 1006 0805".replace(" ", "")),
            (
                "cannot parse: block header field 4 (block_timestamp): "
                "got an encoding that is not canonical, expected 08051006"
            ),
        ),
        (
            VERSION + bytes.fromhex("2204 0805 1801".replace(" ", "")),
            (
                "cannot parse: block header field 4 (block_timestamp): "
                "got an encoding that is not canonical, expected 0805"
            ),
        ),
        (
            VERSION + bytes.fromhex("2203 088500".replace(" ", "")),
            (
                "cannot parse: block header field 4 (block_timestamp): "
                "got an encoding that is not canonical, expected 0805"
            ),
        ),
        (
            VERSION + TIME + b"\x28\x01",
            "unsupported: block header field 5 (hash_algorithm): got 1, expected 0 (SHA2_384)",
        ),
        (
            b"\xff",
            "cannot parse: block header: got 3 bytes that do not parse, expected a BlockHeader message",
        ),
        (
            VERSION + TIME + b"\x18\x80\x00",
            "cannot parse: block header: value of field at byte 8: got 8000, expected 00, the shortest form",
        ),
        (
            VERSION + TIME + bytes(HEADER_SIZE_MAX),
            "unsupported: block header: got 4107 bytes, expected at most 4096",
        ),
    ],
)
def test_headers_that_are_refused(payload: bytes, text: str) -> None:
    assert refusal_of(lambda: header(payload)) == text


def test_a_header_of_the_greatest_size_is_read() -> None:
    filler = field_item(6, bytes(HEADER_SIZE_MAX - 3 - len(VERSION + TIME) - 3))
    item = field_item(ItemKind.BLOCK_HEADER, VERSION + TIME + filler)
    assert len(item) == HEADER_SIZE_MAX
    assert read_header(item, ItemKind.BLOCK_HEADER).number == 0


def test_another_item_is_no_header() -> None:
    text = refusal_of(lambda: read_header(footer_item(), ItemKind.BLOCK_FOOTER))
    assert text == "missing item: first item: got block footer (field 12), expected a block header"


def test_a_footer_gives_its_hashes() -> None:
    footer = read_footer(footer_item(b"p" * 48, b"a" * 48, b"s" * 48))
    assert (footer.previous_root_hash, footer.all_blocks_root_hash) == (b"p" * 48, b"a" * 48)
    assert footer.state_root_hash == b"s" * 48
    assert read_footer(footer_item(state=b"")).state_root_hash == b""


@pytest.mark.parametrize(
    ("payload_hex", "text"),
    [
        (
            f"1230{HASH_48}",
            "missing field: block footer field 1 (previous_block_root_hash): got nothing, expected 48 bytes",
        ),
        (
            f"0a30{HASH_48}",
            (
                "missing field: block footer field 2 (root_hash_of_all_block_hashes_tree): got nothing, "
                "expected 48 bytes"
            ),
        ),
        (
            f"0a2f{HASH_48[2:]}",
            "cannot parse: block footer field 1 (previous_block_root_hash): got 47 bytes, expected 48 bytes",
        ),
        (
            f"0a30{HASH_48}1230{HASH_48}1a31{HASH_48}00",
            (
                "cannot parse: block footer field 3 (start_of_block_state_root_hash): got 49 bytes, "
                "expected 48 bytes"
            ),
        ),
        (
            f"0a30{HASH_48}1230{HASH_48}1a00",
            (
                "cannot parse: block footer field 3 (start_of_block_state_root_hash): got 0 bytes, "
                "expected 48 bytes"
            ),
        ),
        (
            f"0a30{HASH_48}0a30{HASH_48}",
            (
                "cannot parse: block footer field 1 (previous_block_root_hash): "
                "got it twice, expected at most once"
            ),
        ),
        (
            f"1230{HASH_48}0a30{HASH_48}",
            (
                "cannot parse: block footer field 1 (previous_block_root_hash): got it after field 2, "
                "expected rising numbers"
            ),
        ),
        (
            f"0a30{HASH_48}1001",
            (
                "cannot parse: block footer field 2 (root_hash_of_all_block_hashes_tree): got wire type 0, "
                "expected wire type 2"
            ),
        ),
        (
            f"0a30{HASH_48}1230{HASH_48}2001",
            "unsupported: block footer field 4: got it, expected only fields that the root hash covers",
        ),
        (
            f"0a30{HASH_48}1230{HASH_48}1a30{HASH_48}2001",
            "unsupported: block footer field 4: got it, expected only fields that the root hash covers",
        ),
        (
            f"0a30{HASH_48}1230{HASH_48}1a30{HASH_48}1a30{HASH_48}",
            (
                "cannot parse: block footer field 3 (start_of_block_state_root_hash): "
                "got it twice, expected at most once"
            ),
        ),
        (
            "0a",
            (
                "cannot parse: block footer: length of field at byte 0: got a varint cut off after 0 bytes, "
                "expected a whole varint"
            ),
        ),
    ],
)
def test_footers_that_are_refused(payload_hex: str, text: str) -> None:
    item = field_item(ItemKind.BLOCK_FOOTER, bytes.fromhex(payload_hex))
    assert refusal_of(lambda: read_footer(item)) == text


def test_a_proof_must_be_for_its_block() -> None:
    check_proof(proof_item(3), 3)
    check_proof(proof_item(0), 0)
    text = "bad proof: block proof field 1 (block): got 3, expected 4, as in the header"
    assert refusal_of(lambda: check_proof(proof_item(3), 4)) == text
    text = "bad proof: block proof field 1 (block): got 0, expected 4, as in the header"
    assert refusal_of(lambda: check_proof(proof_item(0), 4)) == text  # left out, which means 0


def test_a_proof_of_a_later_kind_may_be_there() -> None:
    check_proof(field_item(ItemKind.BLOCK_PROOF, bytes.fromhex("08033a020102")), 3)


@pytest.mark.parametrize(
    "added",
    ["0803", "1800", "3801", "12020a00", "22020102"],
    ids=["block twice", "wrong wire type", "unknown field", "signature twice", "two kinds"],
)
def test_a_known_proof_in_another_encoding_is_refused(added: str) -> None:
    item = field_item(ItemKind.BLOCK_PROOF, payload_of(proof_item(3)) + bytes.fromhex(added))
    text = refusal_of(lambda: check_proof(item, 3))
    assert text.startswith(
        f"cannot parse: block proof: got {len(item)} bytes that are not its canonical form, "
    )


def test_a_proof_that_does_not_parse_is_refused() -> None:
    item = field_item(ItemKind.BLOCK_PROOF, b"\x12\x05")
    text = "cannot parse: block proof: got 4 bytes that do not parse, expected a BlockProof message"
    assert refusal_of(lambda: check_proof(item, 3)) == text


def test_items_have_names_for_people() -> None:
    assert item_name(ItemKind.SIGNED_TRANSACTION) == "signed transaction (field 4)"
    assert item_name(23) == "item field 23"


def test_field_numbers_are_those_of_the_messages() -> None:
    for message, names in (
        (block_pb2.BlockHeader, ("hapi_proto_version", "software_version", "number", "block_timestamp")),
        (
            block_pb2.BlockFooter,
            (
                "previous_block_root_hash",
                "root_hash_of_all_block_hashes_tree",
                "start_of_block_state_root_hash",
            ),
        ),
    ):
        fields = message.DESCRIPTOR.fields_by_number
        assert [fields[number].name for number in range(1, len(names) + 1)] == list(names)
