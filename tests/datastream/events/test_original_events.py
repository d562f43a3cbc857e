"""The binary events: refusals. Their bytes are in `event_cases.py`."""

from __future__ import annotations

from dataclasses import fields

import pytest

from datastream.errors import EventMalformed, EventValueWrong
from datastream.events.original_events import (
    ORIGINAL_EVENTS,
    EndL2Block,
    L2Tx,
    OriginalEvent,
    OriginalUpdateGer,
    StartL2Block,
)


@pytest.mark.parametrize("kind", ORIGINAL_EVENTS.values())
def test_layout_and_class_agree(kind: type[OriginalEvent]) -> None:
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    assert names == [*kind.LAYOUT, *(["encoded"] if kind is L2Tx else [])]


@pytest.mark.parametrize(
    ("kind", "data", "message"),
    [
        (StartL2Block, bytes(141), "event StartL2Block at byte 0: got 141 bytes, expected 142 bytes"),
        (EndL2Block, bytes(73), "event EndL2Block at byte 0: got 73 bytes, expected 72 bytes"),
        (OriginalUpdateGer, b"", "event OriginalUpdateGer at byte 0: got 0 bytes, expected 102 bytes"),
        (L2Tx, bytes(37), "event L2Tx at byte 0: got 37 bytes, expected 38 bytes or more"),
        (
            L2Tx,
            bytes(37) + b"\2x",
            "event L2Tx at byte 34: got a transaction of 2 bytes, expected the 1 that follow",
        ),
    ],
)
def test_malformed(kind: type[OriginalEvent], data: bytes, message: str) -> None:
    with pytest.raises(EventMalformed) as caught:
        kind.decode(data)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (L2Tx(256, 0), "event L2Tx: gas_price_percentage: got 256, expected u8"),
        (StartL2Block(-1, 0, 0), "event StartL2Block: batch_number: got -1, expected u64"),
        (StartL2Block(0, 0, 0, fork_id=1 << 16), "event StartL2Block: fork_id: got 65536, expected u16"),
        (EndL2Block(0, b"short"), "event EndL2Block: block_hash: got 5 bytes, expected u8[32]"),
    ],
)
def test_values_that_do_not_fit(event: OriginalEvent, message: str) -> None:
    with pytest.raises(EventValueWrong) as caught:
        event.encode()
    assert str(caught.value) == message
