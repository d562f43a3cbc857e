"""A row a state change (`decode=state_changes`).

Pure. What a change names and sets stays bytes, with the names of their kinds: they are of some seventy
messages, which the network adds to.
Source: docs/analytics.md, "Columns"; docs/spec/wire.md.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import pyarrow as pa

from sluice.gateway.api import hapi_pb2
from sluice.gateway.blocks.items import ItemKind, payload_of
from sluice.publishers.rows.table import TIME, BlockView, Decode, Table
from sluice.publishers.rows.values import as_micros, as_nanos, identity_of, parsed, state_of

__all__ = ["STATE_CHANGES"]

_IDENTITIES: Final = frozenset(
    ("account_id_key", "contract_id_key", "file_id_key", "schedule_id_key", "token_id_key", "topic_id_key")
)


def _state_changes(block: BlockView, wanted: Collection[str]) -> Table:
    table: Table = {name: [] for name in STATE_CHANGES.columns}
    for index, (kind, item) in enumerate(zip(block.kinds, block.items, strict=True)):
        if kind != ItemKind.STATE_CHANGES:
            continue
        payload = payload_of(item)
        changes = parsed(hapi_pb2.StateChanges, payload)
        has_time = changes is not None and changes.HasField("consensus_timestamp")
        time = changes.consensus_timestamp if changes is not None and has_time else None
        for place, change in enumerate([payload] if changes is None else changes.state_changes):
            row = ({"change": payload} if changes is None else _row(change)) | {
                "block_number": block.number,
                "item_index": index,
                "change_index": place,
                "consensus_time": time and as_micros(time),
                "consensus_ns": time and as_nanos(time),
            }
            for name, values in table.items():
                values.append(row.get(name))
    return table


def _row(data: bytes) -> dict[str, Any]:
    row: dict[str, Any] = {"change": data}
    change = parsed(hapi_pb2.StateChange, data)
    if change is None:
        return row
    operation = change.WhichOneof("change_operation")
    row |= {
        "state_id": change.state_id,
        "state": state_of(change.state_id),
        "operation": operation,
    }
    named: Any = None
    value: Any = None
    if operation == "map_update":
        named, value = change.map_update.key, change.map_update.value
        row["is_identical"] = change.map_update.identical
    elif operation == "map_delete":
        named = change.map_delete.key
    elif operation in ("singleton_update", "queue_push"):
        value = getattr(change, operation)
    for column, message in (("key", named), ("value", value)):
        if message is not None:
            (oneof,) = message.DESCRIPTOR.oneofs
            chosen = message.WhichOneof(oneof.name)
            row[f"{column}_kind"] = chosen
            row[column] = None if chosen is None else getattr(message, chosen)
    if row.get("key_kind") in _IDENTITIES:
        entity = parsed(hapi_pb2.EntityID, row["key"])
        row["entity"] = None if entity is None else identity_of(entity)
    return row


STATE_CHANGES: Final = Decode(
    {
        "block_number": pa.int64(),
        "item_index": pa.int64(),
        "change_index": pa.int64(),
        "consensus_time": TIME,
        "consensus_ns": pa.int64(),
        "state_id": pa.int64(),
        "state": pa.string(),
        "operation": pa.string(),
        "entity": pa.string(),
        "key_kind": pa.string(),
        "key": pa.binary(),
        "value_kind": pa.string(),
        "value": pa.binary(),
        "is_identical": pa.bool_(),
        "change": pa.binary(),
    },
    _state_changes,
)
"""A row a state change."""
