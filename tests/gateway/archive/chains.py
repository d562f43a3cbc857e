"""A chain that fills three segments, its data folder, and its archive.

python -m tests.gateway.archive.chains FOLDER PLACE BYTES     archives a folder, and ends
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from sluice.gateway.archive.archive import ArchiveOptions, Archives, StoredBlocks
from sluice.gateway.archive.objects import StoreOptions
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.items import field_item
from sluice.gateway.blocks.merkle import EMPTY_HASH, StreamingTree
from sluice.gateway.store.block_store import BlockStore
from sluice.publishers.blocks.linking import sign_block
from tests.gateway.block_makers import footer_item, header_item, proof_item, summary_of
from tests.gateway.store.test_block_store import verified
from tests.nodes import KEY

BLOCKS = 195
"""One on each page: three segments, and three pages."""
ARCHIVED_PAGES = 192


def blocks_of_a_page(first: int = 0) -> Iterator[Block]:
    """Yield linked, signed blocks, which compress well."""
    tree, previous = StreamingTree(), EMPTY_HASH
    for number in range(first, first + BLOCKS):
        items = [header_item(number), field_item(4, bytes([number % 251]) * 700_000)]
        items += [footer_item(previous, tree.root()), proof_item(number)]
        block = Block(number, sign_block(number, items, KEY))
        yield block
        previous = summary_of(list(block.items)).root_hash
        tree.push(previous)


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


if __name__ == "__main__":
    archive(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
