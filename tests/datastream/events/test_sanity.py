"""Each rule of the sanity check, in both generations, and a real stream without findings."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.datastream.events.events import Event, encode_event, entry_type_of, event_of
from sluice.datastream.events.network_events import (
    BatchEnd,
    BatchStart,
    Bookmark,
    L2Block,
    L2BlockEnd,
    Transaction,
)
from sluice.datastream.events.original_events import EndL2Block, L2Tx, OriginalBookmark, StartL2Block
from sluice.datastream.events.sample_operations import ENTRIES_PER_OPERATION, sample_operation
from sluice.datastream.events.sanity import SanityCheck
from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.layout import Entry
from tests.datastream.streams import sample_file
from tests.reference_data import needs_stream


def findings_of(*events: Event) -> list[str]:
    check = SanityCheck()
    found = []
    for number, event in enumerate(events, start=10):
        found += check.feed(Entry(entry_type_of(event), number, encode_event(event)))
    assert (check.entry_count, check.finding_count) == (len(events), len(found))
    return found


@pytest.mark.parametrize(
    ("events", "findings"),
    [
        ((L2BlockEnd(3), L2Block(4), L2BlockEnd(4), L2Block(5)), []),  # begun in the middle of a block
        ((L2Block(4), L2BlockEnd(4), L2Block(6)), ["entry 12: block 6, expected 5"]),
        ((L2Block(4), L2BlockEnd(5)), ["entry 11: end of block 5, expected that of 4"]),
        ((L2Block(4), L2Block(5)), ["entry 11: block 5 begins before 4 has ended"]),
        (
            (L2Block(4), L2BlockEnd(4), L2BlockEnd(4), Transaction()),
            ["entry 12: end of block 4, expected none"],
        ),
        ((StartL2Block(1, 4, 0), EndL2Block(4), StartL2Block(1, 4, 0)), ["entry 12: block 4, expected 5"]),
        ((BatchStart(1), L2Block(0), BatchEnd(1), BatchStart(2), L2Block(1)), []),
        ((BatchStart(1), BatchEnd(1), BatchStart(3)), ["entry 12: batch 3, expected 2"]),
        ((Bookmark(2, 7), Bookmark(1, 1), Bookmark(2, 8), Bookmark(1, 1), Bookmark(1, 2)), []),
        ((Bookmark(2, 7), Bookmark(2, 7)), ["entry 11: bookmark of block 7, expected 8"]),
        ((Bookmark(1, 7), Bookmark(1, 9)), ["entry 11: bookmark of batch 9, expected 8"]),
        (
            (OriginalBookmark(0, 7), OriginalBookmark(1, 2), OriginalBookmark(0, 9)),
            ["entry 12: bookmark of block 9, expected 8"],
        ),
    ],
)
def test_rules(events: tuple[Event, ...], findings: list[str]) -> None:
    assert findings_of(*events) == findings


def test_entry_numbers() -> None:
    check = SanityCheck()
    found = [check.feed(Entry(9, number, b"")) for number in (5, 6, 8, 9, 9)]
    assert found == [[], [], ["entry 8: entry 8, expected 7"], [], ["entry 9: entry 9, expected 10"]]


@needs_stream
def test_a_real_stream(tmp_path: Path) -> None:
    check = SanityCheck()
    with DataStreamer.open(sample_file(tmp_path)) as streamer:
        found = [line for entry in streamer.read_entries(0) for line in check.feed(entry)]
    assert found == []
    assert check.entry_count == 13_952


# --- sample operations ----------------------------------------------------------------------------------


def test_an_operation() -> None:
    operation = sample_operation(7, 1_700_000_000)
    assert len(operation) == ENTRIES_PER_OPERATION
    batch, block, start, tx, end = (
        event_of(Entry(kind, number, data)) for number, (kind, data) in enumerate(operation)
    )
    assert batch == OriginalBookmark(1, 7)
    assert block == OriginalBookmark(0, 7)
    assert isinstance(start, StartL2Block)
    assert (start.batch_number, start.block_number, start.timestamp) == (7, 7, 1_700_000_000)
    assert isinstance(tx, L2Tx)
    assert tx.encoded == b"\1\2\3\4\5"
    assert isinstance(end, EndL2Block)
    assert end.block_number == 7


def test_operations_are_sane() -> None:
    check = SanityCheck()
    items = [item for number in range(3, 9) for item in sample_operation(number, 0)]
    for number, (kind, data) in enumerate(items):
        assert check.feed(Entry(kind, number, data)) == []
    assert (check.entry_count, check.finding_count) == (30, 0)
