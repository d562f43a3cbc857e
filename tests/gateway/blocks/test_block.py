"""The small parts of a block: its message, its number on the wire, and why it is refused."""

from __future__ import annotations

import pytest

from sluice.gateway.api import block_pb2
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.block_numbers import BLOCK_NUMBER_MAX, U64_MAX, from_wire, to_wire
from sluice.gateway.blocks.errors import BlockRefused
from sluice.gateway.blocks.refusal import FAULTS, Fault, Refusal, RefusalKind
from tests.gateway.block_makers import block_items, body_items, header_item


def test_a_block_reads_back_from_its_bytes() -> None:
    items = tuple(block_items(3))
    block = Block.from_items(items)
    serialized = block.to_bytes()
    assert serialized == block_pb2.Block(items=items).SerializeToString()
    assert Block.from_bytes(serialized) == block == Block(3, items)
    assert block.size_bytes == sum(map(len, items))


def test_the_bytes_are_those_of_embedded_messages() -> None:
    assert Block(0, (b"\x0a\x01x", b"\x22\x00")).to_bytes() == bytes.fromhex(
        "0a030a0178 0a022200".replace(" ", "")
    )


@pytest.mark.parametrize(
    ("serialized", "text"),
    [
        (b"", "missing item: block: got no items, expected a block header first"),
        (b"\x0a", "cannot parse: block: got 1 bytes that do not parse, expected a Block message"),
        (
            block_pb2.Block(items=body_items(1)).SerializeToString(),
            "cannot parse: item: got field 2, expected field 1 (block header)",
        ),
        (
            block_pb2.Block(items=[header_item()]).SerializeToString() + b"\x10\x01",
            (
                f"cannot parse: block: got {len(header_item()) + 4} bytes with something beside its items, "
                "expected items alone, in their shortest encoding"
            ),
        ),
    ],
    ids=["empty", "cut off", "no header", "another field"],
)
def test_what_is_no_block_is_refused(serialized: bytes, text: str) -> None:
    with pytest.raises(BlockRefused) as caught:
        Block.from_bytes(serialized)
    assert str(caught.value) == text


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152])
def test_items_of_every_length_come_back_and_a_longer_encoding_is_refused(size: int) -> None:
    items = [header_item(), bytes(size), bytes(size), b"x"]
    serialized = block_pb2.Block(items=items).SerializeToString()
    assert Block.from_bytes(serialized).items == tuple(items)
    # The length of the last item in two bytes, and an item under a tag of two bytes.
    for end in (b"\x0a\x81\x00x", b"\x8a\x00\x01x"):
        with pytest.raises(BlockRefused, match="something beside its items"):
            Block.from_bytes(serialized[:-3] + end)


def test_every_part_of_a_block_is_refused_or_shorter() -> None:
    serialized = Block.from_items(block_items()).to_bytes()
    for size in range(len(serialized)):
        try:
            part = Block.from_bytes(serialized[:size])
        except BlockRefused:
            continue
        assert part.to_bytes() == serialized[:size]


@pytest.mark.parametrize("number", [0, 1, BLOCK_NUMBER_MAX])
def test_a_block_is_its_number(number: int) -> None:
    assert from_wire(to_wire(number)) == number


@pytest.mark.parametrize("number", [1 << 63, (1 << 63) + 5, U64_MAX - 1, U64_MAX])
def test_what_no_block_can_have_is_none(number: int) -> None:
    assert from_wire(number) is None
    assert to_wire(None) == U64_MAX == 2**64 - 1


def test_a_refusal_says_kind_object_got_and_expected() -> None:
    refusal = Refusal(RefusalKind.BAD_ROOT_HASH, "block footer field 1", "aa", "bb")
    assert str(refusal) == "bad root hash: block footer field 1: got aa, expected bb"


def test_nobody_is_blamed_for_what_was_not_checked() -> None:
    assert set(FAULTS) == set(RefusalKind)
    unblamed = {kind for kind in RefusalKind if kind.fault is not Fault.SENDER}
    assert unblamed == {
        RefusalKind.MISSING_VERIFICATION_DATA,
        RefusalKind.UNSUPPORTED,
        RefusalKind.NOT_CHECKED,
    }
    assert RefusalKind.MISSING_VERIFICATION_DATA.fault is Fault.NODE
