"""The root hash of the last block, which the next block may show to be another."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from sluice.gateway.blocks.chain import LastLayout
from sluice.gateway.blocks.merkle import HASH_SIZE, tree_root
from sluice.gateway.store.block_store import BlockStore
from tests.gateway.store.test_block_store import BLOCKS, filled, logged


def with_two_roots(tmp_path: Path) -> tuple[BlockStore, bytes]:
    """Return a block store whose last block may have another root, and that root."""
    other = b"o" * HASH_SIZE
    filled(tmp_path, BLOCKS[:3])
    store = BlockStore.open(tmp_path)
    store.learn(LastLayout(78, 16, other))
    return store, other


def test_a_root_that_is_settled_is_written_in_its_place_and_found_again(tmp_path: Path) -> None:
    store, other = with_two_roots(tmp_path)
    before = store.streamer.committed.total_entries
    store.settle(other)
    store.settle(other)  # the disk refused the block after it
    store.settled()
    assert store.streamer.committed.total_entries == before
    assert (store.root_hash_at(2), store.chain.last_root_hash) == (other, other)
    links = store.chain.links_of_next()
    assert links == (other, tree_root([BLOCKS[0].root_hash, BLOCKS[1].root_hash, other]))
    store.close()
    again = BlockStore.open(tmp_path)
    assert again.chain.links_of_next() == links
    again.close()


def test_a_stop_between_settling_a_root_and_noting_it_leaves_the_settled_one(tmp_path: Path) -> None:
    store, other = with_two_roots(tmp_path)
    store.settle(other)
    store.streamer.close()  # with the earlier snapshot
    again = BlockStore.open(tmp_path)
    assert again.chain.links_of_next()[0] == other
    again.close()


def test_a_snapshot_of_an_earlier_version_is_made_anew_where_the_last_root_may_be_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path, BLOCKS[:3])
    path = tmp_path / "chain.json"
    state = json.loads(path.read_text())["chain"]
    del state["tree_stack_before"], state["stream_layout"]
    digest = hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({"chain": state, "sha256": digest}))
    store = BlockStore.open(tmp_path)
    links = store.chain.links_of_next()
    store.learn(LastLayout(78, 16, None))
    assert logged(caplog, "chain snapshot is of an earlier version: all root hashes are read again") == []
    store.learn(LastLayout(78, 16, b"o" * HASH_SIZE))
    assert len(logged(caplog, "chain snapshot is of an earlier version: all root hashes are read again")) == 1
    assert store.chain.links_of_next() == links
    assert store.chain.in_other_layout() is not None
    store.close()
