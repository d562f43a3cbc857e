"""The readers that compare a node's chain with its source: real stream files, servers and sockets."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sluice.gateway.blocks.block import Block
from sluice.gateway.store.block_store import BlockStore, VerifiedBlock
from sluice.publishers.demo.reading import GrpcReader, TcpReader
from sluice.publishers.errors import SourceUnreachable
from tests.datastream.serving import ServerThread
from tests.nodes import make_blocks
from tests.publishers.node_thread import node_thread, store

BLOCKS = make_blocks(3)


@pytest.fixture
def held(tmp_path: Path) -> Iterator[BlockStore]:
    """A block store that holds BLOCKS."""
    found = BlockStore.open(tmp_path)
    found.append([VerifiedBlock(block.number, block.items, bytes(48)) for block in BLOCKS])
    yield found
    found.close()


def test_it_reads_to_the_last_block_and_compares(held: BlockStore) -> None:
    with ServerThread(held.streamer) as server:
        reader = TcpReader("reader", [f"{server.host}:{server.port}"], BLOCKS.__getitem__, 0, 2)
        reader.start()
        reader.join(20)
        assert not reader.is_alive()
    totals = reader.totals
    assert (totals.blocks, totals.differing, totals.last_number) == (3, 0, 2)
    assert totals.items == sum(len(block.items) for block in BLOCKS)
    assert totals.bytes == sum(block.size_bytes for block in BLOCKS)
    assert totals.entries == totals.items + 2 * 3  # a bookmark and an end for each block
    assert reader.failure is None


def test_a_block_that_differs_is_counted(held: BlockStore) -> None:
    def source(number: int) -> Block:
        block = BLOCKS[number]
        return block if number != 1 else Block(1, block.items[:-1])

    with ServerThread(held.streamer) as server:
        reader = TcpReader("reader", [f"{server.host}:{server.port}"], source, 0, 2)
        reader.start()
        reader.join(20)
    assert reader.totals.differing == 1


@pytest.mark.parametrize("is_abandoned", [False, True])
def test_one_that_is_abandoned_ends_without_a_traceback(
    held: BlockStore, monkeypatch: pytest.MonkeyPatch, is_abandoned: bool
) -> None:
    """As on Ctrl-C, when the interpreter ends while it reads."""
    seen: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", seen.append)

    def source(number: int) -> Block:
        if is_abandoned:
            reader.abandon()
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    with ServerThread(held.streamer) as server:
        reader = TcpReader("reader", [f"{server.host}:{server.port}"], source, 0, 2)
        reader.start()
        reader.join(20)
    assert not reader.is_alive()
    assert len(seen) == (0 if is_abandoned else 1)


def test_both_go_on_at_the_next_node_and_count_nothing_twice(tmp_path: Path) -> None:
    blocks = make_blocks(6)
    store(tmp_path / "first", blocks[:3])
    store(tmp_path / "second", blocks)
    with ExitStack() as opened:
        second = opened.enter_context(node_thread(tmp_path / "second"))
        with node_thread(tmp_path / "first") as first:
            readers = [
                TcpReader("tcp", [str(first.tcp_address), str(second.tcp_address)], blocks.__getitem__, 0, 5),
                GrpcReader(
                    "grpc", [str(first.grpc_address), str(second.grpc_address)], blocks.__getitem__, 0, 5
                ),
            ]
            for reader in readers:
                reader.start()
            deadline = time.monotonic() + 30
            while any(reader.totals.last_number != 2 for reader in readers) and time.monotonic() < deadline:
                time.sleep(0.02)
        for reader in readers:
            reader.join(60)
            totals = reader.totals
            assert (totals.blocks, totals.last_number, reader.failure) == (6, 5, None)
            assert (totals.differing, totals.repeated, totals.missing) == (0, 0, 0)


def test_blocks_that_come_again_or_are_passed_over_are_counted() -> None:
    reader = TcpReader("reader", ["127.0.0.1:1"], BLOCKS.__getitem__, 0, 9)
    for number in (1, 1, 2):
        reader.take(number, BLOCKS[number].items)
    assert (reader.totals.missing, reader.totals.repeated, reader.totals.blocks) == (1, 1, 3)


def test_nobody_that_answers_is_a_failure() -> None:
    for kind in (TcpReader, GrpcReader):
        reader = kind("reader", ["127.0.0.1:1"], BLOCKS.__getitem__, 0, 2, patience_seconds=0.5)
        reader.start()
        reader.join(60)
        assert isinstance(reader.failure, SourceUnreachable)
