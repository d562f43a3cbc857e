"""Stream files with blocks in them, of several data pages, as a node writes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.items import header_of
from sluice.gateway.store.block_store import BlockStore, VerifiedBlock
from sluice.publishers.blocks.maker import BlockMaker, MakerOptions, key_of_seed

LARGE = MakerOptions(rounds_per_block=1, events_per_round=1, transactions_per_block=4, item_bytes=120_000)


@cache
def large_blocks(count: int) -> tuple[Block, ...]:
    """Blocks 0 to count - 1, of a few hundred KB each."""
    return tuple(BlockMaker(5, key_of_seed(5), LARGE).blocks(count))


@contextmanager
def store_of(folder: Path, blocks: tuple[Block, ...]) -> Iterator[BlockStore]:
    """A block store that holds the blocks."""
    store = BlockStore.open(folder)
    try:
        store.append([VerifiedBlock(block.number, block.items, bytes(48)) for block in blocks])
        yield store
    finally:
        store.close()


def times_of(blocks: Sequence[Block | VerifiedBlock]) -> list[str]:
    """Return the consensus times, as options have them."""
    stamps = [header_of(block.items[0]).block_timestamp for block in blocks]
    times = [datetime.fromtimestamp(stamp.seconds, UTC) for stamp in stamps]
    return [
        (time + timedelta(microseconds=stamp.nanos // 1_000)).isoformat()
        for time, stamp in zip(times, stamps, strict=True)
    ]
