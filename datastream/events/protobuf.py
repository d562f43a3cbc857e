"""proto3 messages from a table of fields, to bytes and back, as far as the typed events need it. Pure.

    field      varint (number << 3 | wire type), then
    wire 0     varint: uint64, uint32, bool, enum           7 bits a byte, least first, high bit: more follow
    wire 2     varint length, then so many bytes: bytes, string, message

The encoder writes the canonical form: fields in the order of their numbers, without defaults, shortest
varints, unknown fields behind them. The decoder also reads valid non-canonical bytes; a caller that must keep
the bytes compares `encode_message` of the result.

Source: protobuf.dev, "Encoding"; docs/spec/stream-file.md section 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from sluice.datastream.errors import EventMalformed, EventValueWrong
from sluice.datastream.layout import U64_MAX

__all__ = ["UNKNOWN_FIELDS", "Field", "FieldKind", "MessageTable", "decode_message", "encode_message"]

UNKNOWN_FIELDS = "unknown_fields"
"""The name under which a message's values have the fields that its table lacks: their bytes, in order."""

_WIRE_VARINT, _WIRE_64, _WIRE_BYTES, _WIRE_32 = 0, 1, 2, 5
_FIXED_SIZES = {_WIRE_64: 8, _WIRE_32: 4}
_VARINT_BYTES_MAX = 10
_FIELD_NUMBER_MAX = (1 << 29) - 1


class FieldKind(Enum):
    """The type of a field: (name, greatest value of a varint or None)."""

    U64 = ("uint64", U64_MAX)
    U32 = ("uint32", (1 << 32) - 1)
    ENUM = ("enum", (1 << 31) - 1)
    BOOL = ("bool", 1)
    BYTES = ("bytes", None)
    STRING = ("string", None)
    MESSAGE = ("message", None)


_DEFAULTS: dict[FieldKind, object] = {
    FieldKind.U64: 0,
    FieldKind.U32: 0,
    FieldKind.ENUM: 0,
    FieldKind.BOOL: False,
    FieldKind.BYTES: b"",
    FieldKind.STRING: "",
    FieldKind.MESSAGE: None,
}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message."""

    number: int
    name: str
    kind: FieldKind
    message: MessageTable | None = None
    """The table of a field that is a message itself."""


class MessageTable:
    """A message's name and fields.

    Args:
        name: of the message, for errors.
        fields: in the order of their numbers.
    """

    def __init__(self, name: str, *fields: Field) -> None:
        assert [field.number for field in fields] == sorted({field.number for field in fields})
        self.name = name
        self.fields = fields
        self.by_number = {field.number: field for field in fields}
        self.defaults: dict[str, object] = {field.name: _DEFAULTS[field.kind] for field in fields}
        self.defaults[UNKNOWN_FIELDS] = b""


# --- encoding --------------------------------------------------------------------------------------------


def encode_message(table: MessageTable, values: Mapping[str, Any]) -> bytes:
    """Return a message's canonical bytes.

    Args:
        values: field name -> value: int, bool, bytes, str, or, for a message, such a mapping or None; and
            UNKNOWN_FIELDS, if there are any.

    Raises:
        EventValueWrong: a value that its field cannot hold.
    """
    parts: list[bytes] = []
    for field in table.fields:
        value = values[field.name]
        default = _DEFAULTS[field.kind]
        if value is None or (default is not None and value == default):
            continue
        match field.kind:
            case FieldKind.BYTES:
                data = bytes(value)
            case FieldKind.STRING:
                data = value.encode()
            case FieldKind.MESSAGE:
                assert field.message is not None
                data = encode_message(field.message, value)
            case _:
                name, value_max = field.kind.value
                assert value_max is not None
                if not 0 <= value <= value_max:
                    raise EventValueWrong(table.name, field.name, str(value), f"{name}, 0 to {value_max}")
                parts += (_varint(field.number << 3 | _WIRE_VARINT), _varint(int(value)))
                continue
        parts += (_varint(field.number << 3 | _WIRE_BYTES), _varint(len(data)), data)
    parts.append(values.get(UNKNOWN_FIELDS, b""))
    return b"".join(parts)


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# --- decoding --------------------------------------------------------------------------------------------


def decode_message(table: MessageTable, data: bytes) -> dict[str, Any]:
    """Return a message's fields, defaults included.

    Of a repeated field the last one counts; unknown fields are checked, and kept as UNKNOWN_FIELDS.

    Raises:
        EventMalformed: not a message of this table.
    """
    values = dict(table.defaults)
    unknown: list[bytes] = []
    position = 0
    while position < len(data):
        at = position
        tag, position = _read_varint(table, data, position)
        number, wire = tag >> 3, tag & 7
        if not 1 <= number <= _FIELD_NUMBER_MAX:
            raise EventMalformed(table.name, at, f"field number {number}", f"1 to {_FIELD_NUMBER_MAX}")
        field = table.by_number.get(number)
        if field is not None:
            _check_wire(table, field, wire, at)
        if wire == _WIRE_VARINT:
            value, position = _read_varint(table, data, position)
            if field is not None:
                values[field.name] = _from_varint(field, value)
        elif wire in (_WIRE_BYTES, *_FIXED_SIZES):
            chunk, position = _read_chunk(table, data, position, wire)
            if field is not None:
                values[field.name] = _from_chunk(table, field, chunk, at)
        else:
            raise EventMalformed(table.name, at, f"wire type {wire}", "0, 1, 2 or 5")
        if field is None:
            unknown.append(data[at:position])
    values[UNKNOWN_FIELDS] = b"".join(unknown)
    return values


def _check_wire(table: MessageTable, field: Field, wire: int, at: int) -> None:
    expected = _WIRE_BYTES if field.kind.value[1] is None else _WIRE_VARINT
    if wire != expected:
        raise EventMalformed(table.name, at, f"wire type {wire} of {field.name}", str(expected))


def _read_varint(table: MessageTable, data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    for at in range(position, min(len(data), position + _VARINT_BYTES_MAX)):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > U64_MAX:
                raise EventMalformed(table.name, position, f"varint {value}", f"at most {U64_MAX}")
            return value, at + 1
        shift += 7
    if position + _VARINT_BYTES_MAX <= len(data):
        expected = f"at most {_VARINT_BYTES_MAX}"
        raise EventMalformed(table.name, position, "a varint of more bytes", expected)
    raise EventMalformed(table.name, position, "the end of the data", "the rest of a varint")


def _read_chunk(table: MessageTable, data: bytes, position: int, wire: int) -> tuple[bytes, int]:
    at = position
    size = _FIXED_SIZES.get(wire, 0)
    if wire == _WIRE_BYTES:
        size, position = _read_varint(table, data, position)
    if size > len(data) - position:
        raise EventMalformed(table.name, at, f"a length of {size}", f"at most {len(data) - position}")
    return data[position : position + size], position + size


def _from_varint(field: Field, value: int) -> object:
    # Other decoders cut a value too large for its field; kept here, the encoder refuses it, and the event
    # stays raw.
    return bool(value) if field.kind is FieldKind.BOOL else value


def _from_chunk(table: MessageTable, field: Field, chunk: bytes, at: int) -> object:
    if field.kind is FieldKind.STRING:
        try:
            return chunk.decode()
        except UnicodeDecodeError:
            raise EventMalformed(table.name, at, f"{chunk.hex()} as {field.name}", "UTF-8") from None
    if field.kind is FieldKind.MESSAGE:
        assert field.message is not None
        return decode_message(field.message, chunk)
    return bytes(chunk)
