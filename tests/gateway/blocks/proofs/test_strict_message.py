"""Tests of `gateway.blocks.proofs.strict_message`."""

from __future__ import annotations

import pytest

from sluice.gateway.blocks.errors import ProofDataError
from sluice.gateway.blocks.items import WireType
from sluice.gateway.blocks.proofs.strict_message import bytes_of, integer_of, strict_fields
from tests.gateway.blocks.proofs.state_proofs import len_field, varint_field

KNOWN = {1: WireType.LEN, 2: WireType.VARINT, 3: WireType.LEN}


def read(message: bytes) -> list[tuple[int, int | bytes]]:
    return list(strict_fields(message, "message", KNOWN, repeated=(1,)))


def test_known_fields_in_their_order() -> None:
    message = len_field(1, b"a") + len_field(1, b"b") + varint_field(2, 300) + len_field(3, b"")
    assert read(message) == [(1, b"a"), (1, b"b"), (2, 300), (3, b"")]
    assert read(b"") == []


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (varint_field(2, 1) * 2, "message: got field 2 after field 2, expected rising numbers"),
        (
            varint_field(2, 1) + len_field(1, b""),
            "message: got field 1 after field 2, expected rising numbers",
        ),
        (
            len_field(4, b""),
            "message: got field 4 of wire type 2, expected fields 1 (type 2), 2 (type 0), 3 (type 2)",
        ),
        (
            varint_field(1, 5),
            "message: got field 1 of wire type 0, expected fields 1 (type 2), 2 (type 0), 3 (type 2)",
        ),
        (b"\x10\x81\x00", "message: value of field at byte 0: got 8100, expected 01, the shortest form"),
        (
            b"\x0a\x05ab",
            "message: length of field at byte 0: got 5 bytes, expected at most 2, all that follow",
        ),
    ],
)
def test_everything_else_is_refused(message: bytes, text: str) -> None:
    with pytest.raises(ProofDataError) as caught:
        read(message)
    assert str(caught.value) == text


def test_values_by_their_type() -> None:
    assert (bytes_of(b"x"), integer_of(3)) == (b"x", 3)
    with pytest.raises(AssertionError):
        bytes_of(3)
    with pytest.raises(AssertionError):
        integer_of(b"x")
