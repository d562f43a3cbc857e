"""Both generations through the same cases, both ways; unknown events pass through."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.datastream.errors import EventMalformed, EventValueWrong
from sluice.datastream.events.events import (
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
from sluice.datastream.events.network_events import (
    NETWORK_EVENTS,
    BatchStart,
    Bookmark,
    BookmarkType,
    Debug,
    L2Block,
    NetworkEvent,
    Transaction,
)
from sluice.datastream.events.original_events import (
    ORIGINAL_EVENTS,
    EndL2Block,
    L2Tx,
    OriginalBookmark,
    OriginalEvent,
    OriginalUpdateGer,
    StartL2Block,
)
from sluice.datastream.events.protobuf import UNKNOWN_FIELDS
from sluice.datastream.layout import Entry
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
    """A cut event is malformed or, cut between two protobuf fields, another event of the same bytes."""
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
    """Events have the same entry types, but other bytes."""
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


# --- events of the network ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", NETWORK_EVENTS.values())
def test_table_and_class_agree(kind: type[NetworkEvent]) -> None:
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    assert names == [*(field.name for field in kind.TABLE.fields), UNKNOWN_FIELDS]
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


# --- events of the original network ---------------------------------------------------------------------


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
