"""The columns of blocks."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from sluice.publishers.errors import SchemaError
from sluice.publishers.spark.schema import BLOCK_COLUMNS, BLOCK_SCHEMA, check_schema


def schema_of(**columns: DataType) -> StructType:
    return StructType([StructField(name, data_type) for name, data_type in columns.items()])


def test_both_forms_name_the_same_columns() -> None:
    assert list(BLOCK_COLUMNS) == [part.split()[0] for part in BLOCK_SCHEMA.split(", ")]


@pytest.mark.parametrize("number", [LongType(), IntegerType()])
def test_the_columns_of_blocks_are_accepted_with_others_beside(number: DataType) -> None:
    check_schema(schema_of(extra=StringType(), items=ArrayType(BinaryType()), block_number=number))


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (
            schema_of(items=ArrayType(BinaryType())),
            "column 'block_number': got no such column, expected BIGINT",
        ),
        (
            schema_of(block_number=StringType(), items=ArrayType(BinaryType())),
            "column 'block_number': got string, expected BIGINT",
        ),
        (schema_of(block_number=LongType()), "column 'items': got no such column, expected ARRAY<BINARY>"),
        (
            schema_of(block_number=LongType(), items=ArrayType(StringType())),
            "column 'items': got array<string>, expected ARRAY<BINARY>",
        ),
    ],
)
def test_other_columns_are_refused(schema: StructType, message: str) -> None:
    with pytest.raises(SchemaError) as caught:
        check_schema(schema)
    assert str(caught.value) == message
