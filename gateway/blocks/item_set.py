"""The form of an item set, checked before the arbiter sees it.

Pure. The arbiter has all other rules.
  - An item set has at least one item, and each item is exactly one field of `BlockItem`.
  - A header comes first, occurs once at most, and its block number is readable.
  - Only proofs follow a proof.
Source: docs/spec/wire.md section 2.1; docs/protocol.md, "What you send".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sluice.gateway.blocks.errors import ItemError
from sluice.gateway.blocks.items import ItemKind, block_number_of, kinds_and_size_of

try:
    from sluice.gateway.blocks._many_items import split as _split
except ImportError:  # there was no compiler

    def _split(message: bytes, tag: int, items_max: int, /) -> tuple[list[bytes], bytes, int] | None:
        return None


__all__ = ["ItemSet", "inspect", "split"]

_HEADER = int(ItemKind.BLOCK_HEADER)
_PROOF = int(ItemKind.BLOCK_PROOF)
_LENGTH_DELIMITED = 2


class ItemSet(NamedTuple):
    """An item set of valid form."""

    items: Sequence[bytes]
    kinds: Sequence[int]  # the field number of each
    size_bytes: int  # of all items
    block_number: int | None  # from the header, if the set has one
    proven: bool  # the set ends with a proof
    only_proofs: bool


def inspect(items: Sequence[bytes]) -> ItemSet:
    """Check the form of an item set. Raises ItemError if it breaks one of the rules above."""
    return _inspected(items, *kinds_and_size_of(items))


def split(message: bytes, items_max: int, *, field: int = 1) -> ItemSet | None:
    """Return the item set of a serialized message, which has it in this field, with its form checked.

    None: the protobuf library has to parse the message, which has something else in it or in another encoding
    than the shortest, or more than `items_max` items. Raises ItemError as `inspect`.
    """
    found = _split(message, field << 3 | _LENGTH_DELIMITED, items_max)
    return None if found is None else _inspected(*found)


def _inspected(items: Sequence[bytes], kinds: Sequence[int], size_bytes: int) -> ItemSet:
    if not items:
        raise ItemError("item set", "no items", "at least one")
    number: int | None = None
    header_count = kinds.count(_HEADER)
    if header_count:
        if kinds[0] != _HEADER:
            raise ItemError("item set", f"a header as item {kinds.index(_HEADER)}", "a header only as item 0")
        if header_count > 1:
            second = kinds.index(_HEADER, 1)
            raise ItemError("item set", f"a second header as item {second}", "one header at most")
        number = block_number_of(items[0])
    proven = kinds[-1] == _PROOF
    first_proof = len(kinds)
    if proven or _PROOF in kinds:
        first_proof = kinds.index(_PROOF)
        for index in range(first_proof, len(kinds)):
            if kinds[index] != _PROOF:
                got = f"item {index} of kind {kinds[index]} after a proof"
                raise ItemError("item set", got, "only proofs after a proof")
    return ItemSet(items, kinds, size_bytes, number, proven, only_proofs=first_proof == 0)
