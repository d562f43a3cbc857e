"""The demo's operations are typed events whose bookmarks lead to them."""

from __future__ import annotations

from datastream.events.events import event_of
from datastream.events.original_events import EndL2Block, L2Tx, OriginalBookmark, StartL2Block
from datastream.events.sample_operations import ENTRIES_PER_OPERATION, sample_operation
from datastream.events.sanity import SanityCheck
from datastream.layout import Entry


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
