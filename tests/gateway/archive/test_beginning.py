"""A node that begins with an archive which lies."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from sluice.datastream.file.page_sums import sum_of
from sluice.gateway.api import node_pb2
from sluice.gateway.archive.segment import (
    TRAILER_SIZE,
    SegmentName,
    SegmentObject,
    index_size,
    read_index,
    segment_name,
    segment_of,
)
from sluice.gateway.errors import GatewayError
from tests.gateway.archive.chains import blocks_of_a_page
from tests.nodes import ledger_key, running_node, wire_to

MIB = 1 << 20


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
    ],
)
async def test_an_archive_that_contradicts_itself_or_its_last_block_is_refused(
    place: Path, tmp_path: Path, lie: Callable[[Path], None], words: str
) -> None:
    lie(place)
    with pytest.raises(GatewayError, match=words):
        async with running_node(tmp_path / "new", archive_url=f"file://{place}"):
            pass


async def test_an_archive_of_another_network_is_refused(place: Path, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    other = ledger_key(Ed25519PrivateKey.generate())
    with pytest.raises(GatewayError, match="ledger keys"):
        async with running_node(tmp_path / "new", archive_url=f"file://{place}", ledger_keys=(other,)):
            pass


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
    assert not (new / ".archive-start").exists()


async def test_an_interrupted_beginning_is_begun_again(place: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    async with running_node(new, archive_url=f"file://{place}"):
        pass
    with (new / "datastream.bin").open("r+b") as file:
        file.truncate(MIB)
    (new / ".archive-start").touch()
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
