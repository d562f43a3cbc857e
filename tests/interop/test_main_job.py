"""The main job on real blocks: files, Spark, gRPC, a node, its stream file, a TCP client, and back.

A real Spark session, a real node in a process of its own, real sockets; every block is verified in full, TSS
signatures, state proofs and record-file signatures. The chains are in `../shared/data`.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from sluice.datastream import BlockingStreamClient
from sluice.gateway.api import node_pb2, node_pb2_grpc
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.items import ItemKind, footer_of, kind_of
from sluice.gateway.blocks.root_hash import BlockHasher
from sluice.gateway.blocks.stream_layout import BlockDecoder, StoredBlock, bookmark_of
from sluice.publishers.blocks.block_places import blocks_in, read_chain
from sluice.publishers.demo.node_process import NodeProcess
from sluice.publishers.job.job import publish
from tests.reference_data import BLOCKS, needs_blocks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, needs_blocks]


# Chain to the node's ledger keys: only block 0, or the address book.
KEYS = {
    "signed-chain": [],
    "layout-8-chain": [],
    "record-file-chain": ["--ledger-key", f"rsa:{BLOCKS / 'record-file-chain' / 'address-book.json'}"],
}


@pytest.fixture(
    params=["signed-chain", *(pytest.param(name, marks=pytest.mark.slow) for name in list(KEYS)[1:])]
)
def chain(request: pytest.FixtureRequest) -> Path:
    """The folder of a real chain."""
    return BLOCKS / str(request.param)


def read_stream(node: NodeProcess, last_number: int) -> list[StoredBlock]:
    """Return all blocks up to `last_number` over TCP."""
    decoder, found = BlockDecoder(), []
    with BlockingStreamClient(*node.tcp, timeout_seconds=20) as client:
        client.start(0)
        for entry in client.entries():
            stored = decoder.feed(entry.type, entry.data)
            if stored is not None:
                found.append(stored)
                if stored.number == last_number:
                    break
    return found


def get_blocks(node: NodeProcess, count: int) -> Iterator[tuple[bytes, ...]]:
    """The items of blocks 0 to count - 1, by getBlock."""
    with grpc.insecure_channel(node.grpc) as channel:
        stub = node_pb2_grpc.BlockAccessServiceStub(channel)
        for number in range(count):
            answer = stub.getBlock(node_pb2.BlockRequest(block_number=number), timeout=20)
            assert answer.status == node_pb2.BlockResponse.Code.SUCCESS
            yield tuple(answer.block.items)


def status(node: NodeProcess) -> node_pb2.ServerStatusResponse:
    """What serverStatus answers."""
    with grpc.insecure_channel(node.grpc) as channel:
        stub = node_pb2_grpc.BlockNodeServiceStub(channel)
        return stub.serverStatus(node_pb2.ServerStatusRequest(), timeout=20)


def total_entries(node: NodeProcess) -> int:
    """How many entries the stream has."""
    with BlockingStreamClient(*node.tcp, timeout_seconds=20) as client:
        return client.header().total_entries


def check_blocks(published: list[Block], stored: list[StoredBlock]) -> None:
    """Check for the same items, the right root hashes, and each block's link to the one before."""
    assert [(block.number, block.items) for block in stored] == [
        (block.number, block.items) for block in published
    ]
    for block in stored:
        hasher = BlockHasher()
        hasher.add(block.items)
        assert hasher.finish().root_hash == block.root_hash
    for before, after in itertools.pairwise(stored):
        (footer,) = (item for item in after.items if kind_of(item) == ItemKind.BLOCK_FOOTER)
        assert footer_of(footer).previous_block_root_hash == before.root_hash


def test_a_real_chain_goes_through_and_comes_back(spark: SparkSession, chain: Path, tmp_path: Path) -> None:
    published = list(read_chain(chain))
    count, last = len(published), published[-1].number
    data_dir, log, keys = tmp_path / "node", tmp_path / "node.log", KEYS[chain.name]

    # The first blocks, then SIGKILL: the node resumes there.
    first = tmp_path / "first"
    first.mkdir()
    for path in [Path(place.path) for place in blocks_in(chain)[:2]]:
        shutil.copy(path, first)
    with NodeProcess(data_dir, log, keys) as node:
        report = publish(spark, first, [node.grpc], 1, deadline_seconds=240)
        assert report.is_complete, report.failures
        assert status(node).last_available_block == 1
        node.kill()

    with NodeProcess(data_dir, log, keys) as node:
        assert status(node).last_available_block == 1
        report = publish(spark, chain, [node.grpc], 2, deadline_seconds=240)
        assert report.is_complete, report.failures
        answer = status(node)
        assert (answer.first_available_block, answer.last_available_block) == (0, last)
        check_blocks(published, read_stream(node, last))
        assert list(get_blocks(node, count)) == [block.items for block in published]

        # Both forms of bookmark lead to the block's first item.
        with BlockingStreamClient(*node.tcp, timeout_seconds=20) as client:
            for block in published:
                for bookmark in (bookmark_of(block.number), b"\0" + block.number.to_bytes(8, "big")):
                    assert client.bookmark(bookmark).data[:20] == block.items[0][:20]

        # Publishing again stores nothing, and succeeds.
        entries = total_entries(node)
        report = publish(spark, chain, [node.grpc], 2, deadline_seconds=240)
        assert report.is_complete, report.failures
        assert total_entries(node) == entries
        assert status(node).last_available_block == last
        node.kill()

    with NodeProcess(data_dir, log, keys) as node:
        assert total_entries(node) == entries
        check_blocks(published, read_stream(node, last))
