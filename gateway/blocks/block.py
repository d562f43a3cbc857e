"""A block: its number and its serialized items, as received.

Pure.
Source: docs/spec/wire.md section 3.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from sluice.gateway.api import block_pb2
from sluice.gateway.blocks.errors import ItemError
from sluice.gateway.blocks.items import block_number_of, cannot_parse, refused
from sluice.gateway.blocks.refusal import RefusalKind

__all__ = ["Block"]


@dataclass(frozen=True, slots=True)
class Block:
    """A block. Only its header was read; `BlockHasher` and the proofs verify the block."""

    number: int
    items: tuple[bytes, ...]  # serialized `BlockItem`s, in order, the header first

    @classmethod
    def from_items(cls, items: Iterable[bytes]) -> Self:
        """Return the block of these items. Raises BlockRefused if the first is no header."""
        all_items = tuple(items)
        if not all_items:
            raise refused(RefusalKind.MISSING_ITEM, "block", "no items", "a block header first")
        try:
            return cls(block_number_of(all_items[0]), all_items)
        except ItemError as error:
            raise cannot_parse(error) from error

    @classmethod
    def from_bytes(cls, serialized: bytes) -> Self:
        """Parse a serialized `Block` message.

        Raises:
            BlockRefused: also if the message would not serialize to the same bytes again.
        """
        size = len(serialized)
        try:
            message = block_pb2.Block.FromString(serialized)
        except DecodeError:
            got = f"{size} bytes that do not parse"
            raise refused(RefusalKind.CANNOT_PARSE, "block", got, "a Block message") from None
        block = cls.from_items(message.items[:])  # a slice takes two thirds of the time of an iterator
        # Every other encoding of the message is longer.
        if message.ByteSize() != size or len(UnknownFieldSet(message)):
            got = f"{size} bytes with something beside its items"
            raise refused(RefusalKind.CANNOT_PARSE, "block", got, "items alone, in their shortest encoding")
        return block

    def to_bytes(self) -> bytes:
        """Return the serialized `Block` message."""
        return block_pb2.Block(items=self.items).SerializeToString(deterministic=True)

    @property
    def size_bytes(self) -> int:
        """Sum of the items' sizes, somewhat less than the size of `to_bytes()`."""
        return sum(map(len, self.items))
