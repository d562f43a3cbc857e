"""Tests of `gateway.services.block_reader`: positions, shared reads, and a stream with a bad place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sluice.datastream.errors import BookmarkNotFound
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.errors import LayoutError
from sluice.gateway.blocks.items import field_item
from sluice.gateway.services.block_reader import SUBSCRIBE_SHARED_BYTES_MAX, BlockReader, Position
from sluice.gateway.store.block_store import BlockStore, VerifiedBlock
from tests.gateway.block_makers import header_item
from tests.gateway.store.test_block_store import commit

MIB = 1 << 20


def block(number: int, *sizes: int) -> Block:
    """A block of a header and items with payloads of these sizes."""
    return Block(number, (header_item(number), *[field_item(4, bytes(size)) for size in sizes]))


@asynccontextmanager
async def reader_of(
    data_dir: Path,
    *blocks: Block,
    set_bytes_max: int = MIB,
    shared_bytes_max: int = SUBSCRIBE_SHARED_BYTES_MAX,
) -> AsyncIterator[BlockReader]:
    """A reader of a stream with these blocks."""
    store = BlockStore.open(data_dir)
    commit(store, [VerifiedBlock(one.number, one.items, bytes(48)) for one in blocks])
    reader = BlockReader(store, set_bytes_max, shared_bytes_max)
    try:
        yield reader
    finally:
        reader.close()
        store.close()


async def read_all(reader: BlockReader, position: Position, last_number: int) -> list[list[int | None]]:
    """Read up to a block; return the blocks that each batch's messages end."""
    batches = []
    while position.block_number <= last_number:
        batch = await reader.read(position, last_number)
        assert batch.size_bytes == sum(len(message.data) for message in batch.messages)
        batches.append([message.ended for message in batch.messages])
        position = batch.following
    return batches


async def test_small_blocks_share_a_batch_and_a_large_one_takes_several(tmp_path: Path) -> None:
    blocks = [*[block(number, 10, 10) for number in range(4)], block(4, *[400_000] * 6), block(5)]

    async with reader_of(tmp_path, *blocks) as reader:
        start = await reader.find(1)
        assert start == Position(5, 1, in_block=False)
        got = await read_all(reader, start, 5)
        # Blocks 1 to 3 and half of block 4, in two sets as the third item does not fit; then the other half.
        assert got == [[None, 1, None, 2, None, 3, None, None], [None, None], [4, None, 5]]
        assert await read_all(reader, start, 2) == [[None, 1, None, 2]]


async def test_a_block_that_is_not_there(tmp_path: Path) -> None:
    async with reader_of(tmp_path, block(0)) as reader:
        with pytest.raises(BookmarkNotFound):
            await reader.find(1)


async def test_who_comes_to_the_same_place_shares_the_reading(tmp_path: Path) -> None:
    async with reader_of(tmp_path, block(0, 10), block(1, 10)) as reader:
        start = await reader.find(0)
        first, second = await asyncio.gather(reader.read(start), reader.read(start))
        assert first is second
        assert await reader.read(start) is first
        assert reader.readings_count == 1
        assert await reader.read(start, 0) is not first, "it ends at another block"


async def test_what_is_shared_is_bounded_and_the_oldest_goes_first(tmp_path: Path) -> None:
    blocks = [block(number, 30_000) for number in range(4)]

    async def scenario() -> None:
        async with reader_of(tmp_path, *blocks, set_bytes_max=30_000, shared_bytes_max=70_000) as reader:
            positions = [await reader.find(number) for number in range(4)]
            for position in (*positions[:2], positions[0], *positions[2:], positions[3]):
                await reader.read(position)
            assert reader.readings_count == 4
            await reader.read(positions[0])
            assert reader.readings_count == 5, "it was used last before block 2, and went with block 3"
            assert reader._shared_bytes <= 70_000
            assert len(reader._shared) == 2

    await scenario()


async def test_one_who_gives_up_leaves_the_reading_to_the_others(tmp_path: Path) -> None:
    async with reader_of(tmp_path, block(0, 10)) as reader:
        start = await reader.find(0)
        one, other = (asyncio.ensure_future(reader.read(start)) for _ in range(2))
        await asyncio.sleep(0)
        one.cancel()
        assert [message.ended for message in (await other).messages] == [None, 0]


async def test_blocks_before_a_bad_place_are_read(tmp_path: Path) -> None:
    async with reader_of(tmp_path, block(0, 9), block(1, 9), block(2, 9)) as reader:
        offset = reader._store.streamer.offset_of((await reader.find(2)).entry_number)
        with (tmp_path / "datastream.bin").open("r+b") as file:
            file.seek(offset + 17 + 3)  # the last byte of its bookmark, behind the entry's head
            file.write(b"\x07")
        batch = await reader.read(await reader.find(0))
        assert [message.ended for message in batch.messages] == [None, 0, None, 1]
        for _ in range(2):
            with pytest.raises(LayoutError, match=r"^block 2: got a bookmark "):
                await reader.read(batch.following)
        assert reader.readings_count == 1, "an error is not kept"
