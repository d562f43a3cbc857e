"""What stands for a block number in messages."""

from __future__ import annotations

import pytest

from gateway.blocks.block_numbers import BLOCK_NUMBER_MAX, U64_MAX, from_wire, to_wire


@pytest.mark.parametrize("number", [0, 1, BLOCK_NUMBER_MAX])
def test_a_block_is_its_number(number: int) -> None:
    assert from_wire(to_wire(number)) == number


def test_there_is_none() -> None:
    assert to_wire(None) == U64_MAX == 2**64 - 1
    assert from_wire(U64_MAX) is None


@pytest.mark.parametrize("number", [1 << 63, (1 << 63) + 5, U64_MAX - 1])
def test_what_no_block_can_have_is_none(number: int) -> None:
    assert from_wire(number) is None
