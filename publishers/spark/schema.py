"""The columns of the sources and sinks, for Spark and for Arrow.

`_corrupt` says why there is no block in a row; `mode=permissive` only. Hashes have 48 bytes.
Source: docs/spark.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from sluice.publishers.errors import SchemaError
from sluice.publishers.rows.decodes import DECODES
from sluice.publishers.rows.table import TIME

__all__ = [
    "ALL_BLOCKS",
    "BLOCK_COLUMNS",
    "BLOCK_NUMBER",
    "BLOCK_SCHEMA",
    "CORRUPT",
    "ITEMS",
    "LAYOUT",
    "PREVIOUS",
    "ROOT",
    "ROOT_COLUMNS",
    "arrow_schema",
    "block_columns",
    "check_schema",
    "columns_of",
    "spark_schema",
]

BLOCK_NUMBER: Final = "block_number"
ITEMS: Final = "items"
CORRUPT: Final = "_corrupt"
ROOT: Final = "root_hash"
LAYOUT: Final = "root_layout"
PREVIOUS: Final = "previous_root_hash"
ALL_BLOCKS: Final = "all_blocks_root_hash"

BLOCK_SCHEMA: Final = f"{BLOCK_NUMBER} BIGINT, {ITEMS} ARRAY<BINARY>"

BLOCK_COLUMNS: Final[Mapping[str, pa.DataType]] = {
    BLOCK_NUMBER: pa.int64(),
    ITEMS: pa.list_(pa.binary()),
}
"""The columns of blocks, in order, with their types in Arrow."""

ROOT_COLUMNS: Final = DECODES["hashes"].columns
"""The columns of hashed blocks, in order, with their types in Arrow."""

_SPARK_TYPES: Final[dict[pa.DataType, DataType]] = {
    pa.int64(): LongType(),
    pa.binary(): BinaryType(),
    pa.string(): StringType(),
    pa.bool_(): BooleanType(),
    TIME: TimestampType(),
}


def block_columns(decode: str) -> Mapping[str, pa.DataType]:
    """Return the columns that a source of blocks gives for a `decode`."""
    return BLOCK_COLUMNS if decode == "blocks" else DECODES[decode].columns


def arrow_schema(columns: Mapping[str, pa.DataType]) -> pa.Schema:
    """Return columns as a schema of Arrow."""
    return pa.schema(list(columns.items()))


def spark_schema(columns: Mapping[str, pa.DataType]) -> StructType:
    """Return columns as a schema of Spark."""
    return StructType([StructField(name, _spark_type(kind)) for name, kind in columns.items()])


def _spark_type(kind: pa.DataType) -> DataType:
    if pa.types.is_map(kind):
        return MapType(_spark_type(kind.key_type), _spark_type(kind.item_type))
    if pa.types.is_list(kind):
        return ArrayType(_spark_type(kind.value_type))
    if pa.types.is_struct(kind):
        return StructType([StructField(field.name, _spark_type(field.type)) for field in kind])
    return _SPARK_TYPES[kind]


def columns_of(schema: StructType, offered: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    """Return the wanted columns of a source.

    Args:
        schema: the source's own, or that of `spark.read.schema(…)`.
        offered: all columns of the source.

    Raises:
        SchemaError: there is no such column, or it is of another type.
    """
    wanted = {}
    for field in schema.fields:
        kind = offered.get(field.name)
        if kind is None:
            raise SchemaError(field.name, "a column to read", f"one of {', '.join(offered)}")
        got, expected = field.dataType.simpleString(), _spark_type(kind).simpleString()
        if got != expected or not field.nullable:
            raise SchemaError(field.name, got + ("" if field.nullable else " NOT NULL"), expected)
        wanted[field.name] = kind
    return wanted


def check_schema(schema: StructType) -> None:
    """Check that a DataFrame has the columns of blocks, perhaps among others.

    Raises SchemaError if a column is missing, or has another type.
    """
    types = {field.name: field.dataType for field in schema.fields}
    number, items = types.get(BLOCK_NUMBER), types.get(ITEMS)
    if not isinstance(number, LongType | IntegerType):
        raise SchemaError(BLOCK_NUMBER, _name(number), "BIGINT")
    if not (isinstance(items, ArrayType) and isinstance(items.elementType, BinaryType)):
        raise SchemaError(ITEMS, _name(items), "ARRAY<BINARY>")


def _name(data_type: object) -> str:
    return "no such column" if data_type is None else data_type.simpleString()  # type: ignore[attr-defined]
