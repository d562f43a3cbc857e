"""Sources of blocks to verify."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.datastream import DataStreamer
from sluice.datastream.layout import PAGE_SIZE, page_start
from sluice.gateway.addresses import Address
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.proofs import ProofVerifier
from sluice.gateway.blocks.root_hash import BlockHasher
from sluice.gateway.blocks.trusted_keys import TrustedKeys
from sluice.gateway.blocks.verification import BlockVerifier
from sluice.gateway.node.node import Node
from sluice.gateway.store.block_store import BlockStore, VerifiedBlock
from sluice.publishers.blocks.block_files import write_block_file
from sluice.publishers.blocks.block_places import BlockPlace
from sluice.publishers.errors import BlockListError, SourceRefused, SourceUnreachable
from sluice.publishers.number_range import NumberRange
from sluice.publishers.sources.stream_runs import PagesReader
from sluice.publishers.verify.verify_sources import (
    BlockSource,
    FileSource,
    Job,
    NodeSource,
    StoredSource,
    StreamSource,
    check_job,
    holds_stream,
)
from tests.datastream.serving import ServerThread
from tests.gateway.block_makers import summary_of
from tests.nodes import ledger_key, make_blocks, make_network_blocks
from tests.publishers.node_thread import node_thread, store
from tests.publishers.stored import large_blocks

BLOCKS = make_blocks(5)
VERIFIER = BlockVerifier(ProofVerifier(TrustedKeys.parse([ledger_key()])))
ALL = NumberRange()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node that holds the blocks."""
    data_dir = tmp_path_factory.mktemp("node")
    store(data_dir, BLOCKS)
    with node_thread(data_dir) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The blocks as files."""
    for block in BLOCKS:
        write_block_file(tmp_path / f"{block.number}.blk", block)
    return tmp_path


def numbers(source: BlockSource) -> list[int]:
    """The numbers of a source's blocks, all of which hold."""
    jobs = list(source.jobs())
    assert all(check_job(VERIFIER, job).refusal is None for job in jobs)
    return [job.number for job in jobs]


def test_files_and_folders(folder: Path) -> None:
    assert numbers(FileSource([str(folder)], ALL)) == [0, 1, 2, 3, 4]
    some = FileSource([f"{folder}/3.blk", f"{folder}/1.blk"], NumberRange(1))
    assert numbers(some) == [1, 3]
    assert (some.count, some.block_0()) == (2, None)
    part = FileSource([str(folder)], NumberRange(2, 4))
    assert (numbers(part), part.count) == ([2, 3], 2)
    assert part.block_0() == Job(0, BlockPlace(0, f"{folder}/0.blk"))
    assert numbers(FileSource([str(folder), f"{folder}/1.blk"], ALL)) == [0, 1, 2, 3, 4]


def test_files_that_make_no_source(folder: Path) -> None:
    (folder / "copy").mkdir()
    copy = folder / "copy" / "1.blk.gz"
    write_block_file(copy, BLOCKS[1])
    assert numbers(FileSource([str(folder)], ALL)) == [0, 1, 2, 3, 4]
    write_block_file(copy, make_blocks(2, seed=9)[1])
    with pytest.raises(BlockListError) as twice:
        FileSource([str(folder)], ALL)
    assert str(twice.value) == (
        f"{copy}: block 1 is there twice, and not the same: {folder / '1.blk'} and {copy}"
    )
    copy.unlink()
    with pytest.raises(BlockListError) as none:
        FileSource([str(folder)], NumberRange(9))
    assert str(none.value) == (
        f"{folder}: no block files (N.blk, N.blk.gz, N.blk.zst, alone or in a zip or a tar) of these numbers"
    )
    (folder / "x.bin").write_bytes(b"xyz")
    with pytest.raises(BlockListError) as name:
        FileSource([f"{folder}/x.bin"], ALL)
    assert str(name.value) == (
        f"{folder / 'x.bin'}: not an archive: it begins with 78 79 7a; "
        "expected N.blk, N.blk.gz, N.blk.zst, a zip or a tar"
    )


def test_what_a_file_holds_instead(folder: Path) -> None:
    (folder / "1.blk").write_bytes(BLOCKS[2].to_bytes())
    refusal = check_job(VERIFIER, Job(1, BlockPlace(1, f"{folder}/1.blk"))).refusal
    assert str(refusal) == (
        f"cannot parse: {folder / '1.blk'}: got holds block 2, expected 1 by its name, expected the file of "
        "block 1"
    )


def test_what_a_node_sends_instead() -> None:
    other = check_job(VERIFIER, Job(1, items=BLOCKS[2].items)).refusal
    assert str(other) == "bad root hash: block header: number: got 2, expected 1"
    nothing = check_job(VERIFIER, Job(1)).refusal
    assert str(nothing) == "missing item: block: got no items, expected a block header first"


def test_a_node(node: Node) -> None:
    source = NodeSource(node.grpc_address, ALL)
    assert (numbers(source), source.count) == ([0, 1, 2, 3, 4], 5)
    part = NodeSource(node.grpc_address, NumberRange(3, 9))
    assert (numbers(part), part.count) == ([3, 4], 2)
    assert part.block_0() == Job(0, items=BLOCKS[0].items)
    with pytest.raises(SourceRefused) as none:
        NodeSource(node.grpc_address, NumberRange(5))
    assert str(none.value) == f"cannot get these blocks: {node.grpc_address} has blocks 0 to 4"


def test_an_empty_node(tmp_path: Path) -> None:
    with node_thread(tmp_path) as node:
        with pytest.raises(SourceRefused) as empty:
            NodeSource(node.grpc_address, ALL)
        assert str(empty.value) == f"cannot get what the node has: {node.grpc_address} has no blocks"
        with pytest.raises(SourceRefused) as no_stream:
            numbers(StreamSource(node.tcp_address, ALL))
        assert str(no_stream.value) == (
            f"cannot get these blocks: the stream of {node.tcp_address} does not have them"
        )
        with pytest.raises(SourceRefused) as no_streamer:
            numbers(StreamSource(node.grpc_address, ALL))
        assert str(no_streamer.value).startswith(f"cannot get block 0: {node.grpc_address}: ")
    with pytest.raises(SourceUnreachable):
        NodeSource(node.grpc_address, ALL)
    with pytest.raises(SourceUnreachable, match=r"^block 0 did not come \("):
        numbers(StreamSource(node.tcp_address, ALL))


def test_a_stream(node: Node) -> None:
    source = StreamSource(node.tcp_address, ALL)
    assert (numbers(source), source.count) == ([0, 1, 2, 3, 4], None)
    part = StreamSource(node.tcp_address, NumberRange(2, 4))
    assert numbers(part) == [2, 3]
    block_0 = part.block_0()
    assert block_0 is not None
    assert (block_0.number, block_0.items) == (0, BLOCKS[0].items)
    with pytest.raises(SourceRefused) as none:
        numbers(StreamSource(node.tcp_address, NumberRange(7)))
    assert str(none.value).startswith(f"cannot get block 7: {node.tcp_address}: ")


def test_a_root_that_a_node_has_stored_in_the_other_layout() -> None:
    unsigned = BlockVerifier(ProofVerifier(TrustedKeys(), "hash"))
    summary = check_job(unsigned, Job(1, items=BLOCKS[1].items)).summary
    assert summary is not None
    other = summary.in_other_layout()
    assert other is not None
    job = Job(1, items=BLOCKS[1].items, stored_root_hash=other.root_hash)
    checked = check_job(unsigned, job)
    assert (checked.refusal, checked.summary) == (None, other)
    refusal = check_job(VERIFIER, job).refusal  # whose proof signs the root
    assert refusal is not None
    assert refusal.what == "root hash at the block's end"


def test_a_false_root_at_the_end_of_a_stored_block(tmp_path: Path) -> None:
    """From a data streamer's server, which knows nothing of blocks: a node that finds that does not start."""
    store = BlockStore.open(tmp_path)
    root_hashes = bytes(48), summary_of(list(BLOCKS[1].items)).root_hash
    store.append([VerifiedBlock(n, BLOCKS[n].items, root_hash) for n, root_hash in enumerate(root_hashes)])
    with ServerThread(store.streamer) as server:
        job, _ = StreamSource(Address(server.host, server.port), ALL).jobs()
    store.close()
    root_hash = check_job(VERIFIER, Job(0, items=BLOCKS[0].items)).summary
    assert root_hash is not None
    assert str(check_job(VERIFIER, job).refusal) == (
        f"bad root hash: root hash at the block's end: got {'00' * 48}, expected {root_hash.root_hash.hex()}"
    )


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Bytes and time of change of every file below a folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def test_the_data_folder_of_a_stopped_node_is_read_and_left_alone(tmp_path: Path) -> None:
    store(tmp_path, BLOCKS)
    before = contents(tmp_path)
    source = StoredSource(tmp_path, ALL)
    assert (numbers(source), source.count) == ([0, 1, 2, 3, 4], 5)
    part = StoredSource(tmp_path / "datastream.bin", NumberRange(2, 4))
    assert (numbers(part), part.count) == ([2, 3], 2)
    block_0 = part.block_0()
    assert block_0 is not None
    assert (block_0.number, block_0.items) == (0, BLOCKS[0].items)
    assert contents(tmp_path) == before


def test_the_stream_file_alone_is_enough(tmp_path: Path) -> None:
    """Neither bookmarks nor the snapshot of the chain are needed, nor the right to write."""
    store(tmp_path / "node", BLOCKS)
    copy = tmp_path / "copy.bin"
    copy.write_bytes((tmp_path / "node" / "datastream.bin").read_bytes())
    copy.chmod(0o400)
    assert holds_stream(copy)
    assert numbers(StoredSource(copy, ALL)) == [0, 1, 2, 3, 4]


def test_a_running_node_does_not_mind(tmp_path: Path) -> None:
    store(tmp_path, BLOCKS[:3])
    with node_thread(tmp_path) as node:
        source = StoredSource(tmp_path, ALL)
        node.store.append([stored(3)])
        assert (numbers(source), source.count) == ([0, 1, 2], 3)  # what was there when it began
        assert numbers(StoredSource(tmp_path, ALL)) == [0, 1, 2, 3]


def stored(number: int) -> VerifiedBlock:
    hasher = BlockHasher()
    hasher.add(BLOCKS[number].items)
    return VerifiedBlock(number, BLOCKS[number].items, hasher.finish().root_hash)


def test_a_chain_over_many_pages_from_every_block_on(tmp_path: Path) -> None:
    """Blocks end on the page that they begin on, on the next one, or after several."""
    blocks = large_blocks(8)
    store = BlockStore.open(tmp_path)
    store.append([VerifiedBlock(block.number, block.items, bytes(48)) for block in blocks])
    store.close()
    assert (tmp_path / "datastream.bin").stat().st_size > page_start(3)
    for first in range(len(blocks)):
        jobs = list(StoredSource(tmp_path, NumberRange(first)).jobs())
        assert [job.number for job in jobs] == list(range(first, len(blocks)))
        assert [job.items for job in jobs] == [block.items for block in blocks[first:]]
    items = [b"\x22\xa0\x8d\x06" + bytes(100_000)]
    huge = [VerifiedBlock(8, items * 31, bytes(48)), VerifiedBlock(9, items, bytes(48))]
    store = BlockStore.open(tmp_path)
    store.append(huge)
    store.close()
    for first in (0, 7, 8, 9):
        found = [job.number for job in StoredSource(tmp_path, NumberRange(first)).jobs()]
        assert found == list(range(first, 10))


def test_a_native_chain_and_what_is_not_committed_of_it(tmp_path: Path) -> None:
    blocks = make_network_blocks(120)
    store(tmp_path, blocks[:110], stream="native")
    early = (tmp_path / "datastream.bin").read_bytes()
    for path in (tmp_path, tmp_path / "datastream.bin", tmp_path / "blocks.bin"):
        source = StoredSource(path, ALL)
        assert source.count == 110
        assert [Block(job.number, job.items) for job in source.jobs()] == blocks[:110]
    assert numbers(StoredSource(tmp_path, NumberRange(101, 104))) == [101, 102, 103]
    store(tmp_path, blocks[110:], stream="native")
    assert numbers(StoredSource(tmp_path, ALL)) == list(range(120))
    (tmp_path / "datastream.bin").write_bytes(early)  # as between the two headers of a commit
    assert numbers(StoredSource(tmp_path, ALL)) == list(range(110))


def test_a_chain_that_begins_after_block_0(tmp_path: Path) -> None:
    store = BlockStore.open(tmp_path)
    store.append([stored(3), stored(4)])
    store.close()
    source = StoredSource(tmp_path, ALL)
    assert (numbers(source), source.block_0()) == ([3, 4], None)
    with pytest.raises(SourceRefused) as none:
        StoredSource(tmp_path, NumberRange(0, 3))
    assert str(none.value) == (f"cannot get these blocks: {tmp_path / 'datastream.bin'} has blocks 3 to 4")


def test_files_that_give_no_blocks(tmp_path: Path) -> None:
    path = tmp_path / "datastream.bin"
    assert not holds_stream(tmp_path)
    assert not holds_stream(path)
    BlockStore.open(tmp_path).close()
    with pytest.raises(SourceRefused) as empty:
        StoredSource(tmp_path, ALL)
    assert str(empty.value) == f"cannot get blocks: {path} has none"
    other = DataStreamer.open(tmp_path / "other.bin", stream_type=1, system_id=1, version=1)
    other.start_atomic_op()
    other.add_stream_entry(1, b"no block")
    other.commit_atomic_op()
    other.close()
    with pytest.raises(SourceRefused) as foreign:
        StoredSource(tmp_path / "other.bin", ALL)
    assert str(foreign.value).startswith(f"cannot get blocks: {tmp_path / 'other.bin'}: ")
    path.write_bytes(b"no stream")
    with pytest.raises(SourceRefused) as nonsense:
        StoredSource(tmp_path, ALL)
    assert str(nonsense.value).startswith(f"cannot get blocks: {path}: ")
    os.truncate(path, 0)
    with pytest.raises(SourceRefused):
        StoredSource(path, ALL)


def test_an_altered_byte_of_a_page_is_found(tmp_path: Path) -> None:
    """The format of the stream, the layout of blocks, or the root hash of one shows it."""
    store(tmp_path, BLOCKS[:3])
    path = tmp_path / "datastream.bin"
    with PagesReader(path) as pages:
        last_end = pages.header.total_length
    assert last_end < page_start(0) + PAGE_SIZE
    for at in random.Random(4).sample(range(page_start(0), last_end), 40):
        alter(path, at)
        try:
            refusals = [check_job(VERIFIER, job).refusal for job in StoredSource(path, ALL).jobs()]
        except SourceRefused:
            refusals = []
        alter(path, at)
        assert refusals == [] or any(refusals), at
    assert numbers(StoredSource(path, ALL)) == [0, 1, 2]


def alter(path: Path, at: int) -> None:
    """Flip a bit of one byte of a file."""
    with path.open("r+b") as file:
        file.seek(at)
        [byte] = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))
