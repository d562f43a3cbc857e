"""The blocks of a network's stream: made of the reference's sample, and of streams of both generations."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluice.datastream import encode_event, entry_type_of
from sluice.datastream.events.events import Event, Generation, RawEvent
from sluice.datastream.events.network_events import (
    BatchEnd,
    BatchStart,
    Bookmark,
    BookmarkType,
    L2Block,
    L2BlockEnd,
    Transaction,
    UpdateGer,
)
from sluice.datastream.events.original_events import (
    EndL2Block,
    OriginalBookmark,
    OriginalBookmarkType,
    StartL2Block,
)
from sluice.datastream.layout import DATA_SIZE_MAX, Entry
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.items import header_of, stream_entry_of
from sluice.publishers.blocks.linking import sign_block
from sluice.publishers.blocks.stream_grouping import (
    FRAME_BYTES,
    GROUP_ENTRIES_MAX,
    Grouping,
    StreamBlocks,
    StreamPoint,
    entry_size,
    plan_blocks,
    segments_of,
)
from sluice.publishers.errors import OptionError, PrepareError
from sluice.publishers.sources.stream_runs import PagesReader
from tests.datastream.streams import sample_file
from tests.gateway.block_makers import summary_of
from tests.nodes import KEY
from tests.reference_data import needs_stream

BATCH, L2_BLOCK = BookmarkType.BATCH, BookmarkType.L2_BLOCK
RULES: list[str | int] = ["batch", "l2block", "bookmark", 7]


def entries_of(events: Iterable[Event]) -> list[Entry]:
    return [Entry(entry_type_of(event), number, encode_event(event)) for number, event in enumerate(events)]


def blocks_of(entries: Iterable[Entry], by: object, *, is_whole: bool = True) -> list[Block]:
    maker = StreamBlocks(Grouping.parse(by))
    made = [maker.feed(entry.number, entry.type, entry.data) for entry in entries]
    last = maker.finish() if is_whole else None
    return [block for block in (*made, last) if block is not None]


def entries_in(blocks: Iterable[Block]) -> list[Entry]:
    pairs = [stream_entry_of(item) for block in blocks for item in block.items[1:-1]]
    return [Entry(kind, number, data) for number, (kind, data) in enumerate(pairs)]


def counts_of(blocks: Iterable[Block]) -> list[int]:
    return [len(block.items) - 2 for block in blocks]


def times_of(blocks: Iterable[Block]) -> list[int]:
    return [header_of(block.items[0]).block_timestamp.seconds for block in blocks]


NETWORK: list[Event] = [
    UpdateGer(batch_number=0, timestamp=5),  # before the first beginning
    Bookmark(BATCH, 1),
    BatchStart(number=1),
    Bookmark(L2_BLOCK, 1),
    L2Block(number=1, batch_number=1, timestamp=10),
    Transaction(l2block_number=1, encoded=b"tx"),
    L2BlockEnd(number=1),
    L2Block(number=2, batch_number=1, timestamp=20),  # its bookmark is missing
    BatchEnd(number=1),
    BatchStart(number=2),  # its bookmark is missing
    BatchEnd(number=2),
    Bookmark(BATCH, 3),
    BatchStart(number=3),
    Bookmark(L2_BLOCK, 3),
    L2Block(number=3, batch_number=3, timestamp=30),
    RawEvent(99, b"of a later version"),
]


@pytest.mark.parametrize(
    ("by", "counts", "times"),
    [
        ("batch", [9, 2, 5], [5, 5, 30]),
        ("l2block", [7, 6, 3], [5, 20, 30]),
        ("bookmark", [3, 8, 2, 3], [5, 10, 10, 30]),
        (6, [6, 6, 4], [5, 20, 30]),
        ("16", [16], [5]),
    ],
)
def test_where_blocks_begin_and_what_time_they_have(by: object, counts: list[int], times: list[int]) -> None:
    entries = entries_of(NETWORK)
    blocks = blocks_of(entries, by)
    assert counts_of(blocks) == counts
    assert times_of(blocks) == times
    assert entries_in(blocks) == entries
    assert [block.number for block in blocks] == list(range(len(counts)))


def test_the_original_generation() -> None:
    kinds = OriginalBookmarkType
    entries = entries_of(
        [
            OriginalBookmark(kinds.BATCH, 0),
            OriginalBookmark(kinds.L2_BLOCK, 0),
            StartL2Block(0, 0, 100),
            EndL2Block(0, bytes(32), bytes(32)),
            StartL2Block(0, 1, 200),
            EndL2Block(1, bytes(32), bytes(32)),
            OriginalBookmark(kinds.BATCH, 1),
            OriginalBookmark(kinds.L2_BLOCK, 2),
            StartL2Block(1, 2, 300),
        ]
    )
    assert counts_of(blocks_of(entries, "batch")) == [6, 3]
    blocks = blocks_of(entries, "l2block")
    assert (counts_of(blocks), times_of(blocks)) == ([4, 3, 2], [100, 200, 300])
    assert counts_of(blocks_of(entries, "bookmark")) == [1, 5, 1, 2]


def test_without_any_beginning_all_is_one_block_of_1970() -> None:
    blocks = blocks_of(entries_of([L2BlockEnd(number=1)] * 3), "batch")
    assert (counts_of(blocks), times_of(blocks)) == ([3], [0])


def test_a_timestamp_that_no_clock_shows_counts_as_none() -> None:
    events = [L2Block(number=1, timestamp=2**64 - 1), L2Block(number=2, timestamp=253_402_300_799)]
    assert times_of(blocks_of(entries_of(events), "l2block")) == [0, 253_402_300_799]


def test_the_last_block_is_complete_when_the_next_begins_or_it_has_its_number_of_entries() -> None:
    entries = entries_of(NETWORK)
    assert counts_of(blocks_of(entries, "batch", is_whole=False)) == [9, 2]
    assert counts_of(blocks_of(entries, 8, is_whole=False)) == [8, 8]
    assert counts_of(blocks_of(entries[:-1], 8, is_whole=False)) == [8]
    assert blocks_of([], "batch") == []


@needs_stream
@pytest.mark.parametrize("by", ["batch", *(pytest.param(by, marks=pytest.mark.slow) for by in RULES[1:])])
def test_the_sample_becomes_a_linked_chain_and_comes_back(by: object, tmp_path: Path) -> None:
    with PagesReader(sample_file(tmp_path)) as pages:
        entries = [entry for page in pages.pages_from(pages.run_from(0)) for entry in page]
    blocks = blocks_of(entries, by)
    assert entries_in(blocks) == entries
    assert len(blocks) == {"batch": 28, "l2block": 4623, "bookmark": 4651}.get(str(by), 1994)
    times = times_of(blocks)
    assert times == sorted(times)
    roots = [summary_of(list(sign_block(block.number, block.items, KEY))) for block in blocks]
    assert [root.root_layout for root in roots] == [16] * len(roots)
    for before, after in itertools.pairwise(roots):
        assert after.previous_root_hash == before.root_hash


@given(st.lists(st.sampled_from(NETWORK), max_size=30), st.sampled_from(RULES), st.data())
def test_it_goes_on_from_any_point_as_if_it_had_not_stopped(
    events: list[Event], by: str | int, data: st.DataObject
) -> None:
    entries = entries_of(events)
    cut = data.draw(st.integers(0, len(entries)))
    grouping = pickle.loads(pickle.dumps(Grouping.parse(by)))
    first = StreamBlocks(grouping)
    blocks = [first.feed(entry.number, entry.type, entry.data) for entry in entries[:cut]]
    second = StreamBlocks(grouping, StreamPoint.from_bytes(first.point.to_bytes()))
    assert second.point == first.point
    blocks += [second.feed(entry.number, entry.type, entry.data) for entry in entries[cut:]]
    blocks.append(second.finish())
    assert [block for block in blocks if block] == blocks_of(entries, by)


@given(
    st.lists(st.sampled_from(NETWORK), max_size=30),
    st.sampled_from(RULES),
    st.sets(st.integers(0, 30)),
    st.booleans(),
)
@example(NETWORK, 7, set(), True)
def test_parts_make_the_blocks_of_the_whole(
    events: list[Event], by: str | int, cuts: set[int], is_whole: bool
) -> None:
    entries = entries_of(events)
    grouping = Grouping.parse(by)
    bounds = [0, *sorted(cut for cut in cuts if cut < len(entries)), len(entries)]
    segments = [
        segment
        for first, end in itertools.pairwise(bounds)
        for segment in segments_of(grouping, [(e.number, e.type, e.data) for e in entries[first:end]])
    ]
    plan = plan_blocks(grouping, segments, is_whole=is_whole, block_bytes_max=10_000)
    blocks = blocks_of(entries, by, is_whole=is_whole)
    assert [plan.entry_count(block) for block in range(len(plan.starts))] == counts_of(blocks)
    assert list(plan.seconds) == times_of(blocks)


# --- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "by",
    [
        "",
        "Batch",
        "9" * 5000,
        "\u0663",
        "block",
        "0",
        "-1",
        "1.5",
        0,
        -1,
        1.5,
        True,
        None,
        GROUP_ENTRIES_MAX + 1,
    ],
)
def test_a_rule_that_does_not_exist(by: object) -> None:
    with pytest.raises(OptionError, match=r"option 'group_by': got .*, expected batch, l2block, bookmark"):
        Grouping.parse(by)


@pytest.mark.parametrize(
    ("number", "entry_type", "data", "said"),
    [
        (2, 1, b"", "entry 2 is there more than once"),
        (4, 1, b"", "entry 3 is missing before entry 4"),
        (9, 1, b"", "entries 3 to 8 are missing before entry 9"),
        (3, 0xFFFFFFFF, b"", "entry 3 has type 4294967295, expected 0 to 4294967294"),
        (3, -1, b"", "entry 3 has type -1, expected 0 to 4294967294"),
        (3, None, b"", "entry 3 has type None, expected 0 to 4294967294"),
        (3, 1, None, r"entry 3 has no data \(null\)"),
        (
            3,
            1,
            bytes(DATA_SIZE_MAX + 1),
            f"entry 3 has {DATA_SIZE_MAX + 1} bytes, at most {DATA_SIZE_MAX} are",
        ),
    ],
)
def test_an_entry_that_no_stream_has_next(number: int, entry_type: int, data: bytes, said: str) -> None:
    maker = StreamBlocks(Grouping("batch"))
    for entry in entries_of(NETWORK[:3]):
        maker.feed(entry.number, entry.type, entry.data)
    point = maker.point
    with pytest.raises(PrepareError, match=said):
        maker.feed(number, entry_type, data)
    assert maker.point == point
    maker.feed(3, 0xFFFFFFFE, bytes(DATA_SIZE_MAX))


def test_an_event_of_another_generation_than_the_stated_one() -> None:
    maker = StreamBlocks(Grouping("l2block", Generation.ORIGINAL))
    with pytest.raises(PrepareError, match=r"entry 0: .*StartL2Block"):
        maker.feed(0, 1, encode_event(BatchStart(number=1)))


def test_a_block_that_no_gateway_takes_is_named() -> None:
    events: list[Event] = [Bookmark(BATCH, 11), Bookmark(BATCH, 12), *[RawEvent(9, bytes(1000))] * 3]
    entries = entries_of(events)
    sizes = [entry_size(item) for block in blocks_of(entries, "batch") for item in block.items[1:-1]]
    fits = sum(sizes[1:]) + FRAME_BYTES

    def feed(block_bytes_max: int) -> None:
        maker = StreamBlocks(Grouping("batch"), block_bytes_max=block_bytes_max)
        for entry in entries:
            maker.feed(entry.number, entry.type, entry.data)

    def plan(block_bytes_max: int) -> None:
        segments = segments_of(Grouping("batch"), [(e.number, e.type, e.data) for e in entries])
        plan_blocks(Grouping("batch"), segments, is_whole=True, block_bytes_max=block_bytes_max)

    feed(fits)
    plan(fits)
    said = (
        rf"^block 1 cannot be prepared: it \(batch 12, entries 1 to 4\) has {fits} bytes "
        rf"\(publish.max_block_bytes\), at most {fits - 1} are allowed; group the entries by less$"
    )
    with pytest.raises(PrepareError, match=said):
        feed(fits - 1)
    with pytest.raises(PrepareError, match=said):
        plan(fits - 1)


@pytest.mark.parametrize("changed", ["cut", "empty", "json", "more", "random"])
def test_a_state_that_another_version_wrote(changed: str) -> None:
    whole = StreamPoint(items=(b"\x0a\x00",)).to_bytes()
    text = {
        "cut": whole[:-1],
        "empty": b"",
        "json": b"7\n",
        "more": whole.replace(b'"value"', b'"values"'),
        "random": Random(1).randbytes(80),
    }[changed]
    with pytest.raises(PrepareError, match="not what this version writes"):
        StreamPoint.from_bytes(text)
