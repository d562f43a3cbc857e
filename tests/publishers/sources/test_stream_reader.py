"""The reader that compares a node's stream with its source: a real stream file, server and sockets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.gateway.blocks.block import Block
from sluice.gateway.store.block_store import BlockStore, VerifiedBlock
from sluice.publishers.sources.stream_reader import StreamReader
from tests.datastream.serving import ServerThread
from tests.nodes import make_blocks

BLOCKS = make_blocks(3)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BlockStore]:
    """A block store that holds BLOCKS."""
    found = BlockStore.open(tmp_path)
    found.append([VerifiedBlock(block.number, block.items, bytes(48)) for block in BLOCKS])
    yield found
    found.close()


def test_it_reads_to_the_last_block_and_compares(store: BlockStore) -> None:
    with ServerThread(store.streamer) as server:
        reader = StreamReader(server.host, server.port, BLOCKS.__getitem__, last_number=2)
        reader.start()
        reader.join(20)
        assert not reader.is_alive()
    totals = reader.totals
    assert (totals.blocks, totals.differing, totals.last_number) == (3, 0, 2)
    assert totals.items == sum(len(block.items) for block in BLOCKS)
    assert totals.bytes == sum(block.size_bytes for block in BLOCKS)
    assert totals.entries == totals.items + 2 * 3  # a bookmark and an end for each block
    assert reader.failure is None


def test_a_block_that_differs_is_counted(store: BlockStore) -> None:
    def source(number: int) -> Block:
        block = BLOCKS[number]
        return block if number != 1 else Block(1, block.items[:-1])

    with ServerThread(store.streamer) as server:
        reader = StreamReader(server.host, server.port, source, last_number=2)
        reader.start()
        reader.join(20)
    assert reader.totals.differing == 1


def test_it_can_be_stopped_while_it_waits(store: BlockStore) -> None:
    with ServerThread(store.streamer) as server:
        reader = StreamReader(server.host, server.port, BLOCKS.__getitem__, last_number=99)
        reader.start()
        reader.stop()
        assert not reader.is_alive()
    assert reader.failure is None


def test_a_server_that_goes_away_is_a_failure(store: BlockStore) -> None:
    with ServerThread(store.streamer) as server:
        reader = StreamReader(server.host, server.port, BLOCKS.__getitem__, last_number=99)
        reader.start()
    reader.join(20)
    assert not reader.is_alive()
    assert reader.failure is not None
