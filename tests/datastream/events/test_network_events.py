"""The protobuf events: their tables agree with their classes. The bytes are in `event_cases.py`."""

from __future__ import annotations

from dataclasses import fields

import pytest

from datastream.errors import EventMalformed, EventValueWrong
from datastream.events.network_events import NETWORK_EVENTS, L2Block, NetworkEvent, Transaction


@pytest.mark.parametrize("kind", NETWORK_EVENTS.values())
def test_table_and_class_agree(kind: type[NetworkEvent]) -> None:
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    assert names == [field.name for field in kind.TABLE.fields]
    assert kind().encode() == b""
    assert kind.decode(b"") == kind()


def test_entry_types() -> None:
    names = {entry_type: kind.__name__ for entry_type, kind in NETWORK_EVENTS.items()}
    assert names == {
        1: "BatchStart",
        2: "L2Block",
        3: "Transaction",
        4: "BatchEnd",
        5: "UpdateGer",
        6: "L2BlockEnd",
        0xB0: "Bookmark",
    }


def test_refusals() -> None:
    with pytest.raises(EventValueWrong, match="event L2Block: l1_infotree_index: got 4294967296"):
        L2Block(l1_infotree_index=1 << 32).encode()
    with pytest.raises(EventMalformed, match="event Transaction at byte 0: got wire type 0 of encoded"):
        Transaction.decode(b"\x20\x01")
