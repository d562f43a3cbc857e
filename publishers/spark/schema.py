"""The schema between the sources and sinks: one row is one block.

Source: design.md, "Spark".
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, LongType, StructType

from publishers.errors import SchemaError

__all__ = ["ARROW_SCHEMA", "BLOCK_NUMBER", "BLOCK_SCHEMA", "ITEMS", "check_schema"]

BLOCK_NUMBER: Final = "block_number"
ITEMS: Final = "items"

BLOCK_SCHEMA: Final = f"{BLOCK_NUMBER} BIGINT, {ITEMS} ARRAY<BINARY>"
"""As Spark writes it."""

ARROW_SCHEMA: Final = pa.schema([(BLOCK_NUMBER, pa.int64()), (ITEMS, pa.list_(pa.binary()))])
"""The same for Arrow."""


def check_schema(schema: StructType) -> None:
    """Check that a DataFrame has the two columns; others are not read.

    Raises:
        SchemaError: a column is missing or has another type.
    """
    types = {field.name: field.dataType for field in schema.fields}
    number, items = types.get(BLOCK_NUMBER), types.get(ITEMS)
    if not isinstance(number, LongType | IntegerType):
        raise SchemaError(BLOCK_NUMBER, _name(number), "BIGINT")
    if not (isinstance(items, ArrayType) and isinstance(items.elementType, BinaryType)):
        raise SchemaError(ITEMS, _name(items), "ARRAY<BINARY>")


def _name(data_type: object) -> str:
    return "no such column" if data_type is None else data_type.simpleString()  # type: ignore[attr-defined]
