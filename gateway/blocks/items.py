"""Block items as bytes: their kinds, the fields of their messages, and the few that are parsed.

Pure. Nodes hash and store items as received, so two encodings of one item would make two blocks: tag and
length must have their shortest form. Footers, proofs of known kinds and stream entries are read strictly; a
header may have later fields, since its bytes are hashed.
Source: docs/spec/wire.md section 3; docs/spec/block-hash.md section 2; docs/spec/proofs.md section 5.3.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from sluice.datastream.layout import DATA_SIZE_MAX
from sluice.gateway.api import block_pb2
from sluice.gateway.blocks.errors import BlockRefused, ItemError
from sluice.gateway.blocks.merkle import HASH_SIZE
from sluice.gateway.blocks.refusal import Refusal, RefusalKind
from sluice.gateway.limits import HEADER_SIZE_MAX

try:
    from sluice.gateway.blocks._many_items import kinds as _kinds_at_once
except ImportError:  # there was no compiler

    def _kinds_at_once(items: Sequence[bytes], /) -> tuple[bytes, int] | None:
        return None


__all__ = [
    "VARINT_SIZE_MAX",
    "Footer",
    "Header",
    "ItemField",
    "ItemKind",
    "WireType",
    "block_number_of",
    "cannot_parse",
    "check_proof",
    "field_item",
    "fields_of",
    "footer_of",
    "header_of",
    "item_name",
    "kind_of",
    "kinds_of",
    "kinds_one_by_one",
    "payload_of",
    "proof_of",
    "read_footer",
    "read_header",
    "refused",
    "stream_entry_item",
    "stream_entry_of",
    "varint",
]

FIELD_NUMBER_MAX: Final = (1 << 29) - 1
VARINT_SIZE_MAX: Final = 10

MessageT = TypeVar("MessageT", bound=Message)


class ItemKind(IntEnum):
    """Field numbers of the members of `BlockItem`."""

    BLOCK_HEADER = 1
    EVENT_HEADER = 2
    ROUND_HEADER = 3
    SIGNED_TRANSACTION = 4
    TRANSACTION_RESULT = 5
    TRANSACTION_OUTPUT = 6
    STATE_CHANGES = 7
    FILTERED_SINGLE_ITEM = 8
    BLOCK_PROOF = 9
    RECORD_FILE = 10
    TRACE_DATA = 11
    BLOCK_FOOTER = 12
    REDACTED_ITEM = 19
    STREAM_ENTRY = 1008
    """An entry of a network's data stream; the kind is Sluice's own."""


class WireType(IntEnum):
    """The framing of a protobuf field; groups (3, 4) are refused."""

    VARINT = 0
    FIXED64 = 1
    LEN = 2
    FIXED32 = 5


class ItemField(NamedTuple):
    """One field of a message, undecoded."""

    number: int
    wire_type: WireType
    value: int | bytes
    """An integer for VARINT, else the bytes."""


# Enum members are slower.
_VARINT, _FIXED64, _LEN, _FIXED32 = (
    wire_type.value for wire_type in (WireType.VARINT, WireType.FIXED64, WireType.LEN, WireType.FIXED32)
)
_WIRE_TYPES: Final = {wire_type.value: wire_type for wire_type in WireType}
# First byte of an item -> field number; 0: unknown (two-byte tag, other wire type).
_KIND_OF_TAG: Final = tuple(tag >> 3 if tag < 0x80 and tag & 7 == WireType.LEN else 0 for tag in range(256))
# Sizes of items with a one-byte tag and a length of one or two bytes. No such item has 130 bytes.
_SIZE_MAX_LENGTH_1: Final = 1 + 1 + 0x7F
_SIZE_MIN_LENGTH_2: Final = 1 + 2 + 0x80
_SIZE_MAX_LENGTH_2: Final = 1 + 2 + 0x3FFF
assert (_SIZE_MAX_LENGTH_1, _SIZE_MIN_LENGTH_2, _SIZE_MAX_LENGTH_2) == (129, 131, 16_386)
_SHORT_VARINTS: Final = tuple(bytes((value,)) for value in range(0x80))
_STREAM_ENTRY: Final = int(ItemKind.STREAM_ENTRY)
_STREAM_ENTRY_TAG: Final = b"\x82\x3f"
_ENTRY_TYPE_TAG: Final = b"\x08"
_ENTRY_DATA_TAG: Final = b"\x12"
_ENTRY_TYPE_MAX: Final = (1 << 32) - 1


def kind_of(item: bytes) -> int:
    """Return the field number of an item, an `ItemKind` or a later version's number.

    This is the gateway's hottest function. An item's size implies its length field, so the usual item costs
    two comparisons and one lookup.

    Raises:
        ItemError: it is not one length-delimited field, with the shortest tag and length.
    """
    size = len(item)
    if size <= _SIZE_MAX_LENGTH_1:
        if size > 1 and item[1] == size - 2 and (kind := _KIND_OF_TAG[item[0]]):
            return kind
    elif _SIZE_MIN_LENGTH_2 <= size <= _SIZE_MAX_LENGTH_2:
        length = size - 3
        if item[1] == length & 0x7F | 0x80 and item[2] == length >> 7 and (kind := _KIND_OF_TAG[item[0]]):
            return kind
    return _kind_slowly(item)


def kinds_of(items: Sequence[bytes], first_index: int = 0) -> Sequence[int]:
    """Return `kind_of` each item, as `kinds_and_size_of`."""
    return kinds_and_size_of(items, first_index)[0]


def kinds_and_size_of(items: Sequence[bytes], first_index: int = 0) -> tuple[Sequence[int], int]:
    """Return `kind_of` each item without the calls, in bytes or a list, and the bytes of all items.

    Raises:
        ItemError: it names the first bad item, counted from `first_index`.
    """
    found = _kinds_at_once(items)
    if found is None:
        return kinds_one_by_one(items, first_index), sum(map(len, items))
    return found


def kinds_one_by_one(items: Sequence[bytes], first_index: int = 0) -> list[int]:
    """As `kinds_of`, where there is no compiled module, and to say which item is bad."""
    kinds: list[int] = []
    append = kinds.append
    kind_of_tag = _KIND_OF_TAG
    for item in items:
        size = len(item)
        if size <= 129:  # a length of one byte; looking up names would cost more
            if size > 1 and item[1] == size - 2 and (kind := kind_of_tag[item[0]]):
                append(kind)
                continue
        elif 131 <= size <= 16_386:  # a length of two bytes
            length = size - 3
            if item[1] == length & 0x7F | 0x80 and item[2] == length >> 7 and (kind := kind_of_tag[item[0]]):
                append(kind)
                continue
        try:
            append(_kind_slowly(item))
        except ItemError as error:
            raise ItemError(
                error.what, error.got, error.expected, where=f"item {first_index + len(kinds)}"
            ) from None
    return kinds


def _kind_slowly(item: bytes) -> int:
    if item[:2] == _STREAM_ENTRY_TAG:  # blocks of a network's stream have hardly any others
        size = len(item)
        if size <= _SIZE_MAX_LENGTH_1 + 1:
            if size > 2 and item[2] == size - 3:
                return _STREAM_ENTRY
        elif _SIZE_MIN_LENGTH_2 < size <= _SIZE_MAX_LENGTH_2 + 1:
            length = size - 4
            if item[2] == length & 0x7F | 0x80 and item[3] == length >> 7:
                return _STREAM_ENTRY
    if not item:
        raise ItemError("item", "no bytes", "one length-delimited field")
    number, wire_type, offset = _read_tag(item, 0, "item tag")
    if wire_type != WireType.LEN:
        raise ItemError(f"wire type of item field {number}", str(wire_type), "2 (length-delimited)")
    length, offset = _read_varint(item, offset, f"length of item field {number}")
    after_count = len(item) - offset
    if length > after_count:
        raise ItemError(
            f"length of item field {number}", f"{length} bytes", f"{after_count}, all that follow"
        )
    if length < after_count:
        raise ItemError(
            f"item field {number}",
            f"{after_count - length} bytes after its end",
            "nothing after the only field",
        )
    return number


def payload_of(item: bytes) -> bytes:
    """Return an item without its tag and length. Raises ItemError as `kind_of`."""
    kind_of(item)
    size = len(item)
    if item[0] < 0x80 and size <= _SIZE_MAX_LENGTH_2:  # the usual tag; the size implies the length's bytes
        return item[2:] if size <= _SIZE_MAX_LENGTH_1 else item[3:]
    _, _, offset = _read_tag(item, 0, "item tag")
    _, offset = _read_varint(item, offset, "item length")
    return item[offset:]


def header_of(item: bytes) -> block_pb2.BlockHeader:
    """Parse a block header. Raises ItemError."""
    return _message_of(item, ItemKind.BLOCK_HEADER, block_pb2.BlockHeader)


def footer_of(item: bytes) -> block_pb2.BlockFooter:
    """Parse a block footer. Raises ItemError as `header_of`."""
    return _message_of(item, ItemKind.BLOCK_FOOTER, block_pb2.BlockFooter)


def proof_of(item: bytes) -> block_pb2.BlockProof:
    """Parse a block proof. Raises ItemError as `header_of`."""
    return _message_of(item, ItemKind.BLOCK_PROOF, block_pb2.BlockProof)


def block_number_of(header_item: bytes) -> int:
    """Return the block number in a header item; an absent number is 0.

    Raises:
        ItemError: also if field 3 is no varint, which a parser takes for an unknown field. Long headers,
            which may have millions of fields, are not searched for that.
    """
    header = header_of(header_item)
    is_looked_into = not header.number and len(header_item) <= HEADER_SIZE_MAX
    unknown = UnknownFieldSet(header) if is_looked_into else ()
    if any(unknown[index].field_number == 3 for index in range(len(unknown))):
        raise ItemError("block header field 3 (number)", "a value that is no varint", "a block number")
    return header.number


def stream_entry_item(entry_type: int, data: bytes) -> bytes:
    """Return the item of an entry of a network's stream; a bookmark has type 0xb0."""
    assert 0 <= entry_type <= _ENTRY_TYPE_MAX
    body = (_ENTRY_TYPE_TAG + varint(entry_type) if entry_type else b"") + (
        _ENTRY_DATA_TAG + varint(len(data)) + data if data else b""
    )
    return _STREAM_ENTRY_TAG + varint(len(body)) + body


def stream_entry_of(item: bytes) -> tuple[int, bytes]:
    """Return type and data of the entry in a stream entry item.

    Raises:
        ItemError: also if the item has another encoding, or no stream can have its entry.
    """
    size = len(item)
    # Behind the tag and the length, if these are as they should be: else the canonical item is another one.
    offset = 3 if size <= _SIZE_MAX_LENGTH_1 + 1 else 4 if size <= _SIZE_MAX_LENGTH_2 + 1 else 5
    try:
        entry = block_pb2.StreamEntry.FromString(item[offset:])
    except DecodeError:
        entry = block_pb2.StreamEntry()
    entry_type, data = entry.entry_type, entry.data
    if stream_entry_item(entry_type, data) != item:
        entry = _message_of(item, ItemKind.STREAM_ENTRY, block_pb2.StreamEntry)
        entry_type, data = entry.entry_type, entry.data
        canonical = stream_entry_item(entry_type, data)
        if canonical != item:
            got = f"{size} bytes that are not its canonical form"
            raise ItemError("stream entry", got, f"{len(canonical)} bytes: entry_type, data and nothing else")
    if len(data) > DATA_SIZE_MAX:
        raise ItemError("stream entry: data", f"{len(data)} bytes", f"at most {DATA_SIZE_MAX}")
    if entry_type == _ENTRY_TYPE_MAX:
        raise ItemError("stream entry: type", hex(entry_type), "another: to clients, it means 'not found'")
    return entry_type, data


def _message_of(item: bytes, kind: ItemKind, message_class: type[MessageT]) -> MessageT:
    got = kind_of(item)
    if got != kind:
        raise ItemError("item", f"field {got}", f"field {kind.value} ({_name_of(kind)})")
    try:
        return message_class.FromString(payload_of(item))
    except DecodeError:
        got_bytes = f"{len(item)} bytes that do not parse"
        raise ItemError(_name_of(kind), got_bytes, f"a {message_class.__name__} message") from None


def _name_of(kind: ItemKind) -> str:
    return kind.name.lower().replace("_", " ")


# --- header, footer and proofs -----------------------------------------------------------------------------

# Field number -> name and wire type.
_HEADER_FIELDS: Final = {
    1: ("hapi_proto_version", WireType.LEN),
    2: ("software_version", WireType.LEN),
    3: ("number", WireType.VARINT),
    4: ("block_timestamp", WireType.LEN),
    5: ("hash_algorithm", WireType.VARINT),
}
_FOOTER_FIELDS: Final = {
    1: ("previous_block_root_hash", WireType.LEN),
    2: ("root_hash_of_all_block_hashes_tree", WireType.LEN),
    3: ("start_of_block_state_root_hash", WireType.LEN),
}
# The only encoding of a footer: tag, length 48 and hash of fields 1, 2 and, if present, 3.
_FOOTER: Final = re.compile(rb"\x0a\x30(.{48})\x12\x30(.{48})(?:\x1a\x30(.{48}))?", re.DOTALL)
assert HASH_SIZE == 0x30 == 48


class Header(NamedTuple):
    """A checked block header."""

    item: bytes
    number: int
    timestamp: bytes
    """Serialized, in canonical encoding."""
    timestamp_seconds: int  # consensus time, seconds since 1970
    hapi_major: int
    hapi_minor: int


class Footer(NamedTuple):
    """A checked block footer."""

    item: bytes
    previous_root_hash: bytes
    all_blocks_root_hash: bytes
    state_root_hash: bytes  # 48 bytes, or none


def read_header(item: bytes, kind: int) -> Header:
    """Check and parse the first item of a block, or raise BlockRefused."""
    if kind != ItemKind.BLOCK_HEADER:
        raise refused(RefusalKind.MISSING_ITEM, "first item", item_name(kind), "a block header")
    if len(item) > HEADER_SIZE_MAX:
        raise refused(
            RefusalKind.UNSUPPORTED, "block header", f"{len(item)} bytes", f"at most {HEADER_SIZE_MAX}"
        )
    try:
        message = header_of(item)
        values = {field.number: field.value for field in _checked("block header", item, _HEADER_FIELDS)}
    except ItemError as error:
        raise cannot_parse(error) from error
    for number in (1, 4):
        if number not in values:
            what = _field_name("block header", number, _HEADER_FIELDS)
            raise refused(RefusalKind.MISSING_FIELD, what, "nothing", "it")
    if message.hash_algorithm != block_pb2.SHA2_384:
        what = _field_name("block header", 5, _HEADER_FIELDS)
        raise refused(RefusalKind.UNSUPPORTED, what, str(message.hash_algorithm), "0 (SHA2_384)")
    # The reference hashes the parsed timestamp, serialized again: only the canonical encoding agrees.
    seconds, nanos = message.block_timestamp.seconds, message.block_timestamp.nanos
    canonical = block_pb2.Timestamp(seconds=seconds, nanos=nanos).SerializeToString(deterministic=True)
    if values[4] != canonical:
        what = _field_name("block header", 4, _HEADER_FIELDS)
        got = "an encoding that is not canonical"
        raise refused(RefusalKind.CANNOT_PARSE, what, got, canonical.hex())
    version = message.hapi_proto_version
    return Header(item, message.number, canonical, seconds, version.major, version.minor)


def read_footer(item: bytes) -> Footer:
    """Check and parse a footer, or raise BlockRefused."""
    try:
        footer = _FOOTER.fullmatch(payload_of(item))
        if footer is None:
            raise _refused_footer(item)
    except ItemError as error:
        raise cannot_parse(error) from error
    return Footer(item, *footer.groups(b""))


def _refused_footer(item: bytes) -> BlockRefused:
    number_before, numbers = 0, set()
    for number, _, value in _checked("block footer", item, _FOOTER_FIELDS):
        what = _field_name("block footer", number, _FOOTER_FIELDS)
        if number not in _FOOTER_FIELDS:
            return refused(RefusalKind.UNSUPPORTED, what, "it", "only fields that the root hash covers")
        if number < number_before:
            return refused(
                RefusalKind.CANNOT_PARSE, what, f"it after field {number_before}", "rising numbers"
            )
        assert isinstance(value, bytes)
        if len(value) != HASH_SIZE:
            return refused(RefusalKind.CANNOT_PARSE, what, f"{len(value)} bytes", f"{HASH_SIZE} bytes")
        numbers.add(number)
        number_before = number
    what = _field_name("block footer", 2 if 1 in numbers else 1, _FOOTER_FIELDS)
    return refused(RefusalKind.MISSING_FIELD, what, "nothing", f"{HASH_SIZE} bytes")


def check_proof(item: bytes, block_number: int) -> None:
    """Check a proof without verifying it.

    Raises:
        BlockRefused: it does not parse, is for another block, or has a known kind in another encoding.
    """
    try:
        proof = proof_of(item)
    except ItemError as error:
        raise cannot_parse(error) from error
    if proof.block != block_number:
        what, expected = "block proof field 1 (block)", f"{block_number}, as in the header"
        raise refused(RefusalKind.BAD_PROOF, what, str(proof.block), expected)
    if proof.WhichOneof("proof") is None:
        return  # a later version's kind: its encoding is unknown
    proof.DiscardUnknownFields()
    canonical = field_item(ItemKind.BLOCK_PROOF, proof.SerializeToString(deterministic=True))
    if canonical != item:
        got = f"{len(item)} bytes that are not its canonical form"
        raise refused(RefusalKind.CANNOT_PARSE, "block proof", got, f"{len(canonical)} bytes")


def item_name(kind: int) -> str:
    """Return the name of an item kind: `block header (field 1)`, or `item field 23`."""
    try:
        return f"{ItemKind(kind).name.lower().replace('_', ' ')} (field {kind})"
    except ValueError:
        return f"item field {kind}"


def refused(kind: RefusalKind, what: str, got: str, expected: str) -> BlockRefused:
    """Return an error with a refusal."""
    return BlockRefused(Refusal(kind, what, got, expected))


def cannot_parse(error: ItemError) -> BlockRefused:
    """Return the refusal of a block with a malformed item."""
    what = f"{error.where}: {error.what}" if error.where else error.what
    return refused(RefusalKind.CANNOT_PARSE, what, error.got, error.expected)


def _checked(what: str, item: bytes, known: Mapping[int, tuple[str, WireType]]) -> Iterator[ItemField]:
    """Yield the fields of an item's message; refuse a known field that a parser would merge or skip."""
    seen: set[int] = set()
    try:
        for field in fields_of(payload_of(item)):
            if field.number in known:
                if field.number in seen:
                    name = _field_name(what, field.number, known)
                    raise refused(RefusalKind.CANNOT_PARSE, name, "it twice", "at most once")
                expected = known[field.number][1]
                if field.wire_type != expected:
                    name = _field_name(what, field.number, known)
                    got = f"wire type {field.wire_type.value}"
                    raise refused(RefusalKind.CANNOT_PARSE, name, got, f"wire type {expected.value}")
                seen.add(field.number)
            yield field
    except ItemError as error:
        raise ItemError(error.what, error.got, error.expected, where=what) from error


def _field_name(what: str, number: int, known: Mapping[int, tuple[str, WireType]]) -> str:
    return f"{what} field {number} ({known[number][0]})" if number in known else f"{what} field {number}"


# --- fields of a message, undecoded -------------------------------------------------------------------------


def fields_of(message: bytes) -> Iterator[ItemField]:
    """Yield a message's fields as they are encoded, which a parser hides."""
    offset, size = 0, len(message)
    while offset < size:
        at = offset
        number, wire_type, offset = _read_tag(message, offset, "tag", at)
        value: int | bytes
        if wire_type == _VARINT:
            value, offset = _read_varint(message, offset, "value", at)
        else:
            if wire_type == _LEN:
                length, offset = _read_varint(message, offset, "length", at)
            elif wire_type == _FIXED64:
                length = 8
            elif wire_type == _FIXED32:
                length = 4
            else:
                raise ItemError(_named("wire type", at), str(wire_type), "0, 1, 2 or 5")
            if length > size - offset:
                expected = f"at most {size - offset}, all that follow"
                raise ItemError(_named("length", at), f"{length} bytes", expected)
            value = message[offset : offset + length]
            offset += length
        yield ItemField(number, _WIRE_TYPES[wire_type], value)


def varint(value: int) -> bytes:
    """Encode an unsigned integer below 2^64."""
    assert 0 <= value < 1 << 64
    if value < 0x80:
        return _SHORT_VARINTS[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field_item(kind: int, payload: bytes) -> bytes:
    """Build an item."""
    assert 1 <= kind <= FIELD_NUMBER_MAX
    return varint(kind << 3 | WireType.LEN) + varint(len(payload)) + payload


def _read_tag(data: bytes, offset: int, what: str, at: int | None = None) -> tuple[int, int, int]:
    tag, offset = _read_varint(data, offset, what, at)
    number = tag >> 3
    if not 1 <= number <= FIELD_NUMBER_MAX:
        raise ItemError(_named(what, at), f"field number {number}", f"1 to {FIELD_NUMBER_MAX}")
    return number, tag & 7, offset


def _read_varint(data: bytes, offset: int, what: str, at: int | None = None) -> tuple[int, int]:
    if offset < len(data) and data[offset] < 0x80:
        return data[offset], offset + 1
    value = 0
    for size in range(1, VARINT_SIZE_MAX + 1):
        if offset + size > len(data):
            raise ItemError(_named(what, at), f"a varint cut off after {size - 1} bytes", "a whole varint")
        byte = data[offset + size - 1]
        value |= (byte & 0x7F) << 7 * (size - 1)
        if byte >= 0x80:
            continue
        if value >= 1 << 64:
            raise ItemError(_named(what, at), f"{value}", "less than 2^64")
        if byte == 0:
            expected = f"{varint(value).hex()}, the shortest form"
            raise ItemError(_named(what, at), data[offset : offset + size].hex(), expected)
        return value, offset + size
    raise ItemError(
        _named(what, at), f"a varint of more than {VARINT_SIZE_MAX} bytes", f"at most {VARINT_SIZE_MAX}"
    )


def _named(what: str, at: int | None) -> str:
    """Name a part of a field for an error; this costs time."""
    return what if at is None else f"{what} of field at byte {at}"
