"""Batches bounded in rows and bytes."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa

from publishers import limits
from publishers.spark.batches import row_batches

COLUMNS = {"block_number": pa.int64(), "items": pa.list_(pa.binary()), "_corrupt": pa.string()}


def test_rows_are_cut_into_batches_and_missing_values_are_null() -> None:
    rows = [{"block_number": number, "items": (b"x",)} for number in range(5)]
    batches = list(row_batches(rows, COLUMNS, rows_max=2))
    assert [batch.num_rows for batch in batches] == [2, 2, 1]
    assert batches[2].to_pylist() == [{"block_number": 4, "items": [b"x"], "_corrupt": None}]
    assert batches[0].schema == pa.schema(list(COLUMNS.items()))


def test_a_batch_is_closed_when_its_bytes_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ARROW_BATCH_BYTES", 100)
    rows = [{"block_number": number, "items": (bytes(30), bytes(30))} for number in range(5)]
    assert [batch.num_rows for batch in row_batches(rows, COLUMNS)] == [2, 2, 1]


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
