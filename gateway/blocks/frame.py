"""The frame of a block: its header, footer and proofs, read strictly.

Pure. The items between are only hashed; these three are parsed. Whatever a tolerant parser would hide is
refused: a field that is there twice, a timestamp or a footer in another encoding, bytes that no hash covers.

    header   hapi_proto_version = 1 (needed), software_version = 2, number = 3, block_timestamp = 4 (needed),
             hash_algorithm = 5 (0, SHA-384); fields of later versions may follow, all of it is hashed
    footer   previous_block_root_hash = 1, root_hash_of_all_block_hashes_tree = 2 (48 bytes each),
             start_of_block_state_root_hash = 3 (48 bytes or absent); no other field: only these are hashed
    proof    block = 1 (the header's number) and one of the proofs 2, 3, 4, in canonical encoding; or a proof
             of a later kind
Source: docs/spec/wire.md section 3; docs/spec/block-hash.md section 2; docs/spec/proofs.md section 5.3.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from sluice.gateway.api import block_pb2
from sluice.gateway.blocks.errors import BlockRefused, ItemError
from sluice.gateway.blocks.items import (
    ItemField,
    ItemKind,
    WireType,
    field_item,
    fields_of,
    header_of,
    payload_of,
    proof_of,
)
from sluice.gateway.blocks.merkle import HASH_SIZE
from sluice.gateway.blocks.refusal import Refusal, RefusalKind
from sluice.gateway.limits import HEADER_SIZE_MAX

__all__ = [
    "Footer",
    "Header",
    "cannot_parse",
    "check_proof",
    "item_name",
    "read_footer",
    "read_header",
    "refused",
]

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
# The only way to write a footer: tag, length 48 and hash of fields 1, 2, and 3 where it is there.
_FOOTER: Final = re.compile(rb"\x0a\x30(.{48})\x12\x30(.{48})(?:\x1a\x30(.{48}))?", re.DOTALL)
assert HASH_SIZE == 0x30 == 48


class Header(NamedTuple):
    """A block header that was checked."""

    item: bytes
    number: int
    timestamp: bytes
    """The serialized Timestamp as it is in the item, in canonical encoding."""
    timestamp_seconds: int  # consensus time, seconds since 1970
    hapi_major: int
    """Major number of `hapi_proto_version`; 0 in every version so far."""
    hapi_minor: int  # minor number of `hapi_proto_version`


class Footer(NamedTuple):
    """A block footer that was checked."""

    item: bytes
    previous_root_hash: bytes  # 48 bytes
    all_blocks_root_hash: bytes  # 48 bytes
    state_root_hash: bytes  # 48 bytes, or none


def read_header(item: bytes, kind: int) -> Header:
    """Check the first item of a block, of field number `kind`, and return it as a header.

    Raises:
        BlockRefused: it is no header, lacks a needed field, or is not encoded as it must be.
    """
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
    # The reference hashes the parsed timestamp, serialized again: both agree for its canonical encoding only.
    seconds, nanos = message.block_timestamp.seconds, message.block_timestamp.nanos
    canonical = block_pb2.Timestamp(seconds=seconds, nanos=nanos).SerializeToString(deterministic=True)
    if values[4] != canonical:
        what = _field_name("block header", 4, _HEADER_FIELDS)
        got = "an encoding that is not canonical"
        raise refused(RefusalKind.CANNOT_PARSE, what, got, canonical.hex())
    version = message.hapi_proto_version
    return Header(item, message.number, canonical, seconds, version.major, version.minor)


def read_footer(item: bytes) -> Footer:
    """Check a footer item. The root hash covers its three values, not its bytes: it may hold nothing else.

    Raises:
        BlockRefused: a hash is missing or has another size, or there is anything else.
    """
    try:
        footer = _FOOTER.fullmatch(payload_of(item))
        if footer is None:
            raise _refused_footer(item)
    except ItemError as error:
        raise cannot_parse(error) from error
    return Footer(item, *footer.groups(b""))


def _refused_footer(item: bytes) -> BlockRefused:
    """Return why a footer does not match `_FOOTER`; raise what is wrong with a field in itself."""
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
    """Check that a proof item parses and is for this block; this does not verify the proof.

    Raises:
        BlockRefused: it does not parse, is for another block, or is of a known kind in another encoding.
    """
    try:
        proof = proof_of(item)
    except ItemError as error:
        raise cannot_parse(error) from error
    if proof.block != block_number:
        what, expected = "block proof field 1 (block)", f"{block_number}, as in the header"
        raise refused(RefusalKind.BAD_PROOF, what, str(proof.block), expected)
    if proof.WhichOneof("proof") is None:
        return  # a kind of a later version, whose encoding is not known
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
    """Return the error for a refusal, for the caller to raise."""
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
