"""The form of item sets."""

from __future__ import annotations

import pytest

from sluice.gateway.blocks.errors import ItemError
from sluice.gateway.blocks.item_set import ItemSet, inspect
from sluice.gateway.blocks.items import ItemKind, field_item

HEADER = field_item(ItemKind.BLOCK_HEADER, b"\x18\x07")  # number = 7
EVENT = field_item(ItemKind.EVENT_HEADER, b"")
PROOF = field_item(ItemKind.BLOCK_PROOF, b"\x08\x07")


def _set(items: list[bytes], kinds: bytes, number: int | None, *, proven: bool, only_proofs: bool) -> ItemSet:
    return ItemSet(items, kinds, sum(map(len, items)), number, proven, only_proofs)


GOOD = [
    ("header alone", [HEADER], _set([HEADER], bytes([1]), 7, proven=False, only_proofs=False)),
    (
        "header first",
        [HEADER, EVENT],
        _set([HEADER, EVENT], bytes([1, 2]), 7, proven=False, only_proofs=False),
    ),
    (
        "whole block",
        [HEADER, EVENT, PROOF],
        _set([HEADER, EVENT, PROOF], bytes([1, 2, 9]), 7, proven=True, only_proofs=False),
    ),
    ("body", [EVENT, EVENT], _set([EVENT, EVENT], bytes([2, 2]), None, proven=False, only_proofs=False)),
    (
        "body and proofs",
        [EVENT, PROOF, PROOF],
        _set([EVENT, PROOF, PROOF], bytes([2, 9, 9]), None, proven=True, only_proofs=False),
    ),
    ("proofs", [PROOF, PROOF], _set([PROOF, PROOF], bytes([9, 9]), None, proven=True, only_proofs=True)),
    (
        "number 0 is not sent",
        [field_item(ItemKind.BLOCK_HEADER, b"")],
        _set([field_item(ItemKind.BLOCK_HEADER, b"")], bytes([1]), 0, proven=False, only_proofs=False),
    ),
]

BAD = [
    ([], "item set: got no items, expected at least one"),
    ([EVENT, HEADER], "item set: got a header as item 1, expected a header only as item 0"),
    ([HEADER, EVENT, HEADER], "item set: got a second header as item 2, expected one header at most"),
    ([PROOF, HEADER], "item set: got a header as item 1, expected a header only as item 0"),
    (
        [EVENT, PROOF, EVENT],
        "item set: got item 2 of kind 2 after a proof, expected only proofs after a proof",
    ),
    (
        [PROOF, EVENT, PROOF],
        "item set: got item 1 of kind 2 after a proof, expected only proofs after a proof",
    ),
    (
        [field_item(ItemKind.BLOCK_HEADER, b"\x18")],
        "block header: got 3 bytes that do not parse, expected a BlockHeader message",
    ),
    (
        [field_item(ItemKind.BLOCK_HEADER, b"\x1a\x01\x07")],
        "block header field 3 (number): got a value that is no varint, expected a block number",
    ),
]


@pytest.mark.parametrize(("items", "expected"), [case[1:] for case in GOOD], ids=[case[0] for case in GOOD])
def test_a_set_with_the_form(items: list[bytes], expected: ItemSet) -> None:
    found = inspect(items)
    assert found._replace(kinds=bytes(found.kinds)) == expected


@pytest.mark.parametrize(("items", "message"), BAD)
def test_a_set_without_the_form(items: list[bytes], message: str) -> None:
    with pytest.raises(ItemError) as caught:
        inspect(items)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "item", [b"", b"\x00", b"\x12", b"\x12\x01", b"\x12\x00\x00", b"\x10\x00", EVENT + EVENT]
)
def test_bytes_that_are_no_item(item: bytes) -> None:
    with pytest.raises(ItemError) as caught:
        inspect([HEADER, item])
    assert "item 1" in str(caught.value)
