"""Blocks out of Arrow batches."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa

from gateway.blocks.block import Block
from publishers.errors import BadBlock, FrameError
from publishers.spark.block_rows import blocks_in
from publishers.spark.schema import BLOCK_COLUMNS, arrow_schema


def batch(*rows: tuple[int | None, list[bytes | None] | None]) -> pa.RecordBatch:
    return pa.record_batch(
        [[number for number, _ in rows], [items for _, items in rows]], schema=arrow_schema(BLOCK_COLUMNS)
    )


def test_rows_are_blocks() -> None:
    first = batch((1, [b"a", b"bc"]), (2, []), (3, [b"d"]))
    expected = [Block(1, (b"a", b"bc")), Block(2, ()), Block(3, (b"d",))]
    assert list(blocks_in([first, first.slice(2)])) == [*expected, expected[2]]


def test_other_columns_are_not_looked_at_and_numbers_may_be_small() -> None:
    other = pa.record_batch({"x": ["?"], "items": [[b"a"]], "block_number": pa.array([7], pa.int32())})
    assert list(blocks_in([other])) == [Block(7, (b"a",))]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((5, None), "block 5 is bad, it and what follows was not sent: the row has no items (null)"),
        ((5, [b"a", None]), "block 5 is bad, it and what follows was not sent: item 1 is null"),
        ((-1, [b"a"]), "block -1 is bad, it and what follows was not sent: numbers begin with 0"),
    ],
)
def test_rows_that_are_no_blocks(row: tuple[int, list[bytes | None] | None], message: str) -> None:
    with pytest.raises(BadBlock) as caught:
        list(blocks_in([batch((4, [b"a"]), row)]))
    assert str(caught.value) == message


def test_a_row_needs_a_number() -> None:
    with pytest.raises(FrameError, match=r"a row has no block_number \(null\); every row is a block"):
        list(blocks_in([batch((None, [b"a"]))]))
