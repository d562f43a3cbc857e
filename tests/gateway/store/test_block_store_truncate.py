"""Tests of `store.block_store`, of cutting its last blocks: what a failing disk leaves, and what goes on."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from datastream.errors import CommitFailed
from datastream.file.disk import RealDisk
from gateway.errors import Fatal
from gateway.store.block_store import BlockStore
from tests.datastream.fake_disk import FailingDisk
from tests.gateway.store.test_block_store import BLOCKS, commit, filled
from tests.nodes import stream_bytes


def snapshot_of(data_dir: Path) -> int:
    """The last block that chain.json tells of."""
    number = json.loads((data_dir / "chain.json").read_text())["chain"]["last_number"]
    assert isinstance(number, int)
    return number


@pytest.mark.parametrize("number", [0, 3, 6])
def test_the_chain_goes_on_behind_the_last_block_that_stays(tmp_path: Path, number: int) -> None:
    filled(tmp_path / "a")
    ledger = BlockStore.open(tmp_path / "a")
    read: list[None] = []
    ledger.truncate(number, lambda: read.append(None))
    assert len(read) == number + 1
    assert (ledger.first_number, ledger.last_number) == (0, number)
    assert ledger.chain.last_root_hash == BLOCKS[number].root_hash
    assert ledger.read_block(number + 1) is None
    assert snapshot_of(tmp_path / "a") == number
    commit(ledger, BLOCKS[number + 1 :])
    ledger.close()
    assert stream_bytes(tmp_path / "a") == filled(tmp_path / "b")
    assert (tmp_path / "a" / "chain.json").read_text() == (tmp_path / "b" / "chain.json").read_text()


def test_the_last_block_cuts_nothing_and_others_are_refused(tmp_path: Path) -> None:
    ledger = BlockStore.open(tmp_path)
    with pytest.raises(Fatal, match=r"got no block, expected a chain that has block 0"):
        ledger.truncate(0)
    commit(ledger, BLOCKS[:3])
    ledger.truncate(2)
    assert not (tmp_path / "chain.json").exists()
    for number in (3, 9):
        with pytest.raises(Fatal, match=f"got blocks 0 to 2, expected a chain that has block {number}"):
            ledger.truncate(number)
    assert ledger.last_number == 2
    ledger.close()


def test_a_disk_that_refuses_leaves_the_chain_as_it_was(tmp_path: Path) -> None:
    filled(tmp_path)
    disk = FailingDisk(RealDisk(tmp_path / "datastream.bin"))
    ledger = BlockStore.open(tmp_path, disk=disk)
    disk.plan = {"fdatasync": [errno.EIO]}
    with pytest.raises(CommitFailed):
        ledger.truncate(4)
    assert (ledger.last_number, ledger.chain.last_root_hash) == (7, BLOCKS[7].root_hash)
    assert snapshot_of(tmp_path) == 4  # behind the stream, as it may be
    ledger.close()
    assert snapshot_of(tmp_path) == 7
    ledger = BlockStore.open(tmp_path)
    assert ledger.last_number == 7
    ledger.close()


def test_no_snapshot_is_ever_ahead_of_the_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither where it cannot be written, nor where it is interrupted behind the commit point."""
    filled(tmp_path)
    ledger = BlockStore.open(tmp_path)

    def refuse(folder: Path) -> None:
        raise OSError(errno.EIO, "refused", str(folder))

    with monkeypatch.context() as patched:
        patched.setattr("gateway.regular_files.flush_folder", refuse)
        with pytest.raises(OSError, match="refused"):
            ledger.truncate(4)
    assert ledger.last_number == 7
    ledger.close()
    ledger = BlockStore.open(tmp_path)
    assert ledger.last_number == 7
    cut = ledger.streamer.truncate_file

    def interrupted(number: int) -> None:
        cut(number)
        raise KeyboardInterrupt

    monkeypatch.setattr(ledger.streamer, "truncate_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ledger.truncate(4)
    assert ledger.last_number == 4
    ledger.close()
    assert snapshot_of(tmp_path) == 4
    ledger = BlockStore.open(tmp_path)
    assert ledger.chain.last_root_hash == BLOCKS[4].root_hash
    ledger.close()
