"""Changes beside readers: torn reads, and ranges sent to a socket."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.datastream.errors import StreamChanged
from sluice.datastream.file.concurrent_changes import CHANGES_KEPT_MAX, Changes, Patch, RangeSender
from sluice.datastream.file.disk import RealDisk
from tests.datastream.fake_disk import MemoryDisk

OLD = bytes(range(100))
PATCH = Patch(40, b"N" * 20)
NEW = OLD[:40] + PATCH.data + OLD[60:]


@pytest.mark.parametrize(
    ("offset", "size"), [(0, 100), (0, 40), (60, 40), (30, 20), (45, 5), (50, 30), (40, 20), (39, 22)]
)
def test_reads_see_the_patch(offset: int, size: int) -> None:
    changes, disk = Changes(), MemoryDisk.of(OLD)
    assert changes.read(disk, size, offset) == OLD[offset : offset + size]
    changes.begin_update(PATCH, 42, 55)
    assert changes.read(disk, size, offset) == NEW[offset : offset + size]
    disk.pwrite(PATCH.data, PATCH.offset)
    changes.end_update()
    assert changes.read(disk, size, offset) == NEW[offset : offset + size]


@pytest.mark.parametrize("moment", ["begins", "ends", "begins and ends"])
def test_a_change_during_a_read(moment: str) -> None:
    """The first bytes are torn, so they are read again."""
    changes = Changes()
    torn = OLD[:40] + b"N" * 7 + OLD[47:]

    class Racing(MemoryDisk):
        reads = 0

        def pread(self, size: int, offset: int) -> bytes:
            self.reads += 1
            if self.reads > 1:
                return super().pread(size, offset)
            if "begins" in moment:
                changes.begin_update(PATCH, 40, 60)
            if "ends" in moment:
                self.cache[:] = NEW
                changes.end_update()
            return torn

    disk = Racing.of(OLD)
    if moment == "ends":
        changes.begin_update(PATCH, 40, 60)
    assert changes.read(disk, 100, 0) == NEW
    assert disk.reads == 2  # type: ignore[attr-defined]


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.settimeout(10)
    with ours, theirs:
        yield ours, theirs


def sender_of(path: Path, changes: Changes) -> RangeSender:
    path.write_bytes(OLD)
    return RangeSender(path, RealDisk(path), changes)


def test_ranges(tmp_path: Path, pair: tuple[socket.socket, socket.socket]) -> None:
    changes = Changes()
    sender = sender_of(tmp_path / "f", changes)
    ours, theirs = pair
    assert sender.send(ours.fileno(), 0, 30) == 30
    changes.begin_update(PATCH, 42, 55)
    sent = b""
    while len(sent) < 70:  # the file still holds the old bytes
        count = sender.send(ours.fileno(), 30 + len(sent), 70 - len(sent))
        sent += theirs.recv(1000)[-count:]
    assert sent == NEW[30:]


@pytest.mark.parametrize(
    ("change", "offset", "disturbed"),
    [
        ("update", 42, False),
        ("update", 43, True),
        ("update", 54, True),
        ("update", 55, False),
        ("truncation", 50, False),
        ("truncation", 51, True),
    ],
)
def test_who_has_lost_its_place(
    tmp_path: Path, pair: tuple[socket.socket, socket.socket], change: str, offset: int, disturbed: bool
) -> None:
    changes = Changes()
    sender = sender_of(tmp_path / "f", changes)
    if change == "update":
        changes.begin_update(PATCH, 42, 55)
        changes.end_update()
    else:
        changes.note_truncation(50)
    if disturbed:
        with pytest.raises(StreamChanged, match=f"offset {offset}: the stream was truncated or"):
            sender.send(pair[0].fileno(), offset, 1)
        with pytest.raises(StreamChanged, match=f"offset {offset}: the stream was truncated or"):
            sender.check(offset)
        sender.begin()  # it has no place, so it may begin anywhere
    assert sender.send(pair[0].fileno(), offset, 1) == 1
    sender.check(99)  # the reader knows of this change already


def test_one_change_too_many_to_remember() -> None:
    changes = Changes()
    for _ in range(CHANGES_KEPT_MAX):
        changes.begin_update(PATCH, 40, 60)
        changes.end_update()
    assert not changes.is_disturbed(10, 0)
    changes.begin_update(PATCH, 40, 60)
    assert changes.is_disturbed(10, 0)
    assert not changes.is_disturbed(10, 1)
