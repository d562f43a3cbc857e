"""Folders of real blocks, and damage to them: flipped bits, removed checksums."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from sluice.datastream.file.bookmarks import SUM_KEY
from sluice.datastream.file.index_database import own_folder, plyvel
from sluice.datastream.layout import PAGE_SIZE, page_start
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.root_hash import BlockHasher
from sluice.gateway.store.block_store import BlockStore, VerifiedBlock
from sluice.publishers.blocks.maker import BlockMaker, MakerOptions
from tests.nodes import KEY, SMALL

__all__ = ["drop_sums", "flip", "large_blocks", "page_bytes", "store", "stored_sums"]


def large_blocks(count: int, item_bytes: int, *, seed: int = 7) -> list[Block]:
    """Return blocks of a chain with one item of that size each."""
    options = MakerOptions(
        rounds_per_block=SMALL.rounds_per_block,
        events_per_round=SMALL.events_per_round,
        transactions_per_block=SMALL.transactions_per_block,
        item_bytes=item_bytes,
    )
    return list(BlockMaker(seed, KEY, options).blocks(count))


def store(data_dir: Path, blocks: Sequence[Block]) -> list[int]:
    """Store these blocks in a folder; return the first entry of each page."""
    store = BlockStore.open(data_dir)
    try:
        for block in blocks:
            hasher = BlockHasher()
            hasher.add(block.items)
            verified = VerifiedBlock(block.number, block.items, hasher.finish().root_hash)
            store.append([verified])
            store.advance(verified)
        return list(store.streamer._file.index.first_numbers)
    finally:
        store.close()


def _file(data_dir: Path) -> Path:
    return data_dir / "datastream.bin"


def flip(data_dir: Path, page_number: int, position: int, bit: int = 4) -> None:
    """Flip a bit of a data page."""
    with _file(data_dir).open("r+b") as file:
        file.seek(page_start(page_number) + position)
        (byte,) = file.read(1)
        file.seek(-1, 1)
        file.write(bytes((byte ^ bit,)))


def page_bytes(data_dir: Path, page_number: int) -> bytes:
    """Return the bytes of a data page."""
    with _file(data_dir).open("rb") as file:
        file.seek(page_start(page_number))
        return file.read(PAGE_SIZE)


def drop_sums(data_dir: Path) -> None:
    """Remove the checksums: a folder of an earlier version has none."""
    with contextlib.closing(plyvel.DB(str(own_folder(data_dir / "datastream.db")))) as database:
        for key in [key for key, _ in database.iterator(prefix=SUM_KEY)]:
            database.delete(key)


def stored_sums(data_dir: Path) -> set[int]:
    """Return the pages that have a checksum."""
    with contextlib.closing(plyvel.DB(str(own_folder(data_dir / "datastream.db")))) as database:
        return {int.from_bytes(key[-8:], "big") for key, _ in database.iterator(prefix=SUM_KEY)}
