"""A chain in the native layout, and its archive: two segments of the network's stream, one of the blocks'."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sluice.datastream.layout import BOOKMARK_TYPE
from sluice.gateway.archive.archive import ArchiveOptions, Archives, StoredBlocks
from sluice.gateway.archive.objects import StoreOptions
from sluice.gateway.blocks.items import field_item, stream_entry_item
from sluice.gateway.blocks.merkle import EMPTY_HASH, StreamingTree
from sluice.gateway.store.block_store import BlockStore, VerifiedBlock
from sluice.publishers.blocks.linking import sign_block
from tests.gateway.block_makers import footer_item, header_item, proof_item, summary_of
from tests.nodes import KEY

__all__ = ["NATIVE_BLOCKS", "archive_native"]

NATIVE_BLOCKS = 70
"""Each fills two pages of the network's stream, and one of the blocks'."""


def blocks_of_both(salt: int = 0) -> Iterator[VerifiedBlock]:
    """Yield linked, signed blocks with entries of the network, other ones for another salt."""
    tree, previous = StreamingTree(), EMPTY_HASH
    for number in range(NATIVE_BLOCKS):
        entry = bytes([number ^ salt]) * 700_000
        unsigned = [
            header_item(number, seconds=1_700_000_000 + number),
            stream_entry_item(BOOKMARK_TYPE, b"b%d" % number),
            *(stream_entry_item(2, entry), stream_entry_item(3, entry)),
            field_item(4, entry),
            footer_item(previous, tree.root()),
            proof_item(number),
        ]
        items = list(sign_block(number, unsigned, KEY))
        previous = summary_of(items).root_hash
        yield VerifiedBlock(number, items, previous)
        tree.push(previous)


def archive_native(folder: Path, place: Path, salt: int = 0, local_bytes: int = 0) -> None:
    """Make a data folder of that chain, and archive its full segments in another folder."""
    store = BlockStore.open(folder, layout="native")
    for block in blocks_of_both(salt):
        store.append([block])
        store.advance(block)
    options = ArchiveOptions(f"file://{place}", StoreOptions(), local_bytes, 0, 1 << 30)
    blocks = StoredBlocks(store.first_number, store.last_number, store.layout)
    for stream in Archives(options, store.streamers, lambda: blocks, lambda: True).streams:
        while stream.uploader.step():
            pass
        stream.reader.close()
    store.close()
