"""Items of blocks that are made here."""

from __future__ import annotations

import pytest

from sluice.gateway.blocks.items import (
    ItemKind,
    check_proof,
    header_of,
    kind_of,
    payload_of,
    read_footer,
    read_header,
)
from sluice.publishers import limits
from sluice.publishers.blocks.block_items import (
    check_item_kind,
    footer_item,
    header_item,
    proof_item,
    record_block,
)
from sluice.publishers.blocks.linking import open_block
from sluice.publishers.errors import ItemTooLarge, OptionError, PrepareError


@pytest.mark.parametrize(
    ("number", "at_ns", "hexed"),
    [
        (0, 0, "0a12" + "0a02104e" + "120a104e2206736c75696365" + "2200"),
        (5, 3_000_000_007, "0a18" + "0a02104e" + "120a104e2206736c75696365" + "1805" + "220408031007"),
    ],
)
def test_a_header(number: int, at_ns: int, hexed: str) -> None:
    item = header_item(number, at_ns)
    assert item.hex() == hexed
    header = read_header(item, kind_of(item))
    assert (header.number, header.hapi_minor) == (number, 78)


@pytest.mark.parametrize("state", [b"", bytes([3] * 48)])
def test_a_footer(state: bytes) -> None:
    footer = read_footer(footer_item(bytes([1] * 48), bytes([2] * 48), state))
    assert footer.previous_root_hash == bytes([1] * 48)
    assert footer.all_blocks_root_hash == bytes([2] * 48)
    assert footer.state_root_hash == state


def test_a_proof() -> None:
    item = proof_item(7, b"s" * 64)
    assert item.hex() == "4a46" + "0807" + "1242" + "0a40" + b"s".hex() * 64
    assert kind_of(item) == ItemKind.BLOCK_PROOF
    check_proof(item, 7)


def test_a_payload_is_the_content_of_an_item() -> None:
    items = record_block(7, 1_500_000_000, [b"a", b"", b"x" * 200])
    header = header_of(items[0])
    assert (header.number, header.block_timestamp.seconds, header.block_timestamp.nanos) == (
        7,
        1,
        500_000_000,
    )
    assert items[1:3] == (b"\x22\x01a", b"\x22\x00")
    assert [payload_of(item) for item in items[1:]] == [b"a", b"", b"x" * 200]
    assert len(open_block(7, items).path().to_bytes()) == 192


@pytest.mark.parametrize("kind", [2, 3, 4, 5, 6, 7, 11, 23, 28, 35])
def test_kinds_that_the_root_hash_covers(kind: int) -> None:
    check_item_kind(kind)
    items = record_block(0, 0, [b"any bytes"], kind)
    other = record_block(0, 0, [b"other bytes"], kind)
    assert open_block(0, items).path() != open_block(0, other).path()


@pytest.mark.parametrize("kind", [-1, 0, 1, 8, 9, 10, 12, 19, 20, 21, 22, 39, 1 << 29])
def test_other_kinds_are_refused(kind: int) -> None:
    with pytest.raises(OptionError) as caught:
        check_item_kind(kind)
    assert str(caught.value) == (
        f"option 'item_kind': got {kind}, expected a field of BlockItem that the root hash covers, such as 4 "
        "(signed transaction)"
    )


@pytest.mark.parametrize(
    ("at_ns", "payloads", "reason"),
    [
        (None, [b"a"], "a record has no time (null)"),
        (-1, [b"a"], "a record has a time before 1970 (-1 ns)"),
        (0, [b"a", None], "record 1 of the block has no payload (null)"),
    ],
)
def test_what_is_missing_is_named(at_ns: int | None, payloads: list[bytes | None], reason: str) -> None:
    with pytest.raises(PrepareError) as caught:
        record_block(3, at_ns, payloads)
    assert str(caught.value) == f"block 3 cannot be prepared: {reason}"


def test_an_item_above_the_limit_is_refused() -> None:
    overhead = 2 * (1 + 4)  # tag and length of the item, and both again in the set
    fits = bytes(limits.ITEM_BYTES_MAX - overhead)
    assert len(record_block(3, 0, [fits])) == 2
    with pytest.raises(ItemTooLarge) as caught:
        record_block(3, 0, [b"", fits + b"x"])
    most = limits.ITEM_BYTES_MAX
    assert str(caught.value) == (
        f"block 3: item 2 takes {most + 1} bytes in a message, at most {most} are allowed"
    )


def test_a_block_above_the_limit_is_refused() -> None:
    header_bytes = len(record_block(3, 0, [])[0])
    most = header_bytes + 2 * 12
    assert len(record_block(3, 0, [bytes(10)] * 2, ItemKind.TRACE_DATA, size_bytes_max=most)) == 3
    with pytest.raises(PrepareError) as caught:
        record_block(3, 0, [bytes(10), bytes(11)], size_bytes_max=most)
    assert caught.value.reason == (
        f"2 records make {header_bytes + 25} bytes, at most {header_bytes + 24} are allowed: "
        "take fewer items per block"
    )
