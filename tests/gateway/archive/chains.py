"""Chains for archives: one that fills three segments, its folder and its archive; and one of any size."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from sluice.gateway.archive.archive import ArchiveOptions, Archives, StoredBlocks
from sluice.gateway.archive.objects import StoreOptions
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.items import field_item
from sluice.gateway.blocks.merkle import EMPTY_HASH, StreamingTree
from sluice.gateway.store.block_store import BlockStore
from sluice.publishers.blocks.linking import ChainStart, Linker, open_block, sign_block
from tests.gateway.block_makers import footer_item, header_item, proof_item, summary_of
from tests.gateway.store.test_block_store import verified
from tests.nodes import KEY

BLOCKS = 195
"""One on each page: three segments, and three pages."""
ARCHIVED_PAGES = 192
_POOL_BYTES = 8 << 20
_ITEMS_MAX = 40
_ITEM_BYTES_MAX = 50_000


def blocks_of_a_page(first: int = 0, count: int = BLOCKS) -> Iterator[Block]:
    """Yield linked, signed blocks, which compress well."""
    tree, previous = StreamingTree(), EMPTY_HASH
    for number in range(first, first + count):
        items = [header_item(number, seconds=1_700_000_000 + number)]
        items.append(field_item(4, bytes([number % 251]) * 700_000))
        items += [footer_item(previous, tree.root()), proof_item(number)]
        block = Block(number, sign_block(number, items, KEY))
        yield block
        previous = summary_of(list(block.items)).root_hash
        tree.push(previous)


def varied_blocks(size_bytes: int, seed: int = 1) -> Iterator[Block]:
    """Yield linked, signed blocks of that size together: of few and many items, which compress by half."""
    chance, linker, number = random.Random(seed), Linker(ChainStart()), 0
    pool = b"".join(chance.randbytes(32) + bytes(32) for _ in range(_POOL_BYTES // 64))
    while size_bytes > 0:
        body = [header_item(number)]
        for _ in range(chance.randint(1, _ITEMS_MAX)):
            begin = chance.randrange(_POOL_BYTES - _ITEM_BYTES_MAX)
            body.append(field_item(4, pool[begin : begin + chance.randint(10, _ITEM_BYTES_MAX)]))
        opened = open_block(number, body)
        block = Block(number, sign_block(number, opened.closed(linker.link(number, opened.path())), KEY))
        yield block
        size_bytes -= sum(map(len, block.items))
        number += 1


def fill(folder: Path, first: int = 0) -> None:
    """Make a data folder of that chain."""
    store = BlockStore.open(folder)
    for block in map(verified, blocks_of_a_page(first)):
        store.append([block])
        store.advance(block)
    store.close()


def archive(folder: Path, place: Path, local_bytes: int = 0) -> None:
    """Archive the full segments of a data folder of blocks in another folder, and give pages up."""
    store = BlockStore.open(folder)
    options = ArchiveOptions(f"file://{place}", StoreOptions(), local_bytes, 0, 1 << 30)
    blocks = StoredBlocks(store.first_number, store.last_number, store.layout)
    stream = Archives(options, store.streamers, lambda: blocks, lambda: True).streams[0]
    while stream.uploader.step():
        pass
    stream.reader.close()
    store.close()
