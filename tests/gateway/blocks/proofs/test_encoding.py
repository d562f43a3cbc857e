"""Tests of `gateway.blocks.proofs.encoding`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sluice.gateway.blocks.errors import ProofDataError
from sluice.gateway.blocks.proofs.encoding import LayoutReader, integer_below, scalar_bytes


def test_scalars_read_back() -> None:
    for value in (0, 1, 0x0102, 2**251 - 1):
        assert integer_below(2**251, scalar_bytes(value), "x") == value
    assert scalar_bytes(0x0102) == bytes((2, 1)) + bytes(30)
    assert integer_below(1000, b"\x02\x01", "x", big_endian=True) == 0x0201


def test_a_value_has_one_encoding() -> None:
    with pytest.raises(ProofDataError) as caught:
        integer_below(101, bytes((101, 0)), "weight")
    assert str(caught.value) == "weight: got 0x65, expected less than 0x65"


def test_a_layout_is_read_in_order() -> None:
    data = (8).to_bytes(8, "little") + scalar_bytes(5) + b"ab" + (2).to_bytes(8, "little")
    reader = LayoutReader(data, "thing")
    assert reader.u64("n") == 8
    assert reader.scalar(7, "weight") == 5
    assert reader.take(2, "tail") == b"ab"
    assert reader.offset == 42
    reader.expect_count(2, "count")
    reader.finish()


def test_what_is_too_short_too_long_or_out_of_range_is_refused() -> None:
    cases: list[tuple[Callable[[LayoutReader], object], str]] = [
        (lambda reader: reader.take(9, "n"), "thing: n: got 8 bytes at offset 0, expected 9"),
        (lambda reader: (reader.u64("n"), reader.u64("m")), "thing: m: got 0 bytes at offset 8, expected 8"),
        (lambda reader: reader.scalar(9, "s"), "thing: s: got 8 bytes at offset 0, expected 32"),
        (lambda reader: reader.expect_count(2, "u"), "thing: u: got 3 elements, expected 2"),
        (lambda reader: reader.finish(), "thing: got 8 bytes after offset 0, expected none"),
    ]
    for read, message in cases:
        with pytest.raises(ProofDataError) as caught:
            read(LayoutReader((3).to_bytes(8, "little"), "thing"))
        assert str(caught.value) == message
    with pytest.raises(ProofDataError) as caught:
        LayoutReader(scalar_bytes(9), "thing").scalar(9, "s")
    assert str(caught.value) == "thing: s: got 0x9, expected less than 0x9"
