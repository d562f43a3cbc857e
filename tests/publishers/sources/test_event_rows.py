"""Events as rows."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from sluice.datastream.errors import EventMalformed
from sluice.datastream.events.events import Generation, encode_event, entry_type_of
from sluice.datastream.events.network_events import (
    NETWORK_EVENTS,
    BatchStart,
    Bookmark,
    Debug,
    L2Block,
    Transaction,
)
from sluice.datastream.events.original_events import ORIGINAL_EVENTS, L2Tx, OriginalBookmark, StartL2Block
from sluice.publishers.sources.event_rows import EVENT_COLUMNS, event_row


def row_of(event: Any) -> dict[str, Any]:
    row = event_row(5, entry_type_of(event), encode_event(event))
    assert (row.pop("entry_number"), row.pop("entry_type")) == (5, event.ENTRY_TYPE)
    return {name: value for name, value in row.items() if value not in (0, b"", bytes(20), bytes(32), None)}


@pytest.mark.parametrize(
    ("event", "row"),
    [
        (
            L2Block(number=7, batch_number=2, hash=b"h", l1_blockhash=b"l", debug=Debug("d")),
            {
                "event": "L2Block",
                "generation": "network",
                "block_number": 7,
                "batch_number": 2,
                "block_hash": b"h",
                "l1_block_hash": b"l",
                "debug": "d",
            },
        ),
        (
            BatchStart(number=2, type=3, fork_id=9),
            {
                "event": "BatchStart",
                "generation": "network",
                "batch_number": 2,
                "batch_type": 3,
                "fork_id": 9,
            },
        ),
        (
            Transaction(l2block_number=7, index=1, encoded=b"tx"),
            {
                "event": "Transaction",
                "generation": "network",
                "block_number": 7,
                "transaction_index": 1,
                "encoded": b"tx",
            },
        ),
        (
            Bookmark(type=2, value=7),
            {"event": "Bookmark", "generation": "network", "bookmark_type": 2, "bookmark_value": 7},
        ),
        (
            OriginalBookmark(1, 7),
            {"event": "Bookmark", "generation": "original", "bookmark_type": 1, "bookmark_value": 7},
        ),
        (
            StartL2Block(2, 7, 1000),
            {
                "event": "StartL2Block",
                "generation": "original",
                "batch_number": 2,
                "block_number": 7,
                "timestamp": 1000,
            },
        ),
        (
            L2Tx(255, 1, encoded=b"tx"),
            {
                "event": "L2Tx",
                "generation": "original",
                "effective_gas_price_percentage": 255,
                "is_valid": 1,
                "encoded": b"tx",
            },
        ),
    ],
)
def test_events_say_what_they_say_in_columns(event: Any, row: dict[str, Any]) -> None:
    assert row_of(event) == row


def test_every_field_of_every_event_has_a_column_of_its_kind() -> None:
    for kind in (*NETWORK_EVENTS.values(), *ORIGINAL_EVENTS.values()):
        event: Any = kind(**{f.name: 1 for f in fields(kind) if f.type == "int"})  # type: ignore[arg-type]
        row = event_row(0, event.ENTRY_TYPE, event.encode())
        for name, value in row.items():
            assert value is None or isinstance(value, EVENT_COLUMNS[name]), (kind, name)


def test_what_is_not_known_or_does_not_fit_keeps_its_bytes() -> None:
    unknown = event_row(1, 77, b"x")
    assert unknown == {
        "entry_number": 1,
        "entry_type": 77,
        "event": "type 0x4d",
        "generation": None,
        "data": b"x",
    }
    data = encode_event(L2Block(number=2**63))
    row = event_row(1, 2, data)
    assert (row["event"], row["data"]) == ("type 0x2", data)
    assert "block_number" not in row


def test_a_stated_generation_is_believed() -> None:
    data = encode_event(StartL2Block(2, 7, 1000))
    with pytest.raises(EventMalformed):
        event_row(1, 1, data, Generation.NETWORK)
