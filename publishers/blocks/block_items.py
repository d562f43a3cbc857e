"""The items of blocks that are made here: header, footer and proof, and items out of foreign records.

Pure. `record_block` makes all up to the footer:

    header (number, time of the first record) | item, item, … one per record, in order

A payload becomes the content of a signed transaction item, or of another item that the root hash covers and
gateways do not parse.

Source: docs/spec/wire.md section 3; docs/spec/block-hash.md section 3.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sluice.gateway.api import block_pb2
from sluice.gateway.blocks.items import FIELD_NUMBER_MAX, ItemKind, field_item, header_of
from sluice.gateway.blocks.root_hash import NOT_HASHED, subtree_of
from sluice.publishers.errors import ItemTooLarge, OptionError, PrepareError
from sluice.publishers.limits import BLOCK_FILE_BYTES_MAX, ITEM_BYTES_MAX
from sluice.publishers.protocol.item_sets import size_in_set

__all__ = [
    "SECOND_NS",
    "SIGNATURE_SIZE",
    "block_time_ns",
    "check_item_kind",
    "footer_item",
    "header_item",
    "proof_item",
    "record_block",
]

HAPI_MINOR: Final = 78
"""A version with layout 16 of the block root."""
SIGNATURE_SIZE: Final = 64
SECOND_NS: Final = 1_000_000_000
_NOT_FOR_RECORDS: Final = frozenset((ItemKind.BLOCK_HEADER, ItemKind.RECORD_FILE))


def block_time_ns(header: bytes) -> int:
    """Return the consensus time in a header item, in nanoseconds since 1970. Raises ItemError."""
    time = header_of(header).block_timestamp
    return time.seconds * SECOND_NS + time.nanos


def header_item(number: int, at_ns: int) -> bytes:
    """Return a block header; `at_ns` is in nanoseconds since 1970."""
    seconds, nanos = divmod(at_ns, SECOND_NS)
    header = block_pb2.BlockHeader(
        hapi_proto_version=block_pb2.SemanticVersion(minor=HAPI_MINOR),
        software_version=block_pb2.SemanticVersion(minor=HAPI_MINOR, pre="sluice"),
        number=number,
        block_timestamp=block_pb2.Timestamp(seconds=seconds, nanos=nanos),
    )
    return block_pb2.BlockItem(block_header=header).SerializeToString(deterministic=True)


def footer_item(previous_root_hash: bytes, all_blocks_root_hash: bytes, state_root_hash: bytes) -> bytes:
    """Each hash has 48 bytes; the last may be empty."""
    footer = block_pb2.BlockFooter(
        previous_block_root_hash=previous_root_hash,
        root_hash_of_all_block_hashes_tree=all_blocks_root_hash,
        start_of_block_state_root_hash=state_root_hash,
    )
    return block_pb2.BlockItem(block_footer=footer).SerializeToString(deterministic=True)


def proof_item(number: int, signature: bytes) -> bytes:
    """Return a block proof with a signature of the block's root hash."""
    signed = block_pb2.SignedBlockProof(block_signature=signature)
    proof = block_pb2.BlockProof(block=number, signed_block_proof=signed)
    return block_pb2.BlockItem(block_proof=proof).SerializeToString(deterministic=True)


# --- records ------------------------------------------------------------------------------------------------


def check_item_kind(item_kind: int) -> None:
    """Raises OptionError if records may not become items of this kind."""
    if 1 <= item_kind <= FIELD_NUMBER_MAX and item_kind not in _NOT_FOR_RECORDS:
        subtree = subtree_of(item_kind)
        if subtree is not None and subtree != NOT_HASHED:
            return
    expected = "a field of BlockItem that the root hash covers, such as 4 (signed transaction)"
    raise OptionError("item_kind", str(item_kind), expected)


def record_block(
    number: int,
    at_ns: int | None,
    payloads: Sequence[bytes | None],
    item_kind: int = ItemKind.SIGNED_TRANSACTION,
    *,
    size_bytes_max: int = BLOCK_FILE_BYTES_MAX,
) -> tuple[bytes, ...]:
    """Return the items of one block, up to the footer.

    Args:
        at_ns: time of the first record, nanoseconds since 1970, if it has one.
        size_bytes_max: of all items.

    Raises:
        PrepareError: a record has no time, a time before 1970 or no payload, or the block gets too large.
        ItemTooLarge: an item does not fit in a message.
    """
    if at_ns is None:
        raise PrepareError(number, "a record has no time (null)")
    if at_ns < 0:
        raise PrepareError(number, f"a record has a time before 1970 ({at_ns} ns)")
    items = [header_item(number, at_ns)]
    size_bytes = len(items[0])
    for index, payload in enumerate(payloads):
        if payload is None:
            raise PrepareError(number, f"record {index} of the block has no payload (null)")
        item = field_item(item_kind, payload)
        if size_in_set(item) > ITEM_BYTES_MAX:
            raise ItemTooLarge(number, index + 1, size_in_set(item), ITEM_BYTES_MAX)
        items.append(item)
        size_bytes += len(item)
    if size_bytes > size_bytes_max:
        got = f"{len(payloads)} records make {size_bytes} bytes, at most {size_bytes_max} are allowed"
        raise PrepareError(number, f"{got}: take fewer items per block")
    return tuple(items)
