"""A stream file of a zkEVM network, by the Go data streamer: it opens, is served, and holds typed events."""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path

import pytest

from sluice.datastream.events.events import Generation, RawEvent, decode_event, encode_event, event_name
from sluice.datastream.events.network_events import Bookmark, L2Block
from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.layout import PAGE_SIZE, Entry, StreamHeader
from tests.datastream.serving import ServerThread, read_exactly
from tests.datastream.streams import commit, sample_file
from tests.reference_data import needs_stream

pytestmark = needs_stream

ENTRY_COUNT = 13_952
OK = bytes.fromhex("ff 0000000b 00000000 4f4b")


def walk(content: bytes) -> list[tuple[int, int, int]]:
    """Return (offset, size, type) of every entry; independent of the package."""
    (total_length,) = struct.unpack_from(">Q", content, 38)
    found: list[tuple[int, int, int]] = []
    offset = 4096
    while offset < total_length:
        packet_type, size, entry_type, number = struct.unpack_from(">BIIQ", content, offset)
        if packet_type == 0:
            offset += PAGE_SIZE - (offset - 4096) % PAGE_SIZE
            continue
        assert (packet_type, number) == (2, len(found))
        found.append((offset, size, entry_type))
        offset += size
    assert offset == total_length
    return found


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    return sample_file(tmp_path)


def test_all_entries_over_tcp(sample: Path) -> None:
    content = sample.read_bytes()
    heads = walk(content)
    assert len(heads) == ENTRY_COUNT
    exact = b"".join(content[offset : offset + size] for offset, size, _ in heads)
    with (
        DataStreamer.open(sample) as streamer,
        ServerThread(streamer) as serving,
        serving.connect() as client,
    ):
        assert streamer.header == StreamHeader(2, 1, 1, 1_228_216, ENTRY_COUNT)
        client.sendall(struct.pack(">QQQ", 1, 1, 0))
        assert read_exactly(client, len(OK) + len(exact)) == OK + exact
    assert sample.read_bytes()[:1_228_216] == content[:1_228_216]


def test_queries_agree_with_a_walk(sample: Path) -> None:
    content = sample.read_bytes()
    heads = walk(content)
    newest = {
        content[offset + 17 : offset + size]: number
        for number, (offset, size, entry_type) in enumerate(heads)
        if entry_type == 0xB0
    }
    with (
        DataStreamer.open(sample) as streamer,
        ServerThread(streamer) as serving,
        serving.connect() as client,
    ):
        for number in [*range(0, ENTRY_COUNT, 97), ENTRY_COUNT - 1]:
            offset, size, _ = heads[number]
            client.sendall(struct.pack(">QQQ", 5, 1, number))
            answer = OK + b"\xfe" + content[offset + 1 : offset + size]
            assert read_exactly(client, len(answer)) == answer
        for bookmark, number in list(newest.items())[::53]:
            assert streamer.get_bookmark(bookmark) == number
            event = next(n for n in range(number, ENTRY_COUNT) if heads[n][2] != 0xB0)
            offset, size, _ = heads[event]
            client.sendall(struct.pack(">QQI", 6, 1, len(bookmark)) + bookmark)
            answer = OK + b"\xfe" + content[offset + 1 : offset + size]
            assert read_exactly(client, len(answer)) == answer


def test_start_at_a_bookmark(sample: Path) -> None:
    """No bookmark DB comes with the file; the index was made when it was opened."""
    content = sample.read_bytes()
    heads = walk(content)
    bookmarks = [number for number, (_, _, entry_type) in enumerate(heads) if entry_type == 0xB0]
    number = bookmarks[len(bookmarks) // 2]
    offset, size, _ = heads[number]
    bookmark = content[offset + 17 : offset + size]
    with DataStreamer.open(sample) as streamer:
        number = streamer.get_bookmark(bookmark)
    exact = b"".join(content[offset : offset + size] for offset, size, _ in heads[number:])
    for _ in range(2):  # and again, with the index that is there now
        with (
            DataStreamer.open(sample) as streamer,
            ServerThread(streamer) as serving,
            serving.connect() as client,
        ):
            client.sendall(struct.pack(">QQI", 4, 1, len(bookmark)) + bookmark)
            assert read_exactly(client, len(OK) + len(exact)) == OK + exact


def test_it_can_be_appended_to(sample: Path) -> None:
    with DataStreamer.open(sample) as streamer:
        assert commit(streamer, (0xB0, b"ours"), (1, b"more"), flush=True) == [ENTRY_COUNT, ENTRY_COUNT + 1]
    with DataStreamer.open(sample) as streamer:
        assert streamer.header.version == 2
        assert streamer.get_first_event_after_bookmark(b"ours") == Entry(1, ENTRY_COUNT + 1, b"more")
    assert len(walk(sample.read_bytes())) == ENTRY_COUNT + 2


def test_every_event_comes_back_as_the_same_bytes(sample: Path) -> None:
    counts: Counter[str] = Counter()
    with DataStreamer.open(sample) as streamer:
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


def test_a_block_by_its_bookmark(sample: Path) -> None:
    with DataStreamer.open(sample) as streamer:
        entry = streamer.get_first_event_after_bookmark(Bookmark(2, 4000).encode())
    event = decode_event(entry.type, entry.data)
    assert isinstance(event, L2Block)
    assert event.number == 4000
    assert len(event.hash) == len(event.state_root) == 32
