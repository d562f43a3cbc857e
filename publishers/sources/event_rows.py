"""The typed events of a zkEVM stream as rows of one table.

Pure. Both generations share the columns; what an event lacks is null. An entry of an unknown kind, or with a
number above 2^63 - 1, which no column holds, keeps its bytes in `data`.
Source: docs/spec/stream-file.md section 5; `datastream/events/events.py`.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

from sluice.datastream.events.events import Event, Generation, RawEvent, decode_event, event_name
from sluice.datastream.events.network_events import (
    BatchEnd,
    BatchStart,
    Bookmark,
    Debug,
    L2Block,
    L2BlockEnd,
    NetworkEvent,
    Transaction,
)
from sluice.datastream.events.original_events import L2Tx, OriginalBookmark, OriginalEvent, StartL2Block
from sluice.datastream.events.protobuf import UNKNOWN_FIELDS
from sluice.publishers.number_range import NUMBER_MAX

__all__ = ["EVENT_COLUMNS", "event_row"]

EVENT_COLUMNS: Final[dict[str, type]] = {
    "entry_number": int,
    "entry_type": int,
    "event": str,
    "generation": str,
    "block_number": int,
    "batch_number": int,
    "bookmark_type": int,
    "bookmark_value": int,
    "batch_type": int,
    "timestamp": int,
    "delta_timestamp": int,
    "min_timestamp": int,
    "fork_id": int,
    "chain_id": int,
    "transaction_index": int,
    "encoded": bytes,
    "is_valid": int,
    "effective_gas_price_percentage": int,
    "im_state_root": bytes,
    "block_hash": bytes,
    "state_root": bytes,
    "global_exit_root": bytes,
    "local_exit_root": bytes,
    "coinbase": bytes,
    "l1_block_hash": bytes,
    "l1_info_root": bytes,
    "l1_info_tree_index": int,
    "block_gas_limit": int,
    "block_info_root": bytes,
    "base_fee": bytes,
    "debug": str,
    "unknown_fields": bytes,
    "data": bytes,
}
"""The columns, with the type of their values."""

_SAME_MEANING: Final = {
    "l1_blockhash": "l1_block_hash",
    "l1_infotree_index": "l1_info_tree_index",
    "l2block_number": "block_number",
    "hash": "block_hash",
    "index": "transaction_index",
    "gas_price_percentage": "effective_gas_price_percentage",
}
_BY_EVENT: Final[dict[type, dict[str, str]]] = {
    L2Block: {"number": "block_number"},
    L2BlockEnd: {"number": "block_number"},
    BatchStart: {"number": "batch_number", "type": "batch_type"},
    BatchEnd: {"number": "batch_number"},
    Bookmark: {"type": "bookmark_type", "value": "bookmark_value"},
    OriginalBookmark: {"type": "bookmark_type", "number": "bookmark_value"},
    Transaction: {},
    StartL2Block: {},
    L2Tx: {},
}
"""Fields whose column depends on the event."""


def event_row(
    entry_number: int, entry_type: int, data: bytes, generation: Generation | None = None
) -> dict[str, Any]:
    """Return the row of an entry: values by column, without nulls.

    `generation` None: the bytes tell.

    Raises:
        EventMalformed: a known kind of the stated generation, but not such an event.
    """
    event = decode_event(entry_type, data, generation)
    row = None if isinstance(event, RawEvent) else _values(event)
    if row is None:
        event = RawEvent(entry_type, data)
        row = {"data": data}
    return {
        "entry_number": entry_number,
        "entry_type": entry_type,
        "event": event_name(event),
        "generation": _generation_of(event),
    } | row


def _values(event: Event) -> dict[str, Any] | None:
    names = _BY_EVENT.get(type(event), {})
    row: dict[str, Any] = {}
    for field in fields(event):  # type: ignore[arg-type]
        value = getattr(event, field.name)
        if isinstance(value, Debug):
            value = value.message
        if field.name == UNKNOWN_FIELDS and not value:
            continue
        if isinstance(value, int) and value > NUMBER_MAX:
            return None
        if isinstance(value, bool):
            value = int(value)
        row[names.get(field.name) or _SAME_MEANING.get(field.name, field.name)] = value
    return row


def _generation_of(event: Event) -> str | None:
    if isinstance(event, NetworkEvent):
        return Generation.NETWORK.value
    return Generation.ORIGINAL.value if isinstance(event, OriginalEvent) else None
