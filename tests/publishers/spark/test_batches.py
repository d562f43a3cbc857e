"""Batches bounded in rows and bytes, and the blocks of batches."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

import pyarrow as pa

from sluice.gateway.blocks.block import Block
from sluice.publishers.errors import BadBlock, FrameError
from sluice.publishers.spark.batches import blocks_in, row_batches
from sluice.publishers.spark.schema import BLOCK_COLUMNS, arrow_schema

COLUMNS = {"block_number": pa.int64(), "items": pa.list_(pa.binary()), "_corrupt": pa.string()}


def test_rows_are_cut_into_batches_and_missing_values_are_null() -> None:
    rows = [{"block_number": number, "items": (b"x",)} for number in range(5)]
    batches = list(row_batches(rows, COLUMNS, rows_max=2))
    assert [batch.num_rows for batch in batches] == [2, 2, 1]
    assert batches[2].to_pylist() == [{"block_number": 4, "items": [b"x"], "_corrupt": None}]
    assert batches[0].schema == pa.schema(list(COLUMNS.items()))


def test_a_batch_is_closed_when_its_bytes_are_enough() -> None:
    rows = [{"block_number": number, "items": (bytes(30), bytes(30))} for number in range(5)]
    assert [batch.num_rows for batch in row_batches(rows, COLUMNS, bytes_max=100)] == [2, 2, 1]


def test_only_wanted_columns_are_kept() -> None:
    rows = [{"block_number": 1, "items": (b"x",)}]
    (batch,) = row_batches(rows, {"block_number": pa.int64()})
    assert batch.to_pylist() == [{"block_number": 1}]


def test_no_rows_no_batch() -> None:
    assert list(row_batches([], COLUMNS)) == []


@pytest.mark.parametrize("last", [(), (b"y",), None])
def test_a_large_batch_is_the_same_array(last: tuple[bytes, ...] | None) -> None:
    blocks = [(bytes(1 << 20), b"", b"x"), (), last]
    (batch,) = row_batches([{"items": items} for items in blocks], COLUMNS)
    batch.validate(full=True)
    assert batch.column("items").equals(pa.array(blocks, COLUMNS["items"]))


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
        ((5, None), "block 5 is bad; neither it nor later blocks were sent: the row has no items (null)"),
        ((5, [b"a", None]), "block 5 is bad; neither it nor later blocks were sent: item 1 is null"),
        ((-1, [b"a"]), "block -1 is bad; neither it nor later blocks were sent: numbers begin with 0"),
    ],
)
def test_rows_that_are_no_blocks(row: tuple[int, list[bytes | None] | None], message: str) -> None:
    with pytest.raises(BadBlock) as caught:
        list(blocks_in([batch((4, [b"a"]), row)]))
    assert str(caught.value) == message


def test_a_row_needs_a_number() -> None:
    with pytest.raises(FrameError, match=r"a row has no block_number \(null\); every row is a block"):
        list(blocks_in([batch((None, [b"a"]))]))
