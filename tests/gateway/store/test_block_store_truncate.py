"""Cutting the last blocks off a block store: what a failing disk leaves, and what goes on."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from sluice.datastream.errors import CommitFailed
from sluice.datastream.file.disk import RealDisk
from sluice.datastream.file.updating import NewestGivenUp
from sluice.gateway.errors import Fatal
from sluice.gateway.store.block_store import BlockStore
from tests.datastream.fake_disk import FailingDisk
from tests.gateway.store.test_block_store import BLOCKS, commit, filled
from tests.nodes import stream_bytes


def snapshot_of(data_dir: Path) -> int:
    number = json.loads((data_dir / "chain.json").read_text())["chain"]["last_number"]
    assert isinstance(number, int)
    return number


@pytest.mark.parametrize("number", [0, 3, 6])
def test_the_chain_goes_on_behind_the_last_block_that_stays(tmp_path: Path, number: int) -> None:
    filled(tmp_path / "a")
    store = BlockStore.open(tmp_path / "a")
    read: list[None] = []
    store.truncate(number, lambda: read.append(None))
    assert len(read) == number + 1
    assert (store.first_number, store.last_number) == (0, number)
    assert store.chain.last_root_hash == BLOCKS[number].root_hash
    assert store.read_block(number + 1) is None
    assert snapshot_of(tmp_path / "a") == number
    commit(store, BLOCKS[number + 1 :])
    store.close()
    assert stream_bytes(tmp_path / "a") == filled(tmp_path / "b")
    assert (tmp_path / "a" / "chain.json").read_text() == (tmp_path / "b" / "chain.json").read_text()


def test_the_last_block_cuts_nothing_and_others_are_refused(tmp_path: Path) -> None:
    store = BlockStore.open(tmp_path)
    with pytest.raises(Fatal, match=r"got no block, expected a chain that has block 0"):
        store.truncate(0)
    commit(store, BLOCKS[:3])
    store.truncate(2)
    assert not (tmp_path / "chain.json").exists()
    for number in (3, 9):
        with pytest.raises(Fatal, match=f"got blocks 0 to 2, expected a chain that has block {number}"):
            store.truncate(number)
    assert store.last_number == 2
    store.close()


def test_a_disk_that_refuses_leaves_the_chain_as_it_was(tmp_path: Path) -> None:
    filled(tmp_path)
    disk = FailingDisk(RealDisk(tmp_path / "datastream.bin"))
    store = BlockStore.open(tmp_path, disk=disk)
    disk.plan = {"fdatasync": [errno.EIO]}
    with pytest.raises(CommitFailed):
        store.truncate(4)
    assert (store.last_number, store.chain.last_root_hash) == (7, BLOCKS[7].root_hash)
    assert snapshot_of(tmp_path) == 4  # behind the stream, which is allowed
    store.close()
    assert snapshot_of(tmp_path) == 7
    store = BlockStore.open(tmp_path)
    assert store.last_number == 7
    store.close()


def test_no_snapshot_is_ever_ahead_of_the_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither when it cannot be written, nor when it is interrupted after the commit point."""
    filled(tmp_path)
    store = BlockStore.open(tmp_path)

    def refuse(folder: Path) -> None:
        raise OSError(errno.EIO, "refused", str(folder))

    with monkeypatch.context() as patched:
        patched.setattr("sluice.gateway.regular_files.flush_folder", refuse)
        with pytest.raises(OSError, match="refused"):
            store.truncate(4)
    assert store.last_number == 7
    store.close()
    store = BlockStore.open(tmp_path)
    assert store.last_number == 7
    cut = store.streamer.truncate_file

    def interrupted(number: int, newest_given_up: NewestGivenUp) -> None:
        cut(number, newest_given_up)
        raise KeyboardInterrupt

    monkeypatch.setattr(store.streamer, "truncate_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.truncate(4)
    assert store.last_number == 4
    store.close()
    assert snapshot_of(tmp_path) == 4
    store = BlockStore.open(tmp_path)
    assert store.chain.last_root_hash == BLOCKS[4].root_hash
    store.close()
