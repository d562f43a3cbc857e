"""The form of item sets."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from importlib.util import find_spec

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from sluice.gateway.api import publish_pb2, subscribe_pb2
from sluice.gateway.blocks.errors import ItemError
from sluice.gateway.blocks.item_set import ItemSet, inspect, split
from sluice.gateway.blocks.items import ItemKind, field_item, kinds_one_by_one, varint

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


# --- an item set taken from its message --------------------------------------------------------------------

ITEMS_MAX = 5
IS_COMPILED = find_spec("sluice.gateway.blocks._many_items") is not None


def message_of(items: list[bytes]) -> bytes:
    """The message in its shortest encoding, by the protobuf library."""
    message = publish_pb2.PublishStreamRequest()
    message.block_items.SetInParent()
    message.block_items.block_items.extend(items)
    return message.SerializeToString()


def outcome(look: Callable[[], ItemSet | None]) -> ItemSet | str | None:
    """The set with its parts in one form, or the error's text."""
    try:
        found = look()
    except ItemError as error:
        return str(error)
    return None if found is None else found._replace(items=list(found.items), kinds=list(found.kinds))


_Kind = type[publish_pb2.PublishStreamRequest] | type[subscribe_pb2.SubscribeStreamResponse]


def parsed(message: bytes, kind: _Kind) -> list[bytes] | None:
    """The items that the protobuf library finds; None: the message has no item set."""
    try:
        request = kind.FromString(message)
    except DecodeError:
        return None
    return list(request.block_items.block_items) if request.HasField("block_items") else None


def check(message: bytes) -> None:
    """Split a message, and the same one of a subscription: if it is split, the protobuf library finds the
    same, item by item."""
    check_as(message, 1, publish_pb2.PublishStreamRequest)
    subscription = b"\x12" + message[1:] if message[:1] == b"\x0a" else message
    check_as(subscription, 2, subscribe_pb2.SubscribeStreamResponse)


def check_as(message: bytes, field: int, kind: _Kind) -> None:
    found = outcome(lambda: split(message, ITEMS_MAX, field=field))
    if found is not None:
        items = parsed(message, kind)
        assert items is not None
        assert len(items) <= ITEMS_MAX
        assert found == outcome(lambda: inspect(items))
        assert message_of(items)[1:] == message[1:]


ITEMS = st.one_of(
    st.sampled_from(
        [HEADER, EVENT, PROOF, b"", b"\x12", EVENT + EVENT, field_item(256, b""), b"\x12\x80\x00"]
    ),
    st.builds(field_item, st.sampled_from([2, 4, 15, 16, 255, 256, 1008]), st.binary(max_size=300)),
    st.binary(max_size=4),
)
VARINTS = st.one_of(
    st.integers(0, 300).map(varint),
    st.sampled_from(
        [b"\x80", b"\x80\x00", b"\xff" * 9 + b"\x01", b"\xff" * 10 + b"\x01", b"\xff\xff\xff\xff\x0f"]
    ),
)
FIELDS = st.one_of(
    st.builds(field_item, st.integers(1, 4), st.binary(max_size=20)),
    st.builds(lambda number, value: varint(number << 3) + value, st.integers(1, 4), VARINTS),
    st.sampled_from(
        [b"\x09" + bytes(8), b"\x0d" + bytes(4), b"\x0b\x0c", b"\x0b", b"\x0c", b"\x0a", b"\x0e\x00"]
    ),
)
BROKEN = st.one_of(
    st.lists(st.one_of(st.lists(ITEMS, max_size=2).map(message_of), FIELDS), max_size=3).map(b"".join),
    st.builds(lambda length, rest: b"\x0a" + length + rest, VARINTS, st.binary(max_size=20)),
    st.builds(
        lambda parts: field_item(1, b"".join(parts)),
        st.lists(st.one_of(ITEMS.map(lambda item: field_item(1, item)), FIELDS), max_size=4),
    ),
    st.builds(lambda items, cut: message_of(items)[:cut], st.lists(ITEMS, max_size=3), st.integers(0, 40)),
)


@given(st.lists(ITEMS, max_size=ITEMS_MAX + 1))
def test_a_message_is_split_as_the_protobuf_library_does(items: list[bytes]) -> None:
    message = message_of(items)
    check(message)
    if IS_COMPILED and len(items) <= ITEMS_MAX and all(kind < 256 for kind in _kinds_or_none(items)):
        assert outcome(lambda: split(message, ITEMS_MAX)) == outcome(lambda: inspect(items))


def _kinds_or_none(items: list[bytes]) -> list[int]:
    """The items' kinds; 256 for no item."""
    kinds = []
    for item in items:
        try:
            kinds.append(kinds_one_by_one([item])[0])
        except ItemError:
            kinds.append(256)
    return kinds


@given(BROKEN)
def test_of_a_message_in_any_other_form_nothing_is_split_that_the_protobuf_library_reads_otherwise(
    message: bytes,
) -> None:
    check(message)


def test_a_changed_byte_anywhere_is_seen_as_the_protobuf_library_sees_it() -> None:
    message = message_of([HEADER, field_item(ItemKind.SIGNED_TRANSACTION, bytes(130)), PROOF])
    for place in range(len(message)):
        check(message[:place])
        for byte in (0, 1, 0x0A, 0x12, 0x7F, 0x80, 0xFF):
            check(message[:place] + bytes([byte]) + message[place + 1 :])


def test_random_messages_are_split_as_the_protobuf_library_does() -> None:
    random_ = random.Random(1)
    for _ in range(3_000):
        check(bytes(random_.choices([0, 1, 2, 4, 0x0A, 0x12, 0x22, 0x80], k=random_.randrange(16))))


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_plain_message_of_no_more_than_the_limit_is_split() -> None:
    many = message_of([EVENT] * ITEMS_MAX)
    found = split(many, ITEMS_MAX)
    assert found is not None
    assert (list(found.items), found.size_bytes) == ([EVENT] * ITEMS_MAX, ITEMS_MAX * len(EVENT))
    assert split(many, ITEMS_MAX - 1) is None
    assert split(message_of([]) + message_of([EVENT]), ITEMS_MAX) is None
    with pytest.raises(ItemError, match=r"^item set: got no items, expected at least one$"):
        split(message_of([]), ITEMS_MAX)
