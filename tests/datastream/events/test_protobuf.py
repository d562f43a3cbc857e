"""The refusals of the protobuf coding; `test_events.py` has the valid cases."""

from __future__ import annotations

import pytest

from sluice.datastream.errors import EventMalformed, EventValueWrong
from sluice.datastream.events.protobuf import (
    UNKNOWN_FIELDS,
    Field,
    FieldKind,
    MessageTable,
    decode_message,
    encode_message,
)

INNER = MessageTable("Inner", Field(1, "text", FieldKind.STRING))
TABLE = MessageTable(
    "Table",
    Field(1, "number", FieldKind.U64),
    Field(2, "small", FieldKind.U32),
    Field(3, "flag", FieldKind.BOOL),
    Field(4, "data", FieldKind.BYTES),
    Field(5, "inner", FieldKind.MESSAGE, INNER),
    Field(2000, "kind", FieldKind.ENUM),
)


def test_defaults_and_high_field_numbers() -> None:
    values = decode_message(TABLE, b"")
    defaults = {"number": 0, "small": 0, "flag": False, "data": b"", "inner": None, "kind": 0}
    assert values == defaults | {UNKNOWN_FIELDS: b""}
    assert encode_message(TABLE, values) == b""
    values["kind"] = 1
    assert encode_message(TABLE, values) == bytes.fromhex("807d01")
    assert decode_message(TABLE, bytes.fromhex("807d01")) == values


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("08", "event Table at byte 1: got the end of the data, expected the rest of a varint"),
        ("0880", "event Table at byte 1: got the end of the data, expected the rest of a varint"),
        ("08" + "ff" * 10, "event Table at byte 1: got a varint of more bytes, expected at most 10"),
        (
            "08" + "ff" * 9 + "02",
            "event Table at byte 1: got varint 27670116110564327423, expected at most 18446744073709551615",
        ),
        ("00", "event Table at byte 0: got field number 0, expected 1 to 536870911"),
        ("8080808010 00", "event Table at byte 0: got field number 536870912, expected 1 to 536870911"),
        ("0801 0a00", "event Table at byte 2: got wire type 2 of number, expected 0"),
        ("2001", "event Table at byte 0: got wire type 0 of data, expected 2"),
        ("2202 01", "event Table at byte 1: got a length of 2, expected at most 1"),
        ("31 00", "event Table at byte 1: got a length of 8, expected at most 1"),
        ("33", "event Table at byte 0: got wire type 3, expected 0, 1, 2 or 5"),
        ("2a 03 0a01 ff", "event Inner at byte 0: got ff as text, expected UTF-8"),
        ("2a 01 0a", "event Inner at byte 1: got the end of the data, expected the rest of a varint"),
    ],
)
def test_malformed(data: str, message: str) -> None:
    with pytest.raises(EventMalformed) as caught:
        decode_message(TABLE, bytes.fromhex(data))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("number", -1, "event Table: number: got -1, expected uint64, 0 to 18446744073709551615"),
        ("small", 1 << 32, "event Table: small: got 4294967296, expected uint32, 0 to 4294967295"),
        ("kind", 1 << 31, "event Table: kind: got 2147483648, expected enum, 0 to 2147483647"),
    ],
)
def test_values_that_do_not_fit(field: str, value: int, message: str) -> None:
    with pytest.raises(EventValueWrong) as caught:
        encode_message(TABLE, {**decode_message(TABLE, b""), field: value})
    assert str(caught.value) == message
