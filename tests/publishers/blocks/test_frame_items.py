"""Header, footer and proof, byte by byte."""

from __future__ import annotations

import pytest

from gateway.blocks.frame import check_proof, read_footer, read_header
from gateway.blocks.items import ItemKind, kind_of
from publishers.blocks.frame_items import footer_item, header_item, proof_item


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
