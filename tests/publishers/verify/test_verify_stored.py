"""The stream file of a node as a source of blocks to verify."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from datastream import DataStreamer
from datastream.layout import PAGE_SIZE, page_start
from gateway.blocks.proofs import ProofVerifier
from gateway.blocks.root_hash import BlockHasher
from gateway.blocks.trusted_keys import TrustedKeys
from gateway.blocks.verification import BlockVerifier
from gateway.store.block_store import BlockStore, VerifiedBlock
from publishers.errors import SourceRefused
from publishers.number_range import NumberRange
from publishers.sources.stream_runs import PagesReader
from publishers.verify.verify_sources import BlockSource, check_job
from publishers.verify.verify_stored import StoredSource, holds_stream
from tests.nodes import ledger_key, make_blocks
from tests.publishers.node_thread import node_thread, store
from tests.publishers.stored import large_blocks

BLOCKS = make_blocks(5)
VERIFIER = BlockVerifier(ProofVerifier(TrustedKeys.parse([ledger_key()])))
ALL = NumberRange()


def numbers(source: BlockSource) -> list[int]:
    """The numbers of a source's blocks, all of which hold."""
    jobs = list(source.jobs())
    assert all(check_job(VERIFIER, job).refusal is None for job in jobs)
    return [job.number for job in jobs]


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


def test_a_chain_that_begins_after_block_0(tmp_path: Path) -> None:
    store = BlockStore.open(tmp_path)
    store.append([stored(3), stored(4)])
    store.close()
    source = StoredSource(tmp_path, ALL)
    assert (numbers(source), source.block_0()) == ([3, 4], None)
    with pytest.raises(SourceRefused) as none:
        StoredSource(tmp_path, NumberRange(0, 3))
    assert str(none.value) == (f"these blocks cannot be had: {tmp_path / 'datastream.bin'} has blocks 3 to 4")


def test_files_that_give_no_blocks(tmp_path: Path) -> None:
    path = tmp_path / "datastream.bin"
    assert not holds_stream(tmp_path)
    assert not holds_stream(path)
    BlockStore.open(tmp_path).close()
    with pytest.raises(SourceRefused) as empty:
        StoredSource(tmp_path, ALL)
    assert str(empty.value) == f"blocks cannot be had: {path} has none"
    other = DataStreamer.open(tmp_path / "other.bin", stream_type=1, system_id=1, version=1)
    other.start_atomic_op()
    other.add_stream_entry(1, b"no block")
    other.commit_atomic_op()
    other.close()
    with pytest.raises(SourceRefused) as foreign:
        StoredSource(tmp_path / "other.bin", ALL)
    assert str(foreign.value).startswith(f"blocks cannot be had: {tmp_path / 'other.bin'}: ")
    path.write_bytes(b"no stream")
    with pytest.raises(SourceRefused) as nonsense:
        StoredSource(tmp_path, ALL)
    assert str(nonsense.value).startswith(f"blocks cannot be had: {path}: ")
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
