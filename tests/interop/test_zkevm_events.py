"""Every entry of a real zkEVM stream is a typed event, and goes back to the same bytes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from datastream.events.events import Generation, RawEvent, decode_event, encode_event, event_name
from datastream.events.network_events import Bookmark, L2Block
from datastream.file.streamer import DataStreamer
from tests.datastream.streams import sample_file
from tests.reference_data import needs_stream

pytestmark = needs_stream


def test_every_event_comes_back_as_the_same_bytes(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    with DataStreamer.open(sample_file(tmp_path)) as streamer:
        for entry in streamer.read_entries(0):
            event = decode_event(entry.type, entry.data, Generation.NETWORK)
            assert not isinstance(event, RawEvent)
            assert encode_event(event) == entry.data
            assert decode_event(entry.type, entry.data) == event
            counts[event_name(event)] += 1
    assert counts == {
        "Bookmark": 4651,
        "L2Block": 4623,
        "L2BlockEnd": 4622,
        "BatchStart": 28,
        "BatchEnd": 27,
        "Transaction": 1,
    }


def test_a_block_by_its_bookmark(tmp_path: Path) -> None:
    with DataStreamer.open(sample_file(tmp_path)) as streamer:
        entry = streamer.get_first_event_after_bookmark(Bookmark(2, 4000).encode())
    event = decode_event(entry.type, entry.data)
    assert isinstance(event, L2Block)
    assert event.number == 4000
    assert len(event.hash) == len(event.state_root) == 32
