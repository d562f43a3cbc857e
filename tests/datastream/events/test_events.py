"""Both generations through the same cases, both ways; what is not known passes through."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datastream.errors import EventMalformed
from datastream.events.events import (
    Event,
    Generation,
    RawEvent,
    decode_event,
    encode_event,
    entry_type_of,
    event_name,
    event_of,
    event_values,
)
from datastream.events.network_events import BatchStart, Bookmark, BookmarkType, Debug, L2Block, Transaction
from datastream.events.original_events import L2Tx, OriginalBookmark, OriginalUpdateGer
from datastream.layout import Entry
from tests.datastream.event_cases import CASES, RAW


@pytest.mark.parametrize(("generation", "name", "event", "data"), CASES)
def test_both_ways(generation: Generation, name: str, event: Event, data: bytes) -> None:
    entry_type = entry_type_of(event)
    assert encode_event(event) == data
    assert decode_event(entry_type, data, generation) == event
    assert decode_event(entry_type, data) == event, "the generation is seen by the bytes"
    assert event_of(Entry(entry_type, 3, data)) == event


@pytest.mark.parametrize(("name", "event"), RAW)
def test_what_is_not_known_passes_through(name: str, event: RawEvent) -> None:
    assert decode_event(event.type, event.data, Generation.NETWORK) == event
    assert decode_event(event.type, event.data) == event
    assert encode_event(event) == event.data


@given(st.sampled_from([1, 2, 3, 4, 5, 6, 0xB0, 9]), st.binary(max_size=160))
def test_nothing_is_lost(entry_type: int, data: bytes) -> None:
    assert encode_event(decode_event(entry_type, data)) == data


@pytest.mark.parametrize(("generation", "name", "event", "data"), CASES)
def test_cut_anywhere(generation: Generation, name: str, event: Event, data: bytes) -> None:
    """A cut event is malformed, or, for protobuf between two fields, another event of the same bytes."""
    for size in range(len(data)):
        try:
            cut = decode_event(entry_type_of(event), data[:size], generation)
        except EventMalformed:
            continue
        assert generation is Generation.NETWORK
        assert encode_event(cut) == data[:size]
        assert cut != event


def test_a_bookmark_of_no_known_kind_stays_raw() -> None:
    data = b"\7" + bytes(8)
    assert decode_event(0xB0, data) == RawEvent(0xB0, data)
    assert decode_event(0xB0, data, Generation.ORIGINAL) == OriginalBookmark(7, 0)


def test_items_of_a_gateway_stay_raw() -> None:
    """Their entry types are also those of events; their bytes are not."""
    header = bytes.fromhex("0a0a 0a02 084a 1801 2202 0805")
    assert decode_event(1, header) == RawEvent(1, header)


@pytest.mark.parametrize(
    ("event", "name", "values"),
    [
        (L2Block(7, hash=b"\xab"), "L2Block", {"number": 7, "hash": "0xab"}),
        (Transaction(is_valid=True), "Transaction", {"is_valid": True}),
        (
            BatchStart(3, 1, debug=Debug("why")),
            "BatchStart",
            {"number": 3, "type": "regular", "debug": "why"},
        ),
        (BatchStart(type=9), "BatchStart", {"type": 9}),
        (Bookmark(BookmarkType.L2_BLOCK, 5), "Bookmark", {"type": "l2_block", "value": 5}),
        (OriginalBookmark(1, 5), "Bookmark", {"type": "batch", "number": 5}),
        (OriginalBookmark(9, 5), "Bookmark", {"type": 9, "number": 5}),
        (L2Tx(1, 0, b"", b""), "L2Tx", {"gas_price_percentage": 1, "is_valid": 0}),
        (RawEvent(0xB1, b"\1\2"), "type 0xb1", {"data": "0x0102"}),
        (RawEvent(0xB0, b"\1\2"), "Bookmark", {"data": "0x0102"}),
    ],
)
def test_words(event: Event, name: str, values: dict[str, object]) -> None:
    assert event_name(event) == name
    shown = event_values(event)
    assert {key: value for key, value in shown.items() if value != 0 or key in values} == values


def test_both_updates_have_one_name() -> None:
    assert event_name(OriginalUpdateGer(1, 2)) == "UpdateGer"
