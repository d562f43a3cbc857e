"""A node that begins with an archive which lies."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import zstandard

from sluice.datastream.client.client import StreamClient
from sluice.datastream.errors import BookmarkNotFound, CommandRefused, ConnectionEnded
from sluice.datastream.file.page_sums import sum_of
from sluice.datastream.file.pages import entries_of
from sluice.datastream.layout import ENTRY_HEAD
from sluice.gateway.api import node_pb2
from sluice.gateway.api.archive_pb2 import Bookmark
from sluice.gateway.archive.segment import (
    TRAILER_SIZE,
    SegmentName,
    SegmentObject,
    index_size,
    read_index,
    segment_name,
    segment_of,
)
from sluice.gateway.blocks.items import field_item
from sluice.gateway.blocks.stream_layout import bookmark_of, encode
from sluice.gateway.errors import GatewayError
from sluice.gateway.node.node import Node
from sluice.publishers.blocks.linking import sign_block
from tests.gateway.archive.chains import blocks_of_a_page
from tests.gateway.block_makers import footer_item, header_item, proof_item, summary_of
from tests.nodes import KEY, ledger_key, running_node, wire_to

MIB = 1 << 20


def connected(node: Node) -> AbstractAsyncContextManager[StreamClient]:
    address = node.tcp_address
    return StreamClient.connect(address.host, address.port)


async def numbers_from(node: Node, first: int) -> list[int]:
    """Return the numbers of the entries that a TCP client gets before the node ends its connection."""
    got = []
    async with connected(node) as client:
        await client.start(first)
        with contextlib.suppress(ConnectionEnded):
            async for entry in client.entries():
                got.append(entry.number)
    return got


def segments(place: Path) -> list[Path]:
    return sorted((place / "segments").iterdir())


def change(
    path: Path, index_of: Callable[[SegmentObject], None], pages: dict[int, bytes] | None = None
) -> None:
    """Write a segment that is consistent in itself, with another index or other pages."""
    data = path.read_bytes()
    name = segment_of(f"segments/{path.name}")
    assert name is not None
    size = index_size(data[-TRAILER_SIZE:], "")
    segment = read_index(name, data, len(data), "")
    whole = list(segment.pages_of(data, segment.first_page, 64, ""))
    frames = [
        data[begin:end] for begin, end in zip(segment.frame_places, segment.frame_places[1:], strict=False)
    ]
    for place, page in (pages or {}).items():
        whole[place], frames[place] = page, zstandard.ZstdCompressor().compress(page)
        segment.index.pages[place].frame_size = len(frames[place])
        segment.index.pages[place].crc32c = sum_of(page)
    index_of(segment)
    index = segment.index.SerializeToString()
    head = data[len(data) - size :][:4]
    frame = head + len(index).to_bytes(4, "little") + index
    trailer = data[-TRAILER_SIZE:]
    trailer = trailer[:8] + len(frame).to_bytes(8, "little") + trailer[16:]
    digest = hashlib.sha256(b"".join(whole)).digest()
    path.unlink()
    renamed = segment_name(*SegmentName(segment.first_page, digest))
    (path.parent / Path(renamed).name).write_bytes(b"".join((*frames, frame, trailer)))


def page_of(path: Path, place: int) -> bytes:
    data = path.read_bytes()
    name = segment_of(f"segments/{path.name}")
    assert name is not None
    segment = read_index(name, data, len(data), "")
    begin, end = segment.frames(segment.first_page + place, 1)
    return next(segment.pages_of(data[begin:end], segment.first_page + place, 1, ""))


def nothing(segment: SegmentObject) -> None:
    """Leave the index."""


def drop_first(place: Path) -> None:
    segments(place)[0].unlink()


def swap(place: Path) -> None:
    first, second, _ = segments(place)
    first.rename(place / "kept")
    second.rename(first)
    (place / "kept").rename(second)


def two_names(place: Path) -> None:
    first = segments(place)[0]
    shutil.copy(first, first.with_name(first.name[:13] + "00" * 32 + ".seg"))


def another_root(place: Path) -> None:
    def index_of(segment: SegmentObject) -> None:
        segment.index.blocks[3].root_hash = bytes(48)

    change(segments(place)[0], index_of)


def another_entry(place: Path) -> None:
    def index_of(segment: SegmentObject) -> None:
        for page in segment.index.pages:
            page.first_entry += 1

    change(segments(place)[1], index_of)


def cut_short(place: Path) -> None:
    last = segments(place)[2]
    last.write_bytes(last.read_bytes()[:-1])


def another_stream(place: Path) -> None:
    path = place / "stream.json"
    path.write_text(path.read_text().replace('"stream_type": 1', '"stream_type": 2'))


def describe_otherwise(place: Path, before: str, after: str) -> None:
    path = place / "stream.json"
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def another_system(place: Path) -> None:
    describe_otherwise(place, '"system_id": 137', '"system_id": 138')


def another_layout(place: Path) -> None:
    describe_otherwise(place, '"stream_layout": 2', '"stream_layout": 1')


def no_description(place: Path) -> None:
    (place / "stream.json").unlink()


def a_bookmark_less(place: Path) -> None:
    def index_of(segment: SegmentObject) -> None:
        del segment.index.bookmarks[5]

    change(segments(place)[0], index_of)


def a_bookmark_more(place: Path) -> None:
    def index_of(segment: SegmentObject) -> None:
        marks = segment.index.bookmarks
        marks.insert(6, Bookmark(bookmark=bookmark_of(500), entry=marks[5].entry + 1))

    change(segments(place)[0], index_of)


def swapped_bookmarks(place: Path) -> None:
    def index_of(segment: SegmentObject) -> None:
        first, second = segment.index.bookmarks[5:7]
        first.bookmark, second.bookmark = second.bookmark, first.bookmark

    change(segments(place)[0], index_of)


def another_place(place: Path) -> None:
    def index_of(segment: SegmentObject) -> None:
        segment.index.bookmarks[5].entry += 1

    change(segments(place)[0], index_of)


def another_place_of_a_block(place: Path) -> None:
    def index_of(segment: SegmentObject) -> None:
        segment.index.blocks[0].entry += 1  # it began in the segment before

    change(segments(place)[1], index_of)


def entries_at_the_end(count: int) -> Callable[[Path], None]:
    def lie(place: Path) -> None:
        (place / "headers/000000000192.zst").unlink()
        change(
            segments(place)[2],
            lambda segment: setattr(segment.index.pages[63], "entry_count", count),
        )

    return lie


def other_places_at_the_end(place: Path) -> None:
    """The pages of the last segment are there to compare."""

    def index_of(segment: SegmentObject) -> None:
        segment.index.bookmarks[5].entry += 1
        segment.index.blocks[6].entry += 1

    change(segments(place)[2], index_of)


def a_first_entry_of_four_gib(place: Path) -> None:
    page = bytearray(page_of(segments(place)[0], 0))
    page[1:5] = b"\xff" * 4
    change(segments(place)[0], nothing, {0: bytes(page)})


def a_deep_description(place: Path) -> None:
    (place / "stream.json").write_text("[" * 200_000)


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (drop_first, "the one of page 0"),
        (swap, "format 1, first page 64, expected 1, 0"),
        (two_names, "two nodes disagree"),
        (another_root, "root_hash_of_all_block_hashes_tree"),
        (another_entry, "first entry"),
        (cut_short, "its trailer"),
        (another_stream, "stream_type: got 2, expected 1"),
        (another_system, "header page: got another one"),
        (another_layout, "stream_layout: got 1, expected 2"),
        (no_description, "segments, and no stream.json"),
        (a_bookmark_less, "bookmarks of the index: got .* 36.*, expected .* 30.*, by its blocks"),
        (a_bookmark_more, "bookmarks of the index: got .* 31.*, expected .* 36.*, by its blocks"),
        (swapped_bookmarks, "bookmarks of the index"),
        (another_place, "bookmarks of the index: got .* 31.*, expected .* 30.*, by its blocks"),
        (another_place_of_a_block, "bookmarks of the index"),
        (entries_at_the_end(7), "page 191: entry_count: got 6, expected 7"),
        (entries_at_the_end(5), "page 191: entry_count: got 6, expected 5"),
        (other_places_at_the_end, "bookmark 5 on the pages"),
        (a_first_entry_of_four_gib, "page 0: got .*length 4294967295"),
        (a_deep_description, "stream.json: description"),
    ],
)
async def test_an_archive_that_contradicts_itself_or_its_last_block_is_refused(
    place: Path, tmp_path: Path, lie: Callable[[Path], None], words: str
) -> None:
    lie(place)
    with pytest.raises(GatewayError, match=words) as refused:
        async with running_node(tmp_path / "new", archive_url=f"file://{place}"):
            pass
    assert str(place) in str(refused.value)
    assert not any((tmp_path / "new").iterdir())


@pytest.mark.parametrize("trust", ["proof", "full"])
async def test_an_archive_of_another_network_is_refused(place: Path, tmp_path: Path, trust: str) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    other = ledger_key(Ed25519PrivateKey.generate())
    words = {"proof": "ledger keys", "full": "block 0: Ed25519.* by the keys of this node"}[trust]
    settings = {"archive_url": f"file://{place}", "archive_trust": trust, "ledger_keys": (other,)}
    with pytest.raises(GatewayError, match=words):
        async with running_node(tmp_path / "new", **settings):
            pass
    assert not any((tmp_path / "new").iterdir())


async def test_a_page_that_is_not_of_the_proved_blocks_is_not_served(place: Path, tmp_path: Path) -> None:
    first = segments(place)[0]
    page = bytearray(page_of(first, 40))
    page[MIB // 3] ^= 1  # in an item of 700 kB
    change(first, nothing, {40: bytes(page)})
    blocks = list(blocks_of_a_page())
    async with running_node(tmp_path / "new", archive_url=f"file://{place}") as node, wire_to(node) as wire:
        codes = node_pb2.BlockResponse.Code
        answers = {number: await wire.get_block(number) for number in (0, 20, *range(38, 43), 100)}
        bad = {number for number, answer in answers.items() if answer.status == codes.NOT_AVAILABLE}
        assert bad
        assert bad <= set(range(38, 43))
        for number in answers.keys() - bad:
            assert list(answers[number].block.items) == list(blocks[number].items)


async def test_a_place_that_lies_is_no_answer_that_there_is_no_such_block(
    place: Path, tmp_path: Path
) -> None:
    """Neither the bookmarks nor the places of blocks are signed; here they agree, and the page does not."""

    def index_of(segment: SegmentObject) -> None:
        segment.index.bookmarks[5].entry += 1
        segment.index.blocks[5].entry += 1

    change(segments(place)[0], index_of)
    async with running_node(tmp_path / "new", archive_url=f"file://{place}") as node, wire_to(node) as wire:
        assert (await wire.get_block(5)).status == node_pb2.BlockResponse.Code.NOT_AVAILABLE
        assert (await wire.get_block(40)).status == node_pb2.BlockResponse.Code.SUCCESS
        for number in (5, 6):  # that the block does not fit is seen from its page, and from those around
            async with connected(node) as client:
                with pytest.raises(CommandRefused, match="Bad from bookmark"):
                    await client.bookmark(bookmark_of(number))
        async with connected(node) as client:
            with pytest.raises(BookmarkNotFound):
                await client.bookmark(bookmark_of(500))


async def test_blocks_of_numbers_that_no_proof_has_seen(place: Path, tmp_path: Path) -> None:
    """The root hash of a forged block is right, and it names that of the block before it."""
    first, number = segments(place)[0], 1_000_040
    previous = summary_of(list(list(blocks_of_a_page(0, 40))[39].items)).root_hash
    unsigned = [header_item(number), field_item(4, b"forged"), footer_item(previous, bytes(48))]
    items = sign_block(number, [*unsigned, proof_item(number)], KEY)
    forged = encode(number, items, summary_of(list(items)).root_hash)
    pages, ends = {}, {}
    for page_number, before, after in ((39, 4, forged[:2]), (40, 0, forged[2:])):
        page = page_of(first, page_number)
        number = int.from_bytes(page[9:17], "big")
        kept = [(entry.type, entry.data) for entry in entries_of(page, number, number + 6)]
        kept[before : before + len(after)] = after
        heads = (
            ENTRY_HEAD.pack(2, 17 + len(data), kind, number + i) + data for i, (kind, data) in enumerate(kept)
        )
        made = b"".join(heads)
        pages[page_number], ends[page_number] = made.ljust(MIB, b"\0"), len(made)

    def index_of(segment: SegmentObject) -> None:
        for page_number, end in ends.items():
            segment.index.pages[page_number].data_end = end

    change(first, index_of, pages)
    async with running_node(tmp_path / "new", archive_url=f"file://{place}") as node:
        assert 228 < max(await numbers_from(node, 228)) < 240  # the forged block would be from there on


@pytest.mark.parametrize("by", [-73, 73])
async def test_an_end_of_data_that_lies_is_found_once_and_for_all(
    place: Path, tmp_path: Path, by: int
) -> None:
    """The entries of a proved page are sent up to that end, also by the next start, which proves no more."""

    def index_of(segment: SegmentObject) -> None:
        segment.index.pages[40].data_end += by

    change(segments(place)[0], index_of)
    for _ in range(2):
        async with running_node(tmp_path / "new", archive_url=f"file://{place}") as node:
            assert 228 < max(await numbers_from(node, 228)) < 246


async def test_an_archive_that_was_refused_and_then_mended(place: Path, tmp_path: Path) -> None:
    first, new = segments(place)[0], tmp_path / "new"
    whole = first.read_bytes()
    another_root(place)
    for _ in range(2):
        with pytest.raises(GatewayError, match=f"archive file://{place}.*sluice check file://"):
            async with running_node(new, archive_url=f"file://{place}"):
                pass
    segments(place)[0].unlink()
    first.write_bytes(whole)
    async with running_node(new, archive_url=f"file://{place}") as node, wire_to(node) as wire:
        assert (await wire.get_block(5)).block.items
    assert not (new / "beginning").exists()


async def test_an_interrupted_beginning_is_begun_again(place: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    async with running_node(new, archive_url=f"file://{place}"):
        pass
    work = tmp_path / "beginning"
    new.rename(work)
    new.mkdir()
    work.rename(new / "beginning")
    async with running_node(new, archive_url=f"file://{place}") as node, wire_to(node) as wire:
        assert (await wire.get_block(5)).block.items


async def test_a_folder_that_lost_its_stream_is_not_begun_anew(place: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    async with running_node(new, archive_url=f"file://{place}"):
        pass
    (new / "datastream.bin").unlink()
    with pytest.raises(GatewayError, match="no such file"):
        async with running_node(new, archive_url=f"file://{place}"):
            pass
