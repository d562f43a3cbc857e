"""Real file systems on a device that refuses writes for a while; many rounds: `python -m tests.devices`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.datastream.check.check import Severity, check_stream, repair_stream
from sluice.datastream.errors import CommitFailed
from sluice.datastream.file.disk import RealDisk
from sluice.datastream.file.streamer import DataStreamer
from sluice.gateway.regular_files import replace_file
from tests.datastream.streams import Item, bookmark, commit, entries
from tests.devices.device import Device, why_not
from tests.devices.run import STORIES, run_node, run_stream

KINDS = ("ext4", "xfs")
ROUNDS = (("ext4", 16), pytest.param("ext4", 18, marks=pytest.mark.slow), ("xfs", 9))
"""Seeds of different rounds."""


def skip_without(kind: str) -> None:
    """Skip a test where there can be no such device."""
    reason = why_not(kind)
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(params=KINDS)
def device(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Device]:
    """A device with a file system."""
    skip_without(request.param)
    with Device(tmp_path, request.param) as device:
        yield device


@pytest.mark.parametrize(("kind", "seed"), ROUNDS)
def test_nothing_acknowledged_is_missing(tmp_path: Path, kind: str, seed: int) -> None:
    skip_without(kind)
    outcome = run_stream(tmp_path, kind, seed)
    assert outcome.wrong == []
    assert outcome.story in STORIES
    assert outcome.acknowledged > 2


@pytest.mark.slow
def test_nothing_that_a_node_acknowledged_is_missing(tmp_path: Path) -> None:
    skip_without("ext4")
    outcome = run_node(tmp_path, "ext4", 1)
    assert outcome.wrong == []
    assert outcome.acknowledged > 20


class TrustingDisk(RealDisk):
    """A disk that trusts a second flush after a failed one."""

    def rewrite(self, data: bytes, offset: int) -> None:
        """Write again, through the page cache."""
        self.pwrite(data, offset)
        self.fdatasync()

    def discard(self, offset: int) -> None:
        """Keep what the page cache holds behind the end, which is zeros, or written again."""


ITEMS: tuple[Item, ...] = (
    *(bookmark(1), (1, b"first" * 900)),
    *(bookmark(2), (1, b"second" * 40_000)),
    (1, b"third"),
)


def lose(device: Device, path: Path) -> None:
    """Make a stream of ITEMS of which the page cache holds more than the disk, on ext4."""
    DataStreamer.open(path, initial_pages=2).close()
    with DataStreamer.open(path, disk=TrustingDisk(path)) as streamer:
        commit(streamer, *ITEMS[:2], flush=True)
        device.refuse()
        with pytest.raises(CommitFailed, match="flush"):
            commit(streamer, *ITEMS[2:4], flush=True)
        device.take()
        commit(streamer, *ITEMS[2:4], flush=True)
        commit(streamer, ITEMS[4], flush=True)


def mounted_anew(device: Device, path: Path) -> bool:
    """Return whether a stream has all ITEMS after a remount."""
    device.unmount()
    device.mount()
    if any(finding.severity is Severity.DAMAGE for finding in check_stream(path).findings):
        return False
    with DataStreamer.open(path) as streamer:
        return list(streamer.read_entries(0)) == entries(*ITEMS)


def test_a_second_flush_is_not_to_be_believed(device: Device) -> None:
    """The second flush succeeds, and on ext4 the bytes are gone."""
    path = device.disk / "s.bin"
    lose(device, path)
    assert mounted_anew(device, path) is (device.kind != "ext4")


def test_a_check_finds_what_is_only_in_memory_and_repairs_it(device: Device) -> None:
    path = device.disk / "s.bin"
    lose(device, path)
    result = check_stream(path)
    whats = [finding.what for finding in result.findings if "only in memory" in finding.what]
    assert bool(whats) is (device.kind == "ext4")
    assert result.counts[Severity.DAMAGE] == 0
    done = repair_stream(path, result)
    assert any("only in memory" in line for line in done) is bool(whats)
    assert not [one for one in check_stream(path).findings if "memory" in one.what]
    assert mounted_anew(device, path)


def test_an_opening_writes_what_is_only_in_memory(device: Device) -> None:
    path = device.disk / "s.bin"
    lose(device, path)
    DataStreamer.open(path).close()
    assert mounted_anew(device, path)


def test_a_small_file_is_replaced_whole_or_not_at_all(device: Device) -> None:
    """The file whose flush failed never takes its place, and the next try does not use its pages."""
    path, contents = device.disk / "chain.json", os.urandom(40_000)
    replace_file(path, b"old")
    device.refuse()
    for _ in range(2):
        with pytest.raises(OSError, match=r"No space|Input/output"):
            replace_file(path, contents)
        assert path.read_bytes() == b"old"
    device.take()
    replace_file(path, contents)
    device.unmount()
    device.mount()
    assert path.read_bytes() == contents
    assert [path.name for path in device.disk.glob("*.*")] == ["chain.json"]
