"""The lines that `sluice ds client` prints."""

from __future__ import annotations

import json

import pytest

from datastream import Entry, StreamHeader
from datastream.events.network_events import BatchStart, Bookmark, Debug, Transaction
from gateway.commands.ds_text import entry_line, header_line


@pytest.mark.parametrize(
    ("entry", "text", "values"),
    [
        (
            Entry(0xB0, 4, Bookmark(2, 1).encode()),
            "entry 4  Bookmark  type=l2_block value=1",
            {"entry": 4, "type": 176, "event": "Bookmark", "values": {"type": "l2_block", "value": 1}},
        ),
        (
            Entry(3, 5, Transaction(is_valid=True, encoded=b"\xf9").encode()),
            (
                "entry 5  Transaction  l2block_number=0 index=0 is_valid=true encoded=0xf9 "
                "effective_gas_price_percentage=0"
            ),
            None,
        ),
        (
            Entry(1, 6, BatchStart(debug=Debug("a\nb")).encode()),
            'entry 6  BatchStart  number=0 type=unspecified fork_id=0 chain_id=0 debug="a\\nb"',
            None,
        ),
        (
            Entry(0xB1, 7, b""),
            "entry 7  type 0xb1",
            {"entry": 7, "type": 177, "event": "type 0xb1", "values": {}},
        ),
    ],
)
def test_entries(entry: Entry, text: str, values: dict[str, object] | None) -> None:
    assert entry_line(entry, as_json=False) == text
    if values is not None:
        assert json.loads(entry_line(entry, as_json=True)) == values


def test_headers() -> None:
    header = StreamHeader(2, 137, 1, 5000, 9)
    assert header_line(header, as_json=False) == (
        "header  version=2 system_id=137 stream_type=1 total_length=5000 total_entries=9"
    )
    assert json.loads(header_line(header, as_json=True))["total_length"] == 5000
